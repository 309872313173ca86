"""Learned human policies against the exact ones: targets, learning, and their use by a robot."""

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.empowering import Slow, open_states, spaces

from motet import Settings, train
from motet.algorithm import stacked_batch
from motet.algorithms import AttainConfig, EmpowerConfig, LearnedHumans
from motet.algorithms._attain_learner import HumanFormulas
from motet.algorithms._device import Device
from motet.algorithms._transitions import Transitions
from motet.errors import ModelError, SettingError
from motet.plan import Humans, enumerate_states, solve
from motet.policies.humans import learned_humans
from motet.schedule import Stages
from motet.worlds import Bushes, OneMind, Rooms, UniformHumans

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16}


def batch_of(world, config, states, seed=0):
    """A batch with one row for each of these states."""
    coded, own = world.coded, spaces(world)
    behaviour = config.behaviour(*own)
    behaviour.begin(seed)
    codes = np.stack([coded.code(state) for state in states])
    _, extra = behaviour.act(codes)
    sized = replace(config, batch_size=len(states), min_rows=max(config.min_rows, len(states)))
    batch = stacked_batch(*own, sized.replay(*own), 1)
    batch.observation[:] = codes
    for name, value in extra.items():
        batch.extra[name] = value[None]
    return batch


def discount(settings, duration):
    return settings.gamma if settings.rho is None else math.exp(-settings.rho * duration)


def imitators(state, agent, action):
    """Others do the same, or wait, the more likely the further the episode is."""
    p = 0.25 + state[0] / 8
    return [(p, [action] * 3), (0.75 - p, [4] * 3), (0.25, [4, 4, 0])]


def dict_of(believed, state, humans, position, action):
    """The believed probability of each action of the other one of two humans."""
    found = dict.fromkeys(range(5), 0.0)
    for p, profile in believed(state, humans[position], action):
        found[profile[humans[1 - position]]] += p
    return found


def exact_q(solution, world, state, settings, believed=None):
    """Q_h of all goals and actions in a state, from the exact V_h of its successors, number by number."""
    model, coded = world.coded.model, world.coded
    q = np.zeros((len(coded.weights), 5))
    values = solution.arrays["human_value"]
    for column, (position, goal) in enumerate(
        (position, goal) for position, own in enumerate(coded.goals) for goal, _ in own
    ):
        for action in range(5):
            total = 0.0
            for other in range(5):
                profile = [action, other] if position == 0 else [other, action]
                per_robot = []
                for r in range(5):
                    found, joint = (
                        model.transition_probabilities(state, coded.joint(profile, r)),
                        coded.joint(profile, r),
                    )
                    times = model.transition_durations(state, joint, found) if coded.timed else [1.0] * len(found)
                    per_robot.append(sum(
                        p * (1.0 if goal.is_achieved(after)
                             else discount(settings, d) * values[solution.graph.number(after), column])
                        for (p, after), d in zip(found, times, strict=True)
                    ))  # fmt: skip
                share = 0.2 if believed is None else dict_of(believed, state, coded.humans, position, action)[other]
                total += {"worst": min, "best": max, "mean": np.mean}[settings.robot](per_robot) * share
            q[column, action] = total
    return q


@pytest.mark.parametrize(
    ("robot", "discounts", "believed"),
    [
        *((robot, {"gamma": 0.9}, None) for robot in ("worst", "best", "mean")),
        ("worst", {"gamma": 1.0, "rho": 0.3}, imitators),
    ],
    ids=["worst", "best", "mean", "durations and beliefs"],
)
def test_exact_values_are_the_fixed_point_of_the_targets(robot, discounts, believed):
    """With all profiles, exact values of the successors give the exact values of the states."""
    model = (Slow if "rho" in discounts else Bushes)("HR.H", horizon=3)
    world, graph = UniformHumans(model, believed_others_policy=believed), enumerate_states(model)
    config = AttainConfig(profiles="all", beta=7.0, robot=robot, **discounts, **SMALL)
    coded = world.coded
    goals = {human: model.goals(human) for human in model.human_agent_indices}
    settings = Humans(beta=7.0, robot=robot, believed_others_policy=believed, **discounts)
    solution = solve(graph, goals, settings, robot=None)
    states = open_states(graph, 12, seed=2)
    batch = batch_of(world, config, states)
    rows = Transitions(batch, len(coded.weights), Device("cpu"), torch.float64)
    formulas = HumanFormulas(config, coded, Device("cpu"), torch.float64)
    numbers = [graph.number(coded.state(code)) for code in rows.codes[0, : rows.n]]
    behind_an_end = np.full((8, 5), 0.7)  # must not count
    known = np.stack([
        behind_an_end if graph.terminal[n] else exact_q(solution, world, graph.states[n], config, believed)
        for n in numbers
    ])  # fmt: skip
    aim, given = formulas.targets(
        rows, torch.from_numpy(known[None]), torch.from_numpy(batch.extra["profile"].astype(np.int64)),
        torch.from_numpy(batch.extra["belief"]) if believed else None,
    )  # fmt: skip
    assert bool((given == 1).all())
    value = formulas.value(aim)[0].numpy()
    for i, state in enumerate(states):
        np.testing.assert_allclose(aim[0, i], exact_q(solution, world, state, config, believed), atol=1e-6)
        achieved = [goal.is_achieved(state) for own in coded.goals for goal, _ in own]
        exact = solution.arrays["human_value"][graph.number(state)]
        np.testing.assert_allclose(value[i][~np.array(achieved)], exact[~np.array(achieved)], atol=1e-6)


@pytest.mark.parametrize("believed", [None, imitators], ids=["uniform", "imitators"])
def test_drawn_profiles_are_right_on_average(believed):
    model = Bushes(horizon=4)
    world, graph = UniformHumans(model, believed_others_policy=believed), enumerate_states(model)
    config = AttainConfig(**SMALL)
    state = next(state for state in open_states(graph, 20, seed=8) if state[0] == 1)  # what comes after it differs
    formulas = HumanFormulas(config, world.coded, Device("cpu"))

    def targets(config, count):
        batch = batch_of(world, config, [state] * count, seed=3)
        rows = Transitions(batch, 14, Device("cpu"))
        code = torch.from_numpy(rows.codes[:, : rows.n].astype(np.float32))
        q = torch.sigmoid(4 * torch.sin(3 * code[..., 2] + 2 * code[..., 3])).reshape(1, -1, 1, 1).expand(-1, -1, 14, 5)
        belief = torch.from_numpy(batch.extra["belief"]) if believed else None
        return formulas.targets(rows, q, torch.from_numpy(batch.extra["profile"].astype(np.int64)), belief)

    exact, _ = targets(replace(config, profiles="all"), 1)
    drawn, given = targets(config, 4000)
    np.testing.assert_allclose((drawn * given).sum(1) / given.sum(1), exact[:, 0], atol=0.03)


def test_humans_whose_goal_holds_act_by_the_convention():
    """They stay, or act by the softmax, as those of a plan do."""
    model = Bushes(horizon=3)
    world, state, (goal, _) = UniformHumans(model), (0, (2, 0, 6), (1,) * 7), model.goals(1)[0]
    graph, goals = enumerate_states(model), {human: model.goals(human) for human in model.human_agent_indices}
    assert goal.is_achieved(state)
    for achieved in ("stay", "zero", "one"):
        config = AttainConfig(achieved=achieved, **SMALL)
        behaviour = config.behaviour(*spaces(world))
        behaviour.load(config.build(*spaces(world), agents=1, seeds=[0]).weights()[0], {})
        q = behaviour.attainments(world.coded.code(state)[None])[0, 0]
        by_softmax = np.exp(10 * q) / np.exp(10 * q).sum()
        expected = np.eye(5)[0] if achieved == "stay" else by_softmax
        np.testing.assert_allclose(behaviour.policy(state, 1, goal), expected, rtol=1e-6)
        exact = solve(graph, goals, Humans(achieved=achieved), robot=None).policy(state, 1, goal)
        assert (exact.max() == 1.0) == (achieved == "stay")
    with pytest.raises(SettingError, match="still must be 0 unless achieved is 'stay', got 4"):
        AttainConfig(achieved="zero", still=4)


def test_others_may_be_believed_to_act_by_a_solution():
    """Their priors of the solution are what a function would say."""
    model = Bushes("HR.H", horizon=3)
    graph, goals = enumerate_states(model), {human: model.goals(human) for human in model.human_agent_indices}
    solution = solve(graph, goals, Humans(beta=5.0), robot=None)

    def independent(state, agent, action):
        (other,) = {1, 2} - {agent}
        return [(p, [0, a, a]) for a, p in enumerate(solution.policy(state, other))]

    config, states = AttainConfig(**SMALL), open_states(graph, 30, seed=1)
    by_solution, by_function = (
        batch_of(copy.deepcopy(UniformHumans(model, believed_others_policy=given)), config, states).extra
        for given in (solution, independent)
    )
    for name, value in by_solution.items():
        np.testing.assert_array_equal(value, by_function[name], err_msg=name)
    assert by_solution["belief"].max() <= 2 + 1e-6, "no weight is above the number of humans"
    assert by_solution["belief"].std() > 0.05


def test_learned_humans_act_like_the_exact_ones(tmp_path):
    """Learned in 4,000 steps: their policies are near the exact ones, and far from uniform ones."""
    model = Bushes("HR.H", horizon=3)
    config = AttainConfig(beta=10.0, gamma=0.95, hidden=(32,), min_rows=100, learning_rate=3e-3, target_every=25)
    world = functools.partial(Bushes, map="HR.H", horizon=3)
    train(world, config, Settings(steps=4000, engine="serial", worlds_per_actor=4), run=tmp_path / "run")
    humans = learned_humans(tmp_path / "run")
    graph = enumerate_states(model)
    goals = {human: model.goals(human) for human in model.human_agent_indices}
    solution = solve(graph, goals, Humans(beta=10.0, gamma=0.95), robot=None)
    found, uniform = [], []
    for state in open_states(graph):
        for human, own in goals.items():
            for goal, _ in own:
                exact = solution.policy(state, human, goal)
                found.append(np.abs(humans.policy(state, human, goal) - exact).sum() / 2)
                uniform.append(np.abs(0.2 - exact).sum() / 2)
    assert np.mean(found) < 0.35 * np.mean(uniform), (np.mean(found), np.mean(uniform))


def test_both_phases_are_learned(tmp_path):
    """The humans of one run are the partners of the next, in other processes too."""
    small = functools.partial(Bushes, horizon=3)
    train(small, AttainConfig(**SMALL), Settings(steps=80, engine="serial"), run=tmp_path / "humans")
    humans = learned_humans(tmp_path / "humans")
    copied = copy.deepcopy(humans)
    model = Bushes(horizon=3)
    model.reset()
    state, goal = model.get_state(), model.goals(1)[3][0]
    np.testing.assert_array_equal(copied.policy(state, 1, goal), humans.policy(state, 1, goal))
    assert humans.policy(state, 1, model.goals(1)[0][0]).tolist() == [1, 0, 0, 0, 0], "it stays where its goal holds"
    world = functools.partial(OneMind, small, humans=humans)
    result = train(world, EmpowerConfig(stages=Stages(), beta=5.0, **SMALL), Settings(steps=100, updates_per_step=0.5))
    assert result.updates["robot_0"] > 10


def test_lockstep_is_serial():
    settings = {"steps": 160, "actors": 2, "worlds_per_actor": 2, "updates_per_step": 1.0}
    world = functools.partial(Rooms, "passage", horizon=4)
    serial, lockstep = (
        train(world, AttainConfig(successors=12, **SMALL), Settings(**engine, **settings))
        for engine in ({"engine": "serial"}, {"slack": 0})
    )
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([(0.5, [0, 0, 0])], "must give probabilities >= 0 with sum 1, got list .0.5."),
        ([(-0.5, [0, 0, 0]), (1.5, [0, 1, 1])], "must give probabilities >= 0 with sum 1"),
        ([(1.0, [0, 9, 9])], "raised, or gave no list of"),
        (None, "raised, or gave no list of"),
    ],
)
def test_wrong_beliefs_are_named_with_state_human_and_action(given, error):
    world = UniformHumans(Bushes(horizon=3), believed_others_policy=lambda state, agent, action: given)
    with pytest.raises(ModelError, match=rf"believed_others_policy {error}.*\(state \(0, .*, human_\d, action \d\)"):
        batch_of(world, AttainConfig(**SMALL), [world.coded.first])
    with pytest.raises(SettingError, match=r"believed_others_policy must be a function .* got 3"):
        UniformHumans(Bushes(horizon=3), believed_others_policy=3)


def test_wrong_settings_are_named(tmp_path):
    world = UniformHumans(Bushes(horizon=3))
    with pytest.raises(SettingError, match="still must be an action of every human, below 5, got 5"):
        AttainConfig(still=5).replay(*spaces(world))
    config = AttainConfig(**SMALL)
    behaviour = config.behaviour(*spaces(world))
    behaviour.load(config.build(*spaces(world), agents=1, seeds=[0]).weights()[0], {})
    humans = LearnedHumans(behaviour)
    state = world.coded.first
    with pytest.raises(SettingError, match=r"human must be one of \(1, 2\), got 0"):
        humans.policy(state, 0, world.coded.goals[0][0][0])
    with pytest.raises(SettingError, match="goal must be one that was learned for human_0, got 'nowhere'"):
        humans.policy(state, 1, "nowhere")
    train(functools.partial(Bushes, horizon=3), EmpowerConfig(**SMALL), Settings(steps=60, engine="serial"),
          run=tmp_path / "run")  # fmt: skip
    with pytest.raises(SettingError, match="run must be a run of the algorithm attain, got"):
        learned_humans(tmp_path / "run")
    with pytest.raises(ModelError, match=r"a joint action must have at most 1 successors, got 2 \(state "):
        batch_of(world, AttainConfig(successors=1, **SMALL), open_states(enumerate_states(Bushes(horizon=3))))

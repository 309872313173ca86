"""Learned empowerment against the exact one: rows, targets, tables and networks."""

import functools
import json
import zlib
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tests.support.bush_corridor import BushCorridor, StandOn
from tests.support.empowering import EXACT, all_profiles, batch_of, induced, open_states, plain_targets, spaces
from tests.support.killer import Killer
from tests.support.small_models import Layered

from motet import Settings, resume, train
from motet.algorithms._device import Device
from motet.algorithms._empower_learner import Formulas, ModelRows, Scheduled
from motet.algorithms.attain import AttainConfig
from motet.algorithms.empower import EmpowerConfig
from motet.cli import main
from motet.cli.flags import parse
from motet.errors import ModelError, SettingError
from motet.evaluation.exact import ExactEmpowerment, behaviour_of, compare_exact, share_of_the_way
from motet.plan import Robot, enumerate_states, solve_robot
from motet.replay import ReplaySpec
from motet.reports.exact import compare_with_exact
from motet.schedule import Linear, Staged, Stages
from motet.system.supervisor import RestartLimits
from motet.worlds import Bushes, OneMind, Rooms

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16}


@pytest.fixture(scope="module")
def corridor():
    model = Bushes(horizon=4)
    return OneMind(model), enumerate_states(model)


@dataclass(frozen=True)
class Parity:
    """A goal that holds in every other step."""

    odd: int

    def is_achieved(self, state):
        return state[0] % 2 == self.odd


class Timed(Bushes):
    """One more goal is always a step away, so that goals that hold already may count nothing."""

    def goals(self, agent):
        return [*super().goals(agent), (Parity(0), 0.5), (Parity(1), 0.25)]

    def towards(self, state, human, goal):
        return [0.2] * 5 if isinstance(goal, Parity) else super().towards(state, human, goal)


@pytest.mark.parametrize(
    "settings",
    [{}, {"zeta": 1.7, "eta": 1.1, "xi": 1.5}, {"achieved": "one", "gamma": 1.0}, {"achieved": "zero", "beta": 2.0}],
    ids=["plain", "exponents", "one", "zero"],
)
def test_the_fixed_point_is_the_exact_solution(settings):
    """With all profiles, all goals and tables, one sweep per level is the plan's backward induction."""
    model = (Timed if "achieved" in settings else Bushes)(horizon=3)
    world, graph, config = OneMind(model), enumerate_states(model), replace(EXACT, **settings)
    robot = Robot(config.beta, zeta=config.zeta, xi=config.xi, eta=config.eta, gamma=config.gamma)
    goals = {human: model.goals(human) for human in model.human_agent_indices}
    exact = solve_robot(graph, goals, model.towards, robot, gamma=config.human_gamma, achieved=config.achieved)
    learner = induced(world, graph, config)
    inner = [i for i in np.flatnonzero(~graph.terminal).tolist() if graph.states[i][0] < model.horizon - 1]
    numbers = world.coded.numbers(np.stack([world.coded.code(graph.states[i]) for i in inner]))
    np.testing.assert_allclose(-np.exp(learner._losses[0, numbers]), exact.arrays["robot_q"][inner], rtol=1e-5)
    counts = ~exact.achieved[inner].astype(bool) if config.achieved != "stay" else np.s_[:]
    np.testing.assert_allclose(
        learner._values[0, numbers][counts], exact.arrays["attainment"][inner][counts], rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("profiles", ["all", "drawn"])
def test_targets_in_double_precision_are_those_of_plain_python(profiles):
    model = Bushes(horizon=3, thickest=8)  # its probabilities have few bits, so rows hold them exactly
    world, graph = OneMind(model), enumerate_states(model)
    config = EmpowerConfig(profiles=profiles, beta=5.0, stages=Stages(), zeta=2.0, xi=1.3, eta=1.1, **SMALL)
    states = open_states(graph, 8, seed=3)
    batch = batch_of(world, config, states, seed=1, precise=True)
    coded = world.coded
    rows = ModelRows(batch, len(coded.weights), Device("cpu"), torch.float64)
    rng, known = np.random.default_rng(5), {}
    for code in rows.codes[0]:
        known.setdefault(code.tobytes(), (rng.uniform(0.1, 0.9, 14), rng.uniform(0.5, 20, 5)))
    attained, losses = (np.stack([known[code.tobytes()][i] for code in rows.codes[0]]) for i in (0, 1))
    formulas = Formulas(config, coded, Device("cpu"), torch.float64)
    found = formulas.targets(
        rows, torch.from_numpy(attained[None, : rows.n]), torch.from_numpy(np.log(losses)[None]),
        Scheduled.of(config, [(0, 0)], Device("cpu"), torch.float64),
    )  # fmt: skip
    for i, state in enumerate(states):
        chosen = list(all_profiles(model, state))
        if profiles == "drawn":
            chosen = [(drawn_profile(world, batch, i, state), 1.0)]
        aim, weight, loss = plain_targets(
            model, config, state, chosen, *(lambda s, k=k: known[coded.code(s).tobytes()][k] for k in (0, 1))
        )
        np.testing.assert_allclose(found.loss[0, i], loss, rtol=1e-9)
        np.testing.assert_allclose(found.weight[0, i], weight, rtol=1e-9)
        np.testing.assert_allclose(found.attainment[0, i], aim, rtol=1e-9)


def drawn_profile(world, batch, i, state):
    """The profile of a row, found by its ratios."""
    coded = world.coded
    policies = coded.policies(state)
    priors = coded.priors(policies)
    for profile in np.ndindex(5, 5):
        if all(prior[a] > 0 for prior, a in zip(priors, profile, strict=True)):
            ratio = np.concatenate([p[:, a] / b[a] for p, a, b in zip(policies, profile, priors, strict=True)])
            if np.allclose(ratio, batch.extra["ratio"][0, i, 0]) and same_successors(world, batch, i, state, profile):
                return profile
    raise AssertionError("no profile has these ratios")


def same_successors(world, batch, i, state, profile):
    coded, count = world.coded, int(batch.extra["count"][0, i, 0])
    told = {code.tobytes() for code in batch.extra["successor"][0, i, 0, :count]}
    found = {
        coded.code(after).tobytes()
        for r in range(5)
        for _, after in coded.model.transition_probabilities(state, coded.joint(profile, r))
    }
    return told == found


def test_drawn_profiles_are_right_on_average(corridor):
    """The mean over many drawn rows is the target of all profiles: nothing is biased."""
    world, graph = corridor
    config = EmpowerConfig(beta=5.0, stages=Stages(), **SMALL)
    state = open_states(graph, 1, seed=8)[0]

    def targets(config, count):
        learner = config.build(*spaces(world), agents=1, seeds=[0])
        _, found, _ = learner._learn_targets(batch_of(world, config, [state] * count, seed=2), [0])
        return found

    exact = targets(replace(config, profiles="all"), 1)
    drawn = targets(config, 4000)
    mean = (drawn.weight * drawn.attainment).mean(1) / drawn.weight.mean(1)
    np.testing.assert_allclose(mean, exact.attainment[:, 0], atol=0.02)
    np.testing.assert_allclose(drawn.weight.mean(1), 1.0, atol=0.12)
    np.testing.assert_allclose(drawn.loss.mean(1), exact.loss[:, 0], rtol=0.01)


# ---- rows


def test_a_row_of_a_grid_takes_less_than_a_kilobyte():
    world = OneMind(Bushes("H.R...H\n.......\n.......", horizon=12))
    settings = EmpowerConfig().replay(*spaces(world))
    spec = ReplaySpec(*spaces(world), capacity=100, extra=settings.extra)
    assert world.coded.size == 1 + 3 + 21
    assert spec.row_bytes < 1000, spec.row_bytes


def test_a_row_agrees_with_the_model(corridor):
    world, graph = corridor
    coded, model = world.coded, world.coded.model
    states = open_states(graph, 12, seed=1)
    extra = batch_of(world, EmpowerConfig(**SMALL), states, seed=4).extra
    for i, state in enumerate(states):
        profile = drawn_profile(world, batch_of(world, EmpowerConfig(**SMALL), states, seed=4), i, state)
        for r in range(5):
            told = {}
            for number, p in zip(extra["number"][0, i, 0, r], extra["probability"][0, i, 0, r], strict=True):
                if p:
                    after = coded.state(extra["successor"][0, i, 0, number])
                    told[after] = told.get(after, 0.0) + p
                    assert extra["ended"][0, i, 0, number] == (after[0] == 4)
                    holds = np.unpackbits(extra["holds"][0, i, 0, number], count=14)
                    assert holds.tolist() == [goal.is_achieved(after) for h in (1, 2) for goal, _ in model.goals(h)]
            expected = {after: p for p, after in model.transition_probabilities(state, coded.joint(profile, r))}
            assert told == pytest.approx(expected)


def test_queries_are_remembered_up_to_a_bound(corridor):
    world, graph = corridor
    behaviour = EmpowerConfig(cache=10, **SMALL).behaviour(*spaces(world))
    behaviour.begin(0)
    behaviour.load(np.zeros(10_000, np.float32), {"beta": 0.0, "epsilon": 0.0})
    code = world.coded.code(graph.states[0])[None]
    for _ in range(40):
        _, extra = behaviour.act(code)
    assert extra["known"][0] > 0.5
    for state in open_states(graph):
        behaviour.act(world.coded.code(state)[None])
        assert len(behaviour._queries.answers) <= 10
        assert len(behaviour._queries.facts) <= 10


def test_the_policy_belongs_to_the_version_that_was_loaded(corridor):
    """beta comes with the weights: until a version says otherwise, the robot is uniform."""
    world, graph = corridor
    config = EmpowerConfig(stages=Stages({"a": 5, "b": None}, by="updates"), beta=Linear(0.0, 8.0, 10, by="updates"))
    learner = config.build(*spaces(world), agents=1, seeds=[1])
    behaviour = config.behaviour(*spaces(world))
    codes = np.stack([world.coded.code(state) for state in open_states(graph)])
    behaviour.begin(0)
    behaviour.load(learner.weights()[0].copy(), learner.header(0, 0))
    assert np.ptp(behaviour.probabilities(codes, behaviour._beta)) == 0
    learner.counters[:] = 10
    assert learner.header(0, 0)["beta"] == config.nominal_beta == 8.0
    assert learner.header(0, 0)["stage"] == 1
    behaviour.load(learner.weights()[0].copy(), learner.header(0, 0))
    assert np.ptp(behaviour.probabilities(codes, behaviour._beta)) > 0.01


def test_actors_act_by_the_weights_and_beta_of_the_version_that_was_loaded(corridor):
    """Neither the first weights nor the exponent of another moment: what was published is what acts."""
    world, graph = corridor
    config = replace(EXACT, beta=9.0)
    learner = config.build(*spaces(world), agents=1, seeds=[1])
    behaviour = config.behaviour(*spaces(world))
    behaviour.begin(0)
    codes = np.stack([world.coded.code(graph.states[0])] * 200)

    def actions(best, beta):
        learner._losses[:] = 0.0
        learner._losses[..., best] = -5.0
        behaviour.load(learner.weights()[0].copy(), {**learner.header(0, 0), "beta": beta})
        return behaviour.act(codes)[0]

    assert set(actions(3, 9.0)) == {3}
    assert set(actions(1, 9.0)) == {1}
    assert set(actions(1, 0.0)) == {0, 1, 2, 3, 4}


def test_several_robots_are_one_mind():
    world = OneMind(Bushes("RH.R", horizon=2))
    coded = world.coded
    assert world.agents == ("robots",)
    assert coded.robot_actions == 25
    assert coded.joint([3], 7) == [1, 2, 3]  # the last robot's action varies fastest
    config = replace(EXACT, successors=4)
    model, graph = coded.model, enumerate_states(coded.model)
    goals = {human: model.goals(human) for human in model.human_agent_indices}
    exact = solve_robot(graph, goals, model.towards, Robot(config.beta, gamma=config.gamma), gamma=config.human_gamma)
    learner = induced(world, graph, config)
    np.testing.assert_allclose(-np.exp(learner._losses[0, 0]), exact.arrays["robot_q"][0], rtol=1e-5)


def whims(state, human, goal):
    """Any policies that differ between states, humans and goals."""
    seed = zlib.crc32(repr((state, human, goal.name)).encode())
    return np.random.default_rng(seed).dirichlet(np.ones(3))


def test_agents_in_no_role_take_action_0():
    """Three humans with different weights of their goals, two robots in one mind, and a robot without a role."""
    model = Layered(seed=5, humans=(3, 3, 3), robots=(2, 2, 2), order=[4, 0, 2, 1, 5, 3], width=2, depth=2)
    humans, robots = model.human_agent_indices, model.robot_agent_indices[:2]
    goals = {human: [(goal, weight + human) for goal, weight in model.goals] for human in humans}
    world = OneMind(model, whims, goals, human_agents=humans, robot_agents=robots)
    config = replace(EXACT, successors=3, xi=2.0)
    exact = solve_robot(
        enumerate_states(model), goals, whims, Robot(config.beta, xi=2.0, gamma=config.gamma),
        gamma=config.human_gamma, achieved="stay", human_agents=humans, robot_agents=robots,
    )  # fmt: skip
    learner, graph = induced(world, exact.graph, config), exact.graph
    inner = np.flatnonzero(~graph.terminal)
    numbers = world.coded.numbers(np.stack([world.coded.code(graph.states[i]) for i in inner]))
    np.testing.assert_allclose(-np.exp(learner._losses[0, numbers]), exact.arrays["robot_q"][inner], rtol=1e-5)
    np.testing.assert_allclose(learner._values[0, numbers], exact.arrays["attainment"][inner], rtol=1e-5, atol=1e-7)
    assert world.coded.robot_actions == 4
    wrong = OneMind(model, whims, goals, human_agents=humans, robot_agents=model.robot_agent_indices)
    assert wrong.coded.robot_actions == 8


# ---- learning


def test_tables_are_running_means(corridor):
    """With a least weight of 0, an entry is the mean of all its targets by weight, however many there were."""
    world, graph = corridor
    config = EmpowerConfig(
        tables=True, stages=Stages(), beta=0.0, learning_rate=0.0, robot_learning_rate=0.0, target_every=10_000, **SMALL
    )
    learner = config.build(*spaces(world), agents=1, seeds=[0])
    state, seen = open_states(graph, 1, seed=2)[0], []
    for seed in range(7):
        batch = batch_of(world, config, [state] * (seed + 1), seed)
        _, targets, _ = learner._learn_targets(batch, [0])
        seen.append([part[0].numpy() for part in targets[:3]])
        learner.update(batch, [0])
    aim, weight, loss = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    number = world.coded.numbers(world.coded.code(state)[None])[0]
    expected = (weight * aim).sum(0) / weight.sum(0)
    np.testing.assert_allclose(learner._values[0, number], expected, rtol=1e-4)
    np.testing.assert_allclose(np.exp(learner._losses[0, number]), loss.mean(0), rtol=1e-4)


@pytest.mark.parametrize("tables", [False, True])
def test_learning_continues_bit_for_bit_from_a_saved_state(corridor, tables):
    world, graph = corridor
    config = EmpowerConfig(tables=tables, stages=Stages({"a": 3, "b": None}, by="updates"), beta=5.0, target_every=4,
                           **SMALL)  # fmt: skip
    batches = [batch_of(world, config, open_states(graph, 16, seed), seed) for seed in range(10)]
    whole = config.build(*spaces(world), agents=1, seeds=[3])
    for i, batch in enumerate(batches):
        if i == 6:
            whole.save()
            kept = [getattr(whole, name).copy() for name in ("state", "counters", "random")]
        whole.update(batch, [i])
    other = config.build(*spaces(world), agents=1, seeds=[4])
    for name, value in zip(("state", "counters", "random"), kept, strict=True):
        getattr(other, name)[:] = value
    other.load()
    for i in range(6, 10):
        other.update(batches[i], [i])
    np.testing.assert_array_equal(whole.state, other.state)
    assert whole.counters.tolist() == other.counters.tolist() == [[10, 7]]  # Q_r is learned from the second stage on


@pytest.mark.parametrize("tables", [False, True])
def test_rows_below_the_age_floor_teach_nothing(corridor, tables):
    """The floor follows its schedule. What is in older rows has no effect, unless all rows are older."""
    world, graph = corridor
    config = EmpowerConfig(tables=tables, stages=Stages(), beta=5.0, oldest=Linear(0, 100, 10, by="updates"), **SMALL)

    def learned(old, made):
        learner = config.build(*spaces(world), agents=1, seeds=[3])
        learner.counters[:] = 5  # the floor is at 50
        learner.load()
        fresh, others = (batch_of(world, config, open_states(graph, 16, seed), seed) for seed in (1, old))
        for name, value in others.extra.items():
            fresh.extra[name][0, :8] = value[0, :8]
        fresh.observation[0, :8] = others.observation[0, :8]
        fresh.extra["made"][0] = [made] * 8 + [50] * 8
        learner.update(fresh, [0])
        return learner.state.copy()

    expired = [learned(old, 49) for old in (7, 8)]
    np.testing.assert_allclose(*expired, rtol=1e-5, atol=1e-8)
    valid = [learned(old, 50) for old in (7, 8)]
    assert np.abs(valid[0] - valid[1]).max() > 1e-4
    batch = batch_of(world, config, open_states(graph, 16, 1), 1)
    learner = config.build(*spaces(world), agents=1, seeds=[3])
    learner.counters[:] = 5
    _, targets, _ = learner._learn_targets(batch, [0])
    assert targets.row_weight.flatten().tolist() == [1.0] * 16, "all rows are too old, so all count"


def test_rows_record_the_updates_of_their_weights(corridor):
    world, graph = corridor
    config = EmpowerConfig(oldest=Linear(0, 100, 10, by="updates"), **SMALL)
    behaviour = config.behaviour(*spaces(world))
    behaviour.begin(0)
    learner = config.build(*spaces(world), agents=1, seeds=[1])
    learner.counters[:] = 37
    behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    _, extra = behaviour.act(world.coded.code(graph.states[0])[None])
    assert extra["made"].tolist() == [37]
    assert "made" not in EmpowerConfig(**SMALL).replay(*spaces(world)).extra
    train(functools.partial(Bushes, horizon=4), config, Settings(steps=100, updates_per_step=0.5))


def test_an_age_floor_never_falls():
    with pytest.raises(SettingError, match="oldest must never fall, got Linear"):
        EmpowerConfig(oldest=Linear(10, 0, 5))
    with pytest.raises(SettingError, match=r"oldest must be a number or a schedule of motet, got .*: it must never"):
        EmpowerConfig(oldest=abs)
    stages = Stages({"a": 5, "b": None})
    with pytest.raises(SettingError, match="oldest must never fall, got Staged"):
        EmpowerConfig(stages=stages, beta=1.0, oldest=Staged({"a": Linear(0, 9, 5), "b": 8.0}))
    EmpowerConfig(stages=stages, beta=1.0, oldest=Staged({"a": 0.0, "b": Linear(0, 8, 4)}))


def test_agents_of_a_stack_learn_as_they_do_alone(corridor):
    world, graph = corridor
    config = EmpowerConfig(stages=Stages({"a": 2, "b": None}, by="updates"), beta=5.0, **SMALL)
    alone, both = (config.build(*spaces(world), agents=len(seeds), seeds=seeds) for seeds in ([7], [6, 7]))
    both.counters[0] = (1, 0)  # in another stage
    both.load()
    for seed in range(4):
        mine, other = (batch_of(world, config, open_states(graph, 16, s), s) for s in (seed, seed + 50))
        alone.update(mine, [0])
        joined = batch_of(world, config, open_states(graph, 16, seed), seed, agents=2)
        joined.observation[0] = other.observation[0]
        for name, value in other.extra.items():
            joined.extra[name][0] = value[0]
        both.update(joined, [0, 0])
    np.testing.assert_allclose(both.state[1], alone.state[0], rtol=1e-4, atol=1e-6)
    assert both.counters.tolist() == [[5, 3], [4, 2]]


def test_lockstep_is_serial_and_a_resumed_run_continues_bit_for_bit(tmp_path):
    """World, stages, beta and the model's rows: everything that a run has."""
    config = EmpowerConfig(
        stages=Stages({"attainment": 20, "values": 30, "full": None}, ("full",), "updates"),
        beta=Linear(0.0, 5.0, 60, by="updates"), **SMALL,
    )  # fmt: skip
    world = functools.partial(Bushes, horizon=4)
    settings = {"steps": 240, "actors": 2, "worlds_per_actor": 2, "updates_per_step": 1.0}
    serial = train(world, config, Settings(engine="serial", **settings))
    lockstep = train(world, config, Settings(slack=0, **settings))
    assert list(serial.agents) == ["robot_0"]
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)
    assert serial.updates == lockstep.updates
    once = Settings(engine="serial", steps=120, keep_replay=True)
    train(world, config, once, run=tmp_path / "run")
    half = resume(tmp_path / "run", steps=60)
    whole = train(world, config, replace(once, steps=180))
    np.testing.assert_array_equal(whole.agents["robot_0"]["state"], half.agents["robot_0"]["state"])


IN_STAGES = EmpowerConfig(
    stages=Stages({"attainment": 20, "values": 30, "full": None}, ("full",), "updates"),
    beta=Linear(0.0, 5.0, 60, by="updates"), **SMALL,
)  # fmt: skip


@pytest.mark.parametrize("config", [IN_STAGES, AttainConfig(**SMALL)], ids=["empower", "attain"])
def test_reproducible_is_serial_also_if_learners_are_killed(config):
    """Stages, beta and the model's rows survive a restart of the learner, bit for bit."""
    world = functools.partial(Bushes, horizon=4)
    settings = {"steps": 600, "updates_per_step": 0.5, "period": 20, "ahead": 0}
    serial = train(world, config, Settings(engine="serial", **settings))
    killer = Killer(lambda row: row.name.startswith("learner"), most=2)
    limits = RestartLimits(restarts=100, back_off_s=0.001)
    result = train(world, config, Settings(limits=limits, metrics_every_s=0.02, **settings), on_update=killer.watch)
    assert len(killer.sent) >= 1
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, result.agents["robot_0"][part], err_msg=part)


STANDING = {human: [(StandOn(human, (x, 0)), 1 / 7) for x in range(7)] for human in (1, 2)}


def hurry(state, human, goal):
    """A human of a project that does not know motet: it walks to its cell."""
    far = [abs(state[1][human][0] + step - goal.cell[0]) for step in (0, -1, 0, 1, 0)]
    near = np.array(far) == min(far)
    return near / near.sum()


def test_a_model_of_another_project_is_learned_unchanged():
    """Its roles, goals and humans are given, and its states have no encoding."""
    world = functools.partial(OneMind, BushCorridor, hurry, STANDING, human_agents=[1, 2], robot_agents=[0])
    config = EmpowerConfig(stages=Stages(), beta=5.0, **SMALL)
    result = train(world, config, Settings(steps=100, worlds_per_actor=2, updates_per_step=0.5, slack=20))
    assert result.updates["agent_0"] > 10
    model = BushCorridor()
    roles = {"human_agents": [1, 2], "robot_agents": [0]}
    exact = solve_robot(
        enumerate_states(model), STANDING, hurry, Robot(5.0, gamma=0.95), gamma=0.95, achieved="stay", **roles
    )
    assert exact.value(exact.graph.states[0], 0) == pytest.approx(-9.94866, abs=1e-4)


# ---- compared with the exact solution


def loaded(config, world, state, counters=None):
    """A behaviour with the weights of a learner's state."""
    behaviour = config.behaviour(*spaces(world))
    behaviour.load(state[: config.sizes(*spaces(world)).weights], {"beta": 0.0, "epsilon": 0.0})
    return behaviour


def test_the_exact_tables_have_no_gap():
    model = Bushes(horizon=3)
    world, graph = OneMind(model), enumerate_states(model)
    behaviour = loaded(EXACT, world, induced(world, graph, EXACT).state[0])
    gap = ExactEmpowerment(behaviour).gap(behaviour)
    assert gap.share == pytest.approx(1.0, abs=1e-5)
    assert gap.agreement == 1.0
    assert max(gap.policy_error, gap.attainment_error) < 1e-6
    assert gap.value == pytest.approx(-7.96125, abs=1e-4) == gap.exact_value
    assert gap.random_error > 0.01


def test_a_random_robot_has_made_no_progress():
    world = OneMind(Bushes(horizon=3))
    config = EmpowerConfig(beta=0.0, stages=Stages(), **SMALL)
    behaviour = loaded(config, world, config.build(*spaces(world), agents=1, seeds=[0]).state[0])
    behaviour.config = replace(config, beta=5.0)
    exact = ExactEmpowerment(behaviour)
    behaviour.config = config
    gap = exact.gap(behaviour)
    assert gap.share == pytest.approx(0.0, abs=1e-9)
    assert gap.policy_error == pytest.approx(gap.random_error)


def test_evaluations_record_the_progress_of_the_robot(tmp_path):
    config = EmpowerConfig(stages=Stages(), beta=5.0, **SMALL)
    settings = Settings(steps=160, engine="serial", evaluate_every=80, evaluate_episodes=2, score=share_of_the_way)
    train(functools.partial(Bushes, horizon=3), config, settings, run=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()]
    assert [line["score"] for line in lines] == [line["exact"]["share"] for line in lines]
    assert len({line["score"] for line in lines}) == len(lines) >= 2
    assert compare_exact(tmp_path / "run").share == lines[-1]["score"]


def test_the_command_compares_and_draws_the_exact_solution_beside_the_learned_one(tmp_path, capsys):
    run = tmp_path / "run"
    flags = "train bushes --world.horizon 3 --algorithm empower --empower.hidden 16 --empower.min-rows 64 --steps 240"
    evaluations = "--evaluate-every 80 --evaluate-episodes 2 --score motet.evaluation.exact:share_of_the_way"
    asked = [*flags.split(), *evaluations.split(), "--engine", "serial", "--compare-exact", "--run", str(run)]
    assert main(asked) == 0
    assert (
        f"exact solution: {compare_exact(run)}\n{run / 'exact.png'}\n{run / 'exact_curves.png'}\n"
        in capsys.readouterr().out
    )
    behaviour = behaviour_of(run)
    exact = ExactEmpowerment(behaviour)
    picture = exact.picture(behaviour)
    top, bottom = (colours(half) for half in np.array_split(picture, 2))
    assert len(top - bottom) > 50, "the learned robot must not be drawn as the exact one"


def colours(picture):
    return set(map(tuple, picture.reshape(-1, 3).tolist()))


class Undrawn(Bushes):
    """A model without pictures."""

    @property
    def picture(self):
        raise AttributeError("picture")


def test_a_model_that_cannot_be_drawn_is_compared_all_the_same(tmp_path):
    config = EmpowerConfig(stages=Stages(), beta=5.0, **SMALL)
    settings = Settings(steps=60, engine="serial")
    train(functools.partial(Undrawn, horizon=3), config, settings, run=tmp_path / "run")
    gap, lines = compare_with_exact(tmp_path / "run", trust=True)
    assert gap.exact_value == pytest.approx(-7.96125, abs=1e-4)
    assert len(lines) == 1
    assert lines[0].startswith("no picture: model must have picture(state)")


def test_only_empowerment_is_compared_on_the_command_line():
    with pytest.raises(SettingError, match="compare_exact is only valid with --algorithm empower"):
        parse(["bushes", "--compare-exact"])
    assert parse(["bushes", "--algorithm", "empower", "--compare-exact"]).compare_exact


# ---- models that are wrong


class Bad(Bushes):
    """A model with one fault."""

    def __init__(self, fault):
        super().__init__(horizon=4)
        self.fault = fault

    def transition_probabilities(self, state, actions):
        found = super().transition_probabilities(state, actions)
        if found is None or state[0] < 1:
            return found
        if self.fault == "sum":
            return [(p * 0.9, after) for p, after in found]
        if self.fault == "halves":
            return [(p, (*after[:2], tuple(d / 2 for d in after[2]))) for p, after in found]
        if self.fault == "many":
            return [(1 / 6, (*found[0][1][:2], (i,) * 7)) for i in range(6)]
        return found

    def goals(self, agent):
        return [] if self.fault == "no goals" else super().goals(agent)

    def towards(self, state, human, goal):
        return [0.5] * 5 if self.fault == "policy" and state[0] else super().towards(state, human, goal)


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("sum", r"probabilities must be >= 0 with sum 1, got .*\(state \(1, .*, actions \[\d, \d, \d\]\)"),
        ("many", r"a joint action must have at most 4 successors, got 6 \(state \(1, .*, actions \[\d, \d, \d\]\)"),
        (
            "halves",
            r"state .*0\.5.* must have whole numbers from 0 to 255.*\(after state \(1, .*, actions \[\d, \d, \d\]\)",
        ),
        ("policy", r"the policy of human_0 must be 5 numbers >= 0 with sum 1, got .*\(state \(1, .*, goal 0,0\)"),
        ("no goals", "agent 1 must be objects with is_achieved"),
    ],
)
def test_bad_models_are_named_with_state_and_actions(fault, word):
    with pytest.raises((ModelError, SettingError), match=word):
        train(lambda: Bad(fault), EmpowerConfig(**SMALL), Settings(engine="serial", steps=60))


class Nowhere(Bushes):
    """The humans' goals never hold."""

    def goals(self, agent):
        return [(type(goal)(agent, 99, goal.name), weight) for goal, weight in super().goals(agent)]

    def towards(self, state, human, goal):
        return [0.2] * 5

    def encode_goal(self, goal):
        return np.zeros(7, np.float32)


def test_humans_without_power_are_named():
    config = replace(
        EXACT, profiles="drawn", min_rows=8, batch_size=8, stages=Stages({"a": 3, "b": None}, by="updates")
    )
    with pytest.raises(ModelError, match=r"the power X_h of human_0 must be > 0, got 0 in state \(\d, "):
        train(lambda: Nowhere(horizon=3), config, Settings(engine="serial", steps=400))


def test_models_that_cannot_be_learned_are_refused():
    plain = OneMind(Bushes())
    with pytest.raises(SettingError, match=r"profiles must be 'drawn' .* got 'all' with 125"):
        EmpowerConfig(profiles="all").replay(*spaces(OneMind(Bushes("HR.H.H"))))
    with pytest.raises(SettingError, match="successors must be at most 51 with 5 robot actions, got 60"):
        EmpowerConfig(successors=60).replay(*spaces(plain))
    with pytest.raises(SettingError, match=r"observation space must be that of motet.worlds.OneMind"):
        EmpowerConfig().replay(plain.action_spaces[0], plain.action_spaces[0])
    with pytest.raises(SettingError, match="beta must be a finite number >= 0, got inf"):
        EmpowerConfig(beta=float("inf"))
    with pytest.raises(SettingError, match="humans must be a function"):
        OneMind(BushCorridor(), goals=STANDING, human_agents=[1, 2], robot_agents=[0])
    with pytest.raises(SettingError, match="human_agents and robot_agents must be non-empty and disjoint"):
        OneMind(BushCorridor(), goals=STANDING)
    assert OneMind(Rooms("freeing")).coded.goals_of == (13,)
    with pytest.raises(SettingError, match="world must be a model"):
        train("treasure_hunt", "empower", Settings(engine="serial", steps=60))

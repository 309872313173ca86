"""What changes with the stages of learned empowerment: the discounts, and how the humans explore."""

import functools
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from tests.support.empowering import EXACT, batch_of, open_states, spaces

from motet import Settings, train
from motet.algorithms import EmpowerConfig
from motet.errors import SettingError
from motet.evaluation.exact import ExactEmpowerment
from motet.plan import enumerate_states
from motet.schedule import Linear, Staged, Stages
from motet.worlds import Bushes, OneMind

SMALL = {"hidden": (16,), "min_rows": 40, "batch_size": 16}
WORLD = functools.partial(Bushes, horizon=3)
STAGES = Stages({"warm": 10, "full": None}, by="updates")
GAMMA = Staged({"warm": Linear(0.5, 0.9, 10), "full": 0.95})
HUMAN_GAMMA = Linear(0.0, 0.8, 20, by="updates")


@pytest.fixture(scope="module")
def corridor():
    model = WORLD()
    return OneMind(model), enumerate_states(model)


def test_each_agent_learns_with_the_discounts_of_its_updates(corridor):
    """Targets in a schedule are those of a constant with the value at that update, c included."""
    world, graph = corridor
    config = EmpowerConfig(stages=STAGES, beta=5.0, gamma=GAMMA, human_gamma=HUMAN_GAMMA, **SMALL)
    batch = batch_of(world, config, open_states(graph, 16), agents=3)
    learner = config.build(*spaces(world), agents=3, seeds=[1, 1, 1])
    learner.counters[:, 0] = 0, 5, 30
    _, found, _ = learner._learn_targets(batch, [0] * 3)
    for agent, (gamma, human_gamma) in enumerate([(0.5, 0.0), (0.7, 0.2), (0.95, 0.8)]):
        constant = replace(config, gamma=gamma, human_gamma=human_gamma)
        alone = constant.build(*spaces(world), agents=1, seeds=[1])
        _, expected, _ = alone._learn_targets(batch_of(world, config, open_states(graph, 16)), [0])
        for part in ("attainment", "loss", "value"):
            ours, theirs = getattr(found, part)[agent].numpy(), getattr(expected, part)[0].numpy()
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=part)
    assert (found.loss[2] - found.loss[1]).abs().max() > 0.1


def test_the_exact_solution_has_the_last_discounts(corridor):
    """After the schedules, tables and all profiles lead to the plan for their last values: there is no gap."""
    world, graph = corridor
    scheduled = replace(EXACT, stages=STAGES, gamma=GAMMA, human_gamma=HUMAN_GAMMA)
    assert (scheduled.nominal_gamma, scheduled.nominal_human_gamma) == (0.95, 0.8)
    learner = scheduled.build(*spaces(world), agents=1, seeds=[0])
    for _ in range(15):  # through the schedules, then once more with their last values
        for step in reversed(range(3)):
            learner.update(batch_of(world, scheduled, [state for state in graph.states if state[0] == step]), [0])
    behaviour = scheduled.behaviour(*spaces(world))
    behaviour.load(learner.weights()[0], learner.header(0, 0))
    exact = ExactEmpowerment(behaviour)
    gap = exact.gap(behaviour)
    assert gap.share == pytest.approx(1.0, abs=1e-4)
    assert max(gap.policy_error, gap.attainment_error) < 1e-5
    assert gap.value == pytest.approx(gap.exact_value, rel=1e-4)
    constant = replace(scheduled, gamma=0.95, human_gamma=0.8).behaviour(*spaces(world))
    constant.load(learner.weights()[0], learner.header(0, 0))
    assert ExactEmpowerment(constant).gap(constant) == gap


def test_lockstep_is_serial_with_schedules_of_the_discounts():
    config = EmpowerConfig(stages=STAGES, beta=5.0, gamma=GAMMA, human_gamma=HUMAN_GAMMA, **SMALL)
    settings = {"steps": 150, "updates_per_step": 1.0}
    serial = train(WORLD, config, Settings(engine="serial", **settings))
    lockstep = train(WORLD, config, Settings(slack=0, **settings))
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)


def test_discounts_out_of_range_are_named():
    with pytest.raises(SettingError, match=r"gamma at its start must be .* 0"):
        EmpowerConfig(gamma=Linear(0.0, 0.9, 10))
    with pytest.raises(SettingError, match=r"human_gamma at its end must be .* 1"):
        EmpowerConfig(human_gamma=Linear(0.0, 1.5, 10))
    with pytest.raises(SettingError, match="gamma must have one value for each stage"):
        EmpowerConfig(gamma=Staged({"warm": 0.9, "full": 0.95}))


class Telling(OneMind):
    """It notes what stages it is told, and fails if the humans explore differently from what the stage says."""

    told: ClassVar[list[str]] = []

    def __init__(self):
        super().__init__(WORLD, human_epsilon={"warm": 0.75, "full": 0.25})

    def set_stage(self, stage):
        super().set_stage(stage)
        self.told.append(stage)
        assert self.human_epsilon == {"warm": 0.75, "full": 0.25}[stage]


def test_humans_explore_as_the_stage_says():
    assert OneMind(WORLD, human_epsilon={"warm": 0.75, "full": 0.25}).human_epsilon == 0.25
    config = EmpowerConfig(stages=STAGES, beta=5.0, **SMALL)
    settings = {"steps": 150, "updates_per_step": 1.0}
    Telling.told.clear()
    serial = train(Telling, config, Settings(engine="serial", **settings))
    assert Telling.told == sorted(Telling.told, reverse=True)
    assert set(Telling.told) == {"warm", "full"}
    lockstep = train(Telling, config, Settings(slack=0, **settings))
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)
    wrong = functools.partial(OneMind, WORLD, human_epsilon={"full": 0.1})
    with pytest.raises(Exception, match="human_epsilon must have a value for each stage, got full without warm"):
        train(wrong, config, Settings(engine="serial", **settings))
    with pytest.raises(SettingError, match="human_epsilon"):
        OneMind(WORLD, human_epsilon={"warm": 1.5})
    with pytest.raises(SettingError, match="human_epsilon must have a value for each stage, got none"):
        OneMind(WORLD, human_epsilon={})


def test_humans_change_their_goals_as_the_stage_says():
    """A goal that holds is replaced, or not, and a goal that does not hold; the reward keeps the goals of the reset."""

    def changes(achieved, resample):
        """Shares of the steps after which a goal that holds, and one that does not, was replaced."""
        by_stage = {"warm": 0.0, "full": achieved}
        model = functools.partial(Bushes, horizon=12)
        world = OneMind(model, human_epsilon=0.5, achieved_resample_prob=by_stage, goal_resample_prob=resample)
        seen = {True: [], False: []}
        for seed in range(40):
            world.reset(seed=seed)
            first, earned, reached = world.goals, 0.0, set()
            while world.group():
                before = world.goals
                world.act([seed % 5])
                reached |= {human for human, goal in first.items() if goal.is_achieved(world.state)}
                earned += world.reward(0)
                for human, goal in before.items():
                    seen[goal.is_achieved(world.state)].append(world.goals[human] != goal)
            assert earned == len(reached)
        return [float(np.mean(found)) for found in seen.values()]

    assert changes(0.0, 0.0) == [0.0, 0.0]
    often, never = changes(1.0, 0.0)
    assert often == pytest.approx(6 / 7, abs=0.1)  # the new goal is sometimes the old one
    assert never == 0.0
    never, sometimes = changes(0.0, 0.5)
    assert sometimes == pytest.approx(3 / 7, abs=0.1)
    assert never == 0.0


def test_changed_goals_are_saved():
    def world():
        return OneMind(functools.partial(Bushes, horizon=12), achieved_resample_prob=1.0, goal_resample_prob=0.3)

    one, other = world(), world()
    one.reset(seed=3)
    first = one.goals
    while one.goals == first:
        one.act([4])
    saved = one.get_state()
    other.reset(seed=9)
    other.set_state(saved)
    while one.group():
        assert other.goals == one.goals
        one.act([2])
        other.act([2])
        assert one.state == other.state
    other.set_state(saved[:2])  # as an earlier version saved it
    assert other.goals == first


def test_lockstep_is_serial_with_goals_that_change():
    config, settings = EmpowerConfig(stages=STAGES, beta=5.0, **SMALL), {"steps": 120, "updates_per_step": 1.0}
    world = functools.partial(
        OneMind, WORLD, goal_resample_prob={"warm": 0.5, "full": 0.1}, achieved_resample_prob={"warm": 1.0, "full": 0.0}
    )
    serial = train(world, config, Settings(engine="serial", **settings))
    lockstep = train(world, config, Settings(slack=0, **settings))
    for part, value in serial.agents["robot_0"].items():
        np.testing.assert_array_equal(value, lockstep.agents["robot_0"][part], err_msg=part)
    with pytest.raises(SettingError, match=r"goal_resample_prob must be .* got 1.5"):
        OneMind(WORLD, goal_resample_prob=1.5)

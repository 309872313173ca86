"""Learned empowerment comes close to the exact one. Shares are 0 for a random robot and 1 for the exact one."""

import functools

import numpy as np
import pytest
from tests.support.empowering import Slow
from tests.support.sampled_goals import SampledBushes, listed

from motet import Settings, evaluate, train
from motet.algorithms.empower import EmpowerConfig
from motet.algorithms.empower_sampled import EmpowerSampledConfig
from motet.evaluation.exact import ExactEmpowerment, behaviour_of, compare_exact
from motet.schedule import Linear, Staged, Stages
from motet.worlds import Bushes, OneMind, Rooms

pytestmark = pytest.mark.slow

TABLES = {
    "tables": True, "profiles": "all", "learning_rate": 1.0, "robot_learning_rate": 1.0, "epsilon": 1.0,
    "capacity": 20_000, "batch_size": 32,
    "stages": Stages({"attainment": 500, "values": 500, "ramp": 2000, "full": None}, ("full",), "updates"),
    "beta": Staged({"attainment": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, 2000), "full": 5.0}),
}  # fmt: skip


CELLS = """
###########
#H.A....R.#
####....a.#
#H.A......#
####......#
#H.A......#
###########
"""


def gaps(world, config, tmp_path, steps, seeds=(0, 1, 2), **settings):
    for seed in seeds:
        train(world, config, Settings(steps=steps, seed=seed, engine="serial", **settings), run=tmp_path / str(seed))
        yield compare_exact(tmp_path / str(seed), trust=True)


def median(found, name):
    return float(np.median([getattr(one, name) for one in found]))


def test_in_a_corridor_of_four_steps(tmp_path):
    found = list(gaps(functools.partial(Bushes, horizon=4), EmpowerConfig(), tmp_path, 20_000))
    assert 0.95 <= median(found, "share") <= 1.03
    assert median(found, "policy_error") <= 0.5 * median(found, "random_error")
    assert median(found, "attainment_error") <= 0.03
    assert median(found, "value") == pytest.approx(-9.949, rel=0.03)


def test_where_steps_have_durations(tmp_path):
    found = list(gaps(functools.partial(Slow, horizon=4), EmpowerConfig(), tmp_path, 20_000))
    assert 0.95 <= median(found, "share") <= 1.03
    assert median(found, "value") == pytest.approx(found[0].exact_value, rel=0.03)


def test_in_a_corridor_of_twelve_steps(tmp_path):
    found = list(gaps(functools.partial(Bushes, horizon=12), EmpowerConfig(), tmp_path, 30_000))
    assert 0.9 <= median(found, "share") <= 1.05


def test_where_a_human_is_locked_in(tmp_path):
    world = functools.partial(Rooms, map="freeing", horizon=12)
    found = list(gaps(world, EmpowerConfig(eagerness=20.0), tmp_path, 45_000))
    assert 0.9 <= median(found, "share") <= 1.05
    assert median(found, "agreement") >= 0.95


def test_in_a_corridor_with_goals_that_are_sampled(tmp_path):
    """With short stages. The list of goals serves the comparison only."""
    lengths = {"attainment": 1000, "power": 500, "values": 1000, "ramp": 1500, "full": None}
    beta = {"attainment": 0.0, "power": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, 1500), "full": 5.0}
    stages = Stages(lengths, ("ramp", "full"), by="updates")
    config = EmpowerSampledConfig(stages=stages, beta=Staged(beta))
    world, found = functools.partial(SampledBushes, horizon=4), []
    for seed in (0, 1, 2):
        train(world, config, Settings(steps=6_000, seed=seed, engine="serial"), run=tmp_path / str(seed))
        behaviour = behaviour_of(tmp_path / str(seed), trust=True)
        found.append(ExactEmpowerment(behaviour, goals=listed(world())).gap(behaviour))
    assert 0.9 <= median(found, "share") <= 1.05
    assert median(found, "attainment_error") <= 0.03
    assert median(found, "power_error") <= 0.07


def test_with_tables(tmp_path):
    world = functools.partial(Bushes, horizon=4)
    found = list(gaps(world, EmpowerConfig(**TABLES), tmp_path, 20_000, updates_per_step=0.4))
    assert median(found, "attainment_error") <= 0.01
    assert median(found, "policy_error") <= 0.02


def test_where_no_plan_can_be_computed(tmp_path):
    """Three humans in cells, and millions of states: humans attain more goals beside a robot that learned."""
    rooms = functools.partial(Rooms, map=CELLS, horizon=26)
    stages = Stages({"attainment": 4000, "values": 4000, "ramp": 4000, "full": None}, ("ramp", "full"), "updates")
    beta = Staged({"attainment": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, 4000), "full": 5.0})
    config = EmpowerConfig(successors=24, eagerness=20.0, capacity=50_000, stages=stages, beta=beta)
    settings = Settings(steps=45_000, engine="serial", updates_per_step=0.5, worlds_per_actor=4)
    train(rooms, config, settings, run=tmp_path / "run")
    world = functools.partial(OneMind, rooms)
    learned, *others = (
        next(iter(evaluate(world, [policy], episodes=1000, seed=1).scores().values()))
        for policy in (tmp_path / "run", "random", "noop")
    )
    for other in others:
        assert learned.low > other.high

"""Reproducible runs: actors and learners that work at the same time give the bits of the serial engine."""

import functools
import os

import gymnasium
import numpy as np
import pytest
from support import foreign_gridworlds
from support.office import Office
from support.stand_in import StandIn
from test_lockstep import ALGORITHMS, HUNT, ONCE, SMALL, TD3S, fingerprint, steps

from motet.algorithms._dqn_learner import DQN
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.errors import SettingError
from motet.policies.partner import Partner
from motet.runs.directory import RunDirectory
from motet.schedule import Linear, Stages
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import from_objects
from motet.worlds import Cleanup, MatrixGame

PERIODS = {"steps": 600, "updates_per_step": 0.5, "period": 20}
PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=50)
PPO = PPOConfig(**ONCE, hidden=(16,))


def print_of(world, algorithm, engine, least, **settings):
    """Steps, updates and the fingerprint of a run."""
    pids = set()
    result = train(
        world,
        algorithm,
        Settings(engine=engine, **{**PERIODS, **settings}),
        on_update=lambda snapshot: pids.update(row.pid for row in snapshot.processes),
    )
    assert result.state == "done" and result.restarts == 0
    assert min(result.updates.values()) > least
    if engine == "processes":
        assert len(pids - {0}) >= 2 and os.getpid() not in pids
    return result.steps, result.updates, fingerprint(result)


def check(world, algorithm, least=100, **settings):
    serial = print_of(world, algorithm, "serial", least, **settings)
    assert print_of(world, algorithm, "processes", least, **settings) == serial
    return serial


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "own" not in name])
def test_each_algorithm_is_the_serial_run(name, ahead):
    check(HUNT, ALGORITHMS[name], steps=steps(name, 600), ahead=ahead)


@pytest.mark.parametrize("name", TD3S)
def test_several_actors_and_worlds_are_the_serial_run(name):
    check(PENDULUM, TD3S[name], steps=steps(name, 1000), actors=2, worlds_per_actor=4, period=10)


@pytest.mark.parametrize("name", ["dqn", "dqn, prioritised"])
def test_any_number_of_actors_and_worlds_is_the_serial_run(name):
    prints = [
        check(HUNT, ALGORITHMS[name], actors=actors, worlds_per_actor=worlds, least=50)
        for actors, worlds in ((2, 1), (1, 4))
    ]
    assert prints[0] != prints[1]


def test_the_number_of_learner_processes_does_not_matter():
    """Ten equal agents are two stacks, wherever these are learned."""
    world = functools.partial(Cleanup, agents=10, height=9, width=15, radius=2, turns=30)
    given = [check(world, StandIn(), least=50, steps=200, learner_processes=count) for count in (1, 2)]
    assert given[0] == given[1]


def test_agents_that_differ_in_algorithm_are_the_serial_run():
    mixed = {"player_0": ALGORITHMS["dqn, prioritised"], "player_1": ALGORITHMS["iqn"]}
    given = [check(MatrixGame, mixed, learner_processes=count) for count in (1, 2)]
    assert given[0] == given[1]


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_rows_with_a_memory_are_the_serial_run(memory):
    ppo = PPOConfig(**ONCE, hidden=(16,), memory=memory, memory_size=8)
    check(HUNT, ppo, least=10, steps=400, updates_per_step=None)


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_read_once_are_the_serial_run(ahead):
    check(HUNT, PPO, least=30, steps=1200, updates_per_step=None, ahead=ahead)


def test_rows_read_once_of_several_actors_and_worlds_are_the_serial_run():
    ppo = PPOConfig(**ONCE, hidden=(16,), normalise=True, entropy=0.01)
    more = {"steps": 2400, "updates_per_step": None, "actors": 2, "worlds_per_actor": 4}
    check("gym:CartPole-v1", ppo, least=60, **more)


def test_agents_that_draw_and_agents_that_read_once_are_the_serial_run():
    check(MatrixGame, {"player_0": ALGORITHMS["dqn"], "player_1": PPO}, least=15)


def test_agents_that_are_asked_unequally_are_the_serial_run():
    check(functools.partial(Office, 3, (0, 1, 1), calls=23), StandIn(), actors=2, least=-1)


class Wanderer:
    """A given policy that draws from a global generator."""

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        return int(np.random.randint(2))


def test_partners_are_the_serial_run():
    algorithms = {"player_0": ALGORITHMS["dqn"], "player_1": Partner(Wanderer())}
    check(MatrixGame, algorithms, actors=2, worlds_per_actor=2)


def respawning():
    return from_objects(foreign_gridworlds.Respawning())


def test_object_worlds_that_play_their_own_turns_are_the_serial_run():
    check(respawning, DQNConfig(**SMALL), least=20, steps=300, actors=2)


def test_a_number_of_episodes_is_the_serial_run():
    serial = check(HUNT, ALGORITHMS["dqn"], least=20, steps=None, episodes=9, actors=2, worlds_per_actor=2)
    assert serial[0] == 9 * 20


def test_stages_are_the_serial_run():
    stages = DQNConfig(**SMALL, epsilon=Linear(1.0, 0.1, 300), stages=Stages({"early": 150, "late": None}))
    check(HUNT, stages)


CLEARED = {"min_rows": 64, "batch_size": 16, "hidden": (16, 16), "capacity": 2000}


@pytest.mark.parametrize("by", ["steps", "updates"])
@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
def test_stages_that_clear_the_replay_are_the_serial_run(by, prioritised):
    stages = Stages({"early": 50, "middle": 100, "late": None}, clear_replay_on_stage=("middle", "late"), by=by)
    check(HUNT, DQNConfig(**CLEARED, stages=stages, prioritised=prioritised), actors=2, least=50)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_cleared_replay_contains_no_row_of_an_earlier_stage(ahead, monkeypatch):
    """The stage begins in phase 7, whose version is number 9."""
    stages = Stages({"early": 150, "late": None}, clear_replay_on_stage=("late",))
    drawn, update = [], DQN.update

    def watched(learner, batch, steps):
        drawn.append((steps[0], int(batch.version.min())))
        return update(learner, batch, steps)

    monkeypatch.setattr(DQN, "update", watched)
    algorithm = DQNConfig(hidden=(16,), min_rows=16, batch_size=16, stages=stages)
    train(MatrixGame, algorithm, Settings(engine="serial", **{**PERIODS, "ahead": ahead}))
    assert min(version for steps, version in drawn if steps < 150) == 1
    assert min(version for steps, version in drawn if steps >= 150) == 9


def test_targets_copied_at_each_phase_are_the_serial_run():
    every = check(HUNT, DQNConfig(**SMALL, target_every="phase"))
    assert every != check(HUNT, DQNConfig(**SMALL))


class OneStep(gymnasium.Env):
    """Every episode has one step: two rows in every round."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.random(2).astype(np.float32), float(action), True, False, {}


@pytest.mark.parametrize("algorithm", [StandIn(capacity=170), PPO], ids=["drawn", "once"])
def test_episodes_of_one_step_neither_stall_nor_overrun(algorithm):
    """As many rows as a period can have, in the smallest replay: no writer waits, and no row is drawn again."""
    ratio = None if algorithm is PPO else 0.5
    check(OneStep, algorithm, least=15, updates_per_step=ratio, steps=1200, period=40)


def test_a_period_that_leaves_less_than_half_a_lane_is_refused():
    with pytest.raises(SettingError, match=r"50 rounds write up to 101 rows, and a lane of .* has 200"):
        train(OneStep, StandIn(capacity=200), Settings(steps=100, period=50))


def test_the_smallest_period_gives_eight_updates_or_a_batch():
    from motet.training.roster import make_roster

    def period(world, algorithm, **settings):
        return make_roster(world, algorithm, Settings(reproducible=True, **settings)).pace.period

    assert period(OneStep, StandIn()) == 32  # 8 updates, 0.25 for each step
    assert period(OneStep, StandIn(), worlds_per_actor=4, updates_per_step=1.0) == 2
    assert period(HUNT, StandIn()) == 3 * 32  # each of three agents in turn
    assert period(OneStep, PPO) == 2 * 16
    assert period(OneStep, StandIn(capacity=100)) == (100 // 2 - 1) // 2


CONTRADICTIONS = [
    {"slack": 4},
    {"publish_every": 5},
    {"publish": "snapshot"},
    {"sync_interval": 2},
    {"max_lag_versions": 3},
    {"max_lag_steps": 3},
]


@pytest.mark.parametrize("setting", CONTRADICTIONS, ids=lambda setting: next(iter(setting)))
def test_settings_that_contradict_periods_are_refused(setting):
    with pytest.raises(SettingError, match=f"{next(iter(setting))} is not valid with reproducible or period"):
        Settings(reproducible=True, **setting)


def test_ahead_and_target_every_phase_need_periods():
    with pytest.raises(SettingError, match="ahead is only valid with reproducible or period"):
        Settings(ahead=0)
    with pytest.raises(SettingError, match="target_every='phase' is only valid with reproducible or period"):
        train("matrix", DQNConfig(target_every="phase"), Settings(steps=100))


def test_the_period_that_was_chosen_is_recorded(tmp_path):
    train(OneStep, StandIn(), Settings(steps=50, engine="serial", reproducible=True), run=tmp_path / "run")
    assert RunDirectory(tmp_path / "run").config()["pace"] == {"period": 32, "ahead": 1, "updates_per_step": 0.25}

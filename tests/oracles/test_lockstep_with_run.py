"""Lockstep = serial with a run directory: no checkpoint and no evaluation changes a run, and both engines agree."""

import functools
import json

import gymnasium
import numpy as np
import pytest
from support.coins import Coins
from support.office import Office
from support.stand_in import StandIn
from test_lockstep import HUNT, ONCE, SMALL, TD3S, fingerprint

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.policy import ConstantPolicy
from motet.runs.directory import RunDirectory
from motet.schedule import Linear, Stages
from motet.training.league import League
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

MATRIX = functools.partial(MatrixGame, turns=23)
PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=30)
TD3 = TD3S["td3"]


def settings(engine, **more):
    chosen = {
        "steps": 400, "updates_per_step": 0.5, "publish_every": 3, "worlds_per_actor": 2, "learner_processes": 1,
        "evaluate_every": 90, "evaluate_episodes": 2, "slack": 0 if engine == "processes" else None, **more,
    }  # fmt: skip
    return Settings(engine=engine, **chosen)


def evaluations(run):
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def outcome(world, algorithm, run, engine, **more):
    """All that a run came to."""
    result = train(world, algorithm, settings(engine, **more), run=run)
    return result.steps, result.updates, fingerprint(result), evaluations(run)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The serial run that writes no checkpoint before its end."""
    return outcome(HUNT, StandIn(), tmp_path_factory.mktemp("serial") / "run", "serial", checkpoint_every=10**9)


@pytest.mark.parametrize("keep_replay", [False, True])
@pytest.mark.parametrize("every", [37, 100, 250])
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_no_checkpoint_changes_a_run(engine, every, keep_replay, undisturbed, tmp_path):
    found = outcome(HUNT, StandIn(), tmp_path / "run", engine, checkpoint_every=every, keep_replay=keep_replay)
    assert found == undisturbed
    assert [line["step"] // 90 for line in found[3][:-1]] == [1, 2, 3, 4] and found[3][-1]["step"] == found[0]
    versions = [[row["version"] for row in line["agents"].values()] for line in found[3]]
    assert versions == sorted(versions) and versions[0] < versions[-1]


CASES = {
    "dqn": (HUNT, DQNConfig(**SMALL, prioritised=True), {}),
    "ppo": (MATRIX, PPOConfig(**ONCE, hidden=(16,), normalise=True), {"updates_per_step": None}),
    "td3": (PENDULUM, TD3, {"actors": 2}),
    "who seldom looks": (MATRIX, StandIn(), {"sync_interval": 40, "max_lag_steps": 60, "actors": 2}),
    "asked unequally": (
        functools.partial(Office, 3, (0, 1, 1), calls=23),
        StandIn(),
        {"actors": 2, "sync_interval": 20, "max_lag_steps": 30},
    ),
    "stages": (
        HUNT,
        DQNConfig(**SMALL, epsilon=Linear(1.0, 0.1, 300), stages=Stages({"early": 150, "late": None})),
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_with_checkpoints_and_evaluations_are_the_serial_run_without_any(name, tmp_path):
    world, algorithm, more = CASES[name]
    plain = outcome(world, algorithm, tmp_path / "plain", "serial", checkpoint_every=10**9, **more)
    keeping = outcome(world, algorithm, tmp_path / "keeping", "serial", checkpoint_every=60, keep_replay=True, **more)
    lockstep = outcome(world, algorithm, tmp_path / "lockstep", "processes", checkpoint_every=60, **more)
    assert plain == keeping == lockstep
    unseen = train(world, algorithm, settings("serial", evaluate_every=None, **more))
    assert fingerprint(unseen) == plain[2]


class Side(ConstantPolicy):
    """An anchor that remembers nothing, and plays many games at once: such a league can be saved within a game."""

    def act_many(self, observations):
        return np.stack([self.act(row) for row in observations])


class Pennies(Coins):
    scripted = {"heads": functools.partial(Side, 0), "tails": functools.partial(Side, 1)}  # noqa: RUF012


def test_self_play_with_checkpoints_and_evaluations_is_the_serial_run_without_any(tmp_path):
    """Opponents draw too: :class:`StandIn` does so in every game."""
    more = {"self_play": True, "league": League(snapshot_every=100, review_every=50, block=2), "evaluate_episodes": 4}
    plain = outcome(Pennies, StandIn(), tmp_path / "plain", "serial", checkpoint_every=10**9, **more)
    keeping = outcome(Pennies, StandIn(), tmp_path / "keeping", "serial", checkpoint_every=60, keep_replay=True, **more)
    lockstep = outcome(Pennies, StandIn(), tmp_path / "lockstep", "processes", checkpoint_every=60, **more)
    assert plain == keeping == lockstep
    assert "serial" in RunDirectory(tmp_path / "keeping").load().notes


class Dice(gymnasium.Env):
    """A world as many write it: it draws from numpy's global stream, which it seeds when it is reset."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.seed(seed % 2**32)
        self.t, self.roll = 0, np.random.randint(3)
        return np.random.rand(3).astype(np.float32), {}

    def step(self, action):
        reward = float(action == self.roll)
        self.t, self.roll = self.t + 1, np.random.randint(3)
        return np.random.rand(3).astype(np.float32), reward, self.t == 17, False, {}


def test_an_evaluation_in_the_same_process_leaves_global_streams_alone(tmp_path):
    one = {"worlds_per_actor": 1, "steps": 200, "evaluate_every": 30}
    serial = outcome(Dice, StandIn(), tmp_path / "serial", "serial", **one)
    lockstep = outcome(Dice, StandIn(), tmp_path / "lockstep", "processes", **one)
    assert serial == lockstep


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_no_evaluation_is_skipped_however_many_are_due(engine, tmp_path):
    """One at the end of nearly every round, the last one included."""
    found = outcome(MATRIX, StandIn(), tmp_path / engine, engine, steps=60, evaluate_every=4, worlds_per_actor=1)
    steps = [line["step"] for line in found[3]]
    assert [step // 4 for step in steps] == list(range(1, 16)) and steps[-1] == 60


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_run_that_is_good_enough_ends_with_the_round_that_showed_it(engine, tmp_path):
    found = outcome(MATRIX, StandIn(), tmp_path / engine, engine, steps=10**6, evaluate_every=60, until_return=-1e9)
    assert len(found[3]) == 1 and found[0] == found[3][0]["step"] < 100


def test_the_serial_engine_keeps_the_best_policies_too(tmp_path):
    found = outcome(MATRIX, StandIn(), tmp_path / "run", "serial")
    assert RunDirectory(tmp_path / "run").best_score() == max(line["score"] for line in found[3])

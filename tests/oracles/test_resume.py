"""Resumed = uninterrupted, bit for bit, in the serial engine, replay and half-played episodes included."""

import functools

import gymnasium
import numpy as np
import pytest
from stand_in import StandIn

from motet.algorithm import Linear, Staged, Stages
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.train import Settings, resume, train
from motet.worlds import Cleanup, Hockey, MatrixGame, TreasureHunt

SMALL = {"hidden": (16,), "min_rows": 64, "batch_size": 16, "capacity": 600}
WORLDS = {
    "treasure_hunt": functools.partial(TreasureHunt, agents=2, turns=37),
    "cleanup": functools.partial(Cleanup, agents=3, height=9, width=11, radius=2, turns=31),
    "matrix": functools.partial(MatrixGame, turns=23),
}
ALGORITHMS = {
    "stand-in": StandIn(),
    "dqn": DQNConfig(**SMALL),
    "dqn, prioritised": DQNConfig(**SMALL, prioritised=True, n_step=2),
    "dqn, frames": DQNConfig(**SMALL, n_frames=3),
    "iqn": IQNConfig(**SMALL),
    "ppo": PPOConfig(hidden=(16,), batch_size=3, length=9, minibatches=3, epochs=2, n_frames=2, normalise=True),
}


def assert_equal(one, other):
    for name in one:
        for part in ("state", "counters", "random", "reader", "stage"):
            np.testing.assert_array_equal(one[name][part], other[name][part], err_msg=f"{name} {part}")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ["stand-in"])
def test_every_shipped_world(world, algorithm, tmp_path):
    compare(WORLDS[world], ALGORITHMS[algorithm], tmp_path)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "stand-in"])
def test_every_algorithm(algorithm, tmp_path):
    compare(WORLDS["treasure_hunt"], ALGORITHMS[algorithm], tmp_path)


@pytest.mark.parametrize("options", [{}, {"prioritised": True, "n_step": 3}])
def test_td3_with_statistics_and_stages(options, tmp_path):
    stages = Stages({"ramp": 300, "full": None}, clear_replay_on_stage=("full",))
    noise = Staged({"ramp": Linear(1.0, 0.1, 300), "full": 0.1})
    # Nothing is overwritten: a successor counts none of the rows that it finds as unread.
    config = TD3Config(**{**SMALL, "capacity": 2000, **options}, normalise=True, stages=stages, noise=noise)
    compare(Hockey, config, tmp_path)


def test_actors_that_seldom_look_at_the_publications(tmp_path):
    compare(WORLDS["matrix"], ALGORITHMS["stand-in"], tmp_path, sync_interval=40)


def compare(world, algorithm, tmp_path, **more):
    once = isinstance(algorithm, PPOConfig)

    def settings(steps):
        return Settings(
            engine="serial", steps=steps, checkpoint_every=500, keep_replay=True, worlds_per_actor=2, publish_every=7,
            updates_per_step=None if once else 0.3, **more,
        )  # fmt: skip

    whole = train(world, algorithm, settings(1000), run=tmp_path / "whole")
    half = train(world, algorithm, settings(500), run=tmp_path / "half")
    rest = resume(tmp_path / "half", steps=500, world=world, algorithm=algorithm)
    assert half.steps == 500
    assert whole.steps == rest.steps == 1000
    assert whole.updates == rest.updates
    assert min(whole.updates.values()) > (30 if once else 150)
    assert_equal(whole.agents, rest.agents)


def test_a_world_that_cannot_save_is_said_aloud(tmp_path):
    world = functools.partial(gymnasium.make, "CartPole-v1")
    settings = Settings(engine="serial", steps=200, keep_replay=True)
    train(world, StandIn(), settings, run=tmp_path / "run")
    said = []
    resume(tmp_path / "run", steps=100, world=world, algorithm=StandIn(), say=said.append)
    assert any("new ones begin" in line for line in said)

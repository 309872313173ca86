"""Algorithms with a replay learn to remember: a cue shown 20 steps ago, an opponent that repeats moves."""

from typing import Any

import numpy as np
import pytest
from support.cue import Cue
from support.unseen import Repeater

from motet.algorithms import DQNConfig, IQNConfig
from motet.schedule import Linear
from motet.training.evaluator import play_greedily
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds

pytestmark = pytest.mark.slow

SEEDS = pytest.mark.parametrize("seed", [0, 1])
QUICK: dict[str, Any] = {
    "hidden": (32,), "gamma": 0.97, "learning_rate": 1e-3, "target_every": 100, "epsilon": Linear(1.0, 0.05, 20_000)
}  # fmt: skip
MEMORY: dict[str, Any] = {"memory_size": 32, "sequence_length": 24, "burn_in": 0, "batch_size": 16}


def learned(config: Any, seed: int, world: Any = Cue) -> float:
    """The mean return of the final policy: of cues, the share that it answers rightly."""
    settings = Settings(engine="serial", steps=100_000, updates_per_step=0.05, worlds_per_actor=4, seed=seed)
    result = train(world, config, settings)
    worlds = [as_world(world()) for _ in range(400)]
    spaces = worlds[0].observation_spaces[0], worlds[0].action_spaces[0]
    behaviour = config.behaviour(*spaces)
    behaviour.begin(0)
    weights = np.ascontiguousarray(result.agents["agent_0"]["state"][: config.sizes(*spaces).weights])
    behaviour.load(weights, {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in config.header.items()})
    returns = play_greedily(LoopedWorlds(worlds, [False]), [behaviour], range(10**6, 10**6 + 400))
    return float(np.mean(returns))


@SEEDS
@pytest.mark.parametrize("memory", ["gru", "lstm"])
@pytest.mark.parametrize("algorithm", [DQNConfig, IQNConfig])
def test_a_cue_is_remembered(algorithm, memory, seed):
    assert learned(algorithm(memory=memory, **QUICK, **MEMORY), seed) >= 0.95


@SEEDS
def test_a_cue_is_guessed_without_a_memory(seed):
    assert 0.4 < learned(DQNConfig(**QUICK, batch_size=256), seed) < 0.6


MOVES: dict[str, Any] = QUICK | {"gamma": 0.9, "epsilon": Linear(1.0, 0.05, 50_000)}


@SEEDS
def test_an_opponent_that_repeats_moves_is_beaten(seed):
    """The opponent's first three moves are random, so 27 of the 30 rounds can be won for sure."""
    assert learned(DQNConfig(memory="gru", **MOVES, **MEMORY), seed, Repeater) >= 15


@SEEDS
def test_an_opponent_that_repeats_moves_is_not_beaten_without_a_memory(seed):
    assert abs(learned(DQNConfig(**MOVES, batch_size=256), seed, Repeater)) < 1

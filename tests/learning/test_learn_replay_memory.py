"""Algorithms with a replay learn to remember: a cue that is asked for 20 steps after it was shown."""

from typing import Any

import numpy as np
import pytest
from support.cue import Cue

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


def right(config: Any, seed: int) -> float:
    """The share of cues that the final policy answers rightly."""
    settings = Settings(engine="serial", steps=100_000, updates_per_step=0.05, worlds_per_actor=4, seed=seed)
    result = train(Cue, config, settings)
    worlds = [as_world(Cue()) for _ in range(400)]
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
    assert right(algorithm(memory=memory, **QUICK, **MEMORY), seed) >= 0.95


@SEEDS
def test_a_cue_is_guessed_without_a_memory(seed):
    assert 0.4 < right(DQNConfig(**QUICK, batch_size=256), seed) < 0.6

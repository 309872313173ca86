"""Attention over entities in random order learns what a flat network does not, at equal steps."""

import importlib
from typing import Any

import numpy as np
import pytest
from support import EXAMPLES

from motet.algorithms import DQNConfig
from motet.schedule import Linear
from motet.training.run import train
from motet.training.settings import Settings

STEPS, SEEDS = 12_000, range(5)
T_95 = 2.776  # Student's t for five values


def share_right(example: Any, config: DQNConfig, seed: int) -> float:
    """Train, and return the share of right answers among 500."""
    result = train(example.FindYourColour, config, Settings(engine="serial", steps=STEPS, seed=seed))
    world = example.FindYourColour()
    spaces = world.observation_space, world.action_space
    (agent,) = result.agents.values()
    behaviour = config.behaviour(*spaces)
    behaviour.load(np.array(agent["state"]).ravel()[: config.sizes(*spaces).weights], {"epsilon": 0.0})
    world.reset(seed=99)
    right = []
    for _ in range(500):
        seen = world.look()
        right.append(behaviour.act(seen[None], explore=False)[0][0] == world.right)
    return float(np.mean(right))


@pytest.mark.slow
def test_attention_is_better_than_a_flat_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("own_network")
    plain = DQNConfig(hidden=(128, 128), gamma=0.0, learning_rate=1e-3, min_rows=200, epsilon=Linear(1.0, 0.1, 2000))
    own = DQNConfig(
        network=example.Attention, gamma=0.0, learning_rate=1e-3, min_rows=200, epsilon=Linear(1.0, 0.1, 2000)
    )
    scores = np.array([[share_right(example, config, seed) for seed in SEEDS] for config in (own, plain)])
    middle, reach = scores.mean(1), T_95 * scores.std(1, ddof=1) / np.sqrt(len(SEEDS))
    assert middle[0] - reach[0] > middle[1] + reach[1], scores
    assert middle[0] > 0.9, scores

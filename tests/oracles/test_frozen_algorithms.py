"""The update rules compute what they computed before networks got an interface, bit for bit.

Convolutions had passes written by hand then. They act up to rounding, because all rows are now computed in one pass.
"""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from support import frozen_algorithms as frozen

from motet import algorithms
from motet.algorithm import Batch, stacked_batch

FLAT, PICTURE = Box(-1, 1, (7,)), Box(0, 255, (14, 12, 3), np.uint8)
THREE, SOME, BOX = Discrete(3), MultiDiscrete([2, 3]), Box(-2, 2, (2,))
VALUES = {"hidden": (16, 12), "batch_size": 8, "min_rows": 8, "target_every": 3, "learning_rate": 1e-2}
TD3 = {"hidden": (16, 12), "batch_size": 8, "min_rows": 8, "learning_rate": 1e-2}
PPO = {"hidden": (16, 12), "batch_size": 2, "length": 6, "minibatches": 3, "epochs": 1, "learning_rate": 1e-2}
CASES = [
    ("DQNConfig", FLAT, THREE, VALUES),
    ("DQNConfig", FLAT, THREE, VALUES | {"double": False, "prioritised": True}),
    ("DQNConfig", FLAT, THREE, VALUES | {"dueling": True, "n_frames": 2}),
    ("IQNConfig", FLAT, THREE, VALUES),
    ("IQNConfig", FLAT, THREE, VALUES | {"head": (8,), "double": False, "prioritised": True}),
    ("PPOConfig", FLAT, THREE, PPO),
    ("PPOConfig", FLAT, SOME, PPO | {"activation": "relu", "clip_value": 0.2}),
    ("PPOConfig", FLAT, BOX, PPO | {"normalise": True, "entropy": 0.01}),
    ("PPOConfig", PICTURE, THREE, PPO),
    ("TD3Config", FLAT, BOX, TD3),
    ("TD3Config", FLAT, BOX, TD3 | {"normalise": True, "prioritised": True, "max_grad_norm": 1.0}),
    ("TD3Config", PICTURE, BOX, TD3),
]


def drawn_into(batch: Batch, actions: Any, rng: np.random.Generator) -> None:
    for array in (batch.observation, batch.next_observation):
        if array is not None:
            drawn = rng.integers(0, 256, array.shape) if array.dtype == np.uint8 else rng.normal(size=array.shape)
            array[...] = drawn
    if isinstance(actions, Box):
        batch.action[:] = rng.uniform(-2, 2, batch.action.shape)
    else:
        batch.action[:] = rng.integers(0, getattr(actions, "nvec", 3), batch.action.shape)
    batch.reward[:] = rng.normal(size=batch.reward.shape)
    batch.discount[:] = np.where(rng.random(batch.reward.shape) < 0.2, 0.0, 0.9)
    for field in batch.extra.values():
        field[:] = rng.normal(size=field.shape) - 1
    if batch.weight is not None:
        batch.weight[:] = rng.random(batch.weight.shape)


@pytest.mark.parametrize(("name", "observations", "actions", "options"), CASES)
def test_a_hundred_updates_and_the_actions_are_the_same_bits(
    name: str, observations: Box, actions: Any, options: dict[str, Any]
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    spaces = observations, actions
    configs = [getattr(package, name)(**options) for package in (frozen, algorithms)]
    assert configs[0].sizes(*spaces) == configs[1].sizes(*spaces)
    old, new = (config.build(*spaces, 2, [1, 2]) for config in configs)
    batch, rng = stacked_batch(*spaces, configs[1].replay(*spaces), 2), np.random.default_rng(0)
    for step in range(20 if observations is PICTURE else 100):
        drawn_into(batch, actions, rng)
        first, second = old.update(batch, [step, step]), new.update(batch, [step, step])
        for metric, values in first.metrics.items():
            assert np.array_equal(values, second.metrics[metric]), (metric, step)
        assert first.priorities is None or np.array_equal(first.priorities, second.priorities)
    for one in (old, new):
        one.save()
    for array in ("state", "counters", "random"):
        assert np.array_equal(getattr(old, array), getattr(new, array))
    seen = batch.observation[0].reshape(-1, *batch.observation.shape[2 + configs[1].replay(*spaces).once :])
    taken = []
    for config, learner in zip(configs, (old, new), strict=True):
        behaviour = config.behaviour(*spaces)
        behaviour.begin(5)
        behaviour.load(learner.weights()[1], learner.header(100, 1))
        taken.append(behaviour.act(seen))
    for one, other in zip(*([actions, *extra.values()] for actions, extra in taken), strict=True):
        if observations is PICTURE:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)
    torch.set_num_threads(before)

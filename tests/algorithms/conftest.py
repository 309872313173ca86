from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from motet.algorithm import AlgorithmConfig, Batch, stacked_batch

OBSERVATIONS, ACTIONS = Box(-1, 1, (7,)), Discrete(3)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_batch(config: AlgorithmConfig, agents: int, seed: int, *, masked: bool = False) -> Batch:
    """A batch with everything drawn: a fifth of the transitions terminate."""
    rng = np.random.default_rng(seed)
    batch = stacked_batch(OBSERVATIONS, ACTIONS, config.replay(OBSERVATIONS, ACTIONS, masked=masked), agents)
    batch.observation[:] = rng.normal(size=batch.observation.shape)
    batch.next_observation[:] = rng.normal(size=batch.observation.shape)
    batch.action[:] = rng.integers(0, 3, batch.action.shape)
    batch.reward[:] = 3 * rng.normal(size=batch.reward.shape)
    batch.discount[:] = np.where(rng.random(batch.reward.shape) < 0.2, 0.0, 0.9)
    if batch.weight is not None:
        batch.weight[:] = rng.random(batch.weight.shape)
    for fields in (batch.extra, batch.next_extra) if masked else ():
        fields["mask"][:] = rng.random(fields["mask"].shape) < 0.5
        fields["mask"][..., 1] = True
    return batch


def copy_into(to: Batch, source: Batch) -> None:
    for name in ("observation", "action", "reward", "discount", "next_observation", "weight"):
        if getattr(to, name) is not None:
            getattr(to, name)[:] = getattr(source, name)
    for name in to.next_extra:
        to.next_extra[name][:] = source.next_extra[name]


def one_of(batch: Batch, agent: int) -> Batch:
    """One agent's part as a stack of one, with its own arrays."""
    return batch.agent(agent).map(lambda array: array[None].copy())

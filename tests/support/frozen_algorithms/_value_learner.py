"""Base of the learning halves of DQN and IQN, and conversion of batches to tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.frozen_algorithms._blocks import Block, padded
from support.frozen_algorithms._encoder import Encoder
from support.frozen_algorithms._flat import FlatLearner
from support.frozen_algorithms._value import ValueConfig
from torch import Tensor

from motet.algorithm import Batch, Space

__all__ = ["Tensors", "ValueLearner"]


class Tensors:
    """A stacked batch as tensors: views if device and dtype allow, otherwise copies, made by each :meth:`fetch`."""

    action_dtype = torch.int64

    def __init__(self, batch: Batch, encoder: Encoder, action_space: Space, device: torch.device) -> None:
        self.batch, self._device = batch, device
        self._first_action = int(getattr(action_space, "start", 0))
        rows = batch.reward.shape
        self.inputs = torch.zeros((rows[0], 2 * rows[1], encoder.size), device=device)  # current rows, then next rows
        self.x, self.next_x = self.inputs[:, : rows[1]], self.inputs[:, rows[1] :]
        self._encode = encoder.link(batch.observation, self.x), encoder.link(batch.next_observation, self.next_x)
        self._arrays = {
            "action": torch.from_numpy(batch.action),
            "reward": torch.from_numpy(batch.reward),
            "discount": torch.from_numpy(batch.discount),
        }
        if batch.weight is not None:
            self._arrays["weight"] = torch.from_numpy(batch.weight)
        if "mask" in batch.next_extra:
            self._arrays["next_mask"] = torch.from_numpy(batch.next_extra["mask"])

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        for encode in self._encode:
            encode()
        self.action = self._on_device("action", self.action_dtype)
        if self._first_action:
            self.action = self.action - self._first_action
        self.reward = self._on_device("reward", torch.float32)
        self.discount = self._on_device("discount", torch.float32)
        self.weight = self._on_device("weight", torch.float32) if "weight" in self._arrays else None
        self.next_mask = self._on_device("next_mask", torch.bool) if "next_mask" in self._arrays else None

    def _on_device(self, name: str, dtype: torch.dtype) -> Tensor:
        return self._arrays[name].to(self._device, dtype)  # the same tensor if device and dtype match

    def best(self, values: Tensor) -> Tensor:
        """Return the allowed next action with the highest of the values ``[A, B, n]``, as ``[A, B, 1]``."""
        if self.next_mask is not None:
            values = values.masked_fill(~self.next_mask, -math.inf)
        return values.argmax(2, keepdim=True)


class ValueLearner(FlatLearner):
    """Base of a learning half for A agents; subclasses implement ``update``.

    Args:
        config: the settings.
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        blocks: the networks in a row, in the order of their offsets.
        seeds: one for each agent.
        device: device of the tensors.
        streams: whether updates draw random numbers.
    """

    def __init__(
        self,
        config: ValueConfig,
        observation_space: Space,
        action_space: Space,
        blocks: Sequence[Block],
        seeds: Sequence[int],
        device: str,
        streams: bool = False,
    ) -> None:
        self._settings, self._action_space = config, action_space
        self._encoder = Encoder(observation_space, config.n_frames)

        def initialise(flat: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            for block in blocks:
                block.initialise(flat, rng)

        super().__init__(padded(blocks[-1].end), seeds, initialise, device, streams=streams)
        self._batches: dict[int, Tensors] = {}
        self._metrics = {name: np.zeros(len(seeds), np.float32) for name in ("loss", "mean_q", "grad_norm")}

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        return self._settings._header_values(step, int(self.counters[agent, 0]))

    def _fetched(self, batch: Batch) -> Tensors:
        """Return the current content of a batch as tensors."""
        if id(batch) not in self._batches:
            self._batches[id(batch)] = Tensors(batch, self._encoder, self._action_space, self._device)
        data = self._batches[id(batch)]
        data.fetch()
        return data

    def _measure(self, loss: Tensor, mean_q: Tensor, grad_norm: Tensor) -> None:
        """Store metrics, ``[A]`` each."""
        for name, value in (("loss", loss), ("mean_q", mean_q), ("grad_norm", grad_norm)):
            self._metrics[name][:] = value.cpu().numpy()

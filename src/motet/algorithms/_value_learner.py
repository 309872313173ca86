"""Base of the learning halves of DQN and IQN, and conversion of batches to tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Space
from motet.algorithms._device import Device
from motet.algorithms._encoder import Encoder
from motet.algorithms._flat import FlatLearner
from motet.algorithms._plans import RowPlan, padded
from motet.algorithms._value import ValueConfig

__all__ = ["Tensors", "ValueLearner"]


class Tensors:
    """A stacked batch as tensors of the device, which each :meth:`fetch` brings up to date."""

    action_dtype = torch.int64

    def __init__(self, batch: Batch, encoder: Encoder, action_space: Space, device: Device) -> None:
        self.batch, self._device = batch, device
        self._first_action = int(getattr(action_space, "start", 0))
        rows = batch.reward.shape
        self.inputs = device.zeros(rows[0], 2 * rows[1], encoder.size)  # current rows, then next rows
        self.x, self.next_x = self.inputs[:, : rows[1]], self.inputs[:, rows[1] :]
        parts = (batch.observation, self.x), (batch.next_observation, self.next_x)
        self._encode = [encoder.link(observation, part, device) for observation, part in parts]
        self._action, self._reward, self._discount = map(device.link, (batch.action, batch.reward, batch.discount))
        self._weight = _nothing if batch.weight is None else device.link(batch.weight)
        self._next_mask = device.link(batch.next_extra["mask"]) if "mask" in batch.next_extra else _nothing

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        for encode in self._encode:
            encode()
        self.action = self._action().to(self.action_dtype)
        if self._first_action:
            self.action = self.action - self._first_action
        self.reward, self.discount = self._reward(), self._discount()
        self.weight, self.next_mask = self._weight(), self._next_mask()

    def best(self, values: Tensor) -> Tensor:
        """Return the allowed next action with the highest of the values ``[A, B, n]``, as ``[A, B, 1]``."""
        if self.next_mask is not None:
            values = values.masked_fill(~self.next_mask, -math.inf)
        return values.argmax(2, keepdim=True)


def _nothing() -> None:
    return None


class ValueLearner(FlatLearner):
    """Base of a learning half for A agents; subclasses implement ``update``.

    Args:
        config: the settings.
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        plan: the whole network in a row.
        seeds: one for each agent.
        device: where the tensors are.
        streams: whether updates draw random numbers.
    """

    def __init__(
        self,
        config: ValueConfig,
        observation_space: Space,
        action_space: Space,
        plan: RowPlan,
        seeds: Sequence[int],
        device: Device,
        streams: bool = False,
    ) -> None:
        self._settings, self._action_space = config, action_space
        self._encoder = Encoder(observation_space, config.n_frames)

        def initialise(row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            plan.initialise(row[: plan.size], rng)

        super().__init__(padded(plan.size), seeds, initialise, device, ("loss", "mean_q", "grad_norm"), streams)
        self._batches: dict[int, Tensors] = {}

    @torch.inference_mode()
    def begin_phase(self) -> None:
        """Update the target networks if that is to happen when a phase begins."""
        if self._settings.target_every == "phase":
            self._targets.lerp_(self._weights, self._settings.target_rate)

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

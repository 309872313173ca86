"""Base of the learning halves of DQN and IQN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from motet.algorithm import Batch, Space
from motet.algorithms._batch_tensors import BatchTensors, batch_tensors
from motet.algorithms._device import Device
from motet.algorithms._encoder import Encoder
from motet.algorithms._flat import FlatLearner
from motet.algorithms._plans import RowPlan, padded
from motet.algorithms._value import ValueConfig

__all__ = ["ValueLearner"]


class ValueLearner(FlatLearner):
    """Base of a learning half for A agents; subclasses implement ``update``.

    Args:
        config: the settings.
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        plan: the whole network of an agent.
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
        self._batches: dict[int, BatchTensors] = {}

    @torch.inference_mode()
    def begin_phase(self) -> None:
        """Update the target networks if the config updates them at the beginning of a phase."""
        if self._settings.target_every == "phase":
            self._targets.lerp_(self._weights, self._settings.target_rate)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        return self._settings._header_values(step, int(self.counters[agent, 0]))

    def _fetched(self, batch: Batch) -> BatchTensors:
        """Return the current content of a batch as tensors."""
        if id(batch) not in self._batches:
            given = batch, self._encoder, self._action_space, self._device
            self._batches[id(batch)] = batch_tensors(*given, self._settings.burn_in)
        data = self._batches[id(batch)]
        data.fetch()
        return data

"""Base of all learners: the state of an agent as one flat row, Adam, gradient clipping and target updates.

On a CPU every tensor is a view into ``state``, so publishing, saving and restoring an agent are single copies. DQN and
IQN are based on :class:`FlatLearner`, whose rows are ``weights | target weights | first moments | second moments``.
Algorithms with other parts are based on :class:`FlatRows` and :class:`Adam`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithms._device import Device
from motet.algorithms._streams import STREAM_BYTES, load_stream, save_stream

__all__ = ["Adam", "FlatLearner", "FlatRows", "clip_rows"]

METRICS_EVERY = 16
"""Number of updates between two computations of the metrics."""

_LINE = 64
_BETA1, _BETA2 = 0.9, 0.999


class FlatRows:
    """The states of A agents: one flat row each on a device, counters and random streams, saved and loaded together.

    Args:
        n_weights: number of published values, with which a row begins.
        n_state: number of values in a row.
        seeds: one for each agent, for its initial row and its random stream.
        initialise: fills one row.
        device: where the tensors are.
        metrics: names of the metrics.
        streams: whether agents have random streams.
    """

    def __init__(
        self,
        n_weights: int,
        n_state: int,
        seeds: Sequence[int],
        initialise: Callable[[npt.NDArray[np.float32], np.random.Generator], None],
        device: Device,
        metrics: Sequence[str],
        streams: bool = False,
    ) -> None:
        agents = len(seeds)
        self.n_weights = n_weights
        self.state = _aligned((agents, n_state))
        self.counters = np.zeros((agents, 1), np.int64)
        self.random = np.zeros((agents, STREAM_BYTES if streams else 0), np.uint8)
        self._streams = [np.random.Generator(np.random.PCG64([seed, 1])) for seed in seeds] if streams else []
        for row, seed in zip(self.state, seeds, strict=True):
            initialise(row, np.random.default_rng(seed))
        self._device = device
        self._metrics = {name: np.zeros(agents, np.float32) for name in metrics}
        self._passes = 0
        self._optimisers: list[Adam] = []
        self._rows = device.to_device(self.state)  # [A, n_state]

    def weights(self) -> npt.NDArray[np.float32]:
        """Return the published values ``[A, n_weights]``, up to date."""
        weights = self.state[:, : self.n_weights]
        if not self._device.shares:
            self._device.to_host(self._rows[:, : self.n_weights], weights)
        return weights

    def _steps_of(self, done: npt.NDArray[np.int64]) -> Tensor:
        """Return the numbers of optimiser steps ``[rows]``, as the argument of :meth:`Adam.load`."""
        return self._device.to_device(done.astype(np.float32))

    def _adam_of(self, weights: Tensor, grad: Tensor, moment1: Tensor, moment2: Tensor) -> Adam:
        """Return a new optimiser of some weights. :meth:`start_from` resets it."""
        self._optimisers.append(Adam(weights, grad, moment1, moment2))
        return self._optimisers[-1]

    def start_from(self, agent: int, row: npt.NDArray[np.float32]) -> None:
        """Take over weights, target networks and statistics from a row of ``state``; the optimisers are reset."""
        self.save()
        self.state[agent] = row
        self.load()
        for optimiser in self._optimisers:
            optimiser.forget(agent, len(self.state))

    def _measure(self, values: Mapping[str, Tensor]) -> None:
        """Store metrics by name, ``[A]`` each."""
        found = self._device.to_host(torch.stack(list(values.values())))
        for name, value in zip(values, found, strict=True):
            self._metrics[name][:] = value

    def _seed(self, agent: int) -> int:
        """Return the next seed of an agent's stream, for a pass that draws random numbers."""
        return int(self._streams[agent].integers(2**63))

    def _measures(self) -> bool:
        """Return whether to compute metrics in this update; count it.

        The count is shared by the stack, because the agents' update counters may differ.
        """
        self._passes += 1
        return self._passes % METRICS_EVERY == 1

    def save(self) -> None:
        """Write the current state into ``state``, ``counters`` and ``random``."""
        if not self._device.shares:
            self._device.to_host(self._rows, self.state)
        for row, stream in zip(self.random, self._streams, strict=False):
            save_stream(stream, row)

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        if not self._device.shares:
            self._device.to_device(self.state, self._rows)
        for row, stream in zip(self.random, self._streams, strict=False):
            load_stream(stream, row)


class Adam:
    """Adam for rows of weights, each with separate moments and a separate learning rate.

    Args:
        weights: ``[rows, n]``, a view into the state, as are the moments.
        grad: the gradient that :meth:`step` applies, of the same shape.
        moment1: the first moments.
        moment2: the second moments.
    """

    def __init__(self, weights: Tensor, grad: Tensor, moment1: Tensor, moment2: Tensor) -> None:
        self._done = weights.new_zeros(len(weights))
        self._parts = [list(part.unbind(0)) for part in (weights, grad, moment1, moment2, self._done)]

    def load(self, done: Tensor) -> None:
        """Resume after these numbers of optimiser steps, ``[rows]``."""
        self._done.copy_(done)

    def forget(self, agent: int, agents: int) -> None:
        """Reset the moments of one agent. The rows are divided equally among ``agents`` agents."""
        each = len(self._done) // agents
        for moment in self._parts[2:4]:
            for row in moment[agent * each : (agent + 1) * each]:
                row.zero_()

    def step(self, rates: Sequence[float], eps: float) -> None:
        """Take one step, with a learning rate for each row."""
        self._done.add_(1)
        # A call uses one learning rate. If the rows have different ones, each row gets a separate call.
        groups = [slice(None)] if len(set(rates)) == 1 else [slice(a, a + 1) for a in range(len(rates))]
        for group in groups:
            weights, grads, moment1, moment2, steps = (part[group] for part in self._parts)
            torch._fused_adam_(
                weights, grads, moment1, moment2, [], steps, lr=rates[group][0], beta1=_BETA1, beta2=_BETA2,
                weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip


def clip_rows(grad: Tensor, max_norm: float | None) -> Tensor:
    """Clip each row of a gradient to ``max_norm``; return the norms ``[rows]`` before clipping."""
    norms: Tensor = torch.linalg.vector_norm(grad, dim=1)
    if max_norm is not None:
        grad.mul_((norms + 1e-6).reciprocal_().mul_(max_norm).clamp_(max=1.0).unsqueeze(1))
    return norms


class FlatLearner(FlatRows):
    """Rows of A agents with Adam, target weights, and gradient clipping by the norm of each agent.

    Args:
        n_weights: number of weights of one agent, a multiple of 16.
        seeds: one for each agent, for its initial weights and its random stream.
        initialise: fills one row of weights.
        device: where the tensors are.
        metrics: names of the metrics.
        streams: whether agents have random streams.
    """

    def __init__(
        self,
        n_weights: int,
        seeds: Sequence[int],
        initialise: Callable[[npt.NDArray[np.float32], np.random.Generator], None],
        device: Device,
        metrics: Sequence[str],
        streams: bool = False,
    ) -> None:
        def fill(row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            initialise(row[:n_weights], rng)
            row[n_weights : 2 * n_weights] = row[:n_weights]

        super().__init__(n_weights, 4 * n_weights, seeds, fill, device, metrics, streams)
        self._grad = device.zeros(len(seeds), n_weights)
        parts = [self._rows[:, i * n_weights : (i + 1) * n_weights] for i in range(4)]
        self._weights, self._targets, moment1, moment2 = parts  # [A, n_weights] each
        self._optimiser = self._adam_of(self._weights, self._grad, moment1, moment2)

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        self._optimiser.load(self._steps_of(self.counters[:, 0]))

    def _clip(self, max_norm: float | None) -> Tensor:
        """Clip each agent's gradient to ``max_norm``; return the norms ``[A]`` before clipping."""
        return clip_rows(self._grad, max_norm)

    def _adam(self, rates: Sequence[float], eps: float) -> None:
        """Take one step of Adam for all agents; also count the update."""
        self.counters[:, 0] += 1
        self._optimiser.step(rates, eps)

    def _move_targets(self, every: int | Literal["phase"], rate: float) -> None:
        """Every ``every`` updates of an agent, move its target weights towards its weights by ``rate``; 1 copies."""
        if every == "phase":
            return  # begin_phase updates the target weights
        for agent, updates in enumerate(self.counters[:, 0].tolist()):
            if updates % every == 0:
                self._targets[agent].lerp_(self._weights[agent], rate)


def _aligned(shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return an array of zeros whose memory begins on a cache line."""
    n = shape[0] * shape[1] * 4
    raw = np.zeros(n + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + n].view(np.float32).reshape(shape)

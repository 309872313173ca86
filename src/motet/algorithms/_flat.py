"""What learners of flat rows share: weights, targets and moments as parts of one row per agent, and how they move.

A row of ``state`` is ``weights | targets | first moments | second moments``, each a multiple of 16 numbers long. On a
CPU every tensor is a view into it, so publishing, saving and restoring an agent are single copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.errors import SettingError

__all__ = ["FlatLearner", "check_seeds", "padded"]

_LINE = 64
_BETA1, _BETA2 = 0.9, 0.999


def padded(n: int) -> int:
    """The next multiple of 16: rows of float32 that begin on a cache line."""
    return -(-n // 16) * 16


class FlatLearner:
    """Rows of A agents with Adam, gradient clipping by each agent's own norm, and targets.

    Args:
        n_weights: of one agent, a multiple of 16.
        seeds: one for each agent; its weights are made from it.
        initialise: fills one row of weights.
        device: where the tensors are.
        random: bytes of an agent's random stream.
    """

    def __init__(
        self,
        n_weights: int,
        seeds: Sequence[int],
        initialise: Callable[[npt.NDArray[np.float32], np.random.Generator], None],
        device: str,
        random: int = 0,
    ) -> None:
        agents = len(seeds)
        self.n_weights = n_weights
        self.state = _aligned((agents, 4 * n_weights))
        self.counters = np.zeros((agents, 1), np.int64)
        self.random = np.zeros((agents, random), np.uint8)
        for row, seed in zip(self.state, seeds, strict=True):
            initialise(row[:n_weights], np.random.default_rng(seed))
            row[n_weights : 2 * n_weights] = row[:n_weights]
        host = torch.from_numpy(self.state)
        self._host, self._device = host, torch.device(device)
        self._shared = self._device.type == "cpu"
        self._rows = host if self._shared else host.to(self._device)  # [A, 4 n_weights]
        self._grad = torch.zeros((agents, n_weights), device=self._device)
        parts = [self._rows[:, i * n_weights : (i + 1) * n_weights] for i in range(4)]
        self._weights, self._targets, self._moment1, self._moment2 = parts  # [A, n_weights] each
        self._adam_steps = torch.zeros(agents, device=self._device)
        adam = (self._weights, self._grad, self._moment1, self._moment2, self._adam_steps)
        self._adam_rows = [list(part.unbind(0)) for part in adam]  # lists over agents

    def weights(self) -> npt.NDArray[np.float32]:
        """``[A, n_weights]``, up to date."""
        if not self._shared:
            self._host[:, : self.n_weights].copy_(self._weights)
        return self.state[:, : self.n_weights]

    def save(self) -> None:
        """Bring ``state``, ``counters`` and ``random`` up to date."""
        if not self._shared:
            self._host.copy_(self._rows)

    def load(self) -> None:
        """Go on from ``state``, ``counters`` and ``random``."""
        if not self._shared:
            self._rows.copy_(self._host)
        self._adam_steps.copy_(torch.from_numpy(self.counters[:, 0]))

    def _clip(self, max_norm: float | None) -> Tensor:
        """Scale each agent's gradient down to ``max_norm``; return the norms ``[A]`` from before."""
        norms: Tensor = torch.linalg.vector_norm(self._grad, dim=1)
        if max_norm is not None:
            self._grad.mul_((norms + 1e-6).reciprocal_().mul_(max_norm).clamp_(max=1.0).unsqueeze(1))
        return norms

    def _adam(self, rates: Sequence[float], eps: float) -> None:
        """One step of Adam for all agents; also counts the update."""
        self.counters[:, 0] += 1
        self._adam_steps.add_(1)
        # One call takes one rate: agents whose schedules stand at different values get a call each.
        groups = [slice(None)] if len(set(rates)) == 1 else [slice(a, a + 1) for a in range(len(rates))]
        for group in groups:
            weights, grads, moment1, moment2, steps = (part[group] for part in self._adam_rows)
            torch._fused_adam_(
                weights, grads, moment1, moment2, [], steps, lr=rates[group][0], beta1=_BETA1, beta2=_BETA2,
                weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
            )  # fmt: skip

    def _move_targets(self, every: int, rate: float) -> None:
        """Every ``every`` updates of an agent move its targets by ``rate`` of the way to its weights; 1 copies."""
        for agent, updates in enumerate(self.counters[:, 0].tolist()):
            if updates % every == 0:
                self._targets[agent].lerp_(self._weights[agent], rate)


def check_seeds(agents: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed for each agent."""
    if agents < 1 or len(seeds) != agents:
        raise SettingError(f"seeds: given {len(seeds)} for {agents} agents, expected one for each of 1 or more agents")


def _aligned(shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Zeros that begin on a cache line."""
    n = shape[0] * shape[1] * 4
    raw = np.zeros(n + _LINE, np.uint8)
    first = -raw.ctypes.data % _LINE
    return raw[first : first + n].view(np.float32).reshape(shape)

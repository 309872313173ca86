"""Batches of rows that hold transitions of a model, as tensors, for learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch
from motet.algorithms._device import Device

__all__ = ["Transitions", "taken"]

_ROUND = 64  # numbers of successors are rounded up to a multiple of this, so that few sizes of buffers occur


class Transitions:
    """The transitions in a batch: the distinct successors of each row, and the probabilities of reaching them.

    Attributes:
        codes: ``[A, N + B, size]``: the successors of all rows of an agent, filled up to N, then the rows' states.
        n: N.
        at: ``[A, B, P, K]``: number of each successor among the N; N where a row has fewer than K.
        ended: ``[A, N]``: whether the successor is terminal.
        holds: ``[A, N, goals]``: 1 where the goal holds in it.
        reach: ``[A, B, P, R, K]``: probability of each successor after each robot action, under each profile.

    Discounts ``gamma`` are ``[A, 1, 1]``, per unit of time.
    """

    def __init__(self, batch: Batch, goals: int, device: Device, dtype: torch.dtype = torch.float32) -> None:
        extra, observation = batch.extra, batch.observation
        successor = extra["successor"]
        agents, rows, profiles, distinct, size = successor.shape
        valid = (np.arange(distinct) < extra["count"][..., None]).reshape(agents, -1)
        self.n = n = max(-(-int(valid.sum(1).max()) // _ROUND) * _ROUND, _ROUND)
        number = np.where(valid, valid.cumsum(1) - 1, n)
        agent, place = np.nonzero(valid)
        to = agent, number[agent, place]
        self.codes = np.empty((agents, n + rows, size), successor.dtype)
        self.codes[:, :n] = observation[:, :1]  # filled up with any state, because these entries belong to no row
        self.codes[:, n:] = observation
        self.codes[to] = successor.reshape(agents, -1, size)[agent, place]
        ended, holds = np.ones((agents, n), np.bool_), np.zeros((agents, n, goals), np.uint8)
        ended[to] = extra["ended"].reshape(agents, -1)[agent, place]
        holds[to] = np.unpackbits(extra["holds"].reshape(agents, valid.shape[1], -1)[agent, place], axis=1, count=goals)

        def tensor(array: npt.NDArray[Any], kind: torch.dtype = dtype) -> Tensor:
            return device.to_device(array).to(kind)

        self.at = tensor(number.reshape(agents, rows, profiles, distinct), torch.int64)
        self.ended, self.holds = tensor(ended, torch.bool), tensor(holds)
        self._lists, self._probability = tensor(extra["number"], torch.int64), tensor(extra["probability"])
        self._duration = tensor(extra["duration"]) if "duration" in extra else None
        self._distinct = distinct
        self.reach = self._by_state(self._probability)

    def _by_state(self, listed: Tensor) -> Tensor:
        """Add up values for the lists of successors, ``[A, B, P, R, S]``, by distinct successor."""
        return listed.new_zeros((*listed.shape[:-1], self._distinct)).scatter_add_(-1, self._lists, listed)

    def discounted(self, gamma: Tensor) -> Tensor:
        """Return ``reach`` with the probability of each transition multiplied by the discount for its duration."""
        assert self._duration is not None
        return self._by_state(self._probability * gamma[..., None, None] ** self._duration)

    def lasted(self, gamma: Tensor) -> Tensor:
        """Return the expected (1 - gamma^D) / -ln(gamma) for durations D ``[A, B, P, R]``; 1 where gamma is 1."""
        assert self._duration is not None
        log = gamma[..., None, None].log()
        lasted = torch.where(log < 0, torch.expm1(log * self._duration) / log, 1.0)
        return (self._probability * lasted).sum(-1)

    def attained(self, attainment: Tensor, gamma: Tensor, timed: bool = False, robot: Tensor | None = None) -> Tensor:
        """Return the probability of attaining each goal after each robot action, ``[A, B, P, R, goals]``.

        Args:
            attainment: the probability of attaining each goal from each successor, if it does not hold there,
                ``[A, N, goals]``.
            gamma: the discount, per step.
            timed: whether the discount is per unit of time.
            robot: probabilities of the robot actions ``[A, B, R]``. If given, the result is the mean over them,
                ``[A, B, P, goals]``.
        """

        def expected(reach: Tensor, values: Tensor) -> Tensor:
            """The mean of the successors' values."""
            if robot is None:
                return torch.einsum("abprk,abpkg->abprg", reach, taken(values, self.at))
            return torch.einsum(
                "abpk,abpkg->abpg", torch.einsum("abr,abprk->abpk", robot, reach), taken(values, self.at)
            )

        later = attainment.masked_fill(self.ended.unsqueeze(2), 0.0)
        if not timed or self._duration is None:
            return expected(self.reach, torch.where(self.holds > 0, 1.0, gamma * later))
        later = later.masked_fill(self.holds > 0, 0.0)
        return expected(self.reach, self.holds) + expected(self.discounted(gamma), later)


def taken(values: Tensor, at: Tensor) -> Tensor:
    """Return values ``[A, N, n]`` at numbers ``[A, B, P, K]``: ``[A, B, P, K, n]``; 0 at number N."""
    padded = torch.nn.functional.pad(values, (0, 0, 0, 1))
    agents = torch.arange(len(at), device=at.device).view(-1, 1, 1, 1)
    return padded[agents, at]

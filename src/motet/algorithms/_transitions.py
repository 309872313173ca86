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
    """What a batch says about the model: the distinct successors of each row, and how they are reached.

    Attributes:
        codes: ``[A, N + B, size]``: the successors of all rows of an agent, filled up to N, then the rows' states.
        n: N.
        at: ``[A, B, P, K]``: number of each successor among the N; N where a row has fewer than K.
        ended: ``[A, N]``: whether the successor is terminal.
        holds: ``[A, N, goals]``: 1 where the goal holds in it.
        reach: ``[A, B, P, R, K]``: probability of each successor after each robot action, under each profile.
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
        self.codes[:, :n] = observation[:, :1]  # any state: it belongs to no row
        self.codes[:, n:] = observation
        self.codes[to] = successor.reshape(agents, -1, size)[agent, place]
        ended, holds = np.ones((agents, n), np.bool_), np.zeros((agents, n, goals), np.uint8)
        ended[to] = extra["ended"].reshape(agents, -1)[agent, place]
        holds[to] = np.unpackbits(extra["holds"].reshape(agents, valid.shape[1], -1)[agent, place], axis=1, count=goals)

        def tensor(array: npt.NDArray[Any], kind: torch.dtype = dtype) -> Tensor:
            return device.to_device(array).to(kind)

        self.at = tensor(number.reshape(agents, rows, profiles, distinct), torch.int64)
        self.ended, self.holds = tensor(ended, torch.bool), tensor(holds)
        lists, probability = tensor(extra["number"], torch.int64), tensor(extra["probability"])
        empty = probability.new_zeros((*lists.shape[:-1], distinct))
        self.reach = empty.scatter_add_(-1, lists, probability)


def taken(values: Tensor, at: Tensor) -> Tensor:
    """Return values ``[A, N, n]`` at numbers ``[A, B, P, K]``: ``[A, B, P, K, n]``; 0 at number N."""
    padded = torch.nn.functional.pad(values, (0, 0, 0, 1))
    agents = torch.arange(len(at), device=at.device).view(-1, 1, 1, 1)
    return padded[agents, at]

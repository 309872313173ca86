"""Observation normalisation: running statistics that are stored in the learner's rows and published with the weights.

The row of an algorithm that normalises begins with ``mean | scale`` of every input, *before* the weights of its
network, so that one copy publishes both in one version. Both halves compute ``clip((x - mean) * scale)`` in float32,
with the same result bit for bit. An update uses the statistics of the version that it starts from, which actors used
with the same weights, and adds its batch to them at the end. So weights and statistics of one version always belong
together.

After the published part follow values that only the learner needs: running sums as pairs of float32, whose sum keeps
48 bits. They are plain values of the state, and are saved, restored and compared like all others, on any device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from support.frozen_algorithms._statistics import CLIP, Statistics
from torch import Tensor

__all__ = ["Normaliser"]

_LEAST_VARIANCE = 1e-6


class Normaliser:
    """The statistics of A agents, on their rows ``[A, n]``.

    >>> places = Statistics(size=1, public=0, private=2)
    >>> rows = torch.zeros(1, 7)
    >>> places.initialise(rows.numpy()[0])
    >>> normaliser = Normaliser(places, rows)
    >>> normaliser.update(torch.tensor([[[1.0], [2.0]]]))
    >>> normaliser.update(torch.tensor([[[3.0], [6.0]]]))
    >>> normaliser.count.tolist(), normaliser.mean.tolist(), normaliser.variance.tolist()
    ([4.0], [[3.0]], [[3.5]])
    """

    def __init__(self, places: Statistics, rows: Tensor) -> None:
        size, private = places.size, places.private

        def part(first: int, n: int) -> Tensor:
            return rows[:, first : first + n]

        self._mean, self._scale = part(places.public, size), part(places.public + size, size)
        self._mean_rest, self._spread = part(private, size), part(private + size, size)
        self._spread_rest = part(private + 2 * size, size)
        self._count, self._count_rest = rows[:, private + 3 * size], rows[:, private + 3 * size + 1]
        self._mean_row, self._scale_row = self._mean.unsqueeze(1), self._scale.unsqueeze(1)

    @property
    def count(self) -> Tensor:
        """Number of rows counted so far, ``[A]``."""
        return _whole(self._count, self._count_rest)

    @property
    def mean(self) -> Tensor:
        """Running means, ``[A, size]``."""
        return _whole(self._mean, self._mean_rest)

    @property
    def variance(self) -> Tensor:
        """Running variances, ``[A, size]``."""
        return _whole(self._spread, self._spread_rest) / self.count.clamp(min=1).unsqueeze(1)

    def apply(self, inputs: Tensor) -> None:
        """Normalise ``[A, rows, size]`` in place, by the statistics of the current version."""
        inputs.sub_(self._mean_row).mul_(self._scale_row).clamp_(-CLIP, CLIP)

    def update(self, inputs: Tensor, valid: Tensor | None = None, frozen: Sequence[bool] = ()) -> None:
        """Add rows ``[A, rows, size]`` to the statistics; the rows must not be normalised.

        ``valid`` ``[A, rows]`` is False for rows to ignore. ``frozen`` marks agents whose statistics do not change.
        """
        x = inputs.to("cpu", torch.float64)
        if valid is None:
            n = torch.full((len(x),), x.shape[1], dtype=torch.float64)
            mean = x.mean(1)
            spread = (x - mean.unsqueeze(1)).square_().sum(1)
        else:
            some = valid.to("cpu", torch.float64).unsqueeze(2)
            n = some.sum((1, 2))
            mean = (x * some).sum(1) / n.clamp(min=1).unsqueeze(1)
            spread = (x - mean.unsqueeze(1)).square_().mul_(some).sum(1)
        if any(frozen):
            n[torch.tensor(list(frozen))] = 0
        count, old, known = self.count, self.mean, _whole(self._spread, self._spread_rest)
        total = (count + n).clamp(min=1)
        share, some = (n / total).unsqueeze(1), (n > 0).unsqueeze(1)
        away = mean - old
        known = torch.where(some, known + spread + away.square() * (count.unsqueeze(1) * share), known)
        _put(self._count, self._count_rest, count + n)
        _put(self._mean, self._mean_rest, torch.where(some, old + away * share, old))
        _put(self._spread, self._spread_rest, known)
        scale = (self.variance + _LEAST_VARIANCE).rsqrt()
        self._scale.copy_(torch.where(self.count.unsqueeze(1) > 0, scale, 1.0))


def _whole(high: Tensor, low: Tensor) -> Tensor:
    return high.to("cpu", torch.float64) + low.to("cpu", torch.float64)


def _put(high: Tensor, low: Tensor, value: Tensor) -> None:
    """Store a value as a pair. Later updates read the pair, so a restarted learner computes the same."""
    first = value.to(torch.float32)
    high.copy_(first)
    low.copy_(value - first)

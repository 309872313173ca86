"""Observation normalisation: running statistics that are stored in the learner's rows and published with the weights.

The row of an algorithm that normalises begins with ``mean | scale`` of every input, *before* the weights of its
network, so that one copy publishes both in one version. Actors and learners compute ``clip((x - mean) * scale)`` in
float32, with the same result bit for bit. An update uses the statistics of the version that it starts from, which
actors used with the same weights, and adds its batch to them at the end. So weights and statistics of one version
always belong together.

The published part is followed by values that only the learner needs: running sums, each stored as two float32 values
whose sum has 48 significant bits. They belong to the state, and are saved, restored and compared like all other values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.algorithms._device import Device
from motet.algorithms._statistics import CLIP, Statistics

__all__ = ["Normaliser"]

_LEAST_VARIANCE = 1e-6


class Normaliser:
    """The statistics of A agents, on their rows ``[A, n]``.

    >>> places = Statistics(size=1, public=0, private=2)
    >>> rows = torch.zeros(1, 7)
    >>> places.initialise(rows.numpy()[0])
    >>> normaliser = Normaliser(places, rows, Device("cpu"))
    >>> normaliser.update(torch.tensor([[[1.0], [2.0]]]))
    >>> normaliser.update(torch.tensor([[[3.0], [6.0]]]))
    >>> normaliser.count.tolist(), normaliser.mean.tolist(), normaliser.variance.tolist()
    ([4.0], [[3.0]], [[3.5]])
    """

    def __init__(self, places: Statistics, rows: Tensor, device: Device) -> None:
        self._size, self._device = places.size, device
        self._public = rows[:, places.public : places.public + places.n_public]
        self._private = rows[:, places.private : places.private + places.n_private]
        public = self._public.unsqueeze(1)
        self._mean_row, self._scale_row = public[..., : places.size], public[..., places.size :]

    @property
    def count(self) -> Tensor:
        """Number of rows counted so far, ``[A]``."""
        return self._sums()[0]

    @property
    def mean(self) -> Tensor:
        """Running means, ``[A, size]``."""
        return self._sums()[1]

    @property
    def variance(self) -> Tensor:
        """Running variances, ``[A, size]``."""
        count, _, spread = self._sums()
        return spread / count.clamp(min=1).unsqueeze(1)

    def apply(self, inputs: Tensor) -> None:
        """Normalise ``[A, rows, size]`` in place, by the statistics of the current version."""
        inputs.sub_(self._mean_row).mul_(self._scale_row).clamp_(-CLIP, CLIP)

    def update(self, inputs: Tensor, valid: Tensor | None = None, frozen: Sequence[bool] = ()) -> None:
        """Add rows ``[A, rows, size]`` to the statistics; the rows must not be normalised.

        ``valid`` ``[A, rows]`` is False for rows to ignore. ``frozen`` marks agents whose statistics do not change.
        """
        x = self._fetch(inputs)
        if valid is None:
            n = torch.full((len(x),), x.shape[1], dtype=torch.float64)
            mean = x.mean(1)
            spread = (x - mean.unsqueeze(1)).square_().sum(1)
        else:
            some = self._fetch(valid).unsqueeze(2)
            n = some.sum((1, 2))
            mean = (x * some).sum(1) / n.clamp(min=1).unsqueeze(1)
            spread = (x - mean.unsqueeze(1)).square_().mul_(some).sum(1)
        if any(frozen):
            n[torch.tensor(list(frozen))] = 0
        count, old, known = self._sums()
        total = (count + n).clamp(min=1)
        share, some = (n / total).unsqueeze(1), (n > 0).unsqueeze(1)
        away = mean - old
        known = torch.where(some, known + spread + away.square() * (count.unsqueeze(1) * share), known)
        self._store(count + n, torch.where(some, old + away * share, old), known)

    def _fetch(self, tensor: Tensor) -> Tensor:
        """Return a copy on the host in float64, which not all devices have."""
        return torch.from_numpy(self._device.to_host(tensor)).to(torch.float64)

    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return counts ``[A]``, means and sums of squares ``[A, size]``, on the host in float64."""
        size, private = self._size, self._fetch(self._private)
        mean = self._fetch(self._public)[:, :size] + private[:, :size]
        return private[:, -2] + private[:, -1], mean, private[:, size : 2 * size] + private[:, 2 * size : 3 * size]

    def _store(self, count: Tensor, mean: Tensor, spread: Tensor) -> None:
        """Store values as pairs. Updates read these pairs, so a restarted learner computes the same values."""
        counts, means, spreads = (_pair(value) for value in (count.unsqueeze(1), mean, spread))
        count, spread = (high.double() + low.double() for high, low in (counts, spreads))
        scale = torch.where(count > 0, (spread / count.clamp(min=1) + _LEAST_VARIANCE).rsqrt(), 1.0).float()
        self._device.to_device(torch.cat([means[0], scale], 1).numpy(), self._public)
        self._device.to_device(torch.cat([means[1], *spreads, *counts], 1).numpy(), self._private)


def _pair(value: Tensor) -> tuple[Tensor, Tensor]:
    """Split float64 values into two float32 parts, whose sum has 48 significant bits."""
    high = value.to(torch.float32)
    return high, (value - high).to(torch.float32)

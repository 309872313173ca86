"""Observation normalisation: statistics that live in the learner's rows and travel with the weights.

An algorithm that normalises begins its row with ``mean | scale`` of every input, *before* the weights of its network:
they are published with them, in one version, by one copy. Both halves compute ``clip((x - mean) * scale)`` in float32,
with the same result bit for bit. An update works with the statistics of the version it begins from, those that acted,
and takes in its own batch at its end, so weights and statistics of one version always belong together.

Behind the published part lies what only the learner needs: running sums as pairs of float32, whose sum keeps 48 bits.
So they are plain numbers of the state: saved, restored and compared like all others, on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.errors import SettingError
from motet.schedule import Stages

__all__ = ["Freezing", "Normaliser", "Statistics"]

CLIP = 10.0
"""Normalised inputs are cut off here."""
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True)
class Statistics:
    """Where the statistics of ``size`` inputs lie in an agent's row, and their use for acting.

    >>> places = Statistics(size=2, public=0, private=4)
    >>> row = np.zeros(12, "float32")
    >>> places.initialise(row)
    >>> places.normalise(row, np.array([[3.0, 30.0]], "float32")).tolist()  # nothing is known yet
    [[3.0, 10.0]]
    >>> Normaliser(places, torch.from_numpy(row)[None]).update(torch.tensor([[[1.0, 10.0], [5.0, 50.0]]]))
    >>> places.normalise(row, np.array([[3.0, 50.0]], "float32")).round(3).tolist()
    [[0.0, 1.0]]
    """

    size: int
    """How many inputs."""
    public: int
    """Where ``mean | scale`` begin; within the published part of the row."""
    private: int
    """Where the rest begins: :attr:`n_private` numbers."""

    @property
    def n_public(self) -> int:
        """How many numbers are published."""
        return 2 * self.size

    @property
    def n_private(self) -> int:
        """How many numbers are not: the mean's low part, the spread's two, the count's two."""
        return 3 * self.size + 2

    def initialise(self, row: npt.NDArray[np.float32]) -> None:
        """Nothing seen: inputs stay as they are."""
        row[self.public : self.public + self.size] = 0
        row[self.public + self.size : self.public + 2 * self.size] = 1
        row[self.private : self.private + self.n_private] = 0

    def normalise(
        self, row: npt.NDArray[np.float32], inputs: npt.NDArray[Any], scale: float = 1.0
    ) -> npt.NDArray[np.float32]:
        """``[B, size]`` by the statistics of a published row; ``scale`` is the encoder's."""
        first, middle = self.public, self.public + self.size
        x = inputs * np.float32(scale) if scale != 1.0 else inputs
        normal: npt.NDArray[np.float32] = np.subtract(x, row[first:middle], dtype=np.float32)
        normal *= row[middle : middle + self.size]
        return np.clip(normal, -CLIP, CLIP, out=normal)


class Freezing:
    """For a config with these settings: from when on its normaliser stays as it is."""

    normalise: bool
    freeze_normaliser_on_stage: str | None
    stages: Stages

    def _check_freezing(self) -> None:
        if self.freeze_normaliser_on_stage is None:
            return
        if not self.normalise:
            raise SettingError("freeze_normaliser_on_stage is only valid with normalise=True (got normalise=False)")
        self.stages.begin(self.freeze_normaliser_on_stage)

    def _freezes(self, step: int) -> bool:
        stage = self.freeze_normaliser_on_stage
        return stage is not None and step >= self.stages.begin(stage)


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
        """``[A]``: how many rows were seen."""
        return _whole(self._count, self._count_rest)

    @property
    def mean(self) -> Tensor:
        """``[A, size]``."""
        return _whole(self._mean, self._mean_rest)

    @property
    def variance(self) -> Tensor:
        """``[A, size]``."""
        return _whole(self._spread, self._spread_rest) / self.count.clamp(min=1).unsqueeze(1)

    def apply(self, inputs: Tensor) -> None:
        """Normalise ``[A, rows, size]`` in place, by the statistics of the present version."""
        inputs.sub_(self._mean_row).mul_(self._scale_row).clamp_(-CLIP, CLIP)

    def update(self, inputs: Tensor, valid: Tensor | None = None, frozen: Sequence[bool] = ()) -> None:
        """Take in rows ``[A, rows, size]`` as they were before :meth:`apply`.

        ``valid`` ``[A, rows]``: False where there is none. ``frozen``: the agents whose statistics stay as they are.
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
    """As a pair; what is read back is what goes on, so a successor computes the same."""
    first = value.to(torch.float32)
    high.copy_(first)
    low.copy_(value - first)

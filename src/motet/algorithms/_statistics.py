"""Layout of the normalisation statistics in an agent's row, and normalisation for acting. It does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.errors import SettingError
from motet.schedule import Stages

__all__ = ["CLIP", "Freezing", "Statistics"]

CLIP = 10.0
"""Normalised inputs are clipped to this absolute value."""


@dataclass(frozen=True)
class Statistics:
    """Offsets of the statistics of ``size`` inputs in an agent's row, and normalisation for acting.

    >>> places = Statistics(size=2, public=0, private=4)
    >>> row = np.zeros(12, "float32")
    >>> places.initialise(row)
    >>> places.normalise(row, np.array([[3.0, 30.0]], "float32")).tolist()  # no data yet: only clipped
    [[3.0, 10.0]]
    >>> import torch
    >>> from motet.algorithms._device import Device
    >>> from motet.algorithms._normaliser import Normaliser
    >>> normaliser = Normaliser(places, torch.from_numpy(row)[None], Device("cpu"))
    >>> normaliser.update(torch.tensor([[[1.0, 10.0], [5.0, 50.0]]]))
    >>> places.normalise(row, np.array([[3.0, 50.0]], "float32")).round(3).tolist()
    [[0.0, 1.0]]
    """

    size: int
    """Number of inputs."""
    public: int
    """Offset of ``mean | scale``, in the published part of the row."""
    private: int
    """Offset of the :attr:`n_private` values that are not published."""

    @property
    def n_public(self) -> int:
        """Number of published values."""
        return 2 * self.size

    @property
    def n_private(self) -> int:
        """Number of values that are not published: low part of the mean, two parts each of squared sum and count."""
        return 3 * self.size + 2

    def initialise(self, row: npt.NDArray[np.float32]) -> None:
        """Set the statistics to mean 0, scale 1 and count 0, which leave inputs unchanged."""
        row[self.public : self.public + self.size] = 0
        row[self.public + self.size : self.public + 2 * self.size] = 1
        row[self.private : self.private + self.n_private] = 0

    def normalise(
        self, row: npt.NDArray[np.float32], inputs: npt.NDArray[Any], scale: float = 1.0
    ) -> npt.NDArray[np.float32]:
        """Normalise inputs ``[B, size]`` by the statistics of a published row; ``scale`` is the encoder's factor."""
        first, middle = self.public, self.public + self.size
        x = inputs * np.float32(scale) if scale != 1.0 else inputs
        normal: npt.NDArray[np.float32] = np.subtract(x, row[first:middle], dtype=np.float32)
        normal *= row[middle : middle + self.size]
        return np.clip(normal, -CLIP, CLIP, out=normal)


class Freezing:
    """Mixin for configs that normalise observations and can freeze the statistics at the start of a stage."""

    normalise: bool
    freeze_normaliser_on_stage: str | None
    stages: Stages

    def _check_freezing(self) -> None:
        if self.freeze_normaliser_on_stage is None:
            return
        if not self.normalise:
            raise SettingError("freeze_normaliser_on_stage is only valid with normalise=True (got normalise=False)")
        self.stages.begin(self.freeze_normaliser_on_stage)

    def _freezes(self, step: int, updates: int) -> bool:
        stage, stages = self.freeze_normaliser_on_stage, self.stages
        return stage is not None and stages.index(step, updates) >= stages.names.index(stage)

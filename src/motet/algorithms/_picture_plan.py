"""Convolutions that policy and critics share for pictures. This module does not import torch.

This module decides which spaces get convolutions. Actors compute with a module from ``modules``; the passes for
learning are in ``_convolution``. A row holds weight and bias of each layer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space
from motet.algorithms._blocks import orthogonal
from motet.algorithms._encoder import Encoder
from motet.algorithms._module_plan import ModulePlan
from motet.algorithms._plans import LearnerNetwork, Seed
from motet.algorithms.source import Source

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PicturePlan", "is_picture"]

_LEAST = 12  # minimum pixels of a picture's shorter side


def is_picture(space: Space) -> bool:
    """Return whether a space gets convolutions by default.

    A picture has dtype uint8, a highest value of 255, and two axes, or three with the channels first or last.

    >>> from gymnasium.spaces import Box
    >>> is_picture(Box(0, 255, (84, 84, 3), "uint8")), is_picture(Box(0, 255, (7,), "uint8"))
    (True, False)
    """
    shape, high = getattr(space, "shape", None) or (), getattr(space, "high", None)
    if high is None or np.dtype(space.dtype) != np.uint8 or np.max(high) != 255 or len(shape) not in (2, 3):
        return False
    axes, channels_last = _axes(space)
    return min(axes[:2] if channels_last else axes[1:]) >= _LEAST


def _axes(space: Space) -> tuple[tuple[int, ...], bool]:
    """Return the axes of a picture with its channels, and whether the channels are last."""
    axes = (*space.shape, 1) if len(space.shape) == 2 else tuple(space.shape)
    return axes, axes[2] <= axes[0]


class PicturePlan(ModulePlan):
    """The convolutions of a picture as a part of an agent's row.

    >>> from gymnasium.spaces import Box
    >>> PicturePlan(Box(0, 255, (84, 84, 3), "uint8"), n_frames=4).outputs
    3136
    """

    def __init__(self, space: Space, n_frames: int = 1) -> None:
        axes, channels_last = _axes(space)
        source = Source("motet.algorithms.modules:of_axes")
        super().__init__(source, "encoder", ((n_frames, *axes), channels_last), Encoder(space, n_frames))

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Initialise weights orthogonally; biases are zero."""
        row[:] = 0
        for parameter in self.parameters:
            if len(parameter.shape) > 1:
                drawn = orthogonal(rng, parameter.shape[0], math.prod(parameter.shape[1:]))
                row[parameter.part] = math.sqrt(2) * drawn.ravel()

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the convolutions of A agents."""
        from motet.algorithms._convolution import Convolution

        return Convolution(self, rows, grad)

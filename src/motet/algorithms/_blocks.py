"""Plans of the shipped networks: layout and initialisation of their layers. This module does not import torch.

A :class:`DensePlan` describes a fully connected network, a :class:`Picture` the convolutions before one. Their forward
and backward passes are in ``_networks`` and ``_convolution``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.algorithm import Space
from motet.algorithms._plans import ActorNetwork, LearnerNetwork, Seed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DensePlan", "Picture", "orthogonal"]

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride; for pictures of 36 pixels or more
_SMALL = ((16, 3, 2), (32, 3, 2))
_LEAST = 12  # minimum pixels of a picture's shorter side


@dataclass(frozen=True)
class DensePlan:
    """A fully connected network with an activation between its layers."""

    sizes: tuple[int, ...]
    """Number of inputs, then number of outputs of each layer."""
    activate_last: bool = False
    """Whether the last layer has an activation too."""
    activation: Literal["relu", "tanh"] = "relu"
    gains: tuple[float, float] | None = None
    """Weights are initialised orthogonally, times the first of these or (last layer) the second, and biases are zero.
    None: both are drawn uniformly within ``1 / sqrt(inputs)``."""

    draws = explores = False

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of weight [out, in] and bias [out] of each layer."""
        offsets, at = [], 0
        for n_in, n_out in zip(self.sizes, self.sizes[1:], strict=False):
            offsets += [at, at + n_in * n_out]
            at += n_in * n_out + n_out
        return tuple(offsets)

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return self.offsets[-1] + self.sizes[-1]

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.sizes[0]

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.sizes[-1]

    @property
    def layers(self) -> Iterator[tuple[int, int, int, int]]:
        """Inputs, outputs, offset of the weight and offset of the bias of each layer."""
        offsets = self.offsets
        return zip(self.sizes, self.sizes[1:], offsets[::2], offsets[1::2], strict=False)

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the networks of A agents."""
        from motet.algorithms._networks import DenseNetwork

        return DenseNetwork(self, rows, grad, inputs)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting, in the native core."""
        return _Native(self, scale)

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Draw weights and biases."""
        for n_in, n_out, weight, bias in self.layers:
            if self.gains is None:
                bound = 1 / math.sqrt(n_in)
                row[weight:bias] = rng.uniform(-bound, bound, n_in * n_out)
                row[bias : bias + n_out] = rng.uniform(-bound, bound, n_out)
            else:
                gain = self.gains[bias + n_out == self.size]
                row[weight:bias] = (orthogonal(rng, n_out, n_in) * gain).ravel()
                row[bias : bias + n_out] = 0


class _Native:
    """The forward pass in the native core, on a published row."""

    def __init__(self, plan: DensePlan, scale: float) -> None:
        self._net = _native.Mlp(plan.sizes, plan.offsets, plan.activation, plan.activate_last, scale)
        self._outputs = plan.outputs

    def load(self, row: npt.NDArray[np.float32]) -> None:
        self._row = row

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        out = np.empty((*x.shape[:-1], self._outputs), np.float32)
        self._net.forward(self._row, x, out)
        return out


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Draw a random matrix whose rows, or columns if there are fewer columns, are orthonormal."""
    tall = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    signed: npt.NDArray[np.float64] = tall.Q * np.sign(np.diagonal(tall.R))
    return signed if rows >= columns else signed.T


@dataclass(frozen=True)
class Picture:
    """Convolutions with a ReLU after each.

    >>> from gymnasium.spaces import Box
    >>> picture = Picture.of(Box(0, 255, (84, 84, 3), "uint8"), n_frames=4)
    >>> picture.channels, picture.shapes, picture.outputs
    (12, ((32, 20, 20), (64, 9, 9), (64, 7, 7)), 3136)
    >>> Picture.of(Box(0, 1, (84, 84, 3))) is None, Picture.of(Box(0, 255, (7,), "uint8")) is None
    (True, True)
    """

    axes: tuple[int, ...]
    """Shape of the inputs as an array: frames, then the axes of the space."""
    channels_last: bool
    layers: tuple[tuple[int, int, int], ...]
    """Channels, kernel size and stride of each layer."""

    draws = explores = False

    @classmethod
    def of(cls, space: Space, n_frames: int = 1) -> Picture | None:
        """Return the convolutions for a space of pictures; None for other spaces.

        A picture has dtype uint8, a highest value of 255, and two axes, or three with the channels first or last.
        """
        shape, high = getattr(space, "shape", None) or (), getattr(space, "high", None)
        if high is None or np.dtype(space.dtype) != np.uint8 or np.max(high) != 255 or len(shape) not in (2, 3):
            return None
        axes = (*shape, 1) if len(shape) == 2 else tuple(shape)
        channels_last = axes[2] <= axes[0]
        sides = axes[:2] if channels_last else axes[1:]
        if min(sides) < _LEAST:
            return None
        return cls((n_frames, *axes), channels_last, _LARGE if min(sides) >= 36 else _SMALL)

    @property
    def channels(self) -> int:
        """Number of input channels: the channels of the picture times the frames."""
        return self.axes[0] * (self.axes[3] if self.channels_last else self.axes[1])

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, height and width of each layer's output."""
        height, width = self.axes[1:3] if self.channels_last else self.axes[2:4]
        found = []
        for channels, kernel, stride in self.layers:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            found.append((channels, height, width))
        return tuple(found)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return math.prod(self.axes)

    @property
    def outputs(self) -> int:
        """Number of output features."""
        return math.prod(self.shapes[-1])

    @property
    def places(self) -> Iterator[tuple[tuple[int, int, int, int], int, int]]:
        """Shape of the weight, offset of the weight and offset of the bias of each layer."""
        at, before = 0, self.channels
        for channels, kernel, _ in self.layers:
            shape = (channels, before, kernel, kernel)
            yield shape, at, at + math.prod(shape)
            at, before = at + math.prod(shape) + channels, channels

    @property
    def size(self) -> int:
        """Number of values in a row."""
        *_, (shape, _, bias) = self.places
        return bias + shape[0]

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Initialise weights orthogonally; biases are zero."""
        for shape, weight, bias in self.places:
            row[weight:bias] = math.sqrt(2) * orthogonal(rng, shape[0], math.prod(shape[1:])).ravel()
            row[bias : bias + shape[0]] = 0

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the convolutions of A agents."""
        from motet.algorithms._convolution import Convolution

        return Convolution(self, rows, grad)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the convolutions for acting, in torch."""
        from motet.algorithms._convolution import ActingConvolution

        return ActingConvolution(self, scale)

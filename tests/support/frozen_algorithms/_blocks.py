"""Layout and initialisation of network layers in an agent's row of numbers. This module does not import torch.

A :class:`Block` describes a fully connected network, a :class:`Picture` the convolutions before one. Learners build a
``Network`` or a ``Convolution`` from them, on the rows of their tensors. ``Block.native`` makes the same network for
acting, on one published row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.algorithm import Space

__all__ = ["Block", "Picture", "orthogonal", "padded"]

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride; for pictures of 36 pixels or more
_SMALL = ((16, 3, 2), (32, 3, 2))
_LEAST = 12  # minimum pixels of a picture's shorter side


def padded(n: int) -> int:
    """Round up to a multiple of 16, so that rows of float32 begin on a cache line."""
    return -(-n // 16) * 16


@dataclass(frozen=True)
class Block:
    """A fully connected network with an activation between its layers, as a part of a flat vector."""

    sizes: tuple[int, ...]
    """Number of inputs, then number of outputs of each layer."""
    start: int = 0
    """Offset in the vector, where weight [out, in] and bias [out] of each layer follow each other."""
    activate_last: bool = False
    """Whether the last layer has an activation too."""
    activation: Literal["relu", "tanh"] = "relu"

    @property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of weight and bias of each layer."""
        offsets, at = [], self.start
        for n_in, n_out in zip(self.sizes, self.sizes[1:], strict=False):
            offsets += [at, at + n_in * n_out]
            at += n_in * n_out + n_out
        return tuple(offsets)

    @property
    def end(self) -> int:
        """Offset after the last value."""
        return self.offsets[-1] + self.sizes[-1]

    @property
    def layers(self) -> Iterator[tuple[int, int, int, int]]:
        """Inputs, outputs, offset of the weight and offset of the bias of each layer."""
        offsets = self.offsets
        return zip(self.sizes, self.sizes[1:], offsets[::2], offsets[1::2], strict=False)

    def native(self, scale: float = 1.0) -> _native.Mlp:
        """Make the same network for acting; ``scale`` multiplies its inputs."""
        return _native.Mlp(self.sizes, self.offsets, self.activation, self.activate_last, scale)

    def initialise(self, flat: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Draw weights and biases of one row uniformly within ``1 / sqrt(inputs)``."""
        for n_in, n_out, weight, bias in self.layers:
            bound = 1 / math.sqrt(n_in)
            flat[weight : weight + n_in * n_out] = rng.uniform(-bound, bound, n_in * n_out)
            flat[bias : bias + n_out] = rng.uniform(-bound, bound, n_out)

    def initialise_orthogonally(
        self, flat: npt.NDArray[np.float32], rng: np.random.Generator, gain: float, last_gain: float
    ) -> None:
        """Initialise weights orthogonally, times ``gain`` or (last layer) ``last_gain``; biases are zero."""
        for n_in, n_out, weight, bias in self.layers:
            matrix = orthogonal(rng, n_out, n_in)
            flat[weight:bias] = (matrix * (last_gain if bias + n_out == self.end else gain)).ravel()
            flat[bias : bias + n_out] = 0


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Draw a random matrix whose rows, or columns if there are fewer columns, are orthonormal."""
    tall = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    signed: npt.NDArray[np.float64] = tall.Q * np.sign(np.diagonal(tall.R))
    return signed if rows >= columns else signed.T


@dataclass(frozen=True)
class Picture:
    """Convolutions with a ReLU after each, as a part of a flat vector.

    >>> from gymnasium.spaces import Box
    >>> picture = Picture.of(Box(0, 255, (84, 84, 3), "uint8"), n_frames=4)
    >>> picture.channels, picture.shapes, picture.features
    (12, ((32, 20, 20), (64, 9, 9), (64, 7, 7)), 3136)
    >>> Picture.of(Box(0, 1, (84, 84, 3))) is None, Picture.of(Box(0, 255, (7,), "uint8")) is None
    (True, True)
    """

    axes: tuple[int, ...]
    """Shape of the encoder's inputs as an array: frames, then the axes of the space."""
    channels_last: bool
    layers: tuple[tuple[int, int, int], ...]
    """Channels, kernel size and stride of each layer."""
    start: int = 0
    """Offset in the vector, where weight [out, in, kernel, kernel] and bias [out] of each layer follow each other."""

    @classmethod
    def of(cls, space: Space, n_frames: int = 1, start: int = 0) -> Picture | None:
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
        return cls((n_frames, *axes), channels_last, _LARGE if min(sides) >= 36 else _SMALL, start)

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
    def features(self) -> int:
        """Number of output features."""
        return math.prod(self.shapes[-1])

    @property
    def places(self) -> Iterator[tuple[tuple[int, int, int, int], int, int]]:
        """Shape of the weight, offset of the weight and offset of the bias of each layer."""
        at, before = self.start, self.channels
        for channels, kernel, _ in self.layers:
            shape = (channels, before, kernel, kernel)
            yield shape, at, at + math.prod(shape)
            at, before = at + math.prod(shape) + channels, channels

    @property
    def end(self) -> int:
        """Offset after the last value."""
        *_, (shape, _, bias) = self.places
        return bias + shape[0]

    def initialise(self, flat: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Initialise weights orthogonally; biases are zero."""
        for shape, weight, bias in self.places:
            flat[weight:bias] = math.sqrt(2) * orthogonal(rng, shape[0], math.prod(shape[1:])).ravel()
            flat[bias : bias + shape[0]] = 0

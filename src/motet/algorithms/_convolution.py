"""Small convolution networks for observations that are pictures, as parts of flat vectors like all networks.

A :class:`Picture` says where its layers lie in a row, and how the encoder's flat inputs are a picture. A
:class:`Convolution` is one on the rows of A agents: inputs in, features out for the fully connected layers behind it.
It learns and acts in torch; the native core has no convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from motet.algorithm import Space
from motet.algorithms._networks import orthogonal

__all__ = ["Convolution", "Picture"]

_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride; for pictures from 36 pixels on
_SMALL = ((16, 3, 2), (32, 3, 2))
_LEAST = 12  # pixels of a picture's shorter side


@dataclass(frozen=True)
class Picture:
    """Convolutions with rectifiers behind them, as a part of a flat vector.

    >>> from gymnasium.spaces import Box
    >>> picture = Picture.of(Box(0, 255, (84, 84, 3), "uint8"), n_frames=4)
    >>> picture.channels, picture.shapes, picture.features
    (12, ((32, 20, 20), (64, 9, 9), (64, 7, 7)), 3136)
    >>> Picture.of(Box(0, 1, (84, 84, 3))) is None, Picture.of(Box(0, 255, (7,), "uint8")) is None
    (True, True)
    """

    axes: tuple[int, ...]
    """The encoder's inputs as an array: frames, then the axes of the space."""
    channels_last: bool
    layers: tuple[tuple[int, int, int], ...]
    """Channels, kernel and stride of each."""
    start: int = 0
    """Where it begins in the vector: weight [out, in, kernel, kernel] and bias [out] of each layer in turn."""

    @classmethod
    def of(cls, space: Space, n_frames: int = 1, start: int = 0) -> Picture | None:
        """What a space of pictures is looked at with; None for other spaces.

        A picture is bytes up to 255 with two axes, or three of which the first or last are channels.
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
        """Of the picture, all frames together."""
        return self.axes[0] * (self.axes[3] if self.channels_last else self.axes[1])

    @property
    def shapes(self) -> tuple[tuple[int, int, int], ...]:
        """Channels, height and width behind each layer."""
        height, width = self.axes[1:3] if self.channels_last else self.axes[2:4]
        found = []
        for channels, kernel, stride in self.layers:
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            found.append((channels, height, width))
        return tuple(found)

    @property
    def features(self) -> int:
        """How many numbers come out."""
        return math.prod(self.shapes[-1])

    @property
    def places(self) -> Iterator[tuple[tuple[int, int, int, int], int, int]]:
        """For each layer the shape of its weight, where that begins, and where its bias begins."""
        at, before = self.start, self.channels
        for channels, kernel, _ in self.layers:
            shape = (channels, before, kernel, kernel)
            yield shape, at, at + math.prod(shape)
            at, before = at + math.prod(shape) + channels, channels

    @property
    def end(self) -> int:
        """Where it ends."""
        *_, (shape, _, bias) = self.places
        return bias + shape[0]

    def initialise(self, flat: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Draw orthogonal weights; biases are zero."""
        for shape, weight, bias in self.places:
            flat[weight:bias] = math.sqrt(2) * orthogonal(rng, shape[0], math.prod(shape[1:])).ravel()
            flat[bias : bias + shape[0]] = 0

    @torch.inference_mode()
    def see(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float32]:
        """For acting: the features of ``rows * scale``, one by one: torch's sums depend on how many come at once."""
        x = torch.from_numpy(rows).to(torch.float32).mul_(scale).unsqueeze(0)
        net = Convolution(self, torch.from_numpy(weights).unsqueeze(0))
        features: npt.NDArray[np.float32] = torch.cat([net.forward(one)[0] for one in torch.split(x, 1, 1)]).numpy()
        return features


class Convolution:
    """A picture's layers for A agents on the rows of ``flat`` ``[A, n]``; gradients go to the places of ``grad``."""

    def __init__(self, picture: Picture, flat: Tensor, grad: Tensor | None = None) -> None:
        self._picture, self._agents = picture, len(flat)
        self._strides = [stride for _, _, stride in picture.layers]
        self._weights = self._views(flat)
        self._grads = None if grad is None else self._views(grad)
        self._tape: list[list[Tensor]] = []

    def _views(self, flat: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        """By agent and layer: weight and bias."""
        return [
            [(row[at:bias].view(shape), row[bias : bias + shape[0]]) for shape, at, bias in self._picture.places]
            for row in flat
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[A, rows, features]`` of inputs ``[A, rows, in]``."""
        pictures = x.view(self._agents, -1, *self._picture.axes)
        if self._picture.channels_last:
            pictures = pictures.movedim(5, 3)
        pictures = pictures.flatten(2, 3)  # frames are channels
        self._tape = []
        for picture, layers in zip(pictures, self._weights, strict=True):
            tape = [picture]
            for (weight, bias), stride in zip(layers, self._strides, strict=True):
                tape.append(conv2d(tape[-1], weight, bias, stride).relu_())
            self._tape.append(tape)
        return torch.stack([tape[-1].flatten(1) for tape in self._tape])

    def backward(self, grad: Tensor) -> None:
        """Set the gradients of the layers, given those of the features of the last ``forward``."""
        assert self._grads is not None
        for back, tape, layers, into in zip(grad, self._tape, self._weights, self._grads, strict=True):
            above = back.reshape(tape[-1].shape)
            for i in reversed(range(len(layers))):
                above = torch.ops.aten.threshold_backward(above, tape[i + 1], 0)
                weight, bias = layers[i]
                parts = torch.ops.aten.convolution_backward(
                    above, tape[i], weight, [len(bias)], [self._strides[i]] * 2, [0, 0], [1, 1], False, [0, 0], 1,
                    [i > 0, True, True],
                )  # fmt: skip
                above = parts[0]
                into[i][0].copy_(parts[1])
                into[i][1].copy_(parts[2])

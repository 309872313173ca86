"""Small convolutional networks for observations that are pictures, stored in flat vectors like all networks.

A ``Picture`` has the offsets of the layers in a row, and the shape that turns the encoder's flat inputs into a picture.
A :class:`Convolution` applies it to the rows of A agents: it takes inputs and returns features for the fully connected
layers. Learning and acting both use torch, because the native core has no convolutions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from motet.algorithms._blocks import Picture
from motet.algorithms._plans import Pass

__all__ = ["ActingConvolution", "Convolution"]


class Convolution:
    """A picture's layers for A agents on rows of ``flat`` ``[A, n]``; gradients go to the same offsets of ``grad``."""

    def __init__(self, picture: Picture, flat: Tensor, grad: Tensor | None = None) -> None:
        self._picture, self._agents = picture, len(flat)
        self._strides = [stride for _, _, stride in picture.layers]
        self._weights = self._views(flat)
        self._grads = None if grad is None else self._views(grad)

    def _views(self, flat: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        """Return views of weight and bias by agent and layer."""
        return [
            [(row[at:bias].view(shape), row[bias : bias + shape[0]]) for shape, at, bias in self._picture.places]
            for row in flat
        ]

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Return features ``[A, rows, features]`` of inputs ``[A, rows, in]``."""
        pictures = x.view(self._agents, -1, *self._picture.axes)
        if self._picture.channels_last:
            pictures = pictures.movedim(5, 3)
        pictures = pictures.flatten(2, 3)  # frames become channels
        tapes = []
        for picture, layers in zip(pictures, self._weights, strict=True):
            tape = [picture]
            for (weight, bias), stride in zip(layers, self._strides, strict=True):
                tape.append(conv2d(tape[-1], weight, bias, stride).relu_())
            tapes.append(tape)
        return Pass(torch.stack([tape[-1].flatten(1) for tape in tapes]), tapes)

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute two halves ``[A, 2 B, inputs]``."""
        rows = x.shape[1] // 2
        return self.forward(x[:, :rows]), self.forward(x[:, rows:]).out

    def backward(self, done: Pass, grad: Tensor) -> None:
        """Set the gradients of the layers, given the gradients of the features of a pass."""
        assert self._grads is not None
        for back, tape, layers, into in zip(grad, done.kept, self._weights, self._grads, strict=True):
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


class ActingConvolution:
    """A picture's layers on one published row.

    Rows are computed one by one, because the rounding of torch's sums depends on the batch size.
    """

    def __init__(self, picture: Picture, scale: float) -> None:
        self._picture, self._scale = picture, scale

    def load(self, row: npt.NDArray[np.float32]) -> None:
        """Take over a row."""
        self._net = Convolution(self._picture, torch.from_numpy(row).unsqueeze(0))

    @torch.inference_mode()
    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        """Return the features of inputs ``[B, in]``."""
        rows = torch.from_numpy(x).to(torch.float32).mul_(self._scale).unsqueeze(0)
        found: npt.NDArray[np.float32] = torch.cat(
            [self._net.forward(one).out[0] for one in torch.split(rows, 1, 1)]
        ).numpy()
        return found

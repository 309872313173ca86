"""The passes of a picture's convolutions for learning, written by hand.

With autograd these passes take a quarter longer for small pictures, and equally long for 84 x 84 pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from motet.algorithms._picture_plan import PicturePlan
from motet.algorithms._plans import Pass

__all__ = ["Convolution"]


class Convolution:
    """The convolutions of A agents, with parameters ``rows`` ``[A, n]``; gradients go to the same columns of
    ``grad``."""

    def __init__(self, plan: PicturePlan, rows: Tensor, grad: Tensor | None = None) -> None:
        self._plan = plan
        arrange, *layers = plan.module().children()
        self._arrange = arrange
        self._strides = [one.stride for one in layers if isinstance(one, nn.Conv2d)]
        self._weights = self._views(rows)
        self._grads = None if grad is None else self._views(grad)

    def _views(self, rows: Tensor) -> list[list[tuple[Tensor, Tensor]]]:
        """Return views of weight and bias by agent and layer."""
        found = [[row[one.part].view(one.shape) for one in self._plan.parameters] for row in rows]
        return [list(zip(views[::2], views[1::2], strict=True)) for views in found]

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Return features ``[A, B, features]`` of inputs ``[A, B, inputs]``."""
        tapes = []
        for own, layers in zip(x, self._weights, strict=True):
            tape = [self._arrange(own)]
            for (weight, bias), stride in zip(layers, self._strides, strict=True):
                tape.append(conv2d(tape[-1], weight, bias, stride).relu_())
            tapes.append(tape)
        return Pass(torch.stack([tape[-1].flatten(1) for tape in tapes]), tapes)

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute the outputs for inputs ``[A, 2 B, inputs]``, of which the second half needs no gradients."""
        rows = x.shape[1] // 2
        return self.forward(x[:, :rows]), self.forward(x[:, rows:]).out

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute each row by itself, because this network has no memory."""
        return self.forward(x, learn_from is not None)

    def backward(self, done: Pass, grad: Tensor) -> None:
        """Set the gradients of the layers, given the gradients of the features of a pass."""
        assert self._grads is not None
        for back, tape, layers, into in zip(grad, done.kept, self._weights, self._grads, strict=True):
            above = back.reshape(tape[-1].shape)
            for i in reversed(range(len(layers))):
                above = torch.ops.aten.threshold_backward(above, tape[i + 1], 0)
                weight, bias = layers[i]
                parts = torch.ops.aten.convolution_backward(
                    above, tape[i], weight, [len(bias)], self._strides[i], [0, 0], [1, 1], False, [0, 0], 1,
                    [i > 0, True, True],
                )  # fmt: skip
                above = parts[0]
                into[i][0].copy_(parts[1])
                into[i][1].copy_(parts[2])

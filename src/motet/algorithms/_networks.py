"""Fully connected networks of A agents on rows of flat vectors, for learning.

The forward and backward passes are written by hand and reuse their buffers: at these sizes the bookkeeping of autograd
costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from motet.algorithms._blocks import DensePlan
from motet.algorithms._plans import Pass

__all__ = ["DenseNetwork"]


class DenseNetwork:
    """Fully connected networks of A agents on ``rows`` ``[A, n]``; gradients go to the same offsets of ``grad``."""

    def __init__(self, plan: DensePlan, rows: Tensor, grad: Tensor | None = None, inputs: bool = False) -> None:
        self._plan, self._rows, self._inputs, self._learns = plan, rows, inputs, grad is not None
        self._weights, self._biases = self._views(rows)
        self._weights_t = [weight.transpose(1, 2) for weight in self._weights]
        if grad is not None:
            self._grad_weights, self._grad_biases = self._views(grad)
        self._buffers: dict[tuple[str, int], list[Tensor]] = {}
        self._activate: Callable[[Tensor], Tensor] = torch.relu_ if plan.activation == "relu" else torch.tanh_

    def _views(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        agents, layers = rows.shape[0], list(self._plan.layers)
        weights = [rows[:, w : w + i * o].view(agents, o, i) for i, o, w, _ in layers]
        return weights, [rows[:, b : b + o].view(agents, 1, o) for _, o, _, b in layers]

    def _room(self, kind: str, rows: int, sizes: Sequence[int]) -> list[Tensor]:
        if (kind, rows) not in self._buffers:
            shape = (self._rows.shape[0], rows)
            self._buffers[kind, rows] = [self._rows.new_zeros((*shape, n)) for n in sizes]
        return self._buffers[kind, rows]

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Compute the outputs of all layers for x ``[A, B, inputs]``."""
        layers = self._layers(x)
        return Pass(layers[-1], (x, layers))

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute the outputs for inputs ``[A, 2 B, inputs]`` in one pass; the second half needs no gradients."""
        rows = x.shape[1] // 2
        layers = self._layers(x)
        if ("here", rows) not in self._buffers:  # views of the buffers, which are never replaced
            self._buffers["here", rows] = [layer[:, :rows] for layer in layers]
            self._buffers["ahead", rows] = [layers[-1][:, rows:]]
        here = self._buffers["here", rows]
        return Pass(here[-1], (x[:, :rows], here)), self._buffers["ahead", rows][0]

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute each row by itself, because this network has no memory."""
        return self.forward(x, learn_from is not None)

    def _layers(self, x: Tensor) -> list[Tensor]:
        layers = self._room("forward", x.shape[1], self._plan.sizes[1:])
        last = len(layers) - 1
        for i, (weight, bias, out) in enumerate(zip(self._weights_t, self._biases, layers, strict=True)):
            torch.baddbmm(bias, x, weight, out=out)
            if i < last or self._plan.activate_last:
                self._activate(out)
            x = out
        return layers

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        """Set the gradients of weights and biases; return the gradient of the inputs if it is needed.

        The next call overwrites the gradient of the inputs.
        """
        x, layers = done.kept
        rooms = self._room("backward", grad.shape[1], self._plan.sizes[:-1])
        for i in reversed(range(len(layers))):
            if i < len(layers) - 1 or self._plan.activate_last:
                if self._plan.activation == "relu":
                    torch.ops.aten.threshold_backward.grad_input(grad, layers[i], 0, grad_input=grad)
                else:
                    torch.ops.aten.tanh_backward.grad_input(grad, layers[i], grad_input=grad)
            if self._learns:
                torch.bmm(grad.transpose(1, 2), layers[i - 1] if i else x, out=self._grad_weights[i])
                torch.sum(grad, 1, keepdim=True, out=self._grad_biases[i])
            if i or self._inputs:
                grad = torch.bmm(grad, self._weights[i], out=rooms[i])
        return grad if self._inputs else None

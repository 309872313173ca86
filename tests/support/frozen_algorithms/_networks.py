"""Fully connected networks of A agents on rows of flat vectors, for learning.

The forward and backward passes are written by hand and reuse their buffers: at these sizes the bookkeeping of autograd
costs more than the arithmetic. A ``Block`` has the offsets of the layers in a row. A :class:`Network` is a block on the
rows of a tensor; an ``_native.Mlp`` is the same block on one published row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from support.frozen_algorithms._blocks import Block
from torch import Tensor

__all__ = ["Network"]


class Network:
    """A block of A agents on the rows of ``flat`` ``[A, n]``; gradients go to the same offsets of ``grad``."""

    def __init__(self, block: Block, flat: Tensor, grad: Tensor | None = None) -> None:
        self._block, self._flat = block, flat
        self._weights, self._biases = self._views(flat)
        self._weights_t = [weight.transpose(1, 2) for weight in self._weights]
        if grad is not None:
            self._grad_weights, self._grad_biases = self._views(grad)
        self._buffers: dict[tuple[str, int], list[Tensor]] = {}
        self._activate: Callable[[Tensor], Tensor] = torch.relu_ if block.activation == "relu" else torch.tanh_

    def _views(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        agents, layers = flat.shape[0], list(self._block.layers)
        weights = [flat[:, w : w + i * o].view(agents, o, i) for i, o, w, _ in layers]
        return weights, [flat[:, b : b + o].view(agents, 1, o) for _, o, _, b in layers]

    def _room(self, kind: str, rows: int, sizes: Sequence[int]) -> list[Tensor]:
        if (kind, rows) not in self._buffers:
            shape = (self._flat.shape[0], rows)
            self._buffers[kind, rows] = [torch.zeros((*shape, n), device=self._flat.device) for n in sizes]
        return self._buffers[kind, rows]

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the outputs of all layers for x ``[A, rows, in]``.

        The next call with the same number of rows overwrites them.
        """
        layers = self._room("forward", x.shape[1], self._block.sizes[1:])
        last = len(layers) - 1
        for i, (weight, bias, out) in enumerate(zip(self._weights_t, self._biases, layers, strict=True)):
            torch.baddbmm(bias, x, weight, out=out)
            if i < last or self._block.activate_last:
                self._activate(out)
            x = out
        return layers

    def cut(self, layers: Sequence[Tensor], first: int, last: int) -> list[Tensor]:
        """Return views of some rows of what ``forward`` returned; the views are cached."""
        key = f"cut {first}:{last}", layers[0].shape[1]
        if key not in self._buffers:
            self._buffers[key] = [layer[:, first:last] for layer in layers]
        return self._buffers[key]

    def backward(
        self, x: Tensor, layers: Sequence[Tensor], grad: Tensor, inputs: bool = False, weights: bool = True
    ) -> Tensor:
        """Set the gradients of weights and biases, given that of the output ``[A, rows, out]``, which is overwritten.

        ``x`` and ``layers`` are the argument and the result of ``forward``. With ``inputs`` the method returns the
        gradient of ``x``, which the next call overwrites. Without ``weights`` it computes that gradient only.
        """
        rooms = self._room("backward", grad.shape[1], self._block.sizes[:-1])
        for i in reversed(range(len(layers))):
            if i < len(layers) - 1 or self._block.activate_last:
                if self._block.activation == "relu":
                    torch.ops.aten.threshold_backward.grad_input(grad, layers[i], 0, grad_input=grad)
                else:
                    torch.ops.aten.tanh_backward.grad_input(grad, layers[i], grad_input=grad)
            if weights:
                torch.bmm(grad.transpose(1, 2), layers[i - 1] if i else x, out=self._grad_weights[i])
                torch.sum(grad, 1, keepdim=True, out=self._grad_biases[i])
            if i or inputs:
                grad = torch.bmm(grad, self._weights[i], out=rooms[i])
        return grad

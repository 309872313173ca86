"""Fully connected networks of A agents on rows of flat vectors, and how observations become their inputs.

Forward and backward are written out, into buffers made once: at these sizes autograd's bookkeeping costs more than the
arithmetic. A :class:`Block` says where the layers lie in a row; a :class:`Network` is a block on the rows of a tensor,
an ``_native.Mlp`` is the same block on one published row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet import _native
from motet.algorithm import Space, map_space
from motet.errors import SettingError
from motet.nest import Nest

__all__ = ["Block", "Encoder", "Network", "orthogonal"]


@dataclass(frozen=True)
class Block:
    """A fully connected network with an activation between its layers, as a part of a flat vector."""

    sizes: tuple[int, ...]
    """Inputs, then the outputs of each layer."""
    start: int = 0
    """Where it begins in the vector: weight [out, in] and bias [out] of each layer in turn."""
    activate_last: bool = False
    """An activation behind the last layer too."""
    activation: Literal["relu", "tanh"] = "relu"

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where weight and bias of each layer begin."""
        offsets, at = [], self.start
        for n_in, n_out in zip(self.sizes, self.sizes[1:], strict=False):
            offsets += [at, at + n_in * n_out]
            at += n_in * n_out + n_out
        return tuple(offsets)

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.offsets[-1] + self.sizes[-1]

    @property
    def layers(self) -> Iterator[tuple[int, int, int, int]]:
        """Inputs, outputs, offset of the weight, offset of the bias."""
        offsets = self.offsets
        return zip(self.sizes, self.sizes[1:], offsets[::2], offsets[1::2], strict=False)

    def native(self, scale: float = 1.0) -> _native.Mlp:
        """The same network for acting; ``scale`` multiplies its inputs."""
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
        """Draw weights with orthogonal rows or columns times a gain, the last layer with its own; biases are zero."""
        for n_in, n_out, weight, bias in self.layers:
            matrix = orthogonal(rng, n_out, n_in)
            flat[weight:bias] = (matrix * (last_gain if bias + n_out == self.end else gain)).ravel()
            flat[bias : bias + n_out] = 0


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """A random matrix whose rows, or columns if there are fewer of them, are orthogonal and of length 1."""
    tall = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    signed: npt.NDArray[np.float64] = tall.Q * np.sign(np.diagonal(tall.R))
    return signed if rows >= columns else signed.T


class Network:
    """A block of A agents on the rows of ``flat`` ``[A, n]``; gradients go to the same places of ``grad``."""

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
        """``[x, layer 1, ..., output]`` for x ``[A, rows, in]``; overwritten by the next call with as many rows."""
        layers = self._room("forward", x.shape[1], self._block.sizes[1:])
        last = len(layers) - 1
        for i, (weight, bias, out) in enumerate(zip(self._weights_t, self._biases, layers, strict=True)):
            torch.baddbmm(bias, x, weight, out=out)
            if i < last or self._block.activate_last:
                self._activate(out)
            x = out
        return layers

    def cut(self, layers: Sequence[Tensor], first: int, last: int) -> list[Tensor]:
        """What ``forward`` returned, for some of the rows; the views are made once."""
        key = f"cut {first}:{last}", layers[0].shape[1]
        if key not in self._buffers:
            self._buffers[key] = [layer[:, first:last] for layer in layers]
        return self._buffers[key]

    def backward(
        self, x: Tensor, layers: Sequence[Tensor], grad: Tensor, inputs: bool = False, weights: bool = True
    ) -> Tensor:
        """Set the gradients of weights and biases, given those of the output ``[A, rows, out]``, which is overwritten.

        ``x`` and ``layers`` are what went into ``forward`` and came out of it. With ``inputs`` it returns the gradient
        of ``x``, which the next call overwrites. Without ``weights`` it does nothing else.
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


@dataclass(frozen=True)
class _InputLeaf:
    path: tuple[Any, ...]
    first: int
    """Where its inputs begin."""
    size: int
    """How many inputs it becomes."""
    classes: int
    """Of a Discrete space, which becomes one input per value; 0 otherwise."""
    start: int
    """The lowest value of a Discrete space."""
    scale: float
    """1 / 255 for bytes that go up to 255, 1 otherwise."""


class Encoder:
    """How observations of a space become rows of numbers.

    Arrays are flattened, dicts and tuples concatenated in the order of the space, a Discrete value becomes one input
    per possible value (one of them 1), and bytes whose highest value is 255 are divided by it.
    """

    def __init__(self, space: Space, n_frames: int = 1) -> None:
        self._leaves: list[_InputLeaf] = []
        self.size = 0
        for path, leaf in _leaves(space, ()):
            classes = int(leaf.n) if leaf.shape == () and hasattr(leaf, "n") else 0
            if np.dtype(leaf.dtype).kind not in "biuf":
                raise SettingError(f"observation must be a space of numbers, got {leaf!r}")
            size = n_frames * (classes or math.prod(leaf.shape))
            high = leaf.high if np.dtype(leaf.dtype) == np.uint8 and hasattr(leaf, "high") else 0
            scale = 1 / 255 if np.max(high) == 255 else 1.0
            self._leaves.append(_InputLeaf(path, self.size, size, classes, int(getattr(leaf, "start", 0)), scale))
            self.size += size
        only = self._leaves[0]
        self._plain = len(self._leaves) == 1 and not only.path and not only.classes
        self.scale = only.scale if self._plain else 1.0
        """What the network's first layer multiplies the result of :meth:`rows` with."""

    def rows(self, observations: Nest) -> npt.NDArray[Any]:
        """``[B, size]`` from observations ``[B, ...]``; float32, or bytes and bools as they are."""
        if self._plain:
            array = np.asarray(observations)
            if array.dtype != np.float32 and array.dtype != np.uint8 and array.dtype != np.bool_:
                array = array.astype(np.float32)
            return np.ascontiguousarray(array).reshape(len(array), self.size)
        parts = [np.asarray(_at(observations, leaf.path)) for leaf in self._leaves]
        rows = np.zeros((len(parts[0]), self.size), np.float32)
        for leaf, part in zip(self._leaves, parts, strict=True):
            into = rows[:, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                hot = part.reshape(len(rows), -1, 1) == np.arange(leaf.start, leaf.start + leaf.classes)
                into[:] = hot.reshape(into.shape)
            else:
                np.multiply(part.reshape(into.shape), np.float32(leaf.scale), out=into, casting="unsafe")
        return rows

    def link(self, observations: Nest, into: Tensor) -> Callable[[], None]:
        """A function that writes what is then in the arrays ``[A, B, ...]`` of a batch into ``[A, B, size]``."""
        agents, batch = into.shape[:2]
        plain, classes = [], []
        for leaf in self._leaves:
            source = torch.from_numpy(np.asarray(_at(observations, leaf.path)))
            part = into[:, :, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                values = torch.arange(leaf.start, leaf.start + leaf.classes)
                classes.append((part, source.view(agents, batch, -1, 1), values))
            else:
                plain.append((part, source.view(part.shape), leaf.scale))

        def encode() -> None:
            for part, source, scale in plain:
                part.copy_(source)
                if scale != 1.0:
                    part.mul_(scale)
            for part, source, values in classes:
                part.copy_((source == values).view(part.shape))

        return encode


def _leaves(space: Space, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Space]]:
    inner = getattr(space, "spaces", None)
    if inner is None:
        map_space(lambda leaf: leaf, space)  # raises where it has no shape and dtype
        yield path, space
        return
    for key, value in inner.items() if hasattr(inner, "items") else enumerate(inner):
        yield from _leaves(value, (*path, key))


def _at(nest: Nest, path: tuple[Any, ...]) -> Any:
    for key in path:
        nest = nest[key]
    return nest

"""Plans of fully connected networks: layout and initialisation of their layers. This module does not import torch.

The forward and backward passes are in ``_networks``, and for acting in the native core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.algorithms._plans import ActorNetwork, LearnerNetwork, Seed

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["DensePlan", "orthogonal"]


@dataclass(frozen=True)
class DensePlan:
    """A fully connected network with an activation between its layers."""

    sizes: tuple[int, ...]
    """Number of inputs, then number of outputs of each layer."""
    activate_last: bool = False
    """Whether there is an activation after the last layer, too."""
    activation: Literal["relu", "tanh"] = "relu"
    gains: tuple[float, float] | None = None
    """Gain of the orthogonal initialisation: the first value for all layers but the last, the second for the last
    layer. Biases are zero. None: weights and biases are drawn uniformly from ``[-b, b]`` with ``b = 1 /
    sqrt(inputs)``."""

    draws = explores = False
    state_size = 0

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
        """Number of values in an agent's row."""
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
        """For each layer: number of inputs, number of outputs, offset of the weight and offset of the bias."""
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

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        """Return torch's layers with the weights of a row."""
        from motet.algorithms._greedy_module import dense_layers

        parts = [(row[w:b].reshape(n_out, n_in), row[b : b + n_out]) for n_in, n_out, w, b in self.layers]
        return dense_layers(parts, self.activation, self.activate_last)

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

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return self.forward(x), state


def orthogonal(rng: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.float64]:
    """Draw a random matrix whose rows, or columns if there are fewer columns, are orthonormal."""
    tall = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    signed: npt.NDArray[np.float64] = tall.Q * np.sign(np.diagonal(tall.R))
    return signed if rows >= columns else signed.T

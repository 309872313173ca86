"""The greedy policy of an algorithm as plain data, for export. This module does not import torch.

An algorithm's config has a method ``greedy``, which takes published weights and returns a :class:`Greedy`. Each
network comes with the row of its parameters; ``_greedy_module`` makes a ``torch.nn.Module`` of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithms._encoder import Encoder
from motet.algorithms._statistics import CLIP, Statistics

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Bound", "Choose", "Greedy", "Layered"]

F32 = npt.NDArray[np.float32]


class Layered(Protocol):
    """A network that can be expressed as torch modules, such as every ``NetworkPlan``."""

    def layers_of(self, row: F32) -> list[nn.Module]:
        """Return modules with the parameters of a row. Each module takes the outputs ``[B, n]`` of the previous one."""
        ...


@dataclass(frozen=True)
class Choose:
    """The action with the highest score, in each of several choices."""

    counts: tuple[int, ...]
    """Number of actions of each choice."""
    start: tuple[int, ...]
    """The lowest action of each choice."""
    shape: tuple[int, ...]
    """Shape of an action."""
    first: int = 0
    """Number of outputs before the scores."""

    def about(self) -> dict[str, Any]:
        """Return the decision as plain values."""
        numbers = {"counts": list(self.counts), "start": list(self.start), "shape": list(self.shape)}
        return {**numbers, "outputs": [self.first, self.first + sum(self.counts)]}


@dataclass(frozen=True)
class Bound:
    """A continuous action: the first outputs, scaled to the box and clipped to it."""

    squash: bool
    """Whether the outputs go through tanh first."""
    half: npt.NDArray[Any]
    middle: npt.NDArray[Any]
    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    shape: tuple[int, ...]

    def about(self) -> dict[str, Any]:
        """Return the decision as plain values."""
        arrays = {"half": self.half, "middle": self.middle, "low": self.low, "high": self.high}
        flat = {name: np.asarray(array, np.float32).ravel().tolist() for name, array in arrays.items()}
        return {"squash": self.squash, **flat, "shape": list(self.shape), "outputs": [0, self.half.size]}


@dataclass(frozen=True)
class Greedy:
    """A greedy policy: a chain of networks, followed by the decision."""

    encoder: Encoder
    """Turns observations into rows of numbers."""
    networks: Sequence[tuple[Layered, F32]]
    """The networks, each with the row of its parameters."""
    decision: Choose | Bound
    statistics: Statistics | None = None
    """Positions of the mean and the scale of the inputs in ``weights``, if the algorithm normalises observations."""
    weights: F32 | None = None

    def inputs(self) -> tuple[F32, F32, float]:
        """Return mean, scale and bound: a network sees ``clip((numbers - mean) * scale)``."""
        scale = self.encoder.scales()
        if self.statistics is None:
            return np.zeros_like(scale), scale, float("inf")
        assert self.weights is not None
        mean, spread = self.weights[self.statistics.public :][: self.statistics.n_public].reshape(2, -1)
        return mean / scale, spread * scale, CLIP

"""Action distributions of a policy for acting: categorical and Gaussian. This module does not import torch.

It takes outputs of the network and returns actions and their log-probabilities. The learner's computations with the
same distributions are in ``_likelihoods``.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Field, Space
from motet.algorithms._greedy import Bound, Choose
from motet.errors import SettingError

__all__ = ["HALF_LOG_TAU", "Actions", "Choices", "Gaussian", "actions_of"]

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Actions(Protocol):
    """The action distribution of an action space: it turns outputs of the policy into actions."""

    outputs: int
    """Number of outputs of the policy's network."""
    parameters: int
    """Number of learned parameters outside the network."""
    fields: dict[str, Field]
    """Further fields of a row that the learner needs beside the action."""

    def best(self) -> Choose | Bound:
        """Return how the most probable action follows from the outputs."""
        ...

    def prepare(self, own: npt.NDArray[np.float32]) -> Any:
        """Compute once per version what :meth:`draw` needs from the parameters outside the network."""
        ...

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: Any,
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions and extra fields for outputs ``[B, outputs]``; actions are greedy without ``rng``."""
        ...


def actions_of(space: Space) -> Actions:
    kind = np.dtype(getattr(space, "dtype", None)).kind
    if getattr(space, "nvec", None) is not None and np.ndim(space.nvec) == 1:
        return Choices(space, tuple(int(n) for n in space.nvec))
    if getattr(space, "n", None) is not None and getattr(space, "shape", None) == () and kind == "i":
        return Choices(space, (int(space.n),))
    if getattr(space, "low", None) is not None and kind == "f":
        return Gaussian(space)
    raise SettingError(f"action space must be Discrete, MultiDiscrete with one axis, or a Box of floats, got {space!r}")


class Choices:
    """One or several categorical distributions; the network's outputs are their concatenated logits."""

    parameters = 0
    fields: dict[str, Field] = {}  # noqa: RUF012

    def __init__(self, space: Space, counts: tuple[int, ...]) -> None:
        self.counts, self.outputs = counts, sum(counts)
        ends = np.cumsum(counts).tolist()
        self.parts = [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        start = np.asarray(getattr(space, "start", 0), np.int64)
        self.start = np.broadcast_to(start, (len(counts),))

    def best(self) -> Choose:
        """Return how the most probable action follows from the outputs."""
        return Choose(self.counts, tuple(map(int, self.start)), self._shape)

    def prepare(self, own: npt.NDArray[np.float32]) -> None:
        """Do nothing: this distribution has no parameters outside the network."""

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: None,
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Draw actions, with one random number for each categorical distribution."""
        rows, logits = np.arange(len(out)), out.astype(np.float64)
        if masks is not None:
            logits[~masks] = -np.inf
        draws = None if rng is None else rng.random((len(out), len(self.parts)))
        actions = np.empty((len(out), len(self.parts)), self._dtype)
        log_prob = np.zeros(len(out))
        for i, part in enumerate(self.parts):
            z = logits[:, part]
            weight = z - np.maximum.reduce(z, 1, keepdims=True)  # array methods take twice as long
            np.exp(weight, out=weight)
            sums = np.add.accumulate(weight, 1)
            total = sums[:, -1]
            if draws is None:
                index = weight.argmax(1)
            else:
                # The product may round up to the total. Staying below it never draws an action of probability 0.
                goal = np.minimum(draws[:, i] * total, np.nextafter(total, 0.0))
                index = (sums > goal[:, None]).argmax(1)
            log_prob += np.log(weight[rows, index] / total)
            actions[:, i] = index + self.start[i]
        return actions.reshape(len(out), *self._shape), {"log_prob": log_prob.astype(np.float32)}


class Gaussian:
    """A Gaussian with independent components; its standard deviations are learned and the same in every state.

    In the policy's unit a bounded box is [-1, 1]. The world gets actions clipped to the box. The learner gets the
    unclipped ones, whose probability it needs.
    """

    def __init__(self, space: Space) -> None:
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        self.outputs = self.parameters = math.prod(self._shape)
        self.fields = {"unclipped": Field((self.outputs,))}
        low, high = (np.asarray(end, np.float64).reshape(-1) for end in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        if not (low < high).all():
            raise SettingError(f"action space must have low < high in every component, got {space!r}")
        with np.errstate(invalid="ignore"):
            self._half = np.where(bounded, (high - low) / 2, 1.0)
            self._middle = np.where(bounded, (high + low) / 2, 0.0)
        self._low, self._high = (np.asarray(end).reshape(-1) for end in (space.low, space.high))

    def best(self) -> Bound:
        """Return how the most probable action follows from the outputs."""
        return Bound(False, self._half, self._middle, self._low, self._high, self._shape)

    def prepare(self, own: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], float]:
        """Return the standard deviations and the log density at the mean."""
        return np.exp(own), -float(own.sum() + self.outputs * HALF_LOG_TAU)

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: tuple[npt.NDArray[np.float32], float],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Draw actions, with one normal random number for each component."""
        deviation, highest = prepared
        noise = np.zeros_like(out) if rng is None else rng.standard_normal(out.shape, np.float32)
        log_prob = np.add.reduce(noise * noise, 1)
        log_prob *= -0.5
        log_prob += highest
        noise *= deviation
        unclipped = np.add(noise, out, out=noise)
        inside = unclipped * self._half
        inside += self._middle
        np.maximum(inside, self._low, out=inside)
        np.minimum(inside, self._high, out=inside)
        extra = {"log_prob": log_prob, "unclipped": unclipped}
        return inside.astype(self._dtype).reshape(len(out), *self._shape), extra

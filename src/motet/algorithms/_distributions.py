"""Action distributions of a policy for acting: categorical, Bernoulli, Gaussian, and products of them.

This module does not import torch.

A distribution takes outputs of the network and returns actions and their log-probabilities. The learner's part of the
same distributions is in ``_likelihoods``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Field, Space
from motet.algorithms._greedy import Bound, Choose
from motet.errors import SettingError
from motet.masks import is_discrete
from motet.nest import Nest

__all__ = ["HALF_LOG_TAU", "Actions", "Bits", "Choices", "Gaussian", "Part", "Product", "actions_of"]

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Actions(Protocol):
    """The action distribution of an action space: it turns outputs of the policy into actions."""

    outputs: int
    """Number of outputs of the policy's network."""
    parameters: int
    """Number of learned parameters outside the network."""
    fields: dict[str, Field]
    """Fields of a row, besides the action, that the learner needs."""
    mask_size: int
    """Number of entries of a flat action mask (see :mod:`motet.masks`)."""
    chosen: int
    """Number of values by which the learner represents an action."""

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
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Return actions and extra fields for outputs ``[B, outputs]``; actions are greedy without ``rng``."""
        ...


def actions_of(space: Space) -> Actions:
    """Return the action distribution of an action space."""
    inner = getattr(space, "spaces", None)
    if inner:
        parts = inner if isinstance(inner, Mapping) else dict(enumerate(inner))
        return Product({key: actions_of(part) for key, part in parts.items()}, isinstance(inner, Mapping))
    kind = np.dtype(getattr(space, "dtype", None)).kind
    if getattr(space, "nvec", None) is not None:
        return Choices(space, tuple(int(n) for n in np.ravel(space.nvec)))
    if is_discrete(space) and kind == "i":
        return Choices(space, (int(space.n),))
    if getattr(space, "n", None) is not None and getattr(space, "shape", None):
        return Bits(space)
    if getattr(space, "low", None) is not None and kind == "f":
        return Gaussian(space)
    raise SettingError(
        "action space must be Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of them, got "
        f"{space!r}"
    )


def _not_exported(kind: str) -> SettingError:
    return SettingError(f"exported policies must act in Discrete, MultiDiscrete or Box spaces, got a {kind} space")


class Choices:
    """One or several categorical distributions; the network's outputs are their concatenated logits."""

    parameters = 0
    fields: dict[str, Field] = {}  # noqa: RUF012

    def __init__(self, space: Space, counts: tuple[int, ...]) -> None:
        self.counts, self.chosen = counts, len(counts)
        self.outputs = self.mask_size = sum(counts)
        ends = np.cumsum(counts).tolist()
        self.parts = [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        start = np.asarray(getattr(space, "start", 0), np.int64)
        self.start = np.broadcast_to(start.ravel(), (len(counts),))

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
                # The product may round up to the total. A value below the total never selects an action of probability
                # 0.
                goal = np.minimum(draws[:, i] * total, np.nextafter(total, 0.0))
                index = (sums > goal[:, None]).argmax(1)
            log_prob += np.log(weight[rows, index] / total)
            actions[:, i] = index + self.start[i]
        return actions.reshape(len(out), *self._shape), {"log_prob": log_prob.astype(np.float32)}


class Bits:
    """Independent Bernoulli distributions; the network's outputs are the logits of 1."""

    parameters = 0
    fields: dict[str, Field] = {}  # noqa: RUF012

    def __init__(self, space: Space) -> None:
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        self.outputs = self.chosen = math.prod(self._shape)
        self.mask_size = 2 * self.outputs

    def best(self) -> NoReturn:
        """Raise an error: such policies cannot be exported yet."""
        raise _not_exported("MultiBinary")

    def prepare(self, own: npt.NDArray[np.float32]) -> None:
        """Do nothing: this distribution has no parameters outside the network."""

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: None,
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Draw actions, with one random number for each bit."""
        logits = out.astype(np.float64)
        if masks is not None:
            allowed = masks.reshape(*logits.shape, 2)
            logits[~allowed[..., 1]] = -np.inf
            logits[~allowed[..., 0]] = np.inf
        share = np.exp(-np.logaddexp(0.0, -logits))
        bits = logits > 0 if rng is None else rng.random(logits.shape) < share
        log_prob = -np.logaddexp(0.0, np.where(bits, -logits, logits)).sum(1)
        return bits.astype(self._dtype).reshape(len(out), *self._shape), {"log_prob": log_prob.astype(np.float32)}


class Gaussian:
    """A Gaussian with independent components; its standard deviations are learned and the same in every state.

    A bounded box is scaled to [-1, 1]. The world gets actions clipped to the box. The learner gets the unclipped
    actions, because it needs their probability.
    """

    mask_size = 0

    def __init__(self, space: Space) -> None:
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        self.outputs = self.parameters = self.chosen = math.prod(self._shape)
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


class Part(NamedTuple):
    """A part of a :class:`Product`, and the position of the part's values among the values of the product."""

    actions: Actions
    outputs: slice
    own: slice
    """Parameters of the distribution outside the network."""
    mask: slice
    chosen: slice
    fields: Mapping[str, slice]


class Product:
    """Independent distributions for the parts of a Dict or Tuple space.

    The network's outputs, the parameters, the masks and fields of equal name are concatenated in the order of the
    parts.
    """

    def __init__(self, parts: Mapping[Any, Actions], named: bool) -> None:
        self.outputs = self.parameters = self.mask_size = self.chosen = 0
        sizes: dict[str, int] = {}
        self.parts: dict[Any, Part] = {}
        self._named = named
        for key, actions in parts.items():
            counts = {name: math.prod(field.shape) for name, field in actions.fields.items()}
            self.parts[key] = Part(
                actions,
                slice(self.outputs, self.outputs + actions.outputs),
                slice(self.parameters, self.parameters + actions.parameters),
                slice(self.mask_size, self.mask_size + actions.mask_size),
                slice(self.chosen, self.chosen + actions.chosen),
                {name: slice(sizes.get(name, 0), sizes.get(name, 0) + count) for name, count in counts.items()},
            )
            self.outputs += actions.outputs
            self.parameters += actions.parameters
            self.mask_size += actions.mask_size
            self.chosen += actions.chosen
            sizes |= {name: sizes.get(name, 0) + count for name, count in counts.items()}
        self.fields = {name: Field((size,)) for name, size in sizes.items()}

    def best(self) -> NoReturn:
        """Raise an error: such policies cannot be exported yet."""
        raise _not_exported("Dict" if self._named else "Tuple")

    def prepare(self, own: npt.NDArray[np.float32]) -> dict[Any, Any]:
        """Return what :meth:`draw` of each part needs, by key."""
        return {key: part.actions.prepare(own[part.own]) for key, part in self.parts.items()}

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: dict[Any, Any],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Draw the actions of one part after the other."""
        chosen: dict[Any, Nest] = {}
        log_prob = np.zeros(len(out), np.float32)
        fields: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in self.fields}
        for key, part in self.parts.items():
            mask = None if masks is None or not part.actions.mask_size else masks[:, part.mask]
            chosen[key], extra = part.actions.draw(out[:, part.outputs], prepared[key], mask, rng)
            log_prob += extra.pop("log_prob")
            for name, values in extra.items():
                fields[name].append(values)
        actions = chosen if self._named else tuple(chosen.values())
        return actions, {"log_prob": log_prob, **{name: np.concatenate(v, 1) for name, v in fields.items()}}

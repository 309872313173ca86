"""What the outputs of a policy mean: choices, or numbers around a mean. Drawn for acting, looked at again for learning.

Acting: outputs of the network in, actions and their log-probabilities out, without torch. Learning: the same outputs
and what was done in; log-probabilities and entropies out, and the way back from their gradients to the outputs'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Field, Space
from motet.errors import SettingError

__all__ = ["Actions", "Choices", "Gaussian", "Look", "actions_of"]

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Actions(Protocol):
    """A space of actions: how outputs of the policy become actions, and what the learner asks about them."""

    outputs: int
    """Outputs of the policy's network."""
    parameters: int
    """Numbers of the row beside the network."""
    fields: dict[str, Field]
    """What the learner needs of an action beside itself."""

    def prepare(self, own: npt.NDArray[np.float32]) -> Any:
        """What :meth:`draw` needs of the row's own numbers: worked out once for each version."""
        ...

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: Any,
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Actions and extra fields from outputs ``[B, outputs]``; greedy without ``rng``."""
        ...

    def chosen(self, batch: Batch) -> Tensor:
        """``[A, rows, ...]``: what was done, as :meth:`look` wants it; a view of the batch's arrays if that will do."""
        ...

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> Look:
        """Log-probabilities and entropies, and how to go back from them."""
        ...


class Look(Protocol):
    """Log-probabilities ``[A, rows]`` of what was done, entropies, and their gradients."""

    log_prob: Tensor
    entropy: Tensor

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """The gradient of the outputs, given those of both; that of the row's own numbers goes to ``own``."""
        ...


def actions_of(space: Space) -> Actions:
    kind = np.dtype(getattr(space, "dtype", None)).kind
    if getattr(space, "nvec", None) is not None and np.ndim(space.nvec) == 1:
        return Choices(space, tuple(int(n) for n in space.nvec))
    if getattr(space, "n", None) is not None and getattr(space, "shape", None) == () and kind == "i":
        return Choices(space, (int(space.n),))
    if getattr(space, "low", None) is not None and kind == "f":
        return Gaussian(space)
    raise SettingError(
        f"action space: given {space!r}, expected Discrete, MultiDiscrete with one axis, or a Box of floats"
    )


class Choices:
    """One or several choices among so many: their logits lie side by side."""

    parameters = 0
    fields: dict[str, Field] = {}  # noqa: RUF012

    def __init__(self, space: Space, counts: tuple[int, ...]) -> None:
        self.counts, self.outputs = counts, sum(counts)
        ends = np.cumsum(counts).tolist()
        self.parts = [slice(end - n, end) for n, end in zip(counts, ends, strict=True)]
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        start = np.asarray(getattr(space, "start", 0), np.int64)
        self._start = np.broadcast_to(start, (len(counts),))

    def prepare(self, own: npt.NDArray[np.float32]) -> None:
        """Nothing: the logits say it all."""

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: None,
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """One number of the random stream for each choice."""
        rows, logits = np.arange(len(out)), out.astype(np.float64)
        if masks is not None:
            logits[~masks] = -np.inf
        draws = None if rng is None else rng.random((len(out), len(self.parts)))
        actions = np.empty((len(out), len(self.parts)), self._dtype)
        log_prob = np.zeros(len(out))
        for i, part in enumerate(self.parts):
            z = logits[:, part]
            weight = z - np.maximum.reduce(z, 1, keepdims=True)  # the methods of arrays take twice as long
            np.exp(weight, out=weight)
            sums = np.add.accumulate(weight, 1)
            total = sums[:, -1]
            if draws is None:
                index = weight.argmax(1)
            else:
                # Below the total even where the product is rounded up to it: so only what has a weight is drawn.
                goal = np.minimum(draws[:, i] * total, np.nextafter(total, 0.0))
                index = (sums > goal[:, None]).argmax(1)
            log_prob += np.log(weight[rows, index] / total)
            actions[:, i] = index + self._start[i]
        return actions.reshape(len(out), *self._shape), {"log_prob": log_prob.astype(np.float32)}

    def chosen(self, batch: Batch) -> Tensor:
        """Indices ``[A, rows, choices]``."""
        agents, fragments, length = batch.reward.shape
        indices = torch.from_numpy(batch.action).view(agents, fragments * length, len(self.parts)).to(torch.int64)
        return indices - torch.tensor(self._start) if self._start.any() else indices

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _ChoicesLook:
        """Log-probabilities and entropies, and how to go back from them."""
        return _ChoicesLook(self.parts, out if mask is None else out.masked_fill(~mask, -1e30), chosen)


class _ChoicesLook:
    def __init__(self, parts: Sequence[slice], logits: Tensor, chosen: Tensor) -> None:
        single = len(parts) == 1
        self._terms: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        log_probs, entropies = [], []
        for i, part in enumerate(parts):
            logs = torch.log_softmax(logits if single else logits[..., part], -1)
            shares = logs.exp()
            index = chosen[..., i : i + 1]
            log_probs.append(logs.gather(-1, index).squeeze(-1))
            entropies.append((shares * logs).sum(-1).neg_())
            self._terms.append((logs, shares, index, entropies[-1]))
        self.log_prob = log_probs[0] if single else torch.stack(log_probs).sum(0)
        self.entropy = entropies[0] if single else torch.stack(entropies).sum(0)

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """The gradient of the logits."""
        grads = []
        for logs, shares, index, level in self._terms:
            pull = logs.add_(level.unsqueeze(-1)).mul_(entropy.unsqueeze(-1)).add_(log_prob.unsqueeze(-1))
            grads.append(shares.mul_(pull).neg_().scatter_add_(-1, index, log_prob.unsqueeze(-1)))
        return grads[0] if len(grads) == 1 else torch.cat(grads, -1)


class Gaussian:
    """A box of numbers, drawn independently; deviations are numbers of their own, the same in every state.

    The policy speaks in a unit in which a bounded box reaches from -1 to 1. What it draws beyond that is cut off for
    the world, and kept whole for the learner: the probability is that of what was drawn.
    """

    def __init__(self, space: Space) -> None:
        self._shape, self._dtype = tuple(space.shape), np.dtype(space.dtype)
        self.outputs = self.parameters = math.prod(self._shape)
        self.fields = {"unclipped": Field((self.outputs,))}
        low, high = (np.asarray(end, np.float64).reshape(-1) for end in (space.low, space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        if not (low < high).all():
            raise SettingError(f"action space: given {space!r}, expected low below high everywhere")
        with np.errstate(invalid="ignore"):
            self._half = np.where(bounded, (high - low) / 2, 1.0)
            self._middle = np.where(bounded, (high + low) / 2, 0.0)
        self._low, self._high = (np.asarray(end).reshape(-1) for end in (space.low, space.high))

    def prepare(self, own: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], float]:
        """The deviations, and the logarithm of the density at the mean."""
        return np.exp(own), -float(own.sum() + self.outputs * _HALF_LOG_TAU)

    def draw(
        self,
        out: npt.NDArray[np.float32],
        prepared: tuple[npt.NDArray[np.float32], float],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """One normal number of the random stream for each number of an action."""
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

    def chosen(self, batch: Batch) -> Tensor:
        """What was drawn, ``[A, rows, outputs]``."""
        agents, fragments, length = batch.reward.shape
        return torch.from_numpy(batch.extra["unclipped"]).view(agents, fragments * length, self.outputs)

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _GaussianLook:
        """Log-probabilities and entropies, and how to go back from them."""
        return _GaussianLook(out, own.unsqueeze(1), chosen)


class _GaussianLook:
    def __init__(self, mean: Tensor, log_std: Tensor, chosen: Tensor) -> None:
        self._precision = (-log_std).exp()  # [A, 1, n]
        self._away = (chosen - mean).mul_(self._precision)
        level = log_std.sum(2) + mean.shape[2] * _HALF_LOG_TAU  # [A, 1]
        self.log_prob = self._away.square().sum(2).mul_(-0.5).sub_(level)
        self.entropy = (level + 0.5 * mean.shape[2]).expand_as(self.log_prob)

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """The gradient of the means; that of the log-deviations to ``own``."""
        pull = log_prob.unsqueeze(2)
        torch.sum(self._away.square().sub_(1.0).mul_(pull).add_(entropy.unsqueeze(2)), 1, out=own)
        return self._away.mul_(self._precision).mul_(pull)

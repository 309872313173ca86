"""Log-probabilities and entropies of action distributions for the learner, with their gradients.

The module takes the outputs of the network and the actions in a batch. It returns the actions' log-probabilities under
the current policy and the entropies, and turns the gradients of both into the gradient of the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from motet.algorithm import Batch
from motet.algorithms._device import Device
from motet.algorithms._distributions import HALF_LOG_TAU, Actions, Choices, Gaussian

__all__ = ["Likelihoods", "Look", "likelihoods_of"]


class Likelihoods(Protocol):
    """The learning half of an action distribution."""

    def chosen(self, batch: Batch) -> Tensor:
        """Return the actions ``[A, rows, ...]`` on the device, in the form that :meth:`look` takes."""
        ...

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> Look:
        """Return log-probabilities and entropies with their backward pass."""
        ...


class Look(Protocol):
    """Log-probabilities ``[A, rows]`` of actions, entropies ``[A, rows]``, and the backward pass from both."""

    log_prob: Tensor
    entropy: Tensor

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """Return the gradient of the outputs, given the gradients of log-probabilities and entropies.

        The gradient of the parameters outside the network is written to ``own``.
        """
        ...


def likelihoods_of(actions: Actions, device: Device) -> Likelihoods:
    """Return the learning half of an action distribution, on a device."""
    if isinstance(actions, Choices):
        return _ChoicesLikelihoods(actions, device)
    assert isinstance(actions, Gaussian)
    return _GaussianLikelihoods(actions, device)


class _ChoicesLikelihoods:
    def __init__(self, choices: Choices, device: Device) -> None:
        self._choices, self._device = choices, device
        self._start = device.to_device(choices.start.copy()) if choices.start.any() else None

    def chosen(self, batch: Batch) -> Tensor:
        """Return indices ``[A, rows, choices]``."""
        (agents, fragments, length), parts = batch.reward.shape, self._choices.parts
        indices = self._device.to_device(batch.action).view(agents, fragments * length, len(parts)).to(torch.int64)
        return indices if self._start is None else indices - self._start

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _ChoicesLook:
        """Return log-probabilities and entropies with their backward pass."""
        return _ChoicesLook(self._choices.parts, out if mask is None else out.masked_fill(~mask, -1e30), chosen)


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
        """Return the gradient of the logits."""
        grads = []
        for logs, shares, index, level in self._terms:
            pull = logs.add_(level.unsqueeze(-1)).mul_(entropy.unsqueeze(-1)).add_(log_prob.unsqueeze(-1))
            grads.append(shares.mul_(pull).neg_().scatter_add_(-1, index, log_prob.unsqueeze(-1)))
        return grads[0] if len(grads) == 1 else torch.cat(grads, -1)


class _GaussianLikelihoods:
    def __init__(self, gaussian: Gaussian, device: Device) -> None:
        self._gaussian, self._device = gaussian, device

    def chosen(self, batch: Batch) -> Tensor:
        """Return the unclipped actions ``[A, rows, outputs]``."""
        agents, fragments, length = batch.reward.shape
        unclipped = self._device.to_device(batch.extra["unclipped"])
        return unclipped.view(agents, fragments * length, self._gaussian.outputs)

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _GaussianLook:
        """Return log-probabilities and entropies with their backward pass."""
        return _GaussianLook(out, own.unsqueeze(1), chosen)


class _GaussianLook:
    def __init__(self, mean: Tensor, log_std: Tensor, chosen: Tensor) -> None:
        self._precision = (-log_std).exp()  # [A, 1, n]
        self._away = (chosen - mean).mul_(self._precision)
        level = log_std.sum(2) + mean.shape[2] * HALF_LOG_TAU  # [A, 1]
        self.log_prob = self._away.square().sum(2).mul_(-0.5).sub_(level)
        self.entropy = (level + 0.5 * mean.shape[2]).expand_as(self.log_prob)

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """Return the gradient of the means; write the gradient of the log standard deviations to ``own``."""
        pull = log_prob.unsqueeze(2)
        torch.sum(self._away.square().sub_(1.0).mul_(pull).add_(entropy.unsqueeze(2)), 1, out=own)
        return self._away.mul_(self._precision).mul_(pull)

"""Log-probabilities and entropies of action distributions for the learner, with their gradients.

The module takes the outputs of the network and the actions in a batch. It returns the actions' log-probabilities under
the current policy and the entropies, and turns the gradients of both into the gradient of the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from motet.algorithm import Batch
from motet.algorithms._device import Device
from motet.algorithms._distributions import HALF_LOG_TAU, Actions, Bits, Choices, Gaussian, Part, Product

__all__ = ["Likelihoods", "Look", "likelihoods_of"]


class Likelihoods(Protocol):
    """The learning half of an action distribution."""

    def chosen(self, batch: Batch) -> Tensor:
        """Return the actions ``[A, rows, chosen]`` on the device, in the form that :meth:`look` takes."""
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
    if isinstance(actions, Product):
        return _ProductLikelihoods(actions, device)
    if isinstance(actions, Choices):
        return _ChoicesLikelihoods(actions, device)
    if isinstance(actions, Bits):
        return _BitsLikelihoods(actions, device)
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
        if self._start is None:
            return indices
        return (indices - self._start).clamp_(min=0)  # the action of the last row of an episode is 0

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


class _BitsLikelihoods:
    def __init__(self, bits: Bits, device: Device) -> None:
        self._bits, self._device = bits, device

    def chosen(self, batch: Batch) -> Tensor:
        """Return the bits ``[A, rows, outputs]`` as floats."""
        agents, fragments, length = batch.reward.shape
        bits = self._device.to_device(batch.action)
        return bits.reshape(agents, fragments * length, self._bits.outputs).to(torch.float32)

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _BitsLook:
        """Return log-probabilities and entropies with their backward pass."""
        if mask is not None:
            allowed = mask.reshape(*out.shape, 2)
            out = out.masked_fill(~allowed[..., 1], -1e30).masked_fill(~allowed[..., 0], 1e30)
        return _BitsLook(out, chosen)


class _BitsLook:
    def __init__(self, logits: Tensor, chosen: Tensor) -> None:
        self._logits, self._chosen = logits, chosen
        zero, one = F.logsigmoid(-logits), F.logsigmoid(logits)  # log-probabilities of the values 0 and 1
        self._share = one.exp()
        self.log_prob = torch.where(chosen > 0, one, zero).sum(-1)
        self.entropy = (self._share * one + zero.exp() * zero).sum(-1).neg_()

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """Return the gradient of the logits."""
        share = self._share
        pull = self._logits * share * (1.0 - share) * entropy.unsqueeze(-1)
        return (self._chosen - share).mul_(log_prob.unsqueeze(-1)).sub_(pull)


class _GaussianLikelihoods:
    def __init__(self, gaussian: Gaussian, device: Device) -> None:
        self._gaussian, self._device = gaussian, device

    def chosen(self, batch: Batch) -> Tensor:
        """Return the unclipped actions ``[A, rows, outputs]``."""
        agents, fragments, length = batch.reward.shape
        unclipped = self._device.to_device(batch.extra["unclipped"])
        return unclipped.reshape(agents, fragments * length, self._gaussian.outputs)

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


class _ProductLikelihoods:
    def __init__(self, product: Product, device: Device) -> None:
        self._parts = [(key, part, likelihoods_of(part.actions, device)) for key, part in product.parts.items()]

    def chosen(self, batch: Batch) -> Tensor:
        """Return the values of all parts, concatenated as floats. Indices are represented exactly."""
        found = []
        for key, part, likelihoods in self._parts:
            extra = {name: batch.extra[name][..., where] for name, where in part.fields.items()}
            mine = replace(batch, action=batch.action[key], extra=extra)
            found.append(likelihoods.chosen(mine).to(torch.float32))
        return torch.cat(found, -1)

    def look(self, out: Tensor, own: Tensor, chosen: Tensor, mask: Tensor | None) -> _ProductLook:
        """Return log-probabilities and entropies with their backward pass."""
        looks = []
        for _, part, likelihoods in self._parts:
            here = chosen[..., part.chosen]
            if isinstance(part.actions, Choices):
                here = here.to(torch.int64)
            allowed = None if mask is None or not part.actions.mask_size else mask[..., part.mask]
            looks.append((part, likelihoods.look(out[..., part.outputs], own[:, part.own], here, allowed)))
        return _ProductLook(looks)


class _ProductLook:
    def __init__(self, looks: Sequence[tuple[Part, Look]]) -> None:
        self._looks = looks
        self.log_prob = torch.stack([look.log_prob for _, look in looks]).sum(0)
        self.entropy = torch.stack([look.entropy for _, look in looks]).sum(0)

    def back(self, log_prob: Tensor, entropy: Tensor, own: Tensor) -> Tensor:
        """Return the gradients of the parts' outputs, concatenated."""
        return torch.cat([look.back(log_prob, entropy, own[:, part.own]) for part, look in self._looks], -1)

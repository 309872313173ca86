"""The learning half of IQN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.algorithms._device import Device
from motet.algorithms._plans import Pass
from motet.algorithms._value_learner import ValueLearner
from motet.algorithms.iqn import IQNConfig, IQNPlan

__all__ = ["IQN", "quantile_loss"]


class _QuantilePass(NamedTuple):
    """Quantiles ``[A, B N, n]`` of states, and what the backward pass needs."""

    out: Tensor
    embedding: Pass
    head: Pass


class _Quantiles:
    """The networks of A agents, which map a state and tau to the tau-quantile of each action's return."""

    def __init__(self, plan: IQNPlan, mean_cosines: Tensor, rows: Tensor, grad: Tensor | None = None) -> None:
        trunk, embedding, head = ((rows[:, part], None if grad is None else grad[:, part]) for part in plan.parts)
        self.trunk = plan.trunk.bind(*trunk)
        self._embedding, self._head = plan.embedding.bind(*embedding), plan.head.bind(*head, inputs=True)
        self._linear = len(plan.head.sizes) == 2
        self._mean_cosines = mean_cosines.expand(len(rows), -1, -1)

    def means(self, states: Tensor) -> Tensor:
        """Return action values ``[A, B, n]``: the means over the fixed taus."""
        embedded = self._embedding.forward(self._mean_cosines).out  # [A, K, H]
        if self._linear:  # the mean of linear functions is the function of the mean
            return self._head.forward(states * embedded.mean(1, keepdim=True)).out
        product = states.unsqueeze(2) * embedded.unsqueeze(1)  # [A, B, K, H]
        out = self._head.forward(product.flatten(1, 2)).out
        return out.view(*product.shape[:3], -1).mean(2)

    def forward(self, states: Tensor, cosines: Tensor) -> _QuantilePass:
        """Return the quantiles of states for cosines of taus ``[A, B N, C]``."""
        agents, batch, width = states.shape
        embedding = self._embedding.forward(cosines, learn=True)
        product = states.unsqueeze(2) * embedding.out.view(agents, batch, -1, width)
        head = self._head.forward(product.flatten(1, 2), learn=True)
        return _QuantilePass(head.out, embedding, head)

    def backward(self, trunk: Pass, done: _QuantilePass, grad: Tensor) -> None:
        """Set the gradients of the weights, given that of the quantiles ``[A, B, N, n]``."""
        states, embedded = trunk.out, done.embedding.out
        back = self._head.backward(done.head, grad.flatten(1, 2))
        assert back is not None
        shape = (*grad.shape[:3], states.shape[2])  # [A, B, N, H]
        back = back.view(shape)
        grad_states = (back * embedded.view(shape)).sum(2)
        self._embedding.backward(done.embedding, back.mul_(states.unsqueeze(2)).flatten(1, 2))
        self.trunk.backward(trunk, grad_states)


class IQN(ValueLearner):
    """The learning half of IQN for A agents."""

    def __init__(
        self, config: IQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        self.config = config
        plan = config._plan(observation_space, action_space)
        super().__init__(config, observation_space, action_space, plan, seeds, device, streams=True)
        mean_cosines = device.to_device(config._mean_cosines())
        self._online = _Quantiles(plan, mean_cosines, self._weights, self._grad)
        self._target = _Quantiles(plan, mean_cosines, self._targets)
        self._multiples = device.to_device(config._multiples().astype(np.float32))

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, rows = self.config, batch.reward.shape[1]
        data = self._fetched(batch)
        taus, cosines, next_cosines = self._draw(rows)

        # The order matters: passes of a network with equal numbers of rows share buffers, and the backward pass needs
        # the content of the last one.
        if config.double:
            here, ahead = self._online.trunk.forward_both(data.inputs)
        else:
            here, ahead = self._online.trunk.forward(data.x, learn=True), None
        next_states = self._target.trunk.forward(data.next_x).out
        best = data.best(self._target.means(next_states) if ahead is None else self._online.means(ahead))
        next_quantiles = self._target.forward(next_states, next_cosines).out
        goal = self._of(next_quantiles, best.squeeze(2)).mul_(data.discount.unsqueeze(2)).add_(data.reward.unsqueeze(2))
        done = self._online.forward(here.out, cosines)
        chosen = self._of(done.out, data.action)  # [A, B, N]

        scale = 1.0 / rows if data.weight is None else (data.weight / rows).unsqueeze(2)
        slope, losses = quantile_loss(chosen, goal, taus, config.kappa)
        self._online.backward(here, done, self._output_grad(slope.mul_(scale), data.action, done.out.shape[2]))
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            loss = (losses() * scale).sum((1, 2)) if isinstance(scale, Tensor) else losses().sum((1, 2)) * scale
            self._measure({"loss": loss, "mean_q": chosen.mean((1, 2)), "grad_norm": norms})
        self._adam(config._rates(steps, self.counters[:, 0].tolist()), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        if not config.prioritised:
            return Update(self._metrics)
        return Update(self._metrics, self._device.to_host((goal.mean(2) - chosen.mean(2)).abs_()))

    def _draw(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw taus ``[A, B, N]``; return them, their cosines ``[A, B N, C]`` and those of the next states.

        The cosines of the taus for the next states are ``[A, B N', C]``.
        """
        config = self.config
        drawn = np.empty((len(self._streams), rows * (config.taus + config.target_taus)), np.float32)
        for row, stream in zip(drawn, self._streams, strict=True):
            stream.random(out=row, dtype=np.float32)
        taus = self._device.to_device(drawn)
        cosines = (taus.unsqueeze(2) * self._multiples).cos_()
        split = rows * config.taus
        return taus[:, :split].view(-1, rows, config.taus), cosines[:, :split], cosines[:, split:]

    @staticmethod
    def _of(quantiles: Tensor, action: Tensor) -> Tensor:
        """Select from quantiles ``[A, B N, n]`` those of one action for each row: ``[A, B, N]``."""
        agents, batch = action.shape
        each = quantiles.view(agents, batch, -1, quantiles.shape[2])
        return each.gather(3, action.view(agents, batch, 1, 1).expand(-1, -1, each.shape[2], 1)).squeeze(3)

    @staticmethod
    def _output_grad(slope: Tensor, action: Tensor, outputs: int) -> Tensor:
        """Return the gradient of the quantiles ``[A, B, N, n]``, given that of the chosen ones ``[A, B, N]``."""
        agents, rows, taus = slope.shape
        index = action.view(agents, rows, 1, 1).expand(-1, -1, taus, 1)
        return slope.new_zeros((agents, rows, taus, outputs)).scatter_(3, index, slope.unsqueeze(3))


def quantile_loss(chosen: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Any]:
    """Quantile Huber loss of ``chosen`` ``[A, B, N]`` against ``goal`` ``[A, B, N']``, summed over N, averaged over N'.

    Returns its gradient ``[A, B, N]`` with respect to ``chosen``, and a function that returns its terms ``[A, B, N]``.
    """
    error = goal.unsqueeze(2) - chosen.unsqueeze(3)  # [A, B, N, N']
    share = (taus.unsqueeze(3) - (error < 0).float()).abs_()
    slope = (error.clamp(-kappa, kappa).mul_(share)).mean(3).mul_(-1.0 / kappa)

    def losses() -> Tensor:
        size = error.abs()
        huber = torch.where(size < kappa, 0.5 * size * size, kappa * (size - 0.5 * kappa))
        return (share * huber).mean(3) / kappa

    return slope, losses

"""The learning half of IQN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from support.frozen_algorithms._blocks import Block
from support.frozen_algorithms._networks import Network
from support.frozen_algorithms._value_learner import ValueLearner
from support.frozen_algorithms.iqn import IQNConfig
from torch import Tensor

from motet.algorithm import Batch, Space, Update

__all__ = ["IQN", "quantile_loss"]


class _Quantiles:
    """The networks of A agents, which map a state and tau to the tau-quantile of each action's return."""

    def __init__(
        self, blocks: tuple[Block, Block, Block], mean_cosines: Tensor, flat: Tensor, grad: Tensor | None = None
    ) -> None:
        self.trunk, self.embedding, self.head = (Network(block, flat, grad) for block in blocks)
        self._linear = len(blocks[2].sizes) == 2
        self._mean_cosines = mean_cosines.expand(flat.shape[0], -1, -1)

    def means(self, states: Tensor) -> Tensor:
        """Return action values ``[A, B, n]``: the means over the fixed taus."""
        embedded = self.embedding.forward(self._mean_cosines)[-1]  # [A, K, H]
        if self._linear:  # the mean of linear functions is the function of the mean
            return self.head.forward(states * embedded.mean(1, keepdim=True))[-1]
        product = states.unsqueeze(2) * embedded.unsqueeze(1)  # [A, B, K, H]
        out = self.head.forward(product.flatten(1, 2))[-1]
        return out.view(*product.shape[:3], -1).mean(2)

    def forward(self, states: Tensor, cosines: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return tau embeddings and product, both ``[A, B N, H]``, and head layers, for cosines ``[A, B N, C]``."""
        agents, batch, width = states.shape
        embedded = self.embedding.forward(cosines)[-1]
        product = states.unsqueeze(2) * embedded.view(agents, batch, -1, width)
        flat = product.flatten(1, 2)
        return embedded, flat, self.head.forward(flat)


class IQN(ValueLearner):
    """The learning half of IQN for A agents."""

    def __init__(
        self, config: IQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        blocks = config._blocks(observation_space, action_space)
        super().__init__(config, observation_space, action_space, blocks, seeds, device, streams=True)
        mean_cosines = torch.from_numpy(config._mean_cosines()).to(self._device)
        self._online = _Quantiles(blocks, mean_cosines, self._weights, self._grad)
        self._target = _Quantiles(blocks, mean_cosines, self._targets)
        self._multiples = torch.from_numpy(config._multiples().astype(np.float32)).to(self._device)

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, rows = self.config, batch.reward.shape[1]
        data = self._fetched(batch)
        taus, cosines, next_cosines = self._draw(rows)

        # The order matters: passes of a network with equal numbers of rows share buffers, and the backward pass needs
        # the content of the last one.
        layers = self._online.trunk.forward(data.inputs if config.double else data.x)
        here = self._online.trunk.cut(layers, 0, rows)
        next_states = self._target.trunk.forward(data.next_x)[-1]
        best = data.best(self._online.means(layers[-1][:, rows:]) if config.double else self._target.means(next_states))
        next_quantiles = self._target.forward(next_states, next_cosines)[2][-1]
        goal = self._of(next_quantiles, best.squeeze(2)).mul_(data.discount.unsqueeze(2)).add_(data.reward.unsqueeze(2))
        embedded, product, head = self._online.forward(here[-1], cosines)
        chosen = self._of(head[-1], data.action)  # [A, B, N]

        scale = 1.0 / rows if data.weight is None else (data.weight / rows).unsqueeze(2)
        slope, losses = quantile_loss(chosen, goal, taus, config.kappa)
        self._backward(data.x, cosines, here, embedded, product, head, slope.mul_(scale), data.action)
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            loss = (losses() * scale).sum((1, 2)) if isinstance(scale, Tensor) else losses().sum((1, 2)) * scale
            self._measure(loss, chosen.mean((1, 2)), norms)
        self._adam(config._rates(steps), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        if not config.prioritised:
            return Update(self._metrics)
        return Update(self._metrics, (goal.mean(2) - chosen.mean(2)).abs_().cpu().numpy())

    def _draw(self, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw taus ``[A, B, N]``; return them, their cosines ``[A, B N, C]`` and those of the next states.

        The cosines of the taus for the next states are ``[A, B N', C]``.
        """
        config = self.config
        drawn = np.empty((len(self._streams), rows * (config.taus + config.target_taus)), np.float32)
        for row, stream in zip(drawn, self._streams, strict=True):
            stream.random(out=row, dtype=np.float32)
        taus = torch.from_numpy(drawn).to(self._device)
        cosines = (taus.unsqueeze(2) * self._multiples).cos_()
        split = rows * config.taus
        return taus[:, :split].view(-1, rows, config.taus), cosines[:, :split], cosines[:, split:]

    @staticmethod
    def _of(quantiles: Tensor, action: Tensor) -> Tensor:
        """Select from quantiles ``[A, B N, n]`` those of one action for each row: ``[A, B, N]``."""
        agents, batch = action.shape
        each = quantiles.view(agents, batch, -1, quantiles.shape[2])
        return each.gather(3, action.view(agents, batch, 1, 1).expand(-1, -1, each.shape[2], 1)).squeeze(3)

    def _backward(
        self,
        x: Tensor,
        cosines: Tensor,
        layers: list[Tensor],
        embedded: Tensor,
        product: Tensor,
        head: list[Tensor],
        slope: Tensor,
        action: Tensor,
    ) -> None:
        """Set the gradients of the weights, given the gradients of the chosen quantiles ``[A, B, N]``."""
        agents, rows, taus = slope.shape
        states, width = layers[-1], layers[-1].shape[2]
        grad = slope.new_zeros((agents, rows, taus, head[-1].shape[2]))
        grad.scatter_(3, action.view(agents, rows, 1, 1).expand(-1, -1, taus, 1), slope.unsqueeze(3))
        back = self._online.head.backward(product, head, grad.flatten(1, 2), inputs=True).view(
            agents, rows, taus, width
        )
        grad_states = (back * embedded.view(agents, rows, taus, width)).sum(2)
        grad_embedded = back.mul_(states.unsqueeze(2)).flatten(1, 2)
        self._online.embedding.backward(cosines, [embedded], grad_embedded)
        self._online.trunk.backward(x, layers, grad_states)


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

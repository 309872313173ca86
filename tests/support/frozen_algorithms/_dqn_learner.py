"""The learning half of DQN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from support.frozen_algorithms._networks import Network
from support.frozen_algorithms._value_learner import ValueLearner
from support.frozen_algorithms.dqn import DQNConfig
from torch import Tensor

from motet.algorithm import Batch, Space, Update

__all__ = ["DQN"]


class DQN(ValueLearner):
    """The learning half of DQN for A agents."""

    def __init__(
        self, config: DQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        block = config._block(observation_space, action_space)
        super().__init__(config, observation_space, action_space, [block], seeds, device)
        self._online = Network(block, self._weights, self._grad)
        self._target = Network(block, self._targets)

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, rows = self.config, batch.reward.shape[1]
        data = self._fetched(batch)

        # Double Q-learning needs the online network for both observations: one pass computes them together.
        layers = self._online.forward(data.inputs if config.double else data.x)
        here = self._online.cut(layers, 0, rows)
        next_values = self._combine(self._target.forward(data.next_x)[-1])  # [A, B, n]
        ranks = self._combine(self._online.cut(layers, rows, 2 * rows)[-1]) if config.double else next_values
        best = data.best(ranks)
        action = data.action.unsqueeze(2)
        goal = torch.addcmul(data.reward, data.discount, next_values.gather(2, best).squeeze(2))
        chosen = self._combine(here[-1]).gather(2, action).squeeze(2)
        error = goal.sub_(chosen)  # [A, B]

        slope = error.clamp(-1.0, 1.0).mul_(-1.0 / rows)
        if data.weight is not None:
            slope.mul_(data.weight)
        grad = self._output_grad(slope.unsqueeze(2), action, layers[-1].shape[2])
        self._online.backward(data.x, here, grad)
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            self._measure(self._loss(error, data.weight), chosen.mean(1), norms)
        self._adam(config._rates(steps), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        return Update(self._metrics, error.abs_().cpu().numpy() if config.prioritised else None)

    def _combine(self, out: Tensor) -> Tensor:
        """Return action values from the outputs of the last layer."""
        if not self.config.dueling:
            return out
        value, advantage = out[:, :, :1], out[:, :, 1:]
        return value + advantage - advantage.mean(2, keepdim=True)

    def _output_grad(self, slope: Tensor, action: Tensor, outputs: int) -> Tensor:
        """Return the gradient of the last layer's outputs, given the gradient of the chosen actions' values."""
        grad = slope.new_zeros((*slope.shape[:2], outputs))
        if not self.config.dueling:
            return grad.scatter_(2, action, slope)
        grad.scatter_(2, action + 1, slope)
        grad[:, :, 1:].sub_(slope / (outputs - 1))
        grad[:, :, :1] = slope
        return grad

    @staticmethod
    def _loss(error: Tensor, weight: Tensor | None) -> Tensor:
        size = error.abs()
        loss = torch.where(size < 1, 0.5 * size * size, size - 0.5)
        return (loss if weight is None else loss * weight).mean(1)

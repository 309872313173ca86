"""The learning half of DQN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.algorithms._device import Device
from motet.algorithms._value_learner import ValueLearner
from motet.algorithms.dqn import DQNConfig

__all__ = ["DQN"]


class DQN(ValueLearner):
    """The learning half of DQN for A agents."""

    def __init__(
        self, config: DQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        self.config = config
        plan = config._plan(observation_space, action_space)
        super().__init__(config, observation_space, action_space, plan, seeds, device, streams=plan.draws)
        part = slice(0, plan.size)
        self._online = plan.bind(self._weights[:, part], self._grad[:, part], seed=self._seed)
        self._target = plan.bind(self._targets[:, part])

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, data = self.config, self._fetched(batch)

        # Double Q-learning needs the online network for both observations.
        here, ahead = data.look(self._online, ahead=config.double)
        next_values = self._combine(data.look_ahead(self._target))  # [A, R, n]
        best = data.best(next_values if ahead is None else self._combine(ahead))
        action = data.action.unsqueeze(2)
        goal = torch.addcmul(data.reward, data.discount, next_values.gather(2, best).squeeze(2))
        chosen = self._combine(data.learned(here.out)).gather(2, action).squeeze(2)
        error = goal.sub_(chosen)  # [A, R]

        slope = error.clamp(-1.0, 1.0).mul_(-data.share)
        if data.weight is not None:
            slope.mul_(data.weight)
        grad = self._output_grad(slope.unsqueeze(2), action, here.out.shape[2])
        self._online.backward(here, data.spread(grad))
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            loss = data.mean(self._losses(error, data.weight))
            self._measure({"loss": loss, "mean_q": data.mean(chosen), "grad_norm": norms})
        self._adam(config._rates(steps, self.counters[:, 0].tolist()), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        if not config.prioritised:
            return Update(self._metrics)
        return Update(self._metrics, self._device.to_host(data.priorities(error.abs_())))

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
    def _losses(error: Tensor, weight: Tensor | None) -> Tensor:
        size = error.abs()
        loss = torch.where(size < 1, 0.5 * size * size, size - 0.5)
        return loss if weight is None else loss * weight

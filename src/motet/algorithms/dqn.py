"""DQN: action values by a network, a slowly moving copy of it as the target. Double, dueling, n-step, prioritised.

In: stacked batches ``[A, batch, ...]``. Out: weights (published and read by :class:`DQNBehaviour` in actors) and, for a
prioritised replay, the absolute errors. The loss is Huber's, with its bend at 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Sizes, Space, Update
from motet.algorithms._flat import check_seeds, padded
from motet.algorithms._networks import Block, Encoder, Network
from motet.algorithms._value import EpsilonGreedy, ValueConfig, ValueLearner, n_actions

__all__ = ["DQN", "DQNBehaviour", "DQNConfig"]


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """Settings of DQN.

    >>> from gymnasium.spaces import Box, Discrete
    >>> config = DQNConfig(hidden=(32,), batch_size=8, min_rows=8)
    >>> dqn = config.build(Box(0, 1, (5,)), Discrete(3), agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(Box(0, 1, (5,)), Discrete(3), config.replay(Box(0, 1, (5,)), Discrete(3)), agents=2)
    >>> sorted(dqn.update(batch, steps=[100, 100]).metrics)
    ['grad_norm', 'loss', 'mean_q']
    >>> behaviour = config.behaviour(Box(0, 1, (5,)), Discrete(3))
    >>> behaviour.load(dqn.weights()[0], dqn.header(step=100, agent=0))
    >>> actions, _ = behaviour.act(np.zeros((4, 5), "float32"), explore=False)
    >>> actions.shape, actions.dtype
    ((4,), dtype('int64'))
    """

    dueling: bool = False
    """The last layer gives one value of the state and an advantage for each action."""

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        n = padded(self._block(observation_space, action_space).end)
        return Sizes(weights=n, state=4 * n, counters=1, random=0)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> DQN:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        return DQN(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> DQNBehaviour:
        """The acting half."""
        return DQNBehaviour(self, observation_space, action_space)

    def _block(self, observation_space: Space, action_space: Space) -> Block:
        inputs = Encoder(observation_space, self.n_frames).size
        return Block((inputs, *self.hidden, n_actions(action_space) + self.dueling))


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

        # One pass through the online network does for both observations where the next one is needed too.
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
        """Action values from the last layer."""
        if not self.config.dueling:
            return out
        value, advantage = out[:, :, :1], out[:, :, 1:]
        return value + advantage - advantage.mean(2, keepdim=True)

    def _output_grad(self, slope: Tensor, action: Tensor, outputs: int) -> Tensor:
        """The gradient of the last layer from that of the chosen actions' values."""
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


class DQNBehaviour(EpsilonGreedy):
    """The acting half of DQN: the native forward on the published row, then epsilon-greedy."""

    def __init__(self, config: DQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        self._net = config._block(observation_space, action_space).native(self._encoder.scale)
        self._dueling = config.dueling

    def _values(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        values = np.empty((len(rows), self._n + self._dueling), np.float32)
        self._net.forward(weights, rows, values)
        if not self._dueling:
            return values
        advantage = values[:, 1:]
        combined: npt.NDArray[np.float32] = values[:, :1] + advantage - advantage.mean(1, keepdims=True)
        return combined

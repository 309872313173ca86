"""DQN with a target network; double Q-learning, dueling network, n-step returns and prioritised replay are options.

The learner takes stacked batches ``[A, batch, ...]``. It publishes weights, which :class:`DQNBehaviour` reads in
actors, and returns absolute TD errors as priorities for a prioritised replay. The loss is the Huber loss with
threshold 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from support.frozen_algorithms._blocks import Block, padded
from support.frozen_algorithms._encoder import Encoder
from support.frozen_algorithms._settings import check_seeds
from support.frozen_algorithms._value import EpsilonGreedy, ValueConfig, n_actions

from motet.algorithm import Sizes, Space

if TYPE_CHECKING:
    from support.frozen_algorithms._dqn_learner import DQN

__all__ = ["DQNBehaviour", "DQNConfig"]


@dataclass(frozen=True)
class DQNConfig(ValueConfig):
    """Settings of DQN.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from motet.algorithm import stacked_batch
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
    """Dueling network: the last layer outputs one state value and an advantage for each action."""

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's part."""
        n = padded(self._block(observation_space, action_space).end)
        return Sizes(weights=n, state=4 * n, counters=1, random=0)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> DQN:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from support.frozen_algorithms._dqn_learner import DQN

        return DQN(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> DQNBehaviour:
        """Make the acting half."""
        return DQNBehaviour(self, observation_space, action_space)

    def _block(self, observation_space: Space, action_space: Space) -> Block:
        inputs = Encoder(observation_space, self.n_frames).size
        return Block((inputs, *self.hidden, n_actions(action_space) + self.dueling))


class DQNBehaviour(EpsilonGreedy):
    """The acting half of DQN: the native forward pass on the published row, then an epsilon-greedy choice."""

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

"""DQN with a target network; double Q-learning, dueling network, n-step returns and prioritised replay are options.

The learner takes stacked batches ``[A, batch, ...]``. It publishes weights, which :class:`DQNBehaviour` reads in
actors, and returns absolute TD errors as priorities for a prioritised replay. The loss is the Huber loss with
threshold 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Sizes, Space
from motet.algorithms._blocks import DensePlan
from motet.algorithms._encoder import Encoder
from motet.algorithms._greedy import Greedy
from motet.algorithms._own import Seen, check_plan, refuse_memory
from motet.algorithms._plans import NetworkPlan, chained, padded
from motet.algorithms._settings import check_seeds
from motet.algorithms._streams import STREAM_BYTES
from motet.algorithms._value import ValueBehaviour, ValueConfig, n_actions
from motet.foreign_names import suggesting

if TYPE_CHECKING:
    from motet.algorithms._dqn_learner import DQN

__all__ = ["DQNBehaviour", "DQNConfig"]


@suggesting("algorithm")
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
        """Return the sizes of one agent's weights, state, counters and random stream."""
        plan = self._plan(observation_space, action_space)
        check_plan(plan, remembers=self.network is None)
        n = padded(plan.size)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES if plan.draws else 0)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> DQN:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._dqn_learner import DQN

        return DQN(self, observation_space, action_space, seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> DQNBehaviour:
        """Make the acting half."""
        return DQNBehaviour(self, observation_space, action_space)

    def _state_size(self, observation_space: Space, action_space: Space) -> int:
        return self._plan(observation_space, action_space).state_size

    def greedy(self, observation_space: Space, action_space: Space, weights: npt.NDArray[np.float32]) -> Greedy:
        """Return the greedy policy of published weights, for export."""
        plan = self._plan(observation_space, action_space)
        return self._best(observation_space, action_space, [(plan, weights[: plan.size])], self.dueling)

    def _plan(self, observation_space: Space, action_space: Space) -> NetworkPlan:
        seen, outputs = Seen(observation_space, self.n_frames), n_actions(action_space, "DQN") + self.dueling
        if self.network is not None:
            refuse_memory(self, "network")
            return seen.network(self.network, "network", outputs)
        first = seen.remembered(self, None if self.encoder is None else seen.encoder(self.encoder))
        return chained(first, DensePlan((seen.size if first is None else first.outputs, *self.hidden, outputs)))


class DQNBehaviour(ValueBehaviour):
    """The acting half of DQN: the forward pass on the published row, then an epsilon-greedy choice."""

    def __init__(self, config: DQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        plan = config._plan(observation_space, action_space)
        self._net, self._size, self._explores = plan.acting(self._encoder.scale), plan.size, plan.explores
        self._dueling, self.state_size = config.dueling, plan.state_size

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        super().load(weights, header)
        self._net.load(weights[: self._size])

    def _values(self, rows: npt.NDArray[Any], seed: int | None) -> npt.NDArray[np.float32]:
        values = self._net.forward(rows, seed)
        return self._combined(values) if self._dueling else values

    def _values_from(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        out, new = self._net.step(rows, state, seed)
        return self._combined(out) if self._dueling else out, new

    def _combined(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return action values, given the outputs of a dueling network."""
        advantage = values[:, 1:]
        combined: npt.NDArray[np.float32] = values[:, :1] + advantage - advantage.mean(1, keepdims=True)
        return combined

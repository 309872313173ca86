"""IQN: implicit quantile networks. The network maps a state and a share tau to that quantile of each action's return.

Trunk (hidden layers) of the state times embedding (one layer on cosines) of tau, then the head. In: stacked batches.
Out: weights, and absolute errors of the means for a prioritised replay. Taus of an update come from each agent's own
random stream. Acting, and choosing the next action of a target, use the mean over fixed taus, the middles of equal
slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt

from motet.algorithm import Sizes, Space
from motet.algorithms._blocks import Block, padded
from motet.algorithms._encoder import Encoder
from motet.algorithms._settings import check_seeds
from motet.algorithms._streams import STREAM_BYTES
from motet.algorithms._value import EpsilonGreedy, ValueConfig, n_actions

if TYPE_CHECKING:
    from motet.algorithms._iqn_learner import IQN

__all__ = ["IQNBehaviour", "IQNConfig"]


@dataclass(frozen=True)
class IQNConfig(ValueConfig):
    """Settings of IQN.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from motet.algorithm import stacked_batch
    >>> config = IQNConfig(hidden=(32,), batch_size=8, min_rows=8)
    >>> iqn = config.build(Box(0, 1, (5,)), Discrete(3), agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(Box(0, 1, (5,)), Discrete(3), config.replay(Box(0, 1, (5,)), Discrete(3)), agents=2)
    >>> sorted(iqn.update(batch, steps=[100, 100]).metrics)
    ['grad_norm', 'loss', 'mean_q']
    """

    head: tuple[Annotated[int, Ge(1)], ...] = ()
    """Widths of the layers behind the product of state and tau. Without any, acting costs as little as in DQN."""
    taus: Annotated[int, Ge(1)] = 8
    """Quantiles of the present state in an update."""
    target_taus: Annotated[int, Ge(1)] = 8
    """Quantiles of the next state in an update."""
    mean_taus: Annotated[int, Ge(1)] = 32
    """Fixed quantiles whose mean ranks the actions."""
    cosines: Annotated[int, Ge(1)] = 64
    """Cosines that embed tau."""
    kappa: Annotated[float, Gt(0)] = 1.0
    """Where the quantile Huber loss bends."""

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        n = padded(self._blocks(observation_space, action_space)[-1].end)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> IQN:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        from motet.algorithms._iqn_learner import IQN

        return IQN(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> IQNBehaviour:
        """The acting half."""
        return IQNBehaviour(self, observation_space, action_space)

    def _blocks(self, observation_space: Space, action_space: Space) -> tuple[Block, Block, Block]:
        """Trunk, embedding, head."""
        inputs, width = Encoder(observation_space, self.n_frames).size, self.hidden[-1]
        trunk = Block((inputs, *self.hidden), activate_last=True)
        embedding = Block((self.cosines, width), trunk.end, activate_last=True)
        return trunk, embedding, Block((width, *self.head, n_actions(action_space)), embedding.end)

    def _mean_cosines(self) -> npt.NDArray[np.float32]:
        """``[mean_taus, cosines]`` of the fixed taus."""
        taus = (np.arange(self.mean_taus) + 0.5) / self.mean_taus
        cosines: npt.NDArray[np.float32] = np.cos(taus[:, None] * self._multiples()).astype(np.float32)
        return cosines

    def _multiples(self) -> npt.NDArray[Any]:
        return np.pi * np.arange(self.cosines)


class IQNBehaviour(EpsilonGreedy):
    """The acting half of IQN. What depends on the weights alone is computed once per version, when first needed."""

    def __init__(self, config: IQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        trunk, embedding, head = config._blocks(observation_space, action_space)
        self._trunk, self._head, self._head_block = trunk.native(self._encoder.scale), head.native(), head
        self._embedding, self._cosines = embedding.native(), config._mean_cosines()
        self._embedded = np.zeros((config.mean_taus, config.hidden[-1]), np.float32)
        self._linear, self._stale = not config.head, True
        # Without layers behind the product the mean over taus is a network of its own: trunk, then one linear layer.
        folded = Block((*trunk.sizes, self._n))
        self._trunk_end, self._folded = trunk.end, np.zeros(folded.end, np.float32)
        self._net = folded.native(self._encoder.scale)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version."""
        super().load(weights, header)
        self._stale = True

    def _values(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if self._stale:
            self._prepare(weights)
        if self._linear:
            values = np.empty((len(rows), self._n), np.float32)
            self._net.forward(self._folded, rows, values)
            return values
        states = np.empty((len(rows), self._embedded.shape[1]), np.float32)
        self._trunk.forward(weights, rows, states)
        product = states[:, None] * self._embedded
        values = np.empty((*product.shape[:2], self._n), np.float32)
        self._head.forward(weights, product, values)
        mean: npt.NDArray[np.float32] = values.mean(1)
        return mean

    def _prepare(self, weights: npt.NDArray[np.float32]) -> None:
        self._embedding.forward(weights, self._cosines, self._embedded)
        self._stale = False
        if self._linear:
            (_, _, at, bias), end = next(self._head_block.layers), self._trunk_end
            size = bias - at
            self._folded[:end] = weights[:end]
            head = weights[at:bias].reshape(self._n, -1) * self._embedded.mean(0)
            self._folded[end : end + size] = head.ravel()
            self._folded[end + size :] = weights[bias : bias + self._n]

"""IQN (implicit quantile networks): the network maps a state and tau to the tau-quantile of each action's return.

The trunk (hidden layers) encodes the state, the embedding (one layer on cosine features) encodes tau, and the head
takes the product of both. The learner takes stacked batches. It publishes weights, and returns absolute errors of the
mean returns as priorities for a prioritised replay. The taus of an update are drawn from each agent's random stream.
Acting, and the choice of the next action in a target, use the mean over fixed taus: the midpoints of ``mean_taus``
equal intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt
from support.frozen_algorithms._blocks import Block, padded
from support.frozen_algorithms._encoder import Encoder
from support.frozen_algorithms._settings import check_seeds
from support.frozen_algorithms._streams import STREAM_BYTES
from support.frozen_algorithms._value import EpsilonGreedy, ValueConfig, n_actions

from motet.algorithm import Sizes, Space

if TYPE_CHECKING:
    from support.frozen_algorithms._iqn_learner import IQN

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
    """Widths of hidden layers after the product of state features and tau embedding. With none, acting is as cheap as
    in DQN."""
    taus: Annotated[int, Ge(1)] = 8
    """Number of quantiles (taus) sampled for the current state in an update: N in the IQN paper."""
    target_taus: Annotated[int, Ge(1)] = 8
    """Number of quantiles (taus) sampled for the next state in an update: N' in the IQN paper."""
    mean_taus: Annotated[int, Ge(1)] = 32
    """Number of fixed quantiles (taus) whose mean is the action value: K in the IQN paper."""
    cosines: Annotated[int, Ge(1)] = 64
    """Number of cosine features in the embedding of tau."""
    kappa: Annotated[float, Gt(0)] = 1.0
    """Threshold of the quantile Huber loss: quadratic below it, linear above."""

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's part."""
        n = padded(self._blocks(observation_space, action_space)[-1].end)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> IQN:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from support.frozen_algorithms._iqn_learner import IQN

        return IQN(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> IQNBehaviour:
        """Make the acting half."""
        return IQNBehaviour(self, observation_space, action_space)

    def _blocks(self, observation_space: Space, action_space: Space) -> tuple[Block, Block, Block]:
        """Return the blocks of trunk, embedding and head."""
        inputs, width = Encoder(observation_space, self.n_frames).size, self.hidden[-1]
        trunk = Block((inputs, *self.hidden), activate_last=True)
        embedding = Block((self.cosines, width), trunk.end, activate_last=True)
        return trunk, embedding, Block((width, *self.head, n_actions(action_space)), embedding.end)

    def _mean_cosines(self) -> npt.NDArray[np.float32]:
        """Return the cosine features ``[mean_taus, cosines]`` of the fixed taus."""
        taus = (np.arange(self.mean_taus) + 0.5) / self.mean_taus
        cosines: npt.NDArray[np.float32] = np.cos(taus[:, None] * self._multiples()).astype(np.float32)
        return cosines

    def _multiples(self) -> npt.NDArray[Any]:
        return np.pi * np.arange(self.cosines)


class IQNBehaviour(EpsilonGreedy):
    """The acting half of IQN. It computes what depends on the weights alone once per version, at the first use."""

    def __init__(self, config: IQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        trunk, embedding, head = config._blocks(observation_space, action_space)
        self._trunk, self._head, self._head_block = trunk.native(self._encoder.scale), head.native(), head
        self._embedding, self._cosines = embedding.native(), config._mean_cosines()
        self._embedded = np.zeros((config.mean_taus, config.hidden[-1]), np.float32)
        self._linear, self._stale = not config.head, True
        # Without hidden layers in the head, the mean over taus equals a network of the trunk and one linear layer.
        folded = Block((*trunk.sizes, self._n))
        self._trunk_end, self._folded = trunk.end, np.zeros(folded.end, np.float32)
        self._net = folded.native(self._encoder.scale)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version."""
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

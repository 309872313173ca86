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
    from torch import nn

    from motet.algorithms._iqn_learner import IQN

__all__ = ["IQNBehaviour", "IQNConfig"]


@suggesting("algorithm")
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
    """Widths of hidden layers after the product of state features and tau embedding. Without such layers, acting is as
    cheap as in DQN."""
    taus: Annotated[int, Ge(1)] = 8
    """Number of quantiles (taus) sampled for the current state in an update: N in the IQN paper."""
    target_taus: Annotated[int, Ge(1)] = 8
    """Number of quantiles (taus) sampled for the next state in an update: N' in the IQN paper."""
    mean_taus: Annotated[int, Ge(1)] = 32
    """Number of fixed quantiles (taus) whose mean is the action value: K in the IQN paper."""
    cosines: Annotated[int, Ge(1)] = 64
    """Number of cosine features in the embedding of tau."""
    kappa: Annotated[float, Gt(0)] = 1.0
    """Threshold of the quantile Huber loss: the loss is quadratic for errors below it and linear for errors above
    it."""

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        plan = self._plan(observation_space, action_space)
        check_plan(plan.trunk, remembers=self.network is None)
        n = padded(plan.size)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> IQN:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._iqn_learner import IQN

        return IQN(self, observation_space, action_space, seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> IQNBehaviour:
        """Make the acting half."""
        return IQNBehaviour(self, observation_space, action_space)

    def _state_size(self, observation_space: Space, action_space: Space) -> int:
        return self._plan(observation_space, action_space).trunk.state_size

    def greedy(self, observation_space: Space, action_space: Space, weights: npt.NDArray[np.float32]) -> Greedy:
        """Return the greedy policy of published weights, for export."""
        plan = self._plan(observation_space, action_space)
        return self._best(observation_space, action_space, [(_Mean(self, plan), weights[: plan.size])])

    def _plan(self, observation_space: Space, action_space: Space) -> IQNPlan:
        seen, n, first = Seen(observation_space, self.n_frames), n_actions(action_space, "IQN"), None
        if self.network is not None:
            refuse_memory(self, "network")
            trunk: NetworkPlan = seen.quantiles(self.network, self.hidden[-1], n)
            if getattr(trunk, "second", ""):
                return IQNPlan(trunk, None, None)
        else:
            first = seen.remembered(self, None if self.encoder is None else seen.encoder(self.encoder))
            inputs = seen.size if first is None else first.outputs
            trunk = chained(first, DensePlan((inputs, *self.hidden), activate_last=True))
        embedding = DensePlan((self.cosines, trunk.outputs), activate_last=True)
        return IQNPlan(trunk, embedding, DensePlan((trunk.outputs, *self.head, n)))

    def _fixed_taus(self) -> npt.NDArray[np.float64]:
        """Return the taus whose mean quantile is an action's value."""
        return (np.arange(self.mean_taus) + 0.5) / self.mean_taus

    def _mean_cosines(self) -> npt.NDArray[np.float32]:
        """Return the cosine features ``[mean_taus, cosines]`` of the fixed taus."""
        cosines: npt.NDArray[np.float32] = np.cos(self._fixed_taus()[:, None] * self._multiples()).astype(np.float32)
        return cosines

    def _multiples(self) -> npt.NDArray[Any]:
        return np.pi * np.arange(self.cosines)


@dataclass(frozen=True)
class IQNPlan:
    """The parts of the network. They follow each other in an agent's row."""

    trunk: NetworkPlan
    """Maps an observation to the features of a state. If there are no other parts, it maps an observation and taus to
    the quantiles of each action's return."""
    embedding: DensePlan | None
    """Maps the cosines of a tau to features, as many as the trunk has."""
    head: DensePlan | None
    """Maps the product of state features and tau features to the tau-quantile of each action's return."""

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return self.parts[2].stop

    @property
    def parts(self) -> tuple[slice[int, int, None], slice[int, int, None], slice[int, int, None]]:
        """Slice of each part in a row; empty for a missing part."""
        first = self.trunk.size
        second = first + (0 if self.embedding is None else self.embedding.size)
        end = second + (0 if self.head is None else self.head.size)
        return slice(0, first), slice(first, second), slice(second, end)

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill an agent's row of weights with initial values."""
        for plan, part in zip((self.trunk, self.embedding, self.head), self.parts, strict=True):
            if plan is not None:
                plan.initialise(row[part], rng)


class _Mean:
    """The mean over fixed taus as plain layers without a tau input: the first layer of the head computes all taus at
    once."""

    def __init__(self, config: IQNConfig, plan: IQNPlan) -> None:
        self._config, self._plan = config, plan

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        from torch import nn

        from motet.algorithms._greedy_module import OnRows, dense_layers
        from motet.algorithms._module_plan import ModulePlan

        plan = self._plan
        trunk, embedding, head = (row[part] for part in plan.parts)
        if plan.embedding is None or plan.head is None:
            assert isinstance(plan.trunk, ModulePlan)
            return [OnRows(plan.trunk, plan.trunk.module(trunk).eval(), self._config._fixed_taus().tolist())]
        acting = plan.embedding.acting()
        acting.load(embedding)
        embedded = acting.forward(self._config._mean_cosines()).astype(np.float64)  # [taus, features]
        given = [
            (head[w:b].reshape(n_out, n_in).astype(np.float64), head[b : b + n_out])
            for n_in, n_out, w, b in plan.head.layers
        ]
        (weight, bias), *rest = given
        if not rest:  # linear: the value at the mean is the mean of the values
            return [*plan.trunk.layers_of(trunk), *dense_layers([(weight * embedded.mean(0), bias)], "relu", False)]
        taus, width = len(embedded), len(weight)
        wide = (weight * embedded[:, None]).reshape(taus * width, -1), np.tile(bias, taus)
        last, last_bias = rest[-1]
        mean = np.tile(last / taus, taus), last_bias
        return [
            *plan.trunk.layers_of(trunk), *dense_layers([wide], "relu", True), nn.Unflatten(1, (taus, width)),
            *dense_layers(rest[:-1], "relu", True), nn.Flatten(), *dense_layers([mean], "relu", False),
        ]  # fmt: skip


class IQNBehaviour(ValueBehaviour):
    """The acting half of IQN. Values that depend only on the weights are computed once per version, at the first
    use."""

    def __init__(self, config: IQNConfig, observation_space: Space, action_space: Space) -> None:
        super().__init__(Encoder(observation_space, config.n_frames), action_space)
        self._plan = plan = config._plan(observation_space, action_space)
        self._explores, self._stale = plan.trunk.explores, True
        self.state_size = plan.trunk.state_size
        self._taus = config._fixed_taus().astype(np.float32)
        self._cosines = config._mean_cosines()
        # Without hidden layers in the head, the mean over taus equals a network of the trunk and one linear layer.
        self._folded: DensePlan | None = None
        if not config.head and isinstance(plan.trunk, DensePlan):
            self._folded = DensePlan((*plan.trunk.sizes, self._n))
        whole = plan.head is None
        self._trunk = (self._folded or plan.trunk).acting(1.0 if whole else self._encoder.scale)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        super().load(weights, header)
        self._weights, self._stale = weights, True

    def _values(self, rows: npt.NDArray[Any], seed: int | None) -> npt.NDArray[np.float32]:
        if self._stale:
            self._prepare(self._weights)
        if self._plan.head is None:
            seen = np.multiply(rows, self._encoder.scale, dtype=np.float32)
            taus = np.broadcast_to(self._taus, (len(rows), len(self._taus)))
            quantiles = self._trunk.forward(np.concatenate([seen, taus], 1), seed).reshape(*taus.shape, self._n)
            whole: npt.NDArray[np.float32] = quantiles.mean(1)
            return whole
        states = self._trunk.forward(rows, seed)
        return states if self._folded is not None else self._means(states)

    def _values_from(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        if self._stale:
            self._prepare(self._weights)
        states, new = self._trunk.step(rows, state, seed)
        return self._means(states), new

    def _means(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return action values, given the features of states."""
        mean: npt.NDArray[np.float32] = self._head.forward(states[:, None] * self._embedded).mean(1)
        return mean

    def _prepare(self, weights: npt.NDArray[np.float32]) -> None:
        self._stale = False
        plan = self._plan
        trunk, embedding, head = (weights[part] for part in plan.parts)
        if plan.embedding is None or plan.head is None:
            self._trunk.load(trunk)
            return
        acting = plan.embedding.acting()
        acting.load(embedding)
        self._embedded = acting.forward(self._cosines)  # [mean_taus, features]
        if len(plan.head.sizes) == 2:  # linear: the value at the mean is the mean of the values
            self._embedded = self._embedded.mean(0, keepdims=True)
        if self._folded is None:
            self._trunk.load(trunk)
            self._head = plan.head.acting()
            self._head.load(head)
            return
        folded = np.empty(self._folded.size, np.float32)
        (_, _, _, bias), end = next(plan.head.layers), len(trunk)
        folded[:end] = trunk
        folded[end : end + bias] = (head[:bias].reshape(self._n, -1) * self._embedded).ravel()
        folded[end + bias :] = head[bias:]
        self._trunk.load(folded)

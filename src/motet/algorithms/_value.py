"""Settings and the epsilon-greedy acting half that DQN and IQN share. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, MinLen

from motet import _native
from motet.algorithm import Field, HeaderSpec, ReaderSettings, Space
from motet.algorithms._encoder import Encoder
from motet.algorithms._greedy import Choose, Greedy, Layered
from motet.algorithms._settings import check_config, check_min_rows
from motet.algorithms._streams import ActingStream
from motet.algorithms.source import NetworkSetting
from motet.errors import NotReadyError, SettingError
from motet.masks import is_discrete
from motet.nest import Nest
from motet.schedule import Linear, Schedule, Stages, value_at
from motet.settings import FINITE

__all__ = ["ValueBehaviour", "ValueConfig", "highest", "n_actions"]


@dataclass(frozen=True)
class ValueConfig:
    """Settings of algorithms that learn action values from a replay buffer."""

    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (64, 64)
    """Widths of the hidden layers; not used with a network of your own."""
    network: NetworkSetting = None
    """Your own network instead of the shipped one: a function of (observation_space, outputs) that makes a
    torch.nn.Module, the path "module:function" of such a function, or a name such as "mlp(layer_norm=True)". The module
    maps an observation to the values of all actions."""
    encoder: NetworkSetting = None
    """Your own encoder before the hidden layers: a function of (observation_space) that makes a torch.nn.Module, the
    path "module:function" of such a function, or a name such as "parts". The module maps an observation to features."""
    memory: Literal["gru", "lstm"] | None = None
    """Memory of the policy, a recurrent layer before the hidden layers; None: the policy sees the newest observation
    only. With a memory, updates learn from sequences of consecutive rows."""
    memory_size: Annotated[int, Ge(1)] = 64
    """Number of outputs of the memory."""
    sequence_length: Annotated[int, Ge(1)] = 32
    """Number of consecutive rows in a sequence from which a policy with a memory learns, without the ``burn_in``
    rows."""
    burn_in: Annotated[int, Ge(0)] = 8
    """Burn-in: number of rows before the ``sequence_length`` rows in a sequence. Burn-in rows are not learned from.
    They only bring the memory up to date, because the memory that is stored with the first of them was computed by an
    older version of the policy."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    n_step: Annotated[int, Ge(1)] = 1
    """Number of steps in the n-step return."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Number of stacked observations (frame stacking)."""
    double: bool = True
    """Double Q-learning: the online network selects the next action, the target network evaluates it. If False, the
    target network both selects and evaluates the next action."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Number of transitions in an update; with a memory, number of sequences."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 5e-4
    """Adam's learning rate."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Maximum gradient norm of an agent, above which its gradient is scaled down; None: no clipping."""
    target_every: Annotated[int, Ge(1)] | Literal["phase"] = 500
    """Number of updates between two updates of the target network. ``phase``: the target network is updated once in
    each phase of a reproducible run, when the phase begins."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Rate of a target network update: 1 copies the weights, less is Polyak averaging."""
    epsilon: Annotated[Schedule, Interval(ge=0, le=1)] = field(default=Linear(1.0, 0.05, steps=10_000))
    """Exploration rate: probability of a random action."""
    prioritised: bool = False
    """Prioritised replay: sample transitions or sequences by their last TD errors instead of uniformly."""
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities in prioritised replay."""
    beta: Annotated[Schedule, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights in prioritised replay."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows."""
    min_rows: Annotated[int, Ge(1)] = 1_000
    """Number of rows in the replay buffer before the first update."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run. Schedules can have different values in each stage (``Staged``)."""

    def __post_init__(self) -> None:
        check_config(self)
        check_min_rows(self)
        self._reader({}, self.memory_size if self.memory else 0)

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {"epsilon": ((), "float64"), "learner_step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what the algorithm needs from the replay."""
        n = n_actions(action_space, type(self).__name__.removesuffix("Config"))
        own = self.memory is not None or self.network is not None or self.encoder is not None
        state_size = self._state_size(observation_space, action_space) if own else 0
        extra = {"mask": Field((n,), "bool", next=True)} if masked else {}
        return self._reader(extra, state_size)

    def _reader(self, extra: Mapping[str, Field], memory: int) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.gamma,
            n_step=self.n_step, n_frames=self.n_frames, prioritised=self.prioritised, alpha=self.alpha, beta=self.beta,
            extra=extra, memory=memory, length=self.burn_in + self.sequence_length if memory else 0,
            burn_in=self.burn_in if memory else 0, stages=self.stages,
        )  # fmt: skip

    def _state_size(self, observation_space: Space, action_space: Space) -> int:
        """Return the size of the policy's memory."""
        raise NotImplementedError

    def _best(
        self,
        observation_space: Space,
        action_space: Space,
        networks: Sequence[tuple[Layered, npt.NDArray[np.float32]]],
        first: int = 0,
    ) -> Greedy:
        """Return the policy that chooses the action with the highest value; the values are the outputs from number
        ``first`` on."""
        choice = highest(action_space, type(self).__name__.removesuffix("Config"), first)
        return Greedy(Encoder(observation_space, self.n_frames), networks, choice)

    def _header_values(self, step: int, updates: int) -> dict[str, Any]:
        epsilon = value_at(self.epsilon, step, self.stages, updates)
        return {"epsilon": epsilon, "learner_step": updates, "stage": self.stages.index(step, updates)}

    def _rates(self, steps: Sequence[int], updates: Sequence[int]) -> list[float]:
        counts = zip(steps, updates, strict=True)
        return [value_at(self.learning_rate, int(step), self.stages, int(count)) for step, count in counts]


def highest(space: Space, name: str, first: int = 0) -> Choose:
    """Return the choice of the highest action value; ``first`` is the number of outputs before the values."""
    return Choose((n_actions(space, name),), (int(getattr(space, "start", 0)),), (), first)


def n_actions(space: Space, name: str) -> int:
    """Return the number of actions of a Discrete space. ``name``: the algorithm's name, for the error."""
    if is_discrete(space) and np.dtype(space.dtype) == np.int64:
        return int(space.n)
    dtype = " with dtype int64" if is_discrete(space) else ""
    raise SettingError(f"{name} needs a Discrete action space{dtype}, got {space!r}; use ppo")


class ValueBehaviour(ActingStream):
    """Epsilon-greedy choice by the action values that ``_values`` computes with the loaded version.

    Exploration always draws two numbers for each row, so the random stream does not depend on weights.
    """

    def __init__(self, encoder: Encoder, action_space: Space) -> None:
        self._encoder = encoder
        self._n = n_actions(action_space, type(self).__name__.removesuffix("Behaviour"))
        self._first = int(getattr(action_space, "start", 0))
        self._rng = np.random.default_rng(0)
        self._loaded, self._explores = False, False
        self._epsilon = 1.0
        self.state_size = 0
        """Number of values of the policy's memory; 0: no memory."""

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        self._loaded, self._epsilon = True, float(header["epsilon"])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B]`` for observations ``[B, ...]``, and no extra fields."""
        return self._chosen(self.values(observations, explore), masks, explore), {}

    def act_from(
        self,
        state: npt.NDArray[np.float32],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Return actions, extra fields with the memory before these observations, and the memory after them."""
        values, new = self._values_from(self._encoder.rows(observations), state, self._seed(explore))
        return self._chosen(values, masks, explore), {"memory": state}, new

    def _chosen(
        self, values: npt.NDArray[np.float32], masks: npt.NDArray[np.bool_] | None, explore: bool
    ) -> npt.NDArray[np.int64]:
        actions = np.empty(len(values), np.int64)
        draws = self._rng.random((len(values), 2)) if explore else None
        _native.choose(values, masks, draws, self._epsilon, self._first, actions)
        return actions

    def values(self, observations: Nest, explore: bool = False) -> npt.NDArray[np.float32]:
        """Return the action values ``[B, n]``. ``explore``: networks with noisy layers add their noise."""
        if self.state_size:
            raise NotReadyError("this behaviour has a memory: call act_from with its state")
        seed = self._seed(explore) if self._explores or not self._loaded else None
        return self._values(self._encoder.rows(observations), seed)

    def _seed(self, explore: bool) -> int | None:
        """Return a seed for the noise if the network explores by noisy layers."""
        if not self._loaded:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        return int(self._rng.integers(2**63)) if explore and self._explores else None

    def _values(self, rows: npt.NDArray[Any], seed: int | None) -> npt.NDArray[np.float32]:
        raise NotImplementedError

    def _values_from(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the action values, and the memory after the rows."""
        raise NotImplementedError

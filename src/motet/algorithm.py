"""Interfaces of an algorithm: config, learning half and acting half. The shipped algorithms are in ``algorithms``.

A frozen *config* (:class:`AlgorithmConfig`) makes both halves. ``build`` makes the :class:`Algorithm`, which runs in a
learner: it takes batches and returns weights and new priorities. ``behaviour`` makes the :class:`Behaviour`, which runs
in an actor: it takes published weights and observations and returns actions. The halves share only what the learner
publishes as one version: the first ``weights`` numbers of a state row, and a header (exploration rate, learner step).

One algorithm object runs A agents with equal settings in one stacked pass. The agents stay independent: each has a
separate row of weights, target weights and Adam moments, a separate part of the batch and a separate random stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from motet.arrays import MOST_AHEAD, Batch, Field
from motet.errors import SettingError
from motet.nest import Nest
from motet.schedule import ALWAYS, Schedule, Stages, check_stages
from motet.settings import check_fields
from motet.streams import Streams, StreamUser, made_alike

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "Batch",
    "Behaviour",
    "Field",
    "HeaderSpec",
    "LearnsInPhases",
    "OwnStreams",
    "ReaderSettings",
    "Remembers",
    "SavesStream",
    "Sizes",
    "StartsFromRow",
    "Update",
    "make_behaviour",
    "stacked_batch",
]

Space = Any
"""A Gymnasium space, or anything with ``shape`` and ``dtype``; dict and tuple spaces have ``spaces``."""
HeaderSpec = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype, by name, of the values that are published with the weights."""


@dataclass(frozen=True)
class ReaderSettings:
    """What an algorithm needs from its agents' replay; the learner makes replay and reader from these settings."""

    batch_size: Annotated[int, Ge(1)]
    """Number of transitions in a batch. With ``once``: number of fragments. With ``length`` but without ``once``:
    number of sequences in a batch."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows."""
    min_rows: Annotated[int, Ge(1)] = 1
    """Rows in the replay buffer before the first update."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    n_step: Annotated[int, Ge(1)] = 1
    """Number of steps in the n-step return."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Number of stacked observations; above 1, every observation has a first axis of this size."""
    prioritised: bool = False
    """Sample by priority; ``Update.priorities`` goes back to the reader."""
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities."""
    beta: Annotated[Schedule, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights, as a schedule over the agent's steps."""
    extra: Mapping[str, Field] = field(default_factory=dict)
    """Further fields by name: ``mask`` comes from the world, all others from what ``Behaviour.act`` returns."""
    memory: Annotated[int, Ge(0)] = 0
    """Size of the state of a policy with memory. Rows then have a field ``memory``: the state before the row's
    observation, from which a sequence of rows can be computed again."""
    once: bool = False
    """Read every row once and in order, in fragments of ``length`` rows, instead of sampling."""
    length: Annotated[int, Ge(0)] = 0
    """With ``once``: number of rows in a fragment. Otherwise: number of consecutive rows in a sequence; 0: batches
    consist of single transitions."""
    burn_in: Annotated[int, Ge(0)] = 0
    """Number of rows at the beginning of a sequence that are not learned from."""
    next_observation: bool = True
    """Whether batches have the observation at the end of a transition; not with ``once`` or ``length``."""
    stages: Stages = ALWAYS
    """Stages of the agent's run. A stage is published as soon as it begins, and may clear the replay."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_stages(self)
        self._check_rules()
        if self.memory:
            object.__setattr__(self, "extra", {**self.extra, "memory": Field((self.memory,))})

    def _check_rules(self) -> None:
        if self.once and not self.length:
            raise SettingError(f"length must be an int >= 1 with once={self.once}, got {self.length}")
        if self.burn_in and (self.once or self.burn_in >= self.length):
            raise SettingError(
                f"burn_in must be an int from 0 to below the length of a sequence, got {self.burn_in} with "
                f"length={self.length} and once={self.once}"
            )
        if self.length and self.n_step > MOST_AHEAD:
            raise SettingError(f"n_step must be an int from 1 to {MOST_AHEAD} with length > 0, got {self.n_step}")
        if self.once and (self.n_step > 1 or self.prioritised):
            raise SettingError(
                f"once is only valid with n_step=1 and prioritised=False (got n_step={self.n_step} and "
                f"prioritised={self.prioritised})"
            )
        if self.once and self.stages.clear_replay_on_stage:
            raise SettingError(
                "clear_replay_on_stage is not valid with once=True: rows that are read once are never cleared"
            )
        if "memory" in self.extra and (not self.memory or self.extra["memory"] != Field((self.memory,))):
            raise SettingError("extra must not have a field named memory: it is made from the setting memory")
        if self.memory and self.n_frames > 1:
            raise SettingError(
                f"n_frames must be 1 with memory, got {self.n_frames}; if the world suggests it, set n_frames to 1 "
                "(--ALGORITHM.n-frames 1)"
            )
        if self.min_rows > self.capacity:
            raise SettingError(f"min_rows must be at most the capacity {self.capacity}, got {self.min_rows}")

    @property
    def sequences(self) -> bool:
        """Whether sequences are sampled."""
        return self.length > 0 and not self.once

    @property
    def learned_rows(self) -> int:
        """Number of rows that are learned from in one transition, fragment or sequence."""
        return max(1, self.length - self.burn_in)

    @property
    def stride(self) -> int:
        """Distance, in rows, between two successive rows at which a transition or a sequence may begin."""
        return self.learned_rows if self.prioritised else 1

    @property
    def reads_ahead(self) -> int:
        """Number of rows that a sampled transition or sequence reads after its first row."""
        return self.n_step + (self.length - 1 if self.sequences else 0)


def stacked_batch(observation_space: Space, action_space: Space, settings: ReaderSettings, agents: int) -> Batch:
    """Return empty arrays for the batches of a stack of agents.

    >>> from gymnasium.spaces import Box, Discrete
    >>> batch = stacked_batch(Box(0, 1, (3,)), Discrete(2), ReaderSettings(batch_size=4), agents=5)
    >>> batch.next_observation.shape, batch.action.dtype, batch.agent(1).reward.shape
    ((5, 4, 3), dtype('int64'), (4,))
    """
    draws = (agents, settings.batch_size)
    length = (settings.length,) if settings.length else ()
    rows = (*draws, *length)
    more = (*draws, *(n + settings.n_step for n in length))
    frames = (settings.n_frames,) if settings.n_frames > 1 else ()
    # only transitions have next observations; sequences and fragments have more rows of observations
    has_next = settings.next_observation and not length
    drawn = draws if settings.sequences else rows

    def arrays(lead: tuple[int, ...], space: Space) -> Nest:
        return map_space(lambda s: np.zeros((*lead, *s.shape), s.dtype), space)

    return Batch(
        observation=arrays((*more, *frames), observation_space),
        action=arrays(rows, action_space),
        reward=np.zeros(rows, np.float32),
        discount=np.zeros(rows, np.float32),
        version=np.zeros(rows, np.uint64),
        lane=np.zeros(drawn, np.uint32),
        row=np.zeros(drawn, np.uint64),
        extra={name: arrays(more if item.next else rows, item) for name, item in settings.extra.items()},
        next_observation=arrays((*more, *frames), observation_space) if has_next else None,
        next_extra={name: arrays(rows, item) for name, item in settings.extra.items() if item.next and not length},
        weight=np.ones(drawn, np.float32) if settings.prioritised else None,
        valid=np.ones(rows, np.bool_) if length else None,
        ahead=np.ones(rows, np.uint8) if settings.sequences else None,
    )


class Update(NamedTuple):
    """Result of an update. The next update overwrites the arrays."""

    metrics: Mapping[str, npt.NDArray[np.float32]]
    """Arrays ``[A]`` by name. If an algorithm does not compute them in every update, older values remain."""
    priorities: npt.NDArray[np.float32] | None = None
    """New priorities ``[A, batch]`` of the transitions or sequences, or None."""


class Sizes(NamedTuple):
    """Sizes of one agent's arrays in an :class:`Algorithm`; known before the algorithm is built."""

    weights: int
    """Number of float32 values that are published. They come first in the state."""
    state: int
    """Number of all float32 values: weights, then target weights, moments and the rest that a restart needs."""
    counters: int
    """Number of int64 values."""
    random: int
    """Bytes of the random stream; 0 for an algorithm without one."""


@runtime_checkable
class Algorithm(Protocol):
    """The learning half of an algorithm, for a stack of A agents.

    An agent's vault holds its rows of ``state``, ``counters`` and ``random``. On a CPU, weights, target weights and
    moments are views into ``state``; on another device ``save`` copies them.
    """

    state: npt.NDArray[np.float32]  # [A, sizes.state]
    counters: npt.NDArray[np.int64]  # [A, sizes.counters]; the first one counts the agent's updates
    random: npt.NDArray[np.uint8]  # [A, sizes.random]
    n_weights: int

    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch. ``steps`` holds each agent's steps so far, for schedules."""
        ...

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        ...

    def weights(self) -> npt.NDArray[np.float32]:
        """Return the published part of ``state``, ``[A, n_weights]``, up to date."""
        ...

    def save(self) -> None:
        """Write the current state into ``state``, ``counters`` and ``random``."""
        ...

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random`` after saved values were written into them.

        The algorithm continues exactly as it did after these values were saved.
        """
        ...


@runtime_checkable
class Behaviour(Protocol):
    """The acting half of an algorithm. It runs in an actor; seed, weights and observations determine its actions."""

    def begin(self, seed: int) -> None:
        """Restart the random stream from a seed."""
        ...

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights. This is cheap: the behaviour
        keeps a reference to ``weights`` until the next call."""
        ...

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B, ...]`` for observations ``[B, ...]``, and the replay's extra fields except ``mask``.

        ``masks`` ``[B, n]`` is True where an action is allowed; for other than Discrete spaces, masks are flat (see
        :mod:`motet.masks`). A row's result depends on the other rows only through the random numbers drawn (and in
        torch by rounding), and each row always draws the same number of them. The returned arrays belong to the
        caller: later calls do not change them.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """Optional interface of a behaviour: it has a memory, a state that the caller keeps from step to step.

    At the start of an episode the state is zero. Actors write the state before each observation into the row, as the
    field ``memory`` (``ReaderSettings.memory`` is its size). Such a behaviour is asked by ``act_from``, never by
    ``act``.
    """

    @property
    def state_size(self) -> int:
        """Number of float32 values in the state of one agent in one world; 0: the behaviour has no memory after all."""
        ...

    def act_from(
        self,
        state: npt.NDArray[np.float32],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Return what ``act`` returns, and the state ``[B, state_size]`` after these observations, in a new array.

        ``state`` ``[B, state_size]`` is the state before the observations. The method must not change it.
        """
        ...


@runtime_checkable
class SavesStream(Protocol):
    """Optional interface of a behaviour: it saves its random stream, so that a resumed run equals an uninterrupted one.

    The stream is everything that determines the next draws, correlated noise included, but not the weights.
    """

    def get_stream(self) -> Any:
        """Return the stream as plain values: numbers, strings, bytes, arrays, and tuples, lists and dicts of these."""
        ...

    def set_stream(self, stream: Any) -> None:
        """Continue from what :meth:`get_stream` returned; ``begin`` must be called first."""
        ...


@runtime_checkable
class StartsFromRow(Protocol):
    """Optional interface of an algorithm: how an agent starts from what an agent of another run has learned."""

    def start_from(self, agent: int, row: npt.NDArray[np.float32]) -> None:
        """Take what was learned from a row of ``state``; begin with fresh optimisers, counters and random streams."""
        ...


@runtime_checkable
class LearnsInPhases(Protocol):
    """Optional interface of an algorithm that does something when a phase of a reproducible run begins."""

    def begin_phase(self) -> None:
        """Prepare for a phase. It may consist of any number of updates, including none."""
        ...


class AlgorithmConfig(Protocol):
    """Settings of an algorithm: a picklable frozen dataclass that validates its values when made."""

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        ...

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what the algorithm needs from the replay. ``masked``: the world has action masks."""
        ...

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        ...

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> Algorithm:
        """Make the learning half for ``agents`` agents, one seed for each."""
        ...

    def behaviour(self, observation_space: Space, action_space: Space) -> Behaviour:
        """Make the acting half."""
        ...


class OwnStreams:
    """Wraps a behaviour that may draw from the global random streams: it draws from separate streams instead."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.streams = Streams(StreamUser(f"the behaviour {type(behaviour).__name__}"))

    def begin(self, seed: int) -> None:
        """Start the random streams of the behaviour."""
        with self.streams.begun(seed):
            self.behaviour.begin(seed)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        with self.streams:
            self.behaviour.load(weights, header)

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Return what the behaviour returns."""
        with self.streams:
            return self.behaviour.act(observations, masks, explore)

    @property
    def state_size(self) -> int:
        """Size of the behaviour's state."""
        return state_size_of(self.behaviour)

    def act_from(
        self,
        state: npt.NDArray[np.float32],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Return what the behaviour returns."""
        assert isinstance(self.behaviour, Remembers)
        with self.streams:
            return self.behaviour.act_from(state, observations, masks, explore)


def make_behaviour(config: AlgorithmConfig, observation_space: Space, action_space: Space) -> Behaviour:
    """Make the acting half of an algorithm. A behaviour that is not part of motet gets separate random streams."""
    name = f"the behaviour of {type(config).__name__}"
    made = made_alike(name, lambda: config.behaviour(observation_space, action_space))
    return made if is_shipped(made) else OwnStreams(made)


def is_shipped(part: Algorithm | Behaviour) -> bool:
    """Whether an object is part of a shipped algorithm. Shipped algorithms do not draw from the global random
    streams."""
    return type(part).__module__.startswith("motet.algorithms.")


def users_behaviour(behaviour: Behaviour) -> Behaviour:
    """Return the behaviour as the algorithm made it."""
    return behaviour.behaviour if isinstance(behaviour, OwnStreams) else behaviour


def state_size_of(behaviour: Behaviour) -> int:
    """Return the size of a behaviour's state; 0 if it has no memory."""
    return behaviour.state_size if isinstance(behaviour, Remembers) else 0


def stream_of(behaviour: Behaviour) -> Any:
    """Return the random stream of a behaviour as plain values; None if the behaviour does not save its stream."""
    inner = users_behaviour(behaviour)
    return inner.get_stream() if isinstance(inner, SavesStream) else None


def global_streams_of(behaviour: Behaviour) -> Any:
    """Return the state of a behaviour's global random streams as plain values; None if it has no such streams."""
    return behaviour.streams.get_state() if isinstance(behaviour, OwnStreams) else None


def continue_global_streams(behaviour: Behaviour, state: Any) -> None:
    """Continue from what :func:`global_streams_of` returned."""
    if state is not None and isinstance(behaviour, OwnStreams):
        behaviour.streams.set_state(state)


def continue_stream(behaviour: Behaviour, stream: Any) -> bool:
    """Continue from what :func:`stream_of` returned; return False if it is None or the behaviour saves no stream."""
    inner = users_behaviour(behaviour)
    if stream is None or not isinstance(inner, SavesStream):
        return False
    inner.set_stream(stream)
    return True


def map_space(function: Callable[[Space], Any], space: Space) -> Nest:
    """Apply a function to every array space in a nest of spaces."""
    inner = getattr(space, "spaces", space)
    if isinstance(inner, Mapping):
        return {key: map_space(function, value) for key, value in inner.items()}
    if isinstance(inner, (tuple, list)):
        return tuple(map_space(function, value) for value in inner)
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise SettingError(f"space must be a space of arrays, or a dict or tuple of such spaces, got {space!r}")
    return function(space)

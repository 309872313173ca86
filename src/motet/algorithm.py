"""Algorithm: what a learner runs, and the half of it that acts. Contracts only; the shipped ones are in ``algorithms``.

A frozen *config* (:class:`AlgorithmConfig`) makes both halves. ``build`` makes the :class:`Algorithm`, which lives in
a learner: batches flow in, weights and new priorities flow out. ``behaviour`` makes the :class:`Behaviour`, which lives
in an actor: published weights and observations flow in, actions flow out. The halves share nothing but what the learner
publishes: the first ``weights`` numbers of a state row, and a header (exploration rate, learner step) in one version.

One algorithm object runs A agents with equal settings in one stacked pass. They stay independent: each has its own row
of weights, targets and moments, its own part of the batch, its own random stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from motet.arrays import Batch, Field
from motet.errors import SettingError
from motet.nest import Nest
from motet.schedule import ALWAYS, Schedule, Stages, check_schedule

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "Batch",
    "Behaviour",
    "Field",
    "HeaderSpec",
    "ReaderSettings",
    "SavesStream",
    "Sizes",
    "Update",
    "stacked_batch",
]

Space = Any
"""A Gymnasium space, or anything with ``shape`` and ``dtype``; dict and tuple spaces have ``spaces``."""
HeaderSpec = Mapping[str, tuple[tuple[int, ...], str]]
"""What travels with the weights: shape and dtype by name."""


@dataclass(frozen=True)
class ReaderSettings:
    """What an algorithm needs of its agents' replay; the learner makes replay and reader accordingly."""

    batch_size: int
    """Transitions in a batch; with ``once``: fragments."""
    capacity: int = 100_000
    """Rows to keep."""
    min_rows: int = 1
    """Rows that must be there before the first update."""
    gamma: float = 0.99
    """The discount per step."""
    n_step: int = 1
    """Rewards summed."""
    n_frames: int = 1
    """Observations stacked; above 1 every observation has a first axis of this size."""
    prioritised: bool = False
    """Draw by priority; ``Update.priorities`` goes back to the reader."""
    alpha: float = 0.6
    """Exponent of the priorities."""
    beta: Schedule = 0.4
    """Exponent of the importance weights, by the agent's steps."""
    extra: Mapping[str, Field] = field(default_factory=dict)
    """Further fields by name: ``mask`` comes from the world, all others from what ``Behaviour.act`` returns."""
    once: bool = False
    """Read every row once and in order, in fragments of ``length`` rows, instead of drawing."""
    length: int = 0
    """Rows in a fragment; with ``once`` only."""
    stages: Stages = ALWAYS
    """Of the agent's run: a new one is published as soon as it begins, and may clear the replay."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "capacity", "min_rows", "n_step", "n_frames"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}: given {getattr(self, name)}, expected 1 or more")
        if not 0 <= self.gamma <= 1:
            raise SettingError(f"gamma: given {self.gamma}, expected 0 to 1")
        if not 0 <= self.alpha <= 1:
            raise SettingError(f"alpha: given {self.alpha}, expected 0 to 1")
        check_schedule("beta", self.beta, 0, 1, self.stages)
        if self.once != (self.length > 0):
            raise SettingError(f"length: given {self.length} with once={self.once}, expected 1 or more with once alone")
        if self.once and (self.n_step > 1 or self.prioritised):
            raise SettingError("once: rows that are read once have no n_step above 1 and no priorities")
        if self.once and self.stages.clear_replay_on_stage:
            raise SettingError("clear_replay_on_stage: rows that are read once are never cleared")
        if self.min_rows > self.capacity:
            raise SettingError(f"min_rows: given {self.min_rows}, expected at most the capacity {self.capacity}")


def stacked_batch(observation_space: Space, action_space: Space, settings: ReaderSettings, agents: int) -> Batch:
    """Arrays for the batches of a stack of agents.

    >>> from gymnasium.spaces import Box, Discrete
    >>> batch = stacked_batch(Box(0, 1, (3,)), Discrete(2), ReaderSettings(batch_size=4), agents=5)
    >>> batch.next_observation.shape, batch.action.dtype, batch.agent(1).reward.shape
    ((5, 4, 3), dtype('int64'), (4,))
    """
    length = (settings.length,) if settings.once else ()
    rows = (agents, settings.batch_size, *length)
    more = (agents, settings.batch_size, *(n + 1 for n in length))
    frames = (settings.n_frames,) if settings.n_frames > 1 else ()

    def arrays(lead: tuple[int, ...], space: Space) -> Nest:
        return map_space(lambda s: np.zeros((*lead, *s.shape), s.dtype), space)

    return Batch(
        observation=arrays((*more, *frames), observation_space),
        action=arrays(rows, action_space),
        reward=np.zeros(rows, np.float32),
        discount=np.zeros(rows, np.float32),
        version=np.zeros(rows, np.uint64),
        lane=np.zeros(rows, np.uint32),
        row=np.zeros(rows, np.uint64),
        extra={name: arrays(more if item.next else rows, item) for name, item in settings.extra.items()},
        next_observation=None if length else arrays((*more, *frames), observation_space),
        next_extra={name: arrays(rows, item) for name, item in settings.extra.items() if item.next and not length},
        weight=np.ones(rows, np.float32) if settings.prioritised else None,
        valid=np.ones(rows, np.bool_) if length else None,
    )


class Update(NamedTuple):
    """What an update returns. The arrays are reused by the next one."""

    metrics: Mapping[str, npt.NDArray[np.float32]]
    """``[A]`` each, by name. May be as old as the config's metrics interval."""
    priorities: npt.NDArray[np.float32] | None = None
    """``[A, batch]``: new priorities of the transitions, or None."""


class Sizes(NamedTuple):
    """How much one agent's part of an algorithm holds; known before anything is built."""

    weights: int
    """float32 numbers that are published: the first ones of its state."""
    state: int
    """float32 numbers in all: weights, then targets, moments and whatever a successor needs."""
    counters: int
    """int64 numbers."""
    random: int
    """Bytes of its random stream; 0 where there is none."""


@runtime_checkable
class Algorithm(Protocol):
    """What a learner runs: A agents, stacked. Rows of ``state``, ``counters`` and ``random`` make up an agent's vault.

    On a CPU, weights, targets and moments are views into ``state``; on another device ``save`` copies.
    """

    state: npt.NDArray[np.float32]  # [A, sizes.state]
    counters: npt.NDArray[np.int64]  # [A, sizes.counters]; the first one is the updates done
    random: npt.NDArray[np.uint8]  # [A, sizes.random]
    n_weights: int

    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch. ``steps``: each agent's steps so far, for schedules."""
        ...

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """What travels with this agent's weights, when it has done ``step`` steps."""
        ...

    def weights(self) -> npt.NDArray[np.float32]:
        """``[A, n_weights]``, up to date: the part of ``state`` that is published."""
        ...

    def save(self) -> None:
        """Bring ``state``, ``counters`` and ``random`` up to date."""
        ...

    def load(self) -> None:
        """Go on from ``state``, ``counters`` and ``random``, which were overwritten: exactly where they were saved."""
        ...


@runtime_checkable
class Behaviour(Protocol):
    """How an agent acts. Lives in an actor; deterministic given seed, weights and observations."""

    def begin(self, seed: int) -> None:
        """Start the random stream anew."""
        ...

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version. Cheap: keeps a reference to ``weights`` until the next one."""
        ...

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Actions ``[B, ...]`` for observations ``[B, ...]``, and the replay's extra fields but ``mask``.

        ``masks`` ``[B, n]``: True where an action is allowed. A row's result does not depend on the other rows but for
        the random numbers drawn, and their number per row is always the same. The arrays are the caller's: what was
        given before stays as it was.
        """
        ...


@runtime_checkable
class SavesStream(Protocol):
    """What a behaviour may offer beside the rest: its random stream, so that a resumed run is the uninterrupted one.

    The stream is everything that decides its next draws, noise that lasts included, but not the weights.
    """

    def get_stream(self) -> Any:
        """The stream as plain values: numbers, strings, bytes, arrays, and tuples, lists and dicts of these."""
        ...

    def set_stream(self, stream: Any) -> None:
        """Continue from what :meth:`get_stream` returned; ``begin`` was called before."""
        ...


class AlgorithmConfig(Protocol):
    """The settings of an algorithm: a frozen dataclass, validated when made, picklable."""

    @property
    def header(self) -> HeaderSpec:
        """What travels with the weights."""
        ...

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """What the replay must offer. ``masked``: the world has action masks."""
        ...

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        ...

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> Algorithm:
        """The learning half for ``agents`` agents, each made from its own seed."""
        ...

    def behaviour(self, observation_space: Space, action_space: Space) -> Behaviour:
        """The acting half."""
        ...


def stream_of(behaviour: Behaviour) -> Any:
    """The random stream of a behaviour, as plain values; None if it cannot save it."""
    return behaviour.get_stream() if isinstance(behaviour, SavesStream) else None


def continue_stream(behaviour: Behaviour, stream: Any) -> bool:
    """Continue from what :func:`stream_of` returned; False if that was nothing, or the behaviour cannot."""
    if stream is None or not isinstance(behaviour, SavesStream):
        return False
    behaviour.set_stream(stream)
    return True


def map_space(function: Callable[[Space], Any], space: Space) -> Nest:
    """The function of every array space in a nest of spaces."""
    inner = getattr(space, "spaces", space)
    if isinstance(inner, Mapping):
        return {key: map_space(function, value) for key, value in inner.items()}
    if isinstance(inner, (tuple, list)):
        return tuple(map_space(function, value) for value in inner)
    if getattr(space, "shape", None) is None or getattr(space, "dtype", None) is None:
        raise SettingError(
            f"given the space {space!r}, expected one whose elements are arrays, or a dict or tuple of them"
        )
    return function(space)

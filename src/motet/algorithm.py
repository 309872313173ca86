"""Algorithm: what a learner runs, and the half of it that acts. Contracts only; the shipped ones are in ``algorithms``.

A frozen *config* (:class:`AlgorithmConfig`) makes both halves. ``build`` makes the :class:`Algorithm`, which lives in
a learner: batches flow in, weights and new priorities flow out. ``behaviour`` makes the :class:`Behaviour`, which lives
in an actor: published weights and observations flow in, actions flow out. The halves share nothing but what the learner
publishes: the first ``weights`` numbers of a state row, and a header (exploration rate, learner step) in one version.

One algorithm object runs A agents with equal settings in one stacked pass. They stay independent: each has its own row
of weights, targets and moments, its own part of the batch, its own random stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from motet.errors import SettingError

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "Behaviour",
    "Exponential",
    "ExtraField",
    "HeaderSpec",
    "Linear",
    "ReaderSettings",
    "SavesStream",
    "Schedule",
    "Sizes",
    "StackedBatch",
    "Staged",
    "Stages",
    "Update",
    "value_at",
]

Nest = Any
"""An array, or a dict or tuple of nests."""
Space = Any
"""A Gymnasium space, or anything with ``shape`` and ``dtype``; dict and tuple spaces have ``spaces``."""
HeaderSpec = Mapping[str, tuple[tuple[int, ...], str]]
"""What travels with the weights: shape and dtype by name."""


@dataclass(frozen=True)
class Linear:
    """A setting that moves from ``start`` to ``end`` in a straight line over the first ``steps`` steps of the agent.

    >>> epsilon = Linear(1.0, 0.1, steps=1000)
    >>> epsilon(0), epsilon(500), epsilon(5000)
    (1.0, 0.55, 0.1)
    """

    start: float
    """Its value at step 0."""
    end: float
    """Its value from step ``steps`` on."""
    steps: int
    """How many steps of the agent the way takes."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise SettingError(f"given {self}, expected finite numbers and 1 or more steps")

    def __call__(self, step: int) -> float:
        """The value after ``step`` steps."""
        way = min(max(step / self.steps, 0.0), 1.0)
        return self.end if way == 1.0 else self.start + way * (self.end - self.start)


@dataclass(frozen=True)
class Exponential:
    """A setting that approaches ``end``: after every ``half_life`` steps of the agent half of the way is left.

    >>> epsilon = Exponential(1.0, 0.0, half_life=100)
    >>> epsilon(0), epsilon(100), epsilon(300)
    (1.0, 0.5, 0.125)
    """

    start: float
    """Its value at step 0."""
    end: float
    """What it approaches."""
    half_life: float
    """Steps of the agent for half of the way."""

    def __post_init__(self) -> None:
        if not self.half_life > 0 or not (math.isfinite(self.start) and math.isfinite(self.end)):
            raise SettingError(f"given {self}, expected finite numbers and a half-life above 0")

    def __call__(self, step: int) -> float:
        """The value after ``step`` steps."""
        left: float = 0.5 ** (max(step, 0) / self.half_life)
        return self.end + left * (self.start - self.end)


@dataclass(frozen=True)
class Stages:
    """Named stages of a run, one after the other, by the agent's steps; the last one never ends.

    The learner derives the stage from the steps and publishes it, also without an update; actors know it from there.
    Lengths may be given as a mapping or as pairs.

    >>> stages = Stages({"warm_up": 5_000, "ramp": 20_000, "full": None}, clear_replay_on_stage=("full",))
    >>> stages.at(4_999), stages.at(6_000), stages.at(10**6)
    (('warm_up', 4999), ('ramp', 1000), ('full', 975000))
    >>> stages.index(6_000), stages.begin("full")
    (1, 25000)
    """

    lengths: tuple[tuple[str, int | None], ...] = (("full", None),)
    """The name of each stage and its steps; None for the last one."""
    clear_replay_on_stage: tuple[str, ...] = ()
    """At the beginning of these, all rows so far are forgotten; updates go on when there are min_rows new ones."""

    def __post_init__(self) -> None:
        pairs = self.lengths.items() if isinstance(self.lengths, Mapping) else self.lengths
        lengths = tuple((str(name), steps[0] if steps else None) for name, *steps in pairs)
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "clear_replay_on_stage", tuple(self.clear_replay_on_stage))
        if not lengths or len(set(self.names)) < len(lengths):
            raise SettingError(f"stages: given {list(self.names)}, expected one or more, each with a name of its own")
        if lengths[-1][1] is not None or any(not steps or steps < 1 for _, steps in lengths[:-1]):
            raise SettingError(
                f"stages: given {dict(lengths)}, expected 1 or more steps for each, and None for the last one"
            )
        for name in self.clear_replay_on_stage:
            if self.begin(name) == 0:
                raise SettingError(f"clear_replay_on_stage: given {name!r}, before which there is nothing to clear")

    @property
    def names(self) -> tuple[str, ...]:
        """In their order."""
        return tuple(name for name, _ in self.lengths)

    def begin(self, name: str) -> int:
        """The step at which a stage begins."""
        if name not in self.names:
            raise SettingError(f"stage: given {name!r}, expected one of {', '.join(self.names)}")
        return sum(steps or 0 for _, steps in self.lengths[: self.names.index(name)])

    def index(self, step: int) -> int:
        """The number of the stage in which ``step`` lies."""
        return sum(step >= self.begin(name) for name in self.names[1:])

    def at(self, step: int) -> tuple[str, int]:
        """The stage in which ``step`` lies, and the steps since its beginning."""
        name = self.names[self.index(step)]
        return name, step - self.begin(name)


@dataclass(frozen=True)
class Staged:
    """A setting with a value of its own in each stage; schedules count their steps from the stage's beginning.

    >>> stages = Stages({"warm_up": 100, "ramp": 1000, "full": None})
    >>> noise = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.5, steps=1000), "full": 0.1})
    >>> [value_at(noise, step, stages) for step in (0, 100, 600, 1100)]
    [1.0, 1.0, 0.75, 0.1]
    """

    values: tuple[tuple[str, float | Linear | Exponential], ...]
    """The name of each stage and the value in it."""

    def __post_init__(self) -> None:
        pairs = self.values.items() if isinstance(self.values, Mapping) else self.values
        object.__setattr__(self, "values", tuple((str(name), value) for name, value in pairs))

    def of(self, name: str) -> float | Linear | Exponential:
        """The value in a stage."""
        return dict(self.values)[name]


Schedule = float | Linear | Exponential | Staged
"""A constant, or a value by the agent's steps."""

_ALWAYS = Stages()


def value_at(schedule: Schedule | Callable[[int], float], step: int, stages: Stages = _ALWAYS) -> float:
    """The value of a schedule or constant after ``step`` steps of the agent.

    >>> value_at(0.5, 10), value_at(Linear(0.0, 1.0, steps=20), 10)
    (0.5, 0.5)
    """
    if isinstance(schedule, Staged):
        name, within = stages.at(step)
        return value_at(schedule.of(name), within)
    return float(schedule(step)) if callable(schedule) else float(schedule)


def check_schedule(name: str, schedule: Schedule, low: float, high: float, stages: Stages = _ALWAYS) -> None:
    """Raise unless all values of the schedule are within ``[low, high]``, and its stages are the given ones."""
    if isinstance(schedule, Staged):
        given = [stage for stage, _ in schedule.values]
        if sorted(given) != sorted(stages.names):
            raise SettingError(f"{name}: given values for {given}, expected one for each stage of {list(stages.names)}")
        for stage, value in schedule.values:
            check_schedule(f"{name} in {stage}", value, low, high)
        return
    ends = (schedule.start, schedule.end) if isinstance(schedule, (Linear, Exponential)) else (schedule,)
    if not all(math.isfinite(value) and low <= value <= high for value in ends):
        raise SettingError(f"{name}: given {schedule}, expected values from {low:g} to {high:g}")


@dataclass(frozen=True)
class ExtraField:
    """A field of the replay beside observation, action and reward, filled from what ``act`` or the world returns."""

    shape: tuple[int, ...] = ()
    """Its shape in one row."""
    dtype: str = "float32"
    """Its dtype."""
    next: bool = False
    """Also needed at the transition's end."""


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
    extra: Mapping[str, ExtraField] = field(default_factory=dict)
    """Further fields by name: ``mask`` comes from the world, all others from what ``Behaviour.act`` returns."""
    once: bool = False
    """Read every row once and in order, in fragments of ``length`` rows, instead of drawing."""
    length: int = 0
    """Rows in a fragment; with ``once`` only."""
    stages: Stages = _ALWAYS
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


@dataclass(eq=False)
class StackedBatch:
    """The batches of A agents as arrays ``[A, batch, ...]``; the same arrays every time, filled anew.

    With ``once`` they are ``[A, fragments, length, ...]``, observations and fields with a next ``length + 1``, as in
    :class:`motet.replay.Batch`.

    >>> from gymnasium.spaces import Box, Discrete
    >>> batch = StackedBatch.zeros(Box(0, 1, (3,)), Discrete(2), ReaderSettings(batch_size=4), agents=5)
    >>> batch.next_observation.shape, batch.action.dtype, batch.agent(1).reward.shape
    ((5, 4, 3), dtype('int64'), (4,))
    """

    observation: Nest
    action: Nest
    reward: npt.NDArray[Any]
    discount: npt.NDArray[np.float32]
    """What the value behind a transition is multiplied with: gamma ** steps, 0 where the episode terminated."""
    next_observation: Nest = None
    weight: npt.NDArray[np.float32] | None = None
    """Importance weights (prioritised replay)."""
    extra: dict[str, Nest] = field(default_factory=dict)
    next_extra: dict[str, Nest] = field(default_factory=dict)
    version: npt.NDArray[np.uint64] | None = None
    """Of the policy that acted."""
    valid: npt.NDArray[np.bool_] | None = None
    """With ``once``: False where no transition starts."""

    @classmethod
    def zeros(
        cls, observation_space: Space, action_space: Space, settings: ReaderSettings, agents: int
    ) -> StackedBatch:
        """Arrays for batches of this kind."""
        length = (settings.length,) if settings.once else ()
        rows = (agents, settings.batch_size, *length)
        more = (agents, settings.batch_size, *(n + 1 for n in length))
        frames = (settings.n_frames,) if settings.n_frames > 1 else ()

        def arrays(lead: tuple[int, ...], space: Space) -> Nest:
            return map_space(lambda s: np.zeros((*lead, *s.shape), s.dtype), space)

        return cls(
            observation=arrays((*more, *frames), observation_space),
            action=arrays(rows, action_space),
            reward=np.zeros(rows, np.float32),
            discount=np.zeros(rows, np.float32),
            next_observation=None if length else arrays((*more, *frames), observation_space),
            weight=np.ones(rows, np.float32) if settings.prioritised else None,
            extra={name: arrays(more if item.next else rows, item) for name, item in settings.extra.items()},
            next_extra={name: arrays(rows, item) for name, item in settings.extra.items() if item.next and not length},
            version=np.zeros(rows, np.uint64),
            valid=np.ones(rows, np.bool_) if length else None,
        )

    def agent(self, index: int) -> StackedBatch:
        """One agent's part: views without the first axis."""

        def part(nest: Nest) -> Nest:
            if nest is None:
                return None
            return map_nest(lambda array: array[index], nest)

        return StackedBatch(**{name: part(value) for name, value in self.__dict__.items()})


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

    def update(self, batch: StackedBatch, steps: Sequence[int]) -> Update:
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


def map_nest(function: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """A nest of what the function makes of each leaf, and of those in the same places of the others."""
    if isinstance(nest, Mapping):
        return {key: map_nest(function, value, *(o[key] for o in others)) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return tuple(map_nest(function, value, *(o[i] for o in others)) for i, value in enumerate(nest))
    return function(nest, *others)

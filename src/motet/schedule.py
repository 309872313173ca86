"""Schedules: settings that change with the steps of an agent or its updates, and the stages of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, MinLen

from motet.errors import SettingError
from motet.settings import FINITE, check_fields

__all__ = [
    "ALWAYS",
    "Clock",
    "Exponential",
    "Linear",
    "Schedule",
    "Staged",
    "Stages",
    "check_rising",
    "check_stages",
    "value_at",
]

Clock = Literal["steps", "updates"]
"""What a schedule or the stages of a run count: the agent's steps, or the updates of its policy."""


@dataclass(frozen=True)
class Linear:
    """A setting that changes linearly from ``start`` to ``end`` over the first ``steps`` steps of the agent.

    >>> epsilon = Linear(1.0, 0.1, steps=1000)
    >>> epsilon(0), epsilon(500), epsilon(5000)
    (1.0, 0.55, 0.1)
    """

    start: Annotated[float, FINITE]
    """Value at step 0."""
    end: Annotated[float, FINITE]
    """Value from step ``steps`` on."""
    steps: Annotated[int, Ge(1)]
    """Number of steps of the agent, or of updates, in which the value goes from ``start`` to ``end``."""
    by: Clock | None = None
    """What is counted: steps (``steps``) or updates (``updates``). None: inside a ``Staged`` setting, what
    ``stages.by`` says; elsewhere steps."""

    def __post_init__(self) -> None:
        check_fields(self, "Linear.")

    def __call__(self, step: int) -> float:
        """Return the value after ``step`` steps, or updates."""
        way = min(max(step / self.steps, 0.0), 1.0)
        return self.end if way == 1.0 else self.start + way * (self.end - self.start)

    def taken(self) -> Iterator[tuple[str, float]]:
        """Yield its first and last value, each with a text that says when it is taken."""
        yield from ((" at its start", self.start), (" at its end", self.end))


@dataclass(frozen=True)
class Exponential:
    """A setting that decays from ``start`` to ``end``: every ``half_life`` steps of the agent halve the distance.

    >>> epsilon = Exponential(1.0, 0.0, half_life=100)
    >>> epsilon(0), epsilon(100), epsilon(300)
    (1.0, 0.5, 0.125)
    >>> Exponential(1.0, 0.0, half_life=100, least=0.2)(300)
    0.2
    """

    start: Annotated[float, FINITE]
    """Value at step 0."""
    end: Annotated[float, FINITE]
    """Value that the schedule approaches."""
    half_life: Annotated[float, Gt(0)]
    """Steps of the agent, or updates, in which the distance to ``end`` halves."""
    by: Clock | None = None
    """What is counted: steps (``steps``) or updates (``updates``). None: inside a ``Staged`` setting, what
    ``stages.by`` says; elsewhere steps."""
    least: Annotated[float, FINITE] | None = None
    """Value at which the decay stops; it must lie between ``end`` and ``start``. None: the decay does not stop."""

    def __post_init__(self) -> None:
        check_fields(self, "Exponential.")
        if self.least is not None and not self.end <= self.least <= self.start:
            raise SettingError(
                f"Exponential.least must be from end to start ({self.end:g} to {self.start:g}), got {self.least}: it "
                "is the floor of a decay"
            )

    def __call__(self, step: int) -> float:
        """Return the value after ``step`` steps, or updates."""
        left: float = 0.5 ** (max(step, 0) / self.half_life)
        value = self.end + left * (self.start - self.end)
        return value if self.least is None else max(value, self.least)

    def taken(self) -> Iterator[tuple[str, float]]:
        """Yield its first and last value, each with a text that says when it is taken."""
        yield from ((" at its start", self.start), (" at its end", self.end if self.least is None else self.least))


@dataclass(frozen=True)
class Stages:
    """Named stages of a run, one after the other, by the agent's steps or updates. The last stage never ends.

    The learner derives the stage from the steps or updates and publishes it, even if no update is due; actors read it
    from the publication. Lengths may be given as a mapping or as pairs.

    >>> stages = Stages({"warm_up": 5_000, "ramp": 20_000, "full": None}, clear_replay_on_stage=("full",))
    >>> stages.at(4_999), stages.at(6_000), stages.at(10**6)
    (('warm_up', 4999), ('ramp', 1000), ('full', 975000))
    >>> stages.index(6_000), stages.begin("full")
    (1, 25000)
    """

    lengths: Annotated[tuple[tuple[str, Annotated[int, Ge(1)] | None], ...], MinLen(1)] = (("full", None),)
    """Name of each stage and its length in steps or updates (see ``by``). The last stage has the length None: it never
    ends."""
    clear_replay_on_stage: tuple[str, ...] = ()
    """Stages that clear the replay buffer when they begin. Updates continue when there are ``min_rows`` new rows."""
    by: Clock = "steps"
    """What the lengths count: the agent's steps (``steps``), or the updates of its policy (``updates``)."""

    def __post_init__(self) -> None:
        pairs = self.lengths.items() if isinstance(self.lengths, Mapping) else self.lengths
        lengths = tuple((str(name), steps[0] if steps else None) for name, *steps in pairs)
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "clear_replay_on_stage", tuple(self.clear_replay_on_stage))
        check_fields(self, "stages.")
        self._check_rules()

    def _check_rules(self) -> None:
        if len(set(self.names)) < len(self.names):
            raise SettingError(f"stages must have different names, got {list(self.names)}")
        if [steps is None for _, steps in self.lengths] != [name == self.names[-1] for name in self.names]:
            raise SettingError(
                f"stages must have a number of steps each, and None for the last one, got {dict(self.lengths)}"
            )
        for name in self.clear_replay_on_stage:
            if self.begin(name) == 0:
                raise SettingError(
                    f"clear_replay_on_stage must not contain the first stage, got {name!r}: the replay is still empty"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(name for name, _ in self.lengths)

    def begin(self, name: str) -> int:
        """Return the step, or update, at which a stage begins."""
        if name not in self.names:
            raise SettingError(f"stage must be one of {', '.join(self.names)}, got {name!r}")
        return sum(steps or 0 for _, steps in self.lengths[: self.names.index(name)])

    def index(self, step: int, updates: int | None = None) -> int:
        """Return the index of the stage after ``step`` steps. Stages that count updates need the number of updates
        too."""
        count = _counted(self.by if len(self.names) > 1 else "steps", step, updates)
        return sum(count >= self.begin(name) for name in self.names[1:])

    def at(self, step: int, updates: int | None = None) -> tuple[str, int]:
        """Return the name of the stage after ``step`` steps, and the number of steps, or updates, within it."""
        name = self.names[self.index(step, updates)]
        return name, _counted(self.by, step, updates) - self.begin(name)


@dataclass(frozen=True)
class Staged:
    """A setting with one value or schedule for each stage. A schedule counts from the beginning of its stage.

    >>> stages = Stages({"warm_up": 100, "ramp": 1000, "full": None})
    >>> noise = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.5, steps=1000), "full": 0.1})
    >>> [value_at(noise, step, stages) for step in (0, 100, 600, 1100)]
    [1.0, 1.0, 0.75, 0.1]
    """

    values: tuple[tuple[str, float | Linear | Exponential | Callable[[int], float]], ...]
    """Name of each stage and the value or schedule in it."""

    def __post_init__(self) -> None:
        pairs = self.values.items() if isinstance(self.values, Mapping) else self.values
        object.__setattr__(self, "values", tuple((str(name), value) for name, value in pairs))
        check_fields(self, "Staged.")

    def of(self, name: str) -> float | Linear | Exponential | Callable[[int], float]:
        """Return the value or schedule of a stage."""
        return dict(self.values)[name]

    def taken(self) -> Iterator[tuple[str, float | Linear | Exponential | Callable[[int], float]]]:
        """Yield its values, each with a text that says in which stage it is taken."""
        yield from ((f" in {stage}", value) for stage, value in self.values)


Schedule = float | Linear | Exponential | Staged | Callable[[int], float]
"""A constant, or a value that depends on the agent's steps or updates. A function must be importable to be sent and
saved."""


ALWAYS = Stages()
"""A single stage that never ends."""


def value_at(schedule: Schedule, step: int, stages: Stages = ALWAYS, updates: int | None = None) -> float:
    """Return the value of a schedule or constant after ``step`` steps of the agent and ``updates`` of its policy.

    >>> value_at(0.5, 10), value_at(Linear(0.0, 1.0, steps=20), 10)
    (0.5, 0.5)
    >>> value_at(Linear(0.0, 1.0, steps=20, by="updates"), 10, updates=5)
    0.25
    """
    if isinstance(schedule, Staged):
        name, within = stages.at(step, updates)
        return value_at(schedule.of(name), within, updates=within)
    if not callable(schedule):
        return float(schedule)
    by = schedule.by if isinstance(schedule, (Linear, Exponential)) else None
    counted = _counted(by or "steps", step, updates)
    value = float(schedule(counted))
    if not math.isfinite(value):
        raise SettingError(f"a schedule must be a finite number at every step, got {value} at {counted} of {schedule}")
    return value


def _counted(by: Clock, step: int, updates: int | None) -> int:
    """Return ``step`` or ``updates``, whichever of the two ``by`` counts."""
    if by == "steps":
        return step
    if updates is None:
        raise SettingError(
            "updates must be the number of updates where a schedule or the stages count updates, got None: this "
            "algorithm supports by='steps' only; in your own, give updates= to value_at and to the stages' index"
        )
    return updates


def check_stages(config: Any) -> None:
    """Raise unless every :class:`Staged` setting has one value for each stage of ``config.stages``.

    Its schedules must count what the stages count.

    The bounds of the values are checked by ``motet.settings.check_fields``.
    """
    stages, by = list(config.stages.names), config.stages.by
    for item in fields(config):
        value = getattr(config, item.name)
        if not isinstance(value, Staged):
            continue
        given = [name for name, _ in value.values]
        if sorted(given) != sorted(stages):
            raise SettingError(f"{item.name} must have one value for each stage of {stages}, got values for {given}")
        for name, part in value.values:
            if (own := getattr(part, "by", None)) not in (None, by):
                raise SettingError(
                    f"{item.name} in stage {name} must count {by}, as the stages do, got by={own!r}; leave by out"
                )


def check_rising(name: str, schedule: Schedule, stages: Stages) -> None:
    """Raise if a schedule decreases, within a stage or from one stage to the next. Raise for a function, too: it cannot
    be checked.

    >>> check_rising("oldest", Linear(0, 10, steps=5), ALWAYS)
    """
    parts = [schedule.of(stage) for stage in stages.names] if isinstance(schedule, Staged) else [schedule]
    values: list[float] = []
    for part in parts:
        if isinstance(part, (Linear, Exponential)):
            values += [value for _, value in part.taken()]
        elif callable(part):
            raise SettingError(f"{name} must be a number or a schedule of motet, got {part!r}: it must never fall")
        else:
            values.append(float(part))
    if values != sorted(values):
        raise SettingError(f"{name} must never fall, got {schedule}")

"""Schedules: settings that change with the number of steps of an agent, and the stages of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from annotated_types import Ge, Gt, MinLen

from motet.errors import SettingError
from motet.settings import FINITE, check_fields

__all__ = ["ALWAYS", "Exponential", "Linear", "Schedule", "Staged", "Stages", "check_stages", "value_at"]


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
    """Steps of the agent from ``start`` to ``end``."""

    def __post_init__(self) -> None:
        check_fields(self, "Linear.")

    def __call__(self, step: int) -> float:
        """Return the value after ``step`` steps."""
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
    """Limit value."""
    half_life: Annotated[float, Gt(0)]
    """Steps of the agent in which the distance to ``end`` halves."""
    least: Annotated[float, FINITE] | None = None
    """Floor: value at which the decay stops, between the end and the start. None: no floor."""

    def __post_init__(self) -> None:
        check_fields(self, "Exponential.")
        if self.least is not None and not self.end <= self.least <= self.start:
            raise SettingError(
                f"Exponential.least must be from end to start ({self.end:g} to {self.start:g}), got {self.least}: it "
                "is the floor of a decay"
            )

    def __call__(self, step: int) -> float:
        """Return the value after ``step`` steps."""
        left: float = 0.5 ** (max(step, 0) / self.half_life)
        value = self.end + left * (self.start - self.end)
        return value if self.least is None else max(value, self.least)

    def taken(self) -> Iterator[tuple[str, float]]:
        """Yield its first and last value, each with a text that says when it is taken."""
        yield from ((" at its start", self.start), (" at its end", self.end if self.least is None else self.least))


@dataclass(frozen=True)
class Stages:
    """Named stages of a run, one after the other, by the agent's steps. The last stage never ends.

    The learner derives the stage from the steps and publishes it, even if no update is due; actors read it from the
    publication. Lengths may be given as a mapping or as pairs.

    >>> stages = Stages({"warm_up": 5_000, "ramp": 20_000, "full": None}, clear_replay_on_stage=("full",))
    >>> stages.at(4_999), stages.at(6_000), stages.at(10**6)
    (('warm_up', 4999), ('ramp', 1000), ('full', 975000))
    >>> stages.index(6_000), stages.begin("full")
    (1, 25000)
    """

    lengths: Annotated[tuple[tuple[str, Annotated[int, Ge(1)] | None], ...], MinLen(1)] = (("full", None),)
    """Name of each stage and its number of steps; None for the last stage."""
    clear_replay_on_stage: tuple[str, ...] = ()
    """Stages that clear the replay buffer when they begin. Updates continue when there are min_rows new rows."""

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
                    f"clear_replay_on_stage must not be the first stage, got {name!r}: the replay is still empty"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stages, in order."""
        return tuple(name for name, _ in self.lengths)

    def begin(self, name: str) -> int:
        """Return the step at which a stage begins."""
        if name not in self.names:
            raise SettingError(f"stage must be one of {', '.join(self.names)}, got {name!r}")
        return sum(steps or 0 for _, steps in self.lengths[: self.names.index(name)])

    def index(self, step: int) -> int:
        """Return the index of the stage that contains ``step``."""
        return sum(step >= self.begin(name) for name in self.names[1:])

    def at(self, step: int) -> tuple[str, int]:
        """Return the name of the stage that contains ``step``, and the number of steps since its beginning."""
        name = self.names[self.index(step)]
        return name, step - self.begin(name)


@dataclass(frozen=True)
class Staged:
    """A setting with one value or schedule for each stage. A schedule counts its steps from the beginning of its stage.

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
"""A constant, or a value that depends on the agent's steps. A function must be importable to be sent and saved."""


ALWAYS = Stages()
"""A single stage that never ends."""


def value_at(schedule: Schedule, step: int, stages: Stages = ALWAYS) -> float:
    """Return the value of a schedule or constant after ``step`` steps of the agent.

    >>> value_at(0.5, 10), value_at(Linear(0.0, 1.0, steps=20), 10)
    (0.5, 0.5)
    """
    if isinstance(schedule, Staged):
        name, within = stages.at(step)
        return value_at(schedule.of(name), within)
    if not callable(schedule):
        return float(schedule)
    value = float(schedule(step))
    if not math.isfinite(value):
        raise SettingError(
            f"a schedule must be a finite number at every step, got {value} at step {step} of {schedule}"
        )
    return value


def check_stages(config: Any) -> None:
    """Raise unless every :class:`Staged` setting has one value for each stage of ``config.stages``.

    The bounds of the values are checked by ``motet.settings.check_fields``.
    """
    stages = list(config.stages.names)
    for item in fields(config):
        value = getattr(config, item.name)
        given = [name for name, _ in value.values] if isinstance(value, Staged) else stages
        if sorted(given) != sorted(stages):
            raise SettingError(f"{item.name} must have one value for each stage of {stages}, got values for {given}")

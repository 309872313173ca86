"""Acting and learning in parallel, compared with the same work in turns.

Updates per step are chosen so that the serial engine spends equal time on acting and learning, where the gain is
largest. A step with r updates takes ``acting + r * learning``, so both costs follow from the speed at two paces.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.system import System, actor_roles, at_work, learner_roles, serial_role
from motet.system.supervisor import Role
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory

__all__ = ["Work", "balance"]

FOR_EVER = 10**12


@dataclass(frozen=True)
class Work:
    """A fixed number of steps and updates, which any engine can do."""

    make: Callable[[RunSettings], SharedMemory]
    """Creates the shared memory of a run with these settings."""
    pace: float
    """Updates per step."""
    span: float
    """Number of steps."""
    settings: RunSettings
    """Settings of both runs, except for engine and pace."""
    slack: float = 64.0
    """Slack of the asynchronous run. It is small compared with all updates, because one side may be ahead by it at the
    start."""

    def overlapped(self) -> float:
        """Return the seconds that an actor and a learner need."""
        return self._at_once(slack=max(self.slack, self.pace))

    def in_periods(self) -> float:
        """Return the seconds that an actor and a learner need if the run is reproducible."""
        return self._at_once(reproducible=True)

    def _at_once(self, **more: Any) -> float:
        settings = replace(self.settings, updates_per_step=self.pace, **more)
        return self._seconds(settings, lambda shared: [*learner_roles(shared), *actor_roles(shared)])

    def in_turns(self) -> float:
        """Return the seconds that the serial engine needs."""
        settings = replace(self.settings, engine="serial", updates_per_step=self.pace)
        return self._seconds(settings, lambda shared: [serial_role(shared)])

    def _seconds(self, settings: RunSettings, roles: Callable[[SharedMemory], list[Role]]) -> float:
        """Return the duration of a run, measured from the time when all processes are working."""
        shared = self.make(settings)
        before = shared.progress(0).warm_up
        with System(shared, roles(shared)) as system:

            def done() -> float:
                return min(system.steps - before, int(shared.board.learned.updates[0]) / self.pace)

            begun = system.until(lambda: done() >= 20 / self.pace, "all processes to be at work", 0.005)
            first = done()
            ended = system.until(lambda: done() >= first + self.span, "the work to be done", 0.01, 300.0)
            return (ended - begun) * self.span / (done() - first)


def balance(
    make: Callable[[RunSettings], SharedMemory], settings: RunSettings, paces: tuple[float, float], seconds: float
) -> tuple[float, float]:
    """Return the seconds of the serial engine for a step and for an update, computed from its speed at two paces."""
    times = []
    for pace in paces:
        found = []
        for _ in range(3):
            shared = make(replace(settings, engine="serial", updates_per_step=pace))
            with System(shared, [serial_role(shared)]) as system:
                at_work(system, 5)
                found.append(1 / system.rates(seconds)[0])
        times.append(statistics.median(found))
    learning = (times[1] - times[0]) / (paces[1] - paces[0])
    return times[0] - paces[0] * learning, learning

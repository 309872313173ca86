"""What worlds measure: numbers in ``info["metrics"]``, averaged over an episode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

from motet.system.raised import class_name

__all__ = ["EpisodeMetrics", "is_number"]


def is_number(value: Any) -> bool:
    """Whether a value can be a metric."""
    return isinstance(value, Real | np.bool_)


class EpisodeMetrics:
    """The means of the numbers that an environment reported in the present episode, by name.

    An environment that was not written for motet may have anything under ``metrics``. What is not a number is left out,
    with a warning the first time.

    Args:
        world: name of the environment, for the warning.

    >>> measured = EpisodeMetrics("Race")
    >>> measured.add({"metrics": {"speed": 1.0, "crashed": False}})
    >>> measured.add({"metrics": {"speed": 2.0}}, who="agent_1")
    >>> measured.means()
    {'speed': 1.0, 'crashed': 0.0, 'agent_1/speed': 2.0}
    """

    def __init__(self, world: str) -> None:
        self._world = world
        self._sums: dict[str, tuple[float, int]] = {}
        self._left_out: set[str] = set()

    def add(self, info: Any, who: str = "") -> None:
        """Add the metrics of an info; ``who``: the agent to which they belong, if the world has several agents."""
        given = info.get("metrics")
        if not isinstance(given, Mapping):
            self._leave_out(who, "", "a dict of numbers by name", given)
            return
        for name, value in given.items():
            if is_number(value):
                key = f"{who}/{name}" if who else str(name)
                total, count = self._sums.get(key, (0.0, 0))
                self._sums[key] = total + float(value), count + 1
            else:
                self._leave_out(who, f"[{str(name)!r}]", "a number", value)

    def _leave_out(self, who: str, key: str, expected: str, given: Any) -> None:
        """Warn, once for each agent and key, that a value is left out."""
        agent = f" (agent {who})" if who else ""
        text = f'{self._world}{agent}: info["metrics"]{key} must be {expected}, got {class_name(given)}; it is left out'
        if text not in self._left_out:
            self._left_out.add(text)
            warnings.warn(text, stacklevel=2)

    def clear(self) -> None:
        """Begin a new episode."""
        if self._sums:
            self._sums = {}

    def means(self) -> dict[str, float]:
        """Return the means so far."""
        return {name: total / count for name, (total, count) in self._sums.items()}

    def get_state(self) -> tuple[tuple[str, float, int], ...]:
        """Return the sums so far, as plain values."""
        return tuple((name, total, count) for name, (total, count) in self._sums.items())

    def set_state(self, state: tuple[tuple[str, float, int], ...]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._sums = {name: (total, count) for name, total, count in state}

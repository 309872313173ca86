"""What worlds measure: numbers in ``info["metrics"]``, averaged over an episode."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["EpisodeMetrics"]


class EpisodeMetrics:
    """The means of the numbers that an environment reported in the present episode, by name.

    Only mappings of numbers count, since an environment that does not know of this may have anything there.

    >>> measured = EpisodeMetrics()
    >>> measured.add({"metrics": {"speed": 1.0, "crashed": False}})
    >>> measured.add({"metrics": {"speed": 2.0}}, who="agent_1")
    >>> measured.means()
    {'speed': 1.0, 'crashed': 0.0, 'agent_1/speed': 2.0}
    """

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, info: Any, who: str = "") -> None:
        """Add the metrics of an info; ``who``: the agent that they belong to, if the world has several."""
        given = info.get("metrics")
        if isinstance(given, Mapping):
            for name, value in given.items():
                if isinstance(value, Real | np.bool_):
                    key = f"{who}/{name}" if who else str(name)
                    total, count = self._sums.get(key, (0.0, 0))
                    self._sums[key] = total + float(value), count + 1

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

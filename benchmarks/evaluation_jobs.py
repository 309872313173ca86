"""Episodes per second with slow policies, with one job and with two, for ``motet bench isolation``."""

from __future__ import annotations

import functools
import time
from types import TracebackType
from typing import Any

from motet.evaluation.evaluate import evaluate
from motet.evaluation.jobs import JobPool
from motet.worlds import MatrixGame

__all__ = ["Jobs", "Thinker"]

THINK_S = 0.002
TURNS = 10


class Thinker:
    """Uses two milliseconds of CPU time for each decision."""

    def reset(self, seed: int) -> None:
        """Begin an episode."""

    def act(self, observation: Any, mask: Any = None) -> int:
        """Return an action after some computation."""
        until = time.process_time() + THINK_S
        while time.process_time() < until:
            pass
        return 0


class Jobs:
    """Worker processes that have already started, so that their start is not measured."""

    def __init__(self, jobs: int = 2) -> None:
        self._workers = JobPool(jobs)
        for number in range(1, jobs + 1):
            self.episodes_per_s(number, 2 * number)

    def episodes_per_s(self, jobs: int, episodes: int) -> float:
        """Return the number of episodes per second with this many jobs."""
        world = functools.partial(MatrixGame, turns=TURNS)
        result = evaluate(world, Thinker, episodes=episodes, jobs=jobs, workers=self._workers)
        return episodes / result.measured.seconds

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.close()

"""Play episodes in the caller's process, so that a debugger reaches the policies and the world.

A policy that hangs or crashes makes the caller hang or crash.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace

from motet.evaluation.episode import Arena, EpisodePlan, Played, Task
from motet.evaluation.jobs import Disqualification
from motet.system.child import one_thread

__all__ = ["SerialPlayer"]


class SerialPlayer:
    """Plays one episode after the other, with the interface of a :class:`~motet.evaluation.jobs.JobPool`."""

    def play(
        self,
        plan: EpisodePlan,
        tasks: Sequence[Task],
        judge: Disqualification,
        stop: threading.Event,
        jobs: int,
        on_message: Callable[[str], None],
        known: Mapping[int, Played] = {},
    ) -> Generator[Played, None, None]:
        """Play all tasks and yield the results, as :meth:`~motet.evaluation.jobs.JobPool.play` does."""
        threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
        arena = Arena(plan)
        try:
            for task in tasks:
                if stop.is_set() or judge.ends:
                    return
                out = judge.out_of(task)
                played = known.get(task.number)
                if played is None or played.out != out:
                    one_thread()  # one thread, as in a job: the number of threads can change the last bits of a result
                    played = arena.play(replace(task, out=out))
                judge.take(played)
                yield played
        finally:
            arena.close()
            if threads is not None:
                sys.modules["torch"].set_num_threads(threads)

    def close(self) -> None:
        """Do nothing: no process was started."""

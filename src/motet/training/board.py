"""The board: what the processes of a run tell each other, one writer for every row.

Actors write how many rounds they have played and how their episodes went, learners how many updates they have done and
what they measured, everybody when they were last alive and what they wait for; the supervisor writes whether to stop.
Every row has its own cache lines. Nobody waits to write, and readers need no copy: each word stands for itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import ArraySpec
from motet.runs.snapshot import Wait
from motet.system.memory import Segment

__all__ = ["FINISHED", "Board"]


FINISHED = 2**63
"""The round of an actor that will play no more: nobody waits for it."""

_METRICS = 24
_NAMES = 1024
_WORDS = 8  # of a row: it has cache lines of its own

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]


class _Columns:
    """Rows of words in shared memory, whose columns have names: each is a view, ``[rows]``."""

    def __init__(self, words: npt.NDArray[Any]) -> None:
        self.words = words
        """The rows as they lie in memory, ``[rows, words]``."""
        for i, name in enumerate(type(self).__annotations__):
            setattr(self, name, words[..., i])


class ProcessColumns(_Columns):
    """By process."""

    heartbeat: Numbers
    """When it was last alive, in seconds of the monotonic clock."""
    waits_for: Numbers
    """A :class:`Wait`."""
    pid: Numbers
    starts: Numbers


class LearnedColumns(_Columns):
    """By policy, written by its learner."""

    updates: Words
    synced_round: Words
    """In lockstep, the last round for which it has done what was due."""
    published_step: Words
    """Steps of the policy at its newest version."""
    waived: Words
    """Updates that became due while the policy rested."""
    resting: Words
    """1 while its replay was cleared and has too few rows."""
    stage: Words


class EpisodeColumns(_Columns):
    """By actor and policy, written by the actor."""

    count: Numbers
    mean_return: Numbers
    """Over the last episodes, as the mean length."""
    last_return: Numbers
    mean_length: Numbers
    remade: Numbers
    """Worlds that raised and were made again."""
    version: Numbers
    """The version that acts."""
    forced: Numbers
    """How often a version had to be loaded because the one that acted was too old."""


class RowColumns(_Columns):
    """By policy, of a learner on another node."""

    lost: Words
    """Rows lost on their way."""
    refused: Words
    """Rows that there was no room for."""
    newest_version: Words


class EvaluationColumns(_Columns):
    """One row, written by the evaluator."""

    count: Numbers
    step: Numbers
    """Of the newest evaluation, as the team's return."""
    team_return: Numbers
    best: Numbers
    reached: Numbers
    """1 once an evaluation has reached ``until_return``."""
    due: Numbers
    """The step at which the next one is due."""


class Board:
    """The shared rows of a run.

    Args:
        processes: how many there are; each has one row.
        actors: how many of them act.
        policies: how many policies there are.
        segment: has room for :meth:`layout`.
    """

    def __init__(self, processes: int, actors: int, policies: int, segment: Segment) -> None:
        self._size = (processes, actors, policies)
        self._segment = segment
        for name in self.layout(*self._size):
            segment[name][...] = 0
        self._attach()
        for name in ("acted", "updated"):
            _native.Bell(segment[f"board/{name}"], fresh=True)
        self.evaluated_round[0] = FINISHED
        self.processes.heartbeat[:] = time.monotonic()

    @staticmethod
    def layout(processes: int, actors: int, policies: int) -> dict[str, ArraySpec]:
        """The arrays that a segment needs to hold such a board."""
        return {
            "board/stop": ArraySpec((_WORDS,), "uint64"),
            "board/evaluation": ArraySpec((1, _WORDS), "float64"),
            "board/evaluated": ArraySpec((_WORDS,), "uint64"),
            "board/processes": ArraySpec((processes, _WORDS), "float64"),
            "board/rounds": ArraySpec((actors, _WORDS), "uint64"),
            "board/learned": ArraySpec((policies, _WORDS), "uint64"),
            "board/episodes": ArraySpec((actors, policies, _WORDS), "float64"),
            "board/metrics": ArraySpec((policies, _METRICS), "float64"),
            "board/names": ArraySpec((policies, _NAMES), "uint8"),
            "board/rows": ArraySpec((policies, _WORDS), "uint64"),
            "board/acted": ArraySpec((_native.BELL_BYTES,), "uint8"),
            "board/updated": ArraySpec((_native.BELL_BYTES,), "uint8"),
        }

    def _attach(self) -> None:
        part = self._segment
        self._stop = part["board/stop"]
        self.evaluation = EvaluationColumns(part["board/evaluation"])
        self.evaluated_round = part["board/evaluated"]  # in lockstep, the round evaluated last; FINISHED: nobody waits
        self.processes = ProcessColumns(part["board/processes"])
        self.rounds: Words = part["board/rounds"][:, 0]  # by actor: rounds played
        self.learned = LearnedColumns(part["board/learned"])
        self.episodes = EpisodeColumns(part["board/episodes"])
        self.metrics = part["board/metrics"]
        self._names = part["board/names"]
        self.rows = RowColumns(part["board/rows"])
        self.acted = _native.Bell(part["board/acted"])  # rung by actors
        self.updated = _native.Bell(part["board/updated"])  # rung by learners

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_segment": self._segment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def pulse(self, process: int) -> Pulse:
        """How a process shows that it is alive."""
        return Pulse(self.processes.words[process])

    @property
    def stopping(self) -> bool:
        """Whether the run is to end."""
        return bool(self._stop[0])

    def request_stop(self) -> None:
        """Tell all processes to end."""
        self._stop[0] = 1

    def write_metrics(self, policy: int, values: Mapping[str, float]) -> None:
        """What a learner measured. The names of the first call are kept, at most 24; later values go by name."""
        shown = self._shown(policy)
        if not shown:
            shown = list(values)[:_METRICS]
            while len(text := json.dumps(shown).encode()) > _NAMES - 1:
                shown.pop()  # those that there is room for
            names = self._names[policy]
            names[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
            names[0] = 1
        for i, name in enumerate(shown):
            if name in values:
                self.metrics[policy, i] = values[name]

    def read_metrics(self, policy: int) -> dict[str, float]:
        """What a learner measured last."""
        return {name: float(self.metrics[policy, i]) for i, name in enumerate(self._shown(policy))}

    def _shown(self, policy: int) -> list[str]:
        """The names of a policy's metrics; none before the first call."""
        names = self._names[policy]
        if not names[0]:
            return []
        shown: list[str] = json.loads(bytes(names[1:]).rstrip(b"\0"))
        return shown


class Pulse:
    """The heartbeat of one process, shown by its role's own loop."""

    def __init__(self, row: npt.NDArray[np.float64]) -> None:
        self._row = memoryview(cast(Any, row)).cast("B").cast("d")

    def start(self, pid: int) -> None:
        """A process has begun."""
        self._row[_PID] = pid
        self._row[_STARTS] += 1
        self.waits_for(Wait.START)

    def beat(self) -> None:
        """Alive, and at work."""
        self._row[_WAITS_FOR] = 0
        self._row[_HEARTBEAT] = time.monotonic()

    def waits_for(self, what: Wait) -> None:
        """Alive, and waiting."""
        self._row[_WAITS_FOR] = what
        self._row[_HEARTBEAT] = time.monotonic()


_HEARTBEAT, _WAITS_FOR, _PID, _STARTS = range(len(ProcessColumns.__annotations__))

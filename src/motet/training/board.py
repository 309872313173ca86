"""The board: what the processes of a run tell each other, one writer for every row.

Actors write how many rounds they have played and how their episodes went, learners how many updates they have done and
what they measured, everybody when they were last alive and what they wait for; the supervisor writes whether to stop.
Every row has its own cache lines. Nobody waits to write, and readers need no copy: each word stands for itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.runs.snapshot import Wait
from motet.system.memory import Array, Segment

__all__ = ["FINISHED", "Board"]


FINISHED = 2**63
"""The round of an actor that will play no more: nobody waits for it."""

_METRICS = 24
_NAMES = 1024
_ALIVE = 4  # columns of an alive row: time of the last beat, what it waits for, pid, starts


class Board:
    """The shared rows of a run.

    Args:
        processes: how many there are; each has one row.
        actors: how many of them act.
        agents: how many agents there are.
        segment: has room for :meth:`layout`.
    """

    def __init__(self, processes: int, actors: int, agents: int, segment: Segment) -> None:
        self._size = (processes, actors, agents)
        self._segment = segment
        for name in self.layout(*self._size):
            segment[name][...] = 0
        self._attach()
        for name in ("acted", "learnt"):
            _native.Bell(segment[f"board/{name}"], fresh=True)
        self.evaluated[0] = FINISHED
        self.alive[:, 0] = time.monotonic()

    @staticmethod
    def layout(processes: int, actors: int, agents: int) -> dict[str, Array]:
        """The arrays that a segment needs to hold such a board."""
        return {
            "board/stop": Array((8,), "uint64"),
            "board/evaluation": Array((8,), "float64"),
            "board/evaluated": Array((8,), "uint64"),
            "board/alive": Array((processes, 8), "float64"),
            "board/rounds": Array((actors, 8), "uint64"),
            "board/learned": Array((agents, 8), "uint64"),
            "board/episodes": Array((actors, agents, 8), "float64"),
            "board/metrics": Array((agents, _METRICS), "float64"),
            "board/names": Array((agents, _NAMES), "uint8"),
            "board/rows": Array((agents, 8), "uint64"),
            "board/acted": Array((_native.BELL_BYTES,)),
            "board/learnt": Array((_native.BELL_BYTES,)),
        }

    def _attach(self) -> None:
        part = self._segment
        self.stop = part["board/stop"]
        # how many, step and team return of the newest, best so far, whether one reached until_return, when one is due
        self.evaluation = part["board/evaluation"]
        self.evaluated = part["board/evaluated"]  # in lockstep, the round that was seen to; FINISHED: nobody waits
        self.alive = part["board/alive"]
        self.rounds = part["board/rounds"]
        # by agent: updates, synced round, steps at the newest version, updates waived, whether it rests, stage
        self.learned = part["board/learned"]
        # count, mean of the last, last, mean length, worlds remade, version, refreshes forced
        self.episodes = part["board/episodes"]
        self.metrics = part["board/metrics"]
        self._names = part["board/names"]
        self.rows = part["board/rows"]  # of a learner elsewhere: lost on their way, refused there; its newest version
        self.acted = _native.Bell(part["board/acted"])
        self.learnt = _native.Bell(part["board/learnt"])

    def __getstate__(self) -> dict[str, Any]:
        return {"_size": self._size, "_segment": self._segment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def pulse(self, process: int) -> Pulse:
        """How a process shows that it is alive."""
        return Pulse(self.alive[process])

    @property
    def stopping(self) -> bool:
        """Whether the run is to end."""
        return bool(self.stop[0])

    def write_metrics(self, agent: int, values: Mapping[str, float]) -> None:
        """What a learner measured; the names of the first call are the ones that are shown."""
        names = self._names[agent]
        if not names[0]:
            shown = list(values)[:_METRICS]
            while len(text := json.dumps(shown).encode()) > _NAMES - 1:
                shown.pop()  # those that there is room for
            names[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
            names[0] = 1
        for i, value in enumerate(list(values.values())[:_METRICS]):
            self.metrics[agent, i] = value

    def read_metrics(self, agent: int) -> dict[str, float]:
        """What a learner measured last."""
        names = self._names[agent]
        if not names[0]:
            return {}
        keys: Sequence[str] = json.loads(bytes(names[1:]).rstrip(b"\0"))
        return {key: float(self.metrics[agent, i]) for i, key in enumerate(keys)}


class Pulse:
    """The beat of one process, beaten by its role's own loop."""

    def __init__(self, row: npt.NDArray[np.float64]) -> None:
        self._row = memoryview(cast(Any, row)).cast("B").cast("d")

    def start(self, pid: int) -> None:
        """A process has begun."""
        self._row[2] = pid
        self._row[3] = self._row[3] + 1
        self.waits_for(Wait.START)

    def beat(self) -> None:
        """Alive, and at work."""
        self._row[1] = 0
        self._row[0] = time.monotonic()

    def waits_for(self, what: Wait) -> None:
        """Alive, and waiting."""
        self._row[1] = what
        self._row[0] = time.monotonic()

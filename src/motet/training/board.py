"""The board: shared memory in which the processes of a run report their progress. Each row has one writer.

Actors write the number of rounds played and statistics of their episodes. Learners write the number of updates and
their metrics. Every process writes its last heartbeat, what it waits for, and the time that it has spent on each
activity. The supervisor writes whether to stop.
Each row has separate cache lines. Writers never wait, and readers need not copy, since each word is valid by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import ArraySpec
from motet.runs.snapshot import Wait
from motet.system.memory import Segment

__all__ = ["FINISHED", "Board", "Pulse", "Times", "no_times"]


FINISHED = 2**63
"""Round number of an actor that has finished. Other processes do not wait for it."""

_METRICS = 24
_NAMES = 1024
_WORDS = 8  # words of a row, which fill whole cache lines
_TIMES = 3 * _WORDS  # seconds by number of Wait and Work; the first number is the time at which the process began
_BEGAN = Wait.NOTHING

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]
Times: TypeAlias = "memoryview[float]"
"""Seconds that a process has spent, by number of :class:`Wait` and :class:`Work`. The process adds to them."""


def no_times() -> Times:
    """Return times that are not shown anywhere, for roles outside of a run."""
    return memoryview(bytearray(8 * _TIMES)).cast("d")


class _Columns:
    """Rows of words in shared memory with named columns. Each column is a view, ``[rows]``."""

    def __init__(self, words: npt.NDArray[Any]) -> None:
        self.words = words
        """All rows, ``[rows, words]``."""
        for i, name in enumerate(type(self).__annotations__):
            setattr(self, name, words[..., i])


class ProcessColumns(_Columns):
    """One row for each process."""

    heartbeat: Numbers
    """Time of the last heartbeat, in seconds of the monotonic clock."""
    waits_for: Numbers
    """What the process waits for, a :class:`Wait`."""
    pid: Numbers
    starts: Numbers
    """Number of times that the process was started."""
    asks: Numbers
    """Number of the partner for whose answer the process waits, from 1 on; 0: none."""


class LearnedColumns(_Columns):
    """One row for each policy, written by its learner."""

    updates: Words
    synced_round: Words
    """In lockstep, the last round for which all due updates are done."""
    published_step: Words
    """Steps of the policy when its newest version was published."""
    waived: Words
    """Updates that became due while the policy rested, and are skipped."""
    resting: Words
    """1 while the policy rests: its replay was cleared and has too few new rows."""
    stage: Words
    phases: Words
    """With periods: the number of phases that are published."""
    evaluations: Words
    """With periods: the number of the newest evaluation for which the learner has copied this policy."""


class EpisodeColumns(_Columns):
    """One row for each actor and policy, then for each actor and agent of a partner, written by the actor."""

    count: Numbers
    mean_return: Numbers
    """Mean return over the last episodes. The mean length is over the same episodes."""
    last_return: Numbers
    mean_length: Numbers
    remade: Numbers
    """Number of worlds that raised and were created again."""
    version: Numbers
    """The version that the actor uses."""
    forced: Numbers
    """Number of times that a version had to be loaded because the one in use was too old."""
    late_draws: Numbers
    """Global random generators from which a world drew after it had given up its own streams: the sum of 2 ** index."""
    failures: Numbers
    """Number of times that a partner failed and was replaced."""


class RowColumns(_Columns):
    """One row for each policy whose learner is on another node."""

    lost: Words
    """Rows lost on the way to the learner, or with it."""
    refused: Words
    """Rows that the learner refused because they came from an actor process that has been replaced."""
    newest_version: Words


class EvaluationColumns(_Columns):
    """A single row, written by the evaluator."""

    count: Numbers
    step: Numbers
    """Step of the newest evaluation, which also gave the team's return."""
    team_return: Numbers
    best: Numbers
    reached: Numbers
    """1 once an evaluation has reached ``until_return`` or ``until_score``."""
    due: Numbers
    """Step at which the next evaluation is due."""
    due_s: Numbers
    """Time at which the next evaluation is due, in seconds of the monotonic clock."""
    waiting: Numbers
    """1 while an evaluation waits for the end of the previous one."""
    skipped: Numbers
    """Number of skipped evaluations: they were due while another one was waiting, or were lost with a process."""
    began: Numbers
    """Time at which the first evaluator process started, in seconds of the monotonic clock."""
    begun: Numbers
    """With periods: the number of the newest evaluation that has begun in this session."""
    played: Numbers
    """With periods: the number of the newest evaluation that has ended in this session."""
    reaches: Numbers
    """With periods: 1 if the last evaluation has reached the return or score that ends the run. This takes effect when
    the next evaluation is due."""
    last_period: Numbers
    """With periods: the total number of periods of the run, after an evaluation has reached the return or score that
    ends the run; 0 before that."""


class EvaluatedColumns(_Columns):
    """One row for each policy, written by the evaluator."""

    count: Numbers
    """Number of evaluations since the run was started or resumed."""
    mean_return: Numbers
    """Mean return in the newest evaluation."""


class Board:
    """The shared rows of a run.

    Args:
        processes: number of processes; each has one row.
        actors: number of processes that are actors.
        policies: number of policies.
        segment: a segment with room for :meth:`layout`.
        fixed: number of agents that act by partners.
        worlds: number of worlds of each actor.
    """

    def __init__(
        self, processes: int, actors: int, policies: int, segment: Segment, fixed: int = 0, worlds: int = 1
    ) -> None:
        self._size = (processes, actors, policies, fixed, worlds)
        self._segment = segment
        for name in self.layout(*self._size):
            segment[name][...] = 0
        self._attach()
        for name in ("acted", "updated"):
            _native.Bell(segment[f"board/{name}"], fresh=True)
        self.evaluated_round[0] = FINISHED
        self.processes.heartbeat[:] = time.monotonic()

    @staticmethod
    def layout(processes: int, actors: int, policies: int, fixed: int = 0, worlds: int = 1) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such a board."""
        return {
            "board/stop": ArraySpec((_WORDS,), "uint64"),
            "board/evaluation": ArraySpec((1, 2 * _WORDS), "float64"),
            "board/evaluated": ArraySpec((_WORDS,), "uint64"),
            "board/evaluations": ArraySpec((policies, _WORDS), "float64"),
            "board/processes": ArraySpec((processes, _WORDS), "float64"),
            "board/times": ArraySpec((processes, _TIMES), "float64"),
            "board/rounds": ArraySpec((actors, _WORDS), "uint64"),
            "board/periods": ArraySpec((actors, _WORDS), "uint64"),
            "board/begun": ArraySpec((actors, _WORDS), "uint64"),
            "board/last": ArraySpec((_WORDS,), "uint64"),
            "board/ended": ArraySpec((actors, -(-worlds // _WORDS) * _WORDS), "uint64"),
            "board/learned": ArraySpec((policies, _WORDS), "uint64"),
            "board/episodes": ArraySpec((actors, policies + fixed, 2 * _WORDS), "float64"),
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
        # in lockstep, the last round for which evaluations are done; FINISHED: do not wait for evaluations
        self.evaluated_round = part["board/evaluated"]
        self.evaluated = EvaluatedColumns(part["board/evaluations"])
        self.processes = ProcessColumns(part["board/processes"])
        self._times: Numbers = part["board/times"]
        self.rounds: Words = part["board/rounds"][:, 0]  # by actor: rounds played
        self.periods: Words = part["board/periods"][:, 0]  # by actor: periods ended
        self.begun: Words = part["board/begun"][:, 0]  # by actor: periods begun
        self.last_period: Words = part["board/last"][:1]  # number of periods to play; 0: to the end of the run
        self._pauses: Words = part["board/last"][1:2]
        self._cut: Words = part["board/last"][2:3]
        self.ended: Words = part["board/ended"][:, : self._size[4]]  # by actor and world: episodes that have ended
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
        """Return the heartbeat of a process, which that process writes."""
        return Pulse(self.processes.words[process], self.times(process))

    def times(self, process: int) -> Times:
        """Return the times of a process, which that process writes."""
        return _scalars(self._times[process])

    def spent(self, process: int) -> Numbers:
        """Return a copy of the times of a process. The first one is its whole time up to its last heartbeat."""
        found: Numbers = self._times[process].copy()
        found[_BEGAN] = max(float(self.processes.heartbeat[process]) - found[_BEGAN], 0.0) if found[_BEGAN] else 0.0
        return found

    def set_spent(self, process: int, spent: Numbers) -> None:
        """Write the times of a process on another node, after its heartbeat, as :meth:`spent` returns them."""
        began = float(self.processes.heartbeat[process]) - spent[_BEGAN]
        self._times[process] = [began, *spent[_BEGAN + 1 :]]

    def late_draws(self) -> int:
        """Return the bits of the global random generators from which worlds of any actor drew after they had given up
        their own streams."""
        return int(np.bitwise_or.reduce(self.episodes.late_draws.astype(np.int64), axis=None))

    @property
    def stopping(self) -> bool:
        """Whether the processes have been told to end."""
        return bool(self._stop[0])

    def pause(self) -> None:
        """With periods: let no actor begin another period until the last period is named."""
        self._pauses[0] = 1
        self.updated.ring()  # an atomic operation, between the store before it and the loads after it

    def name_last_period(self) -> int:
        """With periods: stop at the end of a period that no actor has passed. Return the number of periods to play.

        If an evaluation has reached the limit, it has named that period. Otherwise: before an actor begins a period, it
        first announces the period and then checks whether it has to pause. So either the announcement is counted here,
        or the actor pauses until the number is known.
        """
        if not self.evaluation.last_period[0]:  # otherwise an evaluation has named it
            self._name_period(self.last_period)
        return self.periods_to_play

    def name_cut(self) -> int:
        """With periods: let all actors wait after a certain number of periods, and return this number.

        No actor has ended more periods than that. The actors wait until :meth:`end_cut` is called.
        """
        self._name_period(self._cut)
        return self.cut

    def end_cut(self) -> None:
        """Let the actors that wait since :meth:`name_cut` continue."""
        self._pauses[0] = self._cut[0] = 0
        self.updated.ring()

    def _name_period(self, word: Words) -> None:
        self.pause()
        word[0] = max(1, int(self.begun.max()))
        self.updated.ring()

    @property
    def cut(self) -> int:
        """With periods: the number of periods after which actors wait for a checkpoint; 0: they do not wait."""
        return int(self._cut[0])

    @property
    def evaluations_left(self) -> bool:
        """With periods: whether an evaluation is due that has not ended."""
        row = self.evaluation
        return not row.reached[0] and float(self.learned.evaluations.min()) > float(row.played[0])

    @property
    def periods_to_play(self) -> int:
        """With periods: the number of periods to play; 0: to the end of the run."""
        named = int(self.last_period[0]), int(self.evaluation.last_period[0])
        return min((number for number in named if number), default=0)

    @property
    def decisions(self) -> Numbers:
        """With periods: what the supervisor and the evaluator have decided, for actors on other nodes."""
        begun = float(self.evaluation.begun[0])  # written after the last period that the evaluation names
        return np.array([self.evaluation.last_period[0], self.last_period[0], self._pauses[0], begun])

    def decide(self, decisions: Numbers) -> None:
        """Write what :attr:`decisions` returned on the node of the supervisor."""
        evaluation = self.evaluation
        evaluation.last_period[0], self.last_period[0], self._pauses[0], evaluation.begun[0] = decisions
        self.updated.ring()

    @property
    def evaluation_waits(self) -> bool:
        """With periods: whether an evaluation is due that has not begun, because the previous one has not ended."""
        return float(self.learned.evaluations.min()) > float(self.evaluation.begun[0])

    @property
    def pausing(self) -> bool:
        """Whether actors must not begin a period now, because the last period is being determined."""
        return bool(self._pauses[0])

    def request_stop(self, last_evaluation: bool | None = False) -> None:
        """Tell all processes to end.

        ``last_evaluation``: whether the evaluator plays the last evaluation before it ends. None: the evaluator waits
        until another call of this method decides this.
        """
        self._stop[0] = 1
        self._stop[1] = 0 if last_evaluation is None else 1 + last_evaluation

    @property
    def last_evaluation(self) -> bool | None:
        """Whether the evaluator has to play the last evaluation now; None: this is not decided yet."""
        return None if not self._stop[1] else bool(self._stop[1] - 1)

    def write_metrics(self, policy: int, values: Mapping[str, float]) -> None:
        """Write the metrics of a learner. The first call sets the names. At most 24 names, and 1 kB of names, are
        shown."""
        shown = self._shown(policy)
        if not shown:
            shown = list(values)[:_METRICS]
            while len(text := json.dumps(shown).encode()) > _NAMES - 1:
                shown.pop()  # leave out names until the rest fits
            names = self._names[policy]
            names[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
            names[0] = 1
        for i, name in enumerate(shown):
            if name in values:
                self.metrics[policy, i] = values[name]

    def read_metrics(self, policy: int) -> dict[str, float]:
        """Return the last metrics of a learner."""
        return {name: float(self.metrics[policy, i]) for i, name in enumerate(self._shown(policy))}

    def _shown(self, policy: int) -> list[str]:
        """Return the names of a policy's metrics; empty before the first call of :meth:`write_metrics`."""
        names = self._names[policy]
        if not names[0]:
            return []
        shown: list[str] = json.loads(bytes(names[1:]).rstrip(b"\0"))
        return shown


def _scalars(row: Numbers) -> Times:
    """Return a row as a memoryview, whose numbers are read and written much faster than those of an array."""
    return memoryview(cast(Any, row)).cast("B").cast("d")


class Pulse:
    """The heartbeat of one process, and the time that it waits, written by the loop of its role.

    The time between :meth:`waits_for` and the next call of any method counts as waiting. So the loop calls
    :meth:`works` when a wait is over. While the process works, this class measures nothing.
    """

    def __init__(self, row: Numbers, times: Times) -> None:
        self._row, self.times = _scalars(row), times
        self._waits, self._since = 0, 0.0

    def start(self, pid: int) -> None:
        """Note that the process has started. Its times continue from those before a restart."""
        if self.times[_BEGAN]:
            self.times[_BEGAN] += time.monotonic() - self._row[_HEARTBEAT]
        else:
            self.times[_BEGAN] = time.monotonic()
        self._row[_PID] = pid
        self._row[_STARTS] += 1
        self.asks(0)
        self.waits_for(Wait.START)

    def beat(self) -> None:
        """Write a heartbeat: the process is working."""
        now = time.monotonic()
        if self._waits:
            self._end_wait(now)
        self._row[_WAITS_FOR] = 0
        self._row[_HEARTBEAT] = now

    def works(self) -> None:
        """Note that a wait is over. What the process waited for is shown until its next heartbeat."""
        if self._waits:
            self._end_wait(time.monotonic())

    def asks(self, partner: int) -> None:
        """Write the number of the partner that is asked now; 0: none."""
        self.works()
        self._row[_ASKS] = partner

    def waits_for(self, what: Wait) -> None:
        """Write a heartbeat: the process is waiting."""
        now = time.monotonic()
        if self._waits:
            self._end_wait(now)
        self._waits, self._since = int(what), now
        self._row[_WAITS_FOR] = what
        self._row[_HEARTBEAT] = now

    def _end_wait(self, now: float) -> None:
        self.times[self._waits] += now - self._since
        self._waits = 0


_HEARTBEAT, _WAITS_FOR, _PID, _STARTS, _ASKS = range(len(ProcessColumns.__annotations__))

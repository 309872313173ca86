"""Periods: what a reproducible run fixes, so that its result does not depend on timing (see :mod:`motet.pace`).

When an actor ends a period, it *records* the number of rows in each of its lanes. A phase of learning reads only rows
with smaller numbers. It ignores later rows, even if they are already written, and it ignores how many steps have been
done by now. There are two records, for even and odd periods, because actors are never more than one period ahead of a
phase that has begun.

:class:`Records` is the shared memory of the records, :class:`ActorPeriods` the side of an actor and
:class:`StackRecord` that of a stack. The pace defines which side waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import ReaderSettings
from motet.arrays import ArraySpec
from motet.pace import Pace
from motet.publication import GivenVersion
from motet.replay import Replay, ReplaySpec
from motet.system.memory import Segment
from motet.training.board import FINISHED, Board
from motet.training.league import LeagueBoard, Results
from motet.training.roster import Roster

__all__ = ["ActorPeriods", "Records", "StackRecord"]

_HEAD, _FINALS = range(2)  # columns of a record
_PARITIES = 2

Record = npt.NDArray[np.uint64]
"""The rows of each lane of a policy at the end of a period, and how many of them are final rows: ``[lanes, 2]``."""


class Records:
    """The records of all policies in shared memory. Each actor writes the rows of its own lanes.

    Args:
        roster: the roster of the run.
        replays: the replays of the policies.
        board: the board, on which actors count the periods that they have ended.
        steps_before: steps of each policy before its replay began.
        segment: a segment with room for :meth:`layout`.
        league: in self-play, where actors write the results of games.
    """

    def __init__(
        self,
        roster: Roster,
        replays: Sequence[Replay],
        board: Board,
        steps_before: Sequence[int],
        segment: Segment,
        league: LeagueBoard | None = None,
    ) -> None:
        self._league = league
        self._roster, self._replays, self._board, self._segment = roster, replays, board, segment
        self._steps_before = steps_before
        for i in range(len(roster.policies)):
            self._of(i)[...] = 0
        self._results[...] = 0

    @staticmethod
    def layout(roster: Roster) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such records."""
        lanes = [roster.lanes(i) for i in range(len(roster.policies))]
        records = {f"policy{i}/records": ArraySpec((_PARITIES, n, 2), "uint64") for i, n in enumerate(lanes)}
        return {**records, "records/results": ArraySpec((_PARITIES, roster.actors), "uint64")}

    @property
    def _results(self) -> npt.NDArray[np.uint64]:
        return self._segment["records/results"]

    def _of(self, policy: int) -> npt.NDArray[np.uint64]:
        return self._segment[f"policy{policy}/records"]

    def write(self, actor: int) -> None:
        """Write the record of the period that an actor ends now, and then count the period."""
        period = int(self._board.periods[actor])
        for policy, replay in enumerate(self._replays):
            record = self._of(policy)[period % _PARITIES]
            for lane in self._roster.lanes_of(policy, actor):
                words = replay.words(lane)
                record[lane] = words.head, words.finals
        if self._league is not None:
            self._results[period % _PARITIES, actor] = Results.newest(self._league.results[actor])
        self._board.acted.ring()  # an atomic operation: a process that reads the new count also reads the new record
        self._board.periods[actor] = period + 1

    def read(self, policy: int, phase: int) -> Record:
        """Return the record that a phase reads. An actor that has finished keeps its last record."""
        roster, record = self._roster, self._of(policy)
        found = np.zeros(record.shape[1:], np.uint64)
        for actor in range(roster.actors):
            lanes = roster.lanes_of(policy, actor)
            found[lanes] = record[self._row(actor, phase), lanes]
        return found

    def results(self, phase: int) -> list[int]:
        """Return, for each actor, the number of the last result of a game that a phase of self-play reads."""
        return [int(self._results[self._row(actor, phase), actor]) for actor in range(self._roster.actors)]

    def _row(self, actor: int, phase: int) -> int:
        """Return the row of an actor's record that a phase reads."""
        last = max(int(self._board.periods[actor]) - 1, 0)
        return min(phase, last) % _PARITIES

    @property
    def ended(self) -> int:
        """Number of periods that every actor has ended. Actors that have finished all their steps do not count."""
        # read before the periods, because an actor counts its last period before it finishes
        rounds = self._board.rounds.tolist()
        periods: list[int] = self._board.periods.tolist()
        return min((p for r, p in zip(rounds, periods, strict=True) if r != FINISHED), default=max(periods))

    @property
    def complete(self) -> bool:
        """Whether all actors have finished, and all phases are published."""
        board = self._board
        return int(board.rounds.min()) == FINISHED and int(board.learned.phases.min()) >= int(board.periods.max())

    @property
    def evaluate_every(self) -> int:
        """Steps between two evaluations; 0: there are none."""
        return self._roster.evaluate_every

    def steps(self, policy: int, phase: int) -> int:
        """Return the steps of a policy since its replay began, up to the period of a phase."""
        record = self.read(policy, phase)
        return int(record[:, _HEAD].sum() - record[:, _FINALS].sum())

    def evaluation_after(self, phase: int) -> int | None:
        """Return the number of the newest evaluation that is due after a phase; None if the phase is the last one.

        This may only be called while the phase is not published.
        """
        every, before = self.evaluate_every, self._steps_before
        if not every:
            return None
        steps = max(before[policy] + self.steps(policy, phase) for policy in range(len(before)))
        return None if steps >= self._roster.steps else steps // every


class ActorPeriods:
    """The periods of one actor.

    Args:
        records: the records of the run.
        board: the board of the run.
        roster: the roster of the run.
        index: index of the actor.
    """

    def __init__(self, records: Records, board: Board, roster: Roster, index: int) -> None:
        self._records, self._board, self._pace, self._index = records, board, roster.pace, index
        self.version = GivenVersion()
        """The version by which the actor acts in the period that has begun."""
        self.over = False
        """Whether the actor has played all periods of a run that was stopped."""

    def begin(self) -> bool:
        """Begin the next period if the pace allows it. Return False only if the actor has to wait."""
        board, period = self._board, int(self._board.periods[self._index])
        if not self._pace.may_begin(period, int(board.learned.phases.min())) or board.evaluation_waits:
            return False
        board.begun[self._index] = period + 1
        board.acted.ring()  # an atomic operation: see Board.name_last_period
        pauses, last = board.pausing, board.periods_to_play
        if pauses and not last:
            return False
        self.over = 0 < last <= period
        self.version.number = self._pace.version_in(period)
        return True

    def end(self, rounds: int, is_last: bool) -> bool:
        """End the period if it is over after this many rounds of the run; return whether it is.

        ``is_last``: whether the actor plays no more rounds, which ends a partial period.
        """
        begun = int(self._board.periods[self._index]) * self._pace.period
        if rounds - begun < (1 if is_last else self._pace.period):
            return False
        self._records.write(self._index)
        return True


class PhaseReader(Protocol):
    """A reader that can be limited to the rows of a record."""

    def limit(self, ends: npt.NDArray[np.uint64], room: int, /) -> None:
        """Ignore all rows from the given row numbers on, one number for each lane."""
        ...

    def forget(self, open: bool = False, /) -> None:
        """Never again draw a row with a smaller number than these. ``open``: this includes the next row of each
        lane."""
        ...


class StackRecord:
    """The rows that a phase of a stack reads: those of its policies up to the end of the phase's period.

    Args:
        records: the records of the run.
        policies: indices of the policies of the stack.
        settings: how they read their replays.
        pace: the pace of the run.
        spec: the layout of the replay of each of them.
    """

    def __init__(
        self, records: Records, policies: Sequence[int], settings: ReaderSettings, pace: Pace, spec: ReplaySpec
    ) -> None:
        self._records, self._policies, self._settings, self._pace = records, tuple(policies), settings, pace
        self.priorities = _size_of(spec) if settings.prioritised else 0
        """Number of priorities of each policy, which its vault also holds."""
        self.evaluations: npt.NDArray[np.int64] = np.zeros(2, np.int64)
        """The number of the newest evaluation that is due after the phase, and the number of evaluations in this
        session."""
        self.cleared: npt.NDArray[np.int64] = np.zeros(len(policies), np.int64)
        """For each policy, the first period after those whose rows were forgotten when its replay was cleared."""
        self._position = {policy: i for i, policy in enumerate(policies)}
        self.words: npt.NDArray[np.uint64] = np.stack([np.zeros_like(records.read(p, 0)) for p in policies])
        """The record of each policy, ``[policies, lanes, 2]``."""

    @staticmethod
    def header(policies: int, spec: ReplaySpec, prioritised: bool) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the fields of a vault's header that hold this record and all priorities: shape and dtype by name."""
        items: dict[str, tuple[tuple[int, ...], str]] = {
            "record": ((policies, spec.n_lanes, 2), "uint64"),
            "evaluations": ((2,), "int64"),
            "cleared": ((policies,), "int64"),
        }
        if prioritised:
            items["priorities"] = (policies, _size_of(spec)), "float32"
        return items

    def at_start(self, steps: int) -> dict[str, npt.NDArray[Any]]:
        """Return these fields of a vault's header for a run that is resumed after this many steps, without rows."""
        every = self._records.evaluate_every
        found = {**self.saved(), "evaluations": np.array([steps // every if every else 0, 0], np.int64)}
        if self.priorities:
            found["priorities"] = np.zeros((len(self._policies), self.priorities), np.float32)
        return found

    def turn_to(self, phase: int, readers: Sequence[PhaseReader]) -> None:
        """Limit the readers to the record of a phase. Every actor must have ended its period."""
        words, due = np.stack([self._records.read(policy, phase) for policy in self._policies]), self.evaluations
        number = self._records.evaluation_after(phase)
        if number is not None and number > due[0]:
            due = np.array([number, due[1] + 1], np.int64)
        self.words, self.evaluations = words, due
        self.limit(readers)
        for reader, first in zip(readers, self.cleared.tolist(), strict=True):
            if phase < first:
                reader.forget(True)

    def clear(self, position: int, phase: int, reader: PhaseReader) -> None:
        """Forget all rows of a policy whose actions come from versions before that of a phase, also if they are not
        written yet.

        At the end of a period an agent may have acted, and its row may not be complete.
        """
        reader.forget(True)
        self.cleared[position] = self._pace.first_period_after(phase)

    def saved(self) -> dict[str, npt.NDArray[Any]]:
        """Return the values of this record for the header of a vault."""
        return {"record": self.words, "evaluations": self.evaluations, "cleared": self.cleared}

    def restore(self, vault: Mapping[str, Any], readers: Sequence[PhaseReader]) -> None:
        """Continue from the header of a vault."""
        self.words, self.evaluations, self.cleared = (np.array(vault[name]) for name in self.saved())
        self.limit(readers)

    def limit(self, readers: Sequence[PhaseReader]) -> None:
        """Limit the readers to the rows of this record."""
        for reader, lanes in zip(readers, self.words, strict=True):
            reader.limit(np.ascontiguousarray(lanes[:, _HEAD]), self._pace.room)

    def results(self, phase: int) -> list[int]:
        """Return, for each actor, the number of the last result that a phase reads."""
        return self._records.results(phase)

    def steps(self) -> list[int]:
        """Return the steps of each policy."""
        rows = self.words.sum(1).tolist()
        return [int(head - finals) for head, finals in rows]

    def steps_of(self, policy: int) -> int:
        """Return the steps of one policy."""
        return self.steps()[self._position[policy]]

    def batches(self, policy: int) -> int:
        """Return the number of complete batches of one policy that reads rows once, in whole fragments."""
        heads = self.words[self._position[policy], :, _HEAD].tolist()
        fragments = sum((head - 1) // self._settings.length for head in heads if head)
        return int(fragments // self._settings.batch_size)


def _size_of(spec: ReplaySpec) -> int:
    return spec.lane_capacity * spec.n_lanes

"""Periods: what a reproducible run fixes, so that its result does not depend on timing (see :mod:`motet.pace`).

When an actor ends a period, it *records* the number of rows in each of its lanes. A phase of learning reads only rows
with smaller numbers. It ignores later rows, even if they are already written, and it ignores how many steps have been
done by now. There are two records, for even and odd periods, because actors are never more than one period ahead of a
phase that has begun.

:class:`Records` is the shared memory of the records, :class:`ActorPeriods` the side of an actor and
:class:`StackRecord` that of a stack. The pace defines which side waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    On a cluster each process has its own records. An actor writes how many rows it has made, for its links to the
    learners, and the host of a learner writes how many of them are in its lanes, once all of a period have arrived.

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
        self.steps_before: Sequence[int] = steps_before
        """Steps of each policy when this session began."""
        for i in range(len(roster.policies)):
            self._of(i)[...] = 0
        self.totals[...] = 0

    @staticmethod
    def layout(roster: Roster) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such records."""
        lanes = [roster.lanes(i) for i in range(len(roster.policies))]
        records = {f"policy{i}/records": ArraySpec((_PARITIES, n, 2), "uint64") for i, n in enumerate(lanes)}
        return {**records, "records/totals": ArraySpec((_PARITIES, roster.actors, len(lanes) + 1), "uint64")}

    @property
    def totals(self) -> npt.NDArray[np.uint64]:
        """By parity and actor: the steps of each policy, and the number of the last result of a game."""
        return self._segment["records/totals"]

    def _of(self, policy: int) -> npt.NDArray[np.uint64]:
        return self._segment[f"policy{policy}/records"]

    def write(self, actor: int, totals: npt.NDArray[np.uint64] | None = None) -> None:
        """Write the record of the period that an actor ends now, and then count the period.

        ``totals``: those of the actor, if some of its lanes are on other nodes.
        """
        period = int(self._board.periods[actor])
        found = self.totals[period % _PARITIES, actor]
        for policy, replay in enumerate(self._replays):
            record, lanes = self._of(policy)[period % _PARITIES], self._roster.lanes_of(policy, actor)
            for lane in lanes:
                words = replay.written(lane)
                record[lane] = words.head, words.finals
            found[policy] = sum(int(head) - int(finals) for head, finals in record[lanes].tolist())
        if self._league is not None:
            found[-1] = Results.newest(self._league.results[actor])
        if totals is not None:
            found[:] = totals
        self._board.acted.ring()  # an atomic operation: a process that reads the new count also reads the new record
        self._board.periods[actor] = period + 1

    def continue_from(self, actor: int, periods: int, totals: npt.NDArray[np.uint64]) -> None:
        """Count the periods of an actor on another node, after a restart of either side. All rows here belong to them.

        ``totals``: by parity, those of the last two periods.
        """
        for policy, replay in enumerate(self._replays):
            for lane in self._roster.lanes_of(policy, actor):
                words = replay.written(lane)
                self._of(policy)[:, lane] = words.head, words.finals
        self.totals[:, actor] = totals
        self._board.periods[actor] = periods

    def of_period(self, policy: int, period: int) -> Record:
        """Return the record of one of the last two periods. Only the lanes of an actor that has ended it are valid."""
        record: Record = self._of(policy)[period % _PARITIES]
        return record

    def total(self, actor: int, period: int) -> npt.NDArray[np.uint64]:
        """Return the totals of an actor at the end of one of its last two periods."""
        found: npt.NDArray[np.uint64] = self.totals[period % _PARITIES, actor].copy()
        return found

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
        return [int(number) for number in self._totals(phase)[:, -1]]

    def _totals(self, phase: int) -> npt.NDArray[np.uint64]:
        actors = range(self._roster.actors)
        return np.stack([self.totals[self._row(actor, phase), actor] for actor in actors])

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

    def evaluation_after(self, phase: int) -> int:
        """Return the number of the newest evaluation that is due after a phase, counted from the start of the session.

        It is 0 if none is, and after the last phase. This may only be called while the phase is not published.
        """
        every, before = self.evaluate_every, self.steps_before
        steps = max(map(sum, zip(before, self._totals(phase)[:, :-1].sum(0).tolist(), strict=True)))
        return steps // every - max(before) // every if every and steps < self._roster.steps else 0


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
        self.on_cut: Callable[[int], None] = lambda cut: None
        """Called once when the actor waits for a checkpoint, with the number of periods that it has ended."""
        self._cut = 0

    def begin(self) -> bool:
        """Begin the next period if the pace allows it. Return False only if the actor has to wait."""
        board, period = self._board, int(self._board.periods[self._index])
        if not self._pace.may_begin(period, int(board.learned.phases.min())) or board.evaluation_waits:
            return False
        board.begun[self._index] = period + 1
        board.acted.ring()  # an atomic operation: see Board.name_last_period
        pauses, last, cut = board.pausing, board.periods_to_play, board.cut
        if pauses and not (last or cut):
            return False
        self.over = 0 < last <= period
        if 0 < cut <= period and not self.over:
            if self._cut != cut:
                self.on_cut(cut)
                self._cut = cut
            return False
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
        self.evaluation: npt.NDArray[np.int64] = np.zeros(1, np.int64)
        """The number of the newest evaluation that is due after the phase."""
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
            "evaluation": ((1,), "int64"),
            "cleared": ((policies,), "int64"),
        }
        if prioritised:
            items["priorities"] = (policies, _size_of(spec)), "float32"
        return items

    def at_start(self, evaluation: int = 0) -> dict[str, npt.NDArray[Any]]:
        """Return these fields of a vault's header for learners that start without rows."""
        found = {**self.saved(), "evaluation": np.array([evaluation], np.int64)}
        if self.priorities:
            found["priorities"] = np.zeros((len(self._policies), self.priorities), np.float32)
        return found

    def turn_to(self, phase: int, readers: Sequence[PhaseReader]) -> None:
        """Limit the readers to the record of a phase. Every actor must have ended its period."""
        self.words = np.stack([self._records.read(policy, phase) for policy in self._policies])
        self.evaluation = np.maximum(self.evaluation, self._records.evaluation_after(phase))
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
        return {"record": self.words, "evaluation": self.evaluation, "cleared": self.cleared}

    def restore(self, vault: Mapping[str, Any], readers: Sequence[PhaseReader]) -> None:
        """Continue from the header of a vault."""
        self.words, self.evaluation, self.cleared = (np.array(vault[name]) for name in self.saved())
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

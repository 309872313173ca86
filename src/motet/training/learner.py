"""Learner: reads batches, updates policies and publishes them.

A learner runs a *stack*: one or several policies with equal settings, updated in one pass, each with a separate replay,
weights, optimiser and random stream. Every few updates the learner writes the whole state of the stack into its
*vault*, as one version, and after that the weights of each policy into its publication. So no actor ever gets a version
from which a restarted learner could not continue. The learner does not depend on the writers of the replay or on the
subscribers.

If rows are read once, every update is saved before its rows are released to the writers. The order is vault, release,
publication. If the learner dies before the vault is written, the update is repeated from the same rows. If it dies
after that, the restarted learner finds the cursor in the vault and completes the release. In both cases the surviving
state has used each row once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Algorithm, Batch, LearnsInPhases, ReaderSettings, Sizes, StartsFromRow, Update
from motet.errors import NotReadyError
from motet.runs.snapshot import Work
from motet.schedule import Schedule, value_at
from motet.streams import Streams
from motet.training.board import Board, Pulse, Times, no_times
from motet.training.league import LeagueTable
from motet.training.periods import StackRecord
from motet.training.progress import StackProgress

__all__ = ["Learner", "StackMember", "restore", "vault_header"]

_BATCHES, _UPDATES, _PUBLISHING = int(Work.BATCHES), int(Work.UPDATES), int(Work.PUBLISHING)
_METRICS_EVERY = 10  # updates between two reports of metrics


class RowReader(Protocol):
    """A replay from which batches are read."""

    @property
    def state_words(self) -> int:
        """Number of words that save_state writes."""
        ...

    def sample(self, batch_size: int, *, beta: float = ..., into: Any = ...) -> Any:
        """Draw a batch."""
        ...

    def take(self, fragments: int, length: int, *, into: Any = ...) -> Any:
        """Take the next rows, each of them once; None if there are too few."""
        ...

    def release(self) -> None:
        """Release the rows that were taken, so that writers may overwrite them."""
        ...

    def update(self, batch: Any, priority: npt.NDArray[np.float32], /) -> None:
        """Set new priorities."""
        ...

    def limit(self, ends: npt.NDArray[np.uint64], room: int, /) -> None:
        """Ignore all rows from the given row numbers on, one number for each lane."""
        ...

    def ready(self) -> int:
        """Return the number of rows from which a transition may be drawn."""
        ...

    def forget(self, open: bool = False, /) -> None:
        """Never again draw a row that has been written so far. ``open``: this includes the next row of each lane."""
        ...

    def save_priorities(self, values: npt.NDArray[np.float32], /) -> None:
        """Write the priorities of all rows into ``values``."""
        ...

    def load_priorities(self, values: npt.NDArray[np.float32], /) -> None:
        """Continue from these priorities."""
        ...

    def counters(self) -> Any:
        """Return counters of what happened to the rows so far."""
        ...

    def save_state(self, words: npt.NDArray[np.uint64], /) -> None:
        """Write the state that a restarted learner needs into ``words``."""
        ...

    def load_state(self, words: npt.NDArray[np.uint64], /) -> None:
        """Continue from this state."""
        ...


class PolicySink(Protocol):
    """A publication to which versions are written."""

    @property
    def announced(self) -> int:
        """The newest version that subscribers find; 0 for none."""
        ...

    def publish(self, weights: npt.NDArray[np.float32], *, version: int | None = None, **header: Any) -> int:
        """Publish one version."""
        ...


@dataclass
class StackMember:
    """One policy of a stack in its learner."""

    reader: RowReader
    steps: Callable[[], int]
    """Returns the number of steps that its agents have done."""
    publisher: PolicySink
    aside: PolicySink | None
    """Publication for the copies of policies that are to be evaluated; None without evaluations of phases."""
    batch: Any
    """The reader's batch, whose arrays are this policy's part of the stacked batch."""
    stage: int = 0
    """Index of the stage that was entered last."""
    awaits: int = 0
    """While the policy rests: the number of rows at which the rest ends. A policy rests after its replay was cleared,
    and while its replay has fewer transitions than a batch because episodes ended or broke off. 0: it does not rest."""
    waived: int = 0
    """Number of updates that became due while the policy rested, and are skipped."""
    step: int = 0
    """Number of the policy's steps at its newest version."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Stage, rest and waived updates, for the vault."""
        return self.stage, self.awaits, self.waived

    def restore(self, stage: int, awaits: int, waived: int) -> None:
        """Continue from what the vault contains."""
        self.stage, self.awaits, self.waived = int(stage), int(awaits), int(waived)


def vault_header(policies: int, sizes: Sizes, reader_words: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the header of a stack's vault, which precedes the flat states: shape and dtype by name."""
    return {
        "counters": ((policies, sizes.counters), "int64"),
        "random": ((policies, max(sizes.random, 1)), "uint8"),
        "reader": ((policies, reader_words), "uint64"),
        "steps": ((policies,), "int64"),
        "stage": ((policies, 3), "int64"),
    }


def restore(
    algorithm: Algorithm, policies: Sequence[StackMember], vault: Any, record: StackRecord | None = None
) -> int:
    """Restore the state from a vault's subscriber, which must have been refreshed; return its version."""
    if record is not None:
        record.restore(vault, [policy.reader for policy in policies])
    algorithm.state[...] = vault.weights.reshape(algorithm.state.shape)
    algorithm.counters[...] = vault["counters"]
    algorithm.random[...] = vault["random"][:, : algorithm.random.shape[1]]
    algorithm.load()
    for policy, words, progress, step in zip(policies, vault["reader"], vault["stage"], vault["steps"], strict=True):
        policy.reader.load_state(np.ascontiguousarray(words))
        policy.restore(*progress)
        policy.step = int(step)
    if record is not None and record.priorities:
        for policy, values in zip(policies, vault["priorities"], strict=True):
            policy.reader.load_priorities(np.ascontiguousarray(values))
    return int(vault.version)


def start(algorithm: Algorithm, rows: Sequence[npt.NDArray[np.float32] | None]) -> None:
    """Let the policies of a stack start from rows of other runs; None: from their own initial rows."""
    for i, row in enumerate(rows):
        if row is None:
            continue
        if isinstance(algorithm, StartsFromRow):
            algorithm.start_from(i, row)
        else:
            algorithm.save()
            algorithm.state[i] = row
            algorithm.load()


class Learner:
    """Learns the policies of a stack, update by update.

    Args:
        algorithm: the algorithm of the stack, new or restored from the vault.
        members: one for each policy of the stack.
        vault: the vault of the stack.
        settings: how the algorithm reads the replay.
        batch: the stacked arrays that the members' batches are parts of.
        publish_every: updates between versions; always 1 if rows are read once.
        progress: the progress of the policies, and which updates are due.
        board: the board to which the learner writes updates, versions, stages and metrics.
        league: in self-play, the player's league.
        streams: the global random streams of an algorithm that may draw from them.
        times: the sums to which it adds the time of batches, updates and publishing.
        scheduled: settings that may change during the run, and are shown with the metrics.
        record: with periods, the rows that its phases read.
        version: the version from which it was restored; 0: none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        members: Sequence[StackMember],
        vault: PolicySink,
        settings: ReaderSettings,
        batch: Batch,
        publish_every: int,
        progress: StackProgress,
        board: Board,
        league: LeagueTable | None = None,
        streams: Streams | None = None,
        times: Times | None = None,
        scheduled: Mapping[str, Schedule] | None = None,
        record: StackRecord | None = None,
        version: int = 0,
    ) -> None:
        self._times, self._scheduled = times or no_times(), dict(scheduled or {})
        self.algorithm, self.members, self.progress, self.streams = algorithm, members, progress, streams
        self.policies = list(progress.policies)
        """Indices of its policies in the roster."""
        self.once = settings.once
        """Whether the learner reads every row once."""
        self._vault, self._settings, self._batch = vault, settings, batch
        self._publish_every = 1 if settings.once else publish_every
        self._record, self._version = record, version
        self._learned, self._board, self._league = board.learned, board, league
        self._has_stages = len(settings.stages.names) > 1
        self._show_stages()

    def begin(self) -> None:
        """Publish the present weights, so that actors can begin."""
        if self._version == 0:
            self.save()
        self._hand_out()

    def end(self) -> None:
        """Save and publish the last state. With periods the last phase has already done so."""
        if self._record is None:
            self.publish()

    @property
    def phases(self) -> int:
        """With periods: the number of completed phases, derived from the version that was saved last."""
        return self._version - 1

    def play_phase(self, pulse: Pulse | None = None) -> None:
        """Do the next phase: all updates that its record makes due, then save and publish once."""
        assert self._record is not None
        self._record.turn_to(self.phases, [member.reader for member in self.members])
        if self._league is not None:
            self._league.hear(self._record.results(self.phases))
        if isinstance(self.algorithm, LearnsInPhases):
            self.algorithm.begin_phase()
        self.catch_up(pulse)
        self.publish()

    def catch_up(self, pulse: Pulse | None = None) -> None:
        """Do all updates that are due, as lockstep requires."""
        self.enter_stages()
        while any(due := self.progress.due()):
            self.update(due)
            if pulse:
                pulse.beat()

    def update(self, due: Sequence[bool] | None = None) -> None:
        """Do one update of the policies that are due (None: all policies). The others do not change, bit for bit."""
        due = [True] * len(self.members) if due is None else due
        if self.streams is not None:
            self.streams.enter()
        due, update = self._update(due)
        if update is None:
            return
        updates = self.algorithm.counters[:, 0].tolist()
        if self._record is None and any(
            is_due and count % self._publish_every == 0 for count, is_due in zip(updates, due, strict=True)
        ):
            self.publish()
        else:
            self._show()
        for i, is_due in enumerate(due):
            if is_due and (self.once or updates[i] % _METRICS_EVERY == 0):
                self._report(i, update)
        if self._has_stages and self._settings.stages.by == "updates":
            self.enter_stages()  # done before the next update, because that may already belong to the next stage

    def publish(self) -> None:
        """Save the present state and publish its weights, even if no update is due."""
        began = monotonic()
        self.save()
        self._hand_out()
        self._times[_PUBLISHING] += monotonic() - began

    def save(self) -> None:
        """Write everything that a restarted learner needs into the vault, as its next version."""
        state, header = self.state()
        for member, step in zip(self.members, header["steps"], strict=True):
            member.step = int(step)
        if self._league is not None and self._record is not None:
            self._league.publish(self._next_version)
        self._version = self._vault.publish(state, version=self._next_version, **header)

    @property
    def _next_version(self) -> int | None:
        """The number of the next version; None: one more than any that a reader may have seen.

        With periods it is the number of the phase. A learner that was restarted does the same phase again, with the
        same result.
        """
        return None if self._record is None else self._version + 1

    def _hand_out(self) -> None:
        """Release rows to the writers, then publish the weights of the version in the vault.

        A restarted learner repeats this, because the previous process may have died between these operations. It does
        not publish a version again that is already announced: the next slot may hold a version that is still needed.
        """
        if self.once:
            for member in self.members:
                member.reader.release()
        weights, version = self.algorithm.weights(), self._version
        if self._record is not None:
            self._copy_aside(weights, int(self._record.evaluation[0]))
        for i, member in enumerate(self.members):
            if member.publisher.announced < version:
                header = self.algorithm.header(member.step, i)
                member.publisher.publish(weights[i], version=version, published_step=member.step, **header)
        self._show()
        if self._record is not None:
            self._learned.phases[self.policies] = self.phases

    def _copy_aside(self, weights: npt.NDArray[np.float32], evaluation: int) -> None:
        """Publish copies of the policies if an evaluation is due. ``evaluation``: number of the newest one that is."""
        for i, member in enumerate(self.members):
            if member.aside is not None and member.aside.announced < evaluation:
                header = self.algorithm.header(member.step, i)
                member.aside.publish(
                    weights[i], version=evaluation, published_step=member.step, phases=self.phases, **header
                )
        self._learned.evaluations[self.policies] = evaluation

    def state(self) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Return the present state in the form of the vault: flat states, and the header by name. Changes nothing."""
        algorithm, members = self.algorithm, self.members
        algorithm.save()
        more: dict[str, Any] = {}
        if self._record is not None:
            more |= self._record.saved()
            if self._record.priorities:
                more["priorities"] = np.zeros((len(members), self._record.priorities), np.float32)
                for member, row in zip(members, more["priorities"], strict=True):
                    member.reader.save_priorities(row)
        words = np.zeros((len(members), members[0].reader.state_words), np.uint64)
        for member, row in zip(members, words, strict=True):
            member.reader.save_state(row)
        return algorithm.state.reshape(-1), {
            "counters": algorithm.counters,
            "random": algorithm.random if algorithm.random.size else np.zeros((len(members), 1), np.uint8),
            "reader": words,
            "steps": np.array([member.steps() for member in members], np.int64),
            "stage": np.array([member.progress for member in members], np.int64),
            **more,
        }

    def was_published_at(self, steps: Sequence[int]) -> None:
        """Set the steps at which the newest version was published, by policy; they may be lower than those of the
        state."""
        for member, step in zip(self.members, steps, strict=True):
            member.step = step

    # One update

    def _update(self, due: Sequence[bool]) -> tuple[list[bool], Update | None]:
        """Update the policies that are due and have enough rows; due policies without enough rows rest. Returns the
        updated ones."""
        settings, members, times, began = self._settings, self.members, self._times, monotonic()
        steps, updates = [member.steps() for member in members], self.algorithm.counters[:, 0].tolist()
        due = list(due)
        for i, (member, step, count) in enumerate(zip(members, steps, updates, strict=True)):
            if not due[i]:
                continue
            if not settings.once:
                beta = value_at(settings.beta, step, settings.stages, count)
                try:
                    member.reader.sample(settings.batch_size, beta=beta, into=member.batch)
                except NotReadyError:
                    member.awaits, due[i] = settings.batch_size, False
            elif member.reader.take(settings.batch_size, settings.length, into=member.batch) is None:
                raise NotReadyError(
                    f"an update needs {settings.batch_size} fragments of {settings.length} rows of each policy, which "
                    "the replay does not have yet"
                )
        drawn = monotonic()
        if not all(due) and any(member.awaits for member in members):
            self._show_stages()
        if not any(due):
            return due, None
        update = self.algorithm.update(self._batch, steps) if all(due) else self._update_some(steps, due)
        updated = monotonic()
        if update.priorities is not None and settings.prioritised:
            for member, priorities, is_due in zip(members, update.priorities, due, strict=True):
                if is_due:
                    member.reader.update(member.batch, priorities)
        times[_UPDATES] += updated - drawn
        times[_BATCHES] += drawn - began + monotonic() - updated
        return due, update

    def _update_some(self, steps: Sequence[int], due: Sequence[bool]) -> Update:
        """Update the whole stack in one pass, then restore the policies that are not due to their state before."""
        algorithm, batch = self.algorithm, self._batch
        model = due.index(True)
        others = [i for i, is_due in enumerate(due) if not is_due]
        for array in batch.arrays():
            array[others] = array[model]  # fill the batch with any valid rows: a device may still hold older arrays
        algorithm.save()
        parts: list[npt.NDArray[Any]] = [algorithm.state, algorithm.counters, algorithm.random]
        kept = [part[others] for part in parts]
        update = algorithm.update(batch, steps)
        algorithm.save()
        for part, rows in zip(parts, kept, strict=True):
            part[others] = rows
        algorithm.load()
        return update

    # Stages, and the league

    def enter_stages(self) -> None:
        """Enter the stages that have been reached, and publish them even without an update; review the league."""
        if self._league is not None and self._league.due(steps := self.members[0].steps()):
            self._league.review(steps, self.algorithm.weights()[0])
        stages, members = self._settings.stages, self.members
        if not self._has_stages:
            if any(member.awaits for member in members):
                self._end_rests()
            return
        updates = self.algorithm.counters[:, 0].tolist()
        reached = [stages.index(member.steps(), count) for member, count in zip(members, updates, strict=True)]
        if any(stage > member.stage for stage, member in zip(reached, members, strict=True)):
            for i, (stage, member) in enumerate(zip(reached, members, strict=True)):
                if set(stages.names[member.stage + 1 : stage + 1]) & set(stages.clear_replay_on_stage):
                    if self._record is None:
                        member.reader.forget()
                    else:
                        self._record.clear(i, self.phases, member.reader)
                    member.awaits = max(-(-self._settings.min_rows // self._settings.stride), self._settings.batch_size)
                member.stage = max(member.stage, stage)
            # before the board shows it: if the learner dies earlier, the restarted one clears the replay again
            self._publish_stages()
            self._show_stages()
        elif any(member.awaits for member in members):
            self._end_rests()

    def _end_rests(self) -> None:
        """End the rest of each policy whose replay has enough rows again."""
        members = self.members
        ready = [not member.awaits or member.reader.ready() >= member.awaits for member in members]
        # Policies in step continue at the same time, so that they share a pass again.
        together = [all(ready[i] for i in group) for group in self.progress.in_step()]
        over = [i for i, member in enumerate(members) if member.awaits and together[i]]
        for i in over:
            members[i].waived += max(0, self.progress.owed(i))
            members[i].awaits = 0
        if over:
            self._publish_stages()  # so that a restarted learner neither rests again nor skips more updates
            self._show_stages()

    def _publish_stages(self) -> None:
        """Publish stages and rests now. With periods the phase that has just begun will publish them."""
        if self._record is None:
            self.publish()

    # The learner's part of the board

    def _show(self) -> None:
        """Write the updates of each policy and its steps at the newest version to the board."""
        self._learned.updates[self.policies] = self.algorithm.counters[:, 0]
        self._learned.published_step[self.policies] = [member.step for member in self.members]

    def _show_stages(self) -> None:
        """Write stages and rests to the board. ``resting`` is set before the other columns, and reset after them."""
        learned = self._learned
        for policy, member in zip(self.policies, self.members, strict=True):
            if member.awaits:
                learned.resting[policy] = 1
            learned.waived[policy], learned.stage[policy] = member.waived, member.stage
            if not member.awaits:
                learned.resting[policy] = 0

    def _report(self, position: int, update: Update) -> None:
        """Write the metrics of an update of one policy and the counters of its rows to the board."""
        counts = self.members[position].reader.counters()
        rows = {"rows_used": counts.consumed}
        if not self.once:
            rows = {"rows_overwritten_unread": counts.overwritten_unread, "rows_redrawn": counts.redrawn}
        metrics = {name: float(values[position]) for name, values in update.metrics.items()}
        rates = {} if self._league is None else self._league.rates()
        step, updates = self.members[position].step, int(self.algorithm.counters[position, 0])
        now = {name: value_at(value, step, self._settings.stages, updates) for name, value in self._scheduled.items()}
        self._board.write_metrics(self.policies[position], metrics | now | rows | rates)

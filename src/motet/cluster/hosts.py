"""Hosts of roles on a cluster: one Ray actor for each actor and each learner process. The roles run unchanged.

    actor:    play_actor ─▶ outbox ═ blocks of rows, round ═▶ lanes ─▶ play_learner          :learner
              publications ◀═ reply: what has arrived, pace, newest bundle ═ publications, board

Each actor has one *link* to each learner process, with one block in transit at a time. A block contains all rows that
wait for that learner, copied unchanged from the outbox, and the number and incarnation of the sender. Blocks of an
earlier incarnation that is still alive somewhere are refused and counted. The reply contains the number of rows that
have arrived in each lane, the learner's progress, and the location of its newest *bundle*: the versions of all its
policies in one flat object in the node's object store, which each node fetches once for all its actors. Rows leave the
outbox when they are known to have arrived, so a restarted learner gets the rows that did not arrive before. In
self-play the results of games are sent with the blocks, and the league is a separate bundle.

With periods (see :mod:`motet.pace`) no block contains rows of two periods, and a block with the last row of a period
says so. The learner's host then writes the record of that period, from its own lanes, as the actor would do on the same
machine. So a phase waits for the rows that it may look at. A bundle keeps the last two versions, and each actor gets
both.

The driver polls every host at regular intervals. The question says whether to stop and contains the handles of the
learners; the report contains board, vault and counters. A learner does not send a version to actors before the driver
has a state from which the learner could be restarted.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.cluster.connect import Shipment
from motet.cluster.link import Link
from motet.cluster.messages import ActorReport, BlockReply, JoinReply, LearnerReport, LearnerStart
from motet.cluster.shared import LocalMemory, packed
from motet.errors import SupersededError
from motet.runs.snapshot import Wait
from motet.system.child import one_thread
from motet.system.supervisor import RestartLimits
from motet.training.board import FINISHED
from motet.training.drivers import play_actor, play_learner
from motet.training.league import Results
from motet.training.periods import Records
from motet.training.progress import StackProgress
from motet.training.recorder import fill
from motet.training.roster import Roster

__all__ = ["ActorHost", "LearnerHost"]

_HOLD_S = 0.1  # seconds that a learner may delay its reply to an actor that waits for the pace
_SWITCH_S = 0.0002  # interpreter switch interval: threads that carry blocks and replies must not wait long


class LearnerHost:
    """A learner process, and the replays of its policies.

    Args:
        shipment: the :class:`Roster`, and the state to start from (:class:`LearnerStart`, or None).
        index: index of the learner process.
        bring_rows: whether the learner's last report contains its replays.
        number: number of this start, from 0 on.
    """

    def __init__(self, shipment: Shipment, index: int, bring_rows: bool = False, number: int = 0) -> None:
        _settle_in()
        self._bring_rows = bring_rows
        roster: Roster
        start: LearnerStart | None
        roster, start = shipment.value
        self._index, self._stacks, self._number, self._node = index, roster.processes[index], number, ""
        self._policies = roster.policies_of(index)
        self._memory = memory = LocalMemory(roster, policies=self._policies, vaults=True)
        self._progress = [memory.progress(k) for k in self._stacks]
        self._incarnations = [-1] * roster.actors
        self._writers: dict[tuple[int, int], Any] = {}
        self._expected: dict[tuple[int, int], int] = {}  # the next outbox row, by policy and lane
        self._made = np.zeros((roster.actors, len(self._policies)), np.int64)
        self._lock = threading.Lock()  # held by the threads of this process while they receive blocks
        self._bundles = memory.bundles(self._policies)
        self._vaults = [(memory.vaults[k], memory.vaults[k].subscriber()) for k in self._stacks]
        self._kept = False  # whether the driver has a state of this learner
        if start is not None:
            self._begin(start)

    def _begin(self, start: LearnerStart) -> None:
        memory, after = self._memory, start.after
        fill(memory, start.checkpoint, self._stacks, after and after.version, after.evaluation if after else 0)
        if memory.records is not None:
            memory.records.steps_before = list(start.began)
        if after is None:
            return
        self._kept = True
        self._incarnations = list(after.incarnations)
        memory.board.rounds[:] = after.rounds
        self._count_out(after.over)
        memory.board.rows.words[self._policies, :2] = after.counts
        for policy, steps, gone in zip(self._policies, after.steps, after.gone, strict=True):
            memory.steps_before[policy] = steps - memory.replays[policy].steps
            memory.gone[policy] = np.array(gone)
        for stack in self._progress:  # the pace continues from the remaining rows
            stack.settle()

    def play(self) -> LearnerReport:
        """Learn until the run ends."""
        self._node = _node()
        play_learner(self._memory, self._index)
        brought = self._policies if self._bring_rows else []
        rows = {p: [self.dump(p, lane) for lane in range(self._memory.roster.lanes(p))] for p in brought}
        everything = [0] * len(self._bundles)
        return self.report(stop=True, bundles=everything, vaults=True, kept=True)._replace(replays=rows)

    def join(
        self,
        actor: int,
        incarnation: int,
        rows: dict[tuple[int, int], int],
        made: Sequence[int],
        came: Sequence[int] = (),
        done: Sequence[npt.NDArray[np.int64]] | None = None,
        results: npt.NDArray[np.uint64] | None = None,
        periods: int = 0,
        totals: npt.NDArray[np.uint64] | None = None,
    ) -> JoinReply:
        """Give an actor's lanes to an incarnation of the actor.

        Args:
            actor: index of the actor.
            incarnation: its incarnation.
            rows: the next outbox row, by policy and lane.
            made: by policy of this process, the number of rows that earlier incarnations are known to have made.
            came: by policy, the number of these rows that have arrived, as far as the driver knows.
            done: by policy, for each lane, steps that belong to the rows before ``rows``; None if the actor has not
                joined a learner yet. A learner that died may have reported rows to the driver but not to the actor,
                which then sends them again.
            results: in self-play, the actor's ring of results.
            periods: number of periods to which the rows before ``rows`` belong, if the actor has joined a learner
                before.
            totals: by parity, the totals of the last two of them.
        """
        memory, lanes = self._memory, self._lanes_of(actor)
        with self._lock:
            known = self._incarnations[actor]
            if incarnation < known:
                raise SupersededError(f"start {incarnation} of actor-{actor} was replaced by start {known}")
            if incarnation > known:
                arrived = [sum(self._expected.get((p, lane), 0) for lane in own) for p, own in lanes.items()]
                arrived = list(map(max, arrived, came or arrived))
                lost = np.maximum(self._made[actor], np.array(made, np.int64)) - arrived
                memory.board.rows.lost[self._policies] += np.maximum(lost, 0).astype(np.uint64)
                self._made[actor] = 0
            self._incarnations[actor] = incarnation
            if done is not None:
                for policy, steps in zip(self._policies, done, strict=True):
                    self._count_again(policy, lanes[policy], steps)
            for policy, own in lanes.items():
                for lane in own:
                    self._writers[policy, lane] = memory.replays[policy].writer(lane, timeout_s=0.0)
                    self._expected[policy, lane] = rows[policy, lane]
            records = memory.records
            if records is not None and done is not None and totals is not None:
                records.continue_from(actor, periods, totals)
            return JoinReply(
                self._words(lanes),
                [memory.steps_before[p] for p in self._policies],
                [memory.updates_before[p] for p in self._policies],
                int(memory.board.rounds[actor]),
                self._number,
                [memory.gone[p].copy() for p in self._policies],
                self._take_results(actor, results),
                int(memory.board.periods[actor]),
                None if records is None else records.totals[:, actor].copy(),
            )

    def receive(
        self,
        actor: int,
        incarnation: int,
        round: int,
        pieces: list[tuple[int, int, int, int]],
        data: npt.NDArray[np.uint8],
        made: list[int],
        waits: bool,
        bundles: Sequence[int],
        results: npt.NDArray[np.uint64] | None = None,
        totals: npt.NDArray[np.uint64] | None = None,
    ) -> BlockReply:
        """Receive a block of an actor's rows: pieces (policy, lane, first row, bytes) and their concatenated bytes.

        ``bundles``: the numbers of the bundles that the actor has. ``results``: results of games, in self-play.
        ``totals``: the totals of a period that ends with this block.
        """
        memory, board = self._memory, self._memory.board
        with self._lock:
            if incarnation != self._incarnations[actor]:
                for policy, _, _, size in pieces:
                    board.rows.refused[policy] += np.uint64(size // memory.replays[policy].spec.row_bytes)
                raise SupersededError(
                    f"start {incarnation} of actor-{actor} was replaced by start {self._incarnations[actor]}"
                )
            taken = self._take(pieces, data)
            self._take_results(actor, results)
            self._made[actor] = made
            if totals is not None and memory.records is not None and taken == self._rows_of(pieces):
                memory.records.write(actor, totals)
            board.rounds[actor] = round
        board.acted.ring()
        if waits:
            self._hold(actor)
        # First the progress, then the policies: an actor that sees a round then also has the versions made in it.
        learned, pace = board.learned.words[self._policies], memory.tell_pace(self._policies)
        words, news = self._words(self._lanes_of(actor)), self._publish(bundles)
        return BlockReply(taken, words, learned, pace, news, int(board.periods[actor]))

    def _rows_of(self, pieces: Sequence[tuple[int, int, int, int]]) -> list[int]:
        """Return the number of rows of each piece."""
        return [size // self._memory.replays[policy].spec.row_bytes for policy, _, _, size in pieces]

    def _take(self, pieces: Sequence[tuple[int, int, int, int]], data: npt.NDArray[np.uint8]) -> list[int]:
        taken, at = [], 0
        for policy, lane, first, size in pieces:
            row_bytes = self._memory.replays[policy].spec.row_bytes
            known = self._expected[policy, lane] - first  # number of rows of the block that had arrived before
            fresh = data[at + known * row_bytes : at + size]
            rows = self._writers[policy, lane].append_rows(fresh)
            self._expected[policy, lane] += rows
            taken.append(known + rows)
            at += size
        return taken

    def _count_again(self, policy: int, lanes: Sequence[int], steps: npt.NDArray[np.int64]) -> None:
        """Correct the steps of a policy in some lanes to the numbers that an actor knows."""
        memory = self._memory
        here = [memory.replays[policy].words(lane).steps for lane in lanes]
        memory.steps_before[policy] += int((steps - here - memory.gone[policy][lanes]).sum())
        memory.gone[policy][lanes] = steps - here

    def _take_results(self, actor: int, words: npt.NDArray[np.uint64] | None) -> npt.NDArray[np.uint64] | None:
        league = self._memory.league
        if league is None or words is None:
            return None
        ring: npt.NDArray[np.uint64] = league.results[actor]
        Results.take_in(ring, words)
        return ring.copy()

    def _hold(self, actor: int) -> None:
        """Wait, at most ``_HOLD_S``, until an actor could continue for a while. Without the wait, the actor would only
        ask again."""
        board = self._memory.board
        deadline = time.monotonic() + _HOLD_S
        while not board.stopping and (left := deadline - time.monotonic()) > 0:
            seen = board.updated.count
            if all(self._has_caught_up(stack, actor) for stack in self._progress):
                return
            board.updated.wait(seen, left)

    def _has_caught_up(self, stack: StackProgress, actor: int) -> bool:
        pace, board, policies = self._memory.roster.pace, self._memory.board, list(stack.policies)
        if pace.lockstep:
            return int(board.learned.synced_round[policies].min()) >= int(board.rounds[actor])
        if pace.period:
            return pace.may_begin(int(board.periods[actor]), int(board.learned.phases[policies].min()))
        return stack.has_caught_up()

    def _publish(self, known: Sequence[int]) -> list[list[tuple[int, Any]]]:
        """Return the versions of the bundles for actors that are newer than ``known``."""
        if not self._kept:
            return [[] for _ in known]
        import ray

        with self._lock:
            for bundle, _ in zip(self._bundles, known, strict=False):
                bundle.renew()
            return [bundle.stored_since(number, ray.put) for bundle, number in zip(self._bundles, known, strict=False)]

    def _count_out(self, over: Mapping[int, int]) -> None:
        """Do not wait for the actors in ``over``, which have finished. It gives the number of periods that each has
        ended."""
        for actor, periods in over.items():
            self._memory.board.periods[actor] = periods
            self._memory.board.rounds[actor] = FINISHED

    def _lanes_of(self, actor: int) -> dict[int, list[int]]:
        """Return the lanes of an actor, by policy of this process."""
        return {policy: self._memory.roster.lanes_of(policy, actor) for policy in self._policies}

    def _words(self, lanes: Mapping[int, Sequence[int]]) -> list[npt.NDArray[np.uint64]]:
        """Return the words of some lanes, by policy."""
        replays = self._memory.replays
        return [np.array([replays[policy].words(lane) for lane in own], np.uint64) for policy, own in lanes.items()]

    def dump(self, policy: int, lane: int) -> npt.NDArray[np.uint8]:
        """Return a copy of the memory of a lane."""
        return self._memory.replays[policy].dump(lane)

    def report(
        self,
        stop: bool,
        bundles: Sequence[int | None],
        vaults: bool,
        kept: bool = False,
        over: Mapping[int, int] = MappingProxyType({}),
    ) -> LearnerReport:
        """Answer a poll of the driver.

        Args:
            stop: whether the run is to end.
            bundles: the numbers of the bundles that the driver has; None for a bundle that it does not need.
            vaults: whether the report must contain the state.
            kept: whether the driver has a state from which this learner could be restarted.
            over: the finished actors whose rows have all arrived, with the number of periods that each has ended. A
                restarted learner may not know them.
        """
        memory, board = self._memory, self._memory.board
        self._kept = self._kept or kept
        self._count_out(over)
        if stop:
            memory.end_roles()
        row = memory.roster.actors + self._index
        learned = board.learned.words[self._policies]  # before the copies of policies for evaluations
        news: list[list[tuple[int, npt.NDArray[np.uint8]]]] = []
        with self._lock:
            for bundle, number in zip(self._bundles, bundles, strict=False):
                if number is not None:
                    bundle.renew()
                news.append([] if number is None else bundle.since(number))
            versions = [bundle.versions for bundle in self._bundles[: len(memory.carried(self._policies))]]
            board.rows.newest_version[self._policies] = versions[0]
            all_lanes = {policy: range(memory.roster.lanes(policy)) for policy in self._policies}
            words, incarnations = self._words(all_lanes), list(self._incarnations)
            rows, gone = board.rows.words[self._policies], [memory.gone[p].copy() for p in self._policies]
            before = [memory.steps_before[p] for p in self._policies]
        held = [subscriber.refresh() or bool(subscriber.version) for _, subscriber in self._vaults] if vaults else []
        whole = vaults and all(held)
        return LearnerReport(
            self._number,
            self._node,
            time.monotonic() - float(board.processes.heartbeat[row]),
            board.processes.words[row].copy(),
            board.spent(row),
            learned,
            board.metrics[self._policies],
            board._names[self._policies],
            rows,
            words,
            before,
            [memory.updates_before[p] for p in self._policies],
            gone,
            incarnations,
            max(map(max, versions)),
            news,
            packed(self._vaults) if whole else None,
            memory.league.results.copy() if whole and memory.league is not None else None,
            {},
        )


def _settle_in() -> None:
    """Set up a Ray process for one role and the threads that carry its messages."""
    one_thread()
    sys.setswitchinterval(_SWITCH_S)


def _node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


class ActorHost:
    """An actor, and its links to the learners.

    Args:
        shipment: the :class:`Roster`.
        index: index of the actor.
        incarnation: number of this start, from 0 on.
        made: by policy, rows that earlier starts are known to have made.
        learners: the hosts of the learners.
        limits: time limits for starts and heartbeats.
        block_age_s: longest time in seconds that rows wait before they are sent.
        came: by policy, how many of the rows ``made`` are known to have arrived.
        ended: by world, episodes that have ended before this start.
        decisions: as in :meth:`Board.decide`.
    """

    def __init__(
        self,
        shipment: Shipment,
        index: int,
        incarnation: int,
        made: Sequence[int],
        learners: Sequence[Any],
        limits: RestartLimits,
        block_age_s: float,
        came: Sequence[int] = (),
        ended: Sequence[int] | None = None,
        decisions: npt.NDArray[np.float64] | None = None,
    ) -> None:
        _settle_in()
        roster: Roster = shipment.value
        self._node = ""
        self._index, self._incarnation, self._limits = index, incarnation, limits
        self._reporting = threading.Lock()  # held because two threads report at the end
        # The timeout is longer than the restart of a learner, during which no row leaves the outbox.
        self._memory = LocalMemory(roster, actor=index, timeout_s=limits.start_s + limits.hang_s)
        self._memory.board.ended[index] = 0 if ended is None else ended
        if decisions is not None:
            self._memory.board.decide(decisions)
        self._ended = self._memory.episodes.reader(index)
        self._links = [
            Link(self._memory, index, incarnation, made, i, learner, limits, block_age_s, came)
            for i, learner in enumerate(learners)
        ]

    def play(self) -> ActorReport:
        """Act until this actor's share of the steps is done, and the learners have all of its rows."""
        board, self._node = self._memory.board, _node()
        joined = [link.join() for link in self._links]
        board.rounds[self._index] = min(reply.round for reply in joined)
        if self._memory.records is not None:
            self._continue_periods(self._memory.records, joined)
        for link in self._links:
            link.start()
        try:
            play_actor(self._memory, self._index, self._incarnation, self._limits.start_s)
        finally:
            deadline = time.monotonic() + self._limits.start_s
            for link in self._links:
                link.drain(deadline)
        return self.report(stop=False, learners=None)

    def _continue_periods(self, records: Records, joined: Sequence[JoinReply]) -> None:
        """Continue with the period in which the previous process of this actor was, as far as any learner knows."""
        board, length = self._memory.board, self._memory.roster.pace.period
        last = max(joined, key=lambda reply: reply.periods)
        assert last.totals is not None
        records.continue_from(self._index, last.periods, last.totals)
        rounds = max(reply.round for reply in joined)
        if rounds != FINISHED:
            board.rounds[self._index] = min(max(rounds, last.periods * length), (last.periods + 1) * length)

    def report(
        self, stop: bool, learners: Sequence[Any] | None, decisions: npt.NDArray[np.float64] | None = None
    ) -> ActorReport:
        """Answer a poll of the driver. ``decisions``: as in :meth:`Board.decide`."""
        with self._reporting:
            return self._report(stop, learners, decisions)

    def _report(
        self, stop: bool, learners: Sequence[Any] | None, decisions: npt.NDArray[np.float64] | None
    ) -> ActorReport:
        memory, board = self._memory, self._memory.board
        if decisions is not None:
            board.decide(decisions)
        for link, learner in zip(self._links, learners or (), strict=False):
            link.turn_to(learner)
        if stop:
            memory.end_roles()
        replays: Sequence[Any] = memory.replays
        spent = board.spent(self._index)
        outboxes = [replay.outbox for replay in replays]
        spent[Wait.ROOM] += sum(o.words(i).waited_ns for o in outboxes for i in range(o.spec.n_lanes)) / 1e9
        if any(link.blocked for link in self._links):
            board.pulse(self._index).waits_for(Wait.ROOM)
        return ActorReport(
            self._incarnation,
            self._node,
            time.monotonic() - float(board.processes.heartbeat[self._index]),
            board.processes.words[self._index].copy(),
            spent,
            int(board.rounds[self._index]),  # before the periods, which it counts before it finishes
            int(board.periods[self._index]),
            int(board.begun[self._index]),
            board.pausing,
            board.episodes.words[self._index].copy(),
            board.ended[self._index].copy(),
            [replay.made for replay in replays],
            [sum(replay.carried) for replay in replays],
            [link.newest for link in self._links],
            [replay.table[replay.lanes] for replay in replays],
            self._ended.read(),
            self._ended.lost,
            [link.heard for link in self._links],
        )

"""Link: carries an actor's rows to a learner process, and the learner's versions and progress back.

It reads rows from the actor's outbox and sends them unchanged, in blocks, one at a time. From the replies it writes
the learner's bundles into the actor's publications, and the learner's progress into the actor's board. With periods, a
block has rows of only one period, and the block with the last row of a period says that the period has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.cluster.messages import JoinReply
from motet.cluster.shared import DistantReplay, LocalMemory, unpack
from motet.errors import WaitTimeoutError
from motet.publication import Publication
from motet.runs.snapshot import Wait
from motet.system.supervisor import RestartLimits
from motet.training.board import FINISHED
from motet.training.league import Results

__all__ = ["Link"]

_BLOCK_BYTES = 4 * 2**20
_SLACK_SHARE = 0.5  # rows for this share of the slack are sent at once; otherwise both sides would wait alternately
_AGAIN_S = 0.2  # seconds before a learner that could not be reached is asked again


class Link:
    """The connection of an actor to a learner process. A separate thread sends rows and receives versions and pace.

    Args:
        memory: the memory of the actor.
        actor: index of the actor.
        incarnation: its incarnation.
        made: by policy, rows that earlier incarnations are known to have made.
        process: index of the learner process.
        learner: the host of the learner process.
        limits: time limits for starts and heartbeats.
        age_s: longest time in seconds that rows wait before they are sent.
        came: by policy, how many of the rows ``made`` are known to have arrived.
    """

    def __init__(
        self,
        memory: LocalMemory,
        actor: int,
        incarnation: int,
        made: Sequence[int],
        process: int,
        learner: Any,
        limits: RestartLimits,
        age_s: float,
        came: Sequence[int] = (),
    ) -> None:
        roster = memory.roster
        self._memory, self._actor, self._incarnation, self._process = memory, actor, incarnation, process
        self._limits, self._age_s = limits, age_s
        self._policies = roster.policies_of(process)
        self._made, self._came = (
            [rows[p] for p in self._policies] if rows else [0] * len(self._policies) for rows in (made, came)
        )
        self._replays: dict[int, DistantReplay] = {
            policy: _distant(memory.replays[policy]) for policy in self._policies
        }
        self._publications: list[list[tuple[Publication, Any]]] = [
            [(publication, publication.publisher()) for publication in bundle]
            for bundle in memory.carried(self._policies)
        ]
        self._ring = None if memory.league is None else memory.league.results[actor]
        self._sent_result = 0
        self.heard = -1
        """How often the learner that this link has joined was started before; -1: this link has joined none yet."""
        self._learner = learner
        self._turned: Any = None  # the host of a restarted learner that is not in use yet
        self._news = threading.Event()
        self._bundles, self._sent_round = [0] * len(self._publications), -1
        self._records, self._periods = memory.records, 0  # periods whose rows have all arrived
        self._failure: BaseException | None = None
        self._over = self.blocked = False
        self._thread = threading.Thread(target=self._carry, name=f"to-learner-{process}", daemon=True)

    def turn_to(self, learner: Any) -> None:
        """Use this host of the learner process from now on, if it is a new one after a restart."""
        if learner != (self._turned or self._learner):
            self._turned = learner
            self._news.set()

    def join(self) -> JoinReply:
        """Register with the learner; return its reply."""
        totals = None if self._records is None else self._records.totals[:, self._actor].copy()
        while True:
            rows = {
                (policy, lane): replay.carried[i]
                for policy, replay in self._replays.items()
                for i, lane in enumerate(replay.lanes)
            }
            joined: JoinReply | None = self._asked(
                lambda learner, rows=rows: learner.join.remote(
                    self._actor,
                    self._incarnation,
                    rows,
                    self._made,
                    self._came,
                    self._done(),
                    self._results(0),
                    self._periods,
                    totals,
                )
            )
            if joined is not None:
                break
        for policy, before in zip(self._policies, joined.steps_before, strict=True):
            self._memory.steps_before[policy] = before
        for policy, updates, gone in zip(self._policies, joined.updates_before, joined.gone, strict=True):
            self._memory.updates_before[policy], self._memory.gone[policy] = updates, np.array(gone)
        self._hear(joined.words)
        if self.heard < 0:
            for policy, replay in self._replays.items():
                replay.begin_after(self._memory.gone[policy])
        self._periods = joined.periods
        if self._ring is not None and joined.results is not None:
            self._sent_result = Results.take_in(self._ring, joined.results)
        self._bundles, self.heard = [0] * len(self._publications), joined.number
        return joined

    @property
    def newest(self) -> int:
        """The newest version that came from the learner."""
        return max(int(publisher.newest) for bundle in self._publications for _, publisher in bundle)

    def _done(self) -> list[npt.NDArray[np.int64]] | None:
        """Return the steps that are known to have arrived, by policy and lane; None before the first join."""
        if self.heard < 0:
            return None
        gone = self._memory.gone
        return [
            np.array([replay.words(lane).steps for lane in replay.lanes]) + gone[policy][replay.lanes]
            for policy, replay in self._replays.items()
        ]

    def _results(self, after: int) -> npt.NDArray[np.uint64] | None:
        return None if self._ring is None else Results.since(self._ring, after)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def drain(self, deadline: float) -> None:
        """Wait until all rows have arrived, and end the thread; raise its exception if it failed."""
        self._over = True
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise WaitTimeoutError(
                f"actor-{self._actor} waited {self._limits.start_s:g} s for learner-{self._process} to receive its rows"
            )

    def _carry(self) -> None:
        try:
            while True:
                last = self._over
                self._wait_until_due()
                if not self._send(last):
                    self.join()
                elif last and not self._waiting and self._has_sent_periods:
                    return
        except BaseException as error:  # noqa: BLE001 - ends the role, and drain() raises it
            self._failure = error
            self._memory.end_roles()

    @property
    def _waiting(self) -> int:
        return max(replay.waiting for replay in self._replays.values())

    @property
    def _has_sent_periods(self) -> bool:
        """Whether the learner knows all periods that have ended."""
        return self._records is None or self._periods == int(self._memory.board.periods[self._actor])

    @property
    def _round(self) -> int:
        return int(self._memory.board.rounds[self._actor])

    @property
    def _actor_waits(self) -> bool:
        return int(self._memory.board.processes.waits_for[self._actor]) == Wait.LEARNERS

    def _wait_until_due(self) -> None:
        """Wait until a block is due: at a certain age, or earlier if the outbox is half full, or the actor waits or
        will wait soon."""
        board, pace = self._memory.board, self._memory.roster.pace
        in_turns = pace.lockstep or pace.period > 0
        deadline = time.monotonic() + self._age_s
        while not self._over and (left := deadline - time.monotonic()) > 0:
            seen = board.acted.count
            if self._is_needed if pace.period else self._actor_waits:
                return
            if (pace.lockstep and self._round != self._sent_round) or self._half_full():
                return
            if not in_turns and pace.updates_per_step * self._waiting >= _SLACK_SHARE * pace.slack:
                return
            if in_turns:
                board.acted.wait(seen, left)
            else:
                time.sleep(min(left, self._age_s / 8))

    @property
    def _is_needed(self) -> bool:
        """With periods: whether a period has ended of which the learner does not know, or the actor waits for this
        learner."""
        board, ended = self._memory.board, int(self._memory.board.periods[self._actor])
        phases = int(board.learned.phases[self._policies].min())
        return self._periods < ended or (
            int(board.begun[self._actor]) <= ended and not self._memory.roster.pace.may_begin(ended, phases)
        )

    def _half_full(self) -> bool:
        return any(2 * r.waiting > r.outbox.spec.lane_capacity for r in self._replays.values() if r.outbox is not None)

    def _send(self, last: bool) -> bool:
        """Send one block and process the reply; return False if the learner was restarted."""
        round, waits, totals = self._round, self._actor_waits and not last, None
        made = [replay.made for replay in self._replays.values()]
        ends, ends_period = self._ends()
        pieces, data = self._block(ends)
        if self._records is not None:
            if ends_period and self._is_whole(pieces, ends):
                totals = self._records.total(self._actor, self._periods)
            is_last = self._periods + (totals is not None) == int(self._memory.board.periods[self._actor])
            round = round if is_last or round != FINISHED else max(self._sent_round, 0)
            waits = is_last and self._is_needed and not last
        elif self._memory.roster.pace.lockstep and not self._is_whole(pieces, ends):
            round = max(self._sent_round, 0)  # the learner must not act on a round before all of its rows are there
        flat = np.frombuffer(b"".join(data), np.uint8)
        results = self._results(self._sent_result)
        arrived = self._asked(
            lambda learner: learner.receive.remote(
                self._actor, self._incarnation, round, pieces, flat, made, waits, self._bundles, results, totals
            )
        )
        if arrived is None:
            return False
        self._sent_round, self._periods = round, arrived.periods
        if results is not None and len(results):
            self._sent_result = int(results.max() >> np.uint64(32))
        for (policy, lane, first, _), rows in zip(pieces, arrived.rows, strict=True):
            replay = self._replays[policy]
            i = replay.lanes.index(lane)
            assert replay.outbox is not None
            replay.carried[i] = first + rows
            replay.outbox.release(i, first + rows)
        self.blocked = sum(arrived.rows) == 0 and bool(pieces)
        memory = self._memory
        self._hear(arrived.words)
        for i, versions in enumerate(arrived.bundles):
            for number, where in versions:
                if (flat := self._fetched(where)) is not None:
                    unpack(flat, self._publications[i], without_gaps=self._records is not None)
                    self._bundles[i] = number
        memory.pace[self._policies] = arrived.pace
        memory.board.learned.words[self._policies] = arrived.learned
        memory.board.updated.ring()
        return True

    def _fetched(self, bundle: Any) -> Any:
        """Return a bundle; None if it was lost with its learner. The restarted learner makes a new one."""
        import ray

        if isinstance(bundle, np.ndarray):
            return bundle
        try:
            return ray.get(bundle, timeout=self._limits.hang_s)
        except ray.exceptions.ObjectLostError:
            return None
        except ray.exceptions.GetTimeoutError as error:
            raise WaitTimeoutError(
                f"actor-{self._actor} waited {self._limits.hang_s:g} s for the policies of learner-{self._process}"
            ) from error

    def _ends(self) -> tuple[dict[tuple[int, int], int], bool]:
        """Return the end of the rows that may be sent now, by policy and lane, and whether a period ends there."""
        board, records = self._memory.board, self._records
        while True:
            ended = int(board.periods[self._actor])
            if records is None or self._periods == ended:
                ends = {
                    (policy, lane): replay.outbox.words(i).head
                    for policy, replay in self._replays.items()
                    for i, lane in enumerate(replay.lanes)
                    if replay.outbox is not None
                }
                if int(board.periods[self._actor]) == ended:  # otherwise some rows may belong to the next period
                    return ends, False
            else:
                ends = {
                    (policy, lane): int(records.of_period(policy, self._periods)[lane, 0]) - replay.before[i][0]
                    for policy, replay in self._replays.items()
                    for i, lane in enumerate(replay.lanes)
                }
                return ends, True

    def _is_whole(self, pieces: Sequence[tuple[int, int, int, int]], ends: dict[tuple[int, int], int]) -> bool:
        """Whether all rows before these ends have arrived or are in these pieces."""
        there = {
            (policy, lane): replay.carried[i]
            for policy, replay in self._replays.items()
            for i, lane in enumerate(replay.lanes)
        }
        for policy, lane, first, size in pieces:
            there[policy, lane] = first + size // self._replays[policy].spec.row_bytes
        return there == ends

    def _block(self, ends: dict[tuple[int, int], int]) -> tuple[list[tuple[int, int, int, int]], list[bytes]]:
        """Return the rows that wait before these ends, up to the size of a block, with equal shares for all lanes."""
        pieces, data = [], []
        share = _BLOCK_BYTES // sum(len(replay.lanes) for replay in self._replays.values())
        for policy, replay in self._replays.items():
            assert replay.outbox is not None
            most = max(1, share // replay.spec.row_bytes)
            for i, lane in enumerate(replay.lanes):
                first = replay.carried[i]
                if piece := replay.outbox.rows(i, first, min(most, ends[policy, lane] - first)):
                    pieces.append((policy, lane, first, len(piece)))
                    data.append(piece)
        return pieces, data

    def _hear(self, words: Sequence[npt.NDArray[np.uint64]]) -> None:
        for replay, rows in zip(self._replays.values(), words, strict=True):
            replay.table[replay.lanes] = rows

    def _asked(self, call: Any) -> Any:
        """Return the learner's answer; None if the learner was restarted and did not get the question."""
        import ray

        timeout_s = self._limits.start_s + self._limits.hang_s
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return ray.get(call(self._learner), timeout=max(0.0, deadline - time.monotonic()))
            except ray.exceptions.GetTimeoutError as error:
                raise self._late("an answer", timeout_s) from error
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayActorError as error:
                # Perhaps only the connection is broken. Then ask again, until the driver reports a restart.
                self.blocked = True
                died = isinstance(error, ray.exceptions.ActorDiedError)
                if self._news.wait(max(0.0, deadline - time.monotonic()) if died else _AGAIN_S):
                    self._news.clear()
                    self._learner, self._turned = self._turned, None
                    return None
                if died or time.monotonic() > deadline:
                    raise self._late("a restart" if died else "an answer", timeout_s) from error

    def _late(self, what: str, timeout_s: float) -> WaitTimeoutError:
        return WaitTimeoutError(f"actor-{self._actor} waited {timeout_s:g} s for {what} of learner-{self._process}")


def _distant(replay: Any) -> DistantReplay:
    assert isinstance(replay, DistantReplay)
    return replay

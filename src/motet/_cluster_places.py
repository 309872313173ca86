"""Where roles live on a cluster: one Ray actor for each actor and each learner process, around the roles as they are.

    actor:    play_actor ─▶ outbox ═ blocks of rows, round ═▶ lanes ─▶ play_learner          :learner
              publications ◀═ reply: what has arrived, pace, newest edition ═ publications, board

Each actor has one *link* to each learner process, with one block on its way at a time. A block holds all rows that wait
for that learner, as they lie in the outbox, and says who sends it, in which incarnation: a predecessor that still lives
somewhere is refused, and counted. The reply says how far each lane has got, how far the learner is, and where to find
its newest *edition*: the versions of all its policies in one flat object in the node's object store, which is fetched
once for each node, whoever asks. Rows leave the outbox when they are known to have arrived: a learner's successor gets
what its predecessor did not.

The driver looks at every place now and then: boards, vaults and counts come home in the answer, whether to stop and who
the learners are goes out with the question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet._book import fill
from motet._cluster_handles import Distant, Place, packed, unpack
from motet._engine import Roster, play_actor, play_learner
from motet._process import one_thread
from motet.checkpoint import Checkpoint
from motet.cluster import Luggage
from motet.errors import SupersededError, WaitTimeoutError
from motet.publication import Publication
from motet.supervisor import Limits

__all__ = ["ActorPlace", "ActorTold", "Arrived", "Joined", "LearnerPlace", "LearnerTold", "Start", "agents_of"]

_BLOCK_BYTES = 4 * 2**20
_HOLD_S = 0.1  # how long a learner keeps the reply to an actor that waits for it
_WAITS_FOR_LEARNERS, _WAITS_FOR_ROOM = 5, 7  # places in _board.WAITS


class Joined(NamedTuple):
    """What a learner tells an actor that begins, or that turns to it after its predecessor died."""

    words: npt.NDArray[np.uint64]
    """``[agents, lanes, words]`` of the actor's lanes."""
    steps_before: list[int]
    updates_before: list[int]
    round: int
    """Which the actor's predecessor had got to."""


class Arrived(NamedTuple):
    """A learner's reply to a block."""

    rows: list[int]
    """How many of each piece there was room for."""
    words: npt.NDArray[np.uint64]
    """As in :class:`Joined`."""
    learned: npt.NDArray[np.uint64]
    """The board's rows of its stacks."""
    pace: npt.NDArray[np.int64]
    edition: int
    policies: Any
    """Where the edition is, if it is news."""


class ActorTold(NamedTuple):
    """What the driver learns when it looks at an actor."""

    age_s: float
    alive: npt.NDArray[np.float64]
    round: int
    episodes: npt.NDArray[np.float64]
    made: list[int]
    """Rows by agent, in this incarnation."""
    versions: list[int]
    words: npt.NDArray[np.uint64]
    """``[agents, lanes, words]`` of its lanes, as the learners last told."""


class LearnerTold(NamedTuple):
    """What the driver learns when it looks at a learner."""

    age_s: float
    alive: npt.NDArray[np.float64]
    learned: npt.NDArray[np.uint64]
    metrics: npt.NDArray[np.float64]
    names: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.uint64]
    words: npt.NDArray[np.uint64]
    """``[agents, lanes, words]``, all lanes."""
    steps_before: list[int]
    updates_before: list[int]
    edition: int
    policies: npt.NDArray[np.uint8] | None
    """If it is news."""
    vaults: npt.NDArray[np.uint8] | None
    """If they were asked for."""
    replays: dict[int, list[npt.NDArray[np.uint8]]]
    """By agent, the memory of its lanes, at the end."""


class Start(NamedTuple):
    """What a learner process begins with, if not with nothing."""

    checkpoint: Checkpoint
    version: int | None = None
    """Above all that any actor has seen."""
    steps: tuple[int, ...] = ()
    """By agent, if the checkpoint's are not the newest: steps that have been done."""
    lost: tuple[tuple[int, int], ...] = ()
    """By agent: rows lost and refused so far."""


def agents_of(roster: Roster, process: int) -> list[int]:
    """The agents of a learner process, in the order of its stacks."""
    return [agent for k in roster.processes[process] for agent in roster.stacks[k]]


class LearnerPlace:
    """A learner process, and the replays of its agents.

    Args:
        luggage: who takes part (:class:`Roster`), and what it begins with (:class:`Start`, or None).
        index: which learner process.
        bring_rows: whether its replays come home with its end.
    """

    def __init__(self, luggage: Luggage, index: int, bring_rows: bool = False) -> None:
        one_thread()
        self._bring_rows = bring_rows
        roster: Roster
        start: Start | None
        roster, start = luggage.value
        self._index, self._stacks = index, roster.processes[index]
        self._agents = agents_of(roster, index)
        self._place = place = Place(roster, agents=self._agents, vaults=True)
        self._incarnations = [-1] * roster.actors
        self._writers: dict[tuple[int, int], Any] = {}
        self._expected: dict[tuple[int, int], int] = {}
        self._made = np.zeros((roster.actors, len(self._agents)), np.int64)
        self._came = np.zeros((roster.actors, len(self._agents)), np.int64)
        self._lock = threading.Lock()  # between the threads of this process that take blocks
        self._policies = [(place.publications[a], place.publications[a].subscriber()) for a in self._agents]
        self._vaults = [(place.vaults[k], place.vaults[k].subscriber()) for k in self._stacks]
        self._edition, self._flat = 0, np.zeros(0, np.uint8)
        self._object: Any = None
        if start is not None:
            self._begin(start)

    def _begin(self, start: Start) -> None:
        place, roster = self._place, self._place.roster
        fill(place, start.checkpoint, self._stacks, start.version)
        for agent, steps in zip(self._agents, start.steps, strict=False):
            place.steps_before[agent] = steps - place.replays[agent].steps
        if start.steps:
            for k in self._stacks:  # the pace goes on from the rows that are left
                due = roster.pace.due(place._steps(k), place.warm_up(k))
                place.updates_before[k] = int(place.board.learned[k, 0]) - due
        for agent, (lost, refused) in zip(self._agents, start.lost, strict=False):
            place.board.rows[agent, :2] = lost, refused

    def play(self) -> LearnerTold:
        """Learn until the run ends."""
        play_learner(self._place, self._index)
        lanes = range(self._place.roster.lanes)
        rows = {a: [self.dump(a, lane) for lane in lanes] for a in self._agents} if self._bring_rows else {}
        return self.look(stop=True, edition=0, vaults=True)._replace(replays=rows)

    def join(self, actor: int, incarnation: int, rows: dict[tuple[int, int], int], made: Sequence[int]) -> Joined:
        """Take over an actor's lanes for an incarnation of it.

        Args:
            actor: which one.
            incarnation: which start of it.
            rows: by agent and lane, the outbox row that comes next.
            made: by agent of this process, rows that the predecessor is known to have made.
        """
        place = self._place
        with self._lock:
            known = self._incarnations[actor]
            if incarnation < known:
                raise SupersededError(f"actor-{actor}, start {incarnation}: a successor, start {known}, has its lanes")
            if incarnation > known >= 0:
                lost = np.maximum(self._made[actor], np.array(made, np.int64)) - self._came[actor]
                place.board.rows[self._agents, 0] += np.maximum(lost, 0).astype(np.uint64)
                self._made[actor] = self._came[actor] = 0
            self._incarnations[actor] = incarnation
            lanes = place.roster.lanes_of(actor)
            for agent in self._agents:
                for lane in lanes:
                    self._writers[agent, lane] = place.replays[agent].writer(lane, timeout_s=0.0)
                    self._expected[agent, lane] = rows[agent, lane]
            return Joined(
                self._words(lanes),
                [place.steps_before[a] for a in self._agents],
                [place.updates_before[k] for k in self._stacks],
                int(place.board.rounds[actor, 0]),
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
        edition: int,
    ) -> Arrived:
        """Take a block of an actor's rows: pieces (agent, lane, first row, bytes) and their bytes behind each other."""
        place, board = self._place, self._place.board
        with self._lock:
            if incarnation != self._incarnations[actor]:
                for agent, _, _, size in pieces:
                    board.rows[agent, 1] += np.uint64(size // place.replays[agent].spec.row_bytes)
                raise SupersededError(
                    f"actor-{actor}, start {incarnation}: a successor, start {self._incarnations[actor]}, has its lanes"
                )
            taken = self._take(actor, pieces, data)
            self._made[actor] = made
            board.rounds[actor, 0] = round
        board.acted.ring()
        if waits:
            self._hold(round)
        # First how far it is, then the policies: who learns of a round has the versions that were made in it.
        learned, pace = board.learned[list(self._stacks)], place.tell_pace(self._stacks)
        words, news = self._words(place.roster.lanes_of(actor)), self._publish(edition)
        return Arrived(taken, words, learned, pace, self._edition, news)

    def _take(self, actor: int, pieces: Sequence[tuple[int, int, int, int]], data: npt.NDArray[np.uint8]) -> list[int]:
        taken, at = [], 0
        for agent, lane, first, size in pieces:
            row_bytes = self._place.replays[agent].spec.row_bytes
            known = self._expected[agent, lane] - first  # rows that a block brings for the second time
            fresh = data[at + known * row_bytes : at + size]
            rows = self._writers[agent, lane].append_rows(fresh)
            self._expected[agent, lane] += rows
            self._came[actor, self._agents.index(agent)] += rows
            taken.append(known + rows)
            at += size
        return taken

    def _hold(self, round: int) -> None:
        """Until an actor that waits could go on for a while: a reply that says 'not yet' would only be asked again."""
        board = self._place.board
        deadline = time.monotonic() + _HOLD_S
        while not board.stopping and (left := deadline - time.monotonic()) > 0:
            seen = board.learnt.count
            if all(self._has_caught_up(k, round) for k in self._stacks):
                return
            board.learnt.wait(seen, left)

    def _has_caught_up(self, stack: int, round: int) -> bool:
        place, pace = self._place, self._place.roster.pace
        if pace.lockstep:
            return int(place.board.learned[stack, 1]) >= round
        if not place.may_act(stack) or place.settings(stack).once:
            return place.may_act(stack)
        return place._rests(stack) or place.owed(stack) <= pace.slack / 2

    def _publish(self, edition: int) -> Any:
        """Where the newest edition is, if it is newer than that one."""
        import ray

        with self._lock:
            if self._renew() or self._object is None:
                self._object = ray.put(self._flat) if self._edition else None
            return self._object if self._edition > edition else None

    def _renew(self) -> bool:
        fresh = [subscriber.refresh() for _, subscriber in self._policies]
        if not any(fresh) or not all(subscriber.version for _, subscriber in self._policies):
            return False
        self._edition += 1
        self._flat = packed(self._policies)
        self._object = None
        return True

    def _words(self, lanes: Sequence[int]) -> npt.NDArray[np.uint64]:
        replays = [self._place.replays[agent] for agent in self._agents]
        return np.array([[replay.words(lane) for lane in lanes] for replay in replays], np.uint64)

    def dump(self, agent: int, lane: int) -> npt.NDArray[np.uint8]:
        """A lane's memory."""
        return self._place.replays[agent].dump(lane)

    def look(self, stop: bool, edition: int | None, vaults: bool) -> LearnerTold:
        """What the driver wants to know; ``edition``: which policies it has, None: it wants none."""
        place, board = self._place, self._place.board
        if stop:
            _stop(place)
        row = place.roster.actors + self._index
        policies = None
        with self._lock:
            if edition is not None:
                self._renew()
                policies = self._flat if self._edition > edition else None
        board.rows[self._agents, 2] = [subscriber.newest for _, subscriber in self._policies]
        kept = (
            [subscriber.refresh() or bool(subscriber.version) for _, subscriber in self._vaults] if vaults else [False]
        )
        return LearnerTold(
            time.monotonic() - float(board.alive[row, 0]),
            board.alive[row].copy(),
            board.learned[list(self._stacks)],
            board.metrics[self._agents],
            board._names[self._agents],
            board.rows[self._agents],
            self._words(range(place.roster.lanes)),
            [place.steps_before[a] for a in self._agents],
            [place.updates_before[k] for k in self._stacks],
            self._edition,
            policies,
            packed(self._vaults) if all(kept) else None,
            {},
        )


def _stop(place: Place) -> None:
    place.board.stop[0] = 1
    place.board.acted.ring()
    place.board.learnt.ring()


class ActorPlace:
    """An actor, and its links to the learners.

    Args:
        luggage: who takes part (:class:`Roster`).
        index: which actor.
        incarnation: which start of it.
        made: by agent, rows that its predecessor is known to have made.
        learners: the learners' places.
        limits: how long it waits for whom.
        block_age_s: how long rows wait until they are sent.
    """

    def __init__(
        self,
        luggage: Luggage,
        index: int,
        incarnation: int,
        made: Sequence[int],
        learners: Sequence[Any],
        limits: Limits,
        block_age_s: float,
    ) -> None:
        one_thread()
        roster: Roster = luggage.value
        self._index, self._incarnation, self._limits = index, incarnation, limits
        self._lanes = roster.lanes_of(index)
        # Longer than a learner's successor takes to come up: until then nothing leaves the outbox.
        self._place = Place(roster, lanes=self._lanes, timeout_s=limits.start_s + limits.hang_s)
        self._links = [
            Link(self._place, index, incarnation, made, i, learner, limits, block_age_s)
            for i, learner in enumerate(learners)
        ]

    def play(self) -> ActorTold:
        """Act until its part is done, and all rows have arrived."""
        board = self._place.board
        joined = [link.join() for link in self._links]
        board.rounds[self._index, 0] = min(joined)
        for link in self._links:
            link.start()
        try:
            play_actor(self._place, self._index, self._incarnation, self._limits.start_s)
        finally:
            deadline = time.monotonic() + self._limits.start_s
            for link in self._links:
                link.drain(deadline)
        return self.look(stop=False, learners=None)

    def look(self, stop: bool, learners: Sequence[Any] | None) -> ActorTold:
        """What the driver wants to know."""
        place, board = self._place, self._place.board
        for link, learner in zip(self._links, learners or (), strict=False):
            link.turn_to(learner)
        if stop:
            _stop(place)
        replays: Sequence[Any] = place.replays
        if any(link.blocked for link in self._links):
            board.pulse(self._index).waits_for(_WAITS_FOR_ROOM)
        return ActorTold(
            time.monotonic() - float(board.alive[self._index, 0]),
            board.alive[self._index].copy(),
            int(board.rounds[self._index, 0]),
            board.episodes[self._index].copy(),
            [replay.made for replay in replays],
            [publication.subscriber().newest for publication in place.publications],
            np.array([replay.table[self._lanes] for replay in replays]),
        )


class Link:
    """From an actor to a learner process: rows there, versions and pace back, in a thread of its own.

    Args:
        place: of the actor.
        actor: which one.
        incarnation: which start of it.
        made: by agent, rows that its predecessor is known to have made.
        process: which learner process.
        learner: its place.
        limits: how long to wait for whom.
        age_s: how long rows wait until they are sent.
    """

    def __init__(
        self,
        place: Place,
        actor: int,
        incarnation: int,
        made: Sequence[int],
        process: int,
        learner: Any,
        limits: Limits,
        age_s: float,
    ) -> None:
        roster = place.roster
        self._place, self._actor, self._incarnation, self._process = place, actor, incarnation, process
        self._limits, self._age_s = limits, age_s
        self._stacks, self._agents = list(roster.processes[process]), agents_of(roster, process)
        self._made = [made[agent] for agent in self._agents] if made else [0] * len(self._agents)
        self._lanes = roster.lanes_of(actor)
        self._replays: dict[int, Distant] = {agent: _distant(place.replays[agent]) for agent in self._agents}
        self._publications: list[tuple[Publication, Any]] = [
            (place.publications[agent], place.publications[agent].publisher()) for agent in self._agents
        ]
        self._learner = learner
        self._turned: Any = None  # the successor, until it is turned to
        self._news = threading.Event()
        self._edition, self._told_round = 0, -1
        self._failure: BaseException | None = None
        self._over = self.blocked = False
        self._thread = threading.Thread(target=self._carry, name=f"to-learner-{process}", daemon=True)

    def turn_to(self, learner: Any) -> None:
        """The learner process has a successor."""
        if learner != (self._turned or self._learner):
            self._turned = learner
            self._news.set()

    def join(self) -> int:
        """Make oneself known; the round to go on from."""
        while True:
            rows = {
                (agent, lane): replay.carried[i]
                for agent, replay in self._replays.items()
                for i, lane in enumerate(self._lanes)
            }
            joined = self._asked(
                lambda learner, rows=rows: learner.join.remote(self._actor, self._incarnation, rows, self._made)
            )
            if joined is not None:
                break
        for agent, before in zip(self._agents, joined.steps_before, strict=True):
            self._place.steps_before[agent] = before
        for k, updates in zip(self._stacks, joined.updates_before, strict=True):
            self._place.updates_before[k] = updates
        self._hear(joined.words)
        self._edition = 0
        return int(joined.round)

    def start(self) -> None:
        """Begin to carry."""
        self._thread.start()

    def drain(self, deadline: float) -> None:
        """Wait until everything has arrived, and end; raises what went wrong on the way."""
        self._over = True
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        if self._thread.is_alive():
            raise WaitTimeoutError(
                f"actor-{self._actor} waited {self._limits.start_s:g} s for learner-{self._process} to take its rows"
            )

    def _carry(self) -> None:
        try:
            while True:
                last = self._over
                self._wait_until_due()
                if not self._send(last):
                    self.join()
                elif last and not self._waiting:
                    return
        except BaseException as error:  # noqa: BLE001 - raised where the role ends, which this makes it do
            self._failure = error
            _stop(self._place)

    @property
    def _waiting(self) -> int:
        return max(replay.waiting for replay in self._replays.values())

    @property
    def _round(self) -> int:
        return int(self._place.board.rounds[self._actor, 0])

    @property
    def _actor_waits(self) -> bool:
        return int(self._place.board.alive[self._actor, 1]) == _WAITS_FOR_LEARNERS

    def _wait_until_due(self) -> None:
        """A block goes by age; sooner if the outbox is half full, or if the actor waits for an answer to it."""
        board, pace = self._place.board, self._place.roster.pace
        deadline = time.monotonic() + self._age_s
        while not self._over and (left := deadline - time.monotonic()) > 0:
            seen = board.acted.count
            if self._actor_waits or (pace.lockstep and self._round != self._told_round) or self._half_full():
                return
            if pace.lockstep:
                board.acted.wait(seen, left)
            else:
                time.sleep(min(left, self._age_s / 4))

    def _half_full(self) -> bool:
        return any(2 * r.waiting > r.outbox.spec.lane_capacity for r in self._replays.values() if r.outbox is not None)

    def _send(self, last: bool) -> bool:
        """One block there, and what the learner has to say back; False if there is another learner now."""
        import ray

        round, waits = self._round, self._actor_waits and not last
        made = [replay.made for replay in self._replays.values()]
        pieces, data = self._block()
        flat = np.frombuffer(b"".join(data), np.uint8)
        arrived = self._asked(
            lambda learner: learner.receive.remote(
                self._actor, self._incarnation, round, pieces, flat, made, waits, self._edition
            )
        )
        if arrived is None:
            return False
        self._told_round = round
        for (agent, lane, first, _), rows in zip(pieces, arrived.rows, strict=True):
            replay, i = self._replays[agent], self._lanes.index(lane)
            assert replay.outbox is not None
            replay.carried[i] = first + rows
            replay.outbox.release(i, first + rows)
        self.blocked = sum(arrived.rows) == 0 and bool(pieces)
        place = self._place
        self._hear(arrived.words)
        if arrived.policies is not None:
            try:
                unpack(ray.get(arrived.policies, timeout=self._limits.hang_s), self._publications)
                self._edition = arrived.edition
            except (ray.exceptions.OwnerDiedError, ray.exceptions.ObjectLostError):
                pass  # gone with its learner, whose successor makes another one
        place.pace[self._stacks] = arrived.pace
        place.board.learned[self._stacks] = arrived.learned
        place.board.learnt.ring()
        return True

    def _block(self) -> tuple[list[tuple[int, int, int, int]], list[bytes]]:
        """What waits, up to a block's size, from all lanes alike."""
        pieces, data = [], []
        share = _BLOCK_BYTES // (len(self._agents) * len(self._lanes))
        for agent, replay in self._replays.items():
            assert replay.outbox is not None
            most = max(1, share // replay.spec.row_bytes)
            for i, lane in enumerate(self._lanes):
                first = replay.carried[i]
                if piece := replay.outbox.rows(i, first, most):
                    pieces.append((agent, lane, first, len(piece)))
                    data.append(piece)
        return pieces, data

    def _hear(self, words: npt.NDArray[np.uint64]) -> None:
        for replay, rows in zip(self._replays.values(), words, strict=True):
            replay.table[self._lanes] = rows

    def _asked(self, call: Any) -> Any:
        """A learner's answer; None if it died and its successor is there by now, who knows nothing yet."""
        import ray

        try:
            return ray.get(call(self._learner), timeout=self._limits.start_s + self._limits.hang_s)
        except ray.exceptions.GetTimeoutError as error:
            raise WaitTimeoutError(
                f"actor-{self._actor} waited {self._limits.start_s + self._limits.hang_s:g} s for an answer of "
                f"learner-{self._process}"
            ) from error
        except ray.exceptions.RayActorError as error:
            self.blocked = True
            if not self._news.wait(self._limits.start_s + self._limits.hang_s):
                raise WaitTimeoutError(
                    f"actor-{self._actor} waited {self._limits.start_s + self._limits.hang_s:g} s for a successor of "
                    f"learner-{self._process}"
                ) from error
            self._news.clear()
            self._learner, self._turned = self._turned, None
            return None
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None


def _distant(replay: Any) -> Distant:
    assert isinstance(replay, Distant)
    return replay

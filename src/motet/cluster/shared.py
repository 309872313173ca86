"""The memory of one process of a cluster: the parts of :class:`SharedMemory` that the process needs.

Every process has a separate segment with a board, the publications that it reads or writes, and the replays of the
policies that are learned there. The replay of a policy that is learned on another node is a :class:`DistantReplay`.
Its writers write into an *outbox*: lanes that are read once, from which rows are sent unchanged to the learner. So
acting costs the same as on the learner's node. If the connection is slow, the writers wait for room in the outbox,
which is counted as usual. Rows that have not arrived are still in the outbox when the learner is restarted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import ArraySpec
from motet.errors import NotReadyError
from motet.publication import Publication
from motet.replay import Replay, ReplaySpec, Writers
from motet.replay.replay import LaneWords
from motet.system.memory import LINE, Segment
from motet.training.roster import Roster
from motet.training.shared import SharedMemory

__all__ = ["DistantReplay", "LocalMemory", "VersionBundle", "packed", "unpack", "words_of"]

_OUTBOX_BYTES = 4 * 2**20
_OUTBOX_ROWS = 64, 4096  # minimum and maximum number of rows of a lane


class DistantReplay:
    """A replay on its learner's node: the words of its lanes, and an outbox for the lanes that are written here.

    Args:
        spec: the layout of the replay.
        segment: a segment with room for the words of its lanes.
        prefix: prefix of its arrays in the segment.
        lanes: the lanes that are written here.
        timeout_s: seconds that a writer waits for room in the outbox.
    """

    def __init__(self, spec: ReplaySpec, segment: Segment, prefix: str, lanes: Sequence[int], timeout_s: float) -> None:
        self.spec, self.lanes = spec, list(lanes)
        self._segment, self._prefix, self._timeout_s = segment, prefix, timeout_s
        self.table[...] = 0
        self.outbox: Replay | None = None
        self.carried = [0] * len(self.lanes)
        """Rows of each outbox lane that have arrived."""
        self.before = [(0, 0)] * len(self.lanes)
        """For each lane written here, how many rows and final rows it had before the outbox."""
        if self.lanes:
            rows = _OUTBOX_BYTES // (spec.row_bytes * len(self.lanes))
            rows = min(max(rows, _OUTBOX_ROWS[0]), _OUTBOX_ROWS[1])
            self.outbox = Replay(replace(spec, lanes=len(self.lanes), capacity=rows * len(self.lanes), once=True))

    @staticmethod
    def layout(spec: ReplaySpec, prefix: str) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such a replay."""
        return {f"{prefix}/words": ArraySpec((spec.n_lanes, 8), "uint64")}

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """The words of all lanes as the learner last reported them, ``[lanes, words]``."""
        return self._segment[f"{self._prefix}/words"]

    def words(self, lane: int) -> LaneWords:
        """Return the words of a lane as the learner last reported them."""
        return LaneWords(*map(int, self.table[lane]))

    def begin_after(self, gone: npt.NDArray[np.int64]) -> None:
        """Begin after the rows that have arrived, and after the ``gone`` steps of each lane, lost with a learner."""
        words = [self.words(lane) for lane in self.lanes]
        self.before = [(one.head + int(gone[lane]), one.finals) for one, lane in zip(words, self.lanes, strict=True)]

    def written(self, lane: int) -> LaneWords:
        """Return the words of a lane as its writer knows them, which include rows in the outbox."""
        if self.outbox is None:
            return self.words(lane)
        i = self.lanes.index(lane)
        (rows, finals), words = self.before[i], self.outbox.words(i)
        return words._replace(head=rows + words.head, finals=finals + words.finals)

    @property
    def steps(self) -> int:
        """Number of steps that have arrived, in all lanes."""
        return int(self.table[:, 1].sum() - self.table[:, 7].sum())

    def writers(self, lanes: Sequence[int], *, goes_on: bool = False) -> Writers:
        """Return the writing ends of the outbox. Worlds cannot be resumed within an episode here (``goes_on``)."""
        if self.outbox is None or list(lanes) != self.lanes or goes_on:
            raise NotReadyError(f"lanes must be {self.lanes}, which are written here, got {list(lanes)}")
        return self.outbox.writers(range(len(lanes)), timeout_s=self._timeout_s)

    @property
    def waiting(self) -> int:
        """Number of rows that have not arrived, in the lane with the most of them."""
        if self.outbox is None:
            return 0
        return max(self.outbox.words(i).head - row for i, row in enumerate(self.carried))

    @property
    def made(self) -> int:
        """Number of rows written here, in all lanes."""
        return 0 if self.outbox is None else self.outbox.appended

    def dump(self, lane: int) -> npt.NDArray[np.uint8]:
        """Return a copy of a lane's memory, fetched from the learner."""
        return self.fetch(lane)

    def fetch(self, lane: int) -> npt.NDArray[np.uint8]:
        """Fetch a lane's memory. The driver replaces this method, since it has the handle of the learner."""
        raise NotReadyError(f"lane {lane} is on another node, and this process cannot reach its learner")

    def restore(self, lane: int, memory: npt.NDArray[np.uint8]) -> None:
        """Restore the words of a lane. Its rows are restored by the learner."""
        self.table[lane] = words_of(memory)

    def __getstate__(self) -> dict[str, Any]:
        return {**{k: v for k, v in self.__dict__.items() if k != "fetch"}, "outbox": None}


class LocalMemory(SharedMemory):
    """The part of a run's memory that one process of a cluster holds.

    Args:
        roster: the participants of the run.
        policies: the policies that are learned in this process.
        actor: the actor of this process, if there is one, whose lanes are written here.
        vaults: whether vaults are kept here: those of the policies that are learned here, or all in the driver.
        timeout_s: seconds that a writer waits for room in its outbox.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        policies: Collection[int] = (),
        actor: int | None = None,
        vaults: bool = False,
        timeout_s: float = 60.0,
    ) -> None:
        self._policies, self._actor, self._keeps, self._timeout_s = set(policies), actor, vaults, timeout_s
        self.pace = np.zeros((len(roster.policies), 2), np.int64)
        """Steps and complete batches since the replay began, as the learner last reported them, by policy."""
        self.gone = [np.zeros(roster.lanes(policy), np.int64) for policy in range(len(roster.policies))]
        """Steps of this run whose rows were lost with a learner, by policy and lane; ``steps_before`` includes them."""
        self.nodes = [""] * (roster.actors + len(roster.processes) + 2)
        """Node of each process, by row of the board."""
        super().__init__(roster)

    def pause(self) -> None:
        """Let no actor begin another period, and wait until all of them know. The driver replaces this method."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "pause"}

    def name_last_period(self) -> int:
        """With periods: stop at the end of a period that no actor has passed. Return the number of periods to play."""
        self.pause()
        return super().name_last_period()

    def end_roles(self) -> None:
        """Tell the roles in this process to end, and wake all threads that wait."""
        self.board.request_stop()
        self.board.acted.ring()
        self.board.updated.ring()

    def _replay_layout(self, policy: int, spec: ReplaySpec) -> dict[str, ArraySpec]:
        if policy in self._policies:
            return super()._replay_layout(policy, spec)
        return DistantReplay.layout(spec, f"policy{policy}/replay")

    def _replay(self, policy: int, spec: ReplaySpec, segment: Segment) -> Any:
        if policy in self._policies:
            return super()._replay(policy, spec, segment)
        lanes = () if self._actor is None else self.roster.lanes_of(policy, self._actor)
        return DistantReplay(spec, segment, f"policy{policy}/replay", lanes, self._timeout_s)

    def _vault_size(self, stack: Sequence[int], specs: Sequence[ReplaySpec]) -> tuple[int, dict[str, ArraySpec]]:
        if self._keeps and (not self._policies or set(stack) <= self._policies):
            return super()._vault_size(stack, specs)
        return 1, {}

    def _aside_size(self, policy: int) -> tuple[int, dict[str, ArraySpec]]:
        if self._keeps and (not self._policies or policy in self._policies):
            return super()._aside_size(policy)
        return 1, {}

    def where(self, process: int) -> str:
        """Return the node of a process."""
        return self.nodes[process]

    def left(self, policy: int, actor: int) -> int:
        """Return the steps of a policy that an actor still has to do. Steps lost with a learner count as done."""
        roster, gone = self.roster, self.gone[policy]
        part = -(-(roster.steps - self.steps_before[policy] + int(gone.sum())) // roster.actors)
        lanes = roster.lanes_of(policy, actor)
        return part - int(gone[lanes].sum()) - sum(self.replays[policy].words(lane).steps for lane in lanes)

    def carried(self, policies: Sequence[int]) -> list[list[Publication]]:
        """Return the publications of each bundle: those of these policies, and the league, which changes less often."""
        own = [self.publications[policy] for policy in policies]
        return [own] if self.league is None else [own, [self.league.publication]]

    def bundles(self, policies: Sequence[int]) -> list[VersionBundle]:
        """Return the bundles of these policies for actors (:meth:`carried`), and one more for evaluations."""
        kept = self.roster.pace.versions_kept
        return [
            *(VersionBundle(publications, kept) for publications in self.carried(policies)),
            *(VersionBundle(asides, self.roster.pace.asides) for asides in self.set_aside(policies)),
        ]

    def set_aside(self, policies: Sequence[int]) -> list[list[Publication]]:
        """Return the publications with copies of policies for evaluations, as one bundle; empty without evaluations."""
        return [[self.asides[policy] for policy in policies]] if self.asides else []

    # The pace from the view of an actor: the reports of its learners, plus its own rows that have not arrived yet.

    def step_counter(self, policies: Sequence[int]) -> Callable[[], list[int]]:
        """Return a counter of steps. For policies that are learned on another node it includes rows in transit."""
        if self._policies.issuperset(policies):
            return super().step_counter(policies)
        replays: list[Any] = [self.replays[policy] for policy in policies]
        chosen = list(policies)

        def count() -> list[int]:
            reported = self.pace[chosen, 0].tolist()
            return [steps + one.made - sum(one.carried) for steps, one in zip(reported, replays, strict=True)]

        return count

    def batches(self, policy: int) -> int:
        """Return the number of complete batches of a policy that reads rows once."""
        return super().batches(policy) if policy in self._policies else int(self.pace[policy, 1])

    def tell_pace(self, policies: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the :attr:`pace` of policies that are learned here, for the actors."""
        once = [self.roster.policies[policy].settings.once for policy in policies]
        rows = [
            (self.replays[p].steps, self.batches(p) if is_once else 0)
            for p, is_once in zip(policies, once, strict=True)
        ]
        return np.array(rows, np.int64)


SMALL = 100_000
"""Size in bytes up to which a bundle is sent in the reply: the object store would cost two more messages."""


class VersionBundle:
    """The versions of some publications, each in one flat object.

    Args:
        publications: publications of one learner process.
        kept: with periods, number of versions that are kept, each with its own number. 0: only the newest version is
            kept. Its number in the bundle then increases whenever one of the publications has a new version.
    """

    def __init__(self, publications: Sequence[Publication], kept: int = 0) -> None:
        self._ends = [(publication, publication.subscriber()) for publication in publications]
        self._by_number = kept > 0
        self._kept: deque[tuple[int, npt.NDArray[np.uint8]]] = deque(maxlen=max(kept, 1))
        self._stored: dict[int, Any] = {}

    @property
    def number(self) -> int:
        """Number of the newest version in the bundle; 0 if there is none."""
        return self._kept[-1][0] if self._kept else 0

    def renew(self) -> None:
        """Take in new versions, if there are any."""
        subscribers = [subscriber for _, subscriber in self._ends]
        if self._by_number:
            for number in range(self.number + 1, min(self.versions) + 1):
                if all(subscriber.load(number) for subscriber in subscribers):
                    self._kept.append((number, packed(self._ends)))
            return
        fresh = [subscriber.refresh() for subscriber in subscribers]
        if any(fresh) and all(subscriber.version for subscriber in subscribers):
            self._kept.append((self.number + 1, packed(self._ends)))

    def since(self, number: int) -> list[tuple[int, npt.NDArray[np.uint8]]]:
        """Return the versions after this number, the oldest first."""
        return [one for one in self._kept if one[0] > number]

    def stored_since(self, number: int, put: Callable[[Any], Any]) -> list[tuple[int, Any]]:
        """Return the versions after this number, for actors: a small version itself, and for a large one its reference
        in the object store. ``put`` stores a version there once.
        """
        self._stored = {known: where for known, where in self._stored.items() if known >= self._kept[0][0]}
        found: list[tuple[int, Any]] = []
        for known, flat in self.since(number):
            if flat.nbytes > SMALL and known not in self._stored:
                self._stored[known] = put(flat)
            found.append((known, self._stored.get(known, flat)))
        return found

    @property
    def versions(self) -> list[int]:
        """The newest version of each publication."""
        return [subscriber.newest for _, subscriber in self._ends]


def words_of(memory: npt.NDArray[np.uint8]) -> LaneWords:
    """Return the words of a lane from a copy of its memory, which need not be aligned."""
    words = memory[: 4 * LINE].copy().view(np.uint64)
    return LaneWords(*(int(words[_native.LANE_WORDS[name]]) for name in LaneWords._fields))


def packed(publications: Sequence[tuple[Publication, Any]]) -> npt.NDArray[np.uint8]:
    """Return the versions that some subscribers hold as one flat array. Each is paired with its publication."""
    parts = []
    for publication, subscriber in publications:
        header = np.zeros((), publication._record)
        for name in publication.header:
            header[name] = subscriber[name]
        parts += [
            np.array([subscriber.version], np.uint64).view(np.uint8),
            header.reshape(1).view(np.uint8),
            np.ascontiguousarray(subscriber.weights).view(np.uint8),
        ]
    return np.concatenate(parts)


def unpack(
    flat: npt.NDArray[np.uint8], publications: Sequence[tuple[Publication, Any]], without_gaps: bool = False
) -> None:
    """Publish the versions that :func:`packed` made, if they are newer. Each publication is paired with its publisher.

    ``without_gaps``: if the previous version was lost with a learner, also publish this one in its place, since an
    actor may need it.
    """
    at = 0
    for publication, publisher in publications:
        sizes = 8, publication._record.itemsize, publication.weights * 4
        version, header, weights = np.split(flat[at : at + sum(sizes)], np.cumsum(sizes)[:-1])
        at += sum(sizes)
        number = int(version.copy().view(np.uint64)[0])
        if number > publisher.newest:
            record = header.copy().view(publication._record)[0]
            values = {name: record[name] for name in publication.header}
            weights = weights.copy().view(np.float32)
            if without_gaps and 1 < number != publisher.newest + 1:
                publisher.publish(weights, version=number - 1, **values)
            publisher.publish(weights, version=number, **values)

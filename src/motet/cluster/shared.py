"""What a process of a cluster holds: the same :class:`SharedMemory` as on one machine, each part where it is needed.

Every process has a segment of its own with a board, the publications it reads or writes, and the replays of the
policies that are learned there. The replay of a policy that is learned elsewhere is a :class:`DistantReplay`: its
writers write into an
*outbox*, lanes that are read once, from which rows are carried to the learner as they lie. So acting costs the same as
beside the learner, a slow way there makes the writers wait for room (counted, as always), and what has not arrived is
still in the outbox when the learner is restarted.
"""

from __future__ import annotations

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
_OUTBOX_ROWS = 64, 4096  # of a lane, at least and at most


class DistantReplay:
    """A replay that lives with its learner elsewhere: how far it is, and the way there for lanes that are written here.

    Args:
        spec: of the replay.
        segment: has room for the words of its lanes.
        prefix: the name of its part.
        lanes: those that are written here.
        timeout_s: how long a writer waits for room in the outbox.
    """

    def __init__(self, spec: ReplaySpec, segment: Segment, prefix: str, lanes: Sequence[int], timeout_s: float) -> None:
        self.spec, self.lanes = spec, list(lanes)
        self._segment, self._prefix, self._timeout_s = segment, prefix, timeout_s
        self.table[...] = 0
        self.outbox: Replay | None = None
        self.carried = [0] * len(self.lanes)
        """Rows of each outbox lane that have arrived."""
        if self.lanes:
            rows = _OUTBOX_BYTES // (spec.row_bytes * len(self.lanes))
            rows = min(max(rows, _OUTBOX_ROWS[0]), _OUTBOX_ROWS[1])
            self.outbox = Replay(replace(spec, lanes=len(self.lanes), capacity=rows * len(self.lanes), once=True))

    @staticmethod
    def layout(spec: ReplaySpec, prefix: str) -> dict[str, ArraySpec]:
        """The arrays that a segment needs for it."""
        return {f"{prefix}/words": ArraySpec((spec.n_lanes, 8), "uint64")}

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """``[lanes, words]``: as the learner last reported."""
        return self._segment[f"{self._prefix}/words"]

    def words(self, lane: int) -> LaneWords:
        """The words of a lane, as the learner last reported."""
        return LaneWords(*map(int, self.table[lane]))

    @property
    def steps(self) -> int:
        """Steps that have arrived, in all lanes."""
        return int(self.table[:, 1].sum() - self.table[:, 7].sum())

    def writers(self, lanes: Sequence[int], *, goes_on: bool = False) -> Writers:
        """The writing ends of the outbox; ``goes_on`` is for worlds that are picked up, which these cannot be."""
        if self.outbox is None or list(lanes) != self.lanes or goes_on:
            raise NotReadyError(f"lanes: given {list(lanes)}, expected {self.lanes}, which are written here")
        return self.outbox.writers(range(len(lanes)), timeout_s=self._timeout_s)

    @property
    def waiting(self) -> int:
        """Rows that have not arrived, in the lane with the most of them."""
        if self.outbox is None:
            return 0
        return max(self.outbox.words(i).head - row for i, row in enumerate(self.carried))

    @property
    def made(self) -> int:
        """Rows written here, in all lanes."""
        return 0 if self.outbox is None else self.outbox.appended

    def dump(self, lane: int) -> npt.NDArray[np.uint8]:
        """A copy of a lane's memory, brought here."""
        return self.fetch(lane)

    def fetch(self, lane: int) -> npt.NDArray[np.uint8]:
        """Replaced by who knows where the learner is."""
        raise NotReadyError(f"lane {lane} lives elsewhere, and nobody here knows where")

    def restore(self, lane: int, memory: npt.NDArray[np.uint8]) -> None:
        """How far a lane was; its rows go to where the learner is."""
        self.table[lane] = words_of(memory)

    def __getstate__(self) -> dict[str, Any]:
        return {**{k: v for k, v in self.__dict__.items() if k != "fetch"}, "outbox": None}


class LocalMemory(SharedMemory):
    """The part of a run's memory that one process of a cluster holds.

    Args:
        roster: who takes part.
        policies: those that are learned here.
        actor: the one that plays here, if one does: its lanes are written here.
        vaults: whether vaults are kept here: those of the policies that are learned here, or, in the driver, all.
        timeout_s: how long a writer waits for room in its outbox.
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
        """By policy, steps and whole batches since its replay began, as its learner last reported."""
        self.gone = [np.zeros(roster.lanes(policy), np.int64) for policy in range(len(roster.policies))]
        """By policy and lane, steps of this run whose rows went with a learner; ``steps_before`` has them in it."""
        self.nodes = [""] * (roster.actors + len(roster.processes) + 1)
        """By row of the board, where that process is."""
        super().__init__(roster)

    def end_roles(self) -> None:
        """Tell the roles that live here to end, and wake whoever waits."""
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

    def where(self, process: int) -> str:
        """The node of a process."""
        return self.nodes[process]

    def left(self, policy: int, actor: int) -> int:
        """As always, and what went with a learner was done by somebody."""
        roster, gone = self.roster, self.gone[policy]
        part = -(-(roster.steps - self.steps_before[policy] + int(gone.sum())) // roster.actors)
        lanes = roster.lanes_of(policy, actor)
        return part - int(gone[lanes].sum()) - sum(self.replays[policy].words(lane).steps for lane in lanes)

    def carried(self, policies: Sequence[int]) -> list[list[Publication]]:
        """What is carried from the learner of some policies, by bundle: theirs, and the league, which changes less."""
        own = [self.publications[policy] for policy in policies]
        return [own] if self.league is None else [own, [self.league.publication]]

    # The pace as an actor sees it: what its learners reported, and its own rows that they have not got yet.

    def step_counter(self, policies: Sequence[int]) -> Callable[[], list[int]]:
        """Counts the steps that are known here: of policies that are learned elsewhere, with those on their way."""
        if self._policies.issuperset(policies):
            return super().step_counter(policies)
        replays: list[Any] = [self.replays[policy] for policy in policies]
        chosen = list(policies)

        def count() -> list[int]:
            reported = self.pace[chosen, 0].tolist()
            return [steps + one.made - sum(one.carried) for steps, one in zip(reported, replays, strict=True)]

        return count

    def batches(self, policy: int) -> int:
        """Whole batches of rows that are read once."""
        return super().batches(policy) if policy in self._policies else int(self.pace[policy, 1])

    def tell_pace(self, policies: Sequence[int]) -> npt.NDArray[np.int64]:
        """What actors need to know of policies that are learned here."""
        once = [self.roster.policies[policy].settings.once for policy in policies]
        rows = [
            (self.replays[p].steps, self.batches(p) if is_once else 0)
            for p, is_once in zip(policies, once, strict=True)
        ]
        return np.array(rows, np.int64)


SMALL = 100_000
"""Bytes of a bundle that is not worth the way to the object store and back: two messages more."""


class VersionBundle:
    """Some publications on their way: their versions as one flat object, made anew when one of them is new.

    Args:
        publications: of one learner process.
    """

    def __init__(self, publications: Sequence[Publication]) -> None:
        self._ends = [(publication, publication.subscriber()) for publication in publications]
        self._object: Any = None
        self.number = 0
        """How many there were."""
        self.flat = np.zeros(0, np.uint8)

    def renew(self) -> None:
        """Make it anew if there is a new version."""
        fresh = [subscriber.refresh() for _, subscriber in self._ends]
        if any(fresh) and all(subscriber.version for _, subscriber in self._ends):
            self.number += 1
            self.flat, self._object = packed(self._ends), None

    def stored(self, put: Callable[[Any], Any]) -> Any:
        """Where it lies in the object store; ``put`` puts it there, once. A small one travels itself."""
        if self.flat.nbytes <= SMALL:
            return self.flat
        if self._object is None:
            self._object = put(self.flat)
        return self._object

    @property
    def versions(self) -> list[int]:
        """The newest version of each publication."""
        return [subscriber.newest for _, subscriber in self._ends]


def words_of(memory: npt.NDArray[np.uint8]) -> LaneWords:
    """The words of a lane that was copied from somewhere, wherever the copy lies."""
    words = memory[: 4 * LINE].copy().view(np.uint64)
    return LaneWords(*(int(words[_native.LANE_WORDS[name]]) for name in LaneWords._fields))


def packed(publications: Sequence[tuple[Publication, Any]]) -> npt.NDArray[np.uint8]:
    """The versions that some subscribers hold, as one flat array; each comes with its publication."""
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


def unpack(flat: npt.NDArray[np.uint8], publications: Sequence[tuple[Publication, Any]]) -> None:
    """Publish what :func:`packed` made, if it is news; each publication comes with its publisher."""
    at = 0
    for publication, publisher in publications:
        sizes = 8, publication._record.itemsize, publication.weights * 4
        version, header, weights = np.split(flat[at : at + sum(sizes)], np.cumsum(sizes)[:-1])
        at += sum(sizes)
        number = int(version.copy().view(np.uint64)[0])
        if number > publisher.newest:
            record = header.copy().view(publication._record)[0]
            values = {name: record[name] for name in publication.header}
            publisher.publish(weights.copy().view(np.float32), version=number, **values)

"""Finished episodes on their way from actors to the run directory: one ring in shared memory for each actor.

Only the actor writes its ring. The recorder reads all rings, many times a second, and appends a line for each episode
to ``episodes.jsonl``. If an actor finishes more episodes between two reads than its ring can hold, the oldest ones are
overwritten, and the reader counts them as lost. In reproducible runs no line may be missing: there the actor waits for
room in its ring.

A record has its number, a checksum and a text. The reader takes a record only if number and checksum are right. So the
order in which the bytes of a record become visible does not matter, and a writer may die in the middle of a record. A
restarted actor continues with the number after the last complete record.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from motet.arrays import ArraySpec
from motet.runs.directory import RunDirectory
from motet.runs.episodes import EpisodeFile
from motet.system.memory import Segment
from motet.training.roster import Roster

if TYPE_CHECKING:
    from motet.training.shared import SharedMemory

__all__ = ["EpisodeRecord", "EpisodeRecorder", "EpisodeRings", "RingReader", "RingWriter", "names"]

_HEAD = struct.Struct("<QII")  # number, checksum and length of the text
_RING_BYTES, _ALL_BYTES = 2**20, 2**24  # bytes of one ring, and of all rings
_LEAST, _MOST = 16, 1024  # minimum and maximum number of records of a ring
_TEXT = 1024  # bytes of a record's text, apart from the part that grows with the number of agents
_EPISODES = 100  # number of episodes of each actor over which metrics are averaged
_EACH = 96  # bytes for the numbers of each agent


class EpisodeRecord(NamedTuple):
    """A finished episode, as its actor writes it. Agents are numbered as :func:`names` lists them."""

    world: int
    """Index of the world in its actor."""
    round: int
    """Rounds that the actor had played."""
    seed: int
    returns: list[float]
    lengths: list[int]
    """Steps of each agent; 0 if it did not act."""
    versions: list[int]
    """Version of each policy at the end of the episode."""
    winner: int | None = None
    """0 or 1 for the winning side, -1 for a draw; None if the world does not say how a game is won."""
    opponent: int | None = None
    """In self-play, the number of the opponent in the league."""
    side: int | None = None
    """In self-play, the side of the player."""
    metrics: dict[str, float] = {}  # noqa: RUF012 - never written to
    """What the world or its agents measured, by name."""
    metrics_lost: int = 0
    """Number of metrics that did not fit."""


class EpisodeRings:
    """The rings of a run.

    Args:
        roster: the participants of the run.
        segment: a segment with room for :meth:`layout`.
    """

    def __init__(self, roster: Roster, segment: Segment) -> None:
        self._segment = segment
        self.lost = [0] * roster.actors
        """Records that were lost on another node, by actor."""
        for name in self.layout(roster):
            segment[name][...] = 0

    @staticmethod
    def layout(roster: Roster) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for the rings."""
        size = _TEXT + _EACH * (len(roster.agents) + len(roster.policies))
        room = min(_RING_BYTES, _ALL_BYTES // roster.actors)
        records = min(max(room // size, _LEAST), _MOST)
        return {
            "episodes/records": ArraySpec((roster.actors, records, size), "uint8"),
            "episodes/heads": ArraySpec((roster.actors, 8), "uint64"),
        }

    def writer(self, actor: int) -> RingWriter:
        """Return the writing end of an actor's ring, for that actor."""
        return RingWriter(*self._parts(actor))

    def reader(self, actor: int) -> RingReader:
        """Return a reading end of an actor's ring, which begins with its oldest record."""
        return RingReader(*self._parts(actor))

    def _parts(self, actor: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        return self._segment["episodes/records"][actor], self._segment["episodes/heads"][actor]


class RingWriter:
    """The writing end of a ring: ``records`` is ``[records, bytes]``, and ``head`` holds the newest number."""

    def __init__(self, records: npt.NDArray[np.uint8], head: npt.NDArray[np.uint64]) -> None:
        self._size, self._count = records.shape[1], len(records)
        self._bytes, self._head = memoryview(cast(Any, records)).cast("B"), memoryview(cast(Any, head)).cast("B")

    def append(self, record: EpisodeRecord) -> None:
        """Append a record, over the oldest one. Metrics without room are counted and left out, the last ones first."""
        text = _encoded(record)
        while len(text) > self._size - _HEAD.size and record.metrics:
            kept = dict(list(record.metrics.items())[:-1])
            record = record._replace(metrics=kept, metrics_lost=record.metrics_lost + 1)
            text = _encoded(record)
        number = int.from_bytes(self._head[:8], "little") + 1
        at = number % self._count * self._size
        whole = _HEAD.pack(number, _checksum(number, text), len(text)) + text
        self._bytes[at : at + len(whole)] = whole
        self._head[:8] = number.to_bytes(8, "little")

    def has_room(self, records: int) -> bool:
        """Whether this number of records fits beside those that have not been read."""
        written, read = (int.from_bytes(self._head[at : at + 8], "little") for at in (0, 8))
        return written - read + records <= self._count


class RingReader:
    """A reading end of a ring."""

    def __init__(self, records: npt.NDArray[np.uint8], head: npt.NDArray[np.uint64]) -> None:
        self._size, self._count = records.shape[1], len(records)
        self._bytes, self._head = memoryview(cast(Any, records)).cast("B"), memoryview(cast(Any, head)).cast("B")
        self._read = 0  # number of the last record that was read
        self._waiting = deque[EpisodeRecord]()  # of later rounds than those asked for
        self.lost = 0
        """Number of records that were overwritten before they were read."""

    def read(self, until_round: float = float("inf")) -> list[EpisodeRecord]:
        """Return the records since the last call, up to the first one of a later round."""
        self._take()
        found: list[EpisodeRecord] = []
        while self._waiting and self._waiting[0].round <= until_round:
            found.append(self._waiting.popleft())
        return found

    def _take(self) -> None:
        """Take the records out of the ring."""
        newest = int.from_bytes(self._head[:8], "little")
        while self._read < newest:
            if newest - self._read > self._count:  # the oldest records were overwritten, or are about to be
                self.lost += newest - self._count - self._read
                self._read = newest - self._count
            at = (self._read + 1) % self._count * self._size
            number, checksum, length = _HEAD.unpack_from(self._bytes, at)
            text = bytes(self._bytes[at + _HEAD.size : at + _HEAD.size + min(length, self._size - _HEAD.size)])
            if _checksum(self._read + 1, text) != checksum or number != self._read + 1:
                newest = max(newest, int.from_bytes(self._head[:8], "little"))
                if newest - self._read >= self._count:  # the record is being overwritten
                    self.lost += 1
                    self._read += 1
                    continue
                break  # the record is not completely visible yet: the next call reads it
            self._waiting.append(EpisodeRecord(*json.loads(text)))
            self._read += 1
        self._head[8:16] = self._read.to_bytes(8, "little")


def _encoded(record: EpisodeRecord) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


def _checksum(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


def names(roster: Roster) -> Sequence[str]:
    """Return the names of the agents in records: those of the world, or in self-play that of the player."""
    return [roster.policies[0].name] if roster.self_play is not None else [agent.name for agent in roster.agents]


class EpisodeRecorder:
    """Reads the rings of a run, and appends a line for each episode to ``episodes.jsonl``.

    In lockstep and with periods the lines are in the order of rounds, actors and worlds, as with the serial engine.

    Args:
        shared: the shared memory of the run.
        directory: the run directory; None: no file is written.
        limit_bytes: size at which the file is thinned; 0: no file is written.
        kept: the result of :meth:`notes` in the checkpoint from which the run was resumed; None for a new run.
    """

    def __init__(
        self, shared: SharedMemory, directory: RunDirectory | None, limit_bytes: float, kept: Mapping[str, Any] | None
    ) -> None:
        self._rings, self._board, self._roster = shared.episodes, shared.board, shared.roster
        self._records = shared.records
        self._readers = [shared.episodes.reader(actor) for actor in range(shared.roster.actors)]
        self._names = names(shared.roster)
        self._file: EpisodeFile | None = None
        if directory is not None and limit_bytes > 0:
            self._file = EpisodeFile(directory, limit_bytes, None if kept is None else int(kept.get("count", 0)))
        self._measured: dict[str, dict[int, deque[float]]] = {}  # by name and actor: numbers of the last episodes
        self.metrics_lost = 0
        """Number of metrics that did not fit into the records of their episodes."""
        self._steps = dict.fromkeys(self._names, 0) | dict((kept or {}).get("steps", {}))

    @property
    def lost(self) -> int:
        """Number of episodes that were not read, because their actor's ring was full."""
        return sum(reader.lost for reader in self._readers) + sum(self._rings.lost)

    def notes(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores for a resumed run."""
        return {} if self._file is None else {"count": self._file.count, "steps": dict(self._steps)}

    def metrics(self) -> dict[str, float]:
        """Return the mean of each number that worlds measured, over the last episodes of every actor."""
        means = {
            name: [sum(values) / len(values) for values in by_actor.values()]
            for name, by_actor in self._measured.items()
        }
        return {name: sum(values) / len(values) for name, values in means.items()}

    def write(self, seconds: float, everything: bool = False) -> None:
        """Append the episodes that have finished since the last call; ``everything``: no process plays any more."""
        rounds = float("inf")
        if self._roster.pace.lockstep and not everything:
            rounds = int(self._board.rounds.min())
        elif self._records is not None and not everything:
            rounds = self._records.ended * self._roster.pace.period
        found = [
            (record.round, actor, record.world, record)
            for actor, reader in enumerate(self._readers)
            for record in reader.read(rounds)
        ]
        for _, actor, _, record in found:
            self.metrics_lost += record.metrics_lost
            for name, value in record.metrics.items():
                of_actors = self._measured.setdefault(name, {})
                of_actors.setdefault(actor, deque(maxlen=_EPISODES)).append(value)
        if found and self._file is not None:
            found.sort(key=lambda item: item[:3])
            self._file.append([self._line(actor, record, seconds) for _, actor, _, record in found])

    def _line(self, actor: int, record: EpisodeRecord, seconds: float) -> dict[str, Any]:
        acted = [i for i, length in enumerate(record.lengths) if length]
        for i in acted:
            self._steps[self._names[i]] += record.lengths[i]
        line: dict[str, Any] = {
            "step": max(self._steps.values()),
            "seconds": round(seconds, 3),
            "actor": actor,
            "world": record.world,
            "round": record.round,
            "seed": record.seed,
            "returns": {self._names[i]: record.returns[i] for i in acted},
            "lengths": {self._names[i]: record.lengths[i] for i in acted},
            "versions": {p.name: v for p, v in zip(self._roster.policies, record.versions, strict=True)},
        }
        sides, play = [agent.name for agent in self._roster.agents], self._roster.self_play
        if record.opponent is not None and record.side is not None and play is not None:
            line["opponent"] = play.opponent(record.opponent)
            line["side"] = sides[record.side]
        if record.winner is not None:
            line["winner"] = "draw" if record.winner < 0 else sides[record.winner]
        if record.metrics:
            line["metrics"] = record.metrics
        return line

"""Backups of the states of a level: on threads of this process, and on other machines that hold a part of the arrays.

A native sweep writes the rows of its own states and reads rows of later states. Its order of summation depends on the
state alone. So a level may be split anywhere: first into one share for each machine, then into one part for each
thread. A machine gets the transitions of its states once. With each level it gets the rows that other machines have
computed since the last level, and it sends back the rows of its own states. The caller has all arrays. It computes the
shares of machines that are not ready or are lost, and the whole level if the transport would take longer than the work.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from motet.errors import SettingError, WorkerLostError
from motet.plan.parallel import DEATHS, WorkerTeam
from motet.system.machine import usable_cores

__all__ = ["FEW", "Backup", "Elsewhere", "SweepPart", "SweepRun", "Sweeper", "shares", "spread", "sweeping"]

FEW = 256
"""For a level with fewer states than this it is not worth waking a thread: a state with goals takes microseconds."""
START_S = 3.0
"""Other machines get their parts only if the caller has at least this many seconds of work left."""
GAIN = 1.25
"""Minimum expected speed-up for which a level is shared with other machines."""
MESSAGE_S = 0.005
"""Fixed cost of sharing a level in seconds, besides work and bytes: request, answer, and rows of other machines."""

SweepRun = Callable[[int, int], Any]
Sweep = Callable[..., list[Any]]
"""A function of the first state and the state after the last one that returns the results of the parts. Keyword
arguments replace arrays of the backup from then on. Other machines never have these arrays."""


@dataclass(frozen=True)
class Backup:
    """A kind of backup: the arrays that it uses, and which of their rows belong to a state."""

    make: Callable[[dict[str, Any]], SweepRun]
    """Function from the arrays to the function that sweeps them. Other machines import it by name."""
    arrays: Mapping[str, Any]
    """Arrays and numbers by name."""
    ends: tuple[str, ...]
    """Names of arrays of offsets, from coarse to fine: the first says where the entries of each state end, the next
    where the parts of each entry end, and the last refers to transitions."""
    transitions: tuple[str, ...]
    """Names of the arrays with a row for each transition."""
    own: tuple[str, ...]
    """Names of the arrays with a row for each state, where a backup reads the rows of the states that it computes."""
    reads: tuple[str, ...]
    """Names of the arrays with a row for each state, where a backup reads the rows of later states."""
    writes: tuple[str, ...]
    """Names of the arrays with a row for each state, where a backup writes the rows of the states that it computes."""

    def part(self, states: int, owned: Sequence[tuple[int, int]]) -> SweepPart:
        """The data that another machine needs to sweep some of the states."""
        rows = {name: _joined(_by_state(self.arrays[name], states), owned) for name in self.own}
        each = (len(self.arrays[self.ends[0]]) - 1) // states
        spans, lengths = [(a * each, b * each) for a, b in owned], {}
        for name in self.ends:
            ends = self.arrays[name]
            lengths[name] = _joined(np.diff(ends), spans)
            spans = [(int(ends[a]), int(ends[b])) for a, b in spans]
        leaves = {name: _joined(self.arrays[name], spans) for name in self.transitions}
        empty = {name: (self.arrays[name].shape, self.arrays[name].dtype.str) for name in {*self.reads, *self.writes}}
        cut = {*rows, *lengths, *leaves, *empty}
        whole = {name: value for name, value in self.arrays.items() if name not in cut}
        return SweepPart(self.make, states, list(owned), each, rows, lengths, leaves, empty, whole, self.writes)


@dataclass(eq=False)
class SweepPart:
    """The data of a backup for another machine. Arrays with a row for each state are cut to the rows of that
    machine."""

    make: Callable[[dict[str, Any]], SweepRun]
    states: int
    owned: list[tuple[int, int]]
    each: int
    rows: dict[str, NDArray[Any]]
    lengths: dict[str, NDArray[np.int64]]
    leaves: dict[str, NDArray[Any]]
    empty: dict[str, tuple[tuple[int, ...], str]]
    whole: dict[str, Any]
    writes: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are sent."""
        arrays = [*self.rows.values(), *self.lengths.values(), *self.leaves.values(), *self.whole.values()]
        return sum(getattr(array, "nbytes", 0) for array in arrays)

    def arrays(self) -> dict[str, Any]:
        """The arrays, as long as those of the caller, so that states have the same numbers. Pages of states of other
        machines are never touched, so they take no memory."""
        found = {**self.whole, **self.leaves}
        for name, rows in self.rows.items():
            full = found[name] = np.zeros((self.states, rows.shape[1]), rows.dtype)
            _put(full, rows, self.owned)
        for depth, (name, lengths) in enumerate(self.lengths.items()):
            counts = lengths
            if depth == 0:
                counts = np.zeros(self.states * self.each, np.int64)
                _put(counts, lengths, [(a * self.each, b * self.each) for a, b in self.owned])
            found[name] = np.concatenate([[0], np.cumsum(counts)])
        for name, (shape, dtype) in self.empty.items():
            found[name] = np.zeros(shape, dtype)
        return found


def _by_state(array: NDArray[Any], states: int) -> NDArray[Any]:
    return array.reshape(states, -1)


def _joined(array: NDArray[Any], spans: Sequence[tuple[int, int]]) -> NDArray[Any]:
    return np.concatenate([array[a:b] for a, b in spans])


def _put(full: NDArray[Any], rows: NDArray[Any], spans: Sequence[tuple[int, int]]) -> None:
    at = 0
    for a, b in spans:
        full[a:b] = rows[at : at + b - a]
        at += b - a


class Sweeper(Protocol):
    """A machine that has a part of the arrays, or is receiving it."""

    def up(self) -> float | None:
        """Bytes per second at which the part was sent; None while it is being sent. Raises if the machine is lost."""

    def ask(self, first: int, last: int, news: Any) -> None:
        """Let the machine sweep some of its states, given the rows that other machines have computed since the last
        call."""

    def answer(self, timeout_s: float) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """The results of the parts, and the rows that were written. Raises if the machine is lost."""

    def close(self) -> None:
        """End the process on the machine."""


class Elsewhere(Protocol):
    """Other machines."""

    @property
    def rooms(self) -> Sequence[int]:
        """Number of threads on each machine."""

    def sweeper(self, index: int, part: Callable[[], SweepPart]) -> Sweeper | None:
        """Send a part to a machine, or to another one if that machine is gone; None if no machine is available."""

    def share(self, news: dict[str, tuple[int, NDArray[Any]]]) -> Any:
        """Store rows once, so that they can be sent to several machines. ``news``: array name -> first row, rows."""


def shares(first: int, last: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Split the states from first to last in proportion to the sizes."""
    whole = sum(sizes)
    cuts = [first + (last - first) * upto // whole for upto in itertools.accumulate(sizes, initial=0)]
    return list(itertools.pairwise(cuts))


@contextmanager
def sweeping(workers: int | None, few: int = FEW) -> Iterator[Callable[[int, int, SweepRun], list[Any]]]:
    """Provide ``parts(first, last, run)``, which calls ``run`` on parts of first to last, on several threads.

    Fewer than ``few`` states are done by the calling thread. The results of the parts are returned in order.
    """
    count = usable_cores() if workers is None else workers
    if count < 1:
        raise SettingError(f"workers must be an int >= 1, or None for one per core, got {workers}")
    with ThreadPoolExecutor(max(count - 1, 1), "plan-sweep") as threads:

        def parts(first: int, last: int, run: SweepRun) -> list[Any]:
            if count == 1 or last - first < few:
                return [run(first, last)]
            mine, *others = shares(first, last, [1] * count)
            waiting = [threads.submit(run, a, b) for a, b in others]
            return [run(*mine), *(other.result() for other in waiting)]

        yield parts


@contextmanager
def spread(
    backup: Backup, states: int, levels: Sequence[tuple[int, int]], workers: int | WorkerTeam | None, few: int = FEW
) -> Iterator[Sweep]:
    """Provide ``sweep(first, last)``, which sweeps one level, on threads of this process and on other machines.

    Args:
        backup: the backup to do.
        states: total number of states.
        levels: for each level its first state and the state after its last one, in the order of the sweeps.
        workers: maximum number of threads, or a team of workers, which may have other machines.
        few: a level with fewer states than this is done by the calling thread.
    """
    elsewhere = workers.elsewhere if isinstance(workers, WorkerTeam) else None
    here = (workers.count if isinstance(workers, WorkerTeam) else workers) or usable_cores()
    if elsewhere is not None:
        here = min(here, usable_cores())
    with sweeping(here, few) as parts:
        if elsewhere is not None and elsewhere.rooms:
            with closing(_Spread(backup, states, levels, elsewhere, parts, [here, *elsewhere.rooms], few)) as shared:
                yield shared.sweep
            return
        arrays = dict(backup.arrays)
        run = backup.make(arrays)

        def sweep(first: int, last: int, **changed: Any) -> list[Any]:
            return parts(first, last, backup.make(arrays | changed) if changed else run)

        yield sweep


@dataclass
class _Share:
    """The share of a machine, and the machine that has it now."""

    number: int
    sweeper: Sweeper | None = None
    knows: int = 0
    """First state of those whose rows the machine already has."""
    bytes_s: float | None = None
    deaths: int = 0


@dataclass
class _Spread:
    backup: Backup
    states: int
    levels: Sequence[tuple[int, int]]
    elsewhere: Elsewhere
    parts: Callable[[int, int, SweepRun], list[Any]]
    sizes: Sequence[int]
    """Number of threads of the caller, then of each machine."""
    few: int
    shares: list[_Share] = field(default_factory=list)
    second: float = 0.0
    """Measured seconds that one thread of the caller takes for a state."""

    def __post_init__(self) -> None:
        self.arrays = dict(self.backup.arrays)
        self.run = self.backup.make(self.arrays)
        self.shares = [_Share(number, knows=self.states) for number in range(1, len(self.sizes))]
        self.left = sum(last - first for first, last in self.levels)
        self.home_bytes = self._row_bytes(self.backup.writes)
        self.away_bytes = self._row_bytes(self.backup.reads) * len(self.shares)

    def _row_bytes(self, names: Sequence[str]) -> float:
        return float(sum(self.arrays[name].nbytes for name in names)) / max(self.states, 1)

    def sweep(self, first: int, last: int, **changed: Any) -> list[Any]:
        """Sweep all states of a level: here, and on the machines that are ready if that is faster."""
        if changed:
            self.arrays |= changed
            self.run = self.backup.make(self.arrays)
            for share in self.shares:
                share.knows = self.states
        self.left -= last - first
        cut = shares(first, last, self.sizes)
        begin = 0 if changed else last
        asked = [share for share in self._willing(last - first) if cut[share.number][0] < cut[share.number][1]]
        self._ask(asked, cut, begin)
        found, mine = [], [cut[0], *(cut[share.number] for share in self.shares if share not in asked)]
        began = time.perf_counter()
        for a, b in _merged(mine):
            found += self.parts(a, b, self.run)
        worked = sum(b - a for a, b in mine)
        if worked:
            threads = self.sizes[0] if worked >= self.few else 1
            self.second = (time.perf_counter() - began) * threads / worked
        for share in asked:
            found += self._answer(share, *cut[share.number])
        return found

    def _willing(self, count: int) -> list[_Share]:
        """The shares whose machines take part in a level of ``count`` states; empty if that would not be faster."""
        if count < self.few:
            return []
        if all(share.sweeper is None for share in self.shares):
            if self.second * self.left / self.sizes[0] < START_S or self.gain(count, None) < GAIN:
                return []
            for share in self.shares:
                self._start(share)
        up = [share for share in self.shares if self._is_up(share)]
        if not up:
            return []
        slowest = min(share.bytes_s or 0.0 for share in up)
        return up if self.gain(count, slowest) >= GAIN else []

    def gain(self, count: int, bytes_s: float | None) -> float:
        """Expected speed-up of a level if it is shared; ``bytes_s`` None: assume that the transport takes no time."""
        alone = count * self.second / self.sizes[0]
        elsewhere = count * sum(self.sizes[1:]) / sum(self.sizes)
        travel = 0.0 if bytes_s is None else (elsewhere * self.home_bytes + count * self.away_bytes) / max(bytes_s, 1.0)
        together = count * self.second / sum(self.sizes) + travel + MESSAGE_S
        return alone / together

    def _start(self, share: _Share) -> None:
        owned = {shares(a, b, self.sizes)[share.number] for a, b in self.levels if b - a >= self.few}
        spans = sorted((a, b) for a, b in owned if a < b)
        share.knows, share.bytes_s = self.states, None
        share.sweeper = self.elsewhere.sweeper(share.number - 1, lambda: self.backup.part(self.states, spans))

    def _is_up(self, share: _Share) -> bool:
        if share.sweeper is None:
            return False
        try:
            share.bytes_s = share.sweeper.up()
        except WorkerLostError as error:
            self._lose(share, error)
        return share.bytes_s is not None

    def _ask(self, asked: Sequence[_Share], cut: Sequence[tuple[int, int]], begin: int) -> None:
        sent: dict[int, Any] = {}
        for share in asked:
            assert share.sweeper is not None
            if share.knows not in sent:
                rows = {name: (begin, self.arrays[name][begin : share.knows]) for name in self.backup.reads}
                sent[share.knows] = self.elsewhere.share(rows)
            share.sweeper.ask(*cut[share.number], sent[share.knows])
            share.knows = begin

    def _answer(self, share: _Share, first: int, last: int) -> list[Any]:
        """Receive the results of a machine; if it is lost, sweep its states here instead."""
        assert share.sweeper is not None
        expected = (last - first) * (self.second + self.home_bytes / max(share.bytes_s or 1e6, 1e6))
        try:
            found, rows = share.sweeper.answer(300.0 + 20 * expected)
        except WorkerLostError as error:
            self._lose(share, error)
            return self.parts(first, last, self.run)
        for name, values in rows.items():
            self.arrays[name][first:last] = values
        return found

    def _lose(self, share: _Share, error: WorkerLostError) -> None:
        """Handle the loss of a machine: its states are swept here until another machine, if there is one, has received
        them."""
        assert share.sweeper is not None
        share.sweeper.close()
        share.sweeper, share.deaths = None, share.deaths + 1
        if share.deaths >= DEATHS:
            raise error
        self._start(share)

    def close(self) -> None:
        for share in self.shares:
            if share.sweeper is not None:
                share.sweeper.close()


def _merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same states in as few spans as possible."""
    found: list[tuple[int, int]] = []
    for a, b in sorted(spans):
        if found and found[-1][1] == a:
            found[-1] = (found[-1][0], b)
        elif a < b:
            found.append((a, b))
    return found

"""Backups of the states of a level: on threads here, and on other machines that hold a part of the arrays.

A native sweep writes the rows of its own states and reads rows of later ones, in an order of summation that depends on
the state alone. So a level may be cut anywhere: into one part for each thread, and before that into one share for each
machine. A machine gets once what it needs of the transitions of its states, and with each level the rows that others
have found since; it sends home the rows of its own. The caller has everything: it does the share of whoever is not up,
or is lost, and where the way there would take longer than the work, all of it.
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
"""States with goals, at some microseconds each, that are not worth waking a thread for."""
START_S = 3.0
"""As much must be left for the caller before other machines are given their parts."""
GAIN = 1.25
"""A level is shared with other machines if that is expected to make it this much faster."""
MESSAGE_S = 0.005
"""What a level costs besides work and bytes: the question, the answer, and what was found meanwhile."""

SweepRun = Callable[[int, int], Any]
Sweep = Callable[..., list[Any]]
"""From the first state to sweep and the one behind the last to what the parts returned. By name, arrays that replace
those of the backup from now on, and that nobody else has seen."""


@dataclass(frozen=True)
class Backup:
    """A kind of backup: the arrays it works on, and which of their rows belong to a state."""

    make: Callable[[dict[str, Any]], SweepRun]
    """From the arrays to what sweeps them; importable, for other machines."""
    arrays: Mapping[str, Any]
    """By name; numbers too."""
    ends: tuple[str, ...]
    """Where the entries of each state end, and where theirs do, down to the transitions."""
    transitions: tuple[str, ...]
    own: tuple[str, ...]
    """Arrays of which a backup reads the rows of its own states."""
    reads: tuple[str, ...]
    """Arrays of which it reads the rows of later states."""
    writes: tuple[str, ...]
    """Arrays of which it writes the rows of its own states."""

    def part(self, states: int, owned: Sequence[tuple[int, int]]) -> SweepPart:
        """What another machine needs to sweep some of the states."""
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
    """What another machine has of a backup: of the arrays that go by state, the rows of its own states only."""

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
        """What travels."""
        arrays = [*self.rows.values(), *self.lengths.values(), *self.leaves.values(), *self.whole.values()]
        return sum(getattr(array, "nbytes", 0) for array in arrays)

    def arrays(self) -> dict[str, Any]:
        """The arrays, as long as the caller's, so that states have the same numbers; of those that others own no page
        is ever touched."""
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
    """A machine that has a part, or will have it soon."""

    def up(self) -> float | None:
        """Bytes a second that came there with its part; None while it is on its way. Raises if it is lost."""

    def ask(self, first: int, last: int, news: Any) -> None:
        """Have it sweep some of its states, with what others have found meanwhile."""

    def answer(self, timeout_s: float) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """What the parts returned, and the rows that were written. Raises if it is lost."""

    def close(self) -> None:
        """End it."""


class Elsewhere(Protocol):
    """Other machines."""

    @property
    def rooms(self) -> Sequence[int]:
        """Threads on each of them."""

    def sweeper(self, index: int, part: Callable[[], SweepPart]) -> Sweeper | None:
        """Send a part to a machine, or to a new one if that is gone; None if there is no other."""

    def share(self, news: dict[str, tuple[int, NDArray[Any]]]) -> Any:
        """Rows, by array and the first of them, to be sent to several."""


def shares(first: int, last: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The states from first to last, cut in proportion."""
    whole = sum(sizes)
    cuts = [first + (last - first) * upto // whole for upto in itertools.accumulate(sizes, initial=0)]
    return list(itertools.pairwise(cuts))


@contextmanager
def sweeping(workers: int | None, few: int = FEW) -> Iterator[Callable[[int, int, SweepRun], list[Any]]]:
    """Gives ``parts(first, last, run)``: calls ``run`` on parts of first to last, on several threads.

    Fewer than ``few`` states are done by the caller. What the parts return is given back in their order.
    """
    count = usable_cores() if workers is None else workers
    if count < 1:
        raise SettingError(f"workers must be an int >= 1, or None for one a core, got {workers}")
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
    """Gives ``sweep(first, last)`` for levels, in the order in which they will be swept: on threads, or machines.

    Args:
        backup: what is done.
        states: how many there are.
        levels: first state and the one behind the last, of each level.
        workers: threads at most, or a team of workers, which may be elsewhere.
        few: fewer states than this are done by one thread of the caller.
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
    """A machine's share, and who has it now."""

    number: int
    sweeper: Sweeper | None = None
    knows: int = 0
    """It has the rows from this state on."""
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
    """Threads: the caller's, then those of each machine."""
    few: int
    shares: list[_Share] = field(default_factory=list)
    second: float = 0.0
    """Of one thread, for a state, as measured here."""

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
        """Of one level, all states: here, and by those who are up if that pays."""
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
        """Those to be asked for a level of so many states: nobody, if it does not pay."""
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
        """How much faster a level would be done together, as far as is known; None: as if bytes took no time."""
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
        """What a machine found; if it is lost, what the caller finds instead."""
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
        """Its states are swept here until another machine has its share, if there is room for it anywhere."""
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

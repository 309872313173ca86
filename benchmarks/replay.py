"""``motet bench replay``: adding rows, sampling batches, both in parallel; priorities; gathering compared with memcpy.

Observations are 4x11x11 float32 (1936 bytes, a small stack of planes) or 18 float32 (72 bytes, a vector). Writer and
sampler are two processes. The buffer is full with 100,000 rows; batches of 256 have both observations, action, reward
and done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import Comparison, Measure, Result, Settings, interleave, interleave_pairs
from benchmarks import replay_designs as designs
from benchmarks import replay_peers as peers
from benchmarks.limits import copy_rows
from benchmarks.party import Missing, Party, Stage, rate
from benchmarks.replay_designs import BATCH
from motet import _native
from motet.arrays import ArraySpec
from motet.replay import Replay
from motet.system.memory import Segment

__all__ = ["run"]

SHAPES: Mapping[str, tuple[int, ...]] = {"planes": (4, 11, 11), "vector": (18,)}

TOGETHER_S = 0.1
"""Seconds until both sides start at the same time."""

MEASURES = {
    **{
        f"{what}_{shape}": Measure(f"{title}, {size}", unit)
        for shape, size in (("planes", "4x11x11 float32"), ("vector", "18 floats"))
        for what, title, unit in (
            ("add", "Rows added one by one, writer alone", "rows/s"),
            ("sample", "Batches of 256, sampler alone", "batches/s"),
            ("add_both", "Rows added while the sampler runs", "rows/s"),
            ("sample_both", "Batches of 256 while the writer runs", "batches/s"),
        )
    },
    "gather": Measure("Both observations of 256 rows, 4x11x11 float32", "GB/s"),
    "prioritised": Measure("Prioritised sample + update, 1e6 rows of 18 floats, batch 256", "us"),
}

COMPARISONS = {
    "add_vs_lock": Comparison("add_planes", "motet", "numpy + mp.Lock", 6),
    "add_vs_lock_both": Comparison("add_both_planes", "motet", "numpy + mp.Lock", 15),
    "sample18_vs_lock": Comparison("sample_vector", "motet", "numpy + mp.Lock", 5),
    "gather_vs_memcpy": Comparison("gather", "motet", "memcpy of scattered rows", 0.8),
    "gather_vs_memcpy_pairs": Comparison("gather", "motet", "memcpy of scattered pairs"),
    "per_vs_cpprb": Comparison("prioritised", "motet", "cpprb", 5),
    "tree_vs_cpprb": Comparison("prioritised", "motet, tree alone", "cpprb, priorities alone"),
    **{
        f"{what}{suffix}_vs_{short}": Comparison(f"{what}{both}_{shape}", "motet", theirs)
        for shape, suffix in (("planes", ""), ("vector", "18"))
        for what in ("add", "sample")
        for short, theirs, both in (
            ("lock", "numpy + mp.Lock", ""),
            ("take", "the same, np.take", ""),
            ("queue_both", "mp.Queue + drain thread", "_both"),
            ("cpprb", "cpprb MPReplayBuffer", ""),
            ("torchrl", "torchrl shared memmap", ""),
            ("sb3", "sb3, one process", ""),
        )
        if (what, suffix, short) not in (("add", "", "lock"), ("sample", "18", "lock"))
        and (what, short) != ("add", "take")
    },
}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("replay", MEASURES, COMPARISONS)
    capacity, many = (2000, 5000) if settings.quick else (100_000, 1_000_000)
    result.facts.update(capacity=capacity, prioritised_capacity=many, batch=BATCH)
    with Stage() as stage:
        for name, shape in SHAPES.items():
            _rings(result, stage, settings, name, shape, capacity)
            if name == "planes":
                _gather(result, stage, settings, shape, capacity)
            stage.clear()
        _prioritised(result, stage, settings, many)
    return result


# ---- writers and samplers

Side = Callable[[float], float]


@dataclass(frozen=True)
class _Contestant:
    """Measurements of a design, each for a number of seconds; None if it does not support one."""

    add: Side | None
    sample: Side
    both: Callable[[float], tuple[float, float]] | None
    """Rows and batches per second while both sides run."""
    alive: Any = None
    """An object that must live as long as the processes of this measurement."""


def _rings(result: Result, stage: Stage, settings: Settings, name: str, shape: tuple[int, ...], capacity: int) -> None:
    contestants: dict[str, _Contestant] = {}
    for title, make in _MAKERS.items():
        try:
            contestants[title] = make(stage, shape, capacity)
        except Missing as missing:
            result.skipped[title] = str(missing)
    seconds, repeats, warm = settings.seconds, settings.repeats, not settings.quick
    adders = {title: partial(c.add, seconds) for title, c in contestants.items() if c.add is not None}
    interleave(result, f"add_{name}", adders, repeats, warm)
    samplers = {title: partial(c.sample, seconds) for title, c in contestants.items()}
    interleave(result, f"sample_{name}", samplers, repeats, warm)
    couples = {title: partial(c.both, seconds) for title, c in contestants.items() if c.both is not None}
    interleave_pairs(result, (f"add_both_{name}", f"sample_both_{name}"), couples, repeats, warm)


def _ask(party: Party, method: str) -> Side:
    return lambda seconds: float(party.call(method, time.monotonic(), seconds))


def _pair(writer: Party, sampler: Party, alive: Any, add_alone: bool = True) -> _Contestant:
    def both(seconds: float) -> tuple[float, float]:
        begin_at = time.monotonic() + TOGETHER_S
        for party in (writer, sampler):
            party.begin("run", begin_at, seconds)
        return float(writer.result()), float(sampler.result())

    return _Contestant(_ask(writer, "run") if add_alone else None, _ask(sampler, "run"), both, alive)


def _motet(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    replay = designs.replay_of(shape, capacity)
    return _pair(stage.party(designs.MotetWriter, replay, shape), stage.party(designs.MotetSampler, replay), replay)


def _lock(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    ring = designs.LockRing(stage.context, shape, capacity)
    return _pair(stage.party(designs.LockWriter, ring), stage.party(designs.LockSampler, ring), ring)


def _take(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    ring = designs.LockRing(stage.context, shape, capacity)
    # The writer is the same as in _lock, so only sampling is measured.
    return _pair(stage.party(designs.LockWriter, ring), stage.party(designs.TakeSampler, ring), ring, add_alone=False)


def _queue(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    queue = stage.context.Queue(1000)
    sampler = stage.party(designs.QueueSampler, queue, shape, capacity)
    # Adding cannot be measured alone, because the thread that reads the queue belongs to the sampler.
    return _pair(stage.party(designs.QueueWriter, queue, shape), sampler, queue, add_alone=False)


def _cpprb(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    try:
        from cpprb import MPReplayBuffer
    except ImportError as error:
        raise Missing(f"not installed ({error})") from error
    buffer = MPReplayBuffer(capacity, peers.cpprb_environment(shape), ctx=stage.context)
    writer = stage.party(peers.CpprbWriter, buffer, shape)
    return _pair(writer, stage.party(peers.CpprbSampler, buffer), buffer)


def _torchrl(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    party = stage.party(peers.Torchrl, shape, capacity)

    def both(seconds: float) -> tuple[float, float]:
        rows, batches = party.call("both", time.monotonic() + TOGETHER_S, seconds)
        return float(rows), float(batches)

    return _Contestant(_ask(party, "add"), _ask(party, "sample"), both)


def _sb3(stage: Stage, shape: tuple[int, ...], capacity: int) -> _Contestant:
    party = stage.party(peers.Sb3, shape, capacity)
    return _Contestant(_ask(party, "add"), _ask(party, "sample"), None)


_MAKERS: Mapping[str, Callable[[Stage, tuple[int, ...], int], _Contestant]] = {
    "motet": _motet,
    "numpy + mp.Lock": _lock,
    "the same, np.take": _take,
    "mp.Queue + drain thread": _queue,
    "cpprb MPReplayBuffer": _cpprb,
    "torchrl shared memmap": _torchrl,
    "sb3, one process": _sb3,
}


# ---- gathering compared with memcpy


class _Gather:
    """Batches of 256 from a full replay buffer, and plain copies of equal size from an equal amount of shared memory.

    ``rows`` copies 512 scattered rows; ``pairs`` copies 256 times two neighbouring rows, as transitions are stored.
    """

    SETS = 512

    def __init__(self, replay: Replay, shape: tuple[int, ...]) -> None:
        self._writer, self._reader = designs.MotetWriter(replay, shape), designs.MotetSampler(replay)
        capacity, self._row_bytes = replay.spec.capacity, 4 * int(np.prod(shape))
        self._memory = Segment({"rows": ArraySpec((capacity, self._row_bytes), "uint8")})["rows"]
        self._out = np.zeros(2 * BATCH * self._row_bytes, np.uint8)
        rng = np.random.default_rng(2)
        self._rows = list(rng.integers(0, capacity, (self.SETS, 2 * BATCH), dtype=np.uint64))
        self._pairs = list(rng.integers(0, capacity - 1, (self.SETS, BATCH), dtype=np.uint64))
        self._at = 0

    def _copy(self, sets: list[npt.NDArray[np.uint64]], row_bytes: int, n: int) -> None:
        for _ in range(n):
            self._at = (self._at + 1) % self.SETS
            copy_rows(self._memory, self._row_bytes, self._out, row_bytes, sets[self._at])

    def motet(self, seconds: float) -> float:
        """Return GB/s of ``sample``, counting only the observations."""
        return self._rate(self._reader.steps, seconds)

    def rows(self, seconds: float) -> float:
        """Return GB/s of the copy of scattered rows."""
        return self._rate(partial(self._copy, self._rows, self._row_bytes), seconds)

    def pairs(self, seconds: float) -> float:
        """Return GB/s of the copy of scattered pairs."""
        return self._rate(partial(self._copy, self._pairs, 2 * self._row_bytes), seconds)

    def _rate(self, steps: Callable[[int], None], seconds: float) -> float:
        return rate(steps, 16, time.monotonic(), seconds) * self._out.nbytes / 1e9


def _gather(result: Result, stage: Stage, settings: Settings, shape: tuple[int, ...], capacity: int) -> None:
    party = stage.party(_Gather, designs.replay_of(shape, capacity), shape)
    titles = {"motet": "motet", "memcpy of scattered rows": "rows", "memcpy of scattered pairs": "pairs"}
    asks = {title: partial(party.call, method, settings.seconds) for title, method in titles.items()}
    interleave(result, "gather", asks, settings.repeats)


# ---- priorities


class _Prioritised:
    """Samples 256 of a million rows by priority, then updates their priorities. Times are in microseconds."""

    def __init__(self, rows: int) -> None:
        shape, block = SHAPES["vector"], 50
        self._replay = designs.replay_of(shape, rows)
        designs.MotetWriter(self._replay, shape)
        self._reader = self._replay.reader(prioritised=True, seed=1)
        self._priorities = list(np.random.default_rng(3).uniform(0.1, 2, (block, BATCH)).astype(np.float32))
        self._tree = _native.SumTree(rows, np.arange(1, 5, dtype=np.uint64))
        self._tree.set(np.arange(rows, dtype=np.uint64), np.ones(rows, np.float32))
        self._index = np.zeros(BATCH, np.uint64)
        self.replay(50 * BATCH)

    def replay(self, n: int) -> None:
        """Run ``sample`` and ``update`` of the reader: draw, gather, compute weights, update."""
        reader = self._reader
        for _ in range(n // len(self._priorities)):
            for priority in self._priorities:
                reader.update(reader.sample(BATCH), priority)

    def tree(self, n: int) -> None:
        """Run only the sum tree: draw and update."""
        tree, index = self._tree, self._index
        for _ in range(n // len(self._priorities)):
            for priority in self._priorities:
                tree.sample(index)
                tree.set(index, priority)

    def time(self, what: str, seconds: float) -> float:
        """Microseconds for one sample and one update."""
        return 1e6 / rate(getattr(self, what), len(self._priorities), time.monotonic(), seconds)


class _CpprbPrioritised:
    """cpprb's ``PrioritizedReplayBuffer`` in one process, measured in the same way."""

    def __init__(self, rows: int) -> None:
        try:
            from cpprb import PrioritizedReplayBuffer
        except ImportError as error:
            raise Missing(f"not installed ({error})") from error
        full, least = peers.cpprb_environment(SHAPES["vector"]), {"done": {"dtype": np.bool_}}
        self.buffers = {"full": PrioritizedReplayBuffer(rows, full), "least": PrioritizedReplayBuffer(rows, least)}
        block = np.stack(designs.observations(SHAPES["vector"], 1000))
        n = len(block)
        values = {"obs": block, "act": np.zeros(n, np.int64), "rew": np.ones(n), "next_obs": block, "done": np.zeros(n)}
        for _ in range(-(-rows // n)):
            self.buffers["full"].add(**values)
            self.buffers["least"].add(done=values["done"])
        self._priorities = list(np.random.default_rng(3).uniform(0.1, 2, (10, BATCH)).astype(np.float32))

    def time(self, what: str, seconds: float) -> float:
        """Microseconds for one sample and one update."""
        buffer = self.buffers[what]

        def steps(n: int) -> None:
            for _ in range(n // len(self._priorities)):
                for priority in self._priorities:
                    batch = buffer.sample(BATCH, 0.4)
                    buffer.update_priorities(batch["indexes"], priority)

        return 1e6 / rate(steps, len(self._priorities), time.monotonic(), seconds)


def _prioritised(result: Result, stage: Stage, settings: Settings, rows: int) -> None:
    ours = stage.party(_Prioritised, rows)
    asks = {
        "motet": partial(ours.call, "time", "replay", settings.seconds),
        "motet, tree alone": partial(ours.call, "time", "tree", settings.seconds),
    }
    try:
        theirs = stage.party(_CpprbPrioritised, rows)
    except Missing as missing:
        result.skipped["cpprb"] = str(missing)
    else:
        asks["cpprb"] = partial(theirs.call, "time", "full", settings.seconds)
        asks["cpprb, priorities alone"] = partial(theirs.call, "time", "least", settings.seconds)
    interleave(result, "prioritised", asks, settings.repeats)

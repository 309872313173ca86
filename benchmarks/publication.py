"""``motet bench publication``: the cost of publishing and refreshing 65,536 floats, and the number of torn reads.

Times: learner and actor are two processes that alternate: one publication, one refresh. Each process times its own
call. The caches are then in the same state as in a run: the learner has just changed its weights, the actor was the
last to read the slot, and the actor reads what the learner has just written. The processes wake each other with bells,
outside of the timing. If a separate thread does the work (``mp.Queue``), CPU time of the process is measured instead.

Torn reads: the learner publishes without a pause. The actor refreshes without a pause and checks every number it holds,
after every read that loaded a version and after every read that coincided with a write. With one slot and a writer
without pauses nearly every read coincides with a write, so motet is also measured with a writer that pauses now and
then, where most versions can be loaded.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import Comparison, Measure, Result, Settings, interleave_pairs
from benchmarks import weight_designs as weights
from benchmarks.party import Party, Stage
from motet import _native
from motet.arrays import ArraySpec
from motet.errors import MotetError, WaitTimeoutError
from motet.system.memory import Segment

__all__ = ["run"]

READS = 200_000
"""Number of reads of motet's publication, for each number of slots."""
READS_OF_OTHERS = 20_000
"""Number of reads of the designs that have torn reads: enough to show some."""
TAKEN_BESIDE_GAPS = 20_000
"""Number of versions to load from motet's publication while the writer pauses now and then."""
WAIT_S = 60.0
RACE_S = 600.0
GAP_S = 60e-6
"""Longest pause of the writer with pauses."""

MEASURES = {
    "publish": Measure("Publish 65,536 floats: time of the learner", "us"),
    "refresh": Measure("Refresh 65,536 floats: time of the actor", "us"),
}

LOAD = "share_memory() + load_state_dict"

COMPARISONS = {
    "publish_vs_memcpy": Comparison("publish", "motet", "memcpy", 0.5),
    "refresh_vs_memcpy": Comparison("refresh", "motet", "memcpy", 0.5),
    "publish_vs_load_state_dict": Comparison("publish", "motet", LOAD, 8),
    "refresh_vs_load_state_dict": Comparison("refresh", "motet", LOAD),
    **{
        f"{what}_vs_{short}": Comparison(what, "motet", theirs)
        for what in ("publish", "refresh")
        for short, theirs in (("queue", "mp.Queue"), ("manager", "Manager().dict()"))
    },
}


def run(settings: Settings) -> Result:
    """Measure times, then count torn reads."""
    result = Result("publication", MEASURES, COMPARISONS)
    with Stage(preload=("torch", "benchmarks.weight_designs")) as stage:
        _times(result, stage, settings)
        stage.clear()
        _torn(result, stage, settings)
    return result


# ---- times


class _Turns:
    """One side of a pair that alternates. ``make(*arguments)`` creates the end that is measured."""

    def __init__(self, segment: Segment, make: Callable[..., Any], cpu: bool, *arguments: Any) -> None:
        self.end = make(*arguments)
        self._segment = segment
        self._mine, self._theirs = (_native.Bell(segment[name]) for name in ("learner", "actor"))
        self._stop = segment["stop"]
        self._clock = time.process_time_ns if cpu else time.perf_counter_ns

    def learn(self, seconds: float) -> float:
        """Change the weights, publish, ring, wait for the actor; returns the median time of a publication in us."""
        publish, flat, clock, times = self.end.publish, self.end.flat, self._clock, list[int]()
        self._stop[0] = 0
        answered, until = self._theirs.count, time.monotonic() + seconds
        while time.monotonic() < until or len(times) < 10:
            flat += 1
            begun = clock()
            publish()
            if clock is time.perf_counter_ns:
                times.append(clock() - begun)
            self._mine.ring()
            answered = _wait(self._theirs, answered, "the learner")
            if clock is not time.perf_counter_ns:
                times.append(clock() - begun)
        self._stop[0] = 1
        self._mine.ring()
        return statistics.median(times) / 1e3

    def act(self, seen: int) -> float:
        """Wait for the learner, refresh, ring; returns the median time of a refresh in us."""
        refresh, clock, times = self.end.refresh, self._clock, list[int]()
        while True:
            seen = _wait(self._mine, seen, "the actor")
            if self._stop[0]:
                return statistics.median(times) / 1e3
            begun = clock()
            taken = refresh()
            times.append(clock() - begun)
            if not taken:
                raise MotetError("the actor was notified of a version that it could not load")
            self._theirs.ring()

    def rung(self) -> int:
        """Return how often the learner has rung so far."""
        return self._mine.count


def _wait(bell: _native.Bell, seen: int, who: str) -> int:
    deadline = time.monotonic() + WAIT_S
    while (count := bell.wait(seen, 1.0)) == seen:
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{who} waited {WAIT_S:.0f} s for the other side of its pair")
    return count


def _times(result: Result, stage: Stage, settings: Settings) -> None:
    queue, manager = stage.context.Queue(), stage.context.Manager()
    try:
        shared = manager.dict()
        model, memory = weights.shared_model(), weights.buffers()
        double, snapshot = weights.publication_of(2), weights.publication_of(1)
        pairs = {
            "motet": _pair(stage, weights.MotetPublisher, weights.MotetSubscriber, double),
            "motet, one slot": _pair(stage, weights.MotetPublisher, weights.MotetSubscriber, snapshot),
            "memcpy": _pair(stage, weights.MemcpyPublisher, weights.MemcpySubscriber, memory),
            LOAD: _pair(stage, weights.ModelPublisher, weights.ModelSubscriber, model),
            "Manager().dict()": _pair(stage, weights.ManagerPublisher, weights.ManagerSubscriber, shared),
            "mp.Queue": _pair(stage, weights.QueuePublisher, weights.QueueSubscriber, queue, cpu=True),
        }
        asks = {title: _turns(learner, actor, settings.seconds) for title, (learner, actor) in pairs.items()}
        interleave_pairs(result, ("publish", "refresh"), asks, settings.repeats)
        stage.clear()
    finally:
        manager.shutdown()


def _pair(stage: Stage, publisher: Any, subscriber: Any, shared: Any, cpu: bool = False) -> tuple[Party, Party]:
    bell = ArraySpec((_native.BELL_BYTES,), "uint8")
    segment = Segment({"learner": bell, "actor": bell, "stop": ArraySpec((1,), "int64")})
    for name in ("learner", "actor"):
        _native.Bell(segment[name], True)
    return stage.party(_Turns, segment, publisher, cpu, shared), stage.party(_Turns, segment, subscriber, cpu, shared)


def _turns(learner: Party, actor: Party, seconds: float) -> Callable[[], tuple[float, float]]:
    def ask() -> tuple[float, float]:
        actor.begin("act", learner.call("rung"))
        learner.begin("learn", seconds)
        return float(learner.result()), float(actor.result())

    return ask


# ---- torn reads


class _Flood:
    """A learner that publishes until it is stopped."""

    def __init__(self, stop: Segment, make: Callable[..., Any], *arguments: Any) -> None:
        self._stop, self._end, self._version = stop["stop"], make(*arguments), 0

    def one(self) -> None:
        """Publish the next version; all weights are the version number."""
        self._version += 1
        self._end.flat.fill(self._version)
        self._end.publish()

    def run(self, gap_s: float, timeout_s: float) -> int:
        """Publish, with random gaps of up to ``gap_s``; returns the number of publications."""
        begun, until, draw = self._version, time.monotonic() + timeout_s, random.Random(1).random
        while not self._stop[0] and time.monotonic() < until:
            self.one()
            again = time.monotonic() + draw() * gap_s
            while gap_s and time.monotonic() < again:
                continue
        return self._version - begun


class _Judge:
    """An actor that refreshes without a pause and checks every number it holds."""

    def __init__(self, stop: Segment, make: Callable[..., Any], *arguments: Any) -> None:
        self._stop, self._end = stop["stop"], make(*arguments)

    def first(self) -> bool:
        """Load the first version before the learner publishes without pause, so that the actor always has a version."""
        return bool(self._end.refresh())

    def run(self, reads: int, count_met: bool, timeout_s: float) -> dict[str, int]:
        """Read until this many reads loaded a version (``count_met``: or coincided with a write); check both kinds."""
        taken = met = mixed = 0
        end, until = self._end, time.monotonic() + timeout_s
        while taken + met * count_met < reads and time.monotonic() < until:
            if end.refresh():
                taken += 1
            elif end.met_write:
                met += 1  # the actor kept its old version, which must be complete too
            else:
                continue  # nothing new
            mixed += end.mixed()
        self._stop[0] = 1
        return {"taken": taken, "met_write": met, "mixed": mixed}


def _torn(result: Result, stage: Stage, settings: Settings) -> None:
    reads, others = (200, 200) if settings.quick else (READS, READS_OF_OTHERS)
    active = Segment({"active": ArraySpec((1,), "int64")})
    active["active"][0] = 0
    ours, model = (weights.MotetPublisher, weights.MotetSubscriber), weights.shared_model
    runs: dict[str, tuple[int, tuple[Any, Any], tuple[Any, ...]]] = {
        "torn_slots1": (reads, ours, (weights.publication_of(1),)),
        "torn_slots2": (reads, ours, (weights.publication_of(2),)),
        "torn_load_state_dict": (others, (weights.ModelPublisher, weights.ModelSubscriber), (model(),)),
        "torn_slot_flip": (others, (weights.FlipPublisher, weights.FlipSubscriber), (model(), model(), active)),
    }
    for name, (wanted, (publisher, subscriber), shared) in runs.items():
        stop = Segment({"stop": ArraySpec((1,), "int64")})
        learner = stage.party(_Flood, stop, publisher, *shared)
        actor = stage.party(_Judge, stop, subscriber, *shared)
        learner.call("one")
        actor.call("first")
        flat_out = _race(learner, actor, stop, wanted, 0.0)
        races = {"flat_out": flat_out}
        if publisher is weights.MotetPublisher:
            races["with_gaps"] = _race(learner, actor, stop, min(wanted, TAKEN_BESIDE_GAPS), GAP_S)
        result.facts[name] = races
        result.counts[name] = sum(race["mixed"] for race in races.values())
        result.exactly[name] = 0 if publisher is weights.MotetPublisher else None
        stage.clear()
    result.counts = {"torn": result.counts["torn_slots1"] + result.counts["torn_slots2"], **result.counts}
    result.exactly["torn"] = 0


def _race(learner: Party, actor: Party, stop: Segment, wanted: int, gap_s: float) -> dict[str, int]:
    stop["stop"][0] = 0
    learner.begin("run", gap_s, RACE_S)
    found: dict[str, int] = actor.call("run", wanted, gap_s == 0, RACE_S, timeout_s=RACE_S + 60)
    found["published"] = learner.result(RACE_S + 60)
    reads = found["taken"] + (found["met_write"] if gap_s == 0 else 0)
    if reads < wanted:
        raise WaitTimeoutError(f"{reads} of {wanted} reads were done within {RACE_S:.0f} s: the machine is too busy")
    return found

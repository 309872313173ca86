"""``motet bench bell``: round-trip time of a question to another process, 1 kB out and 8 bytes back.

An *asker* in one process writes an observation of 256 floats, wakes a *player* in another process and waits for its
action. Both are Python. Processes are not pinned to cores. *Busy* means that two other processes compute all the time.
*Joint* means that eight players are asked at once, and the time is measured until all answers have arrived. A repeat is
the median over all its questions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import Comparison, Measure, Result, Settings, interleave_pairs
from benchmarks.party import Party, Stage
from motet import _native
from motet.arrays import ArraySpec
from motet.errors import WaitTimeoutError
from motet.system.memory import Segment

__all__ = ["run"]

FLOATS = 256
PLAYERS = 8
WAIT_S = 30.0

_TITLES = {
    "roundtrip": "Round trip, 1 kB out, 8 B back",
    "roundtrip_busy": "Round trip with two busy processes on the machine",
    "joint8": "Eight processes asked at once, until all have answered",
}
MEASURES = {
    **{key: Measure(f"{title}, median", "us") for key, title in _TITLES.items()},
    **{f"{key}_p99": Measure(f"{title}, 99th percentile", "us") for key, title in _TITLES.items()},
}

QUEUE, PIPE, SEMAPHORE = "mp.Queue + pickle", "Pipe send_bytes", "shared memory + mp.Semaphore"

COMPARISONS = {
    "roundtrip_vs_queue": Comparison("roundtrip", "motet", QUEUE, 12),
    "roundtrip_busy_vs_queue": Comparison("roundtrip_busy", "motet", QUEUE, 12),
    "joint8_vs_queue": Comparison("joint8", "motet", QUEUE, 8),
    **{
        f"{measure}_vs_{short}": Comparison(measure, "motet", theirs)
        for measure in _TITLES
        for short, theirs in (("pipe", PIPE), ("semaphore", SEMAPHORE))
    },
}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("bell", MEASURES, COMPARISONS)
    with Stage(preload=("benchmarks.bell",)) as stage:
        alone = {title: _table(stage, channel, 1) for title, channel in _CHANNELS.items()}
        _ask_all(result, "roundtrip", alone, settings)
        busy = [stage.party(_Busy) for _ in range(2)]
        for party in busy:
            party.begin("work", 3600.0)
        _ask_all(result, "roundtrip_busy", alone, settings)
        stage.clear()
        joint = {title: _table(stage, channel, PLAYERS) for title, channel in _CHANNELS.items()}
        _ask_all(result, "joint8", joint, settings)
    return result


# ---- channels
#
# A channel connects to n players. The asker calls ``ask(observations)`` and gets their actions; player i calls
# ``play(i)``.


class _BellChannel:
    """Observations and actions in shared memory; one bell for all players, one for each answer."""

    def __init__(self, context: Any, n: int) -> None:
        bells = ArraySpec((n + 1, _native.BELL_BYTES), "uint8")
        self._n = n
        self._segment = Segment(
            {"observation": ArraySpec((n, FLOATS), "float32"), "action": ArraySpec((n, 8), "int64"), "bells": bells}
        )
        for i in range(n + 1):
            _native.Bell(self._segment["bells"][i], True)

    def open(self) -> None:
        """Prepare the channel in the process that uses it."""
        bells = [_native.Bell(self._segment["bells"][i]) for i in range(self._n + 1)]
        self._asked, self._answered = bells[0], bells[1:]
        self._seen = [bell.count for bell in self._answered]
        self._observation, self._action = self._segment["observation"], self._segment["action"]

    def ask(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Actions of all players."""
        self._observation[:] = observations
        self._asked.ring()
        for i, bell in enumerate(self._answered):
            seen = bell.wait(self._seen[i], WAIT_S)
            if seen == self._seen[i]:
                raise _late(i)
            self._seen[i] = seen
        actions: npt.NDArray[np.int64] = self._action[:, 0].copy()
        return actions

    def play(self, i: int) -> None:
        """Answer until the first number of an observation is negative."""
        observation, mine = np.zeros(FLOATS, np.float32), self._observation[i]
        action, asked, answered = self._action[i], self._asked, self._answered[i]
        seen = 0
        while observation[0] >= 0:
            count = asked.wait(seen, WAIT_S)
            if count == seen:
                continue  # nobody asks now: the bench measures another contestant, or is about to end this process
            seen = count
            observation[:] = mine
            action[0] = int(observation[1])
            answered.ring()


class _SemaphoreChannel:
    """Observations and actions in shared memory; two semaphores for each player."""

    def __init__(self, context: Any, n: int) -> None:
        self._segment = Segment(
            {"observation": ArraySpec((n, FLOATS), "float32"), "action": ArraySpec((n, 8), "int64")}
        )
        self._asked = [context.Semaphore(0) for _ in range(n)]
        self._answered = [context.Semaphore(0) for _ in range(n)]

    def open(self) -> None:
        """Prepare the channel in the process that uses it."""
        self._observation, self._action = self._segment["observation"], self._segment["action"]

    def ask(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Actions of all players."""
        self._observation[:] = observations
        for semaphore in self._asked:
            semaphore.release()
        for i, semaphore in enumerate(self._answered):
            if not semaphore.acquire(True, WAIT_S):
                raise _late(i)
        actions: npt.NDArray[np.int64] = self._action[:, 0].copy()
        return actions

    def play(self, i: int) -> None:
        """Answer until the first number of an observation is negative."""
        observation, mine = np.zeros(FLOATS, np.float32), self._observation[i]
        action, asked, answered = self._action[i], self._asked[i], self._answered[i]
        while observation[0] >= 0:
            if asked.acquire(True, WAIT_S):
                observation[:] = mine
                action[0] = int(observation[1])
                answered.release()


class _QueueChannel:
    """Two ``mp.Queue`` for each player; arrays are pickled."""

    def __init__(self, context: Any, n: int) -> None:
        self._asked = [context.Queue() for _ in range(n)]
        self._answered = [context.Queue() for _ in range(n)]

    def open(self) -> None:
        """Let the process exit without flushing the queues."""
        for queue in (*self._asked, *self._answered):
            queue.cancel_join_thread()

    def ask(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Actions of all players."""
        for queue, observation in zip(self._asked, observations, strict=True):
            queue.put(observation)
        return np.array([queue.get(True, WAIT_S) for queue in self._answered])

    def play(self, i: int) -> None:
        """Answer until the first number of an observation is negative."""
        asked, answered = self._asked[i], self._answered[i]
        while (observation := asked.get())[0] >= 0:
            answered.put(int(observation[1]))


class _PipeChannel:
    """One ``Pipe`` for each player; raw bytes, no pickle."""

    def __init__(self, context: Any, n: int) -> None:
        self._pipes = [context.Pipe() for _ in range(n)]

    def open(self) -> None:
        """Do nothing: a pipe needs no preparation."""

    def ask(self, observations: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        """Actions of all players."""
        for (pipe, _), observation in zip(self._pipes, observations, strict=True):
            pipe.send_bytes(observation)
        actions = np.zeros(len(self._pipes), np.int64)
        for i, (pipe, _) in enumerate(self._pipes):
            actions[i] = int.from_bytes(pipe.recv_bytes(8), "little")
        return actions

    def play(self, i: int) -> None:
        """Answer until the first number of an observation is negative."""
        pipe, observation = self._pipes[i][1], np.zeros(FLOATS, np.float32)
        while observation[0] >= 0:
            pipe.recv_bytes_into(observation)
            pipe.send_bytes(int(observation[1]).to_bytes(8, "little"))


_CHANNELS: Mapping[str, type[Any]] = {
    "motet": _BellChannel,
    QUEUE: _QueueChannel,
    PIPE: _PipeChannel,
    SEMAPHORE: _SemaphoreChannel,
}


def _late(player: int) -> WaitTimeoutError:
    return WaitTimeoutError(f"the asker waited {WAIT_S:.0f} s for the answer of player {player}")


# ---- processes: asker, players, busy processes


class _Asker:
    """Asks repeatedly."""

    def __init__(self, channel: Any, n: int) -> None:
        self._channel, self._observations = channel, np.ones((n, FLOATS), np.float32)
        channel.open()

    def run(self, seconds: float) -> tuple[float, float]:
        """Return median and 99th percentile of the time until all answers have arrived, in us."""
        ask, observations, clock, times = self._channel.ask, self._observations, time.perf_counter_ns, list[int]()
        until, number = time.monotonic() + seconds, 1
        while time.monotonic() < until or len(times) < 20:
            number = number % 1000 + 1
            observations[:, 1] = number
            begun = clock()
            actions = ask(observations)
            times.append(clock() - begun)
            if not (actions == number).all():
                raise AssertionError(f"asked for {number}, the answers are {actions}")
        times.sort()
        return statistics.median(times) / 1e3, times[int(0.99 * len(times))] / 1e3


class _Player:
    """Answers questions."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        channel.open()

    def play(self, i: int) -> None:
        """Answer until the process is ended."""
        self._channel.play(i)


class _Busy:
    """Computes without a pause."""

    def work(self, seconds: float) -> int:
        """Count for this many seconds, or until the process is ended."""
        until, n = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            n += sum(range(1000))
        return n


def _table(stage: Stage, make: type[Any], n: int) -> Party:
    channel = make(stage.context, n)
    for i in range(n):
        stage.party(_Player, channel).begin("play", i)
    return stage.party(_Asker, channel, n)


def _ask_all(result: Result, measure: str, askers: Mapping[str, Party], settings: Settings) -> None:
    asks = {title: partial(asker.call, "run", settings.seconds) for title, asker in askers.items()}
    interleave_pairs(result, (measure, f"{measure}_p99"), asks, settings.repeats)

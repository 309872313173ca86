"""motet's replay and the two common designs with which it is compared, behind the same interface.

Each design is two classes, one for the writer's process and one for the sampler's process. Both have
``run(begin_at, seconds)``, which returns rows or batches per second. All store an observation, an action, a reward and
a done flag; all batches have 256 transitions with both observations.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.party import rate
from motet.arrays import ArraySpec
from motet.replay import Field, Replay, ReplaySpec
from motet.system.memory import Segment

__all__ = [
    "BATCH",
    "BATCHES_A_LOOK",
    "ROWS_A_LOOK",
    "LockRing",
    "LockSampler",
    "LockWriter",
    "MotetSampler",
    "MotetWriter",
    "QueueSampler",
    "QueueWriter",
    "Sampler",
    "Shape",
    "TakeSampler",
    "Writer",
    "observations",
    "replay_of",
]

BATCH = 256
ROWS_A_LOOK = 256
"""Rows added between two reads of the clock."""
BATCHES_A_LOOK = 4

Shape = tuple[int, ...]


def observations(shape: Shape, n: int = 64) -> list[npt.NDArray[np.float32]]:
    """Return the observations that a writer adds in turn: several of them, so that they are on different cache
    lines."""
    return list(np.random.default_rng(1).standard_normal((n, *shape), np.float32))


class Writer:
    """Adds rows one by one."""

    def steps(self, n: int) -> None:
        """Add n rows."""
        raise NotImplementedError

    def run(self, begin_at: float, seconds: float) -> float:
        """Rows per second."""
        return rate(self.steps, ROWS_A_LOOK, begin_at, seconds)


class Sampler:
    """Draws batches of 256."""

    def steps(self, n: int) -> None:
        """Draw n batches."""
        raise NotImplementedError

    def run(self, begin_at: float, seconds: float) -> float:
        """Batches per second."""
        return rate(self.steps, BATCHES_A_LOOK, begin_at, seconds)


# ---- motet


def replay_of(shape: Shape, capacity: int) -> Replay:
    """Return a replay with one lane, float32 observations and int64 actions."""
    return Replay(ReplaySpec(observation=Field(shape), action=Field((), "int64"), capacity=capacity))


class MotetWriter(Writer):
    """``append`` of one row. The constructor fills the lane."""

    def __init__(self, replay: Replay, shape: Shape) -> None:
        self._writer, self._observations = replay.writer(), observations(shape)
        block = np.stack(self._observations)
        for _ in range(-(-replay.spec.capacity // len(block)) + 1):
            self._writer.append_many(block, np.zeros(len(block), np.int64), np.ones(len(block), np.float32))

    def steps(self, n: int) -> None:
        """Append n rows."""
        append = self._writer.append
        for _ in range(n // 64):
            for observation in self._observations:
                append(observation, 3, 1.0)


class MotetSampler(Sampler):
    """``sample`` into reused arrays."""

    def __init__(self, replay: Replay) -> None:
        self._reader = replay.reader(seed=1)

    def steps(self, n: int) -> None:
        """Draw n batches."""
        for _ in range(n):
            self._reader.sample(BATCH)


# ---- numpy arrays and a lock


class LockRing:
    """numpy arrays in shared memory, one per field, with next index and size, and one ``mp.Lock`` for everything.

    Each observation is stored once; the next observation is that of the following row.
    """

    def __init__(self, context: Any, shape: Shape, capacity: int) -> None:
        self.shape, self.capacity, self.lock = shape, capacity, context.Lock()
        self.segment = Segment(
            {
                "observation": ArraySpec((capacity, *shape), "float32"),
                "action": ArraySpec((capacity,), "int64"),
                "reward": ArraySpec((capacity,), "float32"),
                "done": ArraySpec((capacity,), "bool"),
                "index": ArraySpec((1,), "int64"),
                "size": ArraySpec((1,), "int64"),
            }
        )
        for name in ("action", "reward", "done", "index"):
            self.segment[name][:] = 0
        self.segment["observation"][:] = np.resize(np.stack(observations(shape)), (capacity, *shape))
        self.segment["size"][:] = capacity


class LockWriter(Writer):
    """``add`` takes the lock and writes one row, field by field."""

    def __init__(self, ring: LockRing) -> None:
        self._lock, self._capacity = ring.lock, ring.capacity
        self._observation, self._action, self._reward, self._done, self._index, self._size = (
            ring.segment[name] for name in ("observation", "action", "reward", "done", "index", "size")
        )
        self._observations = observations(ring.shape)

    def add(self, observation: npt.NDArray[np.float32], action: int, reward: float, done: bool) -> None:
        """Write one row."""
        with self._lock:
            i = int(self._index[0])
            self._observation[i] = observation
            self._action[i] = action
            self._reward[i] = reward
            self._done[i] = done
            self._index[0] = (i + 1) % self._capacity
            if self._size[0] < self._capacity:
                self._size[0] += 1

    def steps(self, n: int) -> None:
        """Add n rows."""
        add = self.add
        for _ in range(n // 64):
            for observation in self._observations:
                add(observation, 3, 1.0, False)


class LockSampler(Sampler):
    """``sample`` draws indices with a numpy generator, then takes the lock and gathers by indexing, as is usual.

    Indices are drawn before the lock is taken, because otherwise the writer would hardly ever get the lock.
    """

    def __init__(self, ring: LockRing) -> None:
        self._lock, self._capacity, self._rng = ring.lock, ring.capacity, np.random.default_rng(1)
        self._size, self._observation = ring.segment["size"], ring.segment["observation"]
        self._fields = [ring.segment[name] for name in ("observation", "action", "reward", "done")]

    def sample(self, batch_size: int) -> list[npt.NDArray[Any]]:
        """Draw one batch."""
        index = self._rng.integers(0, int(self._size[0]), batch_size)
        after = (index + 1) % self._capacity
        with self._lock:
            return [*(source[index] for source in self._fields), self._observation[after]]

    def steps(self, n: int) -> None:
        """Draw n batches."""
        for _ in range(n):
            self.sample(BATCH)


class TakeSampler(LockSampler):
    """The fastest variant in numpy: ``np.take`` into reused arrays.

    With the default mode instead of ``mode="clip"``, numpy would gather into a temporary array first.
    """

    def __init__(self, ring: LockRing) -> None:
        super().__init__(ring)
        self._outs = [np.empty((BATCH, *source.shape[1:]), source.dtype) for source in self._fields]
        self._next = np.empty((BATCH, *ring.shape), np.float32)

    def sample(self, batch_size: int) -> list[npt.NDArray[Any]]:
        """Draw one batch."""
        index = self._rng.integers(0, int(self._size[0]), batch_size)
        after = (index + 1) % self._capacity
        with self._lock:
            for source, out in zip(self._fields, self._outs, strict=True):
                np.take(source, index, axis=0, out=out, mode="clip")
            np.take(self._observation, after, axis=0, out=self._next, mode="clip")
        return [*self._outs, self._next]


# ---- a queue and a thread that reads it


class QueueWriter(Writer):
    """Puts one pickled transition after another into an ``mp.Queue``; waits while a thousand are in it."""

    def __init__(self, queue: Any, shape: Shape) -> None:
        self._queue, self._observations = queue, observations(shape)
        queue.cancel_join_thread()  # exit without flushing the queue

    def steps(self, n: int) -> None:
        """Put n transitions."""
        put = self._queue.put
        for _ in range(n // 64):
            for observation in self._observations:
                put((observation, 3, 1.0, False), True, 60.0)


class QueueSampler(Sampler):
    """A thread moves the contents of the queue into numpy arrays of the learner's process, under a
    ``threading.Lock``."""

    def __init__(self, queue: Any, shape: Shape, capacity: int) -> None:
        self._queue, self._capacity, self._lock, self._at = queue, capacity, threading.Lock(), 0
        self._obs = np.resize(np.stack(observations(shape)), (capacity, *shape))
        self._fields: list[npt.NDArray[Any]] = [
            np.zeros(capacity, np.int64),
            np.zeros(capacity, np.float32),
            np.zeros(capacity, np.bool_),
        ]
        self._out = [np.empty(BATCH, a.dtype) for a in self._fields]
        self._both = np.empty((2, BATCH, *shape), np.float32)
        self._rng = np.random.default_rng(1)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        action, reward, done = self._fields
        while True:  # the thread ends with the process, which the bench ends
            observation, a, r, d = self._queue.get()
            with self._lock:
                i = self._at
                self._obs[i], action[i], reward[i], done[i] = observation, a, r, d
                self._at = (i + 1) % self._capacity

    def steps(self, n: int) -> None:
        """Draw n batches."""
        for _ in range(n):
            with self._lock:
                index = self._rng.integers(0, self._capacity, BATCH)
                np.take(self._obs, index, axis=0, out=self._both[0], mode="clip")
                for source, out in zip(self._fields, self._out, strict=True):
                    np.take(source, index, axis=0, out=out, mode="clip")
                index += 1
                index %= self._capacity
                np.take(self._obs, index, axis=0, out=self._both[1], mode="clip")

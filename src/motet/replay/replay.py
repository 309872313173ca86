"""Replay buffers in shared memory. Actors write, one learner reads, and neither side takes a lock.

A replay consists of *lanes*: rings of rows with one writer each. A lane holds consecutive steps of one agent in one
world. The transition that starts at a row ends in the next row, so each observation is stored once; the last
observation of an episode has a separate final row. One :class:`Reader`, usually in another process, samples from all
lanes: transitions or sequences, uniformly, by priority, by partition with a share for each, or every row once and in
order. It copies first and verifies afterwards, and samples again if a writer has overwritten the row meanwhile. Because
neither side takes a lock, either may be killed at any instruction.

>>> spec = ReplaySpec(observation=Field((2,)), action=Field((), "int64"), capacity=100)
>>> replay = Replay(spec)
>>> writer = replay.writer()
>>> for t in range(5):
...     rows = writer.append(observation=np.full(2, t, "float32"), action=t, reward=1.0)
>>> reader = replay.reader(gamma=0.5, n_step=2, seed=1)
>>> batch = reader.sample(3)
>>> bool((batch.next_observation == batch.observation + 2).all()), batch.reward, batch.discount
(True, array([1.5, 1.5, 1.5], dtype=float32), array([0.25, 0.25, 0.25], dtype=float32))
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.arrays import MOST_AHEAD, Batch
from motet.errors import NotReadyError, SettingError, WaitTimeoutError
from motet.nest import map_nest
from motet.replay.spec import Field, Leaf, Nest, ReplaySpec, Row
from motet.system.memory import LINE, Segment

__all__ = ["Counters", "Field", "FrameStack", "Reader", "Replay", "Writer", "Writers", "rewound", "step_counter"]

_WORD = _native.LANE_WORDS  # indices of a lane's words in a copy of its memory


class Counters(NamedTuple):
    """Counts of what happened to the rows of a replay so far. Every dropped row is counted here."""

    appended: int
    """Rows written, including final rows."""
    sampled: int
    """Number of transitions, or sequences, handed out by ``sample``."""
    consumed: int
    """Number of transitions handed out by ``take``."""
    redrawn: int
    """Number of draws that were repeated because a writer overwrote the row while it was copied."""
    overwritten_unread: int
    """Number of rows that were overwritten before they were part of any batch."""
    late_priorities: int
    """Number of priorities that were given for rows that had been overwritten."""
    broken: int
    """Segments without an end, because a writer died or was interrupted. No transition starts at their last row."""
    waits: int
    """Number of times that a writer waited for room."""
    waited_s: float
    """Total seconds that writers waited for room."""


class Writer(_native.LaneWriter):
    """The writing end of one lane. Made by :meth:`Replay.writer` in the process that writes.

    ``append(observation, action, reward, *, terminated=False, truncated=False, version=0, **extra)`` adds one step and
    returns the number of rows written so far. The last step of an episode also needs ``final_observation`` (and
    ``final_…`` of every extra field with a next value); both rows become visible at the same time. ``append_many``
    takes consecutive steps of one episode as arrays; the flags then belong to the last step. ``interrupt()`` marks the
    episode as broken off. ``append_rows`` takes rows in the memory format of another lane with the same spec
    (:meth:`Replay.rows`), as many as fit, and returns their number.
    """


class Writers(_native.LaneWriters):
    """The writing ends of several lanes, for an actor that steps several worlds. Made by :meth:`Replay.writers`.

    ``append(lanes, observation, action, reward, *, terminated=None, truncated=None, version=0, **extra)`` adds one step
    to each of some lanes: ``lanes`` are their indices among these writers (int64); the other arguments are arrays with
    one value per lane. Steps that end their episodes need a separate call, with both flags (bool) and
    ``final_observation``. ``interrupt(lane)`` marks the episode in a lane as broken off.
    """


class Reader(_native.LaneReader):
    """The reading end of all lanes. Made by :meth:`Replay.reader` in the process that reads; one at a time."""

    _replay: Replay
    _row: Row
    _n_frames: int
    _n_step: int
    _length: int
    _once: bool
    _prioritised: bool
    _samples: dict[int, Batch]
    _takes: dict[tuple[int, int], Batch]
    _bound: list[Batch]
    _targets: dict[int, int]
    """Number of a bound batch in the native core, by the id of the batch."""

    def sample(self, batch_size: int, *, beta: float = 0.4, into: Batch | None = None) -> Batch:
        """Sample transitions, or sequences if the reader was made with a ``length``, with replacement.

        ``beta`` is the exponent of the importance weights in a prioritised replay. ``into`` is a batch made by
        :meth:`batch` to fill; without it, batches of equal size share their arrays.
        """
        if self._once:
            raise SettingError("sample is not valid in a replay with once=True; use take")
        batch = self._samples.get(batch_size) if into is None else into
        if batch is None:
            batch = self._samples[batch_size] = self.batch(batch_size)
        elif into is not None and not (id(batch) in self._targets and batch.reward.shape[0] == batch_size):
            raise SettingError(f"into must be a batch that this reader made by batch({batch_size}), got another one")
        self._sample(self._targets[id(batch)], beta)
        return batch

    def take(self, fragments: int, length: int, *, into: Batch | None = None) -> Batch | None:
        """Return the next ``fragments`` fragments of ``length`` consecutive rows, or None if there are not enough yet.

        Every row is handed out once. Writers may overwrite taken rows only after :meth:`release`. ``into`` is a batch
        made by :meth:`batch` to fill; without it, batches of equal size share their arrays.
        """
        if not self._once:
            raise SettingError("take is not valid in a replay with once=False; use sample, or make it with once=True")
        # Besides the fragment, a lane holds the frames before it, the row after it, and the final row of an episode,
        # which the writer appends together with the episode's last step.
        lane_rows = self._replay.spec.lane_capacity
        room = lane_rows - self._n_frames - 1
        if not 1 <= length <= room:
            raise SettingError(f"length must be an int from 1 to {room}, got {length}: a lane has {lane_rows} rows")
        most = room // length * self._replay.spec.n_lanes
        if not 1 <= fragments <= most:
            raise SettingError(
                f"fragments must be an int from 1 to {most}, got {fragments}: the lanes cannot hold more at once"
            )
        batch = self._takes.get((fragments, length)) if into is None else into
        if batch is None:
            batch = self._takes[fragments, length] = self.batch(fragments, length)
        elif into is not None and not (id(batch) in self._targets and batch.reward.shape == (fragments, length)):
            raise SettingError(
                f"into must be a batch that this reader made by batch({fragments}, {length}), got another one"
            )
        return batch if self._take(self._targets[id(batch)]) else None

    def update(self, batch: Batch, priority: npt.NDArray[np.float32]) -> None:
        """Set the priorities of the transitions or sequences of a batch, usually to the absolute TD errors."""
        if id(batch) not in self._targets:
            raise SettingError("batch must be a batch that this reader made, got another one")
        if not self._prioritised:
            raise SettingError("update is not valid for a reader that samples uniformly; make it with prioritised=True")
        self._update(batch.lane, batch.row, priority)

    def wait(self, rows: int, timeout_s: float) -> int:
        """Wait until ``rows`` rows are ready to be sampled; return how many there are.

        This polls: a bell that every append rings would cost the writers more than the rest of the append.
        """
        if not 0 <= timeout_s < 1e9:
            raise SettingError(f"timeout_s must be a finite number of seconds >= 0, got {timeout_s}")
        deadline, pause_s = time.monotonic() + timeout_s, 1e-4
        while (ready := self.ready()) < rows:
            if (left := deadline - time.monotonic()) <= 0:
                raise WaitTimeoutError(f"the reader waited {timeout_s} s for {rows} rows, but only {ready} are ready")
            time.sleep(min(pause_s, left))
            pause_s = min(2 * pause_s, 2e-3)
        return ready

    def counters(self) -> Counters:
        """Return the counts of what happened so far."""
        sampled, redrawn, unread, late, consumed = self._counters()
        words = [self._replay.words(i) for i in range(self._replay.spec.n_lanes)]
        return Counters(
            appended=sum(w.head for w in words),
            sampled=sampled,
            consumed=consumed,
            redrawn=redrawn,
            overwritten_unread=unread,
            late_priorities=late,
            broken=sum(w.broken for w in words),
            waits=sum(w.waits for w in words),
            waited_s=sum(w.waited_ns for w in words) * 1e-9,
        )

    def batch(self, batch_size: int, length: int = 0) -> Batch:
        """Make arrays for batches of this size, not shared with another batch; with ``length``, for ``take``."""
        if batch_size < 1:
            raise SettingError(f"batch_size must be an int >= 1, got {batch_size}")
        length = length or self._length
        rows = (batch_size, length) if length else (batch_size,)
        more = (batch_size, length + self._n_step) if length else (batch_size,)
        draws = (batch_size,) if self._length else rows
        row, extra = self._row, self._replay.spec.extra

        def array(leaf: Leaf) -> npt.NDArray[Any]:
            return np.zeros((*(more if leaf.next else rows), *self._frames(leaf), *leaf.shape), leaf.dtype)

        here = [array(leaf) for leaf in row.leaves]
        there = [array(leaf) if leaf.next and not length else None for leaf in row.leaves]
        following = {leaf.root for leaf, one in zip(row.leaves, there, strict=True) if one is not None}
        return self.bind(
            Batch(
                observation=row.nest("observation", here),
                action=row.nest("action", here),
                reward=np.zeros(rows, row.reward.dtype),
                discount=np.zeros(rows, np.float32),
                version=np.zeros(rows, np.uint64),
                lane=np.zeros(draws, np.uint32),
                row=np.zeros(draws, np.uint64),
                extra={name: row.nest(name, here) for name in extra},
                next_observation=None if length else row.nest("observation", there),
                next_extra={name: row.nest(name, there) for name in extra if name in following},
                weight=np.zeros(draws, np.float32) if self._prioritised else None,
                valid=np.zeros(rows, np.bool_) if length else None,
                ahead=np.zeros(rows, np.uint8) if self._length else None,
            )
        )

    def bind(self, batch: Batch) -> Batch:
        """Register the arrays of a batch, e.g. slices of larger arrays, for ``sample`` and ``take``; return the batch.

        The arrays must be contiguous. A batch may do without the next observation.
        """
        batch_size, length = (*batch.reward.shape, 0)[:2]
        if not self._once and length != self._length:
            raise SettingError(f"batch must have sequences of length {self._length}, got {length}")
        row = self._row
        here = row.arrays({"observation": batch.observation, "action": batch.action, **batch.extra})
        there = row.arrays({} if length else {"observation": batch.next_observation, **batch.next_extra})
        for leaf, now, later in zip(row.leaves, here, there, strict=True):
            needed = leaf.next and leaf.root != "observation" and not length
            if (now is None and leaf is not row.reward) or (later is None and needed):
                raise SettingError(f"batch must have arrays for {leaf.name}, got none")
        self._targets[id(batch)] = self._bind(
            batch_size, length, here, there, batch.reward, batch.discount, batch.weight, batch.version, batch.row,
            batch.lane, batch.valid, batch.ahead,
        )  # fmt: skip
        self._bound.append(batch)
        return batch

    def _frames(self, leaf: Leaf) -> tuple[int, ...]:
        return (self._n_frames,) if leaf.root == "observation" and self._n_frames > 1 else ()


class LaneWords(NamedTuple):
    """The shared words of a lane, which any process may read."""

    reserve: int
    head: int
    incarnation: int
    broken: int
    waits: int
    waited_ns: int
    released: int
    finals: int

    @property
    def steps(self) -> int:
        """Number of steps written: all rows except the final rows of episodes."""
        return self.head - self.finals


class Replay:
    """The shared memory of one agent's replay. Pass it to processes as an argument; make writers and the reader there.

    Args:
        spec: the fields of a row, and the number of rows and lanes.
        segment: a segment that contains ``spec.layout(prefix)``; without it, the replay makes a new segment.
        prefix: name of the replay's part of the segment.
        directory: if the replay makes a new segment, put it into an unnamed file in this directory instead of memory.

    >>> replay = Replay(ReplaySpec(observation=Field((2,)), action=Field((), "int64"), capacity=100))
    >>> writer, reader = replay.writer(), replay.reader(seed=0)  # in two processes, usually
    >>> for t in range(5):
    ...     _ = writer.append(np.array([t, 0], "float32"), 1, 0.5)
    >>> reader.sample(3).reward.tolist()
    [0.5, 0.5, 0.5]
    """

    _counter: _native.LaneCounts | None = None

    def __init__(
        self, spec: ReplaySpec, segment: Segment | None = None, prefix: str = "replay", directory: str | None = None
    ) -> None:
        self.spec, self._prefix = spec, prefix
        self._segment = segment or Segment(spec.layout(prefix), directory)
        self._row = Row(spec)
        for i in range(spec.n_lanes):
            _native.lane_format(
                self._lane(i), spec.lane_capacity, self._row.bytes, self._row.hash, spec.checked, spec.once
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_prefix": self._prefix, "_segment": self._segment}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._row = Row(self.spec)

    def _lane(self, i: int) -> npt.NDArray[Any]:
        if not 0 <= i < self.spec.n_lanes:
            raise SettingError(f"lane must be an int from 0 to {self.spec.n_lanes - 1}, got {i}")
        return self._segment[f"{self._prefix}/lane{i}"]

    def lanes(self, partition: str = "") -> range:
        """Return the numbers of a partition's lanes."""
        first = 0
        for name, n in self.spec._partitions.items():
            if name == partition:
                return range(first, first + n)
            first += n
        raise SettingError(f"partition must be one of {list(self.spec._partitions)}, got {partition!r}")

    def writer(self, lane: int = 0, *, timeout_s: float = 60.0, goes_on: bool = False) -> Writer:
        """Take over a lane. The previous writer, if any, must be dead; its unfinished episode is marked as broken off.

        ``timeout_s`` is the longest wait of an append for room (only if rows are read once). With ``goes_on`` the
        unfinished episode continues with the next row. This is for a world that continues exactly where it was.
        """
        row = self._row
        return Writer(self._lane(lane), row.native, row.roots, row.bytes, row.hash, timeout_s, goes_on)

    def writers(self, lanes: Sequence[int], *, timeout_s: float = 60.0, goes_on: bool = False) -> Writers:
        """Take over several lanes; see :meth:`writer`.

        >>> replay = Replay(ReplaySpec(Field((2,)), Field(dtype="int64"), capacity=10, lanes=2))
        >>> writers = replay.writers([0, 1])
        >>> both = np.array([0, 1])
        >>> writers.append(both, np.zeros((2, 2), "float32"), np.array([1, 2]), np.zeros(2, "float32"), version=7)
        >>> replay.steps
        2
        """
        return Writers([self.writer(lane, timeout_s=timeout_s, goes_on=goes_on) for lane in lanes])

    def reader(
        self,
        *,
        n_frames: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        prioritised: bool = False,
        alpha: float = 0.6,
        epsilon: float = 1e-6,
        length: int = 0,
        burn_in: int = 0,
        shares: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> Reader:
        """Make the reading end.

        Args:
            n_frames: number of stacked observations, the newest last; the first one of an episode is repeated as
                padding.
            n_step: number of steps in the n-step return; fewer at the end of an episode.
            gamma: discount per step.
            prioritised: sample in proportion to ``(priority + epsilon) ** alpha``; new rows get the highest priority so
                far.
            alpha: exponent of the priorities.
            epsilon: constant added to the priorities.
            length: sample sequences of this many consecutive rows of one lane, which may cross the ends of episodes;
                0 samples transitions.
            burn_in: number of rows at the beginning of a sequence that are not learned from. Prioritised sequences
                begin at multiples of ``length - burn_in``, so that each row is learned from in exactly one of them.
            shares: share of a batch for each partition; equal shares by default.
            seed: seed of the reader's random stream.
        """
        spec, row = self.spec, self._row
        names = list(spec._partitions)
        shares = dict.fromkeys(names, 1.0) if shares is None else dict(shares)
        if set(shares) != set(names):
            raise SettingError(f"shares must be one share for each partition of {names}, got {sorted(shares)}")
        if any(not (math.isfinite(s) and s >= 0) for s in shares.values()) or not sum(shares.values()) > 0:
            raise SettingError(f"shares must be finite numbers >= 0, not all 0, got {shares}")
        if n_frames < 1 or n_step < 1:
            raise SettingError(f"n_frames and n_step must be ints >= 1, got {n_frames} and {n_step}")
        if not 0 <= gamma <= 1:
            raise SettingError(f"gamma must be a number from 0 to 1, got {gamma}")
        if not (math.isfinite(alpha) and alpha >= 0 and math.isfinite(epsilon) and epsilon >= 0):
            raise SettingError(f"alpha and epsilon must be finite numbers >= 0, got {alpha} and {epsilon}")
        if spec.once and (n_step > 1 or prioritised or length):
            raise SettingError(
                f"n_step must be 1, prioritised False and length 0 in a replay with once=True, got {n_step}, "
                f"{prioritised} and {length}"
            )
        if length < 0 or not 0 <= burn_in < max(length, 1):
            raise SettingError(f"burn_in must be an int from 0 to below the length {length}, got {burn_in}")
        if length and n_step > MOST_AHEAD:
            raise SettingError(f"n_step must be an int from 1 to {MOST_AHEAD} for sequences, got {n_step}")
        least, what = n_frames + n_step, "n_frames + n_step"
        if length:
            # Prioritised sequences begin only at multiples of length - burn_in; one of them must fit anyway.
            least, what = least + length - 1, f"{what} + length - 1"
            if prioritised:
                least, what = least + length - burn_in - 1, f"{what} + length - burn_in - 1"
        if least > spec.lane_capacity:
            raise SettingError(f"capacity must be at least {what} = {least} rows per lane, got {spec.lane_capacity}")
        reader = Reader(
            lanes=self._lanes(),
            leaves=row.native,
            row_bytes=row.bytes,
            spec_hash=row.hash,
            partition_of=[i for i, name in enumerate(names) for _ in range(spec._partitions[name])],
            shares=[shares[name] / sum(shares.values()) for name in names],
            n_frames=n_frames,
            n_step=n_step,
            gamma=gamma,
            reward_offset=row.reward.offset,
            reward_double=row.reward.dtype == "float64",
            prioritised=prioritised,
            alpha=alpha,
            epsilon=epsilon,
            length=length,
            burn_in=burn_in,
            seed=np.random.SeedSequence(seed).generate_state(4, np.uint64).astype(np.uint64),
        )
        reader._replay, reader._row = self, row
        reader._samples, reader._takes, reader._bound, reader._targets = {}, {}, [], {}
        reader._n_frames, reader._n_step, reader._length = n_frames, n_step, length
        reader._once, reader._prioritised = spec.once, prioritised
        return reader

    def words(self, lane: int) -> LaneWords:
        """Return the shared words of a lane, e.g. how many rows are written and how often the writer waited."""
        return LaneWords(*_native.lane_words(self._lane(lane)))

    @property
    def appended(self) -> int:
        """Number of rows written so far, in all lanes."""
        return self.counts.rows()

    @property
    def steps(self) -> int:
        """Number of steps written so far, in all lanes: all rows except the final rows of episodes."""
        return self.counts.steps()

    @property
    def counts(self) -> _native.LaneCounts:
        """Counter of rows and steps in all lanes, for frequent queries: each query is one native call."""
        if self._counter is None:
            self._counter = _native.LaneCounts(self._lanes())
        return self._counter

    def _lanes(self) -> list[npt.NDArray[Any]]:
        return [self._lane(i) for i in range(self.spec.n_lanes)]

    def written(self, lane: int) -> LaneWords:
        """Return the words of a lane as its writer knows them."""
        return self.words(lane)

    def rows(self, lane: int, first: int, most: int) -> bytes:
        """Copy up to ``most`` complete rows from ``first`` on, in their memory format. Needs ``once`` in the spec.

        >>> spec = ReplaySpec(observation=Field((2,)), action=Field((), "int64"), capacity=10, once=True)
        >>> here, there = Replay(spec), Replay(spec)
        >>> head = here.writer().append(np.ones(2, "float32"), 3, 0.5)
        >>> there.writer().append_rows(here.rows(0, first=0, most=100)), there.words(0).head
        (1, 1)
        """
        return _native.lane_rows(self._lane(lane), first, most)

    def release(self, lane: int, row: int) -> None:
        """Let a lane's writer overwrite the rows before this one, because they were copied elsewhere."""
        _native.lane_release(self._lane(lane), row)

    def dump(self, lane: int) -> npt.NDArray[np.uint8]:
        """Copy a lane's memory. The writer may write meanwhile.

        In the copy, only rows that were complete before it began count as written, and rows that were overwritten
        before it ended count as gone. All other rows are intact.
        """
        before = self.words(lane)
        copy = self._lane(lane).copy()
        words = copy[: 2 * LINE].view(np.uint64)
        now = self.words(lane)
        for name, value in (("reserve", now.reserve), ("head", before.head), ("finals", before.finals)):
            words[_WORD[name]] = value
        return copy

    def restore(self, lane: int, memory: npt.NDArray[np.uint8]) -> None:
        """Restore a copy, before any process reads or writes; it must come from a replay of the same spec."""
        here = self._lane(lane)
        if memory.shape != here.shape or memory.dtype != here.dtype:
            raise SettingError(
                f"lane {lane} must have the shape {here.shape}, got {memory.shape}: the replay's spec has changed"
            )
        here[...] = memory


def step_counter(replays: Sequence[Replay]) -> Callable[[], list[int]]:
    """Return a function that counts the steps of several replays with equal numbers of lanes, in one native call.

    >>> replays = [Replay(ReplaySpec(Field((2,)), Field(dtype="int64"), capacity=10)) for _ in range(3)]
    >>> head = replays[1].writer().append(np.ones(2, "float32"), 3, 0.5)
    >>> step_counter(replays)()
    [0, 1, 0]
    """
    counts = _native.LaneCounts([lane for replay in replays for lane in replay._lanes()])
    return partial(counts.steps_by, replays[0].spec.n_lanes)


def stored_rows(memory: npt.NDArray[np.uint8]) -> int:
    """Return the number of rows in a copy of a lane's memory, which comes from :meth:`Replay.dump`."""
    words = memory[: 3 * LINE].copy().view(np.uint64)
    return int(min(words[_WORD["head"]], words[_WORD["capacity"]]))


def rewound(memory: npt.NDArray[np.uint8], row: int, frames: int = 0) -> npt.NDArray[np.uint8] | None:
    """Copy a lane of a replay that is read once, as it was when exactly the rows before ``row`` were taken.

    ``memory`` comes from :meth:`Replay.dump`. ``frames`` is the number of rows before ``row`` that are needed too.
    Returns None if not all of these rows are in the lane.
    """
    copy, first = memory.copy(), max(row - frames, 0)
    words = copy[: 3 * LINE].view(np.uint64)
    if words[_WORD["reserve"]] > first + words[_WORD["capacity"]] or words[_WORD["head"]] < row:
        return None
    words[_WORD["released"]], words[_WORD["taken"]] = first, row
    return copy


class FrameStack:
    """Frame stacking for acting: stacks observations exactly as the reader does, including the padding.

    >>> frames = FrameStack(3)
    >>> frames.begin(np.array([1.0])).ravel().tolist(), frames.push(np.array([2.0])).ravel().tolist()
    ([1.0, 1.0, 1.0], [1.0, 1.0, 2.0])
    """

    def __init__(self, n_frames: int) -> None:
        if n_frames < 1:
            raise SettingError(f"n_frames must be an int >= 1, got {n_frames}")
        self._n = n_frames
        self.stack: Nest = None
        """The current stack."""

    def begin(self, observation: Nest) -> Nest:
        """Begin a stack with the first observation of an episode; return the stack."""
        if self._n == 1:
            self.stack = map_nest(np.array, observation)
        else:
            self.stack = map_nest(lambda a: np.repeat(np.asarray(a)[None], self._n, axis=0), observation)
        return self.stack

    def push(self, observation: Nest) -> Nest:
        """Add the next observation; return the stack ``[n_frames, ...]`` (one frame: ``[...]``).

        The next call overwrites its arrays.
        """
        if self.stack is None:
            raise NotReadyError("no episode has begun: call begin() with its first observation first")

        def shift(stack: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if self._n == 1:
                stack[...] = new
            else:
                stack[:-1] = stack[1:]
                stack[-1] = new
            return stack

        return map_nest(shift, self.stack, observation)

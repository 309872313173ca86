"""Replay against a naive model: a list of rows. Everything a batch holds is computed here a second time, slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.replay import Batch, Field, FrameStack, Reader, Replay, ReplaySpec, Writer

SETTINGS = settings(max_examples=120, deadline=None)
GAMMA = 0.9


@dataclass
class Row:
    number: int  # what the row's arrays are made from
    begin: bool
    version: int
    terminated: bool = False
    truncated: bool = False
    final: bool = False

    @property
    def reward(self) -> float:
        return 0.0 if self.final else float(np.float32(0.1 * (self.number % 17) - 0.7))


class NaiveLane:
    """A list, and the rules of the documentation, word by word."""

    def __init__(self, capacity: int) -> None:
        self.rows: list[Row] = []
        self.capacity, self.begin, self.broken_at = capacity, True, set[int]()

    def append(self, numbers: list[int], version: int, end: str = "", final: int = 0) -> None:
        for number in numbers:
            self.rows.append(Row(number, self.begin, version))
            self.begin = False
        if end:
            self.rows[-1].terminated, self.rows[-1].truncated = end == "terminated", end == "truncated"
            self.rows.append(Row(final, False, version, final=True))
            self.begin = True

    def interrupt(self) -> None:
        self.begin = True
        if self.rows and not self.rows[-1].final:
            self.broken_at.add(len(self.rows))

    @property
    def tail(self) -> int:
        return max(0, len(self.rows) - self.capacity)

    def starts_here(self, i: int) -> bool:
        return not self.rows[i].final and not self.rows[i + 1].begin

    def starts(self, n_frames: int, n_step: int) -> list[int]:
        low = self.tail + n_frames - 1 if self.tail else 0
        return [i for i in range(low, len(self.rows) - n_step) if self.starts_here(i)]

    def stack(self, i: int, n_frames: int) -> list[int]:
        frames = [i]
        while len(frames) < n_frames:
            i = i if self.rows[i].begin else i - 1
            frames.insert(0, i)
        return [self.rows[i].number for i in frames]

    def walk(self, i: int, n_step: int) -> tuple[int, float, float]:
        """Where the transition from i ends, its reward and its discount."""
        total, factor = 0.0, 1.0
        for step in range(1, n_step + 1):
            row = self.rows[i + step - 1]
            total += factor * row.reward
            factor *= GAMMA
            if row.terminated or row.truncated:
                return i + step, total, 0.0 if row.terminated else factor
            if step < n_step and not self.starts_here(i + step):
                break
        return i + step, total, factor


# ---- what a number looks like in every array of a row

SPEC: dict[str, Any] = {
    "observation": {"picture": Field((2, 2), "uint8"), "pair": (Field((3,), "float32"), Field((), "int16"))},
    "action": Field((2,), "int32"),
    "extra": {"mask": Field((3,), "bool", next=True), "logp": Field((), "float64")},
}


def observation(number: int) -> dict[str, Any]:
    picture = (np.arange(4).reshape(2, 2) + number).astype(np.uint8)
    return {"picture": picture, "pair": (np.full(3, number, np.float32), np.int16(number))}


def mask(number: int) -> np.ndarray:
    return np.array([number % 2, number % 3 == 0, True], bool)


def extra(number: int) -> dict[str, Any]:
    return {"mask": mask(number), "logp": -0.5 * number}


def action(number: int) -> np.ndarray:
    return np.array([number, -number], np.int32)


def stacked(numbers: list[Any]) -> dict[str, Any]:
    parts = [observation(n) if isinstance(n, int) else stacked(n) for n in numbers]
    return {
        "picture": np.stack([p["picture"] for p in parts]),
        "pair": tuple(np.stack([p["pair"][k] for p in parts]) for k in (0, 1)),
    }


def same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    np.testing.assert_array_equal(got["picture"], wanted["picture"])
    for k in (0, 1):
        np.testing.assert_array_equal(got["pair"][k], wanted["pair"][k])


class Both:
    """The real replay and the naive one, driven by the same script."""

    def __init__(self, lanes: int, capacity: int, **spec: Any) -> None:
        self.replay = Replay(ReplaySpec(**SPEC, capacity=capacity * lanes, lanes=lanes, **spec))
        self.writers: list[Writer] = [self.replay.writer(i, timeout_s=5) for i in range(lanes)]
        self.naive = [NaiveLane(capacity) for _ in range(lanes)]
        self.number = 0

    def next(self) -> int:
        self.number += 1
        return self.number

    def do(self, lane: int, verb: str, rows: int) -> None:
        writer, naive = self.writers[lane], self.naive[lane]
        if verb == "interrupt":
            writer.interrupt()
            naive.interrupt()
        elif verb == "successor":
            self.writers[lane] = self.replay.writer(lane, timeout_s=5)
            naive.interrupt()
        else:
            numbers, version = [self.next() for _ in range(rows)], self.number
            end = {"terminated": {"terminated": True}, "truncated": {"truncated": True}}.get(verb, {})
            final = self.next() if end else 0
            if end:
                end |= {"final_observation": observation(final), "final_mask": mask(final)}
            rewards = [Row(n, False, 0).reward for n in numbers]
            if rows == 1:
                n = numbers[0]
                head = writer.append(observation(n), action(n), rewards[0], version=version, **extra(n), **end)
            else:
                head = writer.append_many(
                    stacked(numbers), np.stack([action(n) for n in numbers]), np.array(rewards, np.float32),
                    version=version, mask=np.stack([mask(n) for n in numbers]),
                    logp=np.array([-0.5 * n for n in numbers]), **end,
                )  # fmt: skip
            naive.append(numbers, version, verb if end else "", final)
            assert head == len(naive.rows)

    def check(self, batch: Batch, n_frames: int, n_step: int) -> None:
        """Every row of a sampled batch, against the model."""
        starts = [set(lane.starts(n_frames, n_step)) for lane in self.naive]
        wanted: dict[str, list[Any]] = {
            k: [] for k in ("stack", "next", "here", "there", "reward", "discount", "version")
        }
        for lane, row in zip(batch.lane.tolist(), batch.row.tolist(), strict=True):
            naive = self.naive[lane]
            assert row in starts[lane], f"row {row} of lane {lane} is no start of {sorted(starts[lane])}"
            end, reward, discount = naive.walk(row, n_step)
            wanted["stack"].append(naive.stack(row, n_frames) if n_frames > 1 else naive.rows[row].number)
            wanted["next"].append(naive.stack(end, n_frames) if n_frames > 1 else naive.rows[end].number)
            wanted["here"].append(naive.rows[row].number)
            wanted["there"].append(naive.rows[end].number)
            wanted["reward"].append(reward)
            wanted["discount"].append(discount)
            wanted["version"].append(naive.rows[row].version)
        same(batch.observation, stacked(wanted["stack"]))
        same(batch.next_observation, stacked(wanted["next"]))
        np.testing.assert_array_equal(batch.action, np.stack([action(n) for n in wanted["here"]]))
        np.testing.assert_array_equal(batch.extra["mask"], np.stack([mask(n) for n in wanted["here"]]))
        np.testing.assert_array_equal(batch.extra["logp"], [-0.5 * n for n in wanted["here"]])
        np.testing.assert_array_equal(batch.next_extra["mask"], np.stack([mask(n) for n in wanted["there"]]))
        assert "logp" not in batch.next_extra
        np.testing.assert_array_equal(batch.reward, np.array(wanted["reward"], np.float32))
        np.testing.assert_array_equal(batch.discount, np.array(wanted["discount"], np.float32))
        np.testing.assert_array_equal(batch.version, wanted["version"])


VERBS = ["step"] * 5 + ["terminated", "truncated", "interrupt", "successor"]
SCRIPTS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(VERBS), st.sampled_from([1, 1, 2, 4])), max_size=40)


@SETTINGS
@given(SCRIPTS, st.integers(7, 12), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans())
def test_sampled_transitions_are_those_that_happened(script, capacity, n_frames, n_step, prioritised, checked):
    both = Both(2, capacity, checked=checked)
    for lane, verb, rows in script:
        both.do(lane, verb, rows)
    reader = both.replay.reader(n_frames=n_frames, n_step=n_step, gamma=GAMMA, prioritised=prioritised, seed=3)
    starts = {(i, row) for i, lane in enumerate(both.naive) for row in lane.starts(n_frames, n_step)}
    rows = sum(
        max(0, len(lane.rows) - n_step - (lane.tail + n_frames - 1 if lane.tail else 0)) for lane in both.naive
    )  # fmt: skip
    assert reader.ready() == (len(starts) if prioritised else rows)
    assert both.replay.appended == sum(len(lane.rows) for lane in both.naive)
    assert reader.counters().broken == sum(len(lane.broken_at) for lane in both.naive)
    if not starts:
        return
    seen: set[tuple[int, int]] = set()
    for _ in range(40):
        batch = reader.sample(len(starts))
        both.check(batch, n_frames, n_step)
        seen |= set(zip(batch.lane.tolist(), batch.row.tolist(), strict=True))
    assert seen == starts, "every start is drawn sooner or later"


@SETTINGS
@given(st.lists(SCRIPTS.filter(len), min_size=2, max_size=5), st.integers(1, 2), st.booleans())
def test_unread_rows_are_counted_and_old_ones_forgotten(scripts, n_step, forget):
    both = Both(2, 10)
    reader = both.replay.reader(n_step=n_step, gamma=GAMMA)
    read: set[tuple[int, int]] = set()
    floor = [0, 0]
    for script in scripts:
        for lane, verb, rows in script:
            both.do(lane, verb, rows)
        starts = [
            (i, row) for i, lane in enumerate(both.naive) for row in lane.starts(1, n_step) if row >= floor[i]
        ]  # fmt: skip
        if starts:
            batch = reader.sample(min(len(starts), 3))
            both.check(batch, 1, n_step)
            for lane, row in zip(batch.lane.tolist(), batch.row.tolist(), strict=True):
                assert row >= floor[lane]
                end, _, _ = both.naive[lane].walk(row, n_step)
                read |= {(lane, i) for i in range(row, end + 1)}
        reader.ready()
        unread = {(i, row) for i, lane in enumerate(both.naive) for row in range(lane.tail)} - read
        # Looking once per script sees every row that was overwritten, also whole rounds between two looks.
        assert reader.counters().overwritten_unread == len(unread)
        if forget:
            reader.forget()
            floor = [len(lane.rows) for lane in both.naive]
            assert reader.ready() == 0


@SETTINGS
@given(SCRIPTS, st.integers(1, 4))
def test_frame_stack_of_the_acting_side_is_what_the_reader_gathers(script, n_frames):
    both = Both(1, 200)
    frames = FrameStack(n_frames)
    acted: dict[int, dict[str, Any]] = {}
    copy = lambda stack: {"picture": stack["picture"].copy(), "pair": tuple(a.copy() for a in stack["pair"])}  # noqa: E731
    for _, verb, rows in script:
        before = len(both.naive[0].rows)
        both.do(0, verb, rows)
        for i in range(before, len(both.naive[0].rows)):
            row = both.naive[0].rows[i]
            acted[i] = copy((frames.begin if row.begin else frames.push)(observation(row.number)))
    starts = both.naive[0].starts(n_frames, 1)
    if starts:
        batch = both.replay.reader(n_frames=n_frames).sample(len(starts))
        for k, row in enumerate(batch.row.tolist()):
            for got, i in ((batch.observation, row), (batch.next_observation, row + 1)):
                same({"picture": got["picture"][k], "pair": tuple(a[k] for a in got["pair"])}, acted[i])


@SETTINGS
@given(SCRIPTS, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_consume_once_hands_out_every_row_once_and_in_order(script, n_frames, length, fragments, checked):
    both = Both(2, 16, once=True, checked=checked)
    reader = both.replay.reader(n_frames=n_frames, gamma=GAMMA)
    cursor, consumed = [0, 0], 0

    def drain() -> None:
        nonlocal consumed
        while batch := reader.take(fragments, length):
            for f in range(fragments):
                lane = int(batch.lane[f, 0])
                naive, first = both.naive[lane], cursor[lane]
                assert batch.lane[f].tolist() == [lane] * length
                assert batch.row[f].tolist() == list(range(first, first + length))
                valid = [naive.starts_here(i) for i in range(first, first + length)]
                assert batch.valid is not None and batch.valid[f].tolist() == valid
                numbers = [naive.stack(i, n_frames) for i in range(first, first + length + 1)]
                wanted = stacked(numbers if n_frames > 1 else [n[0] for n in numbers])
                same(
                    {
                        "picture": batch.observation["picture"][f],
                        "pair": tuple(a[f] for a in batch.observation["pair"]),
                    },
                    wanted,
                )
                walked = [
                    naive.walk(i, 1)[1:] if ok else (0.0, 0.0)
                    for i, ok in zip(range(first, first + length), valid, strict=True)
                ]
                np.testing.assert_array_equal(batch.reward[f], np.array([w[0] for w in walked], np.float32))
                np.testing.assert_array_equal(batch.discount[f], np.array([w[1] for w in walked], np.float32))
                assert batch.version[f].tolist() == [naive.rows[i].version for i in range(first, first + length)]
                for i in range(length):
                    if not naive.rows[first + i].final:
                        np.testing.assert_array_equal(batch.action[f, i], action(naive.rows[first + i].number))
                assert batch.extra["mask"].shape[1] == length + 1 and batch.extra["logp"].shape[1] == length
                cursor[lane] += length
                consumed += sum(valid)
            reader.release()
        # Too few for another take: what is there, summed over the lanes.
        ready = [max(0, len(lane.rows) - 1 - c) for lane, c in zip(both.naive, cursor, strict=True)]
        assert reader.ready() == sum(ready)
        assert reader.fragments(length) == sum(r // length for r in ready) < fragments

    for lane, verb, rows in script:
        words = both.replay.words(lane)
        if words.head + rows + 1 > words.released + 16:
            continue  # the writer would wait; that has its own tests
        both.do(lane, verb, rows)
        drain()
    counters = reader.counters()
    assert counters.consumed == consumed
    assert (counters.overwritten_unread, counters.sampled, counters.redrawn, counters.waits) == (0, 0, 0, 0)


@SETTINGS
@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=4).filter(any),
    st.lists(st.integers(1, 13), min_size=1, max_size=30),
)
def test_shares_are_exact_over_batches(shares, sizes):
    names = [f"p{i}" for i in range(len(shares))]
    spec = ReplaySpec(Field(), Field((), "int64"), capacity=20 * len(shares), lanes=dict.fromkeys(names, 1))
    replay = Replay(spec)
    for i in range(len(shares)):
        writer = replay.writer(i)
        for _ in range(15):
            writer.append(0.0, 0, 0.0)
    reader: Reader = replay.reader(shares=dict(zip(names, shares, strict=True)))
    counts, total = np.zeros(len(shares)), 0
    for size in sizes:
        counts += np.bincount(reader.sample(size).lane, minlength=len(shares))
        total += size
        assert np.abs(counts - total * np.array(shares) / sum(shares)).max() < len(shares)
    assert not counts[np.array(shares) == 0].any()

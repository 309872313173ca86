"""Replay against a naive model: a list of rows. Everything a batch holds is computed here a second time, slowly."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.naive_replay import GAMMA, SCRIPTS, Both, action, observation, same, stacked

from motet.replay import Field, FrameStack, Reader, Replay, ReplaySpec

SETTINGS = settings(max_examples=120, deadline=None)


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

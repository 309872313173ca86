"""Sampled sequences against a naive model, against transitions, and at the limits of a lane."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.naive_replay import GAMMA, SCRIPTS, Both, action, mask, same, stacked

from motet.errors import NotReadyError, SettingError
from motet.nest import map_nest
from motet.replay import Batch, Field, Reader, Replay, ReplaySpec

SETTINGS = settings(max_examples=100, deadline=None)


def check(both: Both, batch: Batch, n_frames: int, n_step: int, burn_in: int, prioritised: bool) -> None:
    """Compare every row of a batch of sequences with the model."""
    size, length = batch.reward.shape
    assert batch.valid is not None and batch.ahead is not None and batch.next_observation is None
    for k in range(size):
        naive, first = both.naive[int(batch.lane[k])], int(batch.row[k])
        assert first in naive.sequence_starts(n_frames, n_step, length, burn_in, prioritised)
        rows = range(first, first + length)
        every = range(first, first + length + n_step)
        stacks = [naive.stack(i, n_frames) for i in every]
        wanted = stacked(stacks if n_frames > 1 else [s[0] for s in stacks])
        same(map_nest(lambda a, k=k: a[k], batch.observation), wanted)
        np.testing.assert_array_equal(batch.extra["mask"][k], np.stack([mask(naive.rows[i].number) for i in every]))
        assert batch.version[k].tolist() == [naive.rows[i].version for i in rows]
        valid = [naive.starts_here(i) for i in rows]
        assert batch.valid[k].tolist() == valid and any(valid[burn_in:])
        walked = [naive.walk(i, n_step) if ok else (i, 0.0, 0.0) for i, ok in zip(rows, valid, strict=True)]
        assert batch.ahead[k].tolist() == [end - i for i, (end, _, _) in zip(rows, walked, strict=True)]
        np.testing.assert_array_equal(batch.reward[k], np.array([w[1] for w in walked], np.float32))
        np.testing.assert_array_equal(batch.discount[k], np.array([w[2] for w in walked], np.float32))
        for j, i in enumerate(rows):
            if not naive.rows[i].final:
                np.testing.assert_array_equal(batch.action[k, j], action(naive.rows[i].number))
                assert batch.extra["logp"][k, j] == -0.5 * naive.rows[i].number


@SETTINGS
@given(SCRIPTS, st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.data(), st.booleans(), st.booleans())
def test_sequences_are_those_that_happened(script, n_frames, n_step, length, data, prioritised, checked):
    burn_in = data.draw(st.integers(0, length - 1))
    capacity = data.draw(st.integers(max(6, n_frames + n_step + 2 * length), 20))
    both = Both(2, capacity, checked=checked)
    for lane, verb, rows in script:
        both.do(lane, verb, rows)
    reader = both.replay.reader(
        n_frames=n_frames, n_step=n_step, gamma=GAMMA, prioritised=prioritised, seed=3, length=length, burn_in=burn_in
    )
    starts = {
        (i, row)
        for i, lane in enumerate(both.naive)
        for row in lane.sequence_starts(n_frames, n_step, length, burn_in, prioritised)
    }
    if prioritised:
        assert reader.ready() == len(starts)
    if not starts:
        return
    seen: set[tuple[int, int]] = set()
    for _ in range(40):
        batch = reader.sample(len(starts))
        check(both, batch, n_frames, n_step, burn_in, prioritised)
        seen |= set(zip(batch.lane.tolist(), batch.row.tolist(), strict=True))
    assert seen == starts, "every start is drawn sooner or later"


@SETTINGS
@given(st.lists(SCRIPTS, min_size=2, max_size=5), st.integers(2, 4), st.integers(0, 1), st.integers(11, 14))
def test_priorities_follow_the_rows_of_a_writer_that_laps(scripts, length, burn_in, capacity):
    both = Both(2, capacity)
    reader = both.replay.reader(gamma=GAMMA, prioritised=True, length=length, burn_in=burn_in)
    for script in scripts:
        for lane, verb, rows in script:
            both.do(lane, verb, rows)
        starts = sum(len(lane.sequence_starts(1, 1, length, burn_in, True)) for lane in both.naive)
        assert reader.ready() == starts
        if starts:
            batch = reader.sample(starts)
            check(both, batch, 1, 1, burn_in, True)
            reader.update(batch, np.ones(starts, np.float32))


@SETTINGS
@given(SCRIPTS, st.integers(8, 12), st.integers(1, 2), st.integers(1, 4), st.booleans(), st.booleans())
def test_sequences_of_one_row_are_transitions(script, capacity, n_frames, n_step, prioritised, checked):
    both = Both(2, capacity, checked=checked)
    readers: list[Reader] = []
    for length in (0, 1):
        given = {"n_frames": n_frames, "n_step": n_step, "prioritised": prioritised, "seed": 5, "gamma": GAMMA}
        readers.append(both.replay.reader(**given, length=length))
    single, sequences = readers
    for lane, verb, rows in [*script, (0, "step", 4), (1, "step", 2)]:
        both.do(lane, verb, rows)
        assert single.ready() == sequences.ready()
        if not (ready := single.ready()):
            continue
        outcomes: list[Batch | str] = []
        for reader in readers:
            try:
                outcomes.append(reader.sample(min(ready, 4)))
            except NotReadyError as error:
                outcomes.append(str(error))
        one, many = outcomes
        if not isinstance(one, Batch) or not isinstance(many, Batch):
            assert one == many
            continue
        assert many.valid.all()
        for name in ("lane", "row", "weight"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
        for name in ("action", "reward", "discount", "version"):
            here, there = getattr(one, name), getattr(many, name)
            assert here.tobytes() == there.tobytes() and there.shape == (len(here), 1, *here.shape[1:])
        at = np.arange(len(one.row)), many.ahead[:, 0]
        same(map_nest(lambda a: a[:, 0], many.observation), one.observation)
        same(map_nest(lambda a, at=at: a[at], many.observation), one.next_observation)
        np.testing.assert_array_equal(many.extra["mask"][at], one.next_extra["mask"])
        if prioritised:
            errors = np.linspace(0, 3, len(one.row)).astype(np.float32)
            for reader, batch in zip(readers, (one, many), strict=True):
                reader.update(batch, errors)
    assert sequences.counters()[1:4] == single.counters()[1:4]


def made(capacity: int = 40, lanes: int = 1, **spec: Any) -> Replay:
    return Replay(ReplaySpec(Field((1,)), Field((), "int64"), capacity=capacity * lanes, lanes=lanes, **spec))


def fill(replay: Replay, rows: int, lane: int = 0) -> None:
    writer = replay.writer(lane)
    for i in range(rows):
        writer.append(np.array([i], np.float32), i, float(i))


@pytest.mark.parametrize("burn_in", [0, 2, 3])
def test_each_row_is_learned_from_in_one_prioritised_sequence(burn_in):
    replay = made(100)
    fill(replay, 90)
    reader = replay.reader(length=5, burn_in=burn_in, prioritised=True, alpha=1.0, epsilon=0.0)
    stride, ready = 5 - burn_in, reader.ready()
    learned: list[int] = []
    for _ in range(ready):  # the one that was drawn is not drawn again
        batch = reader.sample(1)
        first = int(batch.row[0])
        learned += range(first + burn_in, first + 5)
        reader.update(batch, np.zeros(1, np.float32))
    assert sorted(learned) == list(range(burn_in, burn_in + stride * ready)) and max(learned) > 80
    with pytest.raises(NotReadyError):
        reader.sample(1)


def test_priorities_of_sequences_outlive_a_restart():
    replay = made(60)
    fill(replay, 200)  # the lane has wrapped around, and its capacity is no multiple of the stride
    given = {"length": 9, "burn_in": 2, "prioritised": True, "n_step": 2, "seed": 1}
    reader = replay.reader(**given)
    for i in range(5):
        batch = reader.sample(4)
        reader.update(batch, np.arange(1, 5, dtype=np.float32) * (i + 1))
    words, priorities = np.zeros(reader.state_words, np.uint64), np.zeros(60, np.float32)
    reader.save_state(words)
    reader.save_priorities(priorities)
    later = replay.reader(**given)
    later.load_state(words)
    later.load_priorities(priorities)
    for _ in range(3):
        one, other = reader.sample(6), later.sample(6)
        np.testing.assert_array_equal(one.row, other.row)
        np.testing.assert_array_equal(one.weight, other.weight)


def test_late_priorities_of_sequences_are_counted():
    replay = made(20)
    fill(replay, 15)
    reader = replay.reader(length=4, prioritised=True)
    batch = reader.sample(3)
    fill(replay, 40)
    reader.ready()
    reader.update(batch, np.ones(3, np.float32))
    assert reader.counters().late_priorities == 3


def test_given_ends_limit_sequences():
    replay = made(40)
    fill(replay, 20)
    reader = replay.reader(length=4, n_step=2, seed=2)
    reader.limit(np.array([12], np.uint64), 0)
    assert reader.ready() == 12 - 2 - 3
    rows = np.concatenate([reader.sample(6).row.copy() for _ in range(30)])
    assert set(rows.tolist()) == set(range(7))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 30, "n_step": 12}, r"capacity must be at least n_frames \+ n_step \+ length - 1 = 42 rows"),
        ({"length": 21, "prioritised": True}, r"length - 1 \+ length - burn_in - 1 = 42 rows per lane, got 40"),
        ({"length": 4, "burn_in": 4}, "burn_in must be an int from 0 to below the length 4, got 4"),
        ({"burn_in": 1}, "burn_in must be an int from 0 to below the length 0, got 1"),
        ({"length": 2, "n_step": 256}, "n_step must be an int from 1 to 255 for sequences, got 256"),
    ],
)
def test_impossible_sequences_are_refused(wrong, message):
    with pytest.raises(SettingError, match=message):
        made(40).reader(**wrong)


def test_longest_sequences_fit_a_lane():
    for sequences in ({"length": 39}, {"length": 20, "prioritised": True}):
        replay = made(40)
        fill(replay, 133)
        batch = replay.reader(**sequences).sample(1)
        assert batch.valid.all() and batch.observation[0, -1, 0] == batch.row[0] + sequences["length"]


def test_batches_of_another_length_are_refused():
    replay = made(40)
    with pytest.raises(SettingError, match="batch must have sequences of length 4, got 3"):
        replay.reader(length=4).bind(replay.reader(length=3).batch(2))
    with pytest.raises(SettingError, match="batch must have sequences of length 0, got 3"):
        replay.reader().bind(replay.reader(length=3).batch(2))

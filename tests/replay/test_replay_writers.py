"""Several lanes written in one call: the same rows as one by one, or none at all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.errors import NotReadyError, SettingError, SpecError, SupersededError
from motet.replay import Field, Replay, ReplaySpec

LANES = 4
SPEC = ReplaySpec(
    observation={"camera": Field((2, 3), "uint8"), "speed": Field((5,))},
    action=Field(dtype="int64"),
    extra={"mask": Field((4,), "bool", next=True)},
    capacity=12 * LANES,
    lanes=LANES,
)


def rows(rng, n):
    return {
        "observation": {
            "camera": rng.integers(0, 255, (n, 2, 3), "uint8"),
            "speed": rng.random((n, 5), "float32"),
        },
        "action": rng.integers(0, 9, n),
        "reward": rng.random(n, "float32"),
        "version": rng.integers(0, 99, n).astype(np.uint64),
        "mask": rng.random((n, 4)) < 0.5,
    }


def finals(rng, n):
    given = rows(rng, n)
    return {"final_observation": given["observation"], "final_mask": given["mask"]}


def one(nest, i):
    return {key: one(value, i) for key, value in nest.items()} if isinstance(nest, dict) else nest[i]


def drawn(reader):
    try:
        return reader.sample(1)
    except NotReadyError:
        return None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_rows_of_several_lanes_are_those_of_one_lane_after_the_other(seed, calls):
    rng = np.random.default_rng(seed)
    together, apart = Replay(SPEC), Replay(SPEC)
    writers, writer = together.writers(range(LANES)), [apart.writer(lane) for lane in range(LANES)]
    for _ in range(calls):
        lanes = rng.permutation(LANES)[: rng.integers(1, LANES + 1)]
        given = rows(rng, len(lanes))
        if rng.random() < 0.3:
            terminated = rng.random(len(lanes)) < 0.5
            given |= {"terminated": terminated, "truncated": ~terminated, **finals(rng, len(lanes))}
        writers.append(lanes, **given)
        for i, lane in enumerate(lanes):
            writer[lane].append(**{name: one(value, i) for name, value in given.items()})
        if rng.random() < 0.1:
            writers.interrupt(int(lanes[0]))
            writer[lanes[0]].interrupt()
    assert [together.words(i) for i in range(LANES)] == [apart.words(i) for i in range(LANES)]
    a, b = (replay.reader(n_frames=3, n_step=2, seed=1) for replay in (together, apart))
    if a.ready() and a.ready() == b.ready():
        first, second = drawn(a), drawn(b)
        if first is None or second is None:  # rows are stored, and no transition starts at any of them
            assert first is second
            return
        assert first.row == second.row
        assert (first.observation["speed"] == second.observation["speed"]).all()
        assert (first.version, first.reward) == (second.version, second.reward)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lanes": np.array([0, 4])}, "lanes must be from 0 to 3, got 4"),
        ({"lanes": np.array([-1, 0])}, "lanes must be from 0 to 3, got -1"),
        ({"lanes": np.array([0, 1], "int32")}, "lanes must be an array of int64"),
        ({"lanes": np.array([1, 1])}, "lanes must be different, with one row for each lane, got 1 more than once"),
        ({"action": np.array([1])}, r"action must be int64 \(rows,\), got int64 \(1,\)"),
        ({"reward": np.array([1.0, np.nan], "float32")}, "reward must be finite numbers, got NaN"),
        ({"reward": np.array([1.0, 2.0])}, "reward must be .*, got float64"),
        ({"mask": None}, "mask must be .*, got NoneType"),
        (
            {"terminated": np.array([True, False])},
            "must end an episode or none, got row 1, which is neither terminated nor truncated",
        ),
        ({"terminated": np.array([True])}, "terminated must be .* one value for each of 2 rows, got"),
        ({"terminated": np.ones(2, bool)}, "final_observation is missing"),
        ({"version": np.ones(3, "uint64")}, "version must be .* one value for each of 2 rows, got"),
        ({"version": -1}, "version must be .*, got -1"),
        ({"colour": np.ones(2)}, "colour is not a field of this replay"),
    ],
)
def test_a_refused_append_changes_nothing(change, message):
    replay = Replay(SPEC)
    writers = replay.writers(range(LANES))
    given = rows(np.random.default_rng(0), 2) | {"lanes": np.array([0, 1])} | change
    with pytest.raises(SpecError, match=message):
        writers.append(given.pop("lanes"), **given)
    assert all(replay.words(i).head == 0 for i in range(LANES))


def test_writers_of_different_replays_do_not_go_together():
    other = Replay(ReplaySpec(Field((2,)), Field(dtype="int64"), capacity=10))
    from motet.replay import Writers

    with pytest.raises(SettingError, match="must be of lanes of one replay"):
        Writers([Replay(SPEC).writer(0), other.writer(0)])
    with pytest.raises(SettingError, match="writers must be 1 or more, got none"):
        Writers([])
    with pytest.raises(SettingError, match="writers must be writers of lanes"):
        Writers([3])


def test_a_new_writer_in_one_lane_stops_an_append_to_all_lanes():
    replay = Replay(SPEC)
    writers = replay.writers(range(LANES))
    writers.append(np.arange(4), **rows(np.random.default_rng(0), 4))
    replay.writer(2)
    with pytest.raises(SupersededError):
        writers.append(np.arange(4), **rows(np.random.default_rng(0), 4))
    assert [replay.words(i).head for i in range(LANES)] == [1, 1, 1, 1]

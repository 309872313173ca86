"""Replay: dtypes and spaces, priorities, consume-once, state, counters, checksums, and every wrong use."""

import dataclasses
import pickle
import re
import threading
import time

import gymnasium.spaces as spaces
import numpy as np
import pytest

from motet.errors import (
    CorruptionError,
    MemoryShortError,
    MotetError,
    NotReadyError,
    SettingError,
    SpecError,
    SupersededError,
    WaitTimeoutError,
)
from motet.replay import Field, FrameStack, Replay, ReplaySpec, rewound
from motet.system.memory import Segment

PAIR = Field((2,))
INT = Field((), "int64")
HEADER = 256  # bytes of a lane before its first row


def make(capacity=16, observation=PAIR, action=INT, **spec):
    return Replay(ReplaySpec(observation=observation, action=action, capacity=capacity, **spec))


def obs(i):
    return np.full(2, i, np.float32)


def fill(replay, rows, lane=0, first=0, **writer):
    writer = replay.writer(lane, **writer)
    for i in range(first, first + rows):
        writer.append(obs(i), i, float(i))
    return writer


# ---- what can be stored


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3, 4)])
def test_every_dtype_and_shape_comes_back_as_it_was(dtype, shape):
    replay = make(8, observation=Field(shape, dtype), extra={"x": Field(shape, dtype, next=True)})
    random = np.random.default_rng(1)
    values = random.integers(0, 256, (5, *shape, np.dtype(dtype).itemsize), np.uint8)
    values = values % 2 if dtype == "bool" else values
    values = values.view(dtype)[..., 0]
    values = np.where(np.isfinite(values), values, 0).astype(dtype) if "float" in dtype else values
    writer = replay.writer()
    for i in range(3):
        writer.append(values[i], i, 0.0, x=values[i])
    writer.append_many(values[3:], np.array([3, 4]), np.zeros(2, np.float32), x=values[3:])
    batch = replay.reader().sample(4)
    assert batch.observation.dtype == dtype
    np.testing.assert_array_equal(batch.observation, values[batch.action])
    np.testing.assert_array_equal(batch.next_observation, values[batch.action + 1])
    np.testing.assert_array_equal(batch.extra["x"], values[batch.action])
    np.testing.assert_array_equal(batch.next_extra["x"], values[batch.action + 1])


def test_numbers_of_python_and_numpy_are_taken_for_scalars():
    replay = make(8, extra={"flag": Field((), "bool"), "small": Field((), "int8"), "big": Field((), "uint64")})
    writer = replay.writer()
    writer.append(obs(0), 1, 2, flag=True, small=-3, big=2**64 - 1)
    writer.append(obs(1), np.int32(1), np.float64(2), flag=np.True_, small=np.int8(-3), big=np.uint64(2**64 - 1))
    writer.append(obs(2), np.array(1), np.array(2.0, np.float32), flag=1, small=np.int64(-3), big=2**64 - 1)
    writer.append(obs(3), 1, 2.0, flag=False, small=0, big=0)
    batch = replay.reader().sample(3)
    assert set(batch.action) == {1} and set(batch.reward) == {2.0} and batch.extra["flag"].all()
    assert set(batch.extra["small"]) == {-3} and set(batch.extra["big"]) == {2**64 - 1}


class Degrees(np.ndarray):
    """An array of another class."""


def test_arrays_of_every_origin_are_taken():
    replay = make(observation=Field((2,), finite=True))
    writer = replay.writer()
    plain, unaligned = np.array([1, 2], np.float32), np.zeros(9, np.uint8)[1:].view(np.float32)
    unaligned[:] = plain
    frozen = plain.copy()
    frozen.flags.writeable = False
    inner = np.stack([plain, plain + 1])[0]
    for array in (plain, frozen, unaligned, inner, plain.view(Degrees), memoryview(plain), plain.astype("<f4")):
        writer.append(array, 1, 0.0)
        if isinstance(array, np.ndarray):  # one that came through a pipe has a dtype of its own
            writer.append(pickle.loads(pickle.dumps(array)), 1, 0.0)  # noqa: S301
    last = writer.append(plain, 1, 0.0)
    batch = replay.reader().sample(last - 1)
    assert (batch.observation == plain).all() and (batch.next_observation == plain).all()


def test_spaces_of_gymnasium():
    space = spaces.Dict({
        "box": spaces.Box(0, 255, (2, 3), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(3))),
    })  # fmt: skip
    replay = make(8, observation=space, action=spaces.MultiDiscrete([3, 3]))
    space.seed(0)
    steps = [space.sample() for _ in range(6)]
    writer = replay.writer()
    for step in steps:
        writer.append(step, np.array([1, 2]), 0.0)
    batch = replay.reader().sample(5)
    for k, row in enumerate(batch.row.tolist()):
        np.testing.assert_array_equal(batch.observation["box"][k], steps[row]["box"])
        assert batch.observation["pair"][0][k] == steps[row]["pair"][0]
        np.testing.assert_array_equal(batch.next_observation["pair"][1][k], steps[row + 1]["pair"][1])


def test_float64_rewards_are_summed_in_full():
    replay = make(8, reward=Field((), "float64"))
    writer = replay.writer()
    for i in range(4):
        writer.append(obs(i), i, 1 / 3)
    batch = replay.reader(n_step=2, gamma=0.7).sample(2)
    assert batch.reward.dtype == np.float64 and set(batch.reward) == {1 / 3 + 0.7 * (1 / 3)}


def test_a_nested_field_may_have_a_next_in_part():
    replay = make(8, extra={"m": {"a": Field(next=True), "b": Field()}})
    writer = replay.writer()
    writer.append(obs(0), 0, 0.0, m={"a": 1.0, "b": 2.0})
    end = {"terminated": True, "final_observation": obs(9)}
    writer.append(obs(1), 0, 0.0, m={"a": 3.0, "b": 4.0}, final_m={"a": 5.0}, **end)
    batch = replay.reader().sample(2)
    np.testing.assert_array_equal(batch.next_extra["m"]["a"], np.where(batch.row == 0, 3.0, 5.0))
    assert batch.next_extra["m"]["b"] is None


def test_batches_of_equal_size_share_their_arrays_others_do_not():
    replay = make()
    fill(replay, 10)
    reader = replay.reader()
    first = reader.sample(4)
    assert reader.sample(4) is first and reader.sample(3) is not first
    mine = reader.batch(4)
    assert reader.sample(4, into=mine) is mine and mine.observation is not first.observation
    assert (mine.observation[:, 0] == mine.action).all()


def test_a_batch_that_lacks_an_array_is_refused():
    replay = make()
    fill(replay, 5)
    reader = replay.reader()
    lacking = dataclasses.replace(reader.batch(3), action=None)
    with pytest.raises(SettingError, match="batch must have arrays for action, got none"):
        reader.bind(lacking)


def test_a_reader_belongs_to_one_thread_at_a_time():
    replay = make(2_000)
    fill(replay, 1_500)
    reader = replay.reader(prioritised=True)
    values, batch, done = np.zeros(2_000, np.float32), reader.batch(1_000), threading.Event()
    refused = []

    def other():
        while not done.is_set():
            for use in (reader.save_priorities, reader.load_priorities):
                try:
                    use(values)
                except RuntimeError as error:
                    refused.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    drawn = 0
    try:
        deadline = time.monotonic() + 60
        while (drawn < 50 or not refused) and time.monotonic() < deadline:
            try:
                reader.sample(1_000, into=batch)
                drawn += 1
            except RuntimeError as error:
                assert "another thread is inside" in str(error)
    finally:
        done.set()
        thread.join()
    assert refused and all("another thread is inside" in text for text in refused)


def test_many_lanes_share_one_segment_with_other_parts():
    spec = ReplaySpec(observation=PAIR, action=INT, capacity=40, lanes=4)
    segment = Segment({**spec.layout("one"), **spec.layout("two")})
    one, two = Replay(spec, segment, "one"), Replay(spec, segment, "two")
    for lane in range(4):
        fill(one, 5, lane, first=100)
        fill(two, 5, lane, first=200)
    assert set(one.reader().sample(16).action.tolist()) <= set(range(100, 105))
    assert set(two.reader().sample(16).action.tolist()) <= set(range(200, 205))


def test_lanes_of_partitions():
    replay = make(12, lanes={"near": 2, "far": 1})
    assert (replay.lanes("near"), replay.lanes("far")) == (range(2), range(2, 3))
    with pytest.raises(SettingError, match=r"partition must be one of \['near', 'far'\], got 'x'"):
        replay.lanes("x")
    assert replay.spec.lane_capacity == 4 and replay.spec.n_lanes == 3


def test_a_partition_without_rows_leaves_its_share_to_the_others():
    replay = make(40, lanes={"a": 1, "b": 1, "c": 1})
    fill(replay, 8, 0)
    fill(replay, 8, 1)
    reader = replay.reader(shares={"a": 1, "b": 1, "c": 2})
    assert np.bincount(reader.sample(8).lane, minlength=3).tolist() == [4, 4, 0]
    fill(replay, 8, 2)
    assert np.bincount(reader.sample(8).lane, minlength=3).tolist() == [2, 2, 4]


def test_only_a_partition_that_is_never_drawn_from_holds_rows():
    replay = make(40, lanes={"a": 1, "b": 1, "c": 1})
    fill(replay, 8, 1)
    fill(replay, 8, 2)
    reader = replay.reader(shares={"a": 1, "b": 0, "c": 0})
    assert reader.ready() == 0
    with pytest.raises(NotReadyError):
        reader.sample(1)


# ---- priorities


def _prioritised(rows=40, **reader):
    replay = make(64)
    fill(replay, rows + 1)
    return replay, replay.reader(prioritised=True, **reader)


def _give(reader, priority):
    """Every row its priority, through as many batches as it takes to meet each."""
    left = set(range(len(priority)))
    while left:
        batch = reader.sample(len(priority))
        left -= set(batch.row.tolist())
        reader.update(batch, priority[batch.row.astype(int)])


def test_draws_follow_priorities_and_weights_the_formula():
    _, reader = _prioritised(alpha=0.7, epsilon=0.01, seed=5)
    priority = np.random.default_rng(2).exponential(1, 40).astype(np.float32)
    _give(reader, priority)
    mass = (priority + np.float32(0.01)) ** np.float32(0.7)
    chance = mass.astype(np.float64) / mass.sum(dtype=np.float64)
    counts = np.zeros(40)
    for _ in range(2000):
        batch = reader.sample(32, beta=0.6)
        np.add.at(counts, batch.row.astype(int), 1)
        weight = (40 * chance[batch.row.astype(int)]) ** -0.6
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=2e-6)
        assert batch.weight.max() == 1
    expected = 64000 * chance
    assert ((counts - expected) ** 2 / expected).sum() < 39 + 5 * np.sqrt(78)


def test_draws_follow_priorities_within_the_shares_of_partitions():
    shares, sizes = {"near": 3, "far": 1, "empty": 4}, {"near": 24, "far": 12}
    replay = make(120, lanes={"near": 2, "far": 1, "empty": 1})
    for lane in range(3):
        fill(replay, 13, lane)
    reader = replay.reader(prioritised=True, alpha=0.7, epsilon=0.01, shares=shares, seed=5)
    priority = np.random.default_rng(2).exponential(1, (3, 12)).astype(np.float32)
    left = set(range(36))
    while left:
        batch = reader.sample(36)
        rows = batch.row.astype(int)
        left -= set((12 * batch.lane + batch.row).astype(int).tolist())
        reader.update(batch, priority[batch.lane, rows])
    mass = ((priority + np.float32(0.01)) ** np.float32(0.7)).astype(np.float64)
    of_partition = np.array([mass[:2].sum()] * 2 + [mass[2].sum()])[:, None]
    within = mass / of_partition  # chance of a row among those of its partition
    share = np.array([0.75, 0.75, 0.25])[:, None]
    size = np.array([sizes["near"]] * 2 + [sizes["far"]])[:, None]
    counts = np.zeros((3, 12))
    for _ in range(2000):
        batch = reader.sample(32, beta=0.6)
        lane, row = batch.lane.astype(int), batch.row.astype(int)
        np.add.at(counts, (lane, row), 1)
        assert (lane < 2).sum() == 24, "the share of a partition is exact in each batch"
        weight = (size * within)[lane, row] ** -0.6  # corrects for priorities, and leaves the shares alone
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=2e-6)
    expected = 64000 * share * within
    assert ((counts - expected) ** 2 / expected).sum() < 34 + 5 * np.sqrt(68)


def test_new_rows_get_the_highest_priority_so_far():
    replay, reader = _prioritised(epsilon=0.0, alpha=1.0)
    _give(reader, np.full(40, 8.0, np.float32))
    fill(replay, 10, first=41)  # a successor: row 40 is broken, rows 41 to 49 are starts
    counts = np.zeros(64)
    for _ in range(500):
        batch = reader.sample(49, beta=1.0)
        assert set(batch.weight) == {1.0}
        np.add.at(counts, batch.row.astype(int), 1)
    assert counts[40] == 0 and (counts[:40] > 0).all() and (counts[41:50] > 0).all()
    assert counts[41:50].mean() == pytest.approx(counts[:40].mean(), rel=0.1)


def test_overwritten_rows_are_never_drawn_and_late_priorities_are_counted():
    replay = make(10)
    writer = fill(replay, 10)
    reader = replay.reader(prioritised=True)
    batch = reader.batch(5)
    reader.sample(5, into=batch)
    rows = batch.row.copy()
    for i in range(10, 17):
        writer.append(obs(i), i, 0.0)
    assert reader.sample(9).row.min() >= 7
    reader.update(batch, np.full(5, 100, np.float32))
    assert reader.counters().late_priorities == (rows < 7).sum() > 0


def test_final_and_broken_rows_never_get_a_priority():
    replay = make(64)
    writer = replay.writer()
    for i in range(8):
        writer.append(obs(i), i, 0.0)
        writer.append(obs(i), i, 0.0, terminated=True, final_observation=obs(-1))
        writer.append(obs(i), i, 0.0)
        writer.interrupt()
    reader = replay.reader(prioritised=True)
    assert reader.ready() == 16
    for _ in range(50):
        assert set((reader.sample(16).row % 4).tolist()) <= {0, 1}


def test_priorities_of_zero_are_not_drawn_unless_all_are():
    _, reader = _prioritised(epsilon=0.0)
    priority = np.zeros(40, np.float32)
    priority[7] = 1
    _give(reader, np.ones(40, np.float32))
    for _ in range(200):
        batch = reader.sample(1)
        reader.update(batch, priority[batch.row.astype(int)])
        if reader.ready() == 1:
            break
    assert reader.sample(1).row.tolist() == [7]
    reader.update(reader.sample(1), np.zeros(1, np.float32))
    with pytest.raises(NotReadyError, match="batch_size must be at most 0, the number of stored transitions, got 1"):
        reader.sample(1)


# ---- consume once


@pytest.mark.parametrize("length", [1, 4, 7, 30])
def test_generalised_advantages_over_fragments_equal_those_over_episodes(length):
    """discount and valid are all that is needed, whatever ends inside a fragment and wherever it is cut."""
    gamma, lam, random = 0.9, 0.8, np.random.default_rng(4)
    replay = make(400, once=True)
    writer, reader = replay.writer(), replay.reader(gamma=gamma)
    value = lambda observation: np.sin(observation[..., 0] * 0.37)  # noqa: E731
    wanted, number = {}, 0
    for episode in range(12):
        steps, end = int(random.integers(1, 9)), ("terminated", "truncated", "broken")[episode % 3]
        numbers = list(range(number, number + steps + 1))
        number += steps + 1
        rewards = random.normal(size=steps).astype(np.float32)
        for k, n in enumerate(numbers[:-1]):
            last = {end: True, "final_observation": obs(numbers[-1])} if k == steps - 1 and end != "broken" else {}
            writer.append(obs(n), n, rewards[k], **last)
        if end == "broken":  # the last observation is there, but what its action led to is not known
            writer.append(obs(numbers[-1]), numbers[-1], 123.0)
            writer.interrupt()
        advantage = 0.0
        for k in reversed(range(steps)):
            behind = 0.0 if end == "terminated" and k == steps - 1 else value(obs(numbers[k + 1]))
            advantage = rewards[k] + gamma * behind - value(obs(numbers[k])) + gamma * lam * advantage
            wanted[numbers[k]] = advantage
    for _ in range(length + 1):  # so that the last fragment is full
        writer.append(obs(0), -1, 0.0)
    rows = []
    while batch := reader.take(1, length):
        values = value(batch.observation[0])
        rows += zip(
            batch.action[0], batch.valid[0], batch.reward[0], batch.discount[0], values[:-1], values[1:], strict=True
        )
    got, advantage = {}, 0.0
    for n, valid, reward, discount, here, behind in reversed(rows):
        advantage = valid * (reward + discount * behind - here + discount * lam * advantage)
        if valid and n >= 0:
            got[int(n)] = advantage
    assert got.keys() == wanted.keys()
    assert all(got[n] == pytest.approx(wanted[n], abs=1e-5) for n in wanted)


def test_frames_at_the_border_of_a_fragment_are_still_there():
    """The writer fills every row that it may, before the next fragment is taken."""
    replay = make(8, once=True)
    writer, reader = replay.writer(timeout_s=0), replay.reader(n_frames=3)
    for _ in range(20):
        while replay.words(0).head < replay.words(0).released + 8:
            i = writer.head
            writer.append(obs(i), i, 0.0)
        batch = reader.take(1, 4)
        assert batch is not None
        for k in range(5):
            row = int(batch.row[0, 0]) + k
            assert batch.observation[0, k, :, 0].tolist() == [max(row - 2, 0), max(row - 1, 0), row]
        reader.release()
    assert reader.counters().consumed == 80


def test_the_writer_waits_for_room_bounded_and_counted():
    replay = make(6, once=True)
    writer = fill(replay, 6, timeout_s=0.05)
    with pytest.raises(WaitTimeoutError, match=r"the writer waited \d+ ms for the reader .* full with 6 unread rows"):
        writer.append(obs(6), 6, 0.0)
    reader = replay.reader()
    counters = reader.counters()
    assert counters.waits == 1 and counters.waited_s >= 0.05 and counters.appended == 6
    assert reader.take(1, 4) is not None
    with pytest.raises(WaitTimeoutError):
        writer.append(obs(6), 6, 0.0)  # taken is not released
    reader.release()
    writer.append(obs(6), 6, 0.0)
    batch = reader.take(1, 2)
    assert batch is not None and batch.action.tolist() == [[4, 5]]


def test_a_release_wakes_the_writer():
    replay = make(6, once=True)
    writer = fill(replay, 6, timeout_s=60)
    thread = threading.Thread(target=lambda: writer.append(obs(6), 6, 0.0))
    thread.start()
    while not writer.waits:
        time.sleep(0.001)
    reader = replay.reader()
    assert reader.take(1, 1) is not None
    reader.release()
    thread.join()
    assert writer.head == 7


def test_a_writer_superseded_while_it_waits_gives_up():
    replay = make(6, once=True)
    writer = fill(replay, 6, timeout_s=60)
    errors = []

    def append():
        try:
            writer.append(obs(6), 6, 0.0)
        except SupersededError as error:
            errors.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    while not writer.waits:
        time.sleep(0.001)
    replay.writer()
    thread.join()
    assert len(errors) == 1


@pytest.mark.parametrize("n_frames", [1, 3])
def test_an_end_never_locks_writer_and_reader(n_frames):
    """The longest fragment, and an episode that ends at every possible moment of it: two rows at once."""
    replay = make(8, once=True)
    writer, reader = replay.writer(timeout_s=0.2), replay.reader(n_frames=n_frames)
    length = 8 - n_frames - 1
    for i in range(100):
        end = {"terminated": True, "final_observation": obs(-1)} if i % 7 == 3 or i % 5 == 0 else {}
        writer.append(obs(i), i, 0.0, **end)
        if reader.take(1, length):
            reader.release()
    with pytest.raises(SettingError, match=f"length must be an int from 1 to {length}, got {length + 1}"):
        reader.take(1, length + 1)
    with pytest.raises(SettingError, match="fragments must be an int from 1 to 1, got 2"):
        reader.take(2, length)


def test_a_restarted_once_reader_repeats_no_row_and_has_complete_frames():
    replay = make(10, once=True)
    writer, reader = fill(replay, 8), replay.reader(n_frames=3)
    assert reader.take(1, 5) is not None
    reader.release()
    for i in range(8, 12):  # these lie where rows 0 and 1 were
        writer.append(obs(i), i, 0.0)
    successor = replay.reader(n_frames=3)
    batch = successor.take(1, 2)
    assert batch is not None and batch.row.tolist() == [[5, 6]]
    assert batch.observation[0, :, :, 0].tolist() == [[3, 4, 5], [4, 5, 6], [5, 6, 7]]
    with pytest.raises(
        SettingError,
        match="n_frames must be at most 3, got 4: an earlier reader with fewer frames has released older rows",
    ):
        replay.reader(n_frames=4)


def test_a_copy_is_rewound_to_a_row_unless_what_follows_was_overwritten():
    replay = make(8, once=True)
    writer, reader = fill(replay, 6), replay.reader(n_frames=2)
    assert reader.take(1, 4) is not None
    reader.release()  # but for row 3, which the next one is stacked with
    copy = rewound(replay.dump(0), 2, frames=1)
    assert copy is not None
    other = make(8, once=True)
    other.restore(0, copy)
    batch = other.reader(n_frames=2).take(1, 3)
    assert batch is not None and batch.action.tolist() == [[2, 3, 4]]
    for i in range(6, 11):  # the last of them lies where row 2 was
        writer.append(obs(i), i, 0.0)
    assert rewound(replay.dump(0), 2) is None
    assert rewound(replay.dump(0), 3, frames=1) is None
    assert rewound(replay.dump(0), 3) is not None
    assert rewound(replay.dump(0), 12) is None  # not written yet


def test_a_restarted_reader_completes_an_interrupted_release():
    """Between the two words of a release: what was taken is known, but not yet free."""
    replay = make(8, once=True)
    fill(replay, 6)
    reader = replay.reader()
    assert reader.take(1, 4) is not None
    reader.release()
    words = replay._lane(0)[:256].view(np.uint64)
    assert words[16:18].tolist() == [4, 4]
    words[16] = 0
    successor = replay.reader()
    successor.release()
    assert replay.words(0).released == 4


def test_a_state_older_than_the_last_release_does_not_lead_to_overwritten_rows():
    replay = make(8, once=True)
    writer, reader = fill(replay, 6), replay.reader()
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    assert reader.take(1, 4) is not None
    reader.release()  # ... and dies here, before it could save its state again
    for i in range(6, 10):
        writer.append(obs(i), i, 0.0)
    successor = replay.reader()
    successor.load_state(state)
    batch = successor.take(1, 4)
    assert batch is not None and batch.action.tolist() == [[4, 5, 6, 7]]


def test_a_state_newer_than_the_last_release_repeats_nothing():
    replay = make(8, once=True)
    _, reader = fill(replay, 6), replay.reader()
    assert reader.take(1, 4) is not None
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)  # ... and dies here, before it could release
    successor = replay.reader()
    successor.load_state(state)
    batch = successor.take(1, 1)
    assert batch is not None and batch.action.tolist() == [[4]] and successor.counters().consumed == 5


def test_taking_in_turn_from_every_lane():
    replay = make(60, lanes=3, once=True)
    for lane, rows in enumerate((3, 9, 5)):
        fill(replay, rows, lane)
    reader = replay.reader()
    assert reader.fragments(2) == 1 + 4 + 2
    batch = reader.take(7, 2)
    assert batch is not None and batch.lane[:, 0].tolist() == [0, 1, 2, 1, 2, 1, 1]
    assert reader.take(1, 2) is None


# ---- state


def test_a_restarted_reader_continues_the_random_stream():
    replay = make(60, lanes={"a": 1, "b": 2})
    for lane in range(3):
        fill(replay, 15, lane, first=100 * lane)
    settings = {"shares": {"a": 0.37, "b": 0.63}, "n_step": 2, "n_frames": 2}
    reader = replay.reader(seed=9, **settings)
    for _ in range(5):
        reader.sample(7)
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    successor = replay.reader(seed=1, **settings)
    successor.load_state(state)
    for _ in range(5):
        a, b = reader.sample(7), successor.sample(7)
        assert (a.lane == b.lane).all() and (a.row == b.row).all()
        np.testing.assert_array_equal(a.observation, b.observation)
    assert reader.counters() == successor.counters()
    other = replay.reader(seed=1, **settings)
    assert any((reader.sample(7).row != other.sample(7).row).any() for _ in range(3))


def test_seeds_decide_batches():
    replay = make(60)
    fill(replay, 50)
    draws = [replay.reader(seed=seed).sample(20).row.tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_a_restarted_reader_keeps_forgotten_rows_and_the_highest_priority():
    replay = make(60)
    writer = fill(replay, 20)
    reader = replay.reader(prioritised=True, alpha=1.0, epsilon=0.0)
    reader.update(reader.sample(4), np.full(4, 50, np.float32))
    reader.forget()
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    for i in range(20, 30):
        writer.append(obs(i), i, 0.0)
    successor = replay.reader(prioritised=True, alpha=1.0, epsilon=0.0)
    successor.load_state(state)
    assert successor.ready() == 9 and successor.sample(9).row.min() >= 20


def test_the_row_that_is_being_made_can_be_forgotten_too():
    replay = make(60)
    writer, reader = fill(replay, 20), replay.reader()
    reader.forget(True)
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    successor = replay.reader()
    successor.load_state(state)  # although this row is not there yet
    for i in range(20, 30):
        writer.append(obs(i), i, 0.0)
    for each in (reader, successor):
        assert each.ready() == 8 and each.sample(8).row.min() >= 21


def test_a_restarted_reader_does_not_count_unknown_rows_as_unread():
    replay = make(10)
    writer = fill(replay, 10)
    reader = replay.reader()
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    successor = replay.reader()
    successor.load_state(state)
    for i in range(15):
        writer.append(obs(i), i, 0.0)
    successor.ready()
    assert successor.counters().overwritten_unread == 5  # of the 15 new ones; the 10 old ones are not known


def test_a_state_of_another_replay_is_refused():
    one, other = make(100), make(100)
    fill(one, 50)
    reader = one.reader()
    reader.forget()
    state = np.zeros(reader.state_words, np.uint64)
    reader.save_state(state)
    with pytest.raises(SettingError, match="state must not be past the 0 rows written to lane 0, got row 50"):
        other.reader().load_state(state)
    with pytest.raises(
        SpecError, match=f"state must be uint64 with {reader.state_words} items, got uint64 with 8 bytes"
    ):
        reader.load_state(state[:1].copy())


# ---- death of a writer, one instruction at a time


def test_a_reservation_never_decreases():
    """A writer died inside an append of 5 rows; its successor appends one."""
    replay = make(8)
    fill(replay, 8)
    words = replay._segment["replay/lane0"].view(np.uint64)
    reserve = 8  # words of a lane: 8 constants, then reserve and head
    assert tuple(words[reserve : reserve + 2]) == (8, 8)
    words[reserve] = 13
    rows = replay._segment["replay/lane0"][HEADER:].reshape(8, -1)
    rows[:5, 8:] = 0x55  # what it wrote before it died, over rows 0 to 4
    writer = replay.writer()
    writer.append(obs(100), 100, 0.0)
    assert (replay.words(0).reserve, replay.words(0).head) == (13, 9)
    reader = replay.reader()
    seen = set()
    for _ in range(50):
        batch = reader.sample(2)
        assert (batch.observation[:, 0] == batch.action).all()
        seen |= set(batch.row.tolist())
    assert seen == {5, 6}, "rows 0 to 4 are gone, row 7 broke off"
    assert replay.words(0).broken == 1
    for i in range(101, 105):
        writer.append(obs(i), i, 0.0)
    assert replay.words(0).reserve == 13
    writer.append(obs(105), 105, 0.0)
    assert replay.words(0).reserve == 14


def test_incarnations_and_broken_segments_are_counted_once():
    replay = make()
    writer = fill(replay, 3)
    writer.interrupt()
    writer.interrupt()
    replay.writer()
    assert (replay.words(0).broken, replay.words(0).incarnation) == (1, 2)
    writer = fill(replay, 1)
    writer.append(obs(1), 1, 0.0, truncated=True, final_observation=obs(2))
    writer.interrupt()
    replay.writer()
    assert replay.words(0).broken == 1


def test_a_superseded_writer_writes_nothing():
    replay = make()
    writer = fill(replay, 3)
    replay.writer()
    for write in (lambda: writer.append(obs(0), 0, 0.0), writer.interrupt):
        with pytest.raises(
            SupersededError, match=r"another writer has taken over this lane \(incarnation 2, this one is 1\)"
        ):
            write()
    assert replay.appended == 3


# ---- checked mode


@pytest.mark.parametrize("n_frames", [1, 3])
def test_a_flipped_byte_is_found_and_named(n_frames):
    replay = make(40, lanes=2, checked=True)
    for lane in range(2):
        fill(replay, 15, lane)
    reader = replay.reader(n_frames=n_frames)
    reader.sample(14)
    lane = replay._segment["replay/lane1"]
    size = replay._row.bytes
    lane[HEADER + 9 * size + 10] ^= 1
    with pytest.raises(CorruptionError, match="lane 1, row 9: the checksum does not match"):
        for _ in range(100):
            reader.sample(14)
    lane[HEADER + 9 * size + 10] ^= 1
    for _ in range(20):
        reader.sample(14)


def test_a_flipped_byte_is_found_when_taking_and_nothing_is_lost():
    replay = make(20, once=True, checked=True)
    fill(replay, 15)
    reader = replay.reader(n_frames=2)
    assert reader.take(1, 4) is not None
    lane, size = replay._segment["replay/lane0"], replay._row.bytes
    for row in (3, 6, 8):  # a frame before the fragment, inside, and the observation behind it
        lane[HEADER + row * size + 12] ^= 128
        with pytest.raises(CorruptionError, match=f"lane 0, row {row}: the checksum"):
            reader.take(1, 4)
        lane[HEADER + row * size + 12] ^= 128
    batch = reader.take(1, 4)
    assert batch is not None and batch.action.tolist() == [[4, 5, 6, 7]]


def test_a_row_in_the_wrong_place_is_found():
    replay = make(20, checked=True)
    fill(replay, 15)
    size = replay._row.bytes
    rows = replay._segment["replay/lane0"][HEADER : HEADER + 20 * size].reshape(20, size)
    rows[4] = rows[5]
    reader = replay.reader()
    with pytest.raises(CorruptionError, match="lane 0, row 4"):
        for _ in range(100):
            reader.sample(14)


# ---- wrong use: every message names the field, what was given and what was expected

ANY = {"observation": PAIR, "action": INT, "capacity": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 0}, "capacity must be an int >= 2, got 0"),
        ({"capacity": 7, "lanes": 4}, "capacity must be at least 2 for each of 4 lanes, got 7"),
        ({"lanes": 0}, "lanes must be an int >= 1 or a mapping from strings to ints >= 1, got 0"),
        ({"lanes": {}}, "lanes must have one or more partitions, got none"),
        (
            {"observation": "pixels"},
            "observation must be a Field, a space of arrays, or a dict or tuple of these, got 'pixels'",
        ),
        (
            {"observation": {}},
            "observation must be a Field, a space of arrays, or a dict or tuple of these, got {}",
        ),
        (
            {"observation": {"a": {"b": 3}}},
            "observation/a/b must be a Field, a space of arrays, or a dict or tuple of these, got 3",
        ),
        ({"observation": spaces.Text(5)}, "or a dict or tuple of these, got Text"),
        ({"reward": Field((2,))}, "reward must be a float32 or float64 scalar, got Field(shape=(2,)"),
        ({"reward": Field((), "int32")}, "reward must be a float32 or float64 scalar, got"),
        (
            {"reward": Field(next=True)},
            "next=True is only valid in extra, got it in reward; observations always have it",
        ),
        (
            {"action": {"a": Field(next=True)}},
            "next=True is only valid in extra, got it in action; observations always have it",
        ),
        ({"extra": {"reward": Field()}}, "extra must have names that are identifiers and not reserved, got 'reward'"),
        ({"extra": {"final_x": Field()}}, "extra must have names that are identifiers and not reserved, got 'final_x'"),
        ({"extra": {"a b": Field()}}, "extra must have names that are identifiers and not reserved, got 'a b'"),
    ],
)
def test_bad_replay_specs_are_refused(change, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        ReplaySpec(**{**ANY, **change})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0,),), "shape must be a tuple of ints >= 1, got (0,)"),
        (((), "complex64"), "dtype must be bool, an integer or a float of up to 64 bits, got 'complex64'"),
        (((), "U3"), "dtype must be bool, an integer or a float of up to 64 bits, got"),
        (((), "O"), "dtype must be bool, an integer or a float of up to 64 bits, got"),
        (((), "longdouble"), "dtype must be bool, an integer or a float of up to 64 bits, got"),
    ],
)
def test_bad_fields(arguments, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Field(*arguments)


def test_a_replay_that_no_machine_holds():
    with pytest.raises(MemoryShortError, match=r"TiB of memory needed, .* available: choose a smaller capacity"):
        make(10**13)


def test_a_replay_on_a_disk(tmp_path):
    replay = Replay(ReplaySpec(**ANY), directory=str(tmp_path))
    fill(replay, 5)
    assert replay.reader().sample(3).action.max() < 4 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_frames": 0}, "n_frames and n_step must be ints >= 1, got 0 and 1"),
        ({"n_step": 0}, "n_frames and n_step must be ints >= 1, got 1 and 0"),
        ({"n_step": 10}, "capacity must be at least n_frames + n_step = 11 rows per lane, got 10"),
        ({"gamma": 1.1}, "gamma must be a number from 0 to 1, got 1.1"),
        ({"gamma": float("nan")}, "gamma must be a number from 0 to 1, got nan"),
        ({"alpha": -1.0, "prioritised": True}, "alpha and epsilon must be finite numbers >= 0, got -1.0 and 1e-06"),
        ({"epsilon": float("nan")}, "alpha and epsilon must be finite numbers >= 0, got 0.6 and nan"),
        ({"shares": {"x": 1.0}}, "shares must be one share for each partition of [''], got ['x']"),
        ({"shares": {"": -1.0}}, "shares must be finite numbers >= 0, not all 0, got {'': -1.0}"),
        ({"shares": {"": 0.0}}, "not all 0"),
    ],
)
def test_bad_readers(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Replay(ReplaySpec(**ANY)).reader(**settings)


def test_a_once_reader_has_no_steps_and_no_priorities():
    replay = make(once=True)
    for settings in ({"n_step": 2}, {"prioritised": True}, {"length": 2}):
        with pytest.raises(
            SettingError, match="n_step must be 1, prioritised False and length 0 in a replay with once=True, got"
        ):
            replay.reader(**settings)


DICT = {"camera": Field((2, 2), "uint8"), "speed": Field()}
STEP = {"observation": {"camera": np.zeros((2, 2), np.uint8), "speed": 1.0}, "action": 1, "reward": 0.0, "mask": obs(0)}
LAST = {"final_observation": STEP["observation"], "final_mask": obs(0)}


def camera(array):
    return {"observation": {"camera": array, "speed": 1.0}}


BIG_ENDIAN = np.zeros((2, 2), ">f4")


@pytest.mark.parametrize("rows", [0, 1], ids=["at first", "behind a good row"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (camera(np.zeros((2, 3), np.uint8)), "observation/camera must be uint8 (2, 2), got uint8 (2, 3)"),
        (camera(np.zeros((2, 2))), "observation/camera must be uint8 (2, 2), got float64 (2, 2)"),
        (camera(np.zeros((2, 2, 1), np.uint8)), "must be uint8 (2, 2), got uint8 (2, 2, 1)"),
        (
            camera(np.zeros((2, 4), np.uint8)[:, ::2]),
            "observation/camera must be a contiguous array of uint8 (2, 2), got a strided ndarray",
        ),
        (camera(np.zeros((1, 2), np.uint8)), "must be uint8 (2, 2), got uint8 (1, 2)"),
        (camera([[0, 0], [0, 0]]), "observation/camera must be a contiguous array of uint8 (2, 2), got list"),
        (camera(None), "observation/camera must be a contiguous array of uint8 (2, 2), got NoneType"),
        ({"observation": {"speed": 1.0}}, "observation/camera is missing in the given dict"),
        (
            {"observation": {"kamera": STEP["observation"]["camera"], "speed": 1.0}},
            "observation/camera is missing in the given dict",
        ),
        ({"observation": obs(0)}, "observation/camera is missing in the given ndarray"),
        (
            {"observation": {"camera": STEP["observation"]["camera"], "speed": "fast"}},
            "observation/speed must be one float32, got 'fast' (str)",
        ),
        ({"action": 1.5}, "action must be one int64, got 1.5 (float)"),
        ({"action": 2**63}, "action must be one int64, got 9223372036854775808 (int)"),
        ({"action": obs(1)}, "action must be one int64, got array([1., 1.], dtype=float32) (ndarray of float32 (2,))"),
        ({"reward": float("nan")}, "reward must be finite numbers, got NaN or infinity"),
        ({"reward": float("inf")}, "reward must be finite numbers, got NaN or infinity"),
        ({"reward": 1e300}, "reward must be finite numbers, got NaN or infinity"),
        ({"reward": None}, "reward must be one float32, got None (NoneType)"),
        ({"mask": np.array([1, np.nan], np.float32)}, "mask must be finite numbers, got NaN or infinity"),
        ({"mask": np.array([1, -np.inf], np.float32)}, "mask must be finite numbers, got NaN or infinity"),
        ({"mask": BIG_ENDIAN[0]}, "mask must be float32 (2,), got a foreign dtype (2,)"),
        ({"colour": 3}, "colour is not a field of this replay"),
        ({"version": -1}, "version must be an integer >= 0 and less than 2**56, got -1"),
        ({"version": 2**56}, "version must be an integer >= 0 and less than 2**56, got 72057594037927936"),
        ({"version": 1.5}, "version must be an integer >= 0 and less than 2**56, got 1.5"),
        (
            {"terminated": True},
            "final_observation is missing: the last step of an episode needs the final values",
        ),
        ({"truncated": True, "final_observation": LAST["final_observation"]}, "final_mask is missing"),
        (LAST, "final_observation is only valid with terminated or truncated, for the last step of an episode"),
        ({**LAST, "terminated": True, "final_action": 1}, "final_action is not valid: this field has no next value"),
    ],
)
def test_bad_appends(change, message, rows):
    replay = make(observation=DICT, extra={"mask": Field((2,), next=True, finite=True)})
    writer = replay.writer()
    for _ in range(rows):
        writer.append(**STEP)
    with pytest.raises(SpecError, match=re.escape(message)):
        writer.append(**{**STEP, **change})
    assert writer.head == rows and replay.words(0).reserve == rows, "what is refused leaves no trace"
    writer.append(**STEP)


@pytest.mark.parametrize("name", ["observation", "action", "reward", "mask"])
def test_missing_fields(name):
    replay = make(observation=DICT, extra={"mask": Field((2,), next=True, finite=True)})
    step = {key: value for key, value in STEP.items() if key != name}
    with pytest.raises(SpecError, match=f"{name} is missing: every field needs a value"):
        replay.writer().append(**step)


MANY = {"observation": np.zeros((3, 2), np.float32), "action": np.arange(3), "reward": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.arange(2)}, "action must be int64 (rows,), got int64 (2,)"),
        ({"reward": np.zeros(3)}, "reward must be float32 (rows,), got float64 (3,)"),
        (
            {"observation": np.zeros((3, 3), np.float32)},
            "observation must be float32 (rows, 2), got float32 (3, 3)",
        ),
        ({"observation": 1.0}, "observation must be an array of float32 (rows, 2), got float"),
        ({"reward": np.array([0, np.nan, 0], np.float32)}, "reward must be finite numbers, got NaN"),
        ({"terminated": True}, "final_observation is missing"),
    ],
)
def test_bad_append_many(change, message):
    replay = make(8)
    writer = replay.writer()
    with pytest.raises(SpecError, match=re.escape(message)):
        writer.append_many(**{**MANY, **change})
    with pytest.raises(SpecError, match="observation is missing"):
        writer.append_many(action=MANY["action"], reward=MANY["reward"])
    assert replay.words(0).reserve == 0


@pytest.mark.parametrize("once", [False, True])
def test_more_rows_at_once_than_a_lane_has(once):
    replay = make(4, once=once)
    rows = {"observation": np.zeros((5, 2), np.float32), "action": np.arange(5), "reward": np.zeros(5, np.float32)}
    with pytest.raises(SpecError, match="rows must be at most the lane's capacity of 4, got 5 at once"):
        replay.writer().append_many(**rows)


def test_an_append_of_no_rows_is_no_row_and_no_end():
    writer = make().writer()
    none = {"observation": np.zeros((0, 2), np.float32), "action": np.arange(0), "reward": np.zeros(0, np.float32)}
    assert writer.append_many(**none) == 0
    with pytest.raises(SpecError, match="must have 1 or more rows with terminated or truncated, got 0"):
        writer.append_many(**none, terminated=True, final_observation=obs(1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_finite_is_checked_wherever_it_is_asked_for(dtype, bad):
    replay = make(observation=Field((37,), dtype, finite=True))
    writer = replay.writer()
    for place in (0, 8, 36):
        array = np.ones(37, dtype)
        writer.append(array, 0, 0.0)
        array[place] = bad
        with pytest.raises(SpecError, match="observation must be finite numbers, got NaN or infinity"):
            writer.append(array, 0, 0.0)


def test_too_few_rows_for_a_batch():
    replay = make()
    reader = replay.reader()
    with pytest.raises(NotReadyError, match="batch_size must be at most 0, the number of stored transitions, got 1"):
        reader.sample(1)
    fill(replay, 5)
    with pytest.raises(NotReadyError, match="batch_size must be at most 4, the number of stored transitions, got 5"):
        reader.sample(5)
    assert reader.sample(4).row.size == 4
    with pytest.raises(WaitTimeoutError, match=r"the reader waited 0.02 s for 5 rows, but only 4 are ready"):
        reader.wait(5, 0.02)
    assert reader.wait(4, 1.0) == 4


def test_nothing_but_broken_rows():
    replay = make()
    writer = replay.writer()
    for i in range(8):
        writer.append(obs(i), i, 0.0)
        writer.interrupt()
    with pytest.raises(NotReadyError, match="no transition starts at any stored row"):
        replay.reader().sample(2)


def test_wrong_uses_of_a_reader():
    replay, once = make(), make(once=True)
    fill(replay, 10)
    reader, other, of_once = replay.reader(), replay.reader(), once.reader()
    with pytest.raises(SettingError, match="sample is not valid in a replay with once=True; use take"):
        once.reader().sample(1)
    with pytest.raises(SettingError, match="sample is not valid in a replay with once=True; use take"):
        of_once.sample(1, into=of_once.batch(1))
    with pytest.raises(
        SettingError, match="take is not valid in a replay with once=False; use sample, or make it with once=True"
    ):
        reader.take(1, 1)
    with pytest.raises(SettingError, match="length must be an int from 1 to 14, got 0: a lane has 16 rows"):
        once.reader().take(1, 0)
    with pytest.raises(SettingError, match="batch_size must be an int >= 1, got 0"):
        reader.sample(0)
    with pytest.raises(SettingError, match=r"into must be a batch that this reader made by batch\(2\), got another"):
        reader.sample(2, into=other.batch(2))
    with pytest.raises(SettingError, match=r"into must be a batch that this reader made by batch\(2\), got another"):
        reader.sample(2, into=reader.batch(3))
    with pytest.raises(
        SettingError, match="update is not valid for a reader that samples uniformly; make it with prioritised=True"
    ):
        reader.update(reader.sample(2), np.ones(2, np.float32))
    with pytest.raises(SettingError, match="length must be 1 or more, got 0"):
        once.reader().fragments(0)
    for lane in (-1, 1):
        with pytest.raises(SettingError, match=f"lane must be an int from 0 to 0, got {lane}"):
            replay.writer(lane)


def test_wrong_priorities():
    _, reader = _prioritised()
    _, other = _prioritised()
    batch = reader.sample(3)
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(SpecError, match=r"priority\[1\] must be a finite number >= 0, got "):
            reader.update(batch, np.array([1, bad, 1], np.float32))
    with pytest.raises(SpecError, match="priority must be float32 with 6 items, got float64 with 24 bytes"):
        reader.update(batch, np.ones(3))
    with pytest.raises(SpecError, match="lane must be uint32 with 4 items, got uint32 with 12 bytes"):
        reader.update(batch, np.ones(4, np.float32))
    with pytest.raises(SpecError, match="priority must be a contiguous array of float32, got list"):
        reader.update(batch, [1.0, 2.0, 3.0])
    with pytest.raises(SettingError, match="batch must be a batch that this reader made, got another one"):
        reader.update(other.sample(3), np.ones(3, np.float32))
    for beta in (-0.1, 1.1, float("nan")):
        with pytest.raises(SettingError, match=r"beta must be a number from 0 to 1, got "):
            reader.sample(3, beta=beta)


def test_frame_stacks_begin_before_they_are_pushed():
    with pytest.raises(SettingError, match="n_frames must be an int >= 1, got 0"):
        FrameStack(0)
    with pytest.raises(NotReadyError, match="no episode has begun"):
        FrameStack(2).push(obs(1))


def test_ends_stay_in_their_process():
    replay = make()
    for thing in (replay, replay.writer(), replay.reader()):
        with pytest.raises((MotetError, TypeError), match="cannot"):
            pickle.dumps(thing)

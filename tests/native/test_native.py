"""The native core by itself: bell, sum tree, and what happens at its boundary when the arguments are wrong."""

import gc
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet import _native
from motet.arrays import ArraySpec
from motet.errors import CorruptionError, MemoryShortError, MotetError, NotReadyError, SettingError, SpecError
from motet.publication import Publication
from motet.replay import Field, Replay, ReplaySpec, Writer
from motet.system.memory import Segment

SEED = np.arange(1, 5, dtype=np.uint64)


def line(n: int = 1) -> np.ndarray:
    """Shared memory of n cache lines."""
    return Segment({"a": ArraySpec((64 * n,), "uint8")})["a"]


# ---- Bell


def _bells() -> tuple[_native.Bell, _native.Bell]:
    memory = line()
    return _native.Bell(memory, fresh=True), _native.Bell(memory)


def test_a_bell_counts_and_every_handle_sees_it():
    one, other = _bells()
    assert (one.count, other.count) == (0, 0)
    one.ring()
    assert (one.count, other.count) == (1, 1)
    assert other.wait(0, 0.0) == 1, "a ring that was missed is not waited for"


def test_a_wait_ends_at_its_deadline():
    bell, _ = _bells()
    before = time.monotonic()
    assert bell.wait(0, 0.15) == 0
    assert time.monotonic() - before >= 0.15


def test_a_ring_wakes_every_waiter():
    bell, _ = _bells()
    got: list[int] = []
    waiters = [threading.Thread(target=lambda: got.append(bell.wait(0, 60.0))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    bell.ring()
    for waiter in waiters:
        waiter.join()
    assert got == [1] * 4


def test_ping_pong_loses_no_ring():
    ping, pong = _bells()[0], _bells()[0]
    rounds = 2000

    def answer() -> None:
        for i in range(rounds):
            while ping.wait(i, 60.0) == i:
                pass
            pong.ring()

    thread = threading.Thread(target=answer)
    thread.start()
    for i in range(rounds):
        ping.ring()
        assert pong.wait(i, 60.0) == i + 1
    thread.join()


def test_a_dead_waiter_does_not_affect_others():
    memory = line()
    bell = _native.Bell(memory, fresh=True)
    memory.view(np.uint32)[1] = 7  # seven waiters that will never come back
    bell.ring()
    assert bell.wait(0, 1.0) == 1


def test_the_count_wraps():
    memory = line()
    bell = _native.Bell(memory, fresh=True)
    memory.view(np.uint32)[0] = 2**32 - 1
    bell.ring()
    assert bell.count == 0 and bell.wait(2**32 - 1, 1.0) == 0


@pytest.mark.parametrize("timeout_s", [-1.0, float("nan"), float("inf")])
def test_no_wait_without_a_deadline(timeout_s):
    bell, _ = _bells()
    publication = Publication(1)
    replay = Replay(ReplaySpec(Field(), Field(), capacity=4))
    for wait in (
        lambda: bell.wait(0, timeout_s),
        lambda: publication.subscriber().wait(timeout_s),
        lambda: replay.writer(timeout_s=timeout_s),
        lambda: replay.reader().wait(1, timeout_s),
    ):
        with pytest.raises(SettingError, match=r"timeout_s must be a finite number of seconds >= 0, got "):
            wait()


def test_bad_bells():
    bell, _ = _bells()
    with pytest.raises(SettingError, match=r"seen must be a count below 2\*\*32, got 4294967296"):
        bell.wait(2**32, 0.0)
    with pytest.raises(TypeError):
        bell.wait(0)
    with pytest.raises(TypeError):
        bell.wait("0", 1.0)
    with pytest.raises(SpecError, match="memory of a bell must have at least 64 bytes, aligned to 64, got 32 bytes"):
        _native.Bell(line()[:32])
    with pytest.raises(SpecError, match="8 modulo 64"):
        _native.Bell(line(2)[8:72])
    with pytest.raises((BufferError, ValueError)):
        _native.Bell(bytes(64))


# ---- SumTree


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 300),
    st.lists(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0, 1000, width=32)), max_size=40), max_size=5),
)
def test_the_tree_is_a_list_with_a_sum(capacity, batches):
    tree, naive = _native.SumTree(capacity, SEED), np.zeros(capacity, np.float32)
    for batch in batches:
        index = np.array([i % capacity for i, _ in batch], np.uint64)
        value = np.array([v for _, v in batch], np.float32)
        tree.set(index, value)
        for i, v in zip(index, value, strict=True):
            naive[int(i)] = v  # the last of equal ones wins
    assert [tree.get(i) for i in range(capacity)] == naive.tolist()
    assert tree.positive == (naive > 0).sum()
    assert tree.total == pytest.approx(naive.sum(dtype=np.float64), rel=1e-12)
    if tree.total > 0:
        out = np.zeros(50, np.uint64)
        tree.sample(out)
        assert (naive[out.astype(int)] > 0).all(), "nothing of priority zero is ever drawn"


@pytest.mark.parametrize("capacity", [5, 16, 17, 255, 4097])
def test_the_tree_draws_in_proportion(capacity):
    random = np.random.default_rng(7)
    tree, priority = _native.SumTree(capacity, SEED), random.exponential(1, capacity).astype(np.float32)
    priority[::3] = 0
    tree.set(np.arange(capacity, dtype=np.uint64), priority)
    counts, out = np.zeros(capacity), np.zeros(13, np.uint64)
    draws = 200 * capacity
    for _ in range(draws // 13):
        tree.sample(out)
        np.add.at(counts, out.astype(int), 1)
    some = priority > 0
    expected = (draws // 13 * 13) * priority[some] / priority.sum(dtype=np.float64)
    chi_square, freedom = ((counts[some] - expected) ** 2 / expected).sum(), some.sum() - 1
    assert counts[~some].sum() == 0
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 10


def test_one_draw_from_each_slice():
    tree = _native.SumTree(64, SEED)
    tree.set(np.arange(64, dtype=np.uint64), np.ones(64, np.float32))
    out = np.zeros(64, np.uint64)
    tree.sample(out)
    assert out.tolist() == list(range(64))


def test_rounding_never_leads_to_an_empty_leaf():
    tree = _native.SumTree(1000, SEED)
    index = np.arange(1000, dtype=np.uint64)
    value = np.zeros(1000, np.float32)
    value[[3, 500, 998]] = [1e-30, 1e30, 1e-30]
    tree.set(index, value)
    out = np.zeros(1000, np.uint64)
    for _ in range(100):
        tree.sample(out)
        assert set(out.tolist()) <= {3, 500, 998}


def test_bad_trees():
    tree = _native.SumTree(8, SEED)
    index, value = np.zeros(2, np.uint64), np.ones(2, np.float32)
    with pytest.raises(SettingError, match=r"capacity must be from 1 to 2\*\*40, got 0"):
        _native.SumTree(0, SEED)
    with pytest.raises(SpecError, match="seed must be uint64 with 4 items, got uint64 with 24 bytes"):
        _native.SumTree(8, SEED[:3].copy())
    with pytest.raises(NotReadyError, match="all priorities are 0"):
        tree.sample(index)
    with pytest.raises(SpecError, match=r"index\[0\] must be less than the capacity 8, got 8"):
        tree.set(index + np.uint64(8), value)
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(SpecError, match=r"priority\[0\] must be a finite number >= 0"):
            tree.set(index, np.full(2, bad, np.float32))
    with pytest.raises(SpecError, match="priority must be float32 with 2 items, got float64 with 16 bytes"):
        tree.set(index, value.astype(np.float64))
    with pytest.raises(SpecError, match=r"index must be .*, got int64"):
        tree.set(index.astype(np.int64), value)
    with pytest.raises(SpecError, match="got 9"):
        tree.get(9)
    assert tree.total == 0, "what is refused leaves no trace"


# ---- the boundary


def test_sizes_that_wrap_around_are_refused():
    # 2**62 rows of 32 bytes are 2**67 bytes, which is 0 in 64 bits: every later check would pass.
    for capacity in (2**62, 2**63, 2**64 - 1, 2**64, 10**30):
        with pytest.raises(MemoryShortError, match="more than any machine can hold"):
            _native.lane_bytes(capacity, 32)
        with pytest.raises(MemoryShortError):
            Replay(ReplaySpec(Field((2,)), Field(), capacity=capacity))
        with pytest.raises(MemoryShortError):
            Publication(capacity)


def test_fresh_or_foreign_memory_is_refused():
    memory = line(100)
    with pytest.raises(CorruptionError, match="memory must hold a lane"):
        _native.lane_words(memory)
    with pytest.raises(CorruptionError, match="memory must hold a publication"):
        _native.SlotWriter(memory, 1, 64, 4)
    leaves = [("x", 0, (), "f", 4, (), 8, False, False, False)]
    with pytest.raises(CorruptionError, match="memory must hold a lane of this spec"):
        _native.LaneWriter(memory, leaves, ["x"], 16, 1, 1.0)
    _native.lane_format(memory, 4, 16, 1, False, False)
    with pytest.raises(CorruptionError, match="memory must hold a lane of this spec"):
        _native.LaneWriter(memory, leaves, ["x"], 16, 2, 1.0)


def test_a_lane_larger_than_its_memory_is_refused():
    memory = line(100)
    _native.lane_format(memory, 4, 16, 1, False, False)
    memory.view(np.uint64)[1] = 10**6  # its capacity: damaged
    leaves = [("x", 0, (), "f", 4, (), 8, False, False, False)]
    with pytest.raises(CorruptionError, match="memory must hold a lane of this spec"):
        _native.LaneWriter(memory, leaves, ["x"], 16, 1, 1.0)


@pytest.mark.parametrize(
    ("leaves", "roots", "error"),
    [
        ([], ["x"], "fields must be .* arrays per row, got 0"),
        ([("x", 0, (), "f", 4, (), 8, False, False, False)], ["x"] * 1000, "in 1000 arguments"),
        ([("x", 3, (), "f", 4, (), 8, False, False, False)], ["x"], "no argument number 3"),
        ([("x", 0, (), "f", 4, (), 0, False, False, False)], ["x"], "must fit into a row"),
        (
            [("x", 0, (), "f", 4, (4,), 8, False, False, False)],
            ["x"],
            "must fit into a row of 16 bytes after its meta word, got 16 bytes at offset 8",
        ),
        ([("x", 0, (), "f", 4, (), 2**63, False, False, False)], ["x"], "must fit into a row"),
    ],
)
def test_leaves_that_do_not_fit_are_refused(leaves, roots, error):
    memory = line(100)
    _native.lane_format(memory, 4, 16, 1, False, False)
    with pytest.raises(MotetError, match=error):
        _native.LaneWriter(memory, leaves, roots, 16, 1, 1.0)


@pytest.mark.parametrize("arguments", [(0, 16), (4, 7), (4, 12), (2**62, 32)])
def test_lanes_that_cannot_be_made(arguments):
    with pytest.raises(SettingError, match="capacity must be 1 or more, and row size"):
        _native.lane_format(line(100), *arguments, 1, False, False)
    with pytest.raises(SpecError, match="must have at least"):
        _native.lane_format(line(2), 4, 16, 1, False, False)


def test_one_object_takes_one_thread_at_a_time():
    replay = Replay(ReplaySpec(Field(), Field(), capacity=4, once=True))
    writer = replay.writer(timeout_s=60)
    for _ in range(4):
        writer.append(0.0, 0.0, 0.0)
    thread = threading.Thread(target=lambda: writer.append(0.0, 0.0, 0.0))
    thread.start()
    while not writer.waits:
        time.sleep(0.001)
    with pytest.raises(RuntimeError, match="another thread is writing to this lane"):
        writer.append(0.0, 0.0, 0.0)
    with pytest.raises(RuntimeError, match="another thread"):
        writer.interrupt()
    reader = replay.reader()
    assert reader.take(1, 2) is not None
    reader.release()
    thread.join()
    assert writer.head == 5


def test_many_threads_on_one_reader_are_refused_or_served_never_mixed():
    replay = Replay(ReplaySpec(Field((4000,)), Field(), capacity=300))
    writer, row = replay.writer(), np.zeros(4000, np.float32)
    for i in range(200):
        row[:] = i
        writer.append(row, float(i), 0.0)
    reader, refused, errors = replay.reader(), [], []

    def draw() -> None:
        for _ in range(50):
            try:
                reader.sample(64)
            except RuntimeError as error:
                (refused if "another thread" in str(error) else errors).append(error)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    batch = reader.sample(64)
    assert (batch.observation == batch.action[:, None]).all()
    assert reader.counters().sampled == 64 * (4 * 50 - len(refused) + 1)


def test_handles_free_what_they_hold():
    replay = Replay(ReplaySpec({"a": Field((3,))}, Field(), capacity=8))
    publication = Publication(3)

    def use() -> None:
        writer = replay.writer()
        for _ in range(4):
            writer.append({"a": np.zeros(3, np.float32)}, 0.0, 0.0)
        replay.reader(prioritised=True).sample(2)
        publication.publisher().publish(np.zeros(3, np.float32))
        publication.subscriber().refresh()
        with pytest.raises(SpecError):
            writer.append({"b": 1}, 0.0, 0.0)

    use()
    gc.collect()
    memory = replay._segment["replay/lane0"]
    before = sys.getrefcount(memory), sys.getrefcount(Writer), len(gc.get_objects())
    for _ in range(50):
        use()
    gc.collect()
    after = sys.getrefcount(memory), sys.getrefcount(Writer), len(gc.get_objects())
    assert after[:2] == before[:2] and after[2] < before[2] + 40

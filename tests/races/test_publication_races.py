"""Publisher and subscribers in different processes, at full speed, stopped and killed at any moment."""

from __future__ import annotations

import random
import time

import pytest
from support import race_roles as roles
from support.race_roles import Board


def _race(context, slots, floats, versions, seconds_of_pauses, stop="reader"):
    shared, write, read = roles.publication(floats, slots), Board(), Board()
    writer = roles.start(context, roles.write_versions, write, shared, 0)
    reader = roles.start(context, roles.read_versions, read, shared)
    roles.until(lambda: read.words[3] > 0, reader, read)
    roles.pause_at_random(reader if stop == "reader" else writer, seconds_of_pauses, seed=slots)
    roles.until(lambda: write.words[2] >= versions, writer, write, 600)
    roles.until(lambda: read.words[3] > 20, reader, read)
    write.words[0] = 1
    roles.end(writer, write)
    # Whoever reads on comes to the last version, whatever it met on the way.
    last = shared.subscriber()
    assert last.refresh()
    assert last.version == last.newest >= versions
    roles.check_version(last, floats)
    read.words[0] = 1
    roles.end(reader, read)
    assert write.words[1] != read.words[1]


@pytest.mark.parametrize("stop", ["reader", "writer"])
@pytest.mark.parametrize(("floats", "versions"), [(16, 80_000), (4000, 30_000), (60_000, 5_000)])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_version_is_ever_a_mix(context, slots, floats, versions, stop):
    _race(context, slots, floats, versions, 0.3, stop)


@pytest.mark.slow
@pytest.mark.parametrize("stop", ["reader", "writer"])
@pytest.mark.parametrize(("floats", "versions"), [(16, 2_000_000), (4000, 600_000), (60_000, 60_000)])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_no_version_is_ever_a_mix_for_long(context, slots, floats, versions, stop):
    _race(context, slots, floats, versions, 10, stop)


def test_writes_are_met_and_noticed(context):
    """With one slot, a subscriber meets writes all the time; the test goes on until it has."""
    shared, write, read = roles.publication(60_000, 1), Board(), Board()
    writer = roles.start(context, roles.write_versions, write, shared, 0)
    reader = roles.start(context, roles.read_versions, read, shared)
    roles.until(lambda: read.words[4] >= 100, reader, read)
    for process, board in ((reader, read), (writer, write)):
        board.words[0] = 1
        roles.end(process, board)


# ---- kill -9


def _storm(context, slots, least, most, checked=False):
    """Kill publisher after publisher while this process reads; go on until enough kills landed inside publish."""
    floats = 40_000
    shared = roles.publication(floats, slots, checked)
    subscriber, chance, inside, pids, seen = shared.subscriber(), random.Random(slots), 0, set(), set()
    for round_ in range(most):
        board = Board()
        writer = roles.start(context, roles.write_versions, board, shared, 0)
        roles.until(lambda b=board: b.words[2] > 0, writer, board)
        deadline = time.monotonic() + chance.random() * 0.01
        while time.monotonic() < deadline:
            _read(subscriber, floats, seen)
        pids.add(int(board.words[1]))
        roles.kill(writer)
        odd = roles.odd_slots(shared)
        assert odd <= 1
        inside += odd
        held = subscriber.version
        for _ in range(3):
            _read(subscriber, floats, seen)
        assert subscriber.version >= held
        late = shared.subscriber()
        if late.refresh():
            roles.check_version(late, floats)
        else:
            assert slots == 1 and odd, "only the slot that was being written is lost"
        # The successor publishes one version, and everybody gets it.
        single = Board()
        roles.end(roles.start(context, roles.write_versions, single, shared, 1), single)
        pids.add(int(single.words[1]))
        assert roles.odd_slots(shared) == 0, "a successor writes the very slot that its predecessor left unfinished"
        assert late.refresh()
        assert late.version > held
        roles.check_version(late, floats)
        _read(subscriber, floats, seen)
        assert subscriber.version == late.version
        if inside >= least and round_ >= least:
            break
    assert inside >= least, f"only {inside} of {most} kills landed inside publish"
    assert len(pids) == 2 * (round_ + 1)
    assert len(seen & pids) > least // 2, "not by distinct processes"


def _read(subscriber, floats, seen):
    if subscriber.refresh():
        roles.check_version(subscriber, floats)
        seen.add(subscriber["pid"])


@pytest.mark.parametrize("slots", [1, 2])
def test_publishers_killed_inside_publish(context, slots):
    _storm(context, slots, least=12, most=400)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_publishers_killed_inside_publish_250_times(context, slots):
    _storm(context, slots, least=250, most=5000)


@pytest.mark.slow
def test_publishers_killed_with_checksums(context):
    _storm(context, 2, least=50, most=2000, checked=True)


def test_killed_subscribers_block_no_other_process(context):
    shared, write = roles.publication(4000, 2), Board()
    writer = roles.start(context, roles.write_versions, write, shared, 0)
    for _ in range(15):
        board = Board()
        reader = roles.start(context, roles.read_versions, board, shared)
        roles.until(lambda b=board: b.words[2] > 0, reader, board)
        roles.kill(reader)
        before = int(write.words[2])
        roles.until(lambda: write.words[2] > before, writer, write)  # noqa: B023
    write.words[0] = 1
    roles.end(writer, write)

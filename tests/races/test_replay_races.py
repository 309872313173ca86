"""Writers and readers of a replay in different processes, at full speed, stopped and killed at any moment."""

from __future__ import annotations

import random
import time

import pytest
from support import race_roles as roles
from support.race_roles import Board

from motet.errors import NotReadyError
from motet.replay import Replay

LOADS = {  # floats, capacity, batch size, rows at once, rows in all
    "small rows one by one": (4, 64, 16, 1, 200_000),
    "small rows in packs": (4, 300, 32, 64, 2_000_000),
    "large rows, tiny lane": (20_000, 9, 2, 1, 15_000),
}
READERS = {
    "uniform": {},
    "frames and steps": {"n_frames": 3, "n_step": 2},
    "prioritised": {"prioritised": True},
    "sequences": {"length": 4, "burn_in": 1, "n_step": 2},
    "prioritised sequences": {"length": 3, "burn_in": 1, "prioritised": True},
}


def _race(context, load, settings, seconds_of_pauses, times=1):
    """One writer, one reader which is stopped at random: every row it sees must be whole."""
    floats, capacity, batch, many, rows = load
    replay, write, read = Replay(roles.row_spec(floats, capacity)), Board(), Board()
    writer = roles.start(context, roles.write_rows, write, replay, rows * times, many, 37)
    reader = roles.start(context, roles.read_rows, read, replay, batch, settings, capacity < 16)
    roles.until(lambda: read.words[2] > 0, reader, read)
    assert roles.pause_at_random(reader, seconds_of_pauses, seed=1) > 10
    roles.end(writer, write, 600)
    done = int(read.words[2])
    roles.until(lambda: read.words[2] > done + 10, reader, read)
    read.words[0] = 1
    roles.end(reader, read)
    assert replay.words(0).head >= rows
    return read


@pytest.mark.parametrize("settings", READERS.values(), ids=READERS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_no_row_is_ever_a_mix(context, load, settings):
    read = _race(context, load, settings, 0.7)
    assert read.words[3] > 100


@pytest.mark.slow
@pytest.mark.parametrize("settings", READERS.values(), ids=READERS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_no_row_is_ever_a_mix_for_long(context, load, settings):
    read = _race(context, load, settings, 10, times=20)
    assert read.words[4] > 0, "no gather was ever overtaken: this run showed nothing"


@pytest.mark.parametrize(
    "settings",
    [{"n_frames": 3}, {"prioritised": True}, READERS["sequences"]],
    ids=["frames", "prioritised", "sequences"],
)
def test_gathers_are_overtaken_and_notice_it(context, settings):
    """Rows as large as this are overwritten while they are copied; the test goes on until that has happened."""
    replay, write, read = Replay(roles.row_spec(20_000, 9)), Board(), Board()
    writer = roles.start(context, roles.write_rows, write, replay, 0, 1, 37)
    reader = roles.start(context, roles.read_rows, read, replay, 4, settings, True)
    roles.until(lambda: read.words[4] >= 1000 and read.words[2] >= 500, reader, read)
    for process, board in ((reader, read), (writer, write)):
        board.words[0] = 1
        roles.end(process, board)


@pytest.mark.parametrize("slow_s", [0.0, 0.003])
@pytest.mark.parametrize("floats", [4, 5000])
def test_consume_once_loses_repeats_and_mixes_nothing(context, floats, slow_s):
    """The lane is tiny: the writer waits for the reader, and the reader is right behind the writer's head."""
    rows = 3_000 if slow_s else 40_000
    replay, write, take = Replay(roles.row_spec(floats, 16, once=True)), Board(), Board()
    writer = roles.start(context, roles.write_rows, write, replay, rows, 1, 0)
    reader = roles.start(context, roles.take_rows, take, replay, 3, slow_s)
    roles.end(writer, write, 300)
    take.words[0] = 1
    roles.end(reader, take)
    assert take.words[3] == (rows - 1) // 3 * 3
    assert replay.words(0).waits > 0


# ---- kill -9


def _storm(context, many, episode, least, most, capacity=29, **spec):
    """Kill writer after writer while this process reads; go on until enough kills landed inside an append."""
    floats = 16_000
    replay = Replay(roles.row_spec(floats, capacity, **spec))
    reader = replay.reader()
    chance, inside, pids, seen = random.Random(many), 0, set(), set()
    for round_ in range(most):
        board, before = Board(), replay.words(0)
        writer = roles.start(context, roles.write_rows, board, replay, 0, many, episode)
        roles.until(lambda b=board: b.words[2] > 0, writer, board)
        deadline = time.monotonic() + chance.random() * 0.01
        while time.monotonic() < deadline:
            _read(reader, floats, seen)
        pids.add(int(board.words[1]))
        roles.kill(writer)
        words = replay.words(0)
        inside += words.reserve > words.head
        assert words.head > before.head and words.reserve >= words.head
        for _ in range(3):
            _read(reader, floats, seen)
        # A successor that appends a single row: what its predecessor had begun to overwrite stays gone.
        single = Board()
        roles.end(roles.start(context, roles.write_rows, single, replay, 1, 1, 0), single)
        pids.add(int(single.words[1]))
        after = replay.words(0)
        assert (after.head, after.incarnation) == (words.head + 1, 2 * round_ + 2)
        assert after.reserve == max(words.reserve, words.head + 1), "a reservation never decreases"
        for _ in range(20):
            _read(reader, floats, seen)
        if inside >= least and round_ >= least:
            break
    assert inside >= least, f"only {inside} of {most} kills landed inside an append"
    assert len(pids) == 2 * (round_ + 1) and len(seen & pids) > least // 2, "not by distinct processes"
    assert reader.counters().broken > 0


def _read(reader, floats, seen):
    try:
        batch = reader.sample(2)
    except NotReadyError:  # right after a death in a long append there may be too few whole rows
        return
    roles.check_rows(batch, floats)
    seen |= set(batch.extra["pid"].tolist())


@pytest.mark.parametrize("many", [1, 8])
def test_writers_killed_inside_append(context, many):
    _storm(context, many, episode=11, least=12, most=400)


def test_writers_killed_inside_append_with_checksums(context):
    _storm(context, 8, episode=11, least=8, most=400, checked=True)


@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 8])
def test_writers_killed_inside_append_250_times(context, many):
    _storm(context, many, episode=11, least=250, most=5000)


def test_a_once_reader_survives_its_writers(context):
    """Every row that became visible is taken once, whichever writer wrote it; none is a mix."""
    replay, take = Replay(roles.row_spec(4000, 20, once=True)), Board()
    reader = roles.start(context, roles.take_rows, take, replay, 2, 0.0)
    chance = random.Random(3)
    for _ in range(25):
        board = Board()
        writer = roles.start(context, roles.write_rows, board, replay, 0, 1, 0)
        roles.until(lambda b=board: b.words[2] > 0, writer, board)
        time.sleep(chance.random() * 0.005)
        roles.kill(writer)
        assert reader.is_alive(), take.failure
    take.words[0] = 1
    roles.end(reader, take)
    assert take.words[3] == (replay.words(0).head - 1) // 2 * 2


def test_a_killed_reader_blocks_no_other_process(context):
    """Readers of a sampled replay die in the middle of a gather; the writer does not even notice."""
    replay, write = Replay(roles.row_spec(4000, 50)), Board()
    writer = roles.start(context, roles.write_rows, write, replay, 0, 1, 11)
    chance = random.Random(5)
    for _ in range(15):
        board = Board()
        reader = roles.start(context, roles.read_rows, board, replay, 8, {})
        roles.until(lambda b=board: b.words[2] > 0, reader, board)
        time.sleep(chance.random() * 0.003)
        roles.kill(reader)
        before = int(write.words[2])
        roles.until(lambda: write.words[2] > before, writer, write)  # noqa: B023
    write.words[0] = 1
    roles.end(writer, write)


def test_memory_comes_back_when_everybody_is_killed(context):
    replay = Replay(roles.row_spec(1000, 1000))
    boards = [Board(), Board()]
    writer = roles.start(context, roles.write_rows, boards[0], replay, 0, 1, 11)
    reader = roles.start(context, roles.read_rows, boards[1], replay, 8, {})
    roles.until(lambda: boards[1].words[2] > 0, reader, boards[1])
    roles.kill(reader)
    roles.kill(writer)
    # The rest is the fixture's: no process, no descriptor, no name.

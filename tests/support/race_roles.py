"""The roles of the processes in the race tests. Rows and versions have patterns by which a mix of two is recognised."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from motet.arrays import ArraySpec
from motet.errors import NotReadyError
from motet.publication import Publication, Subscriber
from motet.replay import Batch, Field, Replay, ReplaySpec
from motet.system.memory import Segment

crew: list[BaseProcess] = []  # everybody who was started; whoever is left after a test is killed


def period(floats: int) -> int:
    """How many patterns there are; prime, so that rows which follow each other in one place never look alike."""
    return 1009 if floats < 100 else 13  # large ones take time to make, for each process anew


class Board:
    """A few words that the processes of one test share: who is there, how far they are, what went wrong."""

    def __init__(self) -> None:
        self._segment = Segment({"words": ArraySpec((8,), "int64"), "text": ArraySpec((4096,), "uint8")})
        self._segment["words"][:] = 0
        self._segment["text"][:] = 0

    @property
    def words(self) -> Any:
        """0: stop, 1: pid, 2: rounds done, 3: rows checked, 4: redrawn or met writes."""
        return self._segment["words"]

    def fail(self, text: str) -> None:
        data = text.encode()[-4095:]
        self._segment["text"][: len(data)] = np.frombuffer(data, np.uint8)

    @property
    def failure(self) -> str:
        return bytes(self._segment["text"]).rstrip(b"\0").decode()


def _run(role: Callable[..., None], board: Board, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    board.words[1] = os.getpid()
    try:
        role(board, *arguments)
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
        board.fail(traceback.format_exc())
        sys.exit(1)


def start(context: Any, role: Callable[..., None], board: Board, *arguments: Any) -> BaseProcess:
    process = context.Process(target=_run, args=(role, board, arguments), daemon=True)
    process.start()
    crew.append(process)
    return process


def end(process: BaseProcess, board: Board, timeout_s: float = 60.0) -> None:
    """Wait until it has ended well."""
    process.join(timeout_s)
    assert process.exitcode is not None, "it is wedged"
    assert process.exitcode == 0, board.failure or f"exit code {process.exitcode}"
    _dismiss(process)


def kill(process: BaseProcess) -> None:
    process.kill()
    process.join(60.0)
    assert process.exitcode == -signal.SIGKILL
    _dismiss(process)


def _dismiss(process: BaseProcess) -> None:
    crew.remove(process)
    process.close()


def dismiss_all() -> None:
    """After a failure: nobody stays."""
    for process in list(crew):
        process.kill()
        process.join()
        _dismiss(process)


def until(condition: Callable[[], Any], process: BaseProcess, board: Board, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.is_alive(), board.failure or f"exit code {process.exitcode}"
        assert time.monotonic() < deadline, "nothing happens"


# ---- rows


def row_spec(floats: int, capacity: int, **spec: Any) -> ReplaySpec:
    """A row says which one it is and who wrote it; its observation is a pattern that follows from the number."""
    number, pid = Field((), "int64", next=True), Field((), "int64", next=True)
    return ReplaySpec(
        Field((floats,), "float32"), Field((), "int64"), capacity, extra={"number": number, "pid": pid}, **spec
    )


def patterns(floats: int) -> Any:
    """What belongs to each number, and some more so that a pack is one slice: no two agree in any float."""
    numbers = np.arange(period(floats) + (64 if floats < 100 else 8), dtype=np.float32) % period(floats)
    return np.ascontiguousarray(numbers[:, None] + np.linspace(0, 0.5, floats, dtype=np.float32))


def write_rows(board: Board, replay: Replay, rows: int, many: int, episode: int, lane: int = 0) -> None:
    """Append `rows` rows (0: until told to stop), `many` at once; an episode ends now and then."""
    floats = replay.spec.observation.shape[0]
    table, writer, pid = patterns(floats), replay.writer(lane, timeout_s=60), os.getpid()
    cycle = period(floats)
    number = head = writer.head
    numbers, pids = np.zeros(many, np.int64), np.full(many, pid, np.int64)
    rewards = np.zeros(many, np.float32)
    last = head + rows if rows else sys.maxsize
    while head < last and not board.words[0]:
        ending: dict[str, Any] = {}
        if episode and (number // many) % episode == episode - 1:
            final = number + many
            ending = {"truncated": True, "final_number": final, "final_pid": pid}
            ending["final_observation"] = table[final % cycle]
        if many == 1:
            head = writer.append(table[number % cycle], number, 0.0, number=number, pid=pid, **ending)
        else:
            numbers[:] = range(number, number + many)
            observations = table[number % cycle :][:many]
            head = writer.append_many(observations, numbers, rewards, number=numbers, pid=pids, **ending)
        number = head
        board.words[2] += 1


def check_rows(batch: Batch, floats: int, n_frames: int = 1, n_step: int = 1) -> None:
    """Zero mixes: row, number, pattern, frames, next row and writer belong together."""
    rows = batch.row.astype(np.int64)
    number, after = batch.extra["number"], batch.next_extra["number"]
    assert (number == rows).all(), f"rows {rows} hold numbers {number}"
    assert (batch.action == rows).all()
    steps = after - rows
    assert ((steps >= 1) & (steps <= n_step)).all(), f"rows {rows} lead to {after}"
    assert (batch.extra["pid"] == batch.next_extra["pid"]).all(), "a transition from one writer to another"
    shape, cycle = (len(rows), n_frames, floats), period(floats)
    for observation, newest in ((batch.observation, rows), (batch.next_observation, after)):
        frames = observation.reshape(shape)
        first = frames[:, :, 0].astype(np.int64)
        back = (newest[:, None] % cycle - first) % cycle
        # Frames are consecutive and end with the newest; at an episode's beginning its first one is repeated.
        assert (back[:, -1] == 0).all() and (back < n_frames).all()
        gaps = back[:, :-1] - back[:, 1:]
        assert ((gaps == 1) | (gaps == 0)).all()
        assert (frames == frames[:, :, :1] + np.linspace(0, 0.5, floats, dtype=np.float32)).all(), "half of another row"


def check_sequences(batch: Batch, floats: int, n_step: int) -> None:
    """Zero mixes: the rows of a sequence follow each other, and each transition ends in the episode of its writer."""
    first, ahead, valid = batch.row.astype(np.int64)[:, None], batch.ahead, batch.valid
    assert ahead is not None and valid is not None
    rows = first + np.arange(ahead.shape[1] + n_step)
    assert (batch.extra["number"] == rows).all(), f"rows {rows} hold numbers {batch.extra['number']}"
    ramp = np.linspace(0, 0.5, floats, dtype=np.float32)
    wanted = (rows % period(floats)).astype(np.float32)[..., None] + ramp
    assert (batch.observation == wanted).all(), "half of another row"
    assert (valid == (ahead > 0)).all() and (ahead <= n_step).all() and valid.any(1).all()
    ends = np.arange(ahead.shape[1]) + ahead
    pids = batch.extra["pid"]
    there = np.take_along_axis(pids, ends, 1)
    assert (pids[:, : ahead.shape[1]] == there)[valid].all(), "a transition from one writer to another"


def read_rows(board: Board, replay: Replay, batch_size: int, reader: dict[str, Any], tiny: bool = False) -> None:
    """Sample and check until told to stop. In a tiny lane a reader may be told that it is too slow; it tries again."""
    end_ = replay.reader(**reader)
    floats = replay.spec.observation.shape[0]
    n_frames, n_step, length = reader.get("n_frames", 1), reader.get("n_step", 1), reader.get("length", 0)
    end_.wait(batch_size, 60.0)
    while not board.words[0]:
        try:
            batch = end_.sample(batch_size)
        except NotReadyError:
            if not tiny:
                raise
            continue
        if length:
            check_sequences(batch, floats, n_step)
        else:
            check_rows(batch, floats, n_frames, n_step)
        if batch.weight is not None:
            assert np.isfinite(batch.weight).all() and (batch.weight > 0).all() and batch.weight.max() == 1
            end_.update(batch, np.abs(batch.observation.reshape(batch_size, -1)[:, 0]))
        board.words[2] += 1
        board.words[3] += batch_size
        board.words[4] = end_.counters().redrawn


def take_rows(board: Board, replay: Replay, length: int, slow_s: float) -> None:
    """Take every row once until told to stop, and then the rest; each must be the one that follows."""
    reader, expected = replay.reader(), 0
    floats = replay.spec.observation.shape[0]
    ramp = np.linspace(0, 0.5, floats, dtype=np.float32)
    while True:
        stop = board.words[0]
        batch = reader.take(1, length)
        if batch is None:
            if stop:
                break
            time.sleep(0)
            continue
        rows = np.arange(expected, expected + length + 1)
        assert (batch.extra["number"][0] == rows).all(), f"expected {rows}, taken {batch.extra['number'][0]}"
        assert (batch.observation[0] == (rows % period(floats)).astype(np.float32)[:, None] + ramp).all(), (
            "half of another row"
        )
        if slow_s and random.random() < 0.1:
            time.sleep(slow_s)
        expected += length
        reader.release()
        board.words[3] = expected


def pause_at_random(process: BaseProcess, seconds: float, seed: int) -> int:
    """Stop a process again and again, wherever it is, for as long as others need to overtake it."""
    chance, deadline, pauses = random.Random(seed), time.monotonic() + seconds, 0
    assert process.pid is not None
    try:
        descriptor = os.pidfd_open(process.pid)  # a number might come to mean somebody else
    except ProcessLookupError:
        return 0
    try:
        while time.monotonic() < deadline:
            time.sleep(chance.random() * 0.002)
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            time.sleep(chance.random() * 0.002)
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)
            pauses += 1
    except ProcessLookupError:  # it came to its end
        pass
    finally:
        os.close(descriptor)
    return pauses


# ---- publications


def publication(floats: int, slots: int, checked: bool = False) -> Publication:
    return Publication(floats, {"number": ArraySpec(dtype="int64"), "pid": ArraySpec(dtype="int64")},
                       slots=slots, checked=checked)  # fmt: skip


def write_versions(board: Board, shared: Publication, versions: int) -> None:
    """Publish `versions` versions (0: until told to stop); each float follows from the version."""
    publisher, pid = shared.publisher(), os.getpid()
    table, cycle = patterns(shared.weights), period(shared.weights)
    version, last = publisher.newest, publisher.newest + versions if versions else sys.maxsize
    while version < last and not board.words[0]:
        version += 1
        publisher.publish(table[version % cycle], version=version, number=version, pid=pid)
        if version % 64 == 0:  # a snapshot that is written all the time could never be read
            time.sleep(1e-4)
        board.words[2] += 1


def check_version(subscriber: Subscriber, floats: int) -> None:
    version = subscriber.version
    assert subscriber["number"] == version, f"version {version} with the header of {subscriber['number']}"
    weights = subscriber.weights
    assert weights[0] == version % period(floats), f"version {version} with the weights of {weights[0]}"
    assert (weights == weights[0] + np.linspace(0, 0.5, floats, dtype=np.float32)).all(), "a mix of two versions"


def read_versions(board: Board, shared: Publication) -> None:
    """Refresh and check until told to stop."""
    subscriber, held = shared.subscriber(), 0
    while not board.words[0]:
        if subscriber.refresh():
            check_version(subscriber, shared.weights)
            assert subscriber.version >= held, "versions went back"
            held = subscriber.version
            board.words[3] += 1
        elif held:
            assert subscriber.version == held
            check_version(subscriber, shared.weights)
        board.words[2] += 1
        board.words[4] = subscriber.met_writes


def odd_slots(shared: Publication) -> int:
    """How many slots are being written, or were when their writer died: looked up in the raw bytes."""
    words = shared._memory.view(np.uint64)
    stride, first = int(words[3]) // 8, 192 // 8
    return sum(int(words[first + i * stride]) % 2 for i in range(shared.slots))

"""The server that children are forked from: it has no name, and any temporary folder will do."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from motet.system import fork_server as _fork_server
from motet.system.child import Child

HUNT = ["treasure_hunt", "--world.size", "7", "--world.turns", "10"]
TINY = ["--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]
COMMANDS = {
    "train": ["train", *HUNT, *TINY, "--steps", "100000000", "--run", "mine"],
    "eval": ["eval", *HUNT, "-p", "random", "-n", "10000000", "--jobs", "2", "--isolate"],
}

LEAST = {"train": 4, "eval": 8}  # processes: the tracker, the server, and those who work and their servers


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("length", [20, 180], ids=["short", "long"])  # 180: longer than the address of a socket may be
def test_killed_while_it_works_it_leaves_nothing_in_the_temporary_folder(command, length, tmp_path):
    temporary = tmp_path / ("t" * length)
    temporary.mkdir()
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "motet.cli", *COMMANDS[command]],
            cwd=tmp_path,
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=out,
            stderr=out,
        )
    children: set[int] = set()
    deadline = time.monotonic() + 60
    try:
        while len(children) < LEAST[command] or list(temporary.iterdir()):  # a name is there while a server starts
            assert time.monotonic() < deadline and child.poll() is None, (tmp_path / "out").read_text()
            time.sleep(0.05)
            children |= _family(child.pid)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline + 30
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []


def test_a_server_that_was_killed_has_a_successor_and_its_socket_is_given_back():
    def have_a_child():
        child = Child("sleeper", time.sleep, (0,))
        assert child.join(60) and child.exit == 0
        child.close()

    have_a_child()
    counts = []
    for _ in range(3):
        _kill_the_server()
        have_a_child()
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] == counts[2]


def test_children_can_be_started_from_several_threads_when_the_server_is_gone():
    ends = []

    def have_a_child(number):
        child = Child(f"sleeper-{number}", time.sleep, (0,))
        ends.append(child.join(60) and child.exit == 0)
        child.close()

    for _ in range(3):
        have_a_child("first")
        _kill_the_server()
        threads = [threading.Thread(target=have_a_child, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ends == [True] * 15


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_the_environment_is_as_it_was_also_after_several_threads(method, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    if method == "spawn":
        monkeypatch.setattr(_fork_server, "context", lambda: multiprocessing.get_context("spawn"))
    inside, go = [], threading.Barrier(4)

    def start():
        go.wait()
        with _fork_server.starting():
            inside.append(os.environ.get("OMP_NUM_THREADS"))
            time.sleep(0.01)

    for _ in range(5):
        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert "OMP_NUM_THREADS" not in os.environ and os.environ["MKL_NUM_THREADS"] == "3"
    assert method == "forkserver" or inside == ["1"] * 20  # a server was given it, a spawned child is to be


def threads_in_child(path):
    Path(path).write_text(os.environ["OMP_NUM_THREADS"])


def test_children_have_one_numeric_thread(tmp_path):
    child = Child("counter", threads_in_child, (str(tmp_path / "n"),))
    assert child.join(60)
    child.close()
    assert (tmp_path / "n").read_text() == "1"


def _kill_the_server():
    pid = _fork_server._server._forkserver_pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _family(pid: int) -> set[int]:
    """The descendants of a process."""
    found: set[int] = set()
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        for one in map(int, (thread / "children").read_text().split()):
            found |= {one} | _family(one)
    return found

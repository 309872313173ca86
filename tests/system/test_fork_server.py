"""The server that children are forked from: it has no name, and any temporary folder will do."""

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import connection, forkserver
from pathlib import Path

import pytest
from support import without_torch

from motet.errors import SettingError
from motet.system import fork_server as _fork_server
from motet.system.child import Child
from motet.system.preload import preloaded

HUNT = ["treasure_hunt", "--world.size", "7", "--world.turns", "10"]
TINY = ["--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]
COMMANDS = {
    "train": ["train", *HUNT, *TINY, "--steps", "100000000", "--run", "mine"],
    "eval": ["eval", *HUNT, "-p", "random", "-n", "10000000", "--jobs", "2", "--isolate"],
}

LEAST = {"train": 4, "eval": 8}  # processes: the tracker, the server, and those who work and their servers


@pytest.fixture(params=["nameless", "standard"])
def way(request, monkeypatch):
    """Each way to start children; "unknown" is the standard one, chosen because this Python's server is not known."""
    _use(monkeypatch, request.param)
    yield request.param
    _kill_the_server()
    monkeypatch.undo()
    _fork_server.why_standard.cache_clear()


def _use(monkeypatch, way):
    _kill_the_server()
    monkeypatch.delenv("MOTET_START", raising=False)
    if way == "standard":
        monkeypatch.setenv("MOTET_START", "standard")
    if way == "unknown":
        monkeypatch.setattr(_fork_server, "_server", None)
    monkeypatch.setattr(_fork_server, "preloaded", lambda: ["motet.system.child"])  # a server that is up at once
    _fork_server.why_standard.cache_clear()
    assert (_fork_server.why_standard() is None) == (way == "nameless")


@pytest.mark.parametrize(
    ("command", "length"),  # 180: longer than the address of a socket may be
    [
        *(("train", 180), ("eval", 20)),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in (("train", 20), ("eval", 180))),
    ],
)
def test_killed_while_it_works_it_leaves_nothing_in_the_temporary_folder(command, length, tmp_path):
    temporary = tmp_path / ("t" * length)
    temporary.mkdir()
    # A name is there while a server starts.
    _kill_while_it_works(command, tmp_path, {"TMPDIR": str(temporary)}, lambda: not list(temporary.iterdir()))
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "stopped"), [pytest.param("train", False, marks=pytest.mark.slow), ("train", True), ("eval", False)]
)
def test_killed_in_the_standard_way_it_leaves_no_process(command, stopped, tmp_path):
    """Only the folder of the server's socket, which the nameless way is for."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    environment = {"TMPDIR": str(temporary), "MOTET_START": "standard"}
    # A process that is stopped before it has asked to die with its parent cannot do so: all are at work by then.
    at_work = lambda: bool(list(temporary.iterdir())) and (command == "eval" or _learns(tmp_path / "mine"))  # noqa: E731
    _kill_while_it_works(command, tmp_path, environment, at_work, stopped)
    assert all(path.name.startswith("pymp-") for path in temporary.iterdir())


def _learns(run):
    """Whether all agents of a run have been updated."""
    status = run / "status.json"
    return status.exists() and all(agent["updates"] > 0 for agent in json.loads(status.read_text())["agents"])


def _kill_while_it_works(command, folder, environment, ready, stopped=False):
    """Kill a command when all its processes are there; they must all end, also if they were stopped before."""
    env = without_torch() if command == "eval" else os.environ
    with (folder / "out").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "motet.cli", *COMMANDS[command]],
            cwd=folder,
            env={name: value for name, value in env.items() if name != "MOTET_START"} | environment,
            stdout=out,
            stderr=out,
        )
    children: set[int] = set()
    deadline = time.monotonic() + 120  # two servers that import torch, one after the other
    try:
        while len(children) < LEAST[command] or not ready():
            assert time.monotonic() < deadline and child.poll() is None, (folder / "out").read_text()
            time.sleep(0.05)
            children |= _family(child.pid)
        servers = set(_children(child.pid))
        for pid in children - servers if stopped else ():
            os.kill(pid, signal.SIGSTOP)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline + 30
        time.sleep(0.05)


def test_both_ways_play_and_train(tmp_path):
    """One seed gives one result, whichever way the processes were started."""
    played = {}
    for way in ("", "standard"):
        play = ["eval", *HUNT, "-p", "random", "-n", "4", "--jobs", "2", "--isolate", "--seed", "1", "--format", "json"]
        train = ["train", *HUNT, *TINY, "--steps", "200", "--run", f"mine{way}"]
        commands = {"play": (play, without_torch()), "train": (train, os.environ)}
        outputs = [
            subprocess.run(
                [sys.executable, "-m", "motet.cli", *command],
                cwd=tmp_path, env=environment | {"MOTET_START": way}, capture_output=True, text=True, check=True,
            ).stdout
            for command, environment in (commands[name] for name in (("play", "train") if way else ("play",)))
        ]  # fmt: skip
        played[way] = json.loads(outputs[0])["result"]
    assert played[""] == played["standard"]


def test_a_killed_fork_server_is_restarted_and_its_socket_is_released(way):
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


def test_children_can_be_started_from_several_threads_when_the_server_is_gone(way):
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


def test_all_threads_that_wait_for_a_child_get_its_exit_code(way, monkeypatch):
    """It can be read once, and whoever starts a process asks for those of all others."""
    child, read, codes = Child("sleeper", time.sleep, (0,)), forkserver.read_signed, []

    def read_slowly(fd):
        code = read(fd)
        time.sleep(0.2)  # so that the next one asks meanwhile
        return code

    assert connection.wait([child.sentinel], 60)
    monkeypatch.setattr(forkserver, "read_signed", read_slowly)
    threads = [threading.Thread(target=lambda: codes.append(child.exit)) for _ in range(3)]
    for thread in threads:
        thread.start()
    multiprocessing.active_children()
    for thread in threads:
        thread.join()
    assert codes == [0] * 3 and child.exit == 0
    child.close()


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


@pytest.mark.parametrize("way", ["nameless", "standard", "unknown"], indirect=True)
def test_children_have_one_numeric_thread(way, tmp_path):
    child = Child("counter", threads_in_child, (str(tmp_path / "n"),))
    assert child.join(60)
    child.close()
    assert (tmp_path / "n").read_text() == "1"


def test_a_child_whose_server_was_killed_counts_as_killed(way):
    child = Child("left", time.sleep, (1e6,))
    _kill_the_server()
    assert child.join(60) and child.exit == -signal.SIGKILL
    child.close()


def have_a_child_of_its_own(path):
    _fork_server.host_children()
    child = Child("grandchild", threads_in_child, (path,))
    assert child.join(60) and child.exit == 0
    child.close()


def test_a_child_can_have_children(way, tmp_path):
    child = Child("child", have_a_child_of_its_own, (str(tmp_path / "n"),))
    assert child.join(120) and child.exit == 0, child.traceback()
    child.close()
    assert (tmp_path / "n").read_text() == "1"


def is_loaded(path):
    Path(path).write_text(json.dumps([name for name in preloaded() if name not in sys.modules]))


def test_children_find_everything_imported(way, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(_fork_server, "preloaded", preloaded)
    for name in preloaded():  # what is missing is skipped, and so would be what is misspelt
        assert importlib.util.find_spec(name) is not None, name
    child = Child("reader", is_loaded, (str(tmp_path / "missing"),))
    assert child.join(60) and child.exit == 0, child.traceback()
    child.close()
    assert {"motet.training.drivers", "motet.isolation.process", "torch"} <= set(preloaded())
    assert preloaded()[-1] == "motet.system.quick_exit", "else a server with torch needs half a second to end"
    assert json.loads((tmp_path / "missing").read_text()) == []


# ---- which way


class Stranger:
    """A server without the attributes, or with others, or that does not use them."""

    _forkserver_address = _forkserver_alive_fd = _forkserver_pid = None
    ensure_running = connect_to_new_process = len


CHANGES = {
    "no server": lambda patch: patch.setattr(_fork_server, "_server", None),
    "another server": lambda patch: patch.setattr(_fork_server, "_server", Stranger()),
    "not the one in use": lambda patch: patch.setattr(_fork_server, "_server", forkserver.ForkServer()),
    "no address": lambda patch: patch.delattr(forkserver._forkserver, "_forkserver_address"),
    "no process number": lambda patch: patch.delattr(forkserver._forkserver, "_forkserver_pid"),
    "no alive descriptor": lambda patch: patch.delattr(forkserver._forkserver, "_forkserver_alive_fd"),
    "an address of bytes": lambda patch: patch.setattr(forkserver._forkserver, "_forkserver_address", b"/tmp/socket"),
    "a process, not its number": lambda patch: patch.setattr(forkserver._forkserver, "_forkserver_pid", Stranger()),
    "no settings": lambda patch: patch.delattr(multiprocessing.current_process(), "_config"),
    "abstract sockets": lambda patch: patch.setattr(connection, "arbitrary_address", lambda family: "\0listener"),
    "no addresses": lambda patch: patch.delattr(connection, "arbitrary_address"),
    "addresses of other families": lambda patch: patch.setattr(connection, "arbitrary_address", lambda: "/tmp/socket"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_unknown_server_is_used_in_the_standard_way(change, monkeypatch):
    monkeypatch.delenv("MOTET_START", raising=False)
    assert _fork_server.why_standard.__wrapped__() is None
    CHANGES[change](monkeypatch)
    assert "is not known to motet" in _fork_server.why_standard.__wrapped__()


def test_a_way_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv("MOTET_START", "spwan")
    with pytest.raises(SettingError, match="MOTET_START must be 'standard' or not set, got 'spwan'"):
        _fork_server.why_standard.__wrapped__()


def _kill_the_server():
    pid = forkserver._forkserver._forkserver_pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _family(pid: int) -> set[int]:
    """The descendants of a process."""
    found: set[int] = set()
    for one in _children(pid):
        found |= {one} | _family(one)
    return found


def _children(pid: int) -> list[int]:
    return [int(one) for task in Path(f"/proc/{pid}/task").glob("*") for one in (task / "children").read_text().split()]

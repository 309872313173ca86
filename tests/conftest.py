"""Fixtures of all tests: starting processes in the way motet does, and the check that nothing is left behind."""

import gc
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from support.family import descendants

from motet.streams import streams_returned

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job has it so, and its children after it; here they are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests never write to the user's home. Child processes inherit the variable.
STATE = tempfile.mkdtemp(prefix="motet-state-")  # not a TemporaryDirectory, which forked children would remove
os.environ["XDG_STATE_HOME"] = STATE

FAILED = pytest.StashKey[bool]()
PRELOAD = ["motet.publication", "motet.replay"]


@pytest.fixture(autouse=True)
def _own_streams() -> Iterator[None]:
    """Worlds and policies that a test plays without an engine leave their random streams installed."""
    with streams_returned():
        yield


@pytest.fixture(scope="session", params=["forkserver", "spawn"])
def any_context(request: pytest.FixtureRequest) -> multiprocessing.context.BaseContext:
    """Both ways in which children may be started."""
    return _context(request.param)


@pytest.fixture(scope="session")
def context() -> multiprocessing.context.BaseContext:
    """The quick way: children are forked from a server that has imported motet already."""
    return _context("forkserver")


def _context(method: str) -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(PRELOAD)
    # The helpers of multiprocessing itself stay until the end: they are started before anything is counted.
    resource_tracker.ensure_running()
    process = context.Process(target=time.sleep, args=(0,))
    process.start()
    process.join()
    process.close()
    return context


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector pass over what was imported and collected for the tests, which stays until the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the state directory of the tests."""
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the test: no new process, no new descriptor, nothing new in /dev/shm."""
    _context("forkserver")
    gc.collect()
    before = descendants(), _descriptors(), _shared_names()
    yield
    if request.node.stash.get(FAILED, False):
        return  # its traceback holds on to everything
    gc.collect()
    _becomes(lambda: descendants() - before[0], "processes left behind")
    _becomes(lambda: _descriptors() - before[1], "descriptors left open")
    _becomes(lambda: _shared_names() - before[2], "names left in /dev/shm")


def _becomes(left: Callable[[], set[str]], what: str, timeout_s: float = 60.0) -> None:
    """Nothing must be left in the end; how soon is not the question."""
    deadline = time.monotonic() + timeout_s
    while rest := left():
        assert time.monotonic() < deadline, f"{what}: {sorted(rest)}"
        time.sleep(0.01)


def _descriptors() -> set[str]:
    """What is open, without numbers: files, and kinds of the rest."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if "memfd" in target or "deleted" in target:
            found.add(f"{number} {target}")
    return found


def _shared_names() -> set[str]:
    """Only what Python and motet would make: other programs use /dev/shm too."""
    folder = Path("/dev/shm")
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return {name for name in names if name.startswith(("motet", "psm_", "pym-"))}

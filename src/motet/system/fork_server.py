"""The server that children are forked from: loaded once, quiet, and without a name in any file system.

Python's own fork server, which knows nothing of the three. All that motet does to it is here; nothing else touches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import inspect
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["DEAF_TO", "context", "host_children", "is_up", "let_go", "number", "starting"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_DESCRIPTORS = Path("/proc/self/fd")

DEAF_TO = (signal.SIGINT, signal.SIGTERM)
"""What children leave to their parent to decide about."""

_lock = threading.Lock()  # of this process alone
_server: Any = forkserver._forkserver
_socket: int | None = None  # holds the server's socket, which has no name to be found by


def context() -> ForkServerContext | SpawnContext:
    """The way children are started: an explicit context, never the process-wide default."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    # What children import before they can work, 0.2 s each time; what is missing is passed over.
    preload = [
        "numpy",
        "cloudpickle",
        "gymnasium",
        "pettingzoo",
        "motet.system.child",
        "motet.training.drivers",
        *(f"motet.worlds.{name}" for name in ("cleanup", "hockey", "matrix", "rooms", "small_hunt", "treasure_hunt")),
    ]
    preload.append("motet.isolation.process")
    if importlib.util.find_spec("torch") is not None:
        learners = ("_dqn_learner", "_iqn_learner", "_ppo_learner", "_td3_learner")
        preload += ["torch", *(f"motet.algorithms.{name}" for name in learners)]
    chosen.set_forkserver_preload(preload)
    return chosen


def is_up() -> bool:
    """Whether a server was started before: children come quickly then."""
    return getattr(_server, "_forkserver_pid", None) is not None


def number() -> int | None:
    """The process number of the server that runs now, if one does."""
    return _server._forkserver_pid if is_up() and _runs() else None


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Start children in here: from a server that runs by then, one numeric thread each, deaf to Ctrl-C and SIGTERM.

    Sent to a whole group of processes they would end the server, and with it all children. They are held back here, by
    a mask that the server inherits and keeps, and come when the child is there; what they mean is decided then.
    """
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        resource_tracker.ensure_running()  # it would take the mask away when it is started
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        _forget_a_file_that_is_none()
        if isinstance(context(), ForkServerContext):
            _have_one()
            yield
        else:
            with _lock, _one_thread():
                yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_a_file_that_is_none() -> None:
    """Children import the script that is run from its file: not where it came from standard input, or has gone."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is not None and not os.path.exists(file):
        with contextlib.suppress(AttributeError):  # another thread was quicker
            del main.__file__


def host_children() -> None:
    """Let this child start children of its own, as quickly as its parent starts children, and take them with it.

    A child of a fork server would begin by starting a server of its own, which loads everything once more. Instead a
    copy of this process, as it is now and without its descriptors, becomes that server: call it first thing, before
    anything is here that children should not see.
    """
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    known = inspect.signature(forkserver.main).parameters
    if not isinstance(context(), ForkServerContext) or "authkey_r" in known:  # 3.14: then it is started as usual
        return
    with socket.socket(socket.AF_UNIX) as listener, _nameless() as folder:
        address = f"{folder}/server"
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        address = _hold(address)
        alive_r, alive_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            _serve(listener.fileno(), alive_r)
        os.close(alive_r)
    _server._forkserver_address, _server._forkserver_alive_fd, _server._forkserver_pid = address, alive_w, pid


def let_go() -> None:
    """In a child: no longer keep the server alive.

    It ends when the last copy of its alive descriptor is closed. Each child was given a copy; without it only the true
    parent keeps the server alive.
    """
    if (alive := getattr(_server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        _server._forkserver_alive_fd = None


def _have_one() -> None:
    with _lock:
        if _server._forkserver_pid is not None and _runs():
            return
        with _nameless() as folder, _temporary(folder), _one_thread():
            _server.ensure_running()
            _server._forkserver_address = _hold(_server._forkserver_address)


def _runs() -> bool:
    try:
        return os.waitid(os.P_PID, _server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:  # another thread has just buried it
        return False


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """What is executed meanwhile has one numeric thread: libraries read how many when they are loaded."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _nameless() -> Iterator[str]:
    """A folder for a socket, gone with its contents when this ends; its path is short, however long the true one is."""
    true = tempfile.mkdtemp(prefix="motet-")
    if not _DESCRIPTORS.is_dir():  # then names are all there is
        yield true
        return
    fd = os.open(true, os.O_PATH | os.O_DIRECTORY)
    try:
        yield str(_DESCRIPTORS / str(fd))
    finally:
        for name in os.listdir(true):
            os.unlink(os.path.join(true, name))
        os.rmdir(true)
        os.close(fd)


@contextlib.contextmanager
def _temporary(folder: str) -> Iterator[None]:
    """Have multiprocessing put its sockets there."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    before = config.get("tempdir")
    config["tempdir"] = folder
    try:
        yield
    finally:
        config["tempdir"] = before


def _hold(address: str) -> str:
    """An address of this socket that works without its name, in this process alone."""
    global _socket
    if not _DESCRIPTORS.is_dir():
        return address
    if _socket is not None:
        os.close(_socket)  # of a server that died
    _socket = os.open(address, os.O_PATH)
    return str(_DESCRIPTORS / str(_socket))


def _serve(listener: int, alive: int) -> NoReturn:
    """Be a fork server until the one who started it is gone."""
    global _socket
    _socket = None  # of the one who started it; closed below
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        for name in os.listdir("/dev/fd"):
            if int(name) > 2 and int(name) not in (listener, alive):
                with contextlib.suppress(OSError):  # the one that listed them
                    os.close(int(name))
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)

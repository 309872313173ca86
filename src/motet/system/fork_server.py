"""The fork server that children are started from: it loads modules once, ignores Ctrl-C, and leaves no named socket.

It is the fork server of Python's ``multiprocessing``, which by itself does none of these three things. All changes that
motet makes to it are in this module. There are two ways to use it.

*Nameless*, the usual one: this module writes to private attributes of ``multiprocessing``.

*Standard*: this module uses only what ``multiprocessing`` documents. This way is used if the environment has
``MOTET_START=standard``, or if the private attributes differ from those that this module expects. The choice is made
once, at the first use. The drawbacks of the standard way are:

- The server's socket has a name, in a folder ``pymp-…`` in the temporary folder. It stays there after ``kill -9``. The
  path of the temporary folder must be short (about 70 characters), since the address of a socket is limited.
- A child that starts children starts another server for them, which imports everything again: seconds with torch.
- Children keep the server alive. So does a process that a world forked and that outlives the run.
- If the server dies, its children's exit codes are lost. This also holds in the nameless way, but here the server's
  death cannot be distinguished from a child that ended with exit code 255. Both count as killed.

Where there is no fork server, and on macOS, children are spawned.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import multiprocessing
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, NoReturn

from motet.errors import SettingError
from motet.system.preload import preloaded

__all__ = ["DEAF_TO", "context", "died", "host_children", "is_up", "let_go", "number", "starting", "why_standard"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_DESCRIPTORS = Path("/proc/self/fd")

DEAF_TO = (signal.SIGINT, signal.SIGTERM)
"""Signals that children ignore, because their parent handles them."""

_lock = threading.Lock()  # held while a server is started or multiprocessing's temporary folder is changed
_server: Any = getattr(forkserver, "_forkserver", None)
_started = False  # this process has started a child from a server
_serving = os.getpid()
"""The server that forked this process, which loaded this module; in all other processes the process itself."""
_socket: int | None = None  # descriptor of the server's socket, which has no name in the file system


def context() -> ForkServerContext | SpawnContext:
    """The multiprocessing context that starts children: explicit, never the process-wide default."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(preloaded())
    return chosen


@functools.cache
def why_standard() -> str | None:
    """Why the server is used in the standard way; None: it is used in the nameless way."""
    asked = os.environ.get("MOTET_START", "")
    if asked not in ("", "standard"):
        raise SettingError(f"MOTET_START must be 'standard' or not set, got {asked!r}")
    if asked:
        return "MOTET_START=standard"
    return None if _is_known() else f"the fork server of Python {platform.python_version()} is not known to motet"


def _is_known() -> bool:
    """Whether each private attribute that the nameless way uses exists, and is used as this module expects."""
    kinds = {"_forkserver_address": str, "_forkserver_alive_fd": int, "_forkserver_pid": int}
    methods = [part for part in vars(type(_server)).values() if inspect.isfunction(part)]
    used = {name for method in methods for name in method.__code__.co_names}
    try:
        for name, kind in kinds.items():
            if name not in used or not isinstance(getattr(_server, name), kind | None):
                return False
        if any(
            getattr(forkserver, name).__self__ is not _server for name in ("ensure_running", "connect_to_new_process")
        ):
            return False
        with _lock, _temporary("/motet"):
            return bool(connection.arbitrary_address("AF_UNIX").startswith("/motet/"))  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return False


def _is_nameless() -> bool:
    return isinstance(context(), ForkServerContext) and why_standard() is None


def is_up() -> bool:
    """Whether a server was started before, so that children start quickly."""
    return _started


def number() -> int | None:
    """The process id of the running server; None if no server runs or its id is not known."""
    return _server._forkserver_pid if _is_nameless() and _server._forkserver_pid is not None and _runs() else None


def died(server: int | None) -> bool:
    """Whether a child's exit code is unknown because its server died.

    Args:
        server: the result of :func:`number` when the child was started.
    """
    if server is None:
        return isinstance(context(), ForkServerContext)
    deadline = time.monotonic() + 1.0  # the pipe of a dying server closes a moment before the server is dead
    while (alive := number() == server) and time.monotonic() < deadline:
        time.sleep(0.001)
    return not alive


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Context for starting children: a server runs, children get one numeric thread, SIGINT and SIGTERM are blocked.

    If these signals reached the server (Ctrl-C goes to the whole process group), they would end it and all children.
    The server inherits the mask and keeps it. In this process, a signal that arrives meanwhile is delivered at the end
    of the context, and handled as usual.
    """
    global _started
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        resource_tracker.ensure_running()  # starting the tracker later would reset the mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        _forget_a_file_that_is_none()
        if _is_nameless():
            _have_one()
            yield
        else:  # the server or, where children are spawned, the child starts inside
            with _lock, _one_thread():
                yield
        _started = isinstance(context(), ForkServerContext)
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _forget_a_file_that_is_none() -> None:
    """Drop ``__main__.__file__`` if that file does not exist (script on standard input): children would import it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is not None and not os.path.exists(file):
        with contextlib.suppress(AttributeError):  # another thread has deleted the attribute
            del main.__file__


def host_children() -> None:
    """Let this child start children as quickly as its parent does, and make them end with it.

    By default a child of a fork server would start another server, which loads everything again. Instead, a copy of
    this process, as it is now and without its descriptors, becomes that server. So call this first in the child, before
    the process holds anything that its children should not see. In the standard way, and where ``forkserver.main`` has
    parameters that this module does not know (Python 3.14), the server is started as usual instead.
    """
    global _started
    multiprocessing.current_process().daemon = False
    known = ["listener_fd", "alive_r", "preload", "main_path", "sys_path"]
    if not _is_nameless() or list(inspect.signature(forkserver.main).parameters) != known:
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
    _started = True


def is_orphan() -> bool:
    """In a child: whether the server that forked it has ended."""
    return _serving not in (os.getpid(), os.getppid())


def let_go() -> bool:
    """In a child: no longer keep the server alive. Returns True if the server now ends with the true parent.

    The server ends when the last copy of its alive descriptor is closed. Each child was given a copy; once that is
    closed, only the true parent keeps the server alive.
    """
    alive = _server._forkserver_alive_fd if why_standard() is None else None
    if alive is None:  # the standard way, or a spawned child
        return False
    os.close(alive)
    _server._forkserver_alive_fd = None
    return True


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
    except ChildProcessError:  # another thread has just reaped the server
        return False


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Give processes that are started meanwhile one numeric thread: libraries read these variables when loaded."""
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
    """A folder for a socket, removed with its contents at the end. Its path is short even if the true path is long."""
    true = tempfile.mkdtemp(prefix="motet-")
    if not _DESCRIPTORS.is_dir():  # without /proc the folder can only be reached by its name, so the folder stays
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
    """Have multiprocessing put its sockets into this folder."""
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    before = config.get("tempdir")
    config["tempdir"] = folder
    try:
        yield
    finally:
        config["tempdir"] = before


def _hold(address: str) -> str:
    """An address that reaches this socket without its name; valid in this process only."""
    global _socket
    if not _DESCRIPTORS.is_dir():
        return address
    if _socket is not None:
        os.close(_socket)  # this socket belongs to a server that died
    _socket = os.open(address, os.O_PATH)
    return str(_DESCRIPTORS / str(_socket))


def _serve(listener: int, alive: int) -> NoReturn:
    """Be a fork server until the process that started it is gone."""
    global _serving, _socket
    _serving = os.getpid()
    _socket = None  # this socket belongs to the process that started this one, and is closed below
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        for name in os.listdir("/dev/fd"):
            if int(name) > 2 and int(name) not in (listener, alive):
                with contextlib.suppress(OSError):  # the descriptor of listdir is closed already
                    os.close(int(name))
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)

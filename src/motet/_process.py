"""Child processes: quick to start, named, deaf to Ctrl-C, dead when their parent is, and their tracebacks come home.

Children are forked from a server that has torch loaded already (15 ms instead of 1.5 s); where there is none they are
spawned. What a child needs travels as its arguments: shared segments with their descriptors, users' factories wrapped
in :class:`Portable`. Nothing here knows what a learner is.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib.util
import inspect
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from motet.errors import MotetError, StartError, WaitTimeoutError

__all__ = ["Child", "Portable", "check_main_guard", "context", "host_children", "interrupts", "one_thread"]

_MAX_TRACEBACK = 64 * 1024
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def context() -> ForkServerContext | SpawnContext:
    """The way children are started: an explicit context, never the process-wide default."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return multiprocessing.get_context("spawn")
    chosen = multiprocessing.get_context("forkserver")
    # What children import before they can work, 0.2 s each time; what is missing is passed over.
    preload = ["numpy", "cloudpickle", "gymnasium", "pettingzoo", "motet._process", "motet._engine", "motet.worlds"]
    preload.append("motet._policy_process")
    if importlib.util.find_spec("torch") is not None:
        preload += ["torch", "motet.algorithms"]
    chosen.set_forkserver_preload(preload)
    return chosen


class Portable:
    """A user's object on its way to a child: by value where need be, so that lambdas and notebook cells travel too."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (cloudpickle.dumps(self.value),)


def _unpack(data: bytes) -> Portable:
    return Portable(cloudpickle.loads(data))


class Child:
    """One child process.

    Args:
        name: what it is called in messages, logs and process lists.
        target: the function it runs; importable, or wrapped in Portable by the caller.
        args: its arguments.
        log: a file that its output is appended to; without one it writes where the parent does.
    """

    def __init__(
        self, name: str, target: Callable[..., None], args: tuple[Any, ...] = (), log: Path | None = None
    ) -> None:
        self.name = name
        ctx = context()
        self._home, away = ctx.Pipe(duplex=False)
        self._process = ctx.Process(target=_enter, args=(name, target, args, away, log), name=name, daemon=True)
        self._text = ""
        check_main_guard()
        try:
            with _quiet_server():
                self._process.start()
        except (OSError, EOFError) as error:  # EOF: the server that forks children died of it
            self._home.close()
            why = "the server that starts children died" if isinstance(error, EOFError) else str(error)
            raise StartError(f"{name} could not be started: {why}") from error
        finally:
            away.close()

    @property
    def pid(self) -> int:
        """Its process number."""
        assert self._process.pid is not None
        return int(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Becomes ready for reading when the child has died (for ``multiprocessing.connection.wait``)."""
        return int(self._process.sentinel)

    @property
    def exit(self) -> int | None:
        """None while it lives; then its exit code, negative for a signal."""
        code: int | None = self._process.exitcode
        return code

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; True if it has ended."""
        self._process.join(timeout_s)
        return self.exit is not None

    def kill(self, timeout_s: float = 5.0) -> None:
        """End it now, and see that it is dead: whoever takes its place may start after this returns."""
        if self.exit is None:
            # A stopped process dies of SIGKILL too.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        if not self.join(timeout_s):
            raise WaitTimeoutError(f"{self.name} (pid {self.pid}) did not die within {timeout_s} s of SIGKILL")

    def traceback(self) -> str:
        """What it raised, if it did."""
        while self._home is not None and not self._text:
            try:
                if not self._home.poll(0):
                    break
                self._text = self._home.recv_bytes(_MAX_TRACEBACK).decode(errors="replace")
            except (EOFError, OSError):
                break
        return self._text

    def describe_end(self) -> str:
        """How it ended, for people."""
        code = self.exit
        if code is None:
            return f"{self.name} is running"
        if code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        return f"{self.name} {'raised' if self.traceback() else f'ended with exit code {code}'}"

    def close(self) -> None:
        """Give back what the parent holds for it. It must have ended."""
        self._process.close()
        self._home.close()


def check_main_guard() -> None:
    """Raise if this is a child that is importing the user's script, which calls motet without a guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MotetError(
            "motet was called while a child process was importing your script. Put the call behind\n"
            "    if __name__ == '__main__':\n"
            "so that importing the script does not start it again"
        )


@contextlib.contextmanager
def _quiet_server() -> Iterator[None]:
    """One numeric thread in every child, and no Ctrl-C: it would end a server that is loading, with its traceback.

    The libraries read the numbers of threads when the server first loads them. Ctrl-C is held back here, by a mask that
    the server inherits, and comes when the child is there; what it means is decided then.
    """
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        resource_tracker.ensure_running()  # it would take the mask away when it is started
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
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
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def one_thread() -> None:
    """One numeric thread in this process. Several processes that each use all cores are 7 to 15 times slower."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM once: set the event. Twice: at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def host_children() -> None:
    """Let this child start children of its own, as quickly as its parent starts children, and take them with it.

    A child of a fork server would begin by starting a server of its own, which loads everything once more. Instead a
    copy of this process, as it is now and without its descriptors, becomes that server: call it first thing, before
    anything is here that children should not see.
    """
    from multiprocessing import forkserver

    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    known = inspect.signature(forkserver.main).parameters
    if not isinstance(context(), ForkServerContext) or "authkey_r" in known:  # 3.14: then it is started as usual
        return
    with socket.socket(socket.AF_UNIX) as listener:
        address = multiprocessing.connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        alive_r, alive_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            _serve(listener.fileno(), alive_r)
        os.close(alive_r)
    server: Any = forkserver._forkserver
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, alive_w, pid


def _serve(listener: int, alive: int) -> NoReturn:
    """Be a fork server until the one who started it is gone."""
    from multiprocessing import forkserver

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


def _enter(
    name: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    home: multiprocessing.connection.Connection,
    log: Path | None,
) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # held back while it was started
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if log is not None:
        _redirect(log)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where it is
    one_thread()
    try:
        target(*args)
    except BaseException as error:  # noqa: BLE001 - it goes home and to the log, whatever it is
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}\n{text}")
        sys.stderr.flush()
        # A parent that is gone has no use for the text.
        with contextlib.suppress(OSError):
            home.send_bytes(text.encode()[-_MAX_TRACEBACK:])
        raise SystemExit(1) from None


def _die_with_parent() -> None:
    """End when the parent ends, however it ends, even while stopped.

    The parent in the kernel's eyes is the fork server, which ends when the last copy of its alive descriptor is closed.
    Each child was given a copy; it is closed here, so that only the true parent keeps the server alive.
    """
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        server._forkserver_alive_fd = None
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(1, signal.SIGKILL, 0, 0, 0) != 0:  # PR_SET_PDEATHSIG
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    else:
        threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it went before we asked
        os._exit(1)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _redirect(log: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)

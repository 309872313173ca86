"""Child processes that start quickly, ignore Ctrl-C, end with their parent, and send their tracebacks to it.

Children are forked from a server that has torch loaded already (15 ms instead of 1.5 s); where no fork server is
available they are spawned. Everything that a child needs is passed in its arguments: shared segments with their
descriptors, users' factories wrapped in :class:`~motet.system.portable.Portable`. Nothing here depends on training.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from motet.errors import ChildError, StartError, WaitTimeoutError
from motet.system import fork_server as _fork_server
from motet.system.raised import InterruptedAgain

__all__ = ["Child", "check_main_guard", "interrupts", "one_thread", "signal_name", "signal_when_parent_ends"]

_MAX_TRACEBACK = 64 * 1024
GUARD = "the script calls motet without a main guard (put the call below `if __name__ == '__main__':`)"
_UNKNOWN = 255  # the exit code that multiprocessing reports for a child whose server died


class Child:
    """One child process.

    Args:
        name: its name in messages, logs and process lists.
        target: the function it runs; importable, or wrapped in Portable by the caller.
        args: arguments of the function.
        log: a file to which its output is appended; None: it shares the output of the parent.
    """

    def __init__(
        self, name: str, target: Callable[..., None], args: tuple[Any, ...] = (), log: Path | None = None
    ) -> None:
        self.name, self._log = name, log
        ctx = _fork_server.context()
        self._home, away = ctx.Pipe(duplex=False)
        self._process = ctx.Process(target=_enter, args=(name, target, args, away, log), name=name, daemon=True)
        if hasattr(self._process, "_Popen"):  # other versions of Python start processes in another way
            self._process._Popen = _asked_in_turn  # type: ignore[method-assign, assignment]
        self._text = ""
        check_main_guard()
        try:
            with _fork_server.starting():
                self._process.start()
        except (OSError, EOFError) as error:  # EOF: the fork server died while it forked the child
            self._home.close()
            why = "the server that starts children died" if isinstance(error, EOFError) else str(error)
            raise StartError(f"{name} could not be started: {why}") from error
        except BaseException:  # an argument cannot be pickled
            self._home.close()
            raise
        finally:
            away.close()
        self._server = _fork_server.number()
        self._lost: bool | None = None  # tells whether the child's server died
        self._pidfd: int | None = None  # refers to this child even after the system has reused its pid
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # the child has ended already, or no descriptor is free: use the pid
                self._pidfd = os.pidfd_open(self.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return int(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Becomes ready for reading when the child has died (for ``multiprocessing.connection.wait``)."""
        return int(self._process.sentinel)

    @property
    def exit(self) -> int | None:
        """None while the child runs; then its exit code, negative for a signal."""
        code: int | None = self._process.exitcode
        if code == _UNKNOWN and self._lost is None:
            self._lost = _fork_server.died(self._server)
        if not self._lost:
            return code
        # The fork server died, and only it knew the exit code. The child may have outlived it.
        return None if self._pidfd is not None and not _is_over(self._pidfd, 0.0) else -signal.SIGKILL

    def join(self, timeout_s: float) -> bool:
        """Wait for the child to end. Returns True if it has ended."""
        deadline = time.monotonic() + timeout_s
        self._process.join(timeout_s)
        if self.exit is None and self._lost and self._pidfd is not None:
            _is_over(self._pidfd, max(0.0, deadline - time.monotonic()))
        return self.exit is not None

    def resume(self) -> None:
        """Continue the child if it was stopped by a signal."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):  # the child has ended
                signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)

    def kill(self, timeout_s: float = 5.0) -> None:
        """Kill the child and wait until it is dead. A replacement may be started as soon as this returns."""
        with contextlib.suppress(ProcessLookupError):  # a stopped process dies of SIGKILL too
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self.exit is None:
                os.kill(self.pid, signal.SIGKILL)
        gone = self.join(timeout_s)
        if gone and self._pidfd is not None:  # join() also returns when only the server died, so ask the kernel
            gone = _is_over(self._pidfd, timeout_s)
        if not gone:
            raise WaitTimeoutError(f"{self.name} (pid {self.pid}) did not die within {timeout_s} s of SIGKILL")

    def traceback(self) -> str:
        """The traceback of the exception that ended the child; empty if it did not raise."""
        while self._home is not None and not self._text:
            try:
                if not self._home.poll(0):
                    break
                self._text = self._home.recv_bytes(_MAX_TRACEBACK).decode(errors="replace")
            except (EOFError, OSError):
                break
        return self._text

    @property
    def could_not_start(self) -> bool:
        """Whether the child failed before ``_enter``, which sends every later exception to the parent."""
        return self.exit == 1 and not self.traceback()

    def describe_end(self) -> str:
        """Human-readable exit reason."""
        code = self.exit
        if code is None:
            return f"{self.name} is running"
        if code < 0:
            return f"{self.name} was killed by {signal_name(-code)}"
        if self.traceback():
            return f"{self.name} raised"
        if self.could_not_start:
            return f"{self.name} could not start: it failed to import your script, or {GUARD}"
        return f"{self.name} ended with exit code {code}"

    def wrote(self) -> str:
        """Human-readable location of the child's output. Until the log is opened, that is the output of the parent."""
        return f"see {self._log}" if self._log is not None and self._log.exists() else "its output is above"

    def close(self) -> None:
        """Release what the parent holds for the child. It must have ended."""
        self._process.close()
        self._home.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _is_over(pidfd: int, timeout_s: float) -> bool:
    """Wait until a process has ended. Returns False if it still runs."""
    return bool(multiprocessing.connection.wait([pidfd], timeout_s))


def _asked_in_turn(process: Any) -> Any:
    """Start a process so that only one thread at a time can ask for its exit code.

    Python reads the exit code of a child of the fork server from a pipe, once. A second thread that reads finds the end
    of the pipe and takes the child for killed. Other threads do read: before ``multiprocessing`` starts a process, it
    polls all earlier ones.
    """
    started = type(process)._Popen(process)
    poll, turn = started.poll, threading.RLock()

    def poll_in_turn(flag: int = os.WNOHANG) -> int | None:
        with turn:
            code: int | None = poll(flag)
            return code

    started.poll = poll_in_turn
    return started


def signal_name(number: int) -> str:
    """The name of a signal.

    >>> signal_name(9), signal_name(35)
    ('SIGKILL', 'signal 35')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, most of which have no name
        return f"signal {number}"


def check_main_guard(starts: bool = False) -> None:
    """End this process if it is a child that is importing the user's script, and the script has no main guard.

    It prints one line instead of a traceback; the process that started the child raises the error.

    Args:
        starts: this process is about to start others. Then raise ChildError if it executes a script without a guard.
    """
    if starts and _is_unguarded():
        raise ChildError(f"processes cannot be started: {GUARD}")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stderr.write(f"motet was called while a child process was importing your script: {GUARD}\n")
        sys.stderr.flush()
        raise SystemExit(1)


def _is_unguarded() -> bool:
    """Whether the main script executes a statement that each child would execute again when it imports the script.

    A statement below any ``if`` counts as guarded. Whether it really is guarded shows in the child.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    if frame.f_code.co_name != "<module>" or frame.f_globals.get("__name__") != "__main__":
        return False  # a notebook, a debugger or a thread
    file = frame.f_globals.get("__file__")
    if not file or frame.f_code.co_filename != file or Path(file).stem in ("__main__", "ipython"):
        return False  # children do not import this script
    try:
        statements = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    inside = [one for one in statements if one.lineno <= frame.f_lineno <= (one.end_lineno or one.lineno)]
    return bool(inside) and not any(isinstance(one, ast.If) for one in inside)


def one_thread() -> None:
    """Use one numeric thread in this process. Several processes that each use all cores are 7 to 15 times slower."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@contextlib.contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Set the event on the first Ctrl-C or SIGTERM, and raise KeyboardInterrupt on the second."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, frame: Any) -> None:
        if event.is_set():
            raise InterruptedAgain
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _enter(
    name: str,
    target: Callable[..., None],
    args: tuple[Any, ...],
    home: multiprocessing.connection.Connection,
    log: Path | None,
) -> None:
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # not SIG_IGN, which programs that a world starts inherit
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _fork_server.DEAF_TO)  # blocked while the child was started
    if log is not None:
        _redirect(log)
    faulthandler.enable()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 prints a traceback
    one_thread()
    try:
        target(*args)
    except BaseException as error:  # noqa: BLE001 - every exception is sent to the parent and written to the log
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}\n{text}")
        sys.stderr.flush()
        with contextlib.suppress(OSError):  # the parent may be gone
            home.send_bytes(text.encode(errors="backslashreplace")[-_room(home) :])
        _end_beside_threads(1)
        raise SystemExit(1) from None
    _end_beside_threads(0)


def _end_beside_threads(code: int) -> None:
    """End this process if user code has left threads for which Python would wait at the end; else do nothing."""
    if any(not one.daemon and one is not threading.main_thread() for one in threading.enumerate()):
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]  # ends the children of user code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _room(home: multiprocessing.connection.Connection) -> int:
    """Bytes that fit into the pipe: the parent may read them only after this process has ended."""
    try:
        import fcntl

        return min(_MAX_TRACEBACK, fcntl.fcntl(home.fileno(), fcntl.F_GETPIPE_SZ) // 2)
    except (ImportError, AttributeError):  # the size of a pipe is unknown on other systems, but larger than 4096 bytes
        return 4096


def _die_with_parent() -> None:
    """Make this process end when the parent ends in any way, even while this process is stopped.

    For the kernel, the parent is the fork server. If the server does not end with the true parent, the kernel is asked
    to watch the true parent too.
    """
    ends_with_parent = _fork_server.let_go()
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(1, signal.SIGKILL, 0, 0, 0) != 0:  # PR_SET_PDEATHSIG
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if not ends_with_parent:
            signal_when_parent_ends(signal.SIGKILL)
    else:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # the parent ended before prctl was called
    if (parent is not None and not parent.is_alive()) or _fork_server.is_orphan():
        os._exit(1)


def signal_when_parent_ends(number: signal.Signals) -> None:
    """On Linux: have the kernel send this signal to this process when the parent ends, even while it is stopped.

    The parent holds the other end of a pipe until it ends. A later call replaces the signal of an earlier call.
    """
    import fcntl

    parent = multiprocessing.parent_process()
    if parent is not None:
        pipe = parent.sentinel
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETSIG, number)
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


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

"""Objects in separate processes whose methods are called from the bench's process.

A :class:`Stage` owns them: when its context ends, for any reason, all of its processes end. If the bench is killed, its
processes end too. Every process runs its numerical libraries with one thread.

>>> with Stage() as stage:
...     words = stage.party(str, "in another process")
...     words.call("upper")
'IN ANOTHER PROCESS'
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection, parent_process
from types import TracebackType
from typing import Any

from motet.errors import MotetError, WaitTimeoutError

__all__ = ["Missing", "Party", "Stage", "rate"]

START_S = 120.0
"""Maximum number of seconds for the start of a party, including its imports and filling its memory."""

CALL_S = 300.0
"""Maximum number of seconds for a call, in addition to its measuring time."""

END_S = 0.5
"""Seconds to wait after each attempt to end the parties: a request, terminate, kill."""

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Missing(Exception):
    """A contestant cannot run; the message gives the reason."""


class Party:
    """An object in a separate process. Created by :meth:`Stage.party`."""

    def __init__(self, context: Any, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.name = getattr(make, "__name__", str(make))
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, tuple(arguments)))
        self.process.start()
        theirs.close()

    def begin(self, method: str, *arguments: Any) -> None:
        """Call a method without waiting for the result."""
        self._pipe.send((method, arguments))

    def result(self, timeout_s: float = CALL_S) -> Any:
        """Return the result of the oldest open call."""
        if not self._pipe.poll(timeout_s):
            raise WaitTimeoutError(f"the bench waited {timeout_s:.0f} s for an answer of {self.name}")
        try:
            fine, value = self._pipe.recv()
        except EOFError:
            self.process.join(5)
            raise MotetError(f"{self.name}: its process ended with exit code {self.process.exitcode}") from None
        if fine is None:
            raise Missing(value)
        if not fine:
            raise MotetError(f"{self.name} failed in its process:\n{value}")
        return value

    def call(self, method: str, *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Call a method and wait for the result."""
        self.begin(method, *arguments)
        return self.result(timeout_s)

    def hang_up(self) -> None:
        """Ask the process to end. It ends as soon as it waits for a call."""
        self._pipe.close()

    def ended_by(self, deadline: float) -> bool:
        """Wait for the end of the process until the deadline; returns whether it has ended."""
        self.process.join(max(deadline - time.monotonic(), 0))
        return self.process.exitcode is not None


class Stage:
    """The processes of one bench. Use it as a context."""

    def __init__(self, preload: Sequence[str] = ("benchmarks.replay_peers",)) -> None:
        self.context = mp.get_context("forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn")
        self._preload, self._parties = list(preload), list[Party]()
        self._environment: dict[str, str | None] = {}

    def __enter__(self) -> Stage:
        self._environment = {name: os.environ.get(name) for name in _ONE_THREAD}
        os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
        if self.context.get_start_method() == "forkserver":
            self.context.set_forkserver_preload(self._preload)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.clear()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def party(self, make: Callable[..., Any], *arguments: Any) -> Party:
        """Start a process that holds ``make(*arguments)``; returns when it is ready, and raises if it failed."""
        party = Party(self.context, make, arguments)
        self._parties.append(party)
        party.result(START_S)
        return party

    def clear(self) -> None:
        """End all processes: first ask them to end, then terminate the remaining ones, then kill what is left."""
        left, self._parties = self._parties, []
        for push in (Party.hang_up, lambda party: party.process.terminate(), lambda party: party.process.kill()):
            for party in left:
                push(party)
            deadline = time.monotonic() + END_S
            left = [party for party in left if not party.ended_by(deadline)]


def _serve(pipe: connection.Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench's process handles Ctrl-C, and ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with _Report(pipe):
        made = make(*arguments)
        pipe.send((True, None))
        while True:
            try:
                method, given = pipe.recv()
            except EOFError:  # the bench has closed its end
                return
            pipe.send((True, getattr(made, method)(*given)))


class _Report:
    """Sends the traceback of an exception to the bench, and ends the process."""

    def __init__(self, pipe: connection.Connection) -> None:
        self._pipe = pipe

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            return
        with contextlib.suppress(OSError):  # the bench may be gone
            if isinstance(error, Missing):
                self._pipe.send((None, str(error)))
            else:
                self._pipe.send((False, "".join(traceback.format_exception(kind, error, trace))))
        raise SystemExit(1)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def rate(steps: Callable[[int], None], chunk: int, begin_at: float, seconds: float) -> float:
    """Return the number of steps per second of ``steps(n)``, measured from ``begin_at`` (monotonic clock) on.

    The clock is read once per ``chunk``, and one chunk runs before the measurement.
    """
    steps(chunk)
    time.sleep(max(begin_at - time.monotonic(), 0))
    done, begun = 0, time.perf_counter()
    while (now := time.perf_counter()) < begun + seconds:
        steps(chunk)
        done += chunk
    return done / (now - begun)

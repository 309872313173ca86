"""The parent's handle of one policy process: it starts the process, follows its state, and makes sure that it dies.

See :mod:`motet.isolation.process` for the other side. All that is read here comes from the kernel or from the guard,
which runs no code of the policy.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import signal
import sys

from motet.errors import WaitTimeoutError
from motet.isolation import guard as _guard
from motet.isolation import process as _policy_process
from motet.isolation import sandbox as _sandbox
from motet.isolation import usage as _usage
from motet.isolation.groups import refused_a_task, remove_groups
from motet.isolation.marks import end_marked
from motet.isolation.process import PolicyStart
from motet.system.child import Child, signal_name
from motet.system.fork_server import context
from motet.system.memory import Segment, format_bytes

__all__ = ["PolicyProcess"]

DEATH_S = 10.0
"""Seconds that processes may take to die."""


class PolicyProcess:
    """One policy process. The constructor returns while the process is still starting.

    Args:
        name: the name of the policy in messages.
        segment: the memory of its mailbox.
        start: what the process is made from.
    """

    def __init__(self, name: str, segment: Segment, start: PolicyStart) -> None:
        self.name, self._start = name, start
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._ended: tuple[str, str] | None = None
        self._pipe, theirs = context().Pipe()
        try:
            self._child = Child(name, _policy_process.enter, (segment, theirs, start))
        finally:
            theirs.close()

    def hear(self) -> tuple[str, str] | None:
        """Return how the process ended, as cause and detail; None while it lives."""
        if self._ended is None:
            self._ended = self._listen()
        return self._ended

    def _listen(self) -> tuple[str, str] | None:
        """Read the messages of the guard."""
        gone = self._child.exit is not None  # looked up first: if gone, the pipe holds all messages
        while self._pipe.poll(0):
            try:
                kind, value = _guard.unpack(self._pipe.recv_bytes(64))
            except (EOFError, ConnectionError):
                break
            if kind == _guard.STARTED:
                self._take(value)
            elif kind == _guard.MEMORY:
                return "memory", f"more than {format_bytes(self._start.memory_bytes or 0)} of memory"
            elif kind == _guard.TASKS:
                return self._too_many_tasks
            elif kind == _guard.FOLDER:
                return "refused", f"more than {format_bytes(self._start.folder_bytes)} in its folder"
            elif kind == _guard.LIMITS:
                return "refused", "it changed the limits of its guard"
            elif kind == _guard.REFUSED:
                return "start", f"{self.name} could not be started: {os.strerror(value)}"
            else:
                return "died", _ending(os.waitstatus_to_exitcode(value))
        if not gone:
            return None
        code = self._child.exit
        return "died", "killed together with its guard" if self._start.guarded or code is None else _ending(code)

    def refused_a_task(self) -> tuple[str, str] | None:
        """If the kernel refused a thread or a process to the policy, return this failure as cause and detail; else
        None."""
        if not self._start.guarded:
            return None
        # checked before the guard ends, because the guard removes the group at its end
        refused = refused_a_task(self._start.mark)
        return self._too_many_tasks if refused or self.hear() == self._too_many_tasks else None

    @property
    def _too_many_tasks(self) -> tuple[str, str]:
        return "refused", f"more than {self._start.tasks} threads and processes at once"

    def _take(self, pid: int) -> None:
        self._pid = pid
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(pid)

    def cpu_s(self) -> float:
        """CPU time of the process and all its descendants, in seconds; 0 if the process has ended."""
        if self.hear() is not None or self._pid is None:
            return 0.0
        return _usage.cpu_s([self._pid, *_usage.descendants(self._pid)])

    def memory_bytes(self) -> int:
        """Private memory of the process and all its descendants, in bytes; 0 if the process has ended."""
        if self.hear() is not None or self._pid is None or sys.platform != "linux":
            return 0
        return sum(_usage.private_bytes(pid) for pid in (self._pid, *_usage.descendants(self._pid)))

    def starved_s(self) -> float:
        """Seconds for which the process's main thread, which makes the decisions, was ready but waited for a CPU."""
        if self._pid is None or sys.platform != "linux":
            return 0.0
        try:
            with open(f"/proc/{self._pid}/schedstat") as file:
                return int(file.read().split()[1]) / 1e9
        # the process has ended, or this kernel does not measure that time
        except (FileNotFoundError, ProcessLookupError):
            return 0.0

    def end(self) -> None:
        """End the process and all processes that it started, and wait until they are dead."""
        self._pipe.close()  # when the pipe is closed, the guard kills everything
        self._child.resume()  # the policy may have stopped its guard by a signal
        try:
            if not (self._start.guarded and self._child.join(DEATH_S) and self._child.exit == 0):
                self._kill()
        finally:
            if self._pidfd is not None:
                os.close(self._pidfd)
            if self._start.sandbox is not None:
                _sandbox.remove(self._start.sandbox.folder)
            if self._start.guarded:
                remove_groups(self._start.mark)
        self._child.close()

    def _kill(self) -> None:
        """Kill without a guard: all processes with the policy's mark or, where there are no marks, the process and its
        group."""
        self._child.kill(DEATH_S)
        if left := end_marked(lambda mark: mark == self._start.mark, 0.0, DEATH_S):
            raise WaitTimeoutError(f"{self.name}: pid {left[0]} did not die within {DEATH_S:g} s of SIGKILL")
        if self._pid is None or self._pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.killpg(self._pid, signal.SIGKILL)
        if not multiprocessing.connection.wait([self._pidfd], DEATH_S):
            raise WaitTimeoutError(f"{self.name} (pid {self._pid}) did not die within {DEATH_S:g} s of SIGKILL")


def _ending(code: int) -> str:
    return f"killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

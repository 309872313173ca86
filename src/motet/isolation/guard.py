"""The guard: the parent process of a policy process on Linux. It runs no code of the policy.

The guard reads the policy's output from a pipe. It reports how the policy process ended through another pipe, to which
the policy has no access. The guard exits after everything that the policy started is dead.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from motet.isolation.groups import refused_a_task, remove_groups, was_out_of_memory
from motet.isolation.mailbox import Mailbox
from motet.isolation.sandbox import remove
from motet.isolation.usage import MemoryWatch, descendants, folder_size, limits_of, tasks_of

if TYPE_CHECKING:
    from motet.isolation.process import PolicyStart

__all__ = [
    "ENDED",
    "FOLDER",
    "LIMITS",
    "MEMORY",
    "MESSAGE",
    "REFUSED",
    "STARTED",
    "TASKS",
    "Guard",
    "Output",
    "drain",
    "unpack",
]

# Messages: the process id; the exit status, as from waitpid; the error number with which the system refused to start
# the policy process; the reasons for which the guard kills.
STARTED, ENDED, REFUSED, MEMORY, TASKS, FOLDER, LIMITS = 1, 2, 3, 4, 5, 6, 7
MESSAGE = struct.Struct("<Bq")

_CHECK_S = 0.025
_CLOSE_CHECK_S = 0.004
"""Seconds between two checks of the memory when at least half of the limit is used."""
_LEISURE = 20
"""The pause after a count of the processes, or of the folder, is at least this many times as long as the count."""
_DEATH_S = 30.0


def unpack(message: bytes) -> tuple[int, int]:
    """Return the kind and the value of a message from the pipe."""
    kind, value = MESSAGE.unpack(message)
    return kind, value


class Output:
    """Keeps the end of the policy's output in the mailbox."""

    def __init__(self, fd: int, mailbox: Mailbox) -> None:
        self.fd, self._mailbox, self._written = fd, mailbox, 0
        self._memory = memoryview(mailbox.output.data)

    def read(self) -> bool:
        """Read the output that has arrived. Return False at the end of the output."""
        at = self._written % len(self._memory)
        count = os.readv(self.fd, [self._memory[at:]])
        self._written += count
        self._mailbox.written[0] = self._written
        return count > 0


def drain(output: Output) -> None:
    """Read all output of the policy, to its end."""
    while output.read():
        pass


def _leave(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)


class Guard:
    """Watches one policy process and everything it starts.

    The guard does not die with the fork server that it was forked from, because it still has to kill the policy then.
    It notices the end of the parent by the pipe. If the guard was stopped, the kernel sends it SIGCONT when the parent
    ends. If only the fork server ends, the guard's process group becomes orphaned: the kernel sends such a group
    SIGHUP, which the guard ignores, and SIGCONT.
    """

    def __init__(self, pid: int, output: Output, pipe: Connection, start: PolicyStart, mailbox: Mailbox) -> None:
        self._pid, self._output, self._pipe, self._start, self._mailbox = pid, output, pipe, start, mailbox
        self._status = 0
        self._below: list[int] = []
        self._count_at = self._size_at = 0.0
        self._limits = limits_of()
        limit = start.memory_bytes
        self._memory = None if limit is None else MemoryWatch(limit, mailbox.segment.size)

    def run(self) -> NoReturn:
        """Watch the policy, then kill everything and report the reason."""
        try:
            # the kernel sends this signal if the parent ends without closing the pipe
            signal.signal(signal.SIGTERM, _leave)
            try:
                why = self._watch()
            except SystemExit:
                why = ENDED
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end()
            # Write to the pipe before ringing: a parent woken by the bell must find the message. Ignore the error if
            # the parent is gone.
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(MESSAGE.pack(why, self._status))
            self._mailbox.answered.ring()
        finally:
            os._exit(0)

    def _watch(self) -> int:
        """Wait until there is a reason to end, and return the reason."""
        pidfd = os.pidfd_open(self._pid)
        poll = select.poll()
        for fd in (pidfd, self._pipe.fileno(), self._output.fd):
            poll.register(fd, select.POLLIN)
        pause_s = _CHECK_S
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * pause_s)}
            if self._output.fd in ready and not self._output.read():
                poll.unregister(self._output.fd)
            if ready & {pidfd, self._pipe.fileno()}:
                return MEMORY if self._was_out_of_memory() else ENDED
            if why := self._excess():
                return why
            pause_s = self._pause_s

    def _excess(self) -> int | None:
        """Return the limit that the policy exceeds, or None."""
        now, grouped = time.monotonic(), self._start.grouped
        if now >= self._count_at:
            self._below = descendants(os.getpid())
            self._reap(self._below)
            if tasks_of(self._below) > self._start.tasks or ("pids" in grouped and refused_a_task(self._start.mark)):
                return TASKS
            if self._was_out_of_memory():
                return MEMORY
            if limits_of() != self._limits:
                return LIMITS
            # If the kernel limits the tasks, counting them is not urgent.
            pause_s = 8 * _CHECK_S if "pids" in grouped and self._memory is None else _CHECK_S
            self._count_at = time.monotonic() + max(pause_s, _LEISURE * (time.monotonic() - now))
        self._pause_s = max(0.001, self._count_at - time.monotonic())
        if self._memory is not None:
            share = self._memory.share(self._below)
            if share > 1:
                return MEMORY
            self._pause_s = min(self._pause_s, _CHECK_S if share < 0.5 else _CLOSE_CHECK_S)
        return self._excess_of_folder()

    def _was_out_of_memory(self) -> bool:
        """Whether the kernel has killed a process of the policy because of its memory."""
        return "memory" in self._start.grouped and was_out_of_memory(self._start.mark)

    def _excess_of_folder(self) -> int | None:
        if self._start.sandbox is None or self._start.sandbox.limited or time.monotonic() < self._size_at:
            return None
        began = time.monotonic()
        if folder_size(self._start.sandbox.folder, self._below) > self._start.folder_bytes:
            return FOLDER
        took_s = time.monotonic() - began
        self._size_at = began + max(2 * _CHECK_S, _LEISURE * took_s)
        self._pause_s = min(self._pause_s, 2 * _CHECK_S)
        return None

    def _reap(self, below: list[int]) -> None:
        """Reap the orphans that have exited."""
        for pid in below:
            if pid != self._pid:
                # this process is not a child of the guard, so it is not an orphan
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _end(self) -> None:
        """Kill all processes and wait until they are dead. Orphans become children of the guard, so none is missed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + _DEATH_S
        while time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while (dead := os.waitpid(-1, os.WNOHANG))[0]:
                    if dead[0] == self._pid:
                        self._status = dead[1]
            except ChildProcessError:
                break
            time.sleep(0.0002)
        os.set_blocking(self._output.fd, False)
        with contextlib.suppress(BlockingIOError):
            drain(self._output)
        if self._start.sandbox is not None:
            remove(self._start.sandbox.folder)
        if self._start.grouped:
            remove_groups(self._start.mark)

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
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from motet.isolation.mailbox import Mailbox
from motet.isolation.sandbox import remove

if TYPE_CHECKING:
    from motet.isolation.process import PolicyStart

__all__ = [
    "ENDED",
    "MEMORY",
    "MESSAGE",
    "MOST_DESCENDANTS",
    "REFUSED",
    "STARTED",
    "TOO_MANY",
    "Guard",
    "Output",
    "descendants",
    "drain",
    "unpack",
]

# Messages: the process id; the exit status, as from waitpid; the two reasons for which the guard kills; the error
# number with which the system refused to start the policy process.
STARTED, ENDED, MEMORY, TOO_MANY, REFUSED = 1, 2, 3, 4, 5
MESSAGE = struct.Struct("<Bq")

MOST_DESCENDANTS = 32
"""Maximum number of processes that a policy may have at once. (The kernel's limit by user does not hold for root.)"""

_CHECK_S = 0.025
_LEISURE = 20
"""The pause after a check of the memory is at least this many times as long as the check."""
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
        """Read what is there. Return False at the end of the output."""
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
        self._check_at = 0.0

    def run(self) -> NoReturn:
        """Watch the policy, then kill everything and report the reason."""
        try:
            signal.signal(signal.SIGTERM, _leave)  # sent by a parent that ends without closing the pipe
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
        """Wait until there is a reason to end, and return it."""
        pidfd = os.pidfd_open(self._pid)
        poll = select.poll()
        for fd in (pidfd, self._pipe.fileno(), self._output.fd):
            poll.register(fd, select.POLLIN)
        watched = self._start.memory_bytes is not None
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * (_CHECK_S if watched else 8 * _CHECK_S))}
            if self._output.fd in ready and not self._output.read():
                poll.unregister(self._output.fd)
            if ready & {pidfd, self._pipe.fileno()}:
                return ENDED
            if time.monotonic() >= self._check_at and (why := self._excess()):
                return why

    def _excess(self) -> int | None:
        """Return the limit that the policy exceeds, or None."""
        begun = time.monotonic()
        below = descendants(os.getpid())
        self._reap(below)
        if len(below) > 1 + MOST_DESCENDANTS:
            return TOO_MANY
        limit = self._start.memory_bytes
        if limit is not None and sum(map(self._at_most, below)) > limit and sum(map(self._private, below)) > limit:
            return MEMORY
        self._check_at = time.monotonic() + max(_CHECK_S, _LEISURE * (time.monotonic() - begun))
        return None

    def _at_most(self, pid: int) -> int:
        """Return an upper bound of a process's memory, quickly: pages shared since the fork count in full."""
        found = _numbers(f"/proc/{pid}/status", ("RssAnon:", "VmSwap:", "RssShmem:"))
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _private(self, pid: int) -> int:
        """Return a process's memory exactly: a page shared by n processes counts as 1/n."""
        try:
            found = _numbers(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "SwapPss:", "Pss_Shmem:"))
        except PermissionError:  # the process made itself unreadable
            return self._at_most(pid)
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _reap(self, below: list[int]) -> None:
        """Reap the orphans that have exited."""
        for pid in below:
            if pid != self._pid:
                with contextlib.suppress(ChildProcessError):  # not a child of the guard, so not an orphan
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


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, zombies included."""
    found, todo = list[int](), [pid]
    while todo:
        below = list(_children(todo.pop()))
        found += below
        todo += below
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def _numbers(path: str, names: tuple[str, ...]) -> list[int]:
    """Read bytes by name from a file with lines ``Name:  123 kB``; 0 for names that are missing."""
    found = dict.fromkeys(names, 0)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:  # the process has ended
        for line in file:
            name, *rest = line.split()
            if name in found:
                found[name] = int(rest[0]) * 1024
    return list(found.values())

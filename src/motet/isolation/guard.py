"""The guard: the parent of a policy process on Linux, which runs nothing of the policy's.

Flows in: what the policy prints, by a pipe; flows out: how it ended, by another one that the policy never has. The
guard ends after everything that the policy started is dead.
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
    "STARTED",
    "TOO_MANY",
    "Guard",
    "Output",
    "descendants",
    "drain",
    "unpack",
]

# What comes by the pipe: the process number; how it ended (as from waitpid); what it was killed for.
STARTED, ENDED, MEMORY, TOO_MANY = 1, 2, 3, 4
MESSAGE = struct.Struct("<Bq")

MOST_DESCENDANTS = 32
"""More processes than this a policy may not have at once. (A limit by user would not hold for root.)"""

_CHECK_S = 0.025
_LEISURE = 20
"""A check of the memory that takes long is followed by a pause this many times as long."""
_DEATH_S = 30.0


def unpack(message: bytes) -> tuple[int, int]:
    """Kind and value of what came by the pipe."""
    kind, value = MESSAGE.unpack(message)
    return kind, value


class Output:
    """The last of what the policy printed, kept in the mailbox."""

    def __init__(self, fd: int, mailbox: Mailbox) -> None:
        self.fd, self._mailbox, self._written = fd, mailbox, 0
        self._memory = memoryview(mailbox.output.data)

    def read(self) -> bool:
        """Take what is there; False at its end."""
        at = self._written % len(self._memory)
        count = os.readv(self.fd, [self._memory[at:]])
        self._written += count
        self._mailbox.written[0] = self._written
        return count > 0


def drain(output: Output) -> None:
    """Take all that the policy prints, until its end."""
    while output.read():
        pass


def _leave(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)


class Guard:
    """Watches one policy process and everything it starts.

    It is deaf to the death of the fork server it came from, because it has work to do then: it learns of the parent's
    end by the pipe. Should it have been stopped, the kernel wakes it when the parent ends. If only the server ends, it
    is the last of its process group: the kernel sends such a group SIGHUP, which it ignores, and SIGCONT.
    """

    def __init__(self, pid: int, output: Output, pipe: Connection, start: PolicyStart, mailbox: Mailbox) -> None:
        self._pid, self._output, self._pipe, self._start, self._mailbox = pid, output, pipe, start, mailbox
        self._status = 0
        self._check_at = 0.0

    def run(self) -> NoReturn:
        """Watch, and see everything dead."""
        try:
            signal.signal(signal.SIGTERM, _leave)  # a parent that ends without closing anything sends it
            try:
                why = self._watch()
            except SystemExit:
                why = ENDED
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end()
            # Into the pipe first: whoever is woken by the bell finds it there. A parent that is gone does not care.
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(MESSAGE.pack(why, self._status))
            self._mailbox.answered.ring()
        finally:
            os._exit(0)

    def _watch(self) -> int:
        """Wait until there is a reason for the end, and say which."""
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
        """Whether the policy has more than it may."""
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
        """Quickly: a bound on the memory of a process, what it shares with the process it was copied from included."""
        found = _numbers(f"/proc/{pid}/status", ("RssAnon:", "VmSwap:", "RssShmem:"))
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _private(self, pid: int) -> int:
        """In truth, each page divided among those who share it."""
        try:
            found = _numbers(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "SwapPss:", "Pss_Shmem:"))
        except PermissionError:  # it made itself unreadable
            return self._at_most(pid)
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _reap(self, below: list[int]) -> None:
        """Bury the orphans that ended by themselves."""
        for pid in below:
            if pid != self._pid:
                with contextlib.suppress(ChildProcessError):  # not an orphan
                    os.waitpid(pid, os.WNOHANG)

    def _end(self) -> None:
        """Kill all, and wait until they are dead. Orphans come to the guard, so none is missed."""
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
    """All processes below one, ended but unburied ones too."""
    found, todo = list[int](), [pid]
    while todo:
        below = list(_children(todo.pop()))
        found += below
        todo += below
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def _numbers(path: str, names: tuple[str, ...]) -> list[int]:
    """Bytes by name from a file of ``Name:  123 kB``; 0 for what is not there."""
    found = dict.fromkeys(names, 0)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:  # it ended meanwhile
        for line in file:
            name, *rest = line.split()
            if name in found:
                found[name] = int(rest[0]) * 1024
    return list(found.values())

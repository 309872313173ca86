"""What a policy process and its descendants use: tasks, memory, CPU time and disk space, read from the kernel."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "MemoryWatch",
    "PolicyUsage",
    "cpu_s",
    "descendants",
    "folder_size",
    "limits_of",
    "private_bytes",
    "tasks_of",
]


@dataclass
class PolicyUsage:
    """What the processes of a policy have used.

    >>> usage = PolicyUsage(memory_bytes=3, started=1)
    >>> usage.merge(PolicyUsage(memory_bytes=2, started=2))
    >>> usage.memory_bytes, usage.started
    (3, 3)
    """

    memory_bytes: int = 0
    """Largest measured private memory of one process with its descendants. Memory is measured at most once a second."""
    cpu_s: float = 0.0
    """CPU time of all processes, in seconds, up to the last measurement."""
    started: int = 0
    """Number of processes that were started for the policy."""
    replaced: int = 0
    """Number of processes that were started because one had failed."""
    start_s: float = 0.0
    """Longest time in seconds until the policy was made."""
    resets: int = 0
    reset_s: float = 0.0
    """Seconds of all resets together."""
    longest_reset_s: float = 0.0

    def merge(self, other: PolicyUsage) -> None:
        """Add what other processes of the same policy have used."""
        for name in ("memory_bytes", "start_s", "longest_reset_s"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for name in ("cpu_s", "started", "replaced", "resets", "reset_s"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


_CONFIRM_BELOW = 1.05
"""An estimate above the limit is confirmed by an exact measurement, unless it is above this many times the limit."""
_LEISURE = 4
"""The pause after an exact measurement is at least this many times as long as the measurement."""


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


def tasks_of(pids: list[int]) -> int:
    """Return the number of threads of all these processes together. A process without other threads counts as one."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/stat") as file:
            total += int(file.read().rpartition(")")[2].split()[17])
    return total


def cpu_s(pids: list[int]) -> float:
    """Return the CPU time of these processes, in seconds."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            total += time.clock_gettime((~pid << 3) | 2)  # Linux's id of another process's CPU clock
    return total


def limits_of(pid: int | str = "self") -> str:
    """Return the limits of a process, as the kernel writes them."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/limits") as file:
        return file.read()
    return ""


def folder_size(folder: str, pids: list[int]) -> int:
    """Return the bytes that a folder and its deleted files, if these processes have them open, take on the disk."""
    total = 0
    todo = [folder]
    while todo:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError),
            os.scandir(todo.pop()) as all_,
        ):
            for entry in all_:
                with contextlib.suppress(FileNotFoundError):
                    total += _taken(entry.stat(follow_symlinks=False))
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found = os.stat(f"/proc/{pid}/fd/{name}")
                    if stat.S_ISREG(found.st_mode) and not found.st_nlink:
                        total += _taken(found)
    return total


def _taken(found: os.stat_result) -> int:
    return max(4096, found.st_blocks * 512)  # an empty file takes space too


def quick_bytes(pid: int, shared: int) -> int:
    """Return an upper bound of a process's memory, quickly: pages shared since the fork count in full."""
    found = _numbers(f"/proc/{pid}/status", ("RssAnon:", "VmSwap:", "RssShmem:"))
    return found[0] + found[1] + max(found[2] - shared, 0)


def private_bytes(pid: int, shared: int = 0) -> int:
    """Return a process's memory exactly: a page shared by n processes counts as 1/n. ``shared``: bytes not to count."""
    try:
        found = _numbers(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "SwapPss:", "Pss_Shmem:"))
    except PermissionError:  # the process made itself unreadable
        return quick_bytes(pid, shared)
    return found[0] + found[1] + max(found[2] - shared, 0)


class MemoryWatch:
    """Compares the memory of some processes with a limit, quickly even if the processes have many mappings.

    The kernel counts the resident memory of a process, but pages shared with the process that forked it are included.
    An exact measurement walks through all mappings and takes long if there are many. So the memory is estimated, from
    the growth of the resident memory since the process was first seen and, if that is more, from the last exact
    measurement and the growth since then. No exact measurement is needed while all resident memory is below the limit.

    Args:
        limit: maximum bytes.
        shared: bytes of shared memory in each process that do not count.
    """

    def __init__(self, limit: int, shared: int) -> None:
        self._limit, self._shared = limit, shared
        self._first: dict[int, int] = {}  # by process: its resident memory when the process was first seen
        # by process: its exact measurement, and its resident memory at that time
        self._exact: dict[int, tuple[int, int]] = {}
        self._exact_at = 0.0

    def share(self, pids: list[int]) -> float:
        """Return the share of the limit that is used, or an upper bound of it if that is below 1."""
        quick = {pid: quick_bytes(pid, self._shared) for pid in pids}
        estimate = self._estimate(quick)
        if sum(quick.values()) <= self._limit:
            return sum(quick.values()) / self._limit
        if estimate <= _CONFIRM_BELOW * self._limit and time.monotonic() >= self._exact_at:
            self._measure(pids)
            estimate = self._estimate(quick)
        return estimate / self._limit

    def _estimate(self, quick: dict[int, int]) -> int:
        total = 0
        for pid, now in quick.items():
            growth = now - self._first.setdefault(pid, now)
            exact, then = self._exact.get(pid, (0, now))
            total += max(growth, exact + now - then)
        return total

    def _measure(self, pids: list[int]) -> None:
        began = time.monotonic()
        self._exact = {pid: (private_bytes(pid, self._shared), quick_bytes(pid, self._shared)) for pid in pids}
        took_s = time.monotonic() - began
        self._exact_at = began + (1 + _LEISURE) * took_s


def _numbers(path: str, names: tuple[str, ...]) -> list[int]:
    """Read bytes by name from a file with lines ``Name:  123 kB``; 0 for names that are missing."""
    found = dict.fromkeys(names, 0)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:  # the process has ended
        for line in file:
            name, *rest = line.split()
            if name in found:
                found[name] = int(rest[0]) * 1024
    return list(found.values())

"""Marks of policy processes: a number that a process inherits from the guard, however it was started or detached.

A policy without a sandbox can kill its guard. The processes that it started can then not be found by process group,
session or parent. So every guard carries a mark, which all processes below it inherit: a limit on file locks, which
Linux stores but has not enforced since version 2.4. A process can lower such a limit but not raise
it again. The mark holds the process id of the parent and a random number.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable

__all__ = ["carry_mark", "end_marked", "is_mark_of", "new_mark"]

_RLIMIT_LOCKS = 10
_LOOK_S = 0.002
_LINE = "Max file locks"


def new_mark() -> int:
    """Return a new mark for a policy of this process."""
    return os.getpid() << 32 | secrets.randbits(32)


def is_mark_of(pid: int) -> Callable[[int], bool]:
    """Return a function that tells whether a mark was made by the process with this id."""
    return lambda mark: mark >> 32 == pid


def carry_mark(mark: int) -> None:
    """Give this process, and all that it will start, a mark. A policy in a policy keeps the mark of the outer one."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(_RLIMIT_LOCKS, (mark, mark))


def end_marked(which: Callable[[int], bool], patience_s: float, timeout_s: float) -> list[int]:
    """Wait until no process has such a mark. Kill the processes that still have one after ``patience_s``.

    Returns the process ids that are still there after ``timeout_s``. Only on Linux; elsewhere there are no marks.
    """
    began = time.monotonic()
    while left := _marked(which):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            break
        if waited_s >= patience_s:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)
    return left


def _marked(which: Callable[[int], bool]) -> list[int]:
    if sys.platform != "linux":
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and which(_mark_of(name))]


def _mark_of(pid: str) -> int:
    """Return the mark of a process; 0 if the process has no mark or is dead, even if its parent has not reaped it."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/limits") as file:
        line = next((line for line in file if line.startswith(_LINE)), "")
        mark = int(line.split()[-2])  # "unlimited" is not a number
        with open(f"/proc/{pid}/stat") as stat:
            return 0 if stat.read().rpartition(")")[2].split()[0] in "ZX" else mark
    return 0

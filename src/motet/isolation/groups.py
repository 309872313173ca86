"""Control groups of policy processes: where the system allows it, the kernel limits how many tasks a policy has.

The guard creates a group for its policy below the group that it is in itself, and removes it at the end. No other
process is moved, and no other group is changed. Both versions of control groups work. Where no group can be created, as
in most containers, the guard counts the tasks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

__all__ = ["TaskGroup", "has_task_groups", "refused_a_task", "remove_group"]

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_REMOVE_S = 1.0


class TaskGroup:
    """A control group with a limit on tasks. Raises OSError if it cannot be created.

    Args:
        mark: number that makes its name unique, so that others can remove it: the mark of the policy.
        tasks: maximum number of threads and processes.
    """

    def __init__(self, mark: int, tasks: int, root: Path = _ROOT) -> None:
        self._folder = _home(root) / _name(mark)
        self._folder.mkdir()
        try:
            (self._folder / "pids.max").write_text(str(tasks))
        except OSError:
            self._folder.rmdir()
            raise

    def join(self) -> None:
        """Move this process into the group."""
        (self._folder / "cgroup.procs").write_text("0")


def refused_a_task(mark: int, root: Path = _ROOT) -> bool:
    """Whether the kernel has refused a thread or a process in the group with this mark."""
    try:
        return (_home(root) / _name(mark) / "pids.events").read_text().split() not in ([], ["max", "0"])
    except OSError:  # there is no such group
        return False


def remove_group(mark: int, root: Path = _ROOT) -> None:
    """Remove the group with this mark, if there is one. Its processes must be dead."""
    try:
        folder = _home(root) / _name(mark)
    except OSError:
        return
    deadline = time.monotonic() + _REMOVE_S
    with contextlib.suppress(FileNotFoundError):
        while True:
            try:
                folder.rmdir()
                return
            except OSError as error:  # the kernel frees the last task a moment after its death
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)


def has_task_groups(root: Path = _ROOT) -> bool:
    """Whether a control group with a limit on tasks can be created here."""
    probe = -os.getpid()
    try:
        TaskGroup(probe, 16, root)
        remove_group(probe, root)
    except OSError:
        return False
    return True


def _name(mark: int) -> str:
    return f"motet-policy-{mark:x}"


def _home(root: Path) -> Path:
    """Return the group that this process is in. Raises OSError if it has no limit on tasks."""
    for line in _MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            return root / "pids" / path.lstrip("/")
    # In version 2 a group with processes cannot have groups with limits below it, except for the root.
    if "pids" in (root / "cgroup.subtree_control").read_text().split():
        return root
    raise FileNotFoundError(errno.ENOENT, "there is no control group with a limit on tasks")

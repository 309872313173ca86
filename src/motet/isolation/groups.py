"""Control groups of policy processes: where the system allows it, the kernel limits tasks and memory of a policy.

The guard creates groups for its policy below the groups that it is in itself, and removes them at the end. No other
process is moved, and no other group is changed. Both versions of control groups work. Where no group can be created, as
in most containers, the guard counts the tasks and watches the memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Literal

__all__ = ["Controller", "PolicyGroup", "has_groups", "refused_a_task", "remove_groups", "was_out_of_memory"]

Controller = Literal["pids", "memory"]

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_REMOVE_S = 1.0
# By controller, the files that hold a group's limits: those of version 1, then those of version 2. The first file of a
# version must exist.
_LIMITS = {
    "pids": (("pids.max",), ("pids.max",)),
    "memory": (("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max",)),
}


class PolicyGroup:
    """A control group with a limit. Raises OSError if it cannot be created.

    Args:
        controller: what is limited. In version 2 of control groups, all controllers share one group.
        mark: the mark of the policy. It makes the group's name unique, and lets other processes find and remove the
            group.
        limit: maximum number of threads and processes, or of bytes.
    """

    def __init__(self, controller: Controller, mark: int, limit: int, root: Path = _ROOT) -> None:
        home, version = _home(controller, root)
        self._folder = home / _name(mark)
        fresh = not self._folder.exists()
        self._folder.mkdir(exist_ok=True)
        first, *others = _LIMITS[controller][version - 1]
        try:
            (self._folder / first).write_text(str(limit))
            for name in others:
                with contextlib.suppress(OSError):  # the kernel does not count swapped memory
                    (self._folder / name).write_text(str(limit))
        except OSError:
            if fresh:
                self._folder.rmdir()
            raise

    def join(self) -> None:
        """Move this process into the group."""
        (self._folder / "cgroup.procs").write_text("0")


def refused_a_task(mark: int, root: Path = _ROOT) -> bool:
    """Whether the kernel has refused a thread or a process in the group with this mark."""
    return _counted("pids", "max", mark, root) > 0


def was_out_of_memory(mark: int, root: Path = _ROOT) -> bool:
    """Whether the kernel has killed a process in the group with this mark because it used too much memory."""
    return _counted("memory", "oom_kill", mark, root) > 0


def _counted(controller: Controller, event: str, mark: int, root: Path) -> int:
    """Return how often an event has happened in a group; 0 if there is no such group."""
    try:
        home, version = _home(controller, root)
        name = "memory.oom_control" if (controller, version) == ("memory", 1) else f"{controller}.events"
        lines = (home / _name(mark) / name).read_text().splitlines()
    except OSError:
        return 0
    return sum(int(count) for name, count in map(str.split, lines) if name == event)


def remove_groups(mark: int, root: Path = _ROOT) -> None:
    """Remove the groups with this mark, if there are any. The processes in these groups must be dead."""
    deadline = time.monotonic() + _REMOVE_S
    controllers: tuple[Controller, ...] = ("pids", "memory")
    for controller in controllers:
        try:
            folder = _home(controller, root)[0] / _name(mark)
        except OSError:
            continue
        with contextlib.suppress(FileNotFoundError):
            while True:
                try:
                    folder.rmdir()
                    break
                # the kernel removes the last task from the group a moment after the task's death
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > deadline:
                        raise
                time.sleep(0.001)


def has_groups(controller: Controller, root: Path = _ROOT) -> bool:
    """Whether a control group with a limit by this controller can be created here."""
    probe = -os.getpid()
    try:
        PolicyGroup(controller, probe, 1 << 20, root)
        remove_groups(probe, root)
    except OSError:
        return False
    return True


def _name(mark: int) -> str:
    return f"motet-policy-{mark:x}"


def _home(controller: Controller, root: Path) -> tuple[Path, int]:
    """Return the group under which groups can be created, and the version of control groups. Raises OSError if there is
    none."""
    for line in _MEMBERSHIP.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return root / controller / path.lstrip("/"), 1
    # In version 2, a group that contains processes cannot have subgroups with limits; only the root group can.
    if controller in (root / "cgroup.subtree_control").read_text().split():
        return root, 2
    raise FileNotFoundError(errno.ENOENT, f"there is no control group with a limit on {controller}")

"""Resources of this machine: cores, memory, and how much of them is in use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from motet.errors import MotetError

__all__ = ["available_bytes", "cgroup_room", "idle_s", "meminfo", "own_bytes", "resident_bytes", "usable_cores"]

HEADROOM = 0.95
"""Fraction of the available memory that one segment may take: the processes themselves need memory too."""


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def idle_s() -> float | None:
    """Seconds that the machine's cores have been idle, summed over all cores; None where that cannot be read."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    fields = stat.read_text().split(maxsplit=6)
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")  # idle, and waiting for a disk


def resident_bytes(*, mapped: bool = True) -> int:
    """Resident memory of this process in bytes; 0 where that cannot be read. ``mapped``: mapped files are included."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    resident, shared = (int(pages) for pages in statm.read_text().split()[1:3])
    return (resident if mapped else resident - shared) * os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int | None:
    """Resident memory of a process without what it shares with others, in bytes; None where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return None  # the process has ended, or this system has no such files
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 2 else None


def available_bytes(directory: str | os.PathLike[str] | None = None) -> int | None:
    """Bytes that a new segment may take; None where that is not known.

    In memory: the minimum of the free memory and of what every control group still allows. With a directory: the free
    space of its file system.
    """
    if directory is not None:
        stat = os.statvfs(directory)
        return int(stat.f_bavail * stat.f_frsize * HEADROOM)
    if sys.platform != "linux":
        return None
    limits = [meminfo("MemAvailable"), *cgroup_room()]
    return int(max(min(limits), 0) * HEADROOM)


def meminfo(key: str) -> int:
    """An entry of ``/proc/meminfo`` in bytes, e.g. ``MemAvailable``."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise MotetError(f"/proc/meminfo has no {key}")


def cgroup_room() -> list[int]:
    """Bytes that each memory control group, from that of this process up to the root, still allows."""
    room: list[int] = []
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage, stat = Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file "
        elif "memory" in controllers.split(","):
            base, limit, usage = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
            stat = "total_inactive_file "
        else:
            continue
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            if (left := _cgroup_left(folder, limit, usage, stat)) is not None:
                room.append(left)
    return room


def _cgroup_left(folder: Path, limit: str, usage: str, stat: str) -> int | None:
    try:
        most = (folder / limit).read_text().strip()
        if most == "max":
            return None
        used = int((folder / usage).read_text())
        reclaimable = sum(
            int(line.removeprefix(stat))
            for line in (folder / "memory.stat").read_text().splitlines()
            if line.startswith(stat)
        )
    except FileNotFoundError:  # the root group, or a namespace that does not show this one
        return None
    return int(most) - used + reclaimable

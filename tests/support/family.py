"""Find the descendants of a process."""

import os
from pathlib import Path


def descendants() -> set[str]:
    """The ids of this process and of all its children and theirs, but for the dead ones."""
    parents: dict[str, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it ended meanwhile
                continue
            if state != "Z":
                parents[entry.name] = parent
    mine, grown = {str(os.getpid())}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine, grown = mine | more, bool(more)
    return mine


def runs(pid: int) -> bool:
    """Whether a process lives. One that is dead but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False

"""Status of runs on disk: whether a run is alive, and its snapshots.

A running process holds a lock on the ``.lock`` file of its run directory. The kernel releases the lock when the process
dies in any way. So whether a run is alive does not have to be guessed from process ids, and two processes never write
to the same run.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from motet.errors import CorruptionError, SettingError
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import AgentRow, PartnerRow, ProcessRow, Snapshot
from motet.system.files import file_name
from motet.system.gpus import GpuUse
from motet.text import typed

__all__ = [
    "hold",
    "is_alive",
    "new_directory",
    "read_history",
    "read_lines",
    "read_status",
    "snapshot_from",
]


@contextlib.contextmanager
def hold(run: Path) -> Iterator[None]:
    """Hold the lock of a run, as the only process that writes to it."""
    lock = run / ".lock"
    try:
        opened = lock.open("w")
    except OSError as error:
        raise SettingError(f"run: {str(run)!r} cannot be written: {error.strerror or error}") from error
    with opened as file:
        if not _lock(file.fileno()) or not _is_at(file.fileno(), lock):
            raise SettingError(f"run: {str(run)!r} is being written by another process; see motet status {typed(run)}")
        yield


def is_alive(run: Path) -> bool:
    """Whether a process is writing to this run now."""
    try:
        with (run / ".lock").open("r") as file:
            return not _lock(file.fileno())
    except FileNotFoundError:
        return False


def _lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks: every process gets the lock
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: Path) -> bool:
    """Whether the path still names this file: the lock file is deleted with a run that never began."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def new_directory(world: str, algorithm: str, parent: Path = Path("runs")) -> Path:
    """Make a new, empty directory ``runs/<world>-<algorithm>-<date>-<n>``."""
    name = f"{file_name(world) or 'world'}-{file_name(algorithm) or 'algorithm'}-{time.strftime('%Y-%m-%d')}"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for n in range(1, 100_000):
            path = parent / f"{name}-{n}"
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
    except OSError as error:
        raise SettingError(f"run: {str(parent)!r} cannot be written: {error.strerror or error}") from error
    raise SettingError(f"run: {str(parent)!r} has too many runs of today; give a name with --run")


def read_status(run: RunDirectory) -> Snapshot:
    """The newest snapshot of a run."""
    path = run.path / "status.json"
    if not path.is_file():
        raise SettingError(f"run: {str(run.path)!r} has no status.json: it ended or is still before its first snapshot")
    try:
        return snapshot_from(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{path} cannot be read: {error}") from error


def read_history(run: RunDirectory) -> list[Snapshot]:
    """All snapshots of a run, oldest first. An incomplete last line is skipped."""
    path = run.path / "metrics.jsonl"
    found = []
    for number, line in read_lines(path):
        try:
            found.append(snapshot_from(line))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path}, line {number} cannot be read: {error}") from error
    return found


def read_lines(path: Path, damaged: dict[int, str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a JSON lines file with their numbers; nothing if the file does not exist.

    An incomplete last line is skipped, since it is being written. Lines that cannot be read are added to ``damaged``
    with the reason; if ``damaged`` is None, the first such line raises.
    """
    if not path.is_file():
        return
    with path.open(errors="replace") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith("\n"):
                return
            try:
                line = json.loads(text)
                if not isinstance(line, dict):
                    raise ValueError(f"expected a JSON object, got a {type(line).__name__}")
            except (ValueError, RecursionError) as error:
                if damaged is None:
                    raise CorruptionError(f"{path}, line {number} cannot be read: {error}") from error
                damaged[number] = str(error)
                continue
            yield number, line


def snapshot_from(plain: Mapping[str, Any]) -> Snapshot:
    """Rebuild a snapshot from its ``as_dict``; fields that this version does not know are ignored."""
    agents = [AgentRow(**_known(AgentRow, _renamed(row))) for row in plain["agents"]]
    processes = [ProcessRow(**_known(ProcessRow, row)) for row in plain["processes"]]
    partners = [PartnerRow(**_known(PartnerRow, row)) for row in plain.get("partners", [])]
    main = plain.get("main")
    known = {
        "agents": agents,
        "processes": processes,
        "partners": partners,
        "gpus": [GpuUse(**_known(GpuUse, row)) for row in plain.get("gpus", [])],
        "main": None if main is None else ProcessRow(**_known(ProcessRow, main)),
    }
    return Snapshot(**{**_known(Snapshot, plain), **known})


def _renamed(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an agent's row with the names of today; ``replay_ratio`` is now ``samples_per_row``."""
    if "replay_ratio" not in row:
        return row
    return {"samples_per_row": row["replay_ratio"], "updates_per_step": row["updates"] / max(row["steps"], 1), **row}


def _known(kind: type, plain: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {key: value for key, value in plain.items() if key in names}

"""Checkpoint: the state from which a run can be resumed, and how it is written and read.

A checkpoint is a folder: one safetensors file for each agent, ``checkpoint.json``, and optionally files of the replay
and the league. It is written under a temporary name and renamed when it is complete. Nothing in it is code.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.errors import CorruptionError, StorageError
from motet.runs.plain import decode, encode
from motet.system.files import file_stems, replace_folder, sync

__all__ = ["Checkpoint", "read_arrays", "read_checkpoint", "read_notes", "reading", "write_checkpoint"]

_LEAGUE = ".league.safetensors"  # the file of an agent never begins with a dot

Arrays = dict[str, npt.NDArray[Any]]


@dataclass
class Checkpoint:
    """The state from which a run can be resumed."""

    step: int
    agents: dict[str, Arrays]
    """For each agent: its flat ``state``, its ``counters``, its ``random`` stream and its ``reader``."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Plain values, written as JSON."""
    replay: dict[str, Arrays] = field(default_factory=dict)
    """For each agent: the bytes of its lanes, if the replay is kept."""
    league: Arrays = field(default_factory=dict)
    """In self-play: the pool, the win rates, and the results that were not processed yet."""


def read_arrays(path: Path) -> Arrays:
    """The arrays in a file of a checkpoint; nothing is unpickled."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        with reading(path), path.open("rb"):  # opened first: safetensors reports an unreadable file as missing
            return load_file(path)
    except (ValueError, SafetensorError) as error:
        raise CorruptionError(f"{path} cannot be read: {error}") from error


def read_notes(folder: Path) -> dict[str, Any]:
    """The contents of ``checkpoint.json``: ``step``, ``agents``, their ``files`` and, encoded, ``notes``."""
    path = folder / "checkpoint.json"
    try:
        with reading(path):
            found = json.loads(path.read_text())
        if not isinstance(found, dict) or not isinstance(found["agents"], list):
            raise ValueError("expected an object with a list of agents")
        # Older checkpoints do not list files: there an agent's file had the agent's name.
        given = found.get("files", {str(name): name for name in found["agents"]})
        found["files"] = {str(name): _stem(given, name) for name in found["agents"]}
    except (ValueError, KeyError) as error:
        raise CorruptionError(f"{path} cannot be read: {error}") from error
    return found


def _stem(given: Any, name: Any) -> str:
    """The name of an agent's file, without suffix. Raises if the file would be outside the checkpoint's folder."""
    if not isinstance(given, dict) or name not in given:
        raise ValueError(f"it does not name a file for {name!r}")
    stem = given[name]
    if not isinstance(stem, str) or "\0" in stem or Path(f"{stem}.x").name != f"{stem}.x":
        raise ValueError(f"it names {stem!r} as the file of {name!r}, which is not in its folder")
    return stem


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Translate errors of reading a file: a missing file is damage; a file that cannot be read now may still be
    intact."""
    try:
        yield
    except FileNotFoundError as error:
        raise CorruptionError(f"{path} is missing") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder."""
    found = read_notes(folder)
    try:
        step, notes = int(found["step"]), decode(found["notes"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(f"{folder / 'checkpoint.json'} cannot be read: {error!r}") from error
    files = found["files"]
    agents = {name: read_arrays(folder / f"{stem}.safetensors") for name, stem in files.items()}
    rows = {name: folder / f"{stem}.replay.safetensors" for name, stem in files.items()}
    replay = {name: read_arrays(path) for name, path in rows.items() if path.exists()}
    league = read_arrays(folder / _LEAGUE) if (folder / _LEAGUE).exists() else {}
    return Checkpoint(step, agents, notes, replay, league)


def write_checkpoint(checkpoint: Checkpoint, target: Path) -> Path:
    """Write a checkpoint under a temporary name, then let it replace the checkpoint at the target, if there is one."""
    from safetensors.numpy import save_file

    beside = target.with_name(f".{target.name}.new.{uuid.uuid4().hex[:8]}")
    beside.mkdir(parents=True)
    files = file_stems(checkpoint.agents)
    try:
        for name, arrays in checkpoint.agents.items():
            save_file(_contiguous(arrays), beside / f"{files[name]}.safetensors")
        for name, arrays in checkpoint.replay.items():
            save_file(_contiguous(arrays), beside / f"{files[name]}.replay.safetensors")
        if checkpoint.league:
            save_file(_contiguous(checkpoint.league), beside / _LEAGUE)
        about = {"step": checkpoint.step, "agents": list(checkpoint.agents), "files": files}
        notes = {**about, "notes": encode(checkpoint.notes)}
        (beside / "checkpoint.json").write_text(json.dumps(notes, indent=1) + "\n")
        mode = stat.S_IMODE((beside / "checkpoint.json").stat().st_mode)
        for path in beside.iterdir():
            path.chmod(mode)  # according to the umask; safetensors makes files that only their owner can read
        for path in beside.iterdir():
            sync(path)
        replace_folder(beside, target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _contiguous(arrays: Arrays) -> Arrays:
    # np.ascontiguousarray would give a scalar an axis
    return {name: np.asarray(array, order="C") for name, array in arrays.items()}

"""Files and folders that are whole or not there."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

__all__ = ["replace_folder", "write_whole"]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside the target, which then takes the target's place at once."""
    beside = target.with_name(f".{target.stem}.part{target.suffix}")
    try:
        write(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def replace_folder(fresh: Path, target: Path) -> None:
    """Let a folder take the place of what may be at the target, which is removed.

    At any moment one of the two is there, whole, also if this process is killed (on Linux; elsewhere, if it raises).
    """
    if not target.exists():
        fresh.rename(target)
        return
    if _exchange(fresh, target):
        shutil.rmtree(fresh, ignore_errors=True)
        return
    old = target.with_name(f".{target.name}.old.{uuid.uuid4().hex[:8]}")
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names, at once; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0

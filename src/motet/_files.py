"""Files that are whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside the target, which then takes the target's place at once."""
    beside = target.with_name(f".{target.stem}.part{target.suffix}")
    try:
        write(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)

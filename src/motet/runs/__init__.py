"""Runs on disk: directories, checkpoints, settings and snapshots, and the display of a run."""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.runs.directory import RunDirectory
    from motet.runs.snapshot import Snapshot

__all__ = ["RunDirectory", "Snapshot"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "RunDirectory": "motet.runs.directory",
        "Snapshot": "motet.runs.snapshot",
    },
)

"""RunDirectory: one run on disk, never half-written.

::

    RUN/
      config.json            everything that was asked for, resolved, with versions
      metrics.jsonl          one line a second; evaluation.jsonl: one line an evaluation
      status.json            the newest line, for `motet status`
      logs/<process>.log
      checkpoints/<step>/    <agent>.safetensors for each agent, checkpoint.json, perhaps the replay and the actors; the
                             file of an agent whose name cannot be a file's is named in checkpoint.json
      league/<step>/         in self-play: the snapshots that are in the pool; league.jsonl: one line a review

A checkpoint is written beside its final name and renamed when it is whole. Weights are safetensors, the rest is JSON:
nothing in a run directory is code, and nothing is loaded with pickle.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from motet._version import __version__
from motet.errors import CorruptionError, SettingError, StorageError
from motet.runs.checkpoint import Checkpoint, read_checkpoint, reading, write_checkpoint
from motet.runs.plain import decode
from motet.system.files import write_whole
from motet.text import typed

__all__ = ["RunDirectory"]

FORMAT = 1
"""Of run directories; raised when an older motet could not read a newer one's."""


class RunDirectory:
    """One run on disk.

    Args:
        path: where it is, or is to be.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._made: list[Path] = []

    @classmethod
    def prepare(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """A directory for a new run, where none is yet."""
        if not os.fspath(path):
            raise SettingError("run must be a path to write the run to, got an empty one")
        run = cls(path)
        run._check_free()
        try:
            if not run.path.exists():
                run.path.mkdir(parents=True, exist_ok=True)
                run._made.append(run.path)
        except OSError as error:
            raise SettingError(f"run: {str(run.path)!r} cannot be written: {error.strerror or error}") from error
        return run

    def begin(self, config: Mapping[str, Any]) -> RunDirectory:
        """Begin a new run; what is there already is never written over. Only who holds the directory may call it."""
        self._check_free()
        try:
            for folder in (self.logs, self.checkpoints):
                if not folder.exists():
                    folder.mkdir()
                    self._made.append(folder)
            _write_json(self.path / "config.json", {"format": FORMAT, "motet": __version__, **config})
        except OSError as error:
            self.take_back()
            raise SettingError(f"run: {str(self.path)!r} cannot be written: {error.strerror or error}") from error
        return self

    def _check_free(self) -> None:
        if (self.path / "config.json").exists():
            there = f"run: {str(self.path)!r} holds a run already"
            if self.steps():
                raise SettingError(f"{there}; give another name, or {self.way_on()}")
            raise SettingError(
                f"{there}, which has no checkpoint to go on from; give another name, or remove the directory if the "
                f"run is dead (motet status {typed(self.path)})"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """A run that was begun before."""
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise SettingError(f"run must be a run directory, got {str(run.path)!r}, which has no config.json")
        if (given := run.config().get("format")) != FORMAT:
            raise SettingError(
                f"run: {str(run.path)!r} has format {given!r}, this motet ({__version__}) reads format {FORMAT}; "
                f"it was written by motet {run.config().get('motet', 'of unknown version')}"
            )
        return run

    def take_back(self) -> None:
        """Remove what was made for a run that never began; whatever else is there stays. Only for who holds it."""
        for name in ("config.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        if self.logs in self._made:
            shutil.rmtree(self.logs, ignore_errors=True)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # it holds something else
                folder.rmdir()

    @property
    def logs(self) -> Path:
        """Of the processes."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    def config(self) -> dict[str, Any]:
        """What was asked for."""
        try:
            found: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        except (ValueError, OSError) as error:
            raise CorruptionError(f"{self.path / 'config.json'} cannot be read: {error}") from error
        return found

    def write_json(self, name: str, value: Any) -> None:
        """Write a file whole or not at all."""
        with self._writing():
            _write_json(self.path / name, value)

    def append_line(self, name: str, value: Mapping[str, Any]) -> None:
        """Add one line of JSON, whole or not at all; half a line that a death left behind is removed."""
        data = memoryview((json.dumps(value) + "\n").encode())
        with self._writing(), (self.path / name).open("a+b", buffering=0) as file:
            end = _end_of_lines(file)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(end)
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses is said in words, with what there is to go on from."""
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError) as error:
            steps = self.steps()
            last = f"its last whole checkpoint is at step {steps[-1]:,}" if steps else "it has no checkpoint yet"
            raise StorageError(f"the run {str(self.path)!r} could not be written: {error}; {last}") from error

    # ---- checkpoints

    def sweep(self) -> None:
        """Remove what a death left behind half written. Only who holds the directory may call it."""
        for folder in (self.path, self.checkpoints, self.path / "league"):
            for left in folder.glob(".*.new.*"):
                shutil.rmtree(left, ignore_errors=True)

    def steps(self) -> list[int]:
        """The steps of all checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        with reading(self.checkpoints):
            return sorted(int(folder.name) for folder in self.checkpoints.iterdir() if folder.name.isdigit())

    def way_on(self) -> str:
        """What can be done with a run that nobody plays any more, in words."""
        if self.steps():
            return f"go on: motet resume {typed(self.path)}"
        return f"it has no checkpoint to go on from: {self._without_one()}"

    def _without_one(self) -> str:
        best = self.path / "best"
        saved = (best / "checkpoint.json").is_file()
        play = f"play its best policies (motet eval {typed(self.path)} -p {typed(best)}), or " if saved else ""
        return f"{play}begin anew under another name, or remove {typed(self.path)} first"

    def save(self, checkpoint: Checkpoint, keep: int = 2) -> Path:
        """Write a checkpoint and forget all but the newest ``keep``."""
        target = self._write_folder(checkpoint, self.checkpoints / f"{checkpoint.step:012d}")
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.checkpoints / f"{step:012d}", ignore_errors=True)
        return target

    def save_best(self, checkpoint: Checkpoint) -> Path:
        """Keep the policies of the best evaluation so far."""
        return self._write_folder(checkpoint, self.path / "best")

    def best_score(self) -> float:
        """The score of the best evaluation so far; minus infinity where there is none."""
        path = self.path / "best" / "checkpoint.json"
        if not path.exists():
            return -math.inf
        try:
            return float(decode(json.loads(path.read_text())["notes"])["score"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path} does not say how well its policies did: {error!r}") from error

    def save_snapshot(self, checkpoint: Checkpoint, pool: Sequence[int]) -> Path:
        """Keep a snapshot of the league; those of steps that are not in its pool any more go."""
        target = self._write_folder(checkpoint, self.path / "league" / f"{checkpoint.step:012d}")
        for folder in target.parent.iterdir():
            if folder.name.isdigit() and int(folder.name) not in pool:
                shutil.rmtree(folder, ignore_errors=True)
        return target

    def _write_folder(self, checkpoint: Checkpoint, target: Path) -> Path:
        """Write a folder beside its name, whole, and let it replace what may be there."""
        with self._writing():
            return write_checkpoint(checkpoint, target)

    def load(self, step: int | None = None) -> Checkpoint:
        """The checkpoint of a step; the newest by default. A damaged one is an error that names another one."""
        steps = self.steps()
        if not steps:
            raise SettingError(f"run: {str(self.path)!r} cannot go on; {self.way_on()}")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise SettingError(f"checkpoint must be one of the steps {steps}, got {chosen}")
        try:
            return read_checkpoint(self.checkpoints / f"{chosen:012d}")
        except CorruptionError as error:
            raise CorruptionError(f"{error}; {self._way_past(chosen)}") from error

    def _way_past(self, damaged: int) -> str:
        """Which checkpoint can be read instead, in words."""
        for step in reversed(self.steps()):
            if step != damaged:
                with contextlib.suppress(CorruptionError, StorageError):
                    read_checkpoint(self.checkpoints / f"{step:012d}")
                    return (
                        f"the checkpoint of step {step:,} is whole: motet resume {typed(self.path)} --checkpoint {step}"
                    )
        return f"the run has no other whole checkpoint: {self._without_one()}"

    def give_up_after(self, step: int) -> list[int]:
        """Remove the checkpoints after a step that the run goes on from: they are of a future that is given up."""
        gone = [later for later in self.steps() if later > step]
        for later in gone:
            shutil.rmtree(self.checkpoints / f"{later:012d}", ignore_errors=True)
        return gone


def _write_json(target: Path, value: Any) -> None:
    def write(beside: Path) -> None:
        with beside.open("w") as file:
            json.dump(value, file, indent=1, allow_nan=True)
            file.write("\n")

    write_whole(target, write)


def _end_of_lines(file: IO[bytes]) -> int:
    """Where the last whole line ends; what follows it is cut off."""
    end = file.seek(0, os.SEEK_END)
    torn = 0
    while end > torn:
        file.seek(end - torn - 1)
        if file.read(1) == b"\n":
            break
        torn += 1
    if torn:
        file.truncate(end - torn)
    return end - torn

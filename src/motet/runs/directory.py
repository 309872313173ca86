"""RunDirectory: one run on disk. Every file in it is written completely or not at all.

::

    RUN/
      config.json            all settings, resolved, with versions
      metrics.jsonl          one line per second
      evaluation.jsonl       one line per evaluation
      status.json            the newest line of metrics.jsonl, for `motet status`
      logs/<process>.log
      checkpoints/<step>/    <agent>.safetensors for each agent, checkpoint.json, optionally the replay and the actors;
                             checkpoint.json names the file of each agent, since not every name is a valid file name
      league/<step>/         in self-play: the snapshots in the pool
      anchors/<name>/        in self-play: copies of earlier runs that are anchors
      league.jsonl           in self-play: one line per review
      partners/<agent>/      a copy of the run by whose policy the agent acts: config.json and one checkpoint

A checkpoint is written under a temporary name and renamed when it is complete. Weights are safetensors, the rest is
JSON: nothing in a run directory is code, and nothing is loaded with pickle.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from motet._version import __version__
from motet.errors import CorruptionError, SettingError, StorageError
from motet.runs.checkpoint import Checkpoint, read_checkpoint, reading, write_checkpoint
from motet.runs.plain import decode
from motet.runs.trust import foreign_code, is_own, remember
from motet.system.files import write_whole
from motet.text import typed

__all__ = ["RunDirectory"]

PARTNERS = "partners"
"""The folder of a run directory with copies of the runs whose policies act as partners."""

FORMAT = 1
"""Format version of run directories; increased when an older motet cannot read the new format."""


class RunDirectory:
    """One run on disk.

    Args:
        path: the directory; it need not exist yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._made: list[Path] = []

    @classmethod
    def prepare(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Make the directory of a new run. Raises if it already holds a run."""
        if not os.fspath(path):
            raise SettingError("run must be a path for the run directory, got an empty string")
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
        """Begin a new run. Raises instead of overwriting one. The caller must hold the directory's lock.

        The run is recorded as one of this user (:mod:`motet.runs.trust`).
        """
        self._check_free()
        whole = {"format": FORMAT, "motet": __version__, **config}
        try:
            for folder in (self.logs, self.checkpoints):
                if not folder.exists():
                    folder.mkdir()
                    self._made.append(folder)
            _write_json(self.path / "config.json", whole)
        except OSError as error:
            self.take_back()
            raise SettingError(f"run: {str(self.path)!r} cannot be written: {error.strerror or error}") from error
        remember(self.path, whole)
        return self

    def change_config(self, before: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Replace ``config.json``. ``before``: the config that the caller has read and used.

        A run that needs no ``trust`` (:mod:`motet.runs.trust`) still needs none afterwards, even if the new config is
        the first to name code
        outside of motet.
        """
        self.write_json("config.json", config)
        if is_own(self.path, before) or not foreign_code(before):
            remember(self.path, config)

    def _check_free(self) -> None:
        if (self.path / "config.json").exists():
            there = f"run: {str(self.path)!r} already holds a run"
            if self.steps():
                raise SettingError(f"{there}; give another name, or {self.way_on()}")
            raise SettingError(
                f"{there}, which has no checkpoint to resume from; give another name, or remove the directory if the "
                f"run is dead (motet status {typed(self.path)})"
            )

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Open an existing run."""
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
        """Remove the files made for a run that never began, and nothing else. The caller must hold the lock."""
        for name in ("config.json", ".lock"):
            (self.path / name).unlink(missing_ok=True)
        for folder in (self.logs, self.anchors):
            if folder in self._made:
                shutil.rmtree(folder, ignore_errors=True)
        if self.path in self._made:
            shutil.rmtree(self.path / PARTNERS, ignore_errors=True)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):  # the directory holds other files
                folder.rmdir()

    @property
    def logs(self) -> Path:
        """The folder of the processes' logs."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def anchors(self) -> Path:
        """The folder of the copies of earlier runs that are anchors in self-play."""
        return self.path / "anchors"

    def make_anchors(self) -> Path:
        """Make the folder of the anchors' copies. Raises if it exists."""
        try:
            self.anchors.mkdir()
        except OSError as error:
            raise SettingError(f"run: {str(self.anchors)!r} cannot be made: {error.strerror or error}") from error
        self._made.append(self.anchors)
        return self.anchors

    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``."""
        try:
            found: dict[str, Any] = json.loads((self.path / "config.json").read_text())
        except (ValueError, OSError) as error:
            raise CorruptionError(f"{self.path / 'config.json'} cannot be read: {error}") from error
        return found

    def write_json(self, name: str, value: Any) -> None:
        """Write a file completely or not at all."""
        with self._writing():
            _write_json(self.path / name, value)

    def append_line(self, name: str, value: Mapping[str, Any]) -> None:
        """Append one line of JSON, completely or not at all. An incomplete last line, left by a crash, is removed."""
        self.append_lines(name, [value])

    def append_lines(self, name: str, values: Iterable[Mapping[str, Any]]) -> None:
        """Append several lines like :meth:`append_line`."""
        data = memoryview("".join(json.dumps(value) + "\n" for value in values).encode())
        with self._writing(), (self.path / name).open("a+b", buffering=0) as file:
            end = _end_of_lines(file)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(end)
                raise

    def rewrite(self, name: str, write: Callable[[], object]) -> None:
        """Call ``write``, which replaces a file of this name."""
        with self._writing():
            write()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of writing into a StorageError that names the last checkpoint."""
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError) as error:
            steps = self.steps()
            last = f"its last complete checkpoint is at step {steps[-1]:,}" if steps else "it has no checkpoint yet"
            raise StorageError(f"the run {str(self.path)!r} could not be written: {error}; {last}") from error

    # ---- checkpoints

    def sweep(self) -> None:
        """Remove incomplete folders that a crash left behind. The caller must hold the directory's lock."""
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
        """Advice on how to continue a run that no process is running."""
        if self.steps():
            return f"resume it: motet resume {typed(self.path)}"
        return f"it has no checkpoint to resume from: {self._without_one()}"

    def _without_one(self) -> str:
        best = self.path / "best"
        saved = (best / "checkpoint.json").is_file()
        play = f"evaluate its best policies (motet eval {typed(self.path)} -p {typed(best)}), or " if saved else ""
        return f"{play}start again under another name, or remove {typed(self.path)} first"

    def save(self, checkpoint: Checkpoint, keep: int = 2) -> Path:
        """Write a checkpoint and remove all but the newest ``keep``."""
        target = self._write_folder(checkpoint, self.checkpoints / f"{checkpoint.step:012d}")
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.checkpoints / f"{step:012d}", ignore_errors=True)
        return target

    def save_best(self, checkpoint: Checkpoint) -> Path:
        """Save the policies of the best evaluation so far."""
        return self._write_folder(checkpoint, self.path / "best")

    def save_partner(self, folder: str, agent: str, config: Any, weights: Any, source: str) -> None:
        """Write a copy of one agent's policy, as a run directory in the folder."""
        target = self.path / folder
        copied = {"format": FORMAT, "motet": __version__, "agents": {agent: config}, "source": source}
        with self._writing():
            write_checkpoint(Checkpoint(0, {agent: {"weights": weights}}), target / "checkpoints" / f"{0:012d}")
            _write_json(target / "config.json", copied)

    def best_score(self) -> float:
        """The score of the best evaluation so far; minus infinity before the first one."""
        path = self.path / "best" / "checkpoint.json"
        if not path.exists():
            return -math.inf
        try:
            return float(decode(json.loads(path.read_text())["notes"])["score"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path} has no readable score: {error!r}") from error

    def save_snapshot(self, checkpoint: Checkpoint, pool: Sequence[int]) -> Path:
        """Save a snapshot of the league, and remove the snapshots of steps that are no longer in its pool."""
        target = self._write_folder(checkpoint, self.path / "league" / f"{checkpoint.step:012d}")
        for folder in target.parent.iterdir():
            if folder.name.isdigit() and int(folder.name) not in pool:
                shutil.rmtree(folder, ignore_errors=True)
        return target

    def _write_folder(self, checkpoint: Checkpoint, target: Path) -> Path:
        """Write a folder under a temporary name, then let it replace the folder at the target, if there is one."""
        with self._writing():
            return write_checkpoint(checkpoint, target)

    def load(self, step: int | None = None) -> Checkpoint:
        """Read the checkpoint of a step, by default the newest. If it is damaged, the error names an intact
        checkpoint."""
        steps = self.steps()
        if not steps:
            raise SettingError(f"run: {str(self.path)!r} cannot be resumed; {self.way_on()}")
        chosen = steps[-1] if step is None else step
        if chosen not in steps:
            raise SettingError(f"checkpoint must be one of the steps {steps}, got {chosen}")
        try:
            return read_checkpoint(self.checkpoints / f"{chosen:012d}")
        except CorruptionError as error:
            raise CorruptionError(f"{error}; {self._way_past(chosen)}") from error

    def _way_past(self, damaged: int) -> str:
        """Advice for the user: which checkpoint can be read instead."""
        for step in reversed(self.steps()):
            if step != damaged:
                with contextlib.suppress(CorruptionError, StorageError):
                    read_checkpoint(self.checkpoints / f"{step:012d}")
                    return (
                        f"the checkpoint of step {step:,} is intact: "
                        f"motet resume {typed(self.path)} --checkpoint {step}"
                    )
        return f"the run has no other intact checkpoint: {self._without_one()}"

    def give_up_after(self, step: int) -> list[int]:
        """Remove all checkpoints after the step from which the run resumes, since their training is discarded."""
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
    """Cut off an incomplete last line, and return the offset at which the last complete line ends."""
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

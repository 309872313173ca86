"""Sinks: where snapshots go besides the run directory (the display, TensorBoard, Weights & Biases).

Each sink runs in a separate thread (:class:`Feed`), so that a slow disk, a stopped terminal or a broken network neither
delays nor ends a run. A sink that raises is reported once and turned off. Snapshots that were not written are counted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import netrc
import os
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from motet.errors import SettingError
from motet.runs.snapshot import Snapshot
from motet.text import label, plain, valid

__all__ = [
    "DisplayChoice",
    "EvaluationLines",
    "Feed",
    "TensorBoard",
    "Wandb",
    "WandbSettings",
    "evaluated",
    "scalars",
    "wandb_settings",
]

_ROOM = 600  # maximum number of waiting snapshots: ten minutes

DisplayChoice = Literal["auto", "table", "lines", "off"]
"""How a run is shown: a live table, plain lines, or not at all."""


class Feed:
    """Runs the jobs of one sink, in order, in a separate thread.

    Args:
        name: name of the sink.
        complain: called with one line, once, if the sink fails; from the sink's thread.
    """

    def __init__(self, name: str, complain: Callable[[str], None]) -> None:
        self._name, self._complain = name, complain
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._left_out = 0
        self.broken = False
        self._thread = threading.Thread(target=self._work, name=f"motet-{name}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        """Queue a job without waiting for it."""
        if self.broken or self._jobs.qsize() >= _ROOM:
            self._left_out += 1
        else:
            self._jobs.put(job)

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait until all jobs are done, at most ``timeout_s`` seconds."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._complain(f"{self._name} did not finish within {timeout_s:g} s; snapshots not written yet are lost")
        elif self._left_out and not self.broken:
            self._complain(f"{self._name} was too slow: {self._left_out} snapshots were not written")

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if self.broken:
                continue
            try:
                job()
            except Exception as error:  # noqa: BLE001 - any error is reported, and the run continues
                self.broken = True
                self._complain(f"{self._name} failed and is now turned off: {type(error).__name__}: {error}")


def scalars(snapshot: Snapshot) -> Iterator[tuple[str, float]]:
    """The numbers of a snapshot that people plot, by ``group/name``; agents are compared within a group.

    ``return`` and ``length`` have one entry for each agent, and ``train`` has the metrics of the learners. ``episode``
    is what the world measured, ``speed`` and ``time`` are about the run, and ``system`` says whether data flow well.
    Other counters are in ``metrics.jsonl`` only. TensorBoard and W&B sort groups by name, so the groups by which a run
    is judged come first.
    """
    agents = [(label(row.name), row) for row in snapshot.agents]
    yield from _by_agent("return", {who: row.mean_return for who, row in agents})
    yield from ((f"length/{who}", row.mean_length) for who, row in agents if row.mean_length is not None)
    yield from ((f"episode/{plain(name).replace('/', '.')}", value) for name, value in snapshot.metrics.items())
    for who, row in agents:
        yield from (
            (f"train/{plain(name)}.{who}", float(value))
            for name, value in row.metrics.items()
            if not name.startswith("rows_")
        )
    count = max(len(agents), 1)
    if snapshot.state == "running":  # not at the end, because that time includes the last evaluation
        yield "speed/steps_per_s", snapshot.steps_per_s
        yield "speed/episodes_per_s", snapshot.episodes_per_s
        yield "speed/updates_per_s", float(sum(row.updates_per_s for row in snapshot.agents))
    yield "speed/updates_per_step", sum(row.updates_per_step for _, row in agents) / count
    yield "speed/samples_per_row", sum(row.samples_per_row for _, row in agents) / count
    for role, shares in snapshot.shares_by_role().items():
        yield from ((f"time/{role}.{name}", share) for name, share in shares.items())
    for who, row in agents:
        for name in ("lag_versions", "lag_steps", "replay_fill", "forced"):
            yield f"system/{name}.{who}", float(getattr(row, name))
        if (unread := row.metrics.get("rows_overwritten_unread")) is not None:
            yield f"system/rows_overwritten_unread.{who}", unread
    held = [row.memory_bytes for row in (*snapshot.processes, snapshot.main) if row and row.memory_bytes]
    if held:
        yield "system/memory_mb", (sum(held) + snapshot.shared_bytes) / 1e6
    for gpu in snapshot.gpus:
        if gpu.utilisation is not None:
            yield f"system/gpu_utilisation.{gpu.index}", gpu.utilisation
        if gpu.memory_bytes is not None:
            yield f"system/gpu_memory_mb.{gpu.index}", gpu.memory_bytes / 1e6
    yield "system/restarts", float(sum(row.restarts for row in snapshot.processes))


def evaluated(line: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an evaluation, from its line in ``evaluation.jsonl``, by ``group/name``.

    >>> line = {"step": 9, "team": 3.0, "score": 0.5, "agents": {"a": {"mean": 1.0}, "b": {"mean": 2.0}}}
    >>> dict(evaluated(line))
    {'evaluation/team': 3.0, 'evaluation/a': 1.0, 'evaluation/b': 2.0, 'evaluation/score': 0.5}
    """
    yield from _by_agent("evaluation", {label(name): float(own["mean"]) for name, own in line["agents"].items()})
    if line.get("score", line["team"]) != line["team"]:
        yield "evaluation/score", float(line["score"])


def _by_agent(group: str, values: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """The known values of the agents and, if there are several agents and all values are known, the team's value."""
    known = {who: value for who, value in values.items() if value is not None}
    if len(known) == len(values) > 1:
        yield f"{group}/team", sum(known.values())
    yield from ((f"{group}/{who}", value) for who, value in known.items())


class EvaluationLines:
    """The lines that are appended to a run's ``evaluation.jsonl`` from now on.

    Args:
        run: the run directory. It need not exist yet.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / "evaluation.jsonl"
        self._read = self._path.stat().st_size if self._path.is_file() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the lines since the last call. A line that is being written is returned by the next call."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole + end)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):  # damaged: reports say so
                found.append(json.loads(line))
        return found


class TensorBoard:
    """Writes event files for ``tensorboard --logdir``. Needs neither torch nor tensorflow.

    Args:
        folder: the folder for the event files.
        evaluations: the evaluations of the run. Each is a point at the step whose weights it played.
    """

    def __init__(self, folder: Path, evaluations: EvaluationLines | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-untyped]
            EventFileWriter,
        )

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._bottleneck, self._evaluations = "", evaluations
        self._writer = EventFileWriter(str(folder), flush_secs=10)

    def write(self, snapshot: Snapshot) -> None:
        """Write one point of every curve."""
        for line in self._evaluations.new() if self._evaluations is not None else ():
            self._add(int(line["step"]), self._points(evaluated(line)))
        values = self._points(scalars(snapshot))
        if snapshot.bottleneck != self._bottleneck:
            self._bottleneck = snapshot.bottleneck
            values.append(self._text("bottleneck", plain(snapshot.bottleneck)))
        self._add(snapshot.steps, values)

    def _add(self, step: int, values: list[Any]) -> None:
        summary = self._summary(value=values)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def _points(self, values: Iterable[tuple[str, float]]) -> list[Any]:
        return [self._summary.Value(tag=tag, simple_value=value) for tag, value in values]

    def _text(self, tag: str, text: str) -> Any:
        """Return a value that TensorBoard shows on its page of texts."""
        from tensorboard.compat.proto import summary_pb2, tensor_pb2, types_pb2

        plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
        return self._summary.Value(
            tag=tag,
            metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
            tensor=tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()]),
        )

    def close(self) -> None:
        """Write buffered data and close."""
        self._writer.close()


class WandbSettings(TypedDict, total=False):
    """Project, name, group and tags of a run in Weights & Biases."""

    project: str
    """Name of the project. Default: the value of ``WANDB_PROJECT`` or, without it, ``motet``."""
    name: str
    """Name of the run in Weights & Biases. Default: the name of the run directory."""
    group: str
    tags: Sequence[str]


def wandb_settings(given: bool | Mapping[str, Any]) -> WandbSettings | None:
    """Check what a user gave for ``wandb``; None: nothing is sent.

    >>> wandb_settings(True), wandb_settings({"group": "lr", "tags": ["small"]}), wandb_settings(False)
    ({}, {'group': 'lr', 'tags': ['small']}, None)
    """
    if isinstance(given, bool):
        return WandbSettings() if given else None
    known = list(WandbSettings.__annotations__)
    if not isinstance(given, Mapping) or (set(given) - set(known)):
        raise SettingError(f"wandb must be True, False or a dict with some of {', '.join(known)}, got {given!r}")
    for key, value in given.items():
        several = key == "tags"
        texts = (value if isinstance(value, (list, tuple)) else [None]) if several else [value]
        if not all(isinstance(text, str) and text for text in texts):
            expected = "a list of texts, none of them empty" if several else "a text that is not empty"
            raise SettingError(f"wandb: {key} must be {expected}, got {value!r}")
    return cast(WandbSettings, dict(given))


class Wandb:
    """Logs a run to Weights & Biases; offline if no login is found, or with ``WANDB_MODE=offline``.

    Args:
        run: the run directory.
        config: the settings of the run.
        say: called with one line if the run is logged offline.
        settings: project, name, group and tags of the W&B run.
        evaluations: the evaluations of the run.
    """

    def __init__(
        self,
        run: Path,
        config: Mapping[str, Any],
        say: Callable[[str], None],
        settings: WandbSettings | None = None,
        evaluations: EvaluationLines | None = None,
    ) -> None:
        import wandb

        self._evaluations = evaluations

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not _has_login():
            mode = "offline"  # otherwise it would wait for a login
            say(f"wandb: no login found, logging offline; upload later: wandb sync {run / 'wandb' / 'offline-run-*'}")
        place = {"project": os.environ.get("WANDB_PROJECT", "motet"), "name": plain(run.name)}
        self._run = wandb.init(
            **(place | _storable(settings or {})),
            dir=str(run),
            config=_storable(config),
            mode=mode,
            settings=wandb.Settings(console="off", silent=True),
        )

    @staticmethod
    def require() -> None:
        """Raise unless wandb is installed."""
        if importlib.util.find_spec("wandb") is None:
            raise SettingError("wandb: Weights & Biases is not installed; pip install wandb, or leave out --wandb")

    def write(self, snapshot: Snapshot) -> None:
        """Write one point of every curve. The steps of W&B only grow, so the step of an evaluation is logged as a
        number."""
        values = dict(scalars(snapshot))
        for line in self._evaluations.new() if self._evaluations is not None else ():
            values |= {**dict(evaluated(line)), "evaluation/step": float(line["step"])}
        self._run.log(values, step=snapshot.steps)

    def close(self) -> None:
        """Write buffered data and close."""
        self._run.finish()


def _storable(value: Any) -> Any:
    """Plain values whose strings can all be encoded as UTF-8."""
    if isinstance(value, Mapping):
        return {valid(str(key)): _storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(item) for item in value]
    return valid(value) if isinstance(value, str) else value


def _has_login() -> bool:
    """Whether Weights & Biases would find an API key (environment or netrc)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False

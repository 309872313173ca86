"""History of runs as arrays, read from their directories, with a description of every problem found.

A run that was resumed has several *sessions* in one file. Seconds and counters continue through all sessions. If a run
was resumed from an earlier checkpoint, the snapshots after that checkpoint are discarded from the curves.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from motet.errors import MotetError, SettingError
from motet.intervals import student
from motet.runs.directory import RunDirectory
from motet.runs.episodes import Episodes, read_episodes
from motet.runs.snapshot import AgentRow, Snapshot
from motet.runs.status import is_alive, read_lines, read_status, snapshot_from
from motet.system.imports import paths_now

__all__ = ["COUNTERS", "Curves", "RunHistory", "SessionCounts", "Table", "extent", "interval", "read_run", "thinned"]

Array = npt.NDArray[np.float64]
Table = dict[str, Array]
"""Columns of equal length by name; unknown values are ``nan``."""

_SHOWN = (
    "steps",
    "mean_return",
    "mean_length",
    "steps_per_s",
    "updates_per_s",
    "replay_fill",
    "updates_per_step",
    "samples_per_row",
)
_LAGS = ("lag_versions", "lag_steps")
_NOT_COUNTED = {"steps", "updates", "version", "version_before", "restarts", *_LAGS}  # processes count restarts
COUNTERS = tuple(item.name for item in fields(AgentRow) if item.type == "int" and item.name not in _NOT_COUNTED)
"""Counters of an agent. They start at 0 in each session, except those that a kept replay continues."""

_BROKEN = (ValueError, KeyError, TypeError, AttributeError)  # errors that a damaged line can cause
_MAX_SAID = 500  # number of lines of the run's log that are shown


@dataclass(repr=False)
class Curves:
    """Curves over time: a table for the team and one for each agent, whose rows belong to the same moments."""

    team: Table
    agents: dict[str, Table]

    def __len__(self) -> int:
        return len(self.team["steps"])

    def __repr__(self) -> str:
        names = ", ".join(self.agents) if len(self.agents) <= 4 else f"{len(self.agents)} agents"
        return f"<Curves: {len(self)} points of {names}; columns: {', '.join(self.team)}>"


@dataclass(repr=False)
class RunHistory:
    """One run directory: its settings, curves, evaluations and episodes.

    The columns of ``curves`` are ``steps``, ``seconds``, ``mean_return`` (of the last episodes), ``mean_length``,
    ``steps_per_s``, ``updates_per_s``, ``replay_fill`` and others; those of the algorithm begin with ``metrics.``, such
    as ``metrics.loss``. The columns of ``evaluations`` are ``steps``, ``mean``, and ``half``: half of the 95 % interval
    of the mean. Unknown values are ``nan``.
    """

    path: Path
    name: str
    """Name of the run: the last parts of its path, as few as distinguish it from the other runs of a report."""
    config: dict[str, Any]
    state: str
    """running, dead (it crashed), done, stopped, failed; or new, before its first snapshot."""
    curves: Curves
    evaluations: Curves
    newest: Snapshot | None
    sessions: int
    restarts: dict[str, int]
    """Restarts by process, summed over all sessions."""
    counters: dict[str, dict[str, int]]
    """Counters by agent and name, summed over all sessions."""
    said: list[str]
    """The newest lines of its log."""
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        steps = f" after {self.newest.steps:,} steps" if self.newest is not None else ""
        agents = ", ".join(self.curves.agents) if len(self.curves.agents) <= 4 else f"{len(self.curves.agents)} agents"
        return (
            f"<RunHistory {str(self.path)!r}: {self.state}{steps}; {agents}; {len(self.curves)} points, "
            f"{len(self.evaluations)} evaluations>"
        )

    @functools.cached_property
    def episodes(self) -> Episodes:
        """The run's episodes, from ``episodes.jsonl``; none if the run did not write that file."""
        return read_episodes(self.path, {})

    def frame(self, of: Literal["curves", "evaluations", "episodes"] = "curves") -> Any:
        """A table as a pandas DataFrame, with one row for each moment and agent. Needs pandas.

        ``agent`` is the name of the agent, or empty in the rows of the team. Episodes have one row for each agent.
        """
        if importlib.util.find_spec("pandas") is None:
            raise SettingError("pandas is not installed; pip install pandas, or use the arrays (curves, evaluations)")
        import pandas  # type: ignore[import-untyped,unused-ignore]

        if of == "episodes":
            shared = {name: getattr(self.episodes, name) for name in ("episode", "step", "seconds", "seed", "winner")}
            own = {name: getattr(self.episodes, name) for name in ("returns", "lengths")}
            shared |= {f"metrics.{name}": values for name, values in self.episodes.metrics.items()}
            tables = {
                agent: {**shared, "return": values, "length": own["lengths"][agent]}
                for agent, values in own["returns"].items()
            }
        elif of in ("curves", "evaluations"):
            curves: Curves = getattr(self, of)
            tables = {"": curves.team, **curves.agents}
        else:
            raise SettingError(f"of must be curves, evaluations or episodes, got {of!r}")
        parts = [pandas.DataFrame({"agent": agent, **table}) for agent, table in tables.items()]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    @property
    def seed(self) -> Any:
        """Random seed."""
        return self.config.get("settings", {}).get("seed")

    @property
    def seconds(self) -> float:
        """Seconds of training, summed over all sessions."""
        return float(self.curves.team["seconds"][-1]) if len(self.curves) else 0.0

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return self.newest.steps if self.newest else 0


def read_run(path: str | os.PathLike[str]) -> RunHistory:
    """Read the history of a run.

    ::

        run = motet.read_run("runs/hunt")
        run.curves.agents["agent_0"]["mean_return"]   # beside run.curves.agents["agent_0"]["steps"]
        run.evaluations.team["mean"]
        run.episodes.returns["agent_0"]
        run.frame("episodes")                         # a pandas DataFrame

    Raises:
        MotetError: the path is not a run, has another format, or its config cannot be read.
    """
    directory = RunDirectory.open(path)
    config, problems = paths_now(directory.config()), list[str]()
    if not all(isinstance(config.get(key), dict) for key in ("world", "agents", "settings")):
        raise MotetError(f"run: {str(directory.path)!r} has a config.json without world, agents or settings")
    tally = SessionCounts()
    damaged: dict[int, str] = {}
    for number, line in read_lines(directory.path / "metrics.jsonl", damaged):
        try:
            tally.add(snapshot_from(line))
        except _BROKEN as error:
            damaged[number] = f"{error}; another version of motet may have written it"
    problems += _left_out("metrics.jsonl", damaged)
    evaluations, damaged = _evaluations(directory.path)
    problems += _left_out("evaluation.jsonl", damaged)
    newest = tally.newest
    try:
        newest = read_status(directory)
    except MotetError as error:
        if newest is not None:
            problems.append(f"{error}; the last line of metrics.jsonl is shown instead")
    state = newest.state if newest is not None else "new"
    alive = is_alive(directory.path)
    if state == "running" and not alive:
        state = "dead"
    if not tally.rows:
        problems.append("it has no metrics yet" if alive else "it has no metrics")
    return RunHistory(
        path=directory.path,
        name=directory.path.name,
        config=config,
        state="running" if alive else state,
        curves=tally.curves(),
        evaluations=evaluations,
        newest=newest,
        sessions=tally.sessions,
        restarts=tally.restarts.total(),
        counters={name: counts.total() for name, counts in tally.counters.items()},
        said=_said(directory),
        problems=problems,
    )


def _left_out(file: str, damaged: Mapping[int, str]) -> list[str]:
    if not damaged:
        return []
    first, *rest = sorted(damaged)
    lines = f"line {first} is" if not rest else f"line {first} and {len(rest)} more are"
    return [f"{file}: {lines} ignored as unreadable: {damaged[first]}"]


def _said(directory: RunDirectory) -> list[str]:
    path = directory.logs / "run.log"
    return path.read_text(errors="replace").splitlines()[-_MAX_SAID:] if path.is_file() else []


# ---- snapshots


class _Counts:
    """Sums of counters that start again at 0 in later sessions."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def add(self, values: Mapping[str, int], is_new: bool = False) -> None:
        for name, value in values.items():
            if is_new or value < self._now.get(name, 0):
                self._before[name] = self._before.get(name, 0) + self._now.get(name, 0)
            self._now[name] = int(value)

    def total(self) -> dict[str, int]:
        return {name: self._before.get(name, 0) + value for name, value in self._now.items()}


class SessionCounts:
    """Adds up time and counters over all sessions, from snapshots in order, oldest first."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], dict[str, dict[str, float]]]] = []
        self.newest: Snapshot | None = None
        self.sessions = 0
        self.restarts = _Counts()
        self.counters: dict[str, _Counts] = {}
        self._seconds_before = 0.0

    def add(self, now: Snapshot) -> None:
        """Add a snapshot."""
        agents = {row.name: _row(row) for row in now.agents}
        returns = [row["mean_return"] for row in agents.values()]
        team = {"steps": float(now.steps), "seconds": float(now.seconds), "steps_per_s": float(now.steps_per_s)}
        team |= {f"metrics.{name}": _float(value) for name, value in now.metrics.items()}
        before = self.newest
        is_new = before is None or before.state != "running" or team["seconds"] < before.seconds
        if before is not None and is_new:
            self._seconds_before += before.seconds
            self.rows = [row for row in self.rows if row[0]["steps"] <= team["steps"]]
        team["seconds"] += self._seconds_before
        self.sessions += is_new
        self.restarts.add({row.name: row.restarts for row in now.processes}, is_new)
        for agent in now.agents:
            counts = self.counters.setdefault(agent.name, _Counts())
            # Episodes and versions start at 0 in each session.
            counts.add({"episodes": agent.episodes, "version": agent.version - agent.version_before}, is_new)
            counts.add({name: getattr(agent, name) for name in COUNTERS if name != "episodes"})
        self.rows.append(({**team, "mean_return": sum(returns) if returns else math.nan}, agents))
        self.newest = now

    def curves(self) -> Curves:
        """The curves so far."""
        return _curves(self.rows)


def _row(agent: AgentRow) -> dict[str, float]:
    found = {name: _float(getattr(agent, name)) for name in (*_SHOWN, *_LAGS)}
    return found | {f"metrics.{name}": _float(value) for name, value in agent.metrics.items()}


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _curves(rows: Sequence[tuple[Mapping[str, float], Mapping[str, Mapping[str, float]]]]) -> Curves:
    names = list(dict.fromkeys(name for _, agents in rows for name in agents))
    empty: Mapping[str, float] = {}
    return Curves(
        _table([team for team, _ in rows]),
        {name: _table([agents.get(name, empty) for _, agents in rows]) for name in names},
    )


def _table(rows: Sequence[Mapping[str, float]]) -> Table:
    names = dict.fromkeys(name for row in rows for name in row) or {"steps": None, "seconds": None}
    return {name: np.array([row.get(name, math.nan) for row in rows], np.float64) for name in names}


# ---- evaluations


def _evaluations(run: Path) -> tuple[Curves, dict[int, str]]:
    rows: list[tuple[dict[str, float], dict[str, dict[str, float]]]] = []
    damaged: dict[int, str] = {}
    for number, line in read_lines(run / "evaluation.jsonl", damaged):
        try:
            step, episodes = float(line["step"]), int(line["episodes"])
            agents = {
                str(name): {
                    "steps": step,
                    "mean": float(one["mean"]),
                    "half": _half(float(one["std"]), episodes),
                }
                for name, one in line["agents"].items()
            }
            team = {"steps": step, "mean": float(line["team"]), "episodes": float(episodes)}
            team["half"] = _half(float(line.get("team_std", math.nan)), episodes)  # older files do not have this field
        except _BROKEN as error:
            damaged[number] = f"{error}; another version of motet may have written it"
            continue
        rows = [row for row in rows if row[0]["steps"] < step]
        rows.append((team, agents))
    return _curves(rows), damaged


def _half(deviation: float, episodes: int) -> float:
    """Half of the 95 % interval of a mean over episodes, given their population standard deviation."""
    return _t(episodes) * deviation / math.sqrt(max(episodes - 1, 1))


# ---- several runs


def thinned(x: Array, y: Array, points: int = 240) -> tuple[Array, Array]:
    """Thin a curve to at most ``points`` points: finite ones only, the last of each x, evenly spaced, with the end."""
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    last = np.append(np.diff(x) > 0, True) if len(x) else np.zeros(0, bool)
    x, y = x[last], y[last]
    if len(x) > points:
        pick = np.unique(np.linspace(0, len(x) - 1, points).round().astype(int))
        x, y = x[pick], y[pick]
    return x, y


def interval(values: Array) -> tuple[Array, Array, Array]:
    """Mean over the first axis and its 95 % confidence interval by Student's t; for one or two values their range.

    >>> [round(float(v), 2) for v in interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48]
    """
    n, mean = len(values), values.mean(0)
    if n < 3:
        return mean, values.min(0), values.max(0)
    half = _t(n) * values.std(0, ddof=1) / math.sqrt(n)
    return mean, mean - half, mean + half


def extent(values: Array) -> tuple[Array, Array, Array]:
    """Mean over the first axis, the lowest and the highest value."""
    return values.mean(0), values.min(0), values.max(0)


def _t(n: int) -> float:
    """Student's t quantile for the 95 % interval of n values; infinite for one value."""
    return student(0.95, n - 1) if n > 1 else math.inf

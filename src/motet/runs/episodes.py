"""``episodes.jsonl``: one line for each finished episode of a run. :class:`EpisodeFile` writes it, and
:func:`read_episodes` reads it as arrays.

A line has the fields of :data:`FIELDS`. Beside episodes the file has two kinds of marks. ``{"resumed": n}``: the run
was resumed from a checkpoint that knew the first ``n`` episodes, so earlier lines with larger numbers do not count.
``{"every": k}``, only as the first line: the file became too large and was thinned; it has every ``k``-th episode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.runs.directory import RunDirectory
from motet.runs.status import read_lines
from motet.system.files import write_whole

__all__ = ["FIELDS", "NAME", "EpisodeFile", "Episodes", "read_episodes"]

NAME = "episodes.jsonl"
FIELDS = {
    "episode": "number of the episode in the run, from 1 on",
    "step": "steps of an agent in all episodes up to the end of this one: the largest number among the agents",
    "seconds": "seconds since the run was started or resumed",
    "actor": "index of the actor",
    "world": "index of the world in its actor",
    "round": "rounds that the actor had played",
    "seed": "seed of the episode",
    "returns": "sum of the rewards of each agent",
    "lengths": "steps of each agent",
    "versions": "version of each policy at the end of the episode",
    "winner": "name of the winner, or 'draw', if the world says how a game is won",
    "opponent": "in self-play: the opponent",
    "side": "in self-play: the agent that the player played",
    "metrics": "what the world or its agents measured: the mean of each number over the episode",
}
"""The fields of a line, with their meanings. The last four exist only where they apply."""

_Array = npt.NDArray[np.float64]


class EpisodeFile:
    """Appends lines to the file of a run, and thins the file when it becomes too large.

    Args:
        directory: the run directory.
        limit_bytes: the size at which every second line is removed.
        known: number of episodes in the checkpoint from which the run was resumed; None if it was not resumed.
    """

    def __init__(self, directory: RunDirectory, limit_bytes: float, known: int | None = None) -> None:
        self._directory, self._path, self._limit = directory, directory.path / NAME, limit_bytes
        self.count = known or 0
        """Number of episodes so far."""
        self._every = _every(self._path)
        if known is not None and self._path.exists():
            directory.append_line(NAME, {"resumed": known})

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append episodes, without their numbers, in order."""
        numbered = [{"episode": number, **line} for number, line in enumerate(lines, self.count + 1)]
        self.count += len(lines)
        kept = [line for line in numbered if line["episode"] % self._every == 0]
        if not kept:
            return
        self._directory.append_lines(NAME, kept)
        if self._path.stat().st_size > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Keep every second line in a new file, and write only every second of the later ones."""
        self._every *= 2

        def write(beside: Path) -> None:
            with beside.open("w", encoding="utf-8") as file:
                file.write(json.dumps({"every": self._every}) + "\n")
                for _, line in read_lines(self._path, {}):
                    if "resumed" in line or ("episode" in line and line["episode"] % self._every == 0):
                        file.write(json.dumps(line) + "\n")

        self._directory.rewrite(NAME, lambda: write_whole(self._path, write))


def _every(path: Path) -> int:
    """Return how many episodes there are for each line."""
    _, first = next(read_lines(path, {}), (0, dict[str, Any]()))
    return int(first.get("every", 1))


@dataclass(repr=False)
class Episodes:
    """The episodes of a run as arrays, one entry for each line, in the order of the file."""

    episode: _Array
    step: _Array
    seconds: _Array
    """Seconds of training, summed over all sessions."""
    seed: npt.NDArray[np.int64]
    returns: dict[str, _Array]
    """Returns and lengths by agent; ``nan`` where the agent did not act."""
    lengths: dict[str, _Array]
    versions: dict[str, _Array]
    """Version of each policy at the end of the episode, by policy."""
    winner: list[str | None]
    metrics: dict[str, _Array]
    """Metrics of the world by name; ``nan`` in episodes without that metric."""
    lines: list[dict[str, Any]]
    """The lines themselves, with all fields."""
    every: int = 1
    """One of this many episodes is in the file; 1: all episodes."""

    def __repr__(self) -> str:
        names = ", ".join(self.returns) if len(self.returns) <= 4 else f"{len(self.returns)} agents"
        return f"<Episodes: {len(self):,} of {names}>"

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def team(self) -> _Array:
        """The sum of the returns of all agents that acted."""
        return np.nansum([*self.returns.values()], 0) if self.returns else np.zeros(len(self))


def read_episodes(run: str | Path, damaged: dict[int, str] | None = None) -> Episodes:
    """Read the episodes of a run; none if it has no such file.

    Lines that cannot be read are added to ``damaged`` with the reason; if ``damaged`` is None, the first such line
    raises. An incomplete last line is skipped.
    """
    lines: list[dict[str, Any]] = []
    every, before, last = 1, 0.0, 0.0
    for _, line in read_lines(Path(run) / NAME, damaged):
        if "every" in line:
            every = int(line["every"])
        elif "resumed" in line:
            lines = [one for one in lines if one["episode"] <= line["resumed"]]
            before = last
        else:
            last = before + float(line["seconds"])
            lines.append({**line, "seconds": last})

    def column(name: str) -> _Array:
        return np.array([line[name] for line in lines], np.float64)

    def columns(name: str) -> dict[str, _Array]:
        keys = dict.fromkeys(key for line in lines for key in line.get(name, ()))
        return {key: np.array([line.get(name, {}).get(key, math.nan) for line in lines], np.float64) for key in keys}

    return Episodes(
        episode=column("episode"),
        step=column("step"),
        seconds=column("seconds"),
        seed=np.array([line["seed"] for line in lines], np.int64),
        returns=columns("returns"),
        lengths=columns("lengths"),
        versions=columns("versions"),
        winner=[line.get("winner") for line in lines],
        metrics=columns("metrics"),
        lines=lines,
        every=every,
    )

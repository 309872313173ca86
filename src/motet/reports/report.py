"""report(): several runs on one page, to be kept and sent: curves with bands, tables, pictures, and what went wrong.

Run directories in, one HTML file out; no run is written to, and nothing of it is run. Runs with equal settings apart
from the seed are one *group*: its curves are means over its runs, with an interval. Everything that could not be shown
is said on the page and in the :class:`Report`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from motet.errors import MotetError, SettingError
from motet.reports.groups import group
from motet.reports.runs_page import report_page
from motet.runs.history import RunHistory, read_run
from motet.system.files import write_whole

__all__ = ["Report", "report"]


@dataclass
class Report:
    """What a report came to."""

    path: Path
    groups: dict[str, list[Path]]
    """The runs that were shown, by group."""
    refused: dict[Path, str] = field(default_factory=dict)
    """Runs that could not be shown, and why."""
    problems: dict[Path, list[str]] = field(default_factory=dict)
    """What was wrong with runs that were shown."""


def report(runs: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] = "report.html") -> Report:
    """Show several runs on one self-contained page.

    Args:
        runs: run directories, in any state: done, still going, broken off.
        out: the file to write, ending in .html; an older one is replaced.

    Raises:
        SettingError: no run was given, one was given twice, none could be shown, or the file cannot be written.

    ::

        motet.report(["runs/seed-0", "runs/seed-1"], "both.html")
    """
    target = Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        raise SettingError(f"out must be a file ending in .html, got {str(out)!r}")
    found, refused = _read(runs)
    groups = group(found)
    text = report_page(groups, refused)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, lambda beside: beside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"out: {str(out)!r} cannot be written: {error.strerror or error}") from error
    return Report(
        target,
        {one.name: [run.path for run in one.runs] for one in groups},
        refused,
        {run.path: run.problems for run in found if run.problems},
    )


def _read(given: Sequence[str | os.PathLike[str]]) -> tuple[list[RunHistory], dict[Path, str]]:
    paths = [Path(path) for path in given]
    if not paths:
        raise SettingError("runs must be one run directory or more, got none")
    resolved = [path.resolve() for path in paths]
    if twice := next((path for path, one in zip(paths, resolved, strict=True) if resolved.count(one) > 1), None):
        raise SettingError(f"runs must be different, got {str(twice)!r} twice: one run is not two seeds")
    runs, refused = [], {}
    for path in paths:
        try:
            runs.append(read_run(path))
        except (MotetError, OSError) as error:
            refused[path] = f"{error}{_hint(path)}"
    if not runs:
        raise SettingError("; ".join(refused.values()))
    for run in runs:
        run.name = _shortest(run.path.resolve(), [other.path.resolve() for other in runs])
    return runs, refused


def _hint(path: Path) -> str:
    """A folder of runs is an easy mistake."""
    within = sorted(path.glob("*/config.json")) if path.is_dir() else []
    return f"; it holds {len(within)} runs: {path}/*" if within else ""


def _shortest(path: Path, others: Sequence[Path]) -> str:
    for n in range(1, len(path.parts)):
        end = path.parts[-n:]
        if sum(other.parts[-n:] == end for other in others) == 1:
            return "/".join(end)
    return str(path)

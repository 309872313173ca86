"""report(): several runs on one self-contained HTML page: curves with bands, tables, images and problems.

It reads run directories and writes one HTML file. It does not change the runs and does not run their code. Runs with
equal settings except for the seed are one *group*: its curves are means over its runs, with an interval. Everything
that could not be shown is listed on the page and in the :class:`Report`.
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
    """Result of :func:`report`."""

    path: Path
    groups: dict[str, list[Path]]
    """The runs on the page, by group."""
    refused: dict[Path, str] = field(default_factory=dict)
    """Runs that could not be read, with the reason."""
    problems: dict[Path, list[str]] = field(default_factory=dict)
    """Problems of the runs on the page."""


def report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    names: Sequence[str] = (),
) -> Report:
    """Show several runs on one self-contained page.

    Args:
        runs: run directories in any state: finished, running or crashed.
        out: the file to write, ending in .html. An existing file is replaced.
        names: a name for each group, in the order of their first runs. By default groups are named by the settings in
            which they differ.

    Raises:
        SettingError: no run was given, one was given twice, none could be read, there are not as many names as groups,
            or the file cannot be written.

    ::

        motet.report(["runs/seed-0", "runs/seed-1"], "both.html")
    """
    target = Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        raise SettingError(f"out must be a file ending in .html, got {str(out)!r}")
    found, refused = _read(runs)
    groups = group(found, names)
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
        raise SettingError(f"runs must be different, got {str(twice)!r} twice: it would count as two seeds")
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
    """Return a hint if the path is a folder of runs instead of a run."""
    within = sorted(path.glob("*/config.json")) if path.is_dir() else []
    return f"; it contains {len(within)} runs, use {path}/*" if within else ""


def _shortest(path: Path, others: Sequence[Path]) -> str:
    for n in range(1, len(path.parts)):
        end = path.parts[-n:]
        if sum(other.parts[-n:] == end for other in others) == 1:
            return "/".join(end)
    return str(path)

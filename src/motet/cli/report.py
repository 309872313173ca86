"""``motet report``: writes an HTML page that compares several runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from motet.reports.report import report as write
from motet.text import plain

__all__ = ["report"]

OUT = Path("report.html")


Runs = Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN …]", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME [NAME …]", help_behavior_hint="")]


def report(
    runs: tyro.conf.Positional[Runs],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = OUT,
    names: Names = (),
) -> int:
    """Compare several runs or seeds on one self-contained HTML page: learning curves, tables, faults, episodes.

    Runs that differ only in the seed form a group, and curves show the mean of each group. If a run cannot be shown,
    the page shows the others and the exit code is 1.

    Args:
        runs: Run directories, finished or not.
        out: File to write. An existing file is replaced.
        names: A name for each group, in the order of their first runs. By default groups are named by the settings in
            which they differ.
    """
    made = write(runs, out, names)
    for name, members in made.groups.items():
        sys.stdout.write(plain(f"{name}: {', '.join(map(str, members))}") + "\n")
    for path, problems in made.problems.items():
        sys.stderr.writelines(plain(f"{path}: {problem}") + "\n" for problem in problems)
    sys.stderr.writelines(plain(f"not shown: {why}") + "\n" for why in made.refused.values())
    sys.stdout.write(f"{plain(str(made.path))} ({made.path.stat().st_size / 1e6:.1f} MB)\n")
    return 1 if made.refused else 0

"""``motet report``: several runs on one page."""

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


def report(runs: tyro.conf.Positional[Runs], out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = OUT) -> int:
    """Show several runs or seeds on one self-contained page: curves with bands, tables, faults, episodes.

    Runs with equal settings apart from the seed are one group, whose curves are means over its runs. The exit code is 1
    if a run could not be shown; the page then shows the others.

    Args:
        runs: The run directories, in any state.
        out: The file to write; an older one is replaced.
    """
    made = write(runs, out)
    for name, members in made.groups.items():
        sys.stdout.write(plain(f"{name}: {', '.join(map(str, members))}") + "\n")
    for path, problems in made.problems.items():
        sys.stderr.writelines(plain(f"{path}: {problem}") + "\n" for problem in problems)
    sys.stderr.writelines(plain(f"not shown: {why}") + "\n" for why in made.refused.values())
    sys.stdout.write(f"{plain(str(made.path))} ({made.path.stat().st_size / 1e6:.1f} MB)\n")
    return 1 if made.refused else 0

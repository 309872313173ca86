"""``motet bench``: hands over to ``benchmarks/``, which lies beside the sources and is not part of the package."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from motet.errors import MotetError

__all__ = ["bench"]

ROOT = Path(__file__).parents[3]
"""The folder of the repository, if this package lies in one: ``ROOT/src/motet``."""

USAGE = "usage: motet bench NAME …\n\nMeasure how fast a part is, against other designs and libraries.\n\n"
ABSENT = (
    "the benchmarks are in the repository of motet, not in the installed package: clone the repository, run "
    "`pip install -e .` in it, then run motet bench again"
)


@dataclass
class BenchFlags:
    """The flags of ``motet bench``, for completion: ``benchmarks/`` may not be here to ask."""

    name: tyro.conf.Positional[
        Literal["replay", "publication", "bell", "plan", "train", "collect", "isolation", "ray"]
    ]  # fmt: skip
    json: bool = False
    repeats: int = 5
    seconds: float = 0.4
    quick: bool = False
    rllib_python: Path | None = None


def bench(arguments: Sequence[str]) -> int:
    """Run one benchmark; returns the exit code.

    Raises:
        MotetError: This installation has no benchmarks.
    """
    if "benchmarks" not in sys.modules:  # `python -m benchmarks` has found them already
        if not (ROOT / "benchmarks" / "command.py").is_file():
            if {"-h", "--help"} & set(arguments):
                sys.stdout.write(f"{USAGE}{ABSENT}\n")
                return 0
            raise MotetError(ABSENT)
        sys.path.insert(0, str(ROOT))  # the first: other projects have packages of that name
    from benchmarks.command import run

    return run(arguments)

"""``motet bench``: runs ``benchmarks/``, a folder of the repository that is not part of the installed package."""

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
"""The root of the repository, if motet is imported from a clone (``ROOT/src/motet``)."""

USAGE = "usage: motet bench NAME …\n\nMeasure the speed of one part of motet against other designs and libraries.\n\n"
ABSENT = (
    "the benchmarks are not part of the installed package; fix: clone the repository of motet, run `pip install -e .` "
    "in it, then run motet bench again"
)


@dataclass
class BenchFlags:
    """The flags of ``motet bench``, for completion, which must also work without ``benchmarks/``."""

    name: tyro.conf.Positional[
        Literal[
            "replay", "publication", "bell", "plan", "learner", "empower", "train", "reproducible", "collect",
            "cartpole", "isolation", "ray",
        ]
    ]  # fmt: skip
    json: bool = False
    repeats: int = 5
    seconds: float = 0.4
    quick: bool = False
    rllib_python: Path | None = None


def bench(arguments: Sequence[str]) -> int:
    """Run one benchmark and return the exit code.

    Raises:
        MotetError: the installation does not include the benchmarks.
    """
    if "benchmarks" not in sys.modules:  # not needed under `python -m benchmarks`, which has imported it
        if not (ROOT / "benchmarks" / "command.py").is_file():
            if {"-h", "--help"} & set(arguments):
                sys.stdout.write(f"{USAGE}{ABSENT}\n")
                return 0
            raise MotetError(ABSENT)
        sys.path.insert(0, str(ROOT))  # first: other projects may also have a package `benchmarks`
    from benchmarks.command import run

    return run(arguments)

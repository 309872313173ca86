"""The command ``motet bench``: runs one bench and shows what it found."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from benchmarks import BENCHES, Result, Settings
from motet.errors import SettingError

__all__ = ["bench", "run"]


def run(arguments: Sequence[str]) -> int:
    """Run the bench that the arguments of the command name; returns the exit code."""
    return tyro.cli(bench, prog="motet bench", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))


def bench(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="{" + ",".join(BENCHES) + "}")]],
    json: bool = False,
    repeats: int = Settings.repeats,
    seconds: float = Settings.seconds,
    quick: bool = False,
    rllib_python: Path | None = None,
) -> int:
    """Measure how fast a part is, against other designs, other libraries and the machine's limit.

    Args:
        name: What to measure.
        json: Print one object for machines instead of a table for people.
        repeats: Rounds; the median counts.
        seconds: How long each contestant runs in each round.
        quick: Tiny sizes, to see that everything runs; the numbers mean nothing.
        rllib_python: For ray: the Python of an environment with RLlib, which pins its own gymnasium.
    """
    if name not in BENCHES:
        raise SettingError(f"bench: given {name!r}, expected one of {', '.join(BENCHES)}")
    if rllib_python is not None and name != "ray":
        raise SettingError(f"rllib_python: given for {name!r}, expected for 'ray' alone, which compares with RLlib")
    settings = Settings(repeats, seconds, quick, rllib_python)
    _let_children_find_us()
    result: Result = importlib.import_module(BENCHES[name]).run(settings)
    if json:
        sys.stdout.write(result.as_json() + "\n")
    else:
        from benchmarks.table import show

        show(result)
    return 0


def _let_children_find_us() -> None:
    """Make this package importable for all processes that come of this one: fork servers, interpreters, Ray's workers.

    They look in its folder first, and never in the working directory, which may be that of another project with a
    package of this name.
    """
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(PYTHONPATH=os.pathsep.join(folders), PYTHONSAFEPATH="1")

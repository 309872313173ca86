"""The command ``motet bench``: runs one bench and shows its result."""

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
from motet.text import nearest

__all__ = ["bench", "run"]


def run(arguments: Sequence[str]) -> int:
    """Run the bench named by the arguments of the command; returns the exit code."""
    return tyro.cli(bench, prog="motet bench", args=arguments, config=(tyro.conf.FlagCreatePairsOff,))


def bench(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="{" + ",".join(BENCHES) + "}")]],
    json: bool = False,
    repeats: int = Settings.repeats,
    seconds: float = Settings.seconds,
    quick: bool = False,
    rllib_python: Path | None = None,
) -> int:
    """Measure the speed of a part against other designs, other libraries and the limit of the machine.

    Args:
        name: The benchmark to run.
        json: Print one JSON object instead of tables.
        repeats: Number of rounds; the result is their median.
        seconds: Seconds that each contestant runs in each round.
        quick: Use tiny sizes, to test that everything runs; the numbers have no meaning.
        rllib_python: For ray: the Python interpreter of an environment with RLlib, which pins another gymnasium.
    """
    if name not in BENCHES:
        near = nearest(name, BENCHES)
        meant = f"; did you mean {near}?" if near else ""
        raise SettingError(f"bench must be one of {', '.join(BENCHES)}, got {name!r}{meant}")
    if rllib_python is not None and name != "ray":
        raise SettingError(f"rllib_python is only valid with 'ray', which compares with RLlib (got {name!r})")
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
    """Make this package importable in all processes that this one starts: fork servers, interpreters, Ray's workers.

    They search its folder first, and never the working directory, which may belong to another project with a package of
    this name.
    """
    folders = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(PYTHONPATH=os.pathsep.join(folders), PYTHONSAFEPATH="1")

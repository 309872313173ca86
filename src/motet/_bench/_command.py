"""The command ``motet bench``: runs one bench and shows what it found."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import tyro

from motet._bench import BENCHES, Result, Settings
from motet.errors import SettingError

__all__ = ["bench"]


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
        raise SettingError(f"bench must be one of {', '.join(BENCHES)}, got {name!r}")
    if rllib_python is not None and name != "ray":
        raise SettingError(f"rllib_python is only valid with 'ray', which compares with RLlib (got {name!r})")
    settings = Settings(repeats, seconds, quick, rllib_python)
    result: Result = importlib.import_module(BENCHES[name]).run(settings)
    if json:
        sys.stdout.write(result.as_json() + "\n")
    else:
        from motet._bench._table import show

        show(result)
    return 0

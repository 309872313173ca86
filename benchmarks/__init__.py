"""``motet bench``: speed of the parts of motet, as ratios measured in one run.

A bench has several *measures* and several *contestants*. All contestants of a measure run in turn, several times, so
that other load on the machine affects all of them. The result is the median of the repeats. A *comparison* is the ratio
of two contestants' medians, above 1 if motet is better. `docs/bench.md` describes each of them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from motet.errors import SettingError

__all__ = [
    "BENCHES",
    "Amount",
    "Comparison",
    "Measure",
    "Result",
    "Settings",
    "interleave",
    "interleave_pairs",
    "machine",
]

BENCHES = {
    "replay": "benchmarks.replay",
    "publication": "benchmarks.publication",
    "bell": "benchmarks.bell",
    "plan": "benchmarks.plan",
    "learner": "benchmarks.learner",
    "empower": "benchmarks.empower",
    "train": "benchmarks.train",
    "reproducible": "benchmarks.reproducible",
    "collect": "benchmarks.collect",
    "cartpole": "benchmarks.cartpole",
    "isolation": "benchmarks.isolation",
    "ray": "benchmarks.ray",
}
"""Modules of the benches, by name. Each has ``run(settings) -> Result``."""


@dataclass(frozen=True)
class Settings:
    """Duration and number of the measurements."""

    repeats: int = 5
    seconds: float = 0.4
    quick: bool = False
    """Use tiny sizes, to test that everything runs; the numbers have no meaning."""
    rllib_python: Path | None = None
    """For bench ray: the interpreter that has RLlib, which pins another version of gymnasium; None: this
    interpreter."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise SettingError(f"repeats must be an int >= 1, got {self.repeats}")
        if not 0 < self.seconds <= 60:
            raise SettingError(f"seconds must be a number > 0 and <= 60, got {self.seconds}")


@dataclass(frozen=True)
class Measure:
    """One quantity that is measured for several contestants."""

    title: str
    unit: str
    """A rate such as ``rows/s`` (more is better), or a time such as ``us`` (less is better)."""
    compared: bool = True
    """Whether contestants are compared; if not, no ratio is shown."""

    @property
    def more_is_better(self) -> bool:
        """Whether the unit is a rate."""
        return self.unit.endswith("/s")


@dataclass(frozen=True)
class Comparison:
    """A value of the result: how much better ``ours`` is than ``theirs`` in one measure."""

    measure: str
    ours: str
    theirs: str
    at_least: float | None = None


@dataclass(frozen=True)
class Amount:
    """A value of the result that is not a ratio: the median of one contestant in one measure."""

    measure: str
    whose: str
    at_most: float | None = None


@dataclass
class Result:
    """Result of a bench."""

    name: str
    measures: Mapping[str, Measure]
    comparisons: Mapping[str, Comparison]
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """All repeats, by measure and contestant."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Contestants that could not run, with the reason."""
    counts: dict[str, int] = field(default_factory=dict)
    """Values that are counted, not compared."""
    exactly: dict[str, int | None] = field(default_factory=dict)
    """Expected value of each count; None: any value above zero."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Additional information for readers of the raw numbers."""
    notes: list[str] = field(default_factory=list)
    """Additional information for readers of the tables, one line each."""
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    """Values of the result that are medians of one contestant, not ratios."""

    def median(self, measure: str, contestant: str) -> float | None:
        """Return the median of a contestant's repeats; None if it did not run."""
        repeats = self.samples.get(measure, {}).get(contestant)
        return statistics.median(repeats) if repeats else None

    def ratio(self, measure: str, ours: str, theirs: str) -> float | None:
        """Return how much better ``ours`` is than ``theirs``; None if one of them did not run."""
        mine, other = self.median(measure, ours), self.median(measure, theirs)
        if mine is None or other is None:
            return None
        return mine / other if self.measures[measure].more_is_better else other / mine

    @property
    def values(self) -> dict[str, float]:
        """All comparisons and amounts that were measured, and all counts."""
        found = {name: self.ratio(c.measure, c.ours, c.theirs) for name, c in self.comparisons.items()}
        found |= {name: self.median(a.measure, a.whose) for name, a in self.amounts.items()}
        return {name: round(value, 4) for name, value in found.items() if value is not None} | self.counts

    def as_json(self) -> str:
        """Return the result as one JSON object on one line."""
        raw = {
            "units": {key: m.unit for key, m in self.measures.items()},
            "samples": self.samples,
            "skipped": self.skipped,
            "facts": self.facts,
        }
        return json.dumps({"bench": self.name, "values": self.values, "raw": raw, "machine": machine()})


def interleave(
    result: Result, measure: str, contestants: Mapping[str, Callable[[], float]], repeats: int, warm: bool = True
) -> None:
    """Measure the contestants in turn, ``repeats`` times; if ``warm``, a first round is discarded."""
    for i in range(-1 if warm else 0, repeats):
        for name, ask in contestants.items():
            value = ask()
            if i >= 0:
                result.samples.setdefault(measure, {}).setdefault(name, []).append(value)


def interleave_pairs(
    result: Result,
    measures: tuple[str, str],
    contestants: Mapping[str, Callable[[], tuple[float, float]]],
    repeats: int,
    warm: bool = True,
) -> None:
    """Measure contestants that return two measures at once, in turn, ``repeats`` times; if ``warm``, a first round is
    discarded."""
    for i in range(-1 if warm else 0, repeats):
        for name, ask in contestants.items():
            for measure, value in zip(measures, ask(), strict=True):
                if i >= 0:
                    result.samples.setdefault(measure, {}).setdefault(name, []).append(value)


def machine() -> dict[str, Any]:
    """Return a description of the machine and the library versions."""
    versions = {}
    for package in ("numpy", "torch", "cpprb", "torchrl", "stable-baselines3", "ray"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **versions,
    }


def cpu_model() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()

"""``motet bench``: how fast the parts are, as ratios measured in one run.

A bench asks several *contestants* for several *measures*: all contestants of a measure in turn, again and again, so
that a noisy minute hits everybody; the median of the repeats counts. A *comparison* is the ratio of two contestants'
medians, above 1 where ours is the better one. `docs/bench.md` says what each of them means.
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
    "train": "benchmarks.train",
    "collect": "benchmarks.collect",
    "isolation": "benchmarks.isolation",
    "ray": "benchmarks.ray",
}
"""Name and module. A module has ``run(settings) -> Result``."""


@dataclass(frozen=True)
class Settings:
    """How long and how often."""

    repeats: int = 5
    seconds: float = 0.4
    quick: bool = False
    """Tiny sizes: shows that everything runs, measures nothing."""
    rllib_python: Path | None = None
    """For bench ray: the interpreter that has RLlib, which pins its own gymnasium; None: this one."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise SettingError(f"repeats: given {self.repeats}, expected 1 or more")
        if not 0 < self.seconds <= 60:
            raise SettingError(f"seconds: given {self.seconds}, expected more than 0 and at most 60")


@dataclass(frozen=True)
class Measure:
    """One thing that is measured of several contestants."""

    title: str
    unit: str
    """Something per second (more is better), or a time such as ``us`` (less is better)."""
    compared: bool = True
    """Whether there is a better and a worse: otherwise no ratio is shown."""

    @property
    def more_is_better(self) -> bool:
        """Whether the unit is a rate."""
        return self.unit.endswith("/s")


@dataclass(frozen=True)
class Comparison:
    """A value: how much better ``ours`` is than ``theirs`` in one measure."""

    measure: str
    ours: str
    theirs: str
    at_least: float | None = None


@dataclass(frozen=True)
class Amount:
    """A value that is no ratio: what one contestant came to in one measure."""

    measure: str
    whose: str
    at_most: float | None = None


@dataclass
class Result:
    """What a bench found."""

    name: str
    measures: Mapping[str, Measure]
    comparisons: Mapping[str, Comparison]
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """For each measure and contestant, all repeats."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Contestants that could not take part, and why."""
    counts: dict[str, int] = field(default_factory=dict)
    """Values that are counted, not compared."""
    exactly: dict[str, int | None] = field(default_factory=dict)
    """What each count must be; None: anything above zero."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else a reader of the raw numbers should know."""
    notes: list[str] = field(default_factory=list)
    """The part of it that a reader of the tables should know, one line each."""
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    """Values that are medians as they are."""

    def median(self, measure: str, contestant: str) -> float | None:
        """The median of a contestant's repeats; None if it did not take part."""
        repeats = self.samples.get(measure, {}).get(contestant)
        return statistics.median(repeats) if repeats else None

    def ratio(self, measure: str, ours: str, theirs: str) -> float | None:
        """How much better ``ours`` is."""
        mine, other = self.median(measure, ours), self.median(measure, theirs)
        if mine is None or other is None:
            return None
        return mine / other if self.measures[measure].more_is_better else other / mine

    @property
    def values(self) -> dict[str, float]:
        """All comparisons that could be made, all amounts, and all counts."""
        found = {name: self.ratio(c.measure, c.ours, c.theirs) for name, c in self.comparisons.items()}
        found |= {name: self.median(a.measure, a.whose) for name, a in self.amounts.items()}
        return {name: round(value, 4) for name, value in found.items() if value is not None} | self.counts

    def as_json(self) -> str:
        """One object on one line."""
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
    """Ask the contestants in turn, ``repeats`` times round; a first round is thrown away if ``warm``."""
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
    """The same for contestants that are asked for two measures at once."""
    for i in range(-1 if warm else 0, repeats):
        for name, ask in contestants.items():
            for measure, value in zip(measures, ask(), strict=True):
                if i >= 0:
                    result.samples.setdefault(measure, {}).setdefault(name, []).append(value)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
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
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()

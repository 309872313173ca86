"""Generates pages of the guide from the settings dataclasses: ``python -m motet.cli.reference docs`` writes them.

The pages are ``settings.md``, with a table for each dataclass, and ``experiment.schema.json``. A test checks that the
files in ``docs/`` are up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.cli.experiment import experiment_schema
from motet.evaluation.evaluate import EvaluationSettings
from motet.placement import Cluster
from motet.policies.limits import PolicyLimits
from motet.policies.partner import Partner
from motet.schedule import Exponential, Linear, Stages
from motet.settings import describe_settings
from motet.system.supervisor import RestartLimits
from motet.training.league import League
from motet.training.settings import AgentSettings, Settings

__all__ = ["PAGES", "schema_file", "settings_page"]

_HEAD = """# Settings

This page is generated from the source by `make reference`. A setting outside its bounds raises an error of one line:
`steps must be an int >= 1, got 0`. On the command line, names have dashes (`--publish-every`), and the settings of a
nested class follow the name of its field (`--limits.hang-s`, `--league.pool`, `--dqn.gamma`). In an
[experiment file](train.md), settings are keys and nested classes are tables;
[experiment.schema.json](experiment.schema.json) is the JSON Schema of such files.

A *Schedule* is a number, or a value that changes with the agent's steps: see [schedules and stages](stages.md). The
bounds apply to every value that it takes.
"""


def settings_page() -> str:
    """The tables of all settings as Markdown."""
    sections: list[tuple[str, Any]] = [
        ("motet.Settings: settings of a training run", Settings),
        ("League (`league`): opponents in self-play", League),
        ("RestartLimits (`limits`): when processes are restarted", RestartLimits),
        ("Cluster (`cluster`): resources of a Ray cluster", Cluster),
        *((f"{_config(name).__name__} (`{name}`)", _config(name)) for name in ALGORITHMS),
        ("motet.AgentSettings (`agents.NAME`): settings of a single agent that learns", AgentSettings),
        ("motet.Partner (`agents.NAME`): the policy of an agent that does not learn", Partner),
        ("Linear", Linear),
        ("Exponential", Exponential),
        ("Stages (`stages`)", Stages),
        ("EvaluationSettings: how policies are evaluated", EvaluationSettings),
        ("PolicyLimits (`limits` of an evaluation or a partner): limits of an isolated policy", PolicyLimits),
    ]
    return "\n".join([_HEAD, *(f"## {title}\n\n{_table(cls)}" for title, cls in sections)])


def _config(algorithm: str) -> Any:
    return type(algorithm_config(algorithm))


def _table(cls: Any) -> str:
    lines = ["| setting | type | default | bounds | description |", "|---|---|---|---|---|"]
    for row in describe_settings(cls):
        default = f"`{row.default}`" if row.default else "required"
        lines.append(f"| `{row.name}` | {row.type.replace(' | ', ' or ')} | {default} | {row.bounds} | {row.text} |")
    return "\n".join(lines) + "\n"


def schema_file() -> str:
    """The JSON Schema of experiment files, as text."""
    return json.dumps(experiment_schema(), indent=1, allow_nan=False) + "\n"


PAGES: dict[str, Callable[[], str]] = {"settings.md": settings_page, "experiment.schema.json": schema_file}
"""Generated pages of the guide: for each file name, the function that returns the text."""

if __name__ == "__main__":
    for name, make in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(make())

"""Groups of runs with equal settings except for the seed, and the settings in which groups differ."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from motet.runs.history import RunHistory
from motet.text import label

__all__ = ["ABSENT", "Group", "differing", "group"]

ABSENT = "absent"
"""Shown for a setting that the run's version of motet did not have."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # addresses, for example of lambdas, are ignored


@dataclass
class Group:
    """Runs with equal settings except for the seed."""

    name: str
    number: int
    runs: list[RunHistory]
    settings: dict[str, str]

    @property
    def shown(self) -> list[RunHistory]:
        """The runs that have curves."""
        return [run for run in self.runs if len(run.snapshots)]

    @property
    def agents(self) -> list[str]:
        """Names of the agents."""
        return list(dict.fromkeys(name for run in self.shown for name in run.snapshots.agents))

    @property
    def partners(self) -> dict[str, str]:
        """The policies of the agents that do not learn, by agent."""
        return {row.name: row.policy for run in self.shown if run.newest for row in run.newest.partners}


def group(runs: Sequence[RunHistory]) -> list[Group]:
    """Sort runs into groups, in the given order. Within a group runs are sorted by seed."""
    sorts: dict[str, list[RunHistory]] = {}
    for run in runs:
        sorts.setdefault(_exactly(run.config), []).append(run)
    uniform = _uniform(runs)
    groups = [
        Group("", i, sorted(members, key=lambda run: (str(run.seed).zfill(12), run.name)), settings)
        for i, members in enumerate(sorts.values())
        for settings in [_settings(members[0].config, uniform)]
    ]
    keys = differing(groups)
    for one in groups:
        letter = chr(ord("A") + one.number) if len(groups) <= 26 else f"#{one.number + 1}"
        words = ", ".join(f"{key.rpartition('.')[2]} {one.settings.get(key, ABSENT)}" for key in keys)
        one.name = f"{letter}: {words}" if words and len(words) <= 40 else letter
    return groups


def differing(groups: Sequence[Group]) -> list[str]:
    """Return the settings in which groups differ."""
    keys = dict.fromkeys(key for one in groups for key in one.settings)
    return [key for key in keys if len({one.settings.get(key) for one in groups}) > 1]


def _exactly(config: Mapping[str, Any]) -> str:
    """Return all settings of a run except the seed, as a string to compare."""
    settings = {key: value for key, value in config["settings"].items() if key != "seed"}
    return _ADDRESS.sub("", json.dumps([config["world"], config["agents"], settings], sort_keys=True))


def _uniform(runs: Sequence[RunHistory]) -> bool:
    """Return whether all agents of each run have equal settings, so that they need not be named."""
    return all(len({repr(agent) for agent in run.config["agents"].values()}) == 1 for run in runs)


def _settings(config: Mapping[str, Any], uniform: bool) -> dict[str, str]:
    """Return all settings except the seed, human-readable, with one line each."""
    agents = {**config["agents"]}
    found = {"world": config["world"]}
    if uniform:
        found |= {"agents": ", ".join(map(label, agents)), "algorithm": next(iter(agents.values()))}
    else:
        found |= {"agents": agents}
    found |= {"settings": {key: value for key, value in config["settings"].items() if key != "seed"}}
    flat: dict[str, str] = {}
    _flatten("", found, flat)
    return flat


def _flatten(prefix: str, value: Any, into: dict[str, str], inside: bool = False) -> None:
    """Flatten nested settings. Small values ``inside`` of a dataclass, such as schedules, stay in one line."""
    if not isinstance(value, Mapping) or (inside and _is_small(value)):
        into[prefix.removeprefix("settings.")] = _words(value)
        return
    for key, item in value.items():
        if not (prefix == "settings" and key == "class"):
            _flatten(f"{prefix}.{key}" if prefix else str(key), item, into, inside or "class" in value)


def _is_small(value: Mapping[str, Any]) -> bool:
    return "class" in value and len(value) <= 5 and not any(isinstance(item, (dict, list)) for item in value.values())


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        kind = str(value.get("class")).rpartition(":")[2].lower()
        return f"{kind}({', '.join(f'{key} {item}' for key, item in value.items() if key != 'class')})"
    if isinstance(value, list):
        return " x ".join(map(_words, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    return _ADDRESS.sub("", str(value))

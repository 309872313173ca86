"""Groups of runs with equal settings except for the seed, and the settings in which groups differ."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

from motet.errors import SettingError
from motet.runs.config import describe
from motet.runs.history import RunHistory
from motet.system.imports import find
from motet.text import label

__all__ = ["ABSENT", "Group", "differing", "group"]

ABSENT = "-"
"""Shown for a setting that the world or the algorithm of a group does not have."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # addresses, for example of lambdas, are ignored
_ROOM = 40  # characters: longer names list only the settings that are needed to tell the groups apart
_MOST = 60  # maximum number of characters of a name


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
        return [run for run in self.runs if len(run.curves)]

    @property
    def agents(self) -> list[str]:
        """Names of the agents."""
        return list(dict.fromkeys(name for run in self.shown for name in run.curves.agents))

    @property
    def partners(self) -> dict[str, str]:
        """The policies of the agents that do not learn, by agent."""
        return {row.name: row.policy for run in self.shown if run.newest for row in run.newest.partners}


def group(runs: Sequence[RunHistory], names: Sequence[str] = ()) -> list[Group]:
    """Sort runs into groups, in the given order. Within a group runs are sorted by seed.

    Groups are named by the settings in which they differ, unless ``names`` has a name for each of them.
    """
    configs = _completed([run.config for run in runs])
    sorts: dict[str, list[tuple[RunHistory, Mapping[str, Any]]]] = {}
    for run, config in zip(runs, configs, strict=True):
        sorts.setdefault(_exactly(config), []).append((run, config))
    uniform = _uniform(configs)
    groups = [
        Group("", i, sorted((run for run, _ in members), key=lambda run: (str(run.seed).zfill(12), run.name)), settings)
        for i, members in enumerate(sorts.values())
        for settings in [_settings(members[0][1], uniform)]
    ]
    found = _named(groups)
    if names:
        _check_names(names, found)
    for one, name in zip(groups, names or found, strict=True):
        one.name = name
    return groups


def _check_names(names: Sequence[str], groups: Sequence[str]) -> None:
    if len(names) != len(groups):
        known = "; ".join(groups)
        raise SettingError(f"names must be one for each of the {len(groups)} groups ({known}), got {len(names)}")
    if len(set(names)) != len(names) or not all(name.strip() for name in names):
        raise SettingError(f"names must be different and not empty, got {', '.join(map(repr, names))}")


def _named(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group, made of the settings in which they differ."""
    if len(groups) == 1:
        return ["all runs"]
    keys = differing(groups)
    # Settings that all groups have come first.
    keys.sort(key=lambda key: any(key not in one.settings for one in groups))
    ends = [_end(key) for key in keys]
    titles = {key: end if ends.count(end) == 1 else key for key, end in zip(keys, ends, strict=True)}
    for count in (len(keys), *range(1, len(keys))):
        words = [", ".join(_part(titles[key], one, key) for key in keys[:count]) for one in groups]
        if len(set(words)) == len(words) and (count < len(keys) or max(map(len, words)) <= _ROOM):
            break
    else:
        words = [", ".join(_part(titles[key], one, key) for key in keys) for one in groups]
    words = [label(text, _MOST) for text in words]
    return [text if words.count(text) == 1 else f"{text} ({i + 1})" for i, text in enumerate(words)]


def _end(key: str) -> str:
    return key.rpartition(".")[2]


def _part(title: str, one: Group, key: str) -> str:
    value = one.settings.get(key, ABSENT)
    return value.rpartition(":")[2] if _end(key) in ("class", "path") else f"{title} {value}"


def differing(groups: Sequence[Group]) -> list[str]:
    """Return the settings in which groups differ."""
    keys = dict.fromkeys(key for one in groups for key in one.settings)
    return [key for key in keys if len({one.settings.get(key) for one in groups}) > 1]


def _exactly(config: Mapping[str, Any]) -> str:
    """Return all settings of a run except the seed, as a string to compare."""
    settings = {key: value for key, value in config["settings"].items() if key != "seed"}
    return _ADDRESS.sub(
        "", json.dumps([config["world"], config["agents"], config.get("own_settings"), settings], sort_keys=True)
    )


def _completed(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Complete the settings of all runs: a setting that only some of them record gets its default in the others.

    Older versions of motet did not have all settings, and a world's settings are recorded only if they differ from the
    defaults. Defaults are looked up for motet's own classes only: a report runs no other code.
    """
    every = [
        part
        for one in configs
        for whole in (one["world"], one["settings"], *one["agents"].values())
        for part in _with_parts(whole)
    ]
    given: dict[str, dict[str, None]] = {}
    for part in every:
        given.setdefault(_path(part), {}).update(dict.fromkeys(_given(part)))
    incomplete = {_path(part) for part in every if len(given[_path(part)]) > len(_given(part))}
    known = {path: _defaults(path, given[path]) if path in incomplete else {} for path in given}
    return [
        {
            **config,
            "world": _filled(config["world"], given, known),
            "settings": _filled(config["settings"], given, known),
            "agents": {name: _filled(agent, given, known) for name, agent in config["agents"].items()},
        }
        for config in configs
    ]


def _path(part: Mapping[str, Any]) -> str:
    return str(part.get("class") or part.get("path") or "")


def _with_parts(whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield settings, and the settings of dataclasses among them."""
    yield whole
    for value in _given(whole).values():
        if _is_part(value):
            yield from _with_parts(value)


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and "class" in value


def _given(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a dataclass, or of a world."""
    found = part if "class" in part else part.get("settings")
    return found if isinstance(found, Mapping) else {}


def _filled(
    part: Mapping[str, Any], given: Mapping[str, Mapping[str, None]], known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    path = _path(part)
    whole = {name: _filled(value, given, known) if _is_part(value) else value for name, value in _given(part).items()}
    whole |= {name: known[path][name] for name in given[path] if name not in whole and name in known[path]}
    return whole if "class" in part else {**part, "settings": whole} if whole else dict(part)


def _defaults(path: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of a dataclass or of a world by name; the word "default" if it is not part of motet."""
    module, _, name = path.partition(":")
    if module.partition(".")[0] != "motet":
        return dict.fromkeys(names, "default")
    try:
        return _described(find(module, name))
    except (SettingError, TypeError, ValueError):
        return {}  # the class was removed from motet, or has no signature


def _described(kind: Any) -> dict[str, Any]:
    if is_dataclass(kind):
        made = {item.name: item.default for item in fields(kind) if item.default is not MISSING}
        for item in fields(kind):
            if item.default_factory is not MISSING:
                made[item.name] = item.default_factory()
    else:
        parameters = inspect.signature(kind).parameters.values()
        made = {one.name: one.default for one in parameters if one.default is not one.empty}
    found = {}
    for name, value in made.items():
        try:
            found[name] = describe(value)
        except SettingError:  # not a value that a config can hold
            continue
    return found


def _uniform(configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all agents of each run have equal settings, so that they need not be named."""
    return all(len({repr(agent) for agent in config["agents"].values()}) == 1 for config in configs)


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
    """Flatten nested settings. ``inside``: the value is a field of a dataclass; small values there, such as schedules,
    stay in one line."""
    if not isinstance(value, Mapping) or (inside and _is_small(value)):
        words = _words(value)
        if _end(prefix) == "class":  # motet.algorithms.dqn:DQNConfig is shown as DQN
            words = words.rpartition(":")[2].removesuffix("Config")
        into[prefix.removeprefix("settings.")] = words
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

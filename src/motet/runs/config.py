"""Convert the settings of a run to plain values and back: the contents of ``config.json``.

Dataclasses become ``{"class": "module:Name", field: value, …}``, functions become ``{"function": "module:name"}``, and
sequences become lists (and tuples on the way back).
A run directory may come from an untrusted source, and importing a module runs its code. So without ``trust`` only
motet's dataclasses and worlds are imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import platform
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from motet._version import __version__
from motet.errors import SettingError
from motet.system.imports import Imported, find, known_by_path, path_of

if TYPE_CHECKING:
    from motet.training.roster import Roster

__all__ = [
    "describe",
    "describe_world",
    "rebuild",
    "rebuild_world",
    "refuse_untrusted",
    "run_config",
    "spaces_of",
    "versions",
]


def describe(value: Any) -> Any:
    """Convert a dataclass, or a value within one, to plain values.

    >>> from motet.schedule import Linear
    >>> describe(Linear(1.0, 0.1, steps=1000))
    {'class': 'motet.schedule:Linear', 'start': 1.0, 'end': 0.1, 'steps': 1000, 'by': None}
    >>> rebuild(describe(Linear(1.0, 0.1, steps=1000)))
    Linear(start=1.0, end=0.1, steps=1000, by=None)
    """
    if is_dataclass(value) and not isinstance(value, type):
        kept = {item.name: describe(getattr(value, item.name)) for item in fields(value) if item.init}
        return {"class": path_of(type(value)), **kept}
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value) or {"class", "function"} & set(value):
            raise SettingError(f"keys of a mapping must be strings other than 'class' and 'function', got {value!r}")
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if callable(value) and not isinstance(value, type):
        return _function(value)
    raise SettingError(f"value must be plain or a dataclass to be saved, got a {type(value).__name__}")


def _function(function: Any) -> dict[str, Any]:
    """The import path of a function; None if it cannot be imported."""
    try:
        return {"function": function.path if isinstance(function, Imported) else path_of(function)}
    except SettingError as error:
        return {"function": None, "given": repr(function), "why": str(error)}


def rebuild(plain: Any, *, trust: bool = False) -> Any:
    """Rebuild the value from which :func:`describe` made these plain values. ``trust`` allows classes outside of
    motet."""
    if isinstance(plain, list):
        return tuple(rebuild(item, trust=trust) for item in plain)
    if not isinstance(plain, Mapping):
        return plain
    if "function" in plain and "class" not in plain:
        if plain["function"] is None:
            raise SettingError(
                f"function {plain['given']} cannot be imported ({plain['why']}); give it to motet.resume"
            )
        return known_by_path(plain["function"], _load(plain["function"], "motet", trust))
    values = {key: rebuild(item, trust=trust) for key, item in plain.items() if key != "class"}
    if "class" not in plain:
        return values
    if "function" in plain:  # the source of a network: the function is imported when it is needed
        _load(plain["function"], "motet", trust)
    kind = _load(plain["class"], "motet", trust)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        raise SettingError(f"class must be a dataclass, got {plain['class']!r}")
    known = [item.name for item in fields(kind) if item.init]
    if unknown := sorted(set(values) - set(known)):
        raise SettingError(
            f"{kind.__name__} must have fields among {', '.join(known)}, got {', '.join(unknown)}; another version of "
            "motet may have written it"
        )
    return kind(**values)


def describe_world(world: Any) -> dict[str, Any]:
    """The import path and the settings of a factory of worlds; ``path`` is None if it cannot be imported.

    If a setting is itself a factory or a function, such as the model of a world, it is described in the same way.

    >>> from motet.worlds import TreasureHunt
    >>> describe_world(functools.partial(TreasureHunt, agents=4))
    {'path': 'motet.worlds.treasure_hunt:TreasureHunt', 'settings': {'agents': 4}}
    >>> describe_world(lambda: TreasureHunt())["path"] is None
    True
    """
    settings: dict[str, Any] = {}
    maker = world
    while isinstance(maker, functools.partial):
        if maker.args:
            return {"path": None, "given": _short(world), "why": "it is a partial with positional arguments"}
        settings = {**maker.keywords, **settings}
        maker = maker.func
    try:
        if isinstance(maker, Imported):
            return {"path": maker.path, "settings": _settings(settings)}
        return {"path": path_of(maker), "settings": _settings(settings)}
    except SettingError as error:
        return {"path": None, "given": _short(world), "why": str(error)}


def _short(world: Any) -> str:
    """The text of a factory, which may hold a whole environment."""
    text = repr(world)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: describe_world(value) for name, value in given.items() if callable(value)}
    for name, plain in inner.items():
        if plain["path"] is None:
            raise SettingError(f"{name} must be importable, got {plain['given']}: {plain['why']}")
    plain = describe({name: value for name, value in given.items() if name not in inner})
    return {name: inner.get(name, plain.get(name)) for name in given}


def rebuild_world(plain: Mapping[str, Any], *, trust: bool = False) -> Callable[..., Any]:
    """Rebuild the factory that :func:`describe_world` was given. ``trust`` allows worlds outside of motet."""
    if plain.get("path") is None:
        raise SettingError(
            f"the run's world was {plain.get('given', 'not recorded')}, which cannot be imported "
            f"({plain.get('why', 'no path')}); give it in Python: motet.resume(run, world=…), "
            "motet.load_policies(run, world=…)"
        )
    maker = known_by_path(plain["path"], _load(plain["path"], "motet.worlds", trust))
    given: Mapping[str, Any] = plain.get("settings", {})
    inner = {name: rebuild_world(value, trust=trust) for name, value in given.items() if _is_world(value)}
    settings = rebuild({name: value for name, value in given.items() if name not in inner}, trust=trust) | inner
    return functools.partial(maker, **settings) if settings else maker


def _is_world(plain: Any) -> bool:
    return isinstance(plain, Mapping) and set(plain) == {"path", "settings"}


def run_config(world: Any, roster: Roster, settings: Any) -> dict[str, Any]:
    """All settings of a run, resolved: what ``resume`` needs, and everything that affects the result."""

    def described(config: Any) -> Any:
        try:
            return describe(config)
        except SettingError as error:
            return {"class": None, "given": repr(config), "why": str(error)}

    names, pace = [policy.name for policy in roster.policies], roster.pace
    chosen = {"period": pace.period, "ahead": pace.ahead, "updates_per_step": pace.updates_per_step}
    return {
        "world": describe_world(world),
        "agents": {name: described(config) for name, config in roster.configs().items()},
        "spaces": {policy.name: spaces_of(policy.observation_space, policy.action_space) for policy in roster.policies},
        "own_settings": {policy.name: dict(policy.own) for policy in roster.policies if policy.own},
        "settings": describe(settings),
        "grouping": {
            "stacks": [[names[policy] for policy in stack] for stack in roster.stacks],
            "learner_processes": [list(stacks) for stacks in roster.processes],
        },
        "versions": versions(),
        **({"pace": chosen} if pace.period else {}),
    }


def spaces_of(observation_space: Any, action_space: Any) -> dict[str, str]:
    """The spaces of an agent as text, to compare those of two runs."""
    return {"observation": str(observation_space), "action": str(action_space)}


def rebuild_agents(plain: Mapping[str, Any], *, trust: bool = False) -> dict[str, Any]:
    """Rebuild the algorithm or the partner of each agent from the ``agents`` of a config."""
    for name, config in plain.items():
        if config.get("class") is None:
            raise SettingError(
                f"agent {name}: its algorithm or policy was {config.get('given', 'not recorded')}, which cannot be "
                f"rebuilt ({config.get('why', 'no class')}); resume from Python: motet.resume(run, algorithm=…)"
            )
    return {name: rebuild(config, trust=trust) for name, config in plain.items()}


def versions() -> dict[str, str]:
    """Versions of motet, Python, numpy and torch, which affect the result bit for bit. Nothing is imported."""
    found = {"motet": __version__, "python": platform.python_version()}
    for name in ("numpy", "torch"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def refuse_untrusted(plain: Any) -> None:
    """Raise if plain values name a class, a function or an anchor outside of motet. Nothing is imported."""
    if isinstance(plain, Mapping):
        for key in ("class", "function"):
            if plain.get(key) is not None:
                _named(plain[key], "motet", trust=False)
        for name in plain.get("anchors") or ():
            if ":" in str(name):
                _named(name, "motet", trust=False)
        plain = list(plain.values())
    if isinstance(plain, list):
        for item in plain:
            refuse_untrusted(item)


def _named(path: Any, package: str, trust: bool) -> tuple[str, str]:
    """The module and the name in ``module:Name``; without ``trust`` the module must be in the given package."""
    module, _, name = str(path).partition(":")
    if not name or not (trust or name.isidentifier()):
        raise SettingError(f"class must be 'module:Name', got {path!r}")
    if not (trust or _within(module, package)):
        raise SettingError(
            f"{path!r} is not part of {package}, and importing it runs its code; if you trust its source, "
            "give --trust on the command line or trust=True in Python"
        )
    return module, name


def _load(path: Any, package: str, trust: bool) -> Any:
    """Import ``module:Name``, or its name in an earlier version. Without ``trust`` it must be in the given package."""
    module, name = _named(path, package, trust)
    found = find(module, name)
    if not trust and not (callable(found) and _within(getattr(found, "__module__", ""), package)):
        raise SettingError(f"class must be a class of {package}, got {path!r}")
    return found


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")

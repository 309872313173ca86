"""Import objects named as ``module:attribute``, find the path of an object, and translate paths of earlier versions."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from motet.errors import SettingError
from motet.text import nearest

__all__ = [
    "Imported",
    "find",
    "import_function",
    "import_named",
    "known_by_path",
    "now_at",
    "path_now",
    "path_of",
    "paths_now",
]

_MOVED = {
    "motet.train": "motet.training.run",
    "motet.training.run:Settings": "motet.training.settings",
    "motet.system.supervisor:Limits": "motet.system.supervisor:RestartLimits",
    "motet.isolation.policy:Limits": "motet.isolation.policy:PolicyLimits",
    "motet.evaluation.evaluate:Settings": "motet.evaluation.evaluate:EvaluationSettings",
    "motet.league": "motet.training.league",
    "motet.supervisor": "motet.system.supervisor",
    "motet.cluster:Cluster": "motet.placement",
    "motet.evaluate": "motet.evaluation.evaluate",
    "motet.isolate": "motet.isolation.policy",
    "motet._scripted": "motet.policies.scripted",
    "motet.worlds._gymnasium": "motet.worlds.gymnasium",
    "motet.worlds._hockey_players": "motet.worlds.hockey.players",
    "motet.worlds._hockey_rules": "motet.worlds.hockey.rules",
    "motet.worlds._treasure_rules": "motet.worlds.treasure_hunt.rules",
    **{f"motet.algorithm:{name}": "motet.schedule" for name in ("Exponential", "Linear", "Staged", "Stages")},
}
"""Paths in files of earlier versions, and the present path of each.

A key is a module, or ``module:Name`` where only that name moved. A value is the new module, or ``module:Name`` where
the name changed too. Entries are followed one after another: a class that is renamed after its module moved needs one
more entry, whose key is its last path.
"""


class Imported:
    """A callable that was imported by its path and remembers it: a partial, a lambda or another callable object.

    Args:
        path: ``module:attribute``.
        made: the object at that path.
    """

    def __init__(self, path: str, made: Callable[..., Any]) -> None:
        self.path, self._made = path, made
        self.suggests = getattr(made, "suggests", {})
        with contextlib.suppress(ValueError, TypeError):  # callables that are not written in Python may have none
            self.__signature__ = inspect.signature(made)  # the factory's free parameters become flags

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """Call the factory."""
        return self._made(*args, **settings)

    def __repr__(self) -> str:
        return f"Imported({self.path!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return only the path, from which another process imports the object. For an object of a script, also return
        the object."""
        return {"path": self.path} if self.path.partition(":")[0] != "__main__" else vars(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(state["path"], state.get("_made") or find(*state["path"].split(":")))  # type: ignore[misc]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Imported) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)


def known_by_path(path: str, found: Any) -> Any:
    """The object found at a path; wrapped in :class:`Imported` if its path cannot be found from the object itself."""
    if not callable(found):
        return found
    try:
        path_of(found)
    except SettingError:
        return Imported(path, found)
    return found


def path_of(thing: Any) -> str:
    """The path ``module:name`` of a class or function. Raises unless importing it gives this very object."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module == "__main__":
        raise SettingError(
            f"class or function must be importable, got {thing!r}, which is defined in a script: move it to a module"
        )
    if module is None or name is None or "<" in name:
        raise SettingError(f"class or function must be importable, got {thing!r}")
    if find(module, name) is not thing:
        raise SettingError(f"class or function must be the one at {module}:{name}, got {thing!r}")
    return f"{module}:{name}"


def now_at(module: str, name: str) -> tuple[str, str]:
    """The current module and name of an object, given those in a file that an earlier version of motet may have
    written.

    >>> now_at("motet.train", "Settings"), now_at("motet.algorithm", "Linear"), now_at("numpy", "zeros")
    (('motet.training.settings', 'Settings'), ('motet.schedule', 'Linear'), ('numpy', 'zeros'))
    """
    outer, dot, inner = name.partition(".")
    while (moved := _MOVED.get(f"{module}:{outer}", _MOVED.get(module))) is not None:
        module, _, renamed = moved.partition(":")
        outer = renamed or outer
    return module, f"{outer}{dot}{inner}"


def path_now(path: str) -> str:
    """The present path of a ``module:Name`` that may be of an earlier version; any other text is returned unchanged.

    >>> path_now("motet.train:Settings")
    'motet.training.settings:Settings'
    """
    module, colon, name = path.partition(":")
    return ":".join(now_at(module, name)) if colon else path


def paths_now(plain: Any) -> Any:
    """Plain values, such as a run's config, with the present path as each ``class``, ``function`` and ``path``.

    >>> paths_now({"class": "motet.algorithm:Linear", "start": 1.0})
    {'class': 'motet.schedule:Linear', 'start': 1.0}
    """
    if isinstance(plain, list):
        return [paths_now(item) for item in plain]
    if not isinstance(plain, Mapping):
        return plain
    return {
        key: path_now(item) if key in ("class", "function", "path") and isinstance(item, str) else paths_now(item)
        for key, item in plain.items()
    }


def find(module: str, name: str) -> Any:
    """Import ``module:name``, which may be a path of an earlier version."""
    try:
        return _imported(module, name)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"class must be importable, got '{module}:{name}': {error}") from error


def import_named(path: str, what: str, known: Sequence[str], hint: str = "") -> Any:
    """Import what a user named as ``module:attribute``.

    Args:
        path: the name.
        what: what it is for, in errors.
        known: the short names that an error lists.
        hint: what to write instead, if the name is neither; by default the most similar short name.
    """
    module, _, name = path.partition(":")
    if not name:
        near, file = nearest(path, known), Path(path if path.endswith(".py") else f"{path}.py")
        meant = f"; did you mean {near}?" if near else f"; {hint}" if hint else ""
        if module.isidentifier() or module.endswith(".py"):
            meant = f"; for a name in {file}, write {file.stem}:NAME" if file.is_file() else meant
        raise SettingError(f"{what} must be one of {', '.join(known)}, or 'module:attribute', got {path!r}{meant}")
    try:
        return _imported(module, name)
    except (ImportError, AttributeError) as error:
        near = nearest(name, vars(sys.modules[module])) if module in sys.modules else ""
        meant = f"; did you mean {module}:{near}?" if near else ""
        raise SettingError(f"{what} must be something that can be imported, got {path!r}: {error}{meant}") from error


def import_function(path: str, what: str) -> Callable[..., Any]:
    """Import a function that a user named as ``module:attribute``. ``what``: the purpose of the function, for the
    error."""
    if ":" not in path:
        raise SettingError(f"{what} must be a function, as 'module:name', got {path!r}")
    found = import_named(path, what, [])
    if not callable(found):
        raise SettingError(f"{what} must be a function, got {found!r} at {path!r}")
    function: Callable[..., Any] = known_by_path(path, found)
    return function


def _imported(module: str, name: str) -> Any:
    module, name = now_at(module, name)
    return functools.reduce(getattr, name.split("."), importlib.import_module(module))

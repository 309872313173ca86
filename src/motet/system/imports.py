"""Importing what users name: ``module:attribute``, and the way back from an object to its path."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from motet.errors import SettingError

__all__ = ["Imported", "find", "import_named", "known_by_path", "path_of"]


class Imported:
    """A factory that was found by its path, and is known by it: a partial, a lambda, an object that can be called.

    Args:
        path: ``module:attribute``.
        made: what is there.
    """

    def __init__(self, path: str, made: Callable[..., Any]) -> None:
        self.path, self._made = path, made
        self.suggests = getattr(made, "suggests", {})
        with contextlib.suppress(ValueError, TypeError):  # of what is not written in Python it is not known
            self.__signature__ = inspect.signature(made)  # the parameters that are left, for flags

    def __call__(self, *args: Any, **settings: Any) -> Any:
        """What the factory makes."""
        return self._made(*args, **settings)

    def __repr__(self) -> str:
        return f"Imported({self.path!r})"


def known_by_path(path: str, found: Any) -> Any:
    """What was found at a path; wrapped so that it is known by the path if it does not know where it comes from."""
    if not callable(found):
        return found
    try:
        path_of(found)
    except SettingError:
        return Imported(path, found)
    return found


def path_of(thing: Any) -> str:
    """Where a class or function is imported from; an error unless that finds the very same one."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module == "__main__":
        raise SettingError(f"given {thing!r} of a script, expected one that can be imported: move it to a module")
    if module is None or name is None or "<" in name:
        raise SettingError(f"given {thing!r}, expected a class or function that can be imported")
    if find(module, name) is not thing:
        raise SettingError(f"given {thing!r}, expected what importing {module}:{name} finds")
    return f"{module}:{name}"


def find(module: str, name: str) -> Any:
    """What ``module:name`` names."""
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise SettingError(f"class: given '{module}:{name}', which cannot be imported: {error}") from error


def import_named(path: str, what: str, known: Sequence[str]) -> Any:
    """What a user named ``module:attribute``; ``known`` are the short names that would do too."""
    module, _, name = path.partition(":")
    if not name:
        raise SettingError(f"{what}: given {path!r}, expected one of {', '.join(known)}, or 'module:attribute'")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"{what}: given {path!r}, which cannot be imported: {error}") from error

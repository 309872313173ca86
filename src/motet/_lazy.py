"""Lazy exports: a package imports its public names on first use, so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


def lazily(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for a package that exports names of other modules.

    Args:
        package: ``__name__`` of the package.
        homes: for each name, the module that defines it.

    >>> get, names = lazily("motet", {"Pace": "motet.pace"})
    >>> get("Pace").__name__, names()
    ('Pace', ['Pace'])
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(homes[name]), name)
        if package in sys.modules:
            setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted(homes)

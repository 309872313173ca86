"""Modules that the fork server imports before it forks children. ``motet/__init__.py`` registers them."""

from __future__ import annotations

__all__ = ["preload", "preloaded"]

_names: list[str] = []


def preload(*names: str) -> None:
    """Have a fork server import these modules when it starts, so that children find them loaded; skip missing ones."""
    _names.extend(name for name in names if name not in _names)


def preloaded() -> list[str]:
    """The modules registered so far, in order."""
    return list(_names)

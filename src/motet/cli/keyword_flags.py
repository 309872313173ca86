"""``--world.NAME VALUE`` for factories that take any keyword argument, such as those of PettingZoo and ``gym:ID``.

Their signature does not name the settings, so the flags cannot be derived from it. They are read from the arguments
before the others are parsed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any

from motet.errors import SettingError

__all__ = ["keyword_flags"]

_PREFIX = "--world."
_PYTHON = {"True": True, "False": False, "None": None}


def keyword_flags(maker: Callable[..., Any], given: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that flags give to the ``**kwargs`` of a world factory, and the remaining arguments.

    A value is JSON, or Python's True, False or None; anything else is a string. A flag without a value is true.

    >>> def parallel_env(seed: int = 0, **kwargs): ...
    >>> keyword_flags(parallel_env, ["--world.N", "3", "--world.local-ratio=0.5", "--world.seed", "1", "--steps", "9"])
    ({'N': 3, 'local_ratio': 0.5}, ['--world.seed', '1', '--steps', '9'])
    """
    parameters = inspect.signature(maker).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return {}, list(given)
    settings: dict[str, Any] = {}
    rest: list[str] = []
    tokens = list(given)
    while tokens:
        token = tokens.pop(0)
        flag, equals, value = token.partition("=")
        name = flag.removeprefix(_PREFIX).replace("-", "_")
        if not flag.startswith(_PREFIX) or name in parameters:
            rest.append(token)
            continue
        if not name.isidentifier():
            raise SettingError(f"flag must be {_PREFIX}NAME with the name of a setting, got {token!r}")
        if name in settings:
            raise SettingError(f"{flag} must be given once, got it twice")
        if not equals:
            has_value = bool(tokens) and not _is_flag(tokens[0])
            value = tokens.pop(0) if has_value else "true"
        settings[name] = _value(value)
    return settings, rest


def _is_flag(token: str) -> bool:
    """Whether a token is a flag and not a value, such as a negative number."""
    if not token.startswith("-") or token == "-":
        return False
    try:
        float(token)
    except ValueError:
        return True
    return False


def _value(text: str) -> Any:
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except ValueError:
        return text

"""Settings hold what their fields say, or are refused with the field's name."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import types
import typing
from typing import Any, Literal

from motet.errors import SettingError

__all__ = ["check_types"]

_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", types.NoneType: "None"}
_NUMBERS: dict[Any, Any] = {int: numbers.Integral, float: numbers.Real}


def check_types(settings: Any) -> None:
    """Raise unless every field of a dataclass is of the type that it is declared with.

    Of containers only that they are no text is checked.

    >>> @dataclasses.dataclass
    ... class Some:
    ...     steps: int = 5
    ...     engine: Literal["a", "b"] = "a"
    >>> check_types(Some(steps="many"))
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: steps: given 'many', expected a whole number
    >>> check_types(Some(engine="c"))
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: engine: given 'c', expected 'a' or 'b'
    """
    kinds: dict[str, Any] = _kinds(type(settings))  # type: ignore[arg-type]
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if not _fits(value, kind):
            raise SettingError(f"{name}: given {value!r}, expected {' or '.join(_words(kind))}")


@functools.cache
def _kinds(cls: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a user's own settings, with annotations for type checkers alone
        return {}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    if isinstance(kind, type):
        return isinstance(value, kind)
    return not isinstance(value, str)  # a container, or a function


def _words(kind: Any) -> list[str]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [word for one in typing.get_args(kind) for word in _words(one)]
    if typing.get_origin(kind) is Literal:
        return [repr(one) for one in typing.get_args(kind)]
    if kind in _WORDS:
        return [_WORDS[kind]]
    return [f"a {kind.__name__}" if isinstance(kind, type) else str(kind).removeprefix("typing.")]

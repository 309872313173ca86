"""Flags with numbers: whole numbers may be written as 1e5 or 100_000, and errors say what was expected."""

from __future__ import annotations

import typing
from typing import Annotated, Any

import tyro

__all__ = ["numbers", "read_whole"]

_registry = tyro.constructors.ConstructorRegistry()


def numbers() -> Any:
    """A context in which tyro also reads whole numbers such as 1e5 and 100_000."""
    return _registry


@_registry.primitive_rule
def _whole_number(info: Any) -> Any:
    """Whole numbers."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: read_whole(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@_registry.primitive_rule
def _number_or_none(info: Any) -> Any:
    """Numbers that may be None. Tyro's own error would describe how it tried both types."""
    members = [one for one in typing.get_args(info.type) if one is not type(None)]
    bare = [typing.get_args(one)[0] if typing.get_origin(one) is Annotated else one for one in members]
    if type(None) not in typing.get_args(info.type) or bare not in ([int], [float]):
        return None
    whole = bare == [int]

    def read(words: list[str]) -> float | None:
        try:
            return None if words[0] == "None" else read_whole(words[0]) if whole else float(words[0])
        except ValueError:
            raise ValueError(f"expected a {'whole ' * whole}number, got {words[0]!r}") from None

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{None}|INT" if whole else "{None}|FLOAT",
        instance_from_str=read,
        is_instance=lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool)),
        str_from_instance=lambda value: [str(value)],
    )


def read_whole(text: str) -> int:
    """A whole number.

    >>> read_whole("1e5"), read_whole("100_000")
    (100000, 100000)
    """
    try:
        number = float(text) if "e" in text.lower() else int(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"expected a whole number, got {text!r}")

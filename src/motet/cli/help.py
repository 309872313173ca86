"""Which flags help shows, and the help texts of a world's flags.

``--help`` shows the common flags in groups; ``--help-all`` shows all flags. Every flag works, shown or not. The help
texts of a world's flags come from the ``Args:`` section of its factory's docstring. Those of settings, with their
bounds, are added in ``flags``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, NoReturn

import tyro

__all__ = ["HELP_ALL", "argument_docs", "flags_of", "help_wanted", "show_help"]

HELP_ALL = ("help_all", Annotated[bool, tyro.conf.arg(help="Show all flags, including rarely used ones.")], False)
"""The flag ``--help-all`` as a field of a dataclass. :func:`help_wanted` reads it before tyro parses the arguments."""


def help_wanted(given: Sequence[str]) -> Literal["", "common", "all"]:
    """Which help the arguments request; empty if none.

    >>> help_wanted(["matrix", "--help"]), help_wanted(["--help-all"]), help_wanted(["matrix"])
    ('common', 'all', '')
    """
    if "--help-all" in given:
        return "all"
    return "common" if {"-h", "--help"} & set(given) else ""


def show_help(options: Any, prog: str, about: str, last: str) -> NoReturn:
    """Print the help of a dataclass of flags and a last line, then exit the process."""
    try:
        tyro.cli(options, prog=prog, description=about, args=["--help"], config=(tyro.conf.FlagCreatePairsOff,))
    finally:
        sys.stdout.write(f"{last}\n" if last else "")
    raise AssertionError("tyro exits the process after printing help")


def flags_of(default: Any, shown: Collection[str] | None = None, about: str | None = None) -> Any:
    """Copy settings into a subclass without checks, in which only some fields are flags.

    The values are checked later, when the real settings are made from them. Within tyro, the error of a check would be
    wrapped in tyro's own message.

    Args:
        default: settings, an instance of a dataclass.
        shown: the fields that are flags; all of them by default.
        about: the help text of the group; by default the first line of the class's docstring.
    """
    kind = type(default)
    values = {item.name: getattr(default, item.name) for item in dataclasses.fields(default) if item.init}
    hints = typing.get_type_hints(kind, include_extras=True) if shown is not None else {}
    hidden = [name for name in values if shown is not None and name not in shown]
    rows: list[Any] = [
        (name, Annotated[hints[name], tyro.conf.Suppress], dataclasses.field(default=None)) for name in hidden
    ]
    about = (inspect.getdoc(kind) or "").partition("\n")[0] if about is None else about
    namespace = {"__post_init__": lambda self: None, "__doc__": about}
    loose = dataclasses.make_dataclass(kind.__name__, rows, bases=(kind,), namespace=namespace, frozen=True)
    return loose(**values)


# ---- help texts from the docstrings of factories

_SECTION = re.compile(r"( *)(Args|Arguments|Parameters):\s*$")
_ENTRY = re.compile(r"\*{0,2}(\w+)(?: *\([^)]*\))?: *(.*)$")


def argument_docs(maker: Any) -> dict[str, str]:
    """The texts in the ``Args:`` section of a factory's docstring, by parameter.

    The docstring is that of a function, of a class or its ``__init__``, or of the callable inside a partial.

    >>> def make(size: int = 3, speed: float = 1.0):
    ...     '''A world.
    ...
    ...     Args:
    ...         size: how many tiles a side has,
    ...             with the wall.
    ...         speed (float): how fast it is.
    ...
    ...     >>> make(size=5)
    ...     '''
    >>> argument_docs(functools.partial(make, size=4))
    {'size': 'How many tiles a side has, with the wall.', 'speed': 'How fast it is.'}
    """
    while isinstance(maker, functools.partial):
        maker = maker.func
    docs = [inspect.getdoc(maker)]
    if isinstance(maker, type):
        docs.append(inspect.cleandoc(vars(maker)["__init__"].__doc__ or "") if "__init__" in vars(maker) else None)
    found: dict[str, str] = {}
    for doc in docs:
        found.update(_entries((doc or "").splitlines()))
    return found


def _entries(lines: list[str]) -> dict[str, str]:
    """The entries of the first ``Args:`` section in the lines of a docstring."""
    start = next((i for i, line in enumerate(lines) if _SECTION.match(line)), None)
    if start is None:
        return {}
    outside = len(lines[start]) - len(lines[start].lstrip())
    found: dict[str, list[str]] = {}
    inside, name = 0, ""
    for line in lines[start + 1 :]:
        depth = len(line) - len(line.lstrip())
        if not line.strip():
            continue
        if depth <= outside:
            break
        inside = inside or depth
        entry = _ENTRY.match(line.strip()) if depth == inside else None
        if entry:
            name = entry[1]
            found[name] = [entry[2]]
        elif name:
            found[name].append(line.strip())
    texts = {name: " ".join(part for part in parts if part).replace("``", "'") for name, parts in found.items()}
    return {name: text[:1].upper() + text[1:] for name, text in texts.items()}

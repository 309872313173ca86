"""Exceptions of users' code as text: bounded and printable, even if the exception's own methods raise."""

from __future__ import annotations

import signal
import traceback
from typing import Any

__all__ = ["DETAIL", "InterruptedAgain", "brief", "class_name", "describe", "pressed_by_user", "printable", "summary"]

DETAIL = 2000
"""Maximum length of a description, in characters."""


def describe(error: BaseException, but: str = "") -> str:
    """The exception in one line, then its traceback without the frames of the file ``but``, which called the code.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    try:
        frames = traceback.extract_tb(error.__traceback__)
        where = traceback.format_list([frame for frame in frames if frame.filename != but])
        text = "\n".join([_what(error), *(line.rstrip() for line in where)])
    except BaseException:  # noqa: BLE001 - printing the exception raised
        text = class_name(error)
    return printable(text)[:DETAIL]


def summary(error: BaseException) -> str:
    """The exception in one line.

    >>> summary(SystemExit("closed"))
    'SystemExit: closed'
    """
    try:
        text = _what(error)
    except BaseException:  # noqa: BLE001 - printing the exception raised
        text = class_name(error)
    return printable(text)[:DETAIL]


def _what(error: BaseException) -> str:
    text = str(error)[: 4 * DETAIL].strip()  # the text is cut first, because cleaning megabytes takes long
    return f"{class_name(error)}: {text}" if text else class_name(error)


def class_name(value: Any) -> str:
    """The name of a value's class, even if its metaclass overrides it.

    >>> class_name(3)
    'int'
    """
    return str(type.__dict__["__name__"].__get__(type(value)))


class InterruptedAgain(KeyboardInterrupt):
    """The user pressed Ctrl-C a second time."""


def pressed_by_user(error: BaseException) -> bool:
    """Whether the user may have pressed Ctrl-C. Otherwise user code raised the KeyboardInterrupt.

    Jobs ignore SIGINT. Where motet handles it, motet raises an exception of its own.
    """
    if isinstance(error, InterruptedAgain):
        return True
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def printable(text: str) -> str:
    """Text without characters that could control a terminal or change the direction of writing.

    >>> printable("red \\x1b[31m and\\r\\nback \\u202e")
    'red [31m and\\nback '
    """
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def brief(given: Any) -> str:
    """Type and repr of a value, bounded, even if its methods raise."""
    try:
        text = repr(given)
        return f"{class_name(given)} {text if len(text) <= 200 else text[:200] + '...'}"
    except BaseException:  # noqa: BLE001 - repr raised
        return f"an object of the class {class_name(given)} that cannot be shown"

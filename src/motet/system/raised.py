"""What a user's code raised, as text that can be kept and shown: bounded, printable, whatever the exception does."""

from __future__ import annotations

import signal
import traceback
from typing import Any

__all__ = ["DETAIL", "brief", "class_name", "describe", "pressed_by_user", "printable", "summary"]

DETAIL = 2000
"""Characters of a detail."""


def describe(error: BaseException, but: str = "") -> str:
    """What was raised, in one line, then where; without the frames of the file ``but``, which called it.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    try:
        frames = traceback.extract_tb(error.__traceback__)
        where = traceback.format_list([frame for frame in frames if frame.filename != but])
        text = "\n".join([_what(error), *(line.rstrip() for line in where)])
    except BaseException:  # noqa: BLE001 - an exception that cannot even be printed
        text = class_name(error)
    return printable(text)[:DETAIL]


def summary(error: BaseException) -> str:
    """What was raised, in one line.

    >>> summary(SystemExit("closed"))
    'SystemExit: closed'
    """
    try:
        text = _what(error)
    except BaseException:  # noqa: BLE001 - an exception that cannot even be printed
        text = class_name(error)
    return printable(text)[:DETAIL]


def _what(error: BaseException) -> str:
    text = str(error).strip()
    return f"{class_name(error)}: {text}" if text else class_name(error)


def class_name(value: Any) -> str:
    """Of its class, whatever its metaclass says.

    >>> class_name(3)
    'int'
    """
    return str(type.__dict__["__name__"].__get__(type(value)))


def pressed_by_user(error: BaseException) -> bool:
    """Whether somebody may have pressed Ctrl-C. Jobs ignore that key: there a KeyboardInterrupt is the code's own."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def printable(text: str) -> str:
    """Text without what could steer a terminal or turn a line around.

    >>> printable("red \\x1b[31m and\\r\\nback \\u202e")
    'red [31m and\\nback '
    """
    return "".join(character for character in text if character.isprintable() or character in "\n\t")


def brief(given: Any) -> str:
    """Type and text of a value, bounded, whatever its methods do."""
    try:
        text = repr(given)
        return f"{class_name(given)} {text if len(text) <= 200 else text[:200] + '...'}"
    except BaseException:  # noqa: BLE001 - a value that cannot even be printed
        return f"an object of the class {class_name(given)} that cannot be shown"

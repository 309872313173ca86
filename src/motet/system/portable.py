"""Portable: wraps a user's object so that it can be sent to a child process."""

from __future__ import annotations

from typing import Any

import cloudpickle

from motet.system.pickling import pickled

__all__ = ["Portable"]


class Portable:
    """A user's object that is sent to a child: by value where necessary, so that lambdas and notebook cells work too.

    Args:
        value: the object.
        what: its description in the error if it cannot be pickled.
        name: the beginning of the path of the failing part in that error; by default the text of ``what``.
    """

    def __init__(self, value: Any, what: str = "object", name: str = "") -> None:
        self.value, self.what, self.name = value, what, name or what

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (pickled(self.value, self.what, self.name),)


def _unpack(data: bytes) -> Portable:
    return Portable(cloudpickle.loads(data))

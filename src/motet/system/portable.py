"""Portable: what a user gave, on its way to a child process."""

from __future__ import annotations

from typing import Any

import cloudpickle

from motet.system.pickling import pickled

__all__ = ["Portable"]


class Portable:
    """A user's object on its way to a child: by value where need be, so that lambdas and notebook cells travel too.

    Args:
        value: the object.
        what: what it is called if it cannot be pickled.
        name: what the path of the part at fault begins with; by default as ``what``.
    """

    def __init__(self, value: Any, what: str = "object", name: str = "") -> None:
        self.value, self.what, self.name = value, what, name or what

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (pickled(self.value, self.what, self.name),)


def _unpack(data: bytes) -> Portable:
    return Portable(cloudpickle.loads(data))

"""Find which part of a user's object cannot be pickled, and therefore not be sent to another process.

``unpicklable_part`` searches an object for the innermost part that cannot be pickled, and returns its path
(``world.keywords['config'].lock``). It runs only after pickling has failed, so it may be slow, within bounds.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from motet.errors import UnpicklableError

__all__ = ["MAKE_IT_THERE", "check_picklable", "pickled", "unpicklable_part"]

MAKE_IT_THERE = "Give a function that makes it and that can be imported, or its path 'module:function'"
"""Advice for a world or a policy of an evaluation that cannot be pickled."""
_MAX_DEPTH = 30
_MAX_TRIES = 5000
Dumps = Callable[[Any], bytes]


def pickled(value: Any, what: str, name: str, advice: str = "", dumps: Dumps = cloudpickle.dumps) -> bytes:
    """Pickle a user's object.

    Args:
        value: the object.
        what: its description in the error message, for example ``policy Forager``.
        name: the beginning of the path in the error message, for example ``policy``.
        advice: what the user can do about the error.
        dumps: the function that pickles.

    Raises:
        UnpicklableError: it cannot be pickled; the message names the part.
    """
    try:
        return dumps(value)
    except Exception as error:
        path, reason = unpicklable_part(value, name, dumps) or (name, error)
        raise UnpicklableError(
            f"{what} must be picklable to be sent to another process, but {path} is not: "
            f"{type(reason).__name__}: {reason}{advice and '. '}{advice}"
        ) from error


def check_picklable(value: Any, what: str, name: str, advice: str = "", dumps: Dumps = cloudpickle.dumps) -> None:
    """Raise as :func:`pickled` does; return nothing."""
    pickled(value, what, name, advice, dumps)


def unpicklable_part(value: Any, name: str, dumps: Dumps = cloudpickle.dumps) -> tuple[str, Exception] | None:
    """The path of the innermost part that cannot be pickled, and the error; None if the object can be pickled.

    >>> import threading
    >>> unpicklable_part({"model": [1, threading.Lock()]}, "policy")
    ("policy['model'][1]", TypeError("cannot pickle '_thread.lock' object"))
    """
    error = _failure(value, dumps)
    if error is None:
        return None
    return _Search(dumps).inside(value, name, error, 0) or (name, error)


class _Search:
    """Depth-first search for the part that fails; visits each part once."""

    def __init__(self, dumps: Dumps) -> None:
        self._dumps, self._by_value = dumps, dumps is cloudpickle.dumps
        self._seen: list[Any] = []  # seen parts are kept alive, so that no other part gets the same id
        self._tries = 0

    def inside(self, value: Any, path: str, error: Exception, depth: int) -> tuple[str, Exception] | None:
        """The innermost failing part of ``value``; None if it fails only because it refers to a part seen before."""
        self._seen.append(value)
        leads_back = False
        for label, part in _parts(value, self._by_value) if depth < _MAX_DEPTH else ():
            if any(part is seen for seen in self._seen):
                leads_back = True
                continue
            self._tries += 1
            if self._tries > _MAX_TRIES:
                break
            inner = _failure(part, self._dumps)
            if inner is not None:
                found = self.inside(part, path + label, inner, depth + 1)
                if found is not None:
                    return found
                leads_back = True
        return None if leads_back else (path, error)


def _failure(value: Any, dumps: Dumps) -> Exception | None:
    try:
        dumps(value)
    except Exception as error:  # noqa: BLE001 - any failure is the result
        return error
    return None


def _parts(value: Any, by_value: bool) -> Iterator[tuple[str, Any]]:
    """The parts of an object that pickling visits, each with the Python expression that reaches it.

    ``by_value``: functions and classes have parts too. Plain pickle sends them by name.
    """
    if inspect.isfunction(value) or isinstance(value, type):
        if by_value:
            yield from _parts_of_function(value) if inspect.isfunction(value) else _parts_of_class(value)
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
        yield from ((f".keys()[{i}]", key) for i, key in enumerate(value))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    elif inspect.ismethod(value):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, staticmethod | classmethod):
        yield ".__func__", value.__func__
    else:
        yield from _parts_of_object(value)


def _parts_of_function(function: Any) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, held in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".__closure__[{name!r}]", held.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((f".__defaults__[{i}]", part) for i, part in enumerate(function.__defaults__ or ()))
    yield from ((f".__kwdefaults__[{key!r}]", part) for key, part in (function.__kwdefaults__ or {}).items())
    used = [name for name in _names(code) if name in function.__globals__]
    yield from ((f".__globals__[{name!r}]", function.__globals__[name]) for name in used)


def _parts_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    if not any(map(inspect.isfunction, vars(kind).values())):  # implemented in C: sent by name
        return
    hidden = (types.GetSetDescriptorType, types.MemberDescriptorType)
    yield from ((f".{name}", part) for name, part in vars(kind).items() if not isinstance(part, hidden))
    yield from ((f".__bases__[{i}]", base) for i, base in enumerate(kind.__bases__))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - then the object itself is the part that fails
        state = None
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)  # an object with slots has two
    for one in states:
        if isinstance(one, dict):
            yield from ((f".{name}", part) for name, part in one.items())
        elif one is not None:
            yield ".__getstate__()", one
    if any(map(inspect.isfunction, vars(type(value)).values())):
        yield ".__class__", type(value)

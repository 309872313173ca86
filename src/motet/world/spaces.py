"""Check and cast the values that pass between an environment and a World, and convert them for snapshots."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.errors import SettingError
from motet.masks import is_discrete
from motet.system.raised import brief, pressed_by_user, summary

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["InvalidValue", "action_checker", "flattened_picture", "freeze", "observation_caster", "thaw"]


class InvalidValue(Exception):
    """Raised for a value that does not fit its space. The adapter adds agent, step and seed to the message."""


def observation_caster(space: Space[Any], what: str) -> Callable[[Any], Any]:
    """Return a function that casts a value of ``space`` to new C-contiguous arrays, or raises an InvalidValue."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {key: observation_caster(part, f"{what}[{key!r}]") for key, part in space.spaces.items()}

        def take_dict(given: Any) -> dict[Any, Any]:
            if not isinstance(given, Mapping) or given.keys() != parts.keys():
                keys = sorted(given) if isinstance(given, Mapping) else type(given).__name__
                raise InvalidValue(f"{what} is {keys}; expected a dict with {sorted(parts)}")
            return {key: take(given[key]) for key, take in parts.items()}

        return take_dict
    if isinstance(space, spaces.Tuple):
        items = tuple(observation_caster(part, f"{what}[{index}]") for index, part in enumerate(space.spaces))

        def take_tuple(given: Any) -> tuple[Any, ...]:
            if not isinstance(given, tuple | list) or len(given) != len(items):
                raise InvalidValue(f"{what} is {brief(given)}; expected a tuple of {len(items)}")
            return tuple(take(part) for take, part in zip(items, given, strict=True))

        return take_tuple
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise SettingError(
            f"the space of {what} must be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them, got "
            f"{space}; wrap the environment so that its values are arrays of a fixed shape"
        )
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())

    def take_array(given: Any) -> NDArray[Any]:
        if given.__class__ is np.ndarray and given.dtype == dtype and given.shape == shape:
            fresh: NDArray[Any] = given.copy()
            return fresh
        return _cast(given, dtype, shape, what)

    return take_array


def _cast(given: Any, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """Cast ``given`` to ``dtype``, or raise an InvalidValue if more than the precision of floats would be lost."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise InvalidValue(f"{what} is {brief(given)}; expected an array {dtype} {list(shape)}")
    if array.shape != shape:
        raise InvalidValue(f"{what} has shape {list(array.shape)}; expected {list(shape)}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, order="C")
    if array.dtype.kind == dtype.kind == "f":
        same = np.array_equal(np.isfinite(cast), np.isfinite(array))
    else:
        same = np.array_equal(cast, array)
    if not same:
        raise InvalidValue(
            f"{what} is {array.dtype} and has values that {dtype} cannot represent; expected {dtype} {list(shape)}"
        )
    return cast


def action_checker(space: Space[Any]) -> Callable[[Any], Any]:
    """Return a function that converts an action to what the environment takes, or raises an InvalidValue.

    Values of Discrete spaces become ints, also in dicts and tuples.
    """
    from gymnasium import spaces

    take = observation_caster(space, "the action")
    if isinstance(space, spaces.Discrete):
        first, end = int(space.start), int(space.start) + int(space.n)

        def give_number(action: Any) -> int:
            try:
                number = operator.index(action)
            except TypeError:
                raise InvalidValue(f"the action is {brief(action)}; expected a whole number") from None
            except BaseException as error:  # noqa: BLE001 - the action's own method may raise anything
                raise _unreadable(action, error) from None
            if first <= number < end:
                return number
            raise InvalidValue(f"the action is {_digits(number)}; expected {first} to {end - 1}")

        return give_number

    def give(action: Any) -> Any:
        try:
            taken = take(action)
        except InvalidValue:
            raise
        except BaseException as error:  # noqa: BLE001 - the action's own methods may raise anything
            raise _unreadable(action, error) from None
        if not space.contains(taken):
            raise InvalidValue(f"the action is {brief(action)}; expected one of {space}")
        return taken if has_one_array else _with_ints(taken, space)

    has_one_array = not isinstance(space, spaces.Dict | spaces.Tuple)
    return give


def _with_ints(taken: Any, space: Any) -> Any:
    """Return the arrays of an action, with those of Discrete spaces as ints."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {key: _with_ints(taken[key], part) for key, part in inner.items()}
    if inner is not None:
        return tuple(_with_ints(one, part) for one, part in zip(taken, inner, strict=True))
    return int(taken) if is_discrete(space) else taken


def _unreadable(action: Any, error: BaseException) -> InvalidValue:
    if pressed_by_user(error):
        raise error
    return InvalidValue(f"the action is {brief(action)}, and reading it raised {summary(error)}")


def _digits(number: int) -> str:
    """Return a number as text, or its length if Python refuses to print that many digits."""
    return str(number) if abs(number) < 10**100 else f"a number of {number.bit_length():,} bits"


def flattened_picture(space: Space[Any]) -> bool:
    """Whether a space has the shape of a picture, but not the dtype and range for which algorithms use convolutions.

    >>> from gymnasium.spaces import Box
    >>> flattened_picture(Box(0, 1, (64, 64, 3))), flattened_picture(Box(0, 255, (64, 64, 3), np.uint8))
    (True, False)
    """
    shape, high = space.shape or (), getattr(space, "high", None)
    if len(shape) != 3 or high is None:
        return False
    channels, _, shorter_side = sorted(shape, key=lambda size: (size > 4, -size))
    return channels in (1, 3, 4) and shorter_side >= 12 and not (space.dtype == np.uint8 and np.max(high) == 255)


def freeze(nest: Any) -> Any:
    """Convert arrays, or dicts and tuples of them, to nested tuples of plain values."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return ("dict", tuple((key, freeze(part)) for key, part in nest.items()))
    if isinstance(nest, tuple):
        return ("tuple", tuple(freeze(part) for part in nest))
    return ("array", nest.dtype.str, nest.shape, nest.tobytes())


def thaw(frozen: Any) -> Any:
    """Return the arrays that :func:`freeze` was given."""
    if frozen is None:
        return None
    kind, *rest = frozen
    if kind == "dict":
        return {key: thaw(part) for key, part in rest[0]}
    if kind == "tuple":
        return tuple(thaw(part) for part in rest[0])
    dtype, shape, raw = rest
    return np.frombuffer(raw, dtype).reshape(shape).copy()

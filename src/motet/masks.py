"""Action masks: which actions are allowed, in the form of the action space and as one flat array.

Worlds give masks, and policies get them, in the form that ``Space.sample(mask=…)`` of Gymnasium takes:

- Discrete: bool ``[n]``, True where an action is allowed.
- MultiDiscrete: a tuple with such an array for each component (a tuple of tuples for a space with two axes).
- MultiBinary: int8 in the shape of the space; 0 or 1 is the only value that the bit may have; 2 allows both.
- Dict and Tuple: a dict or tuple of the masks of their parts.
- Box: None, since its values cannot be masked.

Turns, rows of the replay and mailboxes hold one flat array of bools: the entries of all parts, one after the other. A
bit has two entries: whether it may be 0, and whether it may be 1. A world may also give a mask as such a flat array, as
lists, or as numbers 0 and 1 of any type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.errors import SpecError
from motet.nest import Nest, map_nest

__all__ = ["MaskForm", "is_discrete", "mask_form", "sampling_mask"]

Flat = npt.NDArray[np.bool_]


def is_discrete(space: Any) -> bool:
    """Whether a space is Discrete: one whole number."""
    return getattr(space, "n", None) is not None and getattr(space, "shape", None) == ()


def sampling_mask(mask: Nest) -> Nest:
    """Return a mask with the dtype that ``Space.sample(mask=…)`` demands.

    >>> from gymnasium.spaces import MultiDiscrete
    >>> mask = (np.array([False, True]), np.array([False, False, True]))
    >>> MultiDiscrete([2, 3]).sample(mask=sampling_mask(mask)).tolist()
    [1, 2]
    """
    return map_nest(lambda part: None if part is None else part.astype(np.int8), mask)


class MaskForm(Protocol):
    """The form of the masks of an action space, from :func:`mask_form`."""

    size: int
    """Number of entries of a flat mask. 0: no part of the space can be masked."""

    def flat(self, mask: Nest, name: str = "mask") -> Flat:
        """Return a flat copy of a mask. None allows everything. Raise a SpecError if it does not fit the space."""
        ...

    def put(self, mask: Nest, out: Flat) -> None:
        """Write a mask that fits the space to a flat array."""
        ...

    def nest(self, flat: Flat) -> Nest:
        """Return flat masks ``[..., size]`` in the form of the space, ``[..., n]`` each."""
        ...

    def allows(self, mask: Nest, action: Any) -> bool:
        """Whether a mask that fits the space allows an action."""
        ...

    def nearest(self, mask: Nest, action: Any) -> Any:
        """Return ``action`` with each value that the mask forbids replaced by the first allowed one."""
        ...


def mask_form(space: Any) -> MaskForm:
    """Return the form of the masks of an action space.

    >>> from gymnasium.spaces import MultiDiscrete
    >>> form = mask_form(MultiDiscrete([2, 3]))
    >>> form.flat(([1, 0], [0, 1, 1])).tolist()
    [True, False, False, True, True]
    >>> form.nest(form.flat(None))
    (array([ True,  True]), array([ True,  True,  True]))
    """
    inner, shape = getattr(space, "spaces", None), getattr(space, "shape", None)
    if isinstance(inner, Mapping):
        return _PartsMask({key: mask_form(part) for key, part in inner.items()}, dict)
    if inner is not None:
        return _PartsMask(dict(enumerate(map(mask_form, inner))), _in_tuple)
    if (counts := getattr(space, "nvec", None)) is not None:
        start = getattr(space, "start", None)
        return _components(np.asarray(counts), np.zeros_like(counts) if start is None else start, space.dtype)
    if is_discrete(space):
        return _NumberMask(int(space.n), int(getattr(space, "start", 0)), space.dtype)
    if getattr(space, "n", None) is not None and shape is not None:
        return _BitsMask(tuple(shape))
    return _FreeMask()


def _components(counts: npt.NDArray[Any], start: npt.NDArray[Any], dtype: Any) -> MaskForm:
    """Return the form of a MultiDiscrete space: a tuple of the forms of its components."""
    if not counts.ndim:
        return _NumberMask(int(counts), int(start), dtype)
    parts = [_components(*pair, dtype) for pair in zip(counts, start, strict=True)]
    return _PartsMask(dict(enumerate(parts)), lambda values: np.array([*values.values()], dtype))


def _in_tuple(values: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(values.values())


def _array(given: Any, name: str, highest: int) -> npt.NDArray[Any]:
    """Return an array of whole numbers from 0 to ``highest``."""
    numbers = "0 and 1" if highest == 1 else "0, 1 and 2"
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):  # arrays of different lengths
        array = np.empty(0, object)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise SpecError(f"{name} must be an array of {numbers}, got {_short(given)}")
    if not np.isin(array, np.arange(highest + 1)).all():
        raise SpecError(f"{name} must be an array of {numbers}, got {_short(array)}")
    return array


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 120 else f"{text[:117]}..."


class _NumberMask:
    """The masks of a Discrete space, or of a component of a MultiDiscrete one."""

    def __init__(self, n: int, first: int, dtype: Any) -> None:
        self.size, self._first, self._dtype = n, first, np.dtype(dtype)

    def flat(self, mask: Nest, name: str = "mask") -> Flat:
        if mask is None:
            return np.ones(self.size, np.bool_)
        flat = np.array(_array(mask, name, 1), np.bool_)
        if flat.shape != (self.size,):
            raise SpecError(f"{name} must have one entry for each of {self.size} actions, got shape {list(flat.shape)}")
        if not flat.any():
            raise SpecError(f"{name} must allow at least one action, got none")
        return flat

    def put(self, mask: Nest, out: Flat) -> None:
        out[...] = True if mask is None else mask

    def nest(self, flat: Flat) -> Nest:
        return flat

    def allows(self, mask: Nest, action: Any) -> bool:
        return mask is None or bool(mask[int(action) - self._first])

    def nearest(self, mask: Nest, action: Any) -> Any:
        if self.allows(mask, action):
            return action
        (allowed,) = np.nonzero(mask)
        if not len(allowed):
            raise SpecError("mask must allow at least one action, got none")
        return self._dtype.type(allowed[0] + self._first)


class _BitsMask:
    """The masks of a MultiBinary space."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape, self.size = shape, 2 * math.prod(shape)

    def flat(self, mask: Nest, name: str = "mask") -> Flat:
        flat = np.ones(self.size, np.bool_)
        if mask is None:
            return flat
        array = _array(mask, name, 2)
        if array.shape == (self.size,):
            flat[:] = _array(array, name, 1)
            if not flat.reshape(-1, 2).any(1).all():
                raise SpecError(f"{name} must allow 0 or 1 for each bit, got neither for one")
        elif array.shape == self._shape:
            self.put(array, flat)
        else:
            raise SpecError(
                f"{name} must have shape {list(self._shape)}, as the action (0 or 1: the only allowed value, 2: both), "
                f"got shape {list(array.shape)}"
            )
        return flat

    def put(self, mask: Nest, out: Flat) -> None:
        out[...] = True
        if mask is not None:
            pairs, given = out.reshape(-1, 2), np.asarray(mask).reshape(-1)
            pairs[given == 1, 0] = False
            pairs[given == 0, 1] = False

    def nest(self, flat: Flat) -> Nest:
        pairs = flat.reshape(*flat.shape[:-1], *self._shape, 2)
        return np.where(pairs.all(-1), 2, pairs[..., 1]).astype(np.int8)

    def allows(self, mask: Nest, action: Any) -> bool:
        return mask is None or bool(((mask == 2) | (mask == action)).all())

    def nearest(self, mask: Nest, action: Any) -> Any:
        return action if mask is None else np.where(mask == 2, action, mask).astype(np.int8)


class _FreeMask:
    """The masks of a space whose values cannot be masked."""

    size = 0

    def flat(self, mask: Nest, name: str = "mask") -> Flat:
        if mask is not None and np.size(mask):
            raise SpecError(f"{name} must be None, because continuous actions cannot be masked, got {_short(mask)}")
        return np.ones(0, np.bool_)

    def put(self, mask: Nest, out: Flat) -> None:
        pass

    def nest(self, flat: Flat) -> Nest:
        return None

    def allows(self, mask: Nest, action: Any) -> bool:
        return True

    def nearest(self, mask: Nest, action: Any) -> Any:
        return action


class _PartsMask:
    """The masks of a space with several parts. ``join`` combines the actions of the parts into one."""

    def __init__(self, parts: Mapping[Any, MaskForm], join: Callable[[Mapping[Any, Any]], Any]) -> None:
        ends = np.cumsum([part.size for part in parts.values()]).tolist()
        self._parts = {
            key: (part, slice(end - part.size, end)) for (key, part), end in zip(parts.items(), ends, strict=True)
        }
        self.size, self._join, self._in = ends[-1] if ends else 0, join, dict if join is dict else _in_tuple

    def flat(self, mask: Nest, name: str = "mask") -> Flat:
        if mask is None:
            return np.ones(self.size, np.bool_)
        given: Mapping[Any, Nest]
        if isinstance(mask, np.ndarray) and mask.shape == (self.size,):
            given = {key: mask[where] for key, (_, where) in self._parts.items()}
        else:
            given = self._split(mask, name)
        parts = [part.flat(given[key], f"{name}[{key!r}]") for key, (part, _) in self._parts.items()]
        return np.concatenate(parts) if parts else np.ones(0, np.bool_)

    def _split(self, mask: Nest, name: str) -> Mapping[Any, Nest]:
        if self._in is dict:
            if not isinstance(mask, Mapping) or mask.keys() != self._parts.keys():
                got = f"keys {sorted(mask, key=str)}" if isinstance(mask, Mapping) else _short(mask)
                raise SpecError(f"{name} must be a dict with a mask for each of {list(self._parts)}, got {got}")
            return mask
        is_sequence = isinstance(mask, tuple | list) or (isinstance(mask, np.ndarray) and mask.ndim > 0)
        if not is_sequence or len(mask) != len(self._parts):
            got = f"an array of shape {list(mask.shape)}" if isinstance(mask, np.ndarray) else _short(mask)
            raise SpecError(f"{name} must be a tuple of {len(self._parts)} masks, got {got}")
        return dict(enumerate(mask))

    def put(self, mask: Nest, out: Flat) -> None:
        for key, (part, where) in self._parts.items():
            part.put(None if mask is None else mask[key], out[where])

    def nest(self, flat: Flat) -> Nest:
        return self._in({key: part.nest(flat[..., where]) for key, (part, where) in self._parts.items()})

    def allows(self, mask: Nest, action: Any) -> bool:
        return mask is None or all(part.allows(mask[key], action[key]) for key, (part, _) in self._parts.items())

    def nearest(self, mask: Nest, action: Any) -> Any:
        if mask is None:
            return action
        return self._join({key: part.nearest(mask[key], action[key]) for key, (part, _) in self._parts.items()})

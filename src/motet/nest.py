"""Functions on nests. A nest is an array, or a dict or tuple of nests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Nest", "assign", "equal_nests", "join_nests", "map_nest", "stack_nests", "unstack_nest"]

Nest = Any
"""An array, or a dict or tuple of nests."""


def map_nest(function: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Apply a function to each leaf of a nest and the leaves at the same places of the other nests."""
    if isinstance(nest, Mapping):
        return {key: map_nest(function, value, *(o[key] for o in others)) for key, value in nest.items()}
    if isinstance(nest, (tuple, list)):
        return tuple(map_nest(function, value, *(o[i] for o in others)) for i, value in enumerate(nest))
    return function(nest, *others)


def stack_nests(values: Sequence[Nest]) -> Nest:
    """Stack nests of equal structure into one, ``[len(values), ...]``."""
    if isinstance(values[0], Mapping):
        return {key: stack_nests([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(stack_nests([value[i] for value in values]) for i in range(len(values[0])))
    return np.stack(values)


def unstack_nest(nest: Nest) -> Sequence[Any]:
    """Return a nest of arrays ``[rows, ...]`` as a sequence of nests, one for each row.

    Whole numbers become Python ints, all at once, because taking them from the array one by one is slower.

    >>> unstack_nest({"a": np.arange(2), "b": (np.ones((2, 1)),)})
    [{'a': 0, 'b': (array([1.]),)}, {'a': 1, 'b': (array([1.]),)}]
    """
    if isinstance(nest, Mapping):
        rows = zip(*map(unstack_nest, nest.values()), strict=True)
        return [dict(zip(nest, row, strict=True)) for row in rows]
    if isinstance(nest, tuple):
        return list(zip(*map(unstack_nest, nest), strict=True))
    return nest.tolist() if nest.ndim == 1 and nest.dtype.kind in "iu" else nest  # type: ignore[no-any-return]


def join_nests(values: Sequence[Nest]) -> Nest:
    """Concatenate nests of equal structure into one.

    >>> join_nests([{"a": np.zeros(2)}, {"a": np.ones(1)}])["a"].tolist()
    [0.0, 0.0, 1.0]
    """
    return map_nest(lambda *arrays: np.concatenate(arrays), *values)


def equal_nests(one: Nest, other: Nest) -> bool:
    """Whether two nests have the same structure and equal arrays. Lists count as tuples.

    >>> equal_nests({"a": np.zeros(2)}, {"a": (np.zeros(2),)})
    False
    """
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        both = isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys()
        return both and all(equal_nests(part, other[key]) for key, part in one.items())
    if isinstance(one, tuple | list) or isinstance(other, tuple | list):
        both = isinstance(one, tuple | list) and isinstance(other, tuple | list) and len(one) == len(other)
        return both and all(map(equal_nests, one, other))
    return np.array_equal(one, other)


def assign(nest: Nest, where: Any, value: Nest) -> None:
    """Write ``value`` into each array of ``nest``, at ``where``.

    >>> import numpy as np
    >>> kept = {"a": np.zeros(3), "b": (np.zeros(3),)}
    >>> assign(kept, 1, {"a": 5.0, "b": (7.0,)})
    >>> kept["a"].tolist(), kept["b"][0].tolist()
    ([0.0, 5.0, 0.0], [0.0, 7.0, 0.0])
    """
    if isinstance(nest, Mapping):
        for key, part in nest.items():
            assign(part, where, value[key])
    elif isinstance(nest, tuple):
        for part, item in zip(nest, value, strict=True):
            assign(part, where, item)
    else:
        nest[where] = value

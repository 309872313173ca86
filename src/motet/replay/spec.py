"""The specification of a replay (fields, capacity, lanes) and the memory layout of its rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from motet import _native
from motet.arrays import ArraySpec, Field
from motet.errors import SettingError
from motet.nest import map_nest
from motet.settings import check_fields

__all__ = ["Field", "Leaf", "Nest", "ReplaySpec", "Row"]

Nest = Any
"""A field, or a dict or tuple of nests; also the same structure with arrays in place of fields."""

_RESERVED = ("observation", "action", "reward", "terminated", "truncated", "version")


@dataclass(frozen=True)
class ReplaySpec:
    """The fields of a row, and the number of rows and lanes.

    ``observation``, ``action`` and the values of ``extra`` are fields, Gymnasium spaces of arrays (Box, Discrete,
    MultiDiscrete, MultiBinary), or dicts and tuples of them.

    >>> spec = ReplaySpec(observation=Field((5,)), action=Field((), "int64"), capacity=1_000)
    >>> spec.capacity
    1000
    """

    observation: Nest
    """The agent's observation."""
    action: Nest
    """The agent's action."""
    capacity: Annotated[int, Ge(2)]
    """Number of rows in all lanes together."""
    lanes: Annotated[int, Ge(1)] | Mapping[str, Annotated[int, Ge(1)]] = 1
    """Number of lanes, or number of lanes for each partition by name."""
    extra: Mapping[str, Nest] = field(default_factory=dict)
    """Further fields by name, e.g. a log-probability or an action mask."""
    reward: Field = Field(finite=True)  # noqa: RUF009
    """The reward; float32 or float64."""
    once: bool = False
    """Whether every row is read once and in order; a writer then waits instead of overwriting unreleased rows."""
    checked: bool = False
    """Debugging: whether every row has a checksum that is verified on reading."""

    def __post_init__(self) -> None:
        check_fields(self)
        plain = {
            "observation": _fields("observation", self.observation),
            "action": _fields("action", self.action),
            "extra": {name: _fields(name, value) for name, value in self.extra.items()},
            "lanes": {"": self.lanes} if isinstance(self.lanes, int) else dict(self.lanes),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        for name in self.extra:
            if name in _RESERVED or name.startswith(("final_", "next_")) or not name.isidentifier():
                raise SettingError(f"extra must have names that are identifiers and not reserved, got {name!r}")
        for name, nest in (("action", self.action), ("reward", self.reward)):
            if any(leaf.next for _, leaf in _flatten(nest)):
                raise SettingError(f"next=True is only valid in extra, got it in {name}; observations always have it")
        if self.reward.dtype not in ("float32", "float64") or self.reward.shape != ():
            raise SettingError(f"reward must be a float32 or float64 scalar, got {self.reward}")
        if not self.lanes:
            raise SettingError("lanes must have one or more partitions, got none")
        if self.capacity < 2 * self.n_lanes:
            raise SettingError(f"capacity must be at least 2 for each of {self.n_lanes} lanes, got {self.capacity}")

    @property
    def n_lanes(self) -> int:
        """Number of lanes of all partitions."""
        return sum(self._partitions.values())

    @property
    def lane_capacity(self) -> int:
        """Number of rows in one lane."""
        return -(-self.capacity // self.n_lanes)

    @property
    def row_bytes(self) -> int:
        """Size of one row in memory, in bytes."""
        return Row(self).bytes

    @property
    def reader_words(self) -> int:
        """Number of words in the state of a reader (``Reader.state_words``)."""
        return _native.READER_WORDS + len(self._partitions) + 2 * self.n_lanes

    def cursors(self, state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the row that is taken next in each lane, from a state that ``Reader.save_state`` wrote."""
        return state[-2 * self.n_lanes :].reshape(-1, 2)[:, 1]

    def consumed(self, state: npt.NDArray[np.uint64]) -> int:
        """Return the number of transitions handed out by ``take``, from a state that ``Reader.save_state`` wrote."""
        return int(state[_native.READER_WORDS - 1])

    @property
    def _partitions(self) -> dict[str, int]:
        assert isinstance(self.lanes, dict)
        return self.lanes

    def layout(self, prefix: str = "replay") -> dict[str, ArraySpec]:
        """Return the arrays that a shared memory segment needs to hold such a replay."""
        memory = ArraySpec((_native.lane_bytes(self.lane_capacity, Row(self).bytes),), "uint8")
        return {f"{prefix}/lane{i}": memory for i in range(self.n_lanes)}


class _Leaf(NamedTuple):  # the class name is part of a lane's hash (by repr): do not rename it
    root: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str
    offset: int
    next: bool
    finite: bool

    @property
    def name(self) -> str:
        return "/".join(str(part) for part in (self.root, *self.path))


Leaf = _Leaf
"""One array of a row, with its offset."""


class Row:
    """Memory layout of a row: the meta word, then every leaf aligned to its item size, then, if checked, a checksum."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._nests = {"observation": spec.observation, "action": spec.action, "reward": spec.reward, **spec.extra}
        self.roots = list(self._nests)
        self.leaves: list[_Leaf] = []
        offset = 8
        for root, nest in self._nests.items():
            for path, leaf in _flatten(nest):
                itemsize = np.dtype(leaf.dtype).itemsize
                offset = -(-offset // itemsize) * itemsize
                following = leaf.next or root == "observation"
                self.leaves.append(_Leaf(root, path, leaf.shape, str(leaf.dtype), offset, following, leaf.finite))
                offset += itemsize * math.prod(leaf.shape)
        self.bytes = -(-offset // 8) * 8 + (8 if spec.checked else 0)
        self.reward = next(leaf for leaf in self.leaves if leaf.root == "reward")
        digest = hashlib.blake2b(repr((self.leaves, self.bytes)).encode(), digest_size=8).digest()
        self.hash = int.from_bytes(digest, "little")
        self.native: list[_native.Leaf] = [
            (
                leaf.name, self.roots.index(leaf.root), leaf.path, dtype.kind, dtype.itemsize, leaf.shape, leaf.offset,
                leaf.root == "observation", leaf.next, leaf.finite,
            )
            for leaf in self.leaves
            for dtype in [np.dtype(leaf.dtype)]
        ]  # fmt: skip

    def arrays(self, nests: Mapping[str, Nest]) -> list[npt.NDArray[Any] | None]:
        """Return the array of each leaf of the row. ``nests`` holds a nest for each root field; None: the array is
        missing."""
        found = []
        for leaf in self.leaves:
            nest = nests.get(leaf.root)
            for key in leaf.path:
                nest = None if nest is None else nest[key]
            found.append(nest)
        return found

    def nest(self, root: str, arrays: Sequence[npt.NDArray[Any] | None]) -> Nest:
        """Return the arrays of one root field, in the structure that the spec gives it."""
        mine = iter([a for leaf, a in zip(self.leaves, arrays, strict=True) if leaf.root == root])
        return map_nest(lambda _: next(mine), self._nests[root])


def _fields(name: str, given: Any) -> Nest:
    """Return fields for fields, Gymnasium spaces, or dicts and tuples of either."""
    if isinstance(given, Field):
        return given
    inner = getattr(given, "spaces", given)
    if isinstance(inner, Mapping) and inner:
        return {key: _fields(f"{name}/{key}", value) for key, value in inner.items()}
    if isinstance(inner, (tuple, list)) and inner:
        return tuple(_fields(f"{name}/{i}", value) for i, value in enumerate(inner))
    shape, dtype = getattr(given, "shape", None), getattr(given, "dtype", None)
    if shape is None or dtype is None:
        raise SettingError(f"{name} must be a Field, a space of arrays, or a dict or tuple of these, got {given!r}")
    return Field(tuple(shape), np.dtype(dtype).name)


def _flatten(nest: Nest, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Field]]:
    if isinstance(nest, dict):
        return [leaf for key, value in nest.items() for leaf in _flatten(value, (*path, key))]
    if isinstance(nest, tuple):
        return [leaf for i, value in enumerate(nest) for leaf in _flatten(value, (*path, i))]
    return [(path, nest)]

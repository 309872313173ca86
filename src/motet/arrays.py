"""Descriptions of arrays (shape and dtype), of the fields of a replay's rows, and the arrays of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from motet.errors import SettingError
from motet.nest import Nest, map_nest
from motet.settings import check_fields

__all__ = ["MOST_AHEAD", "ArraySpec", "Batch", "Field"]

MOST_AHEAD = 255
"""Maximum number of rows that a transition of a sequence may span. ``Batch.ahead`` stores the number in one byte."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array.

    >>> ArraySpec((2, 3), "uint8").nbytes
    6
    """

    shape: tuple[int, ...] = ()
    dtype: npt.DTypeLike = "float32"

    def __post_init__(self) -> None:
        if any(not isinstance(n, int) or n < 0 for n in self.shape):
            raise SettingError(f"shape must be ints >= 0, got {self.shape!r}")
        if np.dtype(self.dtype).hasobject:
            raise SettingError(f"dtype must be a dtype without Python objects, got {self.dtype!r}")

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Field(ArraySpec):
    """One array in each row of a replay.

    Appended values must already have the field's dtype, so that nothing is converted silently.

    >>> Field((4,), bool, next=True).dtype
    'bool'
    """

    shape: tuple[Annotated[int, Ge(1)], ...] = ()
    """Shape in one row."""
    dtype: str = "float32"
    """Stored dtype."""
    next: bool = False
    """Whether batches also have the value at the end of a transition, e.g. the mask of the next actions. Observations
    always have it."""
    finite: bool = False
    """Whether NaN and infinity are refused."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        dtype = np.dtype(self.dtype)
        object.__setattr__(self, "dtype", dtype.name)
        if dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
            raise SettingError(f"dtype must be bool, an integer or a float of up to 64 bits, got {self.dtype!r}")
        check_fields(self)


@dataclass(eq=False)
class Batch:
    """The arrays of a batch: of one agent ``[batch, ...]``, or of a stack of A agents ``[A, batch, ...]``.

    The next batch of the same reader and size overwrites them. Observations with frames are ``[batch, n_frames, ...]``.
    If rows are read once, arrays are ``[fragments, length, ...]``. Then ``observation`` and fields with a next value
    have one more row, ``[fragments, length + 1, ...]``: row ``t + 1`` is the result of the action of row ``t``.

    Arrays of sequences are ``[batch, length, ...]`` as well, and those of observations and fields with a next value are
    ``[batch, length + n_step, ...]``; ``lane``, ``row`` and ``weight`` are ``[batch]``, for the first row of each
    sequence.
    """

    observation: Nest
    action: Nest
    reward: npt.NDArray[Any]
    """Sum of up to ``n_step`` discounted rewards."""
    discount: npt.NDArray[np.float32]
    """Factor of the bootstrap value at the end of a transition: gamma ** steps, or 0 if the episode terminated."""
    version: npt.NDArray[np.uint64]
    """Version of the policy that acted."""
    lane: npt.NDArray[np.uint32]
    """Lane of the row at which each transition starts."""
    row: npt.NDArray[np.uint64]
    """Number, within its lane, of the row at which each transition starts."""
    extra: dict[str, Nest] = field(default_factory=dict)
    next_observation: Nest = None
    next_extra: dict[str, Nest] = field(default_factory=dict)
    weight: npt.NDArray[np.float32] | None = None
    """Importance weights, divided by the largest one (prioritised replay)."""
    valid: npt.NDArray[np.bool_] | None = None
    """For fragments and sequences: False where no transition starts (the final row of an episode, or the last row
    before a writer died)."""
    ahead: npt.NDArray[np.uint8] | None = None
    """For sequences: how many rows later the transition that starts here ends, up to ``n_step``; 0 where none
    starts."""

    def map(self, function: Callable[[npt.NDArray[Any]], Any]) -> Batch:
        """Apply a function to each array; return the batch of the results."""
        some = lambda array: None if array is None else function(array)  # noqa: E731
        nests: dict[str, Any] = {item.name: map_nest(some, getattr(self, item.name)) for item in fields(self)}
        return Batch(**nests)

    def agent(self, index: int) -> Batch:
        """Return one agent's part of a stack: views without the first axis."""
        return self.map(lambda array: array[index])

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return all arrays."""
        found: list[npt.NDArray[Any]] = []
        self.map(found.append)
        return found

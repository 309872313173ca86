"""Arrays by description: shape and dtype of one array, fields of a replay's rows, and the arrays of a batch."""

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

__all__ = ["ArraySpec", "Batch", "Field"]


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
            raise SettingError(f"dtype must be one without Python objects, got {self.dtype!r}")

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Field(ArraySpec):
    """One array in each row of a replay.

    What is appended must have its dtype already, so that nothing is converted in silence.

    >>> Field((4,), bool, next=True).dtype
    'bool'
    """

    shape: tuple[Annotated[int, Ge(1)], ...] = ()
    """Its shape in one row."""
    dtype: str = "float32"
    """How it is stored."""
    next: bool = False
    """Also gathered from the transition's end (observations always are), e.g. for the mask of the next actions."""
    finite: bool = False
    """Refuse NaN and infinity."""

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

    The next batch of the same reader and size is written over them. Observations with frames are
    ``[batch, n_frames, ...]``. Where rows are read once, arrays are ``[fragments, length, ...]``, but ``observation``
    and fields with a next have one row more, ``[fragments, length + 1, ...]``: row ``t + 1`` is what the action of row
    ``t`` led to.
    """

    observation: Nest
    action: Nest
    reward: npt.NDArray[Any]
    """Sum of up to ``n_step`` discounted rewards."""
    discount: npt.NDArray[np.float32]
    """What the value behind a transition is multiplied with: gamma ** steps, 0 where the episode terminated."""
    version: npt.NDArray[np.uint64]
    """The version of the policy that acted."""
    lane: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]
    """Which row of which lane each transition started at."""
    extra: dict[str, Nest] = field(default_factory=dict)
    next_observation: Nest = None
    next_extra: dict[str, Nest] = field(default_factory=dict)
    weight: npt.NDArray[np.float32] | None = None
    """Importance weights, divided by the largest one (prioritised replay)."""
    valid: npt.NDArray[np.bool_] | None = None
    """Where rows are read once: False where no transition starts (an episode's final row, or a row behind which a
    writer died)."""

    def map(self, function: Callable[[npt.NDArray[Any]], Any]) -> Batch:
        """A batch of what the function makes of each array."""
        some = lambda array: None if array is None else function(array)  # noqa: E731
        nests: dict[str, Any] = {item.name: map_nest(some, getattr(self, item.name)) for item in fields(self)}
        return Batch(**nests)

    def agent(self, index: int) -> Batch:
        """One agent's part of a stack: views without the first axis."""
        return self.map(lambda array: array[index])

    def arrays(self) -> list[npt.NDArray[Any]]:
        """All arrays."""
        found: list[npt.NDArray[Any]] = []
        self.map(found.append)
        return found

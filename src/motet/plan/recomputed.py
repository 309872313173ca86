"""The arrays of a solution, some of which are computed again when they are read.

The humans' policies are by far the largest array of a plan: one number for each state, action and goal. They follow
from the humans' values of the next states, so a plan stores only the values, and computes policies when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet import _native

__all__ = ["HumanPolicyRows", "SolutionArrays"]

_BLOCK = 4096  # states of which the policies are computed at once, when they are saved


@dataclass(frozen=True, eq=False)
class HumanPolicyRows:
    """The rows of ``human_policy``, computed from the values when they are read."""

    sweep: Mapping[str, Any]
    """The arrays and numbers of the humans' sweep."""

    @property
    def shape(self) -> tuple[int, int]:
        """The number of states, and the number of pairs of action and goal, summed over the humans."""
        return len(self.sweep["value"]), int(self.sweep["policy_at"][-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in which the values are stored."""
        found: np.dtype[Any] = self.sweep["value"].dtype
        return found

    def rows(self, states: slice) -> NDArray[Any]:
        """The rows of some states."""
        first, last, step = states.indices(self.shape[0])
        if step != 1:
            return self.rows(slice(None))[states]
        out = np.empty((max(last - first, 0), self.shape[1]), self.dtype)
        if len(out):
            _native.HumanSweep(dict(self.sweep)).policies(first, last, out)
        return out

    def blocks(self) -> Iterator[NDArray[Any]]:
        """All rows, in order, in blocks."""
        for first in range(0, self.shape[0], _BLOCK):
            yield self.rows(slice(first, first + _BLOCK))


class SolutionArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a solution by name. An array that is not stored is computed each time it is read."""

    def __init__(
        self, stored: Mapping[str, NDArray[Any]], computed: Mapping[str, HumanPolicyRows] | None = None
    ) -> None:
        self.stored, self.computed = dict(stored), dict(computed or {})

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.computed[name].rows(slice(None)) if name in self.computed else self.stored[name]

    def __contains__(self, name: object) -> bool:
        return name in self.stored or name in self.computed

    def __iter__(self) -> Iterator[str]:
        yield from self.stored
        yield from self.computed

    def __len__(self) -> int:
        return len(self.stored) + len(self.computed)

    def rows(self, name: str, states: slice) -> NDArray[Any]:
        """The rows of some states of one array."""
        return self.computed[name].rows(states) if name in self.computed else self.stored[name][states]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that are stored."""
        return sum(array.nbytes for array in self.stored.values())

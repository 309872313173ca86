"""Progress: how far the work of a plan is, as its callers are shown it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    phase: str
    done: int
    total: int
    """As far as it is known: for enumeration, the states found so far."""
    seconds: float

    @property
    def rate(self) -> float:
        """How many are done a second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

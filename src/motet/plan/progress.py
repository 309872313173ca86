"""Progress: how far a planning job has got, passed to ``progress`` callbacks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True)
class Progress:
    """How far a job has got."""

    phase: str
    done: int
    total: int
    """Total number of states; for enumeration, the number found so far."""
    seconds: float

    @property
    def rate(self) -> float:
        """States per second."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

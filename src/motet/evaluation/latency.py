"""Histogram of decision latencies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["LatencyHistogram"]


@dataclass
class LatencyHistogram:
    """Histogram of decision latencies, with 4 % wide bins from 0.1 µs on.

    >>> latency = LatencyHistogram()
    >>> for _ in range(99): latency.add(0.001)
    >>> latency.add(1.0)
    >>> latency.count, round(latency.quantile(0.5), 4), round(latency.quantile(1.0), 1)
    (100, 0.001, 1.0)
    """

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        """Add the latency of one decision."""
        self.count += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)
        step = int(math.log2(max(seconds, 1e-7) / 1e-7) * 17.67)
        self.bins[step] = self.bins.get(step, 0) + 1

    def merge(self, other: LatencyHistogram) -> None:
        """Add all latencies of another histogram."""
        self.count += other.count
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)
        for step, number in other.bins.items():
            self.bins[step] = self.bins.get(step, 0) + number

    def quantile(self, share: float) -> float:
        """Return the latency that this share of the decisions did not exceed, accurate to 4 %."""
        left = share * self.count
        for step in sorted(self.bins):
            left -= self.bins[step]
            if left <= 0:
                return min(float(1e-7 * 2 ** ((step + 0.5) / 17.67)), self.longest)
        return self.longest

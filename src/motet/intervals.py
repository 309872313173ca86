"""Means with confidence intervals by closed formulas: equal input gives bit-identical output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["Score", "score", "student"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Score:
    """A mean with its 95 % confidence interval (Student's t over episodes)."""

    count: int
    mean: float
    low: float
    high: float
    deviation: float
    """Sample standard deviation of the values (n - 1 degrees of freedom)."""
    least: float
    most: float


def score(values: Sequence[float]) -> Score | None:
    """Return the score of independent values, or None for no values. The interval of a single value is infinite.

    >>> one = score([1.0, 2.0, 3.0])
    >>> one.count, one.mean, round(one.low, 4), round(one.high, 4), one.deviation
    (3, 2.0, -0.4841, 4.4841, 1.0)
    """
    if not values:
        return None
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Score(1, mean, -math.inf, math.inf, math.nan, mean, mean)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = student(CONFIDENCE, count - 1) * deviation / math.sqrt(count)
    return Score(count, mean, mean - half, mean + half, deviation, min(values), max(values))


def student(confidence: float, freedom: int) -> float:
    """Return t such that a Student-t variable lies between -t and t with this probability.

    >>> round(student(0.95, 1), 4), round(student(0.95, 10), 4), round(student(0.95, 100_000), 4)
    (12.7062, 2.2281, 1.96)
    """
    if freedom > 1000:  # the expansion around the normal quantile is exact to ten digits there
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Return the probability of [-t, t], by the finite series for integer degrees of freedom."""
    angle = math.atan2(t, math.sqrt(freedom))
    cos2 = freedom / (freedom + t * t)
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cos2 * (k + 1) / (k + 2)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    term, total = 1.0, 0.0
    for k in range(0, freedom, 2):
        total += term
        term *= cos2 * (k + 1) / (k + 2)
    return math.sin(angle) * total

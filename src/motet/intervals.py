"""Means with confidence intervals by closed formulas: equal input gives bit-identical output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["GameShare", "Score", "score", "share", "student"]

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


@dataclass(frozen=True)
class GameShare:
    """A share of games with its 95 % confidence interval, all from 0 to 1."""

    share: float
    low: float
    high: float


def share(rounds: Sequence[Sequence[float]]) -> GameShare | None:
    """Return the mean of values from 0 to 1 with Wilson's interval, or None for no values.

    The values of one round may depend on each other; rounds are independent. The interval is computed for
    the number of independent values that would give the observed variance between rounds: at least the number of
    rounds, at most the number of values.

    >>> one = share([[1.0], [1.0], [1.0], [0.0]])
    >>> one.share, round(one.low, 3), round(one.high, 3)
    (0.75, 0.301, 0.954)
    """
    kept = [values for values in rounds if values]
    if not kept:
        return None
    count = sum(map(len, kept))
    mean = math.fsum(value for values in kept for value in values) / count
    n = _independent(kept, count, mean)
    z2 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2
    middle = (mean + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (mean * (1 - mean) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return GameShare(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))


def _independent(rounds: Sequence[Sequence[float]], count: int, mean: float) -> float:
    """Return the number of independent values that would have the observed variance of the mean."""
    if len(rounds) in (1, count):
        return len(rounds)
    squares = math.fsum(math.fsum(value - mean for value in values) ** 2 for values in rounds)
    variance = squares / count**2 * len(rounds) / (len(rounds) - 1)
    if variance == 0:  # equal rounds: without a mixed one, nothing shows that the values are independent
        return count if 0 < mean < 1 else len(rounds)
    return min(float(count), max(float(len(rounds)), mean * (1 - mean) / variance))


def student(confidence: float, freedom: int) -> float:
    """Return t such that a Student-t variable lies between -t and t with this probability.

    >>> round(student(0.95, 1), 4), round(student(0.95, 10), 4), round(student(0.95, 100_000), 4)
    (12.7062, 2.2281, 1.96)
    """
    if freedom > 1000:  # then the expansion around the normal quantile is exact to ten digits
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

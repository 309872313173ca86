"""A sequential test of two policies: it stops as soon as it is clear which one is better.

Two games with the same seed and exchanged seats are a *pair*. They are not independent of each other, so the test
counts pairs: the first policy has 0, 1/2, 1, 3/2 or 2 points of a pair. The test is Wald's sequential probability
ratio test of two hypotheses about the first policy's share of points: that it is 1/2 + delta, or 1/2 - delta. How
often each of the five outcomes happens is not known. So each hypothesis is represented by the distribution with its
share of points that makes the outcomes so far most likely.

Each policy is declared better in error with a probability of at most about 5 % if the other one is better by delta or
more. If the policies are closer than that, the test may name either one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from motet.evaluation.win_rates import policy_scores
from motet.intervals import Score, score
from motet.world.winning import WinRule

if TYPE_CHECKING:
    from motet.evaluation.result import Episode

__all__ = ["BOUND", "SequentialTest", "Verdict", "log_likelihood_ratio"]

_ERROR = 0.05
BOUND = math.log((1 - _ERROR) / _ERROR)
"""The test stops when the log-likelihood ratio is at least this, or at most minus this."""

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # share of the points of a pair
_UNSEEN = 1e-3  # replaces a count of 0, because an outcome that has not happened yet is still possible


@dataclass(frozen=True)
class Verdict:
    """Which of two policies is better, by a sequential test.

    >>> from motet import tournament
    >>> result = tournament("matrix", ["constant,kw.action=1,name=defector", "tit_for_tat"], until_clear=True)
    >>> result.verdict.better, result.verdict.pairs
    ('defector', (0, 0, 0, 0, 15))
    """

    policies: tuple[str, str]
    better: str | None
    """The better policy. None: no verdict, the games so far are not enough."""
    pairs: tuple[int, ...]
    """Number of pairs in which the first policy had 0, 1/2, 1, 3/2 and 2 points."""
    evidence: float
    """Log-likelihood ratio, positive in favour of the first policy. At ``BOUND`` or beyond it is a verdict."""
    points: Score | None
    """The first policy's share of points, with its 95 % interval over pairs; None without a pair.

    The interval holds for a fixed number of pairs. After a verdict the share is biased away from 1/2.
    """

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        points = None
        if self.points is not None:
            low, high = max(0.0, self.points.low), min(1.0, self.points.high)
            points = {**asdict(self.points), "low": low, "high": high}
            points["deviation"] = None if math.isnan(self.points.deviation) else self.points.deviation
        return {
            "policies": list(self.policies),
            "better": self.better,
            "pairs": list(self.pairs),
            "evidence": self.evidence,
            "bound": BOUND,
            "points": points,
        }


class SequentialTest:
    """Takes games in order and decides after each pair.

    Args:
        policies: names of the two policies.
        delta: the difference from a share of 1/2 that the test must detect.
        rule: how a game is won.
    """

    def __init__(self, policies: tuple[str, str], delta: float, rule: WinRule) -> None:
        self._policies, self.delta, self._rule = policies, delta, rule
        self._pairs = [0] * len(_SHARES)
        self._first: Episode | None = None
        self.evidence = 0.0

    @property
    def clear(self) -> bool:
        """Whether the evidence suffices for a verdict."""
        return abs(self.evidence) >= BOUND

    def take(self, game: Episode) -> None:
        """Take the next game. A pair with a failed game is not counted."""
        if game.number % 2 == 0:
            self._first = game
            return
        first, self._first = self._first, None
        assert first is not None and first.number == game.number - 1
        if not (first.failed or game.failed):
            self._pairs[sum(self._half_points(one) for one in (first, game))] += 1
            self.evidence = log_likelihood_ratio(self._pairs, self.delta)

    def _half_points(self, game: Episode) -> int:
        scores = policy_scores(game)
        return 1 + self._rule.outcome(scores[self._policies[0]], scores[self._policies[1]])

    def verdict(self) -> Verdict:
        """Return the verdict after the games so far."""
        better = None if not self.clear else self._policies[0 if self.evidence > 0 else 1]
        shares = [share for share, count in zip(_SHARES, self._pairs, strict=True) for _ in range(count)]
        return Verdict(self._policies, better, tuple(self._pairs), self.evidence, score(shares))


def log_likelihood_ratio(pairs: Sequence[int], delta: float) -> float:
    """Return the log-likelihood of a share of points of 1/2 + delta minus that of 1/2 - delta.

    ``pairs`` are the numbers of pairs with 0, 1/2, 1, 3/2 and 2 points. Each hypothesis takes the distribution over
    these outcomes that has its mean and makes the numbers most likely.

    >>> round(log_likelihood_ratio([0, 0, 0, 0, 10], 0.05), 2), round(log_likelihood_ratio([3, 0, 4, 0, 1], 0.05), 2)
    (2.01, -0.8)
    """
    counts = [count or _UNSEEN for count in pairs]
    high, low = (_likeliest(counts, 0.5 + sign * delta) for sign in (1, -1))
    return math.fsum(count * math.log(more / less) for count, more, less in zip(counts, high, low, strict=True))


def _likeliest(counts: Sequence[float], mean: float) -> list[float]:
    """Return the probabilities of the five outcomes that have this mean and make the counts most likely.

    They are ``weight / (1 + tilt * (share - mean))``; the tilt is the root of a decreasing function, found by Newton's
    method inside an interval that shrinks.
    """
    total = math.fsum(counts)
    parts = [(count / total, share - mean) for count, share in zip(counts, _SHARES, strict=True)]
    low, high, tilt = -1 / (1 - mean), 1 / mean, 0.0
    for _ in range(200):
        value = math.fsum(weight * away / (1 + tilt * away) for weight, away in parts)
        slope = math.fsum(weight * (away / (1 + tilt * away)) ** 2 for weight, away in parts)
        low, high = (tilt, high) if value > 0 else (low, tilt)
        following = tilt + value / slope
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - tilt) <= 1e-14:
            break
        tilt = following
    return [weight / (1 + tilt * away) for weight, away in parts]

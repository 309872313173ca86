"""Won, drawn and lost games by policy, by seat and by pair of policies, with intervals.

A policy's score in a game is the mean, over its seats, of the score that decides. Two policies are compared by the
rule of the world (:mod:`motet.world.winning`), every pair of a game separately.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from motet.intervals import GameShare, share
from motet.world.winning import WinRule

if TYPE_CHECKING:
    from motet.evaluation.result import Episode

__all__ = ["WinRate", "WinRateKey", "plain_win_rates", "policy_scores", "win_rates"]

WinRateKey = tuple[str, str | None, str | None]
"""A policy, its opponent (None: all of them), and its seat (None: all of them)."""


@dataclass(frozen=True)
class WinRate:
    """The shares of games that a policy won, drew and lost."""

    games: int
    won: GameShare
    drawn: GameShare
    lost: GameShare

    @property
    def points(self) -> float:
        """Share of points: 1 for a win, 0.5 for a draw."""
        return self.won.share + self.drawn.share / 2


def policy_scores(episode: Episode) -> dict[str, float]:
    """Return the score of each policy in an episode: the mean over its seats. A failed episode has no scores.

    The score of a seat is the one that decides who wins if the world declares a rule, else its return. A policy that
    forfeited has -inf, so that it loses by any margin, and the others have 0.
    """
    if episode.failed:
        return {}
    if episode.forfeited:
        return {name: -math.inf if name in episode.forfeited else 0.0 for name in episode.policies}
    own: dict[str, list[float]] = {}
    for name, value in zip(episode.policies, episode.deciding or episode.returns, strict=True):
        own.setdefault(name, []).append(value)
    return {name: math.fsum(values) / len(values) for name, values in own.items()}


def win_rates(
    agents: Sequence[str],
    names: Sequence[str],
    episodes: Iterable[Episode],
    rule: WinRule,
    round_of: Callable[[int], Hashable],
) -> dict[WinRateKey, WinRate]:
    """Return the win rates: of each policy, then of each policy on each seat, then of each pair.

    A game against several policies counts as one game, with the mean of the results against each of them. ``round_of``
    maps the number of an episode to its round: the episodes of one round may depend on each other.
    """
    ends: dict[WinRateKey, dict[Hashable, list[dict[int, float]]]] = {}
    for episode in episodes:
        scores, round_ = policy_scores(episode), round_of(episode.number)
        for name, own in scores.items():
            met = {other: rule.outcome(own, theirs) for other, theirs in scores.items() if other != name}
            if not met:
                continue
            mean = {end: list(met.values()).count(end) / len(met) for end in (1, 0, -1)}
            seats = [agent for agent, who in zip(agents, episode.policies, strict=True) if who == name]
            told: dict[WinRateKey, dict[int, float]] = {(name, None, seat): mean for seat in (None, *seats)}
            told |= {(name, other, None): {k: float(k == end) for k in (1, 0, -1)} for other, end in met.items()}
            for key, one in told.items():
                ends.setdefault(key, {}).setdefault(round_, []).append(one)
    order = [
        *((name, None, None) for name in names),
        *((name, None, agent) for name in names for agent in agents),
        *((name, other, None) for name in names for other in names),
    ]
    return {key: _rate(list(ends[key].values())) for key in order if key in ends}


def _rate(rounds: Sequence[Sequence[dict[int, float]]]) -> WinRate:
    won, drawn, lost = (share([[one[end] for one in games] for games in rounds]) for end in (1, 0, -1))
    assert won is not None and drawn is not None and lost is not None
    return WinRate(sum(map(len, rounds)), won, drawn, lost)


def plain_win_rates(rates: dict[WinRateKey, WinRate]) -> list[dict[str, Any]]:
    """Return plain values for JSON."""
    return [
        {"policy": policy, "against": against, "seat": seat, **asdict(rate)}
        for (policy, against, seat), rate in rates.items()
    ]

"""Ratings from game results: the Bradley-Terry model by maximum likelihood, in Elo units, with intervals.

The model: a player of strength ``a`` beats one of strength ``b`` with probability ``1 / (1 + exp(b - a))``; a draw is
half a win for each. A player that won every game would have infinite strength. To prevent that, each player also has
``prior`` draws against an imaginary player of average strength. Intervals follow from the curvature of the likelihood
at its maximum (the observed information): they shrink with the number of games, and stay wide for a player that won
every game.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from motet.errors import SettingError
from motet.world.winning import WinRule

__all__ = ["Rating", "ratings", "strengths", "wins"]

_MEAN = 1500.0
_UNIT = 400 / math.log(10)
_HIGHER = WinRule()  # the higher score wins
_DEVIATIONS = 1.959963984540054  # standard deviations of a normal distribution, for 95 %

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rating:
    """Strength of a player in Elo units, with its 95 % confidence interval. The mean of all players is 1500."""

    rating: float
    low: float
    high: float
    games: int


def wins(players: int, games: Sequence[Mapping[int, float]], rule: WinRule = _HIGHER) -> Floats:
    """Return ``[players, players]``: the number of wins of the first over the second. A draw is half a win for each.

    A game maps each of its players to a score; ``rule`` compares two scores. With ``n > 2`` players every pair counts;
    all pairs of a game together weigh as much as ``n - 1`` games.

    >>> wins(2, [{0: 3.0, 1: 1.0}, {0: 2.0, 1: 2.0}]).tolist()
    [[0.0, 1.5], [0.5, 0.0]]
    """
    won = np.zeros((players, players))
    for scores in games:
        share = 2.0 / len(scores)
        for one, own in scores.items():
            for other, theirs in scores.items():
                if one != other:
                    won[one, other] += share * (1 + rule.outcome(own, theirs)) / 2
    return won


def strengths(won: Floats, prior: float = 1.0) -> tuple[Floats, Floats]:
    """Return the maximum likelihood strengths ``[players]``, with mean 0, and their covariance matrix.

    >>> theta, covariance = strengths(np.array([[0.0, 30.0], [10.0, 0.0]]), prior=0.0)
    >>> bool(np.isclose(theta[0] - theta[1], np.log(3)))
    True
    """
    if prior < 0 or (prior == 0 and not _connected(won)):
        raise SettingError(
            f"prior must be a number > 0, got {prior}: a player that won or lost every game has no finite strength"
        )
    count, games = len(won), won + won.T
    theta = np.zeros(count)
    for _ in range(200):
        beats = 1 / (1 + np.exp(theta[None, :] - theta[:, None]))
        average = 1 / (1 + np.exp(-theta))
        gradient = (won - games * beats).sum(1) + prior * (0.5 - average)
        information = -games * beats * (1 - beats)
        np.fill_diagonal(information, 0.0)
        np.fill_diagonal(information, -information.sum(1) + prior * average * (1 - average))
        if prior == 0:
            information += 1.0  # strengths are only determined up to a constant: choose it so that their sum is 0
        step = np.linalg.solve(information, gradient)
        theta += step * min(1.0, 2.0 / max(np.abs(step).max(), 1e-300))  # Newton's method with limited steps
        if np.abs(step).max() < 1e-12:
            break
    centre = np.eye(count) - 1 / count
    return centre @ theta, centre @ np.linalg.inv(information) @ centre


def _connected(won: Floats) -> bool:
    """Return whether the graph of wins is strongly connected. Then the likelihood has a maximum."""
    reach = (won > 0) | np.eye(len(won), dtype=np.bool_)
    for _ in range(len(won)):
        reach = (reach.astype(np.int64) @ reach.astype(np.int64)) > 0
    return bool(reach.all())


def ratings(
    players: int, games: Sequence[Mapping[int, float]], *, rule: WinRule = _HIGHER, prior: float = 1.0
) -> list[Rating]:
    """Return the ratings of all players, from the scores of the players in each game, which ``rule`` compares.

    >>> [round(one.rating) for one in ratings(2, [{0: 1.0, 1: 0.0}] * 3 + [{0: 0.0, 1: 1.0}], prior=0.0)]
    [1595, 1405]
    """
    if players < 2 or not games:
        raise SettingError(
            f"players must be an int >= 2 and games must not be empty, got {players} players and {len(games)} games"
        )
    theta, covariance = strengths(wins(players, games, rule), prior)
    found = []
    for player in range(players):
        rating = _MEAN + _UNIT * float(theta[player])
        half = _UNIT * _DEVIATIONS * math.sqrt(float(covariance[player, player]))
        found.append(Rating(rating, rating - half, rating + half, sum(player in scores for scores in games)))
    return found

"""Ratings against cases that can be worked out by hand."""

import numpy as np
import pytest

from motet.errors import SettingError
from motet.evaluation.ratings import ratings, strengths, wins

UNIT = 400 / np.log(10)


def test_two_players_are_rated_as_worked_out_by_hand():
    """The difference is the log odds; its variance is 1 / (n p (1 - p))."""
    games = [{0: 1.0, 1: 0.0}] * 75 + [{0: 0.0, 1: 1.0}] * 25
    first, second = ratings(2, games, prior=0.0)
    assert first.rating - second.rating == pytest.approx(400 * np.log10(3), abs=1e-6)
    half = 1.959963985 * UNIT / np.sqrt(100 * 0.75 * 0.25) / 2  # each is half of the difference away from the mean
    assert first.high - first.rating == pytest.approx(half, rel=1e-6)
    assert first.rating - first.low == pytest.approx(half, rel=1e-6)
    assert (first.games, first.rating + second.rating) == (100, pytest.approx(3000))


def test_three_players_whose_results_follow_the_model_get_their_strengths_back():
    truth = np.array([0.8, 0.1, -0.9])
    expected = 1 / (1 + np.exp(truth[None, :] - truth[:, None]))
    won = 1000 * (expected - np.diag(np.diag(expected)))
    theta, covariance = strengths(won, prior=0.0)
    assert theta == pytest.approx(truth, abs=1e-9)
    weights = 1000 * expected * (1 - expected)
    np.fill_diagonal(weights, 0.0)
    assert covariance == pytest.approx(np.linalg.pinv(np.diag(weights.sum(1)) - weights), abs=1e-9)


def test_draws_are_half_a_win_and_all_draws_are_equality():
    found = ratings(3, [{0: 1.0, 1: 1.0}, {1: 2.0, 2: 2.0}, {0: 0.0, 2: 0.0}])
    assert [one.rating for one in found] == pytest.approx([1500.0] * 3)
    assert wins(2, [{0: 1.0, 1: 1.0}]).tolist() == [[0.0, 0.5], [0.5, 0.0]]


def test_a_player_that_won_all_games_has_a_high_and_uncertain_rating():
    won = [{0: 1.0, 1: 0.0}] * 20
    with pytest.raises(SettingError, match="no finite strength"):
        ratings(2, won, prior=0.0)
    sure, even = ratings(2, won), ratings(2, won[:10] + [{0: 0.0, 1: 1.0}] * 10)
    assert sure[0].rating > even[0].rating + 300
    assert sure[0].high - sure[0].low > 2 * (even[0].high - even[0].low)
    theta = strengths(wins(2, won))[0][0]  # 20 (1 - s(2t)) = s(t) - 1/2, s being the logistic function
    assert 20 * (1 - 1 / (1 + np.exp(-2 * theta))) == pytest.approx(1 / (1 + np.exp(-theta)) - 0.5, abs=1e-9)


def test_intervals_hold_the_truth_as_often_as_they_say():
    truth = np.array([0.6, 0.0, -0.6])
    rng, held, count = np.random.default_rng(0), 0, 200
    for _ in range(count):
        games = []
        for a, b in ((0, 1), (0, 2), (1, 2)):
            chance = 1 / (1 + np.exp(truth[b] - truth[a]))
            games += [{a: float(up), b: float(not up)} for up in rng.random(60) < chance]
        found = ratings(3, games)
        held += sum(one.low <= 1500 + UNIT * strength <= one.high for one, strength in zip(found, truth, strict=True))
    assert 0.92 <= held / (3 * count) <= 0.98


def test_games_of_many_count_as_one_for_each_but_the_first():
    won = wins(3, [{0: 3.0, 1: 2.0, 2: 1.0}])
    assert won.sum() == pytest.approx(2.0)
    assert won[0, 1] == won[0, 2] == won[1, 2] == pytest.approx(2 / 3)


def test_more_games_make_intervals_shorter():
    widths = []
    for n in (10, 40, 160):
        one = ratings(2, [{0: 1.0, 1: 0.0}, {0: 0.0, 1: 1.0}] * n)[0]
        widths.append(one.high - one.low)
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.05)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.02)

"""A tournament of two policies stops when the verdict is clear: at the same pair for any number of jobs."""

import json
import math
from functools import partial

import numpy as np
import pytest
from support import playing_policies as playing

import motet
from motet.errors import SettingError
from motet.evaluation.jobs import JobPool
from motet.evaluation.result import Episode
from motet.evaluation.verdict import BOUND, SequentialTest, log_likelihood_ratio
from motet.intervals import share
from motet.policy import PolicySpec
from motet.world.winning import WinRule
from motet.worlds import MatrixGame

WORLD = partial(MatrixGame, turns=1)


class Biased:
    """Defects with a probability; in the dilemma the one that defects more often has more points."""

    def __init__(self, chance: float) -> None:
        self._chance = chance

    def reset(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observation):
        return int(self._rng.random() < self._chance)


def biased(chance, name):
    return PolicySpec(Biased, {"chance": chance}, name)


PAIR = [biased(0.7, "mean"), biased(0.4, "kind")]


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


def grid(pairs, delta):
    """The same ratio by brute force, for pairs with 0, 1 or 2 points: the mean leaves one number free."""
    best = []
    for mean in (0.5 + delta, 0.5 - delta):
        middle = np.linspace(1e-6, 2 * min(mean, 1 - mean) - 1e-6, 20_001)
        high = mean - middle / 2
        chances = np.stack([1 - middle - high, middle, high])
        best.append((np.array(pairs)[:, None] * np.log(chances)).sum(0).max())
    return best[0] - best[1]


def test_the_ratio_is_that_of_the_likeliest_distributions():
    for pairs in ([3, 5, 9], [10, 2, 4], [1, 30, 8]):
        exact = log_likelihood_ratio([pairs[0], 0, pairs[1], 0, pairs[2]], 0.1)
        assert exact == pytest.approx(grid(pairs, 0.1), abs=0.02)
    assert log_likelihood_ratio([0, 0, 0, 0, 20], 0.05) == pytest.approx(20 * math.log(0.55 / 0.45), abs=0.01)
    mirrored = log_likelihood_ratio([1, 2, 3, 4, 5], 0.05), log_likelihood_ratio([5, 4, 3, 2, 1], 0.05)
    assert mirrored[0] == pytest.approx(-mirrored[1]) and mirrored[0] > 0
    many = [40, 10, 100, 20, 60]
    mean = np.dot(many, (0, 0.25, 0.5, 0.75, 1)) / 230
    spread = np.dot(many, (np.array((0, 0.25, 0.5, 0.75, 1)) - mean) ** 2) / 230
    normal = 2 * 0.05 * 230 * (mean - 0.5) / spread
    assert log_likelihood_ratio(many, 0.05) == pytest.approx(normal, rel=0.05), (
        "the normal approximation of large samples"
    )


def test_it_stops_at_the_same_game_for_any_number_of_jobs(workers):
    results = [
        motet.tournament(WORLD, PAIR, until_clear=True, delta=0.1, seed=3, jobs=jobs, workers=workers)
        for jobs in (1, 2)
    ]
    assert results[0].deterministic() == results[1].deterministic()
    result, verdict = results[0], results[0].verdict
    assert verdict.better == "mean" and not result.partial and result.stopped == ""
    assert len(result.games) == 2 * sum(verdict.pairs) < 400
    test = SequentialTest(("mean", "kind"), 0.1, WinRule())
    for game in result.games:
        assert not test.clear, "no game comes after the pair that made it clear"
        test.take(game)
    assert test.clear and test.evidence == verdict.evidence >= BOUND
    plain = json.loads(result.deterministic())
    assert plain["verdict"]["better"] == "mean" and plain["settings"]["delta"] == 0.1
    assert "mean is better than kind" in result.html()


def test_an_interrupted_test_continues_and_stops_at_the_same_pair(tmp_path, workers):
    args = {"until_clear": True, "delta": 0.1, "seed": 3, "workers": workers, "dir": tmp_path}
    whole = motet.tournament(WORLD, PAIR, **args)
    lines = (tmp_path / "games.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == len(whole.games)
    for kept in (0, 7, len(lines)):
        (tmp_path / "games.jsonl").write_bytes(b"".join(lines[:kept]))
        again = motet.tournament(WORLD, PAIR, **args)
        assert again.deterministic() == whole.deterministic()
    assert (tmp_path / "games.jsonl").read_bytes() == b"".join(lines), "a finished one is only read"
    beyond = [json.dumps({**json.loads(lines[0]), "number": len(lines) + i}).encode() + b"\n" for i in range(2)]
    (tmp_path / "games.jsonl").write_bytes(b"".join([*lines, *beyond]))
    again = motet.tournament(WORLD, PAIR, **args)
    assert again.deterministic() == whole.deterministic(), "games beyond the verdict do not count"
    with pytest.raises(SettingError, match="another tournament: settings differ"):
        motet.tournament(WORLD, PAIR, rounds=1000, seed=3, workers=workers, dir=tmp_path)


def test_without_a_verdict_there_is_an_interval(workers):
    result = motet.tournament(
        WORLD, [biased(0.5, "one"), biased(0.5, "two")], until_clear=True, rounds=4, workers=workers
    )
    assert result.verdict.better is None and not result.partial and len(result.games) == 8
    assert result.verdict.points.count == 4
    assert "No verdict: one has" in result.html()
    points = result.verdict.plain()["points"]
    assert 0 <= points["low"] <= points["mean"] <= points["high"] <= 1


def test_a_fixed_number_of_games_reports_what_it_did(workers):
    result = motet.tournament(WORLD, PAIR, workers=workers)
    assert len(result.games) == 20 and result.verdict is None
    plain = json.loads(result.deterministic())
    assert "verdict" not in plain and sorted(plain["settings"]) == [
        "max_failed_episodes", "max_failures", "rounds", "seed", "stand_in",
    ]  # fmt: skip


def game(number, first, **more):
    seats = ("a", "b") if number % 2 == 0 else ("b", "a")
    returns = (first, 0.0) if number % 2 == 0 else (0.0, first)
    return Episode(number, seats, returns, (1, 1), 1, **more)


def test_pairs_are_counted_and_those_with_a_failed_game_are_not():
    test = SequentialTest(("a", "b"), 0.05, WinRule())
    ends = [(1, 1), (1, 0), (0, 0), (1, -1), (-1, 0), (-1, -1)]
    for round_, pair in enumerate(ends):
        for turn, first in enumerate(pair):
            test.take(game(2 * round_ + turn, float(first)))
    assert test.verdict().pairs == (1, 1, 2, 1, 1)
    test.take(game(12, 1.0))
    test.take(Episode(13, ("b", "a"), (), (), 0, failed="world"))
    assert test.verdict().pairs == (1, 1, 2, 1, 1)
    test.take(Episode(14, ("a", "b"), (), (), 0, failed="job"))
    test.take(game(15, 1.0))
    assert test.verdict().pairs == (1, 1, 2, 1, 1)
    test.take(game(16, 0.0, forfeited=("b",)))
    test.take(game(17, 5.0))
    assert test.verdict().pairs == (1, 1, 2, 1, 2), "a forfeit is a loss"


def test_a_policy_that_fails_in_a_game_does_not_stop_the_test(workers):
    hostile = PolicySpec(playing.FailsAt, {"turn": 1}, "hostile")
    result = motet.tournament(
        WORLD, [hostile, biased(1.0, "mean")], until_clear=True, stand_in="forfeit", workers=workers
    )
    assert result.verdict.better == "mean" and sum(result.verdict.pairs) == 15


def test_settings_without_a_valid_sequential_test_are_refused():
    for policies, more, why in (
        (
            ["random", "noop", "tit_for_tat"],
            {"until_clear": True},
            "policies must be two with until_clear, got random, noop",
        ),
        (["random", "noop"], {"delta": 0.1}, "delta is only valid with until_clear"),
        (["random", "noop"], {"until_clear": True, "delta": 0.5}, "delta must be a number > 0 and < 0.5, got 0.5"),
    ):
        with pytest.raises(SettingError, match=why):
            motet.tournament("matrix", policies, **more)


def models(share):
    """Pairs of games with this share of points, in four kinds of worlds, as probabilities of the five outcomes."""
    drawn = 0.44
    won, lost = share - drawn / 2, 1 - share - drawn / 2
    apart = 0.5 + (share - 0.5) / 0.2
    return {
        "without draws": [(1 - share) ** 2, 0, 2 * share * (1 - share), 0, share**2],
        "with draws": [lost**2, 2 * lost * drawn, 2 * won * lost + drawn**2, 2 * won * drawn, won**2],
        "equal games in a pair": [1 - share, 0, 0, 0, share],
        "seats decide 80 % of the pairs": [0.2 * (1 - apart), 0, 0.8, 0, 0.2 * apart],
    }


def simulated(probabilities, tests, rng, cap=1000):
    """How tests ended (1, 0, -1) and after how many pairs."""
    ends = []
    for outcomes in rng.choice(5, (tests, cap), p=probabilities):
        pairs = [0] * 5
        for count, outcome in enumerate(outcomes.tolist(), 1):
            pairs[outcome] += 1
            evidence = log_likelihood_ratio(pairs, 0.05)
            if abs(evidence) >= BOUND or count == cap:
                ends.append((int(evidence >= BOUND) - int(evidence <= -BOUND), count))
                break
    return np.array(ends)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(models(0.5)))
def test_error_rates_hold_and_games_are_saved(kind):
    rng = np.random.default_rng(7)
    at_delta, better = (simulated(models(one)[kind], 1000, rng) for one in (0.55, 0.6))
    errors = share([[float(end == -1)] for end in at_delta[:, 0]])
    assert errors.low <= 0.05, f"error rate {errors}"
    assert (better[:, 0] == -1).mean() < 0.02
    values = np.array(models(0.55)[kind])
    variance = values @ (np.linspace(0, 1, 5) - 0.55) ** 2
    fixed = 1.645**2 * variance / 0.05**2  # pairs of a test with a fixed number and the same error rates
    assert at_delta[:, 1].mean() < 0.75 * fixed
    assert better[:, 1].mean() < 0.5 * fixed


def test_a_quick_look_at_the_error_rate():
    ends = simulated(models(0.55)["with draws"], 60, np.random.default_rng(1))
    assert (ends[:, 0] == -1).mean() <= 0.1 and (ends[:, 0] == 1).mean() >= 0.9

"""Won, drawn and lost games are those of the world's own rule: by policy, by seat and by pair."""

import json
import math
from functools import partial

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from support import playing_policies as playing

import motet
from motet.errors import SettingError
from motet.evaluation.jobs import JobPool
from motet.intervals import share
from motet.policy import PolicySpec
from motet.seeds import seed_for
from motet.training.evaluator import _Challenge
from motet.training.league import Results
from motet.training.opponents import SelfPlay
from motet.world.winning import WinRule, decide
from motet.worlds import Hockey, MatrixGame


@pytest.fixture(scope="module")
def workers():
    with JobPool(2) as made:
        yield made


class Race(ParallelEnv):
    """Three runners. An action is a number of fields; the last turn pays what decides, the others pay a lot more."""

    metadata = {"name": "race"}  # noqa: RUF012
    won_by = "end"
    winning_margin = 1.0

    def __init__(self, seats=3, turns=3):
        from gymnasium.spaces import Box, Discrete

        self.possible_agents = [f"lane_{i}" for i in range(seats)]
        self.agents = []
        self._spaces = Box(0, 1, (1,), np.float32), Discrete(8)
        self._turns = turns

    def observation_space(self, agent):
        return self._spaces[0]

    def action_space(self, agent):
        return self._spaces[1]

    def reset(self, seed=None, options=None):
        self.agents, self._turn = self.possible_agents[:], 0
        return self._seen(), {name: {} for name in self.agents}

    def _seen(self):
        return {name: np.zeros(1, np.float32) for name in self.agents}

    def step(self, actions):
        self._turn += 1
        over = self._turn == self._turns
        rewards = {name: float(act if over else -100 * act) for name, act in actions.items()}
        flags = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        seen, infos = self._seen(), {name: {} for name in self.agents}
        if over:
            self.agents = []
        return seen, rewards, *flags, infos


class TotalRace(Race):
    won_by = "total"


class PlainRace(Race):
    won_by = None


def steady(action, name):
    return f"constant,kw.action={action},name={name}"


def by_hand(seed_of, games):
    """The games of a tournament of the two hockey players, played by hand and decided by the world's own winner."""
    ends = []
    for game in range(games):
        world = Hockey()
        seen, _ = world.reset(seed=seed_of(game // 2))
        kinds = ("strong", "weak") if game % 2 == 0 else ("weak", "strong")
        players = {name: Hockey.scripted[kind]() for name, kind in zip(world.agents, kinds, strict=True)}
        base = seed_for(0, 22, 25, 0, 1, game // 2)
        for seat, player in enumerate(players.values()):
            player.reset(seed_for(base, seat))
        while world.agents:
            seen, *_, infos = world.step({name: players[name].act(seen[name]) for name in world.agents})
        ends.append(infos["player_0"]["winner"] * (1 if game % 2 == 0 else -1))
    return ends


def test_a_hockey_tournament_counts_goals(workers):
    result = motet.tournament("hockey", ["hockey_strong", "hockey_weak"], rounds=6, jobs=2, workers=workers)
    ends = by_hand(lambda round_: seed_for(0, 21, 25, 0, 1, round_), 12)
    assert len(set(ends)) > 1 and 0 in ends, "the games must tell the rules apart"
    rate = result.win_rates()["hockey_strong", None, None]
    assert rate.games == 12
    assert [round(12 * one.share) for one in (rate.won, rate.drawn, rate.lost)] == [ends.count(k) for k in (1, 0, -1)]
    assert rate.points == pytest.approx(np.mean([(1 + end) / 2 for end in ends]))
    assert result.cross_table()["hockey_strong"]["hockey_weak"] == (pytest.approx(rate.points), 12)
    assert result.win_rates()["hockey_weak", None, None].lost == rate.won
    seats = [result.win_rates()["hockey_strong", None, f"player_{i}"] for i in (0, 1)]
    for i, one in enumerate(seats):
        assert round(6 * one.won.share) == ends[i::2].count(1)


def test_more_than_two_seats_are_compared_by_the_mean_and_pair_by_pair(workers):
    policies = [steady(1, "slow"), steady(2, "steady"), steady(5, "fast")]
    result = motet.evaluate(Race, policies, episodes=6, workers=workers)
    rates = result.win_rates()
    assert rates["fast", "slow", None].won.share == rates["fast", "steady", None].won.share == 1.0
    assert rates["steady", "slow", None].drawn.share == 1.0, "a difference of 1 is within the margin"
    assert (rates["fast", None, None].won.share, rates["slow", None, None].lost.share) == (1.0, 0.5)
    assert rates["steady", None, None].games == 6, "an episode is one game, with however many others"
    for episode in result.episodes:
        assert episode.deciding == tuple({"slow": 1.0, "steady": 2.0, "fast": 5.0}[name] for name in episode.policies)
    two = motet.evaluate(Race, [steady(2, "two"), steady(4, "four")], episodes=8, workers=workers)
    assert {tuple(sorted(one.policies)) for one in two.episodes} == {
        ("four", "two", "two"), ("four", "four", "two"),
    }  # fmt: skip
    assert two.win_rates()["four", None, None].won.share == 1.0, "the mean over the seats, not their sum"


def test_the_total_decides_where_the_world_says_so(workers):
    policies = [steady(1, "slow"), steady(5, "fast")]
    ends, totals, plain = (
        motet.tournament(world, policies, rounds=1, workers=workers) for world in (Race, TotalRace, PlainRace)
    )
    assert next(iter(ends.ratings())) == "fast"
    drawn = motet.tournament(Race, [steady(1, "slow"), steady(2, "steady")], rounds=1, workers=workers)
    assert [one.rating for one in drawn.ratings().values()] == pytest.approx([1500, 1500]), "within the margin"
    assert next(iter(totals.ratings())) == "slow"
    assert totals.games[0].deciding == totals.games[0].returns
    assert plain.win_rates() == {} and "win_rates" not in plain.result() and plain.games[0].deciding == ()
    assert "deciding" not in plain.result()["games"][0]
    assert next(iter(plain.ratings())) == "slow", "without a rule, the higher return wins as before"
    assert ends.result()["won_by"] == "end" and ends.result()["winning_margin"] == 1.0


def test_all_forms_of_a_result_hold_the_same_rates(workers):
    policies = [steady(1, "slow"), steady(2, "steady"), steady(5, "fast")]
    result = motet.evaluate(Race, policies, episodes=4, workers=workers)
    rows = json.loads(result.deterministic())["win_rates"]
    assert [(row["policy"], row["against"], row["seat"]) for row in rows] == list(result.win_rates())
    for row, rate in zip(rows, result.win_rates().values(), strict=True):
        assert (row["games"], row["won"]["share"], row["lost"]["high"]) == (rate.games, rate.won.share, rate.lost.high)
    page = result.html()
    assert "Won, drawn, lost" in page and "slow against fast" in page and "fast against slow" not in page


def test_a_forfeit_is_a_loss_whatever_the_margin(workers):
    policies = [PolicySpec(playing.FailsAt, {"turn": 1}, "hostile"), steady(0, "idle")]
    result = motet.tournament(partial(Race, seats=2), policies, rounds=1, stand_in="forfeit", workers=workers)
    assert result.win_rates()["hostile", "idle", None].lost.share == 1.0
    assert result.cross_table()["hostile"]["idle"] == (0.0, 2)


def test_games_of_earlier_versions_without_the_score_are_played_again(tmp_path, workers):
    policies = [steady(1, "slow"), steady(5, "fast")]
    for world, again in ((Race, True), (TotalRace, False)):
        path = tmp_path / world.__name__
        whole = motet.tournament(world, policies, rounds=2, dir=path, workers=workers)
        lines = [json.loads(line) for line in (path / "games.jsonl").read_text().splitlines()]
        for line in lines:
            assert line.pop("deciding")
        (path / "games.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        said: list[str] = []
        resumed = motet.tournament(world, policies, rounds=2, dir=path, workers=workers, on_message=said.append)
        assert resumed.deterministic() == whole.deterministic()
        assert any("without the score that decides" in line for line in said) == again


def test_league_runs_and_evaluation_share_one_rule():
    rule = WinRule.declared_by(Hockey())
    assert rule == WinRule("end", 10.0)
    assert [rule.outcome(own, theirs) for own, theirs in ((10.0, -10.0), (10.0, 0.0), (0.0, 0.5), (-10.0, 5.0))] == [
        1, 0, 0, -1,
    ]  # fmt: skip
    assert decide(math.nan, 0.0) == 0
    ring = np.zeros(1024, np.uint64)
    challenge = object.__new__(_Challenge)
    challenge._told, challenge._side = [], 0
    for advantage in (10.5, 10.0, -10.0, -10.5):
        Results(ring).tell(1, advantage, 10.0)
        challenge.tell(1, advantage, 10.0)
    heard, _, _ = Results.hear(ring, 0)
    expected = [decide(advantage, 10.0) for advantage in (10.5, 10.0, -10.0, -10.5)]
    assert [outcome - 1 for _, outcome in heard] == [outcome for _, outcome, _ in challenge._told] == expected


def test_a_rule_that_means_nothing_is_refused():
    class Vague(MatrixGame):
        won_by = "points"

    class Odd(MatrixGame):
        won_by = "total"
        winning_margin = -1.0

    for world, why in (
        (Vague, "won_by must be 'end' or 'total', got 'points'"),
        (Odd, "winning_margin must be a finite number >= 0, got -1.0"),
    ):
        with pytest.raises(SettingError, match=why):
            motet.evaluate(world, ["random"], episodes=1)
        with pytest.raises(SettingError, match=why):
            SelfPlay.of(world(), motet.League(), lambda path: None)


def test_a_rule_is_found_behind_gymnasiums_wrappers():
    import gymnasium

    class Inner(gymnasium.Env):
        won_by = "total"
        observation_space = action_space = gymnasium.spaces.Discrete(2)

    assert WinRule.declared_by(gymnasium.wrappers.OrderEnforcing(Inner())) == WinRule("total", 0.0)


def test_the_interval_of_a_share_is_wilsons_and_rounds_are_not_counted_twice():
    one = share([[1.0]] * 5 + [[0.0]] * 15)
    z, n, p = 1.959963984540054, 20, 0.25
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert (one.low, one.high) == (
        pytest.approx((middle - half) / (1 + z * z / n)), pytest.approx((middle + half) / (1 + z * z / n)),
    )  # fmt: skip
    twins = share([[1.0, 1.0]] * 5 + [[0.0, 0.0]] * 15)
    assert (twins.low, twins.high) == (pytest.approx(one.low), pytest.approx(one.high)), "as much as one of them tells"
    mixed, apart = share([[1.0, 0.0]] * 20), share([[1.0]] * 20 + [[0.0]] * 20)
    assert (mixed.low, mixed.high) == (pytest.approx(apart.low), pytest.approx(apart.high))
    assert share([[1.0, 1.0]] * 10).low < 0.75 and share([[1.0, 1.0]] * 10).high == 1.0
    assert share([]) is None


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(3)
    for equal in (0.0, 0.5, 1.0):  # how often the second game of a round ends as the first
        held = 0
        for _ in range(1000):
            first, other = rng.random(60) < 0.3, rng.random(60) < 0.3
            second = np.where(rng.random(60) < equal, first, other)
            one = share([[float(a), float(b)] for a, b in zip(first, second, strict=True)])
            held += one.low <= 0.3 <= one.high
        assert held >= 920, "a little less than 950 is Wilson's own deviation for 60 values"

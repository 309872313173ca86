"""Evaluation beside training: greedy episodes of what is published, and which of it is kept as the best."""

import functools
import itertools
import json

import gymnasium
import numpy as np
import pytest
from support.coins import Coins
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.td3 import TD3Config
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.policy import PLAYER
from motet.runs.directory import RunDirectory
from motet.training.drivers import make_learner
from motet.training.evaluator import EvaluationPlan, Evaluations, _Challenge, _Trial, play_evaluator, play_greedily
from motet.training.league import League
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.world import as_world
from motet.world.batch import LoopedWorlds, VectorWorlds
from motet.worlds import Hockey, MatrixGame, TreasureHunt

HUNT = functools.partial(TreasureHunt, agents=2, size=7, turns=12)


class Always:
    """A behaviour of one action."""

    def __init__(self, action):
        self._action = np.asarray(action)

    def act(self, observations, masks=None, explore=True):
        assert not explore
        return np.repeat(self._action[None], len(observations), axis=0), {}


@pytest.mark.parametrize("n_frames", [1, 3])
def test_worlds_as_arrays_and_one_by_one_give_the_same_returns(n_frames):
    config = DQNConfig(hidden=(16,), n_frames=n_frames)
    world = as_world(HUNT())
    behaviours = []
    for i in range(2):
        spaces = world.observation_spaces[i], world.action_spaces[i]
        behaviours.append(config.behaviour(*spaces))
        learnt = config.build(*spaces, agents=1, seeds=[i])
        behaviours[i].begin(0)
        behaviours[i].load(learnt.weights()[0], learnt.header(step=0, agent=0))
    batches = VectorWorlds(HUNT().vector(6)), LoopedWorlds([as_world(HUNT()) for _ in range(6)], [False] * 2)
    arrays, one_by_one = (play_greedily(batch, behaviours, range(6), [n_frames] * 2) for batch in batches)
    assert arrays.any() and np.array_equal(arrays, one_by_one)


def test_games_of_different_length_count_once_each():
    """A world whose game is over waits for the others, and earns nothing meanwhile."""
    batch = VectorWorlds(Hockey(turns=60).vector(8))
    totals = play_greedily(batch, [Always([1.0, 0.0, 0.0, 1.0]), Always([0.3, 0.5, 0.0, 1.0])], range(8))
    alone = [
        play_greedily(LoopedWorlds([as_world(Hockey(turns=60))], [False] * 2), [
            Always([1.0, 0.0, 0.0, 1.0]), Always([0.3, 0.5, 0.0, 1.0])], [seed])[0]
        for seed in range(8)
    ]  # fmt: skip
    np.testing.assert_allclose(totals, alone, rtol=1e-5)
    assert len(np.unique(totals.round(3))) > 8


def test_the_player_meets_every_anchor_on_both_sides():
    """In matching pennies who matches wins on one side and loses on the other."""
    settings = Settings(self_play=True, worlds_per_actor=2, evaluate_every=100)
    challenge = _Challenge(SharedMemory(make_roster(Coins, StandIn(), settings)), episodes=8)
    for _ in range(2):
        outcome = challenge.play([Always(0)], lambda w: w)
        record = {"won": 2, "lost": 2, "drawn": 0}
        assert outcome.notes["opponents"] == {"heads": record, "tails": record}
        win, loss = {"won": 2, "lost": 0, "drawn": 0}, {"won": 0, "lost": 2, "drawn": 0}
        assert outcome.notes["sides"] == {
            "player_0": {"heads": win, "tails": loss},
            "player_1": {"heads": loss, "tails": win},
        }
        assert outcome.score == 0.5 and outcome.totals.shape == (8, 1) and outcome.team == 0.0


def test_a_game_that_ends_early_is_counted_once():
    settings = Settings(self_play=True, evaluate_every=100)
    challenge = _Challenge(SharedMemory(make_roster(Hockey, TD3Config(), settings)), episodes=8)
    outcome = challenge.play([Always([0.0, 0.0, 0.0, -1.0])], lambda w: w)
    assert sum(sum(row.values()) for row in outcome.notes["opponents"].values()) == 8
    assert outcome.notes["opponents"]["strong"]["lost"] > 0


def test_the_score_is_the_teams_return_where_there_is_no_opponent():
    world = functools.partial(MatrixGame, "prisoners_dilemma", turns=5)
    trial = _Trial(SharedMemory(make_roster(world, StandIn(), Settings())), episodes=3)
    outcome = trial.play([Always(0), Always(0)], lambda w: w)
    assert outcome.score == outcome.team == outcome.totals.sum() / 3 and outcome.notes == {}


def test_the_best_of_self_play_is_kept(tmp_path):
    run, world = tmp_path / "run", functools.partial(Hockey, turns=20)
    config = TD3Config(hidden=(16,), min_rows=64, batch_size=16, capacity=2000)
    settings = Settings(
        steps=6000, worlds_per_actor=4, updates_per_step=0.2, slack=8, self_play=True,
        league=League(snapshot_every=1000, review_every=500), evaluate_every=500, evaluate_episodes=10,
    )  # fmt: skip
    train(world, config, settings, run=run)
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    assert lines and list(lines[0]["agents"]) == [PLAYER]
    for line in lines:
        games = [sum(row.values()) for row in line["opponents"].values()]
        assert list(line["opponents"]) == ["weak", "strong"] and sum(games) == line["episodes"] == 10
        rates = [
            (row["won"] + 0.5 * row["drawn"]) / n for row, n in zip(line["opponents"].values(), games, strict=True)
        ]
        assert line["score"] == pytest.approx(np.mean(rates))
    assert RunDirectory(run).best_score() == max(line["score"] for line in lines)
    assert set(load_policies(run / "best", world=world)) == {"player_0", "player_1"}


def test_snapshots_show_the_newest_evaluation_of_each_agent(tmp_path):
    seen = []
    settings = Settings(steps=60, engine="serial", evaluate_every=20, evaluate_episodes=3)
    train(HUNT, StandIn(), settings, run=tmp_path / "run", on_update=seen.append)
    last = json.loads((tmp_path / "run" / "evaluation.jsonl").read_text().splitlines()[-1])
    assert {row.name: row.evaluated for row in seen[-1].agents} == {
        name: one["mean"] for name, one in last["agents"].items()
    }
    assert last["team"] == pytest.approx(sum(one["mean"] for one in last["agents"].values())) and "team_std" in last


def test_evaluations_in_self_play_need_anchors():
    settings = Settings(self_play=True, league=League(anchors=()), evaluate_every=100)
    with pytest.raises(
        SettingError,
        match=r"evaluate_every is only valid with anchors in self-play, .* \(got none\)",
    ):
        train(Coins, StandIn(), settings)


# ---- showing that it is alive


class Watched(gymnasium.Env):
    """A world that knows when the evaluator last showed that it is alive, as a slow world would need it to."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    alive = staticmethod(lambda: 0.0)
    seen = ()
    stop = staticmethod(lambda: None)

    def __init__(self):
        self.seen.append(self.alive())

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.seen.append(self.alive())
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        self.seen.append(self.alive())
        if self.t == 5:
            self.stop()
        return np.zeros(3, np.float32), 1.0, self.t == 5, False, {}


def test_the_evaluator_shows_that_it_is_alive_at_every_turn_of_every_world(monkeypatch):
    """However many worlds there are, no two turns go by without it: a long evaluation does not count as hung."""
    monkeypatch.setattr(Watched, "seen", [])
    shared = SharedMemory(make_roster(Watched, StandIn(), Settings(evaluate_every=10)))
    for k in range(len(shared.roster.stacks)):
        make_learner(shared, k).begin()
    row = shared.roster.actors + len(shared.roster.processes)
    monkeypatch.setattr(Watched, "alive", staticmethod(lambda: float(shared.board.processes.heartbeat[row])))
    monkeypatch.setattr(Watched, "stop", staticmethod(lambda: shared.board.request_stop()))
    Watched.seen.clear()
    play_evaluator(shared, EvaluationPlan(every=10, episodes=4), directory=None)
    assert shared.board.evaluation.count[0] == 1
    assert len(Watched.seen) == 4 + 4 + 4 * 5  # made, reset, played
    assert all(later > earlier for earlier, later in itertools.pairwise(Watched.seen))


def test_seconds_continue_after_a_restart_of_the_evaluator(tmp_path):
    age_s = 100.0
    shared = SharedMemory(make_roster(Coins, StandIn(), Settings(evaluate_every=10)))
    for k in range(len(shared.roster.stacks)):
        make_learner(shared, k).begin()
    Evaluations(shared, EvaluationPlan(every=10, episodes=1), tmp_path).play()
    shared.board.evaluation.began[0] -= age_s  # the run is older than the process that follows
    shared.board.evaluation.due[0] = 0
    Evaluations(shared, EvaluationPlan(every=10, episodes=1), tmp_path).play()
    first, second = (json.loads(line)["seconds"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines())
    assert 0 <= first < age_s <= second


def test_the_evaluator_is_alive_at_every_turn_of_worlds_as_arrays():
    beats = []
    totals = play_greedily(VectorWorlds(Hockey(turns=30).vector(3)), [Always([0.0] * 4)] * 2, range(3),
                           alive=lambda: beats.append(0))  # fmt: skip
    assert totals.shape == (3, 2) and len(beats) >= 30

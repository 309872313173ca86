"""Policies with a memory wherever a policy may act: opponents, partners, evaluations, isolated processes."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.coins import Coins

from motet import EvaluationSettings, Partner, Settings, evaluate, resume, train
from motet.algorithms import PPOConfig
from motet.policies.entries import load_policies
from motet.training.league import League
from motet.training.opponents import EarlierRun, Frozen, Newest, anchor_of
from motet.training.roster import make_roster
from motet.worlds import MatrixGame

GRU = PPOConfig(memory="gru", memory_size=8, hidden=(8,), batch_size=2, length=8, sequence_length=4, minibatches=2)
GAME = partial(MatrixGame, turns=10)
SERIAL = Settings(steps=120, engine="serial")


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run in which both players learned to act with a memory."""
    path = tmp_path_factory.mktemp("runs") / "old"
    train(GAME, GRU, SERIAL, run=path)
    return path


def same(one, other):
    return all(np.array_equal(one.agents[name]["state"], other.agents[name]["state"]) for name in one.agents)


def test_isolated_equals_in_process(old):
    settings = EvaluationSettings(episodes=3)
    plain = evaluate(GAME, str(old), settings=settings)
    isolated = evaluate(GAME, str(old), settings=EvaluationSettings(episodes=3, isolate=True))
    assert [one.returns for one in plain.episodes] == [one.returns for one in isolated.episodes]


@pytest.mark.parametrize("turns", [40, 76])
def test_partner_remembers_across_a_resume(old, turns, tmp_path):
    """Stopped in the middle of an episode."""
    settings = Settings(steps=120, engine="serial", keep_replay=True, worlds_per_actor=2)
    agents = {"player_0": GRU, "player_1": Partner(f"{old},agent=player_1")}
    whole = train(GAME, agents, settings)
    train(GAME, agents, Settings(**{**vars(settings), "steps": turns}), run=tmp_path / "run")
    assert same(resume(tmp_path / "run", steps=120 - turns), whole)


def self_play(tmp_path, **more):
    league = League(snapshot_every=60, review_every=30, pool=2, block=2, anchors=(str(tmp_path / "old"),))
    return Settings(**{"engine": "serial", "self_play": True, "league": league, "worlds_per_actor": 3, **more})


def test_self_play_in_lockstep_is_the_serial_run_and_a_resumed_one_continues(tmp_path):
    """Against an earlier run, snapshots and the player itself, which all remember."""
    chosen = partial(self_play, tmp_path, steps=240, keep_replay=True)
    league = League(anchors=("heads",))
    train(Coins, GRU, Settings(steps=60, engine="serial", self_play=True, league=league), run=tmp_path / "old")
    one = train(Coins, GRU, chosen(), run=tmp_path / "one")
    assert same(one, train(Coins, GRU, chosen(engine="processes", slack=0)))
    train(Coins, GRU, chosen(steps=120), run=tmp_path / "half")
    assert same(one, resume(tmp_path / "half", steps=120, world=Coins))


def test_an_opponent_remembers_each_world_by_itself(old):
    settings = Settings(self_play=True, league=League(anchors=(f"{old},agent=player_0",)))
    opponent = anchor_of(make_roster(GAME, GRU, settings).self_play.makers[0].value)
    assert isinstance(opponent, EarlierRun)
    opponent.join(3)
    policy = load_policies(old)["player_0"]
    behaviour = policy.behaviour
    memories = []
    for played in ([0, 1, 2], [0], [0, 2], [1]):
        seen = np.ones((len(played), 5), np.uint8)
        opponent.act(np.array(played), seen, None)
        memories.append(opponent.memory()["memory"].copy())
    assert np.array_equal(memories[1][1:], memories[0][1:]) and not np.array_equal(memories[1][0], memories[0][0])
    state = np.zeros((1, 8), np.float32)
    for _ in range(2):  # world 1 was played twice
        *_, state = behaviour.act_from(state, np.ones((1, 5), np.uint8), None, False)
    np.testing.assert_array_equal(memories[-1][1], state[0])
    for forget in (opponent.forget, lambda world: opponent.begin(world, 0)):
        opponent.act(np.arange(3), np.ones((3, 5), np.uint8), None)
        forget(1)
        assert opponent.memory()["memory"].any(1).tolist() == [True, False, True]


def test_snapshots_and_the_player_itself_forget_when_a_game_begins():
    policy = make_roster(GAME, GRU, SERIAL).policies[0]
    spaces = policy.observation_space, policy.action_space
    weights = GRU.build(*spaces, 1, [1]).weights()[0]
    source = SimpleNamespace(version=1, refresh=lambda: True, weights=weights)
    for opponent in (Frozen(GRU.behaviour(*spaces), weights, {}), Newest(GRU.behaviour(*spaces), source, ())):
        opponent.join(2)
        opponent.begin(0, 0)
        opponent.act(np.arange(2), np.ones((2, 5), np.uint8), None)
        assert opponent.memory()["memory"].any(1).all()
        opponent.begin(1, 0)
        assert opponent.memory()["memory"].any(1).tolist() == [True, False]

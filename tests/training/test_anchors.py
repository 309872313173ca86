"""Earlier runs as opponents in self-play."""

import functools
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from support.coins import Coins, quick
from support.stand_in import StandIn

from motet.algorithms import DQNConfig, IQNConfig
from motet.cli import main
from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.seeds import seed_for
from motet.training.anchors import RunAnchor
from motet.training.league import League, anchor
from motet.training.opponents import EarlierRun, Newest, Scripted, Versus, anchor_of
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds
from motet.worlds import MatrixGame

DQN = DQNConfig(hidden=(8,), batch_size=8, min_rows=16, capacity=400)
IQN = IQNConfig(hidden=(8,), batch_size=8, min_rows=16, capacity=400)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """Two runs of self-play, by different algorithms."""
    folder = tmp_path_factory.mktemp("earlier")
    for name, config in (("dqn", DQN), ("iqn", IQN)):
        train(Coins, config, quick(steps=60, engine="serial", evaluate_every=30), run=folder / name)
    return folder


def league(*anchors):
    return League(snapshot_every=150, review_every=50, pool=2, block=2, anchors=tuple(map(str, anchors)))


def test_an_earlier_run_plays_as_it_did(earlier):
    play = make_roster(Coins, DQN, quick(league=league("heads", earlier / "iqn", earlier / "dqn" / "best"))).self_play
    assert play.anchors == ("heads", "iqn", "dqn@best")
    opponents = [anchor_of(maker.value) for maker in play.makers]
    assert [type(one) for one in opponents] == [Scripted, EarlierRun, EarlierRun]
    space = make_roster(Coins, DQN, quick()).agents[0].observation_space
    seen = np.stack([space.sample() for _ in range(9)])
    policy = play.makers[2].value()
    policy.reset(0)
    together = opponents[2].act(np.arange(9), seen, None)
    assert together.tolist() == [policy.act(one) for one in seen]


def test_a_run_that_stacks_frames_is_made_for_each_world(earlier):
    roster = make_roster(Coins, DQN, quick(league=league(earlier / "dqn")))
    maker = roster.self_play.makers[0].value
    assert isinstance(maker, RunAnchor)

    class Stacking(RunAnchor):
        def __call__(self):
            made = super().__call__()
            made.n_frames = 2
            return made

    assert isinstance(anchor_of(Stacking(**vars(maker))), Scripted)


@pytest.mark.parametrize("which", ["dqn", "iqn", "support.given_policies:Dice"])
def test_lockstep_is_the_serial_run_and_a_resumed_one_continues(earlier, which, tmp_path):
    """Also against an anchor that acts in all worlds at once and draws from the global generators."""
    given = which if ":" in which else earlier / which
    chosen = functools.partial(quick, slack=0, steps=120, league=league(given), keep_replay=True)
    one = train(Coins, DQN, chosen(engine="serial"), run=tmp_path / "one")
    two = train(Coins, DQN, chosen())
    np.testing.assert_array_equal(one.agents["player"]["state"], two.agents["player"]["state"])
    train(Coins, DQN, chosen(engine="serial", steps=60), run=tmp_path / "half")
    again = resume(tmp_path / "half", steps=60, world=Coins)
    np.testing.assert_array_equal(one.agents["player"]["state"], again.agents["player"]["state"])


def test_the_earlier_run_may_vanish(earlier, tmp_path):
    shutil.copytree(earlier / "iqn", tmp_path / "old")
    settings = quick(steps=60, engine="serial", league=league("heads", tmp_path / "old"), evaluate_every=20)
    train(Coins, DQN, settings, run=tmp_path / "run")
    shutil.rmtree(tmp_path / "old")
    assert RunDirectory(tmp_path / "run").config()["settings"]["league"]["anchors"] == ["heads", "anchors/old"]
    (tmp_path / "run").rename(tmp_path / "moved")
    resume(tmp_path / "moved", steps=60, world=Coins)
    assert RunDirectory(tmp_path / "moved").config()["settings"]["league"]["anchors"] == ["heads", "anchors/old"]
    lines = [json.loads(line) for line in (tmp_path / "moved" / "evaluation.jsonl").read_text().splitlines()]
    assert all(list(line["opponents"]) == ["heads", "old"] for line in lines) and len(lines) > 3


def test_a_run_that_never_began_leaves_no_copies(earlier, tmp_path, monkeypatch):
    monkeypatch.setattr("motet.training.engines.play_serially", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(Coins, DQN, quick(engine="serial", league=league(earlier / "dqn")), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine" / "anchors").mkdir(parents=True)
    with pytest.raises(SettingError, match="File exists"):
        train(Coins, DQN, quick(engine="serial", league=league(earlier / "dqn")), run=tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["anchors"]


def test_runs_that_do_not_fit_are_refused(earlier, tmp_path):
    train("matrix", DQN, Settings(steps=30, engine="serial"), run=tmp_path / "two")
    with pytest.raises(SettingError, match=r"several policies \(player_0, player_1\).*two,agent=player_0"):
        make_roster(Coins, DQN, quick(league=league(tmp_path / "two")))
    assert make_roster(MatrixGame, DQN, quick(league=league(f"{tmp_path / 'two'},agent=player_1"))).self_play
    with pytest.raises(
        SettingError, match=r"two,agent=player_0. cannot play here: DQN needs a Discrete action space, got Box"
    ):
        make_roster("hockey", "td3", quick(league=league(tmp_path / "two,agent=player_0")))
    with pytest.raises(SettingError, match="neither a run, a checkpoint nor a plan"):
        make_roster(Coins, DQN, quick(league=league(tmp_path)))
    train(Coins, StandIn(), quick(steps=30, engine="serial"), run=tmp_path / "foreign")
    shutil.copytree(tmp_path / "foreign", tmp_path / "sent")
    with pytest.raises(SettingError, match="--trust"):
        make_roster(Coins, DQN, quick(league=league(tmp_path / "sent")))


def test_anchors_are_given_as_flags(earlier, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(earlier / "dqn", "runs/first")
    flags = ["--self-play", "--engine", "serial", "--steps", "40", "--evaluate-every", "20", "--dqn.hidden", "8"]
    flags += ["--dqn.batch-size", "8", "--dqn.min-rows", "16", "--league.anchors", "runs/first"]
    assert main(["train", "matrix", "--world.game", "matching_pennies", "--run", "mine", *flags]) == 0
    shown = capsys.readouterr().out
    assert "win rate" in shown and "player_1" in shown and "first" in shown


class Drawing:
    """A greedy behaviour that draws all the same, as IQN draws quantiles; it saves its stream."""

    def begin(self, seed):
        self.rng = np.random.default_rng(seed)

    def act(self, observations, masks=None, explore=True):
        return self.rng.integers(0, 2, len(observations)), {}

    def get_stream(self):
        return self.rng.bit_generator.state

    def set_stream(self, stream):
        self.rng.bit_generator.state = stream


def test_the_random_stream_of_an_earlier_run_begins_with_a_seed_and_continues():
    def make():
        chooser = SimpleNamespace(opponent=lambda chance: anchor(0))
        results, newest = SimpleNamespace(tell=lambda *told: None), Newest(Drawing(), SimpleNamespace(version=0), ())
        worlds = LoopedWorlds([as_world(Coins()) for _ in range(2)], [False, False])
        anchors = [EarlierRun(Drawing())]
        return Versus(worlds, chooser, results, anchors, newest, None, seed_of, 2, True, 0.0, False)

    def seed_of(*path):
        asked.append(path)
        return seed_for(5, *path)

    def play(games, turns):
        seen = []
        for _ in range(turns):
            games.reset(list(games.over), [0] * len(games.over))
            (turn,) = games.turns()
            seen.append(repr((turn.observation, turn.reward, games.act([np.zeros(2, np.int64)]))))
        return seen

    asked = []
    games, same = make(), make()
    assert len({path[:3] for path in asked}) == 2  # the newest and the anchor
    assert games.can_save and play(games, 9) == play(same, 9)
    state = games.get_state()
    again = make()
    again.set_state(state)
    assert play(again, 20) == play(games, 20) and len(set(play(games, 30))) > 10

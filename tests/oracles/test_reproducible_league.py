"""Self-play in reproducible runs is that of the serial engine, with its league, also if learners are killed."""

import functools
import json

import numpy as np
import pytest
from support.dying import DyingStandIn
from support.stand_in import StandIn
from test_lockstep_with_run import Pennies

from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.policy import PLAYER
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits
from motet.training.league import League
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import Hockey

SHORT = functools.partial(Hockey, turns=40)
TD3 = TD3Config(hidden=(16,), min_rows=64, batch_size=16, capacity=2000, n_step=2)
PPO = PPOConfig(hidden=(16,), batch_size=3, length=16, minibatches=2, epochs=2, normalise=True)
LEAGUE = League(snapshot_every=100, review_every=50, block=2)


def played(folder, engine, world, algorithm, **more):
    ratio = None if isinstance(algorithm, PPOConfig) else 0.3
    settings = {"steps": 1000, "actors": 2, "worlds_per_actor": 3, "updates_per_step": ratio, "period": 10}
    settings |= {"evaluate_every": 300, "evaluate_episodes": 4, **more}
    result = train(world, algorithm, Settings(engine=engine, self_play=True, league=LEAGUE, **settings), run=folder)
    kept = RunDirectory(folder).load()
    assert kept.league["counts"][0] >= 9 and kept.league["heard"].min() > 5
    parts = {**result.agents[PLAYER], **kept.league}
    parts["evaluation"] = [
        json.loads(line)["agents"] for line in (folder / "evaluation.jsonl").read_text().splitlines()
    ]
    return result, {name: part if name == "evaluation" else np.asarray(part).tobytes() for name, part in parts.items()}


@pytest.mark.parametrize(
    ("world", "algorithm", "ahead"),
    [(Pennies, StandIn(), 1), (Pennies, StandIn(), 0), (SHORT, TD3, 1), (SHORT, PPO, 1)],
    ids=["stand-in", "bursts", "td3", "ppo"],
)
def test_self_play_is_the_serial_run_league_included(world, algorithm, ahead, tmp_path):
    one, serial = played(tmp_path / "serial", "serial", world, algorithm, ahead=ahead)
    other, parallel = played(tmp_path / "processes", "processes", world, algorithm, ahead=ahead)
    assert other.restarts == 0 and (one.steps, one.updates) == (other.steps, other.updates)
    assert [name for name in serial if serial[name] != parallel[name]] == []


def test_learners_killed_around_the_table_give_the_same_league(tmp_path):
    """The table of a phase is written before its vault, and its number is that of the phase."""
    (folder := tmp_path / "deaths").mkdir()
    deaths = (
        "within publication:1",
        "within publication:9",
        "after publication:9",
        "within vault:10",
        "after vault:11",
    )
    _, serial = played(tmp_path / "serial", "serial", Pennies, StandIn())
    dying = DyingStandIn(deaths=deaths, folder=str(folder))
    limits = RestartLimits(restarts=100, back_off_s=0.001)
    result, killed = played(tmp_path / "run", "processes", Pennies, dying, limits=limits)
    assert len(list(folder.iterdir())) == len(deaths) and result.restarts >= len(deaths)
    assert [name for name in serial if serial[name] != killed[name]] == []


def test_the_results_of_a_long_period_have_room(tmp_path):
    """Every game has one round."""
    more = {"period": 400, "steps": 4000, "worlds_per_actor": 3, "actors": 1}
    pages = [
        played(tmp_path / engine, engine, functools.partial(Pennies, turns=1), StandIn(capacity=20_000), **more)[1]
        for engine in ("serial", "processes")
    ]
    assert pages[0] == pages[1]
    heard, lost = np.frombuffer(pages[0]["heard"], np.int64), np.frombuffer(pages[0]["counts"], np.int64)[2]
    assert heard.sum() > 3 * 1024 and lost == 0

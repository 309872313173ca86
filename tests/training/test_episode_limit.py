"""Runs that end after a number of episodes: dealt to the worlds in advance, and exact in every mode."""

import functools
import json

import numpy as np
import pytest
from support.stand_in import StandIn

from motet.algorithms import DQNConfig
from motet.errors import SettingError
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.training import Settings
from motet.training.recorder import fill
from motet.training.roster import dealt, make_roster
from motet.training.run import resume, train
from motet.training.shared import SharedMemory
from motet.worlds import MatrixGame, TreasureHunt

pytestmark = pytest.mark.usefixtures("no_leaks")
HUNT = functools.partial(TreasureHunt, agents=2, size=6, turns=9)  # as arrays
GAME = functools.partial(MatrixGame, turns=7)  # one by one
MODES = {
    "serial": {"engine": "serial"},
    "lockstep": {"slack": 0, "updates_per_step": 0.5},
    "bounded": {"slack": 8, "updates_per_step": 0.5},
    "free": {},
}


def ended(run, step=None):
    return np.array(RunDirectory(run).load(step).notes["ended"])


@pytest.mark.parametrize("world", [HUNT, GAME], ids=["arrays", "looped"])
@pytest.mark.parametrize("mode", MODES)
def test_every_world_plays_its_part_of_the_episodes_and_no_more(mode, world, tmp_path):
    settings = Settings(**MODES[mode], actors=2, worlds_per_actor=3, episodes=20)
    result = train(world, StandIn(), settings, run=tmp_path / "run")
    assert result.state == "done" and ended(tmp_path / "run").tolist() == dealt(20, 2, 3) == [[4, 4, 3], [3, 3, 3]]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["episodes"], status["episode_limit"], status["limit"]) == (20, 20, result.steps)
    assert [row["episodes"] for row in status["agents"]] == [20, 20]
    if world is GAME:
        assert result.steps == 20 * 7


def test_lockstep_is_serial_though_worlds_rest():
    settings = {"actors": 2, "worlds_per_actor": 3, "episodes": 14, "updates_per_step": 0.5}
    config = DQNConfig(hidden=(8,), min_rows=32, batch_size=8)
    serial, lockstep = (
        train(HUNT, config, Settings(**settings, **more)) for more in ({"engine": "serial"}, {"slack": 0})
    )
    assert serial.steps == lockstep.steps
    assert all(np.array_equal(serial.agents[name]["state"], lockstep.agents[name]["state"]) for name in serial.agents)


@pytest.mark.parametrize("mode", ["serial", "bounded"])
def test_a_resumed_run_plays_the_rest_also_in_other_worlds(mode, tmp_path):
    run, made = tmp_path / "run", {"world": HUNT, "algorithm": StandIn()}
    train(HUNT, StandIn(), Settings(**MODES[mode], actors=2, worlds_per_actor=2, episodes=9), run=run)
    assert resume(run, episodes=6, **made).state == "done" and ended(run).sum() == 15
    assert json.loads((run / "status.json").read_text())["agents"][0]["episodes"] == 6  # of this session
    with pytest.raises(SettingError, match="has already done its 15 episodes"):
        resume(run, **made)
    assert resume(run, steps=30, **made).state == "done"  # by steps now, which end it before the episodes would


@pytest.mark.parametrize(
    ("episodes", "before", "size"),
    [(20, [[4, 4, 3], [1, 0, 0]], (2, 2)), (12, [[9]], (1, 3)), (9, [[1, 1], [1, 1]], (2, 2)), (9, [], (2, 2))],
)
def test_episodes_left_are_dealt_again_where_the_worlds_are_others(episodes, before, size):
    settings = Settings(episodes=episodes, actors=size[0], worlds_per_actor=size[1])
    shared = SharedMemory(make_roster(GAME, StandIn(), settings))
    fill(shared, Checkpoint(0, {}, {"ended": before}), stacks=[])
    left = np.array(dealt(episodes, *size)) - shared.board.ended.astype(int)
    assert left.sum() == episodes - sum(map(sum, before)) and left.min() >= 0
    assert shared.board.ended.tolist() == before if np.shape(before) == size else left.max() - left.min() <= 1


def test_steps_end_it_too_and_episodes_that_break_off_do_not_count(tmp_path):
    assert Settings().step_limit == 100_000 and Settings(episodes=3).step_limit > 10**15
    result = train(GAME, StandIn(), Settings(engine="serial", steps=10, episodes=50))
    assert result.steps == 10 and result.state == "done"

    raises = iter([False] * 10 + [True] + [False] * 10**6)

    class Fragile(MatrixGame):
        def step(self, actions):
            if next(raises):
                raise OSError("a fault")
            return super().step(actions)

    settings = Settings(engine="serial", episodes=5, remake_worlds=True)
    result = train(functools.partial(Fragile, turns=7), StandIn(), settings, run=tmp_path / "run")
    assert ended(tmp_path / "run").tolist() == [[5]]
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["agents"][0]["episodes"] == 5 and result.steps > 35

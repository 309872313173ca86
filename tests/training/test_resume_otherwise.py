"""Runs that are resumed with another engine, other processes or another pace."""

import functools
import itertools
import json
import math
import multiprocessing
import shutil

import numpy as np
import pytest
from support.coins import Coins
from support.stand_in import StandIn

from motet.algorithms import DQNConfig
from motet.errors import ChildError
from motet.pace import Pace
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits
from motet.training import League, Settings
from motet.training.league import Results, dealt_again
from motet.training.run import resume, train
from motet.worlds import MatrixGame

pytestmark = pytest.mark.usefixtures("no_leaks")
GAME = functools.partial(MatrixGame, turns=10)
CONFIG = DQNConfig(hidden=(4,), batch_size=4, min_rows=10)


def status(run):
    return json.loads((run / "status.json").read_text())


@pytest.fixture(scope="module", params=[False, True], ids=["rows gone", "keep_replay"])
def trained(request, tmp_path_factory):
    """A run of 200 steps in lockstep, and its result."""
    run = tmp_path_factory.mktemp("trained") / "run"
    settings = Settings(
        steps=200, actors=2, worlds_per_actor=2, learner_processes=1, updates_per_step=0.5, slack=0,
        keep_replay=request.param,
    )  # fmt: skip
    return run, train(GAME, CONFIG, settings, run=run), request.param


@pytest.mark.parametrize(
    "changes",
    [{"engine": "serial"}, {"actors": 3}, {"worlds_per_actor": 1, "actors": 4}, {"learner_processes": 2},
     {"engine": "serial", "updates_per_step": 0.1, "actors": 1}, {"slack": 16.0, "updates_per_step": 2.0}],
    ids=str,
)  # fmt: skip
def test_a_run_is_resumed_with_other_settings_that_apply_from_there(changes, trained, tmp_path):
    first, before, keep_replay = trained
    run, said = shutil.copytree(first, tmp_path / "run"), []
    after = resume(run, steps=100, world=GAME, algorithm=CONFIG, on_message=said.append, **changes)
    pace = Pace(changes.get("updates_per_step", 0.5), changes.get("slack", 0))
    assert after.state == "done" and after.steps >= 300
    lanes = changes.get("actors", 2) * changes.get("worlds_per_actor", 2)
    kept = keep_replay and not {"actors", "worlds_per_actor"} & changes.keys()
    warm_up = 10 + lanes + 1
    for name, count in after.updates.items():
        new = count - before.updates[name]
        if kept:
            due = pace.due(after.steps, warm_up) - pace.due(before.steps, warm_up)
        else:  # the warm-up begins again
            due = pace.due(after.steps - before.steps, warm_up)
        # Lockstep is exact. Otherwise every actor may do one more round while the learners are behind by the slack.
        behind = 0 if pace.lockstep else pace.slack + math.ceil(pace.updates_per_step * lanes)
        assert due - behind <= new <= due + pace.slack
    lost = sum(row["lost"] for row in status(run)["agents"])
    assert (lost > 0) == (keep_replay and not kept) == any("count as lost" in line for line in said)
    written = RunDirectory(run).config()["settings"]
    assert all(written[name] == value for name, value in changes.items())
    resume(run, steps=50, world=GAME, algorithm=CONFIG)  # and once more, without a change


def test_league_results_survive_another_number_of_actors(tmp_path):
    run = tmp_path / "run"
    settings = Settings(
        engine="serial",
        steps=380,
        actors=2,
        self_play=True,
        league=League(snapshot_every=100, review_every=150, block=2),
    )
    train(Coins, StandIn(), settings, run=run)
    league = RunDirectory(run).load().league
    unread = [
        Results.hear(ring, heard)[0] for ring, heard in zip(league["results"], league["heard"].tolist(), strict=True)
    ]
    assert all(unread) and league["played"].sum() > 0
    for actors in (1, 3):
        moved = dealt_again(league, actors)
        now = [Results.hear(ring, 0)[0] for ring in moved["results"]]
        assert sorted(itertools.chain(*now)) == sorted(itertools.chain(*unread))
        assert all(np.array_equal(moved[name], league[name]) for name in ("played", "points", "number", "counts"))
    assert resume(run, steps=200, world=Coins, algorithm=StandIn(), actors=3).state == "done"
    assert RunDirectory(run).load().league["played"].sum() > league["played"].sum()


class Breaks(MatrixGame):
    """Raises in the first child processes that play it."""

    def __init__(self, gate, times):
        super().__init__(turns=10)
        self.gate, self.times = gate, times

    def step(self, actions):
        if multiprocessing.parent_process() is not None and len(list(self.gate.iterdir())) < self.times:
            (self.gate / str(len(list(self.gate.iterdir())))).touch()
            raise OSError("the simulator lost its licence")
        return super().step(actions)


def test_a_process_that_raised_is_restarted_if_asked_for_up_to_the_limit(tmp_path):
    (gate := tmp_path / "gate").mkdir()
    said = []
    limits = RestartLimits(restart_raised=True, restarts=2)
    settings = Settings(steps=100, limits=limits, updates_per_step=0.1)
    result = train(
        functools.partial(Breaks, gate, 1), StandIn(), settings, run=tmp_path / "one", on_message=said.append
    )
    assert result.state == "done" and result.restarts == 1
    assert any("the simulator lost its licence); restarting" in line for line in said)
    with pytest.raises(ChildError, match=r"limit of 2 restarts .*motet resume .* --engine serial, or --actors N"):
        train(functools.partial(Breaks, gate, 9), StandIn(), settings, run=tmp_path / "two")

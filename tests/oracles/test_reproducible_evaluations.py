"""Evaluations of reproducible runs are those of the serial engine. None is skipped, and no run ends elsewhere."""

import functools
import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.dying import DyingStandIn
from support.stand_in import StandIn
from test_lockstep import fingerprint

from motet.errors import SettingError
from motet.system.supervisor import RestartLimits
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.worlds import MatrixGame

MATRIX = functools.partial(MatrixGame, turns=23)
AT_ONCE = RestartLimits(restarts=100, back_off_s=0.001)


def lines_of(run):
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def play(run, engine, algorithm=StandIn(), **more):  # noqa: B008 - frozen
    settings = {"steps": 600, "updates_per_step": 0.5, "period": 20, "evaluate_every": 100, "evaluate_episodes": 2}
    result = train(MATRIX, algorithm, Settings(engine=engine, **{**settings, **more}), run=run)
    return result, lines_of(run)


def check(tmp_path, **more):
    one, serial = play(tmp_path / "serial", "serial", **more)
    other, parallel = play(tmp_path / "processes", "processes", **more)
    assert parallel == serial
    best = [json.loads((tmp_path / name / "best/checkpoint.json").read_text()) for name in ("serial", "processes")]
    assert best[0]["step"] == best[1]["step"]
    assert (one.steps, one.updates, fingerprint(one)) == (other.steps, other.updates, fingerprint(other))
    return one, serial


@pytest.mark.parametrize("ahead", [0, 1])
def test_evaluations_are_those_of_the_serial_run(ahead, tmp_path):
    one, lines = check(tmp_path, ahead=ahead, actors=2, learner_processes=2)
    assert [line["step"] // 100 for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines[:-1]:  # a period has 40 steps; those without a known reward are not counted yet
        assert {agent["version"] for agent in line["agents"].values()} == {-(-line["step"] // 40) + 1}
    assert one.steps == 600


def slow(outcome):
    time.sleep(0.05)
    return outcome.team


def test_none_is_skipped_although_each_phase_has_one_and_all_are_slow(tmp_path):
    _, lines = check(tmp_path, steps=200, evaluate_every=7, evaluate_episodes=1, score=slow)
    assert [line["agents"]["player_0"]["version"] for line in lines] == list(range(2, 13))


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_result_ends_the_run_where_it_ends_the_serial_run(ahead, tmp_path):
    """The first result counts when the second evaluation is due: after the eleventh period of 20 steps."""
    one, lines = check(tmp_path, ahead=ahead, until_return=-1e9, score=slow)
    assert one.state == "stopped" and [line["step"] for line in lines] == [119, one.steps]
    assert {agent["version"] for agent in lines[-1]["agents"].values()} == {11 + ahead + 1}


def test_a_result_of_the_last_evaluation_does_not_end_the_run(tmp_path):
    one, lines = check(tmp_path, until_return=-1e9, evaluate_every=500)
    assert one.state == "done" and [line["step"] // 20 for line in lines] == [25, 30]


def dying(folder, outcome):
    """Kill the evaluator in every evaluation, once."""
    number = len(list(Path(folder).iterdir()))
    mark = Path(folder) / f"{outcome.team}"
    if not mark.exists() and number < 4:
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome.team


def test_a_killed_evaluator_plays_the_same_again(tmp_path):
    (folder := tmp_path / "deaths").mkdir()
    _, lines = play(tmp_path / "serial", "serial")
    killed, again = play(tmp_path / "run", "processes", score=functools.partial(dying, folder), limits=AT_ONCE)
    assert killed.restarts >= 2 and again == lines


def test_learners_killed_around_the_copies_for_evaluations_give_the_same_ones(tmp_path):
    """Versions 12 and 22 are those of the second and the fourth evaluation."""
    (folder := tmp_path / "deaths").mkdir()
    deaths = ("within aside:1", "after vault:12", "after aside:3", "within publication:22")
    one, lines = play(tmp_path / "serial", "serial")
    other, again = play(tmp_path / "run", "processes", DyingStandIn(deaths=deaths, folder=str(folder)), limits=AT_ONCE)
    assert len(list(folder.iterdir())) == len(deaths) and other.restarts >= len(deaths)
    assert again == lines and fingerprint(other) == fingerprint(one)
    assert {12, 22} <= {line["agents"]["player_0"]["version"] for line in lines}


def test_the_period_that_a_result_has_named_is_the_last_one():
    """Although no actor has begun it yet."""
    board = SharedMemory(make_roster(MATRIX, StandIn(), Settings(reproducible=True, evaluate_every=100))).board
    board.begun[:], board.evaluation.last_period[0] = 5, 7
    assert board.name_last_period() == board.periods_to_play == 7


def test_evaluations_by_a_clock_are_refused():
    with pytest.raises(SettingError, match="evaluate_every_s is not valid with reproducible or period"):
        Settings(reproducible=True, evaluate_every_s=1.0)

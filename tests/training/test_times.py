"""How the processes of a run spend their time, and what limits the run. No clock decides a test."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import motet
from motet.algorithms.dqn import DQNConfig
from motet.pace import Pace
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import ACTIVITIES, WAITS, ProcessRow, Snapshot, Wait, Work
from motet.runs.status import read_history, snapshot_from
from motet.system.memory import Segment
from motet.training import board as boards
from motet.training.board import Board
from motet.training.bottleneck import bottleneck
from motet.worlds import TreasureHunt


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves when told to."""
    made = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(boards.time, "monotonic", lambda: made.now)
    return made


def make_board(processes=3):
    return Board(processes, 1, 1, Segment(Board.layout(processes, 1, 1)))


def test_time_between_a_wait_and_its_end_is_a_wait(clock):
    board = make_board()
    pulse = board.pulse(1)
    pulse.start(7)
    clock.now += 2
    pulse.works()  # 2 s of start
    clock.now += 3
    pulse.beat()  # 3 s of work
    for _ in range(2):
        pulse.waits_for(Wait.LEARNERS)
        clock.now += 0.25
    pulse.beat()
    clock.now += 1
    pulse.works()  # nothing to end
    pulse.waits_for(Wait.PARTNER)
    clock.now += 0.5
    pulse.asks(0)  # the partner has answered
    clock.now += 1
    pulse.beat()
    spent = board.spent(1)
    assert spent[0] == 2 + 3 + 0.5 + 1 + 0.5 + 1
    assert (spent[Wait.START], spent[Wait.LEARNERS], spent[Wait.PARTNER]) == (2, 0.5, 0.5)
    assert spent.sum() == spent[0] + 3
    assert not board.spent(0).any() and not board.spent(2).any()


def test_times_continue_after_a_restart_without_the_time_in_between(clock):
    board = make_board()
    board.pulse(0).start(7)
    clock.now += 4
    board.pulse(0).beat()  # by another object: nothing but a heartbeat
    clock.now += 100  # dead
    pulse = board.pulse(0)
    pulse.start(8)
    clock.now += 1
    pulse.beat()
    assert board.spent(0)[0] == 5 and board.spent(0)[Wait.START] == 1


def test_times_of_another_node_follow_its_heartbeat(clock):
    board, spent = make_board(), np.arange(24.0)
    board.processes.heartbeat[2] = 500.0
    board.set_spent(2, spent)
    assert board.spent(2).tolist() == spent.tolist()
    assert not board.spent(0).any()


def roster(actors=1, processes=((0,),), policies=2, pace=None, once=False):
    settings = SimpleNamespace(once=once)
    return SimpleNamespace(
        actors=actors,
        processes=processes,
        worlds_per_actor=4,
        policies=[SimpleNamespace(publish_every=10, settings=settings)] * policies,
        pace=pace or Pace(0.5, 32),
    )


def told(*rows, cores=8, serial=False, state="running", **more):
    processes = [ProcessRow(f"p{i}", i, "", 0.0, 0, False, spent_s=row, shares=row) for i, row in enumerate(rows)]
    return bottleneck(Snapshot(1.0, 1, 2, 0.0, None, [], processes, state), roster(**more), cores, serial)


def test_the_bottleneck_is_the_side_that_the_other_waits_for():
    slow_learner = told({"world": 0.3, "policies": 0.1, "pace": 0.6}, {"updates": 0.95, "batches": 0.05})
    assert "learners limit" in slow_learner and "wait 60%" in slow_learner
    assert "learner_processes (now 1) or lower updates_per_step (now 0.5)" in slow_learner
    publishing = told({"world": 0.4, "pace": 0.6}, {"updates": 0.5, "publishing": 0.5})
    assert "raise publish_every (now 10)" in publishing
    alone = told({"world": 0.4, "pace": 0.6}, {"updates": 1.0}, policies=1)
    assert "learner_processes" not in alone and "updates_per_step" in alone
    ppo = told({"world": 0.4, "pace": 0.6}, {"updates": 1.0}, policies=1, once=True)
    assert "epochs" in ppo and "updates_per_step" not in ppo

    slow_world = told({"world": 0.8, "policies": 0.2}, {"updates": 0.4, "pace": 0.6})
    assert "actors limit" in slow_world and "80% in the world" in slow_world and "raise actors (now 1)" in slow_world
    slow_policy = told({"world": 0.2, "policies": 0.8}, {"updates": 0.4, "rows": 0.6})
    assert "raise worlds_per_actor (now 4)" in slow_policy


def test_the_bottleneck_of_several_processes_is_the_busiest_learner_and_the_mean_actor():
    rows = [{"world": 0.5, "pace": 0.5}, {"world": 0.9, "pace": 0.1}, {"updates": 0.2, "pace": 0.8}, {"updates": 1.0}]
    text = told(*rows, actors=2, processes=((0,), (1,)))
    assert "learners limit" in text and "wait 30%" in text and "learner_processes" not in text


def test_other_waits_than_the_pace_are_named():
    learner = {"updates": 0.5, "pace": 0.5}
    assert "isolated partner" in told({"world": 0.4, "partner": 0.6}, learner)
    assert "evaluate_every" in told({"world": 0.4, "evaluation": 0.6}, learner)
    assert "room for their rows" in told({"world": 0.4, "rows": 0.6}, learner)
    assert "publish" in told({"world": 0.4, "weights": 0.6}, learner)
    assert "raise slack" in told({"world": 0.4, "pace": 0.6}, learner, pace=Pace(1.0, 0))
    assert "2 of them share 1 core:" in told({"world": 1.0}, {"updates": 1.0}, cores=1, pace=Pace())
    assert "raise actors" in told({"world": 1.0}, {"updates": 1.0}, cores=8, pace=Pace())


def test_the_setting_that_would_balance_a_reproducible_run_is_named():
    pace = Pace(0.5, 0, period=100)
    slow_learner = told({"world": 0.4, "pace": 0.6}, {"updates": 1.0}, pace=pace)
    assert "lower updates_per_step (now 0.5) to about 0.2, with which both sides would work equally" in slow_learner
    slow_world = told({"world": 0.9, "pace": 0.1}, {"updates": 0.3, "pace": 0.7}, pace=pace)
    assert "actors limit" in slow_world and "raise updates_per_step (now 0.5) to about 1.5, with" in slow_world
    publishing = told({"world": 0.4, "pace": 0.6}, {"publishing": 1.0}, pace=pace)
    assert "raise period (now 100), since publishing takes 100%, or lower updates_per_step (now 0.5) to" in publishing
    ppo = told({"world": 0.4, "pace": 0.6}, {"updates": 1.0}, once=True, pace=pace)
    assert "epochs" in ppo and "updates_per_step" not in ppo
    turns = told({"world": 0.4, "pace": 0.6}, {"updates": 0.6, "pace": 0.4}, pace=Pace(0.5, 0, period=100, ahead=0))
    assert "since ahead is 0: actors work 40%" in turns and "set ahead to 1" in turns


def test_no_setting_is_named_that_reproducible_runs_refuse():
    pace = Pace(0.5, 0, period=100)
    waiting = told({"world": 0.4, "weights": 0.6}, {"updates": 1.0}, pace=pace)
    serial = told({"world": 0.1, "publishing": 0.9}, serial=True, pace=pace)
    for text in (waiting, serial):
        assert "raise period (now 100)" in text and "publish_every" not in text and "double_buffer" not in text


def test_nothing_is_advised_before_the_first_update():
    assert told({"world": 0.5, "policies": 0.5}, {"rows": 1.0}) == ""
    assert told({"world": 1.0}, {"updates": 0.4, "rows": 0.6}) != ""


def test_the_start_does_not_count():
    assert told({"start": 0.9, "world": 0.1}, {"updates": 1.0}) == ""
    assert told({}, {}) == "" and told({"world": 1.0}, {}) == "" and told({}, serial=True) == ""
    assert "100% in the world" in told({"start": 9.0, "world": 1.0}, {"pace": 3.0, "updates": 1.0}, state="done")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("world", "engine=processes"),
        ("policies", "worlds_per_actor"),
        ("updates", "updates_per_step (now 0.5)"),
        ("publishing", "publish_every"),
        ("disk", "checkpoint_every"),
        ("evaluation", "evaluate_every"),
    ],
)
def test_the_bottleneck_of_a_serial_run_is_what_takes_longest(name, setting):
    assert setting in told({"world": 0.1, "updates": 0.1, name: 0.7}, serial=True)


def test_a_run_tells_how_every_process_spends_its_time(tmp_path):
    config = DQNConfig(hidden=(8,), batch_size=16, min_rows=32)
    settings = motet.Settings(
        steps=1000, updates_per_step=0.5, slack=2, evaluate_every=100, evaluate_episodes=1, metrics_every_s=0.05
    )  # a run that ends within its first second otherwise writes its only line before it has waited for the disk
    motet.train(partial(TreasureHunt, agents=2), config, settings, run=tmp_path / "run")
    last = read_history(RunDirectory.open(tmp_path / "run"))[-1]
    actor, learner, evaluator = last.processes
    assert {"world", "policies"} <= actor.spent_s.keys() <= set(ACTIVITIES)
    assert {"updates", "batches", "publishing"} <= learner.spent_s.keys() and "world" not in learner.spent_s
    assert {"idle", "evaluation"} <= evaluator.spent_s.keys()
    assert last.main is not None and {"disk", "idle"} <= last.main.spent_s.keys()
    for row in (*last.processes, last.main):
        assert min(row.spent_s.values()) > 0
        assert not row.shares or abs(sum(row.shares.values()) - 1) < 0.01, "a process that has ended has none"
    assert last.bottleneck
    assert last.shared_bytes > 0 and last.main.memory_bytes > 2**20
    assert all(row.memory_bytes > 2**20 for row in last.processes), "also of processes that have ended"
    assert snapshot_from(last.as_dict()) == last


def test_a_serial_run_tells_how_its_process_spends_its_time(tmp_path):
    config = DQNConfig(hidden=(8,), batch_size=16, min_rows=32)
    settings = motet.Settings(steps=200, engine="serial", evaluate_every=100, evaluate_episodes=1, checkpoint_every=50)
    motet.train(partial(TreasureHunt, agents=2), config, settings, run=tmp_path / "run")
    last = read_history(RunDirectory.open(tmp_path / "run"))[-1]
    (row,) = last.processes
    assert {"world", "policies", "updates", "batches", "publishing", "evaluation", "disk"} <= row.spent_s.keys()
    assert last.main is None and last.bottleneck


def test_every_wait_belongs_to_an_activity():
    assert {wait.activity for wait in Wait if wait} <= {*WAITS, "evaluation"}
    assert not {int(wait) for wait in Wait} & {int(work) for work in Work}

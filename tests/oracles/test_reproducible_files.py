"""What reproducible runs write is what the serial engine writes: rows with versions, episodes, evaluations."""

from types import SimpleNamespace

import pytest
from support.stand_in import StandIn
from support.whole_run import differing, whole
from test_lockstep import HUNT
from test_reproducible import PPO, OneStep

from motet.training.episodes import EpisodeRecord, EpisodeRecorder
from motet.training.roster import make_roster
from motet.training.run import train
from motet.training.settings import Settings
from motet.training.shared import SharedMemory


def written(folder, engine, world, algorithm, **more):
    settings = {"steps": 600, "updates_per_step": 0.5, "period": 20, "keep_replay": True, **more}
    result = train(world, algorithm, Settings(engine=engine, **settings), run=folder)
    assert result.state == "done" and result.restarts == 0
    return whole(folder)


def check(tmp_path, world, algorithm, **more):
    serial, processes = (written(tmp_path / name, name, world, algorithm, **more) for name in ("serial", "processes"))
    assert differing(serial, processes) == []
    return serial["episodes.jsonl"]


@pytest.mark.parametrize(
    ("actors", "worlds", "learners"),
    [(1, 1, 1), (1, 4, 2), (2, 2, 1)],
    ids=["one of each", "four worlds", "two actors"],
)
def test_rows_and_episodes_are_those_of_the_serial_run(actors, worlds, learners, tmp_path):
    more = {"evaluate_every": 200, "evaluate_episodes": 2}
    chosen = {"actors": actors, "worlds_per_actor": worlds, "learner_processes": learners}
    lines = check(tmp_path, HUNT, StandIn(prioritised=True), **chosen, **more)
    assert [line["episode"] for line in lines] == list(range(1, len(lines) + 1)) and len(lines) >= 28
    order = [(line["round"], line["actor"], line["world"]) for line in lines]
    assert order == sorted(order) and len(set(order)) == len(order)
    assert len({version for line in lines for version in line["versions"].values()}) > 5


def test_rows_read_once_and_their_episodes_are_those_of_the_serial_run(tmp_path):
    assert len(check(tmp_path, HUNT, PPO, updates_per_step=None, actors=2)) == 30


def test_no_episode_is_missing_although_a_period_has_more_than_a_ring(tmp_path):
    """1,600 episodes in a period of each actor; a ring holds 862."""
    more = {"worlds_per_actor": 4, "period": 400, "steps": 3300, "updates_per_step": 0.05}
    lines = check(tmp_path, OneStep, StandIn(capacity=20_000), **more)
    assert len(lines) == 3300


def test_lines_wait_for_the_end_of_their_period_in_all_actors():
    shared = SharedMemory(make_roster(HUNT, StandIn(), Settings(actors=2, period=20)))
    recorder, lines = EpisodeRecorder(shared, None, 0, None), []
    recorder._file = SimpleNamespace(append=lines.extend)
    for actor, rounds in enumerate(([15, 35, 55], [18, 38])):
        for number in rounds:
            shared.episodes.writer(actor).append(EpisodeRecord(0, number, 0, [1.0] * 3, [1] * 3, [1] * 3))
    found = []
    for periods in ([2, 0], [2, 1], [3, 2]):
        shared.board.periods[:] = periods
        recorder.write(0.0)
        found.append([(line["round"], line["actor"]) for line in lines])
    assert found == [[], [(15, 0), (18, 1)], [(15, 0), (18, 1), (35, 0), (38, 1)]]

"""Every finished episode has a line in ``episodes.jsonl``, in every engine, once, or is counted."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from motet import Settings, resume, train
from motet.algorithms.dqn import DQNConfig
from motet.runs.directory import RunDirectory
from motet.runs.episodes import FIELDS, EpisodeFile, read_episodes
from motet.system.memory import Segment
from motet.training import episodes
from motet.training.episodes import EpisodeRecord, EpisodeRings
from motet.worlds import TreasureHunt
from motet.worlds.matrix import MatrixGame

QUICK = DQNConfig(hidden=(8,), batch_size=8, min_rows=16)


@pytest.fixture
def ring(monkeypatch):
    """A ring of 16 records."""
    monkeypatch.setattr(episodes, "_RING_BYTES", 1)
    roster = SimpleNamespace(actors=1, agents=[0, 1], policies=[0, 1])
    return EpisodeRings(roster, Segment(EpisodeRings.layout(roster)))


def record(number, **more):
    return EpisodeRecord(0, number, 7, [0.5, -1.25], [3, 0], [number, 1], **more)


def rounds(reader, *given):
    return [one.round for one in reader.read(*given)]


@given(st.lists(st.integers(0, 40), max_size=12))
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_ring_gives_every_record_once_or_counts_it(bursts):
    roster = SimpleNamespace(actors=1, agents=[0] * 3000, policies=[0])  # so large that the ring has 16 records
    rings = EpisodeRings(roster, Segment(EpisodeRings.layout(roster)))
    writer, reader, written = rings.writer(0), rings.reader(0), 0
    lost = 0
    for burst in bursts:
        for _ in range(burst):
            written += 1
            writer.append(record(written))
        lost += max(0, burst - 16)
        assert rounds(reader) == list(range(written - min(burst, 16) + 1, written + 1))
        assert reader.lost == lost


def test_records_are_read_as_written(ring):
    one = record(1, winner=1, opponent=-2, side=0, metrics={"treasures": 3.0})
    ring.writer(0).append(one)
    assert ring.reader(0).read() == [one]


def test_a_torn_record_is_never_read(ring):
    writer, reader = ring.writer(0), ring.reader(0)
    for number in (1, 2, 3):
        writer.append(record(number))
    memory = ring._parts(0)[0]
    at = memory[3, 40]
    memory[3, 40] ^= 1
    assert rounds(reader) == [1, 2], "the third is not complete yet"
    memory[3, 40] = at
    assert rounds(reader) == [3] and reader.lost == 0


def test_a_record_that_is_being_overwritten_is_counted(ring):
    writer, reader = ring.writer(0), ring.reader(0)
    for number in range(1, 17):
        writer.append(record(number))
    ring._parts(0)[0][1, :8] = 17  # the writer has begun the next one, in the place of the first
    assert rounds(reader) == list(range(2, 17)) and reader.lost == 1


def test_a_restarted_actor_continues_after_the_last_complete_record(ring):
    writer, reader = ring.writer(0), ring.reader(0)
    writer.append(record(1))
    ring._parts(0)[0][2, :20] = 255  # it died within the second one
    assert rounds(reader) == [1]
    ring.writer(0).append(record(2))
    assert rounds(reader) == [2] and reader.lost == 0


def test_records_of_later_rounds_wait(ring):
    writer, reader = ring.writer(0), ring.reader(0)
    for number in (1, 2, 3):
        writer.append(record(number))
    assert rounds(reader, 2) == [1, 2] and rounds(reader, 2) == [] and rounds(reader) == [3]


def test_metrics_that_do_not_fit_are_left_out(ring):
    ring.writer(0).append(record(1, metrics={f"{'long' * 50}{i}": 1.0 for i in range(20)}))
    (found,) = ring.reader(0).read()
    assert 0 < len(found.metrics) < 20 and found.returns == [0.5, -1.25]
    assert found.metrics_lost == 20 - len(found.metrics)
    ring.writer(0).append(found._replace(metrics={f"{'more' * 50}{i}": 1.0 for i in range(20)}))  # as on a cluster
    (again,) = ring.reader(0).read()[1:]
    assert again.metrics_lost == found.metrics_lost + 20 - len(again.metrics)


# ---- the file


def lines(run):
    return [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]


def timeless(run):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines(run)]


def test_a_too_large_file_is_thinned_and_marked(tmp_path):
    file = EpisodeFile(RunDirectory(tmp_path), limit_bytes=2000)
    line = {"step": 1, "seconds": 0.5, "seed": 3, "returns": {"a": 1.0}, "lengths": {"a": 2}, "versions": {"a": 1}}
    for _ in range(100):
        file.append([line])
    found = read_episodes(tmp_path)
    assert found.every == 8 and found.episode.tolist() == list(range(8, 101, 8))
    assert file.count == 100 and (tmp_path / "episodes.jsonl").stat().st_size <= 2000
    again = EpisodeFile(RunDirectory(tmp_path), limit_bytes=2000, known=40)
    again.append([line] * 20)
    assert read_episodes(tmp_path).episode.tolist() == [8, 16, 24, 32, 40, 48, 56], (
        "those after the checkpoint are gone"
    )


def hunt(tmp_path, name, **more):
    more = {"updates_per_step": 1.0, "actors": 2, "worlds_per_actor": 2, **more}
    world = partial(TreasureHunt, agents=2, turns=20)
    return train(world, QUICK, Settings(steps=400, **more), run=tmp_path / name)


def test_a_serial_run_and_lockstep_write_the_same_lines(tmp_path):
    hunt(tmp_path, "serial", engine="serial")
    hunt(tmp_path, "lockstep", slack=0)
    assert timeless(tmp_path / "serial") == timeless(tmp_path / "lockstep")
    found = read_episodes(tmp_path / "serial")
    assert found.episode.tolist() == list(range(1, len(found) + 1)) and len(found) >= 16
    assert found.step[-1] == sum(found.lengths["agent_0"]) and set(found.lengths) == {"agent_0", "agent_1"}
    assert found.team.tolist() == (found.returns["agent_0"] + found.returns["agent_1"]).tolist()
    assert len({line["seed"] for line in found.lines}) == len(found)
    assert {(line["actor"], line["world"]) for line in found.lines} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert all(line.keys() <= FIELDS.keys() for line in found.lines)


def test_a_seed_of_a_line_gives_the_episode_again(tmp_path):
    hunt(tmp_path, "run", engine="serial")
    first = read_episodes(tmp_path / "run").lines[0]
    seen = []

    class Same(TreasureHunt):
        def reset(self, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed, options)

    again = partial(Same, agents=2, turns=20)
    settings = Settings(steps=400, engine="serial", updates_per_step=1.0, actors=2, worlds_per_actor=2)
    train(again, QUICK, settings, run=tmp_path / "again")
    assert first["seed"] in seen


def test_a_resumed_run_has_the_lines_of_the_uninterrupted_one(tmp_path):
    exact = {"engine": "serial", "keep_replay": True, "checkpoint_every": 150, "actors": 1}
    hunt(tmp_path, "whole", **exact)
    hunt(tmp_path, "parts", **exact)
    resume(tmp_path / "parts", checkpoint=RunDirectory(tmp_path / "parts").steps()[0])
    assert len(lines(tmp_path / "parts")) > len(lines(tmp_path / "whole")), "both sessions are in the file"
    whole, parts = (read_episodes(tmp_path / name) for name in ("whole", "parts"))
    strip = lambda found: [{**line, "seconds": 0} for line in found.lines]  # noqa: E731
    assert strip(whole) == strip(parts)
    assert (np.diff(parts.seconds) >= 0).all()


def test_episodes_can_be_turned_off(tmp_path):
    hunt(tmp_path, "run", engine="serial", episodes_mb=0)
    assert not (tmp_path / "run" / "episodes.jsonl").exists() and len(read_episodes(tmp_path / "run")) == 0


class Decided(MatrixGame):
    """Repeated pennies that say who wins."""

    won_by = "total"


def test_the_winner_of_a_game_is_recorded(tmp_path):
    train(Decided, QUICK, Settings(steps=200, engine="serial"), run=tmp_path / "run")
    found = read_episodes(tmp_path / "run")
    one, other = found.lines[0]["returns"]
    for line, winner in zip(found.lines, found.winner, strict=True):
        ahead = line["returns"][one] - line["returns"][other]
        assert winner == ("draw" if ahead == 0 else one if ahead > 0 else other)


def test_self_play_tells_opponent_side_and_winner(tmp_path):
    settings = Settings(steps=400, engine="serial", self_play=True)
    train(Decided, QUICK, settings, run=tmp_path / "run")
    found = read_episodes(tmp_path / "run")
    assert len(found) and set(found.returns) == {"player"}
    assert {line["side"] for line in found.lines} == set(Decided().possible_agents)
    assert all(line["opponent"] == "newest" or line["opponent"].startswith("snapshot") for line in found.lines)
    for line in found.lines:
        assert line["winner"] in {*Decided().possible_agents, "draw"}


def test_partners_are_in_the_lines(tmp_path):
    world = partial(TreasureHunt, agents=2, turns=20)
    agents = {"agent_0": QUICK, "agent_1": "random"}
    train(world, agents, Settings(steps=100, engine="serial"), run=tmp_path / "run")
    found = read_episodes(tmp_path / "run")
    assert set(found.returns) == {"agent_0", "agent_1"} and set(found.versions) == {"agent_0"}


def test_episodes_that_did_not_fit_are_counted_and_shown(tmp_path, monkeypatch):
    from motet.runs.display import rows_gone
    from motet.training import recorder

    monkeypatch.setattr(episodes, "_RING_BYTES", 1)
    monkeypatch.setattr(recorder, "_EPISODES_S", 1e9)
    seen = []
    world = partial(TreasureHunt, agents=2, turns=5)
    settings = Settings(steps=200, engine="serial", checkpoint_every=200)
    train(world, QUICK, settings, run=tmp_path / "run", on_update=seen.append)
    played, logged = seen[-1].agents[0].episodes, len(lines(tmp_path / "run"))
    assert logged == 16 and seen[-1].episodes_lost == played - 16 > 0
    assert f"{played - 16:,} episodes not logged" in rows_gone(seen[-1])

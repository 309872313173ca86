"""What earlier versions of motet wrote is read, resumed and continued by this one (tests/fixtures/before_rooms)."""

import json
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import motet
from motet.cli import main
from motet.plan import Graph, Robot, Solution, best_response, solve
from motet.reports.groups import group
from motet.runs.checkpoint import read_arrays, read_notes
from motet.runs.config import rebuild_world
from motet.runs.directory import RunDirectory
from motet.runs.history import read_run
from motet.system import imports
from motet.worlds import MatrixGame, Rooms

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "before_rooms" / "files.tar.gz"
RUNS = {"hunt": 120, "matrix": 121, "evaluated": 200, "self_play": 120}
GAMES = 24


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A copy of all the files, in which the test stands: a tournament names its runs by relative paths."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def world_of(run):
    return rebuild_world(RunDirectory.open(run).config()["world"])


# ---- runs


@pytest.mark.parametrize("run", ["hunt", "matrix"])
def test_resumed_run_ends_as_the_uninterrupted_one_did(earlier, run):
    said = []
    result = motet.resume(earlier / run, steps=240 - RUNS[run], on_message=said.append)
    assert result.state == "done" and not any("motet 0" in line for line in said)
    whole = earlier / f"{run}_whole.checkpoint"
    for name, stem in read_notes(whole)["files"].items():
        expected = read_arrays(whole / f"{stem}.safetensors")
        for part in ("counters", "random", "reader", "stage"):  # which rows were drawn, by which numbers
            np.testing.assert_array_equal(result.agents[name][part], expected[part], err_msg=f"{name} {part}")
        # Bit for bit only with the processor and the libraries that wrote it.
        np.testing.assert_allclose(result.agents[name]["state"], expected["state"], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("run", ["evaluated", "self_play"])
def test_run_is_continued(earlier, run):
    lines = (earlier / run / "evaluation.jsonl").read_text().count("\n")
    settings = json.loads((earlier / run / "config.json").read_text())
    settings["settings"]["engine"] = "serial"
    (earlier / run / "config.json").write_text(json.dumps(settings))
    result = motet.resume(earlier / run, steps=70)
    assert result.state == "done" and result.steps >= RUNS[run] + 70
    assert (earlier / run / "evaluation.jsonl").read_text().count("\n") > lines


def test_league_is_continued_with_its_snapshots(earlier):
    motet.resume(earlier / "self_play", steps=70)
    kept = {int(folder.name) for folder in (earlier / "self_play" / "league").iterdir()}
    assert 120 in kept and max(kept) > 120, "the pool holds an old snapshot and a new one"


@pytest.mark.parametrize("run", RUNS)
def test_policies_of_a_run_play(earlier, run):
    policies = motet.load_policies(earlier / run)
    result = motet.evaluate(world_of(earlier / run), run, episodes=2, jobs=1)
    assert len(result.episodes) == 2 and not result.failed() and set(policies) == set(result.agents)


@pytest.mark.parametrize("run", ["evaluated", "self_play"])
def test_best_policies_play_and_keep_their_score(earlier, run, capsys):
    assert main(["eval", run, "-p", f"{run}/best", "--episodes", "2", "--jobs", "1"]) == 0
    assert f"{run}@best" in capsys.readouterr().out
    scores = [json.loads(line)["score"] for line in (earlier / run / "evaluation.jsonl").read_text().splitlines()]
    assert RunDirectory.open(earlier / run).best_score() == max(scores)


def test_snapshot_of_a_league_plays(earlier):
    result = motet.evaluate("hockey", ["self_play/league/000000000060", "hockey_weak"], episodes=1, jobs=1)
    assert not result.failed()


@pytest.mark.parametrize("run", RUNS)
def test_status_is_shown(earlier, run, capsys):
    assert main(["status", run]) == 0
    out = capsys.readouterr().out
    assert f"{run}: done" in out and "checkpoints at steps" in out


def test_report_shows_all_runs(earlier, capsys):
    assert main(["report", *RUNS, "--out", "report.html"]) == 0
    assert not capsys.readouterr().err
    page = (earlier / "report.html").read_text()
    assert all(run in page for run in RUNS)


def test_report_groups_a_resumed_run_with_one_of_the_same_settings(earlier):
    """A resumed run's settings are written with today's paths; that alone is no difference."""
    steps = json.loads((earlier / "hunt" / "config.json").read_text())["settings"]["steps"]
    (earlier / "hunt").rename(earlier / "first")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(earlier, filter="data")
    motet.resume(earlier / "hunt", steps=30)
    config = json.loads((earlier / "hunt" / "config.json").read_text())
    assert config["settings"]["class"] != "motet.train:Settings", "otherwise there is nothing to test"
    config["settings"]["steps"] = steps
    (earlier / "hunt" / "config.json").write_text(json.dumps(config))
    assert len(group([read_run(earlier / "first"), read_run(earlier / "hunt")])) == 1


# ---- tournaments


POLICIES = ["tit_for_tat", "random", "motet._scripted:constant,kw.action=1,name=defector", "matrix"]


def test_tournament_is_continued_to_the_same_end(earlier):
    world, said = partial(MatrixGame, game="prisoners_dilemma", turns=5), []
    result = motet.tournament(world, POLICIES, rounds=2, dir="tournament", on_message=said.append)
    assert said == [f"5 of {GAMES} games were played before"]
    found, expected = json.loads(result.deterministic()), json.loads((earlier / "tournament.json").read_text())
    for mine, theirs in zip(found["ratings"], expected["ratings"], strict=True):
        for name in ("rating", "low", "high"):  # solved by LAPACK, whose last bits depend on the CPU
            assert mine.pop(name) == pytest.approx(theirs.pop(name), rel=1e-9)
    assert found == expected
    again = motet.tournament(world, POLICIES, rounds=2, dir="tournament", on_message=said.append)
    assert said[1:] == [f"{GAMES} of {GAMES} games were played before"] and again == result


def test_tournament_is_continued_if_its_world_has_moved(earlier, monkeypatch):
    header = json.loads((earlier / "tournament" / "tournament.json").read_text())
    header["world"]["path"] = "motet.worlds._elsewhere:Matrix"
    (earlier / "tournament" / "tournament.json").write_text(json.dumps(header))
    world = partial(MatrixGame, game="prisoners_dilemma", turns=5)
    with pytest.raises(motet.MotetError, match="holds another tournament: world"):
        motet.tournament(world, POLICIES, rounds=2, dir="tournament")
    monkeypatch.setitem(imports._MOVED, "motet.worlds._elsewhere:Matrix", "motet.worlds.matrix:MatrixGame")
    assert len(motet.tournament(world, POLICIES, rounds=2, dir="tournament").games) == GAMES


# ---- plans


def test_plan_is_loaded_and_says_the_same(earlier):
    solution, expected = Solution.load(earlier / "plan"), json.loads((earlier / "plan.json").read_text())
    start = solution.graph.states[0]
    for human, power in expected["power"].items():
        assert solution.power(start, int(human)) == power
    for agent, shares in expected["policy"].items():
        assert solution.policy(start, agent).tolist() == shares


def test_plan_plays(earlier):
    agents = Solution.load(earlier / "plan").graph.agents
    policies = {agent: f"plan,kw.agent={agent},name={agent}" for agent in agents}
    result = motet.evaluate(partial(Rooms, map="closet", horizon=4), policies, episodes=2, jobs=1)
    assert len(result.episodes) == 2 and not result.failed()


def test_graph_is_loaded_and_solved(earlier):
    graph, solution = Graph.load(earlier / "graph"), Solution.load(earlier / "plan")
    rooms = Rooms("closet", horizon=4)
    again = solve(graph, {0: rooms.goals(0)}, robot=Robot(beta=10.0))
    for name, array in solution.arrays.items():
        np.testing.assert_allclose(again.arrays[name], array, rtol=1e-9, err_msg=name)
    assert np.isfinite(best_response(graph, graph.agents[0]).value).all()

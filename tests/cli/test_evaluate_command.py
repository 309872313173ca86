"""``motet eval`` and ``motet tournament``, as users call them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support import TESTS, without_torch
from support import playing_policies as playing

import motet
from motet.cli import command as cli
from motet.cli.play import yaml
from motet.system.child import Child
from motet.system.fork_server import host_children
from motet.worlds import MatrixGame

HUNT = ["eval", "treasure_hunt", "--agents", "3", "--world.size", "9", "--world.turns", "5", "-n", "4"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


def test_eval_writes_table_page_file_and_video(tmp_path, capsys):
    flags = ["-p", "random", "-p", "forager,proportion=2", "--seed", "3"]
    files = ["--html", "report.html", "--out", "result.json", "--video", "episode.gif", "--film", "2"]
    assert cli.main([*HUNT, *flags, *files]) == 0
    shown = capsys.readouterr().out
    for word in ("forager", "all seats", "by seat", "agent_2", "4 episodes, seed 3", "written to report.html"):
        assert word in shown
    plain = json.loads(Path("result.json").read_text())
    assert plain["format"] == 1
    assert [one["name"] for one in plain["result"]["policies"]] == ["random", "forager"]
    assert plain["result"]["world"]["settings"] == {"agents": 3, "size": 9, "turns": 5}
    page = Path("report.html").read_text()
    assert "Episode 2, 15 turns" in page
    assert Path("episode.gif").read_bytes().startswith(b"GIF8")


def test_one_policy_is_shown_by_seat_too(capsys):
    """In a game of two all that is won is lost: only the seats tell anything."""
    given = ["eval", "matrix", "--world.game", "matching_pennies", "--world.turns", "3", "-n", "1"]
    assert cli.main([*given, "-p", "constant,kw.action=0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("seat"))
    assert [line.split()[:2] for line in lines[at + 1 : at + 3]] == [["player_0", "3"], ["player_1", "-3"]]
    assert lines[-1].startswith("1 episode, seed 0")


@pytest.mark.parametrize("policies", [["random"], ["random", "noop"]], ids=["one", "two"])
def test_of_many_seats_the_first_are_shown(policies, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    given = ["eval", "treasure_hunt", "--agents", "15", "--world.turns", "2", "-n", "2"]
    assert cli.main([*given, *(token for name in policies for token in ("-p", name))]) == 0
    shown = capsys.readouterr().out
    assert "agent_11" in shown and "agent_12" not in shown
    assert "and 3 more seats" in shown


def test_json_and_yaml_hold_the_same_and_jobs_do_not_matter(capsys):
    loader = pytest.importorskip("yaml")
    texts = {}
    for form, jobs in (("json", 1), ("yaml", 2)):
        assert cli.main([*HUNT, "-p", "random", "--format", form, "--jobs", str(jobs)]) == 0
        texts[form] = capsys.readouterr().out
    first, second = json.loads(texts["json"]), loader.safe_load(texts["yaml"])
    assert json.dumps(first["result"]) == json.dumps(second["result"])
    assert second["measured"]["jobs"] == 2
    odd = {"a: b": [[], {}, [1.5, None, True], [[2]]], "#": "x\n'\"", "1": {"deep": {"er": [{"k": 1}]}}}
    assert loader.safe_load(yaml(odd)) == odd


def test_a_run_is_a_world_and_its_policies(capsys):
    from motet.algorithms import DQNConfig

    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=32, capacity=500)
    motet.train(partial(MatrixGame, turns=7), config, motet.Settings(steps=40, engine="serial"), run="mine")
    assert cli.main(["eval", "mine", "--episodes", "2", "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["episodes"][0]["decisions"] == [7, 7]
    assert result["policies"][0]["source"] == "mine"
    given = ["eval", "mine", "-p", "mine,agent=player_0", "-p", "tit_for_tat", "-n", "2", "--isolate"]
    assert cli.main([*given, "--limits.decision-s", "20"]) == 0
    assert "mine:player_0" in capsys.readouterr().out


def test_a_plan_is_a_policy(capsys):
    assert cli.main(["plan", "rooms", "--map", "closet", "--out", "closet", "--workers", "1"]) == 0
    capsys.readouterr()
    given = ["eval", "rooms", "--world.map", "closet", "-p", 'closet,seat=human_0,kw.goal="1,2"']
    from motet.worlds import Rooms

    for agent in Rooms("closet").possible_agents[1:]:
        given += ["-p", f"closet,seat={agent}"]
    assert cli.main([*given, "-n", "2", "--format", "json", "--isolate"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["failures"] == {}


def test_a_module_beside_the_user_is_found_and_its_failures_are_shown(capsys):
    Path("mine_alone.py").write_text(
        "class Policy:\n"
        "    def __init__(self, agent, depth, data): self.depth = depth; open(data)\n"
        "    def reset(self, seed): pass\n"
        "    def act(self, observation, mask=None): return 0 if self.depth else 1 / 0\n"
    )
    Path("weights").write_text("")
    given = ["eval", "matrix", "-p", "mine_alone:Policy,data=weights,kw.depth=0", "-p", "random", "-n", "12"]
    assert cli.main([*given, "--isolate", "--max-failures", "3"]) == 1
    shown, err = capsys.readouterr()
    assert "ZeroDivisionError" in shown
    assert "failed in every episode: ZeroDivisionError" in err
    assert "failed too often and was removed after episode" in shown
    assert "mine_alone" not in sys.modules


@pytest.mark.parametrize(("name", "why"), [("e.txt", "video must end in .gif or"), ("e.mp4", "which is not installed")])
def test_the_ending_of_a_video_is_checked_before_the_work(name, why, monkeypatch, capsys):
    monkeypatch.setattr("motet.cli.eval.evaluate", None)  # would be called
    monkeypatch.setattr("motet.world.film.importlib.util.find_spec", lambda name: None)
    assert cli.main(["eval", "matrix", "-p", "random", "--video", name]) == 2
    assert why in capsys.readouterr().err


def test_mistakes_get_clear_errors(capsys):
    for given, why in (
        (["eval"], "or 'module:attribute', got none"),
        (["eval", "matrix"], "policy must be given at least once"),
        (
            ["eval", "nowhere", "-p", "random"],
            "'module:attribute', got 'nowhere', and no run directory has that name",
        ),
        (["eval", "runs/nowhere"], "'runs/nowhere', and no run directory has that name"),
        (["eval", "."], "'.', which is a directory but not a run"),
        (["eval", "matrix", "-p", "random", "-n", "1", "--film", "1"], "film must be 0, the only episode"),
        (["eval", "matrix", "-p", "nobody"], "an existing run directory"),
        (["eval", "matrix", "-p", "random", "--film", "200"], "film must be episodes from 0 to 99, got 200"),
        (["eval", "matrix", "-p", "random", "--limits.decision-s", "1"], "limits are only valid with isolate=True"),
        (["tournament", "matrix", "-p", "random"], "policies must be two or more, got only random"),
        (["eval", "matrix", "-p", "random", "-n", "1", "--out", "no/such/folder"], "cannot be written"),
    ):
        assert cli.main(given) == 2, given
        assert why in capsys.readouterr().err, given


def test_a_run_of_other_agents_says_what_can_be_typed(capsys):
    from motet.algorithms import DQNConfig

    config = DQNConfig(hidden=(8,), batch_size=8, min_rows=32, capacity=500)
    motet.train(partial(MatrixGame, turns=7), config, motet.Settings(steps=40, engine="serial"), run="runs/mine")
    assert cli.main(["eval", "treasure_hunt", "-p", "runs/mine"]) == 2
    assert "only for player_0, player_1; choose one of them, for example runs/mine,agent=player_0" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupted_tournament_says_how_to_continue(kept, monkeypatch, capsys):
    from motet.cli import tournament

    def interrupted(*given, **more):
        return replace(motet.tournament("matrix", ["random", "noop"], rounds=1), partial=True)

    monkeypatch.setattr(tournament, "tournament", interrupted)
    given = ["tournament", "matrix", "-p", "random", "-p", "noop"]
    assert cli.main([*given, "--dir", "cup"] if kept else given) == 130
    shown = capsys.readouterr().out
    assert ("the same command continues from there" in shown) == kept
    assert ("use --dir to continue" in shown) == (not kept)


def test_the_same_command_continues_a_tournament(capsys):
    given = ["tournament", "matrix", "--world.turns", "5", "-p", "tit_for_tat", "-p", "random"]
    given += ["-p", "constant,kw.action=1,name=defector", "--rounds", "2", "--dir", "cup"]
    assert cli.main(given) == 0
    first = capsys.readouterr()
    assert "defector" in first.out
    assert "win rate against" in first.out
    assert cli.main([*given, "--jobs", "2", "--html", "cup.html", "--format", "json"]) == 0
    second = capsys.readouterr()
    assert "12 of 12 games were played before" in second.err
    assert len(json.loads(second.out)["result"]["games"]) == 12
    assert "Cross table" in Path("cup.html").read_text()


@pytest.mark.parametrize(("send", "jobs"), [(os.kill, 1), (os.killpg, 2)], ids=["Ctrl-C", "SIGTERM for all"])
def test_an_interrupted_evaluation_writes_what_there_is(tmp_path, send, jobs):
    Path("slow_world.py").write_text(
        "from pathlib import Path\n"
        "from support import playing_policies\n"
        "class Duet(playing_policies.Duet):\n"
        "    count = 0\n"
        "    def reset(self, seed=None, options=None):\n"
        "        self.count += 1\n"
        "        if self.count == 20: Path('begun').touch()\n"
        "        return super().reset(seed)\n"
    )
    policy = ["-p", "support.playing_policies:Slow", "-n", "1000000", "--jobs", str(jobs)]
    files = ["--out", "out.json", "--html", "a.html"]
    child = subprocess.Popen(
        [sys.executable, "-m", "motet.cli", "eval", "slow_world:Duet", *policy, *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=without_torch([TESTS, tmp_path]),
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not Path("begun").exists():
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.05)
    send(child.pid, signal.SIGINT if send is os.kill else signal.SIGTERM)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130 and "partial: " in out and "Traceback" not in err, out + err
    assert json.loads(Path("out.json").read_text())["result"]["partial"] is True
    assert "Interrupted after" in Path("a.html").read_text()


def hosts(path):
    host_children()
    children = [Child(f"grandchild-{i}", time.sleep, (100,)) for i in range(3)]
    Path(path).write_text(" ".join(str(child.pid) for child in children))
    time.sleep(100)


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes there")
def test_a_child_that_dies_takes_its_own_children_along(tmp_path):
    target = tmp_path / "pids"
    child = Child("host", hosts, (str(target),))
    deadline = time.monotonic() + 60
    while not (target.exists() and len(target.read_text().split()) == 3):
        assert time.monotonic() < deadline
        assert child.exit is None
        time.sleep(0.02)
    pids = target.read_text().split()
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    child.kill()
    child.close()
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_duet_keeps_the_contract_of_worlds():
    from motet.testing import check_world

    check_world(playing.Duet)


class Loud(playing.Counting):
    def act(self, observation, mask=None):
        print("listen")  # noqa: T201
        os.write(1, b"to me\n")
        return super().act(observation, mask)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_output_of_policies_is_not_part_of_the_result(jobs):
    command = [sys.executable, "-m", "motet.cli", "eval", "treasure_hunt", "-p", "test_evaluate_command:Loud"]
    done = subprocess.run(
        [*command, "-n", "2", "--world.turns", "5", "--jobs", jobs, "--format", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=without_torch([TESTS / "cli", *sys.path]),
    )
    assert len(json.loads(done.stdout)["result"]["episodes"]) == 2
    assert "listen" in done.stderr and "to me" in done.stderr


@pytest.mark.parametrize(
    ("policy", "why"),
    [("nomod:X", "there is no module 'nomod'"), ("random,kw.foo=1", "foo"), ("support.playing_policies:Nope", "Nope")],
)
@pytest.mark.parametrize("isolate", [[], ["--isolate"]], ids=["here", "isolated"])
def test_a_policy_that_cannot_be_made_is_an_error(policy, why, isolate, capsys):
    assert cli.main([*HUNT, "-p", policy, "-p", "noop", *isolate]) == 1
    out, err = capsys.readouterr()
    assert "could not be created and never played: " in err and why in err
    assert "4 episodes" in out and "noop could" not in err


@pytest.mark.parametrize("isolate", [[], ["--isolate"]], ids=["here", "isolated"])
def test_a_policy_that_cannot_be_made_is_an_error_of_a_tournament_too(isolate, capsys):
    given = ["tournament", "hockey", "--world.turns", "5", "--rounds", "1", "--dir", "cup"]
    given += ["-p", "hockey_weak", "-p", "tit_for_tat", *isolate]
    assert cli.main(given) == 1
    out, err = capsys.readouterr()
    assert "error: tit_for_tat could not be created and never played: AttributeError" in err
    assert "hockey_weak could" not in err
    assert re.search(r"tit_for_tat +start +2 +0 +0 +AttributeError", out)
    assert cli.main(given) == 1  # it goes on, and nothing has become better
    assert "error: tit_for_tat could not be created and never played: start" in capsys.readouterr().err


class Falters:
    """Raises in some episodes or in all, on every seat or on one."""

    def __init__(self, agent, seeds=2, seat=""):
        self.seeds, self.fails = seeds, seat in ("", agent)

    def reset(self, seed):
        self.bad = self.fails and seed % self.seeds == 0

    def act(self, observation, mask=None):
        return 1 / 0 if self.bad else 0


@pytest.mark.parametrize("stand_in", ["noop", "forfeit"])
@pytest.mark.parametrize(("options", "code"), [("", 0), (",kw.seat=player_0,kw.seeds=1", 0), (",kw.seeds=1", 1)])
def test_a_policy_that_fails_on_every_seat_is_an_error(options, code, stand_in, capsys):
    if stand_in == "forfeit" and "seat" in options:
        code = 1  # no episode of it counts
    given = ["eval", "matrix", "--world.turns", "3", "-n", "8", "-p", f"test_evaluate_command:Falters{options}"]
    assert cli.main([*given, "--stand-in", stand_in, "--max-failures", "100"]) == code
    out, err = capsys.readouterr()
    assert "ZeroDivisionError" in out
    assert ("Falters failed in every episode: ZeroDivisionError" in err) == (code == 1)


def test_a_plan_of_another_map_is_an_error(capsys):
    assert cli.main(["plan", "rooms", "--map", "freeing", "--horizon", "3", "--out", "freeing"]) == 0
    assert cli.main(["eval", "rooms", "--world.map", "closet", "-p", "freeing", "-n", "2"]) == 1
    assert "error: freeing failed in every episode: SettingError: state" in capsys.readouterr().err


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_has_fewer_columns_and_names_are_whole(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main([*HUNT, "-p", "random", "-p", "forager"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["policy", "random", "forager", "all"]
    assert max(map(len, lines[:4])) <= width and "…" not in "".join(lines[:4])


def test_a_plan_plays_in_the_world_it_was_made_for(capsys):
    """The world comes as a class that has what a model has; it is made all the same."""
    assert cli.main(["plan", "rooms", "--out", "plan"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", "rooms", "-p", "plan", "-n", "2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["failures"] == {}

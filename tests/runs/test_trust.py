"""Runs of this user need no trust. A run directory from somebody else needs it, whatever it contains."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from motet.cli import main
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.runs.directory import RunDirectory
from motet.runs.trust import foreign_code, is_own, make_importable, remember, state_directory
from motet.training.run import resume, train
from motet.training.settings import Settings

TINY = ["--engine", "serial", "--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]
CONFIG = {"format": 1, "world": {"path": "mine:make", "settings": {"size": 5}}, "agents": {}}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """A state directory and a place to work for each test, as a user has them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "state" / "motet" / "runs"


@pytest.fixture
def run(tmp_path):
    """A recorded run."""
    directory = RunDirectory.prepare(tmp_path / "run").begin(CONFIG)
    assert is_own(directory.path, directory.config())
    return directory


def own(directory):
    return is_own(directory.path, directory.config())


def world_file(folder, name, text="MatrixGame"):
    Path(folder, f"{name}.py").write_text(
        f"from motet.worlds import {text}\ndef make(turns: int = 5):\n    return {text}(turns=turns)\n"
    )


# What counts


def test_a_run_is_own_under_every_name_of_its_path(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(run.path)
    assert is_own(Path("run"), run.config()) and is_own(tmp_path / "link", run.config())


def test_a_copy_or_a_moved_run_is_not(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "copy")
    assert not own(RunDirectory(tmp_path / "copy"))
    run.path.rename(tmp_path / "moved")
    assert not own(RunDirectory(tmp_path / "moved"))


def test_a_config_that_something_else_changed_is_not(run):
    changed = run.config()
    changed["world"]["settings"]["size"] = 6
    (run.path / "config.json").write_text(json.dumps(changed))
    assert not own(run)


def test_the_layout_of_the_file_does_not_matter(run):
    (run.path / "config.json").write_text(json.dumps(dict(reversed(run.config().items()))))
    assert own(run)


def test_a_record_that_is_sent_with_a_run_has_no_effect(run, state, tmp_path):
    (record,) = state.iterdir()
    sent = tmp_path / "sent"
    RunDirectory.prepare(sent).begin({**CONFIG, "world": {"path": "evil:make", "settings": {}}})
    (forged,) = set(state.iterdir()) - {record}
    for name in (forged.name, "trust.json", ".motet/runs/" + forged.name, "state/motet/runs/" + forged.name):
        (sent / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(forged, sent / name)
    forged.unlink()
    assert not own(RunDirectory(sent))


@pytest.mark.parametrize("where", ["record", "folder", "above"])
def test_a_record_that_others_can_write_does_not_count(run, state, where):
    (record,) = state.iterdir()
    path = {"record": record, "folder": state, "above": state.parent}[where]
    for bits in (0o020, 0o002):
        before = path.stat().st_mode
        path.chmod(before | bits)
        assert not own(run)
        path.chmod(before)
    assert own(run)


def test_a_record_that_is_a_link_does_not_count(run, state, tmp_path):
    (record,) = state.iterdir()
    record.rename(tmp_path / "elsewhere.json")
    record.symlink_to(tmp_path / "elsewhere.json")
    assert not own(run)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_a_record_of_another_user_does_not_count(run, state):
    (record,) = state.iterdir()
    os.chown(record, 12345, 12345)
    assert not own(run)


@pytest.mark.parametrize("text", ["", "[]", "{}", "not JSON", '{"run": 1, "config": null}'])
def test_a_damaged_record_does_not_count(run, state, text):
    (record,) = state.iterdir()
    record.write_text(text)
    assert not own(run)


def test_only_the_user_can_read_and_write_the_record(run, state):
    old = os.umask(0)
    try:
        shutil.rmtree(state.parent)
        remember(run.path, run.config())
    finally:
        os.umask(old)
    (record,) = state.iterdir()
    assert record.stat().st_mode & 0o777 == 0o600 and state.stat().st_mode & 0o777 == 0o700 and own(run)


def test_a_state_directory_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert not own(RunDirectory.prepare(tmp_path / "other").begin(CONFIG))


def test_the_state_directory_is_that_of_the_xdg_specification(monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "relative/path")
    monkeypatch.setenv("HOME", "/home/ada")
    assert state_directory() == Path("/home/ada/.local/state/motet")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_directory() == Path("/home/ada/.local/state/motet")


def test_runs_of_shipped_code_are_not_recorded(state, tmp_path):
    train("matrix", "dqn", Settings(steps=20, engine="serial"), run=tmp_path / "shipped")
    assert not state.exists()


def test_all_code_outside_of_motet_is_found():
    config = {
        "world": {"path": "a:make", "settings": {"inner": {"class": "b:C"}}},
        "agents": {"x": {"class": "c:Config", "epsilon": {"class": "motet.schedule:Linear"}}},
        "settings": {"class": "motet.training.settings:Settings", "league": {"anchors": ["weak", "d:make"]}},
    }
    assert foreign_code(config) == ["a:make", "b:C", "c:Config", "d:make"]
    assert foreign_code({"world": {"path": "motetevil:make"}}) == ["motetevil:make"]


# Commands


def test_commands_need_no_trust_for_own_runs(tmp_path, capsys):
    world_file(".", "own_world_a")
    assert main(["train", "own_world_a:make", "--steps", "40", "--run", "mine", *TINY]) == 0
    assert "--trust" not in capsys.readouterr().out
    for command in (["resume", "mine", "--steps", "10"], ["eval", "mine", "-p", "mine", "-n", "1"]):
        assert main(command) == 0
    assert main(["resume", "mine", "--steps", "10"]) == 0  # the first resume has changed config.json
    assert set(load_policies("mine")) == {"player_0", "player_1"}
    shutil.copytree("mine", "sent")
    for command in (["resume", "sent", "--steps", "10"], ["eval", "sent", "-p", "mine", "-n", "1"]):
        capsys.readouterr()
        assert main(command) == 2 and "--trust" in capsys.readouterr().err


def test_the_code_of_an_own_run_comes_from_where_it_was(tmp_path, monkeypatch, capsys):
    world_file(".", "own_world_b")
    assert main(["train", "own_world_b:make", "--steps", "20", "--run", "mine", *TINY]) == 0
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "own_world_b.py").write_text("raise SystemExit('the wrong file was imported')")
    monkeypatch.chdir(tmp_path / "downloads")
    config = RunDirectory.open(tmp_path / "work" / "mine").config()
    for folder in (str(tmp_path / "work"), str(tmp_path / "downloads")):
        while folder in sys.path:
            sys.path.remove(folder)
    del sys.modules["own_world_b"]
    assert main(["resume", "../work/mine", "--steps", "10"]) == 0
    sys.path.remove(str(tmp_path / "work"))
    del sys.modules["own_world_b"]
    assert main(["eval", "../work/mine", "-p", "random", "-n", "1"]) == 0
    assert not make_importable(tmp_path / "downloads", config)


def test_anchors_of_a_sent_run_are_not_imported(tmp_path, monkeypatch):
    Path("evil_anchor.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(): ...\n")
    monkeypatch.syspath_prepend(os.getcwd())
    from motet.training import League

    settings = Settings(steps=40, engine="serial", self_play=True, league=League(anchors=()))
    train("matrix", "dqn", settings, run="fair")
    config = RunDirectory("fair").config()
    config["settings"]["league"]["anchors"] = ["evil_anchor:make"]
    RunDirectory("fair").write_json("config.json", config)
    with pytest.raises(SettingError, match=r"'evil_anchor:make' is not part of motet.*--trust"):
        resume("fair", steps=10)
    assert not (tmp_path / "ran").exists()


# What resume() was given


def test_another_world_given_to_resume_is_written_down(tmp_path, monkeypatch):
    from motet.worlds import MatrixGame

    world_file(".", "own_world_c")
    monkeypatch.syspath_prepend(os.getcwd())
    train(lambda: MatrixGame(turns=5), "dqn", Settings(steps=20, engine="serial"), run="mine")
    assert RunDirectory("mine").config()["world"]["path"] is None
    resume("mine", steps=10, world="own_world_c:make")
    assert RunDirectory("mine").config()["world"] == {"path": "own_world_c:make", "settings": {}}
    resume("mine", steps=10)
    before = RunDirectory("mine").config()
    resume("mine", steps=10, algorithm=dict.fromkeys(before["agents"], "dqn"))
    assert RunDirectory("mine").config()["agents"] == before["agents"]

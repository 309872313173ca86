import contextlib
import functools
import json
import math
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stand_in import StandIn

from motet.cli import main
from motet.errors import CorruptionError, SettingError, StorageError
from motet.policies.entries import load_policies, read_weights
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.plain import decode, encode
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import TreasureHunt

HUNT = functools.partial(TreasureHunt, agents=2, size=7, turns=10)


def make(step=5, scale=1.0):
    agents = {"a": {"state": np.arange(4, dtype=np.float32) * scale, "counters": np.array([step])}}
    return Checkpoint(step, agents, {"worlds": [(1, b"x", 2**100)]}, {"a": {"lane0": np.zeros(64, np.uint8)}})


def test_checkpoints_are_loaded_as_saved(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({"world": "hunt"})
    run.save(make())
    found = RunDirectory.open(tmp_path / "run").load()
    assert (found.step, found.notes) == (5, {"worlds": [(1, b"x", 2**100)]})
    np.testing.assert_array_equal(found.agents["a"]["state"], make().agents["a"]["state"])
    assert found.replay["a"]["lane0"].shape == (64,)
    assert run.config()["world"] == "hunt"


def test_only_the_newest_are_kept_and_none_is_half_written(tmp_path, monkeypatch):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    for step in (1, 2, 3):
        run.save(make(step))
    assert run.steps() == [2, 3]

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        run.save(make(4))
    monkeypatch.undo()
    assert run.steps() == [2, 3]
    assert not [p for p in run.checkpoints.iterdir() if p.name.startswith(".")]
    assert run.load().step == 3


def test_the_best_takes_the_place_of_the_former_best(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    run.save_best(make(1))
    run.save_best(make(2, scale=3.0))
    assert json.loads((run.path / "best" / "checkpoint.json").read_text())["step"] == 2
    assert sorted(p.name for p in run.path.iterdir()) == ["best", "checkpoints", "config.json", "logs"]


def test_a_resumed_run_knows_the_best_score(tmp_path):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    assert run.best_score() == -math.inf
    run.save_best(Checkpoint(5, make(5).agents, {"score": 12.5}))
    assert RunDirectory(run.path).best_score() == 12.5
    (run.path / "best" / "checkpoint.json").write_text('{"notes": []}')
    with pytest.raises(CorruptionError, match="has no readable score"):
        run.best_score()


def test_bad_directories_are_named(tmp_path):
    with pytest.raises(SettingError, match=r"no config\.json"):
        RunDirectory.open(tmp_path)
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    with pytest.raises(SettingError, match="already holds a run"):
        RunDirectory.prepare(tmp_path / "run").begin({})
    with pytest.raises(SettingError, match="no checkpoint"):
        run.load()
    run.save(make())
    with pytest.raises(SettingError, match=r"checkpoint must be one of the steps \[5\], got 7"):
        run.load(7)
    (run.checkpoints / f"{5:012d}" / "a.safetensors").write_bytes(b"rubbish")
    with pytest.raises(CorruptionError, match="cannot be read"):
        run.load()
    run.write_json("config.json", {"format": 99, "motet": "9.9"})
    with pytest.raises(SettingError, match=r"format 99.*written by motet 9\.9"):
        RunDirectory.open(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot be written"):
        RunDirectory.prepare(tmp_path / "file" / "run").begin({})


def test_an_empty_path_is_not_the_current_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for empty in (["--run", ""], ["--run="]):
        assert main(["train", "treasure_hunt", "--steps", "10", "--engine", "serial", *empty]) == 2
        assert "run must be a path for the run directory, got an empty string" in capsys.readouterr().err
    with pytest.raises(SettingError, match="run must be a path for the run directory, got an empty string"):
        train(HUNT, StandIn(), Settings(steps=10, engine="serial"), run="")
    assert list(tmp_path.iterdir()) == []


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain)
def test_plain_values_survive_json(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_arrays_survive_and_objects_are_refused():
    for array in (np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(1.5), np.zeros((0, 2), np.uint8)):
        back = decode(json.loads(json.dumps(encode(array))))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)
    with pytest.raises(SettingError, match="without pickle"):
        encode(object())


@pytest.fixture
def umask():
    """Sets it, and what was before in the end."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_files_of_a_checkpoint_are_for_those_whom_the_umask_allows(tmp_path, umask):
    run = RunDirectory.prepare(tmp_path / "run").begin({})
    for step, mask, mode in ((1, 0o022, 0o644), (2, 0o007, 0o660)):
        umask(mask)
        made = make(step)
        made.league = {"pool": np.zeros(3)}
        files = list(run.save(made).iterdir())
        assert len(files) == 4 and {path.stat().st_mode & 0o777 for path in files} == {mode}


@contextlib.contextmanager
def nobody():
    """Without the rights of root, who may read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_an_unreadable_file_is_not_reported_as_missing():
    with tempfile.TemporaryDirectory() as home:  # where nobody can look
        Path(home).chmod(0o755)
        run = RunDirectory.prepare(Path(home) / "run").begin({})
        weights, notes = (run.save(make()) / name for name in ("a.safetensors", "checkpoint.json"))
        run.load()
        for path in (weights, notes, run.checkpoints):
            mode = path.stat().st_mode
            path.chmod(0)
            with nobody(), pytest.raises(StorageError, match=re.escape(f"{path} cannot be read: Permission denied")):
                run.load()
            path.chmod(mode)
        weights.chmod(0)
        with nobody(), pytest.raises(StorageError, match=re.escape(f"{weights} cannot be read: Permission denied")):
            read_weights(weights.parent)
        weights.unlink()
        with pytest.raises(CorruptionError, match=re.escape(f"{weights} is missing")):
            run.load()


# ---- checkpoints by the clock


class Killed(BaseException):
    """The end of a process that says nothing more."""


def clock(monkeypatch, first_s, every_s):
    monkeypatch.setattr("motet.training.recorder._FIRST_S", first_s)
    monkeypatch.setattr("motet.training.recorder._EVERY_S", every_s)
    monkeypatch.setattr("motet.training.recorder._REST", 0)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_long_run_that_is_killed_early_has_a_checkpoint(engine, tmp_path, monkeypatch, no_leaks):
    clock(monkeypatch, 0.2, 0.2)

    def die(snapshot):
        if (tmp_path / "run" / "checkpoints").exists() and RunDirectory(tmp_path / "run").steps():
            raise Killed

    with pytest.raises(Killed):
        train(HUNT, StandIn(), Settings(steps=10**9, engine=engine, seconds=60), run=tmp_path / "run", on_update=die)
    there = RunDirectory(tmp_path / "run").steps()[-1]
    assert 0 < there < 10**8
    again = resume(tmp_path / "run", steps=50, algorithm=StandIn())
    assert again.state == "done" and 0 < again.began <= there < again.steps


def test_with_checkpoint_every_there_are_no_checkpoints_by_time(tmp_path, monkeypatch):
    clock(monkeypatch, 0.0, 0.0)
    train(HUNT, StandIn(), Settings(steps=1000, engine="serial", checkpoint_every=400), run=tmp_path / "run")
    assert RunDirectory(tmp_path / "run").steps() == [800, 1000]


@pytest.mark.parametrize("keep_replay", [False, True])
def test_the_clock_changes_nothing_of_what_is_exact(keep_replay, tmp_path, monkeypatch):
    settings = Settings(steps=300, engine="serial", publish_every=7, keep_replay=keep_replay)
    clock(monkeypatch, math.inf, math.inf)
    calm = train(HUNT, StandIn(), settings, run=tmp_path / "calm")
    assert RunDirectory(tmp_path / "calm").steps() == [270, 300]
    clock(monkeypatch, 0.0, 0.0)
    hurried = train(HUNT, StandIn(), settings, run=tmp_path / "hurried")
    # Going on exactly is for checkpoints with everything in them; the clock's have less, and would take their place.
    assert (RunDirectory(tmp_path / "hurried").steps() == [270, 300]) is keep_replay
    for name, held in calm.agents.items():
        for part, values in held.items():
            np.testing.assert_array_equal(values, hurried.agents[name][part], err_msg=f"{name} {part}")


def test_a_checkpoint_that_takes_long_is_written_more_rarely(tmp_path, monkeypatch):
    clock(monkeypatch, 0.0, 0.0)
    monkeypatch.setattr("motet.training.recorder._REST", 10**9)
    train(HUNT, StandIn(), Settings(steps=1000, engine="serial"), run=tmp_path / "run")
    assert RunDirectory(tmp_path / "run").steps() == [900, 1000]


# ---- what can be done with a run that ended badly


@pytest.mark.parametrize("file", ["agent_0.safetensors", "agent_1.replay.safetensors", "checkpoint.json"])
def test_damaged_checkpoint_is_named_and_an_older_one_can_be_resumed(file, tmp_path, capsys):
    run, hunt = tmp_path / "run", ["--agents", "2", "--world.size", "7", "--world.turns", "10"]
    tiny = ["--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16", "--dqn.capacity", "500"]
    main(["train", "treasure_hunt", *hunt, *tiny, "--engine=serial", "--steps=100", "--keep-replay", f"--run={run}"])
    directory = RunDirectory.open(run)
    damaged = run / "checkpoints" / f"{100:012d}" / file
    os.truncate(damaged, damaged.stat().st_size // 2)
    capsys.readouterr()
    assert main(["resume", str(run), "--steps", "20"]) == 1
    err = capsys.readouterr().err
    assert f"{damaged} cannot be read: " in err
    assert f"the checkpoint of step 90 is intact: motet resume {run} --checkpoint 90" in err
    assert directory.steps() == [90, 100]
    if "replay" not in file:
        with pytest.raises(CorruptionError, match=re.escape(f"{damaged} cannot be read")):
            load_policies(run)
    assert main(["resume", str(run), "--checkpoint", "95"]) == 2
    assert "checkpoint must be one of the steps [90, 100], got 95" in capsys.readouterr().err
    assert main(["resume", str(run), "--checkpoint", "90", "--steps", "5"]) == 0
    assert "continues from step 90; later checkpoints removed: 100" in capsys.readouterr().out
    assert directory.steps() == [90, 95] and directory.load().step == 95
    for folder in (run / "checkpoints").iterdir():
        (folder / file).write_bytes(b"")
    with pytest.raises(CorruptionError, match="the run has no other intact checkpoint: start again under another name"):
        directory.load()


def test_hints_know_that_there_is_no_checkpoint(tmp_path, capsys):
    run = tmp_path / "run"
    train(HUNT, "dqn", Settings(steps=60, engine="serial"), run=run)
    (newest,) = (run / "checkpoints").glob("*60")
    newest.rename(run / "best")
    shutil.rmtree(run / "checkpoints")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, "state": "running"}))
    ways = (
        "it has no checkpoint to resume from: "
        f"evaluate its best policies (motet eval {run} -p {run}/best), or start again"
    )
    for command in ("status", "watch"):
        assert main([command, str(run)]) == 0
        out = capsys.readouterr().out
        assert ways in out and "motet resume" not in out
    assert main(["resume", str(run)]) == 2
    assert f"{ways} under another name, or remove {run} first" in capsys.readouterr().err
    assert main(["train", "treasure_hunt", "--run", str(run)]) == 2
    err = capsys.readouterr().err
    assert "which has no checkpoint to resume from; give another name, or remove the directory" in err
    assert "motet resume" not in err and f"motet status {run}" in err
    assert main(["eval", str(run), "-p", str(run / "best"), "--episodes", "1"]) == 0
    shutil.rmtree(run / "best")
    assert main(["resume", str(run)]) == 2
    assert "to resume from: start again under another name" in capsys.readouterr().err

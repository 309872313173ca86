"""Several seeds of one experiment: one after the other and side by side, continued where they were interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import motet
from motet.algorithms import DQNConfig
from motet.cli import main
from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.training import Settings
from motet.training.seeds import train_seeds

SMALL = DQNConfig(hidden=(8,), batch_size=4, min_rows=16)
SERIAL = Settings(steps=250, engine="serial")


def weights(folder, seed):
    agents = RunDirectory.open(folder / f"seed-{seed}").load().agents
    return b"".join(agents[name]["state"].tobytes() for name in sorted(agents))


def test_seeds_side_by_side_are_those_one_after_the_other(tmp_path, capsys):
    alone = train_seeds("matrix", SMALL, SERIAL, seeds=[3, 5], run=tmp_path / "alone", side_by_side=1, display="off")
    both = train_seeds("matrix", SMALL, SERIAL, seeds=[3, 5], run=tmp_path / "both", side_by_side=2, display="off")
    assert capsys.readouterr().out == ""
    for found in (alone, both):
        assert found.state == "done" and list(found.runs) == [3, 5] and not found.failures
        assert [run.seed for run in found.runs.values()] == [3, 5]
        assert found.report.is_file() and np.isfinite(found.returns()).all()
    for seed in (3, 5):
        assert weights(tmp_path / "alone", seed) == weights(tmp_path / "both", seed)
    assert weights(tmp_path / "alone", 3) != weights(tmp_path / "alone", 5)


def test_a_set_continues_where_it_was(tmp_path):
    said = []
    run = {"run": tmp_path / "set", "side_by_side": 1, "display": "off", "on_message": said.append}
    train_seeds("matrix", SMALL, SERIAL, seeds=2, **run)
    before = (tmp_path / "set" / "seed-0" / "metrics.jsonl").read_bytes()
    stopped = RunDirectory.open(tmp_path / "set" / "seed-1")  # as if it had been stopped after 250 of 400 steps
    config = stopped.config()
    config["settings"]["steps"] = 400
    stopped.write_json("config.json", config)
    status = json.loads((stopped.path / "status.json").read_text())
    stopped.write_json("status.json", {**status, "state": "stopped"})
    (tmp_path / "set" / "seed-2").mkdir()  # killed before its first checkpoint
    RunDirectory(tmp_path / "set" / "seed-2").write_json("config.json", config)
    found = train_seeds("matrix", SMALL, SERIAL, seeds=3, **run)
    assert "1 of 3 runs were done before, and are kept" in said
    assert found.state == "done"
    assert [history.steps for history in found.runs.values()] == [250, 400, 250]
    assert found.runs[1].sessions == 2 and found.runs[2].sessions == 1
    assert (tmp_path / "set" / "seed-0" / "metrics.jsonl").read_bytes() == before


def test_folder_of_another_experiment_is_refused(tmp_path):
    run = {"run": tmp_path / "set", "side_by_side": 1, "display": "off"}
    train_seeds("matrix", SMALL, SERIAL, seeds=1, **run)
    with pytest.raises(SettingError, match="other agents"):
        train_seeds("matrix", DQNConfig(hidden=(9,)), SERIAL, seeds=1, **run)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    with pytest.raises(SettingError, match="new or empty folder"):
        train_seeds("matrix", SMALL, SERIAL, seeds=1, run=tmp_path / "full", display="off")


@pytest.mark.parametrize("seeds", [0, [], [1, 1], True, "3", [-1]])
def test_seeds_that_mean_nothing_are_refused(seeds, tmp_path):
    with pytest.raises(SettingError, match="seeds must be"):
        train_seeds("matrix", SMALL, SERIAL, seeds=seeds, run=tmp_path / "set", display="off")


def test_a_failing_run_does_not_affect_the_others(tmp_path, monkeypatch):
    from motet.training import seeds as module

    begin = module._begin

    def fragile(factory, algorithm, settings, seed, path, display):
        if seed == 1:
            raise motet.MotetError("the disk is full")
        return begin(factory, algorithm, settings, seed, path, display)

    monkeypatch.setattr(module, "_begin", fragile)
    found = train_seeds("matrix", SMALL, SERIAL, seeds=3, run=tmp_path / "set", side_by_side=1, display="off")
    assert found.state == "failed" and found.failures == {1: "the disk is full"}
    assert list(found.runs) == [0, 2]


SCRIPT = """
import sys
import motet
from motet.training.seeds import train_seeds
if __name__ == "__main__":
    settings = motet.Settings(steps=10_000_000, engine="serial", checkpoint_every=1_000)
    found = train_seeds("matrix", "dqn", settings, seeds=2, run=sys.argv[1], side_by_side=2, display="lines")
    print(found.state, found.interrupted)
"""


def begun(folder):
    return all((folder / f"seed-{seed}" / "status.json").is_file() for seed in (0, 1))


def started(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, tmp_path / "set"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not begun(tmp_path / "set"):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process


def test_ctrl_c_stops_all_runs_with_a_checkpoint(tmp_path):
    process = started(tmp_path)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "stopped True" in out
    for seed in (0, 1):
        assert RunDirectory.open(tmp_path / "set" / f"seed-{seed}").load().step > 0


def test_runs_side_by_side_die_with_their_parent(tmp_path):
    process = started(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_command_trains_several_seeds(tmp_path, capsys):
    flags = ["--engine", "serial", "--steps", "250", "--dqn.hidden", "8", "--seed", "4"]
    assert main(["train", "matrix", "--seeds", "2", "--run", str(tmp_path / "set"), *flags]) == 0
    out = capsys.readouterr().out
    assert "seed 4: done after 250 steps" in out and "mean" in out and "report.html" in out
    assert sorted(os.listdir(tmp_path / "set"))[:3] == ["report.html", "seed-4", "seed-4.log"]


# ---- reading runs


def test_read_run_gives_curves_evaluations_and_episodes(tmp_path, monkeypatch):
    settings = Settings(steps=300, engine="serial", evaluate_every=100, evaluate_episodes=2)
    motet.train("matrix", SMALL, settings, run=tmp_path / "run")
    run = motet.read_run(tmp_path / "run")
    assert repr(run).startswith(f"<RunHistory {str(tmp_path / 'run')!r}: done after ") and len(repr(run)) < 300
    assert all(len(repr(one)) < 300 for one in (run.curves, run.evaluations, run.episodes))
    own = run.curves.agents["player_0"]
    assert own["steps"][-1] == 300 and len(own["steps"]) == len(own["mean_return"]) == len(own["metrics.loss"])
    assert run.evaluations.team["steps"][-1] == 300 and len(run.evaluations.team["half"]) >= 3
    assert len(run.episodes) == len(run.episodes.returns["player_0"]) == 3
    tables = []

    class Pandas:
        DataFrame = dict
        concat = staticmethod(lambda parts, ignore_index: tables.append(parts) or len(parts))

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert run.frame() == 3 and run.frame("evaluations") == 3 and run.frame("episodes") == 2
    assert [part["agent"] for part in tables[0]] == ["", "player_0", "player_1"]
    assert tables[2][0]["return"] is run.episodes.returns["player_0"]
    with pytest.raises(SettingError, match="of must be"):
        run.frame("rows")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="pandas is not installed"):
        run.frame()

"""Runs started from Python: what they show and record, what the world suggests, and what the result offers."""

import json
import os
import pty
import subprocess
import sys
import types
from dataclasses import replace
from importlib.machinery import ModuleSpec

import numpy as np
import pytest

import motet
from motet.algorithms import DQNConfig
from motet.cli import main
from motet.errors import SettingError
from motet.runs import show
from motet.runs.directory import RunDirectory
from motet.training import Settings, resume, train

SHORT = Settings(steps=300, engine="serial")


def test_run_directory_has_the_log_and_tensorboard(tmp_path, capsys):
    train("matrix", "dqn", SHORT, run=tmp_path / "run")
    assert any((tmp_path / "run" / "tensorboard").iterdir())
    assert capsys.readouterr().out == ""  # no terminal, no notebook


def test_tensorboard_and_wandb_get_each_evaluation_at_its_step(asked, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def shown(number):
        events = EventAccumulator(str(run / "tensorboard")).Reload()
        lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
        assert len(lines) == number
        for tag, values in {
            "team": [line["team"] for line in lines],
            "player_0": [line["agents"]["player_0"]["mean"] for line in lines],
        }.items():
            points = events.Scalars(f"evaluation/{tag}")
            assert [(point.step, point.value) for point in points] == [
                (line["step"], np.float32(value)) for line, value in zip(lines, values, strict=True)
            ]

    run = tmp_path / "run"
    settings = replace(SHORT, evaluate_every=100, evaluate_episodes=2, metrics_every_s=1000.0)
    train("matrix", "dqn", settings, run=run, wandb=True)
    shown(3)  # although there is one snapshot
    resume(run, steps=100, wandb=True)
    shown(4)  # each of them once
    assert [values["evaluation/step"] for values in asked[0]["logged"]] == [300.0]
    assert [values["evaluation/step"] for values in asked[1]["logged"]] == [400.0]


def test_messages_are_in_the_log(tmp_path):
    run = tmp_path / "run"
    train("matrix", "dqn", SHORT, run=run)
    config = RunDirectory.open(run).config()
    config["versions"]["numpy"] = "0.1"
    RunDirectory.open(run).write_json("config.json", config)
    said = []
    resume(run, steps=20, on_message=said.append)
    assert "numpy 0.1" in (run / "logs" / "run.log").read_text()
    assert any("numpy 0.1" in line for line in said)


def test_lines_and_summary_are_shown(tmp_path, capsys):
    run = tmp_path / "run"
    result = train("matrix", "dqn", SHORT, run=run, display="lines")
    out = capsys.readouterr().out
    assert f"matrix · dqn · {run}" in out and "300 of 300 steps" in out
    assert "first return" in out and "motet resume" in out
    assert (run / "learning_curve.png").is_file()
    result = resume(run, steps=40, display="lines", pictures=False)
    out = capsys.readouterr().out
    assert "resumed" in out and "340 of 340 steps" in out and "episode " not in out
    assert result.steps == 340


def test_run_without_directory_is_shown_too(capsys):
    train("matrix", {"player_0": "dqn", "player_1": "random"}, SHORT, display="lines")
    out = capsys.readouterr().out
    assert out.startswith("matrix · dqn\n") and "300 of 300 steps" in out


def test_pictures_of_a_run_that_is_not_shown(tmp_path, capsys):
    train("rooms", "dqn", SHORT, run=tmp_path / "run", display="off", pictures=True)
    assert {"episode.gif", "learning_curve.png"} <= set(os.listdir(tmp_path / "run"))
    assert capsys.readouterr().out == ""


def test_pictures_that_cannot_be_made_are_explained(tmp_path):
    said, settings = [], Settings(steps=1, engine="serial")  # no episode ends, so there is no curve
    train("matrix", "dqn", settings, run=tmp_path / "run", display="off", pictures=True, on_message=said.append)
    assert not (tmp_path / "run" / "learning_curve.png").exists()
    assert any("learning curve" in line and "nothing to draw" in line for line in said)


def test_the_commands_follow_the_display_flag(tmp_path, capsys):
    run, pictures = tmp_path / "run", {"episode.gif", "learning_curve.png"}
    quick = ["rooms", "--engine", "serial", "--steps", "100", "--run", str(run)]
    assert main(["train", *quick, "--display", "off"]) == 0
    assert capsys.readouterr().out == "" and not pictures & set(os.listdir(run))
    resumed = ["resume", str(run), "--steps", "100"]
    assert main([*resumed, "--display", "lines", "--pictures", "False"]) == 0
    assert "resumed" in capsys.readouterr().out and not pictures & set(os.listdir(run))
    assert main([*resumed, "--display", "off", "--pictures", "True"]) == 0
    assert capsys.readouterr().out == "" and pictures <= set(os.listdir(run))
    assert main(["train", *quick, "--seeds", "2", "--pictures", "False"]) == 2
    assert "pictures is not valid with --seeds" in capsys.readouterr().err


@pytest.fixture
def asked(monkeypatch):
    """What runs ask a stand-in for Weights & Biases for, one dict for each run."""
    runs = []

    def init(**given):
        runs.append(given)
        given["logged"] = []
        return types.SimpleNamespace(log=lambda values, step: given["logged"].append(values), finish=lambda: None)

    module = types.ModuleType("wandb")
    module.__spec__, module.init, module.Settings = ModuleSpec("wandb", None), init, dict
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return runs


WANDB = {"project": "hunt", "name": "first", "group": "small", "tags": ["a", "b"]}
FLAGS = ["--wandb-project", "hunt", "--wandb-name", "first", "--wandb-group", "small", "--wandb-tags", "a", "b"]


def test_weights_and_biases_gets_project_group_and_tags(asked, tmp_path):
    quick = ["--engine", "serial", "--steps", "20"]
    train("matrix", "dqn", SHORT, run=tmp_path / "one", wandb=WANDB)
    assert main(["train", "matrix", *quick, "--run", str(tmp_path / "two"), *FLAGS]) == 0
    assert main(["resume", str(tmp_path / "two"), "--steps", "20", *FLAGS]) == 0
    assert len(asked) == 3
    for given in asked:
        assert {name: given[name] for name in WANDB} == WANDB
    train("matrix", "dqn", SHORT, run=tmp_path / "three", wandb=True)
    assert main(["train", "matrix", *quick, "--run", str(tmp_path / "four"), "--wandb"]) == 0
    assert [(given["project"], given["name"]) for given in asked[3:]] == [("motet", "three"), ("motet", "four")]
    assert all("group" not in given and "tags" not in given for given in asked[3:])
    assert main(["train", "matrix", *quick, "--run", str(tmp_path / "five")]) == 0
    train("matrix", "dqn", SHORT, run=tmp_path / "six")
    assert len(asked) == 5, "nothing is sent without being asked for"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("hunt", "wandb must be True, False or a dict with some of project, name, group, tags, got 'hunt'"),
        ({"colour": "red"}, "wandb must be True, False or a dict with some of project, name, group, tags, got {'colo"),
        ({"tags": "small"}, "wandb: tags must be a list of texts, none of them empty, got 'small'"),
        ({"group": 3}, "wandb: group must be a text that is not empty, got 3"),
        ({"name": ""}, "wandb: name must be a text that is not empty, got ''"),
    ],
)
def test_settings_of_weights_and_biases_are_checked(asked, given, message, tmp_path):
    with pytest.raises(SettingError) as caught:
        train("matrix", "dqn", SHORT, run=tmp_path / "run", wandb=given)
    assert message in str(caught.value) and not asked and not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [["train", "matrix"], ["resume", "run"]])
def test_misspelt_flags_of_weights_and_biases_are_recognised(command, capsys):
    assert main([*command, "--wandb-projekt", "hunt"]) == 2
    assert "did you mean --wandb-project?" in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"display": "big"}, {"wandb": True}, {"pictures": True}])
def test_settings_that_cannot_hold_are_refused(given):
    with pytest.raises(SettingError, match=next(iter(given))):
        train("matrix", "dqn", SHORT, **given)


def test_automatic_display(monkeypatch):
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(isatty=lambda: True))
    assert show.resolved("auto") == "table"
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    for shell, kind in ((None, "table"), (types.SimpleNamespace(kernel=None), "table")):
        monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert show.resolved("auto") == kind, "imported, but this is no notebook"
    shell = types.SimpleNamespace(kernel="a kernel")
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert show.resolved("auto") == "lines"
    assert show.resolved("off") == "off"


def test_script_in_a_terminal_shows_a_table(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import motet\nif __name__ == '__main__':\n"
        "    motet.train('matrix', 'dqn', motet.Settings(steps=300, engine='serial'))\n"
    )
    leader, follower = pty.openpty()
    done = subprocess.Popen([sys.executable, script], stdout=follower, stderr=follower, close_fds=True)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    assert done.wait() == 0
    assert b"matrix" in seen and b"player_0" in seen and b"300 of 300 steps" in seen


# ---- what a world suggests


def test_suggestions_of_the_world_hold_for_named_algorithms_only(tmp_path):
    seen = {}
    for name, algorithm in {"named": "dqn", "left out": None, "config": DQNConfig(), "class": DQNConfig}.items():
        given = () if algorithm is None else (algorithm,)
        result = train("treasure_hunt", *given, settings=Settings(steps=1, engine="serial"))
        seen[name] = (result.roster.policies[0].config.gamma, result.roster.policies[0].config.n_frames)
    plain = (DQNConfig().gamma, DQNConfig().n_frames)
    assert seen == {"named": (0.8, 4), "left out": (0.8, 4), "config": plain, "class": plain}


# ---- the result


def test_policies_of_a_result_are_those_of_its_run(tmp_path):
    run = tmp_path / "run"
    result = train("treasure_hunt", "dqn", Settings(steps=80, engine="serial"), run=run)
    saved, own = motet.load_policies(run), result.policies()
    assert list(saved) == list(own)
    rng = np.random.default_rng(0)
    for agent in result.roster.agents:
        for policy in (saved[agent.name], own[agent.name]):
            policy.reset(0)
        for _ in range(20):
            shape = agent.observation_space.shape
            observation = rng.random(shape).astype(agent.observation_space.dtype)
            assert saved[agent.name].act(observation) == own[agent.name].act(observation)


def test_result_is_short_in_text_and_readable_in_notebooks(tmp_path):
    result = train("matrix", "dqn", SHORT, run=tmp_path / "<b>")
    assert repr(result).startswith("<Result: done after 300 steps in ") and len(repr(result)) < 300
    page = result._repr_html_()
    assert "&lt;b&gt;" in page and "<b>" not in page and "player_1" in page

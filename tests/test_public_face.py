"""What ``motet`` offers: its names, what importing them loads, and the same words on the command line."""

import dataclasses
import importlib.util
import inspect
import json
import subprocess
import sys

import pytest

import motet
from motet.cli import flags, plan, play, report, train
from motet.cli.completion import _subcommands
from motet.cli.eval import EvalFlags
from motet.cli.experiment import Experiment
from motet.cli.tournament import WITHOUT, TournamentFlags
from motet.evaluation.evaluate import EvaluationSettings
from motet.isolation.policy import PolicyLimits
from motet.plan import enumerate_states, solve
from motet.training.settings import Settings

VERBS = ["as_world", "evaluate", "evaluate_focal", "export", "load_policies", "read_run", "regret", "report", "resume"]
VERBS += ["tournament", "train", "train_seeds"]
NOUNS = [
    *("AgentSettings", "Cluster", "Evaluation", "EvaluationSettings", "Field", "FocalEvaluation", "League"),
    *("MotetError", "Pace", "Partner", "PolicyLimits", "Publication", "Replay", "ReplaySpec", "RestartLimits"),
    *("Settings", "StopRun", "Tournament", "World"),
]


def test_public_names_are_pinned():
    assert sorted(motet.__all__) == sorted(["__version__", *NOUNS, *VERBS])
    assert set(motet.__all__) - {"__version__"} == set(dir(motet))


@pytest.mark.parametrize("name", [*NOUNS, *VERBS])
def test_everything_public_has_a_docstring_with_an_example(name):
    found = getattr(motet, name)
    doc = inspect.getdoc(found) or ""
    assert doc
    assert ">>> " in doc or "::\n\n    " in doc


@pytest.mark.parametrize("name", VERBS)
def test_verbs_are_functions_and_no_module_has_their_names(name):
    assert inspect.isfunction(getattr(motet, name))
    assert importlib.util.find_spec(f"motet.{name}") is None


def test_solve_is_a_function_of_plan():
    assert inspect.isfunction(solve) and importlib.util.find_spec("motet.plan.solve") is None


# ---- what imports load, each in a fresh interpreter


def loaded(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport json, sys; print(); print(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*arguments):
    return f"from motet.cli import main\ntry: main({list(arguments)!r})\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "code",
    [
        "from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config; DQNConfig(), PPOConfig()",
        "import motet.algorithms.dqn, motet.algorithms.iqn, motet.algorithms.ppo, motet.algorithms.td3",
        "import motet.training.settings, motet.cli.experiment",
        command("train", "--help"),
        command("train", "treasure_hunt", "--algorithm", "ppo", "--help"),
        command("train", "treasure_hunt", "--help-all"),
        command("eval", "--help"),
        command("tournament", "matrix", "--help"),
        command("report", "--help"),
        command("status", "--help"),
        command("plan", "--help"),
    ],
)
def test_configs_and_help_do_not_load_torch(code):
    assert loaded(code).isdisjoint({"torch", "ray", "matplotlib", "tensorboard", "imageio", "wandb"})


def test_status_of_a_run_does_not_load_torch(tmp_path):
    flags = ["--engine", "serial", "--steps", "20", "--dqn.hidden", "4", "--dqn.batch-size", "4", "--dqn.min-rows", "8"]
    made = [sys.executable, "-m", "motet", "train", "matrix", *flags, "--run", str(tmp_path / "run")]
    subprocess.run(made, capture_output=True, check=True, timeout=120)
    assert "torch" not in loaded(command("status", str(tmp_path / "run")))


def test_acting_loads_no_torch_and_building_does():
    act = (
        "from gymnasium.spaces import Box, Discrete\nfrom motet.algorithms import DQNConfig\n"
        "DQNConfig().behaviour(Box(0, 1, (3,)), Discrete(2)).begin(0)"
    )
    build = act + "\nDQNConfig().build(Box(0, 1, (3,)), Discrete(2), 1, [0])"
    assert "torch" not in loaded(act) and "torch" in loaded(build)


def test_serial_learning_has_one_thread_though_torch_is_loaded_late():
    code = """
import os, sys
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"): os.environ.pop(name, None)
import motet
from motet.algorithms import DQNConfig
assert "torch" not in sys.modules
motet.train("matrix", DQNConfig(hidden=(4,), batch_size=4, min_rows=4), motet.Settings(steps=10, engine="serial"))
import torch
assert torch.get_num_threads() == 1, torch.get_num_threads()
"""
    loaded(code)


def test_importing_motet_loads_nothing_heavy():
    assert loaded("import motet").isdisjoint({"torch", "ray", "gymnasium", "tyro", "rich", "numpy"})


@pytest.mark.parametrize("module", ["motet.evaluation", "motet.reports"])
def test_rooms_beside_training_do_not_load_it(module):
    everything = f"import {module} as room\nfor name in room.__all__: getattr(room, name)"
    assert not [name for name in loaded(everything) if name.startswith("motet.training")]


# ---- the command line says the same as Python


def test_python_m_motet_is_the_command():
    for arguments in (["--version"], ["--help"], ["train", "--help"]):
        asked = [
            subprocess.run([sys.executable, "-m", name, *arguments], capture_output=True, text=True, timeout=60)
            for name in ("motet", "motet.cli")
        ]
        assert asked[0].returncode == 0 and asked[0].stdout == asked[1].stdout != ""


def defaults(function):
    """Parameters of a function that can be flags, and their defaults."""
    callbacks = {"progress", "on_progress", "on_update", "on_message", "workers", "settings", "changes"}
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.name not in callbacks}


def fields(kind):
    return {item.name for item in dataclasses.fields(kind)}


SHOWN = {"name_", "help_all", "format", "out", "html", "video", "display", "pictures", "wandb", "compare_exact"}
"""Flags that say how a result is shown or where it goes; and the name of the world."""
REPEATED = {"policy": "policies", "pairing": "pairings"}
"""Flags that are given several times, and the parameter that takes them all."""


def test_flags_of_eval_are_the_parameters_of_evaluate():
    options = _subcommands()["eval"]
    own = fields(play.Play) | {"video"}
    assert {REPEATED.get(name, name) for name in own} - SHOWN == {"policies", "address"}
    assert set(defaults(motet.evaluate)) == {"world", "policies"}
    check_settings_flags(options, without=())


def test_flags_of_focal_evaluations_are_the_parameters_of_evaluate_focal():
    own = fields(EvalFlags) - fields(play.Play) - SHOWN
    assert own | {"world"} == set(defaults(motet.evaluate_focal))
    given = {item.name: item.default for item in dataclasses.fields(EvalFlags)}
    assert given["focal_seats"] == (str(defaults(motet.evaluate_focal)["focal_seats"]),)


def test_flags_of_tournament_are_the_parameters_of_tournament():
    own = (fields(TournamentFlags) - fields(play.Play)) | {"policy"}
    python = {name: default for name, default in defaults(motet.tournament).items() if name != "world"}
    assert {REPEATED.get(name, name) for name in own} == set(python)
    given = {item.name: item.default for item in dataclasses.fields(TournamentFlags)}
    for name in ("rounds", "group", "until_clear", "delta", "dir"):
        assert given[name] == python[name]
    check_settings_flags(_subcommands()["tournament"], WITHOUT)


def check_settings_flags(options, without):
    """All fields of EvaluationSettings are flags, of the same names and with the same defaults."""
    given = next(item.default for item in dataclasses.fields(options) if item.name == "settings_")
    assert fields(type(given)) == fields(EvaluationSettings)
    for item in dataclasses.fields(EvaluationSettings):
        value = getattr(given, item.name)
        assert value == getattr(EvaluationSettings(), item.name) or (item.name, value) == ("limits", PolicyLimits())
    assert set(without) <= fields(EvaluationSettings)


def test_flags_of_train_are_the_parameters_of_train():
    options = flags.static_flags()
    kinds = {item.name: item for item in dataclasses.fields(options)}
    assert kinds["settings"].default == Settings()
    assert set(kinds) - SHOWN - {"settings", "config_"} == {"algorithm", "run", "seeds"}  # seeds: of train_seeds
    python = defaults(motet.train)
    assert python["algorithm"] == kinds["algorithm"].default == Experiment("").algorithm
    assert python["run"] is kinds["run"].default is None


def test_flags_of_resume_report_and_plan_are_parameters_in_python():
    resumed = defaults(train.resume)
    assert set(resumed) - SHOWN <= set(defaults(motet.resume))
    assert {name: resumed[name] for name in ("steps", "checkpoint", "trust", "address")} == {
        name: defaults(motet.resume)[name] for name in ("steps", "checkpoint", "trust", "address")
    }
    assert set(defaults(report.report)) == set(defaults(motet.report))
    assert str(defaults(report.report)["out"]) == defaults(motet.report)["out"]
    everything = inspect.signature(enumerate_states).parameters | inspect.signature(solve).parameters
    planned = inspect.signature(plan.plan).parameters
    own = {"map", "horizon", "out", "address"}  # the world's settings, where it is written, and cluster.address
    assert set(planned) - own <= set(everything)
    for name in ("workers", "max_states", "dtype", "engine"):
        assert planned[name].default == everything[name].default

"""The commands as a user gives them: train, resume, status, watch; and what they say when they are given nonsense."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from support import EXAMPLES

from motet.cli import main
from motet.cli.keyword_flags import keyword_flags
from motet.errors import SettingError
from motet.policies.entries import load_policies
from motet.runs.directory import RunDirectory
from motet.runs.status import hold, is_alive, new_directory
from motet.training.run import resume

TINY = ["--engine", "serial", "--dqn.hidden", "8", "--dqn.batch-size", "8", "--dqn.min-rows", "16"]
HUNT = ["treasure_hunt", "--agents", "3", "--world.size", "7", "--world.turns", "10"]


def motet(*arguments, cwd, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "motet.cli", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was trained once, by the command, in processes."""
    folder = tmp_path_factory.mktemp("home")
    flags = [*TINY[2:], "--steps", 400, "--updates-per-step", 0.1, "--seed", 5, "--dqn.epsilon", "linear:1:0.5:300"]
    out, _ = motet("train", *HUNT, *flags, cwd=folder)
    (run,) = (folder / "runs").iterdir()
    return run, out


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"


def test_train_leaves_a_run_and_prints_the_next_commands(trained):
    run, out = trained
    assert re.fullmatch(r"treasure_hunt-dqn-\d{4}-\d\d-\d\d-1", run.name)
    assert "400 of 400 steps (100%)" in out and "done after 400 steps" in out
    assert f"motet resume runs/{run.name} --steps 400" in out and f"motet status runs/{run.name}" in out
    assert "tensorboard --logdir" in out
    for name in ("config.json", "metrics.jsonl", "status.json", "learning_curve.png", "episode.gif", "tensorboard"):
        assert (run / name).exists(), name
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["actor-0.log", "learner-0.log"]
    config = json.loads((run / "config.json").read_text())
    assert config["world"] == {
        "path": "motet.worlds.treasure_hunt:TreasureHunt",
        "settings": {"agents": 3, "size": 7, "turns": 10},
    }
    assert config["settings"]["seed"] == 5 and config["settings"]["updates_per_step"] == 0.1
    assert config["agents"]["agent_2"]["hidden"] == [8]
    assert (config["agents"]["agent_0"]["gamma"], config["agents"]["agent_0"]["n_frames"]) == (0.8, 4), "suggested"
    assert config["agents"]["agent_0"]["epsilon"]["class"] == "motet.schedule:Linear"
    assert config["grouping"]["stacks"] and set(config["versions"]) == {"motet", "python", "numpy", "torch"}
    assert not is_alive(run)


def test_resume_continues_in_the_same_directory(run, capsys):
    assert main(["resume", str(run)]) == 2
    assert "has already done its 400 steps" in capsys.readouterr().err
    assert main(["resume", str(run), "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"done after 500 steps, the last 100 in \d+:\d\d", out)
    assert out.startswith(f"treasure_hunt · dqn · {run} · resumed\n")
    assert RunDirectory.open(run).steps()[-1] == 500
    assert RunDirectory.open(run).config()["settings"]["steps"] == 500
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["steps"] == 500 and any(line["steps"] == 400 for line in lines)


def test_status_breaks_its_sentences_between_words(run, capsys, monkeypatch):
    sentence = json.loads((run / "status.json").read_text())["bottleneck"]
    main(["status", str(run)])
    assert sentence in capsys.readouterr().out, "in one line where it is not shown in a terminal"
    terminal = functools.partial(Console, force_terminal=True, width=50, color_system=None)
    monkeypatch.setattr("motet.cli.status.Console", terminal)
    main(["status", str(run)])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert sentence in " ".join(lines) and sentence not in lines


def test_status_shows_agents_and_processes(run, capsys):
    assert main(["status", str(run)]) == 0
    out = capsys.readouterr().out
    for word in ("done", "agent_2", "actor-0", "learner-0", "ended", "400 of 400 steps", "checkpoints at steps"):
        assert word in out
    status = json.loads((run / "status.json").read_text())
    status["state"] = "running"
    status["processes"][1].update(waits_for="rows to learn from", pid=os.getpid(), done=False)
    (run / "status.json").write_text(json.dumps(status))
    main(["status", str(run)])
    out = capsys.readouterr().out
    assert "crashed" in out and f"motet resume {run}" in out and "dead" in out
    with hold(run):
        assert is_alive(run)
        main(["status", str(run)])
        out = capsys.readouterr().out
        assert "alive" in out and "waiting" in out and "rows to learn from" in out
        status["processes"][1].update(pid=2**30)  # of no process here
        (run / "status.json").write_text(json.dumps(status))
        main(["status", str(run)])
        assert "exited" in capsys.readouterr().out
        status["processes"][1].update(node="192.0.2.7")
        (run / "status.json").write_text(json.dumps(status))
        main(["status", str(run)])
        out = capsys.readouterr().out
        assert "exited" not in out and "192.0.2.7" in out and "here" in out


def test_watch_shows_a_run_until_it_ends(run, capsys):
    assert main(["watch", str(run)]) == 0
    assert "400 of 400 steps" in capsys.readouterr().out


def test_no_two_processes_write_to_one_run(run, capsys):
    with hold(run):
        assert main(["resume", str(run), "--steps", "10"]) == 2
    assert "is being written by another process" in capsys.readouterr().err


def test_interrupted_once_it_writes_a_checkpoint_and_ends_with_130(tmp_path):
    command = [sys.executable, "-m", "motet.cli", "train", *HUNT, *TINY[2:], "--steps", "10000000", "--run", "mine"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    status = tmp_path / "mine" / "status.json"
    deadline = time.monotonic() + 60
    while not (status.exists() and json.loads(status.read_text())["steps"] > 100):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    assert is_alive(tmp_path / "mine")
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130, out
    assert "Saving a checkpoint and stopping. Press Ctrl-C again" in out and "motet resume mine\n" in out
    assert RunDirectory.open(tmp_path / "mine").load().step > 100
    assert "stopping" in (tmp_path / "mine" / "logs" / "run.log").read_text()


def test_an_experiment_file_gives_agents_their_own_algorithms(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(
        """
        algorithm = "dqn"
        steps = 60
        engine = "serial"
        limits = { hang_s = 12 }
        [world]
        name = "treasure_hunt"
        agents = 3
        turns = 10
        [dqn]
        hidden = [8]
        epsilon = { start = 1.0, end = 0.1, steps = 50 }
        [agents.agent_1]
        batch_size = 16
        [agents.agent_2]
        algorithm = "iqn"
        hidden = [4]
        """
    )
    assert main(["train", "experiment.toml", "--seed", "9", "--run", "mine", "--dqn.gamma", "0.5"]) == 0
    config = RunDirectory.open("mine").config()
    kinds = [config["agents"][f"agent_{i}"]["class"].rpartition(":")[2] for i in range(3)]
    assert kinds == ["DQNConfig", "DQNConfig", "IQNConfig"]
    assert [config["agents"][f"agent_{i}"]["batch_size"] for i in range(3)][:2] == [64, 16]
    assert [config["agents"][f"agent_{i}"]["gamma"] for i in range(3)] == [0.5, 0.5, 0.8]
    assert config["agents"]["agent_0"]["epsilon"]["steps"] == 50 and config["agents"]["agent_2"]["hidden"] == [4]
    assert config["settings"]["seed"] == 9 and config["settings"]["limits"]["hang_s"] == 12
    assert main(["train", "experiment.toml", "--steps", "20"]) == 0
    assert next(Path("runs").iterdir()).name.startswith("treasure_hunt-mixed-")


def test_a_users_world_and_its_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_worlds.py").write_text(
        "from motet.worlds import MatrixGame\ndef make(turns: int = 10):\n    return MatrixGame(turns=turns)\n"
    )
    flags = ["my_worlds:make", "--world.turns", "5", "--steps", "40", *TINY, "--run", "mine"]
    assert main(["train", *flags]) == 0
    assert "motet resume mine --steps 40\n" in capsys.readouterr().out
    assert RunDirectory.open("mine").config()["world"] == {"path": "my_worlds:make", "settings": {"turns": 5}}
    assert main(["resume", "mine", "--steps", "10"]) == 0
    assert set(load_policies("mine")) == {"player_0", "player_1"}
    shutil.copytree("mine", "theirs")
    assert main(["resume", "theirs", "--steps", "10"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["resume", "theirs", "--steps", "10", "--trust"]) == 0
    assert set(load_policies("theirs", trust=True)) == {"player_0", "player_1"}


def test_factories_with_any_keyword_take_settings_as_flags(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    world = ["pettingzoo.classic.rps_v2:parallel_env", "--world.max-cycles", "4", "--world.num_actions=5"]
    assert main(["train", *world, "--steps", "20", *TINY, "--run", "mine"]) == 0
    given = RunDirectory.open("mine").config()["world"]
    assert given == {"path": world[0], "settings": {"max_cycles": 4, "num_actions": 5}}
    result = tmp_path / "out.json"
    assert main(["eval", *world, "-p", "random", "-n", "2", "--out", str(result)]) == 0
    assert json.loads(result.read_text())["result"]["world"]["settings"] == given["settings"]
    pole = ["gym:CartPole-v1", "--world.sutton_barto_reward"]
    assert main(["train", *pole, "--steps", "20", *TINY, "--run", "pole"]) == 0
    assert RunDirectory.open("pole").config()["world"]["settings"]["sutton_barto_reward"] is True
    capsys.readouterr()
    assert main(["train", *world, "--world.colour", "red"]) == 1
    assert "colour" in capsys.readouterr().err
    Path("fixed.py").write_text("from motet.worlds import MatrixGame\ndef make(turns: int = 3): return MatrixGame()\n")
    assert main(["train", "fixed:make", "--world.colour", "red"]) == 2
    assert "--world.colour" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("-3", -3), ("0.5", 0.5), ("True", True), ("false", False), ("None", None), ("[1,2]", [1, 2])),
        *(("red", "red"), ("1x", "1x"), ('"3"', "3")),
    ],
)
def test_values_of_keyword_flags_are_json_or_text(text, value):
    def make(**kwargs): ...

    for words in ([f"--world.x={text}"], ["--world.x", text]):
        found, rest = keyword_flags(make, [*words, "--steps", "3"])
        assert found == {"x": value} and type(found["x"]) is type(value) and rest == ["--steps", "3"]


def test_keyword_flags_are_checked():
    def make(size: int = 3, **kwargs): ...

    assert keyword_flags(make, ["--world.size", "4", "--world.fast"]) == ({"fast": True}, ["--world.size", "4"])
    for wrong, says in (("--world.3", "name of a setting"), ("--world.", "name of a setting")):
        with pytest.raises(SettingError, match=says):
            keyword_flags(make, [wrong, "1"])
    with pytest.raises(SettingError, match="must be given once"):
        keyword_flags(make, ["--world.a", "1", "--world.a", "2"])


NONSENSE = {
    "nowhere": "world must be one of treasure_hunt",
    "no_such_module:make": "must be something that can be imported, got",
    "nowhere.toml": "experiment must be a file that can be read, got 'nowhere.toml': No such file",
    "": "'module:attribute' or a .toml file, got none",
    "treasure_hunt --algorithm sarsa": "empower_sampled, or 'module:attribute', got 'sarsa'",
    "treasure_hunt --slack 3": "slack is only valid with updates_per_step",
    "treasure_hunt --steps 0": "steps must be an int >= 1 or None, got 0",
    "treasure_hunt --dqn.min-rows 3": "min_rows must be at least the batch_size 64, got 3",
    "treasure_hunt --agents 0": "agents must be an int >= 1, got 0",
    "treasure_hunt --learner-processes 3": "learner_processes must be at most 2, one for each agent, got 3",
    "matrix --agents 3": "agents is not a setting of the world matrix",
    "matrix --algorithm td3": "player_0 with TD3Config: action space must be a Box of floats",
    "matrix --steps 90 --evaluate-every 91 --until-return 3": "evaluate_every must be at most the 90 steps",
    "treasure_hunt --run file/below": "run: 'file/below' cannot be written: Not a directory",
    "treasure_hunt --wandb": "wandb: Weights & Biases is not installed",
    "bad.toml": "experiment must be a TOML file, got 'bad.toml': Invalid statement",
    "strange.toml": "strange.toml: keys must be some of actors, agents, ahead, algorithm,",
    "stranger.toml": "agents must be some of player_0, player_1, got nobody",
    "typo.toml": "got stepps (did you mean steps?)",
    "nameless.toml": 'world must have a name, as in name = "treasure_hunt", got nmae (did you mean name?)',
    "kind.toml": "kind.toml: steps must be an int >= 1 or None, got 'many'",
    "raising:make": "the world could not be made: KeyError",
}


@pytest.mark.parametrize("arguments", NONSENSE)
def test_invalid_commands_get_one_line_and_leave_no_files(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    Path("file").write_text("")
    Path("bad.toml").write_text("= 3")
    Path("strange.toml").write_text("colour = 3\n[world]\nname = 'matrix'")
    Path("stranger.toml").write_text("[world]\nname = 'matrix'\n[agents.nobody]\nbatch_size = 3")
    Path("typo.toml").write_text("stepps = 3\n[world]\nname = 'matrix'")
    Path("nameless.toml").write_text("[world]\nnmae = 'matrix'")
    Path("kind.toml").write_text("steps = 'many'\n[world]\nname = 'matrix'")
    Path("raising.py").write_text("def make():\n    raise KeyError('walls')\n")
    before = sorted(tmp_path.rglob("*"))
    code = main(["train", *arguments.split()])
    err = capsys.readouterr().err
    assert NONSENSE[arguments] in err and err.startswith("error: ") and err.count("\n") == 1, err
    assert code == (1 if arguments == "raising:make" else 2)
    left = [path for path in sorted(tmp_path.rglob("*")) if path not in before and "__pycache__" not in path.parts]
    assert left in ([], [tmp_path / "runs"])


PLAIN = """
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv

class Plain(ParallelEnv):
    metadata = {"name": "plain"}
    possible_agents = ["a", "b"]
    observation_space = action_space = lambda self, agent: Discrete(2)
    def reset(self, seed=None, options=None):
        self.agents, self.turn = self.possible_agents[:], 0
        return dict.fromkeys(self.agents, 0), {a: {} for a in self.agents}
    def step(self, actions):
        self.turn += 1
        over = self.turn == 5
        every = lambda value: dict.fromkeys(actions, value)
        self.agents = [] if over else self.agents
        return every(0), every(1.0), every(False), every(over), {a: {} for a in actions}

class Torn(Plain):
    def render(self):
        raise ZeroDivisionError("no canvas")
"""


@pytest.mark.parametrize(
    ("world", "words"),
    [("Plain", "the world renders nothing"), ("Torn", "render() raised ZeroDivisionError: no canvas")],
)
def test_a_world_that_cannot_be_drawn_is_trained_all_the_same(world, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("undrawn.py").write_text(PLAIN)
    assert main(["train", f"undrawn:{world}", *TINY, "--steps", "60", "--run", "mine"]) == 0
    out = capsys.readouterr().out
    assert f"none: {words}" in out and "motet resume mine" in out


def test_a_run_without_an_update_warns(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "matrix", *TINY[:-1], "5000", "--steps", "60", "--run", "mine"]) == 0
    assert "no update was due yet for player_0, player_1: a learner waits for min_rows" in capsys.readouterr().out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_that_are_not_utf8_get_plain_characters(run, encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "motet.cli", "status", str(run)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"agent_0" in done.stdout and done.stdout.decode(encoding).isascii()


def test_a_world_that_raises_ends_the_run_with_its_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("falling.py").write_text(
        "from motet.worlds import MatrixGame\n"
        "class Falling(MatrixGame):\n"
        "    done = 0\n"
        "    def step(self, actions):\n"
        "        self.done += 1\n"
        "        if self.done > 20:\n"
        "            raise RuntimeError('the walls fell in')\n"
        "        return super().step(actions)\n"
    )
    assert main(["train", "falling:Falling", *TINY[2:], "--steps", "50", "--run", "run"]) == 1
    err = capsys.readouterr().err
    assert "actor-0 raised" in err and "the walls fell in" in err and "Traceback" in err and "in run" in err


def test_flags_that_do_not_exist_end_with_2(capsys):
    assert main(["train", "treasure_hunt", "--algorithm", "iqn", "--dqn.gamma", "0.9"]) == 2
    assert "--dqn.gamma" in capsys.readouterr().err


def test_help_shows_the_flags_of_world_and_algorithm(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as end:
        main(["train", "cleanup", "--algorithm", "iqn", "--help"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    common = ("--agents", "--world.growth", "--iqn.learning-rate", "--steps", "--run", "--wandb", "--publish-every")
    for flag in common:
        assert flag in out
    assert "--limits.hang-s" not in out and "--iqn.kappa" not in out
    assert out.endswith("motet train cleanup --help-all shows the other flags.\n")
    with pytest.raises(SystemExit) as end:
        main(["train", "cleanup", "--algorithm", "iqn", "--help-all"])
    out = capsys.readouterr().out
    assert end.value.code == 0
    for flag in (*common, "--limits.hang-s", "--iqn.kappa"):
        assert flag in out


@pytest.mark.parametrize("command", ["status", "resume", "watch"])
def test_a_directory_that_is_no_run_or_of_another_version(command, tmp_path, run, capsys):
    before = sorted(tmp_path.rglob("*"))
    assert main([command, str(tmp_path)]) == 2
    assert "run must be a run directory, got" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 99}))
    assert main([command, str(run)]) == 2
    assert re.search("has format 99, this motet .* reads format 1", capsys.readouterr().err)
    (run / "config.json").write_text("{")
    assert main([command, str(run)]) == 1
    assert "config.json cannot be read" in capsys.readouterr().err


def test_new_directories_never_collide(tmp_path):
    names = [new_directory("w", "a", tmp_path).name for _ in range(3)]
    assert [name[-2:] for name in names] == ["-1", "-2", "-3"]


def test_a_run_whose_world_cannot_be_recorded_says_how_to_resume_it(tmp_path):
    from motet.algorithms import DQNConfig
    from motet.training.run import train
    from motet.training.settings import Settings
    from motet.worlds import MatrixGame

    config = DQNConfig(hidden=(4,), batch_size=8, min_rows=8)
    train(lambda: MatrixGame(turns=5), config, Settings(steps=30, engine="serial"), run=tmp_path / "run")
    with pytest.raises(SettingError, match=r"resume\(run, world=…\)"):
        resume(tmp_path / "run", steps=10)
    assert resume(tmp_path / "run", steps=10, world=lambda: MatrixGame(turns=5)).steps == 40


def test_the_example_trains_and_plays(tmp_path):
    example = EXAMPLES / "train_treasure_hunt.py"
    assert len(example.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, example, "300"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "done after 300 steps" in done.stdout and "without exploration" in done.stdout

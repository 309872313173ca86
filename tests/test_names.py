"""Names are data: whatever agents, worlds and factories are called, runs are written, resumed, evaluated and shown."""

import functools
import json
import os
import sys
import textwrap
import unicodedata
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from safetensors.numpy import load_file

from motet.cli import command as cli
from motet.errors import CorruptionError
from motet.policies.entries import load_policies, read_weights
from motet.runs.checkpoint import Checkpoint
from motet.runs.config import describe_world, rebuild_world
from motet.runs.directory import RunDirectory
from motet.runs.status import new_directory
from motet.system.files import file_name, file_stems
from motet.worlds.catalogue import world_factory

ODD = ["red/0", "../../x", "a b", "A", "a"]

# As somebody writes it who has never heard of motet.
ARENA = """
    import functools

    import gymnasium
    import numpy as np
    from pettingzoo import ParallelEnv


    class Arena(ParallelEnv):
        metadata = {"name": "arena"}

        def __init__(self, length=5, names=("red/0", "../../x", "a b", "A", "a")):
            self.possible_agents = list(names)
            self.agents = []
            self.length = length

        def observation_space(self, agent):
            return gymnasium.spaces.Box(-1, 1, (2,), np.float32)

        def action_space(self, agent):
            return gymnasium.spaces.Discrete(2)

        def reset(self, seed=None, options=None):
            self.agents = self.possible_agents[:]
            self.t = 0
            return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

        def step(self, actions):
            self.t += 1
            over = self.t >= self.length
            seen = {a: np.full(2, self.t / self.length, np.float32) for a in self.agents}
            rewards = {a: float(actions[a]) for a in self.agents}
            ends, infos = {a: over for a in self.agents}, {a: {} for a in self.agents}
            result = seen, rewards, ends, {a: False for a in self.agents}, infos
            if over:
                self.agents = []
            return result


    class Shape:
        def __init__(self, length):
            self.length = length

    def shaped(shape, names=("solo",)):
        return Arena(shape.length, names)

    short = functools.partial(Arena, 3)                       # positional
    small = functools.partial(Arena, length=3)                # by name
    formed = functools.partial(shaped, Shape(3))              # of something that is no plain value
    quick = lambda length=3: Arena(length)
"""
TINY = ["--engine", "serial", "--dqn.hidden", "8", "--dqn.batch-size", "4", "--dqn.min-rows", "8"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a user's module in it, in which the user works."""
    home = tmp_path / "deep" / "home"
    home.mkdir(parents=True)
    (home / "arena_of_others.py").write_text(textwrap.dedent(ARENA))
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    monkeypatch.setenv("COLUMNS", "160")
    yield home
    sys.modules.pop("arena_of_others", None)


def everything_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_agents_of_any_name_are_trained_resumed_evaluated_and_reported(home, tmp_path, capsys):
    flags = [*TINY, "--steps", "40", "--checkpoint-every", "10", "--keep-replay", "--run", "mine"]
    assert cli.main(["train", "arena_of_others:Arena", *flags]) == 0
    assert cli.main(["resume", "mine", "--steps", "20", "--trust"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ODD)
    assert RunDirectory.open("mine").steps()[-1] == 60
    outside = {path for path in everything_below(tmp_path) if not path.startswith("deep/home/")}
    assert outside == {"deep", "deep/home"}, "nothing is written elsewhere"
    held = RunDirectory.open("mine").load()
    assert list(held.agents) == list(held.replay) == ODD
    files = {path.name.casefold() for path in (Path("mine/checkpoints") / f"{60:012d}").iterdir()}
    assert len(files) == 2 * len(ODD) + 1, "distinct, also where case does not count"
    assert {"a b.safetensors", "a.safetensors"} <= files, "what is safe keeps its file"
    assert cli.main(["eval", "mine", "-n", "2", "--trust", "--format", "json", "--out", "out.json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["agents"] == ODD
    given = ["-p", "mine,agent=red/0", "-p", "mine,agent=../../x", "-n", "2", "--trust", "--isolate"]
    assert cli.main(["eval", "mine", *given]) == 0
    assert "mine:../../x" in capsys.readouterr().out
    assert cli.main(["status", "mine"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ODD)
    assert cli.main(["report", "mine", "--out", "page.html"]) == 0
    assert all(name in Path("page.html").read_text() for name in ODD)
    assert load_policies("mine", trust=True).keys() == set(ODD)


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t >= 4, False, {}


def test_a_world_with_a_namespace_names_a_run(home, capsys, monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.envs.registration.registry))
    gymnasium.register("House/Corridor-v5", Corridor)
    assert cli.main(["train", "gym:House/Corridor-v5", *TINY, "--steps", "20"]) == 0
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("House-Corridor-v5-dqn-")
    assert cli.main(["resume", str(run), "--steps", "10"]) == 0
    assert "House/Corridor-v5 · dqn" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("world", "folder"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("../../etc", "etc"),
        ("a\0b\nc", "a-b-c"),
        ("", "world"),
        ("..", "world"),
        ("CartPole-v1", "CartPole-v1"),
    ],
)
def test_a_new_run_lies_where_runs_lie(tmp_path, world, folder):
    path = new_directory(world, "dqn", tmp_path / "runs")
    assert path.parent == tmp_path / "runs" and path.is_dir()
    assert path.name.startswith(f"{folder}-dqn-")
    assert new_directory("x" * 5000, "y" * 5000, tmp_path / "runs").is_dir()


# Files


@pytest.mark.parametrize("name", ["agent_0", "a b", "A", "Ünï", "a.b", "a-b~c", "player (1)", "x" * 100, "con_1"])
def test_names_that_are_safe_keep_their_files(name):
    assert file_stems([name, "other"])[name] == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        ".league",
        "red/0",
        "../../x",
        "/etc/passwd",
        "C:\\x",
        "a\0b",
        "a\nb",
        "CON",
        "nul",
        "com1.txt",
        "a:b",
        *("x" * 300, "ü" * 200, "\ud800", "a.", "a ", "x.replay", "-", "~", "a\u202eb", "*", "x~0123456789abcdef"),
    ],
)
def test_any_name_has_a_file_of_its_own_within_its_folder(name, tmp_path):
    stems = file_stems([name, "other", "-", "a", "~"])
    assert len({stem.casefold() for stem in stems.values()}) == len(stems)
    path = tmp_path / f"{stems[name]}.replay.safetensors"
    path.write_bytes(b"")
    assert list(tmp_path.iterdir()) == [path], "nowhere else"
    assert stems[name] == file_stems([name, "other", "-", "a", "~"])[name], "the same each time"


def test_names_that_some_file_systems_take_for_one_have_files_of_their_own():
    composed, apart = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    names = ["A", "a", composed, apart, "STRASSE", "straße", "x", "x.replay", "Red/0", "red/0", "red\\0"]
    stems = file_stems(names)
    folded = {unicodedata.normalize("NFC", stem).casefold() for stem in stems.values()}
    assert len(folded) == len(names)
    assert stems == file_stems(reversed(names)), "whatever their order"
    assert stems["a"] == "a" and stems["x"] == "x"
    with_replay = [
        f"{stem}{end}".casefold() for stem in stems.values() for end in (".safetensors", ".replay.safetensors")
    ]
    assert len(set(with_replay)) == 2 * len(names)


def checkpoint(*names):
    arrays = {name: {"state": np.full(3, i, np.float32)} for i, name in enumerate(names)}
    return Checkpoint(7, arrays, {"x": 1}, {name: {"lane0": np.full(2, i)} for i, name in enumerate(names)})


def test_old_checkpoints_are_read(tmp_path):
    """Before there were safe names each agent's file had its name, as it was."""
    run = RunDirectory(tmp_path)
    names = ["agent_0", "a:b", "A", "a", ".dot", "con"]
    folder = run.save(checkpoint(*names))
    notes = json.loads((folder / "checkpoint.json").read_text())
    for name, stem in notes.pop("files").items():
        for end in (".safetensors", ".replay.safetensors"):
            (folder / f"{stem}{end}").rename(folder / f"{name}{end}")
    (folder / "checkpoint.json").write_text(json.dumps(notes))
    found = run.load()
    assert list(found.agents) == list(found.replay) == names
    for i, name in enumerate(names):
        assert found.agents[name]["state"][0] == found.replay[name]["lane0"][0] == read_weights(folder)[name][0] == i


@pytest.mark.parametrize("evil", ["../../secret", "/secret", "..", "", "a/b", "a\0b", 3, None])
@pytest.mark.parametrize("old", [False, True])
def test_a_checkpoint_of_somebody_else_names_no_file_elsewhere(tmp_path, evil, old):
    run = RunDirectory(tmp_path / "run")
    folder = run.save(checkpoint("a"))
    for place in (tmp_path / "secret.safetensors", tmp_path / "run" / "secret.safetensors"):
        place.write_bytes((folder / "a.safetensors").read_bytes())
    notes = json.loads((folder / "checkpoint.json").read_text())
    if old:
        notes.pop("files")
        notes["agents"] = [evil]
    else:
        notes["files"]["a"] = evil
    (folder / "checkpoint.json").write_text(json.dumps(notes))
    for read in (run.load, functools.partial(read_weights, folder)):
        with pytest.raises(CorruptionError, match=r"checkpoint\.json|is missing"):
            read()


def test_a_file_that_is_not_named_is_damage(tmp_path):
    run = RunDirectory(tmp_path)
    folder = run.save(checkpoint("a", "b"))
    notes = json.loads((folder / "checkpoint.json").read_text())
    del notes["files"]["b"]
    (folder / "checkpoint.json").write_text(json.dumps(notes))
    with pytest.raises(CorruptionError, match="does not name a file for 'b'"):
        run.load()


def test_a_checkpoint_holds_what_it_was_given(tmp_path):
    names = ["red/0", "../../x", "", "\0", "é", "e\u0301", "x", "x.replay", ".league", "X" * 400]
    run = RunDirectory(tmp_path)
    given = checkpoint(*names)
    given.league = {"pool": np.arange(3)}
    folder = run.save(given)
    found = run.load()
    assert list(found.agents) == list(found.replay) == names
    for i, name in enumerate(names):
        assert found.agents[name]["state"][0] == found.replay[name]["lane0"][0] == i
    assert found.league["pool"].tolist() == [0, 1, 2]
    assert sorted(os.listdir(tmp_path)) == ["checkpoints"]
    assert load_file(folder / "x.safetensors")["state"][0] == names.index("x")


# Factories by path


@pytest.mark.parametrize("name", ["short", "small", "formed", "quick"])
def test_a_factory_given_by_path_is_stored_as_that_path(home, name, capsys):
    path = f"arena_of_others:{name}"
    assert describe_world(world_factory(path)) == {"path": path, "settings": {}}
    assert cli.main(["train", path, *TINY, "--steps", "20", "--run", "mine"]) == 0
    config = json.loads(Path("mine/config.json").read_text())
    assert config["world"] == {"path": path, "settings": {}}
    assert cli.main(["resume", "mine", "--steps", "10", "--trust"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", "mine", "-n", "1", "--trust", "--format", "json", "-j", "1"]) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert result["world"] == {"path": path, "settings": {}}
    assert result["episodes"][0]["decisions"][0] == 3


def test_what_flags_set_on_top_of_it_is_stored_too(home):
    assert (
        cli.main(["train", "arena_of_others:small", "--world.length", "4", *TINY, "--steps", "20", "--run", "mine"])
        == 0
    )
    plain = json.loads(Path("mine/config.json").read_text())["world"]
    assert plain == {"path": "arena_of_others:small", "settings": {"length": 4}}
    assert rebuild_world(plain, trust=True)().length == 4
    assert describe_world(rebuild_world(plain, trust=True)) == plain


def test_such_a_factory_works_in_jobs(home, capsys):
    assert cli.main(["eval", "arena_of_others:short", "-p", "random", "-n", "2", "-j", "2", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["episodes"][1]["decisions"][0] == 3


def test_file_names_are_one_word_of_a_path():
    assert file_name("ALE/Pong-v5") == "ALE-Pong-v5"
    assert file_name("a b") == "a b"

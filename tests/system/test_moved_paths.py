"""Paths of classes in files of earlier versions: wherever one is read, the class is found where it is now."""

import importlib
import json

import pytest

from motet.algorithms.catalogue import algorithm_config
from motet.cli import main
from motet.policy import ConstantPolicy, imported
from motet.runs.config import rebuild, rebuild_world
from motet.schedule import Linear
from motet.system import imports
from motet.system.imports import find, import_named, now_at, path_now, path_of, paths_now
from motet.training.league import League
from motet.training.run import Settings, train
from motet.worlds import MatrixGame, Rooms
from motet.worlds.catalogue import world_factory

MOVED = {
    "motet.older": "motet.old",  # the module moved twice, and then classes were renamed
    "motet.old:Straight": "motet.schedule:Linear",
    "motet.old:Dqn": "motet.algorithms.dqn:DQNConfig",
    "motet.old:Options": "motet.training.run:Settings",
    "motet.old:Dice": "motet.policy:RandomPolicy",
    "motet.worlds.older": "motet.worlds.matrix",
    "motet.worlds.matrix:Game": "motet.worlds.matrix:MatrixGame",
    "motet.worlds.older:House": "motet.worlds.rooms:Rooms",
}
GAME = "motet.worlds.older:Game"


@pytest.fixture
def moved(monkeypatch):
    for old, new in MOVED.items():
        monkeypatch.setitem(imports._MOVED, old, new)


@pytest.mark.usefixtures("moved")
def test_moves_and_new_names_are_followed_one_after_another():
    assert now_at("motet.older", "Straight") == ("motet.schedule", "Linear")
    assert now_at("motet.older", "Straight.at") == ("motet.schedule", "Linear.at")
    assert path_now(GAME) == "motet.worlds.matrix:MatrixGame" and path_now("hunt") == "hunt"
    assert find("motet.older", "Straight") is import_named("motet.older:Straight", "x", ()) is Linear
    plain = {"world": {"path": GAME}, "agents": [{"class": "motet.older:Dqn", "source": GAME}, None]}
    assert paths_now(plain) == {
        "world": {"path": "motet.worlds.matrix:MatrixGame"},
        "agents": [{"class": "motet.algorithms.dqn:DQNConfig", "source": GAME}, None],
    }


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("trust", [False, True])
def test_in_the_config_of_a_run(trust):
    plain = {"class": "motet.older:Straight", "start": 1.0, "end": 0.0, "steps": 10}
    assert rebuild(plain, trust=trust) == Linear(1.0, 0.0, 10)
    assert rebuild({"class": "motet.older:Options", "steps": 3}, trust=trust) == Settings(steps=3)
    assert rebuild_world({"path": GAME, "settings": {"turns": 3}}, trust=trust)().turns == 3


@pytest.mark.usefixtures("moved")
def test_where_users_name_worlds_algorithms_and_policies():
    assert world_factory(GAME) is MatrixGame
    assert type(algorithm_config("motet.older:Dqn")).__name__ == "DQNConfig"
    assert imported("motet.older:Dice") is imported("motet.policy:RandomPolicy")


@pytest.mark.usefixtures("moved")
def test_in_commands_and_experiment_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment.toml").write_text(
        f'algorithm = "motet.older:Dqn"\nsteps = 20\nengine = "serial"\n[world]\nname = "{GAME}"\nturns = 5\n'
    )
    assert main(["train", "experiment.toml", "--run", "run"]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["world"]["path"] == path_of(MatrixGame)
    moved = "motet._scripted:constant,kw.action=1"  # jobs are other processes, which know the real table alone
    assert main(["eval", GAME, "-p", moved, "--episodes", "1", "--jobs", "1"]) == 0
    assert main(["plan", "motet.worlds.older:House", "--map", "closet", "--horizon", "2"]) == 0
    assert find("motet.worlds.older", "House") is Rooms
    capsys.readouterr()


def test_as_an_anchor_of_self_play(monkeypatch):
    monkeypatch.setitem(imports._MOVED, "motet.older:still", f"{__name__}:still")
    league = League(anchors=("motet.older:still",))
    settings = Settings(steps=20, engine="serial", self_play=True, league=league)
    assert train(MatrixGame, "dqn", settings).state == "done"


def still():
    return ConstantPolicy(0)


def test_no_entries_lead_in_a_circle():
    for old in imports._MOVED:
        seen = [old.partition(":")[::2]]
        while (moved := imports._MOVED.get(":".join(seen[-1]), imports._MOVED.get(seen[-1][0]))) is not None:
            module, _, name = moved.partition(":")
            at = (module, name or seen[-1][1])
            assert at not in seen
            seen.append(at)


@pytest.mark.parametrize("old", imports._MOVED)
def test_every_entry_leads_to_something_and_hides_nothing_else(old):
    module, _, name = old.partition(":")
    if not name:
        importlib.import_module(now_at(module, "")[0])
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(module)
        return
    found = find(module, name)
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError:
        return
    assert getattr(there, name, found) is found

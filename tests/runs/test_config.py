"""Settings of a run as plain values and back; and that the run directory of another user runs no code."""

import functools
import json
import re
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from motet.algorithms import DQNConfig, IQNConfig
from motet.errors import SettingError
from motet.placement import Cluster
from motet.runs.config import describe, describe_world, rebuild, rebuild_agents, rebuild_world
from motet.schedule import Exponential, Linear, Staged, Stages
from motet.system.supervisor import RestartLimits
from motet.training import League
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame, TreasureHunt


@dataclass(frozen=True)
class Mine:
    """A user's own config."""

    rate: float = 0.1


@pytest.mark.parametrize(
    "config",
    [
        Settings(),
        Settings(steps=7, updates_per_step=0.5, slack=0, limits=RestartLimits(hang_s=3)),
        DQNConfig(hidden=(8, 4), learning_rate=Exponential(1e-3, 1e-5, 100.0)),
        IQNConfig(epsilon=Linear(0.5, 0.1, 10)),
    ],
)
def test_there_and_back_through_json(config):
    plain = json.loads(json.dumps(describe(config)))
    assert rebuild(plain) == config
    assert plain["class"] == f"{type(config).__module__}:{type(config).__name__}"


def test_worlds_there_and_back():
    plain = describe_world(functools.partial(functools.partial(TreasureHunt, agents=4), size=9))
    assert plain["settings"] == {"agents": 4, "size": 9}
    world = rebuild_world(json.loads(json.dumps(plain)))()
    assert isinstance(world, TreasureHunt) and (world.size, len(world.possible_agents)) == (9, 4)
    assert isinstance(rebuild_world(describe_world(MatrixGame))(), MatrixGame)


@pytest.mark.parametrize("world", [lambda: None, functools.partial(MatrixGame, "chicken"), TreasureHunt().reset])
def test_a_world_that_cannot_be_recorded_is_reported(world):
    plain = describe_world(world)
    assert plain["path"] is None
    with pytest.raises(SettingError, match=r"cannot be imported .*resume\(run, world=…\)"):
        rebuild_world(plain)


def test_a_factory_that_holds_an_environment_is_named_shortly():
    plain = describe_world(functools.partial(MatrixGame, b"state" * 10_000))
    with pytest.raises(SettingError, match=r"load_policies\(run, world=…\)") as error:
        rebuild_world(plain)
    assert len(str(error.value)) < 500


def test_nothing_outside_of_motet_is_imported_without_trust(tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    (tmp_path / "evil_module.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef make(**given): return given\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for attempt in (
        lambda: rebuild({"class": "evil_module:make"}),
        lambda: rebuild({"class": "motet.train:Settings", "limits": {"class": "evil_module:make"}}),
        lambda: rebuild_world({"path": "evil_module:make", "settings": {}}),
        lambda: rebuild_world({"path": "motetevil.worlds:make", "settings": {}}),
    ):
        with pytest.raises(SettingError, match="not part of motet"):
            attempt()
    assert not marker.exists() and "evil_module" not in sys.modules
    assert rebuild_world({"path": "evil_module:make", "settings": {"a": 1}}, trust=True)() == {"a": 1}
    assert marker.exists()


@pytest.mark.parametrize(
    "path",
    ["motet.cli:os", "motet.cli:main", "motet.system.child:os.system", "motet.train:train", "motet.worlds:nothing"],
)
def test_nothing_but_dataclasses_and_worlds_of_motet_is_taken(path):
    with pytest.raises(SettingError):
        rebuild({"class": path})
    with pytest.raises(SettingError):
        rebuild_world({"path": path})


def test_errors_name_what_was_given():
    with pytest.raises(SettingError, match=r"RestartLimits must have fields among hang_s, .*, got colour"):
        rebuild({"class": "motet.system.supervisor:RestartLimits", "colour": 1})
    with pytest.raises(SettingError, match="got a set"):
        describe({"a": {1, 2}})
    with pytest.raises(SettingError, match="'class'"):
        describe({"class": 1})
    with pytest.raises(SettingError, match="slack"):
        rebuild({"class": "motet.train:Settings", "slack": -3.0})
    with pytest.raises(SettingError, match=r"agent a: .* cannot be rebuilt"):
        rebuild_agents({"a": {"class": None, "given": "Odd()", "why": "it is odd"}})


def test_a_users_own_config_needs_trust():
    plain = describe(Mine(0.3))
    with pytest.raises(SettingError, match="--trust"):
        rebuild(plain)
    assert rebuild(plain, trust=True) == Mine(0.3)


def test_fields_that_an_older_run_lacks_take_their_defaults():
    assert rebuild({"class": "motet.system.supervisor:RestartLimits", "hang_s": 3.0}) == RestartLimits(hang_s=3.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Settings(steps="many"), "steps must be an int >= 1 or None, got 'many'"),
        (lambda: Settings(steps=150.5), "steps must be an int >= 1 or None, got 150.5"),
        (lambda: Settings(engine="thread"), "engine must be 'processes', 'serial' or 'ray', got 'thread'"),
        (lambda: Settings(limits=5), "limits must be a RestartLimits, got 5"),
        (lambda: Settings(seed=-1), "seed must be an int >= 0, got -1"),
        (lambda: DQNConfig(hidden="64"), "hidden must be a tuple of one or more ints >= 1, got '64'"),
        (lambda: DQNConfig(gamma=None), "gamma must be a number from 0 to 1, got None"),
        (
            lambda: DQNConfig(learning_rate="fast"),
            "learning_rate must be a number from 0 to 1 or a schedule, got 'fast'",
        ),
        (lambda: train("matrix", "dqn", {"steps": 5}), "settings must be a motet.Settings, got {'steps': 5}"),
        (
            lambda: train("matrix", "dqn", Settings(engine="serial"), run=""),
            "run must be a path for the run directory, got an empty string",
        ),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_name(make, words):
    with pytest.raises(SettingError, match=re.escape(words)):
        make()


def test_numbers_of_numpy_are_numbers_and_a_class_is_its_defaults():
    assert Settings(steps=np.int64(20), seconds=np.float32(2), engine="serial").steps == 20
    assert train("matrix", DQNConfig, Settings(steps=20, engine="serial")).state == "done"


EARLIER = {
    "motet.train:Settings": Settings(steps=7),
    "motet.league:League": League(block=3),
    "motet.supervisor:Limits": RestartLimits(),
    "motet.cluster:Cluster": Cluster(actor_cpus=2.0),
    "motet.algorithm:Linear": Linear(1.0, 0.0, 10),
    "motet.algorithm:Exponential": Exponential(1.0, 0.0, 10.0),
    "motet.algorithm:Stages": Stages({"first": 5, "full": None}),
    "motet.algorithm:Staged": Staged({"full": 1.0}),
}


@pytest.mark.parametrize("path", EARLIER)
def test_classes_that_earlier_versions_wrote_down_are_found(path):
    assert rebuild({**describe(EARLIER[path]), "class": path}) == EARLIER[path]

"""Schedules that are functions of users, and the floor of an exponential decay."""

import json
import pickle
import re

import pytest
from support import foreign_schedules as foreign

import motet
from motet.algorithms import DQNConfig
from motet.cli.flags import parse
from motet.errors import SettingError
from motet.runs.config import describe, rebuild, rebuild_agents, refuse_untrusted
from motet.runs.trust import foreign_code
from motet.schedule import Exponential, Linear, Staged, Stages, value_at
from motet.system.imports import import_function
from motet.training import Settings

PATH = "support.foreign_schedules"


def test_an_exponential_decay_stops_at_its_floor():
    epsilon = Exponential(1.0, 0.0, half_life=10, least=0.3)
    assert [epsilon(step) for step in (0, 10, 17, 20, 10**6)] == [1.0, 0.5, 0.5**1.7, 0.3, 0.3]
    assert rebuild(describe(epsilon)) == epsilon
    assert DQNConfig(learning_rate=Exponential(1e-3, -1.0, 100.0, least=0.0)).learning_rate(10**6) == 0.0
    for least in (-0.1, 1.1):
        with pytest.raises(SettingError, match="least must be from end to start"):
            Exponential(1.0, 0.0, half_life=10, least=least)


@pytest.mark.parametrize("name", ["cosine", "square", "halves"])
def test_any_callable_of_the_step_is_a_schedule_in_flags_and_files(name, tmp_path):
    function = getattr(foreign, name)
    file = tmp_path / "one.toml"
    file.write_text(f'[world]\nname = "matrix"\n[dqn]\nepsilon = "{PATH}:{name}"\n')
    by_flag = parse(["matrix", "--dqn.epsilon", f"{PATH}:{name}"]).configs
    of_agent = parse(["matrix", f"--agents.player_0.epsilon={PATH}:{name}"]).configs["player_0"]
    for config in (by_flag, parse([str(file)]).configs, of_agent):
        assert [value_at(config.epsilon, step) for step in (0, 60, 700)] == [function(0), function(60), function(700)]
        plain = json.loads(json.dumps(describe(config)))
        assert plain["epsilon"] == {"function": f"{PATH}:{name}"}
        again = rebuild(plain, trust=True)
        assert again == config == pickle.loads(pickle.dumps(config)) and again.epsilon(60) == function(60)  # noqa: S301


def test_a_stage_may_have_a_function():
    staged = f"warm_up=1.0,ramp={PATH}:square,full=exponential:1:0:50:0.2"
    asked = parse(["matrix", "--dqn.stages.lengths", "warm_up", "10", "ramp", "500", "full", "None",
                   "--dqn.epsilon", staged])  # fmt: skip
    epsilon, stages = asked.configs.epsilon, asked.configs.stages
    assert [value_at(epsilon, step, stages) for step in (0, 60, 10**6)] == [1.0, foreign.square(50), 0.2]
    assert parse(["matrix", "--dqn.epsilon", "exponential:1:0:50:0.2:updates"]).configs.epsilon == Exponential(
        1.0, 0.0, 50.0, by="updates", least=0.2
    )
    with pytest.raises(SettingError, match="epsilon in ramp at step 0 must be a number from 0 to 1"):
        DQNConfig(stages=Stages({"ramp": 5, "full": None}), epsilon=Staged({"ramp": lambda step: 7.0, "full": 1.0}))


def test_values_that_are_not_schedules_are_refused_by_name():
    for wrong, words in (
        (lambda step: 1.5, "epsilon at step 0 must be a number from 0 to 1"),
        (lambda step: "much", "epsilon at step 0 must be a number, got 'much'"),
        (lambda: 0.5, "which raised TypeError at step 0"),
        (DQNConfig, "epsilon must be a schedule"),
    ):
        with pytest.raises(SettingError, match=re.escape(words)):
            DQNConfig(epsilon=wrong)
    with pytest.raises(SettingError, match=r"must be a function, got 0\.3"):
        import_function(f"{PATH}:constant", "epsilon")
    with pytest.raises(SettingError, match=r"finite number at every step, got nan at 50 of <function"):
        value_at(foreign.breaks, 50)
    with pytest.raises(SettingError, match="epsilon must be a number from 0 to 1 or a schedule, got 'fast'"):
        DQNConfig(epsilon="fast")
    assert value_at(Linear(0.0, 1.0, steps=4), 2) == 0.5


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_run_learns_by_own_schedules_and_is_resumed_with_them(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = DQNConfig(
        hidden=(4,),
        batch_size=4,
        min_rows=8,
        epsilon=foreign.cosine,
        learning_rate=import_function(f"{PATH}:square", ""),
    )
    motet.train("matrix", config, Settings(steps=40, engine=engine, updates_per_step=1.0), run=tmp_path / "run")
    plain = json.loads((tmp_path / "run" / "config.json").read_text())
    assert foreign_code(plain)[:2] == [f"{PATH}:square", f"{PATH}:cosine"]
    for attempt in (rebuild_agents, refuse_untrusted):
        with pytest.raises(SettingError, match="not part of motet"):
            attempt(plain["agents"])
    assert rebuild_agents(plain["agents"], trust=True)["player_0"].epsilon is foreign.cosine
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    with pytest.raises(SettingError, match="--trust"):
        motet.resume(tmp_path / "run", steps=10)
    if engine == "serial":
        assert motet.resume(tmp_path / "run", steps=10, trust=True).steps == 50

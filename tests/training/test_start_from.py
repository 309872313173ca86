"""Agents that start from what an agent of another run has learned."""

import json
import shutil
from typing import Any

import gymnasium
import numpy as np
import pytest
from support.foreign_losses import DiscreteSAC
from support.stand_in import StandIn

from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.cli import main
from motet.errors import SettingError
from motet.training.run import resume, train
from motet.training.settings import AgentSettings, Settings
from motet.worlds import MatrixGame

FEW: dict[str, Any] = {"batch_size": 8, "min_rows": 8}
MANY: dict[str, Any] = {"batch_size": 8, "min_rows": 900}  # no update in a short run
ONCE: dict[str, Any] = {"batch_size": 1, "hidden": (8,), "minibatches": 1, "epochs": 1}
CASES: dict[str, tuple[Any, Any]] = {
    "dqn": (DQNConfig(hidden=(8,), **FEW), DQNConfig(hidden=(8,), **MANY)),
    "own loss": (DiscreteSAC(**FEW), DiscreteSAC(**MANY)),
    "td3": (TD3Config(hidden=(8,), normalise=True, **FEW), TD3Config(hidden=(8,), normalise=True, **MANY)),
    "ppo": (PPOConfig(**ONCE, length=8), PPOConfig(**ONCE, length=500)),
}


def serial(steps: int) -> Settings:
    return Settings(engine="serial", steps=steps)


@pytest.mark.parametrize("name", CASES)
def test_an_agent_starts_with_what_was_learned_and_a_fresh_optimiser(name: str, tmp_path: Any) -> None:
    world = (lambda: gymnasium.make("Pendulum-v1")) if name == "td3" else (lambda: gymnasium.make("CartPole-v1"))
    first, second = CASES[name]
    before = train(world, first, serial(60), run=tmp_path / "a").agents["agent_0"]
    given = AgentSettings(second, start_from=str(tmp_path / "a"))
    result = train(world, given, serial(40))
    after = result.agents["agent_0"]
    fresh = train(world, second, serial(40)).agents["agent_0"]
    old, new, initial = (np.array(one["state"]).ravel() for one in (before, after, fresh))
    moments = (initial == 0) & (old != 0) & (new == 0)
    assert 0.15 < moments.mean() < 0.7, "both moments of what is learned"
    assert np.array_equal(new[~moments], old[~moments])
    assert not np.array_equal(new, initial)
    assert not np.any(after["counters"]) and np.array_equal(after["random"], fresh["random"])
    assert result.updates == {"agent_0": 0}


def test_lockstep_is_the_serial_run_and_each_agent_may_start_from_another(tmp_path: Any) -> None:
    config = DQNConfig(hidden=(8,), **FEW)
    train(MatrixGame, config, serial(60), run=tmp_path / "a")
    agents = {
        "player_0": AgentSettings(config, start_from=f"{tmp_path / 'a'},agent=player_1"),
        "player_1": config,
    }
    states = []
    for engine in ("serial", "processes"):
        settings = Settings(engine=engine, steps=60, slack=0, updates_per_step=0.5)  # type: ignore[arg-type]
        states.append(train(MatrixGame, agents, settings).agents)
    for name in agents:
        assert np.array_equal(states[0][name]["state"], states[1][name]["state"])


def test_a_resumed_run_does_not_need_the_run_from_which_it_started(tmp_path: Any) -> None:
    train(MatrixGame, StandIn(), serial(60), run=tmp_path / "a")
    one = AgentSettings(StandIn(), start_from=str(tmp_path / "a"))
    train(MatrixGame, {"player_0": one, "player_1": StandIn()}, serial(60), run=tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    assert resume(tmp_path / "b", steps=20, trust=True).steps == 80
    again = {"player_0": one, "player_1": StandIn()}
    assert resume(tmp_path / "b", steps=20, algorithm=again).steps == 100


def test_a_start_from_an_unsuitable_run_is_refused(tmp_path: Any) -> None:
    train("matrix", DQNConfig(hidden=(8, 4), **FEW), serial(40), run=tmp_path / "a")
    run = str(tmp_path / "a")

    def start(config: Any, given: str = run, world: Any = "matrix") -> None:
        agents = {"player_0": AgentSettings(config, start_from=given), "player_1": "dqn"}
        train(world, agents if world == "matrix" else agents["player_0"], serial(10))

    fits = DQNConfig(hidden=(8, 4), **FEW)
    for says, given in {
        r"player_0 with IQNConfig: start_from must be a run with the same algorithm": (IQNConfig(**FEW),),
        r"with hidden=\[4, 8\], got .*, which has \[8, 4\]": (DQNConfig(hidden=(4, 8), **FEW),),
        r"same observation space, Box.*, got .*, which has": (
            fits,
            f"{run},agent=player_1",
            "gym:CartPole-v1",
        ),
        r"agent must be one of player_0, player_1": (fits, f"{run},agent=player_2"),
        r"step must be one of the checkpoints": (fits, f"{run},step=7"),
        r"start_from must be a run or checkpoint": (fits, "random"),
        r"must be a run or checkpoint.*absent": (fits, str(tmp_path / "absent")),
    }.items():
        with pytest.raises(Exception, match=says):
            start(*given)
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    del config["spaces"], config["agents"]["player_0"]["hidden"]  # as if of an earlier version
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match="its observations, actions or networks differ"):
        start(DQNConfig(hidden=(80,), **FEW))
    with pytest.raises(SettingError, match="start_from of player_0: only valid for agents that learn"):
        train("matrix", {"player_0": AgentSettings("random", start_from=run), "player_1": "dqn"}, serial(10))


def test_files_and_flags_say_it(tmp_path: Any) -> None:
    common = ["--engine", "serial", "--steps", "40", "--dqn.min-rows", "8", "--dqn.batch-size", "8"]
    assert main(["train", "matrix", *common, "--run", str(tmp_path / "a")]) == 0
    more = ["--agents.player_0.start-from", str(tmp_path / "a"), "--run", str(tmp_path / "b")]
    assert main(["train", "matrix", *common, *more]) == 0
    assert str(tmp_path / "a") in (tmp_path / "b" / "config.json").read_text()

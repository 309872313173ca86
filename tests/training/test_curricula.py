"""Worlds that are told the stage of a curriculum: at each reset, that of the versions which the actor holds."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from support.coins import Coins, quick
from support.foreign_losses import MyDQN

from motet.algorithms.dqn import DQNConfig
from motet.errors import SettingError
from motet.schedule import Stages
from motet.training.league import League
from motet.training.roster import make_roster
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import make_world_batch
from motet.worlds import MatrixGame

FEW: dict[str, Any] = {"hidden": (8,), "batch_size": 8, "min_rows": 8}
STAGES = Stages({"near": 60, "far": 80, "all": None})
TOLD: list[tuple[str, int]] = []


class Reach(gymnasium.Env):
    """Walk to the end of a corridor, whose length depends on the stage. The saved state does not name the stage."""

    observation_space, action_space = Box(0, 99, (2,), np.float32), Discrete(2)
    steps = 0

    def __init__(self) -> None:
        self.stage, self.at = "unknown", 0

    def set_stage(self, stage: str) -> None:
        self.stage = stage

    def length(self) -> int:
        return {"near": 3, "far": 7, "all": 12, "unknown": 1}[self.stage]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        TOLD.append((self.stage, Reach.steps))
        self.at = 0
        return np.array([0, self.length()], np.float32), {}

    def step(self, action: Any) -> Any:
        Reach.steps += 1
        self.at += 1 + int(action) * (self.at == 1)
        over = self.at >= self.length()
        return np.array([self.at, self.length()], np.float32), float(action), over, False, {}

    def get_state(self) -> Any:
        return self.at

    def set_state(self, state: Any) -> None:
        self.at = state


@pytest.fixture(autouse=True)
def told() -> list[tuple[str, int]]:
    TOLD.clear()
    Reach.steps = 0
    return TOLD


def serial(**more: Any) -> Settings:
    return Settings(**{"engine": "serial", "steps": 200, "publish_every": 1, **more})


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: gymnasium.wrappers.TimeLimit(env, 50)])
def test_a_world_gets_the_stage_before_each_reset(wrap: Callable[[Any], Any], told: list[tuple[str, int]]) -> None:
    train(lambda: wrap(Reach()), DQNConfig(**FEW, stages=STAGES), serial())
    resets = told[1:]  # the first one is of the probe, which is told nothing
    assert [stage for stage, _ in resets] == sorted((s for s, _ in resets), key=STAGES.names.index)
    for stage, step in resets:
        # The actor holds the version by which it chose its last action, when the row before was not yet complete.
        assert stage in {STAGES.names[STAGES.index(max(0, step - lag))] for lag in range(4)}
    assert {stage for stage, _ in resets} == set(STAGES.names)


def test_lockstep_with_a_curriculum_is_the_serial_run() -> None:
    states = []
    for engine in ("serial", "processes"):
        settings = serial(engine=engine, slack=0, updates_per_step=0.5, worlds_per_actor=2)
        states.append(train(Reach, MyDQN(batch_size=8, min_rows=8, stages=STAGES), settings).agents["agent_0"])
    for part in ("state", "counters", "reader"):
        assert np.array_equal(states[0][part], states[1][part])


def test_a_resumed_curriculum_is_the_uninterrupted_one(tmp_path: Any) -> None:
    """Also in the middle of an episode, in a world whose saved state does not name the stage."""
    config = DQNConfig(**FEW, stages=STAGES)
    settings = functools.partial(serial, checkpoint_every=100, keep_replay=True, worlds_per_actor=2)
    whole = train(Reach, config, settings(steps=190), run=tmp_path / "whole")
    train(Reach, config, settings(steps=95), run=tmp_path / "half")
    rest = resume(tmp_path / "half", steps=95, world=Reach, algorithm=config)
    for part in ("state", "counters", "reader", "random"):
        assert np.array_equal(whole.agents["agent_0"][part], rest.agents["agent_0"][part])


class Curriculum(MatrixGame):
    """Keeps what it was told."""

    def set_stage(self, stage: str) -> None:
        TOLD.append((stage, 0))


class OfSecond(Curriculum):
    stage_of = "player_1"


class OfNobody(Curriculum):
    stage_of = "player_7"


SLOW = DQNConfig(**FEW, stages=Stages({"slow": 150, "end": None}))
FAST = DQNConfig(**FEW, stages=Stages({"one": 20, "two": 50, "three": None}))
PLAIN = DQNConfig(**FEW)


@pytest.mark.parametrize(
    ("world", "first", "second", "stages"),
    [
        (Curriculum, SLOW, FAST, {"slow", "end"}),  # the least advanced agent
        (OfSecond, SLOW, FAST, {"one", "two", "three"}),
        (Curriculum, PLAIN, FAST, {"one", "two", "three"}),  # agents without stages do not count
        (Curriculum, PLAIN, PLAIN, set()),
        (OfNobody, PLAIN, "player_1", None),
        (OfSecond, "tit_for_tat", FAST, {"one", "two", "three"}),  # beside a partner
    ],
)
def test_several_agents(world: Any, first: Any, second: Any, stages: Any, told: list[tuple[str, int]]) -> None:
    make = functools.partial(world, turns=5)
    if stages is None:
        with pytest.raises(SettingError, match="stage_of must be one of the agents player_0, player_1, got 'player_7'"):
            train(make, first, serial())
        return
    train(make, {"player_0": first, "player_1": second}, serial())
    assert {stage for stage, _ in told} - {"one"} == stages - {"one"}, "both were in their first stage"


def test_the_agent_whose_stage_counts_must_have_stages() -> None:
    agents = {"player_0": SLOW, "player_1": PLAIN}
    with pytest.raises(SettingError, match="stage_of must be an agent that learns with several stages, got 'player_1'"):
        make_roster(OfSecond, agents, Settings())


class CoinsInStages(Coins, Curriculum):
    pass


def test_self_play_tells_the_stage_of_the_player(told: list[tuple[str, int]]) -> None:
    settings = quick(engine="serial", steps=200, league=League(snapshot_every=50, review_every=50, pool=2))
    train(CoinsInStages, DQNConfig(**FEW, stages=STAGES), settings)
    assert {stage for stage, _ in told} == set(STAGES.names)


class Arrays:
    """Two worlds as arrays that keep what they are told."""

    agents, worlds, can_save = ("a",), 2, True
    observation_spaces, action_spaces = (Box(0, 9, (1,)),), (Discrete(2),)

    def set_stage(self, stage: str) -> None:
        TOLD.append((stage, 0))

    def reset(self, worlds: Any, seeds: Any) -> None:
        TOLD.append(("reset", len(worlds)))

    def get_state(self) -> Any:
        return 1

    def set_state(self, state: Any) -> None:
        TOLD.append(("restored", state))


class WithArrays(gymnasium.Env):
    observation_space, action_space = Box(0, 9, (1,)), Discrete(2)

    def vector(self, worlds: int) -> Any:
        return Arrays()


def test_worlds_as_arrays_get_the_stage_too(told: list[tuple[str, int]]) -> None:
    batch = make_world_batch(WithArrays, 2, [False])
    batch.reset([0, 1], [1, 2])
    batch.set_stage("far")
    batch.reset([1], [3])
    assert told == [("reset", 2), ("far", 0), ("reset", 1)]
    told.clear()
    again = make_world_batch(WithArrays, 2, [False])
    again.set_state(batch.get_state())
    again.reset([0], [4])
    assert told == [("far", 0), ("restored", 1), ("far", 0), ("reset", 1)]


def test_a_world_that_raises_says_where() -> None:
    class Broken(Reach):
        def set_stage(self, stage: str) -> None:
            raise KeyError(stage)

    world = as_world(Broken())
    with pytest.raises(Exception, match=r"Broken.*set_stage\('near'\) raised KeyError"):
        world.set_stage("near")

"""Resumed = uninterrupted, bit for bit, in the serial engine, replay and half-played episodes included."""

import functools
import json
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from support.coins import Coins
from support.foreign_losses import A2C, DiscreteSAC
from support.foreign_networks import Dropped, mlp
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.schedule import Linear, Staged, Stages
from motet.training.league import League
from motet.training.run import resume, train
from motet.training.settings import Settings
from motet.worlds import Cleanup, Hockey, MatrixGame, TreasureHunt

SMALL = {"hidden": (16,), "min_rows": 64, "batch_size": 16, "capacity": 600}
WORLDS = {
    "treasure_hunt": functools.partial(TreasureHunt, agents=2, turns=37),
    "cleanup": functools.partial(Cleanup, agents=3, height=9, width=11, radius=2, turns=31),
    "matrix": functools.partial(MatrixGame, turns=23),
}
ALGORITHMS = {
    "stand-in": StandIn(),
    "dqn": DQNConfig(**SMALL),
    "dqn, prioritised": DQNConfig(**SMALL, prioritised=True, n_step=2),
    "own network that draws": DQNConfig(network=Dropped, **SMALL),
    "dqn, frames": DQNConfig(**SMALL, n_frames=3),
    "own loss": DiscreteSAC(min_rows=64, batch_size=16, capacity=600),
    "own loss, rows read once": A2C(batch_size=3, length=9),
    "iqn": IQNConfig(**SMALL),
    "ppo, own networks": PPOConfig(network=mlp, critic=mlp, batch_size=3, length=9, minibatches=3, epochs=2),
    "ppo, gru": PPOConfig(hidden=(16,), batch_size=3, length=9, minibatches=3, memory="gru", memory_size=8),
    "ppo, lstm": PPOConfig(hidden=(16,), batch_size=3, length=9, minibatches=3, memory="lstm", memory_size=8),
    "ppo": PPOConfig(hidden=(16,), batch_size=3, length=9, minibatches=3, epochs=2, n_frames=2, normalise=True),
}


def assert_equal(one, other):
    for name in one:
        for part in ("state", "counters", "random", "reader", "stage"):
            np.testing.assert_array_equal(one[name][part], other[name][part], err_msg=f"{name} {part}")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("algorithm", ["stand-in"])
def test_every_shipped_world(world, algorithm, tmp_path):
    compare(WORLDS[world], ALGORITHMS[algorithm], tmp_path)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "stand-in"])
def test_every_algorithm(algorithm, tmp_path):
    compare(WORLDS["treasure_hunt"], ALGORITHMS[algorithm], tmp_path)


@pytest.mark.parametrize("options", [{}, {"prioritised": True, "n_step": 3}])
def test_td3_with_statistics_and_stages(options, tmp_path):
    stages = Stages({"ramp": 300, "full": None}, clear_replay_on_stage=("full",))
    noise = Staged({"ramp": Linear(1.0, 0.1, 300), "full": 0.1})
    # Nothing is overwritten: a successor counts none of the rows that it finds as unread.
    config = TD3Config(**{**SMALL, "capacity": 2000, **options}, normalise=True, stages=stages, noise=noise)
    compare(Hockey, config, tmp_path)


@pytest.mark.parametrize("world", ["matrix", "treasure_hunt"])  # all at once, and in turn
def test_actors_that_seldom_look_at_the_publications(world, tmp_path):
    compare(WORLDS[world], ALGORITHMS["stand-in"], tmp_path, sync_interval=40)


def compare(world, algorithm, tmp_path, **more):
    once = isinstance(algorithm, PPOConfig | A2C)

    def settings(steps):
        return Settings(
            engine="serial", steps=steps, checkpoint_every=500, keep_replay=True, worlds_per_actor=2, publish_every=7,
            updates_per_step=None if once else 0.3, **more,
        )  # fmt: skip

    whole = train(world, algorithm, settings(1000), run=tmp_path / "whole")
    half = train(world, algorithm, settings(500), run=tmp_path / "half")
    rest = resume(tmp_path / "half", steps=500, world=world, algorithm=algorithm)
    assert half.steps == 500
    assert whole.steps == rest.steps == 1000
    assert whole.updates == rest.updates
    assert min(whole.updates.values()) > (30 if once else 150)
    assert_equal(whole.agents, rest.agents)


def test_a_world_that_cannot_save_its_state_is_reported(tmp_path):
    world = functools.partial(gymnasium.make, "CartPole-v1")
    settings = Settings(engine="serial", steps=200, keep_replay=True)
    train(world, StandIn(), settings, run=tmp_path / "run")
    said = []
    resume(tmp_path / "run", steps=100, world=world, algorithm=StandIn(), on_message=said.append)
    assert any("starting new episodes" in line for line in said)


# ---- what a checkpoint holds of versions and streams


def lines_of(run):
    lines = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("steps", [90, 333, 700])
@pytest.mark.parametrize("more", [{}, {"sync_interval": 40, "max_lag_steps": 30}], ids=["", "seldom"])
def test_a_run_stopped_at_any_step_is_resumed_exactly(more, steps, tmp_path):
    """Between two versions, with actors that hold an older one; evaluations go on alike.

    The runs that were stopped have one more: the last one, of the weights with which they ended.
    """

    def settings(steps):
        return Settings(
            engine="serial", steps=steps, keep_replay=True, worlds_per_actor=2, actors=2, publish_every=7,
            updates_per_step=0.3, evaluate_every=150, evaluate_episodes=2, **more,
        )  # fmt: skip

    whole = train(WORLDS["treasure_hunt"], StandIn(), settings(1000), run=tmp_path / "whole")
    first = train(WORLDS["treasure_hunt"], StandIn(), settings(steps), run=tmp_path / "parts").steps
    said = []
    go_on = functools.partial(
        resume, tmp_path / "parts", world=WORLDS["treasure_hunt"], algorithm=StandIn(), on_message=said.append
    )
    done = go_on(steps=4).steps
    rest = go_on(steps=1000 - done)
    assert whole.steps == rest.steps == 1000 and whole.updates == rest.updates and not said
    assert_equal(whole.agents, rest.agents)
    lines, parts = lines_of(tmp_path / "whole"), lines_of(tmp_path / "parts")
    assert [line for line in parts if line["step"] not in (first, done)] == lines
    assert [line["step"] for line in parts] == sorted([first, done, *(line["step"] for line in lines)])


@pytest.mark.parametrize("steps", [150, 333])
def test_self_play_stopped_twice_within_a_game_is_resumed_exactly(steps, tmp_path):
    def settings(steps):
        league = League(anchors=(), snapshot_every=100, review_every=50, block=2, self_share=0.6)
        return Settings(engine="serial", steps=steps, keep_replay=True, worlds_per_actor=2, self_play=True,
                        league=league, updates_per_step=0.3)  # fmt: skip

    whole = train(Coins, StandIn(), settings(600), run=tmp_path / "whole")
    train(Coins, StandIn(), settings(steps), run=tmp_path / "parts")
    go_on = functools.partial(resume, tmp_path / "parts", world=Coins, algorithm=StandIn())
    go_on(steps=2)
    done = go_on(steps=2).steps
    rest = go_on(steps=600 - done)
    assert whole.steps == rest.steps
    assert_equal(whole.agents, rest.agents)


class Bare:
    """A behaviour as many write it: it acts, and nobody can ask for its stream."""

    def __init__(self, inner):
        self.begin, self.load, self.act = inner.begin, inner.load, inner.act


@dataclass(frozen=True)
class Forgetful(StandIn):
    def behaviour(self, observation_space, action_space):
        return Bare(super().behaviour(observation_space, action_space))


def test_a_behaviour_that_cannot_save_its_stream_gets_a_new_one_when_it_is_resumed_and_only_then(tmp_path):
    def settings(every):
        return Settings(engine="serial", steps=400, keep_replay=True, checkpoint_every=every, updates_per_step=0.3)

    world, said = WORLDS["matrix"], []
    often = train(world, Forgetful(), settings(50), run=tmp_path / "often", on_message=said.append)
    seldom = train(world, StandIn(), settings(10**9), run=tmp_path / "seldom", on_message=said.append)
    assert_equal(often.agents, seldom.agents)
    assert not said
    rest = resume(tmp_path / "often", steps=200, world=world, algorithm=Forgetful(), on_message=said.append)
    assert rest.steps == 600 and rest.state == "done"
    (line,) = said
    assert "player_0, player_1" in line and "get_stream" in line and "not bit for bit" in line


def test_a_behaviour_that_gives_what_cannot_be_written_down_is_named_before_the_run_begins(tmp_path):
    class Odd(Bare):
        def get_stream(self):
            return object()

        def set_stream(self, stream):
            pass

    @dataclass(frozen=True)
    class Config(StandIn):
        def behaviour(self, observation_space, action_space):
            return Odd(super().behaviour(observation_space, action_space))

    settings = Settings(engine="serial", steps=100, keep_replay=True)
    with pytest.raises(SettingError, match=r"get_stream of Odd \(agent player_0\) must return plain values, got"):
        train(WORLDS["matrix"], Config(), settings, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_checkpoints_without_streams_of_older_versions_are_resumed(tmp_path):
    settings = Settings(engine="serial", steps=300, keep_replay=True, worlds_per_actor=2, updates_per_step=0.3)
    world = WORLDS["matrix"]
    train(world, StandIn(), settings, run=tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    kept = run.load()
    kept.notes.pop("evaluations")
    kept.notes["serial"].pop("published")
    for actor in kept.notes["serial"]["actors"]:
        actor.pop("streams")
        actor.pop("versions")
    run.save(kept)
    said = []
    rest = resume(tmp_path / "run", steps=200, world=world, algorithm=StandIn(), on_message=said.append)
    assert rest.steps == 500 and rest.state == "done"
    (line,) = said
    assert "without the random states" in line
    assert RunDirectory(tmp_path / "run").load().notes["serial"]["published"]

"""Lockstep = serial, bit for bit: the same weights, moments and counters of all agents after the same work."""

import functools
import hashlib
import os

import gymnasium
import pytest
from support.foreign_losses import A2C, DiscreteSAC
from support.foreign_networks import Dropped, Recalling, mlp
from support.sampled_goals import BoxedBushes, SampledBushes
from support.stand_in import StandIn

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.empower_sampled import EmpowerSampledConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.schedule import Linear, Staged, Stages
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import Cleanup, MatrixGame, TreasureHunt

HUNT = functools.partial(TreasureHunt, agents=3, turns=20)
SMALL = {"hidden": (16, 16), "min_rows": 64, "batch_size": 16, "capacity": 400}
LOSS = {"min_rows": 64, "batch_size": 16, "capacity": 400}
MEMORY = {"memory_size": 8, "sequence_length": 6, "burn_in": 2}
MODULE = {"memory_size": 8, "sequence_length": 3, "burn_in": 1}
"""For modules with a memory, which take long: they are called for each row of a sequence."""
ONCE = {"batch_size": 2, "length": 16, "minibatches": 2, "epochs": 2}
ALGORITHMS = {
    "stand-in": StandIn(),
    "stand-in, prioritised, 3 steps": StandIn(prioritised=True, n_step=3, capacity=200),
    "stand-in, sequences": StandIn(length=6, burn_in=2, n_step=2, capacity=400),
    "stand-in, prioritised sequences": StandIn(length=7, burn_in=3, prioritised=True, capacity=200),
    "dqn": DQNConfig(**SMALL),
    "dqn, prioritised": DQNConfig(**SMALL, prioritised=True, dueling=True, n_step=3),
    "own network": DQNConfig(network=mlp, **SMALL),
    "own network that draws": DQNConfig(network=Dropped, **SMALL),
    "own loss": DiscreteSAC(**LOSS),
    "dqn, memory": DQNConfig(**SMALL, **MEMORY, memory="gru", n_step=2),
    "dqn, module with a memory": DQNConfig(**{**SMALL, "capacity": 200}, **MODULE, encoder=Recalling, prioritised=True),
    "iqn": IQNConfig(**SMALL),
    "iqn, memory, prioritised": IQNConfig(**SMALL, **MEMORY, memory="lstm", prioritised=True),
    "iqn, prioritised": IQNConfig(**SMALL, prioritised=True),
}


def steps(name, usual):
    """The steps of a run: all of them go round the replay, and make more than a hundred updates."""
    return usual // 2 + 20 if "module" in name else usual


def fingerprint(result):
    digest = hashlib.sha256()
    for name, arrays in sorted(result.agents.items()):
        for part in ("state", "counters", "random", "reader", "stage"):
            digest.update(name.encode() + part.encode() + arrays[part].tobytes())
    return digest.hexdigest()


def both(world, algorithm, least=100, **settings):
    """The fingerprints of a serial and of a lockstep run; asserts that processes of their own took part."""
    seen = set()
    serial = train(world, algorithm, Settings(engine="serial", publish_every=3, **settings))
    lockstep = train(
        world,
        algorithm,
        Settings(engine="processes", slack=0, publish_every=3, **settings),
        on_update=lambda snapshot: seen.update((row.name, row.pid) for row in snapshot.processes),
    )
    pids = {pid for _, pid in seen if pid}
    assert len(pids) >= 2
    assert os.getpid() not in pids
    assert serial.steps == lockstep.steps
    assert serial.updates == lockstep.updates
    assert min(serial.updates.values()) > least
    return fingerprint(serial), fingerprint(lockstep)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if "own" not in name])
def test_one_learner_each_is_the_serial_run(name):
    one, other = both(HUNT, ALGORITHMS[name], steps=steps(name, 600), updates_per_step=0.5, learner_processes=3)
    assert one == other


@pytest.mark.parametrize("name", ["stand-in", "dqn", "iqn"])
def test_agents_in_one_learner_process_are_the_serial_run(name):
    one, other = both(HUNT, ALGORITHMS[name], steps=600, updates_per_step=0.5, learner_processes=1)
    assert one == other


@pytest.mark.parametrize("name", ["own network", "own network that draws", "own loss"])
def test_stacked_agents_with_own_networks_are_the_serial_run(name):
    """Four agents are enough for stacked passes, where the network does not draw."""
    world = functools.partial(TreasureHunt, agents=4, turns=20)
    one, other = both(world, ALGORITHMS[name], steps=600, updates_per_step=0.5, learner_processes=1)
    assert one == other


def test_several_actors_and_worlds_are_the_serial_run():
    settings = {"steps": 2400, "updates_per_step": 0.25, "actors": 2, "worlds_per_actor": 3, "learner_processes": 1}
    one, other = both(HUNT, ALGORITHMS["dqn"], **settings)
    assert one == other


CONTINUOUS = {**SMALL, "hidden": (16,)}
TD3S = {
    "td3": TD3Config(**CONTINUOUS),
    "td3, prioritised, 3 steps": TD3Config(**CONTINUOUS, prioritised=True, n_step=3),
    "td3, memory": TD3Config(**CONTINUOUS, **MEMORY, memory="gru", prioritised=True, n_step=2),
    "td3, module with a memory": TD3Config(**CONTINUOUS, **MODULE, encoder=Recalling),
    "td3, normalised, in stages": TD3Config(
        **CONTINUOUS,
        normalise=True,
        freeze_normaliser_on_stage="full",
        stages=Stages({"ramp": 400, "full": None}, clear_replay_on_stage=("full",)),
        noise=Staged({"ramp": Linear(1.0, 0.2, 400), "full": 0.1}),
    ),
}


@pytest.mark.parametrize("name", TD3S)
def test_several_actors_and_worlds_on_td3_are_the_serial_run(name):
    world = functools.partial(gymnasium.make, "Pendulum-v1", max_episode_steps=50)
    settings = {"steps": steps(name, 1000), "updates_per_step": 0.5, "actors": 2, "worlds_per_actor": 3}
    one, other = both(world, TD3S[name], **settings)
    assert one == other


@pytest.mark.parametrize("world", [SampledBushes, BoxedBushes], ids=["cells", "boxes"])
def test_goals_that_are_sampled_are_those_of_the_serial_run(world):
    """The samplers draw from the global generators of ``random`` and of numpy."""
    config = EmpowerSampledConfig(
        hidden=(16,), min_rows=40, batch_size=16, goals_per_row=2, beta=Linear(0.0, 5.0, 60, by="updates"),
        stages=Stages({"attainment": 20, "power": 10, "values": 20, "full": None}, ("full",), "updates"),
    )  # fmt: skip
    settings = {"steps": 300, "updates_per_step": 0.5, "actors": 2, "worlds_per_actor": 2}
    one, other = both(functools.partial(world, horizon=4), config, least=80, **settings)
    assert one == other


def test_agents_that_differ_in_algorithm_are_the_serial_run():
    mixed = {"player_0": ALGORITHMS["dqn"], "player_1": ALGORITHMS["iqn"]}
    one, other = both(MatrixGame, mixed, steps=800, updates_per_step=0.5, learner_processes=2)
    assert one == other


def test_rows_read_once_are_the_serial_run():
    """Ordinary PPO: every rollout with the weights of the update before it."""
    ppo = PPOConfig(**ONCE, hidden=(16,))
    one, other = both(HUNT, ppo, least=30, steps=1200, learner_processes=2)
    assert one == other


def test_own_losses_on_rows_read_once_are_the_serial_run():
    one, other = both(HUNT, A2C(batch_size=2, length=16), least=30, steps=1200, learner_processes=2)
    assert one == other


@pytest.mark.parametrize("world", ["gym:CartPole-v1", "gym:Pendulum-v1"])
def test_rows_read_once_of_several_actors_and_worlds_are_the_serial_run(world):
    ppo = PPOConfig(**ONCE, hidden=(16,), normalise=True, entropy=0.01)
    one, other = both(world, ppo, least=60, steps=2400, actors=2, worlds_per_actor=3)
    assert one == other


def test_rows_with_a_memory_are_the_serial_run():
    """In turn, and in several worlds at once."""
    gru, lstm = (PPOConfig(**ONCE, hidden=(16,), memory=kind, memory_size=8) for kind in ("gru", "lstm"))
    one, other = both(HUNT, gru, least=10, steps=400, learner_processes=2)
    assert one == other
    one, other = both("gym:CartPole-v1", lstm, least=15, steps=600, actors=2, worlds_per_actor=3)
    assert one == other


def test_agents_that_draw_and_agents_that_read_once_are_the_serial_run():
    mixed = {"player_0": ALGORITHMS["dqn"], "player_1": PPOConfig(**ONCE, hidden=(16,))}
    one, other = both(MatrixGame, mixed, least=20, steps=800, updates_per_step=0.5, learner_processes=2)
    assert one == other


def test_acting_all_at_once_is_the_serial_run():
    world = functools.partial(Cleanup, agents=3, height=9, width=11, radius=2, turns=30)
    one, other = both(world, ALGORITHMS["stand-in"], steps=900, updates_per_step=0.5, learner_processes=2)
    assert one == other


def test_limits_of_the_lag_are_the_serial_run():
    """Who is too far behind, and when, does not depend on who is quicker."""
    limits = {"sync_interval": 50, "max_lag_steps": 40, "max_lag_versions": 6}
    settings = {"steps": 1200, "updates_per_step": 0.5, "actors": 2, "worlds_per_actor": 2, **limits}
    one, other = both(HUNT, ALGORITHMS["stand-in"], **settings)
    assert one == other


def test_the_first_update_waits_for_rows_in_all_lanes():
    """Eight lanes whose newest three rows are no starts yet: a batch of 8 is not there after 8 + 3 steps."""
    config = StandIn(batch_size=8, n_step=3)
    result = train(HUNT, config, Settings(engine="serial", steps=200, actors=2, worlds_per_actor=4, updates_per_step=1))
    done = 200 - 8  # the last reward of who does not move first is not known yet, in any world
    assert min(result.updates.values()) == done - (8 + 8 * 3 + 1)


def test_another_seed_is_another_run():
    results = [train(HUNT, StandIn(), Settings(engine="serial", steps=300, seed=seed)) for seed in (0, 0, 1)]
    prints = [fingerprint(result) for result in results]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "iqn", "dqn, prioritised"])
def test_thousands_of_updates_are_the_serial_run(name):
    one, other = both(HUNT, ALGORITHMS[name], steps=12_000, updates_per_step=0.5, learner_processes=2)
    assert one == other

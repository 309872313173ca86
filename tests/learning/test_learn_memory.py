"""PPO with a memory learns what needs one: unseen velocities, a cue shown long ago, an opponent that repeats moves."""

import runpy

import numpy as np
import pytest
from support import EXAMPLES
from support.unseen import CART_POLE, PENDULUM, Repeater
from test_learning import greedy

from motet.algorithms.ppo import PPOConfig
from motet.schedule import Linear
from motet.training.run import train
from motet.training.settings import Settings

STEPS, SEEDS = 200_000, (1, 2, 3, 4, 5)


def middle(returns):
    """The interquartile mean of five."""
    return np.sort(list(returns))[1:4].mean()


def pole(memory):
    return PPOConfig(
        memory=memory, hidden=(64,), batch_size=8, length=64, sequence_length=64, epochs=15, minibatches=2, gamma=0.98,
        gae_lambda=0.9, learning_rate=Linear(1e-3, 0.0, STEPS), clip=Linear(0.2, 0.0, STEPS), normalise=True,
    )  # fmt: skip


def pendulum(memory):
    return PPOConfig(
        memory=memory, hidden=(64,), batch_size=8, length=256, sequence_length=64, epochs=10, minibatches=8, gamma=0.9,
        learning_rate=Linear(1e-3, 0.0, STEPS), reward_scale=0.1,
    )  # fmt: skip


def moves(memory):
    return PPOConfig(
        memory=memory, memory_size=32, hidden=(32,), batch_size=16, length=60, sequence_length=60, minibatches=4,
        gamma=0.9, learning_rate=3e-3, entropy=0.01,
    )  # fmt: skip


def learned(world, config, seed, worlds=8, episodes=100):
    """The mean return without exploration."""
    result = train(world, config, Settings(steps=STEPS, engine="serial", worlds_per_actor=worlds, seed=seed))
    return greedy(world, [config], result, episodes).mean()


@pytest.mark.slow
def test_a_pole_is_balanced_without_seeing_velocities():
    assert middle(learned(CART_POLE, pole("gru"), seed, episodes=20) for seed in SEEDS) >= 475
    assert learned(CART_POLE, pole(None), 1, episodes=20) < 100


@pytest.mark.slow
def test_a_pendulum_is_swung_up_without_seeing_velocities():
    assert middle(learned(PENDULUM, pendulum("gru"), seed) for seed in SEEDS) >= -250
    assert learned(PENDULUM, pendulum(None), 1) < -700


def test_moves_come_back_three_rounds_later():
    """Three moves in turn win all rounds but the first three; the same move always, and the last 27 are draws."""
    world = Repeater()
    world.reset(seed=0)
    assert sum([world.step(turn // 3 % 3)[1] for turn in range(30)][3:]) == 27
    world.reset(seed=0)
    assert not any([world.step(2)[1] for _ in range(30)][3:])


@pytest.mark.slow
def test_an_opponent_that_repeats_moves_is_beaten_without_seeing_moves():
    """The opponent's first three moves are random, so 27 of the 30 rounds can be won for sure."""
    assert middle(learned(Repeater, moves("gru"), seed, worlds=16) for seed in SEEDS) >= 20
    assert abs(learned(Repeater, moves(None), 1, worlds=16)) < 1


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "low", "high"), [("gru", 0.95, 1.0), ("lstm", 0.95, 1.0), (None, 0.0, 0.6)])
def test_a_cue_is_remembered_for_twenty_steps(memory, low, high):
    example = runpy.run_path(str(EXAMPLES / "memory.py"))
    settings = Settings(steps=100_000, engine="serial", worlds_per_actor=16, seed=1)
    result = train(example["Cue"], example["config"](memory), settings)
    assert low <= result.returns["agent_0"] <= high

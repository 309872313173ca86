"""PPO learns what is known to be good, while it acts: to balance a pole, to swing up a pendulum."""

import json
import statistics

import pytest
from test_learning import greedy

from motet.algorithms.ppo import PPOConfig
from motet.schedule import Linear
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds.catalogue import world_factory

WORLD = "gym:CartPole-v1"
SERIAL_STEPS = 20_000
"""What stable-baselines3's PPO needs for a mean greedy return of 475 with these settings, looked at every 2000 steps
(median of five seeds)."""


def config(steps):
    """The settings that are known to suit it."""
    return PPOConfig(
        batch_size=8, length=32, epochs=20, minibatches=1, gamma=0.98, gae_lambda=0.8,
        learning_rate=Linear(1e-3, 0.0, steps), clip=Linear(0.2, 0.0, steps),
    )  # fmt: skip


def test_a_pole_is_balanced_for_a_while():
    """A small part of the way: random actions keep it up for 22 steps."""
    result = train(WORLD, config(100_000), Settings(steps=15_000, worlds_per_actor=8))
    assert result.returns["agent_0"] > 70


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pole_is_balanced_for_good(seed):
    result = train(WORLD, config(100_000), Settings(steps=100_000, worlds_per_actor=8, seed=seed))
    assert greedy(world_factory(WORLD), [config(100_000)], result, 20).mean() >= 475
    assert result.returns["agent_0"] >= 475  # with the actions that it draws, too


@pytest.mark.slow
def test_a_pole_is_balanced_in_the_steps_that_a_serial_implementation_needs(tmp_path):
    reached = []
    for seed in range(7):
        settings = Settings(
            steps=100_000, worlds_per_actor=8, seed=seed, evaluate_every=2000, evaluate_episodes=20, until_return=475.0
        )
        result = train(WORLD, config(100_000), settings, run=tmp_path / str(seed))
        assert result.state == "stopped", "it did not reach the return"
        lines = (tmp_path / str(seed) / "evaluation.jsonl").read_text().splitlines()
        reached.append(next(line["step"] for line in map(json.loads, lines) if line["team"] >= 475))
    assert statistics.median(reached) <= 1.25 * SERIAL_STEPS


PENDULUM_STEPS = 100_000


def swing():
    """The settings that are known to suit it: many passes, a short horizon; rewards are of the size of 1."""
    return PPOConfig(
        batch_size=4, length=512, epochs=10, minibatches=32, gamma=0.9, reward_scale=0.1,
        learning_rate=Linear(1e-3, 0.0, PENDULUM_STEPS),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pendulum_is_swung_up_and_held(seed):
    """Around -200 is what good policies earn; random ones -1200."""
    world = "gym:Pendulum-v1"
    result = train(world, swing(), Settings(steps=PENDULUM_STEPS, worlds_per_actor=4, seed=seed))
    assert greedy(world_factory(world), [swing()], result, 50).mean() >= -250
    assert result.returns["agent_0"] >= -250  # with the actions that it draws, too

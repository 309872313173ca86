"""PPO with a memory learns what cannot be learned without: a pole without velocities, a cue that was shown long ago."""

import runpy

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from support import EXAMPLES
from test_learning import greedy

from motet.algorithms.ppo import PPOConfig
from motet.schedule import Linear
from motet.training.run import train
from motet.training.settings import Settings

STEPS = 200_000


class Positions(gymnasium.ObservationWrapper):
    """CartPole, of which the velocities are not seen."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        seen = self.env.observation_space
        self.observation_space = Box(seen.low[::2], seen.high[::2], dtype=np.float32)

    def observation(self, observation):
        return observation[::2]


def pole(memory):
    return PPOConfig(
        memory=memory, hidden=(64,), batch_size=8, length=64, sequence_length=64, epochs=15, minibatches=2, gamma=0.98,
        gae_lambda=0.9, learning_rate=Linear(1e-3, 0.0, STEPS), clip=Linear(0.2, 0.0, STEPS), normalise=True,
    )  # fmt: skip


def balanced(memory, seed):
    """The mean return without exploration."""
    result = train(Positions, pole(memory), Settings(steps=STEPS, engine="serial", worlds_per_actor=8, seed=seed))
    return greedy(Positions, [pole(memory)], result, 20).mean()


@pytest.mark.slow
def test_a_pole_is_balanced_without_seeing_velocities():
    assert np.sort([balanced("gru", seed) for seed in (1, 2, 3, 4, 5)])[1:4].mean() >= 475
    assert balanced(None, 1) < 100


@pytest.mark.slow
@pytest.mark.parametrize(("memory", "low", "high"), [("gru", 0.95, 1.0), ("lstm", 0.95, 1.0), (None, 0.0, 0.6)])
def test_a_cue_is_remembered_for_twenty_steps(memory, low, high):
    example = runpy.run_path(str(EXAMPLES / "memory.py"))
    settings = Settings(steps=100_000, engine="serial", worlds_per_actor=16, seed=1)
    result = train(example["Cue"], example["config"](memory), settings)
    assert low <= result.returns["agent_0"] <= high

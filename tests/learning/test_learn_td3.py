"""TD3 learns what is known to be good: the right action at once, and to swing up a pendulum in the steps it takes."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box

from motet.algorithms.td3 import TD3Config
from motet.training.evaluator import play_greedily
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds

PENDULUM = functools.partial(gymnasium.make, "Pendulum-v1")
SERIAL_STEPS = 7_000
"""What stable-baselines3's TD3 needs for a mean greedy return of -200 with these settings (median of three seeds)."""


class Aim(gymnasium.Env):
    """One step: the best action is a linear function of what is seen, far from 0, on a scale of its own."""

    observation_space, action_space = Box(-200, 200, (2,)), Box(0, 8, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._seen = self.np_random.uniform([80, -200], [120, -100]).astype(np.float32)
        return self._seen, {}

    def step(self, action):
        best = 4 + (self._seen[0] - 100) / 10 + (self._seen[1] + 150) / 50
        return self._seen, -abs(float(action[0] - best)), True, False, {}


def greedy(world, config, result, episodes):
    """Mean return of the final policy, greedy, in fresh episodes."""
    worlds = [as_world(world()) for _ in range(episodes)]
    spaces = worlds[0].observation_spaces[0], worlds[0].action_spaces[0]
    behaviour = config.behaviour(*spaces)
    (arrays,) = result.agents.values()
    weights = np.ascontiguousarray(arrays["state"][: config.sizes(*spaces).weights])
    behaviour.load(weights, {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in config.header.items()})
    return float(play_greedily(LoopedWorlds(worlds, [False]), [behaviour], range(10**6, 10**6 + episodes)).mean())


@pytest.mark.parametrize("prioritised", [False, True])
def test_the_best_action_of_one_step(prioritised):
    """Observations far from 0 need normalisation; -1.4 is what a constant action gets."""
    config = TD3Config(
        hidden=(32, 32), batch_size=64, min_rows=200, learning_rate=3e-3, target_rate=0.05, noise=0.3, normalise=True,
        prioritised=prioritised,
    )  # fmt: skip
    result = train(Aim, config, Settings(engine="serial", steps=2000))
    assert greedy(Aim, config, result, 200) > -0.5


@pytest.mark.slow
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_pendulum_is_swung_up_in_the_steps_that_a_serial_implementation_needs(seed, normalise, tmp_path):
    config = TD3Config(learning_rate=1e-3, gamma=0.98, normalise=normalise)
    settings = Settings(
        steps=int(1.25 * SERIAL_STEPS), seed=seed, updates_per_step=1.0, slack=64, evaluate_every=250,
        evaluate_episodes=20, until_return=-200.0,
    )  # fmt: skip
    result = train(PENDULUM, config, settings, run=tmp_path / "run")
    assert result.state == "stopped", "it did not reach the return within its steps"
    assert greedy(PENDULUM, config, result, 100) > -300  # an evaluation of 20 episodes is lucky now and then

"""A cue is shown at the start of an episode and asked for twenty steps later: PPO needs a memory for it."""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import motet
from motet.algorithms import PPOConfig


class Cue(gymnasium.Env):
    """An observation shows the cue, in the first step only, and whether the cue is asked for. The right answer earns
    1."""

    observation_space, action_space, wait = Box(-1, 1, (2,), np.float32), Discrete(2), 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.step_number = int(self.np_random.integers(2)), 0
        return self.seen(), {}

    def seen(self):
        cue = 2 * self.cue - 1 if self.step_number == 0 else 0
        return np.array([cue, self.step_number == self.wait], np.float32)

    def step(self, action):
        asked = self.step_number == self.wait
        self.step_number += not asked
        return self.seen(), float(asked and action == self.cue), asked, False, {}


def config(memory):
    return PPOConfig(
        memory=memory, hidden=(32,), batch_size=16, length=64, sequence_length=64, minibatches=4, learning_rate=1e-3,
        entropy=0.01,
    )  # fmt: skip


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    for memory in (None, "gru"):
        settings = motet.Settings(steps=steps, engine="serial", worlds_per_actor=16)
        result = motet.train(Cue, config(memory), settings)
        print(result)
        print(f"memory {memory}: {result.returns['agent_0']:.2f} of the answers were right")

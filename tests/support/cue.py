"""A world that needs a memory: a cue is shown at the start, and must be named many steps later."""

import gymnasium
import numpy as np


class Cue(gymnasium.Env):
    """The first observation shows one of two cues. After ``delay`` steps the world asks for it: 1 if right, else 0."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, delay=20):
        self._delay = delay

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self._cue, self._t = int(self.np_random.integers(2)), 0
        return self._seen(), {}

    def step(self, action):
        asked, self._t = self._t == self._delay, self._t + 1
        return self._seen(), float(asked and action == self._cue), asked, False, {}

    def _seen(self):
        shown = 2 * self._cue - 1 if self._t == 0 else 0
        noise = float(self.np_random.uniform(-1, 1))
        return np.array([shown, self._t == self._delay, noise], np.float32)

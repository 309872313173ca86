"""Worlds that hide what a policy needs, so that only a policy with memory plays them well."""

import functools

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Positions(gymnasium.ObservationWrapper):
    """A world of Gymnasium, of whose observations only the positions are seen."""

    def __init__(self, name, positions):
        super().__init__(gymnasium.make(name, disable_env_checker=True))
        self._positions = positions
        seen = self.env.observation_space
        assert isinstance(seen, Box)
        self.observation_space = Box(seen.low[positions], seen.high[positions], dtype=np.float32)

    def observation(self, observation):
        return observation[self._positions]


CART_POLE = functools.partial(Positions, "CartPole-v1", slice(None, None, 2))
PENDULUM = functools.partial(Positions, "Pendulum-v1", slice(2))


class Repeater(gymnasium.Env):
    """Rock, paper, scissors against an opponent that repeats your move of three rounds ago; no move is seen.

    A win earns 1, a defeat -1. The opponent's first three moves are random. A policy without memory plays all rounds
    alike, so that it wins as often as it loses, however it mixes its moves.
    """

    observation_space, action_space = Box(0, 1, (1,), np.float32), Discrete(3)

    def __init__(self, rounds=30):
        self._rounds = rounds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._moves = [int(move) for move in self.np_random.integers(3, size=3)]
        return np.ones(1, np.float32), {}

    def step(self, action):
        self._moves.append(int(action))
        payoff = (0.0, 1.0, -1.0)[(self._moves[-1] - self._moves[-4]) % 3]
        return np.ones(1, np.float32), payoff, len(self._moves) == self._rounds + 3, False, {}

"""A world as arrays: a cat and a mouse on a ring of 12 tiles, as one PettingZoo environment and as K worlds at once."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from motet.testing import check_world
from motet.world import VectorWorld


class Chases(VectorWorld):
    """The rules for K worlds. An agent sees how far ahead the other is, and moves back, stays or moves forward."""

    agents, observation_spaces, action_spaces = ("cat", "mouse"), (Box(0, 11, (1,), int),) * 2, (Discrete(3),) * 2

    def __init__(self, worlds):
        self.worlds, self.at = worlds, np.zeros((2, worlds), int)

    def reset(self, worlds, seeds):
        self.at[:, worlds] = np.transpose([np.random.default_rng(seed).permutation(12)[:2] for seed in seeds])

    def observe(self, agent):
        return ((self.at[1 - agent] - self.at[agent]) % 12)[:, None]

    def act(self, actions):
        self.at = (self.at + np.stack(actions) - 1) % 12

    def reward(self, agent):
        return np.where(self.at[0] == self.at[1], 1.0 - 2.0 * agent, 0.0)

    def ended(self):
        return self.at[0] == self.at[1], np.zeros(self.worlds, bool)


class Chase(ParallelEnv):
    """The single environment. It is used everywhere except in actors, which get K worlds at once from ``vector``."""

    vector, possible_agents = staticmethod(Chases), list(Chases.agents)

    def __init__(self):
        self.rng, self.chase = np.random.default_rng(), Chases(1)
        self.observation_space, self.action_space = lambda _: Chases.observation_spaces[0], lambda _: Discrete(3)

    def reset(self, seed=None, options=None):
        self.chase.reset([0], [self.rng.integers(2**32) if seed is None else seed])
        self.agents = self.possible_agents[:]
        return self.each(self.chase.observe), self.each(lambda _: [{}])

    def each(self, ask):
        return {name: ask(agent)[0] for agent, name in enumerate(self.possible_agents)}

    def step(self, actions):
        self.chase.act([np.array([actions[name]]) for name in self.agents])
        ends = [dict.fromkeys(self.agents, bool(flags[0])) for flags in self.chase.ended()]
        self.agents = [name for name in self.agents if not any(flags[name] for flags in ends)]
        return self.each(self.chase.observe), self.each(self.chase.reward), *ends, self.each(lambda _: [{}])


if __name__ == "__main__":
    print(check_world(Chase) or "each world of the arrays equals the single environment")

"""A custom world: two sheep and a wolf act at once. It is checked against the contract and played at random."""

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from motet.testing import check_world
from motet.world import as_world


class Meadow(ParallelEnv):
    """Agents on a ring of 12 tiles see all positions. A sheep that meets the wolf is out, and the wolf is rewarded."""

    def __init__(self, turns=30):
        self.possible_agents = ["wolf", "dolly", "shaun"]
        self.turns, self.rng = turns, np.random.default_rng()

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 11, (3,), np.int64)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3 if agent == "wolf" else 2)  # stay, forward; the wolf may also leap

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.turn = self.possible_agents[:], 0
        self.at = dict(zip(self.agents, self.rng.permutation(12)[:3], strict=True))
        return {name: self.seen() for name in self.agents}, {name: {} for name in self.agents}

    def seen(self):
        return np.array([self.at[name] for name in self.possible_agents])

    def step(self, actions):
        here, self.turn = self.agents, self.turn + 1
        for name, action in actions.items():
            self.at[name] = (self.at[name] + action) % 12
        caught = [name for name in here if name != "wolf" and self.at[name] == self.at["wolf"]]
        rewards = dict.fromkeys(here, 0.1) | dict.fromkeys(caught, -5.0) | {"wolf": 5.0 * len(caught)}
        fed = {*caught, "wolf"} if len(caught) == len(here) - 1 else {*caught}
        terminated = {name: name in fed for name in here}
        truncated = {name: self.turn == self.turns and name not in fed for name in here}
        self.agents = [name for name in here if not (terminated[name] or truncated[name])]
        return {name: self.seen() for name in here}, rewards, terminated, truncated, {name: {} for name in here}


if __name__ == "__main__":
    check_world(Meadow)  # raises an error if the contract is broken
    world, rng = as_world(Meadow()), np.random.default_rng(0)
    world.reset(seed=1)
    returns = dict.fromkeys(world.agents, 0.0)
    while group := world.group():
        world.act([rng.integers(world.action_spaces[agent].n) for agent in group])
        for end in world.ended():
            print(f"{world.agents[end.agent]} {'terminated' if end.terminated else 'was truncated'}")
        for agent, name in enumerate(world.agents):
            returns[name] += world.reward(agent)
    print({name: round(value, 1) for name, value in returns.items()})

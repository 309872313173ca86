"""A world that asks its agents in a fixed order, and never asks some of them."""

import gymnasium
import numpy as np

from motet.world import World
from motet.world.contract import End


class Office(World):
    """Clerks are called to the counter in a fixed order, over and over; some are never called.

    A clerk sees a one of three and earns 1 if it names it.
    """

    def __init__(self, clerks=3, order=(0, 1), calls=20, at_once=False, box=False):
        self.agents = tuple(f"clerk_{i}" for i in range(clerks))
        self.observation_spaces = (gymnasium.spaces.Box(0, 1, (3,)),) * clerks
        self.action_spaces = (gymnasium.spaces.Box(-1, 1, (1,)) if box else gymnasium.spaces.Discrete(3),) * clerks
        self.order, self.calls, self.at_once, self.box = order, calls, at_once, box

    def reset(self, seed=None):
        self.rng = np.random.default_rng(seed)
        self.count, self.ends, self.acted = 0, [], set()
        self.earned = [0.0] * len(self.agents)
        self.draw()

    def draw(self):
        self.shown = {clerk: int(self.rng.integers(3)) for clerk in range(2)} | {2: 1}

    def group(self):
        if self.count == self.calls:
            return ()
        return sorted(set(self.order)) if self.at_once else (self.order[self.count % len(self.order)],)

    def observe(self, agent):
        return np.eye(3, dtype=np.float32)[self.shown[agent]]

    def act(self, actions):
        for clerk, action in zip(self.group(), actions, strict=True):
            right = self.shown[clerk] - 1 == round(float(action[0])) if self.box else action == self.shown[clerk]
            self.earned[clerk] += float(right)
            self.acted.add(clerk)
        self.count += 1
        self.draw()
        if self.count == self.calls:
            self.ends = [End(clerk, False, True) for clerk in sorted(self.acted)]

    def reward(self, agent):
        earned, self.earned[agent] = self.earned[agent], 0.0
        return earned

    def ended(self):
        ends, self.ends = self.ends, []
        return ends

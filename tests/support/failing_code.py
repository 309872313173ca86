"""Worlds and policies in the style of users, each with a fault that occurs only in some episodes."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Market(ParallelEnv):
    """Two traders. ``fault`` names what is wrong with it, in the episodes in which the first price is low."""

    metadata = {"name": "market"}  # noqa: RUF012
    possible_agents = ["buyer", "seller"]  # noqa: RUF012

    def __init__(self, fault="", turns=6, below=0.3):
        self.fault, self.turns, self.below = fault, turns, below
        self.ruined = False

    def observation_space(self, agent):
        return Box(0, 10, (3,))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        if self.ruined:
            raise RuntimeError("the order book is inconsistent")
        self.rng = random.Random(seed)
        self.price, self.day, self.agents = self.rng.random(), 0, self.possible_agents[:]
        self.bad_day = 2 if self.price < self.below else None
        return self.quotes(), {name: {} for name in self.agents}

    def step(self, actions):
        if self.day == self.bad_day and self.fault:
            getattr(self, self.fault)()
        self.price = 0.7 * self.price + 0.1 * (actions["buyer"] - actions["seller"]) + 0.3 * self.rng.random()
        self.day += 1
        names, over = self.agents, self.day == self.turns
        gain = {"buyer": -self.price, "seller": self.price}
        if over:
            self.agents = []
        flags = dict.fromkeys(names, False), dict.fromkeys(names, over)
        return self.quotes(), gain, *flags, {name: {} for name in names}

    def quotes(self):
        row = np.clip([self.price + 1, self.day, self.rng.random()], 0, 10).astype(np.float32)
        quotes = {name: row.copy() for name in self.possible_agents}
        if self.fault == "ragged" and self.day > 2 and self.bad_day is not None:
            quotes["seller"] = row[:2]
        return quotes

    def ragged(self):
        pass  # see quotes

    def circle(self):
        error = IndexError("in a circle")
        raise error from error

    def bug(self):
        self.ruined = True
        return [1, 2, 3][self.day + 5]

    def leaves(self):
        sys.exit("the exchange is closed")

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def vanishes(self):
        os._exit(3)

    def hangs(self):
        time.sleep(3600)


class MarketOnce(Market):
    """A market that can be created only once in a process, so that it cannot be replaced after a fault."""

    faults = 0

    def __init__(self, **more):
        if MarketOnce.faults:
            raise ConnectionError("address already in use")
        super().__init__(**more)

    def bug(self):
        MarketOnce.faults += 1
        super().bug()


class MarketWithoutZero(Market):
    """It cannot begin with the seed 0."""

    def reset(self, seed=None, options=None):
        if seed == 0:
            raise ValueError("the seed is taken for a missing one")
        return super().reset(seed, options)


class Trader:
    """Plays by a stream of its own."""

    def reset(self, seed):
        self.rng, self.asked = random.Random(seed), 0

    def act(self, observation, mask=None):
        self.asked += 1
        return self.rng.randrange(3)


class SoreLoser(Trader):
    """Ends its process in its nth game, unless a file of the given name exists."""

    def __init__(self, agent, flag="", how="vanishes", share=3):
        self.flag, self.how, self.share, self.seller = flag, how, share, agent == "seller"

    def reset(self, seed):
        super().reset(seed)
        self.loses = self.seller and seed % self.share == 0

    def act(self, observation, mask=None):
        action = super().act(observation, mask)
        if self.asked == 3 and self.loses and not (self.flag and Path(self.flag).exists()):
            getattr(Market, self.how)(self)
        return action

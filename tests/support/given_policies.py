"""Policies as projects write them: none of them knows motet. Tests of partners import them by their paths."""

import os
import random
import socket
import time

import numpy as np


class Cycler:
    """Takes the actions in order, from a start that the seed decides. Only some projects have masks."""

    def __init__(self, action_space, stride=1):
        self.n, self.stride = int(action_space.n), stride

    def reset(self, seed):
        self.count = random.Random(seed).randrange(self.n)

    def act(self, observation):
        self.count += self.stride
        return self.count % self.n


class Leader:
    """Decides for all of its agents in one call; counts how many it saw at once."""

    def __init__(self, agents):
        self.agents, self.together = agents, 0

    def reset(self, seed):
        self.turn = seed % 2

    def act_jointly(self, observations, masks):
        self.turn += 1
        return {agent: (self.turn + i) % 2 for i, agent in enumerate(sorted(observations))}


class Squad:
    """A project with one object for the team, which makes one for each agent."""

    def __init__(self, description):
        self.sizes = [int(description.action_spaces[name].n) for name in description.agents]

    def agent_policy(self, agent_index):
        return _Member(self.sizes[agent_index])


class _Member:
    def __init__(self, n):
        self.n = n

    def reset(self):
        self.last = random.randrange(self.n)

    def step(self, observation):
        return self.last


class Vectorised:
    """Answers for many observations in one call."""

    calls = 0

    def reset(self, seed):
        pass

    def act(self, observation):
        raise AssertionError("it can act on a batch")

    def act_many(self, observations):
        Vectorised.calls += 1
        return [int(len(observation.ravel()) % 2) for observation in observations]


class Dice:
    """Answers for many observations, and draws from numpy's generators: its own, and the global one."""

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)
        self.first = int(self.rng.integers(2))

    def act(self, observation):
        raise AssertionError("it can act on a batch")

    def act_many(self, observations):
        return [(int(np.random.randint(2)) + self.first) % 2 for observation in observations]


class Fragile(Cycler):
    """Fails in its n-th decision. ``how``: raise, die, hang or nonsense."""

    def __init__(self, action_space, after=5, how="raise"):
        super().__init__(action_space)
        self.left, self.how = after, how

    def act(self, observation):
        self.left -= 1
        if self.left < 0:
            if self.how == "die":
                os._exit(3)
            if self.how == "hang":
                time.sleep(600)
            if self.how == "nonsense":
                return self.n + 7
            raise ValueError("the table of moves is empty")
        return super().act(observation)


class Sandboxed:
    """Plays only where it may not open a socket."""

    def reset(self, seed):
        pass

    def act(self, observation, mask=None):
        try:
            socket.socket().close()
        except PermissionError:
            return 0
        raise RuntimeError("there is no sandbox")

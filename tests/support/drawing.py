"""Worlds, policies and an algorithm that seed nothing and draw from the global generators."""

import random
from dataclasses import dataclass

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv
from support.stand_in import StandIn, _Acting, _Learning


def draw():
    """One draw from each generator; an odd number of normals, so that numpy and random keep a second one."""
    import torch

    return random.random() + random.gauss(0, 1) + np.random.rand() + np.random.randn() + float(torch.randn(()))


class Weather(ParallelEnv):
    """Two walkers in wind and rain."""

    def __init__(self, turns=7, first_draw=0):
        self.metadata = {"name": "weather"}
        self.possible_agents = ["a", "b"]
        self.turns, self.first_draw, self.begun = turns, first_draw, 0
        self.climate = draw() if first_draw == 0 else 0.0

    def get_state(self):
        return self.turn, self.begun, self.wind.copy()

    def set_state(self, state):
        self.turn, self.begun, self.wind = state[0], state[1], np.array(state[2])
        self.agents = self.possible_agents[:] if self.turn < self.turns else []

    def observation_space(self, agent):
        return Box(-np.inf, np.inf, (3,), np.float64)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.turn, self.begun = self.possible_agents[:], 0, self.begun + 1
        self.wind = np.array([self._draw(), self.climate, 0.0])
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.turn += 1
        self.wind += [self._draw(), 0.0, 1.0]
        rewards = {a: float(self.wind[0]) + actions[a] for a in self.agents}
        over = self.turn >= self.turns
        agents, seen = self.agents, self._seen()
        if over:
            self.agents = []
        return seen, rewards, dict.fromkeys(agents, False), dict.fromkeys(agents, over), {a: {} for a in agents}

    def _draw(self):
        return draw() if self.begun >= self.first_draw else 0.0

    def _seen(self):
        return {agent: self.wind.copy() for agent in self.agents}


class Moody:
    """A policy with random weights and noise."""

    def __init__(self):
        self.weights = np.random.randn(3)

    def reset(self, seed):
        self.mood = draw()

    def act(self, observation):
        self.mood += draw()
        return int(abs(self.mood + observation @ self.weights) * 1000) % 3


class Squad:
    """A team of two levels."""

    def __init__(self, description):
        self.temper = draw()

    def agent_policy(self, agent_id):
        return Recruit(self.temper)


class Recruit(Moody):
    def __init__(self, temper):
        super().__init__()
        self.temper = temper

    def reset(self):
        self.mood = draw() + self.temper

    def step(self, observation):
        return self.act(observation)


class Choir:
    """A joint policy."""

    def reset(self, seed):
        self.mood = draw()

    def act_jointly(self, observations):
        self.mood += draw()
        return {agent: int(abs(self.mood + i) * 1000) % 3 for i, agent in enumerate(observations)}


@dataclass(frozen=True)
class Noisy(StandIn):
    """An algorithm whose network is made with random weights, has dropout, and samples its actions."""

    def build(self, observation_space, action_space, agents, seeds, device="cpu"):
        return _NoisyLearning(self, agents, seeds)

    def behaviour(self, observation_space, action_space):
        return _NoisyActing(action_space.n)


class _NoisyLearning(_Learning):
    def __init__(self, config, agents, seeds):
        super().__init__(config, agents, seeds)
        self.state += np.float32(draw())

    def update(self, batch, steps):
        self.state += np.float32(draw() * 1e-3)
        return super().update(batch, steps)


class _NoisyActing(_Acting):
    def act(self, observations, masks=None, explore=True):
        actions, extra = super().act(observations, masks, explore)
        return (actions + int(abs(draw()) * 1000)) % self._actions, extra


class Meadow:
    """An object gridworld that drives itself, and draws before and after it asks its sheep."""

    def __init__(self):
        self.world, self.agents, self.max_turns = self, [Sheep()], 6
        self.entities, self.grass, self.is_done = (), 0.0, False

    def reset(self):
        self.grass, self.is_done = random.random(), False

    def take_turn(self):
        self.grass += np.random.randn()
        self.agents[0].transition(self)
        self.grass += random.gauss(0, 1)


class Sheep:
    def pov(self, world):
        return np.array([world.grass, np.random.rand()], np.float32)

    def get_action(self, state):
        raise AssertionError("motet plays this agent")

    def act(self, world, action):
        return random.random() + world.grass + action

    def is_done(self, world):
        return False

    def transition(self, world):
        random.random()
        self.act(world, self.get_action(self.pov(world)))

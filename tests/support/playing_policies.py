"""Policies for tests of evaluation: each depends on everything that it may depend on, and on nothing else."""

import os
import random
import time

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from motet.policies.joint import filler


def some_action(space, number):
    """An element of a space for each number."""
    inner = getattr(space, "spaces", None)
    if inner is not None:
        return {key: some_action(part, number + i) for i, (key, part) in enumerate(inner.items())}
    if hasattr(space, "low"):
        share = (number % 17) / 16
        return (space.low + share * (space.high - space.low)).astype(space.dtype)
    return np.asarray(int(getattr(space, "start", 0)) + number % int(space.n), space.dtype)[()]


def summed(observation):
    if isinstance(observation, dict):
        return sum(summed(part) for part in observation.values())
    return int(np.abs(np.asarray(observation, np.float64)).sum() * 64) % 1009


class Counting:
    """Stateful: its action depends on how often it was asked, and on what it saw."""

    def __init__(self, action_space, agent, world):
        self.space, self.start = action_space, len(agent) + len(world)

    def reset(self, seed):
        self.count = self.start + seed % 5

    def act(self, observation, mask=None):
        self.count += 1 + summed(observation) % 3
        if mask is not None:
            allowed = np.flatnonzero(mask)
            return int(allowed[self.count % len(allowed)]) + int(self.space.start)
        return some_action(self.space, self.count)


class Recurrent(Counting):
    """A hidden state in floats that is never forgotten within an episode, and random draws."""

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)
        self.hidden = self.rng.normal(size=8)
        self.weights = np.random.default_rng(7).normal(size=(8, 8))

    def act(self, observation, mask=None):
        self.hidden = np.tanh(self.weights @ self.hidden + summed(observation) / 500 + 0.1 * self.rng.normal(size=8))
        number = int(abs(self.hidden.sum()) * 1e6)
        if mask is not None:
            allowed = np.flatnonzero(mask)
            return int(allowed[number % len(allowed)]) + int(self.space.start)
        return some_action(self.space, number)


class Joint:
    """Several agents at once: whoever is asked gets an action that depends on all that were asked before."""

    def __init__(self, agents, action_spaces, observation_spaces, world):
        self.agents, self.spaces = agents, action_spaces

    def reset(self, seed):
        self.total = seed % 11

    def act_jointly(self, observations, masks):
        actions = {}
        for agent, seen in observations.items():
            self.total += summed(seen) % 7 + 1
            if agent in masks:
                allowed = np.flatnonzero(masks[agent])
                actions[agent] = int(allowed[self.total % len(allowed)])
            else:
                actions[agent] = some_action(self.spaces[agent], self.total)
        return actions


class Member:
    def __init__(self, team, space):
        self.team, self.space = team, space

    def reset(self):
        self.team.asked = 0
        self.shift = int(np.random.randint(100))

    def step(self, observation):
        self.team.asked += 1
        return some_action(self.space, self.shift + self.team.asked + int(np.random.randint(3)))


class Team:
    """Two levels, drawing from the process's own random stream."""

    def __init__(self, action_spaces):
        self.spaces, self.asked = action_spaces, 0

    def agent_policy(self, agent_id: str):
        return Member(self, self.spaces[agent_id])


class FailsAt(Counting):
    """Fails at its nth decision, in one of several ways; until then it plays as Counting does."""

    def __init__(self, action_space, agent, world, turn=7, how="raise", every=1):
        super().__init__(action_space, agent, world)
        self.turn, self.how, self.every, self.episodes = turn, how, every, 0

    def reset(self, seed):
        super().reset(seed)
        self.asked, self.fails = 0, seed % self.every == 0
        if self.how == "reset":
            raise RuntimeError("no reset")

    def act(self, observation, mask=None):
        self.asked += 1
        if self.asked == self.turn and self.fails:
            if self.how == "raise":
                raise RuntimeError("at my turn")
            if self.how == "exit":
                os._exit(3)
            if self.how == "sleep":
                time.sleep(3600)
            if self.how == "answer":
                return "nonsense"
            if self.how == "nan":
                return np.full(7, np.nan)
        return super().act(observation, mask)


class ThenNothing(Counting):
    """Counting up to the turn at which FailsAt fails, and then what the stand-in does."""

    def __init__(self, action_space, agent, world, turn=7, every=1):
        super().__init__(action_space, agent, world)
        self.turn, self.every = turn, every

    def reset(self, seed):
        super().reset(seed)
        self.asked, self.fails = 0, seed % self.every == 0

    def act(self, observation, mask=None):
        self.asked += 1
        if self.fails and self.asked >= self.turn:
            return filler(self.space)
        return super().act(observation, mask)


class Slow(Counting):
    """Takes processor time for each decision."""

    def act(self, observation, mask=None):
        end = time.process_time() + 0.002
        while time.process_time() < end:
            pass
        return super().act(observation, mask)


class UpTo:
    """What a policy of the hostile zoo plays until it misbehaves, and then nothing."""

    def __init__(self, action_space, at=0):
        self.space, self.at = action_space, at

    def reset(self, seed):
        self.rng, self.step = random.Random(seed), -1

    def act(self, observation, mask=None):
        self.step += 1
        fine = self.rng.randrange(3)
        if self.step >= self.at:
            return filler(self.space)
        return fine


class Duet(ParallelEnv):
    """Two agents; what each sees and earns depends on everything that both did."""

    metadata = {"name": "duet"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012

    def __init__(self, turns=12, box=False):
        self.turns, self.box = turns, box

    def observation_space(self, agent):
        return Box(0, 1, (4,))

    def action_space(self, agent):
        return Box(-1, 1, (2,)) if self.box and agent == "left" else Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng, self.turn, self.agents = np.random.default_rng(seed), 0, self.possible_agents[:]
        self.sums = np.zeros(2)
        return self._seen(), {name: {} for name in self.agents}

    def step(self, actions):
        names = self.agents
        self.turn += 1
        self.sums = self.sums * 0.9 + [float(np.sum(actions["left"])), float(np.sum(actions["right"]))]
        over = self.turn == self.turns
        rewards = {"left": float(self.sums @ [1, -1]), "right": float(self.sums @ [0.5, 2])}
        self.agents = [] if over else names
        flags = dict.fromkeys(names, False), dict.fromkeys(names, over)
        return self._seen(), rewards, *flags, {name: {} for name in names}

    def _seen(self):
        near = np.clip(np.abs(self.sums) / 40, 0, 1)
        seen = np.array([*near, self.rng.random(), self.turn / self.turns], np.float32)
        return {name: seen.copy() for name in self.possible_agents}


class Torn(Duet):
    """It cannot be drawn."""

    def render(self):
        raise ZeroDivisionError("no canvas")

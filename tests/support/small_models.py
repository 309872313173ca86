"""Models for tests: random layered ones that fulfil the contract, and a switchable one that breaks it."""

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np


@dataclass(frozen=True)
class Among:
    """Holds in some states."""

    name: str
    states: frozenset

    def is_achieved(self, state):
        return state in self.states


@dataclass(frozen=True)
class Parity:
    """Holds at every second depth: whatever is done, one of the two is attained at the next step."""

    name: str
    odd: int

    def is_achieved(self, state):
        return state[0] % 2 == self.odd


class Layered:
    """A random model: states (depth, i), every transition goes one deeper, some states end early."""

    def __init__(self, seed=0, humans=(2, 2), robots=(2,), depth=3, width=3, durations=False, order=None):
        rng = np.random.default_rng(seed)
        self.agents = [f"agent_{i}" for i in range(len(humans) + len(robots))]
        order = list(range(len(self.agents))) if order is None else order
        self.human_agent_indices = sorted(order[: len(humans)])
        self.robot_agent_indices = sorted(order[len(humans) :])
        counts = dict(zip(self.human_agent_indices, humans, strict=True))
        counts |= dict(zip(self.robot_agent_indices, robots, strict=True))
        self.counts = [counts[i] for i in range(len(self.agents))]
        self.action_space = [SimpleNamespace(n=n) for n in self.counts]
        self.table, self.times = {}, {}
        for level in range(depth):
            for i in range(width):
                if level and rng.random() < 0.15:
                    continue  # terminal
                for joint in product(*map(range, self.counts)):
                    some = rng.choice(width, rng.integers(1, width + 1), replace=False)
                    p = rng.dirichlet(np.ones(len(some)))
                    self.table[(level, i), joint] = [
                        (float(q), (level + 1, int(j))) for q, j in zip(p, some, strict=True)
                    ]
                    self.times[(level, i), joint] = [float(t) for t in rng.uniform(0.1, 2.0, len(some))]
        if durations:
            self.transition_durations = lambda s, a, transitions: self.times[s, tuple(a)]
        every = [(level, i) for level in range(depth + 1) for i in range(width)]
        picked = [Among(f"some {k}", frozenset(s for s in every if rng.random() < 0.3)) for k in range(2)]
        self.goals = [(Parity("even", 0), 1.0), (Parity("odd", 1), 0.7), (picked[0], 0.5), (picked[1], 2.0)]

    def reset(self):
        self.state = (0, 0)

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def transition_probabilities(self, state, actions):
        if (state, (0,) * len(self.agents)) not in self.table:
            return None
        return self.table[state, tuple(actions)]


class Line:
    """One agent, two actions, ``length`` steps; ``broken`` maps (state, action) to what is returned instead."""

    agents = ("walker",)
    action_space = SimpleNamespace(n=2)

    def __init__(self, length=5, broken=None, start=0):
        self.length, self.broken, self.start = length, broken or {}, start

    def reset(self):
        self.state = self.start

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state

    def transition_probabilities(self, state, actions):
        if (state, actions[0]) in self.broken:
            given = self.broken[state, actions[0]]
            return given() if callable(given) else given
        return None if state == self.length else [(1.0, state + 1)]


class Wide:
    """A model with large levels, all of it arithmetic: two humans and a robot, two successors of every joint action."""

    agents = ("a", "b", "c")
    action_space = SimpleNamespace(n=2)
    human_agent_indices, robot_agent_indices = (0, 1), (2,)
    width, depth = 400, 6

    def reset(self):
        pass

    def get_state(self):
        return (0, 0)

    def set_state(self, state):
        pass

    def transition_probabilities(self, state, actions):
        level, i = state
        if level == self.depth or (i % 17 == 16 and level):
            return None
        k = 8 * i + 4 * actions[0] + 2 * actions[1] + actions[2]
        far = min(level + 1 + (k % 5 == 0), self.depth)  # now and then past a level
        return [(0.25, (level + 1, k % self.width)), (0.75, (far, (3 * k + 1) % self.width))]

    def transition_durations(self, state, actions, transitions):
        return [0.5 + 0.01 * (successor[1] % 10) for _, successor in transitions]

    def transition_rewards(self, state, actions, transitions):
        return [(float(successor[1] % 3), 0.0, 1.0) for _, successor in transitions]


class Round(Wide):
    """Without an end."""

    width = 1000

    def transition_probabilities(self, state, actions):
        return [(p, (0, to)) for p, (_, to) in super().transition_probabilities((0, state[1]), actions)]


def wanted(state, human):
    """Goals by state, with weights that differ."""
    return [(Parity("even", 0), 1.0 + state[1] % 3), (Parity("odd", 1), 0.5)]


def believed(state, agent, action):
    """Others do the same, or nothing, as likely as the state says."""
    return [(0.25 + 0.5 * (state[1] % 2), [action] * 3), (0.75 - 0.5 * (state[1] % 2), [0] * 3)]

"""The formulas of ``motet.plan.empowerment`` in plain Python, state by state, to compare the native sweeps with.

This is a straightforward implementation: the graph as lists, values as dictionaries by human and goal, goals checked
once per state, distributions looked up and not recomputed. It supports only the default settings.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

from motet.plan import Graph

__all__ = ["PlainPlan"]

Values = dict[tuple[int, int], float]  # values by human and goal


class PlainPlan:
    """Solves humans and robot of a graph in one backward pass. Converts the graph to lists when it is created."""

    def __init__(self, graph: Graph) -> None:
        self.states, self.terminal = list(graph.states), graph.terminal.tolist()
        self.humans, self.robots, self.actions = graph.humans, graph.robots, graph.actions
        self.joints = list(product(*(range(count) for count in graph.actions)))
        self.rows: list[dict[tuple[int, ...], list[tuple[float, int]]]] = [
            {} if end else {joint: graph.transitions(number, joint) for joint in self.joints}
            for number, end in enumerate(self.terminal)
        ]

    def solve(self, goals: dict[int, list[Any]]) -> tuple[list[Values], list[float]]:
        """Return V_h by state, human and goal, and V_r by state."""
        self.holds = [{h: [g.is_achieved(s) for g in goals[h]] for h in self.humans} for s in self.states]
        count = len(self.states)
        self.v_h: list[Values] = [{} for _ in range(count)]
        self.v_he: list[Values] = [{} for _ in range(count)]
        v_r = [-1e-10] * count
        for s in range(count - 1, -1, -1):
            pairs = [(h, g) for h in self.humans for g in range(len(goals[h]))]
            if self.terminal[s]:
                self.v_h[s] = dict.fromkeys(pairs, 0.0)
                self.v_he[s] = dict.fromkeys(pairs, 0.0)
                continue
            policies = {pair: self._choose(s, *pair) for pair in pairs}
            v_r[s] = self._serve(s, goals, policies, v_r)
        return self.v_h, v_r

    def _worth(self, s: int, joint: tuple[int, ...], h: int, g: int, values: list[Values]) -> float:
        return sum(p * (1.0 if self.holds[to][h][g] else values[to][h, g]) for p, to in self.rows[s][joint])

    def _joint(self, humans: dict[int, int], robots: tuple[int, ...]) -> tuple[int, ...]:
        acts = {**humans, **dict(zip(self.robots, robots, strict=True))}
        return tuple(acts[i] for i in range(len(self.actions)))

    def _choose(self, s: int, h: int, g: int, beta: float = 10.0) -> list[float]:
        others = [i for i in self.humans if i != h]
        profiles = list(product(*(range(self.actions[i]) for i in others)))
        robots = list(product(*(range(self.actions[i]) for i in self.robots)))
        q = []
        for a in range(self.actions[h]):
            total = 0.0
            for profile in profiles:
                acts = {h: a, **dict(zip(others, profile, strict=True))}
                total += min(self._worth(s, self._joint(acts, r), h, g, self.v_h) for r in robots)
            q.append(total / len(profiles))
        most = max(q)
        weights = [math.exp(beta * (x - most)) for x in q]
        policy = [w / sum(weights) for w in weights]
        value = sum(p * x for p, x in zip(policy, q, strict=True))
        self.v_h[s][h, g] = 0.0 if self.holds[s][h][g] else value
        return policy

    def _serve(
        self,
        s: int,
        goals: dict[int, list[Any]],
        policies: dict[tuple[int, int], list[float]],
        v_r: list[float],
        beta: float = 10.0,
    ) -> float:
        prior = {
            h: [sum(policies[h, g][a] for g in range(len(goals[h]))) / len(goals[h]) for a in range(self.actions[h])]
            for h in self.humans
        }
        robots = list(product(*(range(self.actions[i]) for i in self.robots)))
        crowds = [
            dict(zip(self.humans, acts, strict=True))
            for acts in product(*(range(self.actions[i]) for i in self.humans))
        ]
        q_r = []
        for r in robots:
            total = 0.0
            for crowd in crowds:
                share = math.prod(prior[i][a] for i, a in crowd.items())
                total += share * sum(p * v_r[to] for p, to in self.rows[s][self._joint(crowd, r)])
            q_r.append(total)
        logs = [-math.log(-x) for x in q_r]
        weights = [math.exp(beta * (x - max(logs))) for x in logs]
        pi_r = [w / sum(weights) for w in weights]
        loss = 0.0
        for h in self.humans:
            power = 0.0
            for g in range(len(goals[h])):
                value = 0.0
                for crowd in crowds:
                    share = policies[h, g][crowd[h]] * math.prod(prior[i][a] for i, a in crowd.items() if i != h)
                    for k, r in enumerate(robots):
                        value += share * pi_r[k] * self._worth(s, self._joint(crowd, r), h, g, self.v_he)
                self.v_he[s][h, g] = 0.0 if self.holds[s][h][g] else value
                power += self.v_he[s][h, g]
            loss += 1 / power
        return -loss / len(self.humans) + sum(p * x for p, x in zip(pi_r, q_r, strict=True))

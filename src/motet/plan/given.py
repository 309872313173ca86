"""Given policies as tables: of humans, of the robot, and of agents that are neither.

A policy may be a table, a function of the state, a solution, or an object that acts on observations, such as a learned
policy. Functions are called in every state, through :mod:`motet.plan.parallel`, and their answers are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motet.errors import ModelError, SettingError
from motet.plan.goals import GoalColumns, goal_name
from motet.plan.graph import Graph
from motet.plan.parallel import WorkerTeam, work_through
from motet.plan.solution import Solution

__all__ = ["HumanPolicies", "RobotPolicy", "RoleGraph", "asked_humans", "asked_policy", "asked_robot", "tabulated"]

_EXACT = 1e-9  # a sum that differs from 1 by at most this is used unchanged
_NEAR = 1e-5  # a sum that differs from 1 by at most this is normalised: float32 policies have such sums

HumanPolicy = Callable[[Any, int, Any], ArrayLike] | ArrayLike
HumanPolicies = Callable[[Any, int, Any], ArrayLike] | Mapping[int | str, HumanPolicy] | Solution
"""Policies of humans: a function ``(state, human, goal) -> probabilities``; for each human, such a function or a table
[states, actions] or [states, actions, goals]; or a solution."""
RobotPolicy = Any
"""A policy of the robot: a function ``state -> probabilities`` of its actions; a table [states, robot actions]; for
each robot, such a function or table of its own actions, or an object with ``act(observation)``; or a solution."""


@dataclass(frozen=True, eq=False)
class RoleGraph:
    """A graph in which each agent has a role, and the numbers of its states in the graph that the user gave."""

    graph: Graph
    total: int
    """Number of states of the user's graph, in whose order tables are given."""
    kept: NDArray[np.int64] | None = None
    """The states of the user's graph that are in this graph; None: all."""

    def rows(self, given: ArrayLike, shape: tuple[int, ...], name: str) -> NDArray[np.float64]:
        """Return this graph's rows of a table [states, *shape] that is in the order of the user's graph."""
        table = np.asarray(given, np.float64)
        if table.shape != (self.total, *shape):
            raise SettingError(f"{name} must have the shape {(self.total, *shape)}, got {table.shape}")
        return _checked(self.graph, table if self.kept is None else table[self.kept], name)


def _checked(graph: Graph, table: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """The table, checked and if necessary normalised over its second axis."""
    sums = table.sum(axis=1)
    off = np.where(np.isnan(sums), np.inf, np.abs(sums - 1))
    bad = ~graph.terminal & ((table < 0) | (off[:, None] > _NEAR)).reshape(len(table), -1).any(axis=1)
    if bad.any():
        number = int(np.flatnonzero(bad)[0])
        raise SettingError(
            f"{name} must have probabilities >= 0 with sum 1, got {table[number].tolist()} in state "
            f"{graph.states[number]!r}"
        )
    inexact = (off > _EXACT) & (off <= _NEAR)
    return np.where(inexact[:, None], table / np.where(inexact, sums, 1.0)[:, None], table) if inexact.any() else table


# Humans


def asked_humans(
    role_graph: RoleGraph,
    columns: GoalColumns,
    policies: HumanPolicies,
    out: NDArray[Any],
    workers: int | WorkerTeam,
    tick: Callable[[int], None],
) -> None:
    """Write the policies of the humans for each goal: [states, by human: own action and goal]."""
    graph, by_human = role_graph.graph, _by_human(role_graph.graph, policies)
    begin = 0
    asked: list[int] = []
    parts: list[slice] = []
    for position, human in enumerate(graph.humans):
        goals, actions, given = columns.goals[position], graph.actions[human], by_human[human]
        part = slice(begin, begin + actions * len(goals))
        begin = part.stop
        if isinstance(given, Solution):
            out[:, part] = _of_solution(graph, given, human, goals).reshape(len(graph), -1)
        elif callable(given):
            asked.append(position)
            parts.append(part)
        else:
            shape = (actions, len(goals)) if np.ndim(given) == 3 else (actions,)
            table = role_graph.rows(given, shape, f"humans: the table of {graph.agents[human]}")
            wide = table if table.ndim == 3 else np.repeat(table[:, :, None], len(goals), axis=2)
            out[:, part] = wide.reshape(len(graph), -1)
    if not asked:
        return
    humans = [graph.humans[position] for position in asked]
    ask = _AskHumans(
        [by_human[human] for human in humans],
        humans,
        [graph.agents[human] for human in humans],
        [graph.actions[human] for human in humans],
        [columns.goals[position] for position in asked],
    )
    done = 0

    def take(answers: list[NDArray[np.float64]]) -> None:
        nonlocal done
        for part, answer in zip(parts, answers, strict=True):
            out[done : done + len(answer), part] = answer
        done += len(answers[0])

    work_through(_items(graph), ask, take, workers=workers, tick=tick)


def _by_human(graph: Graph, policies: HumanPolicies) -> dict[int, Any]:
    if isinstance(policies, Mapping):
        by_human = {graph.agent(key): given for key, given in policies.items()}
        if set(by_human) != set(graph.humans):
            raise SettingError(
                f"humans must have a policy for each of the humans {graph.humans}, got policies for "
                f"{tuple(sorted(by_human))}"
            )
        return by_human
    if callable(policies) or isinstance(policies, Solution):
        return dict.fromkeys(graph.humans, policies)
    raise SettingError(
        "humans must be a function (state, human, goal) -> probabilities, a dict with a function or a table for each "
        f"human, or a Solution, got {policies!r}"
    )


def _of_solution(graph: Graph, solution: Solution, human: int, goals: Sequence[Any]) -> NDArray[np.float64]:
    """pi_h of another plan [states, actions, goals]; its states and goals may be in another order."""
    name = graph.agents[human]
    if name not in solution.graph.agents or solution.graph.agents.index(name) not in solution.graph.humans:
        raise SettingError(f"humans must have a policy for {name}, got {solution!r}, where it is not a human")
    position = solution.graph.humans.index(solution.graph.agents.index(name))
    columns = [solution.column(position, goal) for goal in goals]
    return solution.human_policy(position)[_numbers(graph, solution.graph)][:, :, columns]


def _numbers(graph: Graph, other: Graph) -> slice | NDArray[np.int64]:
    """The numbers that the states of a graph have in another graph."""
    return slice(None) if other is graph else np.array([other.number(state) for state in graph.states], np.int64)


def _items(graph: Graph) -> list[Any]:
    terminal = graph.terminal.tolist()
    return [None if terminal[number] else (state,) for number, state in enumerate(graph.states)]


@dataclass
class _AskHumans:
    """Calls the humans' policies for each state and goal; also runs in workers."""

    policies: list[Callable[[Any, int, Any], ArrayLike]]
    humans: list[int]
    names: list[str]
    actions: list[int]
    goals: list[list[Any]]

    def __call__(self, items: Sequence[tuple[Any] | None]) -> list[NDArray[np.float64]]:
        answers = [
            np.zeros((len(items), count, len(goals))) for count, goals in zip(self.actions, self.goals, strict=True)
        ]
        for row, item in enumerate(items):
            if item is None:
                continue
            for position, human in enumerate(self.humans):
                policy, out = self.policies[position], answers[position][row]
                for column, goal in enumerate(self.goals[position]):
                    try:
                        out[:, column] = _probabilities(policy(item[0], human, goal), len(out))
                    except Exception as error:
                        raise ModelError(
                            f"the policy of {self.names[position]} raised, or did not return {len(out)} probabilities: "
                            f"{type(error).__name__}: {error} (state {item[0]!r}, goal {goal_name(goal)!r})"
                        ) from error
        return [answer.reshape(len(items), -1) for answer in answers]


def _probabilities(given: ArrayLike, actions: int) -> NDArray[np.float64]:
    row = np.asarray(given, np.float64)
    if row.shape != (actions,):
        raise ValueError(f"expected {actions} numbers, got the shape {row.shape}")
    total = math.fsum(row)
    if not (row >= 0).all() or abs(total - 1) > _NEAR:
        raise ValueError(f"expected numbers >= 0 with sum 1, got {row.tolist()}")
    return row if abs(total - 1) <= _EXACT else row / total


# Robots, and agents that are neither human nor robot


def asked_robot(
    role_graph: RoleGraph, policy: RobotPolicy, model: Any, workers: int | WorkerTeam
) -> NDArray[np.float64]:
    """The probabilities of the joint actions of all robots: [states, robot actions]."""
    graph = role_graph.graph
    if isinstance(policy, Solution):
        return _robot_of(graph, policy)
    if isinstance(policy, Mapping):
        by_robot = {graph.agent(key): given for key, given in policy.items()}
        if set(by_robot) != set(graph.robots):
            raise SettingError(
                f"robot must have a policy for each of the robots {graph.robots}, got policies for "
                f"{tuple(sorted(by_robot))}"
            )
        joint = np.ones((len(graph), 1))
        for robot in graph.robots:  # the last robot's action varies fastest
            own = asked_policy(role_graph, robot, by_robot[robot], model, workers, "robot")
            joint = (joint[:, :, None] * own[:, None, :]).reshape(len(graph), -1)
        return joint
    if len(graph.robots) == 1:
        return asked_policy(role_graph, graph.robots[0], policy, model, workers, "robot")
    if hasattr(policy, "act"):
        raise SettingError(f"robot must be a dict with a policy for each of the robots {graph.robots}, got {policy!r}")
    return _asked(role_graph, policy, math.prod(graph.actions[robot] for robot in graph.robots), "robot", workers)


def asked_policy(
    role_graph: RoleGraph, agent: int, policy: Any, model: Any, workers: int | WorkerTeam, name: str
) -> NDArray[np.float64]:
    """The probabilities of one agent's actions, [states, actions]. ``name``: the argument, for errors."""
    if hasattr(policy, "act"):
        found = tabulated(policy, role_graph.graph, agent, model)
        return _checked(role_graph.graph, found, f"{name}: the probabilities of {role_graph.graph.agents[agent]}")
    return _asked(
        role_graph,
        policy,
        role_graph.graph.actions[agent],
        f"{name}: the table of {role_graph.graph.agents[agent]}",
        workers,
    )


def _asked(
    role_graph: RoleGraph, policy: Any, actions: int, name: str, workers: int | WorkerTeam
) -> NDArray[np.float64]:
    if not callable(policy):
        return role_graph.rows(policy, (actions,), name)
    parts: list[NDArray[np.float64]] = []
    work_through(_items(role_graph.graph), _AskPolicy(policy, actions, name), parts.append, workers=workers)
    return np.concatenate(parts)


@dataclass
class _AskPolicy:
    """Calls a policy in each state; also runs in workers."""

    policy: Callable[[Any], ArrayLike]
    actions: int
    name: str

    def __call__(self, items: Sequence[tuple[Any] | None]) -> NDArray[np.float64]:
        answer = np.zeros((len(items), self.actions))
        for row, item in zip(answer, items, strict=True):
            if item is None:
                continue
            try:
                row[:] = _probabilities(self.policy(item[0]), self.actions)
            except Exception as error:
                raise ModelError(
                    f"{self.name}: the policy raised, or did not return {self.actions} probabilities: "
                    f"{type(error).__name__}: {error} (state {item[0]!r})"
                ) from error
        return answer


def _robot_of(graph: Graph, solution: Solution) -> NDArray[np.float64]:
    def described(one: Graph) -> list[tuple[str, int]]:
        return [(one.agents[robot], one.actions[robot]) for robot in one.robots]

    if described(solution.graph) != described(graph):
        raise SettingError(
            f"robot must be a policy of the robots {described(graph)} (name, number of actions), got a solution for "
            f"{described(solution.graph)}"
        )
    table: NDArray[np.float64] = solution.robot_array("robot_policy")[_numbers(graph, solution.graph)]
    return np.ascontiguousarray(table)


def tabulated(policy: Any, graph: Graph, agent: int, model: Any) -> NDArray[np.float64]:
    """Tabulate a policy as probabilities [states, actions]: it is called in every state in which the agent acts."""
    if model is None:
        raise SettingError("model must be the world in which the policy acts, got none: the policy needs observations")
    name, terminal = graph.agents[agent], graph.terminal.tolist()
    if hasattr(policy, "reset"):
        policy.reset(0)
    table = np.full((len(graph), graph.actions[agent]), 1.0 / graph.actions[agent])
    acts = getattr(model, "acts", None)
    for number, state in enumerate(graph.states):
        if terminal[number] or (acts is not None and not acts(state, agent)):
            continue
        model.set_state(state)
        observation = model.observe(name)
        if hasattr(policy, "probabilities"):
            table[number] = policy.probabilities(observation)
        else:
            table[number] = 0.0
            table[number, int(policy.act(observation))] = 1.0
    return table

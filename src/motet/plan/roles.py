"""Roles: which agents are humans, which are robots, and what the others do.

An agent in neither role has a fixed policy: action 0, or a given one. It has no choice, so in the graph of the roles it
has one action. That graph holds the states that can still be reached, and the transitions that are still possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import SettingError
from motet.plan.given import RoleGraph, asked_policy
from motet.plan.graph import Graph, group_ends, group_entries
from motet.plan.parallel import WorkerTeam

__all__ = ["Agents", "in_roles"]

Agents = Sequence[int | str]


def in_roles(
    graph: Graph,
    humans: Agents | None,
    robots: Agents | None,
    others: Mapping[int | str, Any] | None,
    workers: int | WorkerTeam,
) -> RoleGraph:
    """The graph with these humans and robots (by default those of the model), and with the policies of the others."""
    roles = _roles(graph, humans, robots)
    idle = [agent for agent in range(len(graph.agents)) if agent not in (*roles[0], *roles[1])]
    policies = {graph.agent(key): policy for key, policy in (others or {}).items()}
    if wrong := [graph.agents[agent] for agent in policies if agent not in idle]:
        raise SettingError(f"others must be policies of agents that are neither human nor robot, got one of {wrong[0]}")
    named = graph if roles == (graph.humans, graph.robots) else replace(graph, humans=roles[0], robots=roles[1])
    whole = RoleGraph(named, len(graph))
    if all(graph.actions[agent] == 1 for agent in idle):
        return whole
    if graph.levels is None:
        raise SettingError("the graph has cycles, so backward induction over levels is not possible")
    tables = {agent: asked_policy(whole, agent, policies[agent], None, workers, "others") for agent in policies}
    return _reachable(_without(named, idle, tables))


def _roles(graph: Graph, humans: Agents | None, robots: Agents | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    chosen = {}
    for name, given in (("human_agents", humans), ("robot_agents", robots)):
        if given is None:
            continue
        agents = [graph.agent(agent) for agent in given]
        if len(set(agents)) < len(agents):
            raise SettingError(f"{name} must name each agent at most once, got {list(given)}")
        chosen[name] = tuple(sorted(agents))
    both = set(chosen.get("human_agents", ())) & set(chosen.get("robot_agents", ()))
    if both:
        raise SettingError(
            f"human_agents and robot_agents must not have an agent in common, got {graph.agents[min(both)]} in both"
        )
    own = chosen.get("human_agents"), chosen.get("robot_agents")
    people = own[0] if own[0] is not None else tuple(i for i in graph.humans if i not in (own[1] or ()))
    machines = own[1] if own[1] is not None else tuple(i for i in graph.robots if i not in (own[0] or ()))
    if not people and not machines:
        raise SettingError(
            f"human_agents and robot_agents must name agents among {', '.join(graph.agents)}, got none: the model does "
            "not give human_agent_indices and robot_agent_indices, so give the roles here"
        )
    return people, machines


def _without(graph: Graph, idle: Sequence[int], tables: Mapping[int, NDArray[np.float64]]) -> Graph:
    """The graph in which agents without a role have one action; its distributions are mixed by their policies."""
    actions = tuple(1 if agent in idle else count for agent, count in enumerate(graph.actions))
    numbers = np.arange(graph.joints).reshape(graph.actions)
    first = tuple(
        slice(0, 1) if agent in idle and agent not in tables else slice(None) for agent in range(numbers.ndim)
    )
    moved = np.moveaxis(numbers[first], list(tables), range(-len(tables), 0))
    columns = moved.reshape(int(np.prod(actions)), -1)  # [joint actions of the others, profiles of those with a policy]
    shares = np.ones((len(graph), 1))
    for table in tables.values():
        shares = (shares[:, :, None] * table[:, None, :]).reshape(len(graph), -1)
    if tables:
        return _mixed(replace(graph, actions=actions, _index={}), columns, shares)
    return replace(graph, actions=actions, joint=np.ascontiguousarray(graph.joint[:, columns[:, 0]]))


def _mixed(graph: Graph, columns: NDArray[np.int64], shares: NDArray[np.float64]) -> Graph:
    """The graph whose distributions are averaged over the profiles of the agents with fixed policies."""
    joint = np.zeros((len(graph), len(columns)), np.uint32)
    counts = np.zeros(len(graph), np.int64)
    sizes: list[int] = []  # for each new distribution: the number of old distributions that are mixed
    parts: list[int] = []  # the old distributions
    weights: list[float] = []
    line = np.arange(len(columns))[:, None]
    for state in np.flatnonzero(~graph.terminal).tolist():
        first = int(graph.dists[state])
        mixture = np.zeros((len(columns), int(graph.dists[state + 1]) - first))
        np.add.at(mixture, (line, graph.joint[state][columns]), shares[state])
        known: dict[bytes, int] = {}
        for action, row in enumerate(mixture):
            number = known.setdefault(row.tobytes(), len(known))
            joint[state, action] = number
            if number < counts[state]:
                continue
            counts[state] += 1
            some = np.flatnonzero(row)
            sizes.append(len(some))
            parts += (some + first).tolist()
            weights += row[some].tolist() if len(some) > 1 else [1.0]
    old = np.array(parts, np.int64)
    lengths = np.diff(graph.rows)[old]
    at = group_entries(graph.rows[:-1][old], lengths)
    ends = group_ends(lengths)[group_ends(np.array(sizes, np.int64))]
    return replace(
        graph,
        joint=joint,
        dists=group_ends(counts),
        rows=ends,
        successor=graph.successor[at],
        probability=graph.probability[at] * np.repeat(np.array(weights), lengths),
        duration=None if graph.duration is None else graph.duration[at],
        reward=None if graph.reward is None else np.ascontiguousarray(graph.reward[:, at]),
    )


def _reachable(graph: Graph) -> RoleGraph:
    """The part of the graph that can be reached, without distributions that no joint action has."""
    assert graph.levels is not None
    total = len(graph)
    used = np.zeros(int(graph.dists[-1]), bool)
    if not len(used):  # the first state is terminal
        return RoleGraph(graph, total)
    numbers = graph.dists[:-1, None] + graph.joint
    used[numbers[~graph.terminal].reshape(-1)] = True
    reached = np.zeros(total, bool)
    reached[0] = True
    for first, last in zip(graph.levels[:-1].tolist(), graph.levels[1:].tolist(), strict=True):
        dists = slice(int(graph.dists[first]), int(graph.dists[last]))
        used[dists] &= np.repeat(reached[first:last], np.diff(graph.dists[first : last + 1]))
        ends = graph.rows[dists.start : dists.stop + 1]
        possible = np.repeat(used[dists], np.diff(ends))
        reached[graph.successor[int(ends[0]) : int(ends[-1])][possible]] = True
    kept = np.flatnonzero(reached)
    renumbered = np.cumsum(reached, dtype=np.int32) - 1
    place = np.cumsum(used) - 1  # for each used distribution
    counts = np.diff(group_ends(used.astype(np.int64))[graph.dists])[kept]
    joint = (
        np.where(graph.terminal[:, None], 0, place[np.minimum(numbers, len(used) - 1)])[kept]
        - group_ends(counts)[:-1, None]
    )
    joint[counts == 0] = 0
    lengths = np.diff(graph.rows)[used]
    at = group_entries(graph.rows[:-1][used], lengths)
    most = int(counts.max(initial=0))
    levels = np.cumsum(
        [0, *(int(reached[a:b].sum()) for a, b in zip(graph.levels[:-1], graph.levels[1:], strict=True))]
    )
    left = replace(
        graph,
        states=[graph.states[number] for number in kept.tolist()],
        joint=joint.astype(np.uint8 if most <= 1 << 8 else np.uint16 if most <= 1 << 16 else np.uint32),
        dists=group_ends(counts),
        rows=group_ends(lengths),
        successor=renumbered[graph.successor[at]],
        probability=graph.probability[at],
        duration=None if graph.duration is None else graph.duration[at],
        reward=None if graph.reward is None else np.ascontiguousarray(graph.reward[:, at]),
        levels=np.unique(levels),
        _index={},
    )
    return RoleGraph(left, total, None if len(kept) == total else kept)

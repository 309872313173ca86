"""Backward induction, level by level; and the best response of one agent in an MDP with rewards.

The native sweeps release the GIL and write only the rows of their own states. So a level is split into one part for
each thread, on the caller's arrays: nothing is copied, no thread is started for a level, and the result does not depend
on the split. The calling thread does levels with few states; large levels may be shared with other machines
(:mod:`motet.plan.sweeps`).

``best_response`` fixes the policies of all agents but one and solves the resulting Markov decision process: over the
levels of a graph, or step by step over a horizon if the graph has cycles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motet import _native
from motet.errors import SettingError
from motet.placement import Cluster
from motet.plan.graph import Graph
from motet.plan.parallel import WorkerTeam, worker_team
from motet.plan.progress import Progress
from motet.plan.sweeps import FEW, Backup, SweepRun, spread, sweeping

__all__ = ["Response", "backwards", "best_response", "others_first"]

_FEW_ENTRIES = 400_000  # transitions of an MDP, at about a nanosecond each, for which it is not worth waking a thread


def backwards(
    graph: Graph,
    backup: Backup,
    workers: int | WorkerTeam | None,
    phase: str,
    progress: Callable[[Progress], None] | None,
    check: Callable[[list[Any]], None] = lambda found: None,
    few: int = FEW,
) -> None:
    """Sweep all levels, the last one first; ``check`` is called with the return values of the parts of a level."""
    if graph.levels is None:
        raise SettingError(
            "the graph has cycles, so backward induction over levels is not possible: use best_response with a horizon"
        )
    began = time.perf_counter()
    ends = graph.levels.tolist()
    levels = list(zip(ends[-2::-1], ends[:0:-1], strict=True))
    with spread(backup, len(graph), levels, workers, few) as sweep:
        for first, last in levels:
            check(sweep(first, last))
            if progress is not None:
                progress(Progress(phase, len(graph) - first, len(graph), time.perf_counter() - began))


def others_first(graph: Graph, *order: int) -> NDArray[np.int32]:
    """All joint actions. The action of the first given agent varies slowest, then those of the next ones, then those of
    the others."""
    rest = [agent for agent in range(len(graph.actions)) if agent not in order]
    joint = np.arange(graph.joints, dtype=np.int32).reshape(graph.actions)
    return np.ascontiguousarray(joint.transpose(*order, *rest)).reshape(-1)


@dataclass(eq=False)
class Response:
    """The best response of one agent to fixed policies of the others.

    With a ``horizon`` the arrays have one row for each step, in order; ``value`` has one more, for the end.
    """

    graph: Graph
    agent: int
    value: NDArray[np.float64]  # [states] or [horizon + 1, states]
    choice: NDArray[np.int32]  # [states] or [horizon, states]
    """The best action (the first one if several are equal); -1 in terminal states."""
    horizon: int | None
    gamma: float
    _problem: _Problem = field(repr=False)

    @property
    def table(self) -> NDArray[np.float64]:
        """The best action as probabilities [states, actions]; with a horizon, the best action of the first step."""
        choice = self.choice if self.horizon is None else self.choice[0]
        table = np.zeros((len(self.graph), self.graph.actions[self.agent]))
        table[np.arange(len(choice)), np.maximum(choice, 0)] = 1.0
        return table

    def values_of(self, policy: ArrayLike, workers: int | None = None) -> NDArray[np.float64]:
        """The value of a policy of the agent in each state, [states].

        Args:
            policy: the probabilities of the actions, [states, actions].
            workers: maximum number of threads.
        """
        table = _checked_table(policy, self.graph, self.agent, "policy")
        value = np.zeros(len(self.graph))
        problem = self._problem
        if self.horizon is None:
            backwards(self.graph, problem.follow(value, table), workers, "evaluate", None, few=problem.few)
            return value
        steps = [(0, len(value))] * self.horizon
        with spread(problem.follow(value, table), len(value), steps, workers, problem.few) as sweep:
            for first, last in steps:
                next_value, value = value, np.zeros(len(self.graph))
                sweep(first, last, source=next_value, to=value)
        return value


@dataclass(eq=False)
class _Problem:
    """The Markov decision process of one agent: for each state and action, expected reward and weighted successors."""

    actions: int
    gamma: float
    terminal: NDArray[np.uint8]  # [states]
    rows: NDArray[np.int64]  # [states * actions + 1]
    successor: NDArray[np.int32]
    weight: NDArray[np.float64]
    earned: NDArray[np.float64]  # [states * actions]

    @property
    def few(self) -> int:
        """Levels with fewer states than this are done by the calling thread alone."""
        return _FEW_ENTRIES * len(self.terminal) // max(len(self.weight), 1)

    def best(self, value: NDArray[np.float64], choice: NDArray[np.int32], **source: NDArray[np.float64]) -> Backup:
        """Backup for the best action of each state. It reads later values from ``source``, else from ``value``."""
        return self._backup(_best, {"to": value, "choice": choice, **source}, ("to", "choice"))

    def follow(self, value: NDArray[np.float64], policy: NDArray[np.float64], **source: NDArray[np.float64]) -> Backup:
        """Backup for the value of a policy [states, actions]."""
        return self._backup(_follow, {"to": value, "policy": policy, **source}, ("to",))

    def _backup(
        self, make: Callable[[dict[str, Any]], SweepRun], arrays: dict[str, NDArray[Any]], writes: tuple[str, ...]
    ) -> Backup:
        return Backup(
            make=make,
            arrays=vars(self) | arrays,
            ends=("rows",),
            transitions=("successor", "weight"),
            own=("terminal", "earned", *(name for name in ("policy",) if name in arrays)),
            reads=("source",) if "source" in arrays else ("to",),
            writes=writes,
        )


def _best(arrays: dict[str, Any]) -> SweepRun:
    sweep, to, choice = _native.DecisionSweep(arrays), arrays["to"], arrays["choice"]
    source = arrays.get("source", to)
    return lambda first, last: sweep.best(first, last, source, to, choice)


def _follow(arrays: dict[str, Any]) -> SweepRun:
    sweep, to, policy = _native.DecisionSweep(arrays), arrays["to"], arrays["policy"]
    source = arrays.get("source", to)
    return lambda first, last: sweep.follow(first, last, source, to, policy)


def best_response(
    graph: Graph,
    agent: int | str = 0,
    others: Mapping[int | str, ArrayLike] | None = None,
    *,
    gamma: float = 1.0,
    rho: float | None = None,
    horizon: int | None = None,
    workers: int | None = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
) -> Response:
    """Compute the best response of ``agent`` to fixed policies of all others, and its value.

    Args:
        graph: enumerated with ``rewards=True``.
        agent: index or name of the agent.
        others: policies of the others, as probabilities [states, actions], by index or name; the default is uniform.
        gamma: discount factor per step.
        rho: discount rate, as an alternative to ``gamma``: a transition of duration d is discounted by exp(-rho d).
        horizon: number of steps; None: until a terminal state, which is not possible for a graph with cycles.
        workers: maximum number of threads; None: one per core. The result is the same for any number.
        engine: where the work is done: on this machine, or also on the nodes of a Ray cluster.
        cluster: the Ray cluster; by default Ray starts on this machine.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> graph = enumerate_states(Rooms("freeing"), rewards=True)
    >>> round(float(best_response(graph, "human_0").value[0]), 6)
    5.997778
    """
    index = graph.agent(agent)
    if graph.reward is None:
        raise SettingError("the graph has no rewards: make it with enumerate_states(model, rewards=True)")
    if not 0 <= gamma <= 1 or (rho is not None and not rho >= 0):
        raise SettingError(f"gamma must be a number from 0 to 1 and rho a number >= 0, got {gamma} and {rho}")
    if rho is not None and gamma != 1:
        raise SettingError(f"gamma must be 1 where rho is given, got {gamma} and {rho}: both are discounts")
    if horizon is None and graph.levels is None:
        raise SettingError("the graph has cycles: give horizon=…, the number of steps")
    with worker_team(workers, engine, cluster) as team:
        problem = _problem(graph, index, others or {}, gamma, rho or 0.0, workers)
        value, choice = _solved(graph, problem, horizon, team)
    return Response(graph, index, value, choice, horizon, gamma, problem)


def _solved(
    graph: Graph, problem: _Problem, horizon: int | None, workers: int | WorkerTeam | None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Values and choices: one pass over the levels, or one sweep over all states for each step."""
    states = len(graph)
    if horizon is None:
        value, choice = np.zeros(states), np.full(states, -1, np.int32)
        backwards(graph, problem.best(value, choice), workers, "respond", None, few=problem.few)
        return value, choice
    value, choice = np.zeros((horizon + 1, states)), np.empty((horizon, states), np.int32)
    steps = [(0, states)] * horizon
    backup = problem.best(value[0], choice[0], source=value[1])
    with spread(backup, states, steps, workers, problem.few) as sweep:
        for step, (first, last) in reversed(list(enumerate(steps))):
            sweep(first, last, source=value[step + 1], to=value[step], choice=choice[step])
    return value, choice


def _problem(
    graph: Graph, agent: int, others: Mapping[int | str, ArrayLike], gamma: float, rho: float, workers: int | None
) -> _Problem:
    assert graph.reward is not None
    arrays = {
        **graph.arrays(),
        "actions": graph.actions[agent],
        "table": others_first(graph, agent),
        "reward": np.ascontiguousarray(graph.reward[agent]),
        "shares": _shares(graph, agent, {graph.agent(key): table for key, table in others.items()}),
        "rho": rho,
    }
    collapse = _native.Collapse(arrays)
    with sweeping(workers) as parts:
        found = parts(0, len(graph), collapse.run)
    lengths = np.frombuffer(b"".join(part[0] for part in found), np.int64)
    rows = np.concatenate([[0], np.cumsum(lengths)])
    successor = np.frombuffer(b"".join(part[1] for part in found), np.int32)
    weight = np.frombuffer(b"".join(part[2] for part in found), np.float64)
    earned = np.frombuffer(b"".join(part[3] for part in found), np.float64)
    terminal = graph.terminal.astype(np.uint8)
    return _Problem(graph.actions[agent], gamma, terminal, rows, successor, weight, earned)


def _shares(graph: Graph, agent: int, others: Mapping[int, ArrayLike]) -> NDArray[np.float64]:
    """Probability of each profile of the others: [states, profiles], or [1, profiles] if it is the same everywhere."""
    if agent in others:
        raise SettingError(f"others must not have a policy for {graph.agents[agent]}, which is the responding agent")
    shares = np.ones((len(graph) if others else 1, 1))
    for other, count in enumerate(graph.actions):
        if other == agent:
            continue
        if other in others:
            table = _checked_table(others[other], graph, other, "others")
        else:
            table = np.full((1, count), 1.0 / count)
        shares = (shares[:, :, None] * table[:, None, :]).reshape(len(shares), -1)
    return np.ascontiguousarray(shares)


def _checked_table(given: ArrayLike, graph: Graph, agent: int, name: str) -> NDArray[np.float64]:
    table = np.ascontiguousarray(given, np.float64)
    expected = (len(graph), graph.actions[agent])
    if table.shape != expected:
        raise SettingError(
            f"{name}: the table of {graph.agents[agent]} must have the shape {expected}, got {table.shape}"
        )
    rows = table[~graph.terminal]
    if (rows < 0).any() or (np.abs(rows.sum(axis=1) - 1) > 1e-9).any():
        raise SettingError(f"{name}: the table of {graph.agents[agent]} must have probabilities with sum 1 in each row")
    return table

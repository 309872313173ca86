"""Solve backwards: level by level, and plain decision problems with rewards.

The native sweeps release the interpreter's lock and write the rows of their own states only, so a level is cut into
parts, one for each thread, on the caller's own arrays: nothing is copied, nothing is started for a level, and the split
cannot be seen in the result. Levels of few states are done by the caller; large ones may be shared with other machines
(:mod:`motet.plan.sweeps`).

``best_response`` fixes all agents but one, which leaves a Markov decision problem, and solves that: over the levels of
a graph, or step by step over a horizon where the graph has cycles.
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

_FEW_ENTRIES = 400_000  # of plain problems, at about a nanosecond each, that are not worth waking a thread for


def backwards(
    graph: Graph,
    backup: Backup,
    workers: int | WorkerTeam | None,
    phase: str,
    progress: Callable[[Progress], None] | None,
    check: Callable[[list[Any]], None] = lambda found: None,
    few: int = FEW,
) -> None:
    """Run over all levels, the last one first; ``check`` sees what the parts of a level returned."""
    if graph.levels is None:
        raise SettingError(
            "the graph has cycles, so it has no levels to go back over: use best_response with a horizon"
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
    """All joint actions, arranged with the given agents' actions outermost, in that order; the rest as they come."""
    rest = [agent for agent in range(len(graph.actions)) if agent not in order]
    joint = np.arange(graph.joints, dtype=np.int32).reshape(graph.actions)
    return np.ascontiguousarray(joint.transpose(*order, *rest)).reshape(-1)


@dataclass(eq=False)
class Response:
    """The best that one agent can do while the others do what they do.

    With a ``horizon`` the arrays have one row for each step, the first step first; ``value`` has one more, the end.
    """

    graph: Graph
    agent: int
    value: NDArray[np.float64]  # [states] or [horizon + 1, states]
    choice: NDArray[np.int32]  # [states] or [horizon, states]
    """The best action; the first of several; -1 where the state is terminal."""
    horizon: int | None
    gamma: float
    _problem: _Problem = field(repr=False)

    @property
    def table(self) -> NDArray[np.float64]:
        """The best action as probabilities [states, actions], that of the first step where there is a horizon."""
        choice = self.choice if self.horizon is None else self.choice[0]
        table = np.zeros((len(self.graph), self.graph.actions[self.agent]))
        table[np.arange(len(choice)), np.maximum(choice, 0)] = 1.0
        return table

    def values_of(self, policy: ArrayLike, workers: int | None = None) -> NDArray[np.float64]:
        """What a policy of the agent earns from each state on, [states].

        Args:
            policy: its probabilities [states, actions].
            workers: threads at most.
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
    """One agent's decision problem: for each state and action, expected reward and weighted successors."""

    actions: int
    gamma: float
    terminal: NDArray[np.uint8]  # [states]
    rows: NDArray[np.int64]  # [states * actions + 1]
    successor: NDArray[np.int32]
    weight: NDArray[np.float64]
    earned: NDArray[np.float64]  # [states * actions]

    @property
    def few(self) -> int:
        """How many states the caller does alone."""
        return _FEW_ENTRIES * len(self.terminal) // max(len(self.weight), 1)

    def best(self, value: NDArray[np.float64], choice: NDArray[np.int32], **source: NDArray[np.float64]) -> Backup:
        """The best action of each state. Values of later states are read from ``source``, or where they are written."""
        return self._backup(_best, {"to": value, "choice": choice, **source}, ("to", "choice"))

    def follow(self, value: NDArray[np.float64], policy: NDArray[np.float64], **source: NDArray[np.float64]) -> Backup:
        """What a policy [states, actions] earns."""
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
    """The best that ``agent`` can do, and what it earns by it, while all others keep to fixed policies.

    Args:
        graph: enumerated with ``rewards=True``.
        agent: its index or name.
        others: their policies, as probabilities [states, actions], by index or name; those not named are uniform.
        gamma: discount a step.
        rho: discount rate instead: a transition of duration d counts exp(-rho d).
        horizon: how many steps there are; None: until the end, which a graph with cycles does not have.
        workers: threads at most; None: one a core. The result is the same for any number.
        engine: where they are: on this machine, or on the nodes of a Ray cluster too.
        cluster: which one; by default Ray starts on this machine.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> graph = enumerate_states(Rooms("freeing"), rewards=True)
    >>> round(float(best_response(graph, "human_0").value[0]), 6)
    5.997778
    """
    index = _agent_index(graph, agent)
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
        "shares": _shares(graph, agent, {_agent_index(graph, key): table for key, table in others.items()}),
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
    """How likely each profile of the others is: [states, profiles], or [1, profiles] where it is always the same."""
    if agent in others:
        raise SettingError(f"others: {graph.agents[agent]} is among them; it is the one that responds")
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


def _agent_index(graph: Graph, agent: int | str) -> int:
    if isinstance(agent, str) and agent in graph.agents:
        return graph.agents.index(agent)
    if isinstance(agent, int) and 0 <= agent < len(graph.agents):
        return agent
    raise SettingError(f"agent must be one of {', '.join(graph.agents)} or its index, got {agent!r}")


def _checked_table(given: ArrayLike, graph: Graph, agent: int, name: str) -> NDArray[np.float64]:
    table = np.ascontiguousarray(given, np.float64)
    expected = (len(graph), graph.actions[agent])
    if table.shape != expected:
        raise SettingError(
            f"{name}: the table of {graph.agents[agent]} must have the shape {expected}, got {table.shape}"
        )
    rows = table[~graph.terminal]
    if (rows < 0).any() or (np.abs(rows.sum(axis=1) - 1) > 1e-9).any():
        raise SettingError(f"{name}: the table of {graph.agents[agent]} has rows that are no probabilities")
    return table

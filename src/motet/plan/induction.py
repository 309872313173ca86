"""Solve backwards: levels over threads, and plain decision problems with rewards.

The native sweeps release the interpreter's lock and write the rows of their own states only, so a level is cut into
parts, one for each thread, on the caller's own arrays: nothing is copied, nothing is started for a level, and the split
cannot be seen in the result. Levels of few states are done by the caller.

``best_response`` fixes all agents but one, which leaves a Markov decision problem, and solves that: over the levels of
a graph, or step by step over a horizon where the graph has cycles.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motet import _native
from motet.errors import SettingError
from motet.plan._workers import usable_cores
from motet.plan.enumeration import Progress
from motet.plan.graph import Graph

__all__ = ["Response", "best_response", "others_first", "sweeping"]

_FEW = 256  # states with goals, at some microseconds each, that are not worth waking a thread for
_FEW_ENTRIES = 400_000  # the same for plain problems, at about a nanosecond each
_Found = TypeVar("_Found")

Parts = Callable[[int, int, Callable[[int, int], _Found]], list[_Found]]


@contextmanager
def sweeping(workers: int | None, few: int = _FEW) -> Iterator[Parts[Any]]:
    """Gives ``parts(first, last, run)``: calls ``run`` on parts of first to last, on several threads.

    Fewer than ``few`` states are done by the caller. What the parts return is given back in their order.
    """
    count = usable_cores() if workers is None else workers
    if count < 1:
        raise SettingError(f"workers: given {workers}, expected 1 or more, or None for one a core")
    with ThreadPoolExecutor(max(count - 1, 1), "plan-sweep") as threads:

        def parts(first: int, last: int, run: Callable[[int, int], Any]) -> list[Any]:
            if count == 1 or last - first < few:
                return [run(first, last)]
            cuts = [first + (last - first) * i // count for i in range(count + 1)]
            others = [threads.submit(run, a, b) for a, b in itertools.pairwise(cuts[1:])]
            return [run(cuts[0], cuts[1]), *(other.result() for other in others)]

        yield parts


def backwards(
    graph: Graph,
    run: Callable[[int, int], Any],
    workers: int | None,
    phase: str,
    progress: Callable[[Progress], None] | None,
    check: Callable[[list[Any]], None] = lambda found: None,
    few: int = _FEW,
) -> None:
    """Run over all levels, the last one first; ``check`` sees what the parts of a level returned."""
    if graph.levels is None:
        raise SettingError(
            "the graph has cycles, so it has no levels to go back over: use best_response with a horizon"
        )
    began = time.perf_counter()
    with sweeping(workers, few) as parts:
        levels = graph.levels.tolist()
        for first, last in zip(levels[-2::-1], levels[:0:-1], strict=True):
            check(parts(first, last, run))
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
        sweep = self._problem.sweep
        if self.horizon is None:
            run = functools.partial(_follow, sweep, value, value, table)
            backwards(self.graph, run, workers, "evaluate", None, few=self._problem.few)
            return value
        with sweeping(workers, self._problem.few) as parts:
            for _ in range(self.horizon):
                next_value, value = value, np.zeros(len(self.graph))
                parts(0, len(value), functools.partial(_follow, sweep, next_value, value, table))
        return value


def _follow(
    sweep: _native.DecisionSweep,
    source: NDArray[np.float64],
    to: NDArray[np.float64],
    table: NDArray[np.float64],
    first: int,
    last: int,
) -> None:
    sweep.follow(first, last, source, to, table)


@dataclass(eq=False)
class _Problem:
    """One agent's decision problem: for each state and action, expected reward and weighted successors."""

    states: int
    rows: NDArray[np.int64]  # [states * actions + 1]
    successor: NDArray[np.int32]
    weight: NDArray[np.float64]
    earned: NDArray[np.float64]  # [states * actions]
    sweep: _native.DecisionSweep

    @property
    def few(self) -> int:
        """How many states the caller does alone."""
        return _FEW_ENTRIES * self.states // max(len(self.weight), 1)


def best_response(
    graph: Graph,
    agent: int | str = 0,
    others: Mapping[int | str, ArrayLike] | None = None,
    *,
    gamma: float = 1.0,
    rho: float | None = None,
    horizon: int | None = None,
    workers: int | None = None,
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
        raise SettingError(f"gamma is {gamma}, rho is {rho}; expected gamma from 0 to 1, rho from 0 on")
    if rho is not None and gamma != 1:
        raise SettingError(f"gamma is {gamma} and rho is {rho}; expected one of them: both are discounts")
    if horizon is None and graph.levels is None:
        raise SettingError("the graph has cycles: give horizon=…, the number of steps")
    problem = _problem(graph, index, others or {}, gamma, rho or 0.0, workers)
    value, choice = _solved(graph, problem, horizon, workers)
    return Response(graph, index, value, choice, horizon, gamma, problem)


def _solved(
    graph: Graph, problem: _Problem, horizon: int | None, workers: int | None
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Values and choices: one pass over the levels, or one sweep over all states for each step."""
    states = len(graph)
    if horizon is None:
        value, choice = np.zeros(states), np.full(states, -1, np.int32)
        run = functools.partial(_best, problem.sweep, value, value, choice)
        backwards(graph, run, workers, "respond", None, few=problem.few)
        return value, choice
    value, choice = np.zeros((horizon + 1, states)), np.empty((horizon, states), np.int32)
    with sweeping(workers, problem.few) as parts:
        for step in range(horizon - 1, -1, -1):
            parts(0, states, functools.partial(_best, problem.sweep, value[step + 1], value[step], choice[step]))
    return value, choice


def _best(
    sweep: _native.DecisionSweep,
    source: NDArray[np.float64],
    to: NDArray[np.float64],
    choice: NDArray[np.int32],
    first: int,
    last: int,
) -> None:
    sweep.best(first, last, source, to, choice)


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
    sweep = _native.DecisionSweep(
        {
            "actions": graph.actions[agent],
            "gamma": gamma,
            "terminal": graph.terminal.astype(np.uint8),
            "rows": rows,
            "successor": successor,
            "weight": weight,
            "earned": earned,
        }
    )
    return _Problem(len(graph), rows, successor, weight, earned, sweep)


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
    raise SettingError(f"agent: given {agent!r}, expected one of {', '.join(graph.agents)} or its index")


def _checked_table(given: ArrayLike, graph: Graph, agent: int, name: str) -> NDArray[np.float64]:
    table = np.ascontiguousarray(given, np.float64)
    expected = (len(graph), graph.actions[agent])
    if table.shape != expected:
        raise SettingError(f"{name}: the table of {graph.agents[agent]} has shape {table.shape}, expected {expected}")
    rows = table[~graph.terminal]
    if (rows < 0).any() or (np.abs(rows.sum(axis=1) - 1) > 1e-9).any():
        raise SettingError(f"{name}: the table of {graph.agents[agent]} has rows that are no probabilities")
    return table

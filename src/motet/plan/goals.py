"""Goals, their weights, and beliefs, which users give as Python functions: evaluated once per state, into arrays.

A *column* is one goal of one human; the columns of a human are adjacent. The functions are called through
:mod:`motet.plan.parallel`: in the calling process, or in worker processes if they are slow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from motet.errors import ModelError, SettingError
from motet.plan.graph import Graph
from motet.plan.parallel import WorkerTeam, work_through

__all__ = ["Goal", "GoalColumns", "Goals", "asked_beliefs", "asked_goals", "goal_name"]


@runtime_checkable
class Goal(Protocol):
    """A goal that a human may have. It must be hashable. A saved solution refers to it by its ``name``, if any."""

    def is_achieved(self, state: Any) -> bool:
        """Whether the goal holds in a state."""


Weighted = Goal | tuple[Goal, float]
Goals = Sequence[Weighted] | Mapping[int, Sequence[Weighted]] | Callable[[Any, int], Iterable[Weighted]]
"""Goals with weights (1 by default): for all humans, by human, or from a generator (state, human) -> goals."""


@dataclass(eq=False)
class GoalColumns:
    """Goals by human, and the states in which they hold."""

    goals: list[list[Goal]]  # by human
    achieved: NDArray[np.uint8]  # [states, columns]
    weights: NDArray[np.float64]  # [states or 1, columns]

    @property
    def first(self) -> NDArray[np.int64]:
        """First column of each human, and the total number of columns."""
        return np.concatenate([[0], np.cumsum([len(goals) for goals in self.goals], dtype=np.int64)])


def goal_name(goal: Any) -> str:
    """The name of a goal."""
    return str(getattr(goal, "name", goal))


def asked_goals(graph: Graph, goals: Goals, workers: int | WorkerTeam, tick: Callable[[int], None]) -> GoalColumns:
    """Find all goals and their weights, and evaluate whether each goal holds in each state."""
    generate: Any = getattr(goals, "generate", goals if callable(goals) else None)
    if generate is not None:
        by_human, weights = _generated(graph, generate, workers)
    else:
        given: Any = goals if isinstance(goals, Mapping) else dict.fromkeys(graph.humans, goals)
        if set(given) != set(graph.humans):
            raise SettingError(f"goals must be given for the humans {graph.humans}, got the agents {sorted(given)}")
        pairs = [[_weighted(goal) for goal in given[human]] for human in graph.humans]
        for human, own in zip(graph.humans, pairs, strict=True):
            if not own:
                raise SettingError(f"goals of {graph.agents[human]} must be one or more, got none")
            if len({goal for goal, _ in own}) < len(own):
                raise SettingError(f"{graph.agents[human]} has a goal twice: give it once, with the sum of the weights")
        by_human = [[goal for goal, _ in own] for own in pairs]
        weights = np.array([[weight for own in pairs for _, weight in own]], np.float64)
    distinct = list(dict.fromkeys(goal for own in by_human for goal in own))
    column_of = {goal: i for i, goal in enumerate(distinct)}
    parts: list[NDArray[np.uint8]] = []
    work_through(list(graph.states), _Holds(distinct), parts.append, workers=workers, tick=tick)
    holds = np.concatenate(parts)
    columns = [column_of[goal] for own in by_human for goal in own]
    return GoalColumns(by_human, np.ascontiguousarray(holds[:, columns]), weights)


def _weighted(given: Any) -> tuple[Any, float]:
    goal, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
    if not isinstance(goal, Goal):
        raise SettingError(f"goal must be an object with is_achieved(state) -> bool, got {goal!r}")
    if not (isinstance(weight, int | float) and 0 <= weight < math.inf):
        raise SettingError(f"goal {goal_name(goal)!r} must have a finite weight >= 0, got {weight!r}")
    return goal, float(weight)


@dataclass
class _Holds:
    goals: list[Any]

    def __call__(self, states: Sequence[Any]) -> NDArray[np.uint8]:
        answer = np.empty((len(states), len(self.goals)), np.uint8)
        for column, goal in enumerate(self.goals):
            holds = goal.is_achieved
            try:
                answer[:, column] = [bool(holds(state)) for state in states]
            except Exception as error:
                state = next((state for state in states if _fails(holds, state)), states[0])
                raise ModelError(
                    f"goal {goal_name(goal)!r}: is_achieved raised {type(error).__name__}: {error} (state {state!r})"
                ) from error
        return answer


def _fails(holds: Callable[[Any], Any], state: Any) -> bool:
    try:
        bool(holds(state))
    except Exception:  # noqa: BLE001 - the caller reports it
        return True
    return False


def _generated(
    graph: Graph, generate: Callable[[Any, int], Iterable[Weighted]], workers: int | WorkerTeam
) -> tuple[list[list[Any]], NDArray[np.float64]]:
    """Goals by human in the order in which the generator gives them, and their weights in each state."""
    terminal = graph.terminal.tolist()
    items = [(number, state) for number, state in enumerate(graph.states) if not terminal[number]]
    columns: list[dict[Any, int]] = [{} for _ in graph.humans]
    entries: list[tuple[int, int, int, float]] = []

    def take(part: list[tuple[int, int, Any, float]]) -> None:
        for number, human, goal, weight in part:
            own = columns[human]
            entries.append((number, human, own.setdefault(goal, len(own)), weight))

    work_through(items, _Generate(generate, graph.humans, graph.agents), take, workers=workers)
    first = np.concatenate([[0], np.cumsum([len(own) for own in columns], dtype=np.int64)])
    weights = np.zeros((len(graph), int(first[-1])))
    for number, human, column, weight in entries:
        weights[number, first[human] + column] += weight
    return [list(own) for own in columns], weights


@dataclass
class _Generate:
    generate: Callable[[Any, int], Iterable[Any]]
    humans: tuple[int, ...]
    agents: tuple[str, ...]

    def __call__(self, items: Sequence[tuple[int, Any]]) -> list[tuple[int, int, Any, float]]:
        answer = []
        for number, state in items:
            for position, human in enumerate(self.humans):
                try:
                    goals = [_weighted(goal) for goal in self.generate(state, human)]
                except Exception as error:
                    raise ModelError(
                        f"the goal generator raised {type(error).__name__}: {error} "
                        f"(state {state!r}, {self.agents[human]})"
                    ) from error
                if not any(weight for _, weight in goals):
                    raise ModelError(
                        f"state {state!r}: the goal generator gave {self.agents[human]} no goal with a weight > 0"
                    )
                answer += [(number, position, goal, weight) for goal, weight in goals]
        return answer


def asked_beliefs(
    graph: Graph,
    believed: Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]],
    workers: int | WorkerTeam,
    tick: Callable[[int], None],
) -> NDArray[np.float64]:
    """Evaluate the humans' beliefs about the others: [states, by human: own action and the other humans' profile]."""
    terminal = graph.terminal.tolist()
    items = [None if terminal[number] else (state,) for number, state in enumerate(graph.states)]
    parts: list[NDArray[np.float64]] = []
    ask = _Believe(believed, graph.humans, graph.agents, graph.actions)
    work_through(items, ask, parts.append, workers=workers, tick=tick)
    return np.concatenate(parts)


@dataclass
class _Believe:
    believed: Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]]
    humans: tuple[int, ...]
    agents: tuple[str, ...]
    actions: tuple[int, ...]

    def __call__(self, items: Sequence[tuple[Any] | None]) -> NDArray[np.float64]:
        sizes = [self.actions[human] for human in self.humans]
        answer = np.zeros((len(items), len(self.humans), math.prod(sizes)))
        for row, item in zip(answer, items, strict=True):
            if item is None:
                continue
            for position, human in enumerate(self.humans):
                shares = row[position].reshape(sizes[position], -1)
                for action in range(sizes[position]):
                    self._ask(item[0], human, action, shares[action])
        return answer.reshape(len(items), -1)

    def _ask(self, state: Any, human: int, action: int, shares: NDArray[np.float64]) -> None:
        at = f"(state {state!r}, {self.agents[human]}, action {action})"
        try:
            profiles = [(float(p), profile) for p, profile in self.believed(state, human, action)]
            for p, profile in profiles:
                number = 0
                for other in self.humans:
                    if other != human:
                        number = number * self.actions[other] + range(self.actions[other])[profile[other]]
                shares[number] += p
        except Exception as error:
            raise ModelError(
                "believed_others_policy raised, or did not return a list of (probability, profile with one action of "
                f"each agent): {type(error).__name__}: {error} {at}"
            ) from error
        total = math.fsum(p for p, _ in profiles)
        if any(not p >= 0 for p, _ in profiles) or abs(total - 1) > 1e-9:
            raise ModelError(
                f"believed_others_policy gave the probabilities {[p for p, _ in profiles]}, with sum {total!r}; "
                f"they must be >= 0 and have the sum 1 {at}"
            )

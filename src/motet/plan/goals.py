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
from motet.plan.memory import Directory, allocated, check_memory
from motet.plan.parallel import WorkerTeam, work_through

__all__ = ["Goal", "GoalColumns", "Goals", "asked_beliefs", "asked_goals", "goal_name"]


@runtime_checkable
class Goal(Protocol):
    """A goal that a human may have. It must be hashable. A saved solution refers to it by its ``name``, if any."""

    def is_achieved(self, state: Any) -> bool:
        """Whether the goal holds in a state."""


Weighted = Goal | tuple[Goal, float]
Answer = tuple[tuple[Any, float], ...]
"""The goals of a human in a state, with their weights."""
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


def asked_goals(
    graph: Graph,
    goals: Goals,
    workers: int | WorkerTeam,
    tick: Callable[[int], None],
    directory: Directory = None,
) -> GoalColumns:
    """Find all goals and their weights, and evaluate whether each goal holds in each state."""
    generate: Any = getattr(goals, "generate", goals if callable(goals) else None)
    if generate is not None:
        by_human, weights = _generated(graph, generate, workers)
    else:
        if isinstance(goals, str) or not isinstance(goals, Iterable):
            raise SettingError(
                "goals must be a list of goals, a dict with a list for each human, a function (state, human) -> "
                f"[(goal, weight)], or an object with such a function `generate`, got {goals!r}"
            )
        given: Any = goals if isinstance(goals, Mapping) else dict.fromkeys(graph.humans, tuple(goals))
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
    columns = [column_of[goal] for own in by_human for goal in own]
    purpose = f"{len(columns):,} goals in {len(graph):,} states"
    achieved = allocated({"achieved": ((len(graph), len(columns)), np.uint8)}, purpose, directory)["achieved"]
    done = 0

    def take(part: NDArray[np.uint8]) -> None:
        nonlocal done
        achieved[done : done + len(part)] = part[:, columns]
        done += len(part)

    work_through(list(graph.states), _Holds(distinct), take, workers=workers, tick=tick)
    return GoalColumns(by_human, achieved, weights)


def _weighted(given: Any) -> tuple[Any, float]:
    goal, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
    if not isinstance(goal, Goal):
        raise SettingError(f"goal must be an object with is_achieved(state) -> bool, got {goal!r}")
    try:
        hash(goal)
    except TypeError:
        raise SettingError(f"goal must be hashable, got {goal!r}: give it __eq__ and __hash__") from None
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
    """Goals by human in the order in which the generator gives them, and their weights in each state.

    If the generator gives a human equal goals in all states, there is one row of weights, as for a list.
    """
    open_states = np.flatnonzero(~graph.terminal)
    items = [graph.states[number] for number in open_states.tolist()]
    answers: list[dict[Any, int]] = [{} for _ in graph.humans]
    parts: list[NDArray[np.int64]] = []

    def take(part: tuple[list[list[Answer]], NDArray[np.int64]]) -> None:
        found, which = part
        for position, own in enumerate(found):
            known = answers[position]
            numbers = np.array([known.setdefault(answer, len(known)) for answer in own], np.int64)
            which[:, position] = numbers[which[:, position]]
        parts.append(which)

    work_through(items, _Generate(generate, graph.humans, graph.agents), take, workers=workers)
    which = np.concatenate(parts) if parts else np.empty((0, len(graph.humans)), np.int64)
    goals: list[list[Any]] = []
    rows: list[NDArray[np.float64]] = []
    for known in answers:
        columns: dict[Any, int] = {}
        for answer in known:
            for goal, _ in answer:
                columns.setdefault(goal, len(columns))
        weights = np.zeros((len(known), len(columns)))
        for number, answer in enumerate(known):
            for goal, weight in answer:
                weights[number, columns[goal]] += weight
        goals.append(list(columns))
        rows.append(weights)
    if all(len(known) == 1 for known in answers):
        return goals, np.concatenate(rows, axis=1)
    width = sum(map(len, goals))
    check_memory(8 * len(graph) * width, f"weights of {width:,} goals in {len(graph):,} states")
    by_state = np.zeros((len(graph), width))
    by_state[open_states] = np.concatenate([own[which[:, i]] for i, own in enumerate(rows)], axis=1)
    return goals, by_state


@dataclass
class _Generate:
    """Calls the generator in every state. Equal answers are kept once; they are compared in every state."""

    generate: Callable[[Any, int], Iterable[Any]]
    humans: tuple[int, ...]
    agents: tuple[str, ...]

    def __call__(self, states: Sequence[Any]) -> tuple[list[list[Answer]], NDArray[np.int64]]:
        known: list[dict[Any, int]] = [{} for _ in self.humans]  # answer of the generator -> number of the answer
        last: list[Any] = [None] * len(self.humans)
        number = [-1] * len(self.humans)
        which: list[int] = []
        for state in states:
            for position, human in enumerate(self.humans):
                try:
                    given = tuple(self.generate(state, human))
                    if given != last[position]:  # tuples compare identical goals without calling __eq__
                        if given not in known[position]:
                            self._check(given, state, human)
                        number[position] = known[position].setdefault(given, len(known[position]))
                        last[position] = given
                except ModelError:
                    raise
                except Exception as error:
                    raise ModelError(
                        f"the goal generator raised {type(error).__name__}: {error} "
                        f"(state {state!r}, {self.agents[human]})"
                    ) from error
            which += number
        answers = [[tuple(map(_weighted, given)) for given in own] for own in known]
        return answers, np.array(which, np.int64).reshape(len(states), len(self.humans))

    def _check(self, given: tuple[Any, ...], state: Any, human: int) -> None:
        if not any(weight for _, weight in map(_weighted, given)):
            raise ModelError(f"state {state!r}: the goal generator gave {self.agents[human]} no goal with a weight > 0")


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

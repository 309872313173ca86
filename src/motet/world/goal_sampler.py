"""Goals that can only be sampled: too many to list, or with continuous parameters.

A *sampler* draws a goal g with probability p_g and gives it a weight w_g. It has ``sample(state, human)``, which
returns ``(goal, weight)``, or a goal whose weight is then 1. Where the goals can be listed, a list of them with the
weights p_g * w_g means the same.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import ModelError, SettingError
from motet.streams import Streams, StreamUser, streams_returned
from motet.system.raised import brief
from motet.world.contract import offers

__all__ = ["Drawn", "GoalSampler", "ListSampler", "goal_numbers", "is_sampler"]

Drawn = list[tuple[Any, float]]
"""Goals with their weights."""


def is_sampler(given: Any) -> bool:
    """Whether an object, not a class, can draw goals and cannot list them."""
    return offers(given, "sample") and not offers(given, "generate") and not isinstance(given, type)


class GoalSampler:
    """Draws goals for the humans from a user's sampler. What it draws is a function of the state and a seed.

    If ``sample`` has a parameter ``rng``, it gets a generator with this seed. Otherwise it may draw from ``random`` and
    ``numpy.random``, which start from this seed. A generator that the sampler keeps itself does not start from the
    seed: runs with such a sampler are not reproducible.

    Args:
        sampler: the user's sampler.
        humans: indices of the humans.
        names: names of all agents.
    """

    def __init__(self, sampler: Any, humans: Sequence[int], names: Sequence[str]) -> None:
        if not is_sampler(sampler):
            raise SettingError(
                f"sampler must be an object with sample(state, human) -> (goal, weight), got {sampler!r}"
            )
        self.sampler, self.humans, self.names = sampler, tuple(humans), tuple(names)
        self._takes_rng = "rng" in inspect.signature(sampler.sample).parameters
        self._streams = Streams(StreamUser("the goal sampler"))

    def draw(self, state: Any, number: int, seed: int) -> list[Drawn]:
        """Return this many goals with weights for each human, drawn independently."""
        if self._takes_rng:
            rng = np.random.default_rng(seed)
            return [[self._one(state, human, rng) for _ in range(number)] for human in self.humans]
        with streams_returned():
            self._streams.begin(seed)
            return [[self._one(state, human) for _ in range(number)] for human in self.humans]

    def _one(self, state: Any, human: int, *rng: np.random.Generator) -> tuple[Any, float]:
        given = dict(zip(("rng",), rng, strict=False))
        where = f"(state {state!r}, {self.names[human]})"
        try:
            found = self.sampler.sample(state, human, **given)
        except Exception as error:
            raise ModelError(f"the goal sampler raised {type(error).__name__}: {error} {where}") from error
        pair = isinstance(found, tuple) and len(found) == 2 and not offers(found, "is_achieved")
        goal, weight = found if pair else (found, 1.0)
        if not offers(goal, "is_achieved"):
            raise ModelError(f"the goal sampler must return (goal, weight), got {brief(found)} {where}")
        try:
            hash(goal)
        except TypeError:
            raise ModelError(f"goal must be hashable, got {brief(goal)} {where}: give it __eq__ and __hash__") from None
        try:
            good = 0 < weight < math.inf
        except TypeError:
            good = False
        if not good:
            raise ModelError(
                f"the weight of a drawn goal must be a finite number > 0, got {weight!r} for the goal {brief(goal)} "
                f"{where}; fix: do not draw goals that count nothing"
            )
        return goal, float(weight)


class ListSampler:
    """Draws from lists of goals by weight, so that lists may be used where goals are sampled.

    Args:
        goals: goals with weights, by human.

    >>> sampler = ListSampler({3: [("north", 1.0), ("south", 3.0)]})
    >>> sampler.sample(None, 3, np.random.default_rng(0))
    ('south', 4.0)
    """

    def __init__(self, goals: dict[int, Drawn]) -> None:
        self._goals = {human: [(goal, weight) for goal, weight in own if weight] for human, own in goals.items()}
        self._ends = {human: np.cumsum([weight for _, weight in own]) for human, own in self._goals.items()}

    def sample(self, state: Any, human: int, rng: np.random.Generator) -> tuple[Any, float]:
        """Return a goal, and the sum of the weights of all of them."""
        ends = self._ends[human]
        total = float(ends[-1])
        drawn = int(np.searchsorted(ends[:-1], rng.random() * total, "right"))
        return self._goals[human][drawn][0], total


def goal_numbers(model: Any, goal: Any) -> NDArray[Any]:
    """Return a goal as numbers for a network: what the model's ``encode_goal`` gives, else the goal's own numbers."""
    given = model.encode_goal(goal) if offers(model, "encode_goal") else _numbers(goal)
    found = np.asarray(given).ravel()
    if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
        raise ModelError(f"encode_goal must return an array of finite numbers, got {brief(found)} for {brief(goal)}")
    return found


def _numbers(goal: Any) -> list[float]:
    if isinstance(goal, tuple):
        return [number for part in goal for number in _numbers(part)]
    if isinstance(goal, int | float):
        return [goal]
    raise ModelError(
        f"goal {brief(goal)} must be a tuple of numbers: give the model encode_goal(goal) -> array, or make goals "
        "named tuples of numbers"
    )

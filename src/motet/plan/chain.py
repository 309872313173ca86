"""The Markov chain of a solution: all policies are fixed, so each state has one distribution over its successors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from motet.errors import SettingError
from motet.plan.graph import Graph

__all__ = ["Chain", "chain_of"]

_BLOCK_ENTRIES = 4_000_000  # maximum number of probabilities of joint actions that are in memory at the same time


@dataclass(eq=False)
class Chain:
    """A Markov chain over the states of a graph, as three arrays in CSR form.

    The transitions of state s are ``ends[s]`` to ``ends[s + 1]``, sorted by successor; a terminal state has none. With
    SciPy: ``csr_array((chain.probability, chain.successor, chain.ends))``.

    >>> from motet.plan import enumerate_states, solve
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("closet", horizon=6)
    >>> chain = solve(enumerate_states(rooms), {0: rooms.goals(0)}).chain()
    >>> steps = chain.expected(lambda state, successor: 1.0)
    >>> round(float(steps[0]), 12)
    6.0
    """

    graph: Graph
    ends: NDArray[np.int64]  # [states + 1]
    successor: NDArray[np.int32]  # [transitions]
    probability: NDArray[np.float64]  # [transitions]
    duration: NDArray[np.float64] | None = field(default=None, repr=False)  # [transitions]
    """Duration of each transition, if the graph has durations. Two transitions to the same successor may then differ in
    their durations."""
    reward: NDArray[np.float64] | None = field(default=None, repr=False)  # [transitions, agents]
    """Expected reward of each agent in a transition, if the graph has rewards: ``chain.expected(chain.reward)``."""

    def visits(self) -> NDArray[np.float64]:
        """Expected number of visits to each state in an episode that begins in the first state."""
        levels = self._levels()
        visits = np.zeros(len(self.graph))
        visits[0] = 1.0
        for first, last in itertools.pairwise(levels):
            part = slice(int(self.ends[first]), int(self.ends[last]))
            source = np.repeat(visits[first:last], np.diff(self.ends[first : last + 1]))
            np.add.at(visits, self.successor[part], source * self.probability[part])
        return visits

    def expected(
        self, rewards: Callable[[Any, Any], ArrayLike] | ArrayLike, *, gamma: float = 1.0, rho: float | None = None
    ) -> NDArray[np.float64]:
        """The expected discounted sum of rewards from each state on: [states], or [states, *shape] if rewards are
        arrays.

        Args:
            rewards: function ``(state, successor) -> reward``, called for each transition; or one reward for each
                transition. A reward is a number or an array. Rewards by state are ``by_state[chain.successor]``.
            gamma: discount factor per step.
            rho: discount rate, as an alternative to ``gamma``: a transition of duration d is discounted by exp(-rho d).
        """
        if not 0 <= gamma <= 1 or (rho is not None and not rho >= 0):
            raise SettingError(f"gamma must be a number from 0 to 1 and rho a number >= 0, got {gamma} and {rho}")
        if rho is not None and gamma != 1:
            raise SettingError(f"gamma must be 1 where rho is given, got {gamma} and {rho}: both are discounts")
        levels, earned = self._levels(), self._earned(rewards)
        shape = earned.shape[1:]
        flat = earned.reshape(len(earned), math.prod(shape))
        value = np.zeros((len(self.graph), flat.shape[1]))
        for first, last in zip(levels[-2::-1], levels[:0:-1], strict=True):
            part = slice(int(self.ends[first]), int(self.ends[last]))
            here = np.flatnonzero(np.diff(self.ends[first : last + 1])) + first
            if not len(here):
                continue
            discount: Any = gamma
            if rho is not None:
                discount = np.exp(-rho * (1.0 if self.duration is None else self.duration[part, None]))
            later = flat[part] + discount * value[self.successor[part]]
            value[here] = np.add.reduceat(self.probability[part, None] * later, self.ends[here] - part.start, axis=0)
        return value.reshape(len(value), *shape)

    def _earned(self, rewards: Callable[[Any, Any], ArrayLike] | ArrayLike) -> NDArray[np.float64]:
        if callable(rewards):
            states, sources = self.graph.states, np.repeat(np.arange(len(self.graph)), np.diff(self.ends))
            pairs = zip(sources.tolist(), self.successor.tolist(), strict=True)
            return np.array([rewards(states[a], states[b]) for a, b in pairs], np.float64)
        earned = np.asarray(rewards, np.float64)
        if earned.ndim == 0 or len(earned) != len(self.successor):
            raise SettingError(
                f"rewards must have one entry for each of the {len(self.successor):,} transitions of the chain, got "
                f"the shape {earned.shape}"
            )
        return earned

    def _levels(self) -> list[int]:
        if self.graph.levels is None:
            raise SettingError("the graph must have levels, got one with cycles")
        levels: list[int] = self.graph.levels.tolist()
        return levels


def chain_of(graph: Graph, shares: Callable[[slice], NDArray[np.float64]]) -> Chain:
    """Make the chain of a graph. ``shares``: function from states to the probabilities of joint actions."""
    step = max(_BLOCK_ENTRIES // max(graph.joints, 1), 1)
    blocks = [slice(first, min(first + step, len(graph))) for first in range(0, len(graph), step)]
    parts = [_block(graph, block, shares(block)) for block in blocks]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ends = np.concatenate([[0], np.cumsum(joined.pop("counts"), dtype=np.int64)])
    return Chain(graph, ends, **joined)


def _block(graph: Graph, states: slice, shares: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """The chain of some states: the number of transitions of each state, and its transitions, merged and sorted."""
    ends = graph.dists[states.start : states.stop + 1]
    opened = ~graph.terminal[states]
    numbers = (ends[:-1, None] - ends[0] + graph.joint[states])[opened]
    weight = np.bincount(numbers.reshape(-1), shares[opened].reshape(-1), int(ends[-1] - ends[0]))
    rows = graph.rows[int(ends[0]) : int(ends[-1]) + 1]
    part = slice(int(rows[0]), int(rows[-1]))
    flow = np.repeat(weight, np.diff(rows)) * graph.probability[part]
    keys: list[NDArray[Any]] = [np.repeat(np.arange(len(opened)), np.diff(graph.rows[ends])), graph.successor[part]]
    if graph.duration is not None:
        keys.append(graph.duration[part])
    possible = np.flatnonzero(flow)
    order = possible[np.lexsort([key[possible] for key in reversed(keys)])]
    first = _starts([key[order] for key in keys])
    found: dict[str, NDArray[Any]] = {
        "counts": np.bincount(keys[0][order[first]], minlength=len(opened)),
        "successor": graph.successor[part][order[first]],
        "probability": _sums(flow[order], first),
    }
    if graph.duration is not None:
        found["duration"] = graph.duration[part][order[first]]
    if graph.reward is not None:
        paid = _sums(flow[order, None] * graph.reward.T[part][order], first)
        found["reward"] = paid / found["probability"][:, None]
    return found


def _sums(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The sum of each group of entries, given the position at which each group begins."""
    return np.add.reduceat(values, starts, axis=0) if len(starts) else values


def _starts(keys: list[NDArray[Any]]) -> NDArray[np.int64]:
    """The positions at which groups of equal entries begin in sorted arrays."""
    if not len(keys[0]):
        return np.empty(0, np.int64)
    changed = np.zeros(len(keys[0]), bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)

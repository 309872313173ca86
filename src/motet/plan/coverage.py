"""Coverage of goals: whether every human has, in every state, a goal that can still be attained.

Where a human can attain no goal, its power X_h is 0, and the robot's loss is infinite. Whether there are actions that
attain a goal depends only on the transitions. So this is checked before the sweeps, in one pass over the levels, with
one bit for each goal and state. The robot's sweep checks X_h again: a policy may exclude the actions that would attain
a goal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from motet.errors import ModelError, SettingError
from motet.plan.behaviour import Achieved
from motet.plan.goals import GoalColumns
from motet.plan.graph import Graph

__all__ = ["check_coverage", "check_weights", "powerless"]


def check_weights(graph: Graph, columns: GoalColumns) -> None:
    """Raise if all goals of a human have the weight 0."""
    first = columns.first
    for position, human in enumerate(graph.humans):
        if len(columns.weights) == 1 and not columns.weights[0, first[position] : first[position + 1]].any():
            raise SettingError(f"at least one goal of {graph.agents[human]} must have a weight > 0, got 0 for all")


def check_coverage(graph: Graph, columns: GoalColumns, convention: Achieved) -> None:
    """Raise if a human cannot attain any of its goals from a state, and name both."""
    if graph.levels is None or not graph.humans:
        return  # a graph without levels cannot be swept; the sweep raises that error
    within_reach = _within_reach(graph, np.packbits(columns.achieved, axis=1), convention)
    within_reach &= np.packbits(columns.weights > 0, axis=1)
    first = columns.first
    owned = np.zeros((len(graph.humans), columns.achieved.shape[1]), np.uint8)
    for position in range(len(graph.humans)):
        owned[position, first[position] : first[position + 1]] = 1
    masks = np.packbits(owned, axis=1)
    # [states, humans]
    lost = np.stack([~(within_reach & mask).any(axis=1) for mask in masks], axis=1) & ~graph.terminal[:, None]
    if not lost.any():
        return
    level = int(np.searchsorted(graph.levels, int(np.flatnonzero(lost.any(axis=1))[-1]), "right")) - 1
    state, position = np.argwhere(lost[int(graph.levels[level]) : int(graph.levels[level + 1])])[0].tolist()
    count = int(lost.any(axis=1).sum())
    raise powerless(graph, state + int(graph.levels[level]), position, f" (in {count:,} of {len(graph):,} states)")


def powerless(graph: Graph, state: int, position: int, more: str = "") -> ModelError:
    """The error for a state in which a human has no power."""
    return ModelError(
        f"state {graph.states[state]!r}: X_h of {graph.agents[graph.humans[position]]} is 0: from here it cannot "
        f"attain any of its goals before the end{more}, so the robot's loss would be infinite. Give it a goal within "
        "reach, end the episode here, or count goals that hold already: achieved='stay' or achieved='one'"
    )


def _within_reach(graph: Graph, holds: NDArray[np.uint8], convention: Achieved) -> NDArray[np.uint8]:
    """Whether the attainment V_he can be positive: one bit for each goal, [states, bytes]. ``holds``: which goals hold
    where."""
    assert graph.levels is not None
    found = np.zeros_like(holds)
    pays = holds.copy()  # the goal holds, or can be attained later
    for first, last in zip(graph.levels[-2::-1].tolist(), graph.levels[:0:-1].tolist(), strict=True):
        ends = graph.rows[graph.dists[first : last + 1]]
        opened = np.flatnonzero(np.diff(ends)) + first
        if len(opened):
            later = pays[graph.successor[int(ends[0]) : int(ends[-1])]]
            starts = graph.rows[graph.dists[opened]] - ends[0]
            found[opened] = np.bitwise_or.reduceat(later, starts, axis=0)
            pays[opened] |= found[opened]
    if convention == "zero":
        found &= ~holds
    elif convention == "one":
        found |= holds
    return found

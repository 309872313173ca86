"""Regret of a policy: the exact value of the best response minus the exact value of the policy, state by state.

Input: a policy (a learned one, called in every state; or a table of probabilities) and a :class:`Response`, the best
that the same agent can do against the same others. Output: the loss in every state, the probability that the policy
visits it, and a picture of the loss on the map of the world.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import SettingError
from motet.plan.given import tabulated
from motet.plan.graph import Graph
from motet.plan.induction import Response
from motet.plan.picture import on_the_world

__all__ = ["Regret", "regret"]


@dataclass(eq=False)
class Regret:
    """The loss of a policy against the best response."""

    graph: Graph
    agent: int
    loss: NDArray[np.float64]  # [states]
    """Value of the best response minus value of the policy, in each state; 0 where the policy is optimal."""
    visits: NDArray[np.float64]  # [states]
    """Probability that an episode visits each state."""

    @property
    def expected(self) -> float:
        """Expected loss per episode: the loss in the first state."""
        return float(self.loss[0])

    def worst(self, count: int = 5) -> list[tuple[float, Any]]:
        """The states with the largest loss among those that the policy visits: (loss, state)."""
        order = np.argsort(-np.where(self.visits > 0, self.loss, -np.inf), kind="stable")[:count]
        return [(float(self.loss[i]), self.graph.states[i]) for i in order.tolist()]

    def picture(self, model: Any, path: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
        """Draw the loss on the map: for each tile, the mean over the visited states in which the agent is there."""
        panel = ("expected loss from here", self.agent, self.loss, None)
        title = f"{self.graph.agents[self.agent]}: expected loss per episode {self.expected:.3g}"
        return on_the_world(model, self.graph, self.visits, [panel], title, path)


def regret(policy: Any, response: Response, model: Any = None, *, workers: int | None = None) -> Regret:
    """Compute the expected loss of a policy against the exact best response, in every state.

    Args:
        policy: probabilities [states, actions]; or a policy with ``act(observation)`` (and optionally
            ``probabilities(observation)``), which is called in every state in which the agent acts. It is assumed to
            depend on the observation alone.
        response: the best response of the same agent, from ``best_response``.
        model: the world in which the policy acts, with ``set_state`` and ``observe(agent)``; not needed for a table.
        workers: maximum number of threads.

    >>> from motet.plan import best_response, enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("freeing")
    >>> best = best_response(enumerate_states(rooms, rewards=True), "human_0")
    >>> regret(best.table, best).expected
    0.0
    >>> to_the_left = np.tile([0.0, 0.0, 1.0, 0.0], (len(best.graph), 1))
    >>> round(regret(to_the_left, best).expected, 6)
    5.997778
    """
    if response.horizon is not None:
        raise SettingError(
            f"response must come from best_response without a horizon, got horizon {response.horizon}: use a graph "
            "without cycles"
        )
    table = tabulated(policy, response.graph, response.agent, model) if hasattr(policy, "act") else np.asarray(policy)
    value = response.values_of(table, workers)
    loss = np.maximum(response.value - value, 0.0)
    return Regret(response.graph, response.agent, loss, _visits(response, np.asarray(table, np.float64)))


def _visits(response: Response, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability of visiting each state if the agent follows the table and the others keep their policies."""
    problem, graph = response._problem, response.graph
    assert graph.levels is not None
    visits = np.zeros(len(graph))
    visits[0] = 1.0
    actions = graph.actions[response.agent]
    for first, last in zip(graph.levels[:-1].tolist(), graph.levels[1:].tolist(), strict=True):
        rows = problem.rows[first * actions : last * actions + 1]
        shares = (visits[first:last, None] * table[first:last]).reshape(-1)
        part = slice(int(rows[0]), int(rows[-1]))
        flow = np.repeat(shares, np.diff(rows)) * problem.weight[part]
        np.add.at(visits, problem.successor[part], flow)
    return visits

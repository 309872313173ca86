"""How far from optimal is a policy? Its exact value against the exact best response, state by state.

Flows in: a policy (a learner's, asked in every state; or a table of probabilities) and a :class:`Response`, the best
that the same agent could do against the same others. Flows out: the loss in every state, how often the policy gets
there, and a picture of it on the world.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.errors import SettingError
from motet.plan.graph import Graph
from motet.plan.induction import Response
from motet.plan.picture import on_the_world

__all__ = ["Regret", "regret", "tabulated"]


@dataclass(eq=False)
class Regret:
    """What a policy loses against the best response."""

    graph: Graph
    agent: int
    loss: NDArray[np.float64]  # [states]
    """The best value minus the policy's, from each state on; 0 where nothing could be done better."""
    visits: NDArray[np.float64]  # [states]
    """How likely an episode comes through each state."""

    @property
    def expected(self) -> float:
        """What is lost in an episode: the loss where it begins."""
        return float(self.loss[0])

    def worst(self, count: int = 5) -> list[tuple[float, Any]]:
        """Where the policy loses most, among the states that it gets to: (loss, state)."""
        order = np.argsort(-np.where(self.visits > 0, self.loss, -np.inf), kind="stable")[:count]
        return [(float(self.loss[i]), self.graph.states[i]) for i in order.tolist()]

    def picture(self, model: Any, path: str | os.PathLike[str] | None = None) -> NDArray[np.uint8]:
        """The loss on the world: by tile of the agent, the mean over the states it comes through there."""
        panel = ("expected loss from here on", self.agent, self.loss, None)
        title = f"{self.graph.agents[self.agent]}: {self.expected:.3g} lost in an episode"
        return on_the_world(model, self.graph, self.visits, [panel], title, path)


def regret(policy: Any, response: Response, model: Any = None, *, workers: int | None = None) -> Regret:
    """The expected loss of a policy against the exact best response, from every state on.

    Args:
        policy: probabilities [states, actions]; or a policy with ``act(observation)`` (and perhaps
            ``probabilities(observation)``), which is asked in every state in which the agent acts. It is taken to
            depend on the observation alone.
        response: the best that the same agent can do, from ``best_response``.
        model: the world the policy acts in, with ``set_state`` and ``observe(agent)``; not needed for a table.
        workers: threads at most.

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
            f"response must be one over the levels of a graph (horizon None), got horizon {response.horizon}"
        )
    table = tabulated(policy, response.graph, response.agent, model) if hasattr(policy, "act") else np.asarray(policy)
    value = response.values_of(table, workers)
    loss = np.maximum(response.value - value, 0.0)
    return Regret(response.graph, response.agent, loss, _visits(response, np.asarray(table, np.float64)))


def tabulated(policy: Any, graph: Graph, agent: int, model: Any) -> NDArray[np.float64]:
    """A policy as probabilities [states, actions], asked in every state in which the agent acts."""
    if model is None:
        raise SettingError(
            "model must be the world in which the policy acts, got none: the policy is shown observations"
        )
    name, terminal = graph.agents[agent], graph.terminal.tolist()
    if hasattr(policy, "reset"):
        policy.reset(0)
    table = np.full((len(graph), graph.actions[agent]), 1.0 / graph.actions[agent])
    acts = getattr(model, "acts", None)
    for number, state in enumerate(graph.states):
        if terminal[number] or (acts is not None and not acts(state, agent)):
            continue
        model.set_state(state)
        observation = model.observe(name)
        if hasattr(policy, "probabilities"):
            table[number] = policy.probabilities(observation)
        else:
            table[number] = 0.0
            table[number, int(policy.act(observation))] = 1.0
    return table


def _visits(response: Response, table: NDArray[np.float64]) -> NDArray[np.float64]:
    """How likely each state is on the way, if the agent follows the table and the others do what they do."""
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

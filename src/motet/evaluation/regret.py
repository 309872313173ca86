"""The verb ``regret``: how far from optimal is what a run has learned? Joins runs on disk with exact planning."""

from __future__ import annotations

import os
from typing import Any

from motet.errors import SettingError
from motet.plan import Regret, Response
from motet.plan import regret as _of_policy

__all__ = ["regret"]


def regret(run: Any, response: Response, model: Any = None, *, workers: int | None = None) -> Regret:
    """The expected loss of what was learned against the exact best response, from every state on.

    Args:
        run: a run directory, whose newest greedy policy of the response's agent is taken; or a policy; or
            probabilities [states, actions].
        response: the best that the same agent can do, from ``motet.plan.best_response``.
        model: the world that was learned in, which is also the model that was planned with; not needed for
            probabilities.
        workers: threads at most.

    >>> from motet.plan import best_response, enumerate_states
    >>> from motet.policy import ConstantPolicy
    >>> from motet.worlds import SmallHunt
    >>> hunt = SmallHunt(turns=2)
    >>> best = best_response(enumerate_states(hunt, rewards=True), "agent_0")
    >>> regret(ConstantPolicy(3), best, hunt).expected  # to the right, twice: where the gem is
    0.0
    """
    policy = run
    if isinstance(run, str | os.PathLike):
        from motet.policies.entries import load_policies

        if model is None:
            raise SettingError("model must be the world of the run, with which it was planned, got none")
        name = response.graph.agents[response.agent]
        policies = load_policies(run, world=lambda: model)
        if name not in policies:
            raise SettingError(
                f"run must have the agent {name}, got {os.fspath(run)!r} with the agents {sorted(policies)}"
            )
        policy = policies[name]
    return _of_policy(policy, response, model, workers=workers)

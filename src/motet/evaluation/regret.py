"""``regret``: how far a learned policy is from optimal. Compares a run on disk with an exact plan."""

from __future__ import annotations

import os
from typing import Any

from motet.errors import SettingError
from motet.plan import Regret, Response
from motet.plan import regret as _of_policy

__all__ = ["regret"]


def regret(run: Any, response: Response, model: Any = None, *, workers: int | None = None) -> Regret:
    """Return the expected loss of a policy against the exact best response, for every start state.

    Args:
        run: a run directory, a policy, or action probabilities [states, actions]. From a run directory, the newest
            greedy policy of the response's agent is used.
        response: the best response of the same agent, from ``motet.plan.best_response``.
        model: the world of the run, which must also be the model of the plan; not needed for probabilities.
        workers: maximum number of threads.

    >>> from motet.plan import best_response, enumerate_states
    >>> from motet.policy import ConstantPolicy
    >>> from motet.worlds import SmallHunt
    >>> hunt = SmallHunt(turns=2)
    >>> best = best_response(enumerate_states(hunt, rewards=True), "agent_0")
    >>> regret(ConstantPolicy(3), best, hunt).expected  # moves right twice, to the gem
    0.0
    """
    policy = run
    if isinstance(run, str | os.PathLike):
        from motet.policies.entries import load_policies

        if model is None:
            raise SettingError("model must be the world of the run, which was also used for planning, got none")
        name = response.graph.agents[response.agent]
        policies = load_policies(run, world=lambda: model)
        if name not in policies:
            raise SettingError(
                f"run must have the agent {name}, got {os.fspath(run)!r} with the agents {sorted(policies)}"
            )
        policy = policies[name]
    return _of_policy(policy, response, model, workers=workers)

"""A policy in this process with the interface of an isolated one: ask, await the answer, report failures, replace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from motet.algorithm import Space
from motet.errors import PolicyFailure
from motet.nest import Nest, map_nest
from motet.policies.teams import make_policy
from motet.policy import Policy, PolicySpec, WorldDescription, asker
from motet.system.raised import DETAIL, describe, pressed_by_user, printable
from motet.world.spaces import InvalidValue, action_checker

__all__ = ["LocalPolicy"]


class LocalPolicy:
    """Like :class:`motet.isolation.IsolatedPolicy`, but in this process: it cannot be interrupted.

    The policy gets copies of spaces and masks, as an isolated one does. So it has its own generator when it draws from
    a space, and it cannot change what is allowed.
    """

    output = ""  # the policy prints to this process's own stdout

    def __init__(
        self,
        spec: PolicySpec,
        observation_space: Space,
        action_space: Space,
        *,
        agent: str = "",
        world: Mapping[str, Any] | None = None,
        masked: bool = False,
        description: WorldDescription | None = None,
    ) -> None:
        self._spec = spec
        self._offered = {
            "observation_space": observation_space,
            "action_space": action_space,
            "agent": agent,
            "world": dict(world or {}),
            "description": description,
        }
        self._give = action_checker(action_space)
        self._policy: Policy | None = None
        self._ask: Callable[[Any, Any], Any] | None = None
        self._todo: Callable[[], Any] | None = None

    def ask_reset(self, seed: int) -> None:
        """Ask the policy to begin an episode."""
        self._todo = lambda: self._reset(seed)

    def ask(self, observation: Nest, mask: Nest = None) -> None:
        """Ask the policy for an action."""
        self._todo = lambda: self._act(observation, mask)

    def answer(self) -> Any:
        """Return the action, or None after a reset. Raises a PolicyFailure."""
        todo, self._todo = self._todo, None
        assert todo is not None, "answer() needs ask() or ask_reset() first"
        return todo()

    def replace(self) -> None:
        """Drop the policy; a new one is made for the next episode."""
        self._policy = None

    def close(self) -> None:
        """Drop the policy."""
        self._policy = None

    @property
    def policy(self) -> Policy:
        """The policy itself. It is made here if there is none yet. May raise a PolicyFailure."""
        if self._policy is None:
            self._policy, self._ask = _blamed("start", self._make)
        return self._policy

    def _reset(self, seed: int) -> None:
        policy = self.policy
        _blamed("reset", lambda: policy.reset(seed))

    def _make(self) -> tuple[Policy, Callable[[Any, Any], Any]]:
        policy = make_policy(self._spec, copy.deepcopy(self._offered))
        return policy, asker(policy.act)

    def _act(self, observation: Nest, mask: Nest) -> Any:
        ask = self._ask
        assert ask is not None, "ask() needs ask_reset() first"
        own_mask = map_nest(lambda part: None if part is None else part.copy(), mask)
        action = _blamed("exception", lambda: ask(observation, own_mask))
        try:
            return self._give(action)
        except InvalidValue as invalid:
            raise PolicyFailure("answer", printable(str(invalid))[:DETAIL]) from None


def _blamed(cause: str, call: Callable[[], Any]) -> Any:
    """Convert everything that a user's policy raises to a PolicyFailure."""
    try:
        return call()
    except BaseException as error:
        if pressed_by_user(error):
            raise
        raise PolicyFailure(cause, describe(error, but=__file__)) from error

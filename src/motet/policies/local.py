"""A policy in this process, with the manners of one that is isolated: asked, awaited, its failures named, replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space
from motet.errors import PolicyFailure
from motet.nest import Nest
from motet.policies.teams import make_policy
from motet.policy import Policy, PolicySpec, WorldDescription, asker
from motet.system.raised import DETAIL, describe, pressed_by_user, printable
from motet.world.spaces import InvalidValue, action_checker

__all__ = ["LocalPolicy"]


class LocalPolicy:
    """The same as :class:`motet.isolation.IsolatedPolicy` without a process of its own: nothing can interrupt it."""

    output = ""  # it prints where this process does

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
        """Have it begin an episode."""
        self._todo = lambda: self._reset(seed)

    def ask(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> None:
        """Have it decide."""
        self._todo = lambda: self._act(observation, mask)

    def answer(self) -> Any:
        """What came of it; None after a reset. Raises a PolicyFailure."""
        todo, self._todo = self._todo, None
        assert todo is not None, "answer() without a question"
        return todo()

    def replace(self) -> None:
        """Forget the policy; another one is made for the next episode."""
        self._policy = None

    def close(self) -> None:
        """Nothing is held."""
        self._policy = None

    def _reset(self, seed: int) -> None:
        if self._policy is None:
            self._policy, self._ask = _blamed("start", self._make)
        policy = self._policy
        _blamed("reset", lambda: policy.reset(seed))

    def _make(self) -> tuple[Policy, Callable[[Any, Any], Any]]:
        policy = make_policy(self._spec, self._offered)
        return policy, asker(policy.act)

    def _act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None) -> Any:
        ask = self._ask
        assert ask is not None, "ask() before ask_reset()"
        action = _blamed("exception", lambda: ask(observation, mask))
        try:
            return self._give(action)
        except InvalidValue as invalid:
            raise PolicyFailure("answer", printable(str(invalid))[:DETAIL]) from None


def _blamed(cause: str, call: Callable[[], Any]) -> Any:
    """Whatever a user's policy raises is its failure, not ours."""
    try:
        return call()
    except BaseException as error:
        if pressed_by_user(error):
            raise
        raise PolicyFailure(cause, describe(error, but=__file__)) from error

"""Policies on several seats: joint policies, shared teams, and copies of a policy that share a process.

Each becomes one :class:`Policy` over dict spaces, so that callers, in the same process or another, need no special
case. The observation says which agents are asked, and holds their observations and masks. The action has an entry for
every seat; agents that were not asked get a filler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space
from motet.errors import SpecError
from motet.masks import mask_form
from motet.nest import Nest
from motet.policies.teams import TeamPolicy, make_policy, shared_policy
from motet.policy import JointPolicy, Kind, PolicySpec, WorldDescription, asker, kind_of
from motet.seeds import seed_for

__all__ = ["JointPolicies", "Kind", "TeamPolicy", "filler", "joint_question", "joint_spaces", "kind_of"]


def joint_spaces(
    agents: Sequence[str], observation_spaces: Sequence[Space], action_spaces: Sequence[Space], masked: Sequence[bool]
) -> tuple[Space, Space]:
    """Return the joint spaces of several seats."""
    from gymnasium import spaces

    seen = spaces.Dict(dict(zip(agents, observation_spaces, strict=True)))
    masks: dict[str, Space] = {
        agent: spaces.MultiBinary(mask_form(space).size)
        for agent, space, has in zip(agents, action_spaces, masked, strict=True)
        if has
    }
    parts: dict[str, Space] = {"asked": spaces.MultiBinary(len(agents)), "seen": seen}
    if masks:
        parts["masks"] = spaces.Dict(masks)
    return spaces.Dict(parts), spaces.Dict(dict(zip(agents, action_spaces, strict=True)))


def filler(space: Space) -> Any:
    """Return a fixed element of a space: zero, or the element nearest to it."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {key: filler(part) for key, part in inner.items()}
    if inner is not None:
        return tuple(filler(part) for part in inner)
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())
    if hasattr(space, "low"):
        return np.clip(np.zeros(shape, dtype), space.low, space.high).astype(dtype)
    return np.full(shape, getattr(space, "start", 0), dtype)[()]


def joint_question(
    agents: Sequence[str],
    observation_space: Space,
    seen: Mapping[str, Nest],
    masks: Mapping[str, npt.NDArray[np.bool_]],
) -> dict[str, Any]:
    """Return the observation of a :class:`JointPolicies`: an element of its observation space.

    ``masks`` are flat ones (see :mod:`motet.masks`).
    """
    parts = observation_space.spaces
    question: dict[str, Any] = {
        "asked": np.array([agent in seen for agent in agents], np.int8),
        "seen": {a: seen[a] if a in seen else filler(space) for a, space in parts["seen"].spaces.items()},
    }
    if "masks" in parts:
        question["masks"] = {
            a: np.asarray(masks[a], np.int8) if a in masks else np.ones(space.n, np.int8)
            for a, space in parts["masks"].spaces.items()
        }
    return question


class JointPolicies:
    """Several seats of one policy, as one Policy over dict spaces.

    A joint policy or a shared team gets the seed unchanged. If each seat has a separate object, the object gets a seed
    derived from the seed and the position of the seat.

    Args:
        specs: how the policy is made, by seat.
        shared: one object for all seats, from the first spec; else one object for each seat.
        seats: indices of the agents in the world, by name.
        observation_space: from :func:`joint_spaces`.
        action_space: from :func:`joint_spaces`.
        world: the settings of the world.
        description: description of the world, for teams.
        data: path of the policy's data; the sandbox reads it from the arguments to allow access.
    """

    def __init__(
        self,
        specs: Mapping[str, PolicySpec],
        shared: bool,
        seats: Mapping[str, int],
        observation_space: Space,
        action_space: Space,
        world: Mapping[str, Any] | None = None,
        description: WorldDescription | None = None,
        data: Any = None,
    ) -> None:
        seen, actions = observation_space.spaces["seen"].spaces, action_space.spaces
        self._seats, self._actions = tuple(seats), actions
        self._mask_forms = {agent: mask_form(space) for agent, space in actions.items()}
        known = {"world": world or {}, "description": description}
        if shared:
            spaces = {"observation_spaces": dict(seen), "action_spaces": dict(actions)}
            offered = {"agents": tuple(seats), **spaces, **known}
            self._take(shared_policy(next(iter(specs.values())), seats, offered))
            return
        made = {
            agent: make_policy(
                specs[agent],
                {"observation_space": seen[agent], "action_space": actions[agent], "agent": agent, **known},
            )
            for agent in seats
        }
        self._take(_Each(made, seats))

    def _take(self, policy: JointPolicy) -> None:
        self._policy, self._ask = policy, asker(policy.act_jointly, "masks")

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._policy.reset(seed)

    def act(self, observation: Nest, mask: Nest = None) -> dict[str, Any]:
        """Return an action for every seat. Only the actions of agents that are asked are used."""
        asked = [agent for agent, now in zip(self._seats, observation["asked"], strict=True) if now]
        given = observation.get("masks", {})
        masks = {a: self._mask_forms[a].nest(np.asarray(m, np.bool_)) for a, m in given.items() if a in asked}
        answers = self._ask({agent: observation["seen"][agent] for agent in asked}, masks)
        if missing := [agent for agent in asked if agent not in answers]:
            raise SpecError(f"the joint policy gave no action for {', '.join(missing)}, which were asked")
        return {agent: answers[agent] if agent in asked else filler(space) for agent, space in self._actions.items()}


class _Each:
    """One policy per agent, with the interface of a joint policy."""

    def __init__(self, policies: Mapping[str, Any], seats: Mapping[str, int]) -> None:
        self._policies, self._seats = policies, seats
        self._ask = {agent: asker(policy.act) for agent, policy in policies.items()}

    def reset(self, seed: int) -> None:
        for agent, policy in self._policies.items():
            policy.reset(seed_for(seed, self._seats[agent]))

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: self._ask[agent](seen, masks.get(agent)) for agent, seen in observations.items()}

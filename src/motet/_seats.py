"""Policies that sit on several seats: joint ones, teams of two levels, and copies that share a process.

All become one :class:`Policy` over dict spaces, so that whoever asks (in the same process or across a boundary) needs
to know nothing of them: the observation says who is asked, what each sees and what each may do; the action has an entry
for every seat, and those that were not asked get a filler.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from motet._handles import seed_for
from motet._values import brief
from motet.algorithm import Nest, Space
from motet.errors import SettingError, SpecError
from motet.policy import JointPolicy, PolicySpec, asker

__all__ = ["Kind", "TeamPolicy", "Together", "filler", "joint_question", "joint_spaces", "kind_of"]

Kind = Literal["agent", "joint", "team"]
"""One object for each agent; one for all agents of the policy; a team whose ``agent_policy`` gives one for each."""


def kind_of(thing: Any) -> Kind:
    """Which of the interfaces a class or an object has."""
    if hasattr(thing, "act_jointly"):
        return "joint"
    return "team" if hasattr(thing, "agent_policy") else "agent"


def joint_spaces(
    agents: Sequence[str], observation_spaces: Sequence[Space], action_spaces: Sequence[Space], masked: Sequence[bool]
) -> tuple[Space, Space]:
    """The spaces of several seats as one."""
    from gymnasium import spaces

    seen = spaces.Dict(dict(zip(agents, observation_spaces, strict=True)))
    masks: dict[str, Space] = {
        agent: spaces.MultiBinary(int(space.n))
        for agent, space, has in zip(agents, action_spaces, masked, strict=True)
        if has
    }
    parts: dict[str, Space] = {"asked": spaces.MultiBinary(len(agents)), "seen": seen}
    if masks:
        parts["masks"] = spaces.Dict(masks)
    return spaces.Dict(parts), spaces.Dict(dict(zip(agents, action_spaces, strict=True)))


def filler(space: Space) -> Any:
    """Any element of a space, always the same: nothing, or what is nearest to it."""
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
    """What a :class:`Together` is asked: an element of its observation space."""
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


class Together:
    """Several seats of one policy, as one Policy over dict spaces.

    A joint policy or a team gets the seed as it is; copies get one each, by their places.

    Args:
        specs: where the policy comes from, by seat.
        kind: its interface; ``"agent"`` makes one object for each seat, the others one object from the first spec.
        seats: the agents: their places in the world, by name.
        observation_space: from :func:`joint_spaces`.
        action_space: likewise.
        world: the settings of the world.
        data: where the policy's data are, for whoever bars it from everything else.
    """

    def __init__(
        self,
        specs: Mapping[str, PolicySpec],
        kind: Kind,
        seats: Mapping[str, int],
        observation_space: Space,
        action_space: Space,
        world: Mapping[str, Any] | None = None,
        data: Any = None,
    ) -> None:
        seen, actions = observation_space.spaces["seen"].spaces, action_space.spaces
        self._seats, self._actions = tuple(seats), actions
        if kind == "agent":
            made = {
                agent: specs[agent].make(
                    observation_space=seen[agent], action_space=actions[agent], agent=agent, world=world or {}
                )
                for agent in seats
            }
            self._take(_Each(made, seats))
            return
        spec = next(iter(specs.values()))
        offered = {"agents": tuple(seats), "observation_spaces": dict(seen), "action_spaces": dict(actions)}
        if kind == "team":
            self._take(TeamPolicy(lambda: spec.build(**offered, world=world or {}), seats))
            return
        policy = spec.build(**offered, world=world or {})
        if not isinstance(policy, JointPolicy):
            raise SettingError(
                f"policy: {spec.title} made {brief(policy)}, expected something with reset and act_jointly"
            )
        self._take(policy)

    def _take(self, policy: JointPolicy) -> None:
        self._policy, self._ask = policy, asker(policy.act_jointly, "masks")

    def reset(self, seed: int) -> None:
        """A new episode begins."""
        self._policy.reset(seed)

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """An action for every seat; what counts is that of those who are asked."""
        asked = [agent for agent, now in zip(self._seats, observation["asked"], strict=True) if now]
        masks = {a: np.asarray(m, np.bool_) for a, m in observation.get("masks", {}).items() if a in asked}
        answers = self._ask({agent: observation["seen"][agent] for agent in asked}, masks)
        if missing := [agent for agent in asked if agent not in answers]:
            raise SpecError(f"the joint policy gave no action for {', '.join(missing)}; expected one for each asked")
        return {agent: answers[agent] if agent in asked else filler(space) for agent, space in self._actions.items()}


class _Each:
    """One policy for each agent, behind the joint interface."""

    def __init__(self, policies: Mapping[str, Any], seats: Mapping[str, int]) -> None:
        self._policies, self._seats = policies, seats
        self._ask = {agent: asker(policy.act) for agent, policy in policies.items()}

    def reset(self, seed: int) -> None:
        for agent, policy in self._policies.items():
            policy.reset(seed_for(seed, self._seats[agent]))

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: self._ask[agent](seen, masks.get(agent)) for agent, seen in observations.items()}


class TeamPolicy:
    """A policy of two levels as a joint one.

    The team's ``agent_policy(agent_id)`` gives objects with ``step(observation)`` and ``reset()``. They take no seed;
    they draw from the process's random streams: ``random``, ``numpy.random`` and torch's. So each team gets streams of
    its own, which begin anew with the seed of each episode and are there only while it is asked.

    >>> class Member:
    ...     def reset(self): self.count = 0
    ...     def step(self, observation): self.count += 1; return self.count
    >>> class Team:
    ...     def agent_policy(self, agent_id): return Member()
    >>> policy = TeamPolicy(Team, ["a", "b"])
    >>> policy.reset(seed=1)
    >>> policy.act_jointly({"a": None}, {}), policy.act_jointly({"a": None, "b": None}, {})
    ({'a': 1}, {'a': 2, 'b': 1})
    """

    def __init__(self, team: Callable[[], Any], agents: Iterable[str]) -> None:
        self._streams = _Streams(0)
        with self._streams.taken():
            made = team()
            if not hasattr(made, "agent_policy"):
                raise SettingError(f"policy: given {made!r}, expected a team with agent_policy(agent_id)")
            self._members = {agent: made.agent_policy(agent) for agent in agents}
        for agent, member in self._members.items():
            if missing := [name for name in ("step", "reset") if not callable(getattr(member, name, None))]:
                raise SettingError(f"policy: agent_policy({agent!r}) gave {member!r}, which has no {missing[0]}()")

    def reset(self, seed: int) -> None:
        """A new episode begins."""
        self._streams = _Streams(seed)
        with self._streams.taken():
            for member in self._members.values():
                member.reset()

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        """One step of each member that is asked, in the order of the seats."""
        with self._streams.taken():
            asked = [(agent, member) for agent, member in self._members.items() if agent in observations]
            return {agent: member.step(observations[agent]) for agent, member in asked}


class _Streams:
    """The process's random streams, as one policy sees them."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._own: tuple[Any, ...] = ()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """In here the process draws from these streams; afterwards from those it had."""
        before = _streams()
        if self._seed is None:
            _set_streams(self._own)
        else:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
            if "torch" in sys.modules:
                sys.modules["torch"].manual_seed(self._seed)
            self._seed = None
        try:
            yield
        finally:
            self._own = _streams()
            _set_streams(before)


def _streams() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return (random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None)


def _set_streams(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    if state[2] is not None:
        sys.modules["torch"].set_rng_state(state[2])

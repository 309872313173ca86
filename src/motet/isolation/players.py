"""Players: a policy on one or several seats of a world, in this process or isolated, with one interface for both.

Evaluations and the partners of a training run make their players here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from motet.errors import PolicyFailure
from motet.isolation.policy import IsolatedPolicy
from motet.masks import is_discrete, mask_form
from motet.nest import Nest
from motet.policies.entries import Entry, load_with
from motet.policies.joint import JointPolicies, joint_question, joint_spaces
from motet.policies.limits import PolicyLimits
from motet.policies.local import LocalPolicy
from motet.policies.partner import Partner
from motet.policies.teams import describe_world
from motet.policy import Policy, PolicySpec, WorldDescription
from motet.system.raised import brief
from motet.world import World
from motet.world.masks import masked_agents

__all__ = [
    "Isolation",
    "Player",
    "PlayerPolicy",
    "Seats",
    "check_mask",
    "load_players",
    "make_player",
    "world_settings",
]


class Player(Protocol):
    """A policy on one or several seats: an :class:`IsolatedPolicy` or a :class:`LocalPolicy`."""

    @property
    def output(self) -> str:
        """The end of the policy's output."""
        ...

    def ask_reset(self, seed: int) -> None:
        """Tell the policy that a new episode begins. Does not wait for the policy."""
        ...

    def ask(self, observation: Any, mask: Nest = None) -> None:
        """Ask for an action. Does not wait for the answer."""
        ...

    def answer(self) -> Any:
        """Return the answer: an action, or None after a reset. Raises a PolicyFailure."""
        ...

    def replace(self) -> None:
        """Drop the policy and make a new one."""
        ...

    def close(self) -> None:
        """Drop the policy."""
        ...


@dataclass(frozen=True)
class Seats:
    """The seats of one player, and the settings of the world that it may see."""

    agents: Mapping[str, int]
    """Index in the world of each agent that the player acts for, by name."""
    observation_spaces: tuple[Any, ...]
    action_spaces: tuple[Any, ...]
    masked: tuple[bool, ...]
    """By seat, whether the agent has action masks."""
    joint: bool
    """Whether one question asks all agents that act now."""
    settings: Mapping[str, Any]
    """Settings of the world, as policies see them."""
    description: WorldDescription | None

    @classmethod
    def of(
        cls,
        world: World,
        agents: Mapping[str, int],
        masked: Collection[int],
        joint: bool,
        settings: Mapping[str, Any],
        description: WorldDescription | None,
    ) -> Seats:
        """Return the seats of some agents of a world. ``masked``: indices of the agents with action masks."""
        return cls(
            agents,
            tuple(world.observation_spaces[agent] for agent in agents.values()),
            tuple(world.action_spaces[agent] for agent in agents.values()),
            tuple(agent in masked for agent in agents.values()),
            joint,
            settings,
            description,
        )

    def action_space(self, agent: str) -> Any:
        """Return the action space of an agent, given by its name."""
        return self.action_spaces[list(self.agents).index(agent)]

    def spaces(self) -> tuple[Any, Any]:
        """Return the spaces of the player's questions and answers."""
        if not self.joint:
            return self.observation_spaces[0], self.action_spaces[0]
        return joint_spaces(list(self.agents), self.observation_spaces, self.action_spaces, self.masked)


@dataclass(frozen=True)
class Isolation:
    """How an isolated player runs: limits, sandbox and other settings."""

    limits: PolicyLimits | None = None
    """None: the defaults."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    alive: Callable[[], None] | None = None
    """Called now and then while an answer is awaited."""


def make_player(
    entry: Entry, seats: Seats, isolation: Isolation | None = None, spaces: tuple[Any, Any] | None = None
) -> Player:
    """Make the player of an entry on some seats. May raise a PolicyFailure.

    Args:
        entry: the policy.
        seats: its seats.
        isolation: how an isolated player runs. None: the player runs in this process.
        spaces: what ``seats.spaces()`` returned, if it is known.
    """
    specs = {name: entry.on(name) for name in seats.agents}
    first = next(iter(specs))
    spec, masked = specs[first], seats.masked[0]
    if seats.joint:
        arguments = {"specs": specs, "shared": entry.shared, "seats": dict(seats.agents)}
        spec = PolicySpec(JointPolicies, {**arguments, "data": spec.arguments.get("data")}, spec.title)
        masked = False  # masks are part of the joint observation
    observation_space, action_space = spaces or seats.spaces()
    known: dict[str, Any] = {"agent": first, "world": seats.settings, "masked": masked}
    known["description"] = seats.description
    if isolation is None:
        return LocalPolicy(spec, observation_space, action_space, **known)
    limits = isolation.limits or PolicyLimits()
    return IsolatedPolicy(
        spec, observation_space, action_space, limits=limits, sandbox=isolation.sandbox, alive=isolation.alive, **known
    )


def check_mask(action: Any, mask: Nest, space: Any) -> None:
    """Raise a PolicyFailure if the mask does not allow an action."""
    if mask is not None and not mask_form(space).allows(mask, action):
        shown = int(action) if is_discrete(space) else brief(action)
        raise PolicyFailure("answer", f"the action is {shown}, which the mask does not allow")


def world_settings(factory: Callable[..., Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of the world that are plain values: those given, and defaults for the rest.

    ``described``: what ``describe_world`` of ``motet.runs.config`` returned for the factory.
    """
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    plain = (bool, int, float, str, type(None))
    defaults = {one.name: one.default for one in parameters if isinstance(one.default, plain)}
    return {**defaults, **described.get("settings", {})}


def load_players(run: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Policy]:
    """Load the policies of a run as :func:`motet.load_policies` does, with isolated partners in processes."""
    return load_with(run, player_policies, trust=trust)


def player_policies(
    partners: Mapping[str, tuple[Partner, Entry]], world: World, described: Mapping[str, Any]
) -> dict[str, Policy]:
    """Return the partners of a run, one policy for each agent. Isolated ones have processes, which ``close`` ends.

    A policy that acts for several agents at once is asked for one of them at a time.
    """
    settings = dict(described.get("settings", {}))
    description, masked = describe_world(world, settings), masked_agents(world)
    groups: dict[str, list[str]] = {}
    for name, (_, entry) in partners.items():
        groups.setdefault(entry.key if entry.shared else f"agent {name}", []).append(name)
    found: dict[str, Policy] = {}
    for names in groups.values():
        (partner, entry), agents = partners[names[0]], {name: world.agents.index(name) for name in names}
        seats = Seats.of(world, agents, masked, entry.shared, settings, description)
        isolation = Isolation(partner.limits, partner.sandbox) if entry.isolate else None
        player = make_player(entry, seats, isolation)
        found |= {name: PlayerPolicy(player, seats, name) for name in names}
    return found


class PlayerPolicy:
    """One agent of a player, as a Policy.

    Args:
        player: the player.
        seats: its seats.
        agent: the agent, which is one of them.
    """

    def __init__(self, player: Player, seats: Seats, agent: str) -> None:
        self._player, self._seats, self._agent = player, seats, agent
        self._space = seats.spaces()[0]

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._player.ask_reset(seed)
        self._player.answer()

    def act(self, observation: Any, mask: Nest = None) -> Any:
        """Return the action for one observation."""
        if not self._seats.joint:
            self._player.ask(observation, mask)
            return self._player.answer()
        masks = {} if mask is None else {self._agent: mask_form(self._seats.action_space(self._agent)).flat(mask)}
        self._player.ask(joint_question(list(self._seats.agents), self._space, {self._agent: observation}, masks))
        return self._player.answer()[self._agent]

    def close(self) -> None:
        """End the process of an isolated policy."""
        self._player.close()

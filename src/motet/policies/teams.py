"""Teams: policies of two levels. A team object is made from a description of the world and gives a policy per agent.

The team object is made from a :class:`~motet.policy.WorldDescription`. A translator first converts the description if
the team's project uses other classes. The objects that ``agent_policy`` returned get the observations and return the
actions. Unless a team is shared, every agent has a separate team object, whether it has a separate process or not.

Teams take no seed. They draw from the global random streams and from their spaces. So each team object has separate
streams (:mod:`motet.streams`), like other policies, and a generator for its spaces. They start
from one fixed seed while the team is made and asked for its agent policies, so that all copies agree; then from the
seed of ``reset``.
"""

from __future__ import annotations

import copy
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from motet.algorithm import Space
from motet.errors import SettingError
from motet.nest import Nest
from motet.policy import JointPolicy, Policy, PolicySpec, WorldDescription, asker, imported, kind_of
from motet.streams import MADE, Streams, StreamUser, made_alike, streams_returned
from motet.system.raised import brief
from motet.world import World

__all__ = [
    "Alone",
    "TeamPolicy",
    "describe_world",
    "is_team",
    "make_policy",
    "shared_policy",
    "sole_asker",
    "team_policy",
]


class TeamPolicy:
    """A team as one policy for some of its agents: for all if it is shared, else for one.

    Args:
        team: factory of the team object.
        agents: the agents to act for: their indices in the world by name, or names in the order of the world.
        translator: converts observations and actions; see :class:`~motet.policy.Translator`.
        rng: generator of the spaces that the team was given.

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

    def __init__(
        self,
        team: Callable[[], Any],
        agents: Mapping[str, int] | Iterable[str],
        translator: Any = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._agents = dict(agents) if isinstance(agents, Mapping) else {name: i for i, name in enumerate(agents)}
        self._rng, self._streams = rng, Streams(StreamUser("a team"))
        self._to_observation = getattr(translator, "observation", None)
        self._to_action = getattr(translator, "action", None)
        self._team = self._made(team)
        if not hasattr(self._team, "agent_policy"):
            raise SettingError(f"policy must be a team with agent_policy(agent), got {brief(self._team)}")
        self._by_name = _wants_name(self._team.agent_policy)
        self._has_reset = callable(getattr(self._team, "reset", None))
        self._members: dict[str, Any] = {}
        if not self._has_reset:
            self._take_members()

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._seed_spaces(seed)
        with self._streams.begun(seed):
            self._reset_team()
            for member in self._members.values():
                member.reset()

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        """Return an action for each agent that is asked, in the order of the agents."""
        with self._streams:
            return {a: self._step(a, observations[a], masks.get(a)) for a in self._members if a in observations}

    def _seed_spaces(self, seed: int) -> None:
        if self._rng is not None:
            self._rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Within the block, draw from streams that start from the fixed seed; after it, from the team's own streams."""
        rng = self._rng
        before: Any = None if rng is None else rng.bit_generator.state
        self._seed_spaces(MADE)
        with streams_returned():
            Streams(self._streams.user).begin(MADE)
            yield
        if rng is not None:
            rng.bit_generator.state = before

    def _made(self, team: Callable[[], Any]) -> Any:
        had_torch = "torch" in sys.modules
        with self._making():
            made = team()
        if not had_torch and "torch" in sys.modules:  # torch's stream was not seeded, so the team is made again
            with self._making():
                made = team()
        return made

    def _reset_team(self) -> None:
        """Reset the team, and take its agent policies again: older ones may be stale after the reset."""
        if self._has_reset:
            self._team.reset()
            self._take_members()

    def _take_members(self) -> None:
        with self._making():
            for agent, index in self._agents.items():
                which = agent if self._by_name else index
                member = self._team.agent_policy(which)
                if missing := [name for name in ("step", "reset") if not callable(getattr(member, name, None))]:
                    raise SettingError(
                        f"agent_policy({which!r}) must return an object with reset() and step(observation), got "
                        f"{brief(member)}, which has no {missing[0]}()"
                    )
                self._members[agent] = member

    def _step(self, agent: str, observation: Nest, mask: Any) -> Any:
        index = self._agents[agent]
        if self._to_observation is not None:
            observation = self._to_observation(observation, index, mask)
        action = self._members[agent].step(observation)
        return action if self._to_action is None else self._to_action(action, index)


class Alone:
    """One agent of a team, as a Policy."""

    def __init__(self, policy: TeamPolicy, agent: str) -> None:
        self._policy, self._agent = policy, agent

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._policy.reset(seed)

    def act(self, observation: Nest, mask: Any = None) -> Any:
        """Return the action for one observation."""
        masks = {} if mask is None else {self._agent: mask}
        return self._policy.act_jointly({self._agent: observation}, masks)[self._agent]


class OwnPolicy:
    """A policy with separate global random streams."""

    def __init__(self, policy: Policy, name: str) -> None:
        self._policy, self.ask = policy, asker(policy.act)
        self.streams = Streams(StreamUser(name))
        if callable(many := getattr(policy, "act_many", None)):
            self._ask_many = asker(many, "masks")
            self.act_many = self._act_many

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        with self.streams.begun(seed):
            self._policy.reset(seed)

    def act(self, observation: Nest, mask: Any = None) -> Any:
        """Return the action for one observation."""
        with self.streams:
            return self.ask(observation, mask)

    def _act_many(self, observations: Nest, masks: Any = None) -> Any:
        """Return the actions for a batch of observations. Only policies that can act on one have ``act_many``."""
        with self.streams:
            return self._ask_many(observations, masks)


class OwnJointPolicy:
    """A joint policy with separate global random streams."""

    def __init__(self, policy: JointPolicy, name: str) -> None:
        self._policy, self._ask = policy, asker(policy.act_jointly, "masks")
        self._streams = Streams(StreamUser(name))

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        with self._streams.begun(seed):
            self._policy.reset(seed)

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Any]) -> dict[str, Any]:
        """Return an action for each agent that is asked."""
        with self._streams:
            return self._ask(observations, masks)  # type: ignore[no-any-return]


def _is_ours(policy: Any) -> bool:
    """Whether a policy belongs to motet, whose code does not draw from the global random streams."""
    return type(policy).__module__.startswith("motet.")


def make_policy(spec: PolicySpec, offered: Mapping[str, Any]) -> Policy:
    """Make the policy of one agent from its spec. A team is recognised here; it needs a description.

    A policy that may draw from the global random streams gets separate streams.

    Args:
        spec: how the policy is made.
        offered: arguments that the factory may take by name: ``observation_space``, ``action_space``, ``agent``,
            ``world``, ``description``.
    """
    kind = spec.kind or kind_of(spec.resolved())
    if kind == "joint" and not hasattr(spec.resolved(), "act"):
        raise SettingError(f"{spec.title} acts for all its agents in one call (act_jointly): use kind=joint")
    made = None if kind == "team" else _made_or_team(spec, offered)
    if made is None:
        return _agent_of_team(spec, offered)
    if spec.translate:
        raise SettingError(f"translate is only valid for a team, but {spec.title} made {brief(made)}, not a team")
    policy = spec.checked(made)
    return policy if _is_ours(policy) else OwnPolicy(policy, spec.title)


def sole_asker(policy: Policy) -> Callable[[Any, Any], Any]:
    """Return a function ``ask(observation, mask)`` for a policy that is alone in its process.

    Its streams stay installed after a reset, so they are not entered again, which would take as long as a small policy.
    """
    return policy.ask if isinstance(policy, OwnPolicy) else asker(policy.act)


def is_team(spec: PolicySpec, offered: Mapping[str, Any]) -> bool:
    """Return whether a spec makes a team. A function is called to find out."""
    kind = spec.kind or kind_of(spec.resolved())
    return kind == "team" or (spec.kind is None and _made_or_team(spec, offered) is None)


def _agent_of_team(spec: PolicySpec, offered: Mapping[str, Any]) -> Policy:
    """Make the policy of one agent, from a separate team object."""
    description, agent = _described(spec, offered), offered.get("agent")
    if agent not in description.agents:
        raise SettingError(f"agent must be one of {', '.join(description.agents)}, got {agent!r}")
    index = description.agents.index(agent)
    return Alone(team_policy(spec, description, {agent: index}), agent)


def _made_or_team(spec: PolicySpec, offered: Mapping[str, Any]) -> Any:
    """Call a factory that is not known to make a team. Return the policy, or None if it made a team.

    A function or a joint policy may take a description too. A team that a function made is dropped, because its spaces
    have no generator; the caller makes it again as a team. ``PolicySpec(kind="team")`` avoids the first call.
    """
    factory = spec.resolved()
    described = not isinstance(factory, type) or kind_of(factory) == "joint"
    if described and offered.get("description") is not None and _first_free(factory, {*offered, *spec.arguments}):
        args, keywords = _team_arguments(factory, offered, offered.get("world") or {}, spec.arguments)
        made = made_alike(spec.title, lambda: factory(*args, **keywords))
    else:
        made = made_alike(spec.title, lambda: spec.build(**offered))
    return None if spec.kind is None and kind_of(type(made)) == "team" else made


def shared_policy(spec: PolicySpec, seats: Mapping[str, int], offered: Mapping[str, Any]) -> JointPolicy:
    """Make the one object of a joint policy or a shared team, which acts for all of its agents."""
    factory = spec.resolved()
    kind = spec.kind or kind_of(factory)
    if kind == "agent" and isinstance(factory, type):
        raise SettingError(f"shared=yes is only valid for teams and joint policies, but {spec.title} is neither")
    made = None if kind == "team" else _made_or_team(spec, offered)
    if made is None:
        return team_policy(spec, _described(spec, offered), seats, shared=True)
    if spec.translate:
        raise SettingError(f"translate is only valid for a team, but {spec.title} made {brief(made)}, not a team")
    if not isinstance(made, JointPolicy):
        raise SettingError(f"policy must have reset and act_jointly, got {brief(made)}, made by {spec.title}")
    return made if _is_ours(made) else OwnJointPolicy(made, spec.title)


def team_policy(
    spec: PolicySpec,
    description: WorldDescription,
    agents: Mapping[str, int],
    *,
    shared: bool = False,
    kind: type[TeamPolicy] = TeamPolicy,
) -> TeamPolicy:
    """Make a team object with its arguments, translator and random streams, to act for some agents.

    Args:
        spec: how the team is made.
        description: description of the world. The team gets a copy, so that it shares nothing with other teams.
        agents: indices of the agents in the world, by name.
        shared: whether these are all agents of the team.
        kind: TeamPolicy, or a class with the same constructor.
    """
    factory, own = spec.resolved(), copy.deepcopy(description)
    rng = np.random.default_rng(MADE)
    for space in (*own.observation_spaces.values(), *own.action_spaces.values()):
        _draw_from(space, rng)
    translator = _translator(spec, own)
    given = translator.description() if hasattr(translator, "description") else own
    team = tuple(agents) if shared else own.agents
    offered = {
        "agents": team,
        "observation_spaces": {agent: own.observation_spaces[agent] for agent in team},
        "action_spaces": {agent: own.action_spaces[agent] for agent in team},
        "description": given,
    }
    args, keywords = _team_arguments(factory, offered, dict(own.settings), spec.arguments)
    return kind(lambda: factory(*args, **keywords), agents, translator, rng)


def describe_world(world: World, settings: Mapping[str, Any] | None = None) -> WorldDescription:
    """Return what a team is told about a world: its agents, spaces and settings."""
    known: list[Space] = []
    actions = dict(zip(world.agents, world.action_spaces, strict=True))
    return WorldDescription(
        agents=tuple(world.agents),
        observation_spaces={a: _same(s, known) for a, s in zip(world.agents, world.observation_spaces, strict=True)},
        action_spaces={agent: _same(space, known) for agent, space in actions.items()},
        action_names={agent: _action_names(world, agent, space) for agent, space in actions.items()},
        settings=dict(settings or {}),
    )


def _same(space: Space, known: list[Space]) -> Space:
    """Return one object for equal spaces, since image spaces of many agents would make a description large."""
    for one in known:
        if one is space or one == space:
            return one
    known.append(space)
    return space


def _action_names(world: World, agent: str, space: Space) -> tuple[str, ...]:
    """Return the action names of the world or its environment: ``action_names`` or ``get_action_meanings()``."""
    environment = getattr(world, "_env", None)
    environment = getattr(environment, "env", environment)
    for holder in (world, environment, getattr(environment, "unwrapped", None)):
        names = getattr(holder, "action_names", None)
        if names is None and callable(meanings := getattr(holder, "get_action_meanings", None)):
            names = meanings()
        if isinstance(names, Mapping):
            names = names.get(agent)
        if isinstance(names, Sequence) and not isinstance(names, str) and len(names) == getattr(space, "n", -1):
            return tuple(str(name) for name in names)
    return ()


# ---- making one


def _described(spec: PolicySpec, offered: Mapping[str, Any]) -> WorldDescription:
    description = offered.get("description")
    if not isinstance(description, WorldDescription):
        raise SettingError(
            f"{spec.title} is a team, which needs a description of the world: give description=WorldDescription(…)"
        )
    return description


def _translator(spec: PolicySpec, description: WorldDescription) -> Any:
    if not spec.translate:
        return None
    make = imported(spec.translate, "translate") if isinstance(spec.translate, str) else spec.translate
    parts = ("description", "observation", "action")
    made = make(description) if not isinstance(make, type) or any(hasattr(make, part) for part in parts) else None
    if not any(callable(getattr(made, part, None)) for part in parts):
        raise SettingError(
            f"translate must be a class or function that makes an object with {', '.join(parts)} or some of them from "
            f"a WorldDescription, got {spec.translate!r}"
        )
    return made


def _team_arguments(
    factory: Callable[..., Any], offered: Mapping[str, Any], settings: Mapping[str, Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a team's constructor. Its first free required parameter gets the description."""
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # a builtin without a signature
        return [], dict(arguments)
    first = _first_free(factory, {*offered, *arguments})
    keywords = {name: value for name, value in offered.items() if name in parameters}
    if "world" in parameters:
        keywords["world"] = settings
    args = []
    if first is not None and first.kind is first.POSITIONAL_ONLY:
        args.append(offered["description"])
    elif first is not None:
        keywords[first.name] = offered["description"]
    return args, {**keywords, **arguments}


def _first_free(factory: Callable[..., Any], taken: set[str]) -> inspect.Parameter | None:
    """Return the first required parameter that no other argument fills."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return None
    for one in parameters:
        several = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if one.default is one.empty and not several and one.name not in taken:
            return one
    return None


def _wants_name(agent_policy: Callable[..., Any]) -> bool:
    """Whether a parameter is annotated as ``str``. Then it gets the agent's name, else the agent's index."""
    try:
        parameter = next(iter(inspect.signature(agent_policy).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if parameter is None:
        return False
    if isinstance(parameter.annotation, str):
        try:
            return typing.get_type_hints(agent_policy).get(parameter.name) is str
        except Exception:  # noqa: BLE001 - an annotation of something else that cannot be resolved
            return parameter.annotation == "str"
    return parameter.annotation is str


# ---- random streams


def _draw_from(space: Any, rng: np.random.Generator) -> None:
    """Make a space and its parts draw from one generator. By default, each part would be seeded by the system."""
    parts = getattr(space, "spaces", ())
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        _draw_from(part, rng)
    space._np_random = rng

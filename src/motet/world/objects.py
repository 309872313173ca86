"""Object gridworlds: what all of them share, and the adapter for those whose agents only observe and act.

:class:`ObjectEnvironment` wraps the user's environment: its agents, their spaces, how it is reset. :class:`Objects`
plays it as an AEC environment: entities first, then the agents one after the other. Environments that play their own
turns, or whose agents do, are played by :mod:`motet.world.self_driven`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from motet.errors import SettingError
from motet.streams import seed_global
from motet.system.raised import brief
from motet.world.contract import offers, picture_of

__all__ = ["ObjectEnvironment", "Objects", "ObjectsAtOnce", "entity_transitions", "plays_itself"]

TURN_LIMITS = ("config.experiment.max_turns", "config.max_turns", "max_turns", "world.max_turns")
"""Attributes that may hold an environment's turn limit. The first one that exists counts."""

_RESETS = 100
"""Maximum number of resets until every agent has been in the world once."""

Learners = Sequence[int] | type | tuple[type, ...] | None
"""The agents that motet plays: indices in ``environment.agents``, or classes; None: all that can be played."""


class ObjectEnvironment:
    """The user's environment, and those of its agents that motet plays."""

    def __init__(
        self,
        environment: Any,
        actions: Any,
        observation: Any,
        turns: float | None,
        learners: Learners = None,
        render: Callable[[Any], Any] | None = None,
    ) -> None:
        kind = type(environment).__name__
        if not (render is None or callable(render)):
            raise SettingError(f"render must be a function of the environment that returns a picture, got {render!r}")
        self._render = render
        for name in ("reset", "agents", "world"):
            if not hasattr(environment, name):
                raise SettingError(f"an environment must have reset(), agents and world, got a {kind} without {name}")
        self.environment = environment
        self.turns = turn_limit(environment) if turns is None else _checked_turns("turns", turns)
        self._seedable = "seed" in signature(environment.reset).parameters
        environment.reset()  # agents have no observation before the reset
        everyone = list(environment.agents)
        self.count = len(everyone)
        self.learners = _learners(kind, everyone, self.playable(everyone, learners), self.lacks)
        """Indices in ``environment.agents``."""
        self.possible_agents = [f"agent_{index}" for index in self.learners]
        players = [everyone[index] for index in self.learners]
        action_spaces = _each("actions", actions, len(players))
        self._action_spaces = [_actions_of(*pair) for pair in zip(players, action_spaces, strict=True)]
        self._spaces = self._observation_spaces(
            _each("observation", observation, len(players)), [type(agent) for agent in everyone]
        )

    def _observation_spaces(self, given: list[Any], kinds: list[type]) -> list[Any]:
        """Return the given spaces, or those of each agent's first observation.

        An agent that is not in the world yet has no observation. Its space is found in a later episode, or is that of
        another agent of its class.
        """
        found: dict[int, Any] = {}
        problems: dict[int, Exception] = {}
        for _ in range(_RESETS):
            agents, world = list(self.environment.agents), self.environment.world
            for number, index in enumerate(self.learners):
                if number in found or index >= len(agents):
                    continue
                try:
                    found[number] = _sight_of(world, agents[index], given[number])
                except SettingError:
                    raise
                except Exception as error:  # noqa: BLE001 - raised below, if no later episode helps
                    problems[number] = error
            if len(found) == len(given):
                break
            self.environment.reset()
        for number, index in enumerate(self.learners):
            if number not in found:
                alike = [
                    found[n] for n, other in enumerate(self.learners) if n in found and kinds[other] is kinds[index]
                ]
                if not alike:
                    cause = problems[number]
                    raise SettingError(
                        f"pov() of {kinds[index].__name__} raised {type(cause).__name__}: {cause}; give its space "
                        "with observation="
                    ) from cause
                found[number] = alike[0]
        return [found[number] for number in range(len(given))]

    def playable(self, agents: Sequence[Any], learners: Learners) -> Learners:
        """Return the agents that motet plays; a subclass chooses them if ``learners`` is None."""
        return learners

    def lacks(self, agent: Any) -> list[str]:
        """Return the methods that motet needs to play an agent, and that the agent lacks."""
        return [name for name in ("pov", "act", "is_done") if not offers(agent, name)]

    def observation_space(self, agent: str) -> Any:
        return self._spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None) -> None:
        if self._seedable:
            self.environment.reset(seed=seed)
            return
        if seed is not None:
            seed_global(seed)
        self.environment.reset()

    def render(self) -> Any:
        """Return a picture: by the function that was given, or by ``render`` of the environment or of its world."""
        if self._render is not None:
            return np.asarray(self._render(self.environment))
        for owner in (self.environment, self.environment.world):
            if (picture := picture_of(owner)) is not None:
                return np.asarray(picture)
        return None

    def close(self) -> None:
        if offers(self.environment, "close"):
            self.environment.close()


class _Direct(ObjectEnvironment):
    """An object gridworld whose agents only observe and act, so that motet plays the turn."""

    agents: list[str]

    def _begin_episode(self, seed: int | None) -> None:
        super().reset(seed)
        players = list(self.environment.agents)
        if len(players) != self.count:
            raise ValueError(f"there are {len(players)} agents; expected {self.count}, as at the start")
        self.agents = self.possible_agents[:]
        self._players = dict(zip(self.agents, players, strict=True))
        self._turn = 0

    def observe(self, agent: str) -> Any:
        return self._players[agent].pov(self.environment.world)

    def _act(self, name: str, action: Any) -> tuple[float, bool]:
        """Play the action of one agent. Return its reward, and whether it is done."""
        world, player = self.environment.world, self._players[name]
        reward = player.act(world, action)
        try:
            value = float(reward)
        except (TypeError, ValueError):
            raise TypeError(f"act() returned {brief(reward)}; expected a reward") from None
        return value, bool(player.is_done(world))


class Objects(_Direct):
    """An object gridworld whose agents observe and act one after the other, as an AEC environment."""

    def reset(self, seed: int | None = None) -> None:
        self._begin_episode(seed)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self._over = False
        self._begin_turn()

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if action is None:
            self.agents.remove(name)
        else:
            self._cumulative_rewards[name], self.terminations[name] = self._act(name, action)
            if self.terminations[name]:
                return  # the agent stays selected, so that its end is reported with its present observation
        self._next()

    def _next(self) -> None:
        while self._queue:
            name = self._queue.pop()
            if name in self.agents:
                self.agent_selection = name
                return
        if not self.agents:
            return
        if not self._over:
            self._turn += 1
            if ended_itself(self.environment):
                self.terminations = dict.fromkeys(self.possible_agents, True)
            elif self._turn == self.turns:
                self.truncations = dict.fromkeys(self.possible_agents, True)
                mark_done(self.environment.world)
            else:
                self._begin_turn()
                return
            self._over = True
        self.agent_selection = self.agents[0]

    def _begin_turn(self) -> None:
        """Begin a turn: entities first, then the remaining agents in their order."""
        entity_transitions(self.environment, self._players.values())
        self._queue = self.agents[::-1]
        self.agent_selection = self._queue.pop()


class ObjectsAtOnce(_Direct):
    """An object gridworld whose agents all observe and decide before the first one acts, as a Parallel environment."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:  # type: ignore[override]
        self._begin_episode(seed)
        entity_transitions(self.environment, self._players.values())
        return {name: self.observe(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Play a turn: the agents act in their order. Then entities begin the next turn, and all agents observe."""
        present, seen, rewards = self.agents, dict[str, Any](), dict[str, float]()
        ended, cut = dict.fromkeys(present, False), dict.fromkeys(present, False)
        for name in present:
            rewards[name], ended[name] = self._act(name, actions[name])
            if ended[name]:
                seen[name] = self.observe(name)  # observations are read now, because other agents may still change them
        self._turn += 1
        left = [name for name in present if not ended[name]]
        if left and ended_itself(self.environment):
            ended = dict.fromkeys(present, True)
        elif left and self._turn == self.turns:
            cut |= dict.fromkeys(left, True)
            mark_done(self.environment.world)
        elif left:
            entity_transitions(self.environment, self._players.values())
        seen |= {name: self.observe(name) for name in left}
        self.agents = [name for name in present if not (ended[name] or cut[name])]
        return seen, rewards, ended, cut, {name: {} for name in present}


def plays_itself(environment: Any) -> bool:
    """Whether the environment, or one of its agents, plays its own turns."""
    if offers(environment, "take_turn"):
        return True
    return any(offers(agent, "transition") for agent in getattr(environment, "agents", ()))


def turn_limit(environment: Any) -> float:
    """Return the environment's turn limit, from the first of ``TURN_LIMITS`` that exists; infinity without one."""
    for path in TURN_LIMITS:
        found: Any = environment
        for part in path.split("."):
            found = found.get(part) if isinstance(found, Mapping) else getattr(found, part, None)
            if found is None:
                break
        else:
            return _checked_turns(f"{path} of {type(environment).__name__}", found)
    return math.inf


def _checked_turns(name: str, turns: Any) -> float:
    if turns == math.inf:
        return math.inf
    try:
        number = operator.index(turns)
    except TypeError:
        number = 0
    if number < 1:
        raise SettingError(f"{name} must be an int >= 1, or math.inf for no limit, got {turns!r}")
    return number


def ended_itself(environment: Any) -> bool:
    """Whether the world has set ``is_done``, unless ``stop_if_done`` of the environment is false."""
    done = getattr(environment.world, "is_done", False)
    return not callable(done) and bool(done) and bool(getattr(environment, "stop_if_done", True))


def mark_done(world: Any) -> None:
    """Set ``is_done`` if the world has it, as the loops of such projects do when the turns run out."""
    if hasattr(world, "is_done") and not callable(world.is_done):
        world.is_done = True


def entity_transitions(environment: Any, agents: Iterable[Any]) -> None:
    """Begin a turn: count it, and give each entity that is not an agent its transition."""
    if isinstance(getattr(environment, "turn", None), int):  # the loops of such projects count turns in this attribute
        environment.turn += 1
    world = environment.world
    had = {id(agent): agent for agent in agents}  # keeps the objects alive, so that no id is reused
    for entity in _entities(world):
        if getattr(entity, "has_transitions", False) and id(entity) not in had:
            had[id(entity)] = entity
            entity.transition(world)


def _learners(kind: str, agents: Sequence[Any], given: Learners, lacks: Callable[[Any], list[str]]) -> list[int]:
    """Return the agents that motet plays, as indices."""
    if given is None:
        chosen = list(range(len(agents)))
    elif isinstance(given, type) or (given and all(isinstance(one, type) for one in given)):
        chosen = [index for index, agent in enumerate(agents) if isinstance(agent, given)]  # type: ignore[arg-type]
    else:
        chosen = [_index(one, len(agents), given) for one in given]
    if not chosen or len(set(chosen)) != len(chosen):
        raise SettingError(f"learners must be different agents of {kind}, at least one, got {given!r}")
    for index in chosen:
        if lacking := lacks(agents[index]):
            raise SettingError(
                f"agents of {kind} must have pov(world), act(world, action) and is_done(world), or ask for actions "
                f"(see motet.world.from_objects), got a {type(agents[index]).__name__} without {', '.join(lacking)}"
            )
    return chosen


def _index(given: Any, count: int, learners: Any) -> int:
    try:
        index = operator.index(given)
    except TypeError:
        index = -1
    if not 0 <= index < count:
        raise SettingError(f"learners must be indices from 0 to {count - 1}, or classes of agents, got {learners!r}")
    return index


def _entities(world: Any) -> Iterator[Any]:
    """Iterate over all entities of an object gridworld.

    A map is read during the iteration, so changes on the way are seen, as in the loops of such worlds.
    """
    if hasattr(world, "entities"):
        entities = world.entities() if callable(world.entities) else world.entities
        return iter(tuple(entities.values() if isinstance(entities, Mapping) else entities))
    tiles = getattr(world, "map", world)
    if not isinstance(tiles, Iterable):
        raise TypeError(f"{type(world).__name__} has no entities, no map and is not iterable; expected one of them")
    return _leaves(tiles)


def _leaves(tiles: Any) -> Iterator[Any]:
    if isinstance(tiles, np.ndarray):
        yield from tiles.flat
        return
    for tile in tiles:
        if isinstance(tile, list | tuple | np.ndarray):
            yield from _leaves(tile)
        else:
            yield tile


def _each(name: str, given: Any, count: int) -> list[Any]:
    """Return one value for each agent: the items of a list or tuple, else the same value for all."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise SettingError(f"{name} must be one value for all, or one for each of {count} agents, got {len(given)}")
    return list(given)


def _actions_of(player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if given is None:
        given = getattr(getattr(player, "action_spec", None), "n_actions", None)
        if given is None:
            raise SettingError(f"{type(player).__name__} has no action_spec.n_actions; give the number with actions=")
    if isinstance(given, spaces.Space):
        return given
    try:
        return spaces.Discrete(operator.index(given))
    except (TypeError, ValueError):
        raise SettingError(f"actions must be an int >= 1, or a space, got {given!r}") from None


def _sight_of(world: Any, player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if isinstance(given, spaces.Space):
        return given
    if given is not None:
        raise SettingError(f"observation must be a space, or None to take the shape of the first pov, got {given!r}")
    return spaces.Box(-np.inf, np.inf, np.shape(player.pov(world)), np.float32)

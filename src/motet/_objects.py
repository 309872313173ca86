"""Object gridworlds as AEC environments: entities first, then the agents one after the other."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from motet._values import brief
from motet.errors import SettingError
from motet.world import offers

if TYPE_CHECKING:
    pass

__all__ = ["Objects"]


class Objects:
    """An object gridworld, as an AEC environment."""

    def __init__(self, environment: Any, actions: Any, observation: Any, turns: int | None) -> None:
        kind = type(environment).__name__
        for name in ("reset", "agents", "world"):
            if not hasattr(environment, name):
                raise SettingError(f"{kind} has no {name}; expected an environment with reset(), agents and world")
        if turns is not None and turns < 1:
            raise SettingError(f"turns is {turns}; expected 1 or more, or None for no limit")
        self.environment = environment
        self.turns = turns
        self._seedable = "seed" in signature(environment.reset).parameters
        environment.reset()  # agents see nothing before
        players = list(environment.agents)
        for player in players:
            lacking = [name for name in ("pov", "act", "is_done") if not callable(getattr(player, name, None))]
            if lacking:
                raise SettingError(
                    f"{type(player).__name__} in the agents of {kind} has no {', '.join(lacking)}; expected "
                    "pov(world), act(world, action) and is_done(world)"
                )
        self.possible_agents = [f"agent_{index}" for index in range(len(players))]
        action_spaces = _each("actions", actions, len(players))
        spaces = _each("observation", observation, len(players))
        self._action_spaces = [_actions_of(*pair) for pair in zip(players, action_spaces, strict=True)]
        self._spaces = [_sight_of(environment.world, *pair) for pair in zip(players, spaces, strict=True)]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None) -> None:
        if self._seedable:
            self.environment.reset(seed=seed)
        else:
            if seed is not None:
                _seed_global(seed)
            self.environment.reset()
        players = list(self.environment.agents)
        if len(players) != len(self.possible_agents):
            raise ValueError(f"there are {len(players)} agents; expected {len(self.possible_agents)}, as at first")
        self.agents = self.possible_agents[:]
        self._players = dict(zip(self.agents, players, strict=True))
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self._turn = 0
        self._begin_turn()

    def observe(self, agent: str) -> Any:
        return self._players[agent].pov(self.environment.world)

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if action is None:
            self.agents.remove(name)
        else:
            world, player = self.environment.world, self._players[name]
            reward = player.act(world, action)
            try:
                self._cumulative_rewards[name] = float(reward)
            except (TypeError, ValueError):
                raise TypeError(f"act() gave {brief(reward)}; expected a reward") from None
            self.terminations[name] = bool(player.is_done(world))
            if self.terminations[name]:
                return  # and it stays selected, to be seen off with what it sees now
        self._next()

    def _next(self) -> None:
        while self._queue:
            name = self._queue.pop()
            if name in self.agents:
                self.agent_selection = name
                return
        if not self.agents:
            return
        if not any(self.truncations.values()):
            self._turn += 1
            if self._turn != self.turns:
                self._begin_turn()
                return
            self.truncations = dict.fromkeys(self.possible_agents, True)
        self.agent_selection = self.agents[0]

    def _begin_turn(self) -> None:
        """Entities first; then the agents that are left, in their order."""
        environment = self.environment
        if isinstance(getattr(environment, "turn", None), int):  # their loop counts its turns there
            environment.turn += 1
        world = environment.world
        had = {id(player): player for player in self._players.values()}  # holds them, so that no id is used again
        for entity in _entities(world):
            if getattr(entity, "has_transitions", False) and id(entity) not in had:
                had[id(entity)] = entity
                entity.transition(world)
        self._queue = self.agents[::-1]
        self.agent_selection = self._queue.pop()

    def render(self) -> Any:
        return self.environment.render() if offers(self.environment, "render") else None

    def close(self) -> None:
        if offers(self.environment, "close"):
            self.environment.close()


def _entities(world: Any) -> Iterator[Any]:
    """All that is in an object gridworld; a map is walked while it changes, as such worlds do themselves."""
    if hasattr(world, "entities"):
        entities = world.entities() if callable(world.entities) else world.entities
        return iter(tuple(entities.values() if isinstance(entities, Mapping) else entities))
    place = getattr(world, "map", world)
    if not isinstance(place, Iterable):
        raise TypeError(f"{type(world).__name__} has no entities, no map and cannot be iterated over; expected one")
    return _leaves(place)


def _leaves(place: Any) -> Iterator[Any]:
    if isinstance(place, np.ndarray):
        yield from place.flat
        return
    for tile in place:
        if isinstance(tile, list | tuple | np.ndarray):
            yield from _leaves(tile)
        else:
            yield tile


def _each(name: str, given: Any, count: int) -> list[Any]:
    """One for each agent: of a sequence its items, of anything else the same one."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise SettingError(f"{name}: given {len(given)}, expected one for all or one for each of {count} agents")
    return list(given)


def _actions_of(player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if given is None:
        given = getattr(getattr(player, "action_spec", None), "n_actions", None)
        if given is None:
            raise SettingError(f"{type(player).__name__} has no action_spec.n_actions; give the number by actions=")
    if isinstance(given, spaces.Space):
        return given
    try:
        return spaces.Discrete(operator.index(given))
    except (TypeError, ValueError):
        raise SettingError(f"actions is {given!r}; expected a number from 1 on, or a space") from None


def _sight_of(world: Any, player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if isinstance(given, spaces.Space):
        return given
    if given is not None:
        raise SettingError(f"observation is {given!r}; expected a space, or None to take the shape of the first pov")
    return spaces.Box(-np.inf, np.inf, np.shape(player.pov(world)), np.float32)


def _seed_global(seed: int) -> None:
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)

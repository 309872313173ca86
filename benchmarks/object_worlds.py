"""Object gridworlds in motet, compared with plain loops over the same environments: turns per second if a turn takes a
millisecond."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from motet.world import World, from_objects

__all__ = ["CONTESTANTS", "turns_per_s"]

CONTESTANTS = {
    "own rules, own loop": ("rules", False),
    "own rules, motet": ("rules", True),
    "no rules, own loop": ("plain", False),
    "no rules, motet": ("plain", True),
}
_AGENTS, _TURN_S = 4, 0.001


class _Agent:
    action_spec = SimpleNamespace(n_actions=4)

    def __init__(self) -> None:
        self.at, self.memory = 0, list[Any]()

    def pov(self, world: Any) -> Any:
        return np.array([self.at, world.total], np.float32)

    def act(self, world: Any, action: int) -> float:
        self.at = (self.at + action) % 10
        world.total += 1
        return float(self.at == 0)

    def is_done(self, world: Any) -> bool:
        return False


class _RulingAgent(_Agent):
    def get_action(self, state: Any) -> int:
        return self.at % 4

    def add_memory(self, state: Any, action: int, reward: float, done: bool) -> None:
        self.memory.append((state, action, reward, done))

    def transition(self, world: Any) -> None:
        state = self.pov(world)
        action = self.get_action(state)
        self.add_memory(state, action, self.act(world, action), self.is_done(world))


class _Land:
    def __init__(self) -> None:
        self.total, self.entities = 0, [SimpleNamespace(has_transitions=True, transition=_spend)]


def _spend(world: Any) -> None:
    """Do the work of a turn."""
    until = time.perf_counter() + _TURN_S
    while time.perf_counter() < until:
        pass


class _Plain:
    """An environment whose agents only observe and act."""

    kind: type[_Agent] = _Agent

    def __init__(self) -> None:
        self.agents, self.max_turns = [self.kind() for _ in range(_AGENTS)], 200
        self.reset()

    def reset(self) -> None:
        self.world = _Land()
        for agent in self.agents:
            agent.memory.clear()

    def own_turn(self) -> None:
        _spend(self.world)
        for agent in self.agents:
            agent.pov(self.world)
            agent.act(self.world, agent.at % 4)
            agent.is_done(self.world)


class _Rules(_Plain):
    """An environment with its own ``take_turn``."""

    kind = _RulingAgent

    def take_turn(self) -> None:
        _spend(self.world)
        for agent in self.agents:
            agent.transition(self.world)  # type: ignore[attr-defined]

    own_turn = take_turn


def turns_per_s(contestant: str, seconds: float) -> Callable[[], float]:
    """Return a call that plays for this time and returns turns per second; actions are the same in both cases."""
    rules, by_motet = CONTESTANTS[contestant]
    environment = _Rules() if rules == "rules" else _Plain()
    world = from_objects(environment) if by_motet else None
    return lambda: _through(world, seconds) if world is not None else _alone(environment, seconds)


def _alone(environment: _Plain, seconds: float) -> float:
    turns, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        if turns % environment.max_turns == 0:
            environment.reset()
        environment.own_turn()
        turns += 1
    return turns / spent


def _through(world: World, seconds: float) -> float:
    steps, started = 0, time.perf_counter()
    world.reset(0)
    while (spent := time.perf_counter() - started) < seconds:
        group = world.group()
        if not group:
            world.reset()
            continue
        (agent,) = group
        world.reward(agent)
        at = int(world.observe(agent)[0])
        world.act([at % 4])
        world.ended()
        steps += 1
    return steps / _AGENTS / spent

"""The cost of giving each world its own global random streams: two worlds in an actor, with steps of a millisecond."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from motet.streams import EXCHANGE
from motet.world.batch import LoopedWorlds, make_world_batch

__all__ = ["CONTESTANTS", "steps_per_s"]

CONTESTANTS = {
    "no draws, shared streams": (False, False),
    "no draws, own streams": (False, True),
    "draws, shared streams": (True, False),
    "draws, own streams": (True, True),
}
_STEP_S, _STEPS, _WORLDS, _QUIET = 0.001, 100, 2, 700


class _Spin:
    """One agent that does nothing, in a world that works for a millisecond in each step."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), Discrete(2)
    work_s = 0.0

    def __init__(self, draws: bool) -> None:
        self._draws = draws

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._step = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        until = time.perf_counter() + self.work_s
        while time.perf_counter() < until:
            pass
        self._step += 1
        reward = random.random() + float(np.random.rand()) if self._draws else 0.0
        return np.zeros(1, np.float32), reward, False, self._step == _STEPS, {}

    def close(self) -> None: ...


class _Shared:
    """A stand-in for a world's own streams: the world draws from the installed streams instead."""

    def begin(self, seed: int) -> None: ...
    def enter(self) -> None: ...
    def end(self) -> None: ...


def steps_per_s(contestant: str, seconds: float) -> Callable[[], float]:
    """Return a call that plays for this time and returns steps per second of both worlds."""
    draws, own = CONTESTANTS[contestant]
    envs: list[_Spin] = []

    def make() -> _Spin:
        envs.append(_Spin(draws))
        return envs[-1]

    worlds = make_world_batch(make, _WORLDS, [False], watched=True)
    assert isinstance(worlds, LoopedWorlds)
    if not own:
        worlds._streams = [_Shared() for _ in range(_WORLDS)]  # type: ignore[misc]
        EXCHANGE.caller.enter()  # otherwise its draws would be counted for the last world that has streams
    for _ in range(_QUIET):  # long enough that worlds that do not draw have given up their streams
        _round(worlds)
    for env in envs:
        env.work_s = _STEP_S

    def play() -> float:
        if not own:
            EXCHANGE.caller.enter()
        return _play(worlds, seconds)

    return play


def _round(worlds: LoopedWorlds) -> None:
    if worlds.over:
        worlds.reset(list(worlds.over), list(worlds.over))
    worlds.act([np.zeros(len(turn.at), np.int64) for turn in worlds.turns()])


def _play(worlds: LoopedWorlds, seconds: float) -> float:
    rounds, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        _round(worlds)
        rounds += 1
    return rounds * _WORLDS / spent

"""Hockey as arrays against the same games one by one: world steps per second, with observations of both players."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from motet.worlds.hockey import HockeyArrays

__all__ = ["hockey_steps_per_s_vs_loop"]

ARRAYS, LOOP = "256 worlds as arrays", "256 worlds one by one"
WORLDS = 256
_TURNS = 64  # turns of random actions, drawn before the measurement


def hockey_steps_per_s_vs_loop(seconds: float) -> dict[str, Callable[[], float]]:
    """Return the contestants by name, each a call that plays for this time and returns world steps per second.

    Both play the same games: random actions, observations of both players at every step, a new game when one is over.
    """
    return {
        ARRAYS: lambda: _play([HockeyArrays(WORLDS)], seconds),
        LOOP: lambda: _play([HockeyArrays(1) for _ in range(WORLDS)], seconds),
    }


def _play(crowd: Sequence[HockeyArrays], seconds: float) -> float:
    rng = np.random.default_rng(0)
    worlds = crowd[0].worlds
    actions = rng.uniform(-1, 1, (_TURNS, len(crowd), 2, worlds, 4)).astype(np.float32)
    seeds = iter(range(2**62))
    for games in crowd:
        games.reset(range(worlds), [next(seeds) for _ in range(worlds)])
    turns, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        for games, given in zip(crowd, actions[turns % _TURNS], strict=True):
            games.act(given)
            games.observe(0), games.observe(1)
            terminated, truncated = games.ended()
            over = terminated | truncated
            if over.any():
                again = np.flatnonzero(over)
                games.reset(again, [next(seeds) for _ in again])
        turns += 1
    return turns * WORLDS / spent

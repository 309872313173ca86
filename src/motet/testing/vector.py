"""Compare worlds as arrays with the single environment: ``check_world`` does so if an environment has ``vector``.

Three worlds are played together, and then one by one with the same seeds and actions. Everything that an actor reads
must be the same: which agents act, their observations and rewards, and which episodes ended and how.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from motet.errors import WorldError
from motet.nest import stack_nests
from motet.world import World, as_world
from motet.world.batch import Ending, LoopedWorlds, Turn, VectorWorlds, WorldBatch

__all__ = ["check_vector"]

_WORLDS = 3
_SAVED = 5  # rounds before a snapshot is taken


def check_vector(factory: Callable[[], Any], episodes: int, seed: int, limit: int) -> None:
    """Raise a WorldError if the worlds of a factory's ``vector`` differ from those that it makes one by one."""
    singles = [as_world(factory()) for _ in range(_WORLDS)]
    try:
        _drive(singles, lambda: VectorWorlds(factory().vector(_WORLDS)), episodes, seed, limit)
    finally:
        for world in singles:
            world.close()


def _drive(singles: list[World], vector: Callable[[], VectorWorlds], episodes: int, seed: int, limit: int) -> None:
    together = vector()
    alone = LoopedWorlds(singles, [False] * len(singles[0].agents))
    others: dict[str, WorldBatch] = {"the worlds alone": alone}
    spaces = [copy.deepcopy(space) for space in singles[0].action_spaces]
    for agent, space in enumerate(spaces):
        space.seed(1000 * seed + agent)
    begun = [0] * _WORLDS
    for step in range(limit):
        if sorted(together.over) != sorted(alone.over):
            _differ("the worlds alone", step, f"worlds {sorted(together.over)} are over, alone {sorted(alone.over)}")
        if over := sorted(together.over):
            if min(begun) == episodes:
                return
            seeds = [seed + 100 * world + begun[world] for world in over]
            for batch in (together, *others.values()):
                batch.reset(over, seeds)
            for world in over:
                begun[world] += 1
        if step == _SAVED and together.can_save:
            others["a restored vector"] = restored = vector()
            restored.set_state(together.get_state())
        turns = together.turns()
        for name, other in others.items():
            _compare(name, step, turns, other.turns())
        actions = [stack_nests([spaces[turn.agent].sample() for _ in turn.at]) for turn in turns]
        ends = together.act(actions)
        for name, other in others.items():
            _compare(name, step, ends, other.act(actions))


def _compare(other: str, step: int, mine: Sequence[Turn | Ending], theirs: Sequence[Turn | Ending]) -> None:
    """Compare turns, or ends, of the arrays with those of the other worlds."""
    if [part.agent for part in mine] != [part.agent for part in theirs]:
        _differ(other, step, f"agents {[part.agent for part in mine]}, not {[part.agent for part in theirs]}")
    for one, two in zip(mine, theirs, strict=True):
        for name, a, b in zip(one._fields, one, two, strict=True):
            for x, y in zip(_leaves(a), _leaves(b), strict=True):
                if np.shape(x) != np.shape(y) or not np.array_equal(x, y):
                    _differ(other, step, f"agent {one.agent}: {name}: {np.asarray(x)!r}, not {np.asarray(y)!r}")


def _leaves(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for key in nest for leaf in _leaves(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in _leaves(part)]
    return [nest]


def _differ(other: str, step: int, what: str) -> None:
    raise WorldError(
        f"broken clause 'vector': the arrays differ from {other} in step {step}: {what}; fix: each world of "
        "vector() must play the same as the single environment with the same seed and actions, or remove vector()"
    )

"""The shipped worlds by name, and the lookup of a world that a user names."""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

from motet.errors import SettingError
from motet.system.imports import import_named, known_by_path

__all__ = ["WORLDS", "name_hint", "suggestions", "world_factory", "world_name"]

WORLDS = {
    "treasure_hunt": "motet.worlds:TreasureHunt",
    "cleanup": "motet.worlds:Cleanup",
    "hockey": "motet.worlds:Hockey",
    "matrix": "motet.worlds:MatrixGame",
    "rooms": "motet.worlds:Rooms",
    "small_hunt": "motet.worlds:SmallHunt",
    "bushes": "motet.worlds:Bushes",
}
"""The shipped worlds by name."""


_PLAIN = ("env", "raw_env", "parallel_env", "aec_env", "make_env", "make")
"""Names of factories that say nothing about the world. PettingZoo's factories have such names: there the module names
the world."""


def world_factory(world: Any, settings: Mapping[str, Any] | None = None) -> Callable[[], Any]:
    """Return a callable that makes a world, given a shipped name, ``gym:ID``, ``module:attribute`` or a callable.

    >>> world_factory("matrix", {"game": "stag_hunt"})().possible_agents
    ['player_0', 'player_1']
    >>> world_factory("gym:CartPole-v1")().observation_space.shape
    (4,)
    """
    maker = world
    if isinstance(world, str) and world.startswith("gym:"):
        maker = functools.partial(
            import_named("motet.worlds:from_gymnasium", "world", ()), id=world.removeprefix("gym:")
        )
    elif isinstance(world, str):
        path = WORLDS.get(world, world)
        known = [*WORLDS, "'gym:ID' for a Gymnasium environment"]
        maker = known_by_path(path, import_named(path, "world", known, hint=name_hint(world)))
    if not callable(maker):
        hint = ""
        if hasattr(world, "num_envs"):
            hint = "; give what makes a single environment, and set worlds_per_actor (--worlds-per-actor)"
        elif hasattr(world, "reset"):
            hint = "; give the class or function that makes it: each process makes a separate one"
        raise SettingError(
            f"world must be a name, 'module:attribute', or a callable that makes a world, got {world!r}{hint}"
        )
    return functools.partial(maker, **settings) if settings else maker


def name_hint(name: str) -> str:
    """A hint for a name that Gymnasium or PettingZoo uses: how to write it here. Empty for any other name.

    >>> name_hint("CartPole-v1"), name_hint("pettingzoo.classic.rps_v2"), name_hint("maze")
    ('for a Gymnasium environment write gym:CartPole-v1', 'write pettingzoo.classic.rps_v2:parallel_env', '')
    """
    if re.fullmatch(r"[\w/.:-]+-v\d+", name):
        return f"for a Gymnasium environment write gym:{name}"
    if re.fullmatch(r"(\w+\.)+\w+_v\d+", name):
        return f"write {name}:parallel_env"
    if re.fullmatch(r"\w+_v\d+", name):
        return "for a PettingZoo environment write MODULE:parallel_env, e.g. pettingzoo.classic.rps_v2:parallel_env"
    return ""


def suggestions(factory: Any) -> Mapping[str, Any]:
    """The settings of algorithms that a world suggests, from its factory or class.

    >>> suggestions(world_factory("treasure_hunt", {"size": 9}))["gamma"]
    0.8
    """
    while isinstance(factory, functools.partial):
        factory = factory.func
    found: Mapping[str, Any] = getattr(factory, "suggests", {})
    return found


def world_name(world: Any, settings: Mapping[str, Any] = types.MappingProxyType({})) -> str:
    """The name of a world to show: from the catalogue, the id of a Gymnasium environment, or the name of the factory.

    >>> world_name(world_factory("treasure_hunt", {"size": 9})), world_name("motet.worlds:MatrixGame")
    ('treasure_hunt', 'matrix')
    >>> world_name(world_factory("gym:CartPole-v1")), world_name("pettingzoo.classic.rps_v2:parallel_env")
    ('gym:CartPole-v1', 'rps_v2')
    """
    while isinstance(world, functools.partial):
        world, settings = world.func, {**world.keywords, **settings}
    if isinstance(world, str) and (world in WORLDS or world.startswith("gym:")):
        return world
    path = world if isinstance(world, str) else getattr(world, "path", "") or getattr(world, "__name__", "")
    module, _, name = str(path or type(world).__name__).rpartition(":")
    if name == "from_gymnasium":
        return f"gym:{settings.get('id', '')}"
    if name in _PLAIN and (module := module or getattr(world, "__module__", "")) not in ("", "__main__"):
        return module.rpartition(".")[2]
    return {path.rpartition(":")[2]: known for known, path in WORLDS.items()}.get(name, name)

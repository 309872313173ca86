"""train_objects(): one call that replaces the training loop of a project with an object gridworld."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from motet.errors import SettingError
from motet.runs.snapshot import Snapshot
from motet.system.pickling import MAKE_IT_THERE, pickled
from motet.training.recorder import Result
from motet.training.run import Algorithms, train
from motet.training.settings import Settings
from motet.world import World, from_objects

__all__ = ["object_world", "train_objects"]


def train_objects(
    environment: Any,
    algorithm: Algorithms = "dqn",
    settings: Settings | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    on_update: Callable[[Snapshot], object] | None = None,
    on_message: Callable[[str], object] | None = None,
    **objects: Any,
) -> Result:
    """Train the agents of an object gridworld, in place of the project's own loop.

    ::

        from my_project import Environment, config
        from motet.training import train_objects

        environment = Environment(config)
        result = train_objects(environment, "dqn", Settings(steps=50_000), run="runs/mine", actions=4)

    Args:
        environment: the project's environment, or a class or function that makes one. An environment is copied: each
            world has a copy, and the given one is left as it is.
        algorithm: as in :func:`motet.train`; agents are named ``agent_0``, ``agent_1``, …
        settings: as in :func:`motet.train`.
        run: as in :func:`motet.train`.
        on_update: as in :func:`motet.train`.
        on_message: as in :func:`motet.train`.
        objects: the other arguments of :func:`motet.world.from_objects`, such as ``actions``, ``turns``, ``learners``.
    """
    make = object_world(environment, **objects)
    return train(make, algorithm, settings, run=run, on_update=on_update, on_message=on_message)


def object_world(environment: Any, **objects: Any) -> Callable[[], World]:
    """Return the world factory of an object gridworld, for ``evaluate``, ``resume`` and ``load_policies``.

    ::

        make = object_world(Environment(config), actions=4)
        motet.evaluate(make, "runs/mine")

    Args:
        environment: as in :func:`train_objects`.
        objects: as in :func:`train_objects`.
    """
    if all(hasattr(environment, name) for name in ("reset", "agents", "world")) and not isinstance(environment, type):
        data = pickled(environment, f"environment {type(environment).__name__}", "environment", MAKE_IT_THERE)
        return functools.partial(_copy, data, objects)
    if callable(environment):
        return functools.partial(_make, environment, objects)
    raise SettingError(
        "environment must be an object with reset(), agents and world, or a class or function that makes one, got "
        f"{environment!r}"
    )


def _copy(data: bytes, objects: dict[str, Any]) -> World:
    import cloudpickle

    return from_objects(cloudpickle.loads(data), **objects)


def _make(environment: Callable[[], Any], objects: dict[str, Any]) -> World:
    return from_objects(environment(), **objects)

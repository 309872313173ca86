"""Functions that the shipped worlds share: checks of settings with uniform error messages, and saved states.

A state is a nested tuple of plain values (int, float, str, bytes, bool, None). It begins with the world's name and
settings, so that a world with other settings refuses it. It can be saved without pickle.
"""

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from motet.errors import NotReadyError, SettingError

WorldState = tuple[Any, ...]
"""A world's whole state as nested tuples of plain values."""


Seen = TypeVar("Seen")
ParallelStep = tuple[dict[str, Seen], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]
"""Result of a step of a PettingZoo Parallel world: observations, rewards, terminations, truncations, infos."""


def timed_step(
    names: Sequence[str], observations: dict[str, Seen], rewards: Sequence[float], over: bool
) -> ParallelStep[Seen]:
    """Return the result of a step in a world whose episodes are only ever truncated."""
    return (
        observations,
        dict(zip(names, rewards, strict=True)),
        dict.fromkeys(names, False),
        dict.fromkeys(names, over),
        {name: {} for name in names},
    )


def check_joint(actions: Mapping[str, Any], agents: Collection[str]) -> None:
    """Raise unless an episode is running and there is an action for each of its agents."""
    if not agents:
        raise NotReadyError("no episode is running: call reset() first")
    if set(actions) != set(agents):
        raise SettingError(f"actions must be given for each of {list(agents)}, got {sorted(actions)}")


def whole(name: str, given: Any, least: int, most: int | None = None) -> int:
    """Return ``given`` as an int; raise unless it is a whole number from ``least`` to ``most``."""
    expected = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
    try:
        number = operator.index(given)
    except TypeError:
        raise SettingError(f"{name} must be {expected}, got {given!r}") from None
    if isinstance(given, bool) or number < least or (most is not None and number > most):
        raise SettingError(f"{name} must be {expected}, got {given!r}")
    return number


def real(name: str, given: Any, least: float, most: float = math.inf) -> float:
    """Return ``given`` as a float; raise unless it is a finite number from ``least`` to ``most``."""
    expected = f"a finite number >= {least:g}" if most == math.inf else f"a number from {least:g} to {most:g}"
    if isinstance(given, bool | str | bytes):
        raise SettingError(f"{name} must be {expected}, got {given!r}")
    try:
        number = float(given)
    except (TypeError, ValueError):
        raise SettingError(f"{name} must be {expected}, got {given!r}") from None
    if not (math.isfinite(number) and least <= number <= most):
        raise SettingError(f"{name} must be {expected}, got {given!r}")
    return number


def checked_render_mode(given: Any) -> str | None:
    """Return ``given``; raise unless the shipped worlds support this render mode."""
    if given not in (None, "rgb_array"):
        raise SettingError(f"render_mode must be None or 'rgb_array', got {given!r}")
    return None if given is None else "rgb_array"


def opened(snapshot: WorldState, header: WorldState) -> WorldState:
    """Return what follows the header of a snapshot; raise unless the header is that of the world."""
    if not isinstance(snapshot, tuple) or not snapshot:
        raise SettingError(f"state must be a tuple that get_state() returned, got a {type(snapshot).__name__}")
    if snapshot[0] != header:
        raise SettingError(
            f"state must be of a world {header!r}, got {snapshot[0]!r}; make a world with the settings of the state"
        )
    return snapshot[1:]

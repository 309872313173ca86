"""Checks that several algorithms have: of their settings, and of their seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from motet.errors import SettingError
from motet.settings import check_types

__all__ = ["check_finite", "check_hidden", "check_limits", "check_replay", "check_seeds"]


def check_hidden(config: Any) -> None:
    """The types of all fields; ``hidden`` as a tuple of widths."""
    check_types(config)
    object.__setattr__(config, "hidden", tuple(int(n) for n in config.hidden))
    if not config.hidden or min(config.hidden) < 1:
        raise SettingError(f"hidden: given {config.hidden}, expected one or more widths from 1 on")


def check_finite(config: Any, *names: str, zero: bool = False) -> None:
    """Finite numbers above 0, or from 0 on."""
    for name in names:
        value = getattr(config, name)
        if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            raise SettingError(f"{name}: given {value}, expected a finite number {'from 0 on' if zero else 'above 0'}")


def check_limits(config: Any, *names: str) -> None:
    """Numbers above 0, or None for no limit."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise SettingError(f"{name}: given {value}, expected more than 0, or None")


def check_replay(config: Any) -> None:
    """Rows before the first update, and how far targets move."""
    if not 0 < config.target_rate <= 1:
        raise SettingError(f"target_rate: given {config.target_rate}, expected above 0, up to 1")
    if config.min_rows < config.batch_size:
        raise SettingError(f"min_rows: given {config.min_rows}, expected at least the batch_size {config.batch_size}")


def check_seeds(agents: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed for each agent."""
    if agents < 1 or len(seeds) != agents:
        raise SettingError(f"seeds: given {len(seeds)} for {agents} agents, expected one for each of 1 or more agents")

"""Checks of settings and seeds that several algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from motet.algorithms.source import Source
from motet.errors import SettingError
from motet.schedule import check_stages
from motet.settings import check_fields

__all__ = ["check_config", "check_min_rows", "check_rate", "check_seeds"]


def check_config(config: Any) -> None:
    """Check each field's declared bounds and the stages of schedules, and convert values to the types of their
    fields."""
    for name in ("network", "robot_network", "power_network", "encoder", "critic"):
        if hasattr(config, name):
            object.__setattr__(config, name, Source.of(getattr(config, name), name))
    check_fields(config)
    if getattr(config, "encoder", None) is not None:
        for name in ("network", "critic"):
            if getattr(config, name, None) is not None:
                raise SettingError(f"{name} is only valid without encoder: an encoder is followed by shipped layers")
    for name in ("hidden", "head"):
        if hasattr(config, name):
            object.__setattr__(config, name, tuple(int(width) for width in getattr(config, name)))
    check_stages(config)


def check_min_rows(config: Any) -> None:
    """Raise unless the first update has enough rows for a whole batch."""
    if config.min_rows < config.batch_size:
        raise SettingError(f"min_rows must be at least the batch_size {config.batch_size}, got {config.min_rows}")


def check_rate(config: Any, gamma: str, rho: str) -> None:
    """Raise if both a discount and a discount rate are given."""
    if getattr(config, rho) is not None and getattr(config, gamma) != 1:
        raise SettingError(
            f"{gamma} must be 1 where {rho} is given, got {getattr(config, gamma)} and {getattr(config, rho)}: both "
            "are discounts"
        )


def check_seeds(agents: int, seeds: Sequence[int]) -> None:
    """Raise unless there is one seed for each agent."""
    if agents < 1 or len(seeds) != agents:
        raise SettingError(f"seeds must be one seed for each of 1 or more agents, got {len(seeds)} for {agents} agents")

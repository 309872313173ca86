"""Checks of settings that several algorithms have."""

from __future__ import annotations

from typing import Any

from motet.errors import SettingError
from motet.schedule import check_stages
from motet.settings import check_fields

__all__ = ["check_config", "check_min_rows"]


def check_config(config: Any) -> None:
    """What is declared of each field, and the stages of those that have values by stage; rows of numbers as tuples."""
    check_fields(config)
    for name in ("hidden", "head"):
        if hasattr(config, name):
            object.__setattr__(config, name, tuple(int(width) for width in getattr(config, name)))
    check_stages(config)


def check_min_rows(config: Any) -> None:
    """An update needs a whole batch."""
    if config.min_rows < config.batch_size:
        raise SettingError(f"min_rows must be at least the batch_size {config.batch_size}, got {config.min_rows}")

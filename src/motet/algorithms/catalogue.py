"""The shipped algorithms by name, and the lookup of a config that a user names."""

from __future__ import annotations

from typing import Any

from motet.algorithm import AlgorithmConfig
from motet.errors import SettingError
from motet.system.imports import import_named

__all__ = ["ALGORITHMS", "algorithm_config"]

ALGORITHMS = {
    "dqn": "motet.algorithms.dqn:DQNConfig",
    "iqn": "motet.algorithms.iqn:IQNConfig",
    "td3": "motet.algorithms.td3:TD3Config",
    "ppo": "motet.algorithms.ppo:PPOConfig",
    "empower": "motet.algorithms.empower:EmpowerConfig",
}
"""The shipped algorithms by name."""


def algorithm_config(given: Any) -> AlgorithmConfig:
    """Return the config for a name or a class with its default settings; return a config unchanged."""
    if isinstance(given, str):
        given = import_named(ALGORITHMS.get(given, given), "algorithm", list(ALGORITHMS))
    if isinstance(given, type):
        given = given()
    missing = [name for name in ("header", "replay", "sizes", "build", "behaviour") if not hasattr(given, name)]
    if missing:
        raise SettingError(f"algorithm must be a config with {', '.join(missing)}, got {given!r}")
    config: AlgorithmConfig = given
    return config

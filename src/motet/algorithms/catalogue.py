"""The shipped algorithms by name, and the lookup of a config that a user names."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from motet.algorithm import AlgorithmConfig
from motet.errors import SettingError
from motet.system.imports import import_named

__all__ = ["ALGORITHMS", "algorithm_config", "algorithm_name", "short_name"]

ALGORITHMS = {
    "dqn": "motet.algorithms.dqn:DQNConfig",
    "iqn": "motet.algorithms.iqn:IQNConfig",
    "td3": "motet.algorithms.td3:TD3Config",
    "ppo": "motet.algorithms.ppo:PPOConfig",
    "attain": "motet.algorithms.attain:AttainConfig",
    "empower": "motet.algorithms.empower:EmpowerConfig",
    "empower_sampled": "motet.algorithms.empower_sampled:EmpowerSampledConfig",
}
"""The shipped algorithms by name."""

_OTHERS = {
    **dict.fromkeys(("rainbow", "apex", "apex_dqn", "r2d2", "double_dqn", "ddqn", "dueling_dqn", "qlearning"), "dqn"),
    **dict.fromkeys(("qrdqn", "qr_dqn", "c51", "distributional_dqn"), "iqn"),
    **dict.fromkeys(("sac", "ddpg", "maddpg", "matd3"), "td3"),
    **dict.fromkeys(("a2c", "a3c", "appo", "impala", "ippo", "mappo", "trpo", "recurrent_ppo", "ppg"), "ppo"),
    **dict.fromkeys(("qmix", "vdn", "coma", "iql"), "dqn"),
}
"""For each algorithm of other libraries: the shipped algorithm that suits the same worlds."""


def algorithm_config(given: Any, suggests: Mapping[str, Any] = types.MappingProxyType({})) -> AlgorithmConfig:
    """Return the config for a name or a class with its default settings; return a config unchanged.

    ``suggests``: settings that replace the defaults where an algorithm is given by name.

    >>> algorithm_config("dqn", {"gamma": 0.8, "sight": 3}).gamma
    0.8
    """
    named = isinstance(given, str)
    if named:
        if near := _OTHERS.get(given.lower().replace("-", "_")):
            raise SettingError(
                f"algorithm must be one of {', '.join(ALGORITHMS)}, or 'module:attribute', got {given!r}; for the same "
                f"worlds there is {near}"
            )
        given = import_named(ALGORITHMS.get(given, given), "algorithm", list(ALGORITHMS))
    if isinstance(given, type):
        known = {item.name for item in fields(given)} if named and is_dataclass(given) else set()
        given = given(**{name: value for name, value in suggests.items() if name in known})
    missing = [name for name in ("header", "replay", "sizes", "build", "behaviour") if not hasattr(given, name)]
    if missing:
        raise SettingError(f"algorithm must be a config with {', '.join(missing)}, got {given!r}")
    config: AlgorithmConfig = given
    return config


def short_name(algorithm: str) -> str:
    """The prefix of an algorithm's flags, which is also the name of its table in experiment files.

    >>> short_name("iqn"), short_name("my_package.mine:TabularConfig")
    ('iqn', 'tabular')
    """
    if algorithm in ALGORITHMS:
        return algorithm
    return algorithm.rpartition(":")[2].removesuffix("Config").lower() or "config"


def algorithm_name(given: Any) -> str:
    """The name of an algorithm to show, given as a name, a class or a config.

    >>> algorithm_name("dqn"), algorithm_name(algorithm_config("ppo"))
    ('dqn', 'ppo')
    """
    return short_name(given if isinstance(given, str) else (given if isinstance(given, type) else type(given)).__name__)

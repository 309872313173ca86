"""The shipped algorithms. ``NAME.py`` has the config and the acting half; ``_NAME_learner.py`` has the learning half.

Importing a config does not import torch. ``build`` imports it, and so does acting on pictures.
"""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.algorithms.attain import AttainConfig, LearnedHumans
    from motet.algorithms.dqn import DQNConfig
    from motet.algorithms.empower import EmpowerConfig
    from motet.algorithms.empower_sampled import EmpowerSampledConfig
    from motet.algorithms.iqn import IQNConfig
    from motet.algorithms.loss import LossConfig
    from motet.algorithms.ppo import PPOConfig
    from motet.algorithms.td3 import TD3Config

__all__ = [
    "AttainConfig",
    "DQNConfig",
    "EmpowerConfig",
    "EmpowerSampledConfig",
    "IQNConfig",
    "LearnedHumans",
    "LossConfig",
    "PPOConfig",
    "TD3Config",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AttainConfig": "motet.algorithms.attain",
        "DQNConfig": "motet.algorithms.dqn",
        "EmpowerConfig": "motet.algorithms.empower",
        "EmpowerSampledConfig": "motet.algorithms.empower_sampled",
        "IQNConfig": "motet.algorithms.iqn",
        "LearnedHumans": "motet.algorithms.attain",
        "LossConfig": "motet.algorithms.loss",
        "PPOConfig": "motet.algorithms.ppo",
        "TD3Config": "motet.algorithms.td3",
    },
)

"""The shipped algorithms. ``NAME.py`` has the config and the acting half; ``_NAME_learner.py`` has the learning half.

Importing a config does not import torch. ``build`` imports it, and so does acting on pictures.
"""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.algorithms.dqn import DQNConfig
    from motet.algorithms.empower import EmpowerConfig
    from motet.algorithms.iqn import IQNConfig
    from motet.algorithms.loss import LossConfig
    from motet.algorithms.ppo import PPOConfig
    from motet.algorithms.td3 import TD3Config

__all__ = ["DQNConfig", "EmpowerConfig", "IQNConfig", "LossConfig", "PPOConfig", "TD3Config"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "DQNConfig": "motet.algorithms.dqn",
        "EmpowerConfig": "motet.algorithms.empower",
        "IQNConfig": "motet.algorithms.iqn",
        "LossConfig": "motet.algorithms.loss",
        "PPOConfig": "motet.algorithms.ppo",
        "TD3Config": "motet.algorithms.td3",
    },
)

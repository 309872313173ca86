"""The shipped algorithms: one file each with its config, its update and how it acts. Importing this imports torch."""

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config

__all__ = ["DQNConfig", "IQNConfig", "PPOConfig", "TD3Config"]

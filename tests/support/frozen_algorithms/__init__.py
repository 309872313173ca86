"""The algorithms as they were before networks got an interface, unchanged: an oracle for the update rules."""

from support.frozen_algorithms.dqn import DQNConfig
from support.frozen_algorithms.iqn import IQNConfig
from support.frozen_algorithms.ppo import PPOConfig
from support.frozen_algorithms.td3 import TD3Config

__all__ = ["DQNConfig", "IQNConfig", "PPOConfig", "TD3Config"]

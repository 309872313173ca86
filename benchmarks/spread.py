"""The task of both sides in ``motet bench ray``: simple_spread of MPE, three agents, networks of 64-64.

All settings that must be equal are defined here once: motet's configs and the argument of ``rllib.py`` are made from
them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Literal

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig

__all__ = ["DQN", "OPTIMISER_STEPS", "Kind", "job", "ppo", "spread"]

Kind = Literal["ppo", "dqn"]

WORLD = "mpe2.simple_spread_v3:parallel_env"
WORLD_SETTINGS: Mapping[str, Any] = {"N": 3, "max_cycles": 25}
HIDDEN = (64, 64)
ROLLOUT, EPOCHS, MINIBATCH = 1024, 4, 128
"""PPO: steps of each agent in a batch, passes over the batch, rows in a minibatch."""
BATCH, WARM_UP, CAPACITY = 64, 256, 50_000
"""DQN: rows in an update, steps before the first update, rows of the replay buffer."""

OPTIMISER_STEPS = EPOCHS * (ROLLOUT // MINIBATCH)
"""Optimiser steps in one update of motet's PPO, which uses a whole batch; an update of DQN has one."""
DQN = DQNConfig(hidden=HIDDEN, batch_size=BATCH, min_rows=WARM_UP, capacity=CAPACITY)


def ppo(worlds: int) -> PPOConfig:
    """Return the config of PPO, in which a batch is one fragment from each world."""
    return PPOConfig(
        hidden=HIDDEN, batch_size=worlds, length=ROLLOUT // worlds, epochs=EPOCHS, minibatches=ROLLOUT // MINIBATCH
    )


def spread() -> Any:
    """Return the world: three agents with observations of 18 floats."""
    module, name = WORLD.split(":")
    return getattr(importlib.import_module(module), name)(**WORLD_SETTINGS)


def job(kind: Kind) -> dict[str, Any]:
    """Return the task as plain values."""
    return {
        "kind": kind,
        "world": WORLD,
        "world_settings": dict(WORLD_SETTINGS),
        "hidden": list(HIDDEN),
        "activation": PPOConfig.activation if kind == "ppo" else "relu",
        "rollout": ROLLOUT,
        "epochs": EPOCHS,
        "minibatch": MINIBATCH,
        "batch": BATCH,
        "warm_up": WARM_UP,
        "capacity": CAPACITY,
    }

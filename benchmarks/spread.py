"""The job that ``motet bench ray`` gives to both sides: simple_spread of MPE, three agents, networks of 64-64.

All that must be equal stands here once: motet's configs and the job that ``rllib.py`` is given are made from it.
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
"""Of PPO: steps of each agent in a batch, passes over it, rows of a gradient."""
BATCH, WARM_UP, CAPACITY = 64, 256, 50_000
"""Of DQN: rows of an update, steps before the first one, rows of the replay."""

OPTIMISER_STEPS = EPOCHS * (ROLLOUT // MINIBATCH)
"""Of one update of motet's PPO, which is a whole batch; a DQN's has one."""
DQN = DQNConfig(hidden=HIDDEN, batch_size=BATCH, min_rows=WARM_UP, capacity=CAPACITY)


def ppo(worlds: int) -> PPOConfig:
    """A batch is what all worlds play together: a fragment of each."""
    return PPOConfig(
        hidden=HIDDEN, batch_size=worlds, length=ROLLOUT // worlds, epochs=EPOCHS, minibatches=ROLLOUT // MINIBATCH
    )


def spread() -> Any:
    """The world: three agents with 18 floats each."""
    module, name = WORLD.split(":")
    return getattr(importlib.import_module(module), name)(**WORLD_SETTINGS)


def job(kind: Kind) -> dict[str, Any]:
    """The same as plain values."""
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

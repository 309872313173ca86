"""The job that ``motet bench ray`` and RLlib share: simple_spread of MPE, three agents, networks of 64-64."""

from __future__ import annotations

from typing import Any

__all__ = ["BATCH", "EPOCHS", "HIDDEN", "MINIBATCH", "ROLLOUT", "spread"]

HIDDEN = (64, 64)
BATCH = 64
ROLLOUT, EPOCHS, MINIBATCH = 1024, 4, 128
"""Of PPO: steps of each agent in a batch, passes over it, rows of a gradient."""


def spread() -> Any:
    """The world: three agents with 18 floats each."""
    from mpe2 import simple_spread_v3

    return simple_spread_v3.parallel_env(N=3, max_cycles=25)

"""Seeds: one for each purpose in a run, derived from the seed of the run."""

from __future__ import annotations

import numpy as np

__all__ = ["seed_for"]


def seed_for(seed: int, *path: int) -> int:
    """Derive a seed from the seed of the run. Each path gives a different seed.

    >>> seed_for(0, 1, 2) == seed_for(0, 1, 2), seed_for(0, 1, 2) == seed_for(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])

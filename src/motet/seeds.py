"""Seeds: one for each purpose of a run, derived from the run's own."""

from __future__ import annotations

import numpy as np

__all__ = ["seed_for"]


def seed_for(seed: int, *path: int) -> int:
    """A seed of its own for each place in a run.

    >>> seed_for(0, 1, 2) == seed_for(0, 1, 2), seed_for(0, 1, 2) == seed_for(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])

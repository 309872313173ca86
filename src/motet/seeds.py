"""Seeds, one for each purpose in a run, derived from the seed of the run; and the state of random streams.

Runs of several seeds are in ``training/seeds.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["freeze_rng", "seed_for", "thaw_rng"]


def seed_for(seed: int, *path: int) -> int:
    """Derive a seed from the seed of the run. Each path gives a different seed.

    >>> seed_for(0, 1, 2) == seed_for(0, 1, 2), seed_for(0, 1, 2) == seed_for(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])


def freeze_rng(rng: np.random.Generator) -> tuple[Any, ...]:
    """Return the whole state of a PCG64 generator, including the buffered half word."""
    state = rng.bit_generator.state
    words = state["state"]
    return (state["bit_generator"], words["state"], words["inc"], state["has_uint32"], state["uinteger"])


def thaw_rng(snapshot: tuple[Any, ...]) -> np.random.Generator:
    """Return the generator whose state ``freeze_rng`` returned."""
    name, state, inc, has_uint32, uinteger = snapshot
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": name,
        "state": {"state": state, "inc": inc},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)

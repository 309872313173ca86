"""The global random states of ``random``, numpy and torch, which user code may draw from."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import numpy as np

__all__ = ["global_streams_kept"]


@contextlib.contextmanager
def global_streams_kept() -> Iterator[None]:
    """Restore the global random states at the end of the block.

    >>> random.seed(3)
    >>> with global_streams_kept():
    ...     first = random.random()
    >>> random.random() == first
    True
    """
    plain, arrays = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")
    tensors = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)
        if torch is not None:
            torch.set_rng_state(tensors)

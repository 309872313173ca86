"""Memory of a plan: motet checks that it is available before allocating anything."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from motet.errors import MemoryShortError
from motet.system.machine import available_bytes
from motet.system.memory import MappedFile, format_bytes

__all__ = ["Directory", "allocated", "check_memory"]

_ADVICE = "Use fewer goals, a shorter horizon, dtype='float32' or 'float16', or directory=… to keep arrays on a disk"


Directory = str | os.PathLike[str] | None


def check_memory(nbytes: int, purpose: str) -> None:
    """Raise if fewer bytes are available, before the kernel kills the process for lack of memory."""
    left = available_bytes()
    if left is not None and nbytes > left:
        raise MemoryShortError(
            f"{purpose} need {format_bytes(nbytes)} of memory, {format_bytes(left)} available. {_ADVICE}"
        )


def allocated(
    arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]], purpose: str, directory: Directory = None
) -> dict[str, NDArray[Any]]:
    """Arrays of zeros of these shapes and dtypes, in memory; if a directory is given, in files. Raises if memory is
    short."""
    if directory is not None:
        return {name: MappedFile(directory).array(shape, dtype) for name, (shape, dtype) in arrays.items()}
    nbytes = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in arrays.values())
    check_memory(nbytes, purpose)
    try:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in arrays.items()}
    except MemoryError as error:  # check_memory could not find out how much is available, or the system refuses
        raise MemoryShortError(f"{purpose} need {format_bytes(nbytes)} of memory. {_ADVICE}") from error

"""The limit of the machine: a plain memory copy, with which the structures of the core are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy.typing as npt

from motet import _native

__all__ = ["copy_rows"]

Rows = npt.NDArray[Any]

copy_rows = cast(Callable[[Rows, int, Rows, int, Rows], None], vars(_native)["copy_rows"])
"""``copy_rows(source, pitch, out, row_bytes, index)``: row i of ``out`` is copied from byte ``index[i] * pitch``."""

"""What the machine itself can do: the plain copy that the core's structures are held against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy.typing as npt

from motet import _native

__all__ = ["copy_rows"]

Rows = npt.NDArray[Any]

copy_rows = cast(Callable[[Rows, int, Rows, int, Rows], None], vars(_native)["copy_rows"])
"""``copy_rows(source, pitch, out, row_bytes, index)``: row i of ``out`` is what lies at byte ``index[i] * pitch``."""

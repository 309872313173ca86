"""Limits of isolated policies. :mod:`motet.isolation` enforces them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt

from motet.errors import SettingError
from motet.settings import FINITE, check_fields
from motet.system.machine import usable_cores

__all__ = ["PolicyLimits"]


@dataclass(frozen=True)
class PolicyLimits:
    """Limits of an isolated policy: time, memory, tasks, open files, disk space and output.

    Motet watches memory and CPU time itself. The kernel's limits do not fit: the one on memory breaks torch, the one on
    CPU time adds up over all episodes, and the one on processes does not hold for root.

    >>> PolicyLimits(decision_s=0.5).decision_s
    0.5
    """

    start_s: Annotated[float, Gt(0), FINITE] = 30.0
    """Maximum seconds for the start of a policy, until the policy object is made."""
    reset_s: Annotated[float, Gt(0), FINITE] = 10.0
    """Maximum seconds for a reset."""
    decision_s: Annotated[float, Gt(0), FINITE] = 10.0
    """Maximum seconds for a decision."""
    memory_bytes: Annotated[int, Ge(2**20)] | None = None
    """Maximum bytes of private memory of the policy process and its descendants. Shared libraries do not count."""
    cpu_s: Annotated[float, Gt(0), FINITE] | None = None
    """Maximum seconds of CPU time for a decision, summed over all threads and processes of the policy."""
    tasks: Annotated[int, Ge(1)] | None = None
    """Maximum number of threads and processes of the policy, counted together. None: 64, plus 2 per core."""
    open_files: Annotated[int, Ge(16)] = 256
    """Maximum number of open files."""
    folder_bytes: Annotated[int, Ge(2**16)] = 2**28
    """Maximum bytes in the temporary folder of a sandboxed policy."""
    output_bytes: Annotated[int, Ge(1024)] = 65536
    """Bytes of the policy's output that are kept. Older output is dropped."""

    def __post_init__(self) -> None:
        check_fields(self)
        if sys.platform != "linux" and (self.memory_bytes is not None or self.cpu_s is not None):
            raise SettingError(f"memory_bytes and cpu_s are only valid on Linux (got {sys.platform}): leave them out")

    @property
    def most_tasks(self) -> int:
        """Maximum number of threads and processes."""
        return 64 + 2 * usable_cores() if self.tasks is None else self.tasks

"""System calls for which Python has no function."""

from __future__ import annotations

import ctypes
import os

__all__ = ["PR_SET_CHILD_SUBREAPER", "PR_SET_PDEATHSIG", "checked", "libc", "prctl"]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def libc() -> ctypes.CDLL:
    """Return the C library, with ``errno`` kept."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """Return the result of a system call. If it failed, raise an OSError that names the call."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> int:
    """Set an attribute of this process (see ``man 2 prctl``)."""
    zero = ctypes.c_ulong(0)
    return checked(libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option}, {value})")

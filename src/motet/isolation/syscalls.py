"""System calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

__all__ = ["PR_SET_CHILD_SUBREAPER", "PR_SET_PDEATHSIG", "checked", "libc", "prctl"]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def libc() -> ctypes.CDLL:
    """The C library, with errors kept."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a system call, unless it failed: then an OSError that says which."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> int:
    """Change something of this process."""
    zero = ctypes.c_ulong(0)
    return checked(libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option}, {value})")

"""What can go wrong, as a tree. Every message says what was given, what was expected and what to do.

::

    MotetError
    ├── SettingError      (ValueError)    a setting is wrong, or contradicts another one
    ├── SpecError         (ValueError)    an array does not have the dtype, shape or layout its spec asks for
    ├── MemoryShortError  (MemoryError)   the machine cannot hold what was asked for; raised before anything is made
    ├── NotReadyError     (RuntimeError)  there is not enough yet: too few rows for a batch, nothing published
    ├── WaitTimeoutError  (TimeoutError)  a wait reached its deadline; names who waited for what
    ├── SupersededError   (RuntimeError)  a successor has taken over this writer's place
    └── CorruptionError   (RuntimeError)  a checksum or a layout does not match: memory was damaged
"""

__all__ = [
    "CorruptionError",
    "MemoryShortError",
    "MotetError",
    "NotReadyError",
    "SettingError",
    "SpecError",
    "SupersededError",
    "WaitTimeoutError",
]


class MotetError(Exception):
    """The root: ``except motet.MotetError`` catches everything motet raises on purpose."""


class SettingError(MotetError, ValueError):
    """A setting is wrong, or contradicts another one."""


class SpecError(MotetError, ValueError):
    """An array does not have the dtype, shape or layout that its spec asks for."""


class MemoryShortError(MotetError, MemoryError):
    """The machine cannot hold what was asked for. Raised before anything is made."""


class NotReadyError(MotetError, RuntimeError):
    """There is not enough yet: too few rows for a batch, or nothing published."""


class WaitTimeoutError(MotetError, TimeoutError):
    """A wait reached its deadline. The message names who waited for what."""


class SupersededError(MotetError, RuntimeError):
    """A successor has taken over this writer's place; the predecessor must not write any more."""


class CorruptionError(MotetError, RuntimeError):
    """A checksum or a layout does not match: shared memory or a file was damaged."""

"""What can go wrong, as a tree. Every message says what was given, what was expected and what to do.

::

    MotetError
    ├── SettingError      (ValueError)    a setting is wrong, or contradicts another one
    ├── SpecError         (ValueError)    an array does not have the dtype, shape or layout its spec asks for
    ├── MemoryShortError  (MemoryError)   the machine cannot hold what was asked for; raised before anything is made
    ├── NotReadyError     (RuntimeError)  there is not enough yet: too few rows for a batch, nothing published
    ├── WaitTimeoutError  (TimeoutError)  a wait reached its deadline; names who waited for what
    ├── ModelError        (ValueError)    a model to plan with breaks its contract; names the state and the actions
    ├── WorkerLostError   (RuntimeError)  a worker process died; names which one, how, and what it was working on
    ├── SupersededError   (RuntimeError)  a successor has taken over this writer's place
    ├── CorruptionError   (RuntimeError)  a checksum or a layout does not match: memory was damaged
    ├── ChildError        (RuntimeError)  a child process raised, or died too often; shows its traceback
    └── WorldError        (RuntimeError)  the user's world raised or broke the contract; names agent, step, seed, action
"""

__all__ = [
    "ChildError",
    "CorruptionError",
    "MemoryShortError",
    "ModelError",
    "MotetError",
    "NotReadyError",
    "SettingError",
    "SpecError",
    "SupersededError",
    "WaitTimeoutError",
    "WorkerLostError",
    "WorldError",
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


class ModelError(MotetError, ValueError):
    """A model to plan with breaks its contract. The message names the state and the actions."""


class WorkerLostError(MotetError, RuntimeError):
    """A worker process died. The message names which one, how, and what it was working on."""


class SupersededError(MotetError, RuntimeError):
    """A successor has taken over this writer's place; the predecessor must not write any more."""


class CorruptionError(MotetError, RuntimeError):
    """A checksum or a layout does not match: shared memory or a file was damaged."""


class WorldError(MotetError, RuntimeError):
    """The user's world raised or broke the contract. The message names agent, step, seed and action."""


class ChildError(MotetError, RuntimeError):
    """A child process raised, or died too often. The message holds its traceback."""

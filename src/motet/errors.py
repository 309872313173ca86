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
    ├── StorageError      (OSError)       a run directory cannot be written, or a file of it not read
    ├── StartError        (OSError)       a child process could not be started; names which one, and why
    ├── UnpicklableError  (TypeError)     an object cannot be sent to another process; names it, and the part of it
    ├── ChildError        (RuntimeError)  a child process raised, or died too often; shows its traceback
    ├── PolicyFailure     (RuntimeError)  a policy in its own process failed to answer; has the cause and the detail
    └── WorldError        (RuntimeError)  the user's world raised or broke the contract; names agent, step, seed, action
"""

__all__ = [
    "ChildError",
    "CorruptionError",
    "MemoryShortError",
    "ModelError",
    "MotetError",
    "NotReadyError",
    "PolicyFailure",
    "SettingError",
    "SpecError",
    "StartError",
    "StorageError",
    "SupersededError",
    "UnpicklableError",
    "WaitTimeoutError",
    "WorkerLostError",
    "WorldError",
]


class MotetError(Exception):
    """The root: ``except motet.MotetError`` catches everything motet raises on purpose.

    >>> import motet
    >>> try:
    ...     motet.Settings(steps=0)
    ... except motet.MotetError as error:
    ...     print(type(error).__name__)
    SettingError
    """


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


class StorageError(MotetError, OSError):
    """A run directory cannot be written or read: the disk is full, or it is not allowed.

    The message says what is whole, or which file cannot be read.
    """


class StartError(MotetError, OSError):
    """A child process could not be started. The message names which one, and why."""


class UnpicklableError(MotetError, TypeError):
    """An object cannot be sent to another process. The message names it, the part that cannot be pickled, and a way
    out."""


class ChildError(MotetError, RuntimeError):
    """A child process raised, or died too often. The message holds its traceback."""


class PolicyFailure(MotetError, RuntimeError):
    """A policy in a process of its own failed to answer. The process is gone when this is raised.

    ``cause`` is one of

    - ``start``, ``reset``, ``exception``: it raised while it was made, in ``reset``, or in ``act``;
    - ``timeout``: it did not answer in time;
    - ``died``: its process ended, by itself or by a signal;
    - ``memory``, ``cpu``: it took more than it may;
    - ``answer``: what it answered is no action of its space;
    - ``refused``: it was refused what it may not do, and did not get over it.

    ``detail`` says more in bounded text without control characters. It holds nothing that was measured, so that equal
    failures read the same.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause, self.detail = cause, detail

    def __reduce__(self) -> tuple[type["PolicyFailure"], tuple[str, str]]:
        return type(self), (self.cause, self.detail)

"""The exceptions of motet. Every message says what was given, what was expected and what to do.

::

    MotetError
    ├── SettingError      (ValueError)    a setting is invalid, or contradicts another one
    ├── SpecError         (ValueError)    an array does not have the dtype, shape or layout its spec asks for
    ├── MemoryShortError  (MemoryError)   not enough memory for the request; raised before anything is allocated
    ├── NotReadyError     (RuntimeError)  not enough data yet: too few rows for a batch, or nothing published
    ├── WaitTimeoutError  (TimeoutError)  a wait timed out; names the process and what it waited for
    ├── ModelError        (ValueError)    a planning model breaks its contract; names the state and the actions
    ├── WorkerLostError   (RuntimeError)  a worker process died; names it, its exit reason and its task
    ├── SupersededError   (RuntimeError)  a newer incarnation has replaced this writer
    ├── CorruptionError   (RuntimeError)  a checksum or a layout does not match: memory was damaged
    ├── StorageError      (OSError)       a run directory cannot be written, or a file in it not read
    ├── StartError        (OSError)       a child process could not be started; names it and the reason
    ├── UnpicklableError  (TypeError)     an object cannot be sent to another process; names it and the failing part
    ├── ChildError        (RuntimeError)  a child process raised, or died too often; shows its traceback
    ├── PolicyFailure     (RuntimeError)  an isolated policy failed to answer; has a cause and a detail
    └── WorldError        (RuntimeError)  the user's world raised or broke its contract; names agent, step, seed, action
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
    """Base class of motet's exceptions: ``except motet.MotetError`` catches all errors that motet raises itself.

    >>> import motet
    >>> try:
    ...     motet.Settings(steps=0)
    ... except motet.MotetError as error:
    ...     print(type(error).__name__)
    SettingError
    """


class SettingError(MotetError, ValueError):
    """A setting is invalid, or contradicts another one."""


class SpecError(MotetError, ValueError):
    """An array does not have the dtype, shape or layout that its spec asks for."""


class MemoryShortError(MotetError, MemoryError):
    """The machine does not have enough memory for the request. Raised before anything is allocated."""


class NotReadyError(MotetError, RuntimeError):
    """There is not enough data yet: too few rows for a batch, or nothing published."""


class WaitTimeoutError(MotetError, TimeoutError):
    """A wait reached its deadline. The message names the process that waited and what it waited for."""


class ModelError(MotetError, ValueError):
    """A planning model breaks its contract. The message names the state and the actions."""


class WorkerLostError(MotetError, RuntimeError):
    """A worker process died. The message names the worker, its exit reason and what it was working on."""


class SupersededError(MotetError, RuntimeError):
    """A newer incarnation has replaced this writer, which must not write any more."""


class CorruptionError(MotetError, RuntimeError):
    """A checksum or a layout does not match: shared memory or a file was damaged."""


class WorldError(MotetError, RuntimeError):
    """The user's world raised or broke its contract. The message names agent, step, seed and action."""


class StorageError(MotetError, OSError):
    """A run directory cannot be written or read, for example because the disk is full or permission is denied.

    The message says what was written completely, or which file cannot be read.
    """


class StartError(MotetError, OSError):
    """A child process could not be started. The message names the process and the reason."""


class UnpicklableError(MotetError, TypeError):
    """An object cannot be sent to another process. The message names the object, the part that cannot be pickled, and a
    remedy."""


class ChildError(MotetError, RuntimeError):
    """A child process raised an exception, or died too often. The message holds its traceback."""


class PolicyFailure(MotetError, RuntimeError):
    """An isolated policy failed to answer. Its process has ended when this is raised.

    ``cause`` is one of

    - ``start``, ``reset``, ``exception``: it raised in its constructor, in ``reset``, or in ``act``;
    - ``timeout``: it did not answer in time;
    - ``died``: its process ended, by itself or by a signal;
    - ``memory``, ``cpu``: it exceeded its limit;
    - ``answer``: its answer is not an action of its action space;
    - ``refused``: it attempted something that is not allowed, and failed because that was refused.

    ``detail`` is a text of bounded length without control characters. It holds no measured values, so that equal
    failures give equal texts.
    """

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause, self.detail = cause, detail

    def __reduce__(self) -> tuple[type["PolicyFailure"], tuple[str, str]]:
        return type(self), (self.cause, self.detail)

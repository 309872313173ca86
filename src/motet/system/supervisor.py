"""Supervisor: starts, watches, restarts and stops the processes of a run. It does not depend on training code.

A process that dies, or has no heartbeat for too long, is restarted. The supervisor first kills it and confirms its
death, then waits for a pause that doubles with every restart. Too many restarts within a window end the run. A process
that *raises* is not restarted, since the exception would be raised again: its traceback is shown, all other processes
are stopped in order, and the run ends. If the supervisor itself dies, every child ends too.
"""

from __future__ import annotations

import multiprocessing.connection
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from annotated_types import Ge

from motet.errors import ChildError, StartError
from motet.settings import check_fields

__all__ = ["RestartLimitError", "RestartLimits", "Role", "Supervisor"]


@dataclass(frozen=True)
class RestartLimits:
    """When to restart a process, and when to end the run instead.

    >>> RestartLimits(hang_s=10.0, restarts=3).restarts
    3
    """

    hang_s: Annotated[float, Ge(0)] = 60.0
    """Seconds without a heartbeat before a process counts as hung."""
    start_s: Annotated[float, Ge(0)] = 120.0
    """Seconds that a process may take from its start to its first heartbeat."""
    restarts: Annotated[int, Ge(0)] = 10
    """Maximum number of restarts of one process within ``window_s``. If the process fails once more, the run ends.
    Restarts after a hang are counted over a longer time, because it takes ``hang_s`` to notice a hang."""
    window_s: Annotated[float, Ge(0)] = 60.0
    """Seconds over which restarts are counted."""
    back_off_s: Annotated[float, Ge(0)] = 0.02
    """Seconds of pause before the first restart. It doubles with every further restart in the window, up to 1 s."""
    restart_raised: bool = False
    """Whether a process is also restarted if its code raised an exception, within the same limits. By default such an
    exception ends the run."""
    stop_s: Annotated[float, Ge(0)] = 30.0
    """Seconds that processes have to exit after they were asked to stop; then they are killed."""

    def __post_init__(self) -> None:
        check_fields(self)

    def pause_s(self, restarts: int) -> float:
        """Seconds of pause before the next restart, after this many.

        >>> [RestartLimits().pause_s(n) for n in (0, 1, 20)]
        [0.02, 0.04, 1.0]
        """
        return float(min(self.back_off_s * 2 ** min(restarts, 30), 1.0))


class RestartLimitError(ChildError):
    """The error of a process that died too often."""


class Process(Protocol):
    """The process of a role: a child process on this machine, or a process on another machine."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes ready for reading when the process has ended."""
        ...

    @property
    def exit(self) -> int | None:
        """None while the process runs; then its exit code, negative if it was killed."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for the process to end. Returns True if it has ended."""
        ...

    def kill(self) -> None:
        """Kill the process and wait until it is dead."""
        ...

    def close(self) -> None:
        """Release the resources held for the process. It must have ended."""
        ...

    def traceback(self) -> str:
        """The traceback of the exception that ended the process; empty if it did not raise."""
        ...

    def describe_end(self) -> str:
        """Human-readable exit reason."""
        ...

    def wrote(self) -> str:
        """Human-readable location of the process's output."""
        ...


@dataclass
class Role:
    """One process of a run. It is restarted if it dies before its work is done."""

    name: str
    start: Callable[[int], Process]
    """Function that starts the process, given how often it was started before."""
    heartbeat: Callable[[], float]
    """Function that returns the time of the last heartbeat, by ``time.monotonic``."""
    essential: bool = True
    """Whether the run waits until this process has finished its work."""
    doing: Callable[[], str] = lambda: ""
    """Function that returns what the process was doing. If the process hangs, the message includes this text."""
    child: Process | None = None
    starts: int = 0
    started: float = 0.0
    done: bool = False
    due: float = 0.0
    """Time of the next restart, by ``time.monotonic``."""
    restarts: deque[float] = field(default_factory=deque)
    total_restarts: int = 0


class Supervisor:
    """Starts, watches, restarts and stops the processes of a run.

    Args:
        roles: the processes.
        limits: when to restart a process, and when to end the run instead.
        say: called with one line for the user when a process is restarted.
    """

    def __init__(self, roles: Sequence[Role], limits: RestartLimits, say: Callable[[str], None]) -> None:
        self.roles, self._limits, self._say = list(roles), limits, say

    def start(self) -> None:
        """Start the process of every role.

        Raises:
            StartError: a process could not be started.
        """
        for role in self.roles:
            self._fill(role)

    def watch(self, timeout_s: float) -> None:
        """Wait until a process ends or a restart is due, at most ``timeout_s`` seconds, then handle every process.

        Raises:
            ChildError: a child raised, or was restarted too often.
        """
        sentinels = [role.child.sentinel for role in self.roles if role.child is not None]
        now = time.monotonic()
        dues = [role.due - now for role in self.roles if role.child is None and not role.done]
        multiprocessing.connection.wait(sentinels, max(0.0, min([timeout_s, *dues])))
        for role in self.roles:
            self._attend_to(role)

    def finished(self, *names: str) -> bool:
        """Whether these roles (by default all essential ones) have finished their work."""
        return all(role.done for role in self.roles if (role.name in names if names else role.essential))

    def stop(self, *names: str) -> list[str]:
        """Wait for these processes (by default all) to exit, then kill those that did not; they are not restarted.

        Returns one line for each irregular end.

        Raises:
            ChildError: a child raised meanwhile. Even then all processes have ended.
        """
        deadline = time.monotonic() + self._limits.stop_s
        odd, raised = [], []
        for role in self.roles:
            if names and role.name not in names:
                continue
            role.done, child = True, role.child
            if child is None:
                continue
            if not child.join(max(0.0, deadline - time.monotonic())):
                odd.append(f"{role.name} did not exit within {self._limits.stop_s:g} s of the stop request; killed it")
            elif error := _raised(child):
                raised.append(str(error))
            elif child.exit != 0:
                odd.append(f"{child.describe_end()} while it was stopping: its work since its last version is lost")
            self._retire(role)
        if raised:
            raise ChildError("\n\n".join(raised))
        return odd

    def kill(self) -> None:
        """Kill every process now."""
        for role in self.roles:
            self._retire(role)

    def _fill(self, role: Role) -> None:
        role.child = role.start(role.starts)
        role.starts += 1
        role.started = time.monotonic()

    def _refill(self, role: Role) -> None:
        """Start a process again. A failed start counts as a restart, since a later attempt may succeed."""
        try:
            self._fill(role)
        except StartError as error:
            self._restart(role, str(error))

    def _retire(self, role: Role) -> None:
        if role.child is not None:
            role.child.kill()
            role.child.close()
            role.child = None

    def _attend_to(self, role: Role) -> None:
        if role.done:
            return
        now = time.monotonic()
        if role.child is None:
            if now >= role.due:
                self._refill(role)
            return
        if role.child.exit is not None:
            self._bury(role)
            return
        limit = self._limits.hang_s if role.heartbeat() > role.started else self._limits.start_s
        if now - max(role.heartbeat(), role.started) > limit:
            role.child.kill()
            # A hang takes ``limit`` seconds to notice, so repeated hangs might never reach the limit within window_s.
            patience_s = (self._limits.restarts + 1) * (limit + 1.0)
            why = f"{role.name} had no heartbeat for {limit:g} s{role.doing()}"
            self._restart(role, why, max(self._limits.window_s, patience_s))

    def _bury(self, role: Role) -> None:
        child = role.child
        assert child is not None
        if child.exit == 0:
            role.done = True
            self._retire(role)
        elif error := _raised(child):
            if not self._limits.restart_raised:
                self._retire(role)
                raise error
            self._restart(role, f"{child.describe_end()} ({_last_line(child)})")
        else:
            self._restart(role, child.describe_end())

    def _restart(self, role: Role, why: str, window_s: float | None = None) -> None:
        self._retire(role)
        now, window_s = time.monotonic(), self._limits.window_s if window_s is None else window_s
        recent = [then for then in role.restarts if then >= now - window_s]
        if len(recent) >= self._limits.restarts:
            raise RestartLimitError(f"{why}; the limit of {len(recent)} restarts within {window_s:g} s is reached")
        pause = self._limits.pause_s(len(recent))
        role.restarts.append(now)
        role.total_restarts += 1
        role.due = now + pause
        self._say(f"{why}; restarting in {pause:g} s")


def _last_line(child: Process) -> str:
    """The line of a child's traceback that names the exception, or where its output is."""
    return (child.traceback().strip() or child.wrote()).rpartition("\n")[2]


def _raised(child: Process) -> ChildError | None:
    """The error of a child that ended by an exception or with a positive exit code; None for any other end."""
    end, text = child.describe_end(), child.traceback()
    if text:
        return ChildError(f"{end}\n\n{text}")
    return ChildError(f"{end}; {child.wrote()}") if (child.exit or 0) > 0 else None

"""Supervisor: starts, watches, restarts and stops the processes of a run. It does not know what a learner is.

A process that dies or shows no heartbeat for too long is killed, its death is confirmed, and it is started again
after a pause that doubles with every restart; too many restarts within a window end the run. A process that *raises* is
not restarted: an exception would come again, so its traceback is shown and the run ends, with everything else stopped
in order. The death of the supervisor itself ends every child.
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

__all__ = ["RestartLimits", "Role", "Supervisor"]


@dataclass(frozen=True)
class RestartLimits:
    """When to restart, and when to give up.

    >>> RestartLimits(hang_s=10.0, restarts=3).restarts
    3
    """

    hang_s: Annotated[float, Ge(0)] = 60.0
    """Without a heartbeat for so long a process counts as hung."""
    start_s: Annotated[float, Ge(0)] = 120.0
    """The same for its first heartbeat."""
    restarts: Annotated[int, Ge(0)] = 10
    """Restarts of one process within the window before the run ends; for one that hangs, in a row."""
    window_s: Annotated[float, Ge(0)] = 60.0
    """The window."""
    back_off_s: Annotated[float, Ge(0)] = 0.02
    """The pause before the first restart; doubled for every further one within the window, up to 1 s."""
    stop_s: Annotated[float, Ge(0)] = 30.0
    """How long processes have to end when they are asked to."""

    def __post_init__(self) -> None:
        check_fields(self)


class Process(Protocol):
    """What fills a role: a child process here, or one on another machine."""

    @property
    def sentinel(self) -> int:
        """A descriptor that becomes ready for reading when it has ended."""
        ...

    @property
    def exit(self) -> int | None:
        """None while it lives; then its exit code, negative if it was killed."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; True if it has ended."""
        ...

    def kill(self) -> None:
        """End it now, and see that it is dead."""
        ...

    def close(self) -> None:
        """Give back what is held for it. It must have ended."""
        ...

    def traceback(self) -> str:
        """What it raised, if it did."""
        ...

    def describe_end(self) -> str:
        """How it ended, for people."""
        ...

    def wrote(self) -> str:
        """Where to read what it wrote, for people."""
        ...


@dataclass
class Role:
    """What one process does until it ends by itself: one that dies before is started again."""

    name: str
    start: Callable[[int], Process]
    """Starts the process for the n-th time, n from 0."""
    heartbeat: Callable[[], float]
    """When it last showed a heartbeat, by ``time.monotonic``."""
    essential: bool = True
    """Whether the run waits for it to end by itself."""
    child: Process | None = None
    starts: int = 0
    started: float = 0.0
    done: bool = False
    due: float = 0.0
    """When it may be restarted."""
    restarts: deque[float] = field(default_factory=deque)
    total_restarts: int = 0


class Supervisor:
    """The processes of a run.

    Args:
        roles: what is to be done, one process each.
        limits: when to restart and when to give up.
        say: tells the user what happened, in one line.
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
        """Wait for at most so long for something to happen, and deal with it.

        Raises:
            ChildError: a child raised, or one was restarted too often.
        """
        sentinels = [role.child.sentinel for role in self.roles if role.child is not None]
        now = time.monotonic()
        dues = [role.due - now for role in self.roles if role.child is None and not role.done]
        multiprocessing.connection.wait(sentinels, max(0.0, min([timeout_s, *dues])))
        for role in self.roles:
            self._attend_to(role)

    def finished(self, *names: str) -> bool:
        """Whether these roles (all essential ones by default) have ended by themselves."""
        return all(role.done for role in self.roles if (role.name in names if names else role.essential))

    def stop(self) -> list[str]:
        """Wait for every process to end by itself, then end the rest. Returns what did not go as it should, in lines.

        Raises:
            ChildError: a child raised meanwhile. All have ended, all the same.
        """
        deadline = time.monotonic() + self._limits.stop_s
        odd, raised = [], []
        for role in self.roles:
            child = role.child
            if child is None:
                continue
            if not child.join(max(0.0, deadline - time.monotonic())):
                odd.append(f"{role.name} did not end within {self._limits.stop_s:g} s of being asked to, and was ended")
            elif error := _raised(child):
                raised.append(str(error))
            elif child.exit != 0:
                odd.append(f"{child.describe_end()} while it was ending: what it did since its last version is lost")
            self._retire(role)
        if raised:
            raise ChildError("\n\n".join(raised))
        return odd

    def kill(self) -> None:
        """End every process now."""
        for role in self.roles:
            self._retire(role)

    def _fill(self, role: Role) -> None:
        role.child = role.start(role.starts)
        role.starts += 1
        role.started = time.monotonic()

    def _refill(self, role: Role) -> None:
        """A process that cannot be started now may be later: counted as a restart, up to the limit."""
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
            # One that hangs again and again takes so long for it that they would never be too many within the window.
            patience_s = (self._limits.restarts + 1) * (limit + 1.0)
            self._restart(
                role, f"{role.name} showed no heartbeat for {limit:g} s", max(self._limits.window_s, patience_s)
            )

    def _bury(self, role: Role) -> None:
        child = role.child
        assert child is not None
        if child.exit == 0:
            role.done = True
            self._retire(role)
        elif error := _raised(child):
            self._retire(role)
            raise error
        else:
            self._restart(role, child.describe_end())

    def _restart(self, role: Role, why: str, window_s: float | None = None) -> None:
        self._retire(role)
        now, window_s = time.monotonic(), self._limits.window_s if window_s is None else window_s
        recent = [then for then in role.restarts if then >= now - window_s]
        if len(recent) >= self._limits.restarts:
            raise ChildError(f"{why}; it had {len(recent)} restarts within {window_s:g} s, which is the limit")
        pause = min(self._limits.back_off_s * 2 ** min(len(recent), 30), 1.0)
        role.restarts.append(now)
        role.total_restarts += 1
        role.due = now + pause
        self._say(f"{why}; restarting in {pause:g} s")


def _raised(child: Process) -> ChildError | None:
    """What ended a child that was not killed, if anything did."""
    end, text = child.describe_end(), child.traceback()
    if text:
        return ChildError(f"{end}\n\n{text}")
    return ChildError(f"{end}; {child.wrote()}") if (child.exit or 0) > 0 else None

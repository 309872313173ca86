"""Callbacks: user functions that a run calls. They may stop it. If one raises, it stops and raises the exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from motet.runs.directory import RunDirectory
from motet.runs.show import Show
from motet.runs.snapshot import Snapshot
from motet.streams import callers_streams

__all__ = ["Callbacks", "StopRun"]


class StopRun(Exception):
    """Raised by a callback to stop the run cleanly, as if its time were up. The run then returns its result.

    ::

        def on_update(snapshot):
            if snapshot.agents[0].mean_return > 0.9:
                raise motet.StopRun("solved")
    """


class Callbacks:
    """The callbacks ``on_update`` and ``on_message`` of a run. A callback that raises is not called again.

    A callback that raises :class:`StopRun` or returns False stops the run, and is still called until the end. The first
    other
    exception is kept in ``raised``. The engine checks it after every round, stops the run cleanly and calls
    :meth:`check`. KeyboardInterrupt is not caught: a second Ctrl-C stops the run immediately. Callbacks draw from the
    caller's random streams, even if the run is in the same process.
    """

    def __init__(
        self,
        on_update: Callable[[Snapshot], object] | None = None,
        on_message: Callable[[str], object] | None = None,
        show: Show | None = None,
    ) -> None:
        self._on_update, self._on_message, self._show = on_update, on_message, show
        self.raised: BaseException | None = None
        self.cause = ""
        """One-line description of the first exception and the callback that raised it."""
        self.stopped = False
        """Whether a callback has stopped the run."""

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot of the run, and pass it to ``on_update``."""
        if self._show is not None:
            self._show.watch(snapshot)
        if self._on_update is None:
            return
        try:
            with callers_streams():
                answer = self._on_update(snapshot)
            self._take("on_update", answer)
        except StopRun as stop:
            self._stop("on_update", str(stop))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._on_update = None
            self._keep("on_update", error)
            self.message(f"{self.cause}; the run stops here")

    def message(self, line: str) -> None:
        """Show one line, and pass it to ``on_message``."""
        if self._show is not None:
            self._show.say(line)
        if self._on_message is None:
            return
        try:
            with callers_streams():
                answer = self._on_message(line)
            self._take("on_message", answer)
        except StopRun as stop:
            self._stop("on_message", str(stop))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._on_message = None
            self._keep("on_message", error)

    def _take(self, name: str, answer: object) -> None:
        """Stop the run if a callback has returned False (Python's or numpy's)."""
        if isinstance(answer, (bool, np.bool_)) and not answer:
            self._stop(name)

    def _stop(self, name: str, why: str = "") -> None:
        if not self.stopped:
            self.stopped = True
            self.message(f"{name} stopped the run{': ' * bool(why)}{why}")

    def _keep(self, name: str, error: BaseException) -> None:
        if self.raised is None:
            self.raised, self.cause = error, f"{name} raised {type(error).__name__}: {error}"
        else:
            self.raised.add_note(f"later {name} raised {type(error).__name__}: {error}")

    def check(self, directory: Path | None) -> None:
        """Raise the exception of a callback, if there was one, with notes on where the run is and how to resume it."""
        if self.raised is not None:
            if directory is not None:
                self.raised.add_note(
                    f"the run stopped cleanly and is in {directory}; {RunDirectory(directory).way_on()}"
                )
            raise self.raised

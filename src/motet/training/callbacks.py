"""Callbacks: what users hang on a run. Where one raises, the run ends in order, and they get their exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Snapshot

__all__ = ["Callbacks"]


class Callbacks:
    """``on_update`` and ``on_message`` of a run, each called until it raises.

    What it raised first is kept in ``raised``; the engine looks there after every round, ends the run in order and
    calls :meth:`check`. KeyboardInterrupt is passed on at once: a second Ctrl-C ends the run immediately.
    """

    def __init__(
        self, on_update: Callable[[Snapshot], None] | None = None, on_message: Callable[[str], None] | None = None
    ) -> None:
        self._on_update, self._on_message = on_update, on_message
        self.raised: BaseException | None = None
        self.cause = ""
        """What raised, in one line."""

    def update(self, snapshot: Snapshot) -> None:
        """Show how the run is."""
        if self._on_update is None:
            return
        try:
            self._on_update(snapshot)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._on_update = None
            self._keep("on_update", error)
            self.message(f"{self.cause}; the run ends here, in order")

    def message(self, line: str) -> None:
        """Tell the user something."""
        if self._on_message is None:
            return
        try:
            self._on_message(line)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._on_message = None
            self._keep("on_message", error)

    def _keep(self, name: str, error: BaseException) -> None:
        if self.raised is None:
            self.raised, self.cause = error, f"{name} raised {type(error).__name__}: {error}"
        else:
            self.raised.add_note(f"later {name} raised {type(error).__name__}: {error}")

    def check(self, directory: Path | None) -> None:
        """Raise what a callback raised, with where the run is and how to resume it."""
        if self.raised is not None:
            if directory is not None:
                self.raised.add_note(
                    f"the run ended in order and is in {directory}; {RunDirectory(directory).way_on()}"
                )
            raise self.raised

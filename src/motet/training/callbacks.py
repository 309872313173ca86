"""Callbacks: what users hang on a run. Where one raises, the run ends in order, and they get their exception."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from motet.runs.checkpoint import RunDirectory
from motet.runs.snapshot import Snapshot

__all__ = ["Callbacks"]


class Callbacks:
    """``watch`` and ``say`` of a run, each called until it raises.

    What it raised first is kept in ``raised``; the engine looks there after every round, ends the run in order and
    calls :meth:`check`. KeyboardInterrupt is passed on at once: a second Ctrl-C ends the run immediately.
    """

    def __init__(self, watch: Callable[[Snapshot], None] | None, say: Callable[[str], None]) -> None:
        self._watch, self._say = watch, say
        self.raised: BaseException | None = None
        self.cause = ""
        """What raised, in one line."""

    def watch(self, snapshot: Snapshot) -> None:
        """Show how the run is."""
        if self._watch is None:
            return
        try:
            self._watch(snapshot)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._watch = None
            self._keep("watch", error)
            self.say(f"{self.cause}; the run ends here, in order")

    def say(self, line: str) -> None:
        """Tell the user something."""
        if self._say is _nothing:
            return
        try:
            self._say(line)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again when the run has ended
            self._say = _nothing
            self._keep("say", error)

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


def _nothing(line: str) -> None:
    pass

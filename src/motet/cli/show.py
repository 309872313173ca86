"""Shows a run while it is running: passes its snapshots and messages to the display, TensorBoard, W&B and its log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from motet.runs.directory import RunDirectory
from motet.runs.display import Display, History, display
from motet.runs.sinks import Feed, TensorBoard, Wandb
from motet.runs.snapshot import Snapshot
from motet.text import plain

__all__ = ["Show", "showing"]


class _Sink(Protocol):
    def write(self, snapshot: Snapshot) -> None: ...
    def close(self) -> None: ...


class Show:
    """The callbacks ``watch`` and ``say`` for ``on_update`` and ``on_message`` of :func:`motet.train`.

    Args:
        run: the run directory, which must exist when the first snapshot arrives.
        title: the line above the display.
        history: the history of a resumed run.
        wandb: whether to send metrics to Weights & Biases too.
    """

    def __init__(self, run: Path, title: str, history: History | None = None, wandb: bool = False) -> None:
        self._run = run
        self._display: Display = display(title, history)
        self._screen = Feed("the display", lambda text: print(plain(text), file=sys.stderr))  # noqa: T201
        self._sinks: list[tuple[Feed, _Lazy]] = []
        self._add("tensorboard", lambda: TensorBoard(run / "tensorboard"))
        if wandb:
            self._add("wandb", lambda: Wandb(run, RunDirectory.open(run).config(), self.say))

    def _add(self, name: str, make: Callable[[], _Sink]) -> None:
        self._sinks.append((Feed(name, self.say), _Lazy(make)))

    def watch(self, snapshot: Snapshot) -> None:
        """Show and record a snapshot of the run."""
        self._screen.put(lambda: self._display.show(snapshot))
        for feed, sink in self._sinks:
            feed.put(lambda sink=sink: sink.write(snapshot))  # type: ignore[misc]

    def say(self, line: str) -> None:
        """Show a message and append it to the run's log."""
        self._screen.put(lambda: self._display.say(line))
        # Ignored here: if the disk is full, the run ends with that error at its next checkpoint.
        with contextlib.suppress(OSError), (self._run / "logs" / "run.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain(line)}\n")

    def close(self) -> None:
        """Write what is still queued, and close all outputs."""
        for feed, sink in self._sinks:
            feed.put(sink.close)
            feed.close()
        self._screen.put(self._display.close)
        self._screen.close()


class _Lazy:
    """A sink that is created at its first write, in the thread that writes."""

    def __init__(self, make: Callable[[], _Sink]) -> None:
        self._make = make
        self._made: _Sink | None = None

    def write(self, snapshot: Snapshot) -> None:
        if self._made is None:
            self._made = self._make()
        self._made.write(snapshot)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


@contextlib.contextmanager
def showing(run: Path, title: str, **more: Any) -> Iterator[Show]:
    """Yield a :class:`Show`, and close it at the end, also after an exception."""
    show = Show(run, title, **more)
    try:
        yield show
    finally:
        show.close()

"""Shows a run while it is running: passes its snapshots and messages to the display, TensorBoard, W&B and its log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.runs.display import Display, History, display
from motet.runs.sinks import DisplayChoice, EvaluationLines, Feed, TensorBoard, Wandb, WandbSettings, wandb_settings
from motet.runs.snapshot import Snapshot
from motet.text import plain

__all__ = ["Show", "resolved", "showing"]


class _Sink(Protocol):
    def write(self, snapshot: Snapshot) -> None: ...
    def close(self) -> None: ...


def resolved(display: DisplayChoice) -> Literal["table", "lines", "off"]:
    """Return how to show a run. ``auto``: a table in a terminal, lines in a notebook, nothing otherwise."""
    if display not in typing.get_args(DisplayChoice):
        raise SettingError(f"display must be one of {', '.join(typing.get_args(DisplayChoice))}, got {display!r}")
    if display != "auto":
        return display
    if _in_notebook():
        return "lines"
    return "table" if sys.stdout is not None and sys.stdout.isatty() else "off"


def _in_notebook() -> bool:
    """Return whether this process executes the cells of a notebook. Having imported its libraries is not enough."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None


class Show:
    """Shows a run, and records it in its run directory. ``watch`` gets its snapshots, ``say`` its messages.

    Args:
        run: the run directory, which must exist when the first snapshot arrives; None: nothing is recorded.
        title: the line above the display.
        kind: how the run is shown.
        history: the history of a resumed run.
        wandb: where to send metrics to in Weights & Biases; None: nowhere.
    """

    def __init__(
        self,
        run: Path | None,
        title: str,
        kind: Literal["table", "lines", "off"],
        history: History | None = None,
        wandb: WandbSettings | None = None,
    ) -> None:
        self._run = run
        self._screen: tuple[Feed, Display] | None = None
        if kind != "off":
            feed = Feed("the display", lambda text: print(plain(text), file=sys.stderr))  # noqa: T201
            self._screen = feed, display(kind, title, history)
        self._sinks: list[tuple[Feed, _Lazy]] = []
        if run is not None:
            self._add("tensorboard", partial(TensorBoard, run / "tensorboard", EvaluationLines(run)))
        if wandb is not None and run is not None:
            lines = EvaluationLines(run)
            self._add("wandb", lambda: Wandb(run, RunDirectory.open(run).config(), self.say, wandb, lines))

    def _add(self, name: str, make: Callable[[], _Sink]) -> None:
        self._sinks.append((Feed(name, self.say), _Lazy(make)))

    def watch(self, snapshot: Snapshot) -> None:
        """Show and record a snapshot of the run."""
        self._draw(lambda screen: screen.show(snapshot))
        for feed, sink in self._sinks:
            feed.put(lambda sink=sink: sink.write(snapshot))  # type: ignore[misc]

    def say(self, line: str) -> None:
        """Show a message and append it to the run's log."""
        self._draw(lambda screen: screen.say(line))
        if self._run is None:
            return
        # The error is ignored here: if the disk is full, the next checkpoint fails and ends the run.
        with contextlib.suppress(OSError), (self._run / "logs" / "run.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain(line)}\n")

    def close(self) -> None:
        """Write what is still queued, and close all outputs."""
        for feed, sink in self._sinks:
            feed.put(sink.close)
            feed.close()
        self._draw(lambda screen: screen.close())
        if self._screen is not None:
            self._screen[0].close()

    def _draw(self, job: Callable[[Display], None]) -> None:
        if self._screen is not None:
            feed, screen = self._screen
            feed.put(lambda: job(screen))


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
def showing(
    run: str | os.PathLike[str] | None,
    title: str,
    kind: Literal["table", "lines", "off"],
    *,
    history: History | None = None,
    wandb: bool | Mapping[str, Any] = False,
) -> Iterator[Show | None]:
    """Yield a :class:`Show`, and close it at the end, also after an exception; None if there is nothing to do."""
    sent = wandb_settings(wandb)
    if sent is not None:
        if run is None:
            raise SettingError("wandb is only valid with a run directory (got run=None)")
        Wandb.require()
    if run is None and kind == "off":
        yield None
        return
    show = Show(None if run is None else Path(run), title, kind, history, sent)
    try:
        yield show
    finally:
        show.close()

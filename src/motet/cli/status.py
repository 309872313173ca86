"""``motet status`` and ``motet watch``: show the state of a run that another process executes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import tyro
from rich.console import Console
from rich.text import Text

from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.runs.display import History, PlainTable, clock, display, frame, short, time_lines
from motet.runs.snapshot import ProcessRow, Snapshot
from motet.runs.status import is_alive, read_history, read_status
from motet.text import plain

__all__ = ["status", "watch"]


def status(run: tyro.conf.Positional[Path]) -> int:
    """Show the agents and processes of a run, and what each process waits for.

    Args:
        run: The run directory.
    """
    directory = RunDirectory.open(run)
    snapshot, alive = read_status(directory), is_alive(run)
    age = max(0.0, time.time() - (run / "status.json").stat().st_mtime)
    history = History()
    for past in read_history(directory):
        history.add(past)
    console = Console(highlight=False)
    console.print(_verdict(directory, snapshot, alive, age), soft_wrap=True)
    if snapshot.fell_back:
        words = f"played by the serial engine instead: {snapshot.fell_back}"
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    if snapshot.late_draws:
        words = f"{snapshot.late_draws} late: earlier episodes did not depend on their seeds alone"
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    console.print()
    console.print(frame(snapshot, history, width=console.width, height=10**6, processes=False))
    console.print()
    console.print(_process_table(snapshot, alive, age))
    console.print()
    for part in time_lines(snapshot, lately=alive):
        console.print(part, soft_wrap=not console.is_terminal)  # a terminal would break lines within words
    if steps := directory.steps():
        console.print(f"\ncheckpoints at steps {', '.join(f'{step:,}' for step in steps)}", soft_wrap=True)
    return 0


def _verdict(directory: RunDirectory, snapshot: Snapshot, alive: bool, age: float) -> Text:
    run = plain(str(directory.path))
    if alive:
        text = Text(f"{run}: alive, status written {age:.0f} s ago", style="green")
        if age > 10:
            text = Text(f"{run}: alive, but its status is {age:.0f} s old: the main process is stuck", style="yellow")
        return text
    if snapshot.state == "running":
        return Text(plain(f"{run}: crashed {clock(age)} ago; {directory.way_on()}"), style="red")
    return Text(plain(f"{run}: {snapshot.state}, {clock(age)} ago"))


def _process_table(snapshot: Snapshot, alive: bool, age: float) -> PlainTable:
    table = PlainTable()
    for name, justify in (("process", "left"), ("pid", "right"), ("state", "left"), ("last heartbeat", "right")):
        table.add_column(name, justify=justify, no_wrap=True)
    table.add_column("restarts", justify="right")
    on_nodes = any(row.node for row in snapshot.processes)
    if on_nodes:
        table.add_column("node", no_wrap=True)
    table.add_column("waits for")
    for row in snapshot.processes:
        state = _state(row, alive, snapshot.state)
        style = {"exited": "red", "dead": "red", "waiting": "yellow"}.get(state, "")
        beat = f"{row.beat_s + age:.1f} s" if alive and not row.done else "-"
        waits = row.waits_for if state == "waiting" else ""
        where = [row.node or "here"] if on_nodes else []
        table.add_row(
            row.name,
            str(row.pid or "-"),
            Text(state, style=style),
            beat,
            short(float(row.restarts)),
            *where,
            waits,
        )
    return table


def _state(row: ProcessRow, alive: bool, state: str) -> str:
    if row.done or state != "running":
        return "ended"
    if not alive:
        return "dead"
    if not row.pid:
        return "starting"
    if not row.node and not _exists(row.pid):  # processes on other machines cannot be checked by pid
        return "exited"
    return "waiting" if row.waits_for else "working"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def watch(run: tyro.conf.Positional[Path], every_s: float = 1.0) -> int:
    """Show the live display of a run that another process executes. Ctrl-C ends the display, not the run.

    Args:
        run: The run directory.
        every_s: Seconds between two updates of the display.
    """
    if not every_s > 0:
        raise SettingError(f"every_s must be a number > 0, got {every_s}")
    directory = RunDirectory.open(run)
    history, before = History(), None
    for past in read_history(directory):
        history.add(past)
    screen = display("table", str(run), history)
    try:
        while True:
            alive = is_alive(run)
            snapshot = read_status(directory) if (run / "status.json").exists() else None
            if snapshot is not None and snapshot != before:
                for line in _news(before, snapshot):
                    screen.say(line)
                screen.show(snapshot)
                before = snapshot
            if not alive:
                break
            time.sleep(every_s)
    except KeyboardInterrupt:
        return 0
    finally:
        screen.close()
    if before is None or before.state == "running":
        words = f"the process of this run has ended; {directory.way_on()}"
        Console(highlight=False).print(Text(plain(words)), soft_wrap=True)
    return 0


def _news(before: Snapshot | None, now: Snapshot) -> list[str]:
    """Messages about restarts between two snapshots."""
    if before is None:
        return []
    counts = {row.name: row.restarts for row in before.processes}
    return [
        f"{row.name} was restarted (restart {short(float(row.restarts))})"
        for row in now.processes
        if row.restarts > counts.get(row.name, 0)
    ]

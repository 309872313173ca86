"""Display of a run: a live table in a terminal, plain lines otherwise. Its only input are Snapshots.

:class:`History` keeps what a single snapshot does not contain (trends, how long a process has waited). :func:`frame`
and :func:`line` format one snapshot. :class:`Live` and :class:`Lines` show each new one.
"""

from __future__ import annotations

import io
import itertools
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from motet.runs.snapshot import ACTIVITIES, WAITS, AgentRow, PartnerRow, ProcessRow, Snapshot, Wait
from motet.system.memory import format_bytes
from motet.text import aligned, clock, label, plain, short

__all__ = [
    "Display",
    "History",
    "Lines",
    "Live",
    "PlainTable",
    "clock",
    "display",
    "fitted",
    "frame",
    "line",
    "rows_gone",
    "short",
    "sparkline",
    "time_lines",
    "times",
]

_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_WIDE = 110  # a terminal with at least this many columns gets a wider table
_DISPENSABLE = ("episodes", "updates", "lag", "version", "replay", "upd/s", "loss", "steps/s", "eval", "trend")
"""Columns that are dropped on a narrow terminal, in this order."""
_TREND = 4  # minimum width of the trend
_LONG_WAIT_S = 4.0  # after this many seconds the display names what a process waits for
_PARTNERS_SHOWN = 8  # maximum number of partners that the table shows
_PROCESSES_SHOWN = 12  # maximum number of processes whose times are shown
_KEPT = 512  # maximum number of points of a trend; beyond it every second point is dropped


def sparkline(values: Sequence[float], width: int, bars: str = _BARS) -> str:
    """A curve in one line of text, scaled from the lowest to the highest value.

    >>> sparkline([0, 1, 2, 3], 4), sparkline([5, 5], 4), sparkline([], 4)
    ('▁▃▆█', '▁▁', '')
    """
    found = [value for value in values if math.isfinite(value)]
    if len(found) > width:  # means over intervals of equal length
        edges = [round(i * len(found) / width) for i in range(width + 1)]
        found = [sum(found[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    if not found:
        return ""
    low, high = min(found), max(found)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in found)


class History:
    """What a single snapshot does not contain: trends, a smoothed rate, and how long each process has been waiting."""

    def __init__(self) -> None:
        self._returns: dict[str, list[float]] = {}
        self._pace: deque[tuple[float, int]] = deque(maxlen=15)
        self._waiting: dict[str, tuple[str, float]] = {}
        self._done = (0, 0)
        self.resumed = False

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot]) -> History:
        """The history of a run that is resumed, from its snapshots in order."""
        history = cls()
        for snapshot in snapshots:
            history.add(snapshot)
        history.resume()
        return history

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        if self._pace and snapshot.seconds < self._pace[-1][0]:
            self.resume()
        if self._pace or snapshot.steps > self._done[0]:  # while processes start there is no rate
            self._pace.append((snapshot.seconds, snapshot.steps))
        for agent in snapshot.agents:
            if agent.mean_return is not None:
                points = self._returns.setdefault(agent.name, [])
                points.append(agent.mean_return)
                if len(points) > _KEPT:
                    del points[::2]
        done = snapshot.steps, sum(agent.updates for agent in snapshot.agents)
        for row in snapshot.processes:
            # Waiting for the pace is normal as long as steps or updates are being done.
            going_on = row.waits_for.endswith("(pace)") and done != self._done
            if going_on or row.waits_for != self._waiting.get(row.name, ("", 0.0))[0]:
                self._waiting[row.name] = row.waits_for, snapshot.seconds
        self._done = done

    def resume(self) -> None:
        """Start a new session: the next snapshots come from another process, whose clock starts at 0."""
        self.resumed = True
        self._pace.clear()
        self._waiting.clear()

    def returns(self, agents: Iterable[AgentRow]) -> list[float]:
        """The curve of the sum of these agents' returns."""
        curves = [self._returns.get(row.name, []) for row in agents]
        length = min((len(curves) for curves in curves), default=0)
        return [sum(values) for values in zip(*(curves[-length:] for curves in curves), strict=True)] if length else []

    def waits_s(self, process: ProcessRow, now: float) -> float:
        """Seconds that a process has been waiting for the same thing."""
        what, since = self._waiting.get(process.name, ("", now))
        return now - since if what and what == process.waits_for else 0.0

    def steps_per_s(self) -> float:
        """Steps per second over the last snapshots."""
        (began, before), (now, steps) = (self._pace[0], self._pace[-1]) if self._pace else ((0.0, 0), (0.0, 0))
        return (steps - before) / (now - began) if now > began else 0.0

    def left_s(self, snapshot: Snapshot) -> float | None:
        """Estimated seconds until all steps are done; None before a rate is known, while processes start."""
        rate = self.steps_per_s()
        return max(snapshot.limit - snapshot.steps, 0) / rate if rate > 0 else None


class PlainTable(Table):
    """A table without borders that shows text literally: always in one line, and never as markup."""

    def __init__(self) -> None:
        super().__init__(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")

    def add_column(self, header: RenderableType = "", *args: Any, **more: Any) -> None:
        """Add a column."""
        super().add_column(_as_text(header), *args, **more)

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        """Add a row."""
        super().add_row(*map(_as_text, cells), **more)


def _as_text(cell: Any) -> Any:
    return Text(plain(cell)) if isinstance(cell, str) else cell


def fitted(table: Table, console: Console) -> Table:
    """Drop the last columns of a table until the rest fits the terminal without being cut."""
    unbounded = console.options.update(width=10_000)
    while len(table.columns) > 2 and console.measure(table, options=unbounded).maximum > console.width:
        table.columns.pop()
    return table


# ---- a terminal


def frame(
    snapshot: Snapshot,
    history: History,
    title: str = "",
    width: int = 80,
    height: int = 24,
    ascii_only: bool = False,
    processes: bool = True,
) -> RenderableType:
    """Format a snapshot for a terminal of this size."""
    below = (3 if processes and snapshot.bottleneck else 0) + bool(snapshot.metrics)
    fit = max(1, height - 8 - below - len(snapshot.partners[:_PARTNERS_SHOWN]))
    shown = snapshot.agents if len(snapshot.agents) <= fit else snapshot.agents[: max(1, fit - 1)]
    parts: list[RenderableType] = []
    if title:
        parts.append(Text(plain(title), style="bold", no_wrap=True, overflow="ellipsis"))
    parts.append(_agents(snapshot, shown, history, width, ascii_only))
    if hidden := len(snapshot.agents) - len(shown):
        parts.append(Text(f"and {hidden} more agents", style="dim"))
    parts += [
        Text(text, style="dim", no_wrap=True, overflow="ellipsis")
        for text in _partners(snapshot, 24 if width >= _WIDE else 10)
    ]
    if snapshot.metrics:
        words = ", ".join(f"{plain(name)} {short(value)}" for name, value in snapshot.metrics.items())
        parts.append(Text(words, style="dim", no_wrap=True, overflow="ellipsis"))
    parts.append(_progress(snapshot, history, width))
    if snapshot.fell_back:
        parts.append(Text("using the serial engine instead of processes", style="bold yellow"))
    # A wide table has columns for what rows_gone returns.
    if gone := rows_gone(snapshot) if width < _WIDE else _not_logged(snapshot):
        parts.append(Text(", ".join(gone), style="yellow"))
    if processes:
        parts.append(_processes(snapshot, history, ascii_only))
        if snapshot.bottleneck and snapshot.state == "running":  # after the run, the summary shows it
            parts.append(Text(plain(snapshot.bottleneck), style="dim"))
    return Group(*parts)


def _agents(
    snapshot: Snapshot, shown: Sequence[AgentRow], history: History, width: int, ascii_only: bool
) -> RenderableType:
    """The table of agents. Of the learner's metrics the table shows only the loss."""
    wide = width >= _WIDE
    bars = _PLAIN_BARS if ascii_only else _BARS
    rare = ("stage", "forced", "restarts", *(("lost", "refused") if wide else ()))
    more = [name for name in rare if any(getattr(row, name) for row in snapshot.agents)]
    evaluated = any(row.evaluated is not None for row in snapshot.agents)
    columns = ["return", *(["eval"] if evaluated else []), "trend", "loss", "steps/s", "upd/s", "replay", "version"]
    columns += ["lag", *(["episodes", "updates"] if wide else []), *more]
    table = PlainTable()
    most = 24 if wide else 10
    titles = [label(row.name, most) for row in shown]
    table.add_column("agent", style="cyan", no_wrap=True, max_width=most, overflow="ellipsis")
    numbers = _numbers([*shown, _total(snapshot)])
    stages = [label(row.stage, 12) if row.stage else "" for row in shown]
    least = {"trend": _TREND, "return": 7, "eval": 7, "loss": 7, "lag": 3, "stage": max(map(cell_len, stages))}
    widest = {name: max(len(row.get(name, "")) for row in numbers) for name in columns}
    room = {name: max(len(name), least.get(name, 5), widest[name]) for name in columns}
    taken = min(most, max(map(cell_len, ("total", *titles))))
    for name in _DISPENSABLE:
        if taken + sum(2 + room[column] for column in columns) <= width:
            break
        if name in columns:
            columns.remove(name)
    spare = width - taken - sum(2 + room[column] for column in columns)
    trend = room["trend"] = min(24 if wide else 8, room["trend"] + max(spare, 0))
    for name in columns:
        table.add_column(name, justify="left" if name == "trend" else "right", no_wrap=True, min_width=room[name])

    def add(title: str | Text, cells: Mapping[str, str | Text], style: str = "") -> None:
        table.add_row(title, *(cells.get(name, "") for name in columns), style=style)

    for row, title, stage, own in zip(shown, titles, stages, numbers, strict=False):
        cells: dict[str, str | Text] = {
            **own,
            "return": Text(own["return"], style="bold"),
            "trend": Text(sparkline(history.returns([row]), trend, bars), style="green"),
            "replay": f"{row.replay_fill:.0%}",
            "version": short(float(row.version)),
            "lag": short(float(row.lag_versions)),
            "episodes": short(float(row.episodes)),
            "updates": short(float(row.updates)),
            "stage": stage,
            "forced": short(float(row.forced)),
            **{
                name: Text(short(float(getattr(row, name))), style="yellow" if getattr(row, name) else "")
                for name in ("restarts", "lost", "refused")
            },
        }
        add(title, cells)
    if len(snapshot.agents) > 1:
        cells = {
            **numbers[-1],
            "return": Text(numbers[-1]["return"], style="bold"),
            "trend": Text(sparkline(history.returns(snapshot.agents), trend, bars), style="green"),
            "loss": "",
        }
        add(Text("total", style="not cyan"), cells, "dim")
    return table


def _partners(snapshot: Snapshot, most: int) -> list[str]:
    """One line for each agent that acts by a given policy, aligned with the table of agents."""
    rows = snapshot.partners[:_PARTNERS_SHOWN]
    names = [label(row.name, most) for row in rows]
    width = max(map(len, ("agent", *names, *(label(row.name, most) for row in snapshot.agents))), default=0)
    lines = [
        f"{name:<{width}}  {short(row.mean_return):>7}  fixed: {label(row.policy, 40)}{_failures(row)}"
        for name, row in zip(names, rows, strict=True)
    ]
    hidden = len(snapshot.partners) - len(lines)
    return [*lines, *([f"and {hidden} more partners"] if hidden else [])]


def _failures(row: PartnerRow) -> str:
    return f", replaced {row.failures} time{'s' if row.failures > 1 else ''}" if row.failures else ""


def _total(snapshot: Snapshot) -> AgentRow:
    """A row for all agents: sums of returns and updates."""
    return replace(
        snapshot.agents[0],
        mean_return=_sum(row.mean_return for row in snapshot.agents),
        evaluated=_sum(row.evaluated for row in snapshot.agents),
        steps_per_s=snapshot.steps_per_s,
        updates_per_s=sum(row.updates_per_s for row in snapshot.agents),
        metrics={},
    )


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if len(known) == len(found) else None


def _numbers(rows: Sequence[AgentRow]) -> list[dict[str, str]]:
    """The columns whose numbers have the same decimals in all rows, by row and name. The last row is the total."""
    columns: dict[str, list[float | None]] = {
        "return": [row.mean_return for row in rows],
        "eval": [row.evaluated for row in rows],
        "loss": [row.metrics.get("loss", row.metrics.get("policy_loss")) for row in rows],
        "steps/s": [row.steps_per_s for row in rows],
        "upd/s": [row.updates_per_s for row in rows],
    }
    texts = {name: aligned(values, first=len(rows) - 1) for name, values in columns.items()}
    return [{name: column[i] for name, column in texts.items()} for i in range(len(rows))]


def _progress(snapshot: Snapshot, history: History, width: int) -> RenderableType:
    share = snapshot.steps / max(snapshot.limit, 1)
    if snapshot.state == "running":
        state = f"{clock(history.left_s(snapshot))} left"
    elif history.resumed:
        state = f"{snapshot.state} {clock(snapshot.seconds)} after resuming"
    else:
        state = f"{snapshot.state} {'in' if snapshot.state == 'done' else 'after'} {clock(snapshot.seconds)}"
    text = f"{snapshot.steps:,} of {snapshot.limit:,} steps   {share:.0%}   {plain(state)}"
    room = min(width, 120) - len(text) - 3
    if room < 8:
        return Text(text, no_wrap=True, overflow="ellipsis")
    bar = ProgressBar(
        total=max(snapshot.limit, 1),
        completed=min(snapshot.steps, snapshot.limit),
        width=room,
        complete_style="cyan",  # rich's default colour is red, which looks like an error
        finished_style="green",
    )
    grid = Table.grid(padding=(0, 3, 0, 0))
    grid.add_row(bar, Text(text, no_wrap=True))
    return grid


def _processes(snapshot: Snapshot, history: History, ascii_only: bool = False) -> Text:
    """Every process with a mark (working, waiting, no heartbeat, done), and what it waits for if it waits long."""
    marks = {"work": "*", "wait": "?", "silent": "!", "done": "="} if ascii_only else {}
    text = Text()
    for i, row in enumerate(snapshot.processes):
        if i:
            text.append("   ")
        kind, more, style = _condition(row, history.waits_s(row, snapshot.seconds), snapshot.state)
        mark = marks.get(kind) or {"work": "●", "wait": "○", "silent": "✗", "done": "✓"}[kind]
        text.append(_glued(f"{mark} {plain(row.name)}", ascii_only), style=style)
        if more:
            text.append(f" {plain(more)}", style=style)
        elif row.shares and kind in ("work", "wait") and not row.done:
            text.append(_glued(f" {_worked(row.shares):.0%}", ascii_only), style="dim")
        if row.restarts:
            again = f"({row.restarts} restart{'s' if row.restarts > 1 else ''})"
            text.append(_glued(f" {again}", ascii_only), style="yellow")
    return text


def _worked(shares: Mapping[str, float]) -> float:
    """The share of its time that a process works."""
    return 1.0 - sum(shares.get(name, 0.0) for name in WAITS)


def times(spent: Mapping[str, float]) -> str:
    """How a process spends its time, as text, from seconds or shares: ``world 61%, policies 20%, waits: pace 19%``.

    Activities below half a percent are left out.

    >>> times({"world": 3.0, "policies": 1.0, "pace": 1.0})
    'world 60%, policies 20%, waits: pace 20%'
    """
    total = sum(spent.values())
    shown = [(name, spent.get(name, 0.0) / total) for name in ACTIVITIES] if total > 0 else []
    parts = [[f"{name} {share:.0%}" for name, share in shown if share >= 0.005 and (name in WAITS) is waits]
             for waits in (False, True)]  # fmt: skip
    works, waits = (", ".join(part) for part in parts)
    return ", ".join(filter(None, (works, waits and f"waits: {waits}")))


def time_lines(snapshot: Snapshot, lately: bool = False) -> list[Text]:
    """How each process spends its time, and what limits the run; ``lately``: in the last ten seconds, otherwise since
    the run began.

    Processes beyond the twelfth are left out, and counted.
    """
    everyone = [*snapshot.processes, *([] if snapshot.main is None else [snapshot.main])]
    rows = [(row.name, row.shares if lately else row.spent_s) for row in everyone]
    rows = [(plain(name), spent) for name, spent in rows if spent]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [Text(f"{name:<{width}}  {times(spent)}", style="dim") for name, spent in rows[:_PROCESSES_SHOWN]]
    if hidden := len(rows) - len(lines):
        lines.append(Text(f"and {hidden} more processes", style="dim"))
    lines += [Text(held, style="dim") for held in (_memory(snapshot), _gpus(snapshot)) if held]
    return [*lines, *([Text(plain(snapshot.bottleneck))] if snapshot.bottleneck else [])]


def _memory(snapshot: Snapshot) -> str:
    """The memory of the processes, the largest first, and of what they share."""
    everyone = [*snapshot.processes, *([] if snapshot.main is None else [snapshot.main])]
    known = sorted(((row.memory_bytes, row.name) for row in everyone if row.memory_bytes), reverse=True)
    if not known:
        return ""
    shown = [f"{plain(name)} {format_bytes(held)}" for held, name in known[:_PROCESSES_SHOWN]]
    return f"memory: {', '.join(shown)}, shared {format_bytes(snapshot.shared_bytes)}"


def _gpus(snapshot: Snapshot) -> str:
    """The use of each GPU and of its memory."""
    shown = []
    for gpu in snapshot.gpus:
        busy = "busy: not known" if gpu.utilisation is None else f"busy {gpu.utilisation:.0%}"
        used, size = gpu.memory_bytes, gpu.memory_limit_bytes
        held = "" if used is None or size is None else f", {format_bytes(used)} of {format_bytes(size)}"
        shown.append(f"GPU {gpu.index} {busy}{held}")
    return "; ".join(shown)


def _glued(text: str, ascii_only: bool) -> str:
    """Text that is never broken across lines."""
    if ascii_only:
        return text
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _condition(row: ProcessRow, waits_s: float, state: str = "running") -> tuple[str, str, str]:
    """The condition of a process: its kind, a remark (may be empty), and a style."""
    if row.done or state != "running":
        return "done", "", "dim"
    if not row.pid:
        return "wait", "is starting", "dim"
    if row.beat_s > _LONG_WAIT_S:
        return "silent", f"no heartbeat for {row.beat_s:.0f} s", "red"
    if row.waits_for == Wait.EVALUATION.words:  # a normal state, however long it lasts
        return "wait", "", "dim"
    if row.waits_for and waits_s >= _LONG_WAIT_S:
        return "wait", f"waits for {row.waits_for}, {waits_s:.0f} s", "yellow"
    return "work", "", "green"


# ---- no terminal


def line(snapshot: Snapshot, history: History) -> str:
    """Format a snapshot as one line."""
    episodes = max((row.episodes for row in snapshot.agents), default=0)
    parts = [
        f"{clock(snapshot.seconds):>7}",
        f"{snapshot.steps:,} of {snapshot.limit:,} steps ({snapshot.steps / max(snapshot.limit, 1):.0%})",
        f"{short(snapshot.steps_per_s)} steps/s",
        f"{episodes:,} episode{'' if episodes == 1 else 's'}",
        f"{sum(row.updates for row in snapshot.agents):,} updates",
        f"{short(sum(row.updates_per_s for row in snapshot.agents))} updates/s",
        f"replay {max((row.replay_fill for row in snapshot.agents), default=0.0):.0%}",
        f"return {_returns(snapshot.agents)}",
        *([f"eval {short(found)}"] if (found := _sum(row.evaluated for row in snapshot.agents)) is not None else []),
        f"{clock(history.left_s(snapshot))} left" if snapshot.state == "running" else snapshot.state,
    ]
    if snapshot.fell_back:
        parts.append("serial instead of processes")
    if restarts := sum(row.restarts for row in snapshot.processes):
        parts.append(f"{restarts} restart{'s' if restarts > 1 else ''}")
    parts += rows_gone(snapshot)
    parts += [f"{label(row.name, 40)}: partner {label(row.policy, 40)}{_failures(row)}" for row in snapshot.partners
              if row.failures]  # fmt: skip
    for row in snapshot.processes:
        _, more, _ = _condition(row, history.waits_s(row, snapshot.seconds), snapshot.state)
        if more:
            parts.append(f"{row.name} {more}")
    return " | ".join(parts)


def rows_gone(snapshot: Snapshot) -> list[str]:
    """Text with the numbers of rows that no learner will use, summed over all agents, and of records not logged."""
    counts = {name: sum(getattr(row, name) for row in snapshot.agents) for name in ("lost", "refused")}
    return [*(f"{rows:,} rows {name}" for name, rows in counts.items() if rows), *_not_logged(snapshot)]


def _not_logged(snapshot: Snapshot) -> list[str]:
    """Numbers of episodes and of metrics that the files of the run do not have, as text."""
    counts = {"episodes": snapshot.episodes_lost, "metrics": snapshot.metrics_lost}
    return [f"{count:,} {name} not logged" for name, count in counts.items() if count]


def _returns(agents: Sequence[AgentRow]) -> str:
    known = [(label(row.name, 40), row.mean_return) for row in agents if row.mean_return is not None]
    if not known:
        return "-"
    if len(agents) == 1:
        return short(known[0][1])
    total = short(sum(value for _, value in known))
    if len(agents) <= 4:
        return f"{total} ({', '.join(f'{name} {short(value)}' for name, value in known)})"
    (worst, low), (best, high) = (pick(known, key=lambda item: item[1]) for pick in (min, max))
    return f"{total} ({worst} {short(low)} to {best} {short(high)})"


# ---- repeated output


class Display(Protocol):
    """Shows a run while it is running."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        ...

    def say(self, line: str) -> None:
        """Show a message."""
        ...

    def close(self) -> None:
        """Stop updating; what was shown last stays on the screen."""
        ...


class Live:
    """A table that is redrawn with each snapshot, with messages above it.

    Args:
        console: the terminal.
        title: text above the table.
        history: the snapshots before this session, if any.
    """

    def __init__(self, console: Console, title: str = "", history: History | None = None) -> None:
        self._console, self._title, self._history = console, title, history or History()
        waiting = Text(f"{plain(title)}\nstarting", style="dim")
        self._live = RichLive(waiting, console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._live.start(refresh=True)

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self._history.add(snapshot)
        size, plain = self._console.size, self._console.options.ascii_only
        picture = frame(snapshot, self._history, self._title, size.width, size.height, plain)
        self._live.transient = False  # the last table stays on the screen
        self._live.update(picture, refresh=True)

    def say(self, line: str) -> None:
        """Show a message."""
        self._console.print(Text(plain(line), style="yellow"), soft_wrap=True)

    def close(self) -> None:
        """Stop updating; what was shown last stays on the screen."""
        self._live.stop()


class Lines:
    """One line at intervals: every two seconds at first, once a minute in long runs.

    Args:
        console: the output.
        title: the first line.
        history: the snapshots before this session, if any.
    """

    def __init__(self, console: Console, title: str = "", history: History | None = None) -> None:
        self._console, self._history = console, history or History()
        self._due = 0.0
        if title:
            self._write(title)

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        self._history.add(snapshot)
        if snapshot.seconds >= self._due or snapshot.state != "running":
            self._write(line(snapshot, self._history))
            self._due = snapshot.seconds + min(max(2.0, snapshot.seconds / 10), 60.0)

    def say(self, line: str) -> None:
        """Show a message."""
        self._write(line)

    def close(self) -> None:
        """Do nothing: every line is written already."""

    def _write(self, text: str) -> None:
        self._console.print(Text(plain(text)), soft_wrap=True)


def display(
    kind: Literal["table", "lines"], title: str = "", history: History | None = None, console: Console | None = None
) -> Display:
    """A display on this output: a live table, or lines."""
    console = console or Console(highlight=False, force_jupyter=False)
    if console.options.ascii_only and isinstance(console.file, io.TextIOWrapper):
        console.file.reconfigure(errors="replace")  # print a question mark instead of raising
    table = kind == "table" and console.is_terminal and not console.is_dumb_terminal
    return (Live if table else Lines)(console, title, history)

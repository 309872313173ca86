"""The summary at the end of a run: a table, a plot of the learning curves, a GIF of an episode, and next commands.

The table covers all sessions of the run. Time and rate are those of the last session.

Pictures are made from the run directory only (``metrics.jsonl``, ``evaluation.jsonl``, the newest checkpoint). If one
cannot be made, the summary gives the reason. The run itself has been saved by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from motet.errors import MotetError, SettingError
from motet.isolation.players import PlayerPolicy, load_players
from motet.runs.config import rebuild_world
from motet.runs.directory import RunDirectory
from motet.runs.display import PlainTable, fitted, rows_gone
from motet.runs.history import SessionCounts
from motet.runs.snapshot import Snapshot
from motet.runs.status import read_history, read_lines
from motet.runs.trust import foreign_code, is_own, make_importable
from motet.system.files import write_whole
from motet.text import clock, label, legible, plain, short, typed
from motet.training.run import Result
from motet.world import as_world
from motet.world.film import Film, frames_per_s, made_to_draw

__all__ = ["episode_gif", "learning_curve", "summarise"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666")


def summarise(
    run: Path, result: Result, *, trust: bool = False, pictures: bool = True, console: Console | None = None
) -> None:
    """Print the summary of a run, and write pictures into its directory."""
    console = console or Console(highlight=False)
    directory = RunDirectory.open(run)
    history = read_history(directory)
    tally = SessionCounts()
    for look in history:
        tally.add(look)
    console.print()
    console.print(fitted(_table(result, history, tally), console))
    console.print(_line(result, tally), soft_wrap=True)
    if (rates := _win_rates(_evaluations(run))) is not None:
        console.print()
        console.print(fitted(rates, console))
    if result.fell_back:
        words = f"played by the serial engine instead: {result.fell_back}"
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    if words := _learned_nothing(history):
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    console.print()
    if pictures:
        for what, make in (
            ("learning curve", lambda: learning_curve(run)),
            ("episode", lambda: episode_gif(run, trust=trust)),
        ):
            console.print(_picture(what, make), soft_wrap=True)
    for what, command in _next(run, result, directory, trust):
        console.print(Text.assemble((f"{what:<16}", "dim"), plain(command)), soft_wrap=True)


def _whole(tally: SessionCounts) -> Snapshot | None:
    """The newest snapshot, with counters summed over all sessions of the run."""
    if tally.newest is None:
        return None
    counted: dict[str, dict[str, Any]] = {name: dict(counts.total()) for name, counts in tally.counters.items()}
    return replace(tally.newest, agents=[replace(row, **counted[row.name]) for row in tally.newest.agents])


def _table(result: Result, history: Sequence[Snapshot], tally: SessionCounts) -> PlainTable:
    table = PlainTable()
    table.add_column("agent", style="cyan", no_wrap=True)
    for name in ("first return", "last return", "best", "episodes", "updates", "versions", "broken"):
        table.add_column(name, justify="right", no_wrap=True)
    newest = _whole(tally)
    for row in newest.agents if newest else []:
        curves = [
            agent.mean_return
            for look in history
            for agent in look.agents
            if agent.name == row.name and agent.mean_return is not None
        ]
        first, best = (curves[0], max(curves)) if curves else (None, None)
        last = Text(short(result.returns.get(row.name)), style="bold")
        cells = (f"{row.episodes:,}", f"{row.updates:,}", f"{row.version:,}", f"{row.broken:,}")
        table.add_row(label(row.name, 40), short(first), last, short(best), *cells)
    for fixed in newest.partners if newest else []:
        curve = [
            one.mean_return
            for look in history
            for one in look.partners
            if one.name == fixed.name and one.mean_return is not None
        ]
        first, best = (curve[0], max(curve)) if curve else (None, None)
        title = Text.assemble(label(fixed.name, 40), (f"  fixed: {label(fixed.policy, 40)}", "dim"))
        last = Text(short(result.returns.get(fixed.name)), style="bold")
        table.add_row(title, short(first), last, short(best), f"{_episodes(history, fixed.name):,}", "-", "-", "-")
    return table


def _episodes(history: Sequence[Snapshot], partner: str) -> int:
    """The episodes of a partner's agent, summed over all sessions of the run. Each session counts from 0."""
    total = last = 0
    before = 0.0
    for look in history:
        if look.seconds < before:
            total, last = total + last, 0
        before = look.seconds
        last = next((row.episodes for row in look.partners if row.name == partner), last)
    return total + last


def _line(result: Result, tally: SessionCounts) -> Text:
    done, newest = result.steps - result.began, _whole(tally)
    last = f", the last {done:,}" if result.began else ""
    rate = short(done / max(result.seconds, 1e-9))
    restarts = sum(tally.restarts.total().values())
    return Text(
        ", ".join(
            [
                f"{result.state} after {result.steps:,} steps{last} in {clock(result.seconds)} ({rate} steps/s)",
                f"{restarts} restart{'' if restarts == 1 else 's'}",
                *(rows_gone(newest) if newest else []),
            ]
        ),
        style="bold",
    )


def _win_rates(evaluations: Sequence[dict[str, Any]]) -> PlainTable | None:
    """The win rates of the newest evaluation in self-play, by opponent and side; None if there are none."""
    if not evaluations or not (sides := evaluations[-1].get("sides")):
        return None
    table = PlainTable()
    table.add_column(f"win rate at step {evaluations[-1]['step']:,}", style="cyan", no_wrap=True)
    for side in sides:
        table.add_column(f"as {label(side, 40)}", justify="right", no_wrap=True)
    table.add_column("games", justify="right", no_wrap=True)
    for opponent in next(iter(sides.values())):
        rows = [side[opponent] for side in sides.values()]
        games = [sum(row.values()) for row in rows]
        rates = [(row["won"] + 0.5 * row["drawn"]) / n if n else None for row, n in zip(rows, games, strict=True)]
        table.add_row(label(opponent, 40), *map(short, rates), f"{sum(games):,}")
    return table


def _learned_nothing(history: Sequence[Snapshot]) -> str:
    """A warning that names the agents without any update; empty if there are none."""
    if not (names := [label(row.name, 40) for row in history[-1].agents if not row.updates] if history else []):
        return ""
    return (
        f"no update was due yet for {', '.join(names)}: a learner waits for min_rows rows (with PPO: for a batch), and "
        "updates_per_step sets its pace"
    )


def _picture(what: str, make: Callable[[], Path | None]) -> Text:
    try:
        path = make()
    except (MotetError, OSError, ImportError) as error:
        return Text(plain(f"{what + ':':<16}none: {error}"), style="yellow")
    except Exception as error:  # noqa: BLE001  # raised by the user's world: shown, because the run itself is complete
        return Text(plain(f"{what + ':':<16}none: {type(error).__name__}: {error}"), style="yellow")
    if path is None:
        return Text.assemble((f"{what:<16}", "dim"), "none: there is nothing to draw")
    return Text.assemble((f"{what:<16}", "dim"), plain(str(path)))


def _next(run: Path, result: Result, directory: RunDirectory, trust: bool) -> list[tuple[str, str]]:
    config = directory.config()
    unknown = None in (config["world"].get("path"), *(agent.get("class") for agent in config["agents"].values()))
    foreign = (unknown or foreign_code(config)) and not is_own(directory.path, config)
    more = "" if result.state != "done" else f" --steps {config['settings']['steps']}"
    trusted = " --trust" if foreign else ""
    here, kept = typed(run), typed(run / "best")
    best = [("evaluate best", f"motet eval {here} -p {kept}{trusted}")] if (run / "best").exists() else []
    return [
        *best,
        ("resume", f"motet resume {here}{more}{trusted}"),
        ("status", f"motet status {here}"),
        ("tensorboard", f"tensorboard --logdir {here}"),
    ]


# ---- the learning curves


def learning_curve(run: Path) -> Path | None:
    """Plot the return of each agent over its steps; None if no episode was finished."""
    directory = RunDirectory.open(run)
    history = read_history(directory)
    names = [row.name for row in history[-1].agents] if history else []
    curves: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in names}
    for look in history:
        for row in look.agents:
            if row.mean_return is not None and row.name in curves:
                curves[row.name][0].append(row.steps)
                curves[row.name][1].append(row.mean_return)
    if not any(steps for steps, _ in curves.values()):
        return None
    target = run / "learning_curve.png"
    write_whole(target, lambda beside: _draw(beside, run.name, curves, _evaluations(run)))
    return target


def _evaluations(run: Path) -> list[dict[str, Any]]:
    return [line for _, line in read_lines(run / "evaluation.jsonl")]


def _draw(
    path: Path, title: str, curves: dict[str, tuple[list[int], list[float]]], evaluations: list[dict[str, Any]]
) -> None:
    import warnings

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    many = len(curves) > len(_COLOURS)
    for i, (name, (steps, returns)) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        style = "-" if i < len(_COLOURS) else "--"
        axes.plot(steps, returns, style, color=colour, lw=1.2 if many else 1.8, label=legible(name), marker=_dot(steps))
        points = [(one["step"], one["agents"][name]["mean"]) for one in evaluations if name in one["agents"]]
        if points:
            axes.plot(*zip(*points, strict=True), "o", ms=4, color=colour, mec="white", mew=0.6)
    if evaluations:
        axes.plot([], [], "o", ms=4, color="#666666", label="evaluation (greedy)")
    axes.set_title(legible(title, 80), loc="left", fontsize=11)
    axes.set_xlabel("steps per agent")
    axes.set_ylabel("mean return of the last episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.01)
    if len(curves) > 6:
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    else:
        axes.legend(frameon=False, fontsize=9)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # characters that the font lacks appear as boxes
        figure.savefig(path, format="png")


def _dot(steps: Sequence[int]) -> str | None:
    return "." if len(steps) < 3 else None  # a very short line is hard to see without markers


# ---- the GIF of an episode


def episode_gif(run: Path, *, seed: int = 0, trust: bool = False) -> Path:
    """Play an episode greedily with the newest policies, and write it as a GIF. Raises if the world cannot render."""
    config = RunDirectory.open(run).config()
    factory = rebuild_world(config.get("world", {}), trust=trust or make_importable(run, config))
    env, unable = made_to_draw(factory)
    world, film = as_world(env), Film(unable)
    try:
        world.reset(seed)
        film.capture(world)
        if not hasattr(world, "each_turn") and film.problem:
            raise SettingError(film.problem)
        policies = load_players(run, trust=trust)
        try:
            _play(world, [policies[name] for name in world.agents], seed, film)
        finally:
            for policy in policies.values():
                if isinstance(policy, PlayerPolicy):
                    policy.close()
    finally:
        world.close()
    if not film.frames:
        raise SettingError(film.problem)
    rate = frames_per_s(env)
    target = run / "episode.gif"
    write_whole(target, lambda beside: _write_gif(beside, film.frames, rate))
    return target


def _play(world: Any, policies: Sequence[Any], seed: int, film: Film) -> None:
    for i, policy in enumerate(policies):
        policy.reset(seed + i)
    ended, segments = set[int](), 0
    while (group := world.group()) and not film.problem:
        for agent in ended.intersection(group):  # it acts again after its end: a new segment begins
            ended.remove(agent)
            segments += 1
            policies[agent].reset(seed + segments * len(policies) + agent)
        world.act([policies[agent].act(world.observe(agent), world.mask(agent)) for agent in group])
        ended.update(end.agent for end in world.ended())
        film.capture(world, group)


def _write_gif(path: Path, frames: Sequence[np.ndarray[Any, Any]], rate: float) -> None:
    import imageio.v3

    imageio.v3.imwrite(path, list(frames), extension=".gif", duration=1000 / max(rate, 1.0), loop=0)

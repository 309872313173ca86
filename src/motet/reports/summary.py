"""The summary at the end of a run: a table, a plot of the learning curves, a GIF of an episode, and next commands.

The table covers all sessions of the run. Time and rate are those of the last session.

Pictures are made from the run directory only (``metrics.jsonl``, ``evaluation.jsonl``, the newest checkpoint). If one
cannot be made, the summary gives the reason. The run itself has been saved by then.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence, Sized
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
from motet.runs.display import PlainTable, fitted, rows_gone, time_lines
from motet.runs.history import Array, Curves, SessionCounts, Table, read_run, thinned
from motet.runs.snapshot import Snapshot
from motet.runs.status import read_history, read_lines
from motet.runs.trust import foreign_code, is_own, make_importable
from motet.streams import Streams, StreamUser, made_alike
from motet.system.files import write_whole
from motet.text import aligned, clock, label, legible, plain, short, typed
from motet.training.run import Result
from motet.world import as_world
from motet.world.film import Film, captioned, frames_per_s, made_to_draw, score_line, write_gif

__all__ = ["draw", "episode_gif", "learning_curve", "summarise"]

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#666666")


def summarise(
    run: Path, result: Result, *, trust: bool = False, pictures: bool = True, console: Console | None = None
) -> None:
    """Print the summary of a run, and write pictures into its directory."""
    console = console or Console(highlight=False, force_jupyter=False)
    directory = RunDirectory.open(run)
    history = read_history(directory)
    tally = SessionCounts()
    for look in history:
        tally.add(look)
    console.print()
    console.print(fitted(_table(result, history, tally), console))
    console.print(_line(result, history, tally), soft_wrap=True)
    if (rates := _win_rates(_evaluations(run))) is not None:
        console.print()
        console.print(fitted(rates, console))
    if result.fell_back:
        words = f"played by the serial engine instead: {result.fell_back}"
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    if result.late_draws:
        words = f"{result.late_draws} late: earlier episodes did not depend on their seeds alone"
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    if words := _learned_nothing(history):
        console.print(Text(plain(words), style="bold yellow"), soft_wrap=True)
    if history and (found := time_lines(history[-1])):
        console.print()
        for part in found:
            console.print(part)
    console.print()
    if pictures:
        for what, make in _pictures(run, trust):
            console.print(_picture(what, make), soft_wrap=True)
    for what, command in _next(run, result, directory, trust):
        console.print(Text.assemble((f"{what:<16}", "dim"), plain(command)), soft_wrap=True)


def draw(run: Path, *, trust: bool = False, on_message: Callable[[str], None]) -> None:
    """Write pictures into the directory of a run. If one cannot be made, print the reason."""
    for what, make in _pictures(run, trust):
        line = _picture(what, make).plain
        if "none: " in line:
            on_message(line)


def _pictures(run: Path, trust: bool) -> list[tuple[str, Callable[[], Path | None]]]:
    return [("learning curve", lambda: learning_curve(run)), ("episode", lambda: episode_gif(run, trust=trust))]


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
    rows = newest.agents if newest else []
    found: list[tuple[float | None, float | None, float | None]] = []
    for row in rows:
        curves = [
            agent.mean_return
            for look in history
            for agent in look.agents
            if agent.name == row.name and agent.mean_return is not None
        ]
        found.append((curves[0] if curves else None, result.returns.get(row.name), max(curves, default=None)))
    returns = aligned(value for values in found for value in values)
    for i, row in enumerate(rows):
        first, last, best = returns[3 * i : 3 * i + 3]
        cells = (f"{row.episodes:,}", f"{row.updates:,}", f"{row.version:,}", f"{row.broken:,}")
        table.add_row(label(row.name, 40), first, Text(last, style="bold"), best, *cells)
    for fixed in newest.partners if newest else []:
        curve = [
            one.mean_return
            for look in history
            for one in look.partners
            if one.name == fixed.name and one.mean_return is not None
        ]
        title = Text.assemble(label(fixed.name, 40), (f"  fixed: {label(fixed.policy, 40)}", "dim"))
        first, last, best = aligned(
            (curve[0] if curve else None, result.returns.get(fixed.name), max(curve, default=None))
        )
        table.add_row(
            title, first, Text(last, style="bold"), best, f"{_episodes(history, fixed.name):,}", "-", "-", "-"
        )
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


def _rate(result: Result, history: Sequence[Snapshot]) -> float:
    """Steps per second of the last session, counted from its first steps, so that the start of processes is left
    out."""
    session: list[Snapshot] = []
    for look in reversed(history):
        if session and look.seconds >= session[-1].seconds:
            break  # the previous session ends here
        session.append(look)
    known = [look for look in session if look.steps > result.began]
    if len(known) < 2 or known[0].seconds <= known[-1].seconds:
        return (result.steps - result.began) / max(result.seconds, 1e-9)
    return (known[0].steps - known[-1].steps) / (known[0].seconds - known[-1].seconds)


def _line(result: Result, history: Sequence[Snapshot], tally: SessionCounts) -> Text:
    done, newest = result.steps - result.began, _whole(tally)
    last = f", the last {done:,}" if result.began else ""
    rate = short(_rate(result, history))
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
    here, kept, motet = typed(run), typed(run / "best"), _program("motet")
    played = {"evaluate best": kept} if (run / "best").exists() else {"evaluate": here} if directory.steps() else {}
    return [
        *((title, f"{motet} eval {here} -p {policy}{trusted}") for title, policy in played.items()),
        ("resume", f"{motet} resume {here}{more}{trusted}"),
        ("status", f"{motet} status {here}"),
        ("tensorboard", f"{_program('tensorboard')} --logdir {here}"),
    ]


def _program(name: str) -> str:
    """A program of this installation as the user can type it: its name if it is found through ``PATH``, else its
    path."""
    own = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not own.is_file() or (found is not None and Path(found).resolve() == own.resolve()):
        return name
    here = Path.cwd()
    return typed(own.relative_to(here) if own.is_relative_to(here) else own)


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
    found = read_run(run)
    team = thinned(found.curves.team["steps"], found.curves.team["mean_return"])
    write_whole(target, lambda beside: _draw(beside, run.name, curves, team, found.evaluations))
    return target


def _evaluations(run: Path) -> list[dict[str, Any]]:
    return [line for _, line in read_lines(run / "evaluation.jsonl")]


def _draw(
    path: Path,
    title: str,
    curves: dict[str, tuple[list[int], list[float]]],
    sums: tuple[Array, Array],
    evaluations: Curves,
) -> None:
    import warnings

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    several = len(curves) > 1
    figure = Figure(figsize=(8, 6.0 if several else 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    team, axes = figure.subplots(2, sharex=True, height_ratios=(2, 3)) if several else (None, figure.add_subplot())
    if team is not None:
        team.plot(*sums, color="#333333", lw=1.8, marker=_dot(sums[0]))
        _dots(team, evaluations.team, "#333333")
        team.set_ylabel("team: sum of all agents")
    many = len(curves) > len(_COLOURS)
    for i, (name, (steps, returns)) in enumerate(curves.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        style = "-" if i < len(_COLOURS) else "--"
        axes.plot(steps, returns, style, color=colour, lw=1.2 if many else 1.8, label=legible(name), marker=_dot(steps))
        _dots(axes, evaluations.agents.get(name, {}), colour)
    if len(evaluations):
        axes.errorbar([], [], [], fmt="o", ms=4, color="#666666", label="evaluation (greedy) with its 95 % interval")
    (axes if team is None else team).set_title(legible(title, 80), loc="left", fontsize=11)
    axes.set_xlabel("steps per agent")
    axes.set_ylabel("mean return of the last episodes")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for one in (axes,) if team is None else (team, axes):
        one.grid(alpha=0.25, lw=0.6)
        one.spines[["top", "right"]].set_visible(False)
        one.margins(x=0.02)
    if len(curves) > 6:
        figure.legend(loc="outside right center", frameon=False, fontsize=8)
    else:
        axes.legend(frameon=False, fontsize=9)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # characters that the font lacks appear as boxes
        figure.savefig(path, format="png")


def _dots(axes: Any, evaluated: Table, colour: str) -> None:
    """Draw evaluations as dots with their 95 % intervals."""
    if len(steps := evaluated.get("steps", np.zeros(0))):
        error = np.nan_to_num(evaluated["half"], nan=0.0, posinf=0.0)  # not known for one episode, or in older files
        axes.errorbar(steps, evaluated["mean"], error, fmt="o", ms=4, color=colour, mec="white", mew=0.6, elinewidth=1)


def _dot(steps: Sized) -> str | None:
    return "." if len(steps) < 3 else None  # a very short line is hard to see without markers


# ---- the GIF of an episode


def episode_gif(run: Path, *, seed: int = 0, trust: bool = False) -> Path:
    """Play an episode greedily with the newest policies, and write it as a GIF. Raises if the world cannot render."""
    config = RunDirectory.open(run).config()
    factory = rebuild_world(config.get("world", {}), trust=trust or make_importable(run, config))

    def make() -> tuple[Any, str, Any]:
        env, unable = made_to_draw(factory)
        return env, unable, as_world(env)

    env, unable, world = made_alike("the world", make)
    streams, film = Streams(StreamUser("the world")), Film(unable)
    earned = [0.0] * len(world.agents)  # rewards with which segments ended

    def caption() -> str:
        unread = [world.unread_reward(agent) for agent in range(len(earned))]
        scores = [None if more is None else more + before for more, before in zip(unread, earned, strict=True)]
        return score_line(f"step {film.rounds}", world.agents, scores)

    film.caption = caption
    streams.begin(seed)
    try:
        world.reset(seed)
        film.capture(world)
        if not hasattr(world, "each_turn") and film.problem:
            raise SettingError(film.problem)
        policies = load_players(run, trust=trust)
        try:
            _play(world, streams, [policies[name] for name in world.agents], seed, film, earned)
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
    write_whole(target, lambda beside: write_gif(beside, captioned(film.frames, film.captions()), rate))
    return target


def _play(world: Any, streams: Streams, policies: Sequence[Any], seed: int, film: Film, earned: list[float]) -> None:
    """Play an episode, film it, and add the rewards with which segments end to ``earned``."""
    for i, policy in enumerate(policies):
        policy.reset(seed + i)
    streams.enter()
    ended, segments = set[int](), 0
    while (group := world.group()) and not film.problem:
        for agent in ended.intersection(group):  # the agent acts again after its end: a new segment begins
            ended.remove(agent)
            segments += 1
            policies[agent].reset(seed + segments * len(policies) + agent)
        streams.enter()
        seen = [(world.observe(agent), world.mask(agent)) for agent in group]
        actions = [policies[agent].act(*given) for agent, given in zip(group, seen, strict=True)]
        streams.enter()
        world.act(actions)
        for end in world.ended():
            ended.add(end.agent)
            earned[end.agent] += end.reward or 0.0
        film.capture(world, group)

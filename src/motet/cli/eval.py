"""``motet eval``: plays episodes with policies; writes the result as a table, JSON, YAML, an HTML page or a video."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from motet.cli.play import (
    Play,
    finish,
    parse,
    plain_table,
    print_failed,
    print_failures,
    print_win_rates,
    progress,
    tell_of_failed,
    tell_who_always_failed,
)
from motet.errors import SettingError
from motet.evaluation.evaluate import EvaluationSettings, evaluate, first_line
from motet.evaluation.focal import FocalEvaluation, evaluate_focal
from motet.evaluation.result import Evaluation
from motet.reports.focal_page import SEATS, focal_seats_sentence
from motet.reports.results_page import score_cell, seconds, shared_line, usage_cells
from motet.text import clock, counted, label, plain, short
from motet.world.film import check_video, write_video

__all__ = ["evaluate_", "show"]

ABOUT = """Play episodes of a world with policies, and show the return of each policy.

A POLICY is one of
  runs/mine                     a run or checkpoint directory
  plans/mine                    a solution of motet plan
  package.module:Class          your own class
  random, noop, constant, forager, tit_for_tat, hockey_weak, hockey_strong

Options follow after commas:
  data=PATH kw.NAME=VALUE       arguments of the class
  proportion=2                  its share of the seats, shuffled by the seed
  seat=agent_0                  or the one seat that it plays
  name=NAME kind=joint|team isolate=yes|no
  shared=yes                    team: one object for all its agents
  translate=package.module:NAME team: converts to and from the team's classes
  agent=agent_0 step=50000      run: the agent and the checkpoint to load

Without a policy, the policies of the run play.

The same seed gives the same result, byte for byte.

Without a value, --sandbox means strict.

  motet eval runs/mine --episodes 200 --jobs 4
  motet eval matrix -p runs/mine -p my.module:Policy,isolate=yes
  motet eval treasure_hunt --focal runs/mine --background forager"""

_SEATS_SHOWN = 12


@dataclass(frozen=True)
class EvalFlags(Play):
    """The flags of ``motet eval``: these, those of ``Play``, and the fields of ``EvaluationSettings``."""

    video: Path | None = None
    """Video file (.gif; .mp4 with imageio[ffmpeg]) for one episode: the first in --film, by default episode 0."""
    focal: Annotated[str | None, tyro.conf.arg(metavar="POLICY")] = None
    """Measure what this policy adds to a team of --background policies. Each episode is played with and without it."""
    background: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="POLICY")] = ()
    """A policy of the team; repeat the flag for several."""
    focal_seats: Annotated[tuple[str, ...], tyro.conf.arg(metavar="N|SEAT")] = ("1",)
    """Number of seats of the focal policy, drawn for each episode; or the names of its seats."""


def evaluate_(arguments: Sequence[str]) -> int:
    """Run ``motet eval`` and return the exit code."""
    chosen, settings, factory = parse(arguments, EvalFlags, "motet eval", ABOUT)
    if chosen.focal is not None:
        return _evaluate_focal(chosen, settings, factory)
    for name, given in (("background", chosen.background), ("focal-seats", chosen.focal_seats != ("1",))):
        if given:
            raise SettingError(f"{name} is only valid with --focal")
    run = chosen.name_ if (Path(chosen.name_) / "config.json").is_file() else None
    policies = list(chosen.policy) or ([run] if run else [])
    if not policies:
        raise SettingError("policy must be given at least once (-p random -p runs/mine), got none")
    film = settings.film or ((0,) if chosen.html or chosen.video else ())
    if strangers := [number for number in film if not 0 <= number < settings.episodes]:
        known = f"episodes from 0 to {settings.episodes - 1}" if settings.episodes > 1 else "0, the only episode"
        raise SettingError(f"film must be {known}, got {strangers[0]}")
    if chosen.video is not None:
        check_video(chosen.video)  # checked before the episodes are played, not after
    settings = replace(settings, film=film)
    with progress("episodes") as (on_progress, on_message):
        result = evaluate(factory, policies, settings, on_progress=on_progress, on_message=on_message)
    code = finish(result, chosen, show)
    if chosen.video is not None:
        drawn = next((episode for episode in result.episodes if episode.number == min(film)), None)
        if drawn is None:
            raise SettingError(f"video cannot be written: episode {min(film)} was not played")
        if drawn.failed and not drawn.frames:
            sys.stderr.write(f"error: {plain(str(chosen.video))} was not written: episode {drawn.number} failed\n")
        else:
            write_video(chosen.video, drawn.frames, drawn.frames_per_s, drawn.captions)
            sys.stderr.write(f"video written to {plain(str(chosen.video))}\n")
    tell_of_failed(result.episodes, "episode")
    return tell_who_always_failed(result.names, result.episodes, "episode") or code


def _evaluate_focal(chosen: Any, settings: EvaluationSettings, factory: Any) -> int:
    for name, given in (("policy", chosen.policy), ("video", chosen.video), ("film", settings.film)):
        if given:
            raise SettingError(f"{name} is not valid with --focal, which plays the --background policies twice")
    names = chosen.focal_seats
    seats = int(names[0]) if len(names) == 1 and names[0].lstrip("-").isdigit() else names
    with progress("games") as (on_progress, on_message):
        result = evaluate_focal(
            factory,
            chosen.focal,
            list(chosen.background),
            settings,
            focal_seats=seats,
            on_progress=on_progress,
            on_message=on_message,
        )
    code = finish(result, chosen, show_focal)
    tell_of_failed(result.games, "game")
    return tell_who_always_failed(result.names, result.games, "game") or code


def show_focal(result: FocalEvaluation) -> None:
    """Print the table of an evaluation in mixed teams."""
    from rich.console import Console
    from rich.text import Text

    from motet.runs.display import fitted

    console = Console(file=sys.stdout, highlight=False)
    table = plain_table("return", f"with {label(result.focal, 40)}", "background alone", "change")
    for what, one in result.changes().items():
        cells = ["-"] * 3
        if one is not None:
            cells = [str(score_cell(each).text) for each in (one.mixed, one.background, one.change)]
        table.add_row(SEATS[what], *cells)
    console.print(fitted(table, console))
    print_failures(result.games, "game", console)
    print_failed(result.games, "game", console)
    console.print()
    if shared := shared_line(result):
        console.print(Text(shared, style="dim"), soft_wrap=True)
    for name, game in result.out.items():
        words = f"{label(name)} failed too often and was removed after game {game}"
        console.print(Text(words, style="red"), soft_wrap=True)
    if result.partial:
        games = f"{len(result.games):,} of {counted(2 * result.settings['episodes'], 'game')}"
        console.print(
            Text(f"partial: {games}; {first_line(result.stopped) or 'interrupted'}", style="yellow"), soft_wrap=True
        )
    done = f"{counted(len(result.pairs()), 'episode')}, each played twice, seed {result.settings['seed']}"
    line = f"{done}, {clock(result.measured.seconds)} with {counted(result.measured.jobs, 'job')}"
    console.print(Text(f"{focal_seats_sentence(result)}; {line}", style="dim"), soft_wrap=True)


def show(result: Evaluation) -> None:
    """Print the tables of an evaluation."""
    from rich.console import Console
    from rich.text import Text

    from motet.runs.display import fitted

    console = Console(file=sys.stdout, highlight=False)
    console.print(fitted(_scores(result), console))
    if len(result.agents) > 1:
        _print_seats(result, console)
    print_win_rates(result, console)
    if result.measured.usage:
        console.print()
        console.print(fitted(_usage(result), console))
    print_failures(result.episodes, "episode", console)
    print_failed(result.episodes, "episode", console)
    console.print()
    if shared := shared_line(result):
        console.print(Text(shared, style="dim"), soft_wrap=True)
    measured = result.measured
    for name, episode in result.out.items():
        words = f"{label(name)} failed too often and was removed after episode {episode}"
        console.print(Text(words, style="red"), soft_wrap=True)
    done = f"{counted(len(result.episodes), 'episode')}, seed {result.settings['seed']}"
    line = f"{done}, {clock(measured.seconds)} with {counted(measured.jobs, 'job')}"
    if result.partial:
        console.print(
            Text(
                f"partial: {len(result.episodes):,} of {counted(result.settings['episodes'], 'episode')}"
                + (f"; {first_line(result.stopped)}" if result.stopped else ""),
                style="yellow",
            ),
            soft_wrap=True,
        )
    console.print(Text(line, style="dim"), soft_wrap=True)


def _scores(result: Evaluation) -> Any:
    table = plain_table("policy", "return", "min", "max", "episodes", "failures", "latency p50", "p99")
    failures = result.failures()
    for name, one in result.scores().items():
        latency = result.measured.latency.get(name)
        times = (seconds(latency.quantile(0.5)), seconds(latency.quantile(0.99))) if latency else ("-", "-")
        failed = sum(failures.get(name, {}).values())
        if one is None:
            table.add_row(label(name, 40), "-", "-", "-", "0", f"{failed:,}", *times)
            continue
        mean = str(score_cell(one).text)
        numbers = (mean, short(one.least), short(one.most), f"{one.count:,}", f"{failed:,}")
        table.add_row(label(name, 40), *numbers, *times)
    team = result.team()
    if team is not None and len(result.agents) > 1:
        row = (str(score_cell(team).text), short(team.least), short(team.most), f"{team.count:,}")
        table.add_row("all seats", *row, "", "", "", style="dim")
    return table


def _usage(result: Evaluation) -> Any:
    table = plain_table("processes of", "memory", "CPU time", "started", "replaced", "start", "reset")
    for name, one in result.measured.usage.items():
        table.add_row(label(name, 40), *(str(cell.text) for cell in usage_cells(one)))
    return table


def _print_seats(result: Evaluation, console: Any) -> None:
    """Print the returns on the first seats: a line per seat if there is one policy, else a line per policy."""
    from rich.text import Text

    from motet.runs.display import fitted

    seats, agents = result.seat_scores(), result.agents[:_SEATS_SHOWN]
    shown = len(agents)
    if len(result.names) == 1:
        table = plain_table("seat", "return", "min", "max")
        for agent in agents:
            one = seats.get((result.names[0], agent))
            numbers = ("-",) * 3 if one is None else (str(score_cell(one).text), short(one.least), short(one.most))
            table.add_row(label(agent, 40), *numbers)
        fitted(table, console)
    else:
        table = plain_table("return by seat", *(label(agent, 40) for agent in agents))
        for name in result.names:
            cells = [seats.get((name, agent)) for agent in agents]
            table.add_row(label(name, 40), *("-" if one is None else str(score_cell(one).text) for one in cells))
        shown = len(fitted(table, console).columns) - 1
    console.print()
    console.print(table)
    if hidden := len(result.agents) - shown:
        console.print(Text(f"and {counted(hidden, 'more seat')}", style="dim"))

"""``motet tournament``: lets policies play against each other; prints ratings and a cross table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
from motet.evaluation.evaluate import first_line
from motet.evaluation.tournament import Tournament, tournament
from motet.reports.results_page import score_cell, shared_line
from motet.reports.win_rates import verdict_sentence
from motet.text import clock, counted, label

__all__ = ["tournament_"]

ABOUT = """Let policies play against each other, each on every seat in turn, and rate them.

A POLICY is written as for motet eval.

Games are written to --dir as they are played.

If interrupted, the same command continues the tournament.

The same seed gives the same table.

Without a value, --sandbox means strict.

  motet tournament matrix -p tit_for_tat -p random --dir cups/1
  motet tournament hockey -p runs/new -p runs/old --until-clear"""


WITHOUT = ("episodes", "film")
"""Fields of EvaluationSettings that have no meaning here."""


@dataclass(frozen=True)
class TournamentFlags(Play):
    """The flags of ``motet tournament``."""

    rounds: int | None = None
    """Rounds, in each of which all policies meet on each seat: by default 10, with --until-clear at most 1,000."""
    until_clear: bool = False
    """Stop as soon as it is clear which of two policies is better: a sequential test with an error rate of 5 %."""
    delta: float | None = None
    """With --until-clear: the difference to detect, as a share of points. By default 0.05: 55 % of the points."""
    group: int = 2
    """Number of policies in a game. If the world has more seats, the policies share them."""
    pairing: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="A,B")] = ()
    """Names of policies that meet; repeat the flag for each pairing. By default every policy meets every other one."""
    dir: Path | None = None
    """Directory in which each game is recorded. The same command then continues an interrupted tournament."""


def tournament_(arguments: Sequence[str]) -> int:
    """Run ``motet tournament`` and return the exit code."""
    chosen, settings, factory = parse(arguments, TournamentFlags, "motet tournament", ABOUT, WITHOUT)
    pairings = [tuple(text.split(",")) for text in chosen.pairing] or None
    with progress("games") as (on_progress, on_message):
        result = tournament(
            factory,
            list(chosen.policy),
            rounds=chosen.rounds,
            group=chosen.group,
            pairings=pairings,
            until_clear=chosen.until_clear,
            delta=chosen.delta,
            dir=chosen.dir,
            settings=settings,
            on_progress=on_progress,
            on_message=on_message,
        )
    code = finish(result, chosen, lambda result: show(result, chosen.dir))
    tell_of_failed(result.games, "game")
    return tell_who_always_failed(result.names, result.games, "game") or code


def show(result: Tournament, path: Path | None) -> None:
    """Print the tables of a tournament. ``path``: the directory of its games, if they are written."""
    from rich.console import Console
    from rich.text import Text

    from motet.runs.display import fitted

    console = Console(file=sys.stdout, highlight=False)
    found, returns, failures = result.ratings(), result.returns(), result.failures()
    table = plain_table("policy", "rating", "95 % interval", "return", "games", "failures")
    for name, one in found.items():
        mean = returns[name]
        table.add_row(
            label(name, 40),
            f"{one.rating:.0f}",
            f"{one.low:.0f} to {one.high:.0f}",
            "-" if mean is None else str(score_cell(mean).text),
            f"{one.games:,}",
            f"{failures.get(name, 0):,}",
        )
    console.print(fitted(table, console))
    print_win_rates(result, console)
    if 1 < len(found) <= 12:
        cross = result.cross_table()
        table = plain_table(
            "win rate against" if result.rule is None else "points against", *(label(name, 40) for name in found)
        )
        for name in found:
            shares = (f"{cross[name][other][0]:.0%}" if other in cross[name] else "-" for other in found)
            table.add_row(label(name, 40), *shares)
        console.print()
        console.print(fitted(table, console))
    print_failures(result.games, "game", console)
    print_failed(result.games, "game", console)
    console.print()
    if result.verdict is not None:
        words = verdict_sentence(result.verdict)
        console.print(Text(words, style="yellow" if result.verdict.better is None else "green"), soft_wrap=True)
    if shared := shared_line(result):
        console.print(Text(shared, style="dim"), soft_wrap=True)
    for name, game in result.out.items():
        words = f"{label(name)} failed too often and was removed after game {game}"
        console.print(Text(words, style="red"), soft_wrap=True)
    if result.partial:
        on = "games were not saved; use --dir to continue" if path is None else "the same command continues from there"
        why = first_line(result.stopped) or "interrupted"
        console.print(Text(f"partial: {why}; {on}", style="yellow"), soft_wrap=True)
    line = f"{counted(len(result.games), 'game')}, seed {result.settings['seed']}, {clock(result.seconds)}"
    console.print(Text(line, style="dim"), soft_wrap=True)

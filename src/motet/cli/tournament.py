"""``motet tournament``: policies play each other; ratings and a cross table."""

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
    progress,
    tell_of_failed,
    tell_who_always_failed,
)
from motet.evaluation.evaluate import first_line
from motet.evaluation.tournament import Tournament, tournament
from motet.reports.results_page import score_cell, shared_line
from motet.text import clock, counted, label

__all__ = ["tournament_"]

ABOUT = """Let policies play each other, everybody on every seat in turn, and rate them.

A POLICY is given as to motet eval.

Games are written to --dir as they are played.

The same command, given again, continues where it was interrupted.

The same seed gives the same table.

Alone, --sandbox means strict.

  motet tournament matrix -p tit_for_tat -p random --dir cups/1"""


WITHOUT = ("episodes", "film")
"""Fields of EvaluationSettings that have no meaning here."""


@dataclass(frozen=True)
class TournamentFlags(Play):
    """The flags of ``motet tournament``."""

    rounds: int = 10
    """Rounds; in each everybody meets everybody, once on each seat."""
    group: int = 2
    """Policies that meet in a game; with more seats than that they share them."""
    pairing: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="A,B")] = ()
    """Who meets, by name, once for each pairing; by default everybody meets everybody."""
    dir: Path | None = None
    """A directory for the games, to go on from."""


def tournament_(arguments: Sequence[str]) -> int:
    """Let policies play each other."""
    chosen, settings, factory = parse(arguments, TournamentFlags, "motet tournament", ABOUT, WITHOUT)
    pairings = [tuple(text.split(",")) for text in chosen.pairing] or None
    with progress("games") as (on_progress, on_message):
        result = tournament(
            factory,
            list(chosen.policy),
            rounds=chosen.rounds,
            group=chosen.group,
            pairings=pairings,
            dir=chosen.dir,
            settings=settings,
            on_progress=on_progress,
            on_message=on_message,
        )
    code = finish(result, chosen, lambda result: show(result, chosen.dir))
    tell_of_failed(result.games, "game")
    return tell_who_always_failed(result.names, result.games, "game") or code


def show(result: Tournament, path: Path | None) -> None:
    """The tables of a tournament; ``path``: where its games are written down, if anywhere."""
    from rich.console import Console
    from rich.text import Text

    from motet.runs.display import fitted

    console = Console(file=sys.stdout, highlight=False)
    found, returns, failures = result.ratings(), result.returns(), result.failures()
    table = plain_table("policy", "rating", "95 %", "return", "games", "failures")
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
    if 1 < len(found) <= 12:
        cross = result.cross_table()
        table = plain_table("share won against", *(label(name, 40) for name in found))
        for name in found:
            shares = (f"{cross[name][other][0]:.0%}" if other in cross[name] else "-" for other in found)
            table.add_row(label(name, 40), *shares)
        console.print()
        console.print(fitted(table, console))
    print_failures(result.games, "game", console)
    print_failed(result.games, "game", console)
    console.print()
    if shared := shared_line(result):
        console.print(Text(shared, style="dim"), soft_wrap=True)
    for name, game in result.out.items():
        words = f"{label(name)} failed too often and is out after game {game}"
        console.print(Text(words, style="red"), soft_wrap=True)
    if result.partial:
        on = "nothing was kept; with --dir it would go on" if path is None else "the same command goes on from there"
        why = first_line(result.stopped) or "it was interrupted"
        console.print(Text(f"partial: {why}; {on}", style="yellow"), soft_wrap=True)
    line = f"{counted(len(result.games), 'game')}, seed {result.settings['seed']}, {clock(result.seconds)}"
    console.print(Text(line, style="dim"), soft_wrap=True)

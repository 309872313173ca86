"""The HTML page of an evaluation in mixed teams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from motet.reports.charts import strips
from motet.reports.html import Cell, Column, Html, Section, facts, note, page, table
from motet.reports.results_page import (
    failed_section,
    failures_section,
    games_section,
    latency_section,
    score_cell,
    why_partial,
    world_in_words,
)
from motet.text import clock, counted, label

if TYPE_CHECKING:
    from motet.evaluation.focal import FocalEvaluation

__all__ = ["SEATS", "focal_page", "focal_seats_sentence"]

SEATS = {"focal": "focal seats", "others": "other seats", "team": "sum of all seats"}
"""The rows of the table, by key of :meth:`FocalEvaluation.changes`."""


def focal_seats_sentence(result: FocalEvaluation) -> str:
    """Return which seats the focal policy has."""
    seats = result.settings["focal_seats"]
    drawn = (
        f"{counted(seats, 'seat')} drawn for each episode" if isinstance(seats, int) else ", ".join(map(label, seats))
    )
    return f"{label(result.focal)} has {drawn}"


def focal_page(result: FocalEvaluation) -> str:
    """Return the HTML page as a string."""
    sections = [
        _changes(result),
        latency_section(result.measured),
        failures_section(result.games, result.measured, result.settings["stand_in"], "game"),
        failed_section(result.games, "game"),
        games_section(result.agents, result.games),
    ]
    background = ", ".join(label(name, 80) for name in result.background)
    return page(
        f"{world_in_words(result)[0]}: {label(result.focal, 80)} among {background}",
        [part for part in sections if part is not None],
        lead=f"{world_in_words(result)[1]}, seed {result.settings['seed']}. {focal_seats_sentence(result)}.",
    )


def _changes(result: FocalEvaluation) -> Section:
    parts: list[Html] = []
    if result.partial:
        parts.append(why_partial(result.stopped, f"after {counted(len(result.games), 'game')}"))
    for name, game in result.out.items():
        parts.append(note(f"{label(name)} failed too often and was disqualified after game {game}.", level="error"))
    parts.append(
        facts(
            [
                ("episodes", f"{len(result.pairs()):,}"),
                ("games", f"{len(result.games):,}"),
                ("seats", str(len(result.agents))),
                ("failures", f"{sum(result.failures().values()):,}"),
                ("duration", clock(result.measured.seconds)),
            ]
        )
    )
    focal = label(result.focal, 40)
    columns = [
        Column("return"),
        Column(f"with {focal}", number=True),
        Column("background alone", number=True),
        Column("change", number=True, hint="mean of the differences by episode, with its 95 % interval"),
    ]
    rows: list[list[Cell]] = []
    for what, one in result.changes().items():
        cells = [None] * 3 if one is None else [score_cell(each) for each in (one.mixed, one.background, one.change)]
        rows.append([SEATS[what], *cells])
    parts.append(table(columns, rows, caption="Mean returns"))
    parts.append(
        strips(
            {words: [mixed - alone for mixed, alone in result.returns(what)] for what, words in SEATS.items()},
            title="Changes of all episodes",
            x_label=f"return with {focal} minus return with the background alone",
            caption="Each dot is an episode, the box is the interquartile range, the line is the median.",
        )
    )
    lead = (
        "Each episode is played twice, with the same seeds and the same policies on the other seats: with the focal "
        "policy, and with the background on all seats."
    )
    return Section(f"What {focal} changes", parts, lead=lead)

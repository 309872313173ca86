"""Win rates and verdicts in words and tables: won, drawn and lost games by policy, by seat and by pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from motet.intervals import GameShare
from motet.reports.html import Cell, Column, Html, Section, Shown, paragraph, table
from motet.text import counted, label, short
from motet.world.winning import WinRule

if TYPE_CHECKING:
    from motet.evaluation.result import SeededResult
    from motet.evaluation.verdict import Verdict
    from motet.evaluation.win_rates import WinRate, WinRateKey

__all__ = ["named_win_rates", "rule_sentence", "share_text", "verdict_section", "verdict_sentence", "win_rates_section"]


def share_text(one: GameShare) -> str:
    """Format a share with its interval.

    >>> share_text(GameShare(0.5, 0.404, 0.596))
    '50 % (40-60)'
    """
    return f"{100 * one.share:.0f} % ({100 * one.low:.0f}-{100 * one.high:.0f})"


def rule_sentence(rule: WinRule) -> str:
    """Return how a game is won.

    >>> rule_sentence(WinRule("total", 0.0))
    'the higher total reward wins'
    >>> rule_sentence(WinRule("end", 10.0))
    'the higher reward at the end of the game wins if the difference is more than 10, otherwise it is a draw'
    """
    what = "total reward" if rule.won_by == "total" else "reward at the end of the game"
    margin = f" if the difference is more than {short(rule.margin)}, otherwise it is a draw" if rule.margin else ""
    return f"the higher {what} wins{margin}"


def verdict_sentence(verdict: Verdict) -> str:
    """Return the verdict of a sequential test in words.

    >>> from motet.evaluation.verdict import Verdict
    >>> verdict_sentence(Verdict(("a", "b"), None, (0, 0, 0, 0, 0), 0.0, None))
    'No verdict: no pair of games was finished'
    """
    points, (first, second) = verdict.points, (label(name, 40) for name in verdict.policies)
    if points is None:
        return "No verdict: no pair of games was finished"
    low, high = (f"{100 * min(max(bound, 0.0), 1.0):.0f}" for bound in (points.low, points.high))
    share = f"{first} has {100 * points.mean:.0f} % of the points ({low}-{high}) in {counted(points.count, 'pair')}"
    if verdict.better is None:
        return f"No verdict: {share} of games"
    better, worse = (first, second) if verdict.better == verdict.policies[0] else (second, first)
    return f"{better} is better than {worse}: {share} of games"


def verdict_section(verdict: Verdict | None, delta: float) -> Section | None:
    """Return the section of a page about a sequential test; None without a test."""
    if verdict is None:
        return None
    columns = [Column("points of a pair"), *(Column(name, number=True) for name in ("0", "½", "1", "1½", "2"))]
    name = label(verdict.policies[0])
    rows: list[list[Cell]] = [[name, *verdict.pairs]]
    lead = (
        f"A sequential test that detects a share of points of {100 * (0.5 + delta):g} % with an error rate of 5 %. If "
        "the policies are closer than that, it may name either one. An early stop makes the difference look larger "
        "than it is."
    )
    shown = table(columns, rows, caption=f"Pairs of games by the points of {name}")
    return Section("Verdict", [paragraph(f"{verdict_sentence(verdict)}."), shown], lead=lead)


def named_win_rates(result: SeededResult) -> dict[str, list[tuple[str, WinRate]]]:
    """Return the rows of the tables: by ``policy``, by ``seat`` and, of more than two policies, by ``pair``."""
    found: dict[str, list[tuple[str, WinRate]]] = {"policy": [], "seat": [], "pair": []}
    order = {name: i for i, name in enumerate(result.names)}
    for key, rate in result.win_rates().items():
        policy, against, _ = key
        if against is None or (len(order) > 2 and order[policy] < order[against]):
            kind, words = _named(key)
            found[kind].append((words, rate))
    return found


def _named(key: WinRateKey) -> tuple[str, str]:
    policy, against, seat = key
    name = label(policy, 40)
    if against is not None:
        return "pair", f"{name} against {label(against, 40)}"
    return ("policy", name) if seat is None else ("seat", f"{name} on {label(seat, 40)}")


def win_rates_section(result: SeededResult) -> Section | None:
    """Return the section of a page; None if the world declares no rule or no two policies met."""
    rows = named_win_rates(result)
    if result.rule is None or not rows["policy"]:
        return None
    parts = [_table(f"By {kind}", own) for kind, own in rows.items() if own]
    seats = "" if len(result.agents) == 2 else " Policies are compared by the mean over their seats, pair by pair."
    lead = f"In this world {rule_sentence(result.rule)}.{seats} In brackets: 95 % intervals."
    return Section("Won, drawn, lost", parts, lead=lead)


def _table(caption: str, rates: Sequence[tuple[str, WinRate]]) -> Html:
    columns = [Column("policy"), *(Column(name, number=True) for name in ("won", "drawn", "lost", "points", "games"))]
    rows: list[list[Cell]] = []
    for words, rate in rates:
        shares = [Shown(one.share, share_text(one)) for one in (rate.won, rate.drawn, rate.lost)]
        rows.append([words, *shares, Shown(rate.points, f"{100 * rate.points:.0f} %"), rate.games])
    return table(columns, rows, caption=caption)

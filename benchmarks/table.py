"""The result of a bench as tables: one per measure, motet's rows first, with the ratio for each other contestant."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import Comparison, Result, machine

__all__ = ["show"]


def show(result: Result, console: Console | None = None) -> None:
    """Print all tables."""
    console = console or Console()
    for key, measure in result.measures.items():
        if key in result.samples:
            console.print(Text(f"\n{measure.title} [{measure.unit}]", style="bold"))
            console.print(_measure(result, key))
    if result.counts:
        console.print(Text("\nTorn reads", style="bold"))
        console.print(_counts(result))
    if result.notes:
        console.print(Text("\n" + "\n".join(result.notes), style="dim"))
    for name, why in result.skipped.items():
        console.print(Text(f"{name}: {why}", style="yellow"), soft_wrap=True)
    facts = ", ".join(f"{key} {value}" for key, value in machine().items())
    console.print(Text(f"\nMedians of interleaved repeats on {facts}", style="dim"))


def _measure(result: Result, key: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", width=28, overflow="fold")
    for title, width in (("median", 9), ("min … max", 17), ("ratio", 9), ("at least", 8)):
        table.add_column(title, justify="right", width=width, no_wrap=True, style="dim" if "…" in title else "")
    _measure_rows(table, result, key)
    return table


def _measure_rows(table: Table, result: Result, key: str) -> None:
    comparisons = {c.theirs: c for c in result.comparisons.values() if c.measure == key}
    for contestant, repeats in result.samples[key].items():
        median = result.median(key, contestant)
        assert median is not None
        spread = f"{_number(min(repeats))} … {_number(max(repeats))}"
        comparison = comparisons.get(contestant)
        if comparison is None and result.measures[key].compared and not contestant.startswith("motet"):
            comparison = Comparison(key, "motet", contestant)
        ratio, target = _ratio(result, comparison)
        table.add_row(contestant, _number(median), spread, ratio, target)


def _ratio(result: Result, comparison: Comparison | None) -> tuple[Text, Text]:
    ratio = None if comparison is None else result.ratio(comparison.measure, comparison.ours, comparison.theirs)
    if comparison is None or ratio is None:
        return Text(), Text()
    if comparison.at_least is None:
        return Text(f"{ratio:.2f}x"), Text()
    style = "green" if ratio >= comparison.at_least else "red"
    return Text(f"{ratio:.2f}x", style=style), Text(f"{comparison.at_least:g}x")


def _counts(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", width=28)
    table.add_column("found", justify="right", width=9)
    table.add_column("expected", justify="right", width=17)
    for name, found in result.counts.items():
        wanted = result.exactly.get(name)
        fine = found > 0 if wanted is None else found == wanted
        expected = "above 0" if wanted is None else f"exactly {wanted}"
        table.add_row(name, Text(f"{found:,}", style="green" if fine else "red"), expected)
    return table


def _number(value: float) -> str:
    """Format a number with three digits, without exponents.

    >>> _number(2971234.0), _number(8412.3), _number(7.912), _number(0.0313)
    ('2.97 M', '8.41 k', '7.91', '0.0313')
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 999.5 * size else f"{value / size:.0f}{unit}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"

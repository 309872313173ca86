"""Charts for :mod:`motet.reports.html`: lines with bands, bars with intervals, histograms, strips of single values.

Each function takes arrays and returns one element, with a link that saves its data as CSV. Only the shapes are SVG.
They are stretched to the available size, but strokes and dots keep their width. All text is HTML around the SVG, so it
stays readable on a narrow screen. Values that are not finite leave a gap. All given points are drawn: thin out long
curves first (a few hundred points suffice).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from motet.errors import SettingError
from motet.reports.html import Child, Html, csv_link, plain
from motet.text import short

__all__ = ["Bar", "Line", "bars", "histogram", "lines", "strips", "ticks"]

_Point = TypeVar("_Point")

_COLOURS = 8  # in the style sheet
_SPAN = 1000.0  # width and height of a drawing in SVG units
_CHARACTERS = 30  # characters of labels that fit below the narrowest chart
_EDGE = 7.0  # a label nearer to the edge than this (in % of the width) would stick out of the chart


@dataclass(frozen=True)
class Line:
    """One curve. ``low`` and ``high`` draw a band around it; around dots, an interval for each of them."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    kind: Literal["line", "dots", "dashes"] = "line"
    """``dots`` are single measurements, which a thin line joins."""
    colour: int | None = None
    """Index of the colour; by default each curve gets a different colour."""
    behind: Sequence[tuple[Sequence[float], Sequence[float]]] = ()
    """The curves of which this curve is the mean. They are drawn faintly behind it."""


def lines(
    series: Sequence[Line],
    *,
    title: str,
    x_label: str = "",
    y_label: str = "",
    caption: Child = None,
    from_zero: bool = False,
    beside: Sequence[Line] = (),
    height_rem: float = 15,
) -> Html:
    """Return a chart of curves with bands. A click on a name hides the curve; hovering shows the values.

    Args:
        series: the curves.
        title: title above the chart.
        x_label: label of the horizontal axis.
        y_label: label of the vertical axis.
        caption: text below the chart.
        from_zero: start the vertical axis at 0, even if all values are far above it.
        beside: curves of charts to compare with; all get the same axes.
        height_rem: height of the drawing in rem.
    """
    for line in (*series, *beside):
        _check(line)
    curves = [line for line in series if _points(line)]
    if not curves:
        return _empty(title, caption)
    points = [point for line in (*curves, *beside) for point in _points(line)]
    xs = _limits([x for x, _ in points])
    low, high = _limits([y for _, y in points] + ([0.0] if from_zero else []))
    ys = _padded(low, high, from_zero)
    across, up = _Scale(*xs), _Scale(*ys, upright=True)
    known = {"x": xs, "y": ys, "s": [_values_of(i, line) for i, line in enumerate(curves)]}
    drawing = _svg(
        [
            *(_rule(up(tick), "grid") for tick in ticks(*ys)),
            *([_rule(up(0.0), "zero")] if ys[0] < 0 < ys[1] else []),
            *(shape for i, line in enumerate(curves) for shape in _behind(i, line, across, up)),
            *(_stroke(i, line, across, up) for i, line in enumerate(curves)),
        ],
        f"{title}: {', '.join(line.name for line in curves[:12])}",
    )
    data = {"data_chart": json.dumps(known, separators=(",", ":"))}
    return _figure(
        title,
        csv_link(title, ("curve", "x", "y", "low", "high"), _rows(curves)),
        Html("div", [_entry(i, line) for i, line in enumerate(curves)], class_="legend") if len(curves) > 1 else None,
        _axes(drawing, xs, ys, x_label, y_label, height_rem, data),
        _caption(caption),
    )


def _rows(curves: Sequence[Line]) -> list[tuple[str | float | None, ...]]:
    """Return rows with the points of every curve, one curve after the other."""
    none: Sequence[None] = ()
    return [
        (line.name, *point)
        for line in curves
        for point in itertools.zip_longest(line.x, line.y, line.low or none, line.high or none)
    ]


def _behind(i: int, line: Line, across: _Scale, up: _Scale) -> list[Html]:
    colour, found = _colour_class(i, line), []
    if line.low is not None and line.high is not None:
        draw, kind = (_whiskers, "whiskers") if line.kind == "dots" else (_area, "band")
        shape = draw(line.x, line.low, line.high, across, up)
        found.append(Html("path", Html("title", line.name), d=shape, class_=f"{colour} {kind}", data_line=i))
    if line.kind == "dots":
        thread = _curve(line.x, line.y, across, up)
        found.append(Html("path", d=thread, class_=f"{colour} thread", data_line=i))
    if faint := "".join(_curve(xs, ys, across, up) for xs, ys in line.behind):
        found.append(Html("path", d=faint, class_=f"{colour} faint", data_line=i))
    return found


def _stroke(i: int, line: Line, across: _Scale, up: _Scale) -> Html:
    draw = _dots if line.kind == "dots" else _curve
    kind = f"{_colour_class(i, line)} {line.kind}"
    return Html("path", Html("title", line.name), d=draw(line.x, line.y, across, up), class_=kind, data_line=i)


def _entry(i: int, line: Line) -> Html:
    swatch = Html("span", class_=f"swatch {_colour_class(i, line)} {line.kind}")
    return Html("button", swatch, Html("span", line.name), type="button", aria_pressed="true", data_line=i)


def _values_of(i: int, line: Line) -> dict[str, Any]:
    """Return the data of a curve for the script of the page."""
    values = {key: _rounded(part) for key, part in zip("xylh", _parts(line), strict=True) if part is not None}
    return {"n": plain(line.name), "k": f"{_colour_class(i, line)} {line.kind}", **values}


@dataclass(frozen=True)
class Bar:
    """One value with an optional interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    colour: int = 0


def bars(rows: Sequence[Bar], *, title: str, x_label: str = "", caption: Child = None) -> Html:
    """Return a chart of horizontal bars by name, with intervals as whiskers."""
    known = [bar for bar in rows if math.isfinite(bar.value)]
    if not known:
        return _empty(title, caption)
    ends = [end for bar in known for end in (bar.value, bar.low, bar.high) if end is not None]
    low, high = _limits([*ends, 0.0])
    marks = ticks(low, high)
    low, high = min(low, marks[0]), max(high, marks[-1])
    across = _Scale(low, high)
    cells: list[Html] = []
    for bar in rows:
        cells.append(Html("span", bar.name, class_="name"))
        if not math.isfinite(bar.value):
            cells.append(Html("div", class_="lane"))
            cells.append(Html("span", "-", class_="value"))
            continue
        colour, text = _colour_class(bar.colour), short(bar.value)
        start, end = sorted((across(0.0), across(bar.value)))
        parts = [Html("span", class_=f"bar {colour}", style=_span(start, end))]
        if bar.low is not None and bar.high is not None:
            parts.append(Html("span", class_="whisker", style=_span(across(bar.low), across(bar.high))))
            text = f"{text} [{short(bar.low)}, {short(bar.high)}]"
        cells.append(Html("div", *_marks(marks, across), *parts, class_="lane", title=f"{bar.name}: {text}"))
        cells.append(Html("span", text, class_="value"))
    link = csv_link(title, ("name", "value", "low", "high"), ((b.name, b.value, b.low, b.high) for b in rows))
    return _lanes(cells, marks, across, title, link, x_label, caption)


def strips(rows: Mapping[str, Sequence[float]], *, title: str, x_label: str = "", caption: Child = None) -> Html:
    """Return a chart of distributions by name: each value as a dot, the interquartile range as a box, the median."""
    found = {name: [float(v) for v in values if math.isfinite(v)] for name, values in rows.items()}
    if not any(len(values) for values in found.values()):
        return _empty(title, caption)
    low, high = _padded(*_limits([value for values in found.values() for value in values]), False)
    marks, across = ticks(low, high), _Scale(low, high)
    cells: list[Html] = []
    for i, (name, values) in enumerate(found.items()):
        cells.append(Html("span", name, class_="name"))
        if not len(values):
            cells += [Html("div", class_="lane"), Html("span", "-", class_="value")]
            continue
        lower, middle, upper = (float(v) for v in np.quantile(values, (0.25, 0.5, 0.75)))
        colour = _colour_class(i)
        # Multiples of the golden ratio spread neighbouring dots apart, deterministically.
        heights = (150 + 700 * (np.arange(len(values)) * 0.6180339887 % 1)).tolist()
        dots = "".join(f"M{across(v):.1f} {y:.0f}h0" for v, y in zip(values, heights, strict=True))
        text = f"{name}: median {short(middle)}, quartiles {short(lower)} and {short(upper)}, {len(values)} values"
        lane = [
            *_marks(marks, across),
            Html("span", class_=f"box {colour}", style=_span(across(lower), across(upper))),
            _svg([Html("path", d=dots, class_=f"{colour} dots small")], text),
            Html("span", class_=f"median {colour}", style=_span(across(middle), across(middle))),
        ]
        cells.append(Html("div", *lane, class_="lane tall", title=text))
        cells.append(Html("span", f"median {short(middle)}", class_="value"))
    link = csv_link(title, ("name", "value"), ((name, value) for name, values in found.items() for value in values))
    return _lanes(cells, marks, across, title, link, x_label, caption)


def histogram(
    values: Sequence[float], *, title: str, x_label: str = "", y_label: str = "count", caption: Child = None
) -> Html:
    """Return a histogram."""
    found = np.asarray([v for v in values if math.isfinite(v)], np.float64)
    if not len(found):
        return _empty(title, caption)
    whole = bool(np.all(found == np.round(found))) and np.ptp(found) <= 40
    edges: Sequence[float] = (
        (np.arange(found.min(), found.max() + 2) - 0.5).tolist()
        if whole  # one bar for each integer
        else np.histogram_bin_edges(found, min(40, max(5, math.ceil(2 * len(found) ** (1 / 3))))).tolist()
    )
    counts = np.histogram(found, edges)[0].tolist()
    xs, ys = (edges[0], edges[-1]), (0.0, max(counts) * 1.05)
    across, up = _Scale(*xs), _Scale(*ys, upright=True)
    shapes = [_rule(up(tick), "grid") for tick in ticks(*ys, whole=True)]
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        x, y = across(left), up(count)
        span = f"{short(round(left + 0.5))}" if whole else f"{short(left)} to {short(right)}"
        box = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{across(right) - x:.1f}", "height": f"{_SPAN - y:.1f}"}
        shapes.append(Html("rect", Html("title", f"{span}: {count}"), class_="c0 column", **box))
    drawing = _svg(shapes, f"{title}: {len(found)} values")
    return _figure(
        title,
        csv_link(title, ("from", "to", "count"), zip(edges[:-1], edges[1:], counts, strict=True)),
        _axes(drawing, xs, ys, x_label, y_label, 11, {}, whole=True),
        _caption(caption),
    )


# ---- axes


def ticks(low: float, high: float, wanted: int = 5, whole: bool = False) -> list[float]:
    """Return round numbers between two limits.

    >>> ticks(0, 1), ticks(-3, 17), ticks(0, 3, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0, 15.0], [0.0, 1.0, 2.0, 3.0])
    """
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    if whole:
        step = max(1.0, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    found = dict.fromkeys(round(i * step, digits) + 0.0 for i in range(first, last + 1))
    return list(found) or [low]  # without duplicates, which rounding can cause


def _labels(values: Sequence[float]) -> list[str]:
    """Return labels with the fewest digits that show all ticks, the same number for all."""
    size = max(map(abs, values))
    unit, scale = next(
        ((name, s) for name, s in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if size >= (10 * s if s == 1e3 else s)),
        ("", 1.0),
    )
    if 0 < size < 1e-3:
        return [f"{value:.1e}" if value else "0" for value in values]
    for digits in range(7):
        texts = [f"{value / scale:.{digits}f}" for value in values]
        if all(abs(float(text) * scale - value) < 1e-6 * size for text, value in zip(texts, values, strict=True)):
            break
    return ["0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}") + unit for text in texts]


class _Scale:
    """Converts values to units of a drawing."""

    def __init__(self, low: float, high: float, upright: bool = False) -> None:
        self._low, self._span, self._upright = low, (high - low) or 1.0, upright

    def __call__(self, value: float) -> float:
        share = (value - self._low) / self._span
        return _SPAN * ((1 - share) if self._upright else share)


def _axes(
    drawing: Html,
    xs: tuple[float, float],
    ys: tuple[float, float],
    x_label: str,
    y_label: str,
    height_rem: float,
    attributes: dict[str, str],
    whole: bool = False,
) -> Html:
    left, below = ticks(*ys, whole=whole), ticks(*xs)
    words = _labels(left)
    across, up = _Scale(*xs), _Scale(*ys, upright=True)
    upright = [Html("span", word, style=f"top:{up(v) / 10:.2f}%;") for v, word in zip(left, words, strict=True)]
    return Html(
        "div",
        Html("div", y_label, class_="y-label") if y_label else None,
        Html("div", Html("span", max(words, key=len), class_="widest"), upright, class_="y-ticks", aria_hidden="true"),
        Html("div", drawing, class_="canvas", **attributes),
        Html("div", _below(below, across), class_="x-ticks", aria_hidden="true"),
        Html("div", x_label, class_="x-label") if x_label else None,
        class_="axes",
        style=f"--height:{height_rem:g}rem;",
    )


def _below(marks: Sequence[float], across: _Scale) -> list[Html]:
    """Return the labels of the horizontal axis. A narrow chart shows only every second or third one of them."""
    words = _labels(marks)
    wanted = max(map(len, words)) + 2  # characters, with a gap
    every = -(-len(words) * wanted // _CHARACTERS)
    found = []
    for i, (mark, word) in enumerate(zip(marks, words, strict=True)):
        at = across(mark) / 10
        kinds = ["start"] if at < _EDGE else ["end"] if at > 100 - _EDGE else []
        kinds += ["spare"] if i % every else []
        found.append(Html("span", word, style=f"left:{at:.2f}%;", class_=" ".join(kinds) or None))
    return found


def _marks(marks: Sequence[float], across: _Scale) -> list[Html]:
    return [Html("span", class_="zero" if m == 0 else "grid", style=f"left:{across(m) / 10:.2f}%;") for m in marks]


def _lanes(
    cells: Sequence[Html], marks: Sequence[float], across: _Scale, title: str, link: Html, x_label: str, caption: Child
) -> Html:
    axis = [Html("span"), Html("div", _below(marks, across), class_="x-ticks", aria_hidden="true"), Html("span")]
    return _figure(
        title,
        link,
        Html("div", *cells, *axis, class_="lanes"),
        Html("div", x_label, class_="x-label") if x_label else None,
        _caption(caption),
    )


def _span(start: float, end: float) -> str:
    return f"left:{start / 10:.2f}%;width:{(end - start) / 10:.2f}%;"


# ---- shapes


def _svg(shapes: Sequence[Html], label: str) -> Html:
    box = f"0 0 {_SPAN:g} {_SPAN:g}"
    return Html("svg", shapes, viewBox=box, preserveAspectRatio="none", role="img", aria_label=label)


def _rule(y: float, kind: str) -> Html:
    return Html("line", x1=0, x2=f"{_SPAN:g}", y1=f"{y:.1f}", y2=f"{y:.1f}", class_=kind)


def _curve(xs: Sequence[float], ys: Sequence[float], across: _Scale, up: _Scale) -> str:
    points = [(across(x), up(y)) if _finite(x, y) else None for x, y in zip(xs, ys, strict=True)]
    return "".join(
        f"M{run[0][0]:.1f} {run[0][1]:.1f}" + ("".join(f"L{x:.1f} {y:.1f}" for x, y in run[1:]) or "h0")
        for run in _runs(points)
    )


def _dots(xs: Sequence[float], ys: Sequence[float], across: _Scale, up: _Scale) -> str:
    return "".join(f"M{across(x):.1f} {up(y):.1f}h0" for x, y in zip(xs, ys, strict=True) if _finite(x, y))


def _whiskers(xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], across: _Scale, up: _Scale) -> str:
    ends = zip(xs, lows, highs, strict=True)
    return "".join(f"M{across(x):.1f} {up(low):.1f}V{up(high):.1f}" for x, low, high in ends if _finite(x, low, high))


def _area(xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], across: _Scale, up: _Scale) -> str:
    points = [
        (across(x), up(low), up(high)) if _finite(x, low, high) else None
        for x, low, high in zip(xs, lows, highs, strict=True)
    ]
    found = []
    for run in _runs(points):
        there = "L".join(f"{x:.1f} {high:.1f}" for x, _, high in run)
        back = "L".join(f"{x:.1f} {low:.1f}" for x, low, _ in reversed(run))
        found.append(f"M{there}L{back}Z")
    return "".join(found)


def _runs(points: Iterable[_Point | None]) -> list[list[_Point]]:
    """Split a list of points where one is missing (None)."""
    found: list[list[_Point]] = [[]]
    for point in points:
        if point is None:
            found.append([])
        else:
            found[-1].append(point)
    return [run for run in found if run]


# ---- values


def _check(line: Line) -> None:
    sizes = {len(part) for part in _parts(line) if part is not None}
    if len(sizes) > 1 or (line.low is None) != (line.high is None):
        raise SettingError(
            f"line {line.name!r} must have arrays of one length and both low and high or neither, got {sorted(sizes)}"
        )


def _parts(line: Line) -> tuple[Sequence[float] | None, ...]:
    return line.x, line.y, line.low, line.high


def _points(line: Line) -> list[tuple[float, float]]:
    """Return all finite points of a line, its band and the curves behind it."""
    curves = [(line.x, part) for part in (line.y, line.low, line.high) if part is not None]
    pairs = ((x, y) for xs, ys in (*curves, *line.behind) for x, y in zip(xs, ys, strict=True))
    return [(float(x), float(y)) for x, y in pairs if _finite(x, y)]


def _finite(*values: float) -> bool:
    return all(math.isfinite(value) for value in values)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0))


def _padded(low: float, high: float, from_zero: bool) -> tuple[float, float]:
    room = 0.05 * (high - low)
    return (low if from_zero and low == 0 else low - room), high + room


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]


def _colour_class(number: int, line: Line | None = None) -> str:
    number = number if line is None or line.colour is None else line.colour
    return f"c{number % _COLOURS}" + (" again" if number >= _COLOURS else "")


def _empty(title: str, caption: Child) -> Html:
    return _figure(title, None, Html("p", "No data.", class_="empty"), _caption(caption))


def _figure(title: str, link: Html | None, *parts: Child) -> Html:
    """Return a chart with its title, a link to its data, and its parts."""
    return Html("figure", Html("figcaption", Html("strong", title), link), *parts, class_="chart")


def _caption(caption: Child) -> Html | None:
    return Html("p", caption, class_="quiet") if caption is not None else None

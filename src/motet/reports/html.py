"""Self-contained HTML pages: one file, without network access or third-party scripts.

The functions take numbers, text and images and return elements; :func:`page` returns a string. Equal input gives equal
bytes. An example with all parts::

    page("Two runs", [
        Section("Returns", [
            facts([("runs", "2"), ("steps", "30,000")]),
            lines([Line("agent_0", steps, means, lows, highs)], title="Return", x_label="steps"),  # from charts
            table([Column("agent"), Column("return", number=True)], [["agent_0", Shown(12.5, "12.5 ± 0.3")]]),
            side_by_side(picture(gif, alt="an episode"), player(frames, frames_per_s=10, alt="an episode")),
            note("one run is still running", level="warning"),
        ]),
    ])

Only :class:`Html` becomes markup. It is built from a tag, attributes and children; all other values, such as strings,
are text. Text is escaped, and its control characters are shown as escape sequences. Scripts and event handlers cannot
be written, and links are anchors or CSV files that the page itself holds. The page's content security policy also
forbids to load anything or to run any script other than ``page.js``.

Charts (lines with bands, bars with intervals, histograms, strips of single values) are in :mod:`motet.reports.charts`;
the style is in ``page.css``, the behaviour (sorting, hovering, hiding a line, playing frames) in ``page.js``.
The page is readable without scripts.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from motet.errors import SettingError
from motet.text import plain_lines as plain
from motet.text import short

__all__ = [
    "Cell",
    "Child",
    "Column",
    "Html",
    "Section",
    "Shown",
    "csv_link",
    "details",
    "facts",
    "note",
    "page",
    "paragraph",
    "picture",
    "plain",
    "player",
    "side_by_side",
    "table",
]

_TAG = re.compile(
    "a|b|button|caption|code|dd|details|div|dl|dt|em|figcaption|figure|h1|h2|h3|header|img|input|li|line|main|nav|ol|"
    "output|p|path|rect|section|small|span|strong|sub|summary|sup|svg|table|tbody|td|th|thead|title|tr|ul"
)
_VOID = frozenset(("img", "input"))
_ATTRIBUTE = re.compile(r"[a-zA-Z][a-zA-Z0-9]*(-[a-zA-Z0-9]+)*")
_DATA = re.compile(r"data:image/(png|gif|jpeg);base64,[A-Za-z0-9+/]*=*")
_CSV = re.compile(r"data:text/csv;charset=utf-8;base64,[A-Za-z0-9+/]*=*")
_NARROW = 3  # number of columns that fit a narrow screen
_STYLE = re.compile(r"(?:(?:--)?[a-z-]+:-?[0-9.]+(?:%|px|rem|ch)?;)*")


class Html:
    """One element. ``Html("p", "1 < 2", class_="quiet")`` is ``<p class="quiet">1 &lt; 2</p>``.

    Args:
        tag: name of the tag; scripts, styles, frames and forms are not allowed.
        children: elements, and text to be escaped. None and empty lists are skipped.
        attributes: underscores become hyphens, one at the end is dropped. None and False omit the attribute.

    >>> str(Html("p", "1 < 2", Html("b", "!"), title='"'))
    '<p title="&quot;">1 &lt; 2<b>!</b></p>'
    """

    __slots__ = ("_parts",)

    def __init__(self, tag: str, *children: Child, **attributes: str | int | float | bool | None) -> None:
        if not _TAG.fullmatch(tag):
            raise SettingError(f"tag must be one of {_TAG.pattern.replace('|', ', ')}, got {tag!r}")
        opening = [f"<{tag}"]
        for name, value in attributes.items():
            if value is None or value is False:
                continue
            name = name.removesuffix("_").replace("_", "-")
            _check(name, value)
            opening.append(f" {name}" if value is True else f' {name}="{html.escape(plain(str(value)))}"')
        self._parts: tuple[str | Html, ...] = ("".join(opening) + ">",)
        if tag not in _VOID:
            self._parts += (*_flat(children), f"</{tag}>")

    def __str__(self) -> str:
        found: list[str] = []
        todo: list[str | Html] = [self]
        while todo:
            part = todo.pop()
            if isinstance(part, Html):
                todo.extend(reversed(part._parts))
            else:
                found.append(part)
        return "".join(found)


Child = Html | str | int | float | None | Sequence["Html | str"]
"""Allowed children of an element."""


def _flat(children: Iterable[Child]) -> list[str | Html]:
    found: list[str | Html] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            found.append(child)
        elif isinstance(child, (str, int, float)):
            found.append(html.escape(plain(str(child)), quote=False))
        else:
            found += _flat(child)
    return found


def _check(name: str, value: object) -> None:
    """Refuse attributes that run code or load something."""
    if not _ATTRIBUTE.fullmatch(name) or name.lower().startswith("on"):
        raise SettingError(f"attribute must not be an event handler or have an invalid name, got {name!r}")
    text = str(value)
    if name == "src" and not _DATA.fullmatch(text):
        raise SettingError(f"src must be an image as a data: URL, got {text[:40]!r}")
    if name == "href" and not (text.startswith("#") or _CSV.fullmatch(text)):
        raise SettingError(f"href must be an anchor of this page or CSV as a data: URL, got {text[:40]!r}")
    if name == "style" and not _STYLE.fullmatch(text):
        raise SettingError(f"style must have only numbers as values, got {text[:80]!r}")


# ---- the page


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading that is linked in the table of contents."""

    title: str
    parts: Sequence[Child]
    lead: str = ""
    """One sentence under the heading."""


def page(title: str, sections: Sequence[Section], *, lead: str = "", generator: str = "motet") -> str:
    """Return the HTML file as a string."""
    style, script = (_resource(f"page.{kind}") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    contents = Html(
        "nav",
        Html("ul", [Html("li", Html("a", part.title, href=f"#s{i}")) for i, part in enumerate(sections, 1)]),
        aria_label="contents",
    )
    body = [
        Html("header", Html("h1", title), Html("p", lead, class_="lead") if lead else None),
        contents if len(sections) > 1 else None,
        Html("main", [_section(part, f"s{i}") for i, part in enumerate(sections, 1)]),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta name="generator" content="{html.escape(plain(generator))}">',
            f"<title>{html.escape(plain(title))}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            *(str(part) for part in body if part is not None),
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(part: Section, anchor: str) -> Html:
    lead = Html("p", part.lead, class_="lead") if part.lead else None
    return Html("section", Html("h2", part.title), lead, *part.parts, id=anchor)


def _resource(name: str) -> str:
    return "\n" + files("motet.reports").joinpath(name).read_text(encoding="utf-8")


# ---- text


def paragraph(*children: Child, quiet: bool = False) -> Html:
    """Return a paragraph."""
    return Html("p", *children, class_="quiet" if quiet else None)


def note(*children: Child, level: Literal["info", "warning", "error"] = "info") -> Html:
    """Return a highlighted box."""
    return Html("div", *children, class_=f"note {level}", role="note")


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return a row of values in large type, each with its name."""
    return Html("dl", [Html("div", Html("dt", name), Html("dd", value)) for name, value in pairs], class_="facts")


def details(summary: Child, *children: Child, open_: bool = False) -> Html:
    """Return a collapsible part with a summary line."""
    return Html("details", Html("summary", summary), *children, open=open_)


def side_by_side(*parts: Child, least_rem: float = 22) -> Html:
    """Return parts in columns with this minimum width, as many in a row as fit."""
    return Html("div", *parts, class_="beside", style=f"--least:{least_rem:g}rem;")


# ---- tables


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    number: bool = False
    """Whether the column holds numbers, which are right-aligned."""
    hint: str = ""
    """Tooltip of the heading."""


@dataclass(frozen=True)
class Shown:
    """A table cell that is sorted by a number and shows a different text."""

    value: float | None
    text: Child
    hint: str = ""


Cell = Html | Shown | str | int | float | None
"""Allowed cells of a table."""


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], *, caption: str = "") -> Html:
    """Return a table that is sorted by a click on a heading. None is shown as a dash.

    On a narrow screen a table with many columns becomes a list of rows, with a line for each cell.
    """
    head = Html("tr", [_heading(column) for column in columns])
    body = []
    for row in rows:
        if len(row) != len(columns):
            raise SettingError(f"row must have {len(columns)} cells, got {len(row)}: {row!r}")
        body.append(Html("tr", [_cell(cell, column) for cell, column in zip(row, columns, strict=True)]))
    kinds = [*(["sortable"] if len(body) > 1 else []), *(["stacked"] if len(columns) > _NARROW else [])]
    inner = Html(
        "table",
        Html("caption", caption) if caption else None,
        Html("thead", head),
        Html("tbody", body),
        class_=" ".join(kinds) or None,
    )
    return Html("div", inner, class_="wide", tabindex=0, role="region", aria_label=caption or "table")


def _heading(column: Column) -> Html:
    kind = "number" if column.number else None
    return Html("th", column.name, class_=kind, title=column.hint or None, scope="col")


def _cell(cell: Cell, column: Column) -> Html:
    hint, key = None, None
    shown: Child
    if isinstance(cell, Shown):
        shown, hint, number = cell.text, cell.hint or None, cell.value
    else:
        number = cell if isinstance(cell, (int, float)) else None
        shown = cell if isinstance(cell, (Html, str)) else _number(number)
    if number is not None and math.isfinite(number):
        key = repr(float(number))
    kind = "number" if column.number else None
    return Html("td", shown, class_=kind, title=hint, data_key=key, data_label=column.name)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else short(value, 4)


def csv_link(name: str, columns: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> Html:
    """Return a link that saves rows as a CSV file. The page holds the file. Values that are not finite stay empty."""
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    data = base64.b64encode(target.getvalue().encode("utf-8", "backslashreplace")).decode()
    file = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "data"
    href = f"data:text/csv;charset=utf-8;base64,{data}"
    return Html("a", "CSV", href=href, download=f"{file}.csv", class_="csv", title="Save the data of this chart")


def _csv_cell(cell: str | float | None) -> str:
    if isinstance(cell, str):
        text = plain(cell)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text  # a spreadsheet would run it as a formula
    return f"{cell:.6g}" if cell is not None and math.isfinite(cell) else ""


# ---- images


def picture(data: bytes, *, alt: str, caption: Child = None) -> Html:
    """Return a PNG, GIF or JPEG image, animated or not."""
    return _figure(Html("img", src=_data(data), alt=alt, class_="pixels"), caption)


def player(
    frames: Sequence[bytes], *, frames_per_s: float, alt: str, labels: Sequence[str] = (), caption: Child = None
) -> Html:
    """Return an animation of images, with a play button and a slider.

    ``labels`` has a line of text for each frame, shown beside the slider; by default the number of the frame.
    """
    if not frames:
        raise SettingError("frames must be one or more images, got none")
    if not frames_per_s > 0:
        raise SettingError(f"frames_per_s must be a number > 0, got {frames_per_s}")
    if len(labels) not in (0, len(frames)):
        raise SettingError(f"labels must be one for each of the {len(frames)} frames, got {len(labels)}")
    shown = labels or [f"{i + 1} / {len(frames)}" for i in range(len(frames))]
    images = [
        Html("img", src=_data(data), alt=f"{alt}, {text}", class_="pixels", hidden=i > 0, data_label=text)
        for i, (data, text) in enumerate(zip(frames, shown, strict=True))
    ]
    last = len(frames) - 1
    controls = Html(
        "div",
        Html("button", "Play", type="button"),
        Html("input", type="range", min=0, max=last, value=0, step=1, aria_label="frame"),
        Html("output", shown[0]),
        class_="controls",
        hidden=True,  # until the script has loaded
    )
    return _figure(Html("div", images, controls, class_="player", data_rate=f"{frames_per_s:g}"), caption)


def _figure(content: Html, caption: Child) -> Html:
    return Html("figure", content, Html("figcaption", caption) if caption is not None else None, class_="picture")


def _data(data: bytes) -> str:
    for start, kind in ((b"\x89PNG\r\n\x1a\n", "png"), (b"GIF8", "gif"), (b"\xff\xd8\xff", "jpeg")):
        if data.startswith(start):
            return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    raise SettingError(f"picture must be a PNG, GIF or JPEG, got {len(data)} bytes that begin with {data[:8]!r}")

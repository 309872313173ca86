"""Tables for narrow screens: each cell knows the heading of its column, which style sheets show where rows are stacked."""

from __future__ import annotations

import re
from html import escape
from itertools import cycle
from typing import Any

_TABLE = re.compile(r"<table>.*?</table>", re.S)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Mkdocs has made the HTML of a page."""
    return _TABLE.sub(lambda found: labelled(found.group()), html)


def labelled(table: str) -> str:
    """A table whose cells carry the heading of their column.

    >>> labelled("<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>")
    '<table data-columns="2"><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td data-label="a">1</td><td data-label="b">2</td></tr></tbody></table>'
    """
    head, separator, body = table.partition("</thead>")
    headings = [escape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<th[^>]*>(.*?)</th>", head, re.S)]
    if not headings or not separator:
        return table
    labels = cycle(headings)
    body = re.sub(r"<td", lambda _: f'<td data-label="{next(labels)}"', body)
    return head.replace("<table>", f'<table data-columns="{len(headings)}">', 1) + separator + body

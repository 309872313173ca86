"""Docstrings as Markdown: examples become code blocks, and roles become code, where the API reference is made."""

from __future__ import annotations

import re
from typing import Any

import griffe

_INDENT = "    "
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """An object was found in the source."""
        if obj.docstring is not None and isinstance(obj.docstring.value, str):
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with fenced examples, without roles and without the colons of literal blocks.

    >>> print(as_markdown("See :class:`Pace`.\\n\\n>>> 1 + 1\\n2"))
    See `Pace`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    lines, inside, literal = list[str](), False, False
    for line in _ROLE.sub(r"`\1`", text).splitlines():
        starts = line.lstrip().startswith(">>>")
        if literal and line.strip() and not line.startswith(_INDENT):
            while not lines[-1]:
                lines.pop()
            lines += ["```", ""]
            literal = False
        if literal:
            lines.append(line.removeprefix(_INDENT))
            continue
        if starts and not inside:
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        if line == "::":  # at the left margin it would belong to the section of arguments above it
            lines.append("```python")
            literal = True
            continue
        lines.append(re.sub(r"::$", ":", line))
    if inside or literal:
        lines.append("```")
    return "\n".join(lines)

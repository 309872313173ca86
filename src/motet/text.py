"""Make text from users' code safe to store and to show: names of policies, worlds and agents, and their messages.

Such text may hold markup, control characters or lone surrogates; it may be empty or very long. :func:`valid` makes it
storable where it enters motet. :func:`plain`, :func:`plain_lines` and :func:`label` make it visible where it is shown.
Characters that cannot be shown are not dropped but escaped, as in ``\\x1b``. The module also formats numbers, durations
and paths for tables and messages.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "HIDDEN",
    "aligned",
    "clock",
    "counted",
    "label",
    "legible",
    "nearest",
    "plain",
    "plain_lines",
    "short",
    "typed",
    "valid",
]

_LONE = re.compile("[\ud800-\udfff]")

HIDDEN = (
    "\x00-\x1f\x7f-\x9f"  # control characters, which terminals act on
    # characters that are invisible or set the direction of writing
    "\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufffe\uffff"  # cannot be encoded, or forbidden in XML
    "\U000e0000-\U000e007f"
)
"""Invisible characters and control characters, for use inside a character class of a regular expression."""

_HIDDEN = re.compile(f"[{HIDDEN}]")
_HIDDEN_IN_LINES = re.compile(f"(?![\n\t])[{HIDDEN}]")


def _spelt(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def valid(text: str) -> str:
    """Escape lone surrogates, so that every Unicode encoding can store the text.

    >>> valid("a\\ud800"), valid("é")
    ('a\\\\ud800', 'é')
    """
    return _LONE.sub(_spelt, text)


def plain(text: str) -> str:
    """Return one line of visible text: invisible and control characters, including line ends, are escaped.

    >>> print(plain("red\\x1b[31m\\nor \\u202enot"))
    red\\x1b[31m\\nor \\u202enot
    """
    return _HIDDEN.sub(_spelt, text)


def plain_lines(text: str) -> str:
    """Return visible text as :func:`plain` does, but keep line ends and tabs, for text of several lines.

    >>> plain_lines("a\\r\\nb\\x00").splitlines()
    ['a\\\\r', 'b\\\\x00']
    """
    return _HIDDEN_IN_LINES.sub(_spelt, text)


def label(name: str, room: int | None = None) -> str:
    """A name to show: escaped by :func:`plain`, in quotes if it is blank, shortened in the middle if it is too long.

    >>> label("team[a]"), label(""), label(" "), label("agent_0123456789", 10)
    ('team[a]', "''", "' '", 'agent…6789')
    """
    shown = plain(name)
    if not shown.strip():
        shown = f"'{shown}'"
    if room is None or len(shown) <= room:
        return shown
    end = (room - 1) // 2
    return f"{shown[: room - 1 - end]}…{shown[-end:] if end else ''}"


def legible(name: str, room: int | None = 40) -> str:
    """A name that matplotlib shows literally: not as a formula, and in the legend even after a leading underscore.

    >>> legible("$5"), legible("_a")
    ('\\\\$5', ' _a')
    """
    shown = label(name, room).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


# ---- numbers, durations and paths, in few characters


def short(value: float | None, digits: int = 3) -> str:
    """A number in few characters.

    >>> short(4321.0), short(0.01234), short(-12.345), short(None), short(987654321.0), short(0.0000123)
    ('4.32k', '0.012', '-12.3', '-', '988M', '1.2e-05')
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3:
        return f"{value:.1e}"
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G")):
        scaled = float(f"{value / limit * 1e3:.{digits}g}")
        if abs(scaled) < 1e3:
            places = max(0, digits - 1 - (math.floor(math.log10(abs(scaled))) if abs(scaled) >= 1 else -1))
            text = f"{scaled:.{places}f}"
            whole = not unit and value == int(value)
            return (text.rstrip("0").rstrip(".") if whole and "." in text else text) + unit
    return f"{value:.1e}"


def aligned(values: Iterable[float | None], digits: int = 3, first: int | None = None) -> list[str]:
    """Numbers of one column, all with the same unit and the same number of decimals.

    ``first``: only this many numbers determine both. Later ones, such as a sum, are shown in the same way.

    >>> aligned([9.0, -13.14, 0.5]), aligned([4321.0, 98765.0]), aligned([None, 2.0]), aligned([0.01, 0.0])
    (['9.0', '-13.1', '0.5'], ['4.3k', '98.8k'], ['-', '2.00'], ['0.0100', '0.0000'])
    """
    found = list(values)
    sizes = [abs(value) for value in found[:first] if value is not None and math.isfinite(value)]
    # The largest number is rounded first, so that 9.999 counts as 10.0 and 999.9 as 1.00k.
    largest = float(f"{max(sizes, default=0.0):.{digits}g}")
    if 0 < largest < 1e-3:
        return [short(value) if value is None or not math.isfinite(value) else f"{value:.1e}" for value in found]
    unit, scale = next(((name, s) for name, s in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if largest >= s), ("", 1.0))
    places = max(0, digits - 1 - (math.floor(math.log10(largest / scale)) if largest else 0))
    return [
        short(value) if value is None or not math.isfinite(value) else f"{value / scale:.{places}f}{unit}"
        for value in found
    ]


def counted(number: int, what: str) -> str:
    """A number with its noun, in the plural where needed.

    >>> counted(1, "episode"), counted(2000, "episode")
    ('1 episode', '2,000 episodes')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def typed(path: Path) -> str:
    """A path, quoted for the shell where needed.

    >>> typed(Path("runs/mine")), typed(Path("my runs/first"))
    ('runs/mine', "'my runs/first'")
    """
    return shlex.quote(str(path))


def clock(seconds: float | None) -> str:
    """A duration as hours, minutes and seconds.

    >>> clock(42), clock(3723), clock(200000), clock(None)
    ('0:42', '1:02:03', '2d 7:33:20', '-')
    """
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def nearest(given: str, known: Iterable[str]) -> str:
    """The known name that is most similar to a given name, ignoring case; empty if no known name is similar.

    >>> nearest("Tresure-Hunt", ["treasure_hunt", "matrix"]), nearest("sac", ["dqn", "ppo"])
    ('treasure_hunt', '')
    """
    names = {name.lower().replace("_", "-"): name for name in known}
    close = difflib.get_close_matches(given.lower().replace("_", "-"), names, 1, cutoff=0.72)
    return names[close[0]] if close else ""

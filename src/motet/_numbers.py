"""Numbers, spans of time and paths for people, in few characters."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

__all__ = ["clock", "counted", "short", "typed"]


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


def counted(number: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "episode"), counted(2000, "episode")
    ('1 episode', '2,000 episodes')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def typed(path: Path) -> str:
    """A path as it is typed in a shell.

    >>> typed(Path("runs/mine")), typed(Path("my runs/first"))
    ('runs/mine', "'my runs/first'")
    """
    return shlex.quote(str(path))


def clock(seconds: float | None) -> str:
    """A span of time.

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

"""Maps of rooms: the shipped ones, and the parser from text to walls, doors, keys, blocks and initial tiles."""

from dataclasses import dataclass
from typing import Final

from motet.errors import SettingError

__all__ = ["MAPS", "RoomMap", "parsed"]

_SIGNS = "#.*HRabcdeABCDEo"


@dataclass(frozen=True)
class RoomMap:
    """A parsed map. A tile is row * width + column."""

    height: int
    width: int
    walls: tuple[bool, ...]  # [tile]
    marked: tuple[int, ...]
    humans: tuple[int, ...]
    robots: tuple[int, ...]
    blocks: tuple[int, ...]
    keys: tuple[int, ...]
    key_colours: tuple[int, ...]
    doors: tuple[int, ...]
    door_colours: tuple[int, ...]
    horizon: int


MAPS: Final[dict[str, tuple[str, int]]] = {
    # About 200 states: one human in a closet, a robot outside, a block in its way.
    "closet": (
        """
        ######
        #H.oR#
        ###.##
        ######
        """,
        20,
    ),
    # A human is behind a door; the key is on the robot's side.
    "freeing": (
        """
        #######
        #H.A.R#
        #..#.a#
        #*.#.*#
        #######
        """,
        12,
    ),
    # Two humans and a robot that can keep a narrow passage open.
    "passage": (
        """
        #######
        #H.#.*#
        #..R..#
        #*.#.H#
        #######
        """,
        7,
    ),
    # A block can shut a human in or out.
    "blocked": (
        """
        #######
        #H.o.R#
        #..#..#
        #*.o.*#
        #######
        """,
        12,
    ),
    # Two humans, a robot, 16 tiles to stand on, 64 joint actions: more than 70,000 states.
    "courtyard": (
        """
        ######
        #H..*#
        #....#
        #..#.##
        #*..HR#
        #######
        """,
        27,
    ),
}
"""Shipped maps by name, each with its default horizon."""


def parsed(given: str) -> RoomMap:
    """Parse a shipped map, given by name, or a map given as text."""
    text, horizon = MAPS.get(given, (given, 20))
    rows = [line.strip() for line in text.strip().splitlines()]
    if given not in MAPS and len(rows) < 3:
        shown = given if len(given) <= 60 else f"{given[:60]}…"
        raise SettingError(f"map must be one of {', '.join(MAPS)}, or text of several lines, got {shown!r}")
    width = max(len(row) for row in rows)
    signs = "".join(row.ljust(width, "#") for row in rows)
    if unknown := sorted(set(signs) - set(_SIGNS)):
        raise SettingError(f"map must have the signs {_SIGNS} only, got {unknown[0]!r}:\n{text}")

    def where(kinds: str) -> tuple[int, ...]:
        return tuple(tile for tile, sign in enumerate(signs) if sign in kinds)

    def colours(kinds: str) -> tuple[int, ...]:
        return tuple("abcde".index(signs[tile].lower()) for tile in where(kinds))

    border = [*signs[:width], *signs[-width:], *signs[::width], *signs[width - 1 :: width]]
    if any(sign != "#" for sign in border):
        raise SettingError(f"map must have '#' all around, got an open border:\n{text}")
    if not where("HR"):
        raise SettingError(f"map must have at least one H (human) or R (robot), got none:\n{text}")
    return RoomMap(
        height=len(rows),
        width=width,
        walls=tuple(sign == "#" for sign in signs),
        marked=where("*"),
        humans=where("H"),
        robots=where("R"),
        blocks=where("o"),
        keys=where("abcde"),
        key_colours=colours("abcde"),
        doors=where("ABCDE"),
        door_colours=colours("ABCDE"),
        horizon=horizon,
    )

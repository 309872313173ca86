"""Drawing of grid worlds: coloured tiles, grid lines and antialiased marks, as RGB arrays of 16 pixels per tile."""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

TILE = 16
"""Pixels per side of a tile."""

Colour = tuple[int, int, int]
Picture = NDArray[np.uint8]  # [rows * TILE, columns * TILE, 3]
Mask = NDArray[np.float32]  # [side, side]: the share of each pixel that the mark covers, 0 to 1

PAPER: Colour = (246, 243, 236)
INK: Colour = (62, 66, 76)
WALL: Colour = (122, 128, 140)

AGENTS: tuple[Colour, ...] = (
    (52, 101, 164),
    (204, 92, 58),
    (117, 80, 161),
    (32, 136, 122),
    (200, 72, 126),
    (140, 104, 62),
    (86, 130, 48),
    (70, 160, 200),
    (168, 44, 52),
    (92, 98, 112),
)
"""Colours of the agents; the eleventh agent has the first colour again."""


def ground(colours: NDArray[np.uint8], lines: float = 0.07) -> Picture:
    """Draw tiles of the given colours [rows, columns, 3], each with a line darker by ``lines`` at its top and left."""
    picture = colours.repeat(TILE, axis=0).repeat(TILE, axis=1)
    shade = np.ones((*picture.shape[:2], 1), np.float32)
    shade[::TILE] = shade[:, ::TILE] = 1.0 - lines
    return (picture * shade).astype(np.uint8)


def stamp(picture: Picture, row: int, column: int, mask: Mask, colour: Colour) -> None:
    """Blend a mark into a picture, with its top left corner at pixel (row, column)."""
    height, width = mask.shape
    patch = picture[row : row + height, column : column + width]
    cover = mask[..., None]
    patch[:] = np.rint(patch * (1.0 - cover) + np.asarray(colour, np.float32) * cover)


def _mask(inside: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.bool_]]) -> Mask:
    """Return the share of each pixel that lies inside a shape, which is defined on [-1, 1] x [-1, 1] (down, right)."""
    fine = 4
    axis = (np.arange(TILE * fine) + 0.5) / (TILE * fine) * 2 - 1
    down, right = np.meshgrid(axis, axis, indexing="ij")
    covered: Mask = inside(down, right).reshape(TILE, fine, TILE, fine).mean(axis=(1, 3), dtype=np.float32)
    return covered


@cache
def disc(radius: float, down: float = 0.0, right: float = 0.0) -> Mask:
    """A disc, in coordinates in which the tile is [-1, 1] x [-1, 1]."""
    return _mask(lambda y, x: (y - down) ** 2 + (x - right) ** 2 <= radius**2)


@cache
def diamond(radius: float) -> Mask:
    """A square rotated by 45 degrees."""
    return _mask(lambda y, x: np.abs(y) + np.abs(x) <= radius)


@cache
def bone() -> Mask:
    """A diagonal shaft with two knobs at either end."""

    def inside(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
        along, across = (x + y) / 2**0.5, (x - y) / 2**0.5
        shaft: NDArray[np.bool_] = (np.abs(across) <= 0.17) & (np.abs(along) <= 0.55)
        knobs: NDArray[np.bool_] = (np.abs(along) - 0.55) ** 2 + (np.abs(across) - 0.2) ** 2 <= 0.24**2
        return shaft | knobs

    return _mask(inside)


@cache
def full() -> Mask:
    """The whole tile."""
    return np.ones((TILE, TILE), np.float32)


def agent(picture: Picture, row: int, column: int, number: int, ahead: tuple[int, int] = (0, 0)) -> None:
    """Draw agent ``number`` on tile (row, column): a disc with a rim and two eyes that look ``ahead`` (down, right)."""
    top, left = row * TILE, column * TILE
    stamp(picture, top, left, disc(0.88), INK)
    stamp(picture, top, left, disc(0.76), AGENTS[number % len(AGENTS)])
    down, right = ahead
    for side in (-0.3, 0.3):
        # The eyes are side by side, perpendicular to the line of sight.
        eye_down, eye_right = (0.32 * down + side * right, 0.32 * right - side * down) if any(ahead) else (-0.1, side)
        stamp(picture, top, left, disc(0.2, eye_down, eye_right), (255, 255, 255))


@cache
def square(half: float) -> Mask:
    """A square in the middle of the tile."""
    return _mask(lambda y, x: (np.abs(y) <= half) & (np.abs(x) <= half))


def robot(picture: Picture, row: int, column: int, number: int) -> None:
    """Draw robot ``number`` on tile (row, column): a square with a rim and two eyes."""
    top, left = row * TILE, column * TILE
    stamp(picture, top, left, square(0.82), INK)
    stamp(picture, top, left, square(0.68), AGENTS[number % len(AGENTS)])
    for side in (-0.3, 0.3):
        stamp(picture, top, left, disc(0.18, -0.15, side), (255, 255, 255))


_GLYPHS = {
    "0": "111101101101111",
    "1": "010110010010111",
    "2": "111001111100111",
    "3": "111001111001111",
    "4": "101101111001001",
    "5": "111100111001111",
    "6": "111100111101111",
    "7": "111001010010010",
    "8": "111101111101111",
    "9": "111101111001111",
    "-": "000000111000000",
    ".": "000000000000010",
    "e": "000111111100111",
    "+": "000010111010000",
}


def write(picture: Picture, row: int, column: int, text: str, colour: Colour, scale: int = 2) -> None:
    """Write a number, with its top left corner at pixel (row, column)."""
    for i, sign in enumerate(text):
        glyph = np.array([int(bit) for bit in _GLYPHS[sign]], np.float32).reshape(5, 3)
        stamp(picture, row, column + i * 4 * scale, np.kron(glyph, np.ones((scale, scale), np.float32)), colour)

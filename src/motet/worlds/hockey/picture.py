"""Drawing of hockey: the rink from above, player 0 on the left."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from motet.worlds import pictures
from motet.worlds.hockey.rules import HALF_LENGTH, HALF_WIDTH, MOUTH, PLAYER, PUCK, heading

__all__ = ["draw"]

_SCALE = 32  # pixels per unit
_EDGE = 0.5  # units around the rink

Floats = NDArray[np.float32]


def draw(values: Floats) -> pictures.Picture:
    """Draw one world's ``values`` [18] as uint8 [height, width, 3]."""
    picture = _rink().copy()
    aim = heading(values[[2, 8]][:, None])[..., 0]  # [player, 2]
    for player, side in enumerate((1.0, -1.0)):
        x, y = values[6 * player : 6 * player + 2] * side
        ahead_x, ahead_y = aim[player] * side
        _disc(picture, x, y, PLAYER, pictures.INK)
        _disc(picture, x, y, PLAYER - 0.06, pictures.AGENTS[player])
        _disc(picture, x + 0.3 * ahead_x, y + 0.3 * ahead_y, 0.13, (255, 255, 255))
    _disc(picture, values[12], values[13], PUCK, pictures.INK)
    _disc(picture, values[12], values[13], PUCK - 0.08, (70, 76, 90))
    return picture


@cache
def _rink() -> pictures.Picture:
    wide, high = (round(2 * (half + _EDGE) * _SCALE) for half in (HALF_LENGTH, HALF_WIDTH))
    picture = np.full((high, wide, 3), pictures.WALL, np.uint8)
    _box(picture, -HALF_LENGTH, HALF_LENGTH, -HALF_WIDTH, HALF_WIDTH, pictures.PAPER)
    _box(picture, -0.03, 0.03, -HALF_WIDTH, HALF_WIDTH, (214, 208, 196))
    _disc(picture, 0.0, 0.0, 1.0, (214, 208, 196))
    _disc(picture, 0.0, 0.0, 0.94, pictures.PAPER)
    for player, side in enumerate((-1.0, 1.0)):
        end = side * HALF_LENGTH
        left, right = sorted((end, end + side * _EDGE))
        _box(picture, left, right, -MOUTH, MOUTH, pictures.AGENTS[player])
    return picture


def _pixel(x: float, y: float) -> tuple[float, float]:
    """Return row and column of a position; y points up."""
    return (HALF_WIDTH + _EDGE - y) * _SCALE, (x + HALF_LENGTH + _EDGE) * _SCALE


def _box(
    picture: pictures.Picture, left: float, right: float, low: float, high: float, colour: pictures.Colour
) -> None:
    (top, first), (bottom, last) = _pixel(left, high), _pixel(right, low)
    picture[round(top) : round(bottom), round(first) : round(last)] = colour


def _disc(picture: pictures.Picture, x: float, y: float, radius: float, colour: pictures.Colour) -> None:
    """Draw the part of an antialiased disc that lies in the picture."""
    row, column = _pixel(float(x), float(y))
    reach = radius * _SCALE
    top, left = max(int(row - reach) - 1, 0), max(int(column - reach) - 1, 0)
    bottom, right = (
        min(int(middle + reach) + 2, size) for middle, size in zip((row, column), picture.shape, strict=False)
    )
    down, over = np.ogrid[top:bottom, left:right]
    distance = np.sqrt((down + 0.5 - row) ** 2 + (over + 0.5 - column) ** 2)
    pictures.stamp(picture, top, left, np.clip(reach - distance + 0.5, 0, 1).astype(np.float32), colour)

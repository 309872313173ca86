"""Drawing of rooms: walls, doors, keys, blocks, humans and robots, 16 pixels per tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from motet.worlds import pictures
from motet.worlds.rooms.maps import RoomMap

if TYPE_CHECKING:
    from motet.worlds.rooms import State

__all__ = ["draw"]

_KEYS = ((214, 158, 46), (58, 134, 190), (176, 72, 120), (96, 150, 70), (120, 96, 170))  # by colour, a to e


def draw(plan: RoomMap, state: State) -> NDArray[np.uint8]:
    """Draw a state on a map, uint8 [16 * rows, 16 * columns, 3]."""
    _, agents, blocks, keys, doors = state
    size = pictures.TILE
    colours = np.full((plan.height * plan.width, 3), pictures.PAPER, np.uint8)
    colours[np.array(plan.walls, bool)] = pictures.WALL
    picture = pictures.ground(colours.reshape(plan.height, plan.width, 3))

    def mark(tile: int, mask: NDArray[np.float32], colour: tuple[int, int, int]) -> None:
        pictures.stamp(picture, tile // plan.width * size, tile % plan.width * size, mask, colour)

    for tile in plan.marked:
        mark(tile, pictures.diamond(0.5), (196, 218, 196))
    for door, tile in enumerate(plan.doors):
        mark(tile, _frame() if doors >> door & 1 else _boards(), _KEYS[plan.door_colours[door]])
    for tile in blocks:
        mark(tile, pictures.square(0.8), (150, 118, 84))
        mark(tile, pictures.square(0.55), (186, 152, 112))
    for key, tile in enumerate(keys):
        if tile >= 0:
            mark(tile, _key(), _KEYS[plan.key_colours[key]])
    for agent, tile in enumerate(agents):
        row, column = divmod(tile, plan.width)
        if agent < len(plan.humans):
            pictures.agent(picture, row, column, agent)
        else:
            pictures.robot(picture, row, column, agent)
        for key, holder in enumerate(keys):
            if holder == -1 - agent:
                mark(tile, pictures.disc(0.22, 0.45, 0.0), _KEYS[plan.key_colours[key]])
    return picture


def _boards() -> NDArray[np.float32]:
    return pictures._mask(lambda y, x: (np.abs(y) <= 0.95) & (np.abs(x) <= 0.95) & (np.abs((x * 1.5) % 1 - 0.5) < 0.44))


def _frame() -> NDArray[np.float32]:
    return pictures._mask(lambda y, x: np.maximum(np.abs(y), np.abs(x)) >= 0.78)


def _key() -> NDArray[np.float32]:
    def inside(y: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.bool_]:
        bow = np.abs(np.hypot(y, x + 0.4) - 0.25) <= 0.11
        shaft = (np.abs(y) <= 0.1) & (x >= -0.15) & (x <= 0.7)
        bit = (y >= 0) & (y <= 0.36) & ((np.abs(x - 0.6) <= 0.09) | (np.abs(x - 0.33) <= 0.09))
        inside: NDArray[np.bool_] = bow | shaft | bit
        return inside

    return pictures._mask(inside)

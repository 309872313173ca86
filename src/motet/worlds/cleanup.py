"""Cleanup: a public-goods dilemma. Apples grow only while agents keep the river clean.

The grid's outermost ring is wall; the river lies along the left, the orchard along the right, grass between them.
Agents cannot walk on the river. All agents act simultaneously; each turn resolves ties in a new random order. The
phases of a turn are:

1. Agents turn or move. A tile holds one agent. Walking onto an apple collects it (+1).
2. Beams. A beam is three rays side by side, which start at the tile ahead, are ``reach`` tiles long and end at a wall.
   *Clean* removes the nearest waste on each ray. *Zap* hits the nearest agent on each ray and costs ``zap_cost``. An
   agent that is hit pays ``zapped_cost`` once, however many beams hit it, and is out for ``out_turns`` turns, in which
   its actions have no effect. Zaps are simultaneous: two agents can zap each other, and an agent that is hit still
   cleans in that turn.
3. Nature. Agents whose time out is over return on a random free tile. With probability ``waste`` one clean river tile
   is polluted. Each empty orchard tile grows an apple with probability ``growth * (1 - pollution / threshold)``.
   Pollution is the polluted share of the river; if it is ``threshold`` or more, no apples grow.

A step takes one action of every agent and returns observations and rewards. The world is stored in ``_planes``, one
byte plane per channel padded by the radius, so that an observation is one strided copy, and in ``_who``, the agent on
each tile.
"""

from collections.abc import Iterable, Mapping
from operator import index as whole_number
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from motet.errors import NotReadyError, SettingError
from motet.seeds import freeze_rng, thaw_rng
from motet.worlds import pictures
from motet.worlds.contract import ParallelStep, WorldState, checked_render_mode, opened, real, timed_step, whole

__all__ = ["Cleanup"]

# Channels. Soil is orchard without an apple, water is river without waste; the rest overlays the ground.
WALL: Final = 0
WATER: Final = 1
WASTE: Final = 2
SOIL: Final = 3
APPLE: Final = 4
AGENT: Final = 5
CLEAN_BEAM: Final = 6
ZAP_BEAM: Final = 7
_CHANNELS = 8

# Actions. Moves are relative to the agent's view, in which ahead is up.
NOOP: Final = 0
UP: Final = 1
DOWN: Final = 2
LEFT: Final = 3
RIGHT: Final = 4
TURN_LEFT: Final = 5
TURN_RIGHT: Final = 6
CLEAN: Final = 7
ZAP: Final = 8
_ACTIONS = 9
_QUARTERS = {UP: 0, RIGHT: 1, DOWN: 2, LEFT: 3}  # clockwise from ahead

_FACINGS = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left on the grid: (down, right)


class Cleanup(ParallelEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """The Cleanup world, as a PettingZoo Parallel environment.

    Actions: 0 stay, 1 up, 2 down, 3 left, 4 right, 5 turn left, 6 turn right, 7 clean, 8 zap. An observation is uint8
    [8, 2 * radius + 1, 2 * radius + 1]: the window around the agent, turned so that ahead is up, with channels wall,
    water, waste, soil, apple, agent, clean beam, zap beam; the agent itself is in the middle. An agent that is out
    observes zeros.

    Args:
        agents: number of agents.
        height: number of rows of the grid, including its wall.
        width: number of columns of the grid, including its wall.
        radius: number of tiles that an agent sees in each direction.
        turns: number of turns in an episode.
        waste: probability per turn that one clean river tile is polluted.
        growth: probability per turn that an apple grows on an empty orchard tile while the river is clean.
        threshold: polluted share of the river at and above which no apples grow.
        reach: length of a beam in tiles.
        zap_cost: reward that an agent loses when it zaps.
        zapped_cost: reward that an agent loses when it is zapped.
        out_turns: number of turns that an agent is out after it was zapped.
        render_mode: ``rgb_array`` to draw pictures.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "cleanup_v0", "render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        agents: int = 10,
        height: int = 21,
        width: int = 31,
        radius: int = 5,
        turns: int = 1000,
        waste: float = 0.5,
        growth: float = 0.05,
        threshold: float = 0.4,
        reach: int = 5,
        zap_cost: float = 1.0,
        zapped_cost: float = 50.0,
        out_turns: int = 25,
        render_mode: str | None = None,
    ) -> None:
        self.height = whole("height", height, 3)
        self.width = whole("width", width, 6)
        self.radius = whole("radius", radius, 1)
        self.turns = whole("turns", turns, 1)
        self.waste = real("waste", waste, 0.0, 1.0)
        self.growth = real("growth", growth, 0.0, 1.0)
        self.threshold = real("threshold", threshold, 0.0, 1.0)
        if self.threshold == 0.0:
            raise SettingError("threshold must be a number > 0, got 0.0; for a world without apples, use growth=0")
        self.reach = whole("reach", reach, 1)
        self.zap_cost = real("zap_cost", zap_cost, 0.0)
        self.zapped_cost = real("zapped_cost", zapped_cost, 0.0)
        self.out_turns = whole("out_turns", out_turns, 0)
        self.render_mode = checked_render_mode(render_mode)
        count = whole("agents", agents, 1, 255)

        self._lay_out()
        if count > len(self._land):
            raise SettingError(
                f"agents must be at most {len(self._land)}, the walkable tiles of a grid of {self.height} x "
                f"{self.width}, got {count}; use fewer agents or a larger grid"
            )
        self.possible_agents = [f"agent_{index}" for index in range(count)]
        self.agents: list[str] = []
        view = 2 * self.radius + 1
        self.observation_spaces = {
            name: gymnasium.spaces.Box(0, 1, (_CHANNELS, view, view), np.uint8) for name in self.possible_agents
        }
        self.action_spaces = {name: gymnasium.spaces.Discrete(_ACTIONS) for name in self.possible_agents}
        self._rng = np.random.default_rng()
        self._at = [0] * count  # the tile of each agent; its last tile while it is out
        self._facing = [0] * count  # quarter turns clockwise from up
        self._out = [0] * count  # turns until the agent returns; 0: it is not out
        self._turn = -1  # before the first reset

    # PettingZoo

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.uint8]], dict[str, dict[str, Any]]]:
        """Begin an episode: a clean river, no apples, agents on random tiles.

        Without a seed the random stream continues.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        count = len(self._at)
        self._clear()
        at = self._rng.choice(self._land, count, replace=False).tolist()
        facing = self._rng.integers(0, 4, count).tolist()
        for index in range(count):
            self._enter(index, at[index], facing[index])
        self._turn = 0
        self.agents = self.possible_agents[:]
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> ParallelStep[NDArray[np.uint8]]:
        """Play one turn of all agents."""
        if not self.agents:
            raise NotReadyError("no episode is running: call reset() first")
        chosen = self._checked(actions)
        rewards = [0.0] * len(chosen)
        self._cells[CLEAN_BEAM:] = 0
        order = [index for index in self._rng.permutation(len(chosen)).tolist() if not self._out[index]]
        self._move(order, chosen, rewards)
        hit = self._zap(order, chosen, rewards)
        for index in order:
            if chosen[index] == CLEAN:
                self._clean(index)
        self._nature(hit)
        self._turn += 1

        names = self.agents
        over = self._turn == self.turns
        if over:
            self.agents = []
        return timed_step(names, self._observations(), rewards, over)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """Action space of an agent: nine actions."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.uint8]:
        """Return the whole world, uint8 [8, height, width], with the channels of an observation."""
        edge = self.radius
        planes = self._cells.reshape(_CHANNELS, self.height + 2 * edge, self._stride)
        return planes[:, edge : edge + self.height, edge : edge + self.width].copy()

    def render(self) -> NDArray[np.uint8] | None:
        """Draw a picture, uint8 [16 * height, 16 * width, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        if self.render_mode is None:
            return None
        planes = self.state().astype(bool)
        colours = np.full((self.height, self.width, 3), (238, 236, 220), np.uint8)
        for channel, colour in (
            (WALL, pictures.WALL),
            (WATER, (168, 206, 226)),
            (WASTE, (140, 138, 96)),
            (SOIL, (208, 224, 184)),
            (APPLE, (208, 224, 184)),
        ):
            colours[planes[channel]] = colour
        picture = pictures.ground(colours)
        tile = pictures.TILE
        for channel, colour in ((CLEAN_BEAM, (120, 220, 240)), (ZAP_BEAM, (246, 196, 60))):
            for row, column in np.argwhere(planes[channel]).tolist():
                pictures.stamp(picture, row * tile, column * tile, 0.55 * pictures.full(), colour)
        for row, column in np.argwhere(planes[APPLE]).tolist():
            pictures.stamp(picture, row * tile, column * tile, pictures.disc(0.55, 0.1), (200, 60, 56))
            pictures.stamp(picture, row * tile, column * tile, pictures.disc(0.2, -0.55, 0.2), (92, 140, 70))
        for index, spot in enumerate(self.positions()):
            if spot is not None:
                pictures.agent(picture, *spot, index, _FACINGS[self._facing[index]])
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # Inspecting and arranging the grid

    @property
    def pollution(self) -> float:
        """The polluted share of the river."""
        return float(np.count_nonzero(self._cells[WASTE][self._river])) / len(self._river)

    def positions(self) -> tuple[tuple[int, int] | None, ...]:
        """Return (row, column) of each agent, counted from the wall's top left corner; None if the agent is out."""
        tiles = (None if out else divmod(at, self._stride) for at, out in zip(self._at, self._out, strict=True))
        return tuple(None if tile is None else (tile[0] - self.radius, tile[1] - self.radius) for tile in tiles)

    def arrange(
        self,
        agents: Iterable[tuple[int, int, int]],
        apples: Iterable[tuple[int, int]] = (),
        waste: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Replace what is on the grid, for tests and demonstrations; turn and random stream do not change.

        An agent is (row, column, facing); facing is 0 up, 1 right, 2 down, 3 left.
        """
        if not self.agents:
            raise NotReadyError("no episode is running: call reset() first")
        placed = [(self._tile(row, column, self._land, "land"), whole("facing", f, 0, 3)) for row, column, f in agents]
        grown = [self._tile(row, column, self._orchard, "orchard") for row, column in apples]
        dirty = [self._tile(row, column, self._river, "river") for row, column in waste]
        if len(placed) != len(self._at):
            raise SettingError(f"agents must have {len(self._at)} positions, one for each agent, got {len(placed)}")
        taken = [tile for tile, _ in placed] + grown
        if len(set(taken)) != len(taken):
            raise SettingError("agents and apples must be on different tiles, got one tile twice")
        self._clear()
        for tile in grown:
            self._become(tile, SOIL, APPLE)
        for tile in set(dirty):
            self._become(tile, WATER, WASTE)
        for index, (tile, facing) in enumerate(placed):
            self._enter(index, tile, facing)

    # States

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
        if self._turn < 0:
            raise NotReadyError("there is no state yet: call reset() first")
        return (
            self._header(),
            freeze_rng(self._rng),
            bytes(self._planes),
            (tuple(self._at), tuple(self._facing), tuple(self._out)),
            self._turn,
        )

    def set_state(self, state: WorldState) -> None:
        """Continue from a state of a world with the same settings, bit for bit."""
        rng, planes, (at, facing, out), turn = opened(state, self._header())
        self._rng = thaw_rng(rng)
        self._planes[:] = planes
        self._at, self._facing, self._out = list(at), list(facing), list(out)
        self._who[:] = bytes(len(self._who))
        for index, tile in enumerate(self._at):
            if not self._out[index]:
                self._who[tile] = index + 1
        self._turn = turn
        self.agents = [] if turn == self.turns else self.possible_agents[:]

    # Internals

    def _header(self) -> WorldState:
        grid = (len(self.possible_agents), self.height, self.width, self.radius, self.turns)
        rules = (self.waste, self.growth, self.threshold, self.reach, self.zap_cost, self.zapped_cost, self.out_turns)
        return ("cleanup", grid, rules)

    def _lay_out(self) -> None:
        """Make the arrays, the tile indices of river, orchard and land, and a window for every tile and facing."""
        edge, stride = self.radius, self.width + 2 * self.radius
        plane = (self.height + 2 * edge) * stride
        ground = np.zeros((_CHANNELS, self.height + 2 * edge, stride), np.uint8)
        ground[WALL] = 1
        inside = ground[:, edge + 1 : edge + self.height - 1, edge + 1 : edge + self.width - 1]
        inside[WALL] = 0
        inside[WATER, :, : self.width // 6] = 1
        inside[SOIL, :, -(self.width // 3) :] = 1
        self._river = np.flatnonzero(ground[WATER])
        self._orchard = np.flatnonzero(ground[SOIL])
        self._land = np.flatnonzero((ground[WALL] | ground[WATER]) == 0)

        self._stride, self._plane = stride, plane
        self._bare = ground.tobytes()
        self._planes = bytearray(self._bare)  # [channel, plane]
        self._cells = np.frombuffer(self._planes, np.uint8).reshape(_CHANNELS, plane)
        self._who = bytearray(plane)  # 1 + index of the agent on each tile; 0 without one
        self._who_cells = np.frombuffer(self._who, np.uint8)
        self._ahead = tuple(down * stride + right for down, right in _FACINGS)

        # Strides rotate a window: one row up is one tile ahead, the next column is one tile to the right.
        view = 2 * self.radius + 1
        self._first = edge * (stride + 1)  # the tile of the grid's top left corner
        last = plane - 1 - self._first
        self._windows = tuple(
            np.ndarray(
                (last - self._first + 1, _CHANNELS, view, view),
                np.uint8,
                buffer=self._planes,
                offset=self._first + self.radius * (ahead - right),
                strides=(1, plane, -ahead, right),
            )
            for ahead, right in zip(self._ahead, self._ahead[1:] + self._ahead[:1], strict=True)
        )

    def _tile(self, row: int, column: int, among: NDArray[np.intp], what: str) -> int:
        """Return the index of tile (row, column) in the padded grid. Raise unless the tile is one of ``among``."""
        tile = (row + self.radius) * self._stride + column + self.radius
        if not (0 <= row < self.height and 0 <= column < self.width and tile in among):
            raise SettingError(
                f"position must be a tile of the {what} in the {self.height} x {self.width} grid, got ({row}, {column})"
            )
        return tile

    def _checked(self, actions: Mapping[str, int]) -> list[int]:
        """Return the actions in the order of the agents; raise unless all are valid."""
        if len(actions) != len(self.agents):
            raise SettingError(f"actions must be given for each of {self.agents}, got {sorted(actions)}")
        try:
            chosen = [whole_number(actions[name]) for name in self.agents]
        except KeyError as missing:
            raise SettingError(f"actions must be given for each agent, got none for {missing.args[0]}") from None
        except TypeError:
            raise SettingError(f"the actions must be ints from 0 to 8, got {dict(actions)!r}") from None
        for name, action in zip(self.agents, chosen, strict=True):
            if not 0 <= action < _ACTIONS:
                raise SettingError(f"the action of {name} must be an int from 0 to 8, got {action}")
        return chosen

    def _clear(self) -> None:
        """Reset the grid to bare ground without agents."""
        self._planes[:] = self._bare
        self._who[:] = bytes(len(self._who))

    def _become(self, tile: int, before: int, after: int) -> None:
        self._planes[before * self._plane + tile] = 0
        self._planes[after * self._plane + tile] = 1

    def _enter(self, index: int, tile: int, facing: int) -> None:
        self._at[index], self._facing[index], self._out[index] = tile, facing, 0
        self._who[tile] = index + 1
        self._planes[AGENT * self._plane + tile] = 1

    def _leave(self, index: int) -> None:
        tile = self._at[index]
        self._who[tile] = 0
        self._planes[AGENT * self._plane + tile] = 0

    def _move(self, order: list[int], chosen: list[int], rewards: list[float]) -> None:
        """Phase 1: agents turn, move and collect apples."""
        planes, plane = self._planes, self._plane
        for index in order:
            action = chosen[index]
            facing = self._facing[index]
            if action == TURN_LEFT:
                self._facing[index] = (facing + 3) % 4
            elif action == TURN_RIGHT:
                self._facing[index] = (facing + 1) % 4
            elif action in _QUARTERS:
                there = self._at[index] + self._ahead[(facing + _QUARTERS[action]) % 4]
                blocked = planes[there] or planes[WATER * plane + there] or planes[WASTE * plane + there]
                if blocked or self._who[there]:
                    continue
                self._leave(index)
                self._enter(index, there, facing)
                if planes[APPLE * plane + there]:
                    self._become(there, APPLE, SOIL)
                    rewards[index] += 1.0

    def _rays(self, index: int, beam: int, stops: bytearray, base: int) -> list[int]:
        """Draw an agent's three rays; return the tiles at which the rays hit a byte that is set in ``stops``.

        The byte of a tile is at ``base`` plus the tile's index. A ray ends at the first tile whose byte is set.
        """
        planes = self._planes
        facing = self._facing[index]
        ahead, right = self._ahead[facing], self._ahead[(facing + 1) % 4]
        lit = beam * self._plane
        met = []
        for side in (-right, 0, right):
            tile = self._at[index] + side
            for _ in range(self.reach):
                tile += ahead
                if planes[tile]:  # the first plane is WALL
                    break
                planes[lit + tile] = 1
                if stops[base + tile]:
                    met.append(tile)
                    break
        return met

    def _zap(self, order: list[int], chosen: list[int], rewards: list[float]) -> list[int]:
        """Phase 2: return the agents that are hit, sorted. Agents leave the grid only after all have fired."""
        hit: set[int] = set()
        for index in order:
            if chosen[index] == ZAP:
                rewards[index] -= self.zap_cost
                hit.update(self._who[tile] - 1 for tile in self._rays(index, ZAP_BEAM, self._who, 0))
        for index in hit:
            rewards[index] -= self.zapped_cost
        return sorted(hit)

    def _clean(self, index: int) -> None:
        """Phase 2: remove the nearest waste on each ray."""
        for tile in self._rays(index, CLEAN_BEAM, self._planes, WASTE * self._plane):
            self._become(tile, WASTE, WATER)

    def _nature(self, hit: list[int]) -> None:
        """Phase 3: agents leave and return, the river is polluted, apples grow."""
        for index, turns in enumerate(self._out):
            if turns:
                self._out[index] = turns - 1
                if turns == 1:
                    self._return(index)
        if self.out_turns:
            for index in hit:
                self._leave(index)
                self._out[index] = self.out_turns
        if self._rng.random() < self.waste:
            clear = self._river[self._cells[WATER][self._river] == 1]
            if len(clear):
                self._become(int(clear[self._rng.integers(len(clear))]), WATER, WASTE)
        chance = self.growth * (1.0 - self.pollution / self.threshold)
        if chance > 0.0:
            grown = self._orchard[self._rng.random(len(self._orchard)) < chance]
            grown = grown[self._who_cells[grown] == 0]
            self._cells[APPLE, grown] = 1
            self._cells[SOIL, grown] = 0

    def _return(self, index: int) -> None:
        """Return an agent to a random free tile with a random facing; without a free tile it waits another turn."""
        free = self._land[(self._who_cells[self._land] | self._cells[APPLE, self._land]) == 0]
        if len(free):
            self._enter(index, int(free[self._rng.integers(len(free))]), int(self._rng.integers(4)))
        else:
            self._out[index] = 1

    def _observations(self) -> dict[str, NDArray[np.uint8]]:
        """Return each agent's observation as a new array."""
        first = self._first
        return {
            name: np.zeros(self.observation_spaces[name].shape, np.uint8)
            if self._out[index]
            else self._windows[self._facing[index]][self._at[index] - first].copy()
            for index, name in enumerate(self.possible_agents)
        }

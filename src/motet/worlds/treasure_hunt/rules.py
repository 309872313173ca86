"""The rules of the treasure hunt, for K worlds that step together.

Flows in: one action in each world of the agent whose move it is. Flows out: what it earned, whose episode is over, and
on demand what an agent sees. A world takes no notice of the others: each has its own random stream, so that its episode
is a function of its seed and its actions alone.

The worlds are rooms of one tall grid, each a square walled by its own border and padded by the radius: a tile has one
number, its *index*, whichever world it is in. There are two byte arrays, ``_kinds``, the kind of each tile, for the
rules; and ``_planes``, one-hot, one plane a kind, so that what an agent sees in all worlds is one strided gather. A
move is some ten operations on single bytes, in a loop over worlds: with the 1 to 16 worlds of an actor that costs less
than, or as much as, ten operations on arrays; with 32 and more it costs more.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.world import VectorWorld
from motet.worlds.contract import WorldState, freeze_rng, opened, real, thaw_rng, whole

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunts", "refused"]

EMPTY: Final = 0
WALL: Final = 1
AGENT: Final = 2
GEM: Final = 3
FOOD: Final = 4
BONE: Final = 5

_KINDS = 6
_SHOWN = np.arange(WALL, _KINDS, dtype=np.uint8)[:, None]  # An empty tile is zero in all channels of an observation.
_REWARDS = (0.0, -1.0, 0.0, 10.0, 5.0, -10.0)  # by the kind of the tile walked into
_BLOCK = 256  # how many future spawns are drawn at once


class TreasureHunts(VectorWorld):
    """K treasure hunts that step together; the settings are those of ``TreasureHunt``.

    >>> hunts = TreasureHunts(worlds=16, agents=2)
    >>> hunts.reset(range(16), seeds=range(16))
    >>> hunts.group(), hunts.observe(0).shape
    ((0,), (16, 5, 5, 5))
    >>> hunts.act([np.zeros(16, int)])
    >>> hunts.group(), hunts.reward(0).shape
    ((1,), (16,))
    """

    can_save = True

    def __init__(
        self,
        worlds: int,
        agents: int = 2,
        size: int = 21,
        radius: int = 2,
        turns: int = 100,
        spawn: float = 0.005,
    ) -> None:
        self.worlds = whole("worlds", worlds, 1)
        self.size = whole("size", size, 3)
        self.radius = whole("radius", radius, 1)
        self.turns = whole("turns", turns, 1)
        self.spawn = real("spawn", spawn, 0.0, 1.0)
        self.inner = self.size - 2
        """Tiles to walk on, along a side."""
        self._tiles = self.inner**2
        count = whole("agents", agents, 1)
        if count > self._tiles:
            raise SettingError(
                f"agents is {count}, but size {self.size} has {self._tiles} tiles to walk on: "
                "take fewer or a larger size"
            )
        self.agents = tuple(f"agent_{index}" for index in range(count))
        view = 2 * self.radius + 1
        shape = (len(_SHOWN), view, view)
        self.observation_spaces = tuple(gymnasium.spaces.Box(0, 1, shape, np.uint8) for _ in self.agents)
        self.action_spaces = tuple(gymnasium.spaces.Discrete(4) for _ in self.agents)
        self._groups = tuple((index,) for index in range(count))

        self._width = width = self.size + 2 * self.radius  # of a room
        self._area = width * width
        plane = self.worlds * self._area
        bare = np.full((width, width), WALL, np.uint8)
        bare[self.radius + 1 : -self.radius - 1, self.radius + 1 : -self.radius - 1] = EMPTY
        self._floor = np.flatnonzero(bare == EMPTY)  # of the tiles to walk on, in the first room
        self._bare = bare.tobytes()
        self._kinds = bytearray(self._bare * self.worlds)
        self._planes = bytearray(_KINDS * plane)  # that of EMPTY is never set: zero may be written without a question
        self._channels = tuple(kind * plane for kind in range(_KINDS))  # where the plane of each kind begins
        self._rooms = np.frombuffer(self._kinds, np.uint8).reshape(self.worlds, self._area)
        shown = memoryview(self._planes)[plane:]
        self._cells = np.frombuffer(shown, np.bool_).reshape(len(_SHOWN), self.worlds, self._area)
        # Windows of the planes behind that of EMPTY, by the index in the middle. Those around a room's padding reach
        # beyond it: nobody stands there.
        margin = self.radius * (width + 1)
        self.windows: NDArray[np.uint8] = np.ndarray(
            (plane - margin, *shape),
            np.uint8,
            buffer=self._planes,
            offset=self._channels[WALL] - margin,
            strides=(1, plane, width, 1),
        )
        """What would be seen from each index, uint8 [indices, 5, view, view]; not a copy."""

        self.at = [[0] * self.worlds for _ in self.agents]
        """The index of each agent in each world."""
        self.turn = [self.turns] * self.worlds
        """How many turns of its episode are complete, by world."""
        self.mover = 0
        """Whose move it is, in all worlds."""
        self.earned = [0.0] * self.worlds
        """What the last move paid, by world."""
        steps = {0: -width, 1: width, 2: -1, 3: 1}  # by action
        self._board = self._kinds, self._planes, self._channels, self._channels[AGENT], steps, self.earned
        self.over = set(range(self.worlds))
        """Worlds that wait for a reset."""
        self._earner = -1  # who made the last move
        self._rngs = [np.random.default_rng() for _ in range(self.worlds)]
        # Spawns to come by world, the nearest one last: (trial, index, kind); trials count turn by turn, tile by tile.
        self._due: list[list[tuple[int, int, int]]] = [[] for _ in range(self.worlds)]
        self._nothing, self._nowhere = np.zeros(self.worlds), np.zeros(self.worlds, np.bool_)
        self._nothing.flags.writeable = self._nowhere.flags.writeable = False

    # VectorWorld

    def reset(self, worlds: Iterable[int], seeds: Sequence[int] | None = None) -> None:
        """Begin an episode in some worlds, its first turn included: the first agent may look.

        Without seeds their streams go on. Some worlds alone can be reset between two turns only.
        """
        chosen = [int(world) for world in worlds]
        if self.mover and len(chosen) < self.worlds:
            raise NotReadyError(
                f"{len(chosen)} of {self.worlds} worlds are reset in the middle of a turn, when agent {self.mover} is "
                "to move: reset all of them, or wait for the end of the turn"
            )
        self.mover, self._earner = 0, -1
        for number, world in enumerate(chosen):
            if seeds is not None:
                self._rngs[world] = np.random.default_rng(seeds[number])
            tiles = self._rngs[world].choice(self._tiles, len(self.agents), replace=False)
            indices = (self._floor[tiles] + world * self._area).tolist()
            self.lay(world, dict.fromkeys(indices, AGENT))
            for at, index in zip(self.at, indices, strict=True):
                at[world] = index
            self.turn[world] = 0
            self.over.discard(world)
            self._draw_spawns(world, -1)
            self._let_things_appear(world)

    def group(self) -> tuple[int]:
        """The agent whose move it is."""
        return self._groups[self.mover]

    def observe(self, agent: int) -> NDArray[np.uint8]:
        """What an agent sees in all worlds, uint8 [K, 5, view, view]."""
        seen: NDArray[np.uint8] = self.windows[np.array(self.at[agent])]
        return seen

    def act(self, actions: Sequence[NDArray[Any]]) -> None:
        """Play the actions [K] of the agent whose move it is."""
        (chosen,) = actions
        if chosen.shape != (self.worlds,):
            raise SettingError(f"actions must be one for each of {self.worlds} worlds, got the shape {chosen.shape}")
        self.move(chosen.tolist())

    def earners(self) -> tuple[int]:
        """Only the agent that moved earns."""
        return self._groups[self._earner]

    def reward(self, agent: int) -> NDArray[np.float64]:
        """What an agent earned by the last move: nothing, unless it was its own."""
        return np.array(self.earned) if agent == self._earner else self._nothing

    def ended(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """No world terminates; those that have played all turns are cut off."""
        if not self.over:
            return self._nowhere, self._nowhere
        truncated = np.zeros(self.worlds, np.bool_)
        truncated[list(self.over)] = True
        return self._nowhere, truncated

    def get_state(self) -> WorldState:
        """Everything that decides what happens next, as nested tuples of plain values."""
        if not all(self._due):
            raise NotReadyError("there is no state yet: call reset() first")
        return (
            self._header(),
            tuple(freeze_rng(rng) for rng in self._rngs),
            self.kinds,
            tuple(tuple(at) for at in self.at),
            (tuple(self.turn), self.mover),
            tuple((tuple(trial for trial, _, _ in due), tuple(kind for _, _, kind in due)) for due in self._due),
        )

    def set_state(self, state: WorldState) -> None:
        """Go on from a snapshot of worlds with the same settings, bit for bit."""
        rngs, kinds, at, (turn, mover), due = opened(state, self._header())
        self._rngs = [thaw_rng(rng) for rng in rngs]
        for world, (trials, loot) in enumerate(due):
            self._due[world] = self._located(world, np.array(trials), list(loot))
        self.restore(kinds, at, turn, mover)

    # For the single environment

    def move(self, actions: Sequence[int]) -> None:
        """Play one action in each world; after the last agent's move the next turn begins."""
        if self.over:
            raise NotReadyError("no episode is running: call reset() first")
        kinds, planes, channels, agent_plane, steps, earned = self._board
        at = self.at[self.mover]
        for world, action in enumerate(actions):
            here = at[world]
            try:
                there = here + steps[action]
            except KeyError:
                raise refused(action) from None
            kind = kinds[there]
            earned[world] = _REWARDS[kind]
            if kind != WALL and kind != AGENT:
                at[world] = there
                kinds[here] = EMPTY
                kinds[there] = AGENT
                planes[agent_plane + here] = 0
                planes[channels[kind] + there] = 0
                planes[agent_plane + there] = 1
        self._earner = self.mover
        self.mover += 1
        if self.mover == len(self.at):
            self.mover = 0
            self._begin_turn()

    def index_of(self, world: int, row: int, column: int) -> int:
        """The index of a tile, the border's top left corner being (0, 0)."""
        return world * self._area + (row + self.radius) * self._width + column + self.radius

    def lay(self, world: int, kinds: Mapping[int, int]) -> None:
        """Empty a room, then put down the given kinds by index."""
        first = world * self._area
        self._kinds[first : first + self._area] = self._bare
        for index, kind in kinds.items():
            self._kinds[index] = kind
        self._show(world)

    def restore(self, kinds: bytes, at: Sequence[Sequence[int]], turn: Sequence[int], mover: int) -> None:
        """Put all worlds into a state; what will appear in them stays as it is."""
        self._kinds[:] = kinds
        for mine, given in zip(self.at, at, strict=True):
            mine[:] = given
        self.turn[:] = turn
        self.mover, self._earner = mover, -1
        self.over = {world for world in range(self.worlds) if self.turn[world] == self.turns}
        for world in range(self.worlds):
            self._show(world)

    @property
    def kinds(self) -> bytes:
        """The kinds of all tiles, by index."""
        return bytes(self._kinds)

    def tiles(self, world: int) -> NDArray[np.uint8]:
        """The kind of every tile, uint8 [size, size]."""
        return self._cut(self._rooms[world])

    def planes(self, world: int) -> NDArray[np.uint8]:
        """A whole world as observations show it, uint8 [5, size, size]."""
        return self._cut(self._cells[:, world].view(np.uint8))

    def tile(self, index: int) -> tuple[int, int]:
        """Row and column of a tile in its world, by its index."""
        row, column = divmod(index % self._area, self._width)
        return row - self.radius, column - self.radius

    # Machinery

    def _header(self) -> WorldState:
        return ("treasure_hunt", self.worlds, len(self.agents), self.size, self.radius, self.turns, self.spawn)

    def _cut(self, rooms: NDArray[np.uint8]) -> NDArray[np.uint8]:
        edge = slice(self.radius, self.radius + self.size)
        return rooms.reshape(*rooms.shape[:-1], self._width, self._width)[..., edge, edge].copy()

    def _show(self, world: int) -> None:
        """Make the planes of a room those of its kinds."""
        np.equal(self._rooms[world], _SHOWN, out=self._cells[:, world])

    def _begin_turn(self) -> None:
        """A turn is complete: worlds end, or things appear in them."""
        turn = self.turn
        for world in range(self.worlds):
            turn[world] += 1
            if turn[world] == self.turns:
                self.over.add(world)
            else:
                self._let_things_appear(world)

    def _draw_spawns(self, world: int, last: int) -> None:
        """Draw the next block of a world's spawns, those after trial ``last``.

        Number the trials of an episode turn by turn and tile by tile. If every trial, those of tiles that turn out to
        be occupied included, succeeds independently with probability p, then the gaps between successes are
        independent and geometric, so drawing the gaps draws the trials, at the price of the successes alone. A
        success on an occupied tile is ignored; what is left is, for each empty tile, an independent trial with p:
        exactly the rule. The block's length does not matter, and what an episode leaves unused tells nothing about
        the next one's trials.
        """
        trials = self.turns * self._tiles  # of an episode: what comes later never happens
        if self.spawn == 0.0:
            self._due[world] = [(trials, 0, EMPTY)]
            return
        rng = self._rngs[world]
        gaps = np.minimum(rng.geometric(self.spawn, _BLOCK), trials + 1)  # as much as a sum can hold
        loot = rng.integers(GEM, BONE + 1, _BLOCK)
        self._due[world] = self._located(world, last + gaps.cumsum()[::-1], loot.tolist())

    def _located(self, world: int, trials: NDArray[np.int64], loot: list[int]) -> list[tuple[int, int, int]]:
        """Trials with the indices of their tiles and what appears there."""
        indices = self._floor[trials % self._tiles] + world * self._area
        return list(zip(trials.tolist(), indices.tolist(), loot, strict=True))

    def _let_things_appear(self, world: int) -> None:
        """The spawn that begins a turn."""
        due, end = self._due[world], (self.turn[world] + 1) * self._tiles
        while due[-1][0] < end:
            trial, index, kind = due.pop()
            if not due:
                self._draw_spawns(world, trial)
                due = self._due[world]
            if self._kinds[index] == EMPTY:
                self._kinds[index] = kind
                self._planes[self._channels[kind] + index] = 1


def refused(action: Any) -> SettingError:
    """What is said of something that is no action."""
    return SettingError(f"the action must be 0 (up), 1 (down), 2 (left) or 3 (right), got {action!r}")

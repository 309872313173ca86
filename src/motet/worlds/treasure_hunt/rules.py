"""The rules of the treasure hunt, for K worlds that step together.

A step takes in each world the action of the agent whose move it is. It yields rewards, the worlds whose episode is
over, and observations. Worlds are independent: each has a separate random stream, so that its seed and its actions
alone determine its episode.

The worlds are rooms of one tall grid. Each is a walled square, padded by the radius. A tile has an *index* that is
unique over all worlds. There are two byte arrays: ``_kinds``, the kind of each tile, for the rules; and ``_planes``,
one-hot with one plane per kind, so that the observations of an agent in all worlds are one strided gather. A move is
about ten operations on single bytes, in a loop over worlds. With the 1 to 16 worlds of an actor this is at least as
fast as ten operations on arrays; with 32 or more it is slower.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.seeds import freeze_rng, thaw_rng
from motet.world import VectorWorld
from motet.worlds.contract import WorldState, opened, real, whole

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunts", "refused"]

EMPTY: Final = 0
WALL: Final = 1
AGENT: Final = 2
GEM: Final = 3
FOOD: Final = 4
BONE: Final = 5

_KINDS = 6
_SHOWN = np.arange(WALL, _KINDS, dtype=np.uint8)[:, None]  # an empty tile is zero in all channels of an observation
_REWARDS = (0.0, -1.0, 0.0, 10.0, 5.0, -10.0)  # by the kind of the tile that an agent enters
_BLOCK = 256  # number of future spawns that are drawn at once


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
        """Walkable tiles along a side."""
        self._tiles = self.inner**2
        count = whole("agents", agents, 1)
        if count > self._tiles:
            raise SettingError(
                f"agents must be at most {self._tiles}, the walkable tiles of a grid of size {self.size}, got {count}; "
                "use fewer agents or a larger size"
            )
        self.agents = tuple(f"agent_{index}" for index in range(count))
        view = 2 * self.radius + 1
        shape = (len(_SHOWN), view, view)
        self.observation_spaces = tuple(gymnasium.spaces.Box(0, 1, shape, np.uint8) for _ in self.agents)
        self.action_spaces = tuple(gymnasium.spaces.Discrete(4) for _ in self.agents)
        self._groups = tuple((index,) for index in range(count))

        self._width = width = self.size + 2 * self.radius  # width of a room
        self._area = width * width
        plane = self.worlds * self._area
        bare = np.full((width, width), WALL, np.uint8)
        bare[self.radius + 1 : -self.radius - 1, self.radius + 1 : -self.radius - 1] = EMPTY
        self._floor = np.flatnonzero(bare == EMPTY)  # indices of the walkable tiles in the first room
        self._bare = bare.tobytes()
        self._kinds = bytearray(self._bare * self.worlds)
        self._planes = bytearray(_KINDS * plane)  # the plane of EMPTY is always 0, so moves clear it without a check
        self._channels = tuple(kind * plane for kind in range(_KINDS))  # offset of the plane of each kind
        self._rooms = np.frombuffer(self._kinds, np.uint8).reshape(self.worlds, self._area)
        shown = memoryview(self._planes)[plane:]
        self._cells = np.frombuffer(shown, np.bool_).reshape(len(_SHOWN), self.worlds, self._area)
        # Windows of the planes after that of EMPTY, by the index of their middle tile. Windows around the padding of a
        # room reach beyond the room, but no agent is ever there.
        margin = self.radius * (width + 1)
        self.windows: NDArray[np.uint8] = np.ndarray(
            (plane - margin, *shape),
            np.uint8,
            buffer=self._planes,
            offset=self._channels[WALL] - margin,
            strides=(1, plane, width, 1),
        )
        """Observations from each index, uint8 [indices, 5, view, view]; a view, not a copy."""

        self.at = [[0] * self.worlds for _ in self.agents]
        """Index of the tile of each agent in each world."""
        self.turn = [self.turns] * self.worlds
        """Number of complete turns in the episode, by world."""
        self.mover = 0
        """Agent whose move it is, in all worlds."""
        self.earned = [0.0] * self.worlds
        """Reward of the last move, by world."""
        steps = {0: -width, 1: width, 2: -1, 3: 1}  # by action
        self._board = self._kinds, self._planes, self._channels, self._channels[AGENT], steps, self.earned
        self.over = set(range(self.worlds))
        """Worlds that need a reset."""
        self._earner = -1  # the agent that made the last move
        self._rngs = [np.random.default_rng() for _ in range(self.worlds)]
        # Future spawns by world, the next one last: (trial, index, kind). Trials are numbered by turn, then by tile.
        self._due: list[list[tuple[int, int, int]]] = [[] for _ in range(self.worlds)]
        self._nothing, self._nowhere = np.zeros(self.worlds), np.zeros(self.worlds, np.bool_)
        self._nothing.flags.writeable = self._nowhere.flags.writeable = False

    # VectorWorld

    def reset(self, worlds: Iterable[int], seeds: Sequence[int] | None = None) -> None:
        """Begin an episode and its first turn in some worlds, so that the first agent can observe.

        Without seeds the random streams continue. A reset of some worlds only is possible only between two turns.
        """
        chosen = [int(world) for world in worlds]
        if self.mover and len(chosen) < self.worlds:
            raise NotReadyError(
                f"cannot reset {len(chosen)} of {self.worlds} worlds in the middle of a turn (agent {self.mover} is "
                "next to move); reset all of them, or wait for the end of the turn"
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
        """Return the agent whose move it is."""
        return self._groups[self.mover]

    def observe(self, agent: int) -> NDArray[np.uint8]:
        """Return an agent's observations in all worlds, uint8 [K, 5, view, view]."""
        seen: NDArray[np.uint8] = self.windows[np.array(self.at[agent])]
        return seen

    def act(self, actions: Sequence[NDArray[Any]]) -> None:
        """Play the actions [K] of the agent whose move it is."""
        (chosen,) = actions
        if chosen.shape != (self.worlds,):
            raise SettingError(f"actions must have the shape ({self.worlds},), one per world, got {chosen.shape}")
        self.move(chosen.tolist())

    def earners(self) -> tuple[int]:
        """Return the agent that moved, which alone can get a reward."""
        return self._groups[self._earner]

    def reward(self, agent: int) -> NDArray[np.float64]:
        """Return an agent's rewards of the last move; zeros if another agent moved."""
        return np.array(self.earned) if agent == self._earner else self._nothing

    def ended(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which worlds terminated (none ever does) and which were truncated after their last turn."""
        if not self.over:
            return self._nowhere, self._nowhere
        truncated = np.zeros(self.worlds, np.bool_)
        truncated[list(self.over)] = True
        return self._nowhere, truncated

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
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
        """Continue from a state of worlds with the same settings, bit for bit."""
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
        """Return the index of a tile; row and column count from the wall's top left corner."""
        return world * self._area + (row + self.radius) * self._width + column + self.radius

    def lay(self, world: int, kinds: Mapping[int, int]) -> None:
        """Empty a room, then set the given kinds by index."""
        first = world * self._area
        self._kinds[first : first + self._area] = self._bare
        for index, kind in kinds.items():
            self._kinds[index] = kind
        self._show(world)

    def restore(self, kinds: bytes, at: Sequence[Sequence[int]], turn: Sequence[int], mover: int) -> None:
        """Put all worlds into a state; their future spawns do not change."""
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
        """Kinds of all tiles, by index."""
        return bytes(self._kinds)

    def tiles(self, world: int) -> NDArray[np.uint8]:
        """Return the kind of every tile, uint8 [size, size]."""
        return self._cut(self._rooms[world])

    def planes(self, world: int) -> NDArray[np.uint8]:
        """Return a whole world in the form of an observation, uint8 [5, size, size]."""
        return self._cut(self._cells[:, world].view(np.uint8))

    def tile(self, index: int) -> tuple[int, int]:
        """Return row and column of a tile in its world, given its index."""
        row, column = divmod(index % self._area, self._width)
        return row - self.radius, column - self.radius

    # Internals

    def _header(self) -> WorldState:
        return ("treasure_hunt", self.worlds, len(self.agents), self.size, self.radius, self.turns, self.spawn)

    def _cut(self, rooms: NDArray[np.uint8]) -> NDArray[np.uint8]:
        edge = slice(self.radius, self.radius + self.size)
        return rooms.reshape(*rooms.shape[:-1], self._width, self._width)[..., edge, edge].copy()

    def _show(self, world: int) -> None:
        """Set the planes of a room from its kinds."""
        np.equal(self._rooms[world], _SHOWN, out=self._cells[:, world])

    def _begin_turn(self) -> None:
        """Count a complete turn: the episodes of worlds end, or items appear in them."""
        turn = self.turn
        for world in range(self.worlds):
            turn[world] += 1
            if turn[world] == self.turns:
                self.over.add(world)
            else:
                self._let_things_appear(world)

    def _draw_spawns(self, world: int, last: int) -> None:
        """Draw the next block of a world's spawns, those after trial ``last``.

        The trials of an episode are numbered by turn, then by tile. If every trial, also that of an occupied tile,
        succeeds independently with probability p, then the gaps between successes are independent and geometric. So it
        suffices to draw the gaps, which costs only as much as the successes. A success on an occupied tile is ignored;
        what remains is an independent trial with p for each empty tile, which is exactly the rule. The length of a
        block does not matter, and unused spawns of an episode carry no information about the trials of the next one.
        """
        trials = self.turns * self._tiles  # trials of an episode; later ones never happen
        if self.spawn == 0.0:
            self._due[world] = [(trials, 0, EMPTY)]
            return
        rng = self._rngs[world]
        # longer gaps are cut, so that the sum does not overflow
        gaps = np.minimum(rng.geometric(self.spawn, _BLOCK), trials + 1)
        loot = rng.integers(GEM, BONE + 1, _BLOCK)
        self._due[world] = self._located(world, last + gaps.cumsum()[::-1], loot.tolist())

    def _located(self, world: int, trials: NDArray[np.int64], loot: list[int]) -> list[tuple[int, int, int]]:
        """Return trials with the indices of their tiles and the kinds that appear there."""
        indices = self._floor[trials % self._tiles] + world * self._area
        return list(zip(trials.tolist(), indices.tolist(), loot, strict=True))

    def _let_things_appear(self, world: int) -> None:
        """Let the items of a new turn appear."""
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
    """Return the error for an invalid action."""
    return SettingError(f"action must be 0 (up), 1 (down), 2 (left) or 3 (right), got {action!r}")

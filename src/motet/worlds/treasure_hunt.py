"""Treasure hunt: agents walk a walled grid in turn and pick up what has appeared there.

A turn goes: things appear (entities first), then each agent in its order observes, acts and changes the world before
the next one observes. The grid's outermost ring is wall. Every empty tile gets, with probability ``spawn`` a turn, a
gem (+10), food (+5) or a bone (-10), equally likely; walking onto it collects it. Walking into a wall costs 1 and
leaves the agent where it is; walking into another agent leaves it where it is. After ``turns`` turns the episode is
truncated.

Flows in: one action at a time, of the agent whose move it is. Flows out: its reward, and on demand a window of the
world. The world is two byte arrays, padded by the radius on all sides: ``_kinds``, the kind of each tile, for the
rules; and ``_planes``, one-hot, one plane a kind, so that an observation is one strided copy. ``_put`` is the only
writer of both.
"""

from collections.abc import Iterable
from itertools import accumulate
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv

from motet.errors import MotetError, NotReadyError, SettingError
from motet.worlds import _picture
from motet.worlds._contract import Snapshot, checked_render_mode, freeze_rng, opened, real, thaw_rng, whole

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunt"]

EMPTY: Final = 0
WALL: Final = 1
AGENT: Final = 2
GEM: Final = 3
FOOD: Final = 4
BONE: Final = 5

_CHANNELS = 5  # Kind k is channel k - 1; an empty tile is zero in all of them.
_REWARDS = (0.0, -1.0, 0.0, 10.0, 5.0, -10.0)  # by the kind of the tile walked into
_BLOCK = 256  # how many future spawns are drawn at once


class TreasureHunt(AECEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """The world, as a PettingZoo AEC environment.

    Actions: 0 up, 1 down, 2 left, 3 right. An observation is uint8 [5, 2 * radius + 1, 2 * radius + 1], the window
    around the agent, one-hot over wall, agent, gem, food, bone; the agent itself is in the middle, all beyond the
    border is wall.

    ``look`` and ``play`` are the fast path: the same rules without PettingZoo's dictionaries. An episode is played
    either by ``step`` or by ``play``.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "treasure_hunt_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "is_parallelizable": False,
    }

    def __init__(
        self,
        agents: int = 2,
        size: int = 21,
        radius: int = 2,
        turns: int = 100,
        spawn: float = 0.005,
        render_mode: str | None = None,
    ) -> None:
        self.size = whole("size", size, 3)
        self.radius = whole("radius", radius, 1)
        self.turns = whole("turns", turns, 1)
        self.spawn = real("spawn", spawn, 0.0, 1.0)
        self.render_mode = checked_render_mode(render_mode)
        self._inner = self.size - 2  # tiles to walk on, along a side
        self._tiles = self._inner**2
        count = whole("agents", agents, 1)
        if count > self._tiles:
            raise SettingError(
                f"agents is {count}, but size {self.size} has {self._tiles} tiles to walk on: "
                "take fewer or a larger size"
            )

        self.possible_agents = [f"agent_{index}" for index in range(count)]
        self.agents: list[str] = []
        view = 2 * self.radius + 1
        self.observation_spaces = {
            name: gymnasium.spaces.Box(0, 1, (_CHANNELS, view, view), np.uint8) for name in self.possible_agents
        }
        self.action_spaces = {name: gymnasium.spaces.Discrete(4) for name in self.possible_agents}
        self._index = {name: index for index, name in enumerate(self.possible_agents)}

        width = self.size + 2 * self.radius  # of the padded grid
        self._width = width
        self._plane = width * width
        self._offsets = (-width, width, -1, 1)
        self._corner = self.radius * (width + 1)  # from an agent's tile back to the corner of its window
        self._bare = self._walls()
        self._kinds = bytearray(self._bare)  # [width * width]
        self._planes = bytearray(_CHANNELS * self._plane)  # [channel, width * width]
        # Every window of the padded grid as a view, by the place of its corner.
        self._windows: NDArray[np.uint8] = np.ndarray(
            (self._plane - (view - 1) * (width + 1), _CHANNELS, view, view),
            np.uint8,
            buffer=self._planes,
            strides=(1, self._plane, width, 1),
        )

        self._rng = np.random.default_rng()
        self._at = [0] * count  # where each agent is in the padded grid
        self._turn = self.turns  # no episode is running before the first reset
        self._mover = 0
        self._due: list[int] = []  # spawns to come: turn * tiles + tile, the nearest one last
        self._loot: list[int] = []  # and of which kind

    # PettingZoo

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode, its first turn included: the first agent may look. Without a seed the stream goes on."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        tiles = self._rng.choice(self._tiles, len(self._at), replace=False).tolist()
        self._lay({self._place(*divmod(tile, self._inner)): AGENT for tile in tiles})
        self._at = [self._place(*divmod(tile, self._inner)) for tile in tiles]
        self._turn = self._mover = 0
        self._due, self._loot = [], []
        self._draw_spawns(-1)
        self._let_things_appear()

        self.agents = self.possible_agents[:]
        self.agent_selection = self.agents[0]
        self._skip_agent_selection: str | None = None
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}

    def step(self, action: int | None) -> None:
        """Play the action of ``agent_selection``; None for an agent whose episode has been truncated."""
        if not self.agents:
            raise NotReadyError("no episode is running: call reset() first")
        name = self.agent_selection
        if self.truncations[name]:
            self._was_dead_step(action)
            return
        mover = self._mover
        if self._index[name] != mover or self._turn == self.turns:
            raise MotetError(
                "this episode was played on by play(): an episode is played by step() or by play(), not both"
            )
        reward = self.play(action)  # type: ignore[arg-type]  # None is refused there, like any other non-action
        # Only the mover earns, so only two entries change: the last mover's is cleared, the mover's is set.
        names = self.possible_agents
        self.rewards[names[mover - 1]] = 0.0
        self.rewards[name] = reward
        self._cumulative_rewards[name] = reward
        self.agent_selection = names[self._mover]
        if self._turn == self.turns:
            for other in names:
                self.truncations[other] = True

    def observe(self, agent: str) -> NDArray[np.uint8]:
        """What an agent sees now, as an array of its own."""
        return self.look(self._index[agent])

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """The space of what an agent sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """Up, down, left, right."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.uint8]:
        """The whole world, uint8 [5, size, size], one-hot like an observation."""
        planes = np.frombuffer(self._planes, np.uint8).reshape(_CHANNELS, self._width, self._width)
        edge = slice(self.radius, self.radius + self.size)
        return planes[:, edge, edge].copy()

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, uint8 [16 * size, 16 * size, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        if self.render_mode is None:
            return None
        tiles = self.tiles()
        colours = np.full((self.size, self.size, 3), _picture.PAPER, np.uint8)
        colours[tiles == WALL] = _picture.WALL
        picture = _picture.ground(colours)
        marks = {
            GEM: (_picture.diamond(0.85), (58, 160, 150), _picture.diamond(0.42), (176, 226, 216)),
            FOOD: (_picture.disc(0.6), (214, 158, 46), _picture.disc(0.2, -0.2, -0.2), (250, 226, 168)),
            BONE: (_picture.bone(), (150, 140, 150), _picture.disc(0.0), _picture.PAPER),
        }
        for kind, (shape, colour, gleam, light) in marks.items():
            for row, column in np.argwhere(tiles == kind).tolist():
                _picture.stamp(picture, row * _picture.TILE, column * _picture.TILE, shape, colour)
                _picture.stamp(picture, row * _picture.TILE, column * _picture.TILE, gleam, light)
        if self.agents:
            for index, (row, column) in enumerate(self.positions()):
                _picture.agent(picture, row, column, index)
        return picture

    def close(self) -> None:
        """Nothing to release."""

    # The fast path

    @property
    def mover(self) -> int:
        """The index of the agent whose move it is."""
        return self._mover

    @property
    def turn(self) -> int:
        """How many turns of the episode are complete."""
        return self._turn

    @property
    def over(self) -> bool:
        """Whether all turns of the episode have been played."""
        return self._turn == self.turns

    def look(self, index: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """What agent ``index`` sees now, in ``out`` if given and otherwise as an array of its own."""
        window: NDArray[np.uint8] = self._windows[self._at[index] - self._corner]
        if out is None:
            return window.copy()
        out[...] = window
        return out

    def play(self, action: int) -> float:
        """Play the action of agent ``mover`` and return its reward; after the last agent's move the next turn begins.

        The fast path of an in-turn world: ``while not world.over: world.play(choose(world.look(world.mover)))``.
        """
        if self._turn == self.turns:
            raise NotReadyError("no episode is running: call reset() first")
        try:
            if action < 0:
                raise IndexError
            here = self._at[self._mover]
            there = here + self._offsets[action]
        except (IndexError, TypeError, ValueError):
            raise SettingError(f"the action is {action!r}; expected 0 (up), 1 (down), 2 (left) or 3 (right)") from None
        kind = self._kinds[there]
        if kind != WALL and kind != AGENT:
            self._put(here, EMPTY)
            self._put(there, AGENT)
            self._at[self._mover] = there
        self._mover += 1
        if self._mover == len(self._at):
            self._mover = 0
            self._turn += 1
            if self._turn < self.turns:
                self._let_things_appear()
        return _REWARDS[kind]

    # Looking in, and laying out by hand

    def tiles(self) -> NDArray[np.uint8]:
        """The kind of every tile, uint8 [size, size]."""
        kinds = np.frombuffer(self._kinds, np.uint8).reshape(self._width, self._width)
        edge = slice(self.radius, self.radius + self.size)
        return kinds[edge, edge].copy()

    def positions(self) -> tuple[tuple[int, int], ...]:
        """Where each agent stands: (row, column), the border's top left corner being (0, 0)."""
        places = (divmod(at, self._width) for at in self._at)
        return tuple((row - self.radius, column - self.radius) for row, column in places)

    def arrange(
        self,
        agents: Iterable[tuple[int, int]],
        gems: Iterable[tuple[int, int]] = (),
        food: Iterable[tuple[int, int]] = (),
        bones: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Replace what is on the grid, for tests, demonstrations and lessons; the turn and the random stream stay."""
        if not self.agents:
            raise NotReadyError("no episode is running: call reset() first")
        kinds: dict[int, int] = {}
        at: list[int] = []
        for kind, spots in ((AGENT, agents), (GEM, gems), (FOOD, food), (BONE, bones)):
            for row, column in spots:
                if not (1 <= row <= self._inner and 1 <= column <= self._inner):
                    raise SettingError(
                        f"({row}, {column}) is no tile to walk on; rows and columns are 1 to {self._inner}"
                    )
                place = self._place(row - 1, column - 1)
                if place in kinds:
                    raise SettingError(f"({row}, {column}) is given twice; a tile holds one thing")
                kinds[place] = kind
                if kind == AGENT:
                    at.append(place)
        if len(at) != len(self._at):
            raise SettingError(f"{len(at)} agents are placed; this world has {len(self._at)}")
        self._lay(kinds)
        self._at = at

    # Snapshots

    def get_state(self) -> Snapshot:
        """Everything that decides what happens next, as nested tuples of plain values."""
        if not self._due:
            raise NotReadyError("there is no state yet: call reset() first")
        alive = tuple(self.agents)
        return (
            self._header(),
            freeze_rng(self._rng),
            bytes(self._kinds),
            tuple(self._at),
            (self._turn, self._mover),
            (tuple(self._due), tuple(self._loot)),
            (alive, self.agent_selection, self._skip_agent_selection),
            tuple((self.rewards[name], self._cumulative_rewards[name], self.truncations[name]) for name in alive),
        )

    def set_state(self, state: Snapshot) -> None:
        """Go on from a snapshot of a world with the same settings, bit for bit."""
        rng, kinds, at, (turn, mover), (due, loot), (alive, selection, skip), earned = opened(state, self._header())
        self._rng = thaw_rng(rng)
        self._lay({place: kind for place, kind in enumerate(kinds) if kind != self._bare[place]})
        self._at = list(at)
        self._turn, self._mover = turn, mover
        self._due, self._loot = list(due), list(loot)
        self.agents = list(alive)
        self.agent_selection, self._skip_agent_selection = selection, skip
        self.rewards = {name: reward for name, (reward, _, _) in zip(alive, earned, strict=True)}
        self._cumulative_rewards = {name: total for name, (_, total, _) in zip(alive, earned, strict=True)}
        self.terminations = dict.fromkeys(alive, False)
        self.truncations = {name: over for name, (_, _, over) in zip(alive, earned, strict=True)}
        self.infos = {name: {} for name in alive}

    # Machinery

    def _header(self) -> Snapshot:
        return ("treasure_hunt", len(self.possible_agents), self.size, self.radius, self.turns, self.spawn)

    def _place(self, row: int, column: int) -> int:
        """The padded grid's place of tile (row, column) among those to walk on."""
        return (row + self.radius + 1) * self._width + column + self.radius + 1

    def _walls(self) -> bytes:
        """The kinds of an empty grid: the ring, and all beyond it, is wall."""
        kinds = np.full((self._width, self._width), WALL, np.uint8)
        kinds[self.radius + 1 : -self.radius - 1, self.radius + 1 : -self.radius - 1] = EMPTY
        return kinds.tobytes()

    def _put(self, place: int, kind: int) -> None:
        """Make a tile hold one kind, in both arrays."""
        kinds, planes = self._kinds, self._planes
        before = kinds[place]
        if before:
            planes[(before - 1) * self._plane + place] = 0
        kinds[place] = kind
        if kind:
            planes[(kind - 1) * self._plane + place] = 1

    def _lay(self, kinds: dict[int, int]) -> None:
        """Empty the grid, then put down the given kinds by place."""
        self._kinds[:] = self._bare
        self._planes[:] = bytes(len(self._planes))
        self._planes[: self._plane] = self._bare  # WALL is 1 and the first channel: the bare kinds are its plane
        for place, kind in kinds.items():
            self._put(place, kind)

    def _draw_spawns(self, last: int) -> None:
        """Draw the next block of spawns, those after trial ``last``.

        Number the trials of an episode turn by turn and tile by tile. If every trial, those of tiles that turn out to
        be occupied included, succeeds independently with probability p, then the gaps between successes are
        independent and geometric, so drawing the gaps draws the trials, at the price of the successes alone. A
        success on an occupied tile is ignored; what is left is, for each empty tile, an independent trial with p:
        exactly the rule. The block's length does not matter, and what an episode leaves unused tells nothing about
        the next one's trials.
        """
        if self.spawn == 0.0:
            self._due, self._loot = [self.turns * self._tiles], [GEM]  # never reached
            return
        gaps = self._rng.geometric(self.spawn, _BLOCK).tolist()
        self._loot = self._rng.integers(GEM, BONE + 1, _BLOCK).tolist()
        self._due = list(accumulate(gaps, initial=last))[:0:-1]

    def _let_things_appear(self) -> None:
        """The spawn that begins a turn."""
        first = self._turn * self._tiles
        end = first + self._tiles
        due = self._due
        while due[-1] < end:
            trial, kind = due.pop(), self._loot.pop()
            if not due:
                self._draw_spawns(trial)
                due = self._due
            place = self._place(*divmod(trial - first, self._inner))
            if self._kinds[place] == EMPTY:
                self._put(place, kind)

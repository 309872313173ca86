"""Treasure hunt: agents walk in turn on a walled grid and collect items that appear there.

In each turn, items appear first. Then each agent in its order observes, acts and changes the world before the next one
observes. The grid's outermost ring is wall. With probability ``spawn`` per turn, every empty tile gets a gem (+10),
food (+5) or a bone (-10), which are equally likely; an agent collects it by walking onto it. An agent that walks into a
wall gets -1 and does not move; one that walks into another agent does not move. After ``turns`` turns the episode is
truncated.

A step takes the action of the agent whose move it is and yields its reward; observations are windows of the grid.
:class:`TreasureHunts` implements the rules for K worlds at once. :class:`TreasureHunt` is the PettingZoo environment of
one world; its ``vector`` makes several that step together.
"""

from collections.abc import Iterable, Mapping
from operator import index as whole_number
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv

from motet.errors import MotetError, NotReadyError, SettingError
from motet.worlds import pictures
from motet.worlds.contract import WorldState, checked_render_mode
from motet.worlds.treasure_hunt.rules import AGENT, BONE, EMPTY, FOOD, GEM, WALL, TreasureHunts, refused

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunt", "TreasureHunts"]


class TreasureHunt(AECEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """The treasure hunt, as a PettingZoo AEC environment.

    Actions: 0 up, 1 down, 2 left, 3 right. An observation is uint8 [5, 2 * radius + 1, 2 * radius + 1], the window
    around the agent, one-hot over wall, agent, gem, food, bone; the agent itself is in the middle, and everything
    outside the grid is wall.

    ``look`` and ``play`` are the fast path: the same rules without PettingZoo's dictionaries. Use either ``step`` or
    ``play`` within an episode, not both.

    Args:
        agents: number of agents.
        size: number of tiles on each side of the square grid, including its wall.
        radius: number of tiles that an agent sees in each direction.
        turns: number of turns in an episode.
        spawn: probability per turn that an item appears on an empty tile.
        render_mode: ``rgb_array`` to draw pictures.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "treasure_hunt_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "is_parallelizable": False,
    }
    suggests: ClassVar[Mapping[str, Any]] = MappingProxyType({"gamma": 0.8, "n_frames": 4})
    """Settings that ``motet train`` uses for this world instead of an algorithm's defaults.

    ``gamma`` can be small because an agent sees items at most two tiles away on each axis. ``n_frames`` stacks
    observations: without that, an agent walks to and fro.
    """

    def __init__(
        self,
        agents: int = 2,
        size: int = 21,
        radius: int = 2,
        turns: int = 100,
        spawn: float = 0.005,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = checked_render_mode(render_mode)
        self._hunts = hunts = TreasureHunts(1, agents, size, radius, turns, spawn)
        self.size, self.radius, self.turns, self.spawn = hunts.size, hunts.radius, hunts.turns, hunts.spawn
        self.possible_agents = list(hunts.agents)
        self.agents: list[str] = []
        self.observation_spaces = dict(zip(hunts.agents, hunts.observation_spaces, strict=True))
        self.action_spaces = dict(zip(hunts.agents, hunts.action_spaces, strict=True))
        self._at, self._windows = hunts.at, hunts.windows
        self._index = {name: index for index, name in enumerate(hunts.agents)}

    def vector(self, worlds: int) -> TreasureHunts:
        """Make ``worlds`` worlds with these settings, which step together."""
        return TreasureHunts(worlds, len(self.possible_agents), self.size, self.radius, self.turns, self.spawn)

    # PettingZoo

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode and its first turn, so that the first agent can observe.

        Without a seed the random stream continues.
        """
        self._hunts.reset([0], None if seed is None else [seed])
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
        hunts, mover = self._hunts, self._hunts.mover
        if self._index[name] != mover or hunts.over:
            raise MotetError("step() was called in an episode that play() has advanced; use step() or play(), not both")
        reward = self.play(action)  # type: ignore[arg-type]  # None is refused there, like any other non-action
        # Only the mover gets a reward, so only two entries change: the previous mover's is cleared, the mover's is set.
        names = self.possible_agents
        self.rewards[names[mover - 1]] = 0.0
        self.rewards[name] = reward
        self._cumulative_rewards[name] = reward
        self.agent_selection = names[hunts.mover]
        if hunts.over:
            for other in names:
                self.truncations[other] = True

    def observe(self, agent: str) -> NDArray[np.uint8]:
        """Return an agent's current observation as a new array."""
        return self.look(self._index[agent])

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of an agent: up, down, left, right."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.uint8]:
        """Return the whole world, uint8 [5, size, size], one-hot like an observation."""
        return self._hunts.planes(0)

    def render(self) -> NDArray[np.uint8] | None:
        """Draw a picture, uint8 [16 * size, 16 * size, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        if self.render_mode is None:
            return None
        tiles = self.tiles()
        colours = np.full((self.size, self.size, 3), pictures.PAPER, np.uint8)
        colours[tiles == WALL] = pictures.WALL
        picture = pictures.ground(colours)
        marks = {
            GEM: (pictures.diamond(0.85), (58, 160, 150), pictures.diamond(0.42), (176, 226, 216)),
            FOOD: (pictures.disc(0.6), (214, 158, 46), pictures.disc(0.2, -0.2, -0.2), (250, 226, 168)),
            BONE: (pictures.bone(), (150, 140, 150), pictures.disc(0.0), pictures.PAPER),
        }
        for kind, (shape, colour, gleam, light) in marks.items():
            for row, column in np.argwhere(tiles == kind).tolist():
                pictures.stamp(picture, row * pictures.TILE, column * pictures.TILE, shape, colour)
                pictures.stamp(picture, row * pictures.TILE, column * pictures.TILE, gleam, light)
        if self.agents:
            for index, (row, column) in enumerate(self.positions()):
                pictures.agent(picture, row, column, index)
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    # The fast path

    @property
    def mover(self) -> int:
        """Index of the agent whose move it is."""
        return self._hunts.mover

    @property
    def turn(self) -> int:
        """Number of complete turns in the episode."""
        return self._hunts.turn[0]

    @property
    def over(self) -> bool:
        """Whether all turns of the episode have been played."""
        return self._hunts.turn[0] == self.turns

    def look(self, index: int, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """Return the current observation of agent ``index``, in ``out`` if given, otherwise as a new array."""
        window: NDArray[np.uint8] = self._windows[self._at[index][0]]
        if out is None:
            return window.copy()
        out[...] = window
        return out

    def play(self, action: int) -> float:
        """Play the action of agent ``mover`` and return its reward; after the last agent's move the next turn begins.

        Typical use: ``while not world.over: world.play(choose(world.look(world.mover)))``.
        """
        try:
            chosen = whole_number(action)
        except TypeError:
            raise refused(action) from None
        self._hunts.move((chosen,))
        return self._hunts.earned[0]

    # Inspecting and arranging the grid

    def tiles(self) -> NDArray[np.uint8]:
        """Return the kind of every tile, uint8 [size, size]."""
        return self._hunts.tiles(0)

    def positions(self) -> tuple[tuple[int, int], ...]:
        """Return (row, column) of each agent, counted from the wall's top left corner."""
        return tuple(self._hunts.tile(index) for (index,) in self._hunts.at)

    def arrange(
        self,
        agents: Iterable[tuple[int, int]],
        gems: Iterable[tuple[int, int]] = (),
        food: Iterable[tuple[int, int]] = (),
        bones: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Replace what is on the grid, for tests and demonstrations; turn and random stream do not change."""
        if not self.agents:
            raise NotReadyError("no episode is running: call reset() first")
        hunts = self._hunts
        kinds: dict[int, int] = {}
        at: list[int] = []
        for kind, spots in ((AGENT, agents), (GEM, gems), (FOOD, food), (BONE, bones)):
            for row, column in spots:
                if not (1 <= row <= hunts.inner and 1 <= column <= hunts.inner):
                    raise SettingError(
                        f"position must have row and column from 1 to {hunts.inner}, got ({row}, {column})"
                    )
                index = hunts.index_of(0, row, column)
                if index in kinds:
                    raise SettingError(f"positions must be different tiles, got ({row}, {column}) twice")
                kinds[index] = kind
                if kind == AGENT:
                    at.append(index)
        if len(at) != len(hunts.at):
            raise SettingError(f"agents must have {len(hunts.at)} positions, one for each agent, got {len(at)}")
        hunts.lay(0, kinds)
        for mine, index in zip(hunts.at, at, strict=True):
            mine[0] = index

    # States

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
        played = self._hunts.get_state()
        alive = tuple(self.agents)
        return (
            *played,
            (alive, self.agent_selection, self._skip_agent_selection),
            tuple((self.rewards[name], self._cumulative_rewards[name], self.truncations[name]) for name in alive),
        )

    def set_state(self, state: WorldState) -> None:
        """Continue from a state of a world with the same settings, bit for bit."""
        self._hunts.set_state(state[:-2])
        (alive, selection, skip), earned = state[-2:]
        self.agents = list(alive)
        self.agent_selection, self._skip_agent_selection = selection, skip
        self.rewards = {name: reward for name, (reward, _, _) in zip(alive, earned, strict=True)}
        self._cumulative_rewards = {name: total for name, (_, total, _) in zip(alive, earned, strict=True)}
        self.terminations = dict.fromkeys(alive, False)
        self.truncations = {name: over for name, (_, _, over) in zip(alive, earned, strict=True)}
        self.infos = {name: {} for name in alive}

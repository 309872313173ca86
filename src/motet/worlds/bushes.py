"""Bushes: a grid with bushes, robots that trample them down, and humans who pass more easily where they are thin.

All agents act at the same time: north, west, south, east or pass. No two agents share a tile. A move off the grid, or
to a tile that was occupied at the start of the step, does nothing. If several agents want the same free tile, only the
one with the lowest number tries. A robot's move always succeeds, and lowers the density of the tile that it enters by
one. A robot that passes lowers the density of its own tile by one. A human enters a tile of density d, as it was at the
start of the step, with probability 1 - d / thickest. Humans change no bush.

``Bushes`` is a model for planning. :class:`~motet.world.ModelWorld` makes a world of it, which is what ``motet train
bushes`` uses. A state is ``(step, tiles of the agents, densities of all tiles)``; the last step is terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.worlds import pictures
from motet.worlds.contract import whole
from motet.worlds.rooms import Reach

__all__ = ["Bushes"]

State = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Step, tiles of the agents, densities."""

_ACTIONS = 5
_PASS = 4


class Bushes:
    """The world of bushes, as a model for ``motet.plan``; agents are the robots, then the humans.

    Actions: 0 north, 1 west, 2 south, 3 east, 4 pass. Each human has one goal for every tile: to stand on it. Their
    weights are equal and have the sum 1. An encoded state is float32: the densities from 0 to 1, then for each agent
    the tile that it is on, then the share of the steps that remain.

    Args:
        map: the grid as text: ``H`` human, ``R`` robot, ``.`` a tile, ``0`` to ``9`` a tile of that density. Agents are
            numbered by rows.
        density: density of all tiles that the map gives no digit for, those of the agents included.
        thickest: the density of a tile that no human can enter.
        horizon: number of steps in an episode.

    >>> from motet.plan import Robot, enumerate_states, solve
    >>> bushes = Bushes(horizon=3)
    >>> solution = solve(enumerate_states(bushes), {h: bushes.goals(h) for h in bushes.human_agent_indices})
    >>> solution
    <Solution: 155 states, 14 goals of 2 humans, with a robot, goals that hold: stay, by action 0>
    """

    code_dtype: ClassVar[str] = "uint8"
    goal_dtype: ClassVar[str] = "uint8"
    metadata: ClassVar[dict[str, Any]] = {"name": "bushes_v0", "render_modes": ["rgb_array"], "render_fps": 4}
    action_names: ClassVar[tuple[str, ...]] = ("north", "west", "south", "east", "pass")

    def __init__(self, map: str = "H.R...H", density: int = 1, thickest: int = 10, horizon: int = 12) -> None:
        rows = [line.strip() for line in map.strip().splitlines()]
        if not rows or any(len(row) != len(rows[0]) for row in rows) or set("".join(rows)) - set("HR.0123456789"):
            raise SettingError(f"map must be a rectangle of H, R, '.' and digits, got\n{map}")
        self.map, self.height, self.width = map, len(rows), len(rows[0])
        self.thickest = whole("thickest", thickest, 1)
        self.density = whole("density", density, 0, self.thickest)
        self.horizon = whole("horizon", horizon, 1)
        signs = "".join(rows)
        robots, humans = ([tile for tile, sign in enumerate(signs) if sign == kind] for kind in "RH")
        if not robots + humans:
            raise SettingError(f"map must have an agent, H or R, got\n{map}")
        grown = tuple(int(sign) if sign.isdigit() else self.density for sign in signs)
        whole("the largest digit of the map", max(grown), 0, self.thickest)
        self.robots = len(robots)
        self.robot_agent_indices = list(range(len(robots)))
        self.human_agent_indices = list(range(len(robots), len(robots) + len(humans)))
        self.agents = [f"robot_{i}" for i in range(len(robots))] + [f"human_{i}" for i in range(len(humans))]
        self.action_space = gymnasium.spaces.Discrete(_ACTIONS)
        tiles = self.height * self.width
        self.observation_space = gymnasium.spaces.Box(0, 1, ((1 + len(self.agents)) * tiles + 1,))
        self._targets = [[self._target(tile, action) for action in range(_ACTIONS)] for tile in range(tiles)]
        self._goals = {
            human: [(Reach(human, tile, self._name(tile)), 1 / tiles) for tile in range(tiles)]
            for human in self.human_agent_indices
        }
        self._first: State = (0, tuple(robots + humans), grown)
        self._state: State | None = None

    # The model

    def reset(self) -> None:
        """Begin an episode as the map says."""
        self._state = self._first

    def get_state(self) -> State:
        """Return the state: hashable plain values that determine what may happen next."""
        if self._state is None:
            raise NotReadyError("there is no state yet: call reset() first")
        return self._state

    def set_state(self, state: State) -> None:
        """Continue from a state of a world with the same map."""
        step, tiles, densities = state
        if (len(tiles), len(densities)) != (len(self.agents), self.height * self.width):
            raise SettingError(f"state must be of a world with this map, got {state!r}; make a world with its map")
        self._state = (whole("the step of the state", step, 0, self.horizon), tuple(tiles), tuple(densities))

    def transition_probabilities(self, state: State, actions: Sequence[int]) -> list[tuple[float, State]] | None:
        """Return the successors of a joint action with their probabilities; None after the last step."""
        step, tiles, densities = state
        if step >= self.horizon:
            return None
        moved, grown, wanted = list(tiles), densities, set(tiles)
        trying: list[tuple[int, int, float]] = []  # humans in front of a bush: agent, tile, chance
        for agent, action in enumerate(actions):
            tile = tiles[agent]
            target = self._targets[tile][action]
            if target in wanted and not (action == _PASS and agent < self.robots):
                continue  # the tile is off the grid, occupied, or taken by an agent with a lower number
            wanted.add(target)
            thick = densities[target]
            if agent < self.robots:
                moved[agent] = target
                if thick:
                    grown = (*grown[:target], grown[target] - 1, *grown[target + 1 :])
            elif thick == 0:
                moved[agent] = target
            elif thick < self.thickest:
                trying.append((agent, target, 1 - thick / self.thickest))
        step += 1
        if not trying:
            return [(1.0, (step, tuple(moved), grown))]
        outcomes: list[tuple[float, State]] = []
        for succeeds in product((True, False), repeat=len(trying)):
            p, after = 1.0, moved[:]
            for success, (agent, target, chance) in zip(succeeds, trying, strict=True):
                p *= chance if success else 1 - chance
                if success:
                    after[agent] = target
            outcomes.append((p, (step, tuple(after), grown)))
        return outcomes

    def goals(self, agent: int) -> list[tuple[Reach, float]]:
        """Return a goal with its weight for every tile: to stand on the tile. The name of a goal is ``row,column``."""
        if agent not in self._goals:
            raise SettingError(f"agent must be one of the humans {self.human_agent_indices}, got {agent!r}")
        return self._goals[agent]

    @property
    def possible_goal_generator(self) -> Any:
        """The goals. A plan that finds them here uses the convention "stay" for goals that hold already."""
        return lambda state, human: self.goals(human)

    def towards(self, state: State, human: int, goal: Reach) -> NDArray[np.float64]:
        """Return the policy of a human who walks to its goal: uniform over the actions that lead nearest to it.

        Distance is the number of moves on the empty grid. Bushes and other agents are ignored.
        """
        row, column = divmod(goal.tile, self.width)
        far = np.array(
            [abs(row - tile // self.width) + abs(column - tile % self.width) for tile in self._targets[state[1][human]]]
        )
        nearest = far == far.min()
        shares: NDArray[np.float64] = nearest / nearest.sum()
        return shares

    # Observations and pictures

    def encode(self, state: State) -> NDArray[np.float32]:
        """Return a state as an array of numbers from 0 to 1."""
        step, tiles, densities = state
        standing = np.zeros((len(tiles), len(densities)), np.float32)
        standing[np.arange(len(tiles)), list(tiles)] = 1
        grown = np.array(densities, np.float32) / np.float32(self.thickest)
        left = np.float32(1 - step / self.horizon)
        return np.concatenate([grown, standing.reshape(-1), [left]], dtype=np.float32)

    def encode_codes(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Encode many states, each given as its numbers in order; :meth:`encode` encodes a single state."""
        agents, size = len(self.agents), self.height * self.width
        rows = np.zeros((len(codes), (1 + agents) * size + 1), np.float32)
        np.divide(codes[:, 1 + agents :], np.float32(self.thickest), out=rows[:, :size])
        places = codes[:, 1 : 1 + agents] + np.arange(1, agents + 1) * size
        rows[np.arange(len(codes))[:, None], places] = 1
        rows[:, -1] = 1 - codes[:, 0] / np.float32(self.horizon)
        return rows

    def decode(self, observation: NDArray[np.float32]) -> State:
        """Return the state of an array: the inverse of :meth:`encode`."""
        size = self.height * self.width
        grown = np.rint(np.asarray(observation[:size], np.float64) * self.thickest).astype(int)
        standing = np.asarray(observation[size:-1]).reshape(len(self.agents), size).argmax(axis=1)
        step = round((1 - float(observation[-1])) * self.horizon)
        return (step, tuple(standing.tolist()), tuple(grown.tolist()))

    def encode_goal(self, goal: Reach) -> NDArray[np.float32]:
        """Return a goal as an array that marks its tile."""
        marked: NDArray[np.float32] = np.zeros(self.height * self.width, np.float32)
        marked[goal.tile] = 1
        return marked

    def where(self, state: State, agent: int) -> tuple[int, int]:
        """Return row and column of an agent."""
        return divmod(state[1][agent], self.width)

    def picture(self, state: State) -> NDArray[np.uint8]:
        """Draw a state, uint8 [16 * rows, 16 * columns, 3]: the darker the green, the thicker the bush."""
        _, tiles, densities = state
        share = np.array(densities, np.float64).reshape(self.height, self.width, 1) / self.thickest
        colours = np.array(pictures.PAPER) * (1 - share) + np.array(_BUSH) * share
        bare = share == 0
        colours = np.where(bare, np.array(pictures.PAPER), 0.8 * colours + 0.2 * np.array(_LEAF))
        picture = pictures.ground(np.rint(colours).astype(np.uint8))
        for agent, tile in enumerate(tiles):
            draw = pictures.robot if agent < self.robots else pictures.agent
            draw(picture, *divmod(tile, self.width), agent)
        return picture

    def _target(self, tile: int, action: int) -> int:
        """Return the tile that an action leads to; off the grid: the same tile."""
        row, column = divmod(tile, self.width)
        down, right = ((-1, 0), (0, -1), (1, 0), (0, 1), (0, 0))[action]
        inside = 0 <= row + down < self.height and 0 <= column + right < self.width
        return (row + down) * self.width + column + right if inside else tile

    def _name(self, tile: int) -> str:
        return f"{tile // self.width},{tile % self.width}"


_BUSH: pictures.Colour = (38, 84, 48)
_LEAF: pictures.Colour = (150, 196, 120)

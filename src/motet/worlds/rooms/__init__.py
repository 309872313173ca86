"""Rooms: humans and robots in a small house of walls, doors with keys and blocks to push; an environment and a model.

All agents choose at once; their moves are carried out one after another, in an order drawn uniformly. Where no two
agents reach for the same tiles the order does not matter and the outcome is certain. A key is taken by walking onto it
and kept; a closed door opens, for good, when an agent who holds a key of its colour walks into it; a block is pushed by
walking into it if the tile behind it is free. An episode is truncated after ``horizon`` steps.

Flows in: one action of each agent. Flows out: what all of them see, which is everything. ``transition_probabilities``
is the only place where the rules live: ``step`` draws from what it returns, so that the environment cannot differ from
the model that a plan is made of. A state is ``(step, agents, blocks, keys, doors)``: the tile of each agent, the tiles
of the blocks in order, the tile of each key (or ``-1 - agent`` for who holds it), and the open doors as bits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from motet.errors import NotReadyError, SettingError
from motet.worlds.contract import ParallelStep, check_joint, checked_render_mode, timed_step, whole
from motet.worlds.rooms.maps import MAPS, RoomMap, parsed
from motet.worlds.rooms.picture import draw

__all__ = ["MAPS", "Reach", "Rooms", "State"]

State = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Step, agents, blocks, keys, doors."""

_ACTIONS = 4  # up, down, left, right
_REMEMBERED = 100_000  # outcomes of moves that touch each other: some tens of MB


class _Move(NamedTuple):
    """What one agent's action would do if it came first."""

    tiles: int  # as bits: what it depends on or changes
    to: int
    pushed: int  # the block's old tile, -1 for none; its new one is as far behind it
    key: int  # taken, -1 for none
    doors: int  # as bits: opened


@dataclass(frozen=True)
class Reach:
    """The goal of standing on a tile.

    >>> Reach(agent=0, tile=7, name="1,3").is_achieved((0, (7, 2), (), (), 0))
    True
    """

    agent: int
    tile: int
    name: str

    def is_achieved(self, state: State) -> bool:
        """Whether the agent stands there."""
        return state[1][self.agent] == self.tile


class Rooms(ParallelEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """The world, as a PettingZoo Parallel environment and as a model for ``motet.plan``.

    Actions: 0 up, 1 down, 2 left, 3 right. An observation is float32 [planes, rows, columns] of 0 and 1: walls, closed
    doors, blocks, one plane a key (a held key is where its holder is), the agent itself, one plane for each other
    agent, and a plane filled with the share of the steps that are left. A human earns 1 for each arrival on a tile
    marked ``*``; a robot earns what all humans earn.

    Args:
        map: a name in ``MAPS``, or a map as text: ``#`` wall, ``.`` floor, ``*`` marked floor, ``H`` human, ``R``
            robot, ``a`` to ``e`` keys, ``A`` to ``E`` doors, ``o`` block. Its border is wall.
        horizon: steps in an episode; None: the map's own. 0: without end, and no step in the state.
        render_mode: ``rgb_array`` to draw pictures.

    >>> rooms = Rooms("freeing")
    >>> rooms.possible_agents, rooms.human_agent_indices, rooms.robot_agent_indices
    (['human_0', 'robot_0'], [0], [1])
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "rooms_v0", "render_modes": ["rgb_array"], "render_fps": 4}
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right")

    def __init__(self, map: str = "freeing", horizon: int | None = None, render_mode: str | None = None) -> None:
        self.plan: RoomMap = parsed(map)
        self.map = map
        self.horizon = whole("horizon", self.plan.horizon if horizon is None else horizon, 0)
        self.render_mode = checked_render_mode(render_mode)
        plan = self.plan
        humans, robots = len(plan.humans), len(plan.robots)
        self.possible_agents = [f"human_{i}" for i in range(humans)] + [f"robot_{i}" for i in range(robots)]
        self.agents: list[str] = []
        self.human_agent_indices = list(range(humans))
        self.robot_agent_indices = list(range(humans, humans + robots))
        shape = (len(plan.keys) + len(self.possible_agents) + 4, plan.height, plan.width)
        self.observation_spaces = {name: gymnasium.spaces.Box(0, 1, shape) for name in self.possible_agents}
        self.action_spaces = {name: gymnasium.spaces.Discrete(_ACTIONS) for name in self.possible_agents}
        self._index = {name: index for index, name in enumerate(self.possible_agents)}
        self._offsets = (-plan.width, plan.width, -1, 1)
        self._first: State = (0, plan.humans + plan.robots, plan.blocks, plan.keys, 0)
        self._rng = np.random.default_rng()
        self._state: State | None = None
        self._known: State | None = None  # the state that _moves belongs to
        self._moves: list[list[_Move]] = []  # [agent, action]
        # The outcomes of moves that touch, without the step, on which they do not depend: they take long to find.
        self._touched: dict[tuple[Any, ...], list[tuple[float, tuple[Any, ...]]]] = {}

    # The model

    def get_state(self) -> State:
        """Where everything is: hashable, plain, all that decides what may happen next."""
        if self._state is None:
            raise NotReadyError("there is no state yet: call reset() first")
        return self._state

    def set_state(self, state: State) -> None:
        """Go on from a state of a world with the same map. The random stream stays as it is."""
        step, agents, blocks, keys, doors = state
        sizes = (len(agents), len(blocks), len(keys))
        expected = tuple(len(part) for part in self._first[1:4])
        if sizes != expected or not 0 <= step <= self.horizon:
            raise SettingError(
                f"the state {state!r} has (agents, blocks, keys) {sizes} at step {step}; this world has {expected} "
                f"and steps 0 to {self.horizon}: make one with that map and horizon"
            )
        self._state = (step, tuple(agents), tuple(blocks), tuple(keys), doors)
        self.agents = [] if self._over(step) else self.possible_agents[:]

    def transition_probabilities(self, state: State, actions: Sequence[int]) -> list[tuple[float, State]] | None:
        """What may follow on a joint action, and how likely; None after the last step."""
        if state is not self._known:
            if self._over(state[0]):
                return None
            self._moves = [
                [self._move(state[1], state[2], state[3], state[4], agent, action) for action in range(_ACTIONS)]
                for agent in range(len(state[1]))
            ]
            self._known = state
        moves = [options[action] for options, action in zip(self._moves, actions, strict=True)]
        tiles = 0
        for move in moves:
            if tiles & move.tiles:
                step = state[0] + 1 if self.horizon else 0
                return [(p, (step, *rest)) for p, rest in self._in_every_order(state, moves, actions)]
            tiles |= move.tiles
        return [(1.0, self._at_once(state, moves))]

    def transition_rewards(
        self, state: State, actions: Sequence[int], transitions: Sequence[tuple[float, State]]
    ) -> list[list[float]]:
        """For each transition, what each agent earns by it."""
        return [self._rewards(state, successor) for _, successor in transitions]

    def goals(self, agent: int) -> list[Reach]:
        """To stand on a tile, for every tile one can stand on; named ``row,column``."""
        width = self.plan.width
        tiles = (tile for tile, wall in enumerate(self.plan.walls) if not wall)
        return [Reach(agent, tile, f"{tile // width},{tile % width}") for tile in tiles]

    def where(self, state: State, agent: int) -> tuple[int, int]:
        """Row and column of an agent."""
        return divmod(state[1][agent], self.plan.width)

    # PettingZoo

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Begin an episode where the map says. Without a seed the random stream goes on."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state = self._first
        self.agents = self.possible_agents[:]
        return {name: self.observe(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> ParallelStep[NDArray[np.float32]]:
        """Carry out one action of each agent, in an order drawn by chance where it matters."""
        check_joint(actions, self.agents)
        names = self.agents
        chosen = [whole(f"the action of {name}", actions[name], 0, _ACTIONS - 1) for name in names]
        state = self.get_state()
        outcomes = self.transition_probabilities(state, chosen)
        assert outcomes is not None  # there are agents, so the episode is not over
        drawn = self._rng.choice(len(outcomes), p=[p for p, _ in outcomes]) if len(outcomes) > 1 else 0
        self._state = successor = outcomes[drawn][1]
        over = self._over(successor[0])
        if over:
            self.agents = []
        seen = {name: self.observe(name) for name in names}
        return timed_step(names, seen, self._rewards(state, successor), over)

    def observe(self, agent: str) -> NDArray[np.float32]:
        """What an agent sees now: everything, itself before the others."""
        step, agents, blocks, keys, doors = self.get_state()
        planes: NDArray[np.float32] = np.zeros(self.observation_spaces[agent].shape, np.float32)
        flat = planes.reshape(len(planes), -1)
        flat[0] = self.plan.walls
        for door, tile in enumerate(self.plan.doors):
            flat[1, tile] = not doors >> door & 1
        flat[2, list(blocks)] = 1
        for key, tile in enumerate(keys):
            flat[3 + key, tile if tile >= 0 else agents[-1 - tile]] = 1
        me = self._index[agent]
        for plane, other in enumerate([me, *(i for i in range(len(agents)) if i != me)], 3 + len(keys)):
            flat[plane, agents[other]] = 1
        flat[-1] = 1 - step / self.horizon if self.horizon else 1
        return planes

    def state_of(self, observation: NDArray[np.float32], agent: str) -> State:
        """The state that an agent's observation shows: ``observe`` the other way round."""
        flat = np.asarray(observation).reshape(len(observation), -1)
        keys, me = len(self.plan.keys), self._index[agent]
        seen = [int(plane.argmax()) for plane in flat[3 + keys : -1]]  # itself, then the others
        agents = (*seen[1 : me + 1], seen[0], *seen[me + 1 :])
        doors = sum(1 << door for door, tile in enumerate(self.plan.doors) if not flat[1, tile])
        at = [int(plane.argmax()) for plane in flat[3 : 3 + keys]]
        held = tuple(-1 - agents.index(tile) if tile in agents else tile for tile in at)
        step = round((1 - float(flat[-1, 0])) * self.horizon)
        return (step, agents, tuple(np.flatnonzero(flat[2]).tolist()), held, doors)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """The space of what an agent sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """Up, down, left, right."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.float32]:
        """Everything there is to know, as the first agent sees it."""
        return self.observe(self.possible_agents[0])

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, uint8 [16 * rows, 16 * columns, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        return None if self.render_mode is None else self.picture(self.get_state())

    def picture(self, state: State) -> NDArray[np.uint8]:
        """A state as a picture, uint8 [16 * rows, 16 * columns, 3]."""
        return draw(self.plan, state)

    def close(self) -> None:
        """Nothing to release."""

    # The rules

    def _over(self, step: int) -> bool:
        return 0 < self.horizon <= step

    def _move(
        self,
        agents: Sequence[int],
        blocks: Sequence[int],
        keys: Sequence[int],
        doors: int,
        agent: int,
        action: int,
    ) -> _Move:
        """What an agent's action does if it comes next."""
        plan, offset, here = self.plan, self._offsets[action], agents[agent]
        there = here + offset
        if plan.walls[there]:
            return _Move(1 << here, here, -1, -1, 0)
        beyond = there + offset  # on the map: there is no wall, so it is not on the border
        tiles = 1 << here | 1 << there | (1 << beyond if plan.blocks else 0)
        stay = _Move(tiles, here, -1, -1, 0)
        if there in agents:
            return stay
        opened = 0
        if there in plan.doors and not doors >> (door := plan.doors.index(there)) & 1:
            colour = plan.door_colours[door]
            if not any(at == -1 - agent and plan.key_colours[key] == colour for key, at in enumerate(keys)):
                return stay
            opened = 1 << door
        pushed = -1
        if there in blocks:
            if plan.walls[beyond] or beyond in agents or beyond in blocks or beyond in plan.doors or beyond in keys:
                return stay
            pushed = there
        key = keys.index(there) if there in keys else -1
        return _Move(tiles, there, pushed, key, opened)

    def _at_once(self, state: State, moves: Sequence[_Move]) -> State:
        """The outcome of moves that do not touch each other."""
        step, agents, blocks, keys, doors = state
        for agent, move in enumerate(moves):
            if move.pushed >= 0:
                there = move.to + (move.to - agents[agent])
                blocks = tuple(sorted(there if tile == move.pushed else tile for tile in blocks))
            if move.key >= 0:
                keys = (*keys[: move.key], -1 - agent, *keys[move.key + 1 :])
            doors |= move.doors
        return (step + 1 if self.horizon else 0, tuple([move.to for move in moves]), blocks, keys, doors)

    def _in_every_order(
        self, state: State, moves: Sequence[_Move], actions: Sequence[int]
    ) -> list[tuple[float, tuple[Any, ...]]]:
        """The outcomes, without the step, of moves some of which touch each other, over all orders of those that do."""
        asked = (*state[1:], *actions)
        if (known := self._touched.get(asked)) is not None:
            return known
        touching = [
            agent
            for agent, move in enumerate(moves)
            if any(move.tiles & other.tiles for i, other in enumerate(moves) if i != agent)
        ]
        alone = [agent for agent in range(len(moves)) if agent not in touching]
        counts: dict[State, int] = {}
        orders = 0
        for order in permutations(touching):
            outcome = state
            for agent in [*alone, *order]:
                outcome = self._next(outcome, agent, actions[agent])
            counts[outcome] = counts.get(outcome, 0) + 1
            orders += 1
        if len(self._touched) >= _REMEMBERED:
            self._touched.clear()
        self._touched[asked] = found = [(count / orders, outcome[1:]) for outcome, count in counts.items()]
        return found

    def _next(self, state: State, agent: int, action: int) -> State:
        """One agent's move; the step is not counted."""
        step, agents, blocks, keys, doors = state
        move = self._move(agents, blocks, keys, doors, agent, action)
        if move.pushed >= 0:
            there = move.to + (move.to - agents[agent])
            blocks = tuple(sorted(there if tile == move.pushed else tile for tile in blocks))
        if move.key >= 0:
            keys = (*keys[: move.key], -1 - agent, *keys[move.key + 1 :])
        return (step, (*agents[:agent], move.to, *agents[agent + 1 :]), blocks, keys, doors | move.doors)

    def _rewards(self, state: State, successor: State) -> list[float]:
        marked = self.plan.marked
        humans = [
            float(after != before and after in marked)
            for before, after in zip(state[1][: len(self.plan.humans)], successor[1], strict=False)
        ]
        return humans + [sum(humans)] * len(self.plan.robots)

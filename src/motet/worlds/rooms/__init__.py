"""Rooms: humans and robots in rooms with walls, doors, keys and blocks to push. It is an environment and a model.

All agents choose simultaneously; their moves are carried out one after another, in an order drawn uniformly. If no two
moves involve the same tiles, the order does not matter and the outcome is deterministic. An agent picks up a key by
walking onto it, and keeps it. A closed door opens permanently when an agent with a key of its colour walks into it. An
agent pushes a block by walking into it, if the tile behind the block is free. An episode is truncated after ``horizon``
steps.

A step takes one action of each agent and returns observations of the whole state. Only ``transition_probabilities``
implements the rules: ``step`` samples from its result, so that the environment cannot differ from the model used for
planning. A state is ``(step, agents, blocks, keys, doors)``: the tile of each agent, the sorted tiles of the blocks,
the tile of each key (``-1 - agent`` if an agent holds it), and the open doors as bits.
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
_REMEMBERED = 100_000  # cached outcomes of interacting moves: some tens of MB


class _Move(NamedTuple):
    """Effect of one agent's action if it is carried out first."""

    tiles: int  # the tiles on which the action depends, and those that it changes, as bits
    to: int
    pushed: int  # tile of the block that is pushed, -1 for none; the block moves by the same step as the agent
    key: int  # key that is picked up, -1 for none
    doors: int  # doors that are opened, as bits


@dataclass(frozen=True)
class Reach:
    """The goal that an agent stands on a tile.

    >>> Reach(agent=0, tile=7, name="1,3").is_achieved((0, (7, 2), (), (), 0))
    True
    """

    agent: int
    tile: int
    name: str

    def is_achieved(self, state: State) -> bool:
        """Return whether the agent stands on the tile."""
        return state[1][self.agent] == self.tile


class Rooms(ParallelEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """The rooms world, as a PettingZoo Parallel environment and as a model for ``motet.plan``.

    Actions: 0 up, 1 down, 2 left, 3 right. An observation is float32 [planes, rows, columns] of 0 and 1: walls, closed
    doors, blocks, one plane per key (at its holder's tile if it is held), the agent itself, one plane for each other
    agent, and a plane filled with the share of the steps that remain. A human gets a reward of 1 each time it enters a
    tile marked ``*``; a robot gets the sum of all humans' rewards.

    Args:
        map: a name in ``MAPS``, or a map as text: ``#`` wall, ``.`` floor, ``*`` marked floor, ``H`` human, ``R``
            robot, ``a`` to ``e`` keys, ``A`` to ``E`` doors, ``o`` block. Its border is wall.
        horizon: number of steps in an episode; None: the map's default; 0: infinite, and the state has no step count.
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
        self._far: dict[int, dict[int, int]] = {}  # distances to a tile, by tile
        self._known: State | None = None  # the state that _moves belongs to
        self._moves: list[list[_Move]] = []  # [agent, action]
        # Cached outcomes of interacting moves, which are slow to compute. They contain no step, because they do not
        # depend on it.
        self._touched: dict[tuple[Any, ...], list[tuple[float, tuple[Any, ...]]]] = {}

    # The model

    def get_state(self) -> State:
        """Return the state: hashable plain values that determine what may happen next."""
        if self._state is None:
            raise NotReadyError("there is no state yet: call reset() first")
        return self._state

    def set_state(self, state: State) -> None:
        """Continue from a state of a world with the same map. The random stream does not change."""
        step, agents, blocks, keys, doors = state
        sizes = (len(agents), len(blocks), len(keys))
        expected = tuple(len(part) for part in self._first[1:4])
        if sizes != expected or not 0 <= step <= self.horizon:
            raise SettingError(
                f"state must have (agents, blocks, keys) {expected} and a step from 0 to {self.horizon}, got {sizes} "
                f"and step {step} in {state!r}; make a world with the map and horizon of that state"
            )
        self._state = (step, tuple(agents), tuple(blocks), tuple(keys), doors)
        self.agents = [] if self._over(step) else self.possible_agents[:]

    def transition_probabilities(self, state: State, actions: Sequence[int]) -> list[tuple[float, State]] | None:
        """Return the successor states of a joint action with their probabilities; None after the last step."""
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
        """Return the reward of each agent for each transition."""
        return [self._rewards(state, successor) for _, successor in transitions]

    def goals(self, agent: int) -> list[Reach]:
        """Return one goal for every tile that is not a wall: to stand on the tile. The name of a goal is
        ``row,column``."""
        width = self.plan.width
        tiles = (tile for tile, wall in enumerate(self.plan.walls) if not wall)
        return [Reach(agent, tile, f"{tile // width},{tile % width}") for tile in tiles]

    def towards(self, state: State, human: int, goal: Reach) -> NDArray[np.float64]:
        """Return the policy of a human who walks to its goal: uniform over the actions that lead nearest to it.

        Distance is the number of moves around walls. Doors, blocks and other agents are ignored. At the goal, actions
        that lead into a wall keep the human there; if there are none, all are equally likely.
        """
        far, here = self._distances(goal.tile), state[1][human]
        ways = [here if self.plan.walls[here + offset] else here + offset for offset in self._offsets]
        reached = np.array([far.get(tile, len(self.plan.walls)) for tile in ways])
        nearest = reached == reached.min()
        shares: NDArray[np.float64] = nearest / nearest.sum()
        return shares

    def _distances(self, tile: int) -> dict[int, int]:
        """Return the number of moves to a tile from every tile that is not cut off from it by walls."""
        if tile not in self._far:
            far = self._far[tile] = {tile: 0}
            waiting = [tile]
            for here in waiting:  # the list grows during the loop
                for offset in self._offsets:
                    there = here + offset
                    if not self.plan.walls[there] and there not in far:
                        far[there] = far[here] + 1
                        waiting.append(there)
        return self._far[tile]

    def encode_codes(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return many states, each given by its numbers in order, as inputs of a network.

        They are: for each agent the tile that it is on, the tiles of the blocks, for each key its tile or its holder,
        the open doors, and the share of the steps that remain.
        """
        plan, agents = self.plan, len(self.possible_agents)
        tiles, blocks, keys = len(plan.walls), len(plan.blocks), len(plan.keys)
        ends = np.cumsum([agents * tiles, tiles, keys * (tiles + agents), len(plan.doors), 1])
        rows, line = np.zeros((len(codes), int(ends[-1])), np.float32), np.arange(len(codes))[:, None]
        numbers = codes.astype(np.int64)
        rows[line, numbers[:, 1 : 1 + agents] + np.arange(agents) * tiles] = 1
        rows[line, ends[0] + numbers[:, 1 + agents : 1 + agents + blocks]] = 1
        held = numbers[:, 1 + agents + blocks : -1]
        place = np.where(held >= 0, held, tiles - 1 - held) + np.arange(keys) * (tiles + agents)
        rows[line, ends[1] + place] = 1
        rows[:, ends[2] : ends[3]] = numbers[:, -1:] >> np.arange(len(plan.doors)) & 1
        rows[:, -1] = 1 - numbers[:, 0] / self.horizon if self.horizon else 1
        return rows

    def where(self, state: State, agent: int) -> tuple[int, int]:
        """Return row and column of an agent."""
        return divmod(state[1][agent], self.plan.width)

    # PettingZoo

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Begin an episode at the map's initial state. Without a seed the random stream continues."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state = self._first
        self.agents = self.possible_agents[:]
        return {name: self.observe(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> ParallelStep[NDArray[np.float32]]:
        """Carry out one action of each agent, in a random order where it matters."""
        check_joint(actions, self.agents)
        names = self.agents
        chosen = [whole(f"the action of {name}", actions[name], 0, _ACTIONS - 1) for name in names]
        state = self.get_state()
        outcomes = self.transition_probabilities(state, chosen)
        assert outcomes is not None  # outcomes is only None after the end of an episode, when there are no agents
        drawn = self._rng.choice(len(outcomes), p=[p for p, _ in outcomes]) if len(outcomes) > 1 else 0
        self._state = successor = outcomes[drawn][1]
        over = self._over(successor[0])
        if over:
            self.agents = []
        seen = {name: self.observe(name) for name in names}
        return timed_step(names, seen, self._rewards(state, successor), over)

    def observe(self, agent: str) -> NDArray[np.float32]:
        """Return an agent's observation of the whole state. The agent's own plane precedes the planes of the others."""
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
        """Return the state that an agent's observation shows: the inverse of ``observe``."""
        flat = np.asarray(observation).reshape(len(observation), -1)
        keys, me = len(self.plan.keys), self._index[agent]
        seen = [int(plane.argmax()) for plane in flat[3 + keys : -1]]  # the agent itself, then the others
        agents = (*seen[1 : me + 1], seen[0], *seen[me + 1 :])
        doors = sum(1 << door for door, tile in enumerate(self.plan.doors) if not flat[1, tile])
        at = [int(plane.argmax()) for plane in flat[3 : 3 + keys]]
        held = tuple(-1 - agents.index(tile) if tile in agents else tile for tile in at)
        step = round((1 - float(flat[-1, 0])) * self.horizon)
        return (step, agents, tuple(np.flatnonzero(flat[2]).tolist()), held, doors)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """Action space of an agent: up, down, left, right."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.float32]:
        """Return the whole state as the first agent observes it."""
        return self.observe(self.possible_agents[0])

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the current state, uint8 [16 * rows, 16 * columns, 3]; None without ``render_mode`` ``rgb_array``."""
        return None if self.render_mode is None else self.picture(self.get_state())

    def picture(self, state: State) -> NDArray[np.uint8]:
        """Draw a state, uint8 [16 * rows, 16 * columns, 3]."""
        return draw(self.plan, state)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

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
        """Return the effect of an agent's action if it is carried out next."""
        plan, offset, here = self.plan, self._offsets[action], agents[agent]
        there = here + offset
        if plan.walls[there]:
            return _Move(1 << here, here, -1, -1, 0)
        beyond = there + offset  # inside the map, because ``there`` is not a wall and so not on the border
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
        """Return the outcome of moves that do not interact."""
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
        """Return the outcomes (without the step) of moves, over all orders of the moves that interact."""
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
        """Return the state after one agent's move; the step is not counted."""
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

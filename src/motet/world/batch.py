"""WorldBatch: the worlds of one actor, driven together. Observations, rewards and actions are arrays over worlds.

``turns`` returns the agents that act now, with their observations and rewards. ``act`` takes one array of actions for
each :class:`Turn` and returns the segments that ended. The worlds decide which agents act when. :class:`LoopedWorlds`
drives a list of Worlds, each at its own point of an episode. :class:`VectorWorlds` drives a VectorWorld, which steps
all worlds as arrays. Both look the same to the actor.

The cost of a round depends only on the agents that act in it: the other agents of a world are not touched.

A world that is ``over`` waits for ``reset``. ``lanes`` holds the replay lane to which the present episode of each world
is written. It changes at resets only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.errors import WorldError
from motet.masks import mask_form
from motet.nest import Nest, assign, join_nests, map_nest, stack_nests, unstack_nest
from motet.streams import EXCHANGE, Streams, StreamUser, made_alike
from motet.system.raised import brief
from motet.world.contract import VectorWorld, World, as_world, last_of
from motet.world.measured import is_number

__all__ = [
    "Ending",
    "Indices",
    "LoopedWorlds",
    "Turn",
    "VectorWorlds",
    "WorldBatch",
    "has_vector",
    "join_turns",
    "make_world_batch",
]

_EMPTY = 1000  # number of consecutive episodes without an acting agent that is an error

Indices = npt.NDArray[np.int64]
"""Indices of worlds, or of lanes."""


class Turn(NamedTuple):
    """One agent's turn, in all worlds where it acts now."""

    agent: int
    at: Indices
    """Indices of the worlds, ascending."""
    observation: Nest
    """``[len(at), ...]``. The arrays of observations and masks are reused: they stay intact until the agent's turn
    after next."""
    reward: npt.NDArray[np.float64]
    """``[len(at)]``: sum of the agent's rewards since its last action."""
    mask: npt.NDArray[np.bool_] | None
    """Flat masks ``[len(at), entries]`` (see :mod:`motet.masks`); None for agents without masks."""


def join_turns(turns: Sequence[Turn]) -> tuple[Turn, Indices]:
    """Join several turns into one with ``at`` ascending.

    Also return, for each row of the joined turn, the index of this row in the concatenation of the given turns.
    """
    at = np.concatenate([turn.at for turn in turns])
    order = np.argsort(at)
    pick = lambda array: np.ascontiguousarray(array[order])  # noqa: E731
    seen = map_nest(pick, join_nests([turn.observation for turn in turns]))
    reward = np.concatenate([turn.reward for turn in turns])[order]
    masks = [turn.mask for turn in turns if turn.mask is not None]
    return Turn(turns[0].agent, at[order], seen, reward, np.concatenate(masks)[order] if masks else None), order


class Ending(NamedTuple):
    """The ends of one agent's segments, in all worlds where one ended."""

    agent: int
    at: Indices
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    """Whether the segment was cut off; False where ``terminated`` is True."""
    reward: npt.NDArray[np.float64]
    observation: Nest
    """The last observations, ``[len(at), ...]``."""


class WorldBatch(Protocol):
    """The contract between worlds and the actor."""

    size: int
    """Number of worlds."""
    lanes: Indices
    """``[worlds]``: replay lanes to which the rows of the present episodes are written."""
    can_save: bool
    user: StreamUser
    """The worlds, as :mod:`motet.streams` knows code that may draw from the global random streams."""

    @property
    def measured(self) -> dict[int, Mapping[str, float]]:
        """What the worlds measured in the episodes that have ended, by world. The caller empties this dict."""
        ...

    @property
    def over(self) -> list[int]:
        """Indices of the worlds that wait for a reset."""
        ...

    @property
    def broken(self) -> list[int]:
        """Indices of the worlds that raised an error and were replaced. They are ``over`` too.

        The caller empties this list.
        """
        ...

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next resets on."""
        ...

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        ...

    def turns(self) -> Sequence[Turn]:
        """Return one turn for each agent that acts now, in the order of the agents. The worlds decide which.

        Masks are not checked here. The adapters of users' environments have checked them.
        """
        ...

    def act(self, actions: Sequence[Nest]) -> Sequence[Ending]:
        """Play actions ``[len(at), ...]`` for each turn that ``turns`` returned, in that order.

        Return the segments' ends.
        """
        ...

    def get_state(self) -> Any:
        """Return everything that determines what happens next in these worlds."""
        ...

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        ...


def make_world_batch(
    factory: Callable[[], Any],
    worlds: int,
    masked: Sequence[bool],
    remake: bool = False,
    alive: Callable[[], None] | None = None,
    watched: bool = False,
) -> WorldBatch:
    """Make the worlds of a factory: as arrays if their class has ``vector``, else one by one.

    Worlds with action masks, and worlds that are to be replaced singly after an error (``remake``), are driven one by
    one. ``alive`` is called each time a world was made, was reset, or played a turn. ``watched``: the worlds give up
    global random streams that they do not use (see :mod:`motet.streams`).
    """
    user = StreamUser("the world", watched)

    def make_one() -> VectorWorlds | World:
        env = factory()
        user.name = f"the world {type(env).__name__}"
        if has_vector(env) and not (remake or any(masked)):
            return VectorWorlds(env.vector(worlds), user)
        return as_world(env)

    def make() -> Any:
        world = made_alike(user.name, make_one)
        if alive is not None:
            alive()
        return world

    first = make()
    if isinstance(first, VectorWorlds):
        return first
    rest = [make() for _ in range(worlds - 1)]
    return LoopedWorlds([first, *rest], masked, make if remake else None, alive, user)


def has_vector(env: Any) -> bool:
    """Whether an environment's class can make its worlds as arrays.

    Only a ``vector`` that the class itself defines counts. An inherited ``vector``, or one that a wrapper forwards,
    lacks what the subclass or wrapper changes.
    """
    return "vector" in vars(type(env))


class LoopedWorlds:
    """Worlds that are stepped one after the other.

    Args:
        worlds: worlds of one kind.
        masked: by agent, whether its action masks are read.
        remake: makes a world that replaces one that raised an error; None: the error is raised.
        alive: called each time a world was reset or played a turn.
        user: the worlds as a user of the global random streams.
    """

    def __init__(
        self,
        worlds: Sequence[World],
        masked: Sequence[bool],
        remake: Callable[[], World] | None = None,
        alive: Callable[[], None] | None = None,
        user: StreamUser | None = None,
    ) -> None:
        self._worlds, self._masked, self._remake, self._alive = list(worlds), tuple(masked), remake, alive
        self.size = len(self._worlds)
        self.user = user or StreamUser("the world")
        self._streams = [Streams(self.user) for _ in self._worlds]
        self.lanes = self._everywhere = np.arange(self.size)
        self.over, self.broken = list(range(self.size)), list[int]()
        self.measured: dict[int, Mapping[str, float]] = {}
        agents = len(self._worlds[0].agents)
        self._seen: list[Nest] = [None] * agents  # buffers [worlds, ...] of this turn and of the previous one
        self._seen_before: list[Nest] = [None] * agents
        self._rewards = list(np.zeros((agents, self.size)))
        self._turns: list[Turn] = []
        self._forms = [mask_form(space) for space in self._worlds[0].action_spaces]
        self._masks = [
            np.ones((self.size, form.size), np.bool_) if has else None
            for form, has in zip(self._forms, masked, strict=True)
        ]
        self._empty = [0] * self.size  # consecutive episodes in which no agent acted
        self._asked: list[list[tuple[int, int]]] = [
            [] for _ in range(self.size)
        ]  # (agent, its row in the turn), by world
        self.can_save = all(world.can_save for world in self._worlds)
        self._stage: str | None = None
        self._stages: list[str | None] = [None] * self.size  # numbers measured in the present episodes

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next resets on."""
        self._stage = stage

    def _tell(self, w: int, stage: str | None) -> None:
        """Tell a world its stage."""
        self._stages[w] = stage
        if stage is not None:
            getattr(self._worlds[w], "set_stage", _nothing)(stage)

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        empty = set()
        for w, seed in zip(at, seeds, strict=True):
            world = self._worlds[w]
            self._streams[w].begin(seed)
            self._tell(w, self._stage)
            world.reset(seed)
            if self._alive is not None:
                self._alive()
            if world.group():
                self._empty[w] = 0
                continue
            empty.add(w)
            self._empty[w] += 1
            if self._empty[w] == _EMPTY:
                raise WorldError(
                    f"{type(world).__name__}: there was no agent to act after reset(), {_EMPTY} times in a row; "
                    "expected group() to return the agents that act first"
                )
        self.over = [world for world in self.over if world not in at or world in empty]

    def turns(self) -> list[Turn]:
        """Return one turn for each agent that acts now in any world."""
        at: dict[int, list[int]] = {}  # by agent, the worlds in which it acts
        for w, world in enumerate(self._worlds):
            asked = self._asked[w]
            asked.clear()
            if EXCHANGE.current is not (streams := self._streams[w]):
                streams.enter()
            try:
                for agent in world.group():
                    mine = at.get(agent)
                    if mine is None:
                        mine = at[agent] = []
                    row = len(mine)
                    self._keep(agent, row, world.observe(agent))
                    self._rewards[agent][row] = world.reward(agent)
                    if self._masked[agent]:
                        self._forms[agent].put(world.mask(agent), self._masks[agent][row])  # type: ignore[index]
                    mine.append(w)
                    asked.append((agent, row))
            except WorldError:
                if self._remake is None:
                    raise
                self._replace(w, self._remake())
                for agent, _ in asked:
                    at[agent].pop()
                asked.clear()
        self._turns = [self._turn(agent, at[agent]) for agent in sorted(at) if at[agent]]
        return self._turns

    def _turn(self, agent: int, rows: list[int]) -> Turn:
        masks, reward, seen, n = self._masks[agent], self._rewards[agent], self._seen[agent], len(rows)
        mask = None if masks is None else masks[:n].copy()
        if n == self.size:
            return Turn(agent, self._everywhere, seen, reward, mask)
        return Turn(agent, np.array(rows), map_nest(lambda array: array[:n], seen), reward[:n], mask)

    def _keep(self, agent: int, row: int, observation: Nest) -> None:
        if row == 0:
            self._seen[agent], self._seen_before[agent] = self._seen_before[agent], self._seen[agent]
        buffer = self._seen[agent]
        if buffer is None:
            make = lambda array: np.zeros((self.size, *np.shape(array)), array.dtype)  # noqa: E731
            buffer = self._seen[agent] = map_nest(make, observation)
        if isinstance(buffer, np.ndarray):
            buffer[row] = observation
        else:
            assign(buffer, row, observation)

    def act(self, actions: Sequence[Nest]) -> list[Ending]:
        """Play the actions of each turn."""
        chosen = {turn.agent: unstack_nest(given) for turn, given in zip(self._turns, actions, strict=True)}
        ends: dict[int, list[tuple[Any, ...]]] = {}
        for w, asked in enumerate(self._asked):
            if not asked:
                continue
            world = self._worlds[w]
            if EXCHANGE.current is not (streams := self._streams[w]):
                streams.enter()
            try:
                world.act([chosen[agent][row] for agent, row in asked])
                for end in world.ended():
                    reward, seen = last_of(world, end)
                    row = (w, end.terminated, end.truncated and not end.terminated, reward, seen)
                    ends.setdefault(end.agent, []).append(row)
                if not world.group():
                    if measured := _metrics_of(world):
                        self.measured[w] = {name: _number(world, name, value) for name, value in measured.items()}
                    self._streams[w].end()
                    self.over.append(w)
            except WorldError:
                if self._remake is None:
                    raise
                self._replace(w, self._remake())
                for agent, rows in list(ends.items()):
                    ends[agent] = [row for row in rows if row[0] != w]
            if self._alive is not None:
                self._alive()
        return [_ending(agent, ends[agent]) for agent in sorted(ends) if ends[agent]] if ends else []

    def _replace(self, w: int, world: World) -> None:
        """Replace a world that raised an error."""
        self._worlds[w] = world
        self.broken.append(w)
        if w not in self.over:
            self.over.append(w)

    def get_state(self) -> Any:
        """Return the states of all worlds and of their random streams."""
        streams = [self.user.get_state(), *(streams.get_state() for streams in self._streams)]
        return [world.get_state() for world in self._worlds], list(self.over), streams, list(self._stages)

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        states, over, *rest = state
        for w, stage in enumerate(rest[1] if len(rest) > 1 else []):  # older checkpoints do not contain stages
            self._tell(w, stage)
        for world, kept in zip(self._worlds, states, strict=True):
            world.set_state(kept)
        self.over = list(over)
        if rest:  # older checkpoints do not contain streams
            _continue_streams(self.user, self._streams, rest[0])


def _nothing(stage: str) -> None:
    """Do nothing: a world that does not inherit from World need not have stages."""


def _metrics_of(world: Any) -> Mapping[str, Any]:
    """Return what a world measured; nothing if its class does not inherit or define the method."""
    found: Mapping[str, Any] = world.metrics() if hasattr(world, "metrics") else {}
    return found


def _number(world: Any, name: str, value: Any) -> float:
    """Return a metric as a float; raise if the metric is not a number."""
    if not is_number(value):
        raise WorldError(f"{type(world).__name__}: metrics() must return numbers by name, got {name!r}: {brief(value)}")
    return float(value)


def _continue_streams(user: StreamUser, streams: Sequence[Streams], state: Any) -> None:
    known, *each = state
    user.set_state(known)
    for one, kept in zip(streams, each, strict=True):
        one.set_state(kept)


def _ending(agent: int, rows: list[tuple[Any, ...]]) -> Ending:
    at, terminated, truncated, reward, seen = zip(*rows, strict=True)
    flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
    return Ending(agent, np.array(at), *flags, np.array(reward, np.float64), stack_nests(seen))


class VectorWorlds:
    """Worlds that a VectorWorld steps as arrays.

    They have one set of global random streams, which begins again with the first seed of each reset.
    """

    def __init__(self, vector: VectorWorld, user: StreamUser | None = None) -> None:
        self._vector = vector
        self.user = user or StreamUser("the world")
        self._streams = Streams(self.user)
        self.size = vector.worlds
        self.lanes = self._everywhere = np.arange(self.size)
        self.over, self.broken = list(range(self.size)), list[int]()
        self.measured: dict[int, Mapping[str, float]] = {}
        self.can_save = vector.can_save
        self._owed = np.zeros((len(vector.agents), self.size))
        self._owed_to = list(self._owed)  # the rows of _owed, by agent
        everybody = range(len(vector.agents))
        self._earners: Callable[[], Sequence[int]] = getattr(vector, "earners", lambda: everybody)
        self._stage: str | None = None

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next resets on."""
        self._stage = stage

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        if len(seeds):
            self._streams.begin(seeds[0])
        # Worlds that still wait for a reset are reset here too, and play along: all worlds may have to be at the same
        # turn.
        idle = [world for world in self.over if world not in at]
        self._tell()
        self._vector.reset(np.array([*at, *idle]), [*seeds, *(seeds[0] for _ in idle)])
        self._owed[:, at] = 0.0
        self.over = idle

    def _tell(self) -> None:
        if self._stage is not None:
            getattr(self._vector, "set_stage", _nothing)(self._stage)

    def turns(self) -> list[Turn]:
        """Return one turn for each agent of the group, in all worlds."""
        if EXCHANGE.current is not self._streams:
            self._streams.enter()
        turns = []
        for agent in self._vector.group():
            owed = self._owed_to[agent]
            turn = Turn(agent, self._everywhere, self._vector.observe(agent), owed.copy(), None)
            turns.append(self._without_over(turn) if self.over else turn)
            owed.fill(0.0)
        return turns

    def _without_over(self, turn: Turn) -> Turn:
        """Return a turn without the worlds that wait for a reset."""
        at = np.setdiff1d(turn.at, self.over)
        return Turn(turn.agent, at, map_nest(lambda array: array[at], turn.observation), turn.reward[at], None)

    def _with_over(self, actions: Nest) -> Nest:
        """Return the actions for all worlds. Worlds that wait for a reset get the action of another world."""
        everywhere = map_nest(lambda array: np.repeat(array[:1], self.size, axis=0), actions)
        assign(everywhere, np.setdiff1d(self._everywhere, self.over), actions)
        return everywhere

    def act(self, actions: Sequence[Nest]) -> list[Ending]:
        """Play one step in all worlds."""
        vector, owed = self._vector, self._owed
        if EXCHANGE.current is not self._streams:
            self._streams.enter()
        vector.act([self._with_over(given) for given in actions] if self.over else actions)
        earners = self._earners()
        for agent in earners:
            sums = self._owed_to[agent]
            np.add(sums, vector.reward(agent), out=sums)
        if not np.isfinite(self._owed_to[earners[0]] if len(earners) == 1 else owed).all():
            agent, world = np.argwhere(~np.isfinite(owed))[0]
            raise WorldError(
                f"{type(vector).__name__} (agent {vector.agents[agent]}, world {world}): the reward is "
                f"{owed[agent, world]}; expected a finite number"
            )
        terminated, truncated = vector.ended()
        (ended,) = (terminated | truncated).nonzero()
        if self.over:  # the ends of these worlds were returned before
            ended = np.setdiff1d(ended, self.over)
        if not len(ended):
            return []
        if found := _metrics_of(vector):
            self.measured |= {
                int(w): {name: _number(vector, name, values[w]) for name, values in found.items()} for w in ended
            }
        self._streams.end()
        self.over.extend(ended.tolist())
        flags = terminated[ended], truncated[ended] & ~terminated[ended]
        return [
            Ending(
                agent, ended, *flags, owed[agent, ended], map_nest(lambda array: array[ended], vector.observe(agent))
            )
            for agent in range(len(owed))
        ]

    def get_state(self) -> Any:
        """Return the state of all worlds."""
        streams = [self.user.get_state(), self._streams.get_state()]
        return self._vector.get_state(), self._owed.copy(), list(self.over), streams, self._stage

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        inner, owed, over, *rest = state
        self._stage = rest[1] if len(rest) > 1 else None  # older checkpoints do not contain the stage
        self._tell()
        self._vector.set_state(inner)
        self._owed[...] = owed
        self.over = list(over)
        if rest:  # older checkpoints do not contain streams
            _continue_streams(self.user, [self._streams], rest[0])

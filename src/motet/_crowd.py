"""Crowd: the worlds of one actor, driven together; what they show and take is arrays over worlds.

Flows in: one array of actions for each :class:`Turn`. Flows out: whose turn it is in which worlds, with what they see
and earned (``look``), and whose episode ended (``act``). :class:`OneByOne` drives a list of Worlds, each at its own
point; :class:`Together` drives a VectorWorld, which steps all of them as arrays. The actor cannot tell them apart.

A world that is ``over`` waits for ``reset``. ``lanes`` says which lane of a replay the present episode of each world is
written to; it changes at resets only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Nest, map_nest
from motet.errors import WorldError
from motet.world import VectorWorld, World, as_world

__all__ = ["Crowd", "Ending", "OneByOne", "Together", "Turn", "make_crowd"]

Places = npt.NDArray[np.int64]
"""Numbers of worlds, or of lanes."""


class Turn(NamedTuple):
    """One agent's turn, in all worlds where it has one."""

    agent: int
    at: Places
    """The worlds, ascending."""
    observation: Nest
    """``[len(at), ...]``; valid until the next ``look``."""
    reward: npt.NDArray[np.float64]
    """``[len(at)]``: what it earned since it was last asked."""
    mask: npt.NDArray[np.bool_] | None
    """``[len(at), actions]``, for agents that have masks."""


class Ending(NamedTuple):
    """The ends of one agent's episodes."""

    agent: int
    at: Places
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    """Never set where terminated is."""
    reward: npt.NDArray[np.float64]
    observation: Nest
    """What it saw last, ``[len(at), ...]``."""


class Crowd(Protocol):
    """The contract between worlds and the actor."""

    worlds: int
    """How many."""
    lanes: Places
    """``[worlds]``: where the rows of the present episodes go."""
    over: list[int]
    """Worlds that wait for a reset."""
    broken: list[int]
    """Worlds that raised and were made anew since somebody last emptied this list; they are ``over`` too."""
    can_save: bool

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        ...

    def look(self) -> Sequence[Turn]:
        """Whose turn it is, each agent once."""
        ...

    def act(self, actions: Sequence[npt.NDArray[Any]]) -> Sequence[Ending]:
        """Play one array of actions for each turn that ``look`` gave, in its order; whose episodes that ended."""
        ...

    def get_state(self) -> Any:
        """Everything that decides what happens next in these worlds."""
        ...

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        ...


def make_crowd(factory: Callable[[], Any], worlds: int, masked: Sequence[bool], remake: bool = False) -> Crowd:
    """The worlds that a factory makes: as arrays where they offer that (``vector``), else one by one."""
    first = factory()
    if callable(getattr(first, "vector", None)):
        return Together(first.vector(worlds))
    rest = [as_world(factory()) for _ in range(worlds - 1)]
    return OneByOne([as_world(first), *rest], masked, (lambda: as_world(factory())) if remake else None)


class OneByOne:
    """Worlds that are stepped one after the other.

    Args:
        worlds: of one kind.
        masked: by agent, whether its action masks are asked for.
        remake: makes a world that takes the place of one that raised; without it the error is passed on.
    """

    def __init__(
        self, worlds: Sequence[World], masked: Sequence[bool], remake: Callable[[], World] | None = None
    ) -> None:
        self._worlds, self._masked, self._remake = list(worlds), tuple(masked), remake
        self.worlds = len(self._worlds)
        self.lanes = self._everywhere = np.arange(self.worlds)
        self.over, self.broken = list(range(self.worlds)), list[int]()
        self._agents = range(len(self._worlds[0].agents))
        self._seen: list[Nest] = [None] * len(self._agents)  # buffers [worlds, ...]
        self._rewards = np.zeros((len(self._agents), self.worlds))
        self._masks = [_mask_buffer(self._worlds[0], agent, self) if masked[agent] else None for agent in self._agents]
        self._asked: list[list[tuple[int, int]]] = [[] for _ in range(self.worlds)]  # (turn, place in it), by world
        self.can_save = all(world.can_save for world in self._worlds)

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        for world, seed in zip(at, seeds, strict=True):
            self._worlds[world].reset(seed)
        self.over = [world for world in self.over if world not in at]

    def look(self) -> list[Turn]:
        """Whose turn it is."""
        at: list[list[int]] = [[] for _ in self._agents]
        for w, world in enumerate(self._worlds):
            try:
                for agent in world.group():
                    place = len(at[agent])
                    self._keep(agent, place, world.observe(agent))
                    self._rewards[agent, place] = world.reward(agent)
                    if self._masked[agent]:
                        mask = world.mask(agent)
                        self._masks[agent][place] = True if mask is None else mask  # type: ignore[index]
                    at[agent].append(w)
            except WorldError:
                if self._remake is None:
                    raise
                self._replace(w, self._remake())
                for rows in at:
                    if rows and rows[-1] == w:
                        rows.pop()
        return self._turns(at)

    def _turns(self, at: list[list[int]]) -> list[Turn]:
        for asked in self._asked:
            asked.clear()
        turns: list[Turn] = []
        for agent, rows in enumerate(at):
            if not rows:
                continue
            n = len(rows)
            for place, w in enumerate(rows):
                self._asked[w].append((len(turns), place))
            mask, reward, seen = self._masks[agent], self._rewards[agent], self._seen[agent]
            if n == self.worlds:
                turns.append(Turn(agent, self._everywhere, seen, reward, mask))
            else:
                part = map_nest(lambda array: array[:n], seen)  # noqa: B023 (called at once)
                turns.append(Turn(agent, np.array(rows), part, reward[:n], None if mask is None else mask[:n]))
        self._order = [turn.agent for turn in turns]
        return turns

    def _keep(self, agent: int, place: int, observation: Nest) -> None:
        buffer = self._seen[agent]
        if buffer is None:
            buffer = self._seen[agent] = map_nest(
                lambda array: np.zeros((self.worlds, *np.shape(array)), array.dtype), observation
            )
        if isinstance(buffer, np.ndarray):
            buffer[place] = observation
        else:
            _put(buffer, place, observation)

    def act(self, actions: Sequence[npt.NDArray[Any]]) -> list[Ending]:
        """Play one array of actions for each turn."""
        # Numbers as Python has them: what a world is to be given one by one should not be taken out one by one.
        chosen = [a.tolist() if a.ndim == 1 and a.dtype.kind in "iu" else a for a in actions]
        ends: dict[int, list[tuple[Any, ...]]] = {}
        for w, (world, asked) in enumerate(zip(self._worlds, self._asked, strict=True)):
            if not asked:
                continue
            try:
                if len(asked) > 1:  # in the order of the group, which need not be that of the turns
                    by_agent = {self._order[turn]: chosen[turn][place] for turn, place in asked}
                    world.act([by_agent[agent] for agent in world.group()])
                else:
                    ((turn, place),) = asked
                    world.act((chosen[turn][place],))
                for agent, terminated, truncated in world.ended():
                    end = (w, terminated, truncated and not terminated, world.reward(agent), world.observe(agent))
                    ends.setdefault(agent, []).append(end)
                if not world.group():
                    self.over.append(w)
            except WorldError:
                if self._remake is None:
                    raise
                self._replace(w, self._remake())
                for agent, rows in list(ends.items()):
                    ends[agent] = [row for row in rows if row[0] != w]
        return [_ending(agent, ends[agent]) for agent in sorted(ends) if ends[agent]] if ends else []

    def _replace(self, w: int, world: World) -> None:
        """A world raised: another one takes its place."""
        self._worlds[w] = world
        self.broken.append(w)
        if w not in self.over:
            self.over.append(w)

    def get_state(self) -> Any:
        """The states of all worlds."""
        return [world.get_state() for world in self._worlds], list(self.over)

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        states, over = state
        for world, kept in zip(self._worlds, states, strict=True):
            world.set_state(kept)
        self.over = list(over)


def _mask_buffer(world: World, agent: int, crowd: OneByOne) -> npt.NDArray[np.bool_]:
    n: int = world.action_spaces[agent].n  # type: ignore[attr-defined]
    return np.ones((crowd.worlds, n), np.bool_)


def _put(buffer: Nest, place: int, value: Nest) -> None:
    if isinstance(buffer, Mapping):
        for key, part in buffer.items():
            _put(part, place, value[key])
    elif isinstance(buffer, tuple):
        for part, item in zip(buffer, value, strict=True):
            _put(part, place, item)
    else:
        buffer[place] = value


def _stack(values: list[Nest]) -> Nest:
    if isinstance(values[0], Mapping):
        return {key: _stack([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_stack([value[i] for value in values]) for i in range(len(values[0])))
    return np.stack(values)


def _ending(agent: int, rows: list[tuple[Any, ...]]) -> Ending:
    at, terminated, truncated, reward, seen = zip(*rows, strict=True)
    flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
    return Ending(agent, np.array(at), *flags, np.array(reward, np.float64), _stack(list(seen)))


class Together:
    """Worlds that a VectorWorld steps as arrays."""

    def __init__(self, vector: VectorWorld) -> None:
        self._vector = vector
        self.worlds = vector.worlds
        self.lanes = self._everywhere = np.arange(self.worlds)
        self.over, self.broken = list(range(self.worlds)), list[int]()
        self.can_save = vector.can_save
        self._agents = range(len(vector.agents))
        self._rewards = np.zeros((len(self._agents), self.worlds))

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        self._vector.reset(np.array(at), seeds)
        self._rewards[:, at] = 0.0
        self.over = [world for world in self.over if world not in at]

    def look(self) -> list[Turn]:
        """Everybody's turn, in all worlds."""
        vector = self._vector
        return [Turn(a, self._everywhere, vector.observe(a), self._rewards[a], None) for a in self._agents]

    def act(self, actions: Sequence[npt.NDArray[Any]]) -> list[Ending]:
        """One step of all worlds."""
        self._vector.act(actions)
        for agent in self._agents:
            self._rewards[agent] = self._vector.reward(agent)
        if not np.isfinite(self._rewards).all():
            agent, world = np.argwhere(~np.isfinite(self._rewards))[0]
            raise WorldError(
                f"{type(self._vector).__name__} (agent {self._vector.agents[agent]}, world {world}): the reward is "
                f"{self._rewards[agent, world]}; expected a finite number"
            )
        terminated, truncated = self._vector.ended()
        ended = np.flatnonzero(terminated | truncated)
        if not len(ended):
            return []
        self.over.extend(ended.tolist())
        flags = terminated[ended], truncated[ended] & ~terminated[ended]
        return [
            Ending(
                agent,
                ended,
                *flags,
                self._rewards[agent][ended],
                map_nest(lambda array: array[ended], self._vector.observe(agent)),
            )
            for agent in self._agents
        ]

    def get_state(self) -> Any:
        """The state of all worlds."""
        return self._vector.get_state(), self._rewards.copy(), list(self.over)

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        inner, rewards, over = state
        self._vector.set_state(inner)
        self._rewards[...] = rewards
        self.over = list(over)

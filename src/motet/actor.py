"""act(): worlds and subscribed policies in, transitions out.

One actor steps several worlds. In every *round* each world goes one group further: those whose turn it is observe, the
row that their last action began is closed (its reward is known now) and appended to their replay, their policies are
asked once for all worlds, and the worlds act. It does not know who reads the replay or who publishes the policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour, map_nest
from motet.errors import WorldError
from motet.replay import FrameStack
from motet.world import World

__all__ = ["Episode", "Memory", "Seat", "act"]


class RowWriter(Protocol):
    """Where transitions go: one lane."""

    def append(self, *values: Any, **named: Any) -> int:
        """Add one step."""
        ...

    def interrupt(self) -> None:
        """The episode broke off."""
        ...


class PolicySource(Protocol):
    """Where policies come from."""

    @property
    def version(self) -> int:
        """The version held."""
        ...

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Its weights."""
        ...

    def refresh(self) -> bool:
        """Take the newest version; True if there was one."""
        ...

    def __getitem__(self, name: str) -> Any: ...


@dataclass
class Seat:
    """One agent's place in an actor: how it acts, and where its rows go."""

    behaviour: Behaviour
    subscriber: PolicySource
    writers: Sequence[RowWriter]
    """One for each world."""
    header: Sequence[str] = ()
    """What the behaviour needs of the publication beside the weights."""
    n_frames: int = 1
    """Observations stacked before the behaviour sees them."""
    masked: bool = False
    """Whether rows hold the world's action masks."""


class Episode(NamedTuple):
    """A finished episode of one agent."""

    agent: int
    total: float
    """Sum of its rewards."""
    steps: int


class _Question(NamedTuple):
    """Somebody's turn."""

    world: int
    agent: int
    observation: Any
    mask: npt.NDArray[np.bool_] | None


class Pending(NamedTuple):
    """A row whose reward is not known yet."""

    observation: Any
    action: Any
    version: int
    extra: dict[str, Any]


@dataclass
class Memory:
    """What an actor remembers between rounds; with the worlds' own states it is all that a copy needs to go on."""

    pending: list[list[Pending | None]]  # [world][agent]
    frames: list[list[FrameStack | None]]
    total: npt.NDArray[np.float64]  # [world, agent]
    steps: npt.NDArray[np.int64]
    episodes: list[int]
    """Episodes begun, by world."""
    closed: list[int]
    """Steps whose rows are complete, by agent."""
    rounds: int = 0
    remade: int = 0
    """Worlds made anew after they raised."""
    finished: deque[Episode] = field(default_factory=deque)
    """Episodes for whoever watches; taken out by the driver."""

    @classmethod
    def fresh(cls, worlds: int, seats: Sequence[Seat]) -> Memory:
        """Nothing has happened yet."""
        return cls(
            pending=[[None] * len(seats) for _ in range(worlds)],
            frames=[[FrameStack(s.n_frames) if s.n_frames > 1 else None for s in seats] for _ in range(worlds)],
            total=np.zeros((worlds, len(seats))),
            steps=np.zeros((worlds, len(seats)), np.int64),
            episodes=[0] * worlds,
            closed=[0] * len(seats),
        )


def act(
    worlds: list[World],
    seats: Sequence[Seat],
    memory: Memory,
    seed_of: Callable[[int, int], int],
    remake: Callable[[int], World] | None = None,
    sync_interval: int = 1,
) -> Iterator[None]:
    """Play for ever, one round for each ``next``.

    Args:
        worlds: stepped together.
        seats: by agent; one for each agent of the worlds.
        memory: what it remembers; ``Memory.fresh`` at the start.
        seed_of: the seed of a world's n-th episode, ``seed_of(world, n)``.
        remake: makes a world anew after it raised; without it the error ends the run.
        sync_interval: rounds between looks at the publications; 1 takes a version as soon as it is there.
    """
    for w, world in enumerate(worlds):
        if memory.episodes[w] == 0:
            _begin(w, world, memory, seed_of)
    while True:
        if memory.rounds % sync_interval == 0:
            _refresh(seats)
        asked: dict[int, list[_Question]] = {}
        playing = []
        for w in range(len(worlds)):
            try:
                questions = _look(w, worlds[w], seats, memory, seed_of)
            except WorldError:
                if remake is None:
                    raise
                _replace(w, worlds, seats, memory, seed_of, remake)
                continue
            playing.append(w)
            for question in questions:
                asked.setdefault(question.agent, []).append(question)
        answers = {agent: _ask(seats[agent], rows, memory) for agent, rows in asked.items()}
        for w in playing:
            try:
                world = worlds[w]
                world.act([answers[agent][w] for agent in world.group()])
                for end in world.ended():
                    _close(w, world, seats, memory, end)
            except WorldError:
                if remake is None:
                    raise
                _replace(w, worlds, seats, memory, seed_of, remake)
        memory.rounds += 1
        yield


def _begin(w: int, world: World, memory: Memory, seed_of: Callable[[int, int], int]) -> None:
    world.reset(seed_of(w, memory.episodes[w]))
    memory.episodes[w] += 1
    memory.total[w] = 0
    memory.steps[w] = 0
    for agent in range(len(memory.pending[w])):
        memory.pending[w][agent] = None


def _refresh(seats: Sequence[Seat]) -> None:
    for seat in seats:
        if seat.subscriber.refresh():
            seat.behaviour.load(seat.subscriber.weights, {name: seat.subscriber[name] for name in seat.header})


def _look(
    w: int, world: World, seats: Sequence[Seat], memory: Memory, seed_of: Callable[[int, int], int]
) -> list[_Question]:
    """What everybody whose turn it is sees; closes the rows that their last actions began."""
    group = world.group()
    if not group:
        _begin(w, world, memory, seed_of)
        group = world.group()
    questions = []
    for agent in group:
        seat, observation = seats[agent], world.observe(agent)
        row, reward = memory.pending[w][agent], world.reward(agent)
        memory.total[w, agent] += reward
        if row is not None:
            seat.writers[w].append(row.observation, row.action, reward, version=row.version, **row.extra)
            memory.closed[agent] += 1
        questions.append(_Question(w, agent, observation, _mask(world, agent) if seat.masked else None))
    return questions


def _mask(world: World, agent: int) -> npt.NDArray[np.bool_]:
    """Which actions are allowed; all of them where the world says nothing."""
    mask = world.mask(agent)
    return np.ones(world.action_spaces[agent].n, np.bool_) if mask is None else mask  # type: ignore[attr-defined]


def _ask(seat: Seat, rows: list[_Question], memory: Memory) -> dict[int, Any]:
    """The actions of one agent in all worlds where it acts now, by world; begins a row for each."""
    seen = [_stacked(memory, row) for row in rows]
    batch = map_nest(lambda first: first[None], seen[0]) if len(seen) == 1 else _stack(seen)
    masks = np.stack([row.mask for row in rows if row.mask is not None]) if seat.masked else None
    actions, extras = seat.behaviour.act(batch, masks)
    version = seat.subscriber.version
    for i, row in enumerate(rows):
        extra = {name: values[i] for name, values in extras.items()}
        if seat.masked:
            extra["mask"] = row.mask
        memory.pending[row.world][row.agent] = Pending(row.observation, actions[i], version, extra)
        memory.steps[row.world, row.agent] += 1
    return {row.world: actions[i] for i, row in enumerate(rows)}


def _stacked(memory: Memory, row: _Question) -> Any:
    frames = memory.frames[row.world][row.agent]
    if frames is None:
        return row.observation
    first = memory.pending[row.world][row.agent] is None
    return frames.begin(row.observation) if first else frames.push(row.observation)


def _stack(seen: list[Any]) -> Any:
    if isinstance(seen[0], Mapping):
        return {key: _stack([item[key] for item in seen]) for key in seen[0]}
    if isinstance(seen[0], tuple):
        return tuple(_stack([item[i] for item in seen]) for i in range(len(seen[0])))
    return np.stack(seen)


def _close(w: int, world: World, seats: Sequence[Seat], memory: Memory, end: Any) -> None:
    """The last row of an agent's episode, and what it saw behind it."""
    agent = end.agent
    row = memory.pending[w][agent]
    if row is None:  # it never acted in this episode
        return
    reward = world.reward(agent)
    final = {"final_observation": world.observe(agent)}
    if seats[agent].masked:
        final["final_mask"] = np.ones_like(row.extra["mask"])
    seats[agent].writers[w].append(
        row.observation, row.action, reward, version=row.version, **row.extra,
        terminated=end.terminated, truncated=end.truncated and not end.terminated, **final,
    )  # fmt: skip
    memory.pending[w][agent] = None
    memory.closed[agent] += 1
    total = float(memory.total[w, agent] + reward)
    memory.finished.append(Episode(agent, total, int(memory.steps[w, agent])))


def _replace(
    w: int,
    worlds: list[World],
    seats: Sequence[Seat],
    memory: Memory,
    seed_of: Callable[[int, int], int],
    remake: Callable[[int], World],
) -> None:
    """A world raised: its episodes break off, and a new one takes its place."""
    for seat in seats:
        seat.writers[w].interrupt()
    worlds[w] = remake(w)
    memory.remade += 1
    _begin(w, worlds[w], memory, seed_of)

"""act(): worlds and subscribed policies in, transitions out.

One actor steps several worlds. In every *round* each world goes one group further: those whose turn it is
observe, the rows that their last actions began are closed (their rewards are known now) and appended to their replay,
their policies are asked once for all worlds, and the worlds act. It does not know who reads the replay or who publishes
the policies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour
from motet.nest import Nest, assign, map_nest
from motet.world.batch import Ending, Indices, Turn, WorldBatch

__all__ = [
    "ActingAgent",
    "ActorState",
    "FinishedEpisode",
    "MaxLag",
    "PendingRows",
    "act",
    "load_version",
    "take_newest",
]

_INSIST_S = 10.0  # how long a version that must be taken may be in the writing


class RowWriters(Protocol):
    """Where transitions go: the lanes of an actor."""

    def append(self, lanes: Indices, /, *values: Any, **named: Any) -> None:
        """Add one step to each of these lanes."""
        ...

    def interrupt(self, lane: int, /) -> None:
        """The episode in this lane broke off."""
        ...


class PolicySource(Protocol):
    """Where policies come from."""

    @property
    def version(self) -> int:
        """The version held."""
        ...

    @property
    def forced(self) -> int:
        """How often a version had to be taken, since the one held was too old."""
        ...

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """Its weights."""
        ...

    def refresh(self) -> bool:
        """Take the newest version; True if there was one."""
        ...

    def take(self, timeout_s: float) -> bool:
        """Take the newest version, and insist on it; True if there was one."""
        ...

    def catch_up(self, lag_versions: float, timeout_s: float) -> bool:
        """The same if more versions behind, and counted."""
        ...

    def __getitem__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class MaxLag:
    """How far what acts may be behind the newest version: who is further behind, by either measure, takes it."""

    versions: int | None = None
    steps: int | None = None
    """Of the agent, between the two publications."""

    def __bool__(self) -> bool:
        return self != MaxLag()

    def versions_for(self, steps: int) -> float:
        """How many versions may lie between the two if so many steps do."""
        if self.steps is not None and steps > self.steps:
            return 0
        return math.inf if self.versions is None else self.versions


@dataclass
class ActingAgent:
    """One agent's place in an actor: how it acts, and where its rows go."""

    behaviour: Behaviour
    subscriber: PolicySource
    writers: RowWriters
    header: Sequence[str] = ()
    """What the behaviour needs of the publication beside the weights."""
    n_frames: int = 1
    """Observations stacked before the behaviour sees them."""
    masked: bool = False
    """Whether rows hold the world's action masks."""
    newest_step: Callable[[], int] = lambda: 0
    """The ``published_step`` of the newest version."""


class FinishedEpisode(NamedTuple):
    """A finished segment of one agent: in most worlds its whole episode."""

    agent: int
    total: float
    """Sum of its rewards."""
    steps: int


class PendingRows:
    """What an actor remembers of one agent in all its worlds: rows whose rewards are not known yet, frames, sums.

    Most of the time an agent acts in all worlds at once. Then the arrays of its turn are kept as they are; only where
    it acts in some of them are they copied together.
    """

    def __init__(self, worlds: int, n_frames: int) -> None:
        self._worlds, self._n_frames = worlds, n_frames
        self.open = np.zeros(worlds, np.bool_)
        """In which worlds it has a row whose reward is not known yet."""
        self._all_open = False
        self.row: dict[str, Nest] = {}
        """What is known of those rows by field, ``[worlds, ...]`` each."""
        self._own = False  # whether these are arrays of its own, to be written to
        self.frames: Nest = None
        """``[worlds, n_frames, ...]``"""
        self.total = np.zeros(worlds)
        self.steps = np.zeros(worlds, np.int64)
        self._turns = 0  # in all worlds at once; not yet in ``steps``

    def begin(self, world: int) -> None:
        """A new episode in one world."""
        self.open[world] = False
        self._all_open = False
        self._start([world])

    def _start(self, at: Sequence[int] | Indices) -> None:
        """Return and length of what comes next in these worlds start at 0."""
        self.total[at] = 0.0
        self.steps[at] = -self._turns

    def close(self, turn: Turn, acting: ActingAgent, lanes: Indices) -> int:
        """Close the rows that the last actions began; how many."""
        at, reward = turn.at, turn.reward
        if len(at) == self._worlds:
            self.total += reward
            if self._all_open:
                acting.writers.append(lanes, reward=reward.astype(np.float32), **self.row)
                return len(at)
        else:
            self.total[at] += reward
        known = self.open[at]
        rows = at[known]
        if len(rows):
            acting.writers.append(lanes[rows], reward=reward[known].astype(np.float32), **self._part(rows))
        return len(rows)

    def ask(self, turn: Turn, acting: ActingAgent) -> npt.NDArray[Any]:
        """The actions of this turn; begins a row for each."""
        actions, extra = acting.behaviour.act(self._stacked(turn), turn.mask)
        row = {"observation": turn.observation, "action": actions, "version": acting.subscriber.version, **extra}
        if turn.mask is not None:
            row["mask"] = turn.mask
        if len(turn.at) == self._worlds:
            self.row, self._own = row, False
            self._turns += 1
            if not self._all_open:
                self.open[:] = self._all_open = True
        else:
            self._write(turn.at, row)
        return actions

    def finish(self, ending: Ending, acting: ActingAgent, lanes: Indices) -> list[FinishedEpisode]:
        """The last rows of segments, and what was seen behind them. An agent that did not act in one has none."""
        known = self.open[ending.at]
        rows = ending.at[known]
        if not len(rows):
            self._start(ending.at)
            return []
        final = {"final_observation": map_nest(lambda array: np.ascontiguousarray(array[known]), ending.observation)}
        row = self._part(rows)
        if acting.masked:
            final["final_mask"] = np.ones_like(row["mask"])
        reward = ending.reward[known]
        acting.writers.append(
            lanes[rows], reward=reward.astype(np.float32), terminated=ending.terminated[known],
            truncated=ending.truncated[known], **row, **final,
        )  # fmt: skip
        self.total[rows] += reward
        self.open[rows] = False
        self._all_open = False
        steps = self.steps + self._turns
        episodes = [FinishedEpisode(ending.agent, float(self.total[w]), int(steps[w])) for w in rows]
        self._start(ending.at)
        return episodes

    def _part(self, rows: Indices) -> dict[str, Nest]:
        """Fields of the rows of some worlds."""
        pick = lambda value: value[rows] if isinstance(value, np.ndarray) else value  # noqa: E731
        return {name: map_nest(pick, nest) for name, nest in self.row.items()}

    def _write(self, at: Indices, row: Mapping[str, Nest]) -> None:
        """Begin rows in some worlds, beside those of the others."""
        if not self._own:
            self.row = {name: map_nest(self._copied, nest) for name, nest in (self.row or row).items()}
            self._own = True
        for name, nest in row.items():
            assign(self.row[name], at, nest)
        self.steps[at] += 1
        self.open[at] = True
        self._all_open = bool(self.open.all())

    def _copied(self, value: Any) -> npt.NDArray[Any]:
        """One field of all worlds, to be written to: of as many as there are in ``value``, the others open."""
        if not isinstance(value, np.ndarray):
            return np.full(self._worlds, value, np.uint64)  # the version
        copy = np.zeros((self._worlds, *value.shape[1:]), value.dtype)
        copy[: len(value)] = value
        return copy

    def _stacked(self, turn: Turn) -> Nest:
        """What the behaviour sees: the newest frames, the first one repeated where an episode begins."""
        if self._n_frames == 1:
            return turn.observation
        if self.frames is None:
            make = lambda a: np.zeros((self._worlds, self._n_frames, *a.shape[1:]), a.dtype)  # noqa: E731
            self.frames = map_nest(make, turn.observation)
        everywhere = len(turn.at) == self._worlds
        begins = () if self._all_open else np.flatnonzero(~self.open[turn.at]).tolist()
        return _pushed(self.frames, turn.observation, ... if everywhere else turn.at, begins)

    def get_state(self) -> dict[str, Any]:
        """All of it, as plain values and arrays."""
        if self.row:
            self.row = {name: map_nest(self._copied, nest) for name, nest in self.row.items()}
            self._own = True
        frames = None if self.frames is None else map_nest(np.array, self.frames)
        steps = self.steps + self._turns
        return {"open": self.open.copy(), "row": map_nest(np.array, self.row), "frames": frames,
                "total": self.total.copy(), "steps": steps}  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name, value in state.items():
            setattr(self, name, value)
        self._turns, self._own, self._all_open = 0, True, bool(self.open.all())


def _pushed(frames: Nest, new: Nest, where: Any, begins: Sequence[int]) -> Nest:
    """Frames with the newest observation behind the older ones."""
    if isinstance(frames, Mapping):
        return {key: _pushed(part, new[key], where, begins) for key, part in frames.items()}
    if isinstance(frames, tuple):
        return tuple(_pushed(part, item, where, begins) for part, item in zip(frames, new, strict=True))
    part = frames[where]
    part[:, :-1] = part[:, 1:]
    part[:, -1] = new
    for i in begins:
        part[i] = new[i]
    if where is not ...:
        frames[where] = part
    return part


@dataclass
class ActorState:
    """What an actor remembers between rounds; with the worlds' own states it is all that a copy needs to go on."""

    pending: list[PendingRows]
    """By agent."""
    episodes: list[int]
    """Episodes begun, by world."""
    closed: list[int]
    """Steps whose rows are complete, by agent."""
    rounds: int = 0
    remade: int = 0
    """Worlds made anew after they raised."""
    finished: deque[FinishedEpisode] = field(default_factory=deque)
    """Episodes for whoever watches; taken out by the driver."""

    @classmethod
    def fresh(cls, worlds: int, agents: Sequence[ActingAgent]) -> ActorState:
        """Nothing has happened yet."""
        return cls([PendingRows(worlds, acting.n_frames) for acting in agents], [0] * worlds, [0] * len(agents))


def act(
    worlds: WorldBatch,
    agents: Sequence[ActingAgent],
    state: ActorState,
    seed_of: Callable[[int, int], int],
    sync_interval: int = 1,
    max_lag: MaxLag | None = None,
) -> Iterator[None]:
    """Play for ever, one round for each ``next``; begin with the newest versions.

    Args:
        worlds: the worlds.
        agents: by agent; one for each agent of the worlds.
        state: what it remembers; ``ActorState.fresh`` at the start.
        seed_of: the seed of a world's n-th episode, ``seed_of(world, n)``.
        sync_interval: rounds between looks at the publications; 1 takes a version as soon as it is there.
        max_lag: who is further behind takes the newest version at once, and insists on it.
    """
    pending = state.pending
    take_newest([acting for acting in agents if not acting.subscriber.version])  # a resumed one holds a version already
    while True:
        if state.rounds % sync_interval == 0:
            _refresh(agents)
        if max_lag:
            _catch_up(agents, max_lag)
        if worlds.over:
            _begin(worlds, state, seed_of)
        actions = []
        lanes = worlds.lanes
        for turn in worlds.look():
            acting, rows = agents[turn.agent], pending[turn.agent]
            state.closed[turn.agent] += rows.close(turn, acting, lanes)
            actions.append(rows.ask(turn, acting))
        for ending in worlds.act(actions):
            episodes = pending[ending.agent].finish(ending, agents[ending.agent], lanes)
            state.closed[ending.agent] += len(episodes)
            state.finished.extend(episodes)
        if worlds.broken:
            _break_off(worlds, agents, state)
        state.rounds += 1
        yield


def take_newest(agents: Sequence[ActingAgent]) -> None:
    """Go on with the newest version of each policy, whenever they would be looked at next."""
    for acting in agents:
        if acting.subscriber.take(_INSIST_S):
            load_version(acting)


def _refresh(agents: Sequence[ActingAgent]) -> None:
    for acting in agents:
        if acting.subscriber.refresh():
            load_version(acting)


def _catch_up(agents: Sequence[ActingAgent], max_lag: MaxLag) -> None:
    for acting in agents:
        lag_steps = acting.newest_step() - acting.subscriber["published_step"]
        if acting.subscriber.catch_up(max_lag.versions_for(lag_steps), _INSIST_S):
            load_version(acting)


def load_version(acting: ActingAgent) -> None:
    """Let the behaviour act with the version that its subscriber holds."""
    acting.behaviour.load(acting.subscriber.weights, {name: acting.subscriber[name] for name in acting.header})


def _begin(worlds: WorldBatch, state: ActorState, seed_of: Callable[[int, int], int]) -> None:
    """New episodes where the last ones are over."""
    over = list(worlds.over)
    worlds.reset(over, [seed_of(world, state.episodes[world]) for world in over])
    for world in over:
        state.episodes[world] += 1
        for rows in state.pending:
            rows.begin(world)


def _break_off(worlds: WorldBatch, agents: Sequence[ActingAgent], state: ActorState) -> None:
    """Worlds raised, and others took their places: the rows of their episodes have no end."""
    for world in worlds.broken:
        for acting in agents:
            acting.writers.interrupt(int(worlds.lanes[world]))
    state.remade += len(worlds.broken)
    worlds.broken.clear()

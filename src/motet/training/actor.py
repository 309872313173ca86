"""Actor: steps worlds with published policies, and writes transitions.

An actor steps several worlds. In every *round* each world moves on by one group of agents. The
policies of these agents get the rewards of their last actions, which completes the rows of these actions. Then each
policy is asked once for the next actions in all worlds. A round processes only the agents that act, so its cost does
not depend on the number of other agents. The actor depends neither on the reader of the rows nor on the publisher of
the policies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour, state_size_of
from motet.nest import Nest, assign, map_nest
from motet.policy import EpisodeState
from motet.runs.snapshot import Work
from motet.training.board import Times, no_times
from motet.world.batch import Ending, Indices, Turn, WorldBatch, join_turns

__all__ = ["ActingPolicy", "Actor", "FinishedEpisode", "MaxLag", "PendingRows", "PublishedPolicy"]

_POLICIES = int(Work.POLICIES)
_INSIST_S = 10.0  # seconds to wait for a version that is being written


class RowWriters(Protocol):
    """Where transitions are written: the lanes of an actor."""

    def append(self, lanes: Indices, /, *values: Any, **named: Any) -> None:
        """Append one row to each of these lanes."""
        ...

    def interrupt(self, lane: int, /) -> None:
        """Break off the episode in this lane: its last row gets no end, and its next row begins a segment."""
        ...


class PolicySource(Protocol):
    """A publication from which an actor takes the versions of a policy."""

    @property
    def version(self) -> int:
        """The version that the actor holds now."""
        ...

    @property
    def forced(self) -> int:
        """Number of times that a newer version had to be taken because the held version was too old."""
        ...

    waited_s: float
    """Seconds that the source has waited for versions that were being written."""

    @property
    def weights(self) -> npt.NDArray[np.float32]:
        """The weights of the version that the actor holds now."""
        ...

    def refresh(self) -> bool:
        """Take the newest version if it can be read now; return whether a new one was taken."""
        ...

    def take(self, timeout_s: float) -> bool:
        """Take the newest version, and wait if it is being written; return whether a new one was taken."""
        ...

    def catch_up(self, lag_versions: float, timeout_s: float) -> bool:
        """If the held version is more than ``lag_versions`` behind, take the newest one as :meth:`take` does, and
        count it."""
        ...

    def __getitem__(self, name: str) -> Any: ...


@dataclass(frozen=True)
class MaxLag:
    """How far the version in use may be behind the newest one. A policy that exceeds either limit loads the newest
    version."""

    versions: int | None = None
    """Number of versions; None: no limit."""
    steps: int | None = None
    """Steps of the agent between the publication of the version in use and that of the newest one; None: no limit."""

    def __bool__(self) -> bool:
        return self != MaxLag()

    def versions_for(self, steps: int) -> float:
        """Return the allowed lag in versions, given the lag in steps."""
        if self.steps is not None and steps > self.steps:
            return 0
        return math.inf if self.versions is None else self.versions


class FinishedEpisode(NamedTuple):
    """A finished segment of one agent: in most worlds its whole episode."""

    policy: int
    """Index of the agent's policy."""
    total: float
    """Return: the sum of the rewards in the segment."""
    steps: int
    agent: int
    world: int
    last: float
    """The reward at the end of the segment."""


class ActingPolicy(Protocol):
    """A policy as the actor uses it: for one or several agents, in all worlds.

    :class:`PublishedPolicy` acts by the versions that a learner publishes; ``drivers.make_actor`` creates one for each
    policy of the roster. Partners, which act but do not learn, are not policies of the actor. They are part of its
    worlds (``partnered.py``).

    A *track* is one agent in one world. ``at`` of a turn or an ending holds indices of tracks here, in ascending order,
    and ``lanes`` has the lane of each track.
    """

    is_done: bool
    """Whether the policy has done the steps that this actor has to do with it."""

    def begin(self, tracks: Indices) -> None:
        """Begin a new episode on these tracks."""
        ...

    def act(self, turn: Turn, lanes: Indices) -> Nest:
        """Return the actions of a turn."""
        ...

    def finish(self, ending: Ending, lanes: Indices) -> list[tuple[float, int, int]]:
        """End segments. Return the return, the steps and the index in ``ending`` of each segment in which an agent
        acted."""
        ...

    def break_off(self, lanes: Indices) -> None:
        """Break off the episodes in these lanes, whose world raised."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the state that the agents carry from round to round, as plain values and arrays."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        ...


class PublishedPolicy:
    """A learned policy in an actor: it acts with the newest version, and writes every step as a row.

    Args:
        behaviour: the acting half of the policy's algorithm.
        subscriber: the source of the policy's versions.
        writers: the lanes to which rows are written.
        tracks: number of tracks on which the policy acts.
        header: header fields of a version that the behaviour needs beside the weights.
        n_frames: number of observations that are stacked for the behaviour.
        masked: whether rows contain the world's action masks.
        sync_interval: turns between two checks for a new version; 1: every turn.
        max_lag: how old the version in use may be.
        newest_step: returns the ``published_step`` of the newest version.
        left: number of steps that this actor still has to do with this policy.
        on_load: called with the subscriber when a version has been loaded.
    """

    def __init__(
        self,
        behaviour: Behaviour,
        subscriber: PolicySource,
        writers: RowWriters,
        tracks: int,
        *,
        header: Sequence[str] = (),
        n_frames: int = 1,
        masked: bool = False,
        sync_interval: int = 1,
        max_lag: MaxLag | None = None,
        newest_step: Callable[[], int] = lambda: 0,
        left: float = math.inf,
        on_load: Callable[[PolicySource], None] = lambda subscriber: None,
    ) -> None:
        self.behaviour, self.subscriber, self.newest_step = behaviour, subscriber, newest_step
        self._writers, self._header, self._masked = writers, tuple(header), masked
        self._sync_interval, self._max_lag, self._left, self._on_load = sync_interval, max_lag or None, left, on_load
        self._rows = PendingRows(tracks)
        state_size = state_size_of(behaviour)
        self._carried = EpisodeState(tracks, n_frames, state_size) if n_frames > 1 or state_size else None
        self.turns = 0
        """Number of turns taken. ``sync_interval`` is a number of turns."""
        self.closed = 0
        """Steps whose rows are complete."""
        self.is_done = left <= 0
        """Whether the policy has done the steps that this actor has to do with it."""

    def load_newest(self) -> None:
        """Load the newest version now, regardless of ``sync_interval``."""
        if self.subscriber.take(_INSIST_S):
            self.load()

    def load(self) -> None:
        """Act with the version that the subscriber holds."""
        subscriber = self.subscriber
        self.behaviour.load(subscriber.weights, {name: subscriber[name] for name in self._header})
        self._on_load(subscriber)

    def begin(self, tracks: Indices) -> None:
        """Begin a new episode on these tracks."""
        self._rows.begin(tracks)
        if self._carried is not None:
            self._carried.begin(tracks)

    def act(self, turn: Turn, lanes: Indices) -> Nest:
        """Complete the rows that the last actions began, and begin rows with the actions of this turn."""
        if self.turns % self._sync_interval == 0 and self.subscriber.refresh():
            self.load()
        if self._max_lag is not None:
            self._catch_up(self._max_lag)
        self.turns += 1
        self._count(self._rows.close(turn, self._writers, lanes))
        if self._carried is None:
            actions, extra = self.behaviour.act(turn.observation, turn.mask)
        else:
            actions, extra = self._carried.ask(self.behaviour, turn.at, turn.observation, turn.mask)
        row = {"observation": turn.observation, "action": actions, "version": self.subscriber.version, **extra}
        if turn.mask is not None:
            row["mask"] = turn.mask
        self._rows.open(turn.at, row)
        return actions

    def _catch_up(self, max_lag: MaxLag) -> None:
        lag_steps = self.newest_step() - self.subscriber["published_step"]
        if self.subscriber.catch_up(max_lag.versions_for(lag_steps), _INSIST_S):
            self.load()

    def finish(self, ending: Ending, lanes: Indices) -> list[tuple[float, int, int]]:
        """Write the last rows of segments, with the final observations."""
        if self._carried is not None:
            self._carried.begin(ending.at)
        finished = self._rows.finish(ending, self._writers, lanes, self._masked)
        self._count(len(finished))
        return finished

    def _count(self, closed: int) -> None:
        self.closed += closed
        self.is_done = self.closed >= self._left

    def break_off(self, lanes: Indices) -> None:
        """Break off the episodes in these lanes, which have no end."""
        for lane in lanes.tolist():
            self._writers.interrupt(lane)

    def get_state(self) -> dict[str, Any]:
        """Return the state that the agents carry from round to round, as plain values and arrays."""
        carried = {"frames": None, "memory": None} if self._carried is None else self._carried.get_state()
        kept = {"frames": carried["frames"], "memory": carried["memory"], "turns": self.turns}
        return {**self._rows.get_state(), **kept}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._rows.set_state(state)
        if self._carried is not None:  # an episode begins where no row is open
            self._carried.set_state({**state, "begins": ~np.asarray(state["open"])})
        self.turns = state["turns"]


class PendingRows:
    """For each track of a policy: the row whose reward is not known yet, and the return and length of the segment so
    far.

    Most of the time a policy acts on all tracks at once. Then the arrays of its turn are kept without a copy. They are
    copied only if it acts on some of the tracks.
    """

    def __init__(self, tracks: int) -> None:
        self._tracks = tracks
        self._is_open = np.zeros(tracks, np.bool_)  # for each track: whether it has a row whose reward is not known yet
        self._all_open = False
        self._row: dict[str, Nest] = {}  # the known fields of those rows, [tracks, ...] each
        self._own = False  # whether these arrays are copies, which may be written to
        self._total = np.zeros(tracks)
        self._steps = np.zeros(tracks, np.int64)
        self._turns = 0  # steps made on all tracks at once, not yet added to ``_steps``

    def begin(self, tracks: Indices) -> None:
        """Begin a new episode on these tracks."""
        self._is_open[tracks] = False
        self._all_open = False
        self._start(tracks)

    def _start(self, tracks: Indices) -> None:
        """Set return and length of the next segment on these tracks to 0."""
        self._total[tracks] = 0.0
        self._steps[tracks] = -self._turns

    def close(self, turn: Turn, writers: RowWriters, lanes: Indices) -> int:
        """Write the rows that the last actions began, now that their rewards are known; return their number."""
        at, reward = turn.at, turn.reward
        if len(at) == self._tracks:
            self._total += reward
            if self._all_open:
                writers.append(lanes, reward=reward.astype(np.float32), **self._row)
                return len(at)
        else:
            self._total[at] += reward
        known = self._is_open[at]
        rows = at[known]
        if len(rows):
            writers.append(lanes[rows], reward=reward[known].astype(np.float32), **self._part(rows))
        return len(rows)

    def open(self, at: Indices, row: dict[str, Nest]) -> None:
        """Begin a row on each of these tracks. All but the reward is known."""
        if len(at) == self._tracks:
            self._row, self._own = row, False
            self._turns += 1
            if not self._all_open:
                self._is_open[:] = self._all_open = True
            return
        if not self._own:
            self._row = {name: map_nest(self._copied, nest) for name, nest in (self._row or row).items()}
            self._own = True
        for name, nest in row.items():
            assign(self._row[name], at, nest)
        self._steps[at] += 1
        self._is_open[at] = True
        self._all_open = bool(self._is_open.all())

    def finish(self, ending: Ending, writers: RowWriters, lanes: Indices, masked: bool) -> list[tuple[float, int, int]]:
        """Write the last rows of segments with the final observations.

        Returns the return, the steps and the index in ``ending`` of each segment. A segment in which the agent did not
        act has no row.
        """
        known = self._is_open[ending.at]
        rows = ending.at[known]
        if not len(rows):
            self._start(ending.at)
            return []
        final = {"final_observation": map_nest(lambda array: np.ascontiguousarray(array[known]), ending.observation)}
        row = self._part(rows)
        if masked:
            final["final_mask"] = np.ones_like(row["mask"])
        reward = ending.reward[known]
        writers.append(
            lanes[rows], reward=reward.astype(np.float32), terminated=ending.terminated[known],
            truncated=ending.truncated[known], **row, **final,
        )  # fmt: skip
        self._total[rows] += reward
        self._is_open[rows] = False
        self._all_open = False
        totals, steps = self._total[rows].tolist(), (self._steps[rows] + self._turns).tolist()
        finished = list(zip(totals, steps, known.nonzero()[0].tolist(), strict=True))
        self._start(ending.at)
        return finished

    def _part(self, rows: Indices) -> dict[str, Nest]:
        """Return the fields of the rows of some tracks."""
        pick = lambda value: value[rows] if isinstance(value, np.ndarray) else value  # noqa: E731
        return {name: map_nest(pick, nest) for name, nest in self._row.items()}

    def _copied(self, value: Any) -> npt.NDArray[Any]:
        """Return a writable copy of a field for all tracks. Tracks beyond the length of ``value`` get zeros."""
        if not isinstance(value, np.ndarray):
            return np.full(self._tracks, value, np.uint64)  # the version of the policy
        copy = np.zeros((self._tracks, *value.shape[1:]), value.dtype)
        copy[: len(value)] = value
        return copy

    def get_state(self) -> dict[str, Any]:
        """Return the whole state as plain values and arrays."""
        if self._row:
            self._row = {name: map_nest(self._copied, nest) for name, nest in self._row.items()}
            self._own = True
        steps = self._steps + self._turns
        return {"open": self._is_open.copy(), "row": map_nest(np.array, self._row), "total": self._total.copy(),
                "steps": steps}  # fmt: skip

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._is_open, self._row = state["open"], state["row"]
        self._total, self._steps = state["total"], state["steps"]
        self._turns, self._own, self._all_open = 0, True, bool(self._is_open.all())


class Actor:
    """An actor, which steps worlds round by round.

    Args:
        worlds: the worlds.
        policies: the policies that act in them.
        seed_of: the seed of a world's n-th episode, ``seed_of(world, n)``.
        policy_of: for each agent of the worlds, the index of its policy; by default each agent has its own, in order.
        times: the sums to which the actor adds the time that policies take.
        share: number of episodes that each world plays; None: no limit.
        ended: by world, the count of the episodes that have ended.
        stage_of: given the policies, returns the stage of a curriculum that worlds get before a reset; None: no stages.
    """

    def __init__(
        self,
        worlds: WorldBatch,
        policies: Sequence[ActingPolicy],
        seed_of: Callable[[int, int], int],
        policy_of: Sequence[int] | None = None,
        times: Times | None = None,
        share: Sequence[int] | None = None,
        ended: npt.NDArray[Any] | None = None,
        stage_of: Callable[[Sequence[ActingPolicy]], str | None] = lambda policies: None,
    ) -> None:
        self.worlds, self.policies, self._seed_of = worlds, tuple(policies), seed_of
        self._times, self._stage_of = times or no_times(), stage_of
        self._policy_of = tuple(range(len(policies)) if policy_of is None else policy_of)
        self._number_of = [self._policy_of[:agent].count(policy) for agent, policy in enumerate(self._policy_of)]
        self._sizes = [self._policy_of.count(policy) for policy in range(len(policies))]
        self._one_each = max(self._sizes) == 1
        self.episodes = [0] * worlds.size
        """Number of episodes begun, by world."""
        self._share, self._playing = share, [False] * worlds.size
        self._ended = np.zeros(worlds.size, np.uint64) if ended is None else ended
        self.seeds = [0] * worlds.size
        """Seeds of the current episodes, by world."""
        self.rounds = 0
        self.remade = 0
        """Number of worlds that raised and were replaced."""
        self.finished = deque[FinishedEpisode]()
        """Episodes that have ended; the caller removes them."""
        self.broken_off = deque[int]()
        """Worlds whose episode broke off; the caller removes them."""
        self.acted: set[int] = set()
        """The policies whose agents acted or ended in the last round."""
        self.is_done = any(policy.is_done for policy in policies) or self._has_played()
        """Whether a policy has done its share of the run's steps, or all worlds have played their episodes."""

    @property
    def published(self) -> list[PublishedPolicy]:
        """The policies that act by published versions."""
        return [policy for policy in self.policies if isinstance(policy, PublishedPolicy)]

    def begin(self) -> None:
        """Load the newest version of each policy that has none yet. After a resume, a policy may already have one."""
        for policy in self.published:
            if not policy.subscriber.version:
                policy.load_newest()

    def load_given(self) -> None:
        """With periods: load the version of the period that begins, for each policy."""
        for policy in self.published:
            if policy.subscriber.refresh():
                policy.load()

    def play_round(self) -> None:
        """Step every world by one group of agents."""
        worlds, policies, policy_of = self.worlds, self.policies, self._policy_of
        if worlds.over:
            self._begin_episodes()
        turns, lanes = worlds.turns(), worlds.lanes
        began = monotonic()
        self.acted = acted = {policy_of[turn.agent] for turn in turns}
        if self._one_each:
            actions = [policies[policy_of[turn.agent]].act(turn, lanes) for turn in turns]
        else:
            actions = self._act_together(turns, lanes)
        self._times[_POLICIES] += monotonic() - began
        for ending in worlds.act(actions):
            policy = policy_of[ending.agent]
            of_tracks = ending._replace(at=self._tracks(ending.agent, ending.at))
            finished = policies[policy].finish(of_tracks, _of_each_agent(lanes, self._sizes[policy]))
            self.finished.extend(
                FinishedEpisode(policy, total, steps, ending.agent, int(ending.at[i]), float(ending.reward[i]))
                for total, steps, i in finished
            )
            acted.add(policy)
        if worlds.over:
            self._count_ended()
        if worlds.broken:
            self._break_off()
        self.rounds += 1
        for policy in acted:
            if policies[policy].is_done:
                self.is_done = True

    def _act_together(self, turns: Sequence[Turn], lanes: Indices) -> list[Nest]:
        """Ask each policy once for all of its agents and worlds; return the actions by turn."""
        by_policy: dict[int, list[int]] = {}
        for i, turn in enumerate(turns):
            by_policy.setdefault(self._policy_of[turn.agent], []).append(i)
        actions: dict[int, Nest] = {}
        for policy, mine in by_policy.items():
            parts = [turns[i]._replace(at=self._tracks(turns[i].agent, turns[i].at)) for i in mine]
            together, order = join_turns(parts)
            answer = self.policies[policy].act(together, _of_each_agent(lanes, self._sizes[policy]))
            rows_of = np.split(np.argsort(order), np.cumsum([len(part.at) for part in parts])[:-1])
            for i, rows in zip(mine, rows_of, strict=True):
                actions[i] = map_nest(lambda array: array[rows], answer)  # noqa: B023
        return [actions[i] for i in range(len(turns))]

    def _tracks(self, agent: int, worlds: Indices) -> Indices:
        """Return the tracks of an agent in some worlds."""
        size = self._sizes[self._policy_of[agent]]
        return worlds if size == 1 else worlds * size + self._number_of[agent]

    def _begin_episodes(self) -> None:
        """Begin new episodes in the worlds whose episode is over."""
        over = [world for world in self.worlds.over if not self._rests(world)]
        if not over:
            return
        for world in over:
            self.seeds[world] = self._seed_of(world, self.episodes[world])
            self.episodes[world] += 1
        if (stage := self._stage_of(self.policies)) is not None:
            self.worlds.set_stage(stage)
        self.worlds.reset(over, [self.seeds[world] for world in over])
        for world in over:
            self._playing[world] = world not in self.worlds.over  # otherwise no agent acts
        for policy, size in zip(self.policies, self._sizes, strict=True):
            policy.begin(_of_each_agent(np.array(over), size))

    def _rests(self, world: int) -> bool:
        """Whether a world has played its share of the episodes. It is then no longer reset, and its agents do not
        act."""
        return self._share is not None and int(self._ended[world]) >= self._share[world]

    def _has_played(self) -> bool:
        return self._share is not None and all(self._rests(world) for world in range(self.worlds.size))

    def _count_ended(self) -> None:
        """Count the episodes that have ended in this round, but not those that broke off."""
        for world in self.worlds.over:
            if self._playing[world]:
                self._playing[world] = False
                self._ended[world] += world not in self.worlds.broken
        self.is_done = self.is_done or self._has_played()

    def _break_off(self) -> None:
        """Break off the episodes of worlds that raised and were replaced. Their rows have no end."""
        lanes = self.worlds.lanes[self.worlds.broken]
        for policy, size in zip(self.policies, self._sizes, strict=True):
            policy.break_off(_of_each_agent(lanes, size))
        self.remade += len(self.worlds.broken)
        self.broken_off.extend(self.worlds.broken)
        self.worlds.broken.clear()

    def get_state(self) -> dict[str, Any]:
        """Return the state between rounds as plain values and arrays. The states of the worlds are separate."""
        return {
            "places": [policy.get_state() for policy in self.policies],
            "episodes": list(self.episodes),
            "rounds": self.rounds,
            "remade": self.remade,
        }

    def begin_again(self, state: Mapping[str, Any]) -> None:
        """Continue with new episodes. Their numbers follow those in the state that :meth:`get_state` returned."""
        self.episodes, self.rounds, self.remade = list(state["episodes"]), state["rounds"], state["remade"]

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self.begin_again(state)
        self._playing = [world not in self.worlds.over for world in range(self.worlds.size)]
        self.seeds = [self._seed_of(world, max(0, begun - 1)) for world, begun in enumerate(self.episodes)]
        for policy, kept in zip(self.policies, state["places"], strict=True):
            policy.set_state({"turns": self.rounds, **kept})  # states of older versions counted rounds


def _of_each_agent(of_worlds: Indices, agents: int) -> Indices:
    """Return the tracks or lanes of all agents of a policy in some worlds. Those of one world are contiguous."""
    return of_worlds if agents == 1 else (of_worlds[:, None] * agents + np.arange(agents)).ravel()

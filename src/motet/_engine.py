"""The engines: the same roles driven in processes, or in turns in this one.

:class:`Roster` says who takes part, :class:`Handles` holds what they share. ``play_actor`` and ``play_learner`` are
what the child processes run: each drives its role, shows a beat, and waits where the pace asks for it. ``_serial``
drives the same roles one after the other. In lockstep both orders are one: every actor plays a round, then every
learner does what is due.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ge
from typing import Any

import numpy as np

from motet._board import FINISHED, Board, Pulse, Wait
from motet._crowd import Crowd, make_crowd
from motet._memory import Array, Segment
from motet._process import Portable
from motet._versus import Chooser, Frozen, Listener, Newest, Scripted, SelfPlay, Versus
from motet.actor import MaxLag, Memory, Seat, act, take_newest
from motet.algorithm import Algorithm, AlgorithmConfig, Behaviour, ReaderSettings, Sizes, StackedBatch
from motet.errors import SettingError, WaitTimeoutError
from motet.league import Draw, LeagueBoard, Results, Table
from motet.learner import Desk, learn, restore, vault_header
from motet.pace import Pace
from motet.publication import HeaderField, Publication
from motet.replay import Field, Replay, ReplaySpec

__all__ = ["Handles", "Part", "Roster", "play_actor", "play_learner", "seed_for"]

_EPISODES = 100  # over how many episodes returns are averaged
_METRICS_EVERY = 10  # updates between two looks at what they measured
_VERSIONS_EVERY = 64  # rounds between two notes of which versions act


@dataclass(frozen=True)
class Part:
    """One agent: what it sees and does, and what learns for it."""

    name: str
    observation_space: Any
    action_space: Any
    config: AlgorithmConfig
    settings: ReaderSettings
    sizes: Sizes
    masked: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class Roster:
    """Who takes part in a run."""

    world: Portable
    """Makes a world."""
    parts: tuple[Part, ...]
    """The agents."""
    stacks: tuple[tuple[int, ...], ...]
    """Agents that are learnt in one pass."""
    processes: tuple[tuple[int, ...], ...]
    """The stacks of each learner process."""
    actors: int
    worlds_per_actor: int
    steps: int
    """Steps of an agent in all worlds together."""
    pace: Pace
    seed: int
    publish_every: int = 10
    sync_interval: int = 1
    max_lag: MaxLag | None = None
    slots: int = 2
    checked: bool = False
    remake_worlds: bool = False
    self_play: SelfPlay | None = None
    """If there is one part alone, which learns to play all seats."""

    @property
    def partitions(self) -> dict[str, float]:
        """The partitions of a replay with their shares of a batch."""
        return {"": 1.0} if self.self_play is None else self.self_play.partitions(self.parts[0].settings.once)

    @property
    def lanes(self) -> int:
        """Lanes of a replay: one for each world and partition."""
        return self.actors * self.worlds_per_actor * len(self.partitions)

    def lanes_of(self, actor: int) -> list[int]:
        """The lanes of an actor's worlds, partition by partition."""
        every, mine = self.actors * self.worlds_per_actor, actor * self.worlds_per_actor
        starts = [part * every + mine for part in range(len(self.partitions))]
        return [lane for start in starts for lane in range(start, start + self.worlds_per_actor)]

    def stack_of(self, agent: int) -> int:
        """The stack that an agent is in."""
        return next(k for k, agents in enumerate(self.stacks) if agent in agents)

    def replay_spec(self, part: Part) -> ReplaySpec:
        """The replay of one agent."""
        settings = part.settings
        extra = {name: Field(item.shape, item.dtype, item.next) for name, item in settings.extra.items()}
        least = settings.batch_size + self.lanes * (settings.n_step + settings.n_frames + 1)
        if settings.once:
            # Any lane may have to hold all that waits, if the other actors are done or down: actors wait for the pace,
            # where they show a beat, and never for room.
            waiting = math.ceil(self.pace.slack_once + 2) * settings.batch_size
            least = self.lanes * ((waiting + 1) * settings.length + settings.n_frames + 2)
        return ReplaySpec(
            observation=part.observation_space,
            action=part.action_space,
            extra=extra,
            capacity=max(settings.capacity, least),
            lanes=dict.fromkeys(self.partitions, self.actors * self.worlds_per_actor),
            once=part.settings.once,
            checked=self.checked,
        )


class Handles:
    """What the processes of a run share: one segment, laid out for everybody."""

    steps_before: list[int]
    """Steps of each agent before its replay began: above 0 where a run goes on without its old rows."""
    updates_before: list[int]
    """Updates of each stack that belong to those steps."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.steps_before = [0] * len(roster.parts)
        self.updates_before = [0] * len(roster.stacks)
        specs = [roster.replay_spec(part) for part in roster.parts]
        layout: dict[str, Array] = {}
        for i, (spec, part) in enumerate(zip(specs, roster.parts, strict=True)):
            layout |= self._replay_layout(i, spec)
            header = _header(part)
            layout |= Publication.layout(part.sizes.weights, header, slots=roster.slots, prefix=f"agent{i}/publication")
        for k, stack in enumerate(roster.stacks):
            layout |= Publication.layout(*self._vault_size(stack, specs), prefix=f"stack{k}/vault")
        size = (roster.actors + len(roster.processes) + 1, roster.actors, len(roster.parts), len(roster.stacks))
        layout |= Board.layout(*size)
        if (play := roster.self_play) is not None:
            weights = roster.parts[0].sizes.weights
            layout |= LeagueBoard.layout(play.league, len(play.anchors), weights, roster.actors)
        segment = Segment(layout)
        self.board = Board(*size, segment)
        self.league: LeagueBoard | None = None
        if play is not None:
            self.league = LeagueBoard(play.league, play.anchors, weights, roster.actors, segment)
        self.replays = [self._replay(i, spec, segment) for i, spec in enumerate(specs)]
        self.publications = [
            Publication(
                part.sizes.weights,
                _header(part),
                slots=roster.slots,
                checked=roster.checked,
                segment=segment,
                prefix=f"agent{i}/publication",
            )
            for i, part in enumerate(roster.parts)
        ]
        self.vaults = [
            Publication(
                *self._vault_size(stack, specs), checked=roster.checked, segment=segment, prefix=f"stack{k}/vault"
            )
            for k, stack in enumerate(roster.stacks)
        ]

    def _replay_layout(self, agent: int, spec: ReplaySpec) -> dict[str, Array]:
        return spec.layout(f"agent{agent}/replay")

    def _replay(self, agent: int, spec: ReplaySpec, segment: Segment) -> Replay:
        return Replay(spec, segment, f"agent{agent}/replay")

    def _vault_size(self, stack: Sequence[int], specs: Sequence[ReplaySpec]) -> tuple[int, dict[str, HeaderField]]:
        sizes = self.roster.parts[stack[0]].sizes
        words = specs[stack[0]].reader_words
        header = {name: HeaderField(*item) for name, item in vault_header(len(stack), sizes, words).items()}
        return sizes.state * len(stack), header

    def steps(self, agent: int) -> int:
        """Steps that an agent has done."""
        return self.steps_before[agent] + self.replays[agent].steps

    def left(self, agent: int, actor: int) -> int:
        """Steps of an agent that an actor has still to do: all have equal parts of what this run has to do."""
        roster, replay = self.roster, self.replays[agent]
        part = -(-(roster.steps - self.steps_before[agent]) // roster.actors)
        return part - sum(replay.words(lane).steps for lane in roster.lanes_of(actor))

    def may_act(self, stack: int) -> bool:
        """Whether the pace of a stack allows one more round of acting."""
        pace, settings = self.roster.pace, self.settings(stack)
        if settings.once:
            return pace.may_act_once(self._done(stack), self._batches(stack))
        return self._rests(stack) or pace.may_act(self._done(stack), self._steps(stack), self.warm_up(stack))

    def may_learn(self, stack: int) -> bool:
        """Whether there are rows enough, and the pace of a stack allows one more update."""
        pace, settings = self.roster.pace, self.settings(stack)
        if settings.once:
            return pace.may_learn_once(self._done(stack), self._batches(stack))
        return not self._rests(stack) and pace.may_learn(self._done(stack), self._steps(stack), self.warm_up(stack))

    def is_behind(self, stack: int) -> bool:
        """Whether updates are due that a stack has not done."""
        if self.settings(stack).once:
            return self._done(stack) < self._batches(stack)
        return not self._rests(stack) and self.owed(stack) > 0

    def owed(self, stack: int) -> int:
        """Updates that are due and not done; nothing is due while a stack rests."""
        return self.roster.pace.due(self._steps(stack), self.warm_up(stack)) - self._done(stack)

    def warm_up(self, stack: int) -> int:
        """Steps before the first update: rows enough for a batch, however they are spread over the lanes.

        The newest rows of a lane are no starts: what ``n_step`` reaches to is not there yet.
        """
        settings = self.settings(stack)
        return max(settings.min_rows, settings.batch_size) + self.roster.lanes * settings.n_step + settings.n_frames

    def settings(self, stack: int) -> ReaderSettings:
        """What a stack asked of its replays."""
        return self.roster.parts[self.roster.stacks[stack][0]].settings

    def newest_step(self, stack: int) -> int:
        """The ``published_step`` of a stack's newest version."""
        return int(self.board.learned[stack, 2])

    def where(self, process: int) -> str:
        """The node of a process, by its row of the board; empty on this machine."""
        return ""

    # As the pace counts: since the replays began.

    def _done(self, stack: int) -> int:
        """Updates done or waived."""
        learned = self.board.learned[stack]
        return int(learned[0]) + int(learned[3]) - self.updates_before[stack]

    def _rests(self, stack: int) -> bool:
        return bool(self.board.learned[stack, 4])

    def _steps(self, stack: int) -> int:
        return min(self.replays[agent].steps for agent in self.roster.stacks[stack])

    def _batches(self, stack: int) -> int:
        """Whole batches of rows that are read once: a cursor moves by fragments, and each needs the row behind it."""
        settings, lanes = self.settings(stack), range(self.roster.lanes)
        replays = [self.replays[agent] for agent in self.roster.stacks[stack]]
        fragments = [sum(max(r.words(lane).head - 1, 0) // settings.length for lane in lanes) for r in replays]
        return min(fragments) // settings.batch_size


class Counter:
    """Steps of one agent, for its learner."""

    def __init__(self, handles: Handles, agent: int) -> None:
        self._handles, self._agent = handles, agent

    @property
    def steps(self) -> int:
        """Steps that it has done."""
        return self._handles.steps(self._agent)


def _header(part: Part) -> dict[str, HeaderField]:
    """What travels with the weights: what the algorithm declares, and when it was published, by its agents' steps."""
    header = {name: HeaderField(shape, dtype) for name, (shape, dtype) in part.config.header.items()}
    if "published_step" in header:
        raise SettingError(
            "header: given the name 'published_step', expected another one: that is in every publication"
        )
    return {"published_step": HeaderField(dtype="int64"), **header}


def seed_for(seed: int, *path: int) -> int:
    """A seed of its own for each place in a run.

    >>> seed_for(0, 1, 2) == seed_for(0, 1, 2), seed_for(0, 1, 2) == seed_for(0, 2, 1)
    (True, False)
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint32)[0])


_WORLD, _BEHAVIOUR, _LEARNER, _READER, _OPPONENT = range(5)  # what a seed is for


class Acting:
    """One actor: its worlds, seats and memory, ready to be driven round by round."""

    def __init__(self, handles: Handles, index: int, start: int, goes_on: bool = False) -> None:
        roster = handles.roster
        self.index, self._seed = index, roster.seed
        lanes = roster.lanes_of(index)
        masked = [part.masked for part in roster.parts] * (1 if handles.league is None else 2)
        self.crowd = make_crowd(roster.world.value, roster.worlds_per_actor, masked, roster.remake_worlds)
        if handles.league is not None:
            seeds = functools.partial(seed_for, roster.seed, _OPPONENT, index, start)
            draw, results = Draw(handles.league), Results(handles.league.results[index])
            self.crowd = against(handles, self.crowd, draw, results, seeds, handles.league.league.block)
        self.seats = []
        for i, part in enumerate(roster.parts):
            behaviour = part.config.behaviour(part.observation_space, part.action_space)
            behaviour.begin(seed_for(roster.seed, _BEHAVIOUR, index, start, i))
            self.seats.append(
                Seat(
                    behaviour=behaviour,
                    subscriber=handles.publications[i].subscriber(),
                    writers=handles.replays[i].writers(lanes, goes_on=goes_on),
                    header=tuple(part.config.header),
                    n_frames=part.settings.n_frames,
                    masked=part.masked,
                    newest_step=functools.partial(handles.newest_step, roster.stack_of(i)),
                )
            )
        self.memory = Memory.fresh(self.crowd.worlds, self.seats)
        self.rounds: Iterator[None] = act(
            self.crowd,
            self.seats,
            self.memory,
            lambda world, n: seed_for(roster.seed, _WORLD, index, start, world, n),
            roster.sync_interval,
            roster.max_lag,
        )
        self._left = [handles.left(agent, index) for agent in range(len(roster.parts))]
        self._totals: list[deque[float]] = [deque(maxlen=_EPISODES) for _ in roster.parts]
        self._lengths: list[deque[int]] = [deque(maxlen=_EPISODES) for _ in roster.parts]

    def renew(self) -> None:
        """Give every behaviour the newest version and a new random stream, by the round.

        So what goes on here and what is copied from here stay equal.
        """
        take_newest(self.seats)
        for i, seat in enumerate(self.seats):
            seat.behaviour.begin(seed_for(self._seed, _BEHAVIOUR, self.index, 0, i, self.memory.rounds))

    @property
    def finished(self) -> bool:
        """Whether an agent has done its part of the steps."""
        return any(map(ge, self.memory.closed, self._left))

    def report(self, board: Board) -> None:
        """How the episodes went, and which versions act."""
        if self.memory.rounds % _VERSIONS_EVERY == 0:
            board.episodes[self.index, :, 5] = [seat.subscriber.version for seat in self.seats]
            board.episodes[self.index, :, 6] = [seat.subscriber.forced for seat in self.seats]
        while self.memory.finished:
            episode = self.memory.finished.popleft()
            totals, lengths = self._totals[episode.agent], self._lengths[episode.agent]
            totals.append(episode.total)
            lengths.append(episode.steps)
            row = board.episodes[self.index, episode.agent]
            row[1:4] = sum(totals) / len(totals), episode.total, sum(lengths) / len(lengths)
            row[4] = self.memory.remade
            row[0] += 1


def against(
    handles: Handles, crowd: Crowd, draw: Chooser, results: Listener, seed_of: Callable[..., int], block: int
) -> Crowd:
    """Worlds of two players, of which others play one: whoever is drawn, for a block of episodes."""
    part, play = handles.roster.parts[0], handles.roster.self_play
    assert play is not None
    header = {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in part.config.header.items()}

    def behaviour() -> Behaviour:
        return part.config.behaviour(part.observation_space, part.action_space)

    return Versus(
        crowd,
        draw,
        results,
        [Scripted(maker.value) for maker in play.makers],
        Newest(behaviour(), handles.publications[0].subscriber(), tuple(part.config.header)),
        lambda weights: Frozen(behaviour(), weights, header),
        seed_of,
        block,
        play.by_total,
        play.margin,
        len(handles.roster.partitions) > 1,
    )


class Learning:
    """One stack of agents, ready to be driven update by update."""

    def __init__(self, handles: Handles, index: int) -> None:
        roster = handles.roster
        self.index, self._handles, self._board = index, handles, handles.board
        agents = roster.stacks[index]
        part = roster.parts[agents[0]]
        self._settings = part.settings
        self._agents = agents
        self.algorithm: Algorithm = part.config.build(
            part.observation_space,
            part.action_space,
            len(agents),
            [seed_for(roster.seed, _LEARNER, a) for a in agents],
            part.device,
        )
        batch = StackedBatch.zeros(part.observation_space, part.action_space, part.settings, len(agents))
        desks = [self._desk(handles, a, i, batch) for i, a in enumerate(agents)]
        self.readers = dict(zip(agents, [desk.reader for desk in desks], strict=True))
        kept = handles.vaults[index].subscriber()
        if kept.published:
            _refresh_surely(kept, f"the vault of stack {index}")
            restore(self.algorithm, desks, kept)
        self._desks = desks
        self._show_stage()
        self._table = None if handles.league is None else Table(handles.league)
        vault = handles.vaults[index].publisher()
        self.updates = learn(self.algorithm, desks, vault, part.settings, batch, roster.publish_every)

    def _desk(self, handles: Handles, agent: int, place: int, batch: StackedBatch) -> Desk:
        settings, mine = self._settings, batch.agent(place)
        reader = handles.replays[agent].reader(
            n_frames=settings.n_frames,
            n_step=settings.n_step,
            gamma=settings.gamma,
            prioritised=settings.prioritised,
            alpha=settings.alpha,
            shares=handles.roster.partitions,
            seed=seed_for(handles.roster.seed, _READER, agent),
        )
        arrays = _arrays(mine)
        drawn = reader.batch(settings.batch_size, settings.length, lambda name, shape, dtype: arrays[name])
        return Desk(reader, Counter(handles, agent), handles.publications[agent].publisher(), drawn)

    @property
    def done(self) -> int:
        """Updates done."""
        return int(self.algorithm.counters[0, 0])

    @property
    def once(self) -> bool:
        """Whether it reads every row once."""
        return self._settings.once

    @property
    def may_update(self) -> bool:
        """Whether there are rows enough, and the pace allows one more update."""
        return self._handles.may_learn(self.index)

    def move_on(self) -> None:
        """Enter the stages that the agents' steps have reached, and publish them, update or not; review the league."""
        if self._table is not None and self._table.due(steps := self._desks[0].replay.steps):
            self._table.review(steps, self.algorithm.weights()[0])
        stages = self._settings.stages
        if len(stages.names) == 1:
            return
        reached = [stages.index(desk.replay.steps) for desk in self._desks]
        if any(stage > desk.stage for stage, desk in zip(reached, self._desks, strict=True)):
            for stage, desk in zip(reached, self._desks, strict=True):
                if set(stages.names[desk.stage + 1 : stage + 1]) & set(stages.clear_replay_on_stage):
                    desk.reader.forget()
                    desk.resting = True
                desk.stage = max(desk.stage, stage)
            self.keep()  # before anybody is told: a successor that knows of no stage clears once more
            self._show_stage()
        elif any(desk.resting for desk in self._desks):
            rows = max(self._settings.min_rows, self._settings.batch_size)
            if all(desk.reader.ready() >= rows for desk in self._desks):
                waived = self._desks[0].waived + max(0, self._handles.owed(self.index))
                for desk in self._desks:
                    desk.resting, desk.waived = False, waived
                self.keep()  # a successor neither rests again nor waives more
                self._show_stage()

    def _show_stage(self) -> None:
        """For the pace, and for whoever watches; who rests is told first when it begins, last when it ends."""
        row, desks = self._board.learned[self.index], self._desks
        if resting := any(desk.resting for desk in desks):
            row[4] = 1
        row[3], row[5] = desks[0].waived, min(desk.stage for desk in desks)
        if not resting:
            row[4] = 0

    def catch_up(self, pulse: Pulse | None = None) -> None:
        """Do what is due, as lockstep asks."""
        self.move_on()
        while self._handles.is_behind(self.index):
            self.update()
            if pulse:
                pulse.beat()

    def begin(self) -> None:
        """Publish what there is, so that actors can begin."""
        next(self.updates)
        self._show()

    def update(self) -> None:
        """One update."""
        update = next(self.updates)
        self._show()
        if update is None or (self.done % _METRICS_EVERY and not self.once):
            return
        rates = {} if self._table is None else self._table.rates()
        for i, agent in enumerate(self._agents):
            metrics = {name: float(values[i]) for name, values in update.metrics.items()}
            self._board.write_metrics(agent, metrics | self._rows(agent) | rates)

    def _rows(self, agent: int) -> dict[str, float]:
        """What became of an agent's rows, so that nothing is dropped in silence."""
        counts = self.readers[agent].counters()
        if self.once:
            return {"rows_used": counts.consumed}
        return {"rows_overwritten_unread": counts.overwritten_unread, "rows_redrawn": counts.redrawn}

    def keep(self) -> None:
        """Keep and publish the present state, whatever is due."""
        self.updates.send(True)
        self._show()

    def _show(self) -> None:
        """How far it is: updates done, steps at its newest version."""
        row = self._board.learned[self.index]
        row[0], row[2] = self.done, min(desk.step for desk in self._desks)

    def end(self) -> None:
        """Keep and publish the last state."""
        self.updates.close()
        self._show()


def _arrays(batch: StackedBatch) -> dict[str, Any]:
    """The arrays of one agent's part by the names under which a reader asks for them."""
    own = ("reward", "discount", "weight", "version", "valid")
    found: dict[str, Any] = {name: getattr(batch, name) for name in own}

    def name(prefix: str, nest: Any) -> None:
        if isinstance(nest, dict):
            for key, value in nest.items():
                name(f"{prefix}/{key}", value)
        elif isinstance(nest, tuple):
            for i, value in enumerate(nest):
                name(f"{prefix}/{i}", value)
        elif nest is not None:
            found[prefix] = nest

    name("observation", batch.observation)
    name("action", batch.action)
    name("next_observation", batch.next_observation)
    for key, value in batch.extra.items():
        name(key, value)
    for key, value in batch.next_extra.items():
        name(f"next_{key}", value)
    return found


def play_actor(handles: Handles, index: int, start: int, timeout_s: float) -> None:
    """What an actor process runs."""
    board, roster = handles.board, handles.roster
    pulse = board.pulse(index)
    pulse.start(os.getpid())
    acting = Acting(handles, index, start)
    # A successor in lockstep goes on in the round in which its predecessor died.
    acting.memory.rounds = int(board.rounds[index, 0]) if int(board.rounds[index, 0]) != FINISHED else 0
    for seat in acting.seats:
        _await_version(seat.subscriber, pulse, board, timeout_s)
    while not (board.stopping or acting.finished):
        next(acting.rounds)
        pulse.beat()
        acting.report(board)
        board.rounds[index, 0] = acting.memory.rounds
        if not roster.pace.free:
            board.acted.ring()
            _wait_for_learners(handles, acting.memory.rounds, pulse)
    board.rounds[index, 0] = FINISHED
    board.acted.ring()


def play_learner(handles: Handles, index: int) -> None:
    """What a learner process runs: one or several stacks."""
    board, roster = handles.board, handles.roster
    pulse = board.pulse(roster.actors + index)
    pulse.start(os.getpid())
    learners = [Learning(handles, k) for k in roster.processes[index]]
    for learner in learners:
        learner.begin()
    drive = _in_lockstep if roster.pace.lockstep else at_pace
    drive(handles, learners, pulse)
    for learner in learners:
        learner.end()


def at_pace(handles: Handles, learners: Sequence[Learning], pulse: Pulse) -> None:
    """Drive learners as the pace allows, until the run ends."""
    board = handles.board
    while not board.stopping:
        seen = board.acted.count
        worked = False
        for learner in learners:
            learner.move_on()
            if learner.may_update:
                learner.update()
                worked = True
        if worked:
            pulse.beat()
            if not handles.roster.pace.free:
                board.learnt.ring()
        elif handles.roster.pace.free:
            pulse.waits_for(Wait.ROWS)
            time.sleep(0.002)
        else:
            pulse.waits_for(Wait.ROWS if any(learner.once for learner in learners) else Wait.ACTORS)
            board.acted.wait(seen, 0.1)
    if int(board.rounds[:, 0].min()) == FINISHED:  # all is played: rows that are read once are used up
        for learner in learners:
            if learner.once:
                learner.catch_up(pulse)


def _in_lockstep(handles: Handles, learners: Sequence[Learning], pulse: Pulse) -> None:
    board = handles.board
    while True:
        seen = board.acted.count
        played = int(board.rounds[:, 0].min())
        behind = [learner for learner in learners if int(board.learned[learner.index, 1]) < played]
        for learner in behind:
            learner.catch_up(pulse)
            board.learned[learner.index, 1] = played
        if behind:
            pulse.beat()
            board.learnt.ring()
        elif board.stopping:
            return
        else:
            pulse.waits_for(Wait.ACTORS)
            board.acted.wait(seen, 0.1)


def _wait_for_learners(handles: Handles, played: int, pulse: Pulse) -> None:
    """Until the pace lets the actor go on. In lockstep: until all have done what this round made due."""
    board, roster = handles.board, handles.roster
    while not board.stopping:
        seen = board.learnt.count
        if roster.pace.lockstep:
            ready = int(board.learned[:, 1].min()) >= played
        else:
            ready = all(map(handles.may_act, range(len(roster.stacks))))
        if ready:
            return
        pulse.waits_for(Wait.LEARNERS)
        board.learnt.wait(seen, 0.1)


def _await_version(subscriber: Any, pulse: Pulse, board: Board, timeout_s: float) -> None:
    """The learners publish their first version before anything else."""
    deadline = time.monotonic() + timeout_s
    while not board.stopping and not subscriber.wait(0.1):
        pulse.waits_for(Wait.FIRST_VERSION)
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"the actor waited {timeout_s:g} s for the first version of the policies")


def _refresh_surely(subscriber: Any, what: str) -> None:
    """The publisher is dead or not yet there, so nothing can be in the way for long."""
    deadline = time.monotonic() + 10
    while not subscriber.refresh():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{what} could not be read for 10 s: its publisher never stops writing")
        time.sleep(0.001)

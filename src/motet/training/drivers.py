"""The engines: the same roles driven in processes, or in turns in this one.

``play_actor`` and ``play_learner`` are what the child processes run: each drives its role, shows a beat, and waits
where the pace asks for it. ``_serial`` drives the same roles one after the other. In lockstep both orders are one:
every actor plays a round, then every learner does what is due.
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import ge
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Algorithm, Behaviour, StackedBatch, continue_stream, stream_of
from motet.errors import WaitTimeoutError
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.training.actor import Memory, Seat, act
from motet.training.board import FINISHED, Board, Pulse
from motet.training.league import Draw, Results, Table
from motet.training.learner import Desk, learn, restore, state_of
from motet.training.opponents import Chooser, Frozen, Listener, Newest, Scripted, Versus
from motet.training.shared import Counter, Handles
from motet.world.batch import Crowd, make_crowd

__all__ = ["Acting", "Learning", "against", "at_pace", "play_actor", "play_learner"]

_EPISODES = 100  # over how many episodes returns are averaged
_METRICS_EVERY = 10  # updates between two looks at what they measured
_VERSIONS_EVERY = 64  # rounds between two notes of which versions act


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
                    newest_step=functools.partial(handles.newest_step, i),
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

    def streams(self) -> list[Any]:
        """The random stream of each behaviour, as plain values; None where it cannot be saved."""
        return [stream_of(seat.behaviour) for seat in self.seats]

    def set_streams(self, streams: Sequence[Any]) -> list[int]:
        """Continue from what :meth:`streams` gave. Returns the agents that got a new stream instead, by the round."""
        new = []
        for i, (seat, stream) in enumerate(zip(self.seats, streams, strict=True)):
            if not continue_stream(seat.behaviour, stream):
                seat.behaviour.begin(seed_for(self._seed, _BEHAVIOUR, self.index, 0, i, self.memory.rounds))
                new.append(i)
        return new

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
    def once(self) -> bool:
        """Whether it reads every row once."""
        return self._settings.once

    @property
    def agents(self) -> list[int]:
        """The agents of the stack."""
        return list(self._agents)

    @property
    def due(self) -> list[bool]:
        """For each agent, whether it has rows enough and the pace allows it one more update."""
        return self._handles.due(self.index)

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
            ready = [not desk.resting or desk.reader.ready() >= rows for desk in self._desks]
            # Those in step go on together: then one pass does for all of them again.
            together = [all(ready[i] for i in places) for places in self._handles.in_step(self.index)]
            over = [i for i, desk in enumerate(self._desks) if desk.resting and together[i]]
            for i in over:
                self._desks[i].waived += max(0, self._handles.owed(self._agents[i]))
                self._desks[i].resting = False
            if over:
                self.keep()  # a successor neither rests again nor waives more
                self._show_stage()

    def _show_stage(self) -> None:
        """For the pace, and for whoever watches; who rests is told first when it begins, last when it ends."""
        for agent, desk in zip(self._agents, self._desks, strict=True):
            row = self._board.learned[agent]
            if desk.resting:
                row[4] = 1
            row[3], row[5] = desk.waived, desk.stage
            if not desk.resting:
                row[4] = 0

    def catch_up(self, pulse: Pulse | None = None) -> None:
        """Do what is due, as lockstep asks."""
        self.move_on()
        while any(due := self.due):
            self.update(due)
            if pulse:
                pulse.beat()

    def begin(self) -> None:
        """Publish what there is, so that actors can begin."""
        next(self.updates)
        self._show()

    def update(self, due: Sequence[bool] | None = None) -> None:
        """One update of the agents that are due; None: of all."""
        update = self.updates.send(due)
        self._show()
        if update is None:
            return
        rates = {} if self._table is None else self._table.rates()
        for i, agent in enumerate(self._agents):
            if (due is None or due[i]) and (self.once or self.algorithm.counters[i, 0] % _METRICS_EVERY == 0):
                metrics = {name: float(values[i]) for name, values in update.metrics.items()}
                self._board.write_metrics(agent, metrics | self._rows(agent) | rates)

    def _rows(self, agent: int) -> dict[str, float]:
        """What became of an agent's rows, so that nothing is dropped in silence."""
        counts = self.readers[agent].counters()
        if self.once:
            return {"rows_used": counts.consumed}
        return {"rows_overwritten_unread": counts.overwritten_unread, "rows_redrawn": counts.redrawn}

    def state(self) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """The present state, as the vault would hold it. Publishes nothing."""
        return state_of(self.algorithm, self._desks)

    def was_published_at(self, steps: Sequence[int]) -> None:
        """The newest version is older than the state that was restored: it was published at these steps, by agent."""
        for desk, step in zip(self._desks, steps, strict=True):
            desk.step = step

    def keep(self) -> None:
        """Keep and publish the present state, whatever is due."""
        self.updates.send(True)
        self._show()

    def _show(self) -> None:
        """How far each agent is: updates done, steps at its newest version."""
        for i, (agent, desk) in enumerate(zip(self._agents, self._desks, strict=True)):
            row = self._board.learned[agent]
            row[0], row[2] = self.algorithm.counters[i, 0], desk.step

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
            if any(due := learner.due):
                learner.update(due)
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
        behind = [learner for learner in learners if int(board.learned[learner.agents, 1].min()) < played]
        for learner in behind:
            learner.catch_up(pulse)
            board.learned[learner.agents, 1] = played
        if behind:
            pulse.beat()
            board.learnt.ring()
        elif board.stopping:
            return
        else:
            pulse.waits_for(Wait.ACTORS)
            board.acted.wait(seen, 0.1)


def _wait_for_learners(handles: Handles, played: int, pulse: Pulse) -> None:
    """Until the pace lets the actor go on. In lockstep: until all have done what this round made due.

    That is the learners' updates, and an evaluation if there is an evaluator (which rings the learners' bell).
    """
    board, roster = handles.board, handles.roster
    while not board.stopping:
        seen = board.learnt.count
        if roster.pace.lockstep:
            ready = int(board.learned[:, 1].min()) >= played
        else:
            ready = all(map(handles.may_act, range(len(roster.stacks))))
        if ready and int(board.evaluated[0]) >= played:
            return
        pulse.waits_for(Wait.EVALUATOR if ready else Wait.LEARNERS)
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

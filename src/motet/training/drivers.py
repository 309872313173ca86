"""Drivers: an actor or a learner with all that it needs, driven round by round.

``play_actor`` and ``play_learner`` are what the child processes run: each drives its role, shows a heartbeat, and waits
where the pace asks for it. ``serial.py`` drives the same roles one after the other, and ``engines.py`` chooses. In
lockstep both orders are one: every actor plays a round, then every learner does what is due.
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

from motet.algorithm import Algorithm, Batch, Behaviour, continue_stream, stacked_batch, stream_of
from motet.errors import WaitTimeoutError
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.system.child import one_thread
from motet.training.actor import ActingAgent, ActorState, act
from motet.training.board import FINISHED, Board, Pulse
from motet.training.league import Draw, LeagueTable, Results
from motet.training.learner import StackMember, learn, restore, state_of
from motet.training.opponents import Chooser, Frozen, Listener, Newest, Scripted, Versus
from motet.training.shared import SharedMemory
from motet.world.batch import WorldBatch, make_world_batch

__all__ = ["ActorDriver", "LearnerDriver", "against", "at_pace", "play_actor", "play_learner"]

_EPISODES = 100  # over how many episodes returns are averaged
_METRICS_EVERY = 10  # updates between two looks at what they measured
_VERSIONS_EVERY = 64  # rounds between two notes of which versions act


_WORLD, _BEHAVIOUR, _LEARNER, _READER, _OPPONENT = range(5)  # what a seed is for


class ActorDriver:
    """One actor: its worlds, agents and state, ready to be driven round by round."""

    def __init__(self, shared: SharedMemory, index: int, start: int, goes_on: bool = False) -> None:
        roster = shared.roster
        self.index, self._seed = index, roster.seed
        self.worlds = make_world_batch(roster.world.value, roster.worlds_per_actor, roster.masked, roster.remake_worlds)
        if shared.league is not None:
            seeds = functools.partial(seed_for, roster.seed, _OPPONENT, index, start)
            draw, results = Draw(shared.league), Results(shared.league.results[index])
            self.worlds = against(shared, self.worlds, draw, results, seeds, shared.league.league.block)
        self.agents = []
        for i, policy in enumerate(roster.policies):
            behaviour = policy.config.behaviour(policy.observation_space, policy.action_space)
            behaviour.begin(seed_for(roster.seed, _BEHAVIOUR, index, start, i))
            self.agents.append(
                ActingAgent(
                    behaviour=behaviour,
                    subscriber=shared.publications[i].subscriber(),
                    writers=shared.replays[i].writers(roster.lanes_of(i, index), goes_on=goes_on),
                    header=tuple(policy.config.header),
                    n_frames=policy.settings.n_frames,
                    masked=policy.masked,
                    newest_step=functools.partial(shared.newest_step, i),
                )
            )
        one_thread()  # a behaviour may have loaded torch
        self.state = ActorState.fresh(self.worlds.size, self.agents)
        self.rounds: Iterator[None] = act(
            self.worlds,
            self.agents,
            self.state,
            lambda world, n: seed_for(roster.seed, _WORLD, index, start, world, n),
            roster.sync_interval,
            roster.max_lag,
        )
        self._left = [shared.left(i, index) for i in range(len(roster.policies))]
        self._totals: list[deque[float]] = [deque(maxlen=_EPISODES) for _ in roster.policies]
        self._lengths: list[deque[int]] = [deque(maxlen=_EPISODES) for _ in roster.policies]

    def streams(self) -> list[Any]:
        """The random stream of each behaviour, as plain values; None where it cannot be saved."""
        return [stream_of(acting.behaviour) for acting in self.agents]

    def set_streams(self, streams: Sequence[Any]) -> list[int]:
        """Continue from what :meth:`streams` gave. Returns the agents that got a new stream instead, by the round."""
        new = []
        for i, (acting, stream) in enumerate(zip(self.agents, streams, strict=True)):
            if not continue_stream(acting.behaviour, stream):
                acting.behaviour.begin(seed_for(self._seed, _BEHAVIOUR, self.index, 0, i, self.state.rounds))
                new.append(i)
        return new

    @property
    def finished(self) -> bool:
        """Whether an agent has done its part of the steps."""
        return any(map(ge, self.state.closed, self._left))

    def report(self, board: Board) -> None:
        """How the episodes went, and which versions act."""
        if self.state.rounds % _VERSIONS_EVERY == 0:
            board.episodes.version[self.index] = [acting.subscriber.version for acting in self.agents]
            board.episodes.forced[self.index] = [acting.subscriber.forced for acting in self.agents]
        while self.state.finished:
            episode = self.state.finished.popleft()
            totals, lengths = self._totals[episode.agent], self._lengths[episode.agent]
            totals.append(episode.total)
            lengths.append(episode.steps)
            row, at = board.episodes, (self.index, episode.agent)
            row.mean_return[at], row.mean_length[at] = sum(totals) / len(totals), sum(lengths) / len(lengths)
            row.last_return[at], row.remade[at] = episode.total, self.state.remade
            row.count[at] += 1


def against(
    shared: SharedMemory, worlds: WorldBatch, draw: Chooser, results: Listener, seed_of: Callable[..., int], block: int
) -> WorldBatch:
    """Worlds of two players, of which others play one: whoever is drawn, for a block of episodes."""
    (player,), play = shared.roster.policies, shared.roster.self_play
    assert play is not None
    header = {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in player.config.header.items()}

    def behaviour() -> Behaviour:
        return player.config.behaviour(player.observation_space, player.action_space)

    return Versus(
        worlds,
        draw,
        results,
        [Scripted(maker.value) for maker in play.makers],
        Newest(behaviour(), shared.publications[0].subscriber(), tuple(player.config.header)),
        lambda weights: Frozen(behaviour(), weights, header),
        seed_of,
        block,
        play.by_total,
        play.margin,
        len(player.partitions) > 1,
    )


class LearnerDriver:
    """One stack of policies, ready to be driven update by update."""

    def __init__(self, shared: SharedMemory, index: int) -> None:
        roster = shared.roster
        self.index, self._shared, self._board = index, shared, shared.board
        policies = roster.stacks[index]
        first = roster.policies[policies[0]]
        self._settings = first.settings
        self._policies = policies
        self.algorithm: Algorithm = first.config.build(
            first.observation_space,
            first.action_space,
            len(policies),
            [seed_for(roster.seed, _LEARNER, a) for a in policies],
            first.device,
        )
        one_thread()  # build may have loaded torch
        batch = stacked_batch(first.observation_space, first.action_space, first.settings, len(policies))
        members = [self._member(shared, a, i, batch) for i, a in enumerate(policies)]
        self.readers = dict(zip(policies, [member.reader for member in members], strict=True))
        kept = shared.vaults[index].subscriber()
        if kept.published:
            _refresh_surely(kept, f"the vault of stack {index}")
            restore(self.algorithm, members, kept)
        self._members = members
        self._show_stage()
        self._table = None if shared.league is None else LeagueTable(shared.league)
        vault = shared.vaults[index].publisher()
        self.updates = learn(self.algorithm, members, vault, first.settings, batch, first.publish_every)

    def _member(self, shared: SharedMemory, policy: int, position: int, batch: Batch) -> StackMember:
        settings, mine = self._settings, batch.agent(position)
        reader = shared.replays[policy].reader(
            n_frames=settings.n_frames,
            n_step=settings.n_step,
            gamma=settings.gamma,
            prioritised=settings.prioritised,
            alpha=settings.alpha,
            shares=shared.roster.policies[policy].partitions,
            seed=seed_for(shared.roster.seed, _READER, policy),
        )
        drawn = reader.bind(mine)
        return StackMember(
            reader, functools.partial(shared.steps, policy), shared.publications[policy].publisher(), drawn
        )

    @property
    def once(self) -> bool:
        """Whether it reads every row once."""
        return self._settings.once

    @property
    def policies(self) -> list[int]:
        """The policies of the stack."""
        return list(self._policies)

    @property
    def due(self) -> list[bool]:
        """For each policy, whether it has rows enough and the pace allows it one more update."""
        return self._shared.due(self.index)

    def move_on(self) -> None:
        """Enter the stages that have been reached, and publish them, update or not; review the league."""
        if self._table is not None and self._table.due(steps := self._members[0].steps()):
            self._table.review(steps, self.algorithm.weights()[0])
        stages = self._settings.stages
        if len(stages.names) == 1:
            return
        reached = [stages.index(member.steps()) for member in self._members]
        if any(stage > member.stage for stage, member in zip(reached, self._members, strict=True)):
            for stage, member in zip(reached, self._members, strict=True):
                if set(stages.names[member.stage + 1 : stage + 1]) & set(stages.clear_replay_on_stage):
                    member.reader.forget()
                    member.resting = True
                member.stage = max(member.stage, stage)
            self.keep()  # before anybody is told: a successor that knows of no stage clears once more
            self._show_stage()
        elif any(member.resting for member in self._members):
            rows = max(self._settings.min_rows, self._settings.batch_size)
            ready = [not member.resting or member.reader.ready() >= rows for member in self._members]
            # Those in step go on together: then one pass does for all of them again.
            together = [all(ready[i] for i in group) for group in self._shared.in_step(self.index)]
            over = [i for i, member in enumerate(self._members) if member.resting and together[i]]
            for i in over:
                self._members[i].waived += max(0, self._shared.owed(self._policies[i]))
                self._members[i].resting = False
            if over:
                self.keep()  # a successor neither rests again nor waives more
                self._show_stage()

    def _show_stage(self) -> None:
        """For the pace, and for whoever watches; who rests is told first when it begins, last when it ends."""
        for policy, member in zip(self._policies, self._members, strict=True):
            learned = self._board.learned
            if member.resting:
                learned.resting[policy] = 1
            learned.waived[policy], learned.stage[policy] = member.waived, member.stage
            if not member.resting:
                learned.resting[policy] = 0

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
        """One update of the policies that are due; None: of all."""
        update = self.updates.send(due)
        self._show()
        if update is None:
            return
        rates = {} if self._table is None else self._table.rates()
        for i, policy in enumerate(self._policies):
            if (due is None or due[i]) and (self.once or self.algorithm.counters[i, 0] % _METRICS_EVERY == 0):
                metrics = {name: float(values[i]) for name, values in update.metrics.items()}
                self._board.write_metrics(policy, metrics | self._rows(policy) | rates)

    def _rows(self, policy: int) -> dict[str, float]:
        """What became of an policy's rows, so that nothing is dropped in silence."""
        counts = self.readers[policy].counters()
        if self.once:
            return {"rows_used": counts.consumed}
        return {"rows_overwritten_unread": counts.overwritten_unread, "rows_redrawn": counts.redrawn}

    def state(self) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """The present state, as the vault would hold it. Publishes nothing."""
        return state_of(self.algorithm, self._members)

    def was_published_at(self, steps: Sequence[int]) -> None:
        """The newest version is older than the state that was restored: it was published at these steps, by policy."""
        for member, step in zip(self._members, steps, strict=True):
            member.step = step

    def keep(self) -> None:
        """Keep and publish the present state, whatever is due."""
        self.updates.send(True)
        self._show()

    def _show(self) -> None:
        """How far each policy is: updates done, steps at its newest version."""
        for i, (policy, member) in enumerate(zip(self._policies, self._members, strict=True)):
            self._board.learned.updates[policy] = self.algorithm.counters[i, 0]
            self._board.learned.published_step[policy] = member.step

    def end(self) -> None:
        """Keep and publish the last state."""
        self.updates.close()
        self._show()


def play_actor(shared: SharedMemory, index: int, start: int, timeout_s: float) -> None:
    """What an actor process runs."""
    board, roster = shared.board, shared.roster
    pulse = board.pulse(index)
    pulse.start(os.getpid())
    driver = ActorDriver(shared, index, start)
    # A successor in lockstep goes on in the round in which its predecessor died.
    driver.state.rounds = int(board.rounds[index]) if int(board.rounds[index]) != FINISHED else 0
    for agent in driver.agents:
        _await_version(agent.subscriber, pulse, board, timeout_s)
    while not (board.stopping or driver.finished):
        next(driver.rounds)
        pulse.beat()
        driver.report(board)
        board.rounds[index] = driver.state.rounds
        if not roster.pace.free:
            board.acted.ring()
            _wait_for_learners(shared, driver.state.rounds, pulse)
    board.rounds[index] = FINISHED
    board.acted.ring()


def play_learner(shared: SharedMemory, index: int) -> None:
    """What a learner process runs: one or several stacks."""
    board, roster = shared.board, shared.roster
    pulse = board.pulse(roster.actors + index)
    pulse.start(os.getpid())
    learners = [LearnerDriver(shared, k) for k in roster.processes[index]]
    for learner in learners:
        learner.begin()
    drive = _in_lockstep if roster.pace.lockstep else at_pace
    drive(shared, learners, pulse)
    for learner in learners:
        learner.end()


def at_pace(shared: SharedMemory, learners: Sequence[LearnerDriver], pulse: Pulse) -> None:
    """Drive learners as the pace allows, until the run ends."""
    board = shared.board
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
            if not shared.roster.pace.free:
                board.updated.ring()
        elif shared.roster.pace.free:
            pulse.waits_for(Wait.ROWS)
            time.sleep(0.002)
        else:
            pulse.waits_for(Wait.ROWS if any(learner.once for learner in learners) else Wait.ACTORS)
            board.acted.wait(seen, 0.1)
    if int(board.rounds.min()) == FINISHED:  # all is played: rows that are read once are used up
        for learner in learners:
            if learner.once:
                learner.catch_up(pulse)


def _in_lockstep(shared: SharedMemory, learners: Sequence[LearnerDriver], pulse: Pulse) -> None:
    board = shared.board
    while True:
        seen = board.acted.count
        played = int(board.rounds.min())
        behind = [learner for learner in learners if int(board.learned.synced_round[learner.policies].min()) < played]
        for learner in behind:
            learner.catch_up(pulse)
            board.learned.synced_round[learner.policies] = played
        if behind:
            pulse.beat()
            board.updated.ring()
        elif board.stopping:
            return
        else:
            pulse.waits_for(Wait.ACTORS)
            board.acted.wait(seen, 0.1)


def _wait_for_learners(shared: SharedMemory, played: int, pulse: Pulse) -> None:
    """Until the pace lets the actor go on. In lockstep: until all have done what this round made due.

    That is the learners' updates, and an evaluation if there is an evaluator (which rings the learners' bell).
    """
    board, roster = shared.board, shared.roster
    while not board.stopping:
        seen = board.updated.count
        if roster.pace.lockstep:
            ready = int(board.learned.synced_round.min()) >= played
        else:
            ready = all(map(shared.may_act, range(len(roster.stacks))))
        if ready and int(board.evaluated_round[0]) >= played:
            return
        pulse.waits_for(Wait.EVALUATOR if ready else Wait.LEARNERS)
        board.updated.wait(seen, 0.1)


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

"""Drivers: make actors and learners from the shared memory of a run, and run their loops.

``play_actor`` and ``play_learner`` run in child processes: each drives its role, writes a heartbeat, and waits if the
pace requires it. ``serial.py`` drives the same roles one after the other, and ``engines.py`` chooses between them. In
lockstep the order is the same as in the serial engine: every actor plays a round, then every learner does the updates
that are due.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from motet.algorithm import (
    Batch,
    Behaviour,
    continue_global_streams,
    continue_stream,
    global_streams_of,
    is_shipped,
    make_behaviour,
    stacked_batch,
    stream_of,
    users_behaviour,
)
from motet.errors import SettingError, WaitTimeoutError
from motet.publication import GivenVersion
from motet.runs.plain import encode
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.streams import Streams, StreamUser
from motet.system.child import one_thread
from motet.training.actor import Actor, PolicySource, PublishedPolicy
from motet.training.board import FINISHED, Board, Pulse, Times, no_times
from motet.training.cuts import ENDED, post
from motet.training.episodes import EpisodeRecord
from motet.training.episodes import names as episode_names
from motet.training.league import Draw, LeagueTable, Results
from motet.training.learner import Learner, StackMember, restore, start
from motet.training.opponents import Chooser, Frozen, Listener, Newest, Versus, anchor_of
from motet.training.partnered import PartneredWorlds, close_partners, partnered
from motet.training.partners import FixedPolicy, host_partners
from motet.training.periods import ActorPeriods, Records, StackRecord
from motet.training.progress import ActorProgress
from motet.training.roster import Roster, dealt
from motet.training.shared import SharedMemory
from motet.world.batch import WorldBatch, make_world_batch

__all__ = [
    "EpisodeLog",
    "actor_notes",
    "against",
    "at_pace",
    "check_streams",
    "continue_actor",
    "make_actor",
    "make_learner",
    "play_actor",
    "play_learner",
]

_SCHEDULED = ("learning_rate", "epsilon", "noise")  # settings of algorithms that are shown with their metrics
_EPISODES = 100  # number of episodes over which returns are averaged

# constants from which seeds of different purposes are derived
_WORLD, _BEHAVIOUR, _LEARNER, _READER, _OPPONENT = range(5)


# ---- actors


def make_actor(
    shared: SharedMemory,
    index: int,
    start: int,
    goes_on: bool = False,
    pulse: Pulse | None = None,
    given: GivenVersion | None = None,
    times: Times | None = None,
) -> Actor:
    """Make an actor of a run.

    Args:
        shared: the shared memory of the run.
        index: index of the actor.
        start: number of times that the actor has been started before.
        goes_on: whether its worlds continue in the middle of their episodes.
        pulse: the heartbeat of its process, written while it waits for partners.
        given: the version by which it acts; by default always the newest one.
        times: where the process of the actor adds up its times.
    """
    roster = shared.roster
    worlds = make_world_batch(
        roster.world.value, roster.worlds_per_actor, roster.masked, roster.remake_worlds, watched=True
    )
    worlds.user.knows(shared.board.late_draws())
    policy_of = [-1 if agent.policy is None else agent.policy for agent in roster.agents]
    if shared.league is not None:
        seeds = partial(seed_for, roster.seed, _OPPONENT, index, start)
        draw, results = Draw(shared.league, given), Results(shared.league.results[index])
        worlds = against(shared, worlds, draw, results, seeds, shared.league.league.block, given)
        policy_of = [0]  # the league plays the other side
    worlds = _with_partners(shared, worlds, index, pulse)
    times = times or no_times()
    policies = [_published_policy(shared, i, index, start, goes_on, given, times) for i in range(len(roster.policies))]
    one_thread()  # a behaviour may have loaded torch
    share = None if roster.episodes is None else dealt(roster.episodes, roster.actors, roster.worlds_per_actor)[index]
    seed_of = partial(seed_for, roster.seed, _WORLD, index, start)
    stage_of = partial(_stage_of, roster)
    actor = Actor(worlds, policies, seed_of, policy_of, times, share, shared.board.ended[index], stage_of)
    if isinstance(worlds, PartneredWorlds):
        actor.finished = worlds.finished  # episodes of learners and partners, in one list
    return actor


def _stage_of(roster: Roster, policies: Sequence[Any]) -> str | None:
    """Return the stage that worlds get: the least advanced stage among the versions that the actor holds."""
    if not roster.staged:
        return None
    stages = {policy: int(policies[policy].subscriber["stage"]) for policy in roster.staged}
    last = min(stages, key=lambda policy: stages[policy])
    return roster.policies[last].settings.stages.names[stages[last]]


def _with_partners(shared: SharedMemory, worlds: WorldBatch, actor: int, pulse: Pulse | None) -> WorldBatch:
    """Return the worlds of an actor in which the partners of the run act."""
    roster, episodes = shared.roster, shared.board.episodes
    rows = {id(fixed): i for i, (_, fixed) in reversed(list(enumerate(roster.fixed_agents, len(roster.policies))))}

    def failed(fixed: FixedPolicy, count: int, text: str) -> None:
        episodes.failures[actor, rows[id(fixed)]] += 1
        if pulse is not None:  # in a child process, the output goes to its log
            sys.stderr.write(f"replacing an isolated policy after failure {count}: {text}\n")
            sys.stderr.flush()

    alive = None if pulse is None else partial(pulse.waits_for, Wait.PARTNER)
    asks = (lambda number: None) if pulse is None else pulse.asks
    return partnered(
        worlds, roster.partners, len(roster.agents), len(roster.policies), alive=alive, asks=asks, on_failure=failed
    )


def _published_policy(
    shared: SharedMemory,
    number: int,
    actor: int,
    start: int,
    goes_on: bool,
    given: GivenVersion | None,
    times: Times,
) -> PublishedPolicy:
    roster, policy, episodes = shared.roster, shared.roster.policies[number], shared.board.episodes

    def show(subscriber: PolicySource) -> None:
        episodes.version[actor, number], episodes.forced[actor, number] = subscriber.version, subscriber.forced
        times[Wait.WEIGHTS] += subscriber.waited_s
        subscriber.waited_s = 0.0

    behaviour = make_behaviour(policy.config, policy.observation_space, policy.action_space)
    begin_stream(behaviour, roster.seed, actor, start, number)
    return PublishedPolicy(
        behaviour,
        shared.publications[number].subscriber(given),
        shared.replays[number].writers(roster.lanes_of(number, actor), goes_on=goes_on),
        roster.worlds_per_actor * policy.lanes_per_world,
        header=tuple(policy.config.header),
        n_frames=policy.settings.n_frames,
        masked=policy.masked,
        sync_interval=roster.sync_interval,
        max_lag=roster.max_lag,
        newest_step=partial(shared.newest_step, number),
        left=shared.left(number, actor),
        on_load=show,
    )


def begin_stream(behaviour: Behaviour, seed: int, actor: int, start: int, policy: int, *more: int) -> None:
    """Begin the random stream of a policy's behaviour in an actor."""
    behaviour.begin(seed_for(seed, _BEHAVIOUR, actor, start, policy, *more))


class EpisodeLog:
    """Writes statistics of an actor's episodes to the board, and each episode to the actor's ring.

    Args:
        shared: the shared memory of the run.
        index: index of the actor.
    """

    def __init__(self, shared: SharedMemory, index: int) -> None:
        self._episodes, self._index = shared.board.episodes, index
        self._ring = shared.episodes.writer(index)
        self._rule = shared.roster.win_rule
        size = shared.roster.worlds_per_actor, len(episode_names(shared.roster))
        # Sums over the current episodes, by world and agent, because an agent may have several segments in an episode.
        self._returns, self._ends, self._steps = np.zeros(size), np.zeros(size), np.zeros(size, np.int64)
        self._totals: dict[int, deque[float]] = {}  # by policy: numbers of the last episodes
        self._lengths: dict[int, deque[int]] = {}

    def write(self, actor: Actor) -> None:
        """Remove the finished episodes from an actor, and write them to the board and the ring."""
        while actor.broken_off:
            self._forget(actor.broken_off.popleft())
        while actor.finished:
            episode = actor.finished.popleft()
            totals = self._totals.setdefault(episode.policy, deque(maxlen=_EPISODES))
            lengths = self._lengths.setdefault(episode.policy, deque(maxlen=_EPISODES))
            totals.append(episode.total)
            lengths.append(episode.steps)
            row, at = self._episodes, (self._index, episode.policy)
            row.mean_return[at], row.mean_length[at] = sum(totals) / len(totals), sum(lengths) / len(lengths)
            row.last_return[at], row.remade[at] = episode.total, actor.remade
            row.late_draws[at] = actor.worlds.user.late
            row.count[at] += 1
            whose = episode.world, episode.agent
            self._returns[whose] += episode.total
            self._ends[whose] = episode.last
            self._steps[whose] += episode.steps
        for world in actor.worlds.over:
            if self._steps[world].any():
                self._append(actor, world)
                self._forget(world)

    def _append(self, actor: Actor, world: int) -> None:
        """Write the episode of a world, which is over, to the ring."""
        winner = opponent = side = None
        if isinstance(actor.worlds, Versus):
            opponent, won, side = actor.worlds.outcome(world)
            winner = {1: side, 0: -1, -1: 1 - side}[won]
        elif self._rule is not None:
            one, other = (self._returns if self._rule.won_by == "total" else self._ends)[world].tolist()
            winner = {1: 0, 0: -1, -1: 1}[self._rule.outcome(one, other)]
        versions = [policy.subscriber.version for policy in actor.published]
        self._ring.append(
            EpisodeRecord(
                world, actor.rounds, actor.seeds[world], self._returns[world].tolist(), self._steps[world].tolist(),
                versions, winner, opponent, side,
                dict(actor.worlds.measured.pop(world, {})),
            )
        )  # fmt: skip

    @property
    def has_room(self) -> bool:
        """Whether the ring has room for the episodes of another round."""
        return self._ring.has_room(len(self._steps))

    def _forget(self, world: int) -> None:
        """Begin a new episode of a world."""
        for rows in (self._returns, self._ends, self._steps):
            rows[world] = 0

    def get_state(self) -> dict[str, Any]:
        """Return what is known of unfinished episodes: the segments that have ended."""
        return {"returns": self._returns.copy(), "ends": self._ends.copy(), "steps": self._steps.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._returns[...], self._ends[...], self._steps[...] = state["returns"], state["ends"], state["steps"]


def against(
    shared: SharedMemory,
    worlds: WorldBatch,
    draw: Chooser,
    results: Listener,
    seed_of: Callable[..., int],
    block: int,
    given: GivenVersion | None = None,
) -> WorldBatch:
    """Return two-player worlds in which an opponent, drawn for a block of episodes, plays one side.

    ``given``: the version of the player that acts as an opponent; by default the newest one.
    """
    (player,), play = shared.roster.policies, shared.roster.self_play
    assert play is not None
    header = {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in player.config.header.items()}

    def behaviour() -> Behaviour:
        return make_behaviour(player.config, player.observation_space, player.action_space)

    return Versus(
        worlds,
        draw,
        results,
        [anchor_of(maker.value, player.action_space) for maker in play.makers],
        Newest(behaviour(), shared.publications[0].subscriber(given), tuple(player.config.header)),
        lambda weights: Frozen(behaviour(), weights, header),
        seed_of,
        block,
        play.by_total,
        play.margin,
        len(player.partitions) > 1,
    )


def actor_notes(actor: Actor, log: EpisodeLog) -> dict[str, Any]:
    """Return the state of an actor between rounds, as plain values. Changes nothing."""
    return {
        "worlds": actor.worlds.get_state() if actor.worlds.can_save else None,
        "memory": actor.get_state(),
        "episodes": log.get_state(),
        "streams": [stream_of(policy.behaviour) for policy in actor.published],
        "global_streams": [global_streams_of(policy.behaviour) for policy in actor.published],
        "versions": [policy.subscriber.version for policy in actor.published],
    }


def continue_actor(
    shared: SharedMemory, index: int, actor: Actor, log: EpisodeLog, notes: Mapping[str, Any]
) -> set[int]:
    """Let an actor continue from its notes; return the policies whose behaviours begin a new random stream.

    If its worlds could not save their state, new episodes begin.
    """
    roster, new = shared.roster, set[int]()
    if notes["worlds"] is None:
        actor.begin_again(notes["memory"])
    else:
        actor.worlds.set_state(notes["worlds"])
        actor.set_state(notes["memory"])
        if "episodes" in notes:  # older checkpoints do not contain them
            log.set_state(notes["episodes"])
    streams = notes.get("streams", [None] * len(roster.policies))
    global_streams = notes.get("global_streams", [None] * len(roster.policies))
    for i, (policy, stream) in enumerate(zip(actor.published, streams, strict=True)):
        if continue_stream(policy.behaviour, stream):
            continue_global_streams(policy.behaviour, global_streams[i])
        else:
            begin_stream(policy.behaviour, roster.seed, index, 0, i, actor.rounds)
            new.add(i)
    return new


def check_streams(actor: Actor, roster: Roster) -> None:
    """Raise if a behaviour returns a random stream that a checkpoint cannot contain."""
    for policy, acting in zip(roster.policies, actor.published, strict=True):
        stream = stream_of(acting.behaviour)
        try:
            encode(stream)
        except SettingError as error:
            kind = type(users_behaviour(acting.behaviour)).__name__
            raise SettingError(
                f"get_stream of {kind} (agent {policy.name}) must return plain values, "
                f"got {type(stream).__name__}: {error}"
            ) from error


def play_actor(
    shared: SharedMemory, index: int, start: int, timeout_s: float, notes: Mapping[str, Any] | None = None
) -> None:
    """Run an actor process. ``notes``: the state from which it continues (:func:`actor_notes`)."""
    host_partners(shared.roster.partners, shared.hide_from_children)
    board, is_free = shared.board, shared.roster.pace.free
    pulse = board.pulse(index)
    pulse.start(os.getpid())
    periods = shared.actor_periods(index)
    given = None if periods is None else periods.version
    goes_on = notes is not None and notes["worlds"] is not None
    actor = make_actor(shared, index, start, goes_on, pulse=pulse, given=given, times=pulse.times)
    log = EpisodeLog(shared, index)
    if notes is not None:
        continue_actor(shared, index, actor, log, notes)
    progress = ActorProgress([shared.progress(k) for k in range(len(shared.roster.stacks))])
    # In lockstep and with periods a restarted actor continues in the round in which it died.
    actor.rounds = int(board.rounds[index]) if int(board.rounds[index]) != FINISHED else 0
    for policy in actor.published:
        _await_version(policy.subscriber, pulse, board, timeout_s)
    may_continue = partial(_may_continue, shared, actor, progress, periods)
    if shared.letters and periods is not None:
        check_streams(actor, shared.roster)
        periods.on_cut = lambda cut: post(shared, index, cut, actor_notes(actor, log))
    if periods is None:
        actor.begin()
    else:
        periods.end(actor.rounds, actor.is_done)  # if the previous process of this actor died after the last round
        if not actor.is_done:
            _wait_for_learners(board, actor, may_continue, pulse)
    pulse.works()
    while not (board.stopping or actor.is_done or (periods is not None and periods.over)):
        actor.play_round()
        pulse.beat()
        if actor.finished:
            log.write(actor)
            if periods is not None:
                _wait_for_room(board, log, pulse)
        board.rounds[index] = actor.rounds
        if is_free or (periods is not None and not periods.end(actor.rounds, actor.is_done)):
            continue  # an actor does not wait within a period
        board.acted.ring()
        if periods is None or not actor.is_done:
            _wait_for_learners(board, actor, may_continue, pulse)
    if shared.letters and not board.stopping:
        post(shared, index, ENDED, actor_notes(actor, log))
    close_partners(actor.worlds)
    board.rounds[index] = FINISHED
    board.acted.ring()


def _wait_for_room(board: Board, log: EpisodeLog, pulse: Pulse) -> None:
    """Wait until the episodes of another round fit into the ring. The reader of the ring never waits for an actor."""
    while not (log.has_room or board.stopping):
        pulse.waits_for(Wait.DISK)
        time.sleep(0.001)
    pulse.works()


def _may_continue(shared: SharedMemory, actor: Actor, progress: ActorProgress, periods: ActorPeriods | None) -> bool:
    """Whether the pace allows an actor to continue. In lockstep: whether all updates that its rounds made due are
    done."""
    if periods is not None:
        if begins := periods.begin():
            actor.load_given()
        return begins
    if shared.roster.pace.lockstep:
        return int(shared.board.learned.synced_round.min()) >= actor.rounds
    return progress.may_act(actor.acted)


def _wait_for_learners(board: Board, actor: Actor, may_continue: Callable[[], bool], pulse: Pulse) -> None:
    """Wait until the pace allows an actor to continue.

    In lockstep the actor also waits for an evaluation that is due, if there is an evaluator. The evaluator rings the
    learners' bell.
    """
    while not board.stopping:
        seen = board.updated.count
        ready = may_continue()
        if ready and int(board.evaluated_round[0]) >= actor.rounds:
            return
        pulse.waits_for(Wait.EVALUATOR if ready or board.evaluation_waits else Wait.LEARNERS)
        board.updated.wait(seen, 0.1)
        pulse.works()


# ---- learners


def make_learner(shared: SharedMemory, stack: int, times: Times | None = None) -> Learner:
    """Make the learner of a stack, with the state from the vault if there is one. ``times``: the times of the learner's
    process."""
    roster = shared.roster
    policies = roster.stacks[stack]
    first = roster.policies[policies[0]]
    seeds = [seed_for(roster.seed, _LEARNER, policy) for policy in policies]
    streams = Streams(StreamUser(f"the algorithm {type(first.config).__name__}"))
    with streams.begun(seeds[0]):
        algorithm = first.config.build(first.observation_space, first.action_space, len(policies), seeds, first.device)
    one_thread()  # build may have loaded torch
    batch = stacked_batch(first.observation_space, first.action_space, first.settings, len(policies))
    record = shared.stack_record(stack)
    members = [_member(shared, policy, batch.agent(i), record) for i, policy in enumerate(policies)]
    kept, version = shared.vaults[stack].subscriber(), 0
    if kept.published:
        _refresh_surely(kept, f"the vault of stack {stack}")
        version = restore(algorithm, members, kept, record)
    else:
        start(algorithm, [roster.policies[policy].start for policy in policies])
        if record is not None:
            record.limit([member.reader for member in members])
    return Learner(
        algorithm,
        members,
        shared.vaults[stack].publisher(),
        first.settings,
        batch,
        first.publish_every,
        shared.progress(stack, record),
        shared.board,
        None if shared.league is None else LeagueTable(shared.league, None if record is None else version),
        None if is_shipped(algorithm) else streams,
        times,
        {name: value for name in _SCHEDULED if (value := getattr(first.config, name, None)) is not None},
        record,
        version,
    )


def _member(shared: SharedMemory, number: int, batch: Batch, record: StackRecord | None) -> StackMember:
    """Make one policy of a stack. ``batch`` is its part of the stacked batch."""
    policy = shared.roster.policies[number]
    settings = policy.settings
    reader = shared.replays[number].reader(
        n_frames=settings.n_frames,
        n_step=settings.n_step,
        gamma=settings.gamma,
        prioritised=settings.prioritised,
        alpha=settings.alpha,
        length=settings.length if settings.sequences else 0,
        burn_in=settings.burn_in,
        shares=policy.partitions,
        seed=seed_for(shared.roster.seed, _READER, number),
    )
    publisher = shared.publications[number].publisher()
    aside = shared.asides[number].publisher() if shared.asides else None
    steps = partial(shared.steps, number)
    if record is not None:
        steps = partial(_steps_recorded, shared, record, number)
    return StackMember(reader, steps, publisher, aside, reader.bind(batch))


def _steps_recorded(shared: SharedMemory, record: StackRecord, policy: int) -> int:
    return shared.steps_before[policy] + record.steps_of(policy)


def play_learner(shared: SharedMemory, index: int) -> None:
    """Run a learner process with one or several stacks."""
    board, roster = shared.board, shared.roster
    pulse = board.pulse(roster.actors + index)
    pulse.start(os.getpid())
    learners = [make_learner(shared, k, pulse.times) for k in roster.processes[index]]
    for learner in learners:
        learner.begin()
    pulse.works()
    if shared.records is not None:
        _in_periods(shared, shared.records, learners, pulse)
    else:
        drive = _in_lockstep if roster.pace.lockstep else at_pace
        drive(shared, learners, pulse)
    for learner in learners:
        learner.end()


def at_pace(shared: SharedMemory, learners: Sequence[Learner], pulse: Pulse) -> None:
    """Drive learners as the pace allows, until the run ends."""
    board, is_free = shared.board, shared.roster.pace.free
    while not board.stopping:
        seen = board.acted.count
        worked = False
        for learner in learners:
            learner.enter_stages()
            if any(due := learner.progress.due()):
                learner.update(due)
                worked = True
        if worked:
            pulse.beat()
            if not is_free:
                board.updated.ring()
        elif is_free:
            pulse.waits_for(Wait.ROWS)
            time.sleep(0.002)
            pulse.works()
        else:
            pulse.waits_for(Wait.ROWS if any(learner.once for learner in learners) else Wait.ACTORS)
            board.acted.wait(seen, 0.1)
            pulse.works()
    if int(board.rounds.min()) == FINISHED:  # all actors are done: learn from the remaining rows that are read once
        for learner in learners:
            if learner.once:
                learner.catch_up(pulse)


def _in_lockstep(shared: SharedMemory, learners: Sequence[Learner], pulse: Pulse) -> None:
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
            pulse.works()


def _in_periods(shared: SharedMemory, records: Records, learners: Sequence[Learner], pulse: Pulse) -> None:
    """Do one phase after the other, each as soon as the pace allows it."""
    board, pace = shared.board, shared.roster.pace
    while not board.stopping:
        seen = board.acted.count
        due = [learner for learner in learners if pace.may_learn_phase(learner.phases, records.ended)]
        for learner in due:
            learner.play_phase(pulse)
            board.updated.ring()
        if due:
            pulse.beat()
        else:
            pulse.waits_for(Wait.ACTORS)
            board.acted.wait(seen, 0.1)
            pulse.works()


# ---- waiting at the start


def _await_version(subscriber: Any, pulse: Pulse, board: Board, timeout_s: float) -> None:
    """Wait for the first version, which the learners publish before their first update."""
    deadline = time.monotonic() + timeout_s
    while not board.stopping and not subscriber.wait(0.1):
        pulse.waits_for(Wait.FIRST_VERSION)
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"the actor waited {timeout_s:g} s for the first version of the policies")


def _refresh_surely(subscriber: Any, what: str) -> None:
    """Read the newest version. At this moment the publisher is dead or has not started, so no write delays the read for
    long."""
    deadline = time.monotonic() + 10
    while not subscriber.refresh():
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{what} could not be read for 10 s: its publisher writes without pause")
        time.sleep(0.001)

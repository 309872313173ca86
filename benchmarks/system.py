"""A running system that is measured from outside: its processes under a supervisor, its counters in shared memory.

The bench's process starts the roles that a measurement needs (all of them, only learners, a replacement for one of
them), supervises them while it waits, and reads steps and updates from shared memory without contacting the processes.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from motet.algorithm import AlgorithmConfig, stacked_batch
from motet.errors import WaitTimeoutError
from motet.system.child import Child
from motet.system.supervisor import RestartLimits, Role, Supervisor
from motet.training.drivers import play_actor, play_learner
from motet.training.roster import make_roster
from motet.training.serial import Serial
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory
from motet.worlds import TreasureHunt

__all__ = [
    "System",
    "actor_roles",
    "at_work",
    "bare_role",
    "hunt_handles",
    "learner_roles",
    "prefill",
    "role",
    "serial_role",
]

START_S = 60.0
"""Maximum number of seconds until all processes are working."""

LIMITS = RestartLimits(window_s=1.0, stop_s=10.0)
"""Limits with a short window: every restart in a bench then counts as the first one, so the pause before it does not
grow."""


def hunt_handles(agents: int, config: AlgorithmConfig, settings: RunSettings) -> SharedMemory:
    """Return the shared memory of a run in the treasure hunt."""
    return SharedMemory(make_roster(functools.partial(TreasureHunt, agents=agents), config, settings))


# ---- roles


def actor_roles(shared: SharedMemory) -> list[Role]:
    """Return the actors, as in a run."""

    def actor(i: int) -> Role:
        return role(shared, f"actor-{i}", i, lambda n: (play_actor, (shared, i, n, START_S)))

    return [actor(i) for i in range(shared.roster.actors)]


def learner_roles(shared: SharedMemory) -> list[Role]:
    """Return the learners, as in a run."""
    first = shared.roster.actors

    def learner(i: int) -> Role:
        return role(shared, f"learner-{i}", first + i, lambda n: (play_learner, (shared, i)))

    return [learner(i) for i in range(len(shared.roster.processes))]


def serial_role(shared: SharedMemory) -> Role:
    """Return a role that plays the serial engine in a separate process."""
    return role(shared, "serial", 0, lambda n: (_play_serial, (shared,)))


def bare_role(shared: SharedMemory) -> Role:
    """Return a replacement for the first learner, which makes the same updates in a bare loop on a prepared batch."""
    return role(shared, "bare", shared.roster.actors, lambda n: (_play_bare, (shared,)))


def role(shared: SharedMemory, name: str, row: int, what: Callable[[int], tuple[Callable[..., None], Any]]) -> Role:
    """Return a process that calls ``what(n)`` at its n-th start, and writes its heartbeat to this row of the board."""

    def start(n: int) -> Child:
        target, arguments = what(n)
        return Child(name, target, arguments)

    return Role(name, start, lambda: float(shared.board.processes.heartbeat[row]))


def _play_serial(shared: SharedMemory) -> None:
    Serial(shared).play(lambda: shared.board.stopping)


def _play_bare(shared: SharedMemory) -> None:
    board, roster = shared.board, shared.roster
    policy = roster.policies[0]
    pulse = board.pulse(roster.actors)
    pulse.start(os.getpid())
    algorithm = policy.config.build(policy.observation_space, policy.action_space, 1, [0])
    batch = stacked_batch(policy.observation_space, policy.action_space, policy.settings, 1)
    rng = np.random.default_rng(0)
    for seen in (batch.observation, batch.next_observation):
        seen[...] = rng.random(seen.shape) < 0.1  # about as many entries are 1 as in the world's observations
    batch.action[...] = rng.integers(0, policy.action_space.n, batch.action.shape)
    batch.reward[...] = rng.integers(-1, 2, batch.reward.shape)
    batch.discount[...] = 0.99
    algorithm.save()
    shared.publications[0].publisher().publish(algorithm.weights()[0], version=1, **algorithm.header(0, 0))
    steps, done = [10**6], 0
    while not board.stopping:
        algorithm.update(batch, steps)
        done += 1
        board.learned.updates[0] = done
        pulse.beat()


def prefill(shared: SharedMemory, rows: int) -> None:
    """Write rows for every agent, so that learners run without an actor."""
    rng = np.random.default_rng(0)
    for policy, replay in zip(shared.roster.policies, shared.replays, strict=True):
        space = policy.observation_space
        writer = replay.writer()
        writer.append_many(
            (rng.random((rows, *space.shape)) < 0.1).astype(space.dtype),
            rng.integers(0, policy.action_space.n, rows),
            rng.integers(-1, 2, rows).astype(np.float32),
        )
        del writer


# ---- measurement


class System:
    """Running processes, used as a context; all of them end with it.

    Args:
        shared: the shared memory of the processes.
        roles: the processes to start.
    """

    def __init__(self, shared: SharedMemory, roles: Sequence[Role]) -> None:
        self.shared = shared
        self._supervisor = Supervisor(roles, LIMITS, lambda line: None)

    def __enter__(self) -> System:
        try:
            self._supervisor.start()
        except BaseException:
            self._supervisor.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shared.board.request_stop()
        try:
            if kind is None:
                self._supervisor.stop()
        finally:
            self._supervisor.kill()

    @property
    def steps(self) -> int:
        """Steps of the agent with the fewest steps; in treasure_hunt these are the world's turns."""
        return min(replay.steps for replay in self.shared.replays)

    @property
    def updates(self) -> int:
        """Updates of all agents together."""
        return int(self.shared.board.learned.updates.sum())

    def until(
        self, condition: Callable[[], bool], what: str, poll_s: float = 0.01, timeout_s: float = START_S
    ) -> float:
        """Supervise until the condition holds; returns the time at which it does, by ``time.monotonic``."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise WaitTimeoutError(f"the bench waited {timeout_s:g} s for {what}")
            self._supervisor.watch(poll_s)
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Supervise for this many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._supervisor.watch(left)

    def rates(self, seconds: float) -> tuple[float, float]:
        """Return steps and updates per second, measured over this many seconds from now on."""
        steps, updates, begun = self.steps, self.updates, time.monotonic()
        self.pause(seconds)
        passed = time.monotonic() - begun
        return (self.steps - steps) / passed, (self.updates - updates) / passed


def at_work(system: System, updates: int = 20) -> None:
    """Wait until all learners have made this many updates."""
    learned = system.shared.board.learned
    system.until(lambda: bool((learned.updates >= updates).all()), "all learners to be at work")

"""Reproducible runs give the bits of the serial engine however fast or slow each process is, and whoever is killed."""

import contextlib
import functools
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass, replace

import gymnasium
import numpy as np
import pettingzoo
import pytest
from support.stand_in import StandIn
from test_lockstep import ONCE, SMALL, fingerprint

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.system.supervisor import RestartLimits
from motet.training.run import train
from motet.training.settings import Settings
from motet.worlds import MatrixGame

CLOCK = random.SystemRandom()  # no seed of a run has an effect on it
PERIODS = {"steps": 400, "updates_per_step": 0.5, "period": 20, "actors": 2}


def dawdle(most_s):
    """Sleep for a random time, now and then for a long one; not in the serial engine."""
    if multiprocessing.parent_process() is not None:
        time.sleep(CLOCK.choice([0, 0, 0, most_s / 10, most_s]))


class SlowGame(MatrixGame):
    def step(self, action):
        dawdle(0.005)
        return super().step(action)


class SlowLearning:
    def build(self, *given, **named):
        algorithm = super().build(*given, **named)
        update = algorithm.update

        def slow(*batch):
            dawdle(0.02)
            return update(*batch)

        algorithm.update = slow
        return algorithm


@dataclass(frozen=True)
class SlowStandIn(SlowLearning, StandIn):
    pass


@dataclass(frozen=True)
class SlowDQN(SlowLearning, DQNConfig):
    pass


def check(world, algorithm, **more):
    settings = {**PERIODS, **more}
    serial = train(world, algorithm, Settings(engine="serial", **settings))
    processes = train(world, algorithm, Settings(**settings))
    assert processes.restarts == 0 and processes.state == "done" and min(processes.updates.values()) > 5
    assert (processes.steps, processes.updates, fingerprint(processes)) == (
        serial.steps, serial.updates, fingerprint(serial)
    )  # fmt: skip


@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
def test_slow_actors_give_the_bits_of_the_serial_run(prioritised):
    check(functools.partial(SlowGame, turns=23), StandIn(prioritised=prioritised, capacity=400))


@pytest.mark.parametrize("algorithm", [SlowStandIn(prioritised=True), SlowDQN(**SMALL)], ids=["stand-in", "dqn"])
def test_slow_learners_give_the_bits_of_the_serial_run(algorithm):
    check(functools.partial(MatrixGame, turns=23), algorithm, learner_processes=2)


def spin(until):
    while time.monotonic() < until:
        pass


@contextlib.contextmanager
def busy(processes):
    """Keep the cores busy with these processes."""
    context = multiprocessing.get_context("forkserver")
    others = [context.Process(target=spin, args=(time.monotonic() + 60,), daemon=True) for _ in range(processes)]
    try:
        for other in others:
            other.start()
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def test_a_busy_machine_gives_the_bits_of_the_serial_run():
    with busy(2 * (os.cpu_count() or 1)):
        check(functools.partial(MatrixGame, turns=23), StandIn())


class Doorway(pettingzoo.ParallelEnv):
    """The second agent takes part in one of eight worlds, by its seed. Episodes do not end."""

    metadata = {"name": "doorway"}  # noqa: RUF012
    possible_agents = ["always", "rarely"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents) if seed % 8 == 0 else ["always"]
        return self._observed(), {agent: {} for agent in self.agents}

    def _observed(self):
        return {agent: self._rng.random(2).astype(np.float32) for agent in self.agents}

    def step(self, actions):
        rewards = {agent: float(action) for agent, action in actions.items()}
        never = dict.fromkeys(self.agents, False)
        return self._observed(), rewards, never, dict(never), {agent: {} for agent in self.agents}

    def render(self):
        return None


def test_rows_read_once_that_are_all_in_one_lane_do_not_stall():
    """With this seed one of six worlds has the second agent, all of whose batches come from this lane."""
    ppo = PPOConfig(**ONCE, hidden=(16,))
    check(Doorway, ppo, steps=2400, updates_per_step=None, period=None, reproducible=True, worlds_per_actor=3, seed=0)


@dataclass(frozen=True)
class Paused(StandIn):
    pause_s: float = 0.0

    def build(self, *given, **named):
        algorithm = super().build(*given, **named)
        update = algorithm.update

        def slow(*batch):
            time.sleep(self.pause_s)
            return update(*batch)

        algorithm.update = slow
        return algorithm


UPDATES = 1000
"""Updates of the run in which a learner is killed every second: one to three minutes, as restarts take long."""


@pytest.mark.slow
@pytest.mark.parametrize("prioritised", [False, True], ids=["uniform", "prioritised"])
def test_a_kill_every_second_gives_the_same_bits(prioritised, no_leaks):
    """A phase takes about 0.1 s, so that a killed learner gets further before it is killed again."""
    pause_s, chosen = 0.01, random.Random(0)
    algorithm = Paused(prioritised=prioritised, capacity=2000)
    settings = Settings(
        steps=2 * UPDATES, updates_per_step=0.5, period=16, learner_processes=2, seed=3,
        limits=RestartLimits(restarts=10_000, back_off_s=0.001),
    )  # fmt: skip
    serial = train(WORLD, algorithm, replace(settings, engine="serial"))
    killed = []

    def kill(snapshot):
        victims = [row.pid for row in snapshot.processes if row.name.startswith("learner") and row.pid]
        if victims:
            killed.append(chosen.choice(victims))
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)

    result = train(WORLD, replace(algorithm, pause_s=pause_s), settings, on_update=kill)
    assert result.restarts >= 20 and result.state == "done"
    assert (result.steps, result.updates, fingerprint(result)) == (serial.steps, serial.updates, fingerprint(serial))


WORLD = functools.partial(MatrixGame, turns=23)

"""``motet bench collect``: acting and learning in parallel, TD3, prioritised replay, worlds stepped as arrays.

The algorithm is TD3 with two hidden layers of 256 and batches of 256, the world is Pendulum-v1. Every process uses one
torch thread, in motet and in the other libraries. Systems are started again for each repeat, and the measurement begins
when all of their processes are working.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave
from benchmarks.global_streams import CONTESTANTS as STREAMS
from benchmarks.global_streams import steps_per_s
from benchmarks.hockey import ARRAYS, LOOP, hockey_steps_per_s_vs_loop
from benchmarks.object_worlds import CONTESTANTS as OBJECTS
from benchmarks.object_worlds import turns_per_s
from benchmarks.overlap import FOR_EVER, Work, balance
from benchmarks.party import Missing, Stage
from benchmarks.system import System, actor_roles, at_work, learner_roles, role
from motet.algorithm import stacked_batch
from motet.algorithms.td3 import TD3Config
from motet.replay import Replay, ReplaySpec
from motet.system.child import one_thread
from motet.training.drivers import at_pace, make_learner
from motet.training.roster import make_roster
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory

__all__ = ["WORLDS", "pendulum_handles", "run"]

HIDDEN, BATCH, RATE = (256, 256), 256, 3e-4
CONFIG = TD3Config(hidden=HIDDEN, batch_size=BATCH, learning_rate=RATE, min_rows=1000)
WORLDS = 8
"""Worlds of the actor in the measure of overlap."""
ROWS = 1_000_000
"""Rows of the prioritised replay buffer."""
PEER_ENVS = 4
"""Environments that stable-baselines3 steps together."""
SB3, SB3_ONE = f"stable-baselines3, {PEER_ENVS} envs", "stable-baselines3, 1 env"
"""The names of the two setups of stable-baselines3. The comparison uses the first one, which is faster."""

MEASURES = {
    "work": Measure("Time for equal steps and updates, with equal cost of acting and learning", "s"),
    "busy": Measure("CPU time inside updates over the learner's wall clock, with one actor (at least 0.9)", "1"),
    "hockey": Measure("hockey, 256 worlds, observations of both players at every step", "steps/s"),
    "objects": Measure("Object gridworlds, 4 agents, 1 ms of work per turn", "turns/s"),
    "streams": Measure("Random streams of 2 worlds in an actor, 1 ms of work per step", "steps/s"),
    "td3": Measure("TD3 on Pendulum-v1, 256-256, batches of 256, one update per step", "steps/s"),
    "per": Measure("Prioritised sampling and updating, as a share of an update (at most 0.05)", "1"),
    "update": Measure("One update of TD3, sampling included", "us"),
}

COMPARISONS = {
    "overlap_vs_blocking": Comparison("work", "motet, overlapped", "motet, in turns", 1.7),
    "hockey_steps_per_s_vs_loop": Comparison("hockey", ARRAYS, LOOP, 50),
    "own_rules_vs_own_loop": Comparison("objects", "own rules, motet", "own rules, own loop", 1 / 1.2),
    "objects_vs_own_loop": Comparison("objects", "no rules, motet", "no rules, own loop", 1 / 1.05),
    "own_streams_vs_shared": Comparison("streams", "no draws, own streams", "no draws, shared streams", 1 / 1.01),
    "drawn_streams_vs_shared": Comparison("streams", "draws, own streams", "draws, shared streams"),
    "td3_vs_sb3": Comparison("td3", "motet", SB3, 1.3),
}

AMOUNTS = {"learner_busy": Amount("busy", "motet"), "per_cost": Amount("per", "motet", 0.05)}


def run(settings: Settings) -> Result:
    """Measure everything."""
    one_thread()
    result = Result("collect", MEASURES, COMPARISONS, amounts=AMOUNTS)
    for part in (_overlap, _busy, _against_sb3, _priorities, _hockey, _objects, _streams):
        part(result, settings)
    return result


def _window(settings: Settings) -> float:
    """Return the duration of a measurement: five times that of a single part, 2 s by default."""
    return 5 * settings.seconds


def _pendulum() -> Any:
    import gymnasium

    return gymnasium.make("Pendulum-v1")


def pendulum_handles(settings: RunSettings) -> SharedMemory:
    """Return the shared memory of a run of TD3 on Pendulum-v1."""
    return SharedMemory(make_roster(_pendulum, CONFIG, settings))


# ---- acting and learning in parallel, and in turns


def _overlap(result: Result, settings: Settings) -> None:
    given, seconds = RunSettings(steps=FOR_EVER, worlds_per_actor=WORLDS), _window(settings)
    acting, learning = (5e-5, 5e-3) if settings.quick else balance(pendulum_handles, given, (0.001, 0.02), seconds)
    work = Work(
        pendulum_handles, acting / learning, max(20 * learning / acting, 2 * seconds / acting), given, slack=8.0
    )
    asks = {"motet, overlapped": work.overlapped, "motet, in turns": work.in_turns}
    interleave(result, "work", asks, settings.repeats, warm=False)
    result.facts.update(serial_step_us=acting * 1e6, serial_update_us=learning * 1e6)
    result.facts.update(work_updates_per_step=work.pace, work_steps=work.span)


# ---- how the learner spends its time


def _busy(result: Result, settings: Settings) -> None:
    def measured() -> float:
        shared = pendulum_handles(RunSettings(steps=FOR_EVER))
        learner = role(shared, "learner-0", shared.roster.actors, lambda _: (_play_timed, (shared,)))
        with System(shared, [learner, *actor_roles(shared)]) as system:
            at_work(system)
            before, begun = shared.board.learned.words[0].copy(), system.steps
            system.pause(_window(settings))
            after, steps = shared.board.learned.words[0].copy(), system.steps - begun
        wall_s = (int(after[7]) - int(before[7])) * 1e-9
        facts = (("learner_updates_s", int(after[0]) - int(before[0])), ("actor_steps_s", steps))
        for name, count in facts:
            result.facts.setdefault(name, []).append(count / wall_s)
        return (int(after[6]) - int(before[6])) * 1e-9 / wall_s

    interleave(result, "busy", {"motet": measured}, settings.repeats, warm=False)


def _play_timed(shared: SharedMemory) -> None:
    """Run a learner as in a run. It writes its CPU time inside updates, and the time of the last update, to the
    board."""
    board, pulse = shared.board, shared.board.pulse(shared.roster.actors)
    pulse.start(os.getpid())
    learning = make_learner(shared, 0)
    update, row = learning.algorithm.update, board.learned.words[0]

    def timed(batch: Any, steps: Any) -> Any:
        begun = time.thread_time_ns()
        result = update(batch, steps)
        row[6] += time.thread_time_ns() - begun
        row[7] = time.monotonic_ns()
        return result

    learning.algorithm.update = timed  # type: ignore[method-assign]
    learning.begin()
    at_pace(shared, [learning], pulse)
    learning.end()


# ---- against stable-baselines3


def _against_sb3(result: Result, settings: Settings) -> None:
    seconds = 2 * _window(settings)

    def motet() -> float:
        shared = pendulum_handles(RunSettings(steps=FOR_EVER, updates_per_step=1.0))
        with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
            at_work(system)
            steps, updates = system.rates(seconds)
        result.facts.setdefault("motet_updates_per_step", []).append(updates / max(steps, 1e-9))
        return steps

    asks: dict[str, Callable[[], float]] = {"motet": motet}
    with Stage(preload=("torch",)) as stage:
        for name, envs in ((SB3, PEER_ENVS), (SB3_ONE, 1)):
            try:
                peer = stage.party(Peer, envs)
            except Missing as missing:
                result.skipped[name] = str(missing)
                continue
            asks[name] = partial(peer.call, "run", seconds)
        interleave(result, "td3", asks, settings.repeats, warm=not settings.quick)


class Peer:
    """TD3 of stable-baselines3 with the same networks, batches and updates per step.

    Several environments are stepped together, then as many updates are made, as the guide of stable-baselines3
    recommends for speed.
    """

    def __init__(self, envs: int) -> None:
        try:
            from stable_baselines3 import TD3
            from stable_baselines3.common.env_util import make_vec_env
            from stable_baselines3.common.noise import NormalActionNoise, VectorizedActionNoise
        except ImportError as error:
            raise Missing(f"not installed ({error}); pip install 'motet[bench]'") from error
        one = NormalActionNoise(np.zeros(1), 0.1 * np.ones(1))
        self._model = TD3(
            "MlpPolicy",
            make_vec_env("Pendulum-v1", envs),
            policy_kwargs={"net_arch": list(HIDDEN)},
            batch_size=BATCH,
            buffer_size=CONFIG.capacity,
            learning_rate=RATE,
            learning_starts=BATCH + envs,
            train_freq=1,
            gradient_steps=-1,
            action_noise=VectorizedActionNoise(one, envs) if envs > 1 else one,
            device="cpu",
        )
        self._model.learn(BATCH + 10 * envs)

    def run(self, seconds: float) -> float:
        """Steps per second, of all environments together."""
        model, begun, before = self._model, time.perf_counter(), self._model.num_timesteps
        model.learn(10**9, callback=lambda *_: time.perf_counter() < begun + seconds, reset_num_timesteps=False)
        return float((model.num_timesteps - before) / (time.perf_counter() - begun))


# ---- prioritised replay


def _priorities(result: Result, settings: Settings) -> None:
    learner = _Prioritised(2000 if settings.quick else ROWS)

    def measured() -> float:
        share, total_us = learner.share(_window(settings) / 2)
        result.samples.setdefault("update", {}).setdefault("motet, prioritised", []).append(total_us)
        return share

    interleave(result, "per", {"motet": measured}, settings.repeats, warm=False)


class _Prioritised:
    """Updates from a full prioritised replay buffer of hockey (observations of 18 floats, actions of 4)."""

    def __init__(self, rows: int) -> None:
        from gymnasium.spaces import Box

        spaces = Box(-np.inf, np.inf, (18,)), Box(-1, 1, (4,))
        config = TD3Config(hidden=HIDDEN, batch_size=BATCH, capacity=rows, prioritised=True)
        self._td3 = config.build(*spaces, agents=1, seeds=[0])
        settings = config.replay(*spaces)
        self._batch = stacked_batch(*spaces, settings, agents=1)
        replay, rng = Replay(ReplaySpec(*spaces, capacity=rows)), np.random.default_rng(0)
        writer = replay.writer()
        for first in range(0, rows, 10_000):
            n = min(10_000, rows - first)
            seen = rng.standard_normal((n, 18), np.float32)
            writer.append_many(seen, rng.uniform(-1, 1, (n, 4)).astype(np.float32), seen[:, 0].copy())
        self._reader = replay.reader(prioritised=True, alpha=config.alpha)
        self._drawn = self._reader.bind(self._batch.agent(0))
        self._reader.sample(BATCH, into=self._drawn)  # the first draw sets the initial priority of every row

    def share(self, seconds: float) -> tuple[float, float]:
        """Return the share of sampling and new priorities in an update, and the mean time of an update in us."""
        clock, replay_s, updates, begun = time.perf_counter, 0.0, 0, time.perf_counter()
        while clock() < begun + seconds or updates < 10:
            start = clock()
            self._reader.sample(BATCH, beta=0.4, into=self._drawn)
            drawn = clock()
            update = self._td3.update(self._batch, [0])
            learned = clock()
            assert update.priorities is not None
            self._reader.update(self._drawn, update.priorities[0])
            replay_s += drawn - start + clock() - learned
            updates += 1
        total = clock() - begun
        return replay_s / total, total / updates * 1e6


# ---- worlds as arrays


def _hockey(result: Result, settings: Settings) -> None:
    asks = hockey_steps_per_s_vs_loop(settings.seconds * 2)
    interleave(result, "hockey", asks, settings.repeats, warm=not settings.quick)


# ---- object gridworlds


def _objects(result: Result, settings: Settings) -> None:
    asks = {name: turns_per_s(name, settings.seconds) for name in OBJECTS}
    interleave(result, "objects", asks, settings.repeats, warm=not settings.quick)


def _streams(result: Result, settings: Settings) -> None:
    asks = {name: steps_per_s(name, settings.seconds) for name in STREAMS}
    interleave(result, "streams", asks, settings.repeats, warm=not settings.quick)

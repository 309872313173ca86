"""``motet bench reproducible``: the cost of making a run reproducible.

Reproducible runs are compared with the serial engine, with a bounded pace and with lockstep, at the same updates per
step. The updates per step are chosen so that the serial engine spends equal time on acting and learning. In this case
waiting for each other costs most. Systems are started again for each repeat, and measured when all of their processes
are working.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave
from benchmarks.collect import WORLDS, pendulum_handles
from benchmarks.overlap import FOR_EVER, Work, balance
from benchmarks.system import System, actor_roles, at_work, hunt_handles, learner_roles
from motet.algorithms.dqn import DQNConfig
from motet.runs.snapshot import Work as Doing
from motet.system.child import one_thread
from motet.training.board import no_times
from motet.training.drivers import make_actor, make_learner
from motet.training.roster import make_roster
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory
from motet.worlds import TreasureHunt

__all__ = ["run"]

CONFIG = DQNConfig(hidden=(64, 64), batch_size=64, epsilon=0.05, capacity=20_000)
AGENTS = 4
PERIODS, BOUNDED, LOCKSTEP = "motet, reproducible", "motet, slack 32", "motet, lockstep"

MEASURES = {
    "work": Measure("TD3 on Pendulum-v1: time for equal steps and updates", "s"),
    "one": Measure(f"{AGENTS} agents, one learner process: turns of the world", "steps/s"),
    "two": Measure("Three agents, two learner processes with 2:1 of the work: turns of the world", "steps/s"),
    "period": Measure(f"Ending and beginning a period, {AGENTS} agents (at most 100)", "us", compared=False),
}

COMPARISONS = {
    "overlap": Comparison("work", PERIODS, "motet, in turns", 1.8),
    "vs_bounded": Comparison("one", PERIODS, BOUNDED, 0.93),
    "vs_bounded_unequal": Comparison("two", PERIODS, BOUNDED, 0.85),
    "vs_lockstep": Comparison("one", PERIODS, LOCKSTEP, 1.6),
}

PERIOD, VAULT, LOADING = "motet", "vault and publications", "loading of weights"
AMOUNTS = {
    "cost_of_a_period": Amount("period", PERIOD, 100),
    "vault_us": Amount("period", VAULT),
    "loading_us": Amount("period", LOADING),
}


def run(settings: Settings) -> Result:
    """Measure everything."""
    one_thread()
    result = Result("reproducible", MEASURES, COMPARISONS, amounts=AMOUNTS)
    for part in (_cost_of_a_period, _overlap, _one_learner, _two_learners):
        part(result, settings)
    return result


def _balance(
    make: Callable[[RunSettings], SharedMemory], given: RunSettings, paces: tuple[float, float], settings: Settings
) -> tuple[float, float]:
    """Return the seconds for a step and for an update. They only determine the pace, so short measurements suffice."""
    return balance(make, given, paces, 1.5 * settings.seconds)


# ---- compared with the serial engine


def _overlap(result: Result, settings: Settings) -> None:
    """Measure the task of ``overlap_vs_blocking`` with reproducible runs."""
    given = RunSettings(steps=FOR_EVER, worlds_per_actor=WORLDS)
    acting, learning = (5e-5, 5e-3) if settings.quick else _balance(pendulum_handles, given, (0.001, 0.02), settings)
    seconds = max(20 * learning, 4 * settings.seconds)
    work = Work(pendulum_handles, acting / learning, seconds / acting, given)
    asks = {PERIODS: work.in_periods, "motet, in turns": work.in_turns}
    interleave(result, "work", asks, settings.repeats, warm=False)
    result.facts.update(work_updates_per_step=work.pace, work_steps=work.span)


# ---- compared with a bounded pace and lockstep


def _one_learner(result: Result, settings: Settings) -> None:
    make = partial(hunt_handles, AGENTS, CONFIG)
    _speeds(result, "one", make, 1, {PERIODS, BOUNDED, LOCKSTEP}, settings)


def _two_learners(result: Result, settings: Settings) -> None:
    _speeds(result, "two", _three_kinds, 2, {PERIODS, BOUNDED}, settings)


def _three_kinds(settings: RunSettings) -> SharedMemory:
    """Agents with different algorithms, so that no two form a stack. One learner process has two of them."""
    world = functools.partial(TreasureHunt, agents=3)
    names = world().possible_agents
    rates = (1e-3, 1.1e-3, 1.2e-3)
    kinds = {name: replace(CONFIG, learning_rate=rate) for name, rate in zip(names, rates, strict=True)}
    return SharedMemory(make_roster(world, kinds, settings))


def _speeds(
    result: Result,
    measure: str,
    make: Callable[[RunSettings], SharedMemory],
    learners: int,
    contestants: set[str],
    settings: Settings,
) -> None:
    given = RunSettings(steps=FOR_EVER, learner_processes=learners)
    acting, learning = (5e-4, 5e-3) if settings.quick else _balance(make, given, (0.02, 0.5), settings)
    given = replace(given, updates_per_step=acting / learning)
    ways: dict[str, dict[str, Any]] = {PERIODS: {"reproducible": True}, BOUNDED: {"slack": 32}, LOCKSTEP: {"slack": 0}}

    def speed(more: dict[str, Any]) -> float:
        shared = make(replace(given, **more))
        with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
            at_work(system)
            return system.rates(3 * settings.seconds)[0]

    asks = {name: partial(speed, more) for name, more in ways.items() if name in contestants}
    interleave(result, measure, asks, settings.repeats, warm=False)
    result.facts.update({f"{measure}_turn_us": acting * 1e6, f"{measure}_update_us": learning * 1e6})


# ---- the cost of a period


def _cost_of_a_period(result: Result, settings: Settings) -> None:
    """Measure the end and the beginning of periods in this process, without waiting. No update is due."""
    given = RunSettings(steps=FOR_EVER, learner_processes=1, period=AGENTS, updates_per_step=1e-9)
    shared, times = hunt_handles(AGENTS, CONFIG, given), no_times()
    periods, learner = shared.actor_periods(0), make_learner(shared, 0, times)
    assert periods is not None
    actor = make_actor(shared, 0, 0, given=periods.version)
    learner.begin()
    periods.begin()
    actor.begin()

    def measured() -> tuple[float, float, float]:
        count, clock = 10 if settings.quick else 1000, time.perf_counter
        whole = loading = 0.0
        publishing = times[Doing.PUBLISHING]
        for _ in range(count):
            for _ in range(AGENTS):
                actor.play_round()
            began = clock()
            periods.end(actor.rounds, is_last=False)
            learner.play_phase()
            periods.begin()
            begun = clock()
            for policy in actor.published:
                if policy.subscriber.refresh():
                    policy.load()
            whole, loading = whole + begun - began, loading + clock() - begun
        publishing = times[Doing.PUBLISHING] - publishing
        scale = 1e6 / count
        return (whole - publishing) * scale, publishing * scale, loading * scale

    for i in range(-1, settings.repeats):
        for name, value in zip((PERIOD, VAULT, LOADING), measured(), strict=True):
            if i >= 0:
                result.samples.setdefault("period", {}).setdefault(name, []).append(value)

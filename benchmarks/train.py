"""``motet bench train``: the speed of whole runs, their use of the cores, and the cost of a killed learner.

The world is treasure_hunt, the algorithm DQN with batches of 64. Systems are started again for each repeat and measured
from outside. The measurement begins when all of their processes are working, except for ``seconds_to_350``, which
begins with the start of the run's interpreter.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave, interleave_pairs
from benchmarks import train_designs as designs
from benchmarks import whole_run as runs
from benchmarks.overlap import FOR_EVER, Work, balance
from benchmarks.party import Party, Stage
from benchmarks.system import System, actor_roles, at_work, bare_role, hunt_handles, learner_roles, prefill
from motet.algorithms.dqn import DQNConfig
from motet.system.supervisor import Role
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory

__all__ = ["run"]

WIDE = DQNConfig(hidden=(256, 256), batch_size=64, epsilon=0.05, capacity=50_000)
NARROW = DQNConfig(hidden=(64, 64), batch_size=64, epsilon=0.05, capacity=20_000)
SMALL = DQNConfig(hidden=(64, 64), batch_size=64, epsilon=0.05, capacity=2_000, min_rows=100)
MANY, FEW = 128, 8
"""Numbers of agents that act in turn, with SMALL networks."""
ROWS = 2_000
"""Rows in a replay buffer that is filled before learners begin."""
SEEDS = (1, 2, 3)
WANTED_RETURN = 350.0
CONFIRMED_BY = 100
"""Number of new episodes to play with policies whose evaluation reached the target return."""
SOAK_S, SOAK_WARM_S = 300.0, 20.0

LOCKED, EIGHT = "locks and torch inference", "motet, 8 worlds in the actor"

MEASURES = {
    "turns": Measure("Actor with two learners of 256-256: turns of the world", "turns/s"),
    "updates": Measure("The two learners of that actor: updates, summed", "updates/s"),
    "learner": Measure("One learner of 256-256 with one actor", "updates/s"),
    "work": Measure("Time for equal steps and updates, two agents, equal cost of acting and learning", "s"),
    "packed": Measure("Learners of eight agents, 64-64, on all cores: updates, summed", "updates/s"),
    "agents": Measure("Agents in turn, 64-64, 0.05 updates per step: steps of all agents together", "steps/s"),
    "hunt": Measure("Two agents, from the start to a greedy team return of 350 (at most 30)", "s"),
    "restart": Measure("From the kill of a learner to the first update after its restart (at most 0.5)", "s"),
    "kill": Measure("Actor: steps, from 1 s before the kill of a learner to 2 s after it", "steps/s"),
    "memory": Measure("Growth of all private memory in five minutes, as a share (at most 0.05)", "1"),
}

COMPARISONS = {
    "actor_vs_plan_design": Comparison("turns", EIGHT, LOCKED, 5),
    "learner_updates_vs_plan_design": Comparison("updates", EIGHT, LOCKED, 1),
    "actor_one_world_vs_plan_design": Comparison("turns", "motet", LOCKED),
    "learner_updates_one_world_vs_plan_design": Comparison("updates", "motet", LOCKED),
    "learner_vs_bare": Comparison("learner", "motet", "bare loop, ready batch", 0.9),
    "processes_vs_serial": Comparison("work", "motet, processes", "motet, serial", 1.7),
    "packed_vs_separate": Comparison("packed", "motet, packed", "motet, one process each", 2.5),
    "many_agents_vs_few": Comparison("agents", f"motet, {MANY} agents", f"motet, {FEW} agents", 0.6),
    "actor_through_kill": Comparison("kill", "motet, around the kill", "motet, before", 0.8),
}

AMOUNTS = {
    "seconds_to_350": Amount("hunt", "motet", 30),
    "restart_s": Amount("restart", "motet", 0.5),
    "rss_growth": Amount("memory", "motet", 0.05),
}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("train", MEASURES, COMPARISONS, amounts=AMOUNTS)
    for part in (_against_locks, _against_bare, _against_serial, _packed, _many_agents, _kills, _hunts, _soak):
        part(result, settings)
    return result


def _window(settings: Settings) -> float:
    """Return the duration of a measurement: five times that of a single part, 2 s by default."""
    return 5 * settings.seconds


def _free(**more: Any) -> RunSettings:
    """Return settings without a pace and practically without an end."""
    return RunSettings(steps=FOR_EVER, **more)


# ---- compared with the common design


def _against_locks(result: Result, settings: Settings) -> None:
    seconds = _window(settings)

    def motet(worlds: int) -> tuple[float, float]:
        shared = hunt_handles(2, WIDE, _free(learner_processes=2, worlds_per_actor=worlds))
        with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
            at_work(system)
            return system.rates(seconds)

    with Stage(preload=("torch", "benchmarks.train")) as stage:  # motet's processes are forked from the same server
        rings = [designs.LockedRing(stage.context, WIDE.capacity, ROWS) for _ in range(2)]
        shared = [designs.locked_network(WIDE.hidden).share_memory() for _ in rings]
        actor = stage.party(designs.LockedActor, rings, shared, WIDE.hidden)
        learners = [
            stage.party(designs.LockedLearner, ring, model, WIDE.hidden, WIDE.batch_size, seed)
            for seed, (ring, model) in enumerate(zip(rings, shared, strict=True))
        ]
        asks = {
            "motet": partial(motet, 1),
            LOCKED: partial(_together, actor, learners, seconds),
            EIGHT: partial(motet, 8),
        }
        interleave_pairs(result, ("turns", "updates"), asks, settings.repeats, warm=not settings.quick)


def _together(actor: Party, learners: Sequence[Party], seconds: float) -> tuple[float, float]:
    begin_at = time.monotonic() + 0.3  # longer than the first chunk takes
    for party in (actor, *learners):
        party.begin("run", begin_at, seconds)
    return float(actor.result()), sum(float(learner.result()) for learner in learners)


# ---- compared with a bare loop


def _against_bare(result: Result, settings: Settings) -> None:
    def measured(roles: Callable[[SharedMemory], list[Role]]) -> float:
        shared = hunt_handles(1, WIDE, _free())
        with System(shared, [*roles(shared), *actor_roles(shared)]) as system:
            at_work(system)
            system.until(lambda: system.steps > ROWS, "the actor to be at work")
            steps, updates = system.rates(_window(settings))
        result.facts.setdefault("actor_beside_learner_steps_s", []).append(steps)
        return updates

    asks = {
        "motet": partial(measured, learner_roles),
        "bare loop, ready batch": partial(measured, lambda shared: [bare_role(shared)]),
    }
    interleave(result, "learner", asks, settings.repeats, warm=not settings.quick)


# ---- compared with the serial engine


def _against_serial(result: Result, settings: Settings) -> None:
    make, given, seconds = partial(hunt_handles, 2, NARROW), _free(learner_processes=1), _window(settings)
    acting, learning = (5e-4, 5e-3) if settings.quick else balance(make, given, (0.02, 0.5), seconds)
    work = Work(make, acting / learning, max(200.0, seconds / acting), given)
    asks = {"motet, processes": work.overlapped, "motet, serial": work.in_turns}
    interleave(result, "work", asks, settings.repeats, warm=False)
    result.facts.update(serial_turn_us=acting * 1e6, serial_update_us=learning * 1e6)
    result.facts.update(work_updates_per_step=work.pace, work_steps=work.span)


# ---- many agents in one world


def _many_agents(result: Result, settings: Settings) -> None:
    def measured(agents: int) -> float:
        shared = hunt_handles(agents, SMALL, RunSettings(steps=FOR_EVER, updates_per_step=0.05))
        with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
            at_work(system)
            system.until(lambda: system.steps > 2 * SMALL.min_rows, "the agents to be past their warm-up")
            return agents * system.rates(_window(settings))[0]

    asks = {f"motet, {agents} agents": partial(measured, agents) for agents in (MANY, FEW)}
    interleave(result, "agents", asks, settings.repeats, warm=False)


# ---- several agents in one process


def _packed(result: Result, settings: Settings) -> None:
    def measured(processes: int) -> float:
        shared = hunt_handles(8, NARROW, _free(learner_processes=processes))
        prefill(shared, ROWS)
        with System(shared, learner_roles(shared)) as system:
            at_work(system)
            return system.rates(_window(settings))[1]

    asks = {"motet, packed": partial(measured, 2), "motet, one process each": partial(measured, 8)}
    interleave(result, "packed", asks, settings.repeats, warm=not settings.quick)


# ---- a learner is killed


def _kills(result: Result, settings: Settings) -> None:
    unit = 2.5 * settings.seconds  # 1 s by default
    shared = hunt_handles(2, WIDE, _free(learner_processes=2))
    samples: dict[str, list[float]] = {"restart": [], "before": [], "around": []}
    with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
        at_work(system)
        for i in range(settings.repeats):
            before, _ = system.rates(3 * unit)
            steps, begun = system.steps, time.monotonic()
            system.pause(unit)
            seconds = _kill(system, learner=i % 2)
            system.pause(max(0.0, begun + 3 * unit - time.monotonic()))
            around = (system.steps - steps) / (time.monotonic() - begun)
            for name, value in (("restart", seconds), ("before", before), ("around", around)):
                samples[name].append(value)
    result.samples["restart"] = {"motet": samples["restart"]}
    result.samples["kill"] = {"motet, around the kill": samples["around"], "motet, before": samples["before"]}


def _kill(system: System, learner: int) -> float:
    """Kill a learner; returns the seconds until the restarted learner has made an update."""
    board, row = system.shared.board, system.shared.roster.actors + learner
    pid = int(board.processes.pid[row])
    roster = system.shared.roster
    agent = roster.stacks[roster.processes[learner][0]][0]
    least = int(board.learned.updates[agent])
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    system.until(lambda: int(board.processes.pid[row]) != pid, "the restart of a killed learner", 0.001)

    def updated() -> bool:
        # The restarted learner first goes back to the last version in the vault.
        nonlocal least
        now = int(board.learned.updates[agent])
        least = min(least, now)
        return now > least

    return system.until(updated, "the first update of a restarted learner", 0.001) - killed


# ---- whole runs


def _hunts(result: Result, settings: Settings) -> None:
    seeds, wanted, episodes = (SEEDS[:1], -1e9, 2) if settings.quick else (SEEDS, WANTED_RETURN, CONFIRMED_BY)
    config, _ = runs.hunt_settings()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            path, tries, after = Path(folder) / f"hunt-{seed}", list[dict[str, float]](), -1
            with runs.begun("hunt", path, seed) as (process, at):
                while True:
                    found = runs.wait_for_crossing(process, path, wanted, after, at + runs.MOST_S - 5)
                    seconds = time.monotonic() - at
                    if found is None:
                        break
                    mean = runs.confirm(found, config, episodes, seed)
                    tries.append({"seconds": seconds, "step": found.step, "team": found.team, "confirmed": mean})
                    after = found.step
                    if mean >= wanted:
                        break
            result.samples.setdefault("hunt", {}).setdefault("motet", []).append(seconds)
            result.facts[f"hunt_seed_{seed}"] = {"reached": found is not None, "crossings": tries}


def _soak(result: Result, settings: Settings) -> None:
    if not Path("/proc/self/status").exists():
        result.skipped["rss_growth"] = "this system does not report private memory"
        return
    warm, length = (0.1, 0.2) if settings.quick else (SOAK_WARM_S, min(SOAK_S, SOAK_S * settings.seconds / 0.4))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "soak"
        with runs.begun("soak", path, 1) as (process, at):
            runs.wait_for_crossing(process, path, -1e9, -1, at + 60)  # by then all processes have started
            time.sleep(warm)
            totals, end = list[int](), time.monotonic() + length
            while time.monotonic() < end:
                runs.check_alive(process, path)
                totals.append(sum(runs.private_bytes(process.pid).values()))
                time.sleep(min(1.0, length / 20))
            members = len(runs.private_bytes(process.pid))
    some = max(1, len(totals) // 20)
    first, last = statistics.median(totals[:some]), statistics.median(totals[-some:])
    result.samples["memory"] = {"motet": [(last - first) / first]}
    result.facts.update(soak_seconds=length, soak_first_mb=first / 1e6, soak_last_mb=last / 1e6, soak_processes=members)

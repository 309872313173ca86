"""``motet bench empower``: learned empowerment. CPU time of an update, and how collecting grows with the actors.

An update learns from 64 rows with one drawn profile each, in the corridor of 4 steps with the default settings. To
measure collecting, each row costs about 1 ms of CPU time in the model, no answer is cached, and the learner does
nothing: it publishes its first weights and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks import Amount, Comparison, Measure, Result, Settings, interleave
from benchmarks.overlap import FOR_EVER
from benchmarks.system import System, actor_roles, learner_roles
from motet.algorithm import Algorithm
from motet.algorithms.empower import EmpowerConfig
from motet.replay import Replay, ReplaySpec
from motet.schedule import Stages
from motet.system.child import one_thread
from motet.training.roster import make_roster
from motet.training.settings import Settings as RunSettings
from motet.training.shared import SharedMemory
from motet.worlds import Bushes, OneMind

__all__ = ["run"]

ROWS, QUESTION_S = 2_000, 1e-4
"""Rows in the replay buffer for updates, and CPU time of one answer of the slow model. A row needs about ten
answers."""

MEASURES = {
    "update": Measure("CPU time of an update of 64 rows with one drawn profile, sampling included", "ms"),
    "collecting": Measure("Collecting rows, with about 1 ms of questions to the model for each", "rows/s"),
}
COMPARISONS = {"two_actors_vs_one": Comparison("collecting", "2 actors", "1 actor", 1.8)}
AMOUNTS = {"update_ms": Amount("update", "networks", 2.0)}


def run(settings: Settings) -> Result:
    """Measure everything."""
    import torch

    one_thread()
    result = Result("empower", MEASURES, COMPARISONS, amounts=AMOUNTS)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        learns = {name: _updating(settings, tables) for name, tables in (("networks", False), ("tables", True))}
        interleave(result, "update", learns, settings.repeats)
    finally:
        torch.set_num_threads(before)
    asks = {name: partial(_collected, actors, settings) for name, actors in (("1 actor", 1), ("2 actors", 2))}
    interleave(result, "collecting", asks, settings.repeats, warm=False)
    return result


def _updating(settings: Settings, tables: bool) -> Callable[[], float]:
    """Return a function that makes updates and returns the CPU time of one update in ms."""
    config = EmpowerConfig(tables=tables, beta=5.0, stages=Stages())
    world = OneMind(Bushes(horizon=4))
    spaces = world.observation_spaces[0], world.action_spaces[0]
    needs = config.replay(*spaces)
    replay = Replay(ReplaySpec(*spaces, capacity=ROWS, extra=needs.extra))
    writer, behaviour = replay.writer(), config.behaviour(*spaces)
    learner: Algorithm = config.build(*spaces, agents=1, seeds=[0])
    behaviour.begin(0)
    behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    world.reset(seed=0)
    for _ in range(200 if settings.quick else ROWS):
        if not world.group():
            world.reset()
        seen = world.observe(0)[None]
        actions, extra = behaviour.act(seen)
        writer.append(seen[0], actions[0], 0.0, **{name: array[0] for name, array in extra.items()})
        world.act(actions.tolist())
    reader = replay.reader(seed=0)
    part = reader.batch(needs.batch_size)
    batch = part.map(lambda array: array[None])  # a stack of one agent

    def update() -> float:
        done, begun, ends = 0, time.process_time(), time.monotonic() + settings.seconds
        while time.monotonic() < ends:
            reader.sample(needs.batch_size, into=part)
            learner.update(batch, [done])
            done += 1
        return 1e3 * (time.process_time() - begun) / done

    return update


class _SlowBushes(Bushes):
    """A model whose answers each cost CPU time."""

    def transition_probabilities(self, state: Any, actions: Sequence[int]) -> Any:
        ends = time.thread_time() + QUESTION_S
        while time.thread_time() < ends:
            pass
        return super().transition_probabilities(state, actions)


def _collected(actors: int, settings: Settings) -> float:
    """Return rows per second."""
    given = RunSettings(steps=FOR_EVER, actors=actors, updates_per_step=1e-9, slack=1.0)
    config = EmpowerConfig(cache=1)
    shared = SharedMemory(make_roster(partial(OneMind, _SlowBushes), config, given))
    with System(shared, [*learner_roles(shared), *actor_roles(shared)]) as system:
        system.until(lambda: system.steps >= 100, "the actors to be at work")
        return system.rates(5 * settings.seconds)[0]

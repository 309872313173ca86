"""train() and resume(): the wiring of a run on one page.

    world, algorithms, settings ─▶ Roster ─▶ SharedMemory ─▶ roles ─▶ Supervisor ─▶ checkpoints, metrics ─▶ Result
                                 roster.py    shared.py    drivers.py             recorder.py

:class:`Run` is what all of them have to know of a run. ``engines.py`` plays it: each role in a process, all roles in
this process, or on a Ray cluster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from motet.algorithm import AlgorithmConfig
from motet.errors import SettingError, StartError, UnpicklableError
from motet.runs.checkpoint import Checkpoint
from motet.runs.config import describe, rebuild, rebuild_agents, rebuild_world, run_config, versions
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Snapshot
from motet.runs.status import hold
from motet.system.child import check_main_guard
from motet.training import engines
from motet.training.callbacks import Callbacks
from motet.training.recorder import Result, fill, unused
from motet.training.roster import Roster, local_room, make_roster, pace_of
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.worlds.catalogue import world_factory

__all__ = ["Algorithms", "Result", "Run", "Settings", "WorldSource", "resume", "train"]

WorldSource = Callable[[], Any] | str
"""What makes a world: a callable, the name of a shipped world, ``gym:ID`` or ``module:attribute``."""
Algorithms = AlgorithmConfig | type[AlgorithmConfig] | str | Mapping[str, AlgorithmConfig | type[AlgorithmConfig] | str]
"""A config or the name of an algorithm, for all agents or by agent."""

_FREE = "; free some memory, processes or open files, or train in this process alone: engine='serial'"
_MANY = 2**16  # learner processes, where they take no cores


def train(
    world: WorldSource,
    algorithm: Algorithms = "dqn",
    settings: Settings | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume_from: Checkpoint | None = None,
    on_update: Callable[[Snapshot], None] | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Result:
    """Train every agent of a world.

    >>> from motet import Settings, train
    >>> result = train("matrix", "dqn", Settings(steps=200, engine="serial"))
    >>> result.state, result.steps
    ('done', 200)

    Args:
        world: makes the world: a callable, the name of a shipped world, or ``module:attribute``.
        algorithm: a config or a name for all agents, or a mapping from agent to one of these.
        settings: how the run is played.
        run: where to write the run directory. Nothing is written without it.
        resume_from: a checkpoint to start from, instead of fresh weights.
        on_update: called about once a second with a snapshot of the run. If it raises, the run ends in order, with a
            checkpoint, and the exception is raised again. The same holds for ``on_message``.
        on_message: called with one line when something happens that the user should know.
    """
    check_main_guard()
    if not isinstance(settings, Settings | None):
        raise SettingError(f"settings must be a motet.Settings, got {settings!r}")
    settings, factory = settings or Settings(), world_factory(world)
    callbacks = Callbacks(on_update, on_message)
    with _room(settings) as room:
        roster = make_roster(factory, algorithm, settings, room)
        if run is None:
            return _play(Run(roster, settings, callbacks, resume_from=resume_from))
        directory = RunDirectory.prepare(run)
        with hold(directory.path):
            directory.begin(run_config(factory, roster, settings))
            one = Run(roster, settings, callbacks, directory, resume_from, partial(_note, directory))
            try:
                return _play(one)
            finally:
                if not one.has_begun:
                    directory.take_back()


def resume(
    run: str | os.PathLike[str],
    *,
    steps: int | None = None,
    checkpoint: int | None = None,
    world: WorldSource | None = None,
    algorithm: Algorithms | None = None,
    trust: bool = False,
    address: str | None = None,
    on_update: Callable[[Snapshot], None] | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Result:
    """Resume a run from its newest checkpoint, in its own directory.

    ::

        result = motet.resume("runs/hunt", steps=10_000)

    Args:
        run: the run directory.
        steps: steps to do on top of those done; by default the rest of what the run was asked for.
        checkpoint: the step of an older checkpoint to resume from. The checkpoints after it are removed.
        world: makes the world, where the run does not say how (a lambda, a class of a script).
        algorithm: as in :func:`train`, where the run does not say.
        trust: allow the run to name worlds and algorithms outside of motet, whose code is then imported and run.
        address: the address of the Ray cluster, if it has changed.
        on_update: as in :func:`train`.
        on_message: as in :func:`train`.
    """
    if steps is not None and steps < 1:
        raise SettingError(f"steps must be an int >= 1, on top of those done, got {steps}")
    directory, callbacks = RunDirectory.open(run), Callbacks(on_update, on_message)
    with hold(directory.path):
        directory.sweep()
        config, kept = directory.config(), directory.load(checkpoint)
        settings: Settings = rebuild(config["settings"], trust=trust)
        settings = settings if steps is None else replace(settings, steps=kept.step + steps)
        if address is not None:
            settings = replace(settings, cluster=replace(settings.cluster, address=address))
        if kept.step >= settings.steps:
            raise SettingError(
                f"steps must be more than the {settings.steps} that {str(directory.path)!r} has done: ask for more "
                "steps"
            )
        factory = rebuild_world(config["world"], trust=trust) if world is None else world_factory(world)
        chosen = rebuild_agents(config["agents"], trust=trust) if algorithm is None else algorithm
        for name, now in versions().items():
            if (before := config.get("versions", {}).get(name)) != now:
                callbacks.message(
                    f"the run was begun with {name} {before} and continues with {now}: it will not be bit for bit the "
                    "same"
                )

        def begun(fell_back: str) -> None:
            same = {key: value for key, value in config.items() if key != "fell_back"}
            directory.write_json("config.json", {**same, "settings": describe(settings)})
            _note(directory, fell_back)
            if gone := directory.give_up_after(kept.step):
                steps_gone = ", ".join(f"{step:,}" for step in gone)
                callbacks.message(f"the run continues from step {kept.step:,}; later checkpoints removed: {steps_gone}")

        with _room(settings) as room:
            roster = make_roster(factory, chosen, settings, room)
            return _play(Run(roster, settings, callbacks, directory, kept, begun))


@dataclass
class Run:
    """A run: who takes part, how it is played, where it is written, and whom it tells."""

    roster: Roster
    settings: Settings
    callbacks: Callbacks
    directory: RunDirectory | None = None
    """Where it is written; None: nowhere."""
    resume_from: Checkpoint | None = None
    on_begin: Callable[[str], None] = lambda fell_back: None
    """Called when the run has begun, with :attr:`fell_back`."""
    fell_back: str = ""
    """Why the serial engine plays it although another one was asked for; empty where it does not."""
    has_begun: bool = False

    @property
    def path(self) -> Path | None:
        """The run directory."""
        return self.directory.path if self.directory else None

    def log(self, name: str) -> Path | None:
        """The log file of a process."""
        return self.directory.logs / f"{name}.log" if self.directory else None

    def message(self, line: str) -> None:
        """Tell the user something."""
        self.callbacks.message(line)

    def begun(self) -> None:
        """All processes have started: from here on the run directory is kept."""
        self.has_begun = True
        self.on_begin(self.fell_back)

    def shared_memory(self) -> SharedMemory:
        """Make what the roles share, and fill it from the checkpoint."""
        shared = SharedMemory(self.roster)
        if self.resume_from is not None:
            fill(shared, self.resume_from)
        return shared

    def fall_back(self, reason: Exception) -> None:
        """Let the serial engine play the run, if the settings allow it; an error otherwise."""
        if not self.settings.fall_back:
            remedy = f". {engines.ALONE}" if isinstance(reason, UnpicklableError) else _FREE
            raise type(reason)(f"{reason}{remedy}, or fall_back=True to do so whenever it is needed") from reason
        self.fell_back = str(reason)
        self.settings = replace(self.settings, engine="serial")
        self.roster = replace(self.roster, pace=pace_of(self.roster.policies, self.settings))
        self.message(
            f"NO PROCESSES: {reason}. The serial engine plays this run instead, as fall_back allows, with "
            f"{self.roster.pace.updates_per_step:g} updates per step"
        )


def _note(directory: RunDirectory, fell_back: str) -> None:
    """Write into the config that the serial engine plays the run, and why."""
    if fell_back:
        directory.write_json("config.json", {**directory.config(), "fell_back": fell_back})


def _play(run: Run) -> Result:
    if run.resume_from is not None:
        _warn_of_lost_rows(run, run.resume_from)
    if run.settings.engine == "ray":
        return engines.play_on_cluster(run)
    if run.settings.engine == "processes":
        try:
            return engines.play_in_processes(run)
        except (UnpicklableError, StartError) as error:
            run.fall_back(error)
    return engines.play_serially(run)


@contextlib.contextmanager
def _room(settings: Settings) -> Iterator[int]:
    """The number of learner processes that fit beside the actors: here, or on the cluster, connected meanwhile."""
    if settings.engine != "ray":
        yield local_room(settings)
        return
    cluster = settings.cluster
    acting = settings.actors * cluster.actor_cpus
    from motet.cluster.connect import connected

    with connected(cluster, acting + (settings.learner_processes or 1) * cluster.learner_cpus) as ray:
        there = ray.cluster_resources()
        takes = ((there.get("CPU", 0.0) - acting, cluster.learner_cpus), (there.get("GPU", 0.0), cluster.learner_gpus))
        yield max(1, min([_MANY, *(int(free / each) for free, each in takes if each)]))


def _warn_of_lost_rows(run: Run, checkpoint: Checkpoint) -> None:
    for i, policy in enumerate(run.roster.policies):
        if steps := unused(policy, run.roster.replay_spec(i), checkpoint):
            run.message(
                f"{policy.name}: {steps:,} steps had not been learned from when the checkpoint was written, and it "
                "does not hold their rows (keep_replay would have kept them): they count as lost"
            )

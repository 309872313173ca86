"""train(): the whole loop, wired on one page.

Actor processes step worlds; each agent has its own replay, publication and learner; the supervisor owns the memory and
the processes. ``engine="serial"`` drives the same roles in this process, ``engine="ray"`` on a cluster.

    world factory ─▶ Roster ─▶ SharedMemory (one segment) ─▶ roles ─▶ Supervisor ─▶ checkpoints, metrics ─▶ Result
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from motet.errors import ChildError, MotetError, SettingError, StartError, UnpicklableError
from motet.runs.checkpoint import Checkpoint, RunDirectory
from motet.runs.config import describe, rebuild, rebuild_agents, rebuild_world, run_config, versions
from motet.runs.snapshot import Snapshot
from motet.runs.status import hold
from motet.streams import global_streams_kept
from motet.system.child import Child, check_main_guard, interrupts
from motet.system.pickling import check_picklable
from motet.system.supervisor import Role, Supervisor
from motet.training.callbacks import Callbacks
from motet.training.drivers import play_actor, play_learner
from motet.training.evaluator import Evaluations, play_evaluator
from motet.training.recorder import Recorder, Result, fill, unused
from motet.training.roster import local_room, make_roster, pace_of
from motet.training.serial import Serial
from motet.training.settings import Settings
from motet.training.shared import Roster, SharedMemory
from motet.training.watch import Watch
from motet.worlds.catalogue import world_factory

__all__ = ["Result", "Settings", "resume", "train", "world_factory"]

_ALONE = "Make that part where it is used instead; or train in this process alone: engine='serial'"
_MANY = 2**16  # learner processes, where they take no cores


def train(
    world: Any,
    algorithm: Any = "dqn",
    settings: Settings | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    go_on: Checkpoint | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Train every agent of a world.

    Args:
        world: makes the world: a callable, the name of a shipped world, or ``module:attribute``.
        algorithm: a config or a name for all agents, or a mapping from agent to one of these.
        settings: how the run is played.
        run: where to write the run directory; nothing is written without it.
        go_on: a checkpoint to go on from.
        watch: called about once a second with how things are. If it raises, the run ends in order, with a checkpoint,
            and the exception is raised again. The same holds for ``say``.
        say: called with one line when something happens that the user should know.
    """
    check_main_guard()
    if not isinstance(settings, Settings | None):
        raise SettingError(f"settings: given {settings!r}, expected motet.Settings")
    settings, factory = settings or Settings(), world_factory(world)
    with _room(settings) as room:
        return _begin(factory, algorithm, settings, room, run, go_on, watch, say)


def _begin(
    factory: Callable[[], Any],
    algorithm: Any,
    settings: Settings,
    room: int,
    run: str | os.PathLike[str] | None,
    go_on: Checkpoint | None,
    watch: Callable[[Snapshot], None] | None,
    say: Callable[[str], None],
) -> Result:
    roster = make_roster(factory, algorithm, settings, room)
    if run is None:
        return _play(roster, settings, None, go_on, watch, say, lambda fell_back: None)
    directory = RunDirectory.prepare(run)
    has_begun = False

    def begun(fell_back: str) -> None:
        nonlocal has_begun
        has_begun = True
        if fell_back:
            directory.write_json("config.json", {**directory.config(), "fell_back": fell_back})

    with hold(directory.path):
        directory.begin(run_config(factory, roster, settings))
        try:
            return _play(roster, settings, directory, go_on, watch, say, begun)
        finally:
            if not has_begun:
                directory.take_back()


def resume(
    run: str | os.PathLike[str],
    *,
    steps: int | None = None,
    checkpoint: int | None = None,
    world: Any = None,
    algorithm: Any = None,
    trust: bool = False,
    address: str | None = None,
    watch: Callable[[Snapshot], None] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """Go on with a run from its newest checkpoint, in its own directory.

    Args:
        run: the run directory.
        steps: steps to do on top of those done; by default the rest of what the run was asked for.
        checkpoint: the step of an older checkpoint to go on from; those after it are given up.
        world: makes the world, where the run does not say how (a lambda, a class of a script).
        algorithm: as in :func:`train`, where the run does not say.
        trust: allow the run to name worlds and algorithms outside of motet, whose code is then imported and run.
        address: of the Ray cluster, if it is another one now.
        watch: as in :func:`train`.
        say: as in :func:`train`.
    """
    if steps is not None and steps < 1:
        raise SettingError(f"steps: given {steps}, expected 1 or more on top of those done")
    directory = RunDirectory.open(run)
    with hold(directory.path):
        directory.sweep()
        config, kept = directory.config(), directory.load(checkpoint)
        settings: Settings = rebuild(config["settings"], trust=trust)
        settings = settings if steps is None else replace(settings, steps=kept.step + steps)
        if address is not None:
            settings = replace(settings, cluster=replace(settings.cluster, address=address))
        if kept.step >= settings.steps:
            raise SettingError(
                f"run: {str(directory.path)!r} has done all its {settings.steps} steps; ask for more steps"
            )
        factory = rebuild_world(config["world"], trust=trust) if world is None else world_factory(world)
        chosen = rebuild_agents(config["agents"], trust=trust) if algorithm is None else algorithm
        for name, now in versions().items():
            if (before := config.get("versions", {}).get(name)) != now:
                say(f"the run was begun with {name} {before}, and goes on with {now}: not bit for bit the same")

        def begun(fell_back: str) -> None:
            same = {key: value for key, value in config.items() if key != "fell_back"}
            why = {"fell_back": fell_back} if fell_back else {}
            directory.write_json("config.json", {**same, "settings": describe(settings), **why})
            if gone := directory.give_up_after(kept.step):
                steps_gone = ", ".join(f"{step:,}" for step in gone)
                say(f"the run goes on from step {kept.step:,}, and its later checkpoints are removed: {steps_gone}")

        with _room(settings) as room:
            roster = make_roster(factory, chosen, settings, room)
            return _play(roster, settings, directory, kept, watch, say, begun)


def _play(
    roster: Roster,
    settings: Settings,
    directory: RunDirectory | None,
    go_on: Checkpoint | None,
    watch: Callable[[Snapshot], None] | None,
    say: Callable[[str], None],
    begun: Callable[[str], None],
) -> Result:
    """``begun`` is called once, when the run has really begun; with why, if not by the engine that was asked for."""
    callbacks, fell_back = Callbacks(watch, say), ""
    say = callbacks.say
    if go_on is not None:
        _say_unused(roster, go_on, say)
    if settings.engine == "ray":
        _check_for_cluster(roster)
        return _play_on_cluster(roster, settings, directory, go_on, callbacks, begun)
    if settings.engine == "processes":
        try:
            _check_algorithms(roster)
            return _play_processes(_shared(roster, go_on), settings, directory, callbacks, begun)
        except UnpicklableError as error:
            if not settings.fall_back:
                raise UnpicklableError(
                    f"{error}. {_ALONE}, or fall_back=True to do so whenever it is needed"
                ) from error
            fell_back = str(error)
        except StartError as error:
            if not settings.fall_back:
                raise StartError(
                    f"{error}; free some memory, processes or open files, or train in this process alone: "
                    "engine='serial', or fall_back=True to do so whenever it is needed"
                ) from error
            fell_back = str(error)
        settings = replace(settings, engine="serial")
        roster = replace(roster, pace=pace_of(roster.parts, settings))
        say(
            f"NO PROCESSES: {fell_back}. The serial engine plays this run instead, as fall_back allows: everything in "
            f"turns, updates for each step: {roster.pace.updates_per_step:g}"
        )
    return _play_serial(_shared(roster, go_on), settings, directory, go_on, callbacks, begun, fell_back)


def _check_algorithms(roster: Roster) -> None:
    """Raise if a config cannot be pickled. World and anchors are pickled with each child, and named there: they may
    hold locks of multiprocessing, which can be pickled for a child alone."""
    for part in roster.parts:
        check_picklable(part.config, f"algorithm of {part.name}", "algorithm", dumps=pickle.dumps)


def _check_for_cluster(roster: Roster) -> None:
    makers = () if roster.self_play is None else roster.self_play.makers
    for sent in (roster.world, *makers):
        check_picklable(sent.value, sent.what, sent.name, _ALONE)
    for part in roster.parts:
        check_picklable(part.config, f"algorithm of {part.name}", "algorithm", _ALONE)


def _shared(roster: Roster, go_on: Checkpoint | None) -> SharedMemory:
    shared = SharedMemory(roster)
    if go_on is not None:
        fill(shared, go_on)
    return shared


@contextlib.contextmanager
def _room(settings: Settings) -> Iterator[int]:
    """For how many learner processes there is room beside the actors: here, or on the cluster, connected meanwhile."""
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


# ---- the engines


def _play_serial(
    shared: SharedMemory,
    settings: Settings,
    directory: RunDirectory | None,
    go_on: Checkpoint | None,
    callbacks: Callbacks,
    begun: Callable[[str], None],
    fell_back: str,
) -> Result:
    role, say = Role("serial", start=lambda n: _never(), heartbeat=time.monotonic), callbacks.say
    kept = go_on.notes.get("serial") if go_on is not None else None
    if go_on is not None and kept is None:
        say(
            "the checkpoint holds no half-played episodes (keep_replay was off, or a world cannot save): new ones begin"
        )
    serial = Serial(shared, kept)
    if settings.keep_replay:
        serial.check_streams()
    _say_new_streams(serial, kept, say)
    evaluations = _serial_evaluations(shared, settings, directory)
    recorder = Recorder(shared, settings, directory, Watch(shared, [role]), callbacks.watch, serial, fell_back, say)
    begun(fell_back)

    with interrupts() as interrupted:

        def each_round() -> bool:
            if evaluations is not None and evaluations.due():
                with global_streams_kept():
                    evaluations.play()
            recorder.tick()
            return (
                interrupted.is_set() or recorder.out_of_time() or recorder.good_enough() or callbacks.raised is not None
            )

        serial.play(each_round)
        _say_interrupted(interrupted, directory, say)
        result = _close(recorder, [role], interrupted.is_set(), callbacks, directory)
        serial.end()
        return result


def _serial_evaluations(shared: SharedMemory, settings: Settings, directory: RunDirectory | None) -> Evaluations | None:
    """Those of a serial run, in this process: due at the end of a round."""
    every, path = settings.evaluate_every, directory.path if directory else None
    if every is None:
        return None
    Evaluations.begin(shared, every)
    with global_streams_kept():
        return Evaluations(shared, every, settings.evaluate_episodes, path, settings.until_return, insists=True)


def _close(
    recorder: Recorder, roles: list[Role], interrupted: bool, callbacks: Callbacks, directory: RunDirectory | None
) -> Result:
    """The orderly end of a run, with its last checkpoint; then what a callback raised, if one did."""
    state = "failed" if callbacks.raised else "stopped" if recorder.unfinished() else "done"
    result = recorder.close(state, roles, interrupted)
    callbacks.check(directory.path if directory else None)
    return result


def _never() -> Child:
    raise MotetError("the serial engine starts no process")


def _play_processes(
    shared: SharedMemory,
    settings: Settings,
    directory: RunDirectory | None,
    callbacks: Callbacks,
    begun: Callable[[str], None],
) -> Result:
    roster, limits = shared.roster, settings.limits

    def log(name: str) -> Path | None:
        return directory.logs / f"{name}.log" if directory else None

    def actor(i: int) -> Role:
        name = f"actor-{i}"
        start = lambda n: Child(name, play_actor, (shared, i, n, limits.start_s), log(name))  # noqa: E731
        return Role(name, start, lambda: float(shared.board.processes.heartbeat[i]))

    def learner(i: int) -> Role:
        name, row = f"learner-{i}", roster.actors + i
        start = lambda n: Child(name, play_learner, (shared, i), log(name))  # noqa: E731
        return Role(name, start, lambda: float(shared.board.processes.heartbeat[row]), essential=False)

    roles = [*map(actor, range(roster.actors)), *map(learner, range(len(roster.processes)))]
    if roster.pace.lockstep and settings.evaluate_every is not None:
        shared.board.evaluated_round[0] = 0  # actors wait for the evaluator at the end of each round
    return _supervise(shared, roles, settings, directory, callbacks, begun)


def _play_on_cluster(
    roster: Roster,
    settings: Settings,
    directory: RunDirectory | None,
    go_on: Checkpoint | None,
    callbacks: Callbacks,
    begun: Callable[[str], None],
) -> Result:
    from motet.cluster.driver import on_cluster

    with on_cluster(
        roster, settings.cluster, settings.limits, directory, go_on, keep_replay=settings.keep_replay,
        policies=settings.evaluate_every is not None,
    ) as remote:  # fmt: skip
        return _supervise(remote.shared, remote.roles(), settings, directory, callbacks, begun)


def _evaluator(shared: SharedMemory, settings: Settings, directory: RunDirectory | None) -> Role:
    row, path = shared.roster.actors + len(shared.roster.processes), directory.path if directory else None
    args = (shared, settings.evaluate_every, settings.evaluate_episodes, path, settings.until_return)
    log = directory.logs / "evaluator.log" if directory else None
    start = lambda n: Child("evaluator", play_evaluator, args, log)  # noqa: E731
    return Role("evaluator", start, lambda: float(shared.board.processes.heartbeat[row]), essential=False)


def _supervise(
    shared: SharedMemory,
    roles: list[Role],
    settings: Settings,
    directory: RunDirectory | None,
    callbacks: Callbacks,
    begun: Callable[[str], None],
) -> Result:
    """Start all roles and see to them until the run ends; wherever they are."""
    limits, say = settings.limits, callbacks.say
    if settings.evaluate_every is not None:
        Evaluations.begin(shared, settings.evaluate_every)
        roles = [*roles, _evaluator(shared, settings, directory)]
    supervisor = Supervisor(roles, limits, say)
    recorder = Recorder(shared, settings, directory, Watch(shared, roles), callbacks.watch, say=say)

    def over() -> bool:
        return interrupted.is_set() or recorder.out_of_time() or recorder.good_enough() or callbacks.raised is not None

    with interrupts() as interrupted:
        try:
            supervisor.start()
            begun("")
            while not (supervisor.finished() or over()):
                supervisor.watch(0.1)
                recorder.tick()
            _say_interrupted(interrupted, directory, say)
            shared.board.request_stop()
            for line in supervisor.stop():
                say(line)
            return _close(recorder, roles, interrupted.is_set(), callbacks, directory)
        except ChildError as error:
            shared.board.request_stop()
            try:
                for line in supervisor.stop():
                    say(line)
            except ChildError as more:
                say(str(more))
            recorder.close("failed", roles)
            where = f"; the run's last state is in {directory.path}" if directory else ""
            first, gap, text = str(error).partition("\n\n")
            failure = ChildError(f"{first}{where}{gap}{text.rstrip()}")
            if callbacks.raised is not None:
                failure.add_note(callbacks.cause)
            raise failure from error
        finally:
            supervisor.kill()


def _say_unused(roster: Roster, go_on: Checkpoint, say: Callable[[str], None]) -> None:
    for part in roster.parts:
        if steps := unused(part, roster.replay_spec(part), go_on):
            say(
                f"{part.name}: {steps:,} steps had not been learnt from when the checkpoint was written, and it does "
                "not hold their rows (keep_replay would have kept them): they count as lost"
            )


def _say_new_streams(serial: Serial, kept: dict[str, Any] | None, say: Callable[[str], None]) -> None:
    if kept is not None and "published" not in kept:
        say("the checkpoint is an older motet's and holds no random streams of actors: new ones begin")
    elif serial.new_streams:
        say(
            f"{', '.join(serial.new_streams)}: the behaviour cannot save its random stream (it has no get_stream and "
            "set_stream), so a new one begins: the run goes on, but not bit for bit as if it had never stopped"
        )


def _say_interrupted(interrupted: threading.Event, directory: RunDirectory | None, say: Callable[[str], None]) -> None:
    if interrupted.is_set():
        say(f"stopping{' with a checkpoint' if directory else ''}; once more to stop at once")

"""train() and resume(): the entry points of training, and how the parts of a run are connected.

    world, algorithms, settings ─▶ Roster ─▶ SharedMemory ─▶ roles ─▶ Supervisor ─▶ checkpoints, metrics ─▶ Result
                                 roster.py    shared.py    drivers.py             recorder.py

:class:`Run` holds what all of these parts need to know. ``engines.py`` executes the run: each role in a child process,
all roles in this process, or on a Ray cluster.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from motet.algorithm import AlgorithmConfig
from motet.algorithms.catalogue import algorithm_name, short_name
from motet.errors import SettingError, StartError, UnpicklableError
from motet.policies.partner import Partner, as_partner, restored
from motet.runs.checkpoint import Checkpoint
from motet.runs.config import describe, rebuild, rebuild_agents, rebuild_world, refuse_untrusted, run_config, versions
from motet.runs.directory import RunDirectory
from motet.runs.display import History
from motet.runs.show import resolved, showing
from motet.runs.sinks import DisplayChoice, WandbSettings
from motet.runs.snapshot import Snapshot
from motet.runs.status import hold, read_history
from motet.runs.trust import make_importable
from motet.system.child import check_main_guard
from motet.system.devices import idle_device
from motet.system.gpus import GpuMeter
from motet.training import engines
from motet.training.anchors import RunAnchor, copied, located
from motet.training.callbacks import Callbacks
from motet.training.cuts import difference, fitting
from motet.training.moved import CHANGEABLE, changed, moved
from motet.training.recorder import Result, fill, unused
from motet.training.roster import Roster, fitted_world, local_room, make_roster, pace_of
from motet.training.settings import AgentSettings, Settings
from motet.training.shared import SharedMemory
from motet.training.start import started
from motet.world.spaces import flattened_picture
from motet.worlds.catalogue import world_factory, world_name

__all__ = ["Algorithms", "Result", "Run", "Settings", "WorldSource", "resume", "train"]

WorldSource = Callable[[], Any] | str
"""A world factory: a callable, the name of a shipped world, ``gym:ID`` or ``module:attribute``."""
Algorithms = (
    AlgorithmConfig
    | type[AlgorithmConfig]
    | str
    | AgentSettings
    | Mapping[str, AlgorithmConfig | type[AlgorithmConfig] | str | Path | AgentSettings | Partner]
)
"""An algorithm, given as a config, a name or :class:`AgentSettings`: one for all agents, or a mapping from agent to
algorithm or partner."""

_FREE = "; fix: free memory, processes or open files, or train in this process with engine='serial'"
_MANY = 2**16  # maximum number of learner processes if they reserve neither cores nor GPUs


def train(
    world: WorldSource,
    algorithm: Algorithms = "dqn",
    settings: Settings | None = None,
    *,
    run: str | os.PathLike[str] | None = None,
    resume_from: Checkpoint | None = None,
    display: DisplayChoice = "auto",
    pictures: bool | None = None,
    wandb: bool | WandbSettings = False,
    on_update: Callable[[Snapshot], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> Result:
    """Train every agent of a world.

    >>> from motet import Settings, train
    >>> result = train("matrix", "dqn", Settings(steps=200, engine="serial"))
    >>> result.state, result.steps
    ('done', 200)

    Args:
        world: a factory of the world: a callable, the name of a shipped world, ``gym:ID`` or ``module:attribute``.
        algorithm: a config or a name for all agents, or a mapping from agent to one of these. In the mapping, the name
            of a built-in policy, a run directory or a :class:`~motet.Partner` is the policy of an agent that does not
            learn. :class:`~motet.AgentSettings` holds an algorithm together with settings of a single agent.
        settings: the settings of the run.
        run: the run directory to create. Without it nothing is written.
        resume_from: a checkpoint to start from, instead of fresh weights.
        display: how the run is shown: ``table`` (a live table; lines where there is no terminal), ``lines`` or
            ``off``, with a summary at the end if there is a run directory. ``auto``: a table in a terminal, lines in a
            notebook, nothing otherwise.
        pictures: whether a plot of the learning curves and a GIF of an episode are written into the run directory at
            the end; by default if the run is shown.
        wandb: also send metrics to Weights & Biases; a dict gives some of ``project``, ``name``, ``group``, ``tags``.
        on_update: called about once a second (``metrics_every_s``) with a snapshot of the run. It stops the run, with a
            checkpoint and the result, by raising :class:`motet.StopRun` or returning False. If it raises another
            exception, the run stops in the same way, and then the exception is raised again. The same holds for
            ``on_message``.
        on_message: called with one line of text for each event that the user should know about.
    """
    if not isinstance(settings, Settings | None):
        raise SettingError(f"settings must be a motet.Settings, got {settings!r}")
    check_main_guard(starts=settings is None or settings.engine != "serial")
    settings, factory = settings or Settings(), fitted_world(world_factory(world), algorithm)
    shown = resolved(display)
    given: list[Any] = list(algorithm.values()) if isinstance(algorithm, Mapping) else [algorithm]
    given = [one.algorithm if isinstance(one, AgentSettings) else one for one in given]
    title = _title(world_name(factory), [algorithm_name(one) for one in given if as_partner(one) is None], run)
    with showing(run, title, shown, wandb=wandb) as show:
        callbacks = Callbacks(on_update, on_message, show)
        result = _train(factory, algorithm, settings, run, resume_from, callbacks)
        _draw_unseen(result, shown, pictures, callbacks)
    if shown != "off":
        _summarise(result, pictures, trust=True)
    return result


def _train(
    factory: Callable[[], Any],
    algorithm: Algorithms,
    settings: Settings,
    run: str | os.PathLike[str] | None,
    resume_from: Checkpoint | None,
    callbacks: Callbacks,
) -> Result:
    with _room(settings) as room:
        roster = make_roster(factory, algorithm, settings, room)
        if run is None:
            return _play(Run(roster, settings, callbacks, resume_from=resume_from))
        directory = RunDirectory.prepare(run)
        with hold(directory.path):
            directory.begin(run_config(factory, roster, settings))
            one = Run(roster, settings, callbacks, directory, resume_from, partial(_note, directory))
            try:
                _copy_partners(directory, roster)
                _keep_anchors(directory, roster, settings)
                return _play(one)
            finally:
                if not one.has_begun:
                    directory.take_back()


def resume(
    run: str | os.PathLike[str],
    *,
    steps: int | None = None,
    episodes: int | None = None,
    checkpoint: int | None = None,
    world: WorldSource | None = None,
    algorithm: Algorithms | None = None,
    trust: bool = False,
    address: str | None = None,
    engine: Literal["processes", "serial", "ray"] | None = None,
    actors: int | None = None,
    worlds_per_actor: int | None = None,
    learner_processes: int | None = None,
    updates_per_step: float | None = None,
    slack: float | None = None,
    seconds: float | None = None,
    display: DisplayChoice = "auto",
    pictures: bool | None = None,
    wandb: bool | WandbSettings = False,
    on_update: Callable[[Snapshot], object] | None = None,
    on_message: Callable[[str], object] | None = None,
) -> Result:
    """Resume a run from its newest checkpoint, in the same directory.

    ::

        result = motet.resume("runs/hunt", steps=10_000)

    Args:
        run: the run directory.
        steps: steps to do in addition to those already done; by default those that remain of the run's ``steps``.
        episodes: episodes to play in addition to those already played; by default those that remain.
        checkpoint: the step of an older checkpoint to resume from. The checkpoints after it are removed.
        world: the world factory, needed if the run's config cannot name it (a lambda, a class of a script). The config
            then names this one.
        algorithm: as in :func:`train`, needed if the run's config cannot name it. The config then names this one.
        trust: allow the run to name worlds and algorithms outside of motet, whose code is then imported and run. Runs
            that this user has trained on this machine need no trust.
        address: the address of the Ray cluster, if it has changed.
        engine: a new engine. This and the next settings may change when a run is resumed. A new pace applies only to
            steps and updates from here on. If ``actors`` or ``worlds_per_actor`` change, rows saved by ``keep_replay``
            are discarded and count as lost.
        actors: new number of actors.
        worlds_per_actor: new number of worlds per actor.
        learner_processes: new number of learner processes.
        updates_per_step: new number of updates per step.
        slack: new slack, the number of updates that either side may be ahead of the pace.
        seconds: new time limit for this session.
        display: as in :func:`train`.
        pictures: as in :func:`train`.
        wandb: as in :func:`train`.
        on_update: as in :func:`train`.
        on_message: as in :func:`train`.
    """
    for name, more in (("steps", steps), ("episodes", episodes)):
        if more is not None and more < 1:
            raise SettingError(f"{name} must be an int >= 1, in addition to those already done, got {more}")
    values = engine, actors, worlds_per_actor, learner_processes, updates_per_step, slack, seconds
    changes = dict(zip(CHANGEABLE, values, strict=True))
    directory, shown = RunDirectory.open(run), resolved(display)
    title = _title_of(directory)
    history = None if shown == "off" else History.of(read_history(directory))
    with showing(run, title, shown, history=history, wandb=wandb) as show:
        callbacks = Callbacks(on_update, on_message, show)
        result = _resume(directory, steps, episodes, checkpoint, world, algorithm, trust, address, changes, callbacks)
        _draw_unseen(result, shown, pictures, callbacks)
    if shown != "off":
        _summarise(result, pictures, trust=trust)
    return result


def _resume(
    directory: RunDirectory,
    steps: int | None,
    episodes: int | None,
    checkpoint: int | None,
    world: WorldSource | None,
    algorithm: Algorithms | None,
    trust: bool,
    address: str | None,
    changes: Mapping[str, Any],
    callbacks: Callbacks,
) -> Result:
    with hold(directory.path):
        directory.sweep()
        config, kept = directory.config(), directory.load(checkpoint)
        trust = trust or make_importable(directory.path, config)
        if not trust:
            refuse_untrusted(config["settings"])  # this includes anchors, which are imported with the league
        before_change: Settings = rebuild(config["settings"], trust=trust)
        settings = changed(_prolonged(before_change, kept, steps, episodes), changes)
        if address is not None:
            settings = replace(settings, cluster=replace(settings.cluster, address=address))
        done = ("steps", kept.step, settings.step_limit), ("episodes", _ended(kept), settings.episodes)
        for name, count, limit in done:
            if limit is not None and count >= limit:
                raise SettingError(
                    f"{str(directory.path)!r} has already done its {limit} {name}; fix: set {name} to the number of "
                    f"{name} to add"
                )
        factory = rebuild_world(config["world"], trust=trust) if world is None else world_factory(world)
        chosen = algorithm
        if chosen is None:
            chosen = restored(rebuild_agents(config["agents"], trust=trust), directory.path, trust)
            own = config.get("own_settings", {})
            chosen = {name: AgentSettings(one, **own[name]) if name in own else one for name, one in chosen.items()}
        chosen = started(chosen)
        for name, now in versions().items():
            if (before := config.get("versions", {}).get(name)) != now:
                callbacks.message(
                    f"the run was started with {name} {before} and is resumed with {now}: the result will not be the "
                    "same bit for bit"
                )

        def begun(fell_back: str) -> None:
            same = {key: value for key, value in config.items() if key != "fell_back"}
            now = run_config(factory, roster, settings)
            own_given = {"agents": algorithm is not None, "own_settings": algorithm is not None}
            given = {"world": world is not None, **own_given, "settings": True}
            directory.change_config(config, {**same, **{key: now[key] for key, new in given.items() if new}})
            _note(directory, fell_back)
            if gone := directory.give_up_after(kept.step):
                steps_gone = ", ".join(f"{step:,}" for step in gone)
                callbacks.message(f"the run continues from step {kept.step:,}; later checkpoints removed: {steps_gone}")

        with _room(settings) as room:
            roster = make_roster(factory, chosen, located(settings, directory), room)
            if algorithm is not None:
                _copy_partners(directory, roster)
            kept = moved(kept, roster, before_change, settings)
            return _play(Run(roster, settings, callbacks, directory, kept, begun))


def _ended(kept: Checkpoint) -> int:
    """Return the number of episodes that had ended at a checkpoint."""
    return sum(map(sum, kept.notes.get("ended", [])))


def _prolonged(settings: Settings, kept: Checkpoint, steps: int | None, episodes: int | None) -> Settings:
    """Return the settings with more steps or episodes. If only one of the two is given, the other one no longer limits
    the run."""
    if steps is not None:
        settings = replace(settings, steps=kept.step + steps, episodes=settings.episodes if episodes else None)
    if episodes is not None:
        kept_steps = settings.steps if steps is not None else None
        settings = replace(settings, steps=kept_steps, episodes=_ended(kept) + episodes)
    return settings


@dataclass
class Run:
    """A run: its roster, its settings, its callbacks and its run directory."""

    roster: Roster
    settings: Settings
    callbacks: Callbacks
    directory: RunDirectory | None = None
    """The run directory; None if nothing is written."""
    resume_from: Checkpoint | None = None
    on_begin: Callable[[str], None] = lambda fell_back: None
    """Called with :attr:`fell_back` when all processes have started."""
    fell_back: str = ""
    """Why the run fell back to the serial engine; empty if it did not."""
    has_begun: bool = False
    gpus: GpuMeter = field(default_factory=GpuMeter)
    """The use of this machine's GPUs."""

    @property
    def cut(self) -> dict[str, Any] | None:
        """The cut of the checkpoint from which a reproducible run continues exactly; None without one."""
        return None if self.resume_from is None else self.resume_from.notes.get("cut")

    @property
    def path(self) -> Path | None:
        """Path of the run directory; None if nothing is written."""
        return self.directory.path if self.directory else None

    def log(self, name: str) -> Path | None:
        """Path of the log file of a process; None if nothing is written."""
        return self.directory.logs / f"{name}.log" if self.directory else None

    def message(self, line: str) -> None:
        """Pass one line of text to the user."""
        self.callbacks.message(line)

    def begun(self) -> None:
        """Note that all processes have started. From here on the run directory is kept even if the run fails."""
        self.has_begun = True
        self.on_begin(self.fell_back)

    def shared_memory(self) -> SharedMemory:
        """Create the memory that the roles share, and fill it from the checkpoint if there is one."""
        shared = SharedMemory(self.roster)
        if self.resume_from is not None:
            fill(shared, self.resume_from)
            if self.directory is not None:
                shared.board.episodes.late_draws[0, 0] = self.directory.config().get("late_draws", 0)
        return shared

    def fall_back(self, reason: Exception) -> None:
        """Switch the run to the serial engine if the settings allow it; otherwise raise ``reason`` with advice."""
        if not self.settings.fall_back:
            remedy = f". {engines.ALONE}" if isinstance(reason, UnpicklableError) else _FREE
            raise type(reason)(f"{reason}{remedy}, or set fall_back=True to do so when needed") from reason
        self.fell_back = str(reason)
        self.settings = replace(self.settings, engine="serial")
        if not self.roster.pace.period:
            self.roster = replace(self.roster, pace=pace_of(self.roster.policies, self.settings))
        self.message(
            f"NO PROCESSES: {reason}. Falling back to the serial engine (fall_back is set) with "
            f"{self.roster.pace.updates_per_step:g} updates per step"
        )


def _title(world: str, algorithms: Sequence[str], run: str | os.PathLike[str] | None, *more: str) -> str:
    """The line above the display: world, algorithm and run directory."""
    names = set(algorithms)
    return " · ".join([world, *(["mixed"] if len(names) > 1 else names), *([] if run is None else [str(run)]), *more])


def _title_of(directory: RunDirectory) -> str:
    """The line above the display of a resumed run."""
    config = directory.config()
    world, agents = config.get("world", {}), config.get("agents", {}).values()
    algorithms = [
        short_name(str(one.get("class") or "an algorithm of a script")) for one in agents if "policy" not in one
    ]
    name = world_name(str(world.get("path") or "a world of a script"), world.get("settings", {}))
    return _title(name, algorithms, directory.path, "resumed")


def _draw_unseen(result: Result, shown: str, pictures: bool | None, callbacks: Callbacks) -> None:
    """Write the pictures of a run that is not shown, if they are requested. For other runs the summary writes them."""
    if pictures and result.run is None:
        raise SettingError("pictures=True is only valid with a run directory (got run=None)")
    if pictures and shown == "off" and result.run is not None and not result.interrupted:
        from motet.reports.summary import draw

        draw(result.run, trust=True, on_message=callbacks.message)


def _summarise(result: Result, pictures: bool | None, *, trust: bool) -> None:
    if result.run is not None:
        from motet.reports.summary import summarise

        summarise(result.run, result, trust=trust, pictures=pictures is not False and not result.interrupted)


def _keep_anchors(directory: RunDirectory, roster: Roster, settings: Settings) -> None:
    """Copy the anchors that are earlier runs into the run directory, whose config then names the copies."""
    play = roster.self_play
    if play is not None and any(isinstance(maker.value, RunAnchor) for maker in play.makers):
        now = copied(play.anchors, [maker.value for maker in play.makers], directory, settings)
        config = directory.config()
        directory.change_config(config, {**config, "settings": describe(now)})


def _note(directory: RunDirectory, fell_back: str) -> None:
    """Write into ``config.json`` why the run fell back to the serial engine, if it did."""
    if fell_back:
        config = directory.config()
        directory.change_config(config, {**config, "fell_back": fell_back})


def _copy_partners(directory: RunDirectory, roster: Roster) -> None:
    """Copy the runs that act as partners into the run directory, so that they can neither change nor vanish."""
    for agent, fixed in roster.fixed_agents:
        partner: Partner = fixed.partner.value
        if partner.copy:
            arguments = fixed.entry.value.on(agent).arguments
            directory.save_partner(
                partner.copy, arguments["who"], arguments["config"], arguments["weights"], str(partner.policy)
            )


def _play(run: Run) -> Result:
    if run.roster.pace.period:
        engines.check_in_periods(run)
    if words := _about_devices(run.roster):
        run.message(words)
    if run.resume_from is not None:
        run.resume_from = fitting(run.resume_from, run.roster)
        _warn_of_lost_rows(run, run.resume_from)
        if run.roster.pace.period and (line := difference(run.resume_from, run.roster)):
            run.message(line)
    else:
        _warn_of_flattened_pictures(run)
    with run.gpus.reading(run.settings.metrics_every_s):
        if run.settings.engine == "ray":
            return engines.play_on_cluster(run)
        if run.settings.engine == "processes":
            try:
                return engines.play_in_processes(run)
            except (UnpicklableError, StartError) as error:
                run.fall_back(error)
        return engines.play_serially(run)


def _about_devices(roster: Roster) -> str:
    """Return a line with the devices that learn, or with the device that is not used. Empty if there is no device."""
    by_device: dict[str, list[str]] = {}
    for policy in roster.policies:
        by_device.setdefault(policy.device, []).append(policy.name)
    if set(by_device) != {"cpu"}:
        return "learning on " + ", ".join(f"{device} ({', '.join(names)})" for device, names in by_device.items())
    if kind := idle_device():
        return (
            f"this machine seems to have a device for torch ({kind}), and learning is on the CPU, which suits small "
            "networks; to use the device: device='auto' (--device auto)"
        )
    return ""


@contextlib.contextmanager
def _room(settings: Settings) -> Iterator[int]:
    """Yield how many learner processes fit beside the actors, here or on the cluster, connected within the block."""
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


def _warn_of_flattened_pictures(run: Run) -> None:
    shipped = [one for one in run.roster.policies if type(one.config).__module__.startswith("motet.algorithms.")]
    flattened = [one for one in shipped if flattened_picture(one.observation_space)]
    if flattened:
        first, others = flattened[0], f" (and {len(flattened) - 1} more)" if len(flattened) > 1 else ""
        space = first.observation_space
        run.message(
            f"{first.name}{others} observes {space.dtype} of shape {space.shape}, which is flattened to "
            f"{math.prod(space.shape):,} numbers; if it is a picture, give it as uint8 from 0 to 255, so that networks "
            "have convolutions for it"
        )


def _warn_of_lost_rows(run: Run, checkpoint: Checkpoint) -> None:
    if rows := sum(checkpoint.notes.get("dropped", {}).values()):
        run.message(
            f"{rows:,} rows of the replay buffers count as lost, because the number of actors or worlds has changed"
        )
    for i, policy in enumerate(run.roster.policies):
        if steps := unused(policy, run.roster.replay_spec(i), checkpoint):
            run.message(
                f"{policy.name}: {steps:,} steps had not been learned from when the checkpoint was written, and the "
                "checkpoint does not contain their rows, so they count as lost (keep_replay keeps them)"
            )

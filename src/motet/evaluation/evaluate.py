"""evaluate(): let policies play episodes. The results depend only on the seed.

    policies ─▶ entries ─▶ seats of each episode ─▶ workers play ─▶ results in the order of episodes ─▶ Evaluation

The seating and the seeds of the world, the policies and the stand-ins are derived from the seed, the episode number
and the agent. So the same seed gives the same result, byte for byte, for any number of jobs, whether or not policies
are isolated, and whether or not they are kept between episodes. Measurements that may differ (decision latency, the
output of policies) are kept separately in :attr:`Evaluation.measured`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NamedTuple

from annotated_types import Ge, Gt

from motet.errors import MotetError, SettingError
from motet.evaluation.episode import EpisodePlan, Played, StandIn, Task
from motet.evaluation.game import EpisodeTasks, Game
from motet.evaluation.jobs import Disqualification, JobPool
from motet.evaluation.result import Evaluation, Measured
from motet.evaluation.serial import SerialPlayer
from motet.foreign_names import meant, suggesting
from motet.placement import Cluster
from motet.policies.entries import Entry
from motet.policies.limits import PolicyLimits
from motet.settings import check_fields
from motet.system.child import check_main_guard, interrupts
from motet.system.raised import DETAIL, printable
from motet.text import counted, plain, valid

__all__ = ["EvaluationSettings", "evaluate"]

DECISIVE = ("episodes", "seed", "stand_in", "max_failures", "max_failed_episodes")
"""The settings that determine the result."""


@suggesting("evaluation")
@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    >>> settings = EvaluationSettings(episodes=20, jobs=4, isolate=True, limits=PolicyLimits(decision_s=1.0))
    >>> settings.episodes, settings.limits.decision_s
    (20, 1.0)
    """

    episodes: Annotated[int, Ge(1)] = 100
    """Number of episodes."""
    seed: Annotated[int, Ge(0)] = 0
    """Random seed."""
    jobs: Annotated[int, Ge(1)] = 1
    """Number of processes that play episodes in parallel. The result is the same for any number."""
    engine: Literal["processes", "serial", "ray"] = "processes"
    """Where episodes are played: in separate processes (``processes``), in the calling process, e.g. for a debugger
    (``serial``), or on a Ray cluster (``ray``)."""
    cluster: Cluster = field(default_factory=Cluster)
    """Resources of the jobs on a Ray cluster."""
    isolate: bool = False
    """Run each policy in a separate process for each of its seats, so that its failures do not affect other
    policies."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    """Whether isolated policies are denied access to network, files and other processes. ``no``: not denied.
    ``strict``: denied; if this machine cannot do so, an error is raised. ``best-effort``: denied as far as this machine
    can do so."""
    limits: PolicyLimits | None = None
    """Limits of isolated policies: time, memory, open files, output. None: the defaults of ``PolicyLimits``."""
    fall_back: bool = False
    """Play a policy in the job's process if a separate process cannot be started. Not valid with ``limits`` or a
    ``sandbox``."""
    stand_in: StandIn = "noop"
    """What happens when a policy fails. ``noop`` or ``random``: the built-in policy of this name replaces the failed
    policy until the episode ends. ``forfeit``: the episode ends and is not counted."""
    max_failures: Annotated[int, Ge(1)] = 10
    """Number of failures that disqualify a policy. From the next episode on, the stand-in plays in place of a
    disqualified policy."""
    max_failed_episodes: Annotated[int, Ge(1)] = 10
    """Stop after this many failed episodes, counted in the order of episode numbers. An episode fails if the world
    raises an exception, or if the job ends or hangs."""
    max_processes: Annotated[int, Ge(1)] = 64
    """Maximum number of policy processes. If it is too low, fewer jobs run, or seats of a policy share a process."""
    pooled: bool = True
    """Keep policies between episodes and reset them, instead of making new ones."""
    film: tuple[int, ...] = ()
    """Numbers of the episodes to render."""
    trust: bool = False
    """Allow a run to name algorithms outside of motet, whose code is then imported and run."""
    hang_s: Annotated[float, Gt(0)] = 300.0
    """Seconds without a turn before a job counts as hung and its episode fails. If the limits of the policies allow a
    longer turn, the time of that turn counts instead."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.engine != "ray" and self.cluster != Cluster():
            raise SettingError(f"cluster is only valid with engine='ray' (got engine={self.engine!r})")
        contained = {"isolate": self.isolate, "sandbox": self.sandbox != "no", "limits": self.limits is not None}
        if self.engine == "serial":
            self._refuse(
                {**contained, "jobs > 1": self.jobs > 1}, "engine='serial'", "it plays in the caller's process"
            )
        if self.fall_back:
            self._refuse({**contained, "isolate": False}, "fall_back", "a policy in the job's process has no limits")
            if not self.isolate:
                raise SettingError(
                    "fall_back is only valid with isolate=True: only isolated policies need a separate process"
                )

    def _refuse(self, found: Mapping[str, bool], what: str, why: str) -> None:
        for name, is_set in found.items():
            if is_set:
                raise SettingError(f"{name} is not valid with {what}: {why}")


def evaluate(
    world: Any,
    policies: Any,
    settings: EvaluationSettings | None = None,
    *,
    workers: JobPool | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> Evaluation:
    """Let policies play episodes of a world.

    Args:
        world: makes the world: a callable, the name of a shipped world, or ``module:attribute``.
        policies: a mapping from agent to policy; or a sequence of policies, which get the seats in proportion, shuffled
            by the seed; or one policy for all seats. A policy is a run directory, ``module:Class``, a built-in name
            (``random``, ``noop``), a string with options as on the command line, a :class:`PolicySpec`, a class or
            function that makes a policy, or an object, which is copied.
        settings: settings of the evaluation.
        workers: processes to use, to share them between evaluations; by default they are started and ended here.
        on_progress: called with the number of finished episodes and the total.
        on_message: called with a line of text for the user.
        changes: fields of ``settings`` to change.

    Returns:
        The result. After Ctrl-C it covers the episodes so far and is marked as partial. An episode whose world raises,
        or whose job ends or hangs, is marked as failed and counts for no policy. After ``max_failed_episodes`` of them
        the evaluation stops, and the result is marked as partial.

    >>> import motet
    >>> result = motet.evaluate("treasure_hunt", ["random", "forager"], episodes=20, seed=1)  # doctest: +SKIP
    >>> result.scores()["forager"].mean > result.scores()["random"].mean  # doctest: +SKIP
    True
    """
    chosen = with_changes(settings or EvaluationSettings(), changes)
    check_main_guard(starts=chosen.engine != "serial" and workers is None)
    game = Game.of(world, policies, chosen)
    game.check_seats()
    tasks = EpisodeTasks(game, chosen.episodes, chosen.film)
    done = play_tasks(game, tasks, game.fullest, chosen, workers, on_progress, on_message, "episode")
    return Evaluation(
        world=game.described,
        agents=game.agents,
        policies=tuple(describe_entry(entry) for entry in game.entries),
        settings={name: getattr(chosen, name) for name in DECISIVE},
        episodes=tuple(game.episode(one) for one in done.played),
        out=done.out,
        partial=done.partial,
        measured=done.measured,
        stopped=done.stopped,
        rule=game.rule,
    )


class PlayedTasks(NamedTuple):
    """Result of :func:`play_tasks`."""

    played: list[Played]
    out: dict[str, int]
    partial: bool
    stopped: str
    measured: Measured


def play_tasks(
    game: Game,
    tasks: Sequence[Task],
    need: Callable[[EpisodePlan], int],
    settings: EvaluationSettings,
    workers: JobPool | None,
    on_progress: Callable[[int, int], None],
    on_message: Callable[[str], None],
    what: str,
) -> PlayedTasks:
    """Play all tasks. ``need`` returns the maximum number of policy processes of a task; messages call a task
    ``what``."""
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        on_message(line)

    plan, jobs = game.plan(need, settings, note)
    names = [entry.title for entry in game.entries]
    judge = Disqualification(names, settings.max_failures, settings.max_failed_episodes)
    began, played, stopped = time.perf_counter(), list[Played](), list[str]()
    own, first = workers or players(min(jobs, len(tasks)), settings), FirstFailures(game.entries, what)
    try:
        with interrupts() as stop:
            for one in to_the_end(own.play(plan, tasks, judge, stop, jobs, note), stopped):
                played.append(one)
                for line in first.lines(one):
                    note(line)
                if one.failed:
                    note(failed_line(one, what))
                on_progress(len(played), len(tasks))
    finally:
        if workers is None:
            own.close()
    partial = len(played) < len(tasks)
    for name, number in judge.out.items():
        often = counted(settings.max_failures, "time")
        note(f"{name} failed {often} and is disqualified after {what} {number}: the stand-in acts for it")
    for one in played:
        if one.undrawn:
            note(f"{what} {one.number} was not rendered: {one.undrawn}")
    why = why_stopped(stopped, judge, settings) if partial else ""
    if partial:
        note(f"{why or 'interrupted'}: {len(played)} of {len(tasks)} {what}s were played")
    measured = game.measured(played, time.perf_counter() - began, jobs, plan, notes)
    return PlayedTasks(played, dict(judge.out), partial, why, measured)


def to_the_end(results: Iterator[Played], stopped: list[str], *, begun: bool = False) -> Iterator[Played]:
    """Yield the results. An error after the first one (or if ``begun``) is appended to ``stopped`` instead of raised.

    So the results before the error are kept.
    """
    try:
        for one in results:
            begun = True
            yield one
    except MotetError as error:
        if not begun:
            raise
        stopped.append(printable(str(error))[:DETAIL])


def why_stopped(stopped: Sequence[str], judge: Disqualification, settings: EvaluationSettings) -> str:
    """Return why the evaluation stopped early; empty if it was interrupted."""
    if judge.ends:
        return f"max_failed_episodes ({settings.max_failed_episodes}) was reached"
    return stopped[0] if stopped else ""


class FirstFailures:
    """Makes messages about a policy's first failure, its first episode in the job's process, and changed limits.

    Args:
        entries: the policies.
        what: "episode" or "game".
    """

    def __init__(self, entries: Sequence[Entry], what: str) -> None:
        self._titles, self._what = [entry.title for entry in entries], what
        self._failed: set[str] = set()
        self._fell_back: set[str] = set()

    def lines(self, played: Played) -> list[str]:
        """Return the lines for the next result."""
        found = []
        for one in played.failures:
            if one.policy not in self._failed:
                self._failed.add(one.policy)
                where = f"in turn {one.turn} of {self._what} {one.episode}"
                found.append(f"{one.policy} failed {where} ({one.cause}): {first_line(one.detail)}")
        if played.noticed:
            seated = ", ".join(dict.fromkeys(self._titles[i] for i in played.seats))
            found.append(
                f"{self._what} {played.number}: the limits of the job were changed ({played.noticed}) by {seated}; "
                "only a sandbox prevents that"
            )
        for name in dict.fromkeys(self._titles[i] for i in played.fell_back):
            if name not in self._fell_back:
                self._fell_back.add(name)
                found.append(f"{name} plays in the job's process: its process could not be started")
        return found


def failed_line(played: Played, what: str) -> str:
    """Return a message about a failed episode."""
    return f"{what} {played.number} failed ({played.failed}) and is not counted: {first_line(played.detail)}"


def first_line(text: str) -> str:
    """Return the first line of a text, printable.

    >>> first_line("one\\ntwo"), first_line("")
    ('one', '')
    """
    return plain(text.strip().splitlines()[0]) if text.strip() else ""


def with_changes(settings: EvaluationSettings, changes: Mapping[str, Any]) -> EvaluationSettings:
    """Return the settings with some fields changed."""
    known = [item.name for item in fields(EvaluationSettings)]
    if unknown := sorted(set(changes) - set(known)):
        hints = {name: meant(name, known, "evaluation") for name in unknown}
        expected = "valid" if all(hints.values()) else f"some of {', '.join(known)}"
        got = ", ".join(f"{name} ({hint})" if hint else name for name, hint in hints.items())
        raise SettingError(f"settings must be {expected}, got {got}")
    return replace(settings, **changes)


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return the description of a policy in a result. A joint policy is always shared, so it is not marked as
    shared."""
    shared = {"shared": True} if entry.shared and entry.kind != "joint" else {}
    return {
        "name": entry.title,
        "source": valid(entry.source),
        "kind": entry.kind,
        **shared,
        "seat": entry.seat,
        "proportion": entry.proportion,
    }


def players(jobs: int, settings: EvaluationSettings) -> JobPool | SerialPlayer:
    """Start the processes that play, on the engine of the settings."""
    if settings.engine == "serial":
        return SerialPlayer()
    if settings.engine == "ray":
        from motet.cluster.workers import ClusterWorkers

        return ClusterWorkers(jobs, settings.hang_s, settings.cluster)
    return JobPool(jobs, settings.hang_s)

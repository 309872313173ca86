"""evaluate(): policies play episodes; the numbers depend on the seed and on nothing else.

    policies ─▶ entries ─▶ seats of each episode ─▶ workers play ─▶ results in the order of episodes ─▶ Evaluation

Who sits where, and every seed of the world, the policies and the stand-ins, is derived from the seed, the episode and
the agent. So one seed gives one result, byte for byte, for any number of jobs, with or without processes of their own
for the policies, kept from episode to episode or not. What was measured besides (how long decisions took, what a
policy printed) stands apart in :attr:`Evaluation.measured`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from motet.errors import MotetError, SettingError
from motet.evaluation.episode import Played, StandIn
from motet.evaluation.game import EpisodeTasks, Game
from motet.evaluation.jobs import Disqualification, JobPool
from motet.evaluation.result import Evaluation
from motet.isolation.policy import PolicyLimits
from motet.placement import Cluster
from motet.policies.entries import Entry
from motet.settings import check_fields
from motet.system.child import interrupts
from motet.system.raised import DETAIL, printable
from motet.text import counted, plain, valid

__all__ = ["EvaluationSettings", "evaluate"]


@dataclass(frozen=True)
class EvaluationSettings:
    """How policies are evaluated.

    >>> settings = EvaluationSettings(episodes=20, jobs=4, isolate=True, limits=PolicyLimits(decision_s=1.0))
    >>> settings.episodes, settings.limits.decision_s
    (20, 1.0)
    """

    episodes: Annotated[int, Ge(1)] = 100
    """Episodes to play."""
    seed: Annotated[int, Ge(0)] = 0
    """Of everything random."""
    jobs: Annotated[int, Ge(1)] = 1
    """Processes that play episodes at the same time. The result is the same for any number."""
    engine: Literal["processes", "ray"] = "processes"
    """Where these processes are: on this machine, or on a Ray cluster. The result is the same."""
    cluster: Cluster = field(default_factory=Cluster)
    """What they take of a Ray cluster."""
    isolate: bool = False
    """Give each policy, on each seat, a process of its own, in which its failures cost nobody else."""
    sandbox: Literal["no", "best-effort", "strict"] = "no"
    """Bar these processes from network, files and other processes: strictly, or as far as the machine can."""
    limits: PolicyLimits | None = None
    """Of these processes: time, memory, open files, output. None: the usual ones."""
    stand_in: StandIn = "noop"
    """Who acts for a policy that failed, to the end of the episode; forfeit: it ends there, and counts for nobody."""
    max_failures: Annotated[int, Ge(1)] = 10
    """A policy that has failed so often is out: from the next episode on the stand-in acts for it."""
    max_failed_episodes: Annotated[int, Ge(1)] = 10
    """Stop after this many failed episodes (the world raised, or the job ended or hung), in the order of episodes."""
    max_processes: Annotated[int, Ge(1)] = 64
    """Policy processes at most; with fewer than it takes there are fewer jobs, and then seats that share one."""
    pooled: bool = True
    """Keep policies from episode to episode, and reset them in between, instead of making new ones."""
    film: tuple[int, ...] = ()
    """Numbers of the episodes to draw."""
    trust: bool = False
    """Let a run name algorithms outside of motet, whose code is then imported and run."""
    hang_s: Annotated[float, Gt(0)] = 300.0
    """A job without a turn for this long hangs: its episode has failed. Longer where isolated policies have longer."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.engine != "ray" and self.cluster != Cluster():
            raise SettingError(f"cluster is only valid with engine='ray' (got engine={self.engine!r})")


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
        policies: a mapping from agent to policy; or a sequence that shares the seats, in proportion and shuffled by
            the seed; or one for all. A policy is a run directory, ``module:Class``, a built-in name (``random``,
            ``noop``), a text with options as on the command line, a :class:`PolicySpec`, a class or a function that
            makes one, or an object, of which copies play.
        settings: how it is done.
        workers: processes to play in, for several evaluations one after the other; by default they are made and ended.
        on_progress: called with the number of episodes done, and of all.
        on_message: called with one line when something happens that the user should know.
        changes: fields of ``settings`` to set.

    Returns:
        The result. Interrupted by Ctrl-C it is that of the episodes so far, marked as partial. An episode whose world
        raises, or whose job ends or hangs, is marked as failed and counts for nobody; after ``max_failed_episodes`` of
        them the result is that of the episodes so far, marked as partial.

    >>> import motet
    >>> result = motet.evaluate("treasure_hunt", ["random", "forager"], episodes=20, seed=1)  # doctest: +SKIP
    >>> result.scores()["forager"].mean > result.scores()["random"].mean  # doctest: +SKIP
    True
    """
    chosen = with_changes(settings or EvaluationSettings(), changes)
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        on_message(line)

    game = Game.of(world, policies, chosen)
    game.check_seats()
    tasks = EpisodeTasks(game, chosen.episodes, chosen.film)
    plan, jobs = game.plan(game.fullest, chosen, note)
    judge = Disqualification([entry.title for entry in game.entries], chosen.max_failures, chosen.max_failed_episodes)
    began, played, stopped = time.perf_counter(), list[Played](), list[str]()
    own = workers or players(min(jobs, len(tasks)), chosen)
    try:
        with interrupts() as stop:
            for one in to_the_end(own.play(plan, tasks, judge, stop, jobs, note), stopped):
                played.append(one)
                if one.failed:
                    note(failed_line(one, "episode"))
                on_progress(len(played), len(tasks))
    finally:
        if workers is None:
            own.close()
    partial = len(played) < len(tasks)
    for name, episode in judge.out.items():
        often = counted(chosen.max_failures, "time")
        note(f"{name} failed {often} and is out after episode {episode}: the stand-in acts for it")
    for one in played:
        if one.undrawn:
            note(f"episode {one.number} was not drawn: {one.undrawn}")
    why = why_stopped(stopped, judge, chosen) if partial else ""
    if partial:
        note(f"{why or 'interrupted'}: {len(played)} of {len(tasks)} episodes were played")
    decisive = ("episodes", "seed", "stand_in", "max_failures", "max_failed_episodes")
    measured = game.measured(played, time.perf_counter() - began, jobs, plan, notes)
    return Evaluation(
        world=game.described,
        agents=game.agents,
        policies=tuple(describe_entry(entry) for entry in game.entries),
        settings={name: getattr(chosen, name) for name in decisive},
        episodes=tuple(game.episode(one) for one in played),
        out=dict(judge.out),
        partial=partial,
        measured=measured,
        stopped=why,
    )


def to_the_end(results: Iterator[Played], stopped: list[str], *, begun: bool = False) -> Iterator[Played]:
    """Results as they come. An error after the first of them (or ``begun``) is noted and ends them: none gets lost."""
    try:
        for one in results:
            begun = True
            yield one
    except MotetError as error:
        if not begun:
            raise
        stopped.append(printable(str(error))[:DETAIL])


def why_stopped(stopped: Sequence[str], judge: Disqualification, settings: EvaluationSettings) -> str:
    """Why no more was played, in words; empty if it was interrupted."""
    if judge.ends:
        return f"max_failed_episodes ({settings.max_failed_episodes}) was reached"
    return stopped[0] if stopped else ""


def failed_line(played: Played, what: str) -> str:
    """That an episode failed, for people."""
    return f"{what} {played.number} failed ({played.failed}) and counts for nobody: {first_line(played.detail)}"


def first_line(text: str) -> str:
    """The first line of a text, for people.

    >>> first_line("one\\ntwo"), first_line("")
    ('one', '')
    """
    return plain(text.strip().splitlines()[0]) if text.strip() else ""


def with_changes(settings: EvaluationSettings, changes: Mapping[str, Any]) -> EvaluationSettings:
    """Some fields set to something else."""
    known = [item.name for item in fields(EvaluationSettings)]
    if unknown := sorted(set(changes) - set(known)):
        raise SettingError(f"settings must be some of {', '.join(known)}, got {', '.join(unknown)}")
    return replace(settings, **changes)


def describe_entry(entry: Entry) -> dict[str, Any]:
    """What a result says about a policy. A joint policy is shared by its kind."""
    shared = {"shared": True} if entry.shared and entry.kind != "joint" else {}
    return {
        "name": entry.title,
        "source": valid(entry.source),
        "kind": entry.kind,
        **shared,
        "seat": entry.seat,
        "proportion": entry.proportion,
    }


def players(jobs: int, settings: EvaluationSettings) -> JobPool:
    """Processes to play in, where the settings say."""
    if settings.engine == "ray":
        from motet.cluster.workers import ClusterWorkers

        return ClusterWorkers(jobs, settings.hang_s, settings.cluster)
    return JobPool(jobs, settings.hang_s)

"""evaluate(): policies play episodes; the numbers depend on the seed and on nothing else.

    policies ─▶ entries ─▶ seats of each episode ─▶ workers play ─▶ results in the order of episodes ─▶ Evaluation

Who sits where, and every seed of the world, the policies and the stand-ins, is derived from the seed, the episode and
the agent. So one seed gives one result, byte for byte, for any number of jobs, with or without processes of their own
for the policies, kept from episode to episode or not. What was measured besides (how long decisions took, what a
policy printed) stands apart in :attr:`Evaluation.measured`.
"""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt

from motet.errors import MotetError, SettingError
from motet.evaluation.episode import (
    EpisodePlan,
    FailedBy,
    Failure,
    LatencyHistogram,
    Played,
    StandIn,
    Task,
    seat_groups,
)
from motet.evaluation.jobs import Disqualification, JobPool
from motet.intervals import Score, score
from motet.isolation.policy import PolicyLimits
from motet.placement import Cluster
from motet.policies.entries import Entry, check_entries, entries
from motet.runs.checkpoint import RunDirectory
from motet.runs.config import describe_world, versions
from motet.settings import check_fields
from motet.system.child import interrupts
from motet.system.pickling import MAKE_IT_THERE, check_picklable
from motet.system.raised import DETAIL, printable
from motet.text import counted, plain, valid
from motet.world import as_world
from motet.worlds.catalogue import world_factory

__all__ = ["Episode", "Evaluation", "EvaluationSettings", "Failure", "LatencyHistogram", "Score", "evaluate"]

FORMAT = 1
"""Of what :meth:`Evaluation.as_dict` gives; raised when its readers would have to change."""

_SEATS = 20  # what a seed is for


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


@dataclass(frozen=True)
class Episode:
    """One episode."""

    number: int
    policies: tuple[str, ...]
    """By agent, who sat there."""
    returns: tuple[float, ...]
    """By agent; empty if it failed."""
    decisions: tuple[int, ...]
    """By agent, how often it was its turn; empty if it failed."""
    turns: int
    failures: tuple[Failure, ...] = ()
    out: tuple[str, ...] = ()
    """Policies that were out already."""
    forfeited: tuple[str, ...] = ()
    """Policies that forfeited it; it counts for nobody's mean."""
    segments: tuple[int, ...] = ()
    """By agent, how many segments it had, if an agent had more than one."""
    frames: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """PNG pictures, if it was to be drawn."""
    frames_per_s: float = field(default=0.0, repr=False, compare=False)
    failed: FailedBy = ""
    """Why it failed and counts for nobody: ``world`` (it raised), ``job`` (its process ended or hung); else empty."""
    detail: str = field(default="", compare=False)
    """How it failed, in words; may differ between runs."""

    @property
    def counts(self) -> bool:
        """Whether its returns count."""
        return not (self.failed or self.forfeited)


@dataclass(frozen=True)
class Measured:
    """What may differ from one evaluation to the next with the same seed."""

    seconds: float
    jobs: int
    isolated: dict[str, bool]
    """By policy."""
    sandbox: str
    pooled: bool
    latency: dict[str, LatencyHistogram]
    """By policy, how long its decisions took."""
    output: dict[str, str]
    """By policy, the last of what it printed."""
    notes: tuple[str, ...]
    """What was said while it was played."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came of an evaluation. Everything but ``measured`` depends on the seed alone.

    Two evaluations are equal if their :meth:`deterministic` bytes are.

    >>> result = evaluate("matrix", ["tit_for_tat", "random"], episodes=2)
    >>> len(result.episodes), list(result.scores()), result.partial
    (2, ['tit_for_tat', 'random'], False)
    """

    world: dict[str, Any]
    """Where the world comes from, and its settings."""
    agents: tuple[str, ...]
    policies: tuple[dict[str, Any], ...]
    """Name, source, kind, seat and proportion of each, and whether it is shared."""
    settings: dict[str, Any]
    """Those that decide the result."""
    episodes: tuple[Episode, ...]
    out: dict[str, int]
    """Policies that were out, and after which episode."""
    partial: bool
    """There are fewer episodes than were asked for."""
    measured: Measured
    stopped: str = ""
    """Why there are fewer, in words, unless it was interrupted."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Evaluation):
            return NotImplemented
        return self.deterministic() == other.deterministic()

    def __hash__(self) -> int:
        return hash(self.deterministic())

    @property
    def names(self) -> tuple[str, ...]:
        """Of the policies, each once."""
        return tuple(dict.fromkeys(one["name"] for one in self.policies))

    def scores(self) -> dict[str, Score | None]:
        """By policy: its return on one seat, averaged over its seats of an episode, then over episodes."""
        return {name: score(self.returns(name)) for name in self.names}

    def seat_scores(self) -> dict[tuple[str, str], Score]:
        """By policy and agent, where it sat there."""
        found = {}
        for name in self.names:
            for agent in self.agents:
                if (one := score(self.returns(name, agent))) is not None:
                    found[name, agent] = one
        return found

    def team(self) -> Score | None:
        """All agents' returns together."""
        return score([math.fsum(episode.returns) for episode in self.episodes if episode.counts])

    def returns(self, policy: str, agent: str | None = None) -> list[float]:
        """A policy's return in each episode that it played and that counts: on one seat, or the mean of its seats."""
        found = []
        for episode in self.episodes:
            if not episode.counts:
                continue
            own = [
                value
                for name, who, value in zip(self.agents, episode.policies, episode.returns, strict=True)
                if who == policy and agent in (None, name)
            ]
            if own:
                found.append(math.fsum(own) / len(own))
        return found

    def failures(self) -> dict[str, dict[str, int]]:
        """By policy, how often it failed, by cause."""
        counted: dict[str, Counter[str]] = {}
        for episode in self.episodes:
            for failure in episode.failures:
                counted.setdefault(failure.policy, Counter())[failure.cause] += 1
        return {name: dict(sorted(counted[name].items())) for name in self.names if name in counted}

    def failed(self) -> dict[str, int]:
        """How many episodes failed, by cause: ``world``, ``job``."""
        return failed_by_cause(self.episodes)

    def result(self) -> dict[str, Any]:
        """What depends on the seed alone, as plain values."""
        scores = [{"policy": name, "seat": None, **plain_score(one)} for name, one in self.scores().items() if one]
        seats = [
            {"policy": name, "seat": agent, **plain_score(one)} for (name, agent), one in self.seat_scores().items()
        ]
        team = self.team()
        return {
            "partial": self.partial,
            "stopped": self.stopped,
            "world": self.world,
            "agents": list(self.agents),
            "policies": [dict(one) for one in self.policies],
            "settings": dict(self.settings),
            "scores": scores + seats,
            "team": None if team is None else plain_score(team),
            "failures": self.failures(),
            "out": dict(self.out),
            "failed": self.failed(),
            "episodes": [plain_episode(episode) for episode in self.episodes],
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; docs/evaluate.md tells what is what."""
        measured = self.measured
        details = [
            {"episode": one.episode, "turn": one.turn, "policy": one.policy, "detail": one.detail, "output": one.output}
            for episode in self.episodes
            for one in episode.failures
        ]
        latency = {
            name: {
                "decisions": one.count,
                "mean_s": one.seconds / max(one.count, 1),
                "median_s": one.quantile(0.5),
                "p99_s": one.quantile(0.99),
                "longest_s": one.longest,
            }
            for name, one in measured.latency.items()
        }
        named = {item.name: getattr(measured, item.name) for item in fields(measured) if item.name != "latency"}
        extra = {
            "tempo": latency,
            "notes": list(measured.notes),
            "failures": details,
            "failed_episodes": failed_episodes(self.episodes),
            "versions": versions(),
        }
        return {"format": FORMAT, "result": self.result(), "measured": {**named, **extra}}

    def deterministic(self) -> bytes:
        """What depends on the seed alone, to be compared byte for byte."""
        return json.dumps(self.result(), indent=1, allow_nan=False).encode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, whole or not at all."""
        target = Path(path)
        RunDirectory(target.parent).write_json(target.name, self.as_dict())

    def html(self) -> str:
        """A page that stands alone: scores, distributions, seats, latency, failures, episodes to watch."""
        from motet.reports.results_page import evaluation_page

        return evaluation_page(self)


def failed_by_cause(episodes: Sequence[Episode]) -> dict[str, int]:
    """How many episodes failed, by cause."""
    return dict(sorted(Counter(episode.failed for episode in episodes if episode.failed).items()))


def failed_episodes(episodes: Sequence[Episode], what: str = "episode") -> list[dict[str, Any]]:
    """Those that failed, with how that happened in words."""
    return [
        {what: one.number, "cause": one.failed, "policies": list(one.policies), "turn": one.turns, "detail": one.detail}
        for one in episodes
        if one.failed
    ]


def plain_score(one: Score) -> dict[str, Any]:
    """As JSON takes it."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None
        for key, value in asdict(one).items()
    }


def plain_episode(episode: Episode) -> dict[str, Any]:
    """As JSON takes it."""
    failures = [
        {"turn": one.turn, "policy": one.policy, "agents": list(one.agents), "cause": one.cause}
        for one in episode.failures
    ]
    return {
        "number": episode.number,
        "policies": list(episode.policies),
        "returns": list(episode.returns),
        "decisions": list(episode.decisions),
        "turns": episode.turns,
        "failures": failures,
        "out": list(episode.out),
        "forfeited": list(episode.forfeited),
        "failed": episode.failed or None,
        **({"segments": list(episode.segments)} if episode.segments else {}),
    }


def evaluate(
    world: Any,
    policies: Any,
    settings: EvaluationSettings | None = None,
    *,
    workers: JobPool | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
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
        watch: called with the number of episodes done, and of all.
        say: called with one line when something happens that the user should know.
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
        say(line)

    game = Game.of(world, policies, chosen)
    game.check_seats()
    tasks = _Tasks(game, chosen.episodes, chosen.film)
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
                watch(len(played), len(tasks))
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
        policies=tuple(told(entry) for entry in game.entries),
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
    if strangers := sorted(set(changes) - set(known)):
        raise SettingError(f"settings must be some of {', '.join(known)}, got {', '.join(strangers)}")
    return replace(settings, **changes)


def told(entry: Entry) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Game:
    """A world and everybody who may sit in it: what evaluations and tournaments begin with."""

    factory: Callable[[], Any]
    described: dict[str, Any]
    world_settings: dict[str, Any]
    agents: tuple[str, ...]
    entries: tuple[Entry, ...]
    seed: int

    @classmethod
    def of(cls, world: Any, policies: Any, settings: EvaluationSettings) -> Game:
        """From what the user gave."""
        factory = world_factory(world)
        described = {
            # Where an object lies in memory differs from one process to the next.
            key: re.sub(r" at 0x[0-9a-f]+", "", value) if isinstance(value, str) else value
            for key, value in describe_world(factory).items()
        }
        probe = as_world(factory())
        agents = probe.agents
        probe.close()
        chosen = entries(policies, agents, trust=settings.trust, world=described)
        check_picklable(factory, "world", "world", MAKE_IT_THERE)
        check_entries(chosen)
        return cls(factory, described, _world_settings(factory, described), agents, chosen, settings.seed)

    def seats(self, number: int) -> tuple[int, ...]:
        """By agent, who sits there in one episode: those with a seat of their own, the others in proportion."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, _SEATS, number]))
        own = {entry.seat: place for place, entry in enumerate(self.entries) if entry.seat is not None}
        free = [agent for agent in self.agents if agent not in own]
        others = [place for place, entry in enumerate(self.entries) if entry.seat is None]
        chosen = _shared_out(len(free), others, [self.entries[place].proportion for place in others], rng)
        sitting = own | dict(zip(free, chosen, strict=True))
        return tuple(sitting[agent] for agent in self.agents)

    def check_seats(self) -> None:
        """Raise if somebody has no seat, if a seat has nobody, or if a policy does not know its seat."""
        taken = {entry.seat for entry in self.entries}
        free = [agent for agent in self.agents if agent not in taken]
        others = [entry.title for entry in self.entries if entry.seat is None]
        if free and not others:
            raise SettingError(
                f"policies must be one for each seat, or one without seat=, got none for {', '.join(free)}"
            )
        if not free and others:
            raise SettingError(f"policies: {others[0]} has no seat: all are taken by seat=")
        for entry in self.entries:
            for agent in free if entry.seat is None else [entry.seat]:
                entry.on(agent)

    def fullest(self, plan: EpisodePlan) -> int:
        """Policy processes that an episode may take: each policy gets its share of the free seats, rounded up."""
        if plan.sharing and all(entry.seat is not None for entry in self.entries):
            everybody = Task(0, tuple(self.seats(0)), (0,))
            return sum(plan.isolated[bench.entry] for bench in seat_groups(plan, everybody))
        loose = [place for place, entry in enumerate(self.entries) if entry.seat is None]
        free = len(self.agents) - (len(self.entries) - len(loose))
        total = math.fsum(self.entries[place].proportion for place in loose)
        fixed, most = 0, 0
        for place, entry in enumerate(self.entries):
            if not plan.isolated[place]:
                continue
            alone = not entry.shared and not plan.sharing
            if entry.seat is not None:
                fixed += 1
            else:
                most += math.ceil(entry.proportion / total * free) if alone else 1
        return fixed + min(most, free)

    def plan(
        self, need: Callable[[EpisodePlan], int], settings: EvaluationSettings, say: Callable[[str], None]
    ) -> tuple[EpisodePlan, int]:
        """What the workers play, and how many of them at once: as many as processes are allowed for.

        ``need`` tells how many policy processes an episode takes at most.
        """
        isolated = tuple(
            settings.isolate or settings.sandbox != "no" if entry.isolate is None else entry.isolate
            for entry in self.entries
        )
        if settings.sandbox != "no" and not all(isolated):
            name = self.entries[isolated.index(False)].title
            raise SettingError(
                f"isolate must not be no where there is a sandbox, got no for {name}: a sandbox needs a process for "
                "each policy"
            )
        if settings.limits is not None and not any(isolated):
            raise SettingError(
                "limits are only valid with isolate=True: only a policy in its own process can be held to them"
            )
        plan = EpisodePlan(
            self.factory, self.world_settings, self.entries, isolated, settings.seed, settings.stand_in,
            settings.limits, settings.sandbox, settings.max_processes, False, settings.pooled,
        )  # fmt: skip
        most = settings.max_processes
        needed = need(plan)
        if needed > most:
            shared = replace(plan, sharing=True)
            if (least := need(shared)) > most:
                raise SettingError(
                    f"max_processes must be at least the {least} policies of one episode, each in its own process, "
                    f"got {most}: allow more, or isolate fewer"
                )
            say(f"max_processes {most} is less than {needed} seats: seats of the same policy share a process")
            plan, needed = shared, least
        jobs = min(settings.jobs, most // needed) if needed else settings.jobs
        if jobs < settings.jobs:
            say(
                f"max_processes {most} leaves room for {jobs} of {settings.jobs} jobs, "
                f"with {needed} policy processes each"
            )
        return replace(plan, processes=max(1, most // jobs)), jobs

    def episode(self, played: Played) -> Episode:
        """With names instead of numbers."""
        titles = [entry.title for entry in self.entries]
        return Episode(
            number=played.number,
            policies=tuple(titles[place] for place in played.seats),
            returns=played.returns,
            decisions=played.decisions,
            turns=played.turns,
            failures=played.failures,
            out=tuple(dict.fromkeys(titles[place] for place in played.out)),
            forfeited=tuple(dict.fromkeys(titles[place] for place in played.forfeited)),
            segments=played.segments,
            frames=played.frames,
            frames_per_s=played.frames_per_s,
            failed=played.failed,
            detail=played.detail,
        )

    def measured(
        self, played: Sequence[Played], seconds: float, jobs: int, plan: EpisodePlan, notes: Sequence[str]
    ) -> Measured:
        """What was measured in some episodes."""
        titles = [entry.title for entry in self.entries]
        latency: dict[str, LatencyHistogram] = {}
        output: dict[str, str] = {}
        for one in played:
            for place, times in one.latency.items():
                latency.setdefault(titles[place], LatencyHistogram()).merge(times)
            for place, text in one.output.items():
                output[titles[place]] = text
        isolated = dict(zip(titles, plan.isolated, strict=True))
        ordered = {title: latency[title] for title in dict.fromkeys(titles) if title in latency}
        return Measured(seconds, jobs, isolated, plan.sandbox, plan.pooled, ordered, output, tuple(notes))


class _Tasks(Sequence[Task]):
    """All episodes. Who sits where is found when it is asked for: there may be millions."""

    def __init__(self, game: Game, episodes: int, film: Sequence[int]) -> None:
        self._game, self._episodes, self._film = game, episodes, frozenset(film)
        self._made = functools.lru_cache(maxsize=1024)(self._make)

    def __len__(self) -> int:
        return self._episodes

    def __getitem__(self, number: Any) -> Any:
        return self._made(range(self._episodes)[number])

    def _make(self, number: int) -> Task:
        return Task(number, self._game.seats(number), (number,), film=number in self._film)


def _shared_out(seats: int, others: Sequence[int], proportions: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Each gets its share of the seats, rounded up or down by chance so that it is right on average; then a shuffle."""
    if not seats:
        return []
    order = rng.permutation(len(others))
    shares = np.array(proportions)[order]
    ends = np.cumsum(shares / shares.sum()) * seats
    ends[-1] = seats
    places = np.searchsorted(ends, np.arange(seats) + rng.random(), side="right")
    chosen = [others[order[place]] for place in np.minimum(places, len(others) - 1)]
    return [chosen[place] for place in rng.permutation(seats)]


def _world_settings(factory: Callable[..., Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of the world that are plain values: those given, and the defaults of the others."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    plain = (bool, int, float, str, type(None))
    defaults = {one.name: one.default for one in parameters if isinstance(one.default, plain)}
    return {**defaults, **described.get("settings", {})}

"""Game: a world and the policies that play in it. The seating is derived from the seed and the episode number."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.errors import SettingError
from motet.evaluation.episode import EpisodePlan, Played, Task, seat_groups
from motet.evaluation.latency import LatencyHistogram
from motet.evaluation.result import Episode, Measured
from motet.isolation.players import world_settings
from motet.isolation.usage import PolicyUsage
from motet.policies.entries import Entry, check_entries, entries
from motet.runs.config import describe_world
from motet.streams import made_alike
from motet.system.pickling import MAKE_IT_THERE, check_picklable
from motet.world import World, as_world
from motet.world.winning import WinRule
from motet.worlds.catalogue import world_factory

if TYPE_CHECKING:
    from motet.evaluation.evaluate import EvaluationSettings

__all__ = ["EpisodeTasks", "Game", "most_processes", "shared_out"]

_SEATS = 20  # constant from which the seeds of seatings are derived


@dataclass(frozen=True)
class Game:
    """A world and the policies that play in it. Evaluations and tournaments start from one."""

    factory: Callable[[], Any]
    described: dict[str, Any]
    world_settings: dict[str, Any]
    agents: tuple[str, ...]
    entries: tuple[Entry, ...]
    seed: int
    rule: WinRule | None = None
    """How the world declares that games are won; None if it does not."""

    @classmethod
    def of(cls, world: Any, policies: Any, settings: EvaluationSettings) -> Game:
        """Make a game from the arguments of the user."""
        factory = world_factory(world)
        described = {
            # The address of an object differs between processes, so it is removed.
            key: re.sub(r" at 0x[0-9a-f]+", "", value) if isinstance(value, str) else value
            for key, value in describe_world(factory).items()
        }

        def probed() -> tuple[World, WinRule | None]:
            env = factory()
            return as_world(env), WinRule.declared_by(env)

        probe, rule = made_alike("the world", probed)
        agents = probe.agents
        probe.close()
        chosen = entries(policies, agents, trust=settings.trust, world=described)
        check_picklable(factory, "world", "world", MAKE_IT_THERE)
        check_entries(chosen)
        return cls(factory, described, world_settings(factory, described), agents, chosen, settings.seed, rule)

    def seats(self, number: int) -> tuple[int, ...]:
        """Return the entry on each seat in one episode: fixed seats first, the others in proportion."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, _SEATS, number]))
        own = {entry.seat: i for i, entry in enumerate(self.entries) if entry.seat is not None}
        free = [agent for agent in self.agents if agent not in own]
        others = [i for i, entry in enumerate(self.entries) if entry.seat is None]
        chosen = shared_out(len(free), others, [self.entries[i].proportion for i in others], rng)
        sitting = own | dict(zip(free, chosen, strict=True))
        return tuple(sitting[agent] for agent in self.agents)

    def check_seats(self) -> None:
        """Raise if a policy has no seat, if a seat has no policy, or if a policy cannot play its seat."""
        taken = {entry.seat for entry in self.entries}
        free = [agent for agent in self.agents if agent not in taken]
        others = [entry.title for entry in self.entries if entry.seat is None]
        if free and not others:
            raise SettingError(
                f"policies must fill every seat, or one must have no seat=, got none for {', '.join(free)}"
            )
        if not free and others:
            raise SettingError(f"policies: {others[0]} has no seat: seat= of other policies takes all of them")
        for entry in self.entries:
            for agent in free if entry.seat is None else [entry.seat]:
                entry.on(agent)

    def fullest(self, plan: EpisodePlan) -> int:
        """Return the maximum number of policy processes of an episode. Shares of the free seats are rounded up."""
        if plan.sharing and all(entry.seat is not None for entry in self.entries):
            everybody = Task(0, tuple(self.seats(0)), (0,))
            return sum(plan.isolated[seats.entry] for seats in seat_groups(plan, everybody))
        loose = [i for i, entry in enumerate(self.entries) if entry.seat is None]
        free = len(self.agents) - (len(self.entries) - len(loose))
        total = math.fsum(self.entries[i].proportion for i in loose)
        fixed, most = 0, 0
        for i, entry in enumerate(self.entries):
            if not plan.isolated[i]:
                continue
            alone = not entry.shared and not plan.sharing
            if entry.seat is not None:
                fixed += 1
            else:
                most += math.ceil(entry.proportion / total * free) if alone else 1
        return fixed + min(most, free)

    def plan(
        self, need: Callable[[EpisodePlan], int], settings: EvaluationSettings, on_message: Callable[[str], None]
    ) -> tuple[EpisodePlan, int]:
        """Return the plan for the workers and the number of jobs, which ``max_processes`` may reduce.

        ``need`` returns the maximum number of policy processes of an episode.
        """
        isolated = tuple(
            settings.isolate or settings.sandbox != "no" if entry.isolate is None else entry.isolate
            for entry in self.entries
        )
        if settings.sandbox != "no" and not all(isolated):
            name = self.entries[isolated.index(False)].title
            raise SettingError(
                f"isolate must not be no with a sandbox, got no for {name}: a sandbox needs a separate process for "
                "each policy"
            )
        for entry in self.entries:
            if entry.isolate and settings.engine == "serial":
                raise SettingError(f"isolate=yes of {entry.title} is not valid with engine='serial'")
            if entry.isolate and settings.fall_back:
                raise SettingError(f"isolate=yes of {entry.title} is not valid with fall_back: leave one of them out")
        if settings.limits is not None and not any(isolated):
            raise SettingError(
                "limits are only valid with isolate=True: they can only be enforced on a policy in a separate process"
            )
        plan = EpisodePlan(
            self.factory, self.world_settings, self.entries, isolated, settings.seed, settings.stand_in,
            settings.limits, settings.sandbox, settings.max_processes, False, settings.pooled,
            self.rule.won_by if self.rule else None, settings.fall_back,
        )  # fmt: skip
        most = settings.max_processes
        needed = need(plan)
        if needed > most:
            shared = replace(plan, sharing=True)
            if (least := need(shared)) > most:
                raise SettingError(
                    f"max_processes must be at least {least}, the number of isolated policies in one episode, "
                    f"got {most}: allow more processes, or isolate fewer policies"
                )
            on_message(f"max_processes {most} is less than {needed} seats: seats of the same policy share a process")
            plan, needed = shared, least
        jobs = min(settings.jobs, most // needed) if needed else settings.jobs
        if jobs < settings.jobs:
            on_message(
                f"max_processes {most} allows only {jobs} of {settings.jobs} jobs, with {needed} policy processes each"
            )
        return replace(plan, processes=max(1, most // jobs)), jobs

    def episode(self, played: Played) -> Episode:
        """Convert a result of a worker, with names instead of indices."""
        titles = [entry.title for entry in self.entries]
        return Episode(
            number=played.number,
            policies=tuple(titles[i] for i in played.seats),
            returns=played.returns,
            deciding=played.deciding,
            decisions=played.decisions,
            turns=played.turns,
            failures=played.failures,
            out=tuple(dict.fromkeys(titles[i] for i in played.out)),
            forfeited=tuple(dict.fromkeys(titles[i] for i in played.forfeited)),
            segments=played.segments,
            frames=played.frames,
            captions=played.captions,
            frames_per_s=played.frames_per_s,
            failed=played.failed,
            detail=played.detail,
        )

    def measured(
        self, played: Sequence[Played], seconds: float, jobs: int, plan: EpisodePlan, notes: Sequence[str]
    ) -> Measured:
        """Collect the measurements of episodes."""
        titles = [entry.title for entry in self.entries]
        latency: dict[str, LatencyHistogram] = {}
        output: dict[str, str] = {}
        fell_back: Counter[str] = Counter()
        usage: dict[str, PolicyUsage] = {}
        for one in played:
            fell_back.update(titles[i] for i in one.fell_back)
            for i, times in one.latency.items():
                latency.setdefault(titles[i], LatencyHistogram()).merge(times)
            for i, used in one.usage.items():
                usage.setdefault(titles[i], PolicyUsage()).merge(used)
            for i, text in one.output.items():
                output[titles[i]] = text
        isolated = dict(zip(titles, plan.isolated, strict=True))
        ordered = {title: latency[title] for title in dict.fromkeys(titles) if title in latency}
        return Measured(
            seconds, jobs, isolated, plan.sandbox, plan.pooled, ordered, output, tuple(notes), dict(fell_back),
            {title: usage[title] for title in dict.fromkeys(titles) if title in usage},
        )  # fmt: skip


class EpisodeTasks(Sequence[Task]):
    """All episodes. Seatings are computed on access, since there may be millions."""

    def __init__(self, game: Game, episodes: int, film: Sequence[int]) -> None:
        self._game, self._episodes, self._film = game, episodes, frozenset(film)
        self._made = functools.lru_cache(maxsize=1024)(self._make)

    def __len__(self) -> int:
        return self._episodes

    def __getitem__(self, number: Any) -> Any:
        return self._made(range(self._episodes)[number])

    def _make(self, number: int) -> Task:
        return Task(number, self._game.seats(number), (number,), film=number in self._film)


def most_processes(plan: EpisodePlan, tasks: Sequence[Task]) -> int:
    """Return the maximum number of policy processes of a task."""
    seatings = {task.seats: task for task in tasks}.values()
    return max((sum(plan.isolated[seats.entry] for seats in seat_groups(plan, task)) for task in seatings), default=0)


def shared_out(seats: int, others: Sequence[int], proportions: Sequence[float], rng: np.random.Generator) -> list[int]:
    """Share out seats in proportion, shuffled. Shares are rounded up or down at random, without bias."""
    if not seats:
        return []
    order = rng.permutation(len(others))
    shares = np.array(proportions)[order]
    ends = np.cumsum(shares / shares.sum()) * seats
    ends[-1] = seats
    positions = np.searchsorted(ends, np.arange(seats) + rng.random(), side="right")
    chosen = [others[order[i]] for i in np.minimum(positions, len(others) - 1)]
    return [chosen[i] for i in rng.permutation(seats)]

"""The result of an evaluation: episodes, scores, failures, and what was measured besides.

Everything but :class:`Measured` depends on the seed alone. ``docs/evaluate.md`` describes the JSON that it is saved as.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from motet.evaluation.episode import FailedBy, Failure
from motet.evaluation.latency import LatencyHistogram
from motet.intervals import Score, score
from motet.runs.config import versions
from motet.runs.directory import RunDirectory

__all__ = [
    "Episode",
    "Evaluation",
    "Measured",
    "SeededResult",
    "failed_by_cause",
    "failed_episodes",
    "plain_episode",
    "plain_score",
]

FORMAT = 1
"""Of what :meth:`Evaluation.as_dict` gives; raised when its readers would have to change."""


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


class SeededResult:
    """A result that depends on the seed alone: two are equal if their :meth:`deterministic` bytes are."""

    def result(self) -> dict[str, Any]:
        """What depends on the seed alone, as plain values."""
        raise NotImplementedError

    def deterministic(self) -> bytes:
        """What depends on the seed alone, to be compared byte for byte."""
        return json.dumps(self.result(), indent=1, allow_nan=False).encode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.deterministic() == other.deterministic()

    def __hash__(self) -> int:
        return hash(self.deterministic())


@dataclass(frozen=True, eq=False)
class Evaluation(SeededResult):
    """What came of an evaluation. Everything but ``measured`` depends on the seed alone.

    Two evaluations are equal if their :meth:`deterministic` bytes are.

    >>> from motet import evaluate
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
        """Everything as plain values; docs/evaluate.md describes them."""
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
        # In the files latencies have been called tempo from the beginning.
        named = {
            "tempo" if item.name == "latency" else item.name: getattr(measured, item.name) for item in fields(measured)
        }
        extra = {
            "tempo": latency,
            "notes": list(measured.notes),
            "failures": details,
            "failed_episodes": failed_episodes(self.episodes),
            "versions": versions(),
        }
        return {"format": FORMAT, "result": self.result(), "measured": {**named, **extra}}

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

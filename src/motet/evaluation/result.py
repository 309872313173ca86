"""The result of an evaluation: episodes, scores, failures and measurements.

Everything except :class:`Measured` depends only on the seed. ``docs/evaluate.md`` describes the JSON format.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from motet.evaluation.episode import FailedBy, Failure
from motet.evaluation.latency import LatencyHistogram
from motet.evaluation.win_rates import WinRate, WinRateKey, plain_win_rates, win_rates
from motet.intervals import Score, score
from motet.isolation.usage import PolicyUsage
from motet.runs.config import versions
from motet.runs.directory import RunDirectory
from motet.world.winning import WinRule

__all__ = [
    "Episode",
    "Evaluation",
    "Measured",
    "SeededResult",
    "failed_episodes",
    "plain_episode",
    "plain_measured",
    "plain_score",
]

FORMAT = 1
"""Version of the format of :meth:`Evaluation.as_dict`. It is increased when readers have to change."""


@dataclass(frozen=True)
class Episode:
    """One episode."""

    number: int
    policies: tuple[str, ...]
    """Name of the policy by agent."""
    returns: tuple[float, ...]
    """Return by agent. Empty if the episode failed."""
    decisions: tuple[int, ...]
    """Number of decisions by agent. Empty if the episode failed."""
    turns: int
    failures: tuple[Failure, ...] = ()
    out: tuple[str, ...] = ()
    """Policies that were disqualified before the episode."""
    forfeited: tuple[str, ...] = ()
    """Policies that forfeited. The episode is not counted in any mean."""
    segments: tuple[int, ...] = ()
    """Number of segments by agent. Empty if no agent had more than one."""
    frames: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """PNG images, if the episode was rendered."""
    captions: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The turn and the scores of each image."""
    frames_per_s: float = field(default=0.0, repr=False, compare=False)
    failed: FailedBy = ""
    """Cause of a failed episode: ``world`` (it raised) or ``job`` (its process ended or hung); else empty."""
    detail: str = field(default="", compare=False)
    """Human-readable description of the failure; may differ between runs."""
    deciding: tuple[float, ...] = ()
    """The score that decides who wins, by agent. Empty if the episode failed or the world declares no ``won_by``."""

    @property
    def counts(self) -> bool:
        """Whether the returns of the episode count."""
        return not (self.failed or self.forfeited)


@dataclass(frozen=True)
class Measured:
    """Measurements, which may differ between evaluations with the same seed."""

    seconds: float
    jobs: int
    isolated: dict[str, bool]
    """Whether each policy ran in a separate process, by policy."""
    sandbox: str
    pooled: bool
    latency: dict[str, LatencyHistogram]
    """Decision latency by policy."""
    output: dict[str, str]
    """The last part of the output of each policy."""
    notes: tuple[str, ...]
    """Messages during the evaluation."""
    fell_back: dict[str, int] = field(default_factory=dict)
    """Number of episodes in which a policy was played in the job's process, because none could be started for it."""
    usage: dict[str, PolicyUsage] = field(default_factory=dict)
    """Resources that the processes of isolated policies have used, by policy."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SeededResult(ABC):
    """Base of all results. Two results are equal if their :meth:`deterministic` bytes are equal."""

    world: dict[str, Any]
    """Import path and settings of the world."""
    agents: tuple[str, ...]
    policies: tuple[dict[str, Any], ...]
    """Name, source, kind, seat and proportion of each policy, and whether it is shared."""
    settings: dict[str, Any]
    """The settings that determine the result."""
    out: dict[str, int]
    """Disqualified policies, with the episode after which they were disqualified."""
    partial: bool
    """Whether there are fewer episodes than requested."""
    stopped: str = ""
    """Why the evaluation stopped early; empty if it did not, or if it was interrupted."""
    rule: WinRule | None = None
    """How games are won; None if the world declares no ``won_by``."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies, without repetitions."""
        return tuple(dict.fromkeys(one["name"] for one in self.policies))

    @property
    @abstractmethod
    def played(self) -> tuple[Episode, ...]:
        """All episodes."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Return the part that depends only on the seed, as plain values."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""

    @abstractmethod
    def html(self) -> str:
        """Return a self-contained HTML page."""

    def failed(self) -> dict[str, int]:
        """Return the number of failed episodes by cause: ``world``, ``job``."""
        return dict(sorted(Counter(episode.failed for episode in self.played if episode.failed).items()))

    def _failure_counts(self) -> dict[str, int]:
        """Return the number of failures by policy."""
        return dict(Counter(failure.policy for episode in self.played for failure in episode.failures))

    def win_rates(self) -> dict[WinRateKey, WinRate]:
        """Return the shares of games won, drawn and lost, by policy, opponent (None: all) and seat (None: all).

        A policy that forfeited has lost. Empty if the world declares no ``won_by``.
        """
        if self.rule is None:
            return {}
        return win_rates(self.agents, self.names, self.played, self.rule, self._round_of())

    def _round_of(self) -> Callable[[int], Hashable]:
        """Return a function from the number of an episode to its round. Rounds are independent of each other."""
        return lambda number: number

    def _common(self) -> dict[str, Any]:
        """Return the plain values with which all results begin."""
        return {
            "partial": self.partial,
            "stopped": self.stopped,
            "world": self.world,
            "agents": list(self.agents),
            "policies": [dict(one) for one in self.policies],
            "settings": dict(self.settings),
        }

    def _plain_wins(self) -> dict[str, Any]:
        """Return the rule and the win rates as plain values; empty if the world declares no ``won_by``."""
        if self.rule is None:
            return {}
        return {
            "won_by": self.rule.won_by,
            "winning_margin": self.rule.margin,
            "win_rates": plain_win_rates(self.win_rates()),
        }

    def deterministic(self) -> bytes:
        """Return the part that depends only on the seed, as bytes to compare."""
        return json.dumps(self.result(), indent=1, allow_nan=False).encode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return self.deterministic() == other.deterministic()

    def __hash__(self) -> int:
        return hash(self.deterministic())


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation(SeededResult):
    """Result of an evaluation. Everything except ``measured`` depends only on the seed.

    Two evaluations are equal if their :meth:`deterministic` bytes are equal.

    >>> from motet import evaluate
    >>> result = evaluate("matrix", ["tit_for_tat", "random"], episodes=2)
    >>> len(result.episodes), list(result.scores()), result.partial
    (2, ['tit_for_tat', 'random'], False)
    """

    episodes: tuple[Episode, ...]
    measured: Measured

    @property
    def played(self) -> tuple[Episode, ...]:
        """All episodes."""
        return self.episodes

    def scores(self) -> dict[str, Score | None]:
        """Return the mean return per seat by policy: averaged over its seats in an episode, then over episodes."""
        return {name: score(self.returns(name)) for name in self.names}

    def seat_scores(self) -> dict[tuple[str, str], Score]:
        """Return the mean return by policy and agent, where the policy acted for the agent."""
        found = {}
        for name in self.names:
            for agent in self.agents:
                if (one := score(self.returns(name, agent))) is not None:
                    found[name, agent] = one
        return found

    def team(self) -> Score | None:
        """Return the mean of the sum of all agents' returns."""
        return score([math.fsum(episode.returns) for episode in self.episodes if episode.counts])

    def returns(self, policy: str, agent: str | None = None) -> list[float]:
        """Return a policy's return in each counted episode it played: for one agent, or the mean over its agents."""
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
        """Return the number of failures by policy and cause."""
        counted: dict[str, Counter[str]] = {}
        for episode in self.episodes:
            for failure in episode.failures:
                counted.setdefault(failure.policy, Counter())[failure.cause] += 1
        return {name: dict(sorted(counted[name].items())) for name in self.names if name in counted}

    def result(self) -> dict[str, Any]:
        """Return the part that depends only on the seed, as plain values."""
        scores = [{"policy": name, "seat": None, **plain_score(one)} for name, one in self.scores().items() if one]
        seats = [
            {"policy": name, "seat": agent, **plain_score(one)} for (name, agent), one in self.seat_scores().items()
        ]
        team = self.team()
        return {
            **self._common(),
            "scores": scores + seats,
            "team": None if team is None else plain_score(team),
            **self._plain_wins(),
            "failures": self.failures(),
            "out": dict(self.out),
            "failed": self.failed(),
            "episodes": [plain_episode(episode) for episode in self.episodes],
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, in the format that docs/evaluate.md describes."""
        return {"format": FORMAT, "result": self.result(), "measured": plain_measured(self.measured, self.episodes)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, atomically."""
        target = Path(path)
        RunDirectory(target.parent).write_json(target.name, self.as_dict())

    def html(self) -> str:
        """Return a self-contained HTML page: scores, distributions, seats, latency, failures, rendered episodes."""
        from motet.reports.results_page import evaluation_page

        return evaluation_page(self)


def plain_measured(measured: Measured, episodes: Sequence[Episode], what: str = "episode") -> dict[str, Any]:
    """Return plain values for JSON: the measurements, and the texts of failures."""
    details = [
        {what: one.episode, "turn": one.turn, "policy": one.policy, "detail": one.detail, "output": one.output}
        for episode in episodes
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
    # In files the latency is called "tempo", to stay compatible with earlier versions.
    named = {
        "tempo" if item.name == "latency" else item.name: getattr(measured, item.name) for item in fields(measured)
    }
    extra = {
        "tempo": latency,
        "usage": {name: asdict(one) for name, one in measured.usage.items()},
        "notes": list(measured.notes),
        "failures": details,
        f"failed_{what}s": failed_episodes(episodes, what),
        "versions": versions(),
    }
    return {**named, **extra}


def failed_episodes(episodes: Sequence[Episode], what: str = "episode") -> list[dict[str, Any]]:
    """Return the failed episodes with their causes and details."""
    return [
        {what: one.number, "cause": one.failed, "policies": list(one.policies), "turn": one.turns, "detail": one.detail}
        for one in episodes
        if one.failed
    ]


def plain_score(one: Score) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {
        key: value if not isinstance(value, float) or math.isfinite(value) else None
        for key, value in asdict(one).items()
    }


def plain_episode(episode: Episode) -> dict[str, Any]:
    """Return plain values for JSON."""
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
        **({"deciding": list(episode.deciding)} if episode.deciding else {}),
    }

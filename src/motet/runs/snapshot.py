"""Snapshots: the state of a run at one moment, as plain data. Sinks write them as JSON, TensorBoard, W&B or a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

__all__ = ["AgentRow", "PartnerRow", "ProcessRow", "Snapshot", "Wait"]


class Wait(IntEnum):
    """What a process may be waiting for, as a number and as text."""

    NOTHING = 0, ""
    START = 1, "its start"
    FIRST_VERSION = 2, "the first version of the policies"
    ROWS = 3, "rows to learn from"
    ACTORS = 4, "the actors (pace)"
    LEARNERS = 5, "the learners (pace)"
    EVALUATION = 6, "its next evaluation"
    ROOM = 7, "room for its rows (the learner, or the connection to it, is slow)"
    EVALUATOR = 8, "the evaluation of this round (lockstep)"
    PARTNER = 9, "an isolated partner"
    LEARNERS_END = 10, "the end of the learners, before the last evaluation"

    words: str

    def __new__(cls, number: int, words: str = "") -> Wait:
        """Make a member from its number and its text."""
        made = int.__new__(cls, number)
        made._value_, made.words = number, words
        return made


@dataclass
class AgentRow:
    """The state of one agent."""

    name: str
    steps: int
    updates: int
    episodes: int
    mean_return: float | None
    """Mean return over the last 100 episodes of every actor; None before the first episode has ended."""
    mean_length: float | None
    steps_per_s: float
    updates_per_s: float
    replay_fill: float
    """Rows stored in the replay (if rows are read once: rows waiting) divided by its capacity."""
    replay_ratio: float
    """Sampled transitions per step."""
    version: int
    lag_versions: int
    """Versions between the newest one and the oldest one that an actor uses."""
    lag_steps: int
    """Steps done since the newest version was published."""
    broken: int
    """Number of episodes cut off by a failure, such as the death of their actor."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What its learner measured last, by name."""
    stage: str = ""
    """Current stage of its algorithm, if there are several."""
    forced: int = 0
    """Number of times that an actor was too far behind and had to load the newest version."""
    restarts: int = 0
    """Restarts of its learner process."""
    lost: int = 0
    """Engine ray: rows that were made but never reached a learner, and rows that were lost with a learner. If rows are
    read once: rows that were not in the checkpoint from which the run was resumed."""
    refused: int = 0
    """Rows that an actor sent after it had been restarted elsewhere (engine ray)."""
    version_before: int = 0
    """The version from which the run was resumed, if its versions continue from there."""
    evaluated: float | None = None
    """Mean return in the newest evaluation; None before the first one of this session."""


@dataclass
class PartnerRow:
    """The state of one agent that acts by a given policy."""

    name: str
    policy: str
    """Name of the policy."""
    episodes: int
    mean_return: float | None
    """Mean return over the last 100 episodes of every actor; None before the first episode has ended."""
    mean_length: float | None
    failures: int = 0
    """Number of times that the policy failed and was replaced, if it is isolated."""


@dataclass
class ProcessRow:
    """The state of one process."""

    name: str
    pid: int
    waits_for: str
    beat_s: float
    """Seconds since its last heartbeat."""
    restarts: int
    done: bool
    node: str = ""
    """The cluster node on which it runs."""


@dataclass
class Snapshot:
    """The state of a run at one moment."""

    seconds: float
    steps: int
    limit: int
    steps_per_s: float
    left_s: float | None
    agents: list[AgentRow]
    processes: list[ProcessRow]
    state: str = "running"
    fell_back: str = ""
    """Why the serial engine is used although processes were requested; empty if it is not."""
    late_draws: str = ""
    """The world's late draws from global random generators, in words; empty if there were none."""
    skipped_evaluations: int = 0
    """Evaluations that were skipped, because one was still playing and another one waiting."""
    partners: list[PartnerRow] = field(default_factory=list)
    """Agents that act by given policies. They are not among ``agents``, which learn."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

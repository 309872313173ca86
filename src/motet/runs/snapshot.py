"""Snapshots: a run at one moment, as plain data. Sinks turn them into JSON, TensorBoard, W&B or a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

__all__ = ["AgentRow", "ProcessRow", "Snapshot", "Wait"]


class Wait(IntEnum):
    """What a process may be waiting for, in words too."""

    NOTHING = 0, ""
    START = 1, "its start"
    FIRST_VERSION = 2, "the first version of the policies"
    ROWS = 3, "rows to learn from"
    ACTORS = 4, "the actors (pace)"
    LEARNERS = 5, "the learners (pace)"
    EVALUATION = 6, "its next evaluation"
    ROOM = 7, "room for its rows (their learner, or the way there, is slow)"
    EVALUATOR = 8, "the evaluation of this round (lockstep)"

    words: str

    def __new__(cls, number: int, words: str = "") -> Wait:
        """A number that knows its words."""
        made = int.__new__(cls, number)
        made._value_, made.words = number, words
        return made


@dataclass
class AgentRow:
    """One agent."""

    name: str
    steps: int
    updates: int
    episodes: int
    mean_return: float | None
    """Over the last 100 episodes of every actor."""
    mean_length: float | None
    steps_per_s: float
    updates_per_s: float
    replay_fill: float
    """Rows stored, or where they are read once waiting, over the capacity."""
    replay_ratio: float
    """Transitions drawn for each step."""
    version: int
    lag_versions: int
    """How many versions the actor that is furthest behind is behind the newest."""
    lag_steps: int
    """Steps done since the newest version was published."""
    broken: int
    """Episodes that broke off."""
    metrics: dict[str, float] = field(default_factory=dict)
    stage: str = ""
    """Of its algorithm's stages, where there are several."""
    forced: int = 0
    """How often an actor was too far behind and had to take the newest version."""
    restarts: int = 0
    """Of the process that learns for it."""
    lost: int = 0
    """Rows that are known to have been made and never reached a learner, and those lost with one (engine ray); of rows
    that are read once, those that were not in the checkpoint from which the run went on."""
    refused: int = 0
    """Rows that an actor sent after it had been restarted elsewhere (engine ray)."""
    version_before: int = 0
    """The version with which the run was resumed, where versions count on."""


@dataclass
class ProcessRow:
    """One process."""

    name: str
    pid: int
    waits_for: str
    beat_s: float
    """Seconds since its last heartbeat."""
    restarts: int
    done: bool
    node: str = ""
    """Where it is, on a cluster."""


@dataclass
class Snapshot:
    """A run at one moment."""

    seconds: float
    steps: int
    limit: int
    steps_per_s: float
    left_s: float | None
    agents: list[AgentRow]
    processes: list[ProcessRow]
    state: str = "running"
    fell_back: str = ""
    """Why the serial engine plays it although processes were asked for; empty where it does not."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

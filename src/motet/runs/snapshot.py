"""Snapshots: the state of a run at one moment, as plain data. Sinks write them as JSON, TensorBoard, W&B or a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from motet.system.gpus import GpuUse

__all__ = ["ACTIVITIES", "WAITS", "AgentRow", "PartnerRow", "ProcessRow", "Snapshot", "Wait", "Work"]


class Wait(IntEnum):
    """What a process may be waiting for: a number, a text, and the activity to which the waiting time is added."""

    NOTHING = 0, "", ""
    START = 1, "its start", "start"
    FIRST_VERSION = 2, "the first version of the policies", "weights"
    ROWS = 3, "rows to learn from", "rows"
    ACTORS = 4, "the actors (pace)", "pace"
    LEARNERS = 5, "the learners (pace)", "pace"
    EVALUATION = 6, "its next evaluation", "idle"
    ROOM = 7, "room for its rows (the learner, or the connection to it, is slow)", "rows"
    EVALUATOR = 8, "the evaluation of this round (lockstep)", "evaluation"
    PARTNER = 9, "an isolated partner", "partner"
    WEIGHTS = 10, "a version that is being written", "weights"
    DISK = 11, "the disk", "disk"
    LEARNERS_END = 12, "the end of the learners, before the last evaluation", "idle"

    words: str
    activity: str

    def __new__(cls, number: int, words: str = "", activity: str = "") -> Wait:
        """Make a member from its number, its text and its activity."""
        made = int.__new__(cls, number)
        made._value_, made.words, made.activity = number, words, activity
        return made


class Work(IntEnum):
    """Parts of the work of a process whose time is measured. No :class:`Wait` has one of these numbers.

    The rest of the time counts as ``world`` for an actor and as ``other`` for a learner.
    """

    POLICIES = 20
    """Actors: choosing actions and writing rows. Waiting for weights and for room is included here, and also counted as
    waiting."""
    BATCHES = 21
    """Learners: drawing batches, and writing their priorities."""
    UPDATES = 22
    """Learners: the updates of the algorithm."""
    PUBLISHING = 23
    """Learners: writing the vault and the publications."""


WAITS = ("pace", "rows", "weights", "partner", "disk", "start", "idle")
"""Activities in which a process waits."""
ACTIVITIES = ("world", "policies", "updates", "batches", "publishing", "evaluation", "other", *WAITS)
"""Everything on which a process spends its time, in the order in which it is shown."""


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
    """Rows stored in the replay, divided by its capacity. If rows are read once, only rows that wait to be read
    count."""
    samples_per_row: float
    """Sampled transitions per step so far: how often a row is used on average."""
    version: int
    lag_versions: int
    """Versions between the newest one and the oldest one that an actor uses."""
    lag_steps: int
    """Steps done since the newest version was published."""
    broken: int
    """Number of episodes cut off by a failure, such as the death of their actor."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Newest metrics of the agent's learner, by name."""
    stage: str = ""
    """Current stage of the agent's algorithm, if there are several stages."""
    forced: int = 0
    """Number of times that an actor was too far behind and had to load the newest version."""
    restarts: int = 0
    """Number of restarts of the agent's learner process."""
    updates_per_step: float = 0.0
    """Updates per step of the agent so far."""
    lost: int = 0
    """Engine ray: rows that were made but never reached a learner, and rows that were lost with a learner. If rows are
    read once: rows that were not in the checkpoint from which the run was resumed."""
    refused: int = 0
    """Rows that an actor sent after it had been restarted elsewhere (engine ray)."""
    version_before: int = 0
    """The version at which the run was resumed, if version numbers continue from there; otherwise 0."""
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
    """Seconds since the last heartbeat of the process."""
    restarts: int
    done: bool
    node: str = ""
    """The cluster node on which the process runs."""
    spent_s: dict[str, float] = field(default_factory=dict)
    """Seconds spent on each activity (:data:`ACTIVITIES`) since the run was started or resumed."""
    memory_bytes: int | None = None
    """Resident memory of the process, without memory shared with other processes. After the end of the process: its
    memory at the last snapshot before. None if unknown, as on other nodes."""
    shares: dict[str, float] = field(default_factory=dict)
    """The share of each activity in the last ten seconds. They add up to 1; empty before the process has started."""


@dataclass
class Snapshot:
    """The state of a run at one moment."""

    seconds: float
    steps: int
    limit: int
    """Number of steps after which the run ends; if episodes end it, an estimate from those played so far."""
    steps_per_s: float
    left_s: float | None
    agents: list[AgentRow]
    processes: list[ProcessRow]
    state: str = "running"
    fell_back: str = ""
    """Why the serial engine is used although processes were requested; empty if it is not."""
    late_draws: str = ""
    """In words: draws of worlds from global random generators, after they had given up their own streams; empty if
    none."""
    episodes: int = 0
    """Episodes that have ended in all worlds, including those before the run was resumed."""
    episode_limit: int = 0
    """Number of episodes that end the run; 0 if there is no limit."""
    skipped_evaluations: int = 0
    """Evaluations that were skipped, because one was still being played and another one was waiting."""
    partners: list[PartnerRow] = field(default_factory=list)
    """Agents that act by given policies. They are not among ``agents``, which learn."""
    shared_bytes: int = 0
    """Size of the memory that the processes share: replays, publications, vaults and the board."""
    gpus: list[GpuUse] = field(default_factory=list)
    """The use of this machine's GPUs; empty if there are none, or if their driver does not answer."""
    episodes_per_s: float = 0.0
    """Episodes per second of the agent with the most episodes."""
    main: ProcessRow | None = None
    """The process that supervises the others and writes the files of the run; None with the serial engine, where the
    only process does that too."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What worlds measured (``info["metrics"]``): the mean of each number over the last 100 episodes of every actor."""
    episodes_lost: int = 0
    """Finished episodes without a line in ``episodes.jsonl``, because the ring in which their actor records episodes
    was full."""
    metrics_lost: int = 0
    """Numbers that worlds measured and that did not fit into the records of their episodes."""
    bottleneck: str = ""
    """What limits the speed of the run, and the setting to change, in one sentence; empty before that is known."""

    def shares_by_role(self) -> dict[str, dict[str, float]]:
        """Return the mean share of each activity by role: actors, learners, evaluator, main."""
        rows: dict[str, list[ProcessRow]] = {}
        for row in (*self.processes, *([] if self.main is None else [self.main])):
            kind, dash, _ = row.name.rpartition("-")
            if row.shares:
                rows.setdefault(f"{kind}s" if dash else row.name, []).append(row)
        return {
            role: {
                name: sum(row.shares.get(name, 0.0) for row in own) / len(own)
                for name in ACTIVITIES
                if any(name in row.shares for row in own)
            }
            for role, own in rows.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

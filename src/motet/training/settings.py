"""Settings of a training run. Hyperparameters of the learners are in the algorithm's config."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from motet.errors import SettingError
from motet.foreign_names import suggesting
from motet.pace import Pace
from motet.placement import Cluster, check_device
from motet.settings import FINITE, check_fields
from motet.system.supervisor import RestartLimits
from motet.training.league import League

__all__ = ["OWN", "UNLIMITED", "AgentSettings", "ScoreFunction", "Settings"]

UNLIMITED = 2**62
"""Step limit of a run that only episodes or seconds end."""

ScoreFunction = Callable[[Any], float]
"""A function that returns the score of an evaluation, given its :class:`~motet.training.Outcome`."""

_NOT_IN_PERIODS = ("slack", "publish_every", "publish", "sync_interval", "max_lag_versions", "max_lag_steps")


@suggesting("run")
@dataclass(frozen=True)
class Settings:
    """Settings of a training run. Hyperparameters of the learners are in the algorithm's config.

    >>> Settings(steps=5_000, actors=2, updates_per_step=0.5).actors
    2
    """

    steps: Annotated[int, Ge(1)] | None = None
    """Number of steps per agent, summed over all worlds. Each actor takes a share of the steps, and finishes the round
    in which it reaches the end of its share. By default 100,000, or no limit if ``episodes`` is given."""
    episodes: Annotated[int, Ge(1)] | None = None
    """Number of episodes. They are divided equally among the worlds in advance, and each world stops after its part,
    so the number is exact. The run ends earlier if it reaches ``steps`` or ``seconds`` first."""
    seed: Annotated[int, Ge(0)] = 0
    """Random seed. Two runs with the same seed have the same result if the runs are ``reproducible``, in lockstep
    (``slack`` 0) or serial. Two asynchronous runs differ."""
    engine: Literal["processes", "serial", "ray"] = "processes"
    """Where actors and learners run: in separate processes (``processes``), alternating in the calling process
    (``serial``), or on a Ray cluster (``ray``)."""
    actors: Annotated[int, Ge(1)] = 1
    """Number of actor processes."""
    worlds_per_actor: Annotated[int, Ge(1)] = 1
    """Number of worlds that each actor steps together."""
    learner_processes: Annotated[int, Ge(1)] | None = None
    """Number of learner processes, which share the agents equally. By default one per core that the actors leave free,
    at most one per agent."""
    updates_per_step: Annotated[float, Gt(0), FINITE] | None = None
    """Number of updates per step of the agent. By default actors and learners do not wait for each other; with
    ``engine`` ``serial`` the default is 1. Not valid for algorithms that read every row once (PPO): these update once
    per batch of rows."""
    reproducible: bool = False
    """Make the result depend only on the settings and the seed, although actors and learners work at the same time. The
    run is divided into periods: while actors collect the rows of one period, learners learn from the rows of the period
    before. By default motet chooses ``period``, and ``updates_per_step`` is 0.25."""
    period: Annotated[int, Ge(1)] | None = None
    """Number of rounds in a period of a reproducible run. By default the smallest number of rounds for which 8 updates
    are due, or which gives one batch if the algorithm reads every row once (PPO). If agents act in turn, each turn is a
    round."""
    ahead: Literal[0, 1] | None = None
    """Number of periods that actors are ahead of the learners in a reproducible run. With 1 (default) both work at the
    same time. With 0 they take turns: actors collect a period, then learners learn from it."""
    slack: Annotated[float, Ge(0)] | None = None
    """Number of updates by which actors or learners may be ahead of the pace that ``updates_per_step`` sets; 0 is
    lockstep. The default is 32, but unlimited if ``updates_per_step`` is not set, and 1 for algorithms that read every
    row once (PPO)."""
    publish_every: Annotated[int, Ge(1)] = 10
    """Number of updates between two published versions of a policy."""
    publish: Literal["double_buffer", "snapshot"] = "double_buffer"
    """How many slots in shared memory hold the versions of a policy. Two (``double_buffer``): one version can be read
    while the next one is written. One (``snapshot``): the next version overwrites the last one."""
    device: str | None = None
    """Device on which policies are learned: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``. ``auto`` takes CUDA,
    else MPS, else the CPU. With several GPUs, learner processes are assigned to them in turn. By default the CPU, or
    CUDA where ``cluster.learner_gpus`` reserves it."""
    sync_interval: Annotated[int, Ge(1)] = 1
    """Number of an agent's turns between two checks for a new version of its policy; 1 checks before every action."""
    max_lag_versions: Annotated[int, Ge(0)] | None = None
    """Largest lag of an agent's policy behind the newest version, in versions. An agent that exceeds it loads the
    newest version before its next action, regardless of ``sync_interval``. Such forced loads are counted."""
    max_lag_steps: Annotated[int, Ge(0)] | None = None
    """Largest lag of an agent's policy in steps: the number of the agent's steps between the publication of the version
    in use and the publication of the newest version. An agent that exceeds it loads the newest version, as with
    ``max_lag_versions``."""
    seconds: Annotated[float, Gt(0)] | None = None
    """Stop after this many seconds, even if steps remain."""
    metrics_every_s: Annotated[float, Gt(0), FINITE] = 1.0
    """Seconds between two lines of metrics, and between two calls of ``on_update``."""
    evaluate_every: Annotated[int, Ge(1)] | None = None
    """Number of steps between evaluations. An evaluation plays greedy episodes with the published policies. In
    self-play, it plays games against the anchors, on both sides. Evaluations run in a separate process. In lockstep and
    with ``engine`` ``serial``, training pauses at the end of a round until the evaluation is done. A reproducible run
    waits for an evaluation only when the next one is due."""
    evaluate_every_s: Annotated[float, Gt(0), FINITE] | None = None
    """Seconds between evaluations, instead of ``evaluate_every`` or in addition to it. With either setting, the last
    evaluation plays the final weights, whatever ended the run."""
    evaluate_episodes: Annotated[int, Ge(1)] = 20
    """Number of episodes per evaluation."""
    until_return: float | None = None
    """Stop when the team's mean return in an evaluation reaches this value."""
    until_score: float | None = None
    """Stop when the score of an evaluation reaches this value."""
    score: ScoreFunction | None = None
    """Function that returns the score of an evaluation, given a ``motet.training.Outcome``. The policies with the best
    score are kept. In files and flags it is the path of the function, ``module:name``. By default the team's mean
    return; in self-play the mean win rate."""
    checkpoint_every: Annotated[int, Ge(1)] | None = None
    """Number of steps between checkpoints. By default a tenth of all steps, but at most one minute passes before the
    first checkpoint and about five minutes before each later one. These time limits do not apply if a number is given,
    or with ``engine`` ``serial`` and ``keep_replay``."""
    episodes_mb: Annotated[float, Ge(0)] = 64.0
    """Size in megabytes at which every second line of ``episodes.jsonl`` is removed. The file has a line for each
    finished episode. 0: no such file."""
    keep_replay: bool = False
    """Include the replay buffers in checkpoints."""
    replay_directory: str | None = None
    """Folder on a disk for replay buffers that are larger than the memory. The buffers are then kept in an unnamed file
    in this folder instead of in memory. Not valid with ``engine`` ``ray``."""
    remake_worlds: bool = False
    """Create a world again when it raises an exception, instead of ending the run."""
    fall_back: bool = False
    """Use the serial engine if no process can be started, or the world cannot be sent to a process. The run prints a
    warning and records the reason."""
    checked: bool = False
    """For debugging: write a checksum with every row and every version, and verify it on reading."""
    self_play: bool = False
    """Train one policy for both sides of a two-player world, against the league."""
    league: League = field(default_factory=League)
    """Opponents in self-play."""
    limits: RestartLimits = field(default_factory=RestartLimits)
    """When processes count as hung, how often they are restarted, and when the run fails."""
    cluster: Cluster = field(default_factory=Cluster)
    """Resources that a run requests from a Ray cluster."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_device("device", self.device)
        self._check_rules()
        self._check_periods()

    @property
    def in_periods(self) -> bool:
        """Whether the run is divided into periods, so that its result is a function of its seed."""
        return self.reproducible or self.period is not None

    def _check_periods(self) -> None:
        if not self.in_periods:
            if self.ahead is not None:
                raise SettingError(f"ahead is only valid with reproducible or period (got ahead={self.ahead})")
            return
        unused = {name: Settings.__dataclass_fields__[name].default for name in _NOT_IN_PERIODS}
        for name, default in unused.items():
            if (given := getattr(self, name)) != default:
                raise SettingError(
                    f"{name} is not valid with reproducible or period (got {given!r}): there is one version for each "
                    "period, and period and ahead say when it is used"
                )
        if self.evaluate_every_s is not None:
            raise SettingError(
                f"evaluate_every_s is not valid with reproducible or period (got {self.evaluate_every_s!r}): a clock "
                "would choose the versions that are evaluated; fix: use evaluate_every"
            )

    @property
    def step_limit(self) -> int:
        """The number of steps that ends the run."""
        if self.steps is not None:
            return self.steps
        return 100_000 if self.episodes is None else UNLIMITED

    @property
    def evaluates(self) -> bool:
        """Whether the run has evaluations."""
        return self.evaluate_every is not None or self.evaluate_every_s is not None

    def _check_rules(self) -> None:
        for name in ("until_return", "until_score", "score"):
            if getattr(self, name) is not None and not self.evaluates:
                raise SettingError(
                    f"{name} is only valid with evaluate_every or evaluate_every_s (got evaluate_every=None)"
                )
        if self.until_return is not None and self.evaluate_every is not None and self.evaluate_every > self.step_limit:
            raise SettingError(
                f"evaluate_every must be at most the {self.step_limit} steps of the run if until_return is given, got "
                f"{self.evaluate_every}"
            )
        if self.self_play and self.until_return is not None:
            raise SettingError(
                "until_return is not valid in self-play: its evaluations measure win rates, not returns; fix: use "
                "until_score"
            )
        if not self.self_play and self.league != League():
            raise SettingError("league is only valid with self_play=True (got self_play=False)")
        if self.engine != "ray" and self.cluster != Cluster():
            raise SettingError(f"cluster is only valid with engine='ray' (got engine={self.engine!r})")
        if self.engine == "ray" and self.replay_directory is not None:
            raise SettingError(
                f"replay_directory must be None with engine='ray', got {self.replay_directory!r}: each node has the "
                "replays of its learners in memory"
            )
        Pace(
            1.0 if self.updates_per_step is None else self.updates_per_step,
            math.inf if self.slack is None else self.slack,
        )


@dataclass(frozen=True)
class AgentSettings:
    """Algorithm of a single agent, with the settings of this agent that differ from those of the run.

    >>> from motet import Settings, train
    >>> quick = AgentSettings("dqn", publish="snapshot", publish_every=1)
    >>> settings = Settings(steps=100, engine="serial")
    >>> train("matrix", {"player_0": quick, "player_1": "dqn"}, settings).state
    'done'
    """

    algorithm: Any
    """The agent's algorithm: a config or a name."""
    publish: Literal["double_buffer", "snapshot"] | None = None
    """How the agent's policy is published. None: as set for the run."""
    publish_every: Annotated[int, Ge(1)] | None = None
    """Number of updates between two published versions of the agent's policy. None: as set for the run."""
    device: str | None = None
    """Device on which the agent's policy is learned. None: as set for the run."""
    start_from: str | None = None
    """Run or checkpoint from which the agent gets its initial weights: the weights of the agent with the same name, or
    of the only agent if the run has only one. ``runs/a,agent=NAME,step=N`` names another agent and a checkpoint. None:
    random initial weights."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_device("device", self.device)

    @classmethod
    def of(cls, given: Any) -> AgentSettings:
        """Return the settings of an agent: the given object, or a new one for an algorithm without further settings."""
        return given if isinstance(given, AgentSettings) else cls(given)

    @property
    def own(self) -> dict[str, Any]:
        """The settings that differ from those of the run, by name."""
        values = {name: getattr(self, name) for name in OWN}
        return {name: value for name, value in values.items() if value is not None}


OWN = ("publish", "publish_every", "device", "start_from")
"""The fields of :class:`AgentSettings` that replace settings of the run."""

"""Settings: how a run is played. What an agent learns with is the algorithm's config."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from motet.errors import SettingError
from motet.pace import Pace
from motet.placement import Cluster
from motet.settings import FINITE, check_fields
from motet.system.supervisor import RestartLimits
from motet.training.league import League

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """How a run is played. What an agent learns with is the algorithm's config.

    >>> Settings(steps=5_000, actors=2, updates_per_step=0.5).actors
    2
    """

    steps: Annotated[int, Ge(1)] = 100_000
    """Steps of each agent, in all worlds together; actors end with the round that reaches them."""
    seed: Annotated[int, Ge(0)] = 0
    """Of everything random."""
    engine: Literal["processes", "serial", "ray"] = "processes"
    """Roles in processes of their own, one after the other in this one, or on a Ray cluster."""
    actors: Annotated[int, Ge(1)] = 1
    """Actor processes."""
    worlds_per_actor: Annotated[int, Ge(1)] = 1
    """Worlds that an actor steps together."""
    learner_processes: Annotated[int, Ge(1)] | None = None
    """Learner processes that share the agents; by default as many as the cores can feed beside the actors."""
    updates_per_step: Annotated[float, Gt(0), FINITE] | None = None
    """Updates of a learner for each step of its agent; by default learners run freely (serial: 1). Not for agents that
    read every row once (PPO): they update once for each batch of rows."""
    slack: Annotated[float, Ge(0)] | None = None
    """Updates that either side may be ahead; 0 is lockstep. By default 32, or free without updates_per_step; 1 for
    agents that read every row once."""
    publish_every: Annotated[int, Ge(1)] = 10
    """Updates between two versions of a policy."""
    publish: Literal["double_buffer", "snapshot"] = "double_buffer"
    """How policies are published: two slots or one."""
    sync_interval: Annotated[int, Ge(1)] = 1
    """Turns of an agent between two checks for a new version of its policy; 1: before every action."""
    max_lag_versions: Annotated[int, Ge(0)] | None = None
    """An agent whose version is more versions old loads the newest one before its next action, whatever sync_interval
    says. This is counted."""
    max_lag_steps: Annotated[int, Ge(0)] | None = None
    """The same for an agent whose version was published more of its steps before the newest one."""
    seconds: Annotated[float, Gt(0)] | None = None
    """End after so long, even if steps are left."""
    evaluate_every: Annotated[int, Ge(1)] | None = None
    """Steps between evaluations: greedy episodes of the published policies; in self-play games against the anchors, on
    both sides. In a process of their own; in lockstep and with engine serial at the end of a round, which waits."""
    evaluate_episodes: Annotated[int, Ge(1)] = 20
    """Episodes of an evaluation."""
    until_return: float | None = None
    """End when the team's mean return in an evaluation reaches this."""
    checkpoint_every: Annotated[int, Ge(1)] | None = None
    """Steps between checkpoints, and nothing else; by default a tenth of all steps, but a minute after the start and
    then five minutes at most (with engine serial and keep_replay by steps alone, which is exact)."""
    keep_replay: bool = False
    """Write the replay into checkpoints too."""
    remake_worlds: bool = False
    """Make a world anew when it raises, instead of ending the run."""
    fall_back: bool = False
    """If no process can be started, or the world cannot be sent to one, play the run with the serial engine instead:
    said aloud, and written down."""
    checked: bool = False
    """Debugging: checksum every row and every version, and verify them on reading."""
    self_play: bool = False
    """One player learns to play both sides of a two-player world, against the league."""
    league: League = field(default_factory=League)
    """Whom it meets in self-play."""
    limits: RestartLimits = field(default_factory=RestartLimits)
    """When processes are restarted, and when the run gives up."""
    cluster: Cluster = field(default_factory=Cluster)
    """What a run takes of a Ray cluster."""

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_rules()

    def _check_rules(self) -> None:
        if self.until_return is not None and self.evaluate_every is None:
            raise SettingError("until_return is only valid with evaluate_every, which measures it")
        if self.until_return is not None and self.evaluate_every is not None and self.evaluate_every > self.steps:
            raise SettingError(
                f"evaluate_every must be at most the {self.steps} steps of the run where until_return is given, got "
                f"{self.evaluate_every}"
            )
        if self.self_play and self.until_return is not None:
            raise SettingError("until_return is not valid in self-play: its evaluations measure win rates, not returns")
        if not self.self_play and self.league != League():
            raise SettingError("league is only valid with self_play=True (got self_play=False)")
        if self.engine != "ray" and self.cluster != Cluster():
            raise SettingError(f"cluster is only valid with engine='ray' (got engine={self.engine!r})")
        Pace(
            1.0 if self.updates_per_step is None else self.updates_per_step,
            math.inf if self.slack is None else self.slack,
        )

"""Messages between the hosts of a cluster and the driver. They are plain values and are sent as a whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet.runs.checkpoint import Checkpoint
from motet.training.episodes import EpisodeRecord

__all__ = ["ActorReport", "BlockReply", "JoinReply", "LearnerReport", "LearnerStart", "RestartState"]


class JoinReply(NamedTuple):
    """A learner's reply to an actor that joins it, at the start or after a restart."""

    words: list[npt.NDArray[np.uint64]]
    """Words of the actor's lanes, by policy: ``[lanes, words]``."""
    steps_before: list[int]
    updates_before: list[int]
    round: int
    """Last round of the actor that the learner knows."""
    number: int
    """How often the learner was started before."""
    gone: list[npt.NDArray[np.int64]]
    """Steps whose rows were lost with a learner, by policy of the learner and by lane (``LocalMemory.gone``)."""
    results: npt.NDArray[np.uint64] | None
    """In self-play, the actor's ring of results."""
    periods: int
    """With periods: number of the actor's periods that have ended and whose rows have all arrived."""
    totals: npt.NDArray[np.uint64] | None
    """With periods: the actor's totals at the ends of the last two of these periods, by even or odd number of the
    period."""


class BlockReply(NamedTuple):
    """A learner's reply to a block."""

    rows: list[int]
    """Number of rows of each piece that have arrived, because there was room for them."""
    words: list[npt.NDArray[np.uint64]]
    """Words of the actor's lanes, by policy: ``[lanes, words]``."""
    learned: npt.NDArray[np.uint64]
    """Rows of the board for the learner's policies."""
    pace: npt.NDArray[np.int64]
    bundles: list[list[tuple[int, Any]]]
    """For each bundle, the versions that the actor does not have, the oldest first: number and location."""
    periods: int
    """With periods: number of the actor's periods that have ended and whose rows have all arrived."""


class ActorReport(NamedTuple):
    """An actor's answer to a poll of the driver."""

    number: int
    """How often the process was started before."""
    node: str
    age_s: float
    """Seconds since the last heartbeat."""
    alive: npt.NDArray[np.float64]
    spent: npt.NDArray[np.float64]
    """Seconds spent on each activity, as :meth:`Board.spent` returns them."""
    round: int
    periods: int
    """With periods: number of periods that the actor has ended, and number of periods that it has begun."""
    begun: int
    paused: bool
    """Whether the actor knew, before it counted these periods, that no actor may begin another period."""
    episodes: npt.NDArray[np.float64]
    counted: npt.NDArray[np.uint64]
    """By world, episodes that have ended."""
    made: list[int]
    """Rows made in this incarnation, by policy."""
    came: list[int]
    """Number of the rows in ``made`` that are known to have arrived, by policy."""
    newest: list[int]
    """The newest version that came from each learner process."""
    words: list[npt.NDArray[np.uint64]]
    """Words of the actor's lanes as the learners last reported them, by policy: ``[lanes, words]``."""
    ended: list[EpisodeRecord]
    """Episodes that have finished since the last report."""
    ended_lost: int
    """Number of episodes that are missing in the reports."""
    heard: list[int]
    """For each learner process that reported these ``words``: how often it was started before."""


class LearnerReport(NamedTuple):
    """A learner's answer to a poll of the driver."""

    number: int
    """How often the process was started before."""
    node: str
    age_s: float
    """Seconds since the last heartbeat."""
    alive: npt.NDArray[np.float64]
    spent: npt.NDArray[np.float64]
    """Seconds spent on each activity, as :meth:`Board.spent` returns them."""
    learned: npt.NDArray[np.uint64]
    metrics: npt.NDArray[np.float64]
    names: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.uint64]
    words: list[npt.NDArray[np.uint64]]
    """Words of all lanes, by policy: ``[lanes, words]``."""
    steps_before: list[int]
    updates_before: list[int]
    gone: list[npt.NDArray[np.int64]]
    """Steps whose rows were lost with a learner, by policy of the learner and by lane (``LocalMemory.gone``)."""
    incarnations: list[int]
    """Incarnations of the actors that have joined; -1 for the others."""
    newest: int
    """The newest version that the learner has published."""
    bundles: list[list[tuple[int, npt.NDArray[np.uint8]]]]
    """For each bundle that was requested, the versions that the driver does not have, the oldest first."""
    vaults: npt.NDArray[np.uint8] | None
    """The contents of the vaults, if they were requested."""
    results: npt.NDArray[np.uint64] | None
    """In self-play, the results of games, if the vaults were requested."""
    replays: dict[int, list[npt.NDArray[np.uint8]]]
    """Memory of the lanes by policy; only in the last report."""


class LearnerStart(NamedTuple):
    """The state with which a learner process starts."""

    checkpoint: Checkpoint
    began: list[int]
    """Steps of each policy of the run when this session began."""
    after: RestartState | None = None


class RestartState(NamedTuple):
    """The driver's information about a learner that died, for the restarted learner."""

    version: int
    """A version number above all version numbers that actors have received. With periods: the newest one that an actor
    has received."""
    steps: list[int]
    """Steps done, by policy."""
    gone: list[npt.NDArray[np.int64]]
    """Steps whose rows were lost with a learner, by policy of the learner and by lane (``LocalMemory.gone``)."""
    counts: list[tuple[int, int]]
    """Rows lost and rows refused so far, by policy."""
    incarnations: list[int]
    """Incarnations of the actors that had joined."""
    rounds: npt.NDArray[np.uint64]
    """Rounds of the actors."""
    over: dict[int, int]
    """For actors that have finished and need not send anything again: the number of periods that each has ended."""
    evaluation: int
    """With periods: the number of the newest evaluation whose policies the driver has."""

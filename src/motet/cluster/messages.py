"""What the hosts of a cluster send each other and the driver: values that travel whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet.runs.checkpoint import Checkpoint

__all__ = ["ActorReport", "BlockReply", "JoinReply", "LearnerReport", "LearnerStart", "RestartState"]


class JoinReply(NamedTuple):
    """A learner's reply to an actor that begins, or that turns to it after a restart."""

    words: list[npt.NDArray[np.uint64]]
    """By policy, ``[lanes, words]`` of the actor's lanes."""
    steps_before: list[int]
    updates_before: list[int]
    round: int
    """Which the actor had got to before."""
    number: int
    """Which start of the learner."""
    gone: list[npt.NDArray[np.int64]]
    """As in :class:`LocalMemory`, of its policies."""
    results: npt.NDArray[np.uint64] | None
    """In self-play: the actor's ring of results."""


class BlockReply(NamedTuple):
    """A learner's reply to a block."""

    rows: list[int]
    """How many of each piece there was room for."""
    words: list[npt.NDArray[np.uint64]]
    """As in :class:`JoinReply`."""
    learned: npt.NDArray[np.uint64]
    """The board's rows of its policies."""
    pace: npt.NDArray[np.int64]
    bundles: list[tuple[int, Any]]
    """The number of each and, if it is news, where it is."""


class ActorReport(NamedTuple):
    """What the driver learns when it polls an actor."""

    number: int
    """Which start of it."""
    node: str
    age_s: float
    alive: npt.NDArray[np.float64]
    round: int
    episodes: npt.NDArray[np.float64]
    made: list[int]
    """Rows by policy, in this incarnation."""
    came: list[int]
    """How many of them are known to have arrived."""
    newest: list[int]
    """By learner process, the newest version of anything that came from there."""
    words: list[npt.NDArray[np.uint64]]
    """By policy, ``[lanes, words]`` of its lanes, as the learners last reported."""
    heard: list[int]
    """By learner process, which start of it reported that."""


class LearnerReport(NamedTuple):
    """What the driver learns when it polls a learner."""

    number: int
    """Which start of it."""
    node: str
    age_s: float
    alive: npt.NDArray[np.float64]
    learned: npt.NDArray[np.uint64]
    metrics: npt.NDArray[np.float64]
    names: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.uint64]
    words: list[npt.NDArray[np.uint64]]
    """By policy, ``[lanes, words]``, all lanes."""
    steps_before: list[int]
    updates_before: list[int]
    gone: list[npt.NDArray[np.int64]]
    """As in :class:`LocalMemory`, of its policies."""
    incarnations: list[int]
    """Of the actors that have joined; -1 for the others."""
    newest: int
    """The newest version of anything it has published."""
    bundles: list[tuple[int, npt.NDArray[np.uint8] | None]]
    """The number of each and, if it is news and wanted, the bundle itself."""
    vaults: npt.NDArray[np.uint8] | None
    """If they were asked for."""
    results: npt.NDArray[np.uint64] | None
    """With the vaults, in self-play."""
    replays: dict[int, list[npt.NDArray[np.uint8]]]
    """By policy, the memory of its lanes, at the end."""


class LearnerStart(NamedTuple):
    """What a learner process begins with, if not with nothing."""

    checkpoint: Checkpoint
    after: RestartState | None = None


class RestartState(NamedTuple):
    """What the driver knows of a learner that died, for its restart."""

    version: int
    """Above all that any actor has seen."""
    steps: list[int]
    """By policy, steps that have been done."""
    gone: list[npt.NDArray[np.int64]]
    """As in :class:`LocalMemory`, of its policies."""
    counts: list[tuple[int, int]]
    """By policy, rows lost and refused so far."""
    incarnations: list[int]
    """Of the actors that had joined."""
    rounds: npt.NDArray[np.uint64]
    """Of the actors."""

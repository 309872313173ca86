"""Placement: what a run takes of a cluster. Settings only; nothing here loads Ray."""

from __future__ import annotations

import math
from dataclasses import dataclass

from motet.errors import SettingError
from motet.settings import check_types

__all__ = ["Cluster"]


@dataclass(frozen=True)
class Cluster:
    """What a run takes of a Ray cluster.

    >>> from motet import Settings
    >>> Settings(engine="ray", cluster=Cluster(address="auto", learner_gpus=0.25)).cluster.learner_gpus
    0.25
    """

    address: str | None = None
    """Of a running cluster (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``); by default Ray starts on this machine."""
    actor_cpus: float = 1.0
    """Cores of an actor. Actors are spread over the nodes."""
    learner_cpus: float = 1.0
    """Cores of a learner process."""
    learner_gpus: float = 0.0
    """GPUs of a learner process; a share of one where several fit on it."""
    block_age_s: float | None = None
    """Rows wait for at most so long until they are sent, as one block for each actor and learner process; by default
    6 ms for each learner process, and 10 at least, so that sending takes a quarter of an actor's core."""
    keep_every_s: float = 2.0
    """How often the state of each learner comes home: a learner whose node dies goes on from there."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("actor_cpus", "learner_cpus", "learner_gpus", "block_age_s", "keep_every_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise SettingError(f"{name}: given {value}, expected a finite number from 0 on")

    def age_s(self, learners: int) -> float:
        """How long rows wait until they are sent, where there are so many learner processes.

        >>> Cluster().age_s(1), Cluster().age_s(50), Cluster(block_age_s=0.02).age_s(50)
        (0.01, 0.3, 0.02)
        """
        return max(0.01, 0.006 * learners) if self.block_age_s is None else self.block_age_s

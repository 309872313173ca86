"""Placement: what a run takes of a cluster. Settings only; nothing here loads Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from motet.settings import FINITE, check_fields

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
    actor_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """Cores of an actor. Actors are spread over the nodes."""
    learner_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """Cores of a learner process."""
    learner_gpus: Annotated[float, Ge(0), FINITE] = 0.0
    """GPUs of a learner process; a share of one where several fit on it."""
    block_age_s: Annotated[float, Ge(0), FINITE] | None = None
    """Rows wait for at most so long until they are sent, as one block for each actor and learner process; by default
    6 ms for each learner process, and 10 at least, so that sending takes a quarter of an actor's core."""
    keep_every_s: Annotated[float, Ge(0), FINITE] = 2.0
    """How often the state of each learner comes home: a learner whose node dies goes on from there."""

    def __post_init__(self) -> None:
        check_fields(self)

    def age_s(self, learners: int) -> float:
        """How long rows wait until they are sent, where there are so many learner processes.

        >>> Cluster().age_s(1), Cluster().age_s(50), Cluster(block_age_s=0.02).age_s(50)
        (0.01, 0.3, 0.02)
        """
        return max(0.01, 0.006 * learners) if self.block_age_s is None else self.block_age_s

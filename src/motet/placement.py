"""Placement: the resources that a run uses on a Ray cluster. These are settings only; nothing here loads Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from motet.settings import FINITE, check_fields

__all__ = ["Cluster"]


@dataclass(frozen=True)
class Cluster:
    """Address of a Ray cluster, and the resources that a run uses there.

    >>> from motet import Settings
    >>> Settings(engine="ray", cluster=Cluster(address="auto", learner_gpus=0.25)).cluster.learner_gpus
    0.25
    """

    address: str | None = None
    """Address of a running cluster (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``). Default: start Ray here."""
    actor_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """CPU cores of each actor. Actors are spread over the nodes."""
    learner_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """CPU cores of each learner process."""
    learner_gpus: Annotated[float, Ge(0), FINITE] = 0.0
    """GPUs of each learner process; a fraction if several share one GPU."""
    block_age_s: Annotated[float, Ge(0), FINITE] | None = None
    """Longest time in seconds that rows wait before they are sent, in one block for each actor and learner process.
    Default: 6 ms for each learner process, at least 10 ms, so that sending takes a quarter of an actor's core."""
    keep_every_s: Annotated[float, Ge(0), FINITE] = 2.0
    """Seconds between two copies of a learner's state to the driver, from which it resumes if its node dies."""

    def __post_init__(self) -> None:
        check_fields(self)

    def age_s(self, learners: int) -> float:
        """Longest time in seconds that rows wait before they are sent, with this many learner processes.

        >>> Cluster().age_s(1), Cluster().age_s(50), Cluster(block_age_s=0.02).age_s(50)
        (0.01, 0.3, 0.02)
        """
        return max(0.01, 0.006 * learners) if self.block_age_s is None else self.block_age_s

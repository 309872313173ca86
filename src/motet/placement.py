"""Placement: the devices of learners, and the resources that a run uses on a Ray cluster.

These are settings only; nothing here loads Ray or torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from motet.errors import SettingError
from motet.settings import FINITE, check_fields

__all__ = ["Cluster", "check_device", "placed"]

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def check_device(name: str, given: str | None) -> None:
    """Raise SettingError unless the value of a setting is the name of a device or None."""
    if given is not None and not _DEVICE.fullmatch(given):
        raise SettingError(f"{name} must be 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps', got {given!r}")


def placed(wanted: str, turn: int, found: Sequence[str]) -> str:
    """Return the device that a setting means for a learner process.

    Args:
        wanted: the setting.
        turn: number of the learner process; ``auto`` takes the devices in turn by it.
        found: the devices that this machine has besides the CPU.

    >>> gpus = ["cuda:0", "cuda:1"]
    >>> [placed("auto", turn, gpus) for turn in range(3)], placed("auto", 0, ["mps"]), placed("auto", 0, [])
    (['cuda:0', 'cuda:1', 'cuda:0'], 'mps', 'cpu')
    >>> placed("cuda", 0, ["mps"])
    Traceback (most recent call last):
        ...
    motet.errors.SettingError: device must be one that torch finds here (cpu, mps), got 'cuda'; try motet doctor
    """
    gpus = [device for device in found if device.startswith("cuda")]
    if wanted == "auto":
        return (gpus or [device for device in found if device == "mps"] or ["cpu"])[turn % max(1, len(gpus))]
    if wanted not in ("cpu", *found) and not (wanted == "cuda" and gpus):
        there = ", ".join(("cpu", *found))
        raise SettingError(f"device must be one that torch finds here ({there}), got {wanted!r}; try motet doctor")
    return wanted


@dataclass(frozen=True)
class Cluster:
    """Address of a Ray cluster, and the resources that a run uses there.

    >>> from motet import Settings
    >>> Settings(engine="ray", cluster=Cluster(address="auto", learner_gpus=0.25)).cluster.learner_gpus
    0.25
    """

    address: str | None = None
    """Address of a running cluster (``auto``, ``HOST:PORT``, ``ray://HOST:PORT``). Default: start Ray on this
    machine."""
    actor_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """CPU cores of each actor. Actors are spread over the nodes."""
    learner_cpus: Annotated[float, Ge(0), FINITE] = 1.0
    """CPU cores of each learner process."""
    learner_gpus: Annotated[float, Ge(0), FINITE] = 0.0
    """GPUs of each learner process; a fraction if several share one GPU."""
    block_age_s: Annotated[float, Ge(0), FINITE] | None = None
    """Longest time in seconds that a row waits in an actor before it is sent. An actor sends its rows in blocks, one
    for each learner process. Default: 6 ms times the number of learner processes, at least 10 ms. Sending then takes a
    quarter of an actor's core."""
    keep_every_s: Annotated[float, Ge(0), FINITE] = 2.0
    """Seconds between two copies of a learner's state that are sent to the driver. If the learner's node dies, the
    learner resumes from the newest copy."""

    def __post_init__(self) -> None:
        check_fields(self)

    def age_s(self, learners: int) -> float:
        """Longest time in seconds that rows wait before they are sent, with this many learner processes.

        >>> Cluster().age_s(1), Cluster().age_s(50), Cluster(block_age_s=0.02).age_s(50)
        (0.01, 0.3, 0.02)
        """
        return max(0.01, 0.006 * learners) if self.block_age_s is None else self.block_age_s

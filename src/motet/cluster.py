"""The same roles on Ray: how to reach a cluster, and what each role takes of it.

Nothing here knows what a learner is. Ray places and watches processes and carries messages; what motet sends through it
is told in ``_cluster_places`` (training), ``_cluster_tasks`` (episodes and plans). ``import motet`` does not load Ray:
only a run that asks for ``engine="ray"`` does.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle

from motet._checks import check_types
from motet.errors import SettingError

__all__ = ["Cluster", "Luggage", "connected"]

_KNOCK_S = 10.0
_STORE_BYTES = 512 * 2**20  # of a Ray that is started here: blocks and versions on their way, nothing that stays


@dataclass(frozen=True)
class Cluster:
    """What a run takes of a Ray cluster."""

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


class Luggage:
    """What travels to a node: by value where need be, and with the folders in which modules are looked for here."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (sys.path, cloudpickle.dumps(self.value))


def _arrive(path: list[str], data: bytes) -> Luggage:
    sys.path += [folder for folder in path if folder not in sys.path]
    return Luggage(cloudpickle.loads(data))


@contextlib.contextmanager
def connected(cluster: Cluster, cpus: float = 0.0) -> Iterator[Any]:
    """Ray, connected; a local one is started, with so many cores at least, where nobody did, and ended with the block.

    Raises:
        SettingError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            "engine: given 'ray', which is not installed; install it with: pip install 'motet[ray]'"
        ) from error
    if ray.is_initialized():  # by the user, who will also end it
        yield ray
        return
    # Ray sends statistics home unless it is told not to, and warns of a change to come in how it hides GPUs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        try:
            if cluster.address is not None:
                _knock(cluster.address)
                ray.init(cluster.address, **quiet)
            else:
                cores = max(os.cpu_count() or 1, math.ceil(cpus))
                with _uninterrupted():
                    ray.init(
                        "local", num_cpus=cores, include_dashboard=False, object_store_memory=_STORE_BYTES, **quiet
                    )
        except (OSError, RuntimeError, ValueError) as error:  # of the system, and of Ray
            where = "on this machine" if cluster.address is None else f"at {cluster.address!r}"
            raise SettingError(f"address: Ray could not be reached {where}: {error}") from error
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise if nobody listens there: Ray would go on trying for minutes, and write about it on the screen."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S):
            pass


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is held back meanwhile: a Ray that it meets half started leaves processes behind for a minute."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

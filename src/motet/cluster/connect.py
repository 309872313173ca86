"""The same roles on Ray: how to reach a cluster, and what each role takes of it.

Nothing here knows what a learner is. Ray places and watches processes and carries messages; what motet sends through it
is described in ``hosts`` (training) and ``workers`` (episodes and plans). ``import motet`` does not load Ray:
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
from typing import Any

import cloudpickle

from motet.errors import SettingError
from motet.placement import Cluster

__all__ = ["Shipment", "connected"]

_KNOCK_S = 10.0
_STORE_BYTES = 512 * 2**20  # of a Ray that is started here: blocks and versions on their way, nothing that stays


class Shipment:
    """What travels to a node: by value where need be, and with the folders in which modules are looked for here."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (sys.path, cloudpickle.dumps(self.value))


def _arrive(path: list[str], data: bytes) -> Shipment:
    sys.path += [folder for folder in path if folder not in sys.path]
    return Shipment(cloudpickle.loads(data))


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
            "engine='ray' needs Ray, which is not installed; install it with: pip install 'motet[ray]'"
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

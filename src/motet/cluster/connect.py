"""Connect to a Ray cluster, and send objects to its nodes.

Ray places and watches processes and carries messages. The messages are described in ``hosts`` (training) and
``workers`` (evaluation and planning); this module does not depend on them. ``import motet`` does not load Ray: only a
run with ``engine="ray"`` does.
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

_KNOCK_S = 10.0  # timeout of the connection test
_STORE_BYTES = 512 * 2**20  # object store of a local Ray: it holds blocks and versions in transit, nothing permanent


class Shipment:
    """An object to send to a node, pickled by value if necessary, together with this process's ``sys.path``."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (sys.path, cloudpickle.dumps(self.value))


def _arrive(path: list[str], data: bytes) -> Shipment:
    sys.path += [folder for folder in path if folder not in sys.path]
    return Shipment(cloudpickle.loads(data))


@contextlib.contextmanager
def connected(cluster: Cluster, cpus: float = 0.0) -> Iterator[Any]:
    """Connect to Ray, and disconnect at the end of the block. A connection that the user made is used and left open.

    Without an address a local Ray is started with at least ``cpus`` cores, and stopped at the end of the block.

    Raises:
        SettingError: Ray is not installed, or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise SettingError("engine='ray' needs Ray, which is not installed; fix: pip install 'motet[ray]'") from error
    if ray.is_initialized():  # the user has connected, and will also disconnect
        yield ray
        return
    # Turn off Ray's usage statistics, and its warning about a future change in how it hides GPUs.
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
        except (OSError, RuntimeError, ValueError) as error:  # the error may come from the system or from Ray
            where = "on this machine" if cluster.address is None else f"at {cluster.address!r}"
            raise SettingError(f"address: Ray could not be reached {where}: {error}") from error
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise if the address does not accept connections: Ray would retry for minutes and print messages."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S):
            pass


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block: a Ray interrupted at its start leaves processes behind for a minute."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

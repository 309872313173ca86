"""Worker processes on other nodes: the same process, started there, at the other end of the same pipe.

A *host*, one Ray actor for each worker, starts the child as it would be started here and passes on what it says, as
bytes; here two threads pass on what it is told. So whoever has workers need not know where they are: they have a child
that may end and a connection. Isolation and limits hold on every node, since the child is an ordinary one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

from motet._cluster_run import RemoteProcess, grouped
from motet._process import Child, context
from motet._workers import Workers, work
from motet.cluster import Cluster, Luggage, connected
from motet.errors import ChildError

__all__ = ["ClusterWorkers", "Host", "cluster_hands", "start_there"]

_TAKE_S = 1.0  # how long a host waits for its child to say something before it says so


class Host:
    """A child process on some node.

    Args:
        luggage: its name, what it runs, and the arguments of that, to which the connection is added.
    """

    def __init__(self, luggage: Luggage) -> None:
        name, target, args = luggage.value
        self._pipe, there = context().Pipe()
        self._child = Child(name, target, (*args, there))
        there.close()

    def play(self) -> None:
        """Until the child has ended; a child that was killed takes this process with it."""
        while not self._child.join(1.0):
            pass
        if text := self._child.traceback():
            raise ChildError(text)
        if self._child.exit:
            os._exit(1)

    def put(self, message: bytes) -> None:
        """Something for the child."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is told by play
            self._pipe.send_bytes(message)

    def take(self) -> list[bytes]:
        """What the child says; nothing after a while."""
        came: list[bytes] = []
        with contextlib.suppress(EOFError, ConnectionResetError):  # its end is told by play
            while self._pipe.poll(0 if came else _TAKE_S):
                came.append(self._pipe.recv_bytes())
        return came


def start_there(
    ray: Any, cluster: Cluster, name: str, target: Callable[..., None], args: tuple[Any, ...] = ()
) -> tuple[RemoteProcess, Connection]:
    """Start ``target(*args, connection)`` in a process on some node; the process, and the connection's other end."""
    kind = ray.remote(concurrency_groups={"play": 1, "rows": 1, "look": 1})(grouped(ray, Host))
    host = kind.options(num_cpus=cluster.actor_cpus, scheduling_strategy="SPREAD").remote(Luggage((name, target, args)))
    here, there = Pipe()
    lock = threading.Lock()

    def hang_up() -> None:
        with lock:
            there.close()

    process = RemoteProcess(name, host, lambda told: None, hang_up)

    def speak() -> None:
        with contextlib.suppress(EOFError, OSError, ray.exceptions.RayError):  # either end is gone
            while True:
                ray.get(host.put.remote(there.recv_bytes()))

    def listen() -> None:
        with contextlib.suppress(OSError, ray.exceptions.RayError):
            while process.exit is None:
                for message in ray.get(host.take.remote()):
                    with lock:
                        there.send_bytes(message)

    for carry in (speak, listen):
        threading.Thread(target=carry, name=f"{carry.__name__}-{name}", daemon=True).start()
    return process, here


@contextlib.contextmanager
def cluster_hands(count: int | None, cluster: Cluster) -> Iterator[tuple[int, Callable[..., Any]]]:
    """How many workers a plan may have on a cluster, by default one for each of its cores; and what starts one."""
    with connected(cluster, (count or 0) * cluster.actor_cpus) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1.0) / (cluster.actor_cpus or 1.0))
        yield count or max(cores, 1), functools.partial(start_there, ray, cluster)


class ClusterWorkers(Workers):
    """Processes on a cluster that play episodes.

    Args:
        jobs: how many.
        hang_s: one that shows no sign of life for so long counts as hung.
        cluster: where.
    """

    def __init__(self, jobs: int, hang_s: float, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stack = contextlib.ExitStack()
        self._ray = self._stack.enter_context(connected(cluster, jobs * cluster.actor_cpus))
        try:
            super().__init__(jobs, hang_s)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, number: int) -> tuple[Any, Connection]:
        return start_there(self._ray, self._cluster, f"player-{number}", work)

    def close(self) -> None:
        """End all of them, now."""
        super().close()
        self._stack.close()

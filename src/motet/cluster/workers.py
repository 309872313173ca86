"""Worker processes on other nodes, for evaluation and planning.

A *host*, one Ray actor for each worker, starts the same child process that would be started here, and passes its
messages on as bytes. In this process two threads for each worker connect the host to a local pipe. So callers
of workers need not know where the workers run: they have a process that may end, and a connection. Isolation and limits
work on every node, since the child is an ordinary child process.

The sweeps of a plan are native code on arrays and need no child process: one Ray actor on each node has that node's
part of the arrays, and sweeps it with threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.cluster.connect import Shipment, connected
from motet.cluster.driver import RemoteProcess, grouped
from motet.errors import ChildError, SettingError, WaitTimeoutError, WorkerLostError
from motet.evaluation.jobs import JobPool, work
from motet.placement import Cluster
from motet.plan.parallel import WorkerTeam
from motet.plan.sweeps import SweepPart, sweeping
from motet.system.child import Child
from motet.system.fork_server import context

__all__ = ["ChildHost", "ClusterWorkers", "OtherNodes", "SweepHost", "cluster_team", "start_there"]

_TAKE_S = 1.0  # seconds after which a host returns without a message if its child sends none


class ChildHost:
    """A child process on some node.

    Args:
        shipment: its name, the function that it runs, and the arguments, to which the connection is appended.
    """

    def __init__(self, shipment: Shipment) -> None:
        name, target, args = shipment.value
        self._pipe, there = context().Pipe()
        self._child = Child(name, target, (*args, there))
        there.close()

    def play(self) -> None:
        """Wait for the end of the child. If the child was killed, end this process too."""
        while not self._child.join(1.0):
            pass
        if text := self._child.traceback():
            raise ChildError(text)
        if self._child.exit:
            os._exit(1)

    def put(self, message: bytes) -> None:
        """Send a message to the child."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # play reports the end of the child
            self._pipe.send_bytes(message)

    def take(self) -> list[bytes]:
        """Return the messages of the child; empty if there are none for a while."""
        came: list[bytes] = []
        with contextlib.suppress(EOFError, ConnectionResetError):  # play reports the end of the child
            while self._pipe.poll(0 if came else _TAKE_S):
                came.append(self._pipe.recv_bytes())
        return came


def start_there(
    ray: Any, cluster: Cluster, name: str, target: Callable[..., None], args: tuple[Any, ...] = ()
) -> tuple[HostProcess, Connection]:
    """Start ``target(*args, connection)`` in a process on some node; return it and this end of the connection."""
    kind = ray.remote(concurrency_groups={"play": 1, "rows": 1, "report": 1})(grouped(ray, ChildHost))
    host = kind.options(num_cpus=cluster.actor_cpus, scheduling_strategy="SPREAD").remote(
        Shipment((name, target, args))
    )
    here, there = Pipe()
    return HostProcess(ray, name, host, there), here


class HostProcess(RemoteProcess):
    """The caller's handle of a host, with the two threads that carry messages.

    Args:
        ray: the connected Ray module.
        name: its name in messages.
        host: the Ray actor.
        pipe: messages read from it go to the child, and messages of the child are written to it.
    """

    def __init__(self, ray: Any, name: str, host: Any, pipe: Connection) -> None:
        self._ray, self._pipe = ray, pipe
        self._socket = socket.socket(fileno=os.dup(pipe.fileno()))
        super().__init__(name, host, lambda result: None, self._hang_up)
        self._carriers = [
            threading.Thread(target=carry, name=f"{carry.__name__[1:]}-{name}", daemon=True)
            for carry in (self._speak, self._listen)
        ]
        for thread in self._carriers:
            thread.start()

    def _speak(self) -> None:
        with contextlib.suppress(EOFError, OSError, self._ray.exceptions.RayError):  # one end of the pipe is closed
            while True:
                self._ray.get(self.host.put.remote(self._pipe.recv_bytes()))

    def _listen(self) -> None:
        with contextlib.suppress(OSError, self._ray.exceptions.RayError):
            while self.exit is None:
                for message in self._ray.get(self.host.take.remote()):
                    self._pipe.send_bytes(message)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other end has closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close pipes and threads. The process must have ended: no thread may call Ray while Ray shuts down."""
        self._hang_up()
        for thread in self._carriers:
            thread.join(10.0)
            if thread.is_alive():
                raise WaitTimeoutError(f"{thread.name} did not end within 10 s of the end of {self.name}")
        self._socket.close()
        self._pipe.close()
        super().close()


@contextlib.contextmanager
def cluster_team(count: int | None, cluster: Cluster) -> Iterator[WorkerTeam]:
    """Yield the workers of a plan on a cluster, by default one for each core, and its other nodes for sweeps."""
    with connected(cluster, (count or 0) * cluster.actor_cpus) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1.0) / (cluster.actor_cpus or 1.0))
        team = count or max(cores, 1)
        yield WorkerTeam(team, functools.partial(start_there, ray, cluster), OtherNodes(ray, team))


class SweepHost:
    """A node's part of the arrays of a plan. Arguments are references to objects, which are fetched on the node.

    Args:
        threads: number of threads that sweep.
    """

    def __init__(self, threads: int) -> None:
        self._stack = contextlib.ExitStack()
        self._threads = self._stack.enter_context(sweeping(threads))
        self._arrays: dict[str, Any] = {}
        self._run: Callable[[int, int], Any] = lambda first, last: None
        self._writes: tuple[str, ...] = ()

    def load(self, sent: list[Any]) -> float:
        """Fetch the part; return how many seconds that took."""
        import ray

        began = time.perf_counter()
        part: SweepPart = ray.get(sent[0])
        took = time.perf_counter() - began
        self._arrays, self._writes = part.arrays(), part.writes
        self._run = part.make(self._arrays)
        return took

    def sweep(self, first: int, last: int, news: list[Any]) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Apply rows from other nodes and sweep some states; return the threads' results and the rows written."""
        import ray

        for name, (begin, rows) in ray.get(news[0]).items():
            self._arrays[name][begin : begin + len(rows)] = rows
        found = self._threads(first, last, self._run)
        return found, {name: self._arrays[name][first:last] for name in self._writes}


class OtherNodes:
    """All nodes of a cluster except the one of this process, for sweeps (``plan.sweeps.Elsewhere``).

    Args:
        ray: the connected Ray module.
        count: maximum number of threads on all nodes together.
    """

    def __init__(self, ray: Any, count: int) -> None:
        self._ray, self._kind = ray, ray.remote(SweepHost)
        own = ray.get_runtime_context().get_node_id()
        nodes = self._alive()
        left = count - nodes.pop(own, 0)
        self.rooms: list[int] = []
        self._nodes: list[str] = []
        for node, cores in sorted(nodes.items(), key=lambda pair: (-pair[1], pair[0])):
            if min(cores, left) > 0:
                self._nodes.append(node)
                self.rooms.append(min(cores, left))
                left -= cores
        self._own = own

    def _alive(self) -> dict[str, int]:
        """Return the number of cores of each living node."""
        return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]}

    def sweeper(self, index: int, part: Callable[[], SweepPart]) -> NodeSweeper | None:
        """Send a part to a node, or to an unused node if that node is gone. Return None if there is no unused node."""
        alive = self._alive()
        if self._nodes[index] not in alive:
            fresh = [node for node in sorted(alive) if node not in (*self._nodes, self._own) and alive[node] > 0]
            if not fresh:
                return None
            self._nodes[index] = fresh[0]
        node = self._nodes[index]
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        threads = min(self.rooms[index], alive[node])
        actor = self._kind.options(num_cpus=threads, scheduling_strategy=there).remote(threads)
        return NodeSweeper(self._ray, actor, f"node {node[:8]}", part())

    def share(self, news: dict[str, tuple[int, NDArray[Any]]]) -> Any:
        """Store rows for several nodes; each node fetches them once."""
        return self._ray.put(news)


class NodeSweeper:
    """A node that has a part or is loading one (``plan.sweeps.Sweeper``)."""

    def __init__(self, ray: Any, actor: Any, name: str, part: SweepPart) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self._bytes, self._sent = part.nbytes, ray.put(part)
        self._loading, self._bytes_s = actor.load.remote([self._sent]), 0.0
        self._asked: Any = None
        self._at = ""

    def up(self) -> float | None:
        """Return the bytes per second at which the part of this node was sent; None while the node is still loading
        it."""
        if self._sent is not None:
            if not self._ray.wait([self._loading], timeout=0)[0]:
                return None
            self._bytes_s = self._bytes / max(self._get(self._loading, 60.0), 1e-9)
            self._sent = None  # so that the object store can release the object
        return self._bytes_s

    def ask(self, first: int, last: int, news: Any) -> None:
        """Start a sweep of some of its states."""
        self._at = f" at states {first} to {last - 1}"
        self._asked = self._actor.sweep.remote(first, last, [news])

    def answer(self, timeout_s: float) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Wait for the results of the threads and the rows that were written."""
        found: tuple[list[Any], dict[str, NDArray[np.generic]]] = self._get(self._asked, timeout_s)
        return found

    def _get(self, call: Any, timeout_s: float) -> Any:
        lost = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout_s)
        except lost.RayTaskError:
            raise  # an exception of the sweep itself
        except lost.GetTimeoutError as error:
            raise WaitTimeoutError(f"{self._name} did not answer within {timeout_s:.0f} s{self._at}") from error
        except lost.RayError as error:
            reason = str(error).partition("\n")[0]
            raise WorkerLostError(f"{self._name} was repeatedly lost{self._at}: {reason}") from error

    def close(self) -> None:
        """End the Ray actor of the node."""
        self._ray.kill(self._actor)


class ClusterWorkers(JobPool):
    """Processes on a cluster that play episodes.

    Args:
        jobs: number of processes.
        hang_s: seconds without a heartbeat before a process counts as hung.
        cluster: the cluster.
    """

    def __init__(self, jobs: int, hang_s: float, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stack = contextlib.ExitStack()
        self._ray = self._stack.enter_context(connected(cluster, jobs * cluster.actor_cpus))
        try:
            cores = self._ray.cluster_resources().get("CPU", 0.0)
            if jobs * cluster.actor_cpus > cores:
                raise SettingError(
                    f"jobs must fit the {cores:g} cores of the cluster, got {jobs}, which need "
                    f"{jobs * cluster.actor_cpus:g}; fix: use fewer jobs, or reduce actor_cpus"
                )
            super().__init__(jobs, hang_s)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, number: int) -> tuple[Any, Connection]:
        return start_there(self._ray, self._cluster, f"player-{number}", work)

    def close(self) -> None:
        """Kill all processes, and disconnect."""
        super().close()
        self._stack.close()

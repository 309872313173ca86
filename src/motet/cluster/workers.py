"""Worker processes on other nodes: the same process, started there, at the other end of the same pipe.

A *host*, one Ray actor for each worker, starts the child as it would be started here and passes on what it says, as
bytes; here two threads pass on what it is sent. So whoever has workers need not know where they are: they have a child
that may end and a connection. Isolation and limits hold on every node, since the child is an ordinary one.

The sweeps of a plan are native code on arrays, and need no process of their own: one Ray actor on each node holds that
node's part of them, and sweeps it on threads.
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

_TAKE_S = 1.0  # how long a host waits for its child to say something before it says so


class ChildHost:
    """A child process on some node.

    Args:
        shipment: its name, what it runs, and the arguments of that, to which the connection is added.
    """

    def __init__(self, shipment: Shipment) -> None:
        name, target, args = shipment.value
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
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # play reports its end
            self._pipe.send_bytes(message)

    def take(self) -> list[bytes]:
        """What the child says; nothing after a while."""
        came: list[bytes] = []
        with contextlib.suppress(EOFError, ConnectionResetError):  # play reports its end
            while self._pipe.poll(0 if came else _TAKE_S):
                came.append(self._pipe.recv_bytes())
        return came


def start_there(
    ray: Any, cluster: Cluster, name: str, target: Callable[..., None], args: tuple[Any, ...] = ()
) -> tuple[HostProcess, Connection]:
    """Start ``target(*args, connection)`` in a process on some node; the process, and the connection's other end."""
    kind = ray.remote(concurrency_groups={"play": 1, "rows": 1, "report": 1})(grouped(ray, ChildHost))
    host = kind.options(num_cpus=cluster.actor_cpus, scheduling_strategy="SPREAD").remote(
        Shipment((name, target, args))
    )
    here, there = Pipe()
    return HostProcess(ray, name, host, there), here


class HostProcess(RemoteProcess):
    """A host as its caller sees it, and the two threads that carry what is said.

    Args:
        ray: the module, connected.
        name: what it is called in messages.
        host: the Ray actor.
        pipe: what is read here goes there, what is said there is written here.
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
        with contextlib.suppress(EOFError, OSError, self._ray.exceptions.RayError):  # either end is gone
            while True:
                self._ray.get(self.host.put.remote(self._pipe.recv_bytes()))

    def _listen(self) -> None:
        with contextlib.suppress(OSError, self._ray.exceptions.RayError):
            while self.exit is None:
                for message in self._ray.get(self.host.take.remote()):
                    self._pipe.send_bytes(message)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # the other end has hung up before
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give back what is held for it. It must have ended: nobody may be asking Ray when Ray ends."""
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
    """Workers for a plan on a cluster, by default one for each of its cores, and its other nodes, for sweeps."""
    with connected(cluster, (count or 0) * cluster.actor_cpus) as ray:
        cores = int(ray.cluster_resources().get("CPU", 1.0) / (cluster.actor_cpus or 1.0))
        team = count or max(cores, 1)
        yield WorkerTeam(team, functools.partial(start_there, ray, cluster), OtherNodes(ray, team))


class SweepHost:
    """A node's part of the arrays of a plan. What it is sent comes as references, to be fetched here.

    Args:
        threads: that sweep it.
    """

    def __init__(self, threads: int) -> None:
        self._stack = contextlib.ExitStack()
        self._threads = self._stack.enter_context(sweeping(threads))
        self._arrays: dict[str, Any] = {}
        self._run: Callable[[int, int], Any] = lambda first, last: None
        self._writes: tuple[str, ...] = ()

    def load(self, sent: list[Any]) -> float:
        """Fetch the part; returns how many seconds that took."""
        import ray

        began = time.perf_counter()
        part: SweepPart = ray.get(sent[0])
        took = time.perf_counter() - began
        self._arrays, self._writes = part.arrays(), part.writes
        self._run = part.make(self._arrays)
        return took

    def sweep(self, first: int, last: int, news: list[Any]) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Take in what others found, and sweep some states; returns what the parts returned, and their rows."""
        import ray

        for name, (begin, rows) in ray.get(news[0]).items():
            self._arrays[name][begin : begin + len(rows)] = rows
        found = self._threads(first, last, self._run)
        return found, {name: self._arrays[name][first:last] for name in self._writes}


class OtherNodes:
    """The nodes of a cluster but for the one that this process is on, as those who sweep (``plan.sweeps.Elsewhere``).

    Args:
        ray: the module, connected.
        count: threads on all nodes at most.
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
        """Cores by node."""
        return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]}

    def sweeper(self, index: int, part: Callable[[], SweepPart]) -> NodeSweeper | None:
        """Send a part to a node, or to one that nobody had if that is gone; None if there is no other."""
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
        return NodeSweeper(self._ray, actor, f"the node {node[:8]}", part())

    def share(self, news: dict[str, tuple[int, NDArray[Any]]]) -> Any:
        """Rows to be sent to several nodes; each fetches them once."""
        return self._ray.put(news)


class NodeSweeper:
    """One node that has, or soon will have, a part (``plan.sweeps.Sweeper``)."""

    def __init__(self, ray: Any, actor: Any, name: str, part: SweepPart) -> None:
        self._ray, self._actor, self._name = ray, actor, name
        self._bytes, self._sent = part.nbytes, ray.put(part)
        self._loading, self._bytes_s = actor.load.remote([self._sent]), 0.0
        self._asked: Any = None
        self._at = ""

    def up(self) -> float | None:
        """Bytes a second that came there with its part; None while it is on its way."""
        if self._sent is not None:
            if not self._ray.wait([self._loading], timeout=0)[0]:
                return None
            self._bytes_s = self._bytes / max(self._get(self._loading, 60.0), 1e-9)
            self._sent = None  # nobody needs it in the object store any more
        return self._bytes_s

    def ask(self, first: int, last: int, news: Any) -> None:
        """Have it sweep some of its states."""
        self._at = f" at the states {first} to {last - 1}"
        self._asked = self._actor.sweep.remote(first, last, [news])

    def answer(self, timeout_s: float) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """What the parts returned, and the rows that were written."""
        found: tuple[list[Any], dict[str, NDArray[np.generic]]] = self._get(self._asked, timeout_s)
        return found

    def _get(self, call: Any, timeout_s: float) -> Any:
        lost = self._ray.exceptions
        try:
            return self._ray.get(call, timeout=timeout_s)
        except lost.RayTaskError:
            raise  # a mistake there: it comes home as it is
        except lost.GetTimeoutError as error:
            raise WaitTimeoutError(f"{self._name} did not answer within {timeout_s:.0f} s{self._at}") from error
        except lost.RayError as error:
            reason = str(error).partition("\n")[0]
            raise WorkerLostError(f"{self._name} was lost{self._at}, time and again: {reason}") from error

    def close(self) -> None:
        """End it."""
        self._ray.kill(self._actor)


class ClusterWorkers(JobPool):
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
            cores = self._ray.cluster_resources().get("CPU", 0.0)
            if jobs * cluster.actor_cpus > cores:
                raise SettingError(
                    f"jobs must fit the {cores:g} cores of the cluster, got {jobs}, which take "
                    f"{jobs * cluster.actor_cpus:g}: take fewer of them, or smaller shares (actor_cpus)"
                )
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

"""Process a list in order, in the calling process or with persistent worker processes: the result is the same.

Input: a list that may grow while it is processed, a function from a part of the list to an answer, and a function that
consumes the answers. The caller begins alone and measures. If enough work is left, a core is free, and workers would
be faster even with the cost of sending the answers, it starts worker processes. It never waits until they are ready.
Each worker gets the function once, and then parts of the list. Answers are consumed in the order of the list, not in
the order in which they arrive. So the result, and which error is raised, do not depend on the sizes of the parts, the
number of workers or the timing.

If the function cannot be sent, or workers cannot be started, the caller reports that and continues alone. If the user
has given a number of workers, it raises instead.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import cloudpickle

from motet.errors import ModelError, SettingError, StartError, WorkerLostError
from motet.placement import Cluster
from motet.system import fork_server as _fork_server
from motet.system.child import Child, check_main_guard
from motet.system.machine import idle_s, usable_cores
from motet.system.pickling import unpicklable_part

if TYPE_CHECKING:
    from motet.plan.sweeps import Elsewhere

__all__ = ["DEATHS", "WorkerTeam", "WorkerTraceback", "work_through", "worker_team"]

START_S = 0.15
"""Seconds for which the caller works alone before it considers workers. At least this much work must then be left."""
COLD_START_S = 1.0
"""Replaces ``START_S`` if the fork server is not running yet, since the fork server needs time to load modules."""
PART_S = 0.02
"""Target seconds of work in one part: long compared with the transport, short compared with the whole."""
ALONE_S = 0.002
"""If less work than this (in seconds) is available and no worker is busy, the caller does the work itself."""
GAIN = 1.25
"""Minimum expected speed-up for which workers are started."""
TICK_S = 0.2
"""Seconds between two progress reports."""
DEATHS = 3
"""Number of workers on other machines that may be lost over the same part before the job fails."""

Work = Callable[[Sequence[Any]], Any]
Starter = Callable[[str, Callable[..., None], tuple[Any, ...]], tuple[Any, Connection]]
"""Starts a function with a name and arguments; returns its process, and the caller's end of the connection to it."""


def _warn(line: str) -> None:
    warnings.warn(line, RuntimeWarning, stacklevel=2)


@dataclass(frozen=True)
class WorkerTeam:
    """Workers: their number, and how they are started."""

    count: int
    start: Starter
    elsewhere: Elsewhere | None = None
    """Other machines, if there are any. A worker lost there is replaced, since a machine may be lost with all that runs
    on it. A worker lost on this machine ends the job: it was probably killed for lack of memory, and a new worker would
    be killed too."""
    required: bool = True
    """Whether the user has given the number of workers. If so, it is an error if workers cannot be used."""
    on_message: Callable[[str], None] = _warn
    """Called with one line if workers cannot be used."""


@contextlib.contextmanager
def worker_team(
    workers: int | None, engine: str, cluster: Cluster | None, on_message: Callable[[str], None] | None = None
) -> Iterator[WorkerTeam]:
    """A team of at most this many workers, on this machine or on a cluster; None: one per core."""
    chosen: dict[str, Any] = {"required": workers is not None, "on_message": on_message or _warn}
    if engine not in ("processes", "ray"):
        raise SettingError(f"engine must be 'processes' or 'ray', got {engine!r}")
    if engine != "ray" and cluster is not None:
        raise SettingError(f"cluster is only valid with engine='ray' (got engine={engine!r})")
    if workers is not None and workers < 1:
        raise SettingError(f"workers must be an int >= 1, or None for one per core, got {workers}")
    if engine == "processes":
        yield WorkerTeam(workers or usable_cores(), _start_here, **chosen)
        return
    from motet.cluster.workers import cluster_team

    with cluster_team(workers, cluster or Cluster()) as team:
        yield replace(team, **chosen)


def _start_here(name: str, target: Callable[..., None], args: tuple[Any, ...]) -> tuple[Any, Connection]:
    here, there = _fork_server.context().Pipe()
    try:
        return Child(name, target, (*args, there)), here
    finally:
        there.close()


class WorkerTraceback(Exception):
    """The traceback of a worker, as the cause of the exception raised in the caller."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


@dataclass
class _Cost:
    """Measured seconds per item."""

    work: float = 0.0
    merge: float = 0.0
    transport: float = 0.0

    def gain(self, cores: float) -> float:
        """Expected speed-up with workers: they work and send, the caller receives and merges."""
        alone = self.work + self.merge
        together = max((self.work + self.transport / 2) / cores, self.merge + self.transport)
        return alone / together if together > 0 else 0.0


def work_through(
    items: list[Any],
    work: Work,
    take: Callable[[Any], None],
    *,
    workers: int | WorkerTeam,
    grows: bool = False,
    tick: Callable[[int], None] = lambda done: None,
) -> None:
    """Pass all items to ``work``, part by part, and its answers to ``take``, in order.

    Args:
        items: the list; ``take`` may append to it.
        work: function from a part of the list to an answer; runs here or in workers, which get it by cloudpickle.
        take: consumes an answer; runs here.
        workers: maximum number of processes, here or on other machines; 1: the caller alone.
        grows: whether items may be appended, so that the remaining work is not known.
        tick: called from time to time with the number of items done.
    """
    team = workers if isinstance(workers, WorkerTeam) else WorkerTeam(workers, _start_here)
    if team.count > 1:
        check_main_guard(starts=True)
    job = _PlanJob(items, work, take, team, grows)
    with contextlib.closing(job):
        ticked = time.monotonic()
        while job.done < len(items):
            job.advance()
            if (now := time.monotonic()) - ticked >= TICK_S:
                ticked = now
                tick(job.done)
    tick(job.done)


class _PlanJob:
    """Items that are processed here and by workers, and whose answers are consumed in order."""

    def __init__(
        self, items: list[Any], work: Work, take: Callable[[Any], None], team: WorkerTeam, grows: bool
    ) -> None:
        self.items, self.work, self.take, self.team, self.grows = items, work, take, team, grows
        self.done = self.sent = 0
        self.cost = _Cost()
        self.pool: _WorkerPool | None = None
        self.came: dict[int, tuple[int, bytes]] = {}  # answers received: first item -> number of items, answer
        self.start_s = START_S if _fork_server.is_up() else COLD_START_S
        self.spent_s, self.think_again_s = 0.0, self.start_s
        self.measured = (time.perf_counter(), idle_s())

    def advance(self) -> None:
        """Do one step: send a part to a worker, process a part here, consume an answer, or wait for one."""
        at_hand = len(self.items) - self.sent
        under_way = self.sent > self.done
        pool = self.pool
        enough = under_way or at_hand * self.cost.work >= ALONE_S
        if pool is not None and pool.idle() and (pool.again or (at_hand and enough)):
            if pool.again:
                first, count = pool.again.pop(0)
            else:
                first, count = self.sent, self.part(at_hand, pool.size())
            pool.send(first, self.items[first : first + count])
            self.sent = max(self.sent, first + count)
        elif not under_way:
            self.work_alone(at_hand)
        elif self.done in self.came:  # only now, so that idle workers get a part first
            self.take_in(*self.came.pop(self.done))
        elif pool is not None and pool.again and not pool.any_up():
            first, count = pool.again.pop(0)
            self.came[first] = count, _answer(self.work, self.items[first : first + count])
        elif pool is not None:
            for first, count, data in pool.receive(TICK_S):
                self.came[first] = (count, data)

    def part(self, at_hand: int, workers: int) -> int:
        """Number of items in a part."""
        by_time = int(PART_S / self.cost.work) if self.cost.work > 0 else 1
        return max(1, min(by_time, 4096, -(-at_hand // (2 * workers))))

    def work_alone(self, at_hand: int) -> None:
        part = self.items[self.done : self.done + min(at_hand, self.part(2 * at_hand, 1))]
        began = time.perf_counter()
        answer = self.work(part)
        worked = time.perf_counter()
        self.take(answer)
        ended = time.perf_counter()
        self.done = self.sent = self.done + len(part)
        self.learn(len(part), worked - began, ended - worked)
        self.spent_s += ended - began
        if self.pool is None and self.team.count > 1 and self.spent_s >= self.think_again_s:
            self.think(part, answer)

    def take_in(self, count: int, data: bytes) -> None:
        began = time.perf_counter()
        worked_s, answer = pickle.loads(data)  # noqa: S301 - sent by a worker of this job
        if isinstance(answer, _Raised):
            raise ModelError(answer.message) from WorkerTraceback(answer.text)
        self.take(answer)
        self.learn(count, worked_s, time.perf_counter() - began)
        self.done += count

    def learn(self, count: int, worked_s: float, merged_s: float) -> None:
        recent = 0.5 if self.cost.work > 0 else 1.0
        self.cost.work += recent * (worked_s / count - self.cost.work)
        self.cost.merge += recent * (merged_s / count - self.cost.merge)

    def think(self, part: Sequence[Any], answer: Any) -> None:
        """Start workers if enough work is left and they would help; otherwise check again later."""
        began = time.perf_counter()
        try:
            for thing, name in ((part, "states"), (answer, "answer")):
                pickle.loads(_portable(thing, name))  # noqa: S301 - pickled just now, by this process
        except _UnsendableError as error:
            self.work_without(error)
            return
        self.cost.transport = (time.perf_counter() - began) / len(part)
        left_s = (len(self.items) - self.done) * self.cost.work
        if self.cost.gain(min(self.team.count, self.free_cores())) >= GAIN and (self.grows or left_s >= self.start_s):
            try:
                self.pool = _WorkerPool(self.work, self.team)
            except _UnsendableError as error:
                self.work_without(error)
        else:
            self.think_again_s = 2 * self.spent_s

    def work_without(self, error: _UnsendableError) -> None:
        """Use no workers from now on."""
        if self.team.required:
            raise ModelError(
                f"{error}. Remove what cannot be pickled (locks, open files) from it, or give workers=1"
            ) from error
        self.team.on_message(f"{error}; {_ALONE}")
        self.team = replace(self.team, count=1)

    def free_cores(self) -> float:
        """Number of cores available since the last call: the core of this process, and idle cores."""
        if self.team.start is not _start_here:  # on other machines, Ray allocates free cores
            return math.inf
        (then, idle_then), (now, idle_now) = self.measured, (time.perf_counter(), idle_s())
        self.measured = (now, idle_now)
        if idle_then is None or idle_now is None:
            return math.inf
        return 1.0 + (idle_now - idle_then) / max(now - then, 1e-9)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()


_ALONE = "no workers are used, and the calling process does all the work"


class _UnsendableError(Exception):
    """An object cannot be pickled; the message names it."""


@dataclass
class _Raised:
    message: str
    text: str


@dataclass
class _Worker:
    child: Any
    line: Connection
    busy_with: tuple[int, int] | None = None  # first item and number of items
    up: bool = False


@dataclass
class _WorkerPool:
    """Worker processes, started by a thread so that the caller does not wait for them."""

    work: Work
    team: WorkerTeam
    workers: list[_Worker] = field(default_factory=list)
    again: list[tuple[int, int]] = field(default_factory=list)
    """Parts of lost workers, to be processed again: first item and number of items."""
    failure: BaseException | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._function = _portable(self.work)
        self._said = False
        self._deaths: Counter[Any] = Counter()
        # Not a daemon: a program that exits while a child is being started waits for the thread, which kills the child.
        threading.Thread(target=self._start, name="plan-starter").start()

    def _start(self) -> None:
        try:
            for number in range(self.team.count):
                child, here = self.team.start(f"plan-worker-{number}", _serve, (self._function,))
                with self._lock:
                    if not self.closed:
                        self.workers.append(_Worker(child, here))
                        continue
                child.kill()  # the job ended before this worker was ready
                child.close()
                here.close()
                return
        except BaseException as error:  # noqa: BLE001 - handled in idle(), by the caller
            self.failure = error

    def size(self) -> int:
        return max(1, sum(worker.up for worker in self.workers))

    def any_up(self) -> bool:
        return any(worker.up for worker in self.workers)

    def idle(self) -> bool:
        """Whether a worker is ready for a part."""
        if self.failure is not None:
            error, self.failure = self.failure, None
            self._do_without(error, str(error), alone=not self.workers)
        for worker in list(self.workers):
            if not worker.up:
                worker.up = self._came_up(worker)
        return any(worker.up and worker.busy_with is None for worker in self.workers)

    def _came_up(self, worker: _Worker) -> bool:
        try:
            return worker.line.poll(0) and bool(worker.line.recv_bytes())
        except (EOFError, OSError) as error:
            if self.team.elsewhere is None and not self.team.required:
                self._drop(worker)
            else:
                self._lose(worker, error)
            return False

    def _drop(self, worker: _Worker) -> None:
        """Remove a worker that ended before it was ready. The other workers and the caller do the work."""
        worker.child.join(5.0)
        with self._lock:
            self.workers.remove(worker)
        text: str = worker.child.traceback()
        reason = text.splitlines()[-1] if text else ""
        self._do_without(
            _lost(worker), f"{worker.child.describe_end()} before it began{reason and ': '}{reason}", False
        )
        worker.child.kill()
        worker.child.close()
        worker.line.close()

    def _do_without(self, error: BaseException, reason: str, alone: bool) -> None:
        """Report once that a worker could not be started; raise if the user has given the number of workers."""
        if self.team.required or not isinstance(error, StartError | WorkerLostError):
            raise error
        if not self._said:
            self._said = True
            self.team.on_message(f"{reason}; {_ALONE if alone else 'the job continues without it'}")

    def _lose(self, worker: _Worker, error: Exception) -> None:
        """Handle the death of a worker. On this machine it ends the job; elsewhere the part of that worker is processed
        again."""
        worker.child.join(5.0)
        at = worker.busy_with
        self._deaths[at or worker.child.name] += 1
        enough = self._deaths[at or worker.child.name] >= DEATHS
        if self.team.elsewhere is None or worker.child.traceback() or enough:
            raise _lost(worker) from error
        if at is not None:
            self.again.append(at)
        child, line = worker.child, worker.line
        worker.child, worker.line = self.team.start(child.name, _serve, (self._function,))
        worker.busy_with, worker.up = None, False
        child.close()
        line.close()

    def send(self, first: int, part: list[Any]) -> None:
        """Send a part to an idle worker. The worker is reading, so this does not block."""
        worker = next(worker for worker in self.workers if worker.up and worker.busy_with is None)
        worker.busy_with = (first, len(part))
        try:
            worker.line.send_bytes(cloudpickle.dumps(part))
        except OSError as error:
            self._lose(worker, error)

    def receive(self, timeout_s: float) -> list[tuple[int, int, bytes]]:
        """Answers that have arrived: first item, number of items, answer. May be empty after ``timeout_s``."""
        busy = {worker.line: worker for worker in self.workers if worker.busy_with is not None}
        deaths = [worker.child.sentinel for worker in busy.values()]
        coming = [worker.line for worker in self.workers if not worker.up]
        ready = wait([*busy, *deaths, *coming], timeout_s)
        came = []
        for line, worker in busy.items():
            if line not in ready and worker.child.sentinel not in ready:
                continue
            assert worker.busy_with is not None
            first, count = worker.busy_with
            try:
                if not line.poll(0):
                    raise EOFError
                came.append((first, count, line.recv_bytes()))
            except (EOFError, OSError) as error:
                self._lose(worker, error)
            worker.busy_with = None
        return came

    def close(self) -> None:
        """Kill all workers. Parts that they are processing are not needed any more."""
        with self._lock:
            self.closed = True
            workers, self.workers = self.workers, []
        for worker in workers:
            worker.child.kill()
            worker.child.close()
            worker.line.close()


def _portable(thing: Any, name: str = "") -> bytes:
    """Pickle by value where necessary, so that classes, lambdas and closures of the user's script can be sent too.

    In an error, the path of the part that cannot be sent begins with ``name``.
    """
    try:
        data: bytes = cloudpickle.dumps(thing)
    except Exception as error:
        path, reason = unpicklable_part(thing, name) or (name, error)
        which = path.removeprefix(".") or getattr(thing, "__qualname__", type(thing).__name__)
        raise _UnsendableError(
            f"{which} cannot be sent to worker processes: {type(reason).__name__}: {reason}"
        ) from error
    return data


def _lost(worker: _Worker) -> WorkerLostError:
    if worker.busy_with is None:
        at = "before it had begun"
        hint = "If your script has no `if __name__ == '__main__':`, put the call behind one"
    else:
        first, count = worker.busy_with
        at = f"while it was working on states {first} to {first + count - 1}"
        hint = "If it was killed for lack of memory, use fewer workers or a smaller model"
    text = worker.child.traceback()
    return WorkerLostError(
        f"{worker.child.describe_end()} {at}, so the job ends. {hint}; workers=1 starts no worker process"
        f"{chr(10) + text if text else ''}"
    )


def _serve(function: bytes, line: Connection) -> None:
    """Main loop of a worker: receive parts and send answers until the caller is gone."""
    work: Work = cloudpickle.loads(function)
    line.send_bytes(b"up")
    while True:
        try:
            part = pickle.loads(line.recv_bytes())  # noqa: S301 - from the caller
        except EOFError:
            return
        line.send_bytes(_answer(work, part))


def _answer(work: Work, part: Sequence[Any]) -> bytes:
    """Process a part; return the pickled pair of the seconds taken and the answer."""
    began = time.perf_counter()
    answer: Any
    try:
        answer = work(part)
    except ModelError as error:
        answer = _Raised(str(error), "".join(traceback.format_exception(error)))
    data: bytes = cloudpickle.dumps((time.perf_counter() - began, answer))
    return data

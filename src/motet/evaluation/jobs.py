"""Worker processes that play episodes, and the order in which their results count.

Tasks are sent to free workers in order; results are taken in the order of episodes, not of arrival. A policy that has
failed too often is *out* (disqualified) from the next episode on. Later episodes that were already played with it are
discarded and played again without it, so the result does not depend on the number of workers. A worker that is killed
is restarted, and free workers play its episodes again. If a whole machine died and there is no room to restart its
workers, the others continue. An episode fails if its world raises, or if its worker hangs, exits by itself or is killed
several times. After too many failed episodes no more are played.

Workers are started once and can play one plan after another. A policy's code is never imported in the process that
calls ``evaluate``.
"""

from __future__ import annotations

import contextlib
import heapq
import multiprocessing.connection
import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import motet.errors
from motet.errors import ChildError, MotetError, WaitTimeoutError
from motet.evaluation.episode import Arena, EpisodePlan, Played, Task
from motet.isolation.marks import end_marked, is_mark_of
from motet.system.child import Child, check_main_guard
from motet.system.fork_server import context, host_children
from motet.system.portable import Portable
from motet.system.raised import DETAIL, printable

__all__ = ["Disqualification", "JobPool"]

_AHEAD = 2  # tasks that a worker holds: the one it plays and the next
_HEARTBEAT_S = 1.0
_START_S = 120.0
_END_S = 10.0  # seconds that an idle worker may take to end
_GUARDS_S = 5.0  # seconds that guards may take to end after their worker was killed
_DEATHS = 3  # number of workers killed by signals in one episode (or before it) after which the episode fails


def work(connection: Connection) -> None:
    """Run a worker process: make an arena for each plan, play an episode for each task, until told to end."""
    host_children()
    arena: Arena | None = None
    last = [time.monotonic()]

    def heartbeat(turn: int) -> None:
        if (now := time.monotonic()) - last[0] > _HEARTBEAT_S:
            last[0] = now
            connection.send(("heartbeat", turn))

    try:
        connection.send(("ready", None))
        while True:
            kind, value = connection.recv()  # raises when the parent is gone
            if kind == "end":
                return
            try:
                if kind == "plan":
                    if arena is not None:
                        arena.close()
                        arena = None
                    arena = Arena(value.value, heartbeat)
                    connection.send(("ready", None))
                else:
                    assert arena is not None
                    connection.send(("played", arena.play(value)))
            except MotetError as error:
                connection.send(("failed", (type(error).__name__, str(error))))
            except Exception:  # noqa: BLE001 - caused by neither a world nor a policy: reported as it is
                connection.send(("raised", traceback.format_exc()))
    finally:
        if arena is not None:
            arena.close()


@dataclass
class _EpisodeWorker:
    """One process that plays episodes, and its state."""

    child: Child
    pipe: Connection
    number: int
    tasks: list[Task] = field(default_factory=list)
    ready: int = 0
    """Number of "ready" messages still to come."""
    heard: float = field(default_factory=time.monotonic)
    turn: int = 0
    busy: bool = False
    """Whether the worker still plays episodes whose results are no longer needed."""
    late: bool = False
    """Whether the slow start of the worker was reported."""

    @property
    def doing(self) -> str:
        """Human-readable current activity."""
        if self.tasks:
            return f"while it played episode {self.tasks[0].number} (last seen in turn {self.turn})"
        return "while it started" if self.ready else "between two episodes"


def _end_policies(worker: _EpisodeWorker) -> None:
    """After a worker was killed: wait until the guards of its policies have ended, and kill what is left."""
    if worker.child.exit and worker.child.pid:  # 0 on a cluster
        end_marked(is_mark_of(worker.child.pid), _GUARDS_S, _END_S)


class JobPool:
    """Processes that play episodes.

    Args:
        jobs: number of processes.
        hang_s: seconds without a heartbeat before a process counts as hung.
    """

    def __init__(self, jobs: int, hang_s: float = 300.0) -> None:
        check_main_guard(starts=True)
        self._hang_s = self._limit_s = hang_s
        self._workers: list[_EpisodeWorker] = []
        self._plan: EpisodePlan | None = None
        self._on_message: Callable[[str], None] = lambda line: None
        self._waiting: list[int] = []  # a heap of the positions of tasks to play
        self._first = 0  # number of the first task; numbers are consecutive
        self._deaths: Counter[str] = Counter()  # number by episode, or by worker if it played none
        self._results: list[Played] = []  # received, not yet taken
        try:
            for number in range(jobs):
                self._workers.append(_EpisodeWorker(*self._start(number), number, ready=1))
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> tuple[Child, Connection]:
        here, there = context().Pipe()
        try:
            return Child(f"player-{number}", work, (there,)), here
        finally:
            there.close()

    @property
    def jobs(self) -> int:
        """Number of processes."""
        return len(self._workers)

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers and the processes that they started, and wait until they are gone.

        Workers that do nothing end by themselves, and their policies with them. The others are killed.
        """
        idle = [worker for worker in self._workers if not (worker.tasks or worker.ready or worker.busy)]
        for worker in idle:
            self._send(worker, "end", None)
        deadline = time.monotonic() + _END_S
        with contextlib.ExitStack() as each:  # in reverse order; an error does not prevent the other steps
            for worker in self._workers:
                for step in (worker.pipe.close, worker.child.close, partial(_end_policies, worker), worker.child.kill):
                    each.callback(step)
            for worker in idle:
                worker.child.join(max(0.0, deadline - time.monotonic()))
            self._workers.clear()

    def play(
        self,
        plan: EpisodePlan,
        tasks: Sequence[Task],
        judge: Disqualification,
        stop: threading.Event,
        jobs: int,
        on_message: Callable[[str], None],
        known: Mapping[int, Played] = {},
    ) -> Generator[Played, None, None]:
        """Play all tasks and yield the results in the order of the tasks.

        It ends early if ``stop`` is set or ``judge.ends`` is true. ``known`` holds results of some tasks by number;
        such a task is played again only if one of its policies is disqualified by then.
        """
        self._plan, self._on_message = plan, on_message
        for worker in self._workers:
            if worker.busy:
                self._replace(worker)
        self._limit_s = max(self._hang_s, plan.patience_s)
        self._first = tasks[0].number
        arrived = {number - self._first: played for number, played in known.items()}
        self._waiting = [i for i in range(len(tasks)) if i not in arrived]
        self._deaths.clear()
        self._results.clear()
        used = self._workers[:jobs]
        for worker in used:
            worker.ready, worker.late, worker.heard = worker.ready + 1, False, time.monotonic()
            self._send(worker, "plan", Portable(plan))
        following, out = 0, -1
        problem: MotetError | None = None
        horizon = 64 + 8 * len(used)  # limit on tasks ahead of the next one, since waiting results take memory
        try:
            while True:
                while following in arrived:
                    if out != len(judge.out):
                        out = len(judge.out)
                        self._discard(arrived, tasks, judge)
                        continue
                    played = arrived.pop(following)
                    judge.take(played)
                    following += 1
                    yield played
                    if judge.ends:
                        return
                if stop.is_set() or following == len(tasks):
                    return
                if problem is not None:
                    raise problem
                try:
                    self._hand_out(used, tasks, following + horizon, judge)
                    self._listen(used)
                except MotetError as error:
                    problem = error  # raised after the earlier results were yielded
                while self._results:
                    played = self._results.pop()
                    i = played.number - self._first
                    if played.out == judge.out_of(tasks[i]):
                        arrived[i] = played
                    else:
                        heapq.heappush(self._waiting, i)
        finally:
            for worker in used:  # a worker that is still starting when all tasks are done may finish its start
                worker.busy = bool(worker.tasks or (worker.ready and following < len(tasks)))

    def _discard(self, arrived: dict[int, Played], tasks: Sequence[Task], judge: Disqualification) -> None:
        """Schedule episodes again if they were played with a policy that has been disqualified meanwhile."""
        for i in [i for i, played in arrived.items() if played.out != judge.out_of(tasks[i])]:
            del arrived[i]
            heapq.heappush(self._waiting, i)

    def _replace(self, worker: _EpisodeWorker) -> None:
        """Start a new process for a worker, in place of the old one."""
        child, pipe = worker.child, worker.pipe
        child.kill()
        _end_policies(worker)
        worker.child, worker.pipe = self._start(worker.number)
        child.close()
        pipe.close()
        worker.tasks, worker.ready, worker.busy, worker.late, worker.heard = [], 1, False, False, time.monotonic()

    def _hand_out(
        self, used: Sequence[_EpisodeWorker], tasks: Sequence[Task], end: int, judge: Disqualification
    ) -> None:
        waiting = self._waiting
        for at_hand in range(_AHEAD):
            for worker in used:
                if not worker.ready and len(worker.tasks) == at_hand and waiting and waiting[0] < end:
                    task = tasks[heapq.heappop(waiting)]
                    task = replace(task, out=judge.out_of(task))
                    if not worker.tasks:
                        worker.heard = time.monotonic()
                    worker.tasks.append(task)
                    self._send(worker, "play", task)

    def _send(self, worker: _EpisodeWorker, kind: str, value: Any) -> None:
        # If the worker is dead, _listen reads its last messages and handles the death.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((kind, value))

    def _listen(self, used: Sequence[_EpisodeWorker]) -> None:
        """Read the messages that arrive within 0.1 s, and handle dead and hung workers."""
        sources: dict[Any, _EpisodeWorker] = {}
        for worker in used:
            sources |= {worker.pipe: worker, worker.child.sentinel: worker}
        for source in multiprocessing.connection.wait(list(sources), timeout=0.1):
            worker = sources[source]
            # checked before reading, so that the last messages of a dead worker are read
            ended = worker.child.exit is not None
            while worker.pipe.poll(0):
                try:
                    kind, value = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    ended = True
                    break
                worker.heard = time.monotonic()
                if kind == "played":
                    worker.tasks.pop(0)
                    worker.turn = 0
                    self._results.append(value)
                elif kind == "failed":
                    raise getattr(motet.errors, value[0])(value[1])
                elif kind == "raised":
                    raise ChildError(f"{worker.child.name} raised {worker.doing}\n\n{value}")
                elif kind == "ready":
                    worker.ready -= 1
                else:
                    worker.turn = value
            if ended:
                self._bury(worker)
        self._find_hung(used)

    def _find_hung(self, used: Sequence[_EpisodeWorker]) -> None:
        now = time.monotonic()
        for worker in used:
            limit = max(self._limit_s, _START_S) if worker.ready else self._limit_s
            if not (worker.tasks or worker.ready) or now - worker.heard <= limit:
                continue
            if not worker.ready or all(other.ready for other in used):
                self._hung(worker, limit)
            elif not worker.late:  # the worker has no episode
                worker.late = True
                self._on_message(f"{worker.child.name} has not started within {limit:g} s; the other jobs continue")

    def _bury(self, worker: _EpisodeWorker) -> None:
        """Restart a worker that died. Its episode fails if the worker exited by itself or was killed several times."""
        worker.child.join(5.0)
        text, end = worker.child.traceback(), f"{worker.child.describe_end()} {worker.doing}"
        blamed = f"episode {worker.tasks[0].number}" if worker.tasks else worker.child.name
        self._deaths[blamed] += 1
        if not text and (worker.child.exit or 0) < 0 and self._deaths[blamed] < _DEATHS:
            self._on_message(f"{end}; {'the episode is played again; ' if worker.tasks else ''}restarting")
            self._restart(worker)
            return
        if worker.child.could_not_start:
            raise ChildError(f"{worker.child.describe_end()}; {worker.child.wrote()}")
        hint = "; isolate the policies to find out which one caused it"
        how = f"{end}\n\n{text}" if text else end + hint
        if not worker.tasks:
            raise ChildError(how)
        self._give_up(worker, how)

    def _hung(self, worker: _EpisodeWorker, limit: float) -> None:
        if hasattr(signal, "SIGUSR1") and worker.child.exit is None and worker.child.pid:  # 0 on a cluster
            os.kill(worker.child.pid, signal.SIGUSR1)  # makes the worker write its stack to stderr
            time.sleep(0.2)
        how = (
            f"{worker.child.name} sent no heartbeat for {limit:g} s {worker.doing}: the world or a policy in the "
            "same process hangs; isolate the policies so that they can be interrupted"
        )
        if not worker.tasks:
            raise WaitTimeoutError(how)
        self._give_up(worker, how)

    def _give_up(self, worker: _EpisodeWorker, how: str) -> None:
        """Mark the current episode of a worker as failed and restart the worker."""
        self._results.append(Played.void(worker.tasks.pop(0), "job", printable(how)[:DETAIL]))
        self._restart(worker)

    def _restart(self, worker: _EpisodeWorker) -> None:
        for task in worker.tasks:
            heapq.heappush(self._waiting, task.number - self._first)
        self._replace(worker)
        worker.ready = 2
        self._send(worker, "plan", Portable(self._plan))


class Disqualification:
    """Decides, from the failures in the order of episodes, which policies are disqualified and when to stop.

    Args:
        entries: names of the entries; entries with the same name are one policy.
        max_failures: number of failures that disqualify a policy.
        max_failed_episodes: number of failed episodes after which no more are played.
    """

    def __init__(self, entries: Sequence[str], max_failures: int, max_failed_episodes: int) -> None:
        self._entries, self._max, self._max_failed = list(entries), max_failures, max_failed_episodes
        self.failures: Counter[str] = Counter()
        self.out: dict[str, int] = {}
        """Disqualified policies by name, with the episode after which they were disqualified."""
        self._failed = 0

    @property
    def ends(self) -> bool:
        """Whether too many episodes have failed to play more."""
        return self._failed >= self._max_failed

    def out_of(self, task: Task) -> tuple[int, ...]:
        """Return the entries of a task that are disqualified now."""
        return tuple(sorted({entry for entry in task.seats if self._entries[entry] in self.out}))

    def take(self, played: Played) -> None:
        """Count the failures of the next episode in order."""
        self._failed += bool(played.failed)
        for failure in played.failures:
            self.failures[failure.policy] += 1
            if self.failures[failure.policy] >= self._max:
                self.out.setdefault(failure.policy, played.number)

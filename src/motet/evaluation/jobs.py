"""Worker processes that play episodes, and the order in which their results count.

Tasks go out to whoever is free, the next ones first; results are taken in the order of episodes, whoever was quicker.
A policy that has failed too often is *out* from the next episode on. Later episodes that were played with it meanwhile
are discarded and played again without it: so what counts does not depend on how many workers there are. A worker that
is killed is restarted, and its episodes are played again by whoever is free: where a whole machine died, and there
is no room to restart it, the others go on. An episode whose worker was killed time and again, ended by
itself or hung has failed, and so has one whose world raised; after too many of them no more are played.

Workers are made once and play whatever plan they are given; a policy's code is never imported in the process that
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import motet.errors
from motet.errors import ChildError, MotetError, WaitTimeoutError
from motet.evaluation.episode import Arena, EpisodePlan, Played, Task
from motet.system.child import Child, check_main_guard
from motet.system.fork_server import context, host_children
from motet.system.portable import Portable
from motet.system.raised import DETAIL, printable

__all__ = ["Disqualification", "JobPool"]

_AHEAD = 2  # tasks that a worker has at hand: the one it plays and the next
_HEARTBEAT_S = 1.0
_START_S = 120.0
_DEATHS = 3  # of workers by signals, in one episode or before one; then it is to blame


def work(connection: Connection) -> None:
    """What a worker process runs: arenas for plans, episodes for tasks, until it is asked to end."""
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
            kind, value = connection.recv()  # it ends with its parent
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
            except Exception:  # noqa: BLE001 - neither a world's nor a policy's fault: it goes home as it is
                connection.send(("raised", traceback.format_exc()))
    finally:
        if arena is not None:
            arena.close()


@dataclass
class _EpisodeWorker:
    """One process that plays episodes, and what it is doing."""

    child: Child
    pipe: Connection
    number: int
    tasks: list[Task] = field(default_factory=list)
    ready: int = 0
    """Greetings that are still to come."""
    heard: float = field(default_factory=time.monotonic)
    turn: int = 0
    busy: bool = False
    """It still plays what nobody waits for any more."""
    late: bool = False
    """It has not begun for so long that this was said."""

    @property
    def doing(self) -> str:
        """What it is at, for people."""
        if self.tasks:
            return f"while it played episode {self.tasks[0].number} (last seen in turn {self.turn})"
        return "while it got ready" if self.ready else "between two episodes"


class JobPool:
    """Processes that play episodes.

    Args:
        jobs: how many.
        hang_s: one that shows no sign of life for so long counts as hung.
    """

    def __init__(self, jobs: int, hang_s: float = 300.0) -> None:
        check_main_guard()
        self._hang_s = self._limit_s = hang_s
        self._workers: list[_EpisodeWorker] = []
        self._plan: EpisodePlan | None = None
        self._on_message: Callable[[str], None] = lambda line: None
        self._waiting: list[int] = []  # a heap: positions in the tasks
        self._first = 0  # the number of the first task; they are numbered one after the other
        self._deaths: Counter[str] = Counter()  # by what was being done
        self._results: list[Played] = []  # that came, and are to be taken
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
        """How many there are."""
        return len(self._workers)

    def __enter__(self) -> JobPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all of them, and whatever they started, now."""
        with contextlib.ExitStack() as each:  # the last is done first, and a failure keeps no other from its end
            for worker in self._workers:
                for step in (worker.pipe.close, worker.child.close, worker.child.kill):
                    each.callback(step)
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
    ) -> Iterator[Played]:
        """Play all tasks, and give the results in the order of the tasks.

        Fewer if ``stop`` is set meanwhile, or when the judge ends it. ``known``: results of some tasks, by number; such
        a task is played only if a policy that took part has to be out.
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
        horizon = 64 + 8 * len(used)  # tasks ahead of the next: results that wait take memory
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
                    problem = error  # first what came before it
                while self._results:
                    played = self._results.pop()
                    i = played.number - self._first
                    if played.out == judge.out_of(tasks[i]):
                        arrived[i] = played
                    else:
                        heapq.heappush(self._waiting, i)
        finally:
            for worker in used:  # one that only gets ready, though nothing is left to do, may go on with that
                worker.busy = bool(worker.tasks or (worker.ready and following < len(tasks)))

    def _discard(self, arrived: dict[int, Played], tasks: Sequence[Task], judge: Disqualification) -> None:
        """What was played with somebody who is out by now is to be played again."""
        for i in [i for i, played in arrived.items() if played.out != judge.out_of(tasks[i])]:
            del arrived[i]
            heapq.heappush(self._waiting, i)

    def _replace(self, worker: _EpisodeWorker) -> None:
        """Give a worker a fresh process."""
        child, pipe = worker.child, worker.pipe
        child.kill()
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
        # If it is dead, _listen takes what it said before, and sees to the rest.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            worker.pipe.send((kind, value))

    def _listen(self, used: Sequence[_EpisodeWorker]) -> None:
        """What comes within a short while."""
        sources: dict[Any, _EpisodeWorker] = {}
        for worker in used:
            sources |= {worker.pipe: worker, worker.child.sentinel: worker}
        for source in multiprocessing.connection.wait(list(sources), timeout=0.1):
            worker = sources[source]
            ended = worker.child.exit is not None  # asked first: what it said before its end is taken
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
            elif not worker.late:  # it has no episode that anybody waits for
                worker.late = True
                self._on_message(f"{worker.child.name} has not begun for {limit:g} s; the others play without it")

    def _bury(self, worker: _EpisodeWorker) -> None:
        """A worker died, and is restarted. An episode in which it ended, or was killed time and again, has failed."""
        worker.child.join(5.0)
        text, end = worker.child.traceback(), f"{worker.child.describe_end()} {worker.doing}"
        blamed = f"episode {worker.tasks[0].number}" if worker.tasks else worker.child.name
        self._deaths[blamed] += 1
        if not text and (worker.child.exit or 0) < 0 and self._deaths[blamed] < _DEATHS:
            self._on_message(f"{end}; {'that is played again, and ' if worker.tasks else ''}restarting it")
            self._restart(worker)
            return
        hint = "; give policies processes of their own (isolate), to see which one did it"
        how = f"{end}\n\n{text}" if text else end + hint
        if not worker.tasks:
            raise ChildError(how)
        self._give_up(worker, how)

    def _hung(self, worker: _EpisodeWorker, limit: float) -> None:
        if hasattr(signal, "SIGUSR1") and worker.child.exit is None and worker.child.pid:  # elsewhere it has none
            os.kill(worker.child.pid, signal.SIGUSR1)  # it writes on stderr where it is
            time.sleep(0.2)
        how = (
            f"{worker.child.name} showed no sign of life for {limit:g} s {worker.doing}: the world or a policy in "
            "the same process hangs; give policies processes of their own (isolate) to have them interrupted"
        )
        if not worker.tasks:
            raise WaitTimeoutError(how)
        self._give_up(worker, how)

    def _give_up(self, worker: _EpisodeWorker, how: str) -> None:
        """The episode that a worker played has failed; a new process goes on with the next."""
        self._results.append(Played.void(worker.tasks.pop(0), "job", printable(how)[:DETAIL]))
        self._restart(worker)

    def _restart(self, worker: _EpisodeWorker) -> None:
        for task in worker.tasks:
            heapq.heappush(self._waiting, task.number - self._first)
        self._replace(worker)
        worker.ready = 2
        self._send(worker, "plan", Portable(self._plan))


class Disqualification:
    """Which policies are out, and when no more is played: decided by the failures in the order of episodes.

    Args:
        entries: names of the entries; several entries of one name are one policy.
        max_failures: a policy with this many failures is out.
        max_failed_episodes: after this many failed episodes no more are played.
    """

    def __init__(self, entries: Sequence[str], max_failures: int, max_failed_episodes: int) -> None:
        self._entries, self._max, self._max_failed = list(entries), max_failures, max_failed_episodes
        self.failures: Counter[str] = Counter()
        self.out: dict[str, int] = {}
        """By name, the episode after which it was out."""
        self._failed = 0

    @property
    def ends(self) -> bool:
        """Whether so many episodes failed that no more are to be played."""
        return self._failed >= self._max_failed

    def out_of(self, task: Task) -> tuple[int, ...]:
        """Those of a task's entries that are out now."""
        return tuple(sorted({entry for entry in task.seats if self._entries[entry] in self.out}))

    def take(self, played: Played) -> None:
        """The next episode in order."""
        self._failed += bool(played.failed)
        for failure in played.failures:
            self.failures[failure.policy] += 1
            if self.failures[failure.policy] >= self._max:
                self.out.setdefault(failure.policy, played.number)

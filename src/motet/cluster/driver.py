"""The driver of a training run on a cluster: Ray actors instead of child processes, and a thread that polls them.

The driver has the same shared memory as a run on one machine, kept up to date by polling every Ray actor. So the
supervisor, checkpoints, metrics, the evaluator and the run directory work without changes. The supervisor restarts
processes that die: a restarted actor takes over the lanes that it had before, and a restarted learner continues from
the last state that the driver received. If the driver dies, the job ends, since Ray ends what a driver started.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from motet.cluster.connect import Shipment, connected
from motet.cluster.hosts import ActorHost, LearnerHost
from motet.cluster.messages import ActorReport, LearnerReport, LearnerStart, RestartState
from motet.cluster.shared import LocalMemory, unpack, words_of
from motet.errors import MotetError, NotReadyError, SettingError, WaitTimeoutError
from motet.placement import Cluster
from motet.replay.replay import LaneWords
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.system.supervisor import RestartLimits, Role
from motet.training.recorder import fill
from motet.training.roster import Roster

__all__ = ["RemoteProcess", "RemoteRun", "grouped", "on_cluster"]

_POLL_S = 0.1  # seconds between two polls of a host, if there are few hosts
_SURELY_S = 10.0  # seconds to wait for the reports of all actors when a learner has died
# seconds that a report costs the driver: the more hosts there are, the less often each of them is polled
_POLL_EACH_S = 0.002


@contextlib.contextmanager
def on_cluster(
    roster: Roster,
    cluster: Cluster,
    limits: RestartLimits,
    directory: RunDirectory | None,
    resume_from: Checkpoint | None,
    *,
    keep_replay: bool,
    policies: bool,
) -> Iterator[RemoteRun]:
    """Yield a run on a cluster, ready to be supervised. ``policies``: whether the driver needs published policies."""
    need = roster.actors * cluster.actor_cpus + len(roster.processes) * cluster.learner_cpus
    with connected(cluster, need) as ray:
        there = ray.cluster_resources()
        for what, wanted in (("CPU", need), ("GPU", len(roster.processes) * cluster.learner_gpus)):
            if wanted > there.get(what, 0.0):
                raise SettingError(
                    f"cluster: {roster.actors} actors and {len(roster.processes)} learner processes need {wanted:g} "
                    f"{what}, but the cluster has {there.get(what, 0.0):g}; fix: use fewer processes, or reduce "
                    "actor_cpus, learner_cpus or learner_gpus"
                )
        remote = RemoteRun(ray, roster, cluster, limits, directory, resume_from, keep_replay, policies)
        try:
            yield remote
        finally:
            remote.close()


class RemoteProcess:
    """A process on the cluster, with the interface of a child process.

    Args:
        name: its name in messages.
        host: the Ray actor.
        ended: called with the return value of its ``play``.
        gone: called when the process has ended for any reason.
    """

    pid = 0  # the process is on another machine

    def __init__(
        self, name: str, host: Any, ended: Callable[[Any], None], gone: Callable[[], None] = lambda: None
    ) -> None:
        self.name, self.host, self._gone = name, host, gone
        self._ended, self._text, self._how = ended, "", ""
        self._exit: int | None = None
        self._done = threading.Event()
        self._read, self._write = os.pipe()
        self.play = host.play.remote()
        self.play.future().add_done_callback(self._finish)

    def _finish(self, future: Any) -> None:
        """Store how the process ended. Runs in a thread of Ray."""
        import ray

        try:
            self._ended(future.result())
            self._exit = 0
        except ray.exceptions.RayTaskError as error:
            self._exit, self._text = 1, str(error)
        except ray.exceptions.RayError as error:
            if "error raised in its creation task" in str(error):  # Ray's text for an exception in the constructor
                self._exit, self._text = 1, str(error)
            else:
                self._exit, self._how = -9, str(error).partition("\n")[0]
        except Exception as error:  # noqa: BLE001 - reported like an exception of the host
            self._exit, self._text = 1, "".join(traceback.format_exception(error))
        os.write(self._write, b"x")  # before _done is set, because after that the pipe may be closed
        self._done.set()
        self._gone()

    @property
    def sentinel(self) -> int:
        """File descriptor that becomes readable when the process has ended."""
        return self._read

    @property
    def exit(self) -> int | None:
        """Exit code: None while the process runs; 0 after a normal end, 1 after an exception, negative if the process
        died."""
        return self._exit if self._done.is_set() else None

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return whether it has ended."""
        return self._done.wait(timeout_s)

    def kill(self, timeout_s: float = 60.0) -> None:
        """Kill the process, and wait until Ray reports its end."""
        import ray

        ray.kill(self.host)
        if not self.join(timeout_s):
            raise WaitTimeoutError(
                f"{self.name} did not end within {timeout_s:g} s of being killed; is its node reachable?"
            )

    def close(self) -> None:
        """Close the pipe of the process."""
        os.close(self._read)
        os.close(self._write)

    def traceback(self) -> str:
        """Text of the exception that the process raised; empty if it raised none."""
        return self._text

    def describe_end(self) -> str:
        """Human-readable exit reason."""
        return f"{self.name} raised" if self._text else f"{self.name} died ({self._how or 'it was killed'})"

    def wrote(self) -> str:
        """Human-readable location of the output of the process."""
        return "see the Ray logs on its node"


class RemoteRun:
    """The processes of a run on a cluster, and the driver's copy of their state.

    Args:
        ray: the connected Ray module.
        roster: the participants of the run.
        cluster: the resources of each process.
        limits: time limits for starts and heartbeats.
        directory: the run directory, if there is one.
        resume_from: a checkpoint to resume from.
        keep_replay: whether checkpoints contain the replays, from which a restarted learner restores its own.
        policies: whether the published policies are copied to the driver too.
    """

    def __init__(
        self,
        ray: Any,
        roster: Roster,
        cluster: Cluster,
        limits: RestartLimits,
        directory: RunDirectory | None,
        resume_from: Checkpoint | None,
        keep_replay: bool,
        policies: bool,
    ) -> None:
        self._ray, self._roster, self._cluster, self._limits = ray, roster, cluster, limits
        self._directory, self._resume_from, self._keep_replay = directory, resume_from, keep_replay
        self._brought: dict[int, list[Any]] = {}  # the memory of the lanes, by policy; filled at the end of the run
        self.shared = shared = LocalMemory(roster, vaults=True)
        if resume_from is not None:
            fill(shared, resume_from)
        self._began = list(shared.steps_before)
        for policy, replay in enumerate(shared.replays):
            replay.fetch = lambda lane, policy=policy: self._fetch(policy, lane)  # type: ignore[attr-defined]
        self._learners: list[Any] = [None] * len(roster.processes)
        # The newest start of each actor and learner. Reports of earlier starts are ignored.
        self._actor_numbers, self._learner_numbers = [0] * roster.actors, [0] * len(roster.processes)
        self._made: list[list[int]] = [[] for _ in range(roster.actors)]
        self._came: list[list[int]] = [[] for _ in range(roster.actors)]
        self._newest = [0] * len(roster.processes)
        self._incarnations = [[-1] * roster.actors for _ in roster.processes]
        # Policies are copied to the driver only on request; the league is always copied.
        self._bundles = [
            [0 if policies else None, 0][: len(shared.carried([]))] + [0] * len(shared.set_aside([]))
            for _ in roster.processes
        ]
        shared.pause = self._pause  # type: ignore[method-assign]
        # What the newest process of each actor has reported: its rounds, and whether it knows that it must pause.
        self._rounds, self._paused = [0] * roster.actors, [False] * roster.actors
        self._spent_before = np.zeros((shared.main_process + 1, len(shared.board.spent(0))))  # by earlier starts
        self._episodes_lost = [0] * roster.actors  # by earlier starts
        self._kept_at = [0.0] * len(roster.processes)
        self._publishers = [
            [
                [(p, p.publisher()) for p in bundle]
                for bundle in [*shared.carried(roster.policies_of(i)), *shared.set_aside(roster.policies_of(i))]
            ]
            for i in range(len(roster.processes))
        ]
        self._vaults = [(vault, vault.publisher()) for vault in shared.vaults]
        self._requests: dict[Any, tuple[Any, Callable[[Any], None]]] = {}
        self._lock = threading.Lock()  # one thread at a time processes reports
        self._processes: dict[str, RemoteProcess] = {}
        self._over = threading.Event()
        self._failure: BaseException | None = None
        options: dict[str, Any] = {"concurrency_groups": {"play": 1, "rows": min(roster.actors, 64) + 1, "report": 2}}
        self._actor_class = ray.remote(**options)(grouped(ray, ActorHost))
        self._learner_class = ray.remote(**options)(grouped(ray, LearnerHost))
        self._thread = threading.Thread(target=self._watch, name="polling", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._over.set()
        self._thread.join(10.0)

    def roles(self) -> list[Role]:
        """Return actors and learners in the order of the board. The start of the first actor creates the learners."""
        return [
            *(self._role(f"actor-{i}", i, self._start_actor, i) for i in range(self._roster.actors)),
            *(
                self._role(f"learner-{i}", self._roster.actors + i, self._start_learner, i, essential=False)
                for i in range(len(self._roster.processes))
            ),
        ]

    def _role(
        self, name: str, row: int, start: Callable[[str, int, int], RemoteProcess], i: int, essential: bool = True
    ) -> Role:
        def begin(n: int) -> RemoteProcess:
            board = self.shared.board
            with self._lock:
                self._spent_before[row] = board.spent(row)
                board.processes.words[row, :3] = time.monotonic(), 0, 0  # counts as started from its first report on
                board.set_spent(row, self._spent_before[row])
            self._processes[name] = process = start(name, i, n)
            return process

        return Role(name, begin, lambda: self._heartbeat(row), essential)

    def _heartbeat(self, row: int) -> float:
        if self._failure is not None:
            raise MotetError(f"polling the cluster failed: {self._failure}") from self._failure
        return float(self.shared.board.processes.heartbeat[row])

    def _start_actor(self, name: str, i: int, n: int) -> RemoteProcess:
        self._see_to_learners()
        with self._lock:
            self._actor_numbers[i], self._rounds[i], self._paused[i] = n, 0, self.shared.board.pausing
            self._episodes_lost[i] = self.shared.episodes.lost[i]
            (made, self._made[i]), (came, self._came[i]) = (self._made[i], []), (self._came[i], [])
        host = self._actor_class.options(num_cpus=self._cluster.actor_cpus, scheduling_strategy="SPREAD").remote(
            Shipment(self._roster),
            i,
            n,
            made,
            self._learners,
            self._limits,
            self._cluster.age_s(len(self._roster.processes)),
            came,
            self.shared.board.ended[i].tolist(),
            self._decisions(),
        )
        return RemoteProcess(name, host, lambda report: self._hear_actor(i, report))

    def _see_to_learners(self) -> None:
        """Create the learners before the first actor, which needs their handles although its role is started first."""
        for i, learner in enumerate(self._learners):
            if learner is None:
                self._learners[i] = self._new_learner(i, 0)

    def _new_learner(self, i: int, n: int) -> Any:
        start = self._salvaged(i, n) if n else self._begun(i)
        options = {"num_cpus": self._cluster.learner_cpus, "num_gpus": self._cluster.learner_gpus}
        return self._learner_class.options(**options).remote(Shipment((self._roster, start)), i, self._keep_replay, n)

    def _start_learner(self, name: str, i: int, n: int) -> RemoteProcess:
        if n or self._learners[i] is None:
            self._learners[i] = self._new_learner(i, n)
        return RemoteProcess(name, self._learners[i], lambda report: self._hear_learner(i, report))

    def _begun(self, i: int) -> LearnerStart | None:
        if self._resume_from is None:
            return None
        return LearnerStart(_part_of(self._resume_from, self._names(i)), self._began)

    def _names(self, i: int) -> list[str]:
        return [self._roster.policies[policy].name for policy in self._roster.policies_of(i)]

    # ---- restart of a learner

    def _salvaged(self, i: int, n: int) -> LearnerStart | None:
        """Return the data with which a restarted learner begins: the last state that the driver received, and reports
        of the actors."""
        self._ask_all_actors()
        roster, shared = self._roster, self.shared
        policies = roster.policies_of(i)
        with self._lock:
            self._learner_numbers[i], self._kept_at[i] = n, 0.0
            self._bundles[i] = [None if known is None else 0 for known in self._bundles[i]]
            if not self._is_kept(i):
                return self._begun(i)  # the learner died before the driver received a state, so no actor has acted yet
            held = {name: arrays for k in roster.processes[i] for name, arrays in self._held(k).items()}
            rows = self._kept_rows(self._names(i))
            for policy in policies:
                name = roster.policies[policy].name
                self._give_up(policy, rows.get(name, {}))
                held[name]["steps"] = np.array(shared.steps(policy))
                if name in rows:  # cleared rows stay cleared, and new rows must not count as cleared
                    heads = np.array([words_of(memory).head for memory in rows[name].values()], np.uint64)
                    positions = held[name]["reader"][-2 * len(heads) :].reshape(-1, 2)
                    np.minimum(positions, heads[:, None], out=positions)
            newest = max(self._newest[i], *(self._vaults[k][1].newest for k in roster.processes[i]))
            version = newest if roster.pace.period else newest + 1
            league = {} if shared.league is None else shared.league.dump()
            checkpoint = Checkpoint(max(map(shared.steps, policies)), held, {}, rows, league)
            after = RestartState(
                version=version,
                steps=list(map(shared.steps, policies)),
                gone=[shared.gone[policy].copy() for policy in policies],
                counts=[(int(lost), int(refused)) for lost, refused in shared.board.rows.words[policies, :2]],
                incarnations=self._incarnations[i],
                rounds=shared.board.rounds.copy(),
                over=self._over_actors(),
                evaluation=int(shared.board.learned.evaluations[policies].max()),
            )
        return LearnerStart(checkpoint, self._began, after)

    def _over_actors(self) -> dict[int, int]:
        """Return the finished actors whose rows have all arrived, with the number of periods that each has ended."""
        ended = [self._processes.get(f"actor-{i}") for i in range(self._roster.actors)]
        periods = self.shared.board.periods.tolist()
        return {i: periods[i] for i, process in enumerate(ended) if process is not None and process.exit == 0}

    def _is_kept(self, i: int) -> bool:
        """Whether the driver has a state of all policies of a learner process."""
        return all(self._vaults[k][1].newest for k in self._roster.processes[i])

    def _held(self, stack: int) -> dict[str, dict[str, Any]]:
        """Return the contents of a stack's vault by policy, in the form of a checkpoint."""
        vault = self.shared.vaults[stack].subscriber()
        vault.take(timeout_s=10.0)
        policies = self._roster.stacks[stack]
        states, held = vault.weights.reshape(len(policies), -1), {}
        for i, member in enumerate(policies):
            policy = self._roster.policies[member]
            arrays = {name: np.array(vault[name][i]) for name in ("counters", "reader", "steps", "stage")}
            random = np.array(vault["random"][i, : policy.sizes.random])
            held[policy.name] = {**arrays, "random": random, "state": states[i].copy()}
        return held

    def _kept_rows(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the replays of the newest checkpoint, if it contains them.

        Rows that are read once are left out: they match the state in the checkpoint, and the vault's state is newer.
        """
        if not self._keep_replay or self._directory is None or not self._directory.steps():
            return {}
        kept = self._directory.load().replay
        once = {policy.name for policy in self._roster.policies if policy.settings.once}
        return {name: _in_order(kept[name]) for name in names if name in kept and name not in once}

    def _give_up(self, policy: int, kept: dict[str, Any]) -> None:
        """Count the rows that died with a learner and are not in ``kept`` as lost, and their steps as done."""
        shared, replay = self.shared, self.shared.replays[policy]
        before = shared.steps_before[policy] - int(shared.gone[policy].sum())
        for lane in range(self._roster.lanes(policy)):
            was = replay.words(lane)
            done = int(shared.gone[policy][lane]) + was.steps
            now = words_of(kept[f"lane{lane}"]) if kept else LaneWords._make([0] * len(was))
            shared.board.rows.lost[policy] += np.uint64(min(max(was.head - now.head, 0), replay.spec.lane_capacity))
            replay.table[lane] = now  # type: ignore[attr-defined]
            shared.gone[policy][lane] = max(done - now.steps, 0)
        shared.steps_before[policy] = before + int(shared.gone[policy].sum())

    def _decisions(self) -> Any:
        """Return the decisions of the supervisor and the evaluator that actors must know; None without periods."""
        return self.shared.board.decisions if self._roster.pace.period else None

    def _pause(self) -> None:
        """Let no actor begin another period. Wait until all running actors know this and have reported which periods
        they have begun."""
        self.shared.board.pause()
        deadline = time.monotonic() + self._limits.start_s
        for i in range(self._roster.actors):
            process = self._processes.get(f"actor-{i}")
            while process is not None and process.exit is None and not self._paused[i]:
                if time.monotonic() > deadline:
                    raise WaitTimeoutError(f"actor-{i} did not answer for {self._limits.start_s:g} s")
                time.sleep(_POLL_S / 10)

    def _ask_all_actors(self) -> None:
        """Poll all actors that have started, because the dead learner may have reported versions and steps only to
        them."""
        requests: dict[Any, int] = {}
        for i in range(self._roster.actors):
            process = self._processes.get(f"actor-{i}")
            if process is not None and process.exit is None and self._made[i]:
                requests[process.host.report.remote(False, None, self._decisions())] = i
        ready, _ = (
            self._ray.wait(list(requests), num_returns=len(requests), timeout=_SURELY_S) if requests else ([], [])
        )
        for ref in ready:
            with contextlib.suppress(self._ray.exceptions.RayError):  # the actor died too
                self._hear_actor(requests[ref], self._ray.get(ref))

    def _fetch(self, policy: int, lane: int) -> Any:
        if policy in self._brought:
            return self._brought[policy][lane]
        process = next(i for i in range(len(self._learners)) if policy in self._roster.policies_of(i))
        call = self._learners[process].dump.remote(policy, lane)
        try:
            return self._ray.get(call, timeout=self._limits.hang_s)
        except self._ray.exceptions.RayError as error:
            raise NotReadyError(
                f"could not fetch the replay of {self._roster.policies[policy].name} from learner-{process}: {error}"
            ) from error

    # ---- polling

    def _watch(self) -> None:
        try:
            due: dict[str, float] = {}
            while not self._over.is_set():
                processes = dict(self._processes)
                pause = max(_POLL_S, _POLL_EACH_S * len(processes))
                asked = {name for _, (name, _) in self._requests.items()}
                now = time.monotonic()
                for name, process in processes.items():
                    if name not in asked and process.exit is None and now >= due.get(name, 0.0):
                        due[name] = now + pause
                        self._ask(name, process)
                if not self._requests:
                    self._over.wait(_POLL_S / 2)
                    continue
                ready, _ = self._ray.wait(list(self._requests), num_returns=1, timeout=_POLL_S / 2)
                for ref in ready:
                    _, hear = self._requests.pop(ref)
                    # RemoteProcess reports the end of the process
                    with contextlib.suppress(self._ray.exceptions.RayError):
                        hear(self._ray.get(ref))
                if len(ready) == len(asked):
                    self._over.wait(_POLL_S / 4)
        except Exception as error:  # noqa: BLE001 - raised when the supervisor reads a heartbeat
            self._failure = error

    def _ask(self, name: str, process: RemoteProcess) -> None:
        stop = self.shared.board.stopping
        kind, _, number = name.partition("-")
        i = int(number)
        if kind == "actor":
            ref = process.host.report.remote(stop, self._learners, self._decisions())
            self._requests[ref] = name, lambda report: self._hear_actor(i, report)
            return
        vaults = time.monotonic() - self._kept_at[i] >= self._cluster.keep_every_s
        ref = process.host.report.remote(stop, self._bundles[i], vaults, self._is_kept(i), self._over_actors())
        self._requests[ref] = name, lambda report: self._hear_learner(i, report)

    def _hear_actor(self, i: int, report: ActorReport) -> None:
        shared, board, roster = self.shared, self.shared.board, self._roster
        with self._lock:
            if report.number != self._actor_numbers[i]:
                return
            board.processes.words[i] = report.alive
            board.processes.heartbeat[i] = time.monotonic() - report.age_s
            board.set_spent(i, self._spent_before[i] + report.spent)
            if report.round >= self._rounds[i]:  # a report may be older than one that arrived before it
                self._rounds[i] = report.round
                board.periods[i], board.begun[i] = report.periods, max(int(board.begun[i]), report.begun)
                board.rounds[i] = report.round
            self._paused[i] = self._paused[i] or report.paused
            board.episodes.words[i] = report.episodes
            board.ended[i] = report.counted
            shared.nodes[i] = report.node
            writer = shared.episodes.writer(i)
            for record in report.ended:
                writer.append(record)
            shared.episodes.lost[i] = self._episodes_lost[i] + report.ended_lost
            self._made[i], self._came[i] = report.made, report.came
            self._newest = list(map(max, self._newest, report.newest))
            for process, number in enumerate(report.heard):
                if number == self._learner_numbers[process]:
                    for policy in roster.policies_of(process):
                        lanes = roster.lanes_of(policy, i)
                        _bring_up_to_date(shared.replays[policy], lanes, report.words[policy])

    def _hear_learner(self, i: int, report: LearnerReport) -> None:
        shared, board, roster = self.shared, self.shared.board, self._roster
        policies, stacks, row = roster.policies_of(i), list(roster.processes[i]), roster.actors + i
        with self._lock:
            if report.number != self._learner_numbers[i]:
                return
            board.processes.words[row] = report.alive
            board.processes.heartbeat[row] = time.monotonic() - report.age_s
            board.set_spent(row, self._spent_before[row] + report.spent)
            board.metrics[policies] = report.metrics
            board._names[policies] = report.names
            newest = np.maximum(
                board.rows.newest_version[policies], report.rows[:, 2]
            )  # a restarted learner has not published yet
            board.rows.words[policies] = report.rows
            board.rows.newest_version[policies] = newest
            shared.nodes[row] = report.node
            self._incarnations[i] = report.incarnations
            self._newest[i] = max(self._newest[i], report.newest)
            for policy, words, before in zip(policies, report.words, report.steps_before, strict=True):
                _bring_up_to_date(shared.replays[policy], range(len(words)), words)
                shared.steps_before[policy] = before
            for policy, updates, gone in zip(policies, report.updates_before, report.gone, strict=True):
                shared.updates_before[policy], shared.gone[policy] = updates, np.array(gone)
            self._brought |= report.replays
            for which, versions in enumerate(report.bundles):
                for number, flat in versions:
                    unpack(flat, self._publishers[i][which])
                    self._bundles[i][which] = number
            board.learned.words[policies] = report.learned  # after the copies of policies for evaluations
            board.updated.ring()
            if report.vaults is not None:
                unpack(report.vaults, [self._vaults[k] for k in stacks])
                self._kept_at[i] = time.monotonic()
            if report.results is not None and shared.league is not None:
                shared.league.results[...] = report.results


def _bring_up_to_date(replay: Any, lanes: Sequence[int], words: Any) -> None:
    """Update the words of some lanes, unless newer words are already known."""
    newer = words[:, 1] >= replay.table[lanes, 1]
    replay.table[np.array(lanes)[newer]] = words[newer]


def _part_of(checkpoint: Checkpoint, names: Sequence[str]) -> Checkpoint:
    """Return the part of a checkpoint that belongs to some policies."""
    states = {name: checkpoint.agents[name] for name in names}
    replay = {name: lanes for name, lanes in checkpoint.replay.items() if name in states}
    return Checkpoint(checkpoint.step, states, {}, replay, checkpoint.league)


def _in_order(lanes: dict[str, Any]) -> dict[str, Any]:
    """Return the lanes of a replay in the order of their numbers."""
    return {f"lane{lane}": lanes[f"lane{lane}"] for lane in range(len(lanes))}


def grouped(ray: Any, host: type) -> type:
    """Return the class with its methods in separate thread groups, so that other calls do not wait for ``play``."""
    groups = {
        "play": "play",
        "join": "rows",
        "receive": "rows",
        "report": "report",
        "dump": "report",
        "put": "rows",
        "take": "report",
    }
    methods = {
        name: ray.method(concurrency_group=group)(_forwarded(getattr(host, name)))
        for name, group in groups.items()
        if hasattr(host, name)
    }
    return type(host.__name__, (host,), methods)


def _forwarded(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return method(self, *args, **named)

    call.__name__ = method.__name__
    return call

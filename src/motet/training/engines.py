"""The engines: they run the same roles in child processes, in this process, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from motet.errors import ChildError, MotetError, SettingError
from motet.runs.snapshot import Wait
from motet.streams import streams_returned
from motet.system.child import Child, interrupts
from motet.system.pickling import check_picklable
from motet.system.raised import InterruptedAgain
from motet.system.supervisor import Process, RestartLimitError, Role, Supervisor
from motet.training.drivers import play_actor, play_learner
from motet.training.evaluator import EvaluationPlan, Evaluations, play_evaluator
from motet.training.recorder import Recorder, Result
from motet.training.roster import Roster
from motet.training.serial import Serial
from motet.training.shared import SharedMemory

if TYPE_CHECKING:
    from motet.training.run import Run

__all__ = ["ALONE", "check_in_periods", "play_in_processes", "play_on_cluster", "play_serially"]

_NEW_EPISODES = "begins new episodes"
_NO_REPLAY = "begins without a replay, from the last copy of its state"
ALONE = "Fix: create that part in the process that uses it, or train in this process with engine='serial'"


def check_in_periods(run: Run) -> None:
    """Raise if a setting of a reproducible run is not supported for reproducible runs."""
    if run.settings.keep_replay and run.settings.engine == "ray":
        raise SettingError("keep_replay is not yet supported with reproducible runs and engine='ray'")


def play_in_processes(run: Run) -> Result:
    """Run each actor and each learner in a separate child process."""
    for policy in run.roster.policies:  # worlds and anchors are checked when each child is started
        check_picklable(policy.config, f"algorithm of {policy.name}", "algorithm", dumps=pickle.dumps)
    shared, roster, start_s = run.shared_memory(), run.roster, run.settings.limits.start_s

    def actor(i: int) -> Role:
        name = f"actor-{i}"

        def start(n: int) -> Child:
            notes = None if run.cut is None or n else run.cut["actors"][i]
            return Child(name, play_actor, (shared, i, n, start_s, notes), run.log(name))

        heartbeat = lambda: float(shared.board.processes.heartbeat[i])  # noqa: E731
        return _ending_the_guarantee(run, Role(name, start, heartbeat, doing=partial(_asked, shared, i)), _NEW_EPISODES)

    def learner(i: int) -> Role:
        name, row = f"learner-{i}", roster.actors + i
        start = lambda n: Child(name, play_learner, (shared, i), run.log(name))  # noqa: E731
        return Role(name, start, lambda: float(shared.board.processes.heartbeat[row]), essential=False)

    roles = [*map(actor, range(roster.actors)), *map(learner, range(len(roster.processes)))]
    if roster.pace.lockstep and run.settings.evaluates:
        shared.board.evaluated_round[0] = 0  # actors wait for the evaluator at the end of each round
    return _supervise(run, shared, roles)


def _asked(shared: SharedMemory, process: int) -> str:
    """Return the partner that a process was asking, as text; empty if none."""
    number = int(shared.board.processes.asks[process])
    if not number:
        return ""
    fixed = shared.roster.partners[number - 1]
    return f" while it asked partner {fixed.name} of {', '.join(fixed.seats.agents)}"


def play_on_cluster(run: Run) -> Result:
    """Run each actor and each learner in a separate process on a Ray cluster."""
    from motet.cluster.driver import on_cluster

    _check_for_cluster(run.roster)
    settings = run.settings
    with on_cluster(
        run.roster, settings.cluster, settings.limits, run.directory, run.resume_from,
        keep_replay=settings.keep_replay, policies=settings.evaluates,
    ) as remote:  # fmt: skip
        roles = [
            _ending_the_guarantee(run, role, _NEW_EPISODES if role.essential else _NO_REPLAY) for role in remote.roles()
        ]
        return _supervise(run, remote.shared, roles)


def _ending_the_guarantee(run: Run, role: Role, how: str) -> Role:
    """Return the role of a process. The first restart of this process changes the result of a reproducible run, and a
    message says so."""
    if not run.roster.pace.period:
        return role

    def start(n: int) -> Process:
        if n == 1:
            run.message(f"{role.name} {how}: the run continues, but its result is no longer a function of its seed")
        return role.start(n)

    return replace(role, start=start)


def _check_for_cluster(roster: Roster) -> None:
    if isolated := [fixed for fixed in roster.partners if fixed.entry.value.isolate]:
        raise SettingError(
            f"isolated partners are not valid with engine='ray' (got {isolated[0].name}); fix: leave isolate out, or "
            "train with engine='processes'"
        )
    makers = () if roster.self_play is None else roster.self_play.makers
    partners = [sent for fixed in roster.partners for sent in (fixed.entry, fixed.partner)]
    for sent in (roster.world, *makers, *partners):
        check_picklable(sent.value, sent.what, sent.name, ALONE)
    for policy in roster.policies:
        check_picklable(policy.config, f"algorithm of {policy.name}", "algorithm", ALONE)


def _supervise(run: Run, shared: SharedMemory, roles: list[Role]) -> Result:
    """Start all roles, local or remote, and watch them until the run ends."""
    others, plan = [role.name for role in roles], EvaluationPlan.of(run.settings)
    if plan is not None:
        Evaluations.begin(shared, plan)
        roles = [*roles, _evaluator(run, shared, plan)]
    supervisor = Supervisor(roles, run.settings.limits, run.message)
    recorder = Recorder(run, shared, roles)
    with interrupts() as interrupted:
        try:
            supervisor.start()
            run.begun()
            while not (_is_over(supervisor, shared) or interrupted.is_set() or recorder.over()):
                supervisor.watch(min(0.1, run.settings.metrics_every_s))
                recorder.tick()
            if interrupted.is_set():
                _say_interrupted(run)
            if shared.records is not None and not _has_learned(shared):
                periods = shared.name_last_period()
                run.message(f"stopping after period {periods}, as soon as all of it has been learned from")
                while not _has_learned(shared):
                    supervisor.watch(0.1)
                    recorder.tick()
            evaluates = plan is not None and run.callbacks.raised is None
            shared.board.request_stop(last_evaluation=None if evaluates else False)
            for line in supervisor.stop(*(others if evaluates else ())):
                run.message(line)
            recorder.save_last()
            if evaluates:
                if not _play_last(run, partial(_let_evaluate, shared, supervisor), interrupted.is_set()):
                    supervisor.kill()
                for line in supervisor.stop():
                    run.message(line)
            return recorder.end(interrupted.is_set())
        except ChildError as error:
            shared.board.request_stop()
            try:
                for line in supervisor.stop():
                    run.message(line)
            except ChildError as more:
                run.message(str(more))
            recorder.close("failed")
            where = f"; the last state of the run is in {run.path}" if run.path else ""
            first, gap, text = str(error).partition("\n\n")
            failure = type(error)(f"{first}{where}{_way_out(run, error)}{gap}{text.rstrip()}")
            if run.callbacks.raised is not None:
                failure.add_note(run.callbacks.cause)
            raise failure from None  # the message already contains the error
        finally:
            supervisor.kill()


def _way_out(run: Run, error: ChildError) -> str:
    """Advice for a run whose processes died too often: how to continue it with fewer of them."""
    if not isinstance(error, RestartLimitError) or run.directory is None or not run.directory.steps():
        return ""
    return f"; fix: use fewer processes when you {run.directory.way_on()} --engine serial, or --actors N"


def _is_over(supervisor: Supervisor, shared: SharedMemory) -> bool:
    """Whether all steps are done and, with periods, learned from. Until then learners are restarted if they die."""
    return supervisor.finished() and _has_learned(shared)


def _has_learned(shared: SharedMemory) -> bool:
    """Whether learners have finished the work that remains in a reproducible run after its actors have ended.

    An exact checkpoint is written after the evaluations that are due before it, so that no evaluation is lost.
    """
    records = shared.records
    return records is None or (records.complete and not (shared.roster.exact and shared.board.evaluations_left))


def _play_last(run: Run, play: Callable[[], None], interrupted: bool) -> bool:
    """Play the last evaluation. Ctrl-C skips it (a second Ctrl-C, if the first one ended the run). Return whether it
    was played."""
    try:
        if interrupted:
            run.message("Playing the last evaluation. Press Ctrl-C again to skip it.")
        play()
    except InterruptedAgain:
        run.message("skipped the last evaluation")
        return False
    return True


def _let_evaluate(shared: SharedMemory, supervisor: Supervisor) -> None:
    """Wait until the evaluator has played the last evaluation. Meanwhile it is watched, and restarted if it dies."""
    shared.board.request_stop(last_evaluation=True)
    while not supervisor.finished("evaluator"):
        supervisor.watch(0.1)


def _evaluator(run: Run, shared: SharedMemory, plan: EvaluationPlan) -> Role:
    row = shared.roster.actors + len(shared.roster.processes)
    args = (shared, plan, run.path)
    start = lambda n: Child("evaluator", play_evaluator, args, run.log("evaluator"))  # noqa: E731
    return Role("evaluator", start, lambda: float(shared.board.processes.heartbeat[row]), essential=False)


def play_serially(run: Run) -> Result:
    """Run all roles in this process, one after the other. The caller's random streams do not change."""
    with streams_returned():
        return _play_serially(run)


def _play_serially(run: Run) -> Result:
    shared, kept = run.shared_memory(), run.cut
    if kept is None and run.resume_from is not None:
        kept = run.resume_from.notes.get("serial")
    if run.resume_from is not None and kept is None and shared.records is None:
        run.message("the checkpoint does not contain unfinished episodes (keep_replay was off, a world or partner "
                    "cannot save its state, or the engine or worlds have changed): starting new episodes")  # fmt: skip
    serial = Serial(shared, kept)
    if run.settings.keep_replay:
        serial.check_streams()
    if kept is not None and shared.records is None:
        _warn_of_new_streams(run, serial, "published" not in kept)
    evaluations = _serial_evaluations(run, shared, serial)
    role = Role("serial", start=lambda n: _never(), heartbeat=time.monotonic)
    recorder = Recorder(run, shared, [role], serial)
    run.begun()
    with interrupts() as interrupted, contextlib.ExitStack() as closing:
        closing.callback(serial.close)
        if evaluations is not None:
            closing.callback(evaluations.close)

        def each_round() -> bool:
            if evaluations is not None and evaluations.due():
                serial.pulse.waits_for(Wait.EVALUATOR)
                evaluations.play()
                serial.pulse.works()
            recorder.tick()
            return interrupted.is_set() or recorder.over()

        serial.play(each_round, recorder.write_episodes)
        if interrupted.is_set():
            _say_interrupted(run)
        recorder.save_last()
        serial.end()
        if evaluations is not None and run.callbacks.raised is None:
            _play_last(run, evaluations.play_last, interrupted.is_set())
        return recorder.end(interrupted.is_set())


def _serial_evaluations(run: Run, shared: SharedMemory, serial: Serial) -> Evaluations | None:
    """Return the evaluations of a serial run, which take place in this process at the end of a round."""
    plan = EvaluationPlan.of(run.settings)
    if plan is None:
        return None
    Evaluations.begin(shared, plan)
    return Evaluations.make(shared, plan, run.path, insists=True, steps=lambda: serial.steps)


def _warn_of_new_streams(run: Run, serial: Serial, is_old: bool) -> None:
    if is_old:
        run.message(
            "the checkpoint was written by an older motet without the random states of the actors: starting new ones"
        )
    elif serial.new_streams:
        run.message(
            f"{', '.join(serial.new_streams)}: the behaviour cannot save its random stream (it has no get_stream and "
            "set_stream), so it starts a new one; the run continues, but not bit for bit as without the interruption"
        )


def _say_interrupted(run: Run) -> None:
    what = "Saving a checkpoint and stopping" if run.directory else "Stopping"
    run.message(f"{what}. Press Ctrl-C again to stop immediately.")


def _never() -> Child:
    raise MotetError("the serial engine does not start processes")

"""Watch: snapshots of a run, read from the board, the replays and the publications without involving its processes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from motet.runs.snapshot import AgentRow, PartnerRow, ProcessRow, Snapshot, Wait
from motet.system.supervisor import Role
from motet.training.board import FINISHED
from motet.training.shared import SharedMemory

__all__ = ["Watch"]


class Watch:
    """Takes snapshots of a run. Rates are measured since the snapshot before.

    Args:
        shared: the shared memory of the run.
        roles: the processes of the run.
    """

    def __init__(self, shared: SharedMemory, roles: Sequence[Role]) -> None:
        self._shared, self._roles = shared, roles
        self._started = time.monotonic()
        self._subscribers = [p.subscriber() for p in shared.publications]
        self._last: tuple[float, list[int], list[int]] | None = None

    def snapshot(self, state: str = "running") -> Snapshot:
        """Return the present state of the run."""
        shared, roster = self._shared, self._shared.roster
        now = time.monotonic()
        steps = [shared.steps(i) for i in range(len(shared.replays))]
        updates = [int(count) for count in shared.board.learned.updates]
        before, old_steps, old_updates = self._last or (self._started, shared.steps_before, updates)
        self._last = (now, steps, updates)
        span = max(now - before, 1e-9)
        agents = [
            self._agent(i, steps[i], updates[i], (steps[i] - old_steps[i]) / span, (updates[i] - old_updates[i]) / span)
            for i in range(len(steps))
        ]
        done, rate = max(steps), max(row.steps_per_s for row in agents)
        left = (roster.steps - done) / rate if rate > 0 else None
        return Snapshot(
            seconds=now - self._started,
            steps=done,
            limit=roster.steps,
            steps_per_s=rate,
            left_s=left,
            agents=agents,
            processes=[self._process(i, role, now) for i, role in enumerate(self._roles)],
            state=state,
            skipped_evaluations=int(shared.board.evaluation.skipped[0]),
            partners=[
                self._partner(i, name, fixed.name)
                for i, (name, fixed) in enumerate(roster.fixed_agents, len(roster.policies))
            ],
        )

    def _partner(self, row: int, name: str, policy: str) -> PartnerRow:
        episodes = self._shared.board.episodes
        counts = episodes.count[:, row]
        played = counts > 0
        return PartnerRow(
            name=name,
            policy=policy,
            episodes=int(counts.sum()),
            mean_return=float(episodes.mean_return[played, row].mean()) if played.any() else None,
            mean_length=float(episodes.mean_length[played, row].mean()) if played.any() else None,
            failures=int(episodes.failures[:, row].sum()),
        )

    def _agent(self, i: int, steps: int, updates: int, steps_per_s: float, updates_per_s: float) -> AgentRow:
        shared, policy = self._shared, self._shared.roster.policies[i]
        episodes, evaluated = shared.board.episodes, shared.board.evaluated
        counts = episodes.count[:, i]
        played = counts > 0
        replay = shared.replays[i]
        words = [replay.words(lane) for lane in range(replay.spec.n_lanes)]
        once = policy.settings.once
        rows = sum(w.head - w.released if once else min(w.head, replay.spec.lane_capacity) for w in words)
        stack = shared.roster.stack_of(i)
        newest = max(self._subscribers[i].newest, int(shared.board.rows.newest_version[i]))
        stages = policy.settings.stages.names
        return AgentRow(
            name=policy.name,
            steps=steps,
            updates=updates,
            episodes=int(counts.sum()),
            mean_return=float(episodes.mean_return[played, i].mean()) if played.any() else None,
            mean_length=float(episodes.mean_length[played, i].mean()) if played.any() else None,
            steps_per_s=steps_per_s,
            updates_per_s=updates_per_s,
            replay_fill=rows / (replay.spec.lane_capacity * replay.spec.n_lanes),
            replay_ratio=updates * policy.settings.batch_size * (policy.settings.length if once else 1) / max(steps, 1),
            version=newest,
            lag_versions=max(0, newest - int(episodes.version[:, i].min())),
            lag_steps=max(0, steps - shared.newest_step(i)),
            broken=sum(w.broken for w in words),
            metrics=shared.board.read_metrics(i),
            stage=stages[int(shared.board.learned.stage[i])] if len(stages) > 1 else "",
            forced=int(episodes.forced[:, i].sum()),
            restarts=self._restarts(stack),
            lost=int(shared.board.rows.lost[i]),
            refused=int(shared.board.rows.refused[i]),
            version_before=shared.versions_before[i],
            evaluated=float(evaluated.mean_return[i]) if evaluated.count[i] else None,
        )

    def _restarts(self, stack: int) -> int:
        """Return the restarts of the process that learns this stack; 0 in the serial engine."""
        roster = self._shared.roster
        process = next(i for i, stacks in enumerate(roster.processes) if stack in stacks)
        place = roster.actors + process
        return self._roles[place].total_restarts if place < len(self._roles) else 0

    def _process(self, i: int, role: Role, now: float) -> ProcessRow:
        process = self._shared.board.processes
        actors = self._shared.roster.actors
        finished = i < actors and int(self._shared.board.rounds[i]) == FINISHED
        return ProcessRow(
            name=role.name,
            pid=int(process.pid[i]),
            waits_for=Wait(int(process.waits_for[i])).words,
            beat_s=now - float(process.heartbeat[i]),
            restarts=role.total_restarts,
            done=role.done or finished,
            node=self._shared.where(i),
        )

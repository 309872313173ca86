"""Snapshots of a run, read from the board, the replays and the publications without involving its processes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence

from motet.runs.snapshot import ACTIVITIES, AgentRow, PartnerRow, ProcessRow, Snapshot, Wait, Work
from motet.system.machine import own_bytes, usable_cores
from motet.system.supervisor import Role
from motet.training.board import FINISHED
from motet.training.bottleneck import bottleneck
from motet.training.shared import SharedMemory

__all__ = ["Snapshots"]

_WINDOW_S = 10.0  # number of seconds over which the shares of a process are computed
_WORDS = {  # activities by number of Work
    Work.POLICIES: "policies",
    Work.BATCHES: "batches",
    Work.UPDATES: "updates",
    Work.PUBLISHING: "publishing",
}


class Snapshots:
    """Takes snapshots of a run. Rates are measured since the snapshot before.

    Args:
        shared: the shared memory of the run.
        roles: the processes of the run.
        serial: whether one process plays all roles.
    """

    def __init__(self, shared: SharedMemory, roles: Sequence[Role], serial: bool = False) -> None:
        self._shared, self._roles, self._serial = shared, roles, serial
        # by row of the board: values of the last seconds
        self._spent: deque[tuple[float, list[dict[str, float]]]] = deque()
        self._held: dict[int, int] = {}  # by row of the board: memory at the last snapshot
        self._started = time.monotonic()
        self._subscribers = [p.subscriber() for p in shared.publications]
        self._last: tuple[float, list[int], list[int]] | None = None
        self._episodes = 0  # steps of the agent with the most steps, at the last snapshot

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
        ended, limit = int(shared.board.ended.sum()), roster.steps
        if roster.episodes is not None:  # expect as many steps for each of the other episodes
            limit = min(limit, max(done, done * roster.episodes // (ended + 1)))
        left = (limit - done) / rate if rate > 0 else None
        spent = self._spend(now)
        episodes_before, self._episodes = self._episodes, max(row.episodes for row in agents)
        found = Snapshot(
            seconds=now - self._started,
            steps=done,
            limit=limit,
            episodes=ended,
            episode_limit=roster.episodes or 0,
            steps_per_s=rate,
            shared_bytes=shared.size,
            episodes_per_s=(self._episodes - episodes_before) / span,
            left_s=left,
            agents=agents,
            processes=[self._process(i, role, now, spent[i]) for i, role in enumerate(self._roles)],
            state=state,
            skipped_evaluations=int(shared.board.evaluation.skipped[0]),
            partners=[
                self._partner(i, name, fixed.name)
                for i, (name, fixed) in enumerate(roster.fixed_agents, len(roster.policies))
            ],
            main=None if self._serial else self._main(now, spent[shared.main_process]),
        )
        found.bottleneck = bottleneck(found, roster, usable_cores(), self._serial)
        return found

    # How the processes spend their time

    def _spend(self, now: float) -> list[dict[str, float]]:
        """Return the seconds of each activity by row of the board, and drop old values."""
        spent = [self._activities(row) for row in range(self._shared.main_process + 1)]
        self._spent.append((now, spent))
        while len(self._spent) > 2 and self._spent[1][0] <= now - _WINDOW_S:
            self._spent.popleft()
        return spent

    def _activities(self, row: int) -> dict[str, float]:
        """Return the seconds that a process has spent on each activity; empty before it has started."""
        spent, found = self._shared.board.spent(row), dict.fromkeys(ACTIVITIES, 0.0)
        if not spent[0]:
            return {}
        for wait in Wait:
            if wait:
                found[wait.activity] += float(spent[wait])
        for work, name in _WORDS.items():
            found[name] += float(spent[work])
        room = self._waited_for_room(row)
        found["rows"] += room
        found["policies"] -= room + float(spent[Wait.ROOM]) + float(spent[Wait.WEIGHTS])  # waits while a policy acts
        found[self._rest(row)] += float(spent[0]) - sum(found.values())
        return {name: round(value, 3) for name, value in found.items() if value >= 0.0005}

    def _rest(self, row: int) -> str:
        """Return the name of the activity to which a process's remaining time counts."""
        roster = self._shared.roster
        if self._serial or row < roster.actors:
            return "world"
        if row < roster.actors + len(roster.processes):
            return "other"
        return "idle" if row == self._shared.main_process else "evaluation"

    def _waited_for_room(self, row: int) -> float:
        """Return the seconds that the writers of an actor's lanes have waited for room."""
        shared, roster = self._shared, self._shared.roster
        if row >= roster.actors:
            return 0.0
        actors = range(roster.actors) if self._serial else [row]
        lanes = [(i, lane) for i in range(len(roster.policies)) for a in actors for lane in roster.lanes_of(i, a)]
        return sum(shared.replays[i].words(lane).waited_ns for i, lane in lanes) / 1e9

    def _shares(self, row: int) -> dict[str, float]:
        """Return the share of each activity of a process in the last seconds; empty if it has no heartbeat in them."""
        before, now = self._spent[0][1][row], self._spent[-1][1][row]
        if len(self._spent) == 1:
            before = {}
        spent = {name: max(value - before.get(name, 0.0), 0.0) for name, value in now.items()}
        total = sum(spent.values())
        return {name: round(value / total, 4) for name, value in spent.items() if value} if total > 0 else {}

    def _main(self, now: float, spent: dict[str, float]) -> ProcessRow:
        row = self._shared.main_process
        return ProcessRow(
            name="main",
            pid=os.getpid(),
            waits_for="",
            beat_s=now - float(self._shared.board.processes.heartbeat[row]),
            restarts=0,
            done=False,
            spent_s=spent,
            memory_bytes=own_bytes(os.getpid()),
            shares=self._shares(row),
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
            updates_per_step=updates / max(steps, 1),
            samples_per_row=updates * policy.settings.batch_size * policy.settings.learned_rows / max(steps, 1),
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

    def _memory(self, i: int, pid: int) -> int | None:
        """Return the memory of a process; after its end, what it had at the last snapshot."""
        if pid and not self._shared.where(i) and (held := own_bytes(pid)) is not None:
            self._held[i] = held
        return self._held.get(i)

    def _process(self, i: int, role: Role, now: float, spent: dict[str, float]) -> ProcessRow:
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
            spent_s=spent,
            memory_bytes=self._memory(i, int(process.pid[i])),
            shares=self._shares(i),
        )

"""What a run leaves behind: metrics once a second, checkpoints by steps and by the clock, the result at the end.

Checkpoints are read off the vaults, so no learner is asked; :func:`fill` puts one back, where the learners find it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.errors import NotReadyError, SettingError
from motet.policy import PLAYER
from motet.replay import ReplaySpec, rewound
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Snapshot
from motet.system.supervisor import Role
from motet.training.league import Standings
from motet.training.roster import LearnedPolicy
from motet.training.serial import Serial
from motet.training.shared import SharedMemory
from motet.training.watch import Watch

if TYPE_CHECKING:
    from motet.training.run import Run

__all__ = ["Recorder", "Result", "fill", "unused"]

_TRIES = 3  # of copying rows that are read once together with the state that they belong to
_FIRST_S, _EVERY_S = 60.0, 300.0  # until the first checkpoint, and the next one, at the latest
_REST = 50  # times what a checkpoint took, before the clock asks for another one

_SNAPSHOT_S = 1.0  # between two snapshots
_ENDLESS = 100_000  # steps without an end, before that is said

_ODD = "what its world shows may be NaN or huge (motet.testing.check_world looks), or its learning rate too high"


@dataclass
class Result:
    """What a run came to."""

    steps: int
    seconds: float
    """Since it was begun or resumed."""
    state: str
    """done, stopped (by the user or the clock), or failed."""
    returns: dict[str, float | None]
    """Mean return of each agent over its last episodes."""
    updates: dict[str, int]
    restarts: int
    """Of its processes, since it was begun or resumed."""
    run: Path | None
    agents: dict[str, dict[str, Any]]
    """For each agent what its checkpoint holds: flat ``state``, ``counters``, ``random``."""
    interrupted: bool = False
    """Whether it was Ctrl-C or SIGTERM that stopped it."""
    fell_back: str = ""
    """Why the serial engine played it although processes were asked for; empty where it did not."""
    began: int = 0
    """The steps that were done when it was begun or resumed."""


class Recorder:
    """Metrics once a second, checkpoints by steps and by the clock, and the result at the end."""

    def __init__(self, run: Run, shared: SharedMemory, roles: Sequence[Role], serial: Serial | None = None) -> None:
        self._run, self._shared, self._roles, self._serial = run, shared, roles, serial
        settings = self._settings = run.settings
        self._directory, self._watch = run.directory, Watch(shared, roles)
        self._began = self._steps()
        self._ends, self._ended_at = 0, self._began  # ends seen so far, and the step at which that was
        self._said_endless = False
        self._odd: set[str] = set()  # agents whose measurements are not finite, which has been said
        self._started = self._shown = time.monotonic()
        every = settings.checkpoint_every or max(1, settings.steps // 10)
        self._every, self._next = every, self._began // every * every + every
        # What the serial engine keeps with its replay is large, and goes on bit for bit: there steps alone decide.
        by_clock = settings.checkpoint_every is None and not (serial is not None and settings.keep_replay)
        self._saved, self._due = self._began, self._started + _FIRST_S if by_clock else math.inf
        self._vaults = [vault.subscriber() for vault in shared.vaults]
        self._standings = None if shared.league is None else Standings(shared.league)

    def tick(self) -> None:
        """Write what is due: metrics, checkpoints, the league."""
        if self._directory is not None:
            # A learner elsewhere that died just now is asked again later.
            with contextlib.suppress(NotReadyError):
                self._save_if_due(self._directory)
        if time.monotonic() - self._shown >= _SNAPSHOT_S:
            self._shown = time.monotonic()
            self._show("running")
            self._write_league()

    def _save_if_due(self, directory: RunDirectory) -> None:
        steps, now = self._steps(), time.monotonic()
        by_steps, by_clock = steps >= self._next, now >= self._due and steps > self._saved
        if (by_steps or by_clock) and steps < self._shared.roster.steps:  # the last one is written at the end
            directory.save(self.checkpoint(steps))
            self._saved = steps
            if self._due < math.inf:
                took_s = time.monotonic() - now
                self._due = now + took_s + max(_EVERY_S, _REST * took_s)
        if by_steps:
            self._next = steps // self._every * self._every + self._every

    def _steps(self) -> int:
        return self._shared.most_steps() if self._serial is None else self._serial.steps

    def _write_league(self) -> None:
        """What the last review of the league changed, and the snapshots that came in."""
        if self._directory is None or self._standings is None or not self._standings.refresh():
            return
        self._directory.append_line("league.jsonl", self._standings.as_dict())
        pool = self._standings.pool()
        for step in pool:
            if not (self._directory.path / "league" / f"{step:012d}").exists():
                policy = {PLAYER: {"weights": self._standings.weights(step)}}
                self._directory.save_snapshot(Checkpoint(step, policy), pool)

    def _show(self, state: str) -> Snapshot:
        snapshot = self._watch.snapshot(state)
        snapshot.fell_back = self._run.fell_back
        if self._directory is not None:
            self._directory.append_line("metrics.jsonl", snapshot.as_dict())
            self._directory.write_json("status.json", snapshot.as_dict())
        self._run.callbacks.update(snapshot)
        self._warn_of_no_end(snapshot)
        for row in snapshot.agents:
            odd = ", ".join(f"{name} {value:g}" for name, value in row.metrics.items() if not math.isfinite(value))
            if odd and row.name not in self._odd:
                self._odd.add(row.name)
                self._run.message(f"{row.name} diverged at update {row.updates:,} ({odd}): {_ODD}")
        return snapshot

    def _warn_of_no_end(self, snapshot: Snapshot) -> None:
        """Say once if there was no end for a long time."""
        ends = sum(row.episodes for row in snapshot.agents)
        if ends > self._ends:
            self._ends, self._ended_at = ends, snapshot.steps
        steps = snapshot.steps - self._ended_at
        if steps >= _ENDLESS and not self._said_endless:
            self._said_endless = True
            self._run.message(
                f"no episode has ended in the last {steps:,} steps, and returns are known at an end only: let the "
                "world terminate or truncate its agents at some time"
            )

    def over(self) -> bool:
        """Whether the run has had its seconds, an evaluation has reached ``until_return``, or a callback has raised."""
        limit, reached = self._settings.seconds, self._shared.board.evaluation.reached[0]
        late = limit is not None and time.monotonic() - self._started > limit
        return late or bool(reached) or self._run.callbacks.raised is not None

    def checkpoint(self, step: int, rows: bool = True) -> Checkpoint:
        """From the vaults: no learner is asked, and what is read is one version of each stack.

        The serial engine is at rest, and gives the present state. Either way the run is the same without it.
        ``rows``: with the replays, if they are to be kept.

        Raises:
            NotReadyError: a replay lives elsewhere, with a learner that does not answer.
        """
        roster, shared = self._shared.roster, self._shared
        agents: dict[str, dict[str, Any]] = {}
        replay: dict[str, dict[str, Any]] = {}
        for k in range(len(roster.stacks)):
            for _ in range(_TRIES):
                held = self._state(k)
                kept = self._rows(k, held) if self._settings.keep_replay and rows and held else {}
                if kept is not None:
                    break
            agents |= held
            replay |= kept or {}
        notes: dict[str, Any] = {
            "seconds": time.monotonic() - self._started,
            "evaluations": int(shared.board.evaluation.count[0]),
        }
        if self._settings.keep_replay and self._serial is not None and self._serial.can_save:
            notes["serial"] = self._serial.write_down()
        return Checkpoint(step, agents, notes, replay, shared.league.dump() if shared.league else {})

    def _state(self, stack: int) -> dict[str, dict[str, Any]]:
        """What the vault of a stack holds, by policy; nothing before its first version."""
        shared, vault = self._shared, self._vaults[stack]
        held: Any = vault
        if self._serial is not None:
            flat, held = self._serial.learners[stack].state()
        else:
            vault.refresh()
            if not vault._have:
                return {}
            flat = vault.weights
        members = shared.roster.stacks[stack]
        states, found = flat.reshape(len(members), -1), {}
        for i, member in enumerate(members):
            policy = shared.roster.policies[member]
            found[policy.name] = {
                "state": states[i].copy(),
                "counters": held["counters"][i].copy(),
                "random": held["random"][i, : policy.sizes.random].copy(),
                "reader": held["reader"][i].copy(),
                "steps": held["steps"][i].copy(),
                "stage": held["stage"][i].copy(),
                "before": np.array([shared.steps_before[member], shared.updates_before[member]], np.int64),
            }
        return found

    def _rows(self, stack: int, held: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
        """The lanes of a stack, copied after its state; None if rows that this state has not used were overwritten.

        Rows that are read once belong to one state, and while they are copied its learner may go on, and the writers.
        """
        found: dict[str, dict[str, Any]] = {}
        for member in self._shared.roster.stacks[stack]:
            policy, replay = self._shared.roster.policies[member], self._shared.replays[member]
            lanes = [replay.dump(lane) for lane in range(replay.spec.n_lanes)]
            if policy.settings.once:
                cursors = replay.spec.cursors(held[policy.name]["reader"]).tolist()
                whole = [rewound(*lane, policy.settings.n_frames - 1) for lane in zip(lanes, cursors, strict=True)]
                lanes = [lane for lane in whole if lane is not None]
            if len(lanes) < replay.spec.n_lanes:
                return None
            found[policy.name] = {f"lane{k}": lane for k, lane in enumerate(lanes)}
        return found

    def end(self, interrupted: bool) -> Result:
        """The orderly end of a run, with its last checkpoint. Raises what a callback raised, if one did."""
        raised, unfinished = self._run.callbacks.raised, self._steps() < self._shared.roster.steps
        result = self.close("failed" if raised else "stopped" if unfinished else "done", interrupted)
        self._run.callbacks.check(self._run.path)
        return result

    def close(self, state: str, interrupted: bool = False) -> Result:
        """Write the last metrics and the last checkpoint; what the run came to."""
        snapshot = self._show(state)
        self._write_league()
        try:
            final = self.checkpoint(snapshot.steps)
        except NotReadyError as error:
            self._run.message(f"the last checkpoint holds no replay, as keep_replay asks for: {error}")
            final = self.checkpoint(snapshot.steps, rows=False)
        if self._directory is not None and final.agents:
            self._directory.save(final)
        return Result(
            steps=snapshot.steps,
            seconds=snapshot.seconds,
            state=state,
            returns={row.name: row.mean_return for row in snapshot.agents},
            updates={row.name: row.updates for row in snapshot.agents},
            restarts=sum(role.total_restarts for role in self._roles),
            run=self._run.path,
            agents=final.agents,
            interrupted=interrupted and state == "stopped",
            fell_back=self._run.fell_back,
            began=self._began,
        )


def fill(
    shared: SharedMemory, checkpoint: Checkpoint, stacks: Sequence[int] | None = None, version: int | None = None
) -> None:
    """Put what a checkpoint holds into the vaults and lanes, where the learners will find it.

    ``stacks``: of these alone, where the others live elsewhere. ``version``: under which it goes there.
    """
    roster = shared.roster
    shared.board.evaluation.count[0] = checkpoint.notes.get("evaluations", 0)
    chosen = range(len(roster.stacks)) if stacks is None else stacks
    if shared.league is not None and checkpoint.league:
        shared.league.restore(checkpoint.league, version)
    missing = {roster.policies[p].name for k in chosen for p in roster.stacks[k]} - set(checkpoint.agents)
    if missing:
        raise SettingError(f"the checkpoint must hold all of the world's agents, got none for {sorted(missing)}")
    for k in chosen:
        stack = roster.stacks[k]
        held = [checked(roster.policies[p], checkpoint.agents[roster.policies[p].name]) for p in stack]
        readers = np.stack([arrays["reader"] for arrays in held])
        stages = np.stack([arrays["stage"] for arrays in held])
        for i, p in enumerate(stack):
            replay, policy = shared.replays[p], roster.policies[p]
            if lanes := checkpoint.replay.get(policy.name):
                for lane in range(replay.spec.n_lanes):
                    replay.restore(lane, lanes[f"lane{lane}"])
                shared.steps_before[p], shared.updates_before[p] = map(int, held[i].get("before", (0, 0)))
                _check_cursors(policy, replay.spec, held[i], shared.updates_before[p])
            else:
                readers[i, -2 * replay.spec.n_lanes :] = 0  # floors and cursors of rows that are gone
                stages[i, 1:] = 0  # the pace begins anew
                shared.steps_before[p] = int(held[i]["steps"])
                shared.updates_before[p] = int(held[i]["counters"][0])
                shared.board.rows.lost[p] += np.uint64(unused(policy, replay.spec, checkpoint))
        newest = _newest(checkpoint, roster.policies[stack[0]].name)
        for p in stack:
            shared.versions_before[p] = newest or 0
        random = np.stack([arrays["random"] for arrays in held])
        shared.vaults[k].publisher().publish(
            np.concatenate([arrays["state"] for arrays in held]),
            version=newest if version is None else version,
            counters=np.stack([arrays["counters"] for arrays in held]),
            random=random if random.size else np.zeros((len(stack), 1), np.uint8),
            reader=readers,
            steps=[int(arrays["steps"]) for arrays in held],
            stage=stages,
        )
        shared.board.learned.updates[list(stack)] = [int(arrays["counters"][0]) for arrays in held]


def _newest(checkpoint: Checkpoint, policy: str) -> int | None:
    """The newest version of a policy that was published, where the checkpoint says so."""
    published = checkpoint.notes.get("serial", {}).get("published")
    return int(published[policy][-1]["version"]) if published else None


def unused(policy: LearnedPolicy, spec: ReplaySpec, checkpoint: Checkpoint) -> int:
    """Steps of a policy whose rows are read once that a checkpoint counts, but has neither used nor kept."""
    if not policy.settings.once or policy.name in checkpoint.replay or policy.name not in checkpoint.agents:
        return 0
    held = checkpoint.agents[policy.name]
    return max(0, int(held["steps"]) - spec.consumed(held["reader"]))


def _check_cursors(policy: LearnedPolicy, spec: ReplaySpec, held: dict[str, Any], updates_before: int) -> None:
    """Rows that are read once are taken by whole fragments and batches, which the pace counts."""
    updates = int(held["counters"][0]) - updates_before
    fragments, length = policy.settings.batch_size, policy.settings.length
    cursors = spec.cursors(held["reader"])
    if policy.settings.once and (int(cursors.sum()) != updates * fragments * length or (cursors % length).any()):
        raise SettingError(
            f"agent {policy.name}: the rows of the checkpoint were read up to {cursors.tolist()}, which is not where "
            f"{updates} updates get with batches of {fragments} times {length} rows: its settings have changed"
        )


def checked(policy: LearnedPolicy, arrays: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint holds of a policy, if it has the sizes that its algorithm asks for."""
    sizes = policy.sizes
    expected = {"state": sizes.state, "counters": sizes.counters, "random": sizes.random}
    for name, size in expected.items():
        if arrays[name].shape != (size,):
            raise SettingError(
                f"agent {policy.name}: the checkpoint must hold {name} of shape {(size,)}, got {arrays[name].shape}: "
                "the algorithm's settings have changed"
            )
    return arrays

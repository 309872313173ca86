"""The recorder of a run: it writes metrics once a second, checkpoints by steps and by time, and the result at the end.

With processes, checkpoints are read from the vaults, so they do not interrupt the learners. With the serial engine,
they are made between two rounds from its current state. :func:`fill` writes a checkpoint back into the vaults and
replays, from which the learners start.
"""

from __future__ import annotations

import contextlib
import html
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.errors import NotReadyError, SettingError
from motet.policies.entries import greedy_policy
from motet.policy import PLAYER, Policy
from motet.replay import ReplaySpec, rewound
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Snapshot, Wait
from motet.streams import generators_of
from motet.system.supervisor import Role
from motet.training.cuts import add_cut, letters, start_from_cut, state_in, vault_of_cut
from motet.training.episodes import EpisodeRecorder
from motet.training.league import Standings
from motet.training.roster import LearnedPolicy, Roster, dealt
from motet.training.serial import Serial
from motet.training.shared import SharedMemory
from motet.training.snapshots import Snapshots

if TYPE_CHECKING:
    from motet.training.run import Run

__all__ = ["Recorder", "Result", "fill", "unused"]

_TRIES = 3  # number of attempts to copy rows that are read once together with the matching state
_FIRST_S, _EVERY_S = 60.0, 300.0  # seconds until the first checkpoint by time, and between the later ones
_REST = 50  # minimum pause between two checkpoints by time, as a multiple of the duration of a checkpoint

_EPISODES_S = 0.05  # seconds between two readings of the actors' finished episodes
_ENDLESS = 100_000  # steps without the end of an episode before a warning

_LATE = (
    "for the first time after many episodes without it. Those episodes shared its generator with other worlds and "
    "policies, so they did not depend on their seeds alone. From now on each copy of the world has its own stream"
)
_ODD = "observations or rewards may be NaN or huge (motet.testing.check_world finds out), or the learning rate too high"


@dataclass(repr=False)
class Result:
    """The result of a run."""

    steps: int
    seconds: float
    """Seconds since the run was started or resumed."""
    state: str
    """``done``, ``stopped`` (before all steps were done) or ``failed``."""
    returns: dict[str, float | None]
    """Mean return of each agent over its last episodes; None before the end of the first one. Partners included."""
    updates: dict[str, int]
    """Updates of each agent that learns."""
    restarts: int
    """Restarts of its processes since the run was started or resumed."""
    run: Path | None
    agents: dict[str, dict[str, Any]] = field(repr=False)
    """Contents of the checkpoint by agent: flat ``state``, ``counters``, ``random``."""
    interrupted: bool = False
    """Whether Ctrl-C or SIGTERM stopped the run."""
    fell_back: str = ""
    """Why the run fell back to the serial engine; empty if it did not."""
    late_draws: str = ""
    """Human-readable list of late draws from global random generators; empty if there were none. Episodes before these
    draws did not depend on their seeds alone."""
    began: int = 0
    """Steps that had been done when the run was started or resumed."""
    roster: Roster | None = field(default=None, repr=False, compare=False)
    """The participants of the run."""

    def policies(self) -> dict[str, Policy]:
        """The greedy policies of the agents that learned, by agent, for use in this process.

        >>> from motet import Settings, train
        >>> result = train("matrix", "dqn", Settings(steps=200, engine="serial"))
        >>> policy = result.policies()["player_0"]
        >>> policy.reset(seed=0)
        """
        assert self.roster is not None
        found: dict[str, Policy] = {}
        for agent in self.roster.agents:
            if agent.policy is not None:
                learned = self.roster.policies[agent.policy]
                weights = self.agents[learned.name]["state"][: learned.sizes.weights].copy()
                spaces = agent.observation_space, agent.action_space
                found[agent.name] = greedy_policy(learned.config, weights, *spaces)
        return found

    def __repr__(self) -> str:
        where = f", in {str(self.run)!r}" if self.run is not None else ""
        returns = ", ".join(f"{name} {_number(value)}" for name, value in self.returns.items())
        return f"<Result: {self.state} after {self.steps:,} steps in {self.seconds:.1f} s; return: {returns}{where}>"

    def _repr_html_(self) -> str:
        """The result as notebooks show it."""
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{_number(value)}</td><td>{self.updates.get(name, 0):,}</td></tr>"
            for name, value in self.returns.items()
        )
        where = f" · <code>{html.escape(str(self.run))}</code>" if self.run is not None else ""
        return (
            f"<p>{html.escape(self.state)} after {self.steps:,} steps in {self.seconds:.1f} s{where}</p>"
            f"<table><tr><th>agent</th><th>return</th><th>updates</th></tr>{rows}</table>"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


class Recorder:
    """Writes metrics once a second, checkpoints by steps and by time, and the result at the end."""

    def __init__(self, run: Run, shared: SharedMemory, roles: Sequence[Role], serial: Serial | None = None) -> None:
        self._run, self._shared, self._roles, self._serial = run, shared, roles, serial
        settings = self._settings = run.settings
        self._directory, self._snapshots = run.directory, Snapshots(shared, roles, serial is not None)
        self._pulse = shared.board.pulse(shared.main_process) if serial is None else serial.pulse
        if serial is None:
            self._pulse.start(os.getpid())
        self._began = self._steps()
        self._ends, self._ended_at = 0, self._began  # number of ended episodes, and the step at which it last increased
        self._said_endless = False
        self._late = shared.board.late_draws()
        self._odd: set[str] = set()  # agents whose divergence has been reported to the user
        self._failures: dict[str, int] = {}  # failures of partners that have been reported to the user
        self._started = self._shown = self._read_episodes = time.monotonic()
        every = settings.checkpoint_every or max(1, settings.step_limit // 10)
        self._every, self._next = every, self._began // every * every + every
        # With keep_replay, checkpoints of the serial engine are large and exact, so only steps trigger them.
        by_clock = settings.checkpoint_every is None and not (serial is not None and settings.keep_replay)
        self._saved, self._due = self._began, self._started + _FIRST_S if by_clock else math.inf
        self._vaults = [vault.subscriber() for vault in shared.vaults]
        self._standings = None if shared.league is None else Standings(shared.league)
        kept = None if run.resume_from is None else run.resume_from.notes.get("episodes", {})
        self._episodes = EpisodeRecorder(shared, self._directory, 1e6 * settings.episodes_mb, kept)
        self._final: Checkpoint | None = None
        self._actors: list[dict[str, Any]] | None = None  # for an exact checkpoint: their states

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Count the time of the block as a wait for the disk."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._pulse.times[Wait.DISK] += time.monotonic() - began

    def tick(self) -> None:
        """Write the metrics, the checkpoint and the league table that are due."""
        if self._serial is None:
            self._pulse.beat()
        if time.monotonic() - self._read_episodes >= _EPISODES_S:
            self.write_episodes()
        if self._directory is not None:
            # A learner on another node may have just died. The next call tries again.
            with contextlib.suppress(NotReadyError):
                self._save_if_due(self._directory)
        if time.monotonic() - self._shown >= self._settings.metrics_every_s:
            self._shown = time.monotonic()
            self._show("running")
            self._write_league()

    def write_episodes(self, everything: bool = False) -> None:
        """Write the episodes that have ended; ``everything``: no process plays any more."""
        self._read_episodes = time.monotonic()
        with self._writing():
            self._episodes.write(time.monotonic() - self._started, everything)

    def _save_if_due(self, directory: RunDirectory) -> None:
        steps, now = self._steps(), time.monotonic()
        by_steps, by_clock = steps >= self._next, now >= self._due and steps > self._saved
        if (by_steps or by_clock) and not self._is_done():  # close() writes the last checkpoint
            if not self._stands_still():
                return
            with self._writing():
                checkpoint = self.checkpoint(steps)
                self._let_continue()
                directory.save(checkpoint)
            self._saved = steps
            if self._due < math.inf:
                took_s = time.monotonic() - now
                self._due = now + took_s + max(_EVERY_S, _REST * took_s)
        if by_steps:
            self._next = steps // self._every * self._every + self._every

    def _stands_still(self) -> bool:
        """Whether a checkpoint can be made now. For an exact one all actors must wait, and no evaluation be due."""
        shared, board = self._shared, self._shared.board
        if not shared.roster.exact or self._serial is not None:
            return True
        if not board.cut:
            board.name_cut()
        self._actors = letters(shared, board.cut)
        return self._actors is not None and not board.evaluations_left

    def _let_continue(self) -> None:
        """Let actors continue that wait for a checkpoint."""
        self._actors = None
        if self._shared.board.cut:
            self._shared.board.end_cut()

    def _is_done(self) -> bool:
        """Whether all steps or all episodes have been done."""
        roster = self._shared.roster
        ended = roster.episodes is not None and int(self._shared.board.ended.sum()) >= roster.episodes
        return ended or self._steps() >= roster.steps

    def _steps(self) -> int:
        return self._shared.most_steps() if self._serial is None else self._serial.steps

    def _write_league(self) -> None:
        """Write the league table and new snapshots if the league has been reviewed since the last call."""
        if self._directory is None or self._standings is None or not self._standings.refresh():
            return
        self._directory.append_line("league.jsonl", self._standings.as_dict())
        pool = self._standings.pool()
        for step in pool:
            if not (self._directory.path / "league" / f"{step:012d}").exists():
                policy = {PLAYER: {"weights": self._standings.weights(step)}}
                self._directory.save_snapshot(Checkpoint(step, policy), pool)

    def _show(self, state: str) -> Snapshot:
        snapshot = self._snapshots.snapshot(state)
        snapshot.fell_back, snapshot.late_draws = self._run.fell_back, self._note_late_draws()
        snapshot.episodes_lost, snapshot.metrics_lost = self._episodes.lost, self._episodes.metrics_lost
        snapshot.metrics, snapshot.gpus = self._episodes.metrics(), self._run.gpus.newest()
        if self._directory is not None:
            with self._writing():
                self._directory.append_line("metrics.jsonl", snapshot.as_dict())
                self._directory.write_json("status.json", snapshot.as_dict())
        self._run.callbacks.update(snapshot)
        self._warn_of_no_end(snapshot)
        self._tell_failures(snapshot)
        for row in snapshot.agents:
            odd = ", ".join(f"{name} is {value:g}" for name, value in row.metrics.items() if not math.isfinite(value))
            if odd and row.name not in self._odd:
                self._odd.add(row.name)
                self._run.message(f"{row.name} diverged at update {row.updates:,} ({odd}): {_ODD}")
        return snapshot

    def _tell_failures(self, snapshot: Snapshot) -> None:
        """Report the number of failures of isolated partners whenever it has increased."""
        for row in snapshot.partners:
            if row.failures > self._failures.get(row.name, 0):
                self._failures[row.name] = row.failures
                logs = f"; the logs in {self._directory.logs} say why" if self._directory else ""
                self._run.message(
                    f"partner {row.policy} of {row.name} has failed {row.failures} times and was replaced; its "
                    f"episodes broke off{logs}"
                )

    def _note_late_draws(self) -> str:
        """Return the world's late draws as text. Write new ones to ``config.json`` and report them to the user."""
        late = self._shared.board.late_draws()
        if not late:
            return ""
        factory = self._run.roster.world.value
        name = getattr(getattr(factory, "func", factory), "__name__", "")
        text = f"{f'the world {name}'.strip()} drew from {' and '.join(generators_of(late))}"
        if late != self._late:
            self._late = late
            if self._directory is not None:
                self._directory.write_json("config.json", {**self._directory.config(), "late_draws": late})
            self._run.message(f"{text} {_LATE}")
        return text

    def _warn_of_no_end(self, snapshot: Snapshot) -> None:
        """Warn once if no episode has ended for a long time."""
        ends = sum(row.episodes for row in snapshot.agents)
        if ends > self._ends:
            self._ends, self._ended_at = ends, snapshot.steps
        steps = snapshot.steps - self._ended_at
        if steps >= _ENDLESS and not self._said_endless:
            self._said_endless = True
            self._run.message(
                f"no episode has ended in the last {steps:,} steps, and returns are only known at the end of one; "
                "fix: let the world terminate or truncate its agents"
            )

    def over(self) -> bool:
        """Whether the time limit or ``until_return`` has been reached, or a callback has raised or stopped the run."""
        limit, reached = self._settings.seconds, self._shared.board.evaluation.reached[0]
        late = limit is not None and time.monotonic() - self._started > limit
        callbacks = self._run.callbacks
        return late or bool(reached) or callbacks.stopped or callbacks.raised is not None

    def checkpoint(self, step: int, rows: bool = True) -> Checkpoint:
        """Make a checkpoint. This does not change the course of the run.

        With processes, one version of each stack is read from its vault, so the learners are not interrupted. With the
        serial engine, this is called between two rounds, and its current state is saved. ``rows``: include the replays
        if ``keep_replay`` is set.

        Raises:
            NotReadyError: a replay is on another node, and its learner does not answer.
        """
        roster, shared, exact = self._shared.roster, self._shared, self._shared.roster.exact
        agents: dict[str, dict[str, Any]] = {}
        replay: dict[str, dict[str, Any]] = {}
        for k in range(len(roster.stacks)):
            for _ in range(_TRIES):
                held = self._state(k)
                kept = self._rows(k, held) if self._settings.keep_replay and rows and held and not exact else {}
                if kept is not None:
                    break
            agents |= held
            replay |= kept or {}
        notes: dict[str, Any] = {
            "seconds": time.monotonic() - self._started,
            "evaluations": int(shared.board.evaluation.count[0]),
            "ended": shared.board.ended.tolist(),
        }
        self.write_episodes()
        notes["episodes"] = self._episodes.notes()
        if self._settings.keep_replay and self._serial is not None and self._serial.can_save and not exact:
            notes["serial"] = self._serial.write_down()
        found = Checkpoint(step, agents, notes, replay, shared.league.dump() if shared.league else {})
        if exact and rows:
            actors = self._actors if self._serial is None else self._serial.actor_notes()
            if actors is None:
                raise NotReadyError("an actor did not end regularly")
            add_cut(shared, found, actors)
        return found

    def _state(self, stack: int) -> dict[str, dict[str, Any]]:
        """Return the state of each policy of a stack from its vault; empty before the first version."""
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
        """Copy the lanes of a stack after its state; None if rows that the state has not used yet were overwritten.

        Rows that are read once must match the state. The learner and the writers may continue during the copy.
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
        """End the run with its last checkpoint and return the result. If a callback raised, raise its exception."""
        raised, unfinished = self._run.callbacks.raised, not self._is_done()
        result = self.close("failed" if raised else "stopped" if unfinished else "done", interrupted)
        self._run.callbacks.check(self._run.path)
        return result

    def save_last(self) -> Checkpoint:
        """Write the last checkpoint if it has not been written yet, and return it."""
        if self._final is None:
            self.write_episodes(everything=True)
            steps = self._steps()
            if self._shared.letters and self._serial is None:
                self._actors = letters(self._shared, 0)
            try:
                self._final = self.checkpoint(steps)
            except NotReadyError as error:
                self._run.message(
                    f"the last checkpoint does not contain the replays that keep_replay asks for: {error}"
                )
                self._final = self.checkpoint(steps, rows=False)
            if self._directory is not None and self._final.agents:
                self._directory.save(self._final)
        return self._final

    def close(self, state: str, interrupted: bool = False) -> Result:
        """Write the last metrics and the last checkpoint; return the result."""
        self.write_episodes(everything=True)
        snapshot = self._show(state)
        self._write_league()
        final = self.save_last()
        if skipped := snapshot.skipped_evaluations:
            self._run.message(
                f"{skipped} evaluations were skipped, because the one before had not ended; fix: evaluate less often "
                "(evaluate_every, evaluate_every_s), or play fewer episodes (evaluate_episodes)"
            )
        return Result(
            steps=snapshot.steps,
            seconds=snapshot.seconds,
            state=state,
            returns={row.name: row.mean_return for row in snapshot.agents}
            | {row.name: row.mean_return for row in snapshot.partners},
            updates={row.name: row.updates for row in snapshot.agents},
            restarts=sum(role.total_restarts for role in self._roles),
            roster=self._shared.roster,
            run=self._run.path,
            agents=final.agents,
            interrupted=interrupted and state == "stopped",
            fell_back=self._run.fell_back,
            late_draws=snapshot.late_draws,
            began=self._began,
        )


def fill(
    shared: SharedMemory,
    checkpoint: Checkpoint,
    stacks: Sequence[int] | None = None,
    version: int | None = None,
    evaluation: int = 0,
) -> None:
    """Write a checkpoint into the vaults and lanes, from which the learners start.

    ``stacks``: only these stacks, if the others are on other nodes. ``version``: the version to publish in the vaults.
    ``evaluation``: with periods, the number of the last evaluation of this session.
    """
    roster = shared.roster
    shared.board.evaluation.count[0] = checkpoint.notes.get("evaluations", 0)
    _count_ended(shared, checkpoint.notes.get("ended", []))
    chosen = range(len(roster.stacks)) if stacks is None else stacks
    cut = checkpoint.notes.get("cut") if roster.pace.period else None
    if cut is not None:
        version = cut["done"] + 1
    elif shared.league is not None and checkpoint.league:
        shared.league.restore(checkpoint.league, version)
    missing = {roster.policies[p].name for k in chosen for p in roster.stacks[k]} - set(checkpoint.agents)
    if missing:
        raise SettingError(f"the checkpoint must contain all agents of the world, got no state for {sorted(missing)}")
    for k in chosen:
        stack = roster.stacks[k]
        names = [roster.policies[p].name for p in stack]
        held = [checked(roster.policies[p], state_in(checkpoint, names[i])) for i, p in enumerate(stack)]
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
                readers[i, -2 * replay.spec.n_lanes :] = 0  # floors and cursors refer to rows that no longer exist
                stages[i, 1:] = 0  # the pace starts at zero again
                shared.steps_before[p] = int(held[i]["steps"])
                shared.updates_before[p] = int(held[i]["counters"][0])
                lost = unused(policy, replay.spec, checkpoint) + checkpoint.notes.get("dropped", {}).get(policy.name, 0)
                shared.board.rows.lost[p] += np.uint64(lost)
        newest = _newest(checkpoint, roster.policies[stack[0]].name) if cut is None else version
        for p in stack:
            shared.versions_before[p] = newest or 0
        random = np.stack([arrays["random"] for arrays in held])
        more = {} if cut is None else vault_of_cut(shared, checkpoint, k)
        if cut is None and (record := shared.stack_record(k)) is not None:
            more = record.at_start(evaluation)
        shared.vaults[k].publisher().publish(
            np.concatenate([arrays["state"] for arrays in held]),
            version=newest if version is None else version,
            counters=np.stack([arrays["counters"] for arrays in held]),
            random=random if random.size else np.zeros((len(stack), 1), np.uint8),
            reader=readers,
            steps=[int(arrays["steps"]) for arrays in held],
            stage=stages,
            **more,
        )
        shared.board.learned.updates[list(stack)] = [int(arrays["counters"][0]) for arrays in held]
        shared.board.learned.waived[list(stack)] = stages[:, 2]
        progress = shared.progress(k)
        if checkpoint.notes.get("settles") and not progress.once:
            progress.settle()
    if cut is not None:
        start_from_cut(shared, checkpoint)


def _count_ended(shared: SharedMemory, ended: Sequence[Sequence[int]]) -> None:
    """Count the episodes that had ended at a checkpoint. If the number of worlds has changed, divide the remaining
    episodes among them again."""
    roster, counts = shared.roster, np.array(ended, np.uint64)
    total = int(counts.sum())
    if roster.episodes is not None:
        size = roster.actors, roster.worlds_per_actor
        share = np.array(dealt(roster.episodes, *size), np.uint64)
        if counts.shape != share.shape or (counts > share).any():
            counts = share - np.array(dealt(roster.episodes - total, *size), np.uint64)
    elif counts.shape != shared.board.ended.shape:
        counts = np.array(dealt(total, roster.actors, roster.worlds_per_actor), np.uint64)
    shared.board.ended[...] = counts


def _newest(checkpoint: Checkpoint, policy: str) -> int | None:
    """Return the newest published version of a policy; None if the checkpoint does not contain it."""
    published = checkpoint.notes.get("serial", {}).get("published")
    return int(published[policy][-1]["version"]) if published else None


def unused(policy: LearnedPolicy, spec: ReplaySpec, checkpoint: Checkpoint) -> int:
    """Return the number of steps in a checkpoint whose rows were neither learned from nor saved (for ``once``)."""
    if not policy.settings.once or policy.name in checkpoint.replay or policy.name not in checkpoint.agents:
        return 0
    held = checkpoint.agents[policy.name]
    return max(0, int(held["steps"]) - spec.consumed(held["reader"]))


def _check_cursors(policy: LearnedPolicy, spec: ReplaySpec, held: dict[str, Any], updates_before: int) -> None:
    """Raise unless the cursors match the updates: rows that are read once are taken by whole fragments and batches."""
    updates = int(held["counters"][0]) - updates_before
    fragments, length = policy.settings.batch_size, policy.settings.length
    cursors = spec.cursors(held["reader"])
    if policy.settings.once and (int(cursors.sum()) != updates * fragments * length or (cursors % length).any()):
        raise SettingError(
            f"agent {policy.name}: the checkpoint's rows were read up to {cursors.tolist()}, which does not match "
            f"{updates} updates with batches of {fragments} fragments of {length} rows: its settings have changed"
        )


def checked(policy: LearnedPolicy, arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the checkpoint's arrays of a policy; raise unless they have the sizes that its algorithm needs."""
    sizes = policy.sizes
    expected = {"state": sizes.state, "counters": sizes.counters, "random": sizes.random}
    for name, size in expected.items():
        if arrays[name].shape != (size,):
            raise SettingError(
                f"agent {policy.name}: the checkpoint must have {name} of shape {(size,)}, got {arrays[name].shape}: "
                "the algorithm's settings have changed"
            )
    return arrays

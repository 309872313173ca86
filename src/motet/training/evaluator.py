"""Evaluation during training: the published policies are played greedily, and training is the same without it.

In lockstep and in serial runs an evaluation is due at the end of a round: everybody waits, the versions of that round
are played, and none is skipped. Otherwise a process of its own plays what there is, beside the others.

Published versions in, one line per evaluation out: ``evaluation.jsonl`` in the run directory, and the newest result on
the board. The policies of the best evaluation so far are kept as ``best/``, beside the checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour
from motet.policy import EpisodeState
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.training.board import FINISHED, Pulse
from motet.training.drivers import against
from motet.training.league import anchor
from motet.training.roster import LearnedPolicy
from motet.training.shared import SharedMemory
from motet.world.batch import WorldBatch, make_world_batch

__all__ = ["Evaluations", "play_evaluator", "play_greedily"]

_TAKE_S = 10.0  # how long a version that must be taken may be in the writing
_ROWS_A_ROUND = 4  # of an agent in one world, at most; twice what is known to happen
_SEED = 9  # what the seeds of evaluations are for


def play_greedily(
    worlds: WorldBatch,
    behaviours: Sequence[Behaviour],
    seeds: Sequence[int],
    n_frames: Sequence[int] = (),
    alive: Callable[[], None] = lambda: None,
) -> npt.NDArray[np.float64]:
    """One episode in each world, without exploration. Returns ``[worlds, agents]``.

    The behaviours must have been begun and loaded. ``n_frames``: by agent, 1 by default. ``alive`` is called at every
    turn.
    """
    totals, playing = np.zeros((worlds.size, len(behaviours))), np.ones(worlds.size, np.bool_)
    carried = [EpisodeState(worlds.size, n) for n in n_frames or [1] * len(behaviours)]
    worlds.reset(range(worlds.size), seeds)
    while playing.any():
        actions = []
        for agent, at, observation, reward, mask in worlds.turns():
            totals[at, agent] += np.where(playing[at], reward, 0.0)
            actions.append(carried[agent].ask(behaviours[agent], at, observation, mask, explore=False)[0])
            alive()
        for ending in worlds.act(actions):
            totals[ending.at, ending.agent] += np.where(playing[ending.at], ending.reward, 0.0)
            carried[ending.agent].begin(ending.at)
        playing[worlds.over] = False
        alive()
    return totals


class Outcome(NamedTuple):
    """What came of an evaluation."""

    totals: npt.NDArray[np.float64]
    """Returns, ``[episodes, agents]``."""
    score: float
    """By which the best policies are told."""
    notes: dict[str, Any]

    @property
    def team(self) -> float:
        """The team's mean return."""
        return float(self.totals.sum(1).mean())


class _Trial:
    """Episodes of all agents; their score is the team's mean return."""

    def __init__(self, shared: SharedMemory, episodes: int, alive: Callable[[], None] = lambda: None) -> None:
        roster = shared.roster
        self._worlds = make_world_batch(roster.world.value, episodes, roster.masked, alive=alive)
        self._frames, self._alive = [policy.settings.n_frames for policy in roster.policies], alive

    def play(self, behaviours: Sequence[Behaviour], seed_of: Callable[[int], int]) -> Outcome:
        """One evaluation; ``seed_of``: the seed of each of its episodes."""
        seeds = [seed_of(w) for w in range(self._worlds.size)]
        totals = play_greedily(self._worlds, behaviours, seeds, self._frames, self._alive)
        return Outcome(totals, float(totals.sum(1).mean()), {})


class _Challenge:
    """Games of the player in self-play against the anchors by turns, each on both sides; its score is its win rate.

    The mean of its win rates against each, to be exact, a draw being half a win.
    """

    def __init__(self, shared: SharedMemory, episodes: int, alive: Callable[[], None] = lambda: None) -> None:
        roster, play = shared.roster, shared.roster.self_play
        assert play is not None
        self._anchors = play.anchors
        count = max(-(-episodes // 2), len(play.anchors))  # two episodes each
        worlds = make_world_batch(roster.world.value, count, roster.masked, alive=alive)
        self._worlds = against(shared, worlds, self, self, partial(seed_for, roster.seed, _SEED), block=2)
        self._drawn, self._alive = 0, alive
        self._told: list[tuple[int, int]] = []

    def opponent(self, _: float, /) -> int:
        """The next of the anchors."""
        self._drawn += 1
        return anchor(self._drawn % len(self._anchors))

    def weights(self, number: int, /) -> npt.NDArray[np.float32]:
        """There are no snapshots here."""
        raise AssertionError(f"opponent {number} is no anchor")

    def tell(self, opponent: int, advantage: float, margin: float, /) -> None:
        """A game is over."""
        self._told.append((opponent, int(advantage > margin) - int(advantage < -margin)))

    def play(self, behaviours: Sequence[Behaviour], seed_of: Callable[[int], int]) -> Outcome:
        """One evaluation; ``seed_of``: the seed of each of its episodes, the same for both sides."""
        self._told.clear()
        self._drawn = 0
        seeds = [seed_of(w) for w in range(self._worlds.size)]
        totals = np.concatenate(
            [play_greedily(self._worlds, behaviours, seeds, alive=self._alive) for _side in range(2)]
        )
        met, rates = dict[str, dict[str, int]](), list[float]()
        for i, name in enumerate(self._anchors):
            ends = [end for opponent, end in self._told if opponent == anchor(i)]
            won, lost, drawn = (ends.count(end) for end in (1, -1, 0))
            met[name] = {"won": won, "lost": lost, "drawn": drawn}
            rates.append((won + 0.5 * drawn) / len(ends))
        return Outcome(totals, sum(rates) / len(rates), {"opponents": met})


class Evaluations:
    """The evaluations of a run: when one is due, and what it comes to, on the board and in the run directory.

    Args:
        shared: what the run shares.
        every: steps of the agents between two.
        episodes: of each.
        directory: of the run, if there is one.
        until: the team's mean return that ends the run.
        insists: whether it takes the newest versions, whatever is being written; otherwise it may keep what it has.
        alive: called at every turn of every world.
        steps: how many steps the agents have done; by default they are counted.
    """

    def __init__(
        self,
        shared: SharedMemory,
        every: int,
        episodes: int,
        directory: Path | None,
        until: float | None = None,
        insists: bool = False,
        alive: Callable[[], None] = lambda: None,
        steps: Callable[[], int] | None = None,
    ) -> None:
        self._shared, self._every, self._directory, self._until = shared, every, directory, until
        self._insists, self._alive, self._steps = insists, alive, steps or shared.most_steps
        roster = shared.roster
        self._trial = (_Trial if roster.self_play is None else _Challenge)(shared, episodes, alive)
        self._behaviours = [
            policy.config.behaviour(policy.observation_space, policy.action_space) for policy in roster.policies
        ]
        self._subscribers = [publication.subscriber() for publication in shared.publications]
        # A predecessor's, or that of the run before it was resumed.
        self._best = -np.inf if directory is None else RunDirectory(directory).best_score()
        self._started = time.monotonic()

    @staticmethod
    def begin(shared: SharedMemory, every: int) -> None:
        """Say when the first one is due, before anybody plays."""
        step = shared.most_steps()
        shared.board.evaluation.due[0] = step - step % every + every

    @property
    def reached(self) -> bool:
        """Whether one reached the return that ends the run."""
        return bool(self._shared.board.evaluation.reached[0])

    def due(self) -> bool:
        """Whether the agents have done the steps for the next one."""
        return self._steps() >= int(self._shared.board.evaluation.due[0])

    def rounds_left(self) -> int:
        """Rounds after which the next one cannot be due yet: in a round an agent closes at most two rows in a world."""
        roster, board = self._shared.roster, self._shared.board
        left = int(board.evaluation.due[0]) - self._steps() - 1
        return max(0, left // (_ROWS_A_ROUND * roster.actors * roster.worlds_per_actor))

    def play(self) -> bool:
        """Play one with the newest versions; False if there are none yet."""
        board, roster, step = self._shared.board, self._shared.roster, self._steps()
        for policy, behaviour, subscriber in zip(roster.policies, self._behaviours, self._subscribers, strict=True):
            if self._insists:
                subscriber.take(_TAKE_S)
            else:
                subscriber.refresh()
            if not subscriber.version:
                return False
            behaviour.begin(seed_for(roster.seed, _SEED))
            behaviour.load(subscriber.weights, {name: subscriber[name] for name in policy.config.header})
        self._alive()
        number = int(board.evaluation.count[0])
        outcome = self._trial.play(self._behaviours, partial(seed_for, roster.seed, _SEED, number))
        self._alive()
        if self._directory is not None:
            better, seconds = outcome.score > self._best, time.monotonic() - self._started
            _write(self._directory, roster.policies, self._subscribers, step, seconds, outcome, better)
        self._best = max(self._best, outcome.score)
        row = board.evaluation
        row.step[0], row.team_return[0], row.best[0] = step, outcome.team, self._best
        board.evaluation.count[0] = number + 1
        if self._until is not None and outcome.team >= self._until:
            board.evaluation.reached[0] = 1
        board.evaluation.due[0] = step - step % self._every + self._every
        return True


def play_evaluator(
    shared: SharedMemory, every: int, episodes: int, directory: Path | None, until: float | None = None
) -> None:
    """What the evaluator process runs: an evaluation for every ``every`` steps of the agents.

    Where the board says so, actors wait at the end of each round until it has seen to it (lockstep); otherwise it
    plays beside them, and holds nobody up.
    """
    board, roster = shared.board, shared.roster
    pulse = board.pulse(roster.actors + len(roster.processes))
    pulse.start(os.getpid())
    waited_for = int(board.evaluated_round[0]) != FINISHED
    evaluations = Evaluations(shared, every, episodes, directory, until, waited_for, pulse.beat)
    drive = _by_rounds if waited_for else _beside
    drive(shared, evaluations, pulse)


def _beside(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    while not shared.board.stopping:
        pulse.waits_for(Wait.EVALUATION)
        if not (evaluations.due() and evaluations.play()):
            time.sleep(0.01)


def _by_rounds(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    """At the end of a round everybody waits, so what is played are the versions of that round."""
    board = shared.board
    while not board.stopping:
        seen = board.updated.count
        played = int(board.learned.synced_round.min())
        if played > int(board.evaluated_round[0]) and not evaluations.reached:
            if evaluations.due():
                evaluations.play()
            if not evaluations.reached:  # otherwise nobody plays on: the run ends with this round
                board.evaluated_round[0] = min(played + evaluations.rounds_left(), FINISHED)
                board.updated.ring()
        else:
            pulse.waits_for(Wait.EVALUATION)
            board.updated.wait(seen, 0.1)


def _write(
    directory: Path,
    policies: Sequence[LearnedPolicy],
    subscribers: Sequence[Any],
    step: int,
    seconds: float,
    outcome: Outcome,
    best: bool,
) -> None:
    totals = outcome.totals
    means, deviations = totals.mean(0), totals.std(0)
    line = {
        "step": step,
        "seconds": seconds,
        "episodes": len(totals),
        "team": outcome.team,
        "score": outcome.score,
        "agents": {
            policy.name: {"mean": float(m), "std": float(s), "version": subscriber.version}
            for policy, m, s, subscriber in zip(policies, means, deviations, subscribers, strict=True)
        },
        **outcome.notes,
    }
    run = RunDirectory(directory)
    run.append_line("evaluation.jsonl", line)
    if best:
        weights = {
            policy.name: {"weights": subscriber.weights.copy()}
            for policy, subscriber in zip(policies, subscribers, strict=True)
        }
        run.save_best(Checkpoint(step, weights, line))

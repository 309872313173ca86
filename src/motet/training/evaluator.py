"""Evaluation during training: greedy episodes of the published policies. Evaluations do not change the training.

Policies of any origin are evaluated by ``motet.evaluation``.

In lockstep and in serial runs evaluations take place at the end of a round: actors and learners wait, the versions of
that round are played, and no evaluation is skipped. Otherwise a separate process plays the newest versions while
training continues.

It reads published versions. It writes one line for each evaluation to ``evaluation.jsonl`` in the run directory, and
the newest result to the board. The policies of the best evaluation so far are kept in ``best/``, beside the
checkpoints.
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

from motet.algorithm import Behaviour, make_behaviour
from motet.policy import EpisodeState
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.training.board import FINISHED, Pulse
from motet.training.drivers import against
from motet.training.league import anchor
from motet.training.partnered import PartneredWorlds, close_partners, partnered
from motet.training.partners import host_partners
from motet.training.roster import LearnedPolicy
from motet.training.shared import SharedMemory
from motet.world.batch import WorldBatch, make_world_batch
from motet.world.winning import decide

__all__ = ["Evaluations", "play_evaluator", "play_greedily"]

_TAKE_S = 10.0  # seconds to wait for a version that is being written
_ROWS_A_ROUND = 4  # upper bound on the rows of an agent in one world and round; twice what can happen
_SEED = 9  # purpose of the seed: evaluations


def play_greedily(
    worlds: WorldBatch,
    behaviours: Sequence[Behaviour | None],
    seeds: Sequence[int],
    n_frames: Sequence[int] = (),
    alive: Callable[[], None] = lambda: None,
) -> npt.NDArray[np.float64]:
    """Play one episode in each world without exploration; give the agents' returns, ``[worlds, agents]``.

    The behaviours must have been seeded and loaded. An agent without one acts by a partner in the worlds, and its
    returns are 0 here. An episode that breaks off is played again. ``n_frames``: number of stacked observations by
    agent; 1 by default. ``alive`` is called at every turn.
    """
    totals, playing = np.zeros((worlds.size, len(behaviours))), np.ones(worlds.size, np.bool_)
    carried = [EpisodeState(worlds.size, n) for n in n_frames or [1] * len(behaviours)]
    worlds.reset(range(worlds.size), seeds)
    while playing.any():
        actions = []
        for agent, at, observation, reward, mask in worlds.turns():
            totals[at, agent] += np.where(playing[at], reward, 0.0)
            behaviour = behaviours[agent]
            assert behaviour is not None, "a partner's turn is not shown"
            actions.append(carried[agent].ask(behaviour, at, observation, mask, explore=False)[0])
            alive()
        for ending in worlds.act(actions):
            totals[ending.at, ending.agent] += np.where(playing[ending.at], ending.reward, 0.0)
            carried[ending.agent].begin(ending.at)
        if worlds.broken:  # a partner failed
            again = np.array(worlds.broken)
            worlds.broken.clear()
            totals[again] = 0.0
            for state in carried:
                state.begin(again)
            worlds.reset(again.tolist(), [seeds[world] for world in again])
        playing[worlds.over] = False
        alive()
    return totals


class Outcome(NamedTuple):
    """The outcome of an evaluation."""

    totals: npt.NDArray[np.float64]
    """Returns of the agents that learn, ``[episodes, agents]``."""
    score: float
    """The number by which the best evaluation is chosen. Only agents that learn count."""
    notes: dict[str, Any]
    """More fields for the line in ``evaluation.jsonl``."""

    @property
    def team(self) -> float:
        """The team's mean return."""
        return float(self.totals.sum(1).mean())


class _Trial:
    """Evaluation without self-play: episodes of all agents. The score is the mean return of those that learn."""

    def __init__(self, shared: SharedMemory, episodes: int, alive: Callable[[], None] = lambda: None) -> None:
        roster = shared.roster
        worlds = make_world_batch(roster.world.value, episodes, roster.masked, alive=alive)
        self._worlds = partnered(worlds, roster.partners, len(roster.agents), alive=alive)
        self._roster, self._alive = roster, alive
        self._frames = [
            1 if agent.policy is None else roster.policies[agent.policy].settings.n_frames for agent in roster.agents
        ]
        self._learning = [agent for policy in roster.policies for agent in policy.agents]

    def play(self, behaviours: Sequence[Behaviour], seed_of: Callable[[int], int]) -> Outcome:
        """Play one evaluation. ``seed_of``: the seed of each of its episodes."""
        seeds = [seed_of(w) for w in range(self._worlds.size)]
        by_agent = [None if agent.policy is None else behaviours[agent.policy] for agent in self._roster.agents]
        totals = play_greedily(self._worlds, by_agent, seeds, self._frames, self._alive)[:, self._learning]
        return Outcome(totals, float(totals.sum(1).mean()), self._notes())

    def _notes(self) -> dict[str, Any]:
        """Return the returns of the partners' agents, which do not count for the score."""
        if not isinstance(self._worlds, PartneredWorlds):
            return {}
        columns = {
            name: self._worlds.returns[:, agent]
            for fixed in self._roster.partners
            for name, agent in fixed.seats.agents.items()
        }
        return {"partners": {name: {"mean": float(c.mean()), "std": float(c.std())} for name, c in columns.items()}}

    def close(self) -> None:
        """End the processes of isolated partners."""
        close_partners(self._worlds)


class _Challenge:
    """Evaluation in self-play: games of the player against the anchors in turn, each on both sides.

    The score is the mean of the win rates against the anchors, where a draw counts as half a win. The notes count the
    games by opponent, and by the player's side and opponent.
    """

    def __init__(self, shared: SharedMemory, episodes: int, alive: Callable[[], None] = lambda: None) -> None:
        roster, play = shared.roster, shared.roster.self_play
        assert play is not None
        self._anchors = play.anchors
        count = max(-(-episodes // 2), len(play.anchors))  # two episodes each
        worlds = make_world_batch(roster.world.value, count, roster.masked, alive=alive)
        self._worlds = against(shared, worlds, self, self, partial(seed_for, roster.seed, _SEED), block=2)
        self._drawn, self._alive = 0, alive
        self._told: list[tuple[int, int, int]] = []  # opponent, outcome, the player's side
        self._sides, self._side = [agent.name for agent in roster.agents], 0

    def close(self) -> None:
        """Do nothing: there are no partners in self-play."""

    def opponent(self, _: float, /) -> int:
        """Return the number of the next anchor."""
        self._drawn += 1
        return anchor(self._drawn % len(self._anchors))

    def weights(self, number: int, /) -> npt.NDArray[np.float32]:
        """Raise: evaluations have no snapshots."""
        raise AssertionError(f"opponent {number} is not an anchor")

    def tell(self, opponent: int, advantage: float, margin: float, /) -> None:
        """Keep the result of a game."""
        self._told.append((opponent, decide(advantage, margin), self._side))

    def play(self, behaviours: Sequence[Behaviour], seed_of: Callable[[int], int]) -> Outcome:
        """Play one evaluation. ``seed_of``: the seed of each of its episodes, the same for both sides."""
        self._told.clear()
        self._drawn = 0
        seeds = [seed_of(w) for w in range(self._worlds.size)]
        totals = []
        for self._side in range(2):  # the player changes sides after every episode
            totals.append(play_greedily(self._worlds, behaviours, seeds, alive=self._alive))
        met = {name: self._counts(i, (0, 1)) for i, name in enumerate(self._anchors)}
        sides = {
            name: {opponent: self._counts(i, (side,)) for i, opponent in enumerate(self._anchors)}
            for side, name in enumerate(self._sides)
        }
        rates = [(row["won"] + 0.5 * row["drawn"]) / sum(row.values()) for row in met.values()]
        return Outcome(np.concatenate(totals), sum(rates) / len(rates), {"opponents": met, "sides": sides})

    def _counts(self, index: int, sides: Sequence[int]) -> dict[str, int]:
        """Count the games against an anchor on these sides."""
        ends = [end for opponent, end, side in self._told if opponent == anchor(index) and side in sides]
        return {name: ends.count(end) for name, end in (("won", 1), ("lost", -1), ("drawn", 0))}


class Evaluations:
    """The evaluations of a run: decides when one is due, plays it, and writes the result to board and run directory.

    Args:
        shared: the shared memory of the run.
        every: steps of the agents between two evaluations.
        episodes: episodes of each evaluation.
        directory: the run directory, if there is one.
        until: the team's mean return that ends the run.
        insists: whether to wait for a newest version that is being written; otherwise the version held is played.
        alive: called at every turn of every world.
        steps: returns how many steps the agents have done; by default they are counted.
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
            make_behaviour(policy.config, policy.observation_space, policy.action_space) for policy in roster.policies
        ]
        self._subscribers = [publication.subscriber() for publication in shared.publications]
        # From before a restart of this process, or from before the run was resumed.
        self._best = -np.inf if directory is None else RunDirectory(directory).best_score()
        if not (began := shared.board.evaluation.began)[0]:  # otherwise this process was restarted
            began[0] = time.monotonic()
        self._started = float(began[0])

    def close(self) -> None:
        """End the processes of isolated partners."""
        self._trial.close()

    @staticmethod
    def begin(shared: SharedMemory, every: int) -> None:
        """Set the step of the first evaluation, before the actors start."""
        step = shared.most_steps()
        shared.board.evaluation.due[0] = step - step % every + every

    @property
    def reached(self) -> bool:
        """Whether an evaluation has reached the return that ends the run."""
        return bool(self._shared.board.evaluation.reached[0])

    def due(self) -> bool:
        """Whether the agents have reached the step of the next evaluation."""
        return self._steps() >= int(self._shared.board.evaluation.due[0])

    def rounds_left(self) -> int:
        """Number of rounds after which the next evaluation cannot be due yet.

        In a round an agent completes at most two rows in a world.
        """
        roster, board = self._shared.roster, self._shared.board
        left = int(board.evaluation.due[0]) - self._steps() - 1
        return max(0, left // (_ROWS_A_ROUND * roster.actors * roster.worlds_per_actor))

    def play(self) -> bool:
        """Play an evaluation with the newest versions; False if nothing has been published yet."""
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
        board.evaluated.mean_return[:] = outcome.totals.mean(0)
        board.evaluated.count[:] += 1
        board.evaluation.count[0] = number + 1
        if self._until is not None and outcome.team >= self._until:
            board.evaluation.reached[0] = 1
        board.evaluation.due[0] = step - step % self._every + self._every
        return True


def play_evaluator(
    shared: SharedMemory, every: int, episodes: int, directory: Path | None, until: float | None = None
) -> None:
    """Run the evaluator process: an evaluation after every ``every`` steps of the agents.

    In lockstep (``evaluated_round`` of the board is not FINISHED) actors wait at the end of each round until the
    evaluation that is due has been played. Otherwise evaluations take place in parallel, and no process waits.
    """
    host_partners(shared.roster.partners, shared.hide_from_children)
    board, roster = shared.board, shared.roster
    pulse = board.pulse(roster.actors + len(roster.processes))
    pulse.start(os.getpid())
    waited_for = int(board.evaluated_round[0]) != FINISHED
    evaluations = Evaluations(shared, every, episodes, directory, until, waited_for, pulse.beat)
    drive = _by_rounds if waited_for else _beside
    drive(shared, evaluations, pulse)
    evaluations.close()


def _beside(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    while not shared.board.stopping:
        pulse.waits_for(Wait.EVALUATION)
        if not (evaluations.due() and evaluations.play()):
            time.sleep(0.01)


def _by_rounds(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    """Play evaluations at the end of rounds. Actors and learners wait, so the versions of that round are played."""
    board = shared.board
    while not board.stopping:
        seen = board.updated.count
        played = int(board.learned.synced_round.min())
        if played > int(board.evaluated_round[0]) and not evaluations.reached:
            if evaluations.due():
                evaluations.play()
            if not evaluations.reached:  # otherwise actors stay blocked: the run ends with this round
                board.evaluated_round[0] = min(played + evaluations.rounds_left(), FINISHED)
                board.updated.ring()
        else:
            pulse.waits_for(Wait.EVALUATION)
            board.updated.wait(seen, 0.1)
            pulse.works()


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
        "team_std": float(totals.sum(1).std()),
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

"""Evaluation during training: greedy episodes of the published policies. Evaluations do not change the training.

Policies of any origin are evaluated by ``motet.evaluation``.

In lockstep and in serial runs evaluations take place at the end of a round: actors and learners wait, the versions of
that round are played, and no evaluation is skipped. In reproducible runs no evaluation is skipped either: their
learners keep a copy of the policies of the phase, and actors wait only when the next evaluation is due
(:mod:`motet.pace`).

Otherwise a separate process plays while training continues. When an evaluation is due, it copies the newest versions,
even if it is still playing the previous evaluation. At most one evaluation waits; further ones are skipped and counted.
When the other processes have ended, the final weights are evaluated.

The evaluator reads published versions. It writes one line for each evaluation to ``evaluation.jsonl`` in the run
directory, and the newest result to the board. The policies of the best evaluation so far are kept in ``best/``, beside
the checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour, make_behaviour, state_size_of
from motet.policy import PLAYER, EpisodeState
from motet.publication import Subscriber
from motet.runs.checkpoint import Checkpoint
from motet.runs.directory import RunDirectory
from motet.runs.snapshot import Wait
from motet.seeds import seed_for
from motet.settings import FINITE, check_value
from motet.system.portable import Portable
from motet.training.board import FINISHED, Pulse
from motet.training.drivers import against
from motet.training.league import anchor
from motet.training.partnered import PartneredWorlds, close_partners, partnered
from motet.training.partners import host_partners
from motet.training.roster import LearnedPolicy
from motet.training.settings import Settings
from motet.training.shared import SharedMemory
from motet.world.batch import WorldBatch, make_world_batch
from motet.world.winning import decide

__all__ = ["EvaluationPlan", "Evaluations", "Outcome", "play_evaluator", "play_greedily"]

_TAKE_S = 10.0  # seconds to wait for a version that is being written
_ROWS_A_ROUND = 4  # upper bound on the rows of an agent in one world and round, with a safety factor of 2
_LOOK_S = 0.01  # seconds between two checks, during an evaluation, whether the next one is due
_SEED = 9  # constant from which the seeds of evaluations are derived


def play_greedily(
    worlds: WorldBatch,
    behaviours: Sequence[Behaviour | None],
    seeds: Sequence[int],
    n_frames: Sequence[int] = (),
    alive: Callable[[], None] = lambda: None,
) -> npt.NDArray[np.float64]:
    """Play one episode in each world without exploration. Return the agents' returns, ``[worlds, agents]``.

    The behaviours must have been seeded and loaded. An agent without a behaviour acts by a partner in the worlds, and
    its returns are 0 here. An episode that breaks off is played again. ``n_frames``: number of stacked observations by
    agent; 1 by default. ``alive`` is called at every turn.
    """
    totals, playing = np.zeros((worlds.size, len(behaviours))), np.ones(worlds.size, np.bool_)
    carried = [
        EpisodeState(worlds.size, n, 0 if behaviour is None else state_size_of(behaviour))
        for behaviour, n in zip(behaviours, n_frames or [1] * len(behaviours), strict=True)
    ]
    worlds.measured.clear()
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
    """The outcome of an evaluation, as a score function gets it.

    >>> outcome = Outcome(np.array([[1.0, 5.0], [3.0, 7.0]]), 8.0, {}, ("red", "blue"))
    >>> outcome.team, min(float(returns.mean()) for returns in outcome.returns.values())
    (8.0, 2.0)
    """

    totals: npt.NDArray[np.float64]
    """Returns of the agents that learn, ``[episodes, agents]``."""
    score: float
    """The number by which the best evaluation is chosen. By default the team's mean return, and in self-play the mean
    win rate. Only agents that learn count."""
    notes: dict[str, Any]
    """More fields for the line in ``evaluation.jsonl``: in self-play ``opponents`` and ``sides``."""
    agents: tuple[str, ...] = ()
    """Names of the agents that learn; in self-play that of the player."""
    behaviours: tuple[Behaviour, ...] = ()
    """The acting half of each learned policy, with the version that was played."""

    @property
    def returns(self) -> dict[str, npt.NDArray[np.float64]]:
        """Returns by agent, ``[episodes]`` each."""
        return dict(zip(self.agents, self.totals.T, strict=True))

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
        names = tuple(policy.name for policy in self._roster.policies)
        return Outcome(totals, float(totals.sum(1).mean()), self._notes(), names)

    def _notes(self) -> dict[str, Any]:
        """Return what the worlds measured, and the partners' returns, which do not count for the score."""
        return _measured(self._worlds) | self._of_partners()

    def _of_partners(self) -> dict[str, Any]:
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


def _measured(worlds: WorldBatch) -> dict[str, Any]:
    """Return the mean of each number that worlds measured in their episodes, as a field of an evaluation's line."""
    values: dict[str, list[float]] = {}
    for measured in worlds.measured.values():
        for name, value in measured.items():
            values.setdefault(name, []).append(value)
    return {"metrics": {name: sum(found) / len(found) for name, found in values.items()}} if values else {}


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
        """Raise an error: evaluations have no snapshots."""
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
        notes = {"opponents": met, "sides": sides}
        return Outcome(np.concatenate(totals), sum(rates) / len(rates), notes, (PLAYER,))

    def _counts(self, index: int, sides: Sequence[int]) -> dict[str, int]:
        """Count the games against an anchor on these sides."""
        ends = [end for opponent, end, side in self._told if opponent == anchor(index) and side in sides]
        return {name: ends.count(end) for name, end in (("won", 1), ("lost", -1), ("drawn", 0))}


class EvaluationPlan(NamedTuple):
    """The plan of a run's evaluations: when they take place, and which results end the run."""

    every: int | None = None
    """Steps of the agents between two evaluations."""
    every_s: float | None = None
    """Seconds between two evaluations."""
    episodes: int = 20
    until_return: float | None = None
    """The team's mean return that ends the run."""
    until_score: float | None = None
    """The score that ends the run."""
    score: Portable | None = None
    """The user's function that gives the score of an outcome; None: the default score."""

    @classmethod
    def of(cls, settings: Settings) -> EvaluationPlan | None:
        """Return the plan of a run; None if it has no evaluations."""
        if not settings.evaluates:
            return None
        return cls(
            settings.evaluate_every,
            settings.evaluate_every_s,
            settings.evaluate_episodes,
            settings.until_return,
            settings.until_score,
            None if settings.score is None else Portable(settings.score, "score"),
        )


class _Request(NamedTuple):
    """An evaluation that is due, with copies of the versions at that moment."""

    step: int
    versions: list[int]
    weights: list[npt.NDArray[np.float32]]
    headers: list[dict[str, Any]]

    def add(self, policy: LearnedPolicy, subscriber: Subscriber, version: int) -> None:
        """Copy the version that the subscriber of the next policy holds. ``version``: the number of that version."""
        self.versions.append(version)
        self.weights.append(subscriber.weights.copy())
        self.headers.append({name: np.array(subscriber[name])[()] for name in policy.config.header})


class Evaluations:
    """The evaluations of a run: decides when one is due, plays it, and writes the result to board and run directory.

    Args:
        shared: the shared memory of the run.
        plan: when evaluations take place, and which results end the run.
        directory: the run directory, if there is one.
        insists: whether to wait if the newest version is being written; otherwise the version that is held is played.
        alive: called at every turn of every world.
        steps: returns how many steps the agents have done; by default they are counted.
    """

    def __init__(
        self,
        shared: SharedMemory,
        plan: EvaluationPlan,
        directory: Path | None,
        insists: bool = False,
        alive: Callable[[], None] = lambda: None,
        steps: Callable[[], int] | None = None,
    ) -> None:
        self._shared, self._plan, self._directory = shared, plan, directory
        self._insists, self._alive, self._steps = insists, alive, steps or shared.most_steps
        roster, row = shared.roster, shared.board.evaluation
        self._behaviours = [
            make_behaviour(policy.config, policy.observation_space, policy.action_space) for policy in roster.policies
        ]
        self._subscribers = [publication.subscriber() for publication in shared.publications]
        self._waiting: _Request | None = None
        self._played: _Request | None = None
        self._looked = 0.0
        # Results from before a restart of this process, or from before the run was resumed.
        self._best = -np.inf if directory is None else RunDirectory(directory).best_score()
        if not row.began[0]:  # otherwise this process was restarted
            row.began[0] = time.monotonic()
        self._started = float(row.began[0])
        row.skipped[0] += row.waiting[0]  # the evaluation was lost with the previous process
        row.waiting[0] = 0
        self._trial = (_Trial if roster.self_play is None else _Challenge)(shared, plan.episodes, self._turn)

    def close(self) -> None:
        """End the processes of isolated partners."""
        self._trial.close()

    @staticmethod
    def make(shared: SharedMemory, plan: EvaluationPlan, *given: Any, **more: Any) -> Evaluations:
        """Make the evaluations of a run, reproducible or not."""
        return (PhaseEvaluations if shared.asides else Evaluations)(shared, plan, *given, **more)

    @staticmethod
    def begin(shared: SharedMemory, plan: EvaluationPlan) -> None:
        """Set the step and the time of the first evaluation, before the actors start."""
        _set_due(shared, plan, shared.most_steps())

    @property
    def reached(self) -> bool:
        """Whether an evaluation has reached the return or the score that ends the run."""
        return bool(self._shared.board.evaluation.reached[0])

    def due(self) -> bool:
        """Whether the next evaluation is due. This does not include the last evaluation, at the end of the run."""
        row, steps = self._shared.board.evaluation, self._steps()
        if steps >= self._shared.roster.steps or self.reached or self._shared.board.stopping:
            return False
        return steps >= float(row.due[0]) or time.monotonic() >= float(row.due_s[0])

    def rounds_left(self) -> int:
        """Number of rounds after which the next evaluation cannot be due yet.

        In a round an agent completes at most two rows in a world.
        """
        if self._plan.every_s is not None:
            return 0
        roster, board = self._shared.roster, self._shared.board
        left = int(board.evaluation.due[0]) - self._steps() - 1
        return max(0, left // (_ROWS_A_ROUND * roster.actors * roster.worlds_per_actor))

    def ask(self) -> None:
        """If an evaluation is due, copy the newest versions for it. At most one waits; further ones are skipped."""
        row = self._shared.board.evaluation
        if not self.due():
            return
        step = self._steps()
        if self._waiting is None:
            self._waiting = self._request(step, self._insists)
            if self._waiting is None:
                return  # nothing has been published yet
            row.waiting[0] = 1
        else:
            row.skipped[0] += 1
        _set_due(self._shared, self._plan, step)

    def play(self) -> bool:
        """Play the evaluation that waits, if any, or is due now; return whether there was one."""
        if self._waiting is None:
            self.ask()
        request, self._waiting = self._waiting, None
        self._shared.board.evaluation.waiting[0] = 0
        if request is None:
            return False
        self._play(request)
        return True

    def play_last(self) -> None:
        """Play the evaluation that waits, and then the last one, with the final weights.

        The last one is left out if the newest evaluation was of the same step and weights.
        """
        self._play_waiting()
        last, before = self._request(self._steps(), insists=True), self._played
        if last is None:
            return
        if before is not None and before.step == last.step and all(map(np.array_equal, before.weights, last.weights)):
            return
        self._play(last)

    def _play_waiting(self) -> None:
        """Play the evaluation that waits, if any."""
        while self._waiting is not None:
            self.play()

    def _turn(self) -> None:
        """Send a heartbeat. If evaluations have a separate process, also check whether the next evaluation is due."""
        self._alive()
        if not self._insists and (now := time.monotonic()) - self._looked >= _LOOK_S:
            self._looked = now
            self.ask()

    def _request(self, step: int, insists: bool) -> _Request | None:
        request = _Request(step, [], [], [])
        for policy, subscriber in zip(self._shared.roster.policies, self._subscribers, strict=True):
            if insists:
                subscriber.take(_TAKE_S)
            else:
                subscriber.refresh()
            if not subscriber.version:
                return None
            request.add(policy, subscriber, subscriber.version)
        return request

    def _play(self, request: _Request) -> None:
        board, roster, plan = self._shared.board, self._shared.roster, self._plan
        for behaviour, weights, header in zip(self._behaviours, request.weights, request.headers, strict=True):
            behaviour.begin(seed_for(roster.seed, _SEED))
            behaviour.load(weights, header)
        self._alive()
        row = board.evaluation
        count = int(row.count[0])
        # Counted in steps, so that a resumed run continues as without the interruption and its evaluation.
        number = count if plan.every is None or plan.every_s is not None else request.step // plan.every
        outcome = self._trial.play(self._behaviours, partial(seed_for, roster.seed, _SEED, number))
        if plan.score is not None:
            outcome = outcome._replace(behaviours=tuple(self._behaviours))
            outcome = outcome._replace(score=_scored(plan.score.value, outcome))
        self._alive()
        if self._directory is not None:
            better, seconds = outcome.score > self._best, time.monotonic() - self._started
            _write(self._directory, roster.policies, request, seconds, outcome, better)
        self._best, self._played = max(self._best, outcome.score), request
        row.step[0], row.team_return[0], row.best[0] = request.step, outcome.team, self._best
        board.evaluated.mean_return[:] = outcome.totals.mean(0)
        board.evaluated.count[:] += 1
        row.count[0] = count + 1
        limits = (plan.until_return, outcome.team), (plan.until_score, outcome.score)
        if any(limit is not None and value >= limit for limit, value in limits):
            self._reach()

    def _reach(self) -> None:
        """End the run, since an evaluation has reached ``until_return`` or ``until_score``."""
        self._shared.board.evaluation.reached[0] = 1


class PhaseEvaluations(Evaluations):
    """The evaluations of a reproducible run, one after the other. They use the copies of policies that learners keep.

    The evaluator announces the beginning of an evaluation when the previous one has ended. Until then no actor begins a
    further period. So it is already known whether the previous evaluation ends the run, and when.
    """

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._insists = True  # not called while an evaluation is played
        self._asides = [aside.subscriber() for aside in self._shared.asides]

    def due(self) -> bool:
        """Whether there is an evaluation to play."""
        board = self._shared.board
        return not self.reached and float(board.learned.evaluations.min()) > float(board.evaluation.played[0])

    def play(self) -> bool:
        """Play the next evaluation, if one is due; return whether there was one."""
        board = self._shared.board
        row = board.evaluation
        if not self.due():
            return False
        played, newest = int(row.played[0]), int(board.learned.evaluations.min())
        # After a restart: the evaluation that was being played. A phase may be so long that it skips numbers, and the
        # policies of an evaluation may be lost with a learner on another node.
        number = next(filter(self._load, range(played + 1, newest + 1)), None)
        if number is None:
            row.begun[0] = row.played[0] = newest
            return False
        phases = int(self._asides[0]["phases"])
        if row.reaches[0]:
            row.last_period[0] = self._shared.roster.pace.last_after(phases)
            row.reached[0] = 1
        row.begun[0] = np.inf if self.reached else number
        board.updated.ring()
        if self.reached:
            return False
        request = _Request(max(int(aside["published_step"]) for aside in self._asides), [], [], [])
        for policy, aside in zip(self._shared.roster.policies, self._asides, strict=True):
            request.add(policy, aside, phases + 1)
        self._play(request)
        row.played[0] = number
        return True

    def _load(self, number: int) -> bool:
        """Load the copies of policies for an evaluation; return whether all of them are there."""
        return all(aside.version == number or aside.load(number) for aside in self._asides)

    def _play_waiting(self) -> None:
        """Play all evaluations that are due."""
        while self.play():
            pass

    def _reach(self) -> None:
        """Record that the result ends the run as soon as the next evaluation is due."""
        self._shared.board.evaluation.reaches[0] = 1


def _set_due(shared: SharedMemory, plan: EvaluationPlan, step: int) -> None:
    """Set the step at which the next evaluation is due, after an evaluation at this step."""
    row = shared.board.evaluation
    row.due[0] = np.inf if plan.every is None else step - step % plan.every + plan.every
    row.due_s[0] = np.inf if plan.every_s is None else time.monotonic() + plan.every_s


def _scored(function: Callable[[Outcome], Any], outcome: Outcome) -> float:
    """Return the score that a user's function gives."""
    score = function(outcome)
    check_value("score (returned by the function)", score, Annotated[float, FINITE])
    return float(score)


def play_evaluator(shared: SharedMemory, plan: EvaluationPlan, directory: Path | None) -> None:
    """Run the evaluator process.

    In lockstep (``evaluated_round`` of the board is not FINISHED) actors wait at the end of each round until the
    evaluation that is due has been played. Otherwise evaluations take place in parallel, and no process waits; with
    periods, actors wait only if two evaluations are due. When the other processes have ended, the evaluator plays the
    last evaluation, unless the supervisor decides against it.
    """
    host_partners(shared.roster.partners, shared.hide_from_children)
    board, roster = shared.board, shared.roster
    pulse = board.pulse(roster.actors + len(roster.processes))
    pulse.start(os.getpid())
    waited_for = int(board.evaluated_round[0]) != FINISHED
    evaluations = Evaluations.make(shared, plan, directory, waited_for, pulse.beat)
    drive = _by_rounds if waited_for else _by_phases if shared.asides else _beside
    drive(shared, evaluations, pulse)
    while (last := board.last_evaluation) is None:
        pulse.waits_for(Wait.LEARNERS_END)
        time.sleep(0.01)
    if last:
        evaluations.play_last()
    evaluations.close()


def _beside(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    while not shared.board.stopping:
        pulse.waits_for(Wait.EVALUATION)
        if not evaluations.play():
            time.sleep(0.01)


def _by_phases(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    board = shared.board
    while not board.stopping:
        seen = board.updated.count
        if not evaluations.play():
            pulse.waits_for(Wait.EVALUATION)
            board.updated.wait(seen, 0.1)
            pulse.works()


def _by_rounds(shared: SharedMemory, evaluations: Evaluations, pulse: Pulse) -> None:
    """Play evaluations at the end of rounds. Actors and learners wait, so the versions of that round are played."""
    board = shared.board
    while not board.stopping:
        seen = board.updated.count
        played = int(board.learned.synced_round.min())
        if played > int(board.evaluated_round[0]) and not evaluations.reached:
            evaluations.play()
            if not evaluations.reached:  # if the run ends, actors stay blocked, so that this round is the last one
                board.evaluated_round[0] = min(played + evaluations.rounds_left(), FINISHED)
                board.updated.ring()
        else:
            pulse.waits_for(Wait.EVALUATION)
            board.updated.wait(seen, 0.1)
            pulse.works()


def _write(
    directory: Path,
    policies: Sequence[LearnedPolicy],
    request: _Request,
    seconds: float,
    outcome: Outcome,
    best: bool,
) -> None:
    totals = outcome.totals
    means, deviations = totals.mean(0), totals.std(0)
    line = {
        "step": request.step,
        "seconds": seconds,
        "episodes": len(totals),
        "team": outcome.team,
        "team_std": float(totals.sum(1).std()),
        "score": outcome.score,
        "agents": {
            policy.name: {"mean": float(m), "std": float(s), "version": version}
            for policy, m, s, version in zip(policies, means, deviations, request.versions, strict=True)
        },
        **outcome.notes,
    }
    run = RunDirectory(directory)
    run.append_line("evaluation.jsonl", line)
    if best:
        weights = {policy.name: {"weights": flat} for policy, flat in zip(policies, request.weights, strict=True)}
        run.save_best(Checkpoint(request.step, weights, line))

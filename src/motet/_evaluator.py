"""Evaluation during training: a process of its own that plays the published policies greedily and disturbs nobody.

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

from motet._board import Wait
from motet._crowd import Crowd, Places, make_crowd, stack_nests
from motet._engine import against
from motet._handles import Handles, Part, seed_for
from motet.algorithm import Behaviour, Nest, map_nest
from motet.checkpoint import Checkpoint, RunDirectory
from motet.league import anchor
from motet.replay import FrameStack

__all__ = ["play_evaluator", "play_greedily"]

_SEED = 9  # what the seeds of evaluations are for


def play_greedily(
    crowd: Crowd, behaviours: Sequence[Behaviour], seeds: Sequence[int], n_frames: Sequence[int] = ()
) -> npt.NDArray[np.float64]:
    """One episode in each world, without exploration. Returns ``[worlds, agents]``.

    The behaviours must have been begun and loaded. ``n_frames``: by agent, 1 by default.
    """
    totals, playing = np.zeros((crowd.worlds, len(behaviours))), np.ones(crowd.worlds, np.bool_)
    frames = [_Frames(n) for n in n_frames or [1] * len(behaviours)]
    crowd.reset(range(crowd.worlds), seeds)
    while playing.any():
        actions = []
        for agent, at, observation, reward, mask in crowd.look():
            totals[at, agent] += np.where(playing[at], reward, 0.0)
            seen = frames[agent].push(at, observation)
            actions.append(behaviours[agent].act(seen, mask, explore=False)[0])
        for ending in crowd.act(actions):
            totals[ending.at, ending.agent] += np.where(playing[ending.at], ending.reward, 0.0)
            frames[ending.agent].end(ending.at)
        playing[crowd.over] = False
    return totals


class _Frames:
    """The newest ``n`` observations of one agent in each world, from the beginning of its segment there."""

    def __init__(self, n: int) -> None:
        self._n, self._stacks = n, dict[int, FrameStack]()

    def push(self, at: Places, observation: Nest) -> Nest:
        """What a behaviour sees, given what is new in some worlds."""
        if self._n == 1:
            return observation
        return stack_nests([self._one(w, map_nest(lambda a: a[i], observation)) for i, w in enumerate(at.tolist())])  # noqa: B023

    def end(self, at: Places) -> None:
        """Its segments in these worlds are over."""
        for world in at.tolist():
            self._stacks.pop(world, None)

    def _one(self, world: int, observation: Nest) -> Nest:
        if world in self._stacks:
            return self._stacks[world].push(observation)
        self._stacks[world] = FrameStack(self._n)
        return self._stacks[world].begin(observation)


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

    def __init__(self, handles: Handles, episodes: int) -> None:
        parts = handles.roster.parts
        self._crowd = make_crowd(handles.roster.world.value, episodes, [part.masked for part in parts])
        self._frames = [part.settings.n_frames for part in parts]

    def play(self, behaviours: Sequence[Behaviour], seed_of: Callable[[int], int]) -> Outcome:
        """One evaluation; ``seed_of``: the seed of each of its episodes."""
        seeds = [seed_of(w) for w in range(self._crowd.worlds)]
        totals = play_greedily(self._crowd, behaviours, seeds, self._frames)
        return Outcome(totals, float(totals.sum(1).mean()), {})


class _Challenge:
    """Games of the player in self-play against the anchors by turns, each on both sides; its score is its win rate.

    The mean of its win rates against each, to be exact, a draw being half a win.
    """

    def __init__(self, handles: Handles, episodes: int) -> None:
        roster, play = handles.roster, handles.roster.self_play
        assert play is not None
        self._anchors = play.anchors
        worlds = max(-(-episodes // 2), len(play.anchors))  # two episodes each
        crowd = make_crowd(roster.world.value, worlds, [roster.parts[0].masked] * 2)
        self._crowd = against(handles, crowd, self, self, partial(seed_for, roster.seed, _SEED), block=2)
        self._drawn = 0
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
        seeds = [seed_of(w) for w in range(self._crowd.worlds)]
        totals = np.concatenate([play_greedily(self._crowd, behaviours, seeds) for _side in range(2)])
        met, rates = dict[str, dict[str, int]](), list[float]()
        for i, name in enumerate(self._anchors):
            ends = [end for opponent, end in self._told if opponent == anchor(i)]
            won, lost, drawn = (ends.count(end) for end in (1, -1, 0))
            met[name] = {"won": won, "lost": lost, "drawn": drawn}
            rates.append((won + 0.5 * drawn) / len(ends))
        return Outcome(totals, sum(rates) / len(rates), {"opponents": met})


def play_evaluator(handles: Handles, every: int, episodes: int, directory: Path | None) -> None:
    """What the evaluator process runs: an evaluation for every ``every`` steps of the agents."""
    board, roster = handles.board, handles.roster
    pulse = board.pulse(roster.actors + len(roster.processes))
    pulse.start(os.getpid())
    trial = _Trial(handles, episodes) if roster.self_play is None else _Challenge(handles, episodes)
    behaviours = [part.config.behaviour(part.observation_space, part.action_space) for part in roster.parts]
    subscribers = [publication.subscriber() for publication in handles.publications]
    best = -np.inf if directory is None else RunDirectory(directory).best_score()  # a predecessor's, or a former run's
    due, started = every, time.monotonic()
    while not board.stopping:
        pulse.waits_for(Wait.EVALUATION)
        step = max(map(handles.steps, range(len(roster.parts))))
        if step < due:
            time.sleep(0.01)
            continue
        due = step - step % every + every
        for part, behaviour, subscriber in zip(roster.parts, behaviours, subscribers, strict=True):
            if subscriber.refresh() or subscriber._have:
                behaviour.begin(seed_for(roster.seed, _SEED))
                behaviour.load(subscriber.weights, {name: subscriber[name] for name in part.config.header})
        if not all(subscriber._have for subscriber in subscribers):
            continue
        pulse.beat()
        number = int(board.evaluation[0])
        outcome = trial.play(behaviours, partial(seed_for, roster.seed, _SEED, number))
        pulse.beat()
        if directory is not None:
            better = outcome.score > best
            _write(directory, roster.parts, subscribers, step, time.monotonic() - started, outcome, better)
        best = max(best, outcome.score)
        board.evaluation[1:4] = step, outcome.team, best
        board.evaluation[0] = number + 1


def _write(
    directory: Path,
    parts: Sequence[Part],
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
            part.name: {"mean": float(m), "std": float(s), "version": subscriber.version}
            for part, m, s, subscriber in zip(parts, means, deviations, subscribers, strict=True)
        },
        **outcome.notes,
    }
    run = RunDirectory(directory)
    run.append_line("evaluation.jsonl", line)
    if best:
        policies = {
            part.name: {"weights": subscriber.weights.copy()}
            for part, subscriber in zip(parts, subscribers, strict=True)
        }
        run.save_best(Checkpoint(step, policies, line))

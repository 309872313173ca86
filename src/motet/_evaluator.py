"""Evaluation during training: a process of its own that plays the published policies greedily and disturbs nobody.

Published versions in, one line per evaluation out: ``evaluation.jsonl`` in the run directory, and the newest result on
the board. The policies of the best evaluation so far are kept as ``best/``, beside the checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet._engine import Handles, Part, seed_for
from motet.algorithm import Behaviour
from motet.checkpoint import Checkpoint, RunDirectory
from motet.replay import FrameStack
from motet.world import World, as_world

__all__ = ["play_evaluator", "play_greedily"]

_SEED = 9  # what the seeds of evaluations are for


def play_greedily(
    worlds: Sequence[World], behaviours: Sequence[Behaviour], seeds: Sequence[int], n_frames: Sequence[int] = ()
) -> npt.NDArray[np.float64]:
    """One episode in each world, without exploration, all worlds together. Returns ``[worlds, agents]``.

    The behaviours must have been begun and loaded. ``n_frames``: by agent, 1 by default.
    """
    totals = np.zeros((len(worlds), len(behaviours)))
    stacks: dict[tuple[int, int], FrameStack] = {}

    def look(w: int, agent: int) -> Any:
        seen = worlds[w].observe(agent)
        if not n_frames or n_frames[agent] == 1:
            return seen
        if (w, agent) in stacks:
            return stacks[w, agent].push(seen)
        stacks[w, agent] = FrameStack(n_frames[agent])
        return stacks[w, agent].begin(seen)

    for world, seed in zip(worlds, seeds, strict=True):
        world.reset(seed)
    while playing := [w for w, world in enumerate(worlds) if world.group()]:
        asked: dict[int, list[int]] = {}
        for w in playing:
            for agent in worlds[w].group():
                asked.setdefault(agent, []).append(w)
        answers: dict[tuple[int, int], Any] = {}
        for agent, places in asked.items():
            seen = [look(w, agent) for w in places]
            masks = [worlds[w].mask(agent) for w in places]
            allowed = None if any(mask is None for mask in masks) else np.stack([m for m in masks if m is not None])
            actions, _ = behaviours[agent].act(_stacked(seen), allowed, explore=False)
            answers.update({(agent, w): action for w, action in zip(places, actions, strict=True)})
        for w in playing:
            world = worlds[w]
            world.act([answers[agent, w] for agent in world.group()])
            world.ended()
            for agent in range(len(behaviours)):
                totals[w, agent] += world.reward(agent)
    return totals


def _stacked(seen: Sequence[Any]) -> Any:
    if isinstance(seen[0], dict):
        return {key: _stacked([item[key] for item in seen]) for key in seen[0]}
    if isinstance(seen[0], tuple):
        return tuple(_stacked([item[i] for item in seen]) for i in range(len(seen[0])))
    return np.stack(seen)


def play_evaluator(handles: Handles, every: int, episodes: int, directory: Path | None) -> None:
    """What the evaluator process runs: an evaluation for every ``every`` steps of the agents."""
    board, roster = handles.board, handles.roster
    pulse = board.pulse(roster.actors + len(roster.processes))
    pulse.start(os.getpid())
    worlds = [as_world(roster.world.value()) for _ in range(episodes)]
    behaviours = [part.config.behaviour(part.observation_space, part.action_space) for part in roster.parts]
    subscribers = [publication.subscriber() for publication in handles.publications]
    best = -np.inf if directory is None else RunDirectory(directory).best_return()  # a predecessor's, or a former run's
    due, started = every, time.monotonic()
    while not board.stopping:
        pulse.waits_for(6)
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
        seeds = [seed_for(roster.seed, _SEED, number, w) for w in range(episodes)]
        totals = play_greedily(worlds, behaviours, seeds, [part.settings.n_frames for part in roster.parts])
        pulse.beat()
        team = float(totals.sum(1).mean())
        if directory is not None:
            _write(directory, roster.parts, subscribers, step, time.monotonic() - started, totals, team > best)
        best = max(best, team)
        board.evaluation[1:4] = step, team, best
        board.evaluation[0] = number + 1


def _write(
    directory: Path,
    parts: Sequence[Part],
    subscribers: Sequence[Any],
    step: int,
    seconds: float,
    totals: npt.NDArray[np.float64],
    best: bool,
) -> None:
    means, deviations = totals.mean(0), totals.std(0)
    line = {
        "step": step,
        "seconds": seconds,
        "episodes": len(totals),
        "team": float(totals.sum(1).mean()),
        "agents": {
            part.name: {"mean": float(m), "std": float(s), "version": subscriber.version}
            for part, m, s, subscriber in zip(parts, means, deviations, subscribers, strict=True)
        },
    }
    run = RunDirectory(directory)
    run.append_line("evaluation.jsonl", line)
    if best:
        policies = {
            part.name: {"weights": subscriber.weights.copy()}
            for part, subscriber in zip(parts, subscribers, strict=True)
        }
        run.save_best(Checkpoint(step, policies, line))

"""Resume a run with other processes, worlds or pace: the settings that may change, and the checkpoint adapted to them.

The new pace applies only to steps and updates after the change. If the number of actors or of their worlds changes, the
rows in a checkpoint (``keep_replay``) are discarded and count as lost. Even with the same number of lanes, an actor's
share of the steps would otherwise be measured by rows of other actors. Results of a league are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from motet.placement import Cluster
from motet.replay.replay import stored_rows
from motet.runs.checkpoint import Checkpoint
from motet.training.league import dealt_again
from motet.training.roster import Roster
from motet.training.settings import Settings

__all__ = ["CHANGEABLE", "changed", "moved"]

CHANGEABLE = ("engine", "actors", "worlds_per_actor", "learner_processes", "updates_per_step", "slack", "seconds")
"""The settings that ``resume`` may change."""


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with those changes that are not None."""
    given = {name: value for name, value in changes.items() if value is not None}
    if given.get("engine", "ray") != "ray":
        given["cluster"] = Cluster()
    return replace(settings, **given)


def moved(checkpoint: Checkpoint, roster: Roster, before: Settings, now: Settings) -> Checkpoint:
    """Return a checkpoint that was made with the settings ``before``, for a run with this roster and these settings."""

    def differs(*names: str) -> bool:
        return any(getattr(before, name) != getattr(now, name) for name in names)

    notes = dict(checkpoint.notes)
    if differs("engine", "actors", "worlds_per_actor"):
        notes.pop("serial", None)  # unfinished episodes of the serial engine
    if not differs("actors", "worlds_per_actor"):
        # With its cut a reproducible run continues exactly, whatever the engine.
        if differs("updates_per_step", "slack") or (differs("engine") and "cut" not in notes):
            notes["settles"] = True
        return replace(checkpoint, notes=notes)
    notes.pop("cut", None)
    agents, dropped = dict(checkpoint.agents), notes.setdefault("dropped", {})
    for i, policy in enumerate(roster.policies):
        if policy.name not in agents:
            continue  # ``fill`` reports it
        spec, held = roster.replay_spec(i), agents[policy.name]
        if not policy.settings.once:  # ``unused`` counts the other rows
            dropped[policy.name] = sum(
                stored_rows(lane)
                for name, lane in checkpoint.replay.get(policy.name, {}).items()
                if name.startswith("lane")
            )
        kept = held["reader"][: spec.reader_words - 2 * spec.n_lanes]  # dropped: positions in the lanes
        reader = np.concatenate([kept, np.zeros(2 * spec.n_lanes, np.uint64)])
        agents[policy.name] = {**held, "reader": reader}
    league = dealt_again(checkpoint.league, roster.actors) if checkpoint.league else {}
    return replace(checkpoint, agents=agents, replay={}, notes=notes, league=league)

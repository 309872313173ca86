"""Resume a run with other processes, worlds or pace: the settings that may change, and the checkpoint adapted to them.

Steps and updates before the change count as settled, and the new pace holds from there. If the actors or their worlds
change, the rows in a checkpoint (``keep_replay``) do not fit the new lanes: they count as lost. Results of a league
survive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from motet.placement import Cluster
from motet.replay import stored_rows
from motet.runs.checkpoint import Checkpoint
from motet.training.league import dealt_again
from motet.training.progress import warm_up_of
from motet.training.roster import Roster
from motet.training.settings import Settings

__all__ = ["CHANGEABLE", "changed", "moved"]

_LAYOUT = ("engine", "actors", "worlds_per_actor", "learner_processes")
_PACE = ("engine", "updates_per_step", "slack")
CHANGEABLE = (*_LAYOUT, "updates_per_step", "slack", "seconds")
"""The settings that ``resume`` may change."""


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with those changes that are not None."""
    given = {name: value for name, value in changes.items() if value is not None}
    if given.get("engine", "ray") != "ray":
        given["cluster"] = Cluster()
    return replace(settings, **given)


def moved(checkpoint: Checkpoint, roster: Roster, before: Settings, now: Settings) -> Checkpoint:
    """Return a checkpoint that was made with the settings ``before``, for a run with this roster and these settings."""
    layout, pace = (any(getattr(before, name) != getattr(now, name) for name in names) for names in (_LAYOUT, _PACE))
    if not layout and not pace:
        return checkpoint
    agents, replay, notes = dict(checkpoint.agents), dict(checkpoint.replay), dict(checkpoint.notes)
    if layout:
        notes.pop("serial", None)  # unfinished episodes of other worlds
    dropped = notes["dropped"] = {}
    for i, policy in enumerate(roster.policies):
        name, spec = policy.name, roster.replay_spec(i)
        if name not in agents:
            continue  # ``fill`` says so
        held = agents[name] = dict(agents[name])
        if (before.actors, before.worlds_per_actor) != (now.actors, now.worlds_per_actor):
            dropped[name] = sum(stored_rows(lane) for lane in replay.pop(name, {}).values())
            kept = held["reader"][: spec.reader_words - 2 * spec.n_lanes]  # without the positions in the lanes
            held["reader"] = np.concatenate([kept, np.zeros(2 * spec.n_lanes, np.uint64)])
        elif name in replay and not policy.settings.once:
            steps_before = int(held.get("before", (0, 0))[0])
            due = roster.pace.due(int(held["steps"]) - steps_before, warm_up_of(policy, roster.lanes(i)))
            held["before"] = np.array([steps_before, int(held["counters"][0]) - due], np.int64)
            held["stage"] = np.array([*held["stage"][:2], 0], np.int64)  # no updates are waived
    league = dealt_again(checkpoint.league, roster.actors) if checkpoint.league else {}
    return replace(checkpoint, agents=agents, replay=replay, notes=notes, league=league)

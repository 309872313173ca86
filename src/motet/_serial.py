"""The serial engine: all roles in this process, one after the other; and its exact resumption.

Every actor plays a round, then every learner does what is due: the order that lockstep enforces between processes.
Since everything is at rest between two rounds, the whole run can be written down there, random streams and half-played
episodes included, and goes on from it as if it had never stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from motet._engine import Acting, Learning
from motet._handles import Handles
from motet._process import one_thread
from motet.actor import Memory

__all__ = ["Serial"]


class Serial:
    """A run in this process.

    Args:
        handles: what the roles share.
        kept: what :meth:`write_down` gave, to go on exactly from there; the replays must have been restored.
    """

    def __init__(self, handles: Handles, kept: dict[str, Any] | None = None) -> None:
        one_thread()
        roster = handles.roster
        self._handles = handles
        self._learners = [Learning(handles, k) for k in range(len(roster.stacks))]
        for learner in self._learners:
            learner.begin()
        self._actors = [Acting(handles, i, 0, goes_on=kept is not None) for i in range(roster.actors)]
        if kept is not None:
            self._pick_up(kept)

    def play(self, each_round: Callable[[], bool]) -> None:
        """Play to the end. ``each_round`` is called after each round; True ends it."""
        board = self._handles.board
        pulse = board.pulse(0)
        pulse.start(os.getpid())
        while playing := [actor for actor in self._actors if not actor.finished]:
            for actor in playing:
                next(actor.rounds)
                actor.report(board)
                board.rounds[actor.index, 0] = actor.memory.rounds
            for learner in self._learners:
                learner.catch_up()
            pulse.beat()
            if each_round():
                break
        self.keep()

    @property
    def can_save(self) -> bool:
        """Whether all worlds can write down their state."""
        return all(actor.crowd.can_save for actor in self._actors)

    def keep(self) -> None:
        """Bring the vaults up to date."""
        for learner in self._learners:
            learner.keep()

    def write_down(self) -> dict[str, Any]:
        """What the vaults and lanes do not hold, as plain values.

        What goes on here and what is picked up elsewhere draw from the same new random streams from now on.
        """
        notes: dict[str, Any] = {
            "actors": [
                {"worlds": actor.crowd.get_state(), "memory": _write_memory(actor.memory)} for actor in self._actors
            ]
        }
        for actor in self._actors:
            actor.renew()
        notes["priorities"] = priorities = {}
        for learner in self._learners:
            for agent, reader in learner.readers.items():
                part = self._handles.roster.parts[agent]
                if part.settings.prioritised:
                    spec = self._handles.replays[agent].spec
                    values = np.zeros(spec.lane_capacity * spec.n_lanes, np.float32)
                    reader.save_priorities(values)
                    priorities[part.name] = values
        return notes

    def _pick_up(self, kept: dict[str, Any]) -> None:
        for actor, notes in zip(self._actors, kept["actors"], strict=True):
            actor.crowd.set_state(notes["worlds"])
            _read_memory(actor.memory, notes["memory"])
            actor.renew()
        for learner in self._learners:
            for agent, reader in learner.readers.items():
                values = kept["priorities"].get(self._handles.roster.parts[agent].name)
                if values is not None:
                    reader.load_priorities(values)


def _write_memory(memory: Memory) -> dict[str, Any]:
    return {
        "places": [place.get_state() for place in memory.places],
        "episodes": list(memory.episodes),
        "rounds": memory.rounds,
        "remade": memory.remade,
    }


def _read_memory(memory: Memory, notes: dict[str, Any]) -> None:
    for place, state in zip(memory.places, notes["places"], strict=True):
        place.set_state(state)
    memory.episodes = list(notes["episodes"])
    memory.rounds, memory.remade = notes["rounds"], notes["remade"]

"""The serial engine: all roles in this process, one after the other; and its exact resumption.

Every actor plays a round, then every learner does what is due: the order that lockstep enforces between processes.
Since everything is at rest between two rounds, the whole run can be written down there, random streams and half-played
episodes included, and goes on from it as if it had never stopped. Writing it down changes nothing: no version is
published for it, and no random stream begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from motet.errors import SettingError
from motet.runs.plain import encode
from motet.system.child import one_thread
from motet.training.actor import ActorState, load_version
from motet.training.drivers import ActorDriver, LearnerDriver
from motet.training.shared import SharedMemory

__all__ = ["Serial"]

_TAKE_S = 10.0  # nobody writes meanwhile, so nothing is ever waited for


class Serial:
    """A run in this process.

    Args:
        shared: what the roles share.
        kept: what :meth:`write_down` gave, to go on exactly from there; vaults and replays must have been restored.
    """

    new_streams: Sequence[str] = ()
    """Policies whose behaviours began a new random stream, since what was kept holds none for them."""

    def __init__(self, shared: SharedMemory, kept: dict[str, Any] | None = None) -> None:
        one_thread()
        roster = shared.roster
        self._shared = shared
        self._actors = [ActorDriver(shared, i, 0, goes_on=kept is not None) for i in range(roster.actors)]
        if kept is not None:
            self._publish_again(kept)
        self.learners = [LearnerDriver(shared, k) for k in range(len(roster.stacks))]
        for learner in self.learners:
            if kept is not None and "published" in kept:
                newest = [kept["published"][roster.policies[p].name][-1]["header"] for p in learner.policies]
                learner.was_published_at([header["published_step"] for header in newest])
            learner.begin()
        self._newest = [publication.subscriber() for publication in shared.publications]
        if kept is not None:
            self._pick_up(kept)

    def play(self, each_round: Callable[[], bool]) -> None:
        """Play to the end. ``each_round`` is called after each round; True ends it."""
        board = self._shared.board
        pulse = board.pulse(0)
        pulse.start(os.getpid())
        while playing := [actor for actor in self._actors if not actor.finished]:
            for actor in playing:
                next(actor.rounds)
                actor.report(board)
                board.rounds[actor.index] = actor.state.rounds
            for learner in self.learners:
                learner.catch_up()
            pulse.beat()
            if each_round():
                break

    def end(self) -> None:
        """Publish the last state, as learners in processes do when they end; after the last checkpoint was taken."""
        for learner in self.learners:
            learner.end()

    @property
    def can_save(self) -> bool:
        """Whether all worlds can write down their state."""
        return all(actor.worlds.can_save for actor in self._actors)

    def check_streams(self) -> None:
        """Raise if a behaviour gives a random stream that a checkpoint could not hold."""
        for policy, acting, stream in zip(
            self._shared.roster.policies, self._actors[0].agents, self._actors[0].streams(), strict=True
        ):
            try:
                encode(stream)
            except SettingError as error:
                raise SettingError(
                    f"get_stream of {type(acting.behaviour).__name__} (agent {policy.name}) must return plain values, "
                    f"got {type(stream).__name__}: {error}"
                ) from error

    def write_down(self) -> dict[str, Any]:
        """What the learners' states and the lanes do not hold, as plain values. Changes nothing."""
        notes: dict[str, Any] = {
            "actors": [
                {
                    "worlds": actor.worlds.get_state(),
                    "memory": _write_state(actor.state),
                    "streams": actor.streams(),
                    "versions": [acting.subscriber.version for acting in actor.agents],
                }
                for actor in self._actors
            ],
            "published": {policy.name: self._published(i) for i, policy in enumerate(self._shared.roster.policies)},
        }
        notes["priorities"] = priorities = {}
        for learner in self.learners:
            for i, reader in learner.readers.items():
                policy = self._shared.roster.policies[i]
                if policy.settings.prioritised:
                    spec = self._shared.replays[i].spec
                    values = np.zeros(spec.lane_capacity * spec.n_lanes, np.float32)
                    reader.save_priorities(values)
                    priorities[policy.name] = values
        return notes

    def _published(self, policy: int) -> list[dict[str, Any]]:
        """The versions of a policy that an actor holds, and the newest one; oldest first."""
        self._newest[policy].take(_TAKE_S)
        held: list[Any] = [self._newest[policy], *(actor.agents[policy].subscriber for actor in self._actors)]
        by_version = {subscriber.version: subscriber for subscriber in held if subscriber.version}
        names = self._shared.publications[policy].header
        return [
            {"version": version, "weights": one.weights.copy(), "header": {name: one[name] for name in names}}
            for version, one in sorted(by_version.items())
        ]

    def _publish_again(self, kept: Mapping[str, Any]) -> None:
        """Publish what was published then, so that each actor takes the version that it held."""
        for i, policy in enumerate(self._shared.roster.policies):
            publisher = self._shared.publications[i].publisher()
            for one in kept.get("published", {}).get(policy.name, ()):  # older checkpoints hold none
                publisher.publish(one["weights"], version=one["version"], **one["header"])
                for actor, notes in zip(self._actors, kept["actors"], strict=True):
                    if notes["versions"][i] == one["version"]:
                        actor.agents[i].subscriber.take(_TAKE_S)
                        load_version(actor.agents[i])

    def _pick_up(self, kept: Mapping[str, Any]) -> None:
        policies, new = self._shared.roster.policies, set[int]()
        for actor, notes in zip(self._actors, kept["actors"], strict=True):
            actor.worlds.set_state(notes["worlds"])
            _read_state(actor.state, notes["memory"])
            new.update(actor.set_streams(notes.get("streams", [None] * len(policies))))
        self.new_streams = [policies[i].name for i in sorted(new)]
        for learner in self.learners:
            for i, reader in learner.readers.items():
                values = kept["priorities"].get(policies[i].name)
                if values is not None:
                    reader.load_priorities(values)


def _write_state(state: ActorState) -> dict[str, Any]:
    return {
        "places": [rows.get_state() for rows in state.pending],
        "episodes": list(state.episodes),
        "rounds": state.rounds,
        "remade": state.remade,
    }


def _read_state(state: ActorState, notes: dict[str, Any]) -> None:
    for rows, kept in zip(state.pending, notes["places"], strict=True):
        rows.set_state(kept)
    state.episodes = list(notes["episodes"])
    state.rounds, state.remade = notes["rounds"], notes["remade"]

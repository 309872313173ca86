"""The serial engine: all roles in this process, one after the other. It can resume a run exactly.

Every actor plays a round, then every learner does the updates that are due: the order that lockstep enforces between
processes. Nothing happens between two rounds, so the whole state of the run can be saved there, including random
streams and unfinished episodes. A resumed run continues bit for bit as if it had never stopped. Saving does not change
the run: it publishes no version and starts no random stream.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from motet.system.child import one_thread
from motet.training.board import FINISHED
from motet.training.drivers import EpisodeLog, actor_notes, check_streams, continue_actor, make_actor, make_learner
from motet.training.learner import StackMember
from motet.training.partnered import close_partners
from motet.training.periods import Records
from motet.training.shared import SharedMemory

__all__ = ["Serial"]

_TAKE_S = 10.0  # never reached, because no process writes at the same time


class Serial:
    """A run in this process.

    Args:
        shared: the memory that the roles share.
        kept: the result of :meth:`write_down`, to resume exactly, or the cut of a reproducible run. Vaults and replays
            must have been restored before.
    """

    new_streams: Sequence[str] = ()
    """Policies whose behaviours began a new random stream, because ``kept`` did not contain one."""

    def __init__(self, shared: SharedMemory, kept: dict[str, Any] | None = None) -> None:
        one_thread()
        roster = shared.roster
        self._shared = shared
        self.pulse = shared.board.pulse(0)
        """The heartbeat of this process."""
        times = self.pulse.times
        self._periods = [shared.actor_periods(i) for i in range(roster.actors)]
        given = [None if periods is None else periods.version for periods in self._periods]
        goes_on = [kept is not None and kept["actors"][i]["worlds"] is not None for i in range(roster.actors)]
        self.actors = [
            make_actor(shared, i, 0, goes_on=goes_on[i], given=given[i], times=times) for i in range(roster.actors)
        ]
        self._logs = [EpisodeLog(shared, i) for i in range(roster.actors)]
        if kept is not None:
            self._publish_again(kept)
        self.learners = [make_learner(shared, k, times) for k in range(len(roster.stacks))]
        for learner in self.learners:
            if kept is not None and "published" in kept:
                newest = [kept["published"][roster.policies[p].name][-1]["header"] for p in learner.policies]
                learner.was_published_at([header["published_step"] for header in newest])
            learner.begin()
        self._newest = [publication.subscriber() for publication in shared.publications]
        if kept is not None:
            self._pick_up(kept)
        for actor, periods in zip(self.actors, self._periods, strict=True):
            if periods is None:
                actor.begin()
        self.steps = shared.most_steps()
        """Steps of the policy with the most steps."""
        self._step_counts = [shared.replays[i].counts for i in range(len(roster.policies))]

    def play(self, each_round: Callable[[], bool], read_episodes: Callable[[], None] = lambda: None) -> None:
        """Play to the end of the run. ``each_round`` is called after each round; if it returns True, playing ends.

        With periods it is called after each phase, and the phases of all periods that were played follow.
        ``read_episodes`` is called within a period if there is no room for more episodes.
        """
        shared, board, pulse = self._shared, self._shared.board, self.pulse
        pulse.start(os.getpid())
        pulse.works()
        over = False
        if shared.records is not None and self._learn(shared.records, shared.roster.pace.ahead):
            over = each_round()  # after a checkpoint the phase of its last period may be due
        while not over and (playing := [i for i, actor in enumerate(self.actors) if not actor.is_done]):
            for i in playing:
                actor, periods = self.actors[i], self._periods[i]
                if periods is not None:
                    if not periods.begin():
                        continue  # after a checkpoint another actor may have to end the period before
                    actor.load_given()
                while True:  # once, or with periods to the end of the current period
                    actor.play_round()
                    if actor.finished:
                        self._logs[i].write(actor)
                        if periods is not None and not self._logs[i].has_room:
                            read_episodes()
                    board.rounds[i] = actor.rounds
                    for p in actor.acted:
                        self.steps = max(self.steps, shared.steps_before[p] + self._step_counts[p].steps())
                    if periods is None or periods.end(actor.rounds, actor.is_done):
                        break
                if periods is not None and actor.is_done:
                    board.rounds[i] = FINISHED
            if shared.records is None:
                for learner in self.learners:
                    learner.catch_up()
            else:
                self._learn(shared.records, shared.roster.pace.ahead)
            pulse.beat()
            over = each_round()
        while shared.records is not None and self._learn(shared.records, ahead=0):
            each_round()

    def _learn(self, records: Records, ahead: int) -> bool:
        """Do the next phase, unless actors would then be less than ``ahead`` periods ahead. Return whether a phase was
        done."""
        may_learn, ended = self._shared.roster.pace.may_learn_phase, records.ended
        due = [learner for learner in self.learners if may_learn(learner.phases + ahead, ended)]
        for learner in due:
            learner.play_phase()
        return bool(due)

    def end(self) -> None:
        """Publish the last state, as learners in processes do at the end. Call it after the last checkpoint."""
        for learner in self.learners:
            learner.end()

    def close(self) -> None:
        """End the processes of isolated partners."""
        for actor in self.actors:
            close_partners(actor.worlds)

    @property
    def can_save(self) -> bool:
        """Whether all worlds and partners can save their state."""
        return all(actor.worlds.can_save for actor in self.actors)

    def check_streams(self) -> None:
        """Raise if a behaviour returns a random stream that a checkpoint cannot contain."""
        check_streams(self.actors[0], self._shared.roster)

    def actor_notes(self) -> list[dict[str, Any]]:
        """Return the states of the actors as plain values. Changes nothing."""
        return [actor_notes(actor, log) for actor, log in zip(self.actors, self._logs, strict=True)]

    def write_down(self) -> dict[str, Any]:
        """Return all state that is neither in the learners' states nor in the lanes, as plain values. Changes
        nothing."""
        notes: dict[str, Any] = {
            "actors": self.actor_notes(),
            "published": {policy.name: self._published(i) for i, policy in enumerate(self._shared.roster.policies)},
        }
        notes["learners"] = [learner.streams and learner.streams.get_state() for learner in self.learners]
        notes["priorities"] = priorities = {}
        for i, member in self._members():
            policy = self._shared.roster.policies[i]
            if policy.settings.prioritised:
                spec = self._shared.replays[i].spec
                values = np.zeros(spec.lane_capacity * spec.n_lanes, np.float32)
                member.reader.save_priorities(values)
                priorities[policy.name] = values
        return notes

    def _members(self) -> list[tuple[int, StackMember]]:
        """Return each policy's index and its member of a stack."""
        return [pair for learner in self.learners for pair in zip(learner.policies, learner.members, strict=True)]

    def _published(self, policy: int) -> list[dict[str, Any]]:
        """Return the versions of a policy that actors hold, and the newest one, in ascending order."""
        self._newest[policy].take(_TAKE_S)
        held: list[Any] = [self._newest[policy], *(actor.published[policy].subscriber for actor in self.actors)]
        by_version = {subscriber.version: subscriber for subscriber in held if subscriber.version}
        names = self._shared.publications[policy].header
        return [
            {"version": version, "weights": one.weights.copy(), "header": {name: one[name] for name in names}}
            for version, one in sorted(by_version.items())
        ]

    def _publish_again(self, kept: Mapping[str, Any]) -> None:
        """Publish the saved versions again, so that each actor loads the version that it held."""
        for i, policy in enumerate(self._shared.roster.policies):
            publisher = self._shared.publications[i].publisher()
            for one in kept.get("published", {}).get(policy.name, ()):  # older checkpoints do not contain versions
                publisher.publish(one["weights"], version=one["version"], **one["header"])
                for actor, notes in zip(self.actors, kept["actors"], strict=True):
                    if notes["versions"][i] == one["version"]:
                        actor.published[i].load_newest()

    def _pick_up(self, kept: Mapping[str, Any]) -> None:
        roster, new = self._shared.roster, set[int]()
        for index, (actor, notes) in enumerate(zip(self.actors, kept["actors"], strict=True)):
            new |= continue_actor(self._shared, index, actor, self._logs[index], notes)
        self.new_streams = [roster.policies[i].name for i in sorted(new)]
        for learner, state in zip(self.learners, kept.get("learners", ()), strict=False):
            if learner.streams is not None and state is not None:
                learner.streams.set_state(state)
        for i, member in self._members():
            values = kept.get("priorities", {}).get(roster.policies[i].name)
            if values is not None:
                member.reader.load_priorities(values)

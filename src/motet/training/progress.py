"""Progress of the policies of a run, and what the pace allows next: an update of a stack, or a round of an actor.

The writers of the replays count steps, and the learners count updates; there are no other counters. A learner asks
:class:`StackProgress` before every update. An actor asks :class:`ActorProgress` after every round, about the policies
that acted in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from motet.training.periods import StackRecord

if TYPE_CHECKING:
    from motet.training.shared import SharedMemory

__all__ = ["ActorProgress", "StackProgress"]


class StackProgress:
    """Progress of the policies of one stack, and which of them may be updated now.

    Steps and updates count from the beginning of the replays, as the pace counts them.

    Args:
        shared: the shared memory of the run.
        stack: index of the stack.
        record: with periods, the record that its phases read.
    """

    def __init__(self, shared: SharedMemory, stack: int, record: StackRecord | None = None) -> None:
        roster = shared.roster
        self.policies = roster.stacks[stack]
        """Indices of its policies in the roster."""
        settings = roster.policies[self.policies[0]].settings
        self.lanes = roster.lanes(self.policies[0])
        """Number of lanes of each replay."""
        self.once = settings.once
        """Whether every row is read once."""
        rows = max(settings.min_rows, settings.batch_size * settings.stride)
        self.warm_up = rows + self.lanes * (settings.reads_ahead + settings.stride - 1) + settings.n_frames
        """Steps before the first update: enough rows for a batch for any distribution of rows over lanes.

        The newest rows of a lane cannot be sampled, because their n-step return or sequence is not complete yet.
        """
        self._pace, self._shared, self._learned = roster.pace, shared, shared.board.learned
        first, last = self.policies[0], self.policies[-1]
        is_range = self.policies == tuple(range(first, last + 1))
        self._rows: Any = slice(first, last + 1) if is_range else list(self.policies)  # indices of rows of the board
        self._steps = shared.step_counter(self.policies) if record is None else record.steps
        self._batches = shared.batches if record is None else record.batches
        self._steps_of = {policy: shared.step_counter([policy]) for policy in self.policies}
        self._nothing = [False] * len(self.policies)
        self._idle_until = 0  # while no policy has this many steps, no update is due

    def due(self) -> list[bool]:
        """Return for each policy whether it takes part in an update now. All False: no update is due.

        Policies that have enough rows wait for each other, so that they share one pass. The wait of a policy that is
        ahead is limited (:meth:`Pace.patience`). Policies do not wait for a policy without enough rows.
        """
        pace, warm_up = self._pace, self.warm_up
        if self.once:
            return [pace.may_learn_once(self._done(p), self._batches(p)) for p in self.policies]
        steps = self._steps()
        if max(steps) < self._idle_until:
            return self._nothing
        counts = self._counted(steps)
        learned, rows, before = self._learned, self._rows, self._shared.updates_before
        columns = (column[rows].tolist() for column in (learned.resting, learned.updates, learned.waived))
        # Updates done or skipped; None: the policy rests.
        done = [
            None if resting else updates + waived - before[policy]
            for policy, resting, updates, waived in zip(self.policies, *columns, strict=True)
        ]
        if done.count(done[0]) == len(done) and counts.count(counts[0]) == len(counts):  # the common case
            found = [done[0] is not None and pace.may_learn(done[0], counts[0], warm_up)] * len(done)
        else:
            found = [
                one is not None and pace.may_learn(one, count, warm_up) for one, count in zip(done, counts, strict=True)
            ]
        if not any(found):
            # The number of updates never decreases, so this stays true. But a rest may end at any time.
            self._idle_until = min(0 if one is None else pace.first_due(one, warm_up) for one in set(done))
            return found
        enough = [one is not None and count > warm_up for one, count in zip(done, counts, strict=True)]
        if found == enough:
            return found
        owed = [
            pace.due(count, warm_up) - one
            for one, count in zip(done, counts, strict=True)
            if one is not None and count > warm_up
        ]
        return found if max(owed) > pace.patience(self.lanes) else self._nothing

    def may_act(self) -> bool:
        """Whether the pace of all its policies allows one more round of acting."""
        if self.once:
            return all(self._pace.may_act_once(self._done(p), self._batches(p)) for p in self.policies)
        return self._pace.free or all(
            self.rests(policy) or self._pace.may_act(self._done(policy), count, self.warm_up)
            for policy, count in zip(self.policies, self.counts(), strict=True)
        )

    def surely_may_act(self, policy: int) -> bool:
        """Whether the pace of one policy allows one more round, independent of the other policies of its stack.

        It uses all steps of the policy, which may be more than those that count for its due updates (:meth:`counts`),
        and does not ask whether the policy rests, since a rest may end at any time. So this may be False although
        :meth:`may_act` is True.
        """
        if self.once:
            return self._pace.may_act_once(self._done(policy), self._batches(policy))
        (steps,) = self._steps_of[policy]()
        return self._pace.may_act(self._done(policy), steps, self.warm_up)

    def owed(self, position: int) -> int:
        """Return the number of updates of a policy that are due by its steps and not done. Rests are not considered."""
        due = self._pace.due(self.counts()[position], self.warm_up)
        return due - self._done(self.policies[position])

    def settle(self) -> None:
        """Count exactly the updates that are due as done, so that the pace continues from here."""
        for i, policy in enumerate(self.policies):
            self._shared.updates_before[policy] -= self.owed(i)

    def has_caught_up(self) -> bool:
        """Whether actors could continue for a while: at most half of the slack is due."""
        if self.once or not self.may_act():
            return self.may_act()
        enough = self._pace.slack / 2
        return all(self.rests(policy) or self.owed(i) <= enough for i, policy in enumerate(self.policies))

    def in_step(self) -> list[list[int]]:
        """For each policy, return the positions in the stack of all policies that are in step with it, including
        itself.

        Policies whose agents act in turns differ by one step in each lane. They still count as in step.
        """
        steps = self._steps()
        return [[i for i, other in enumerate(steps) if abs(other - own) <= self.lanes] for own in steps]

    def counts(self) -> list[int]:
        """Return for each policy the number of steps that counts for its due updates.

        For policies in step with each other (:meth:`in_step`) it is the smallest number among them, so that their
        updates are due together. A policy that has fallen behind does not delay the others.
        """
        return self._counted(self._steps())

    def _counted(self, steps: list[int]) -> list[int]:
        least = min(steps)
        if max(steps) - least <= self.lanes:
            return [least] * len(steps)
        return [min(other for other in steps if own - self.lanes <= other) for own in steps]

    def rests(self, policy: int) -> bool:
        """Whether a policy's replay was cleared and has too few new rows."""
        return bool(self._learned.resting[policy])

    def _done(self, policy: int) -> int:
        """Return the number of updates done or waived."""
        learned = self._learned
        return int(learned.updates[policy]) + int(learned.waived[policy]) - self._shared.updates_before[policy]


class ActorProgress:
    """Whether the pace lets an actor continue.

    Only new rows of a policy can make an actor wait. So only the policies that acted, and those near their limit, are
    checked. The cost does not depend on the number of other policies.

    Args:
        stacks: all stacks of the run.
    """

    def __init__(self, stacks: Sequence[StackProgress]) -> None:
        self._stack_of = {policy: stack for stack in stacks for policy in stack.policies}
        self._near = set(self._stack_of)  # policies whose limit may be reached although they make no further step

    def may_act(self, acted: Iterable[int] = ()) -> bool:
        """Whether one more round is allowed, after a round in which these policies acted."""
        self._near.update(acted)
        self._near = {policy for policy in self._near if not self._stack_of[policy].surely_may_act(policy)}
        return all(stack.may_act() for stack in {self._stack_of[policy] for policy in self._near})

"""How far the policies of a run are, and what the pace allows next: an update of a stack, or a round of an actor.

Steps are counted where rows are written and updates where they are done, so that there is no counter beside them.
:class:`StackProgress` is asked by a learner before every update. :class:`ActorProgress` is asked by an actor after
every round, about the policies that acted in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.training.shared import SharedMemory

__all__ = ["ActorProgress", "StackProgress"]


class StackProgress:
    """How far the policies of one stack are, and which of them may be updated now.

    Steps and updates count since the replays began, as the pace counts them.

    Args:
        shared: what the run shares.
        stack: the number of the stack.
    """

    def __init__(self, shared: SharedMemory, stack: int) -> None:
        roster = shared.roster
        self.policies = roster.stacks[stack]
        """Their numbers in the roster."""
        settings = roster.policies[self.policies[0]].settings
        self.lanes = roster.lanes(self.policies[0])
        """Lanes of each replay."""
        self.once = settings.once
        """Whether every row is read once."""
        self.warm_up = max(settings.min_rows, settings.batch_size) + self.lanes * settings.n_step + settings.n_frames
        """Steps before the first update: enough rows for a batch, however they are spread over the lanes.

        The newest rows of a lane are no starts: what ``n_step`` reaches to is not there yet.
        """
        self._pace, self._shared, self._learned = roster.pace, shared, shared.board.learned
        first, last = self.policies[0], self.policies[-1]
        is_range = self.policies == tuple(range(first, last + 1))
        self._rows: Any = slice(first, last + 1) if is_range else list(self.policies)  # of the board
        self._steps = shared.step_counter(self.policies)
        self._steps_of = {policy: shared.step_counter([policy]) for policy in self.policies}
        self._nothing = [False] * len(self.policies)
        self._idle_until = 0  # as long as no policy has this many steps, nothing is due

    def due(self) -> list[bool]:
        """For each policy, whether it takes part in an update now. All False: no update is due.

        Policies that have enough rows wait for each other, so that one pass does for all of them. A policy that is
        ahead of the others does not wait for long (:meth:`Pace.patience`). A policy without enough rows is not waited
        for.
        """
        pace, warm_up = self._pace, self.warm_up
        if self.once:
            return [pace.may_learn_once(self._done(p), self._shared.batches(p)) for p in self.policies]
        steps = self._steps()
        if max(steps) < self._idle_until:
            return self._nothing
        counts = self._counted(steps)
        learned, rows, before = self._learned, self._rows, self._shared.updates_before
        columns = (column[rows].tolist() for column in (learned.resting, learned.updates, learned.waived))
        # Updates done or waived; None: it rests.
        done = [
            None if resting else updates + waived - before[policy]
            for policy, resting, updates, waived in zip(self.policies, *columns, strict=True)
        ]
        if done.count(done[0]) == len(done) and counts.count(counts[0]) == len(counts):  # as most of the time
            found = [done[0] is not None and pace.may_learn(done[0], counts[0], warm_up)] * len(done)
        else:
            found = [
                one is not None and pace.may_learn(one, count, warm_up) for one, count in zip(done, counts, strict=True)
            ]
        if not any(found):
            # Updates are never taken back, so this stays true; but a rest may end at any time.
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
            return all(self._pace.may_act_once(self._done(p), self._shared.batches(p)) for p in self.policies)
        return self._pace.free or all(
            self.rests(policy) or self._pace.may_act(self._done(policy), count, self.warm_up)
            for policy, count in zip(self.policies, self.counts(), strict=True)
        )

    def surely_may_act(self, policy: int) -> bool:
        """Whether the pace of one policy allows one more round, whatever the others of its stack do meanwhile.

        Its own steps are at least as many as those by which its updates are due, so this may be False where
        :meth:`may_act` is True. It asks about no other policy.
        """
        if self.once:
            return self._pace.may_act_once(self._done(policy), self._shared.batches(policy))
        (steps,) = self._steps_of[policy]()
        return self._pace.may_act(self._done(policy), steps, self.warm_up) or self.rests(policy)

    def owed(self, position: int) -> int:
        """Updates of a policy that are due and not done; nothing is due while it rests."""
        due = self._pace.due(self.counts()[position], self.warm_up)
        return due - self._done(self.policies[position])

    def has_caught_up(self) -> bool:
        """Whether actors could play for a while: at most half of the slack is owed."""
        if self.once or not self.may_act():
            return self.may_act()
        enough = self._pace.slack / 2
        return all(self.rests(policy) or self.owed(i) <= enough for i, policy in enumerate(self.policies))

    def in_step(self) -> list[list[int]]:
        """For each policy, the positions in the stack of those that are as far as it is, itself among them.

        Policies whose agents act in turns differ by one step in each lane. That is no difference.
        """
        steps = self._steps()
        return [[i for i, other in enumerate(steps) if abs(other - own) <= self.lanes] for own in steps]

    def counts(self) -> list[int]:
        """For each policy, the steps by which its updates are due.

        Policies in step with each other (:meth:`in_step`) count as many as the one with the fewest, so that their
        updates are due together. A policy that has fallen behind does not hold up the others.
        """
        return self._counted(self._steps())

    def _counted(self, steps: list[int]) -> list[int]:
        least = min(steps)
        if max(steps) - least <= self.lanes:
            return [least] * len(steps)
        return [min(other for other in steps if own - self.lanes <= other) for own in steps]

    def rests(self, policy: int) -> bool:
        """Whether a policy's replay was cleared, and has had too few rows since."""
        return bool(self._learned.resting[policy])

    def _done(self, policy: int) -> int:
        """Updates done or waived."""
        learned = self._learned
        return int(learned.updates[policy]) + int(learned.waived[policy]) - self._shared.updates_before[policy]


class ActorProgress:
    """Whether the pace lets an actor play on.

    Only rows of a policy can take the actor's permission away, so it is asked about the policies that acted, and about
    those that are near their limit. So the question does not cost more because other policies exist.

    Args:
        stacks: all of the run.
    """

    def __init__(self, stacks: Sequence[StackProgress]) -> None:
        self._stack_of = {policy: stack for stack in stacks for policy in stack.policies}
        self._near = set(self._stack_of)  # policies whose limit may be reached without another step of theirs

    def may_act(self, acted: Iterable[int] = ()) -> bool:
        """Whether one more round is allowed, after a round in which these policies acted."""
        self._near.update(acted)
        self._near = {policy for policy in self._near if not self._stack_of[policy].surely_may_act(policy)}
        return all(stack.may_act() for stack in {self._stack_of[policy] for policy in self._near})

"""SharedMemory: what the processes of a run share, in one segment, and how far each policy is."""

from __future__ import annotations

from collections.abc import Sequence

from motet.algorithm import ReaderSettings
from motet.arrays import ArraySpec
from motet.errors import SettingError
from motet.publication import Publication
from motet.replay import Replay, ReplaySpec
from motet.system.memory import Segment
from motet.training.board import Board
from motet.training.league import LeagueBoard
from motet.training.learner import vault_header
from motet.training.roster import LearnedPolicy, Roster

__all__ = ["SharedMemory"]


class SharedMemory:
    """What the processes of a run share: one segment, laid out for everybody."""

    steps_before: list[int]
    """Steps of each policy before its replay began: above 0 where a run is resumed without its old rows."""
    updates_before: list[int]
    """Updates of each policy that belong to those steps."""
    versions_before: list[int]
    """The version of each policy that the run was resumed with, where versions count on."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        policies = roster.policies
        self.steps_before, self.updates_before, self.versions_before = ([0] * len(policies) for _ in range(3))
        specs = [roster.replay_spec(i) for i in range(len(policies))]
        layout: dict[str, ArraySpec] = {}
        for i, (spec, policy) in enumerate(zip(specs, policies, strict=True)):
            layout |= self._replay_layout(i, spec)
            layout |= Publication.layout(
                policy.sizes.weights, _header(policy), slots=policy.slots, prefix=f"policy{i}/publication"
            )
        for k, stack in enumerate(roster.stacks):
            layout |= Publication.layout(*self._vault_size(stack, specs), prefix=f"stack{k}/vault")
        size = (roster.actors + len(roster.processes) + 1, roster.actors, len(policies))
        layout |= Board.layout(*size)
        if (play := roster.self_play) is not None:
            weights = policies[0].sizes.weights
            layout |= LeagueBoard.layout(play.league, len(play.anchors), weights, roster.actors)
        segment = Segment(layout)
        self.board = Board(*size, segment)
        self.league: LeagueBoard | None = None
        if play is not None:
            self.league = LeagueBoard(play.league, play.anchors, weights, roster.actors, segment)
        self.replays = [self._replay(i, spec, segment) for i, spec in enumerate(specs)]
        self.publications = [
            Publication(
                policy.sizes.weights,
                _header(policy),
                slots=policy.slots,
                checked=roster.checked,
                segment=segment,
                prefix=f"policy{i}/publication",
            )
            for i, policy in enumerate(policies)
        ]
        self.vaults = [
            Publication(
                *self._vault_size(stack, specs), checked=roster.checked, segment=segment, prefix=f"stack{k}/vault"
            )
            for k, stack in enumerate(roster.stacks)
        ]

    def _replay_layout(self, policy: int, spec: ReplaySpec) -> dict[str, ArraySpec]:
        return spec.layout(f"policy{policy}/replay")

    def _replay(self, policy: int, spec: ReplaySpec, segment: Segment) -> Replay:
        return Replay(spec, segment, f"policy{policy}/replay")

    def _vault_size(self, stack: Sequence[int], specs: Sequence[ReplaySpec]) -> tuple[int, dict[str, ArraySpec]]:
        sizes = self.roster.policies[stack[0]].sizes
        words = specs[stack[0]].reader_words
        header = {name: ArraySpec(*item) for name, item in vault_header(len(stack), sizes, words).items()}
        return sizes.state * len(stack), header

    def steps(self, policy: int) -> int:
        """Steps that a policy has done."""
        return self.steps_before[policy] + self.replays[policy].steps

    def left(self, policy: int, actor: int) -> int:
        """Steps of a policy that an actor has still to do: all have equal parts of what this run has to do."""
        roster, replay = self.roster, self.replays[policy]
        part = -(-(roster.steps - self.steps_before[policy]) // roster.actors)
        return part - sum(replay.words(lane).steps for lane in roster.lanes_of(policy, actor))

    def may_act(self, stack: int) -> bool:
        """Whether the pace of all policies of a stack allows one more round of acting."""
        pace, policies = self.roster.pace, self.roster.stacks[stack]
        if self.settings(stack).once:
            return all(pace.may_act_once(self._done(policy), self._batches(policy)) for policy in policies)
        if pace.free:
            return True
        warm_up, counts = self.warm_up(stack), self._counts(stack)
        return all(
            self.rests(policy) or pace.may_act(self._done(policy), count, warm_up)
            for policy, count in zip(policies, counts, strict=True)
        )

    def due(self, stack: int) -> list[bool]:
        """For each policy of a stack, whether it takes part in an update now. All False: no update is due.

        Policies that have enough rows wait for each other, so that one pass does for all of them. A policy that is
        ahead of the others does not wait for long (:meth:`Pace.patience`). A policy without enough rows is not waited
        for.
        """
        pace, policies = self.roster.pace, self.roster.stacks[stack]
        if self.settings(stack).once:
            return [pace.may_learn_once(self._done(policy), self._batches(policy)) for policy in policies]
        warm_up, counts = self.warm_up(stack), self._counts(stack)
        if max(counts) <= warm_up:
            return [False] * len(counts)
        # Updates done or waived; None: it has too few rows.
        done = [
            None if count <= warm_up or self.rests(policy) else self._done(policy)
            for policy, count in zip(policies, counts, strict=True)
        ]
        if done.count(done[0]) == len(done) and counts.count(counts[0]) == len(counts):  # as most of the time
            return [done[0] is not None and pace.may_learn(done[0], counts[0], warm_up)] * len(counts)
        found = [
            one is not None and pace.may_learn(one, count, warm_up) for one, count in zip(done, counts, strict=True)
        ]
        if all(is_due or one is None for is_due, one in zip(found, done, strict=True)):
            return found
        patience = pace.patience(self._lanes(stack))
        owed = [pace.due(count, warm_up) - one for one, count in zip(done, counts, strict=True) if one is not None]
        return found if max(owed) > patience else [False] * len(found)

    def owed(self, policy: int) -> int:
        """Updates of a policy that are due and not done; nothing is due while it rests."""
        stack = self.roster.stack_of(policy)
        count = self._counts(stack)[self.roster.stacks[stack].index(policy)]
        return self.roster.pace.due(count, self.warm_up(stack)) - self._done(policy)

    def in_step(self, stack: int) -> list[list[int]]:
        """For each policy of a stack, the positions in the stack of those that are as far as it is, itself among them.

        Policies whose agents act in turns differ by one step in each lane. That is no difference.
        """
        steps, lanes = self._steps(stack), self._lanes(stack)
        return [[i for i, other in enumerate(steps) if abs(other - own) <= lanes] for own in steps]

    def warm_up(self, stack: int) -> int:
        """Steps before the first update: rows enough for a batch, however they are spread over the lanes.

        The newest rows of a lane are no starts: what ``n_step`` reaches to is not there yet.
        """
        settings = self.settings(stack)
        return max(settings.min_rows, settings.batch_size) + self._lanes(stack) * settings.n_step + settings.n_frames

    def settings(self, stack: int) -> ReaderSettings:
        """What a stack asked of its replays."""
        return self.roster.policies[self.roster.stacks[stack][0]].settings

    def _lanes(self, stack: int) -> int:
        """Lanes of each replay of a stack."""
        return self.roster.lanes(self.roster.stacks[stack][0])

    def newest_step(self, policy: int) -> int:
        """The ``published_step`` of a policy's newest version."""
        return int(self.board.learned.published_step[policy])

    def rests(self, policy: int) -> bool:
        """Whether a policy's replay was cleared, and has too few rows since."""
        return bool(self.board.learned.resting[policy])

    def where(self, process: int) -> str:
        """The node of a process, by its row of the board; empty on this machine."""
        return ""

    # As the pace counts: since the replays began.

    def _done(self, policy: int) -> int:
        """Updates done or waived."""
        learned = self.board.learned
        return int(learned.updates[policy]) + int(learned.waived[policy]) - self.updates_before[policy]

    def _steps(self, stack: int) -> list[int]:
        """Steps of each policy of a stack."""
        return [self.replays[policy].steps for policy in self.roster.stacks[stack]]

    def _counts(self, stack: int) -> list[int]:
        """Steps of each policy of a stack by which its updates are due.

        Policies in step with each other (:meth:`in_step`) count as many as the one with the fewest, so that their
        updates are due together. A policy that has fallen behind does not hold up the others.
        """
        steps, lanes = self._steps(stack), self._lanes(stack)
        least = min(steps)
        if max(steps) - least <= lanes:
            return [least] * len(steps)
        return [min(other for other in steps if own - lanes <= other) for own in steps]

    def _batches(self, policy: int) -> int:
        """Whole batches of rows that are read once: a cursor moves by fragments, and each needs the row behind it."""
        settings, replay = self.roster.policies[policy].settings, self.replays[policy]
        lanes = range(self.roster.lanes(policy))
        fragments = sum(max(replay.words(lane).head - 1, 0) // settings.length for lane in lanes)
        return fragments // settings.batch_size


def _header(policy: LearnedPolicy) -> dict[str, ArraySpec]:
    """What travels with the weights: what the algorithm declares, and when it was published, by the policy's steps."""
    header = {name: ArraySpec(shape, dtype) for name, (shape, dtype) in policy.config.header.items()}
    if "published_step" in header:
        raise SettingError("header must not have the name 'published_step': every publication has it")
    return {"published_step": ArraySpec(dtype="int64"), **header}

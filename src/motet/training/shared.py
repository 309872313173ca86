"""SharedMemory: the memory that the processes of a run share, in one segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from motet.arrays import ArraySpec
from motet.errors import SettingError
from motet.publication import Publication
from motet.replay import Replay, ReplaySpec, step_counter
from motet.system.memory import Letter, Segment
from motet.training.board import Board
from motet.training.episodes import EpisodeRings
from motet.training.league import LeagueBoard
from motet.training.learner import vault_header
from motet.training.periods import ActorPeriods, Records, StackRecord
from motet.training.progress import StackProgress
from motet.training.roster import LearnedPolicy, Roster

__all__ = ["SharedMemory"]


class SharedMemory:
    """The memory that the processes of a run share: board, replays, publications, vaults and league in one segment.

    The replays may be in a second segment, which is a file on a disk (``replay_directory``).
    """

    steps_before: list[int]
    """Steps of each policy before its replay began; above 0 if the run was resumed without its old rows."""
    updates_before: list[int]
    """Updates of each policy that were made for those steps."""
    versions_before: list[int]
    """The version of each policy with which the run was resumed, if version numbers continue from there; else 0."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        policies = roster.policies
        self.steps_before, self.updates_before, self.versions_before = ([0] * len(policies) for _ in range(3))
        specs = [roster.replay_spec(i) for i in range(len(policies))]
        layout: dict[str, ArraySpec] = {}
        rows: dict[str, ArraySpec] = {}
        for i, (spec, policy) in enumerate(zip(specs, policies, strict=True)):
            rows |= self._replay_layout(i, spec)
            layout |= Publication.layout(
                policy.sizes.weights, _header(policy), slots=roster.slots(i), prefix=f"policy{i}/publication"
            )
            if roster.evaluate_every:
                layout |= Publication.layout(*self._aside_size(i), slots=roster.pace.asides, prefix=f"policy{i}/aside")
        for k, stack in enumerate(roster.stacks):
            layout |= Publication.layout(*self._vault_size(stack, specs), prefix=f"stack{k}/vault")
        size = (self.main_process + 1, roster.actors, len(policies))
        if roster.pace.period:
            layout |= Records.layout(roster)
        fixed = len(roster.fixed_agents)
        layout |= Board.layout(*size, fixed, roster.worlds_per_actor)
        layout |= EpisodeRings.layout(roster)
        if (play := roster.self_play) is not None:
            weights = policies[0].sizes.weights
            games = roster.pace.rounds_kept * roster.worlds_per_actor
            layout |= LeagueBoard.layout(
                play.league, len(play.anchors), weights, roster.actors, games, slots=roster.slots(0)
            )
        if (directory := roster.replay_directory) is None:
            self._segments = [Segment(layout | rows)]
        else:
            self._segments = [Segment(layout), Segment(rows, directory)]
        segment = self._segments[0]
        self.board = Board(*size, segment, fixed, roster.worlds_per_actor)
        self.episodes = EpisodeRings(roster, segment)
        self.league: LeagueBoard | None = None
        if play is not None:
            self.league = LeagueBoard(play.league, play.anchors, weights, roster.actors, segment, roster.slots(0))
        self.replays = [self._replay(i, spec, self._segments[-1]) for i, spec in enumerate(specs)]
        self.publications = [
            Publication(
                policy.sizes.weights,
                _header(policy),
                slots=roster.slots(i),
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

        self.records: Records | None = None
        """Numbers of rows in the lanes at the ends of periods; None without periods."""
        if roster.pace.period:
            self.records = Records(roster, self.replays, self.board, self.steps_before, segment, self.league)
        self.letters = [Letter() for _ in range(roster.actors)] if roster.exact else []
        """Where actors leave their state for an exact checkpoint, by actor; empty without such checkpoints."""
        self.asides: list[Publication] = []
        """With periods and evaluations: copies of the policies that are to be evaluated, by policy; else empty."""
        if roster.evaluate_every:
            self.asides = [
                Publication(
                    *self._aside_size(i),
                    slots=roster.pace.asides,
                    checked=roster.checked,
                    segment=segment,
                    prefix=f"policy{i}/aside",
                )
                for i in range(len(policies))
            ]

    @property
    def size(self) -> int:
        """Size of the shared memory in bytes."""
        return sum(segment.size for segment in self._segments)

    @property
    def main_process(self) -> int:
        """The board's row of the process that supervises the others, after those of actors, learners and evaluator."""
        return self.roster.actors + len(self.roster.processes) + 1

    def hide_from_children(self) -> None:
        """Leave this memory out of processes that the calling process forks."""
        for segment in self._segments:
            segment.hide_from_children()

    def _replay_layout(self, policy: int, spec: ReplaySpec) -> dict[str, ArraySpec]:
        return spec.layout(f"policy{policy}/replay")

    def _replay(self, policy: int, spec: ReplaySpec, segment: Segment) -> Replay:
        return Replay(spec, segment, f"policy{policy}/replay")

    def _vault_size(self, stack: Sequence[int], specs: Sequence[ReplaySpec]) -> tuple[int, dict[str, ArraySpec]]:
        sizes = self.roster.policies[stack[0]].sizes
        words = specs[stack[0]].reader_words
        items = vault_header(len(stack), sizes, words)
        if self.roster.pace.period:
            prioritised = self.roster.policies[stack[0]].settings.prioritised
            items |= StackRecord.header(len(stack), specs[stack[0]], prioritised)
        return sizes.state * len(stack), {name: ArraySpec(*item) for name, item in items.items()}

    def _aside_size(self, policy: int) -> tuple[int, dict[str, ArraySpec]]:
        learned = self.roster.policies[policy]
        return learned.sizes.weights, _aside_header(learned)

    def name_last_period(self) -> int:
        """With periods: stop at the end of a period that no actor has passed; return the number of periods to play."""
        return self.board.name_last_period()

    def steps(self, policy: int) -> int:
        """Return the steps that a policy has done."""
        return self.steps_before[policy] + self.replays[policy].steps

    def most_steps(self) -> int:
        """Return the steps of the policy with the most steps, which determine progress, checkpoints, evaluations and
        the end."""
        return max(map(self.steps, range(len(self.roster.policies))))

    def left(self, policy: int, actor: int) -> int:
        """Return the steps of a policy that an actor still has to do. All actors have equal shares."""
        roster, replay = self.roster, self.replays[policy]
        part = -(-(roster.steps - self.steps_before[policy]) // roster.actors)
        return part - sum(replay.words(lane).steps for lane in roster.lanes_of(policy, actor))

    def actor_periods(self, actor: int) -> ActorPeriods | None:
        """Return the periods of an actor; None without periods."""
        return None if self.records is None else ActorPeriods(self.records, self.board, self.roster, actor)

    def stack_record(self, stack: int) -> StackRecord | None:
        """Return the rows that the phases of a stack read; None without periods."""
        if self.records is None:
            return None
        policies = self.roster.stacks[stack]
        settings, spec = self.roster.policies[policies[0]].settings, self.replays[policies[0]].spec
        return StackRecord(self.records, policies, settings, self.roster.pace, spec)

    def progress(self, stack: int, record: StackRecord | None = None) -> StackProgress:
        """Return the progress of a stack, for use in the calling process; with ``record``: the progress up to that
        record."""
        return StackProgress(self, stack, record)

    def step_counter(self, policies: Sequence[int]) -> Callable[[], list[int]]:
        """Return a counter of the steps of some policies since their replays began. All have equally many lanes."""
        return step_counter([self.replays[policy] for policy in policies])

    def batches(self, policy: int) -> int:
        """Return the number of complete batches of a policy that reads rows once, in whole fragments."""
        settings = self.roster.policies[policy].settings
        return self.replays[policy].counts.fragments(settings.length) // settings.batch_size

    def newest_step(self, policy: int) -> int:
        """Return the ``published_step`` of a policy's newest version."""
        return int(self.board.learned.published_step[policy])

    def where(self, process: int) -> str:
        """Return the node of a process, by its row of the board; empty on this machine."""
        return ""


def _header(policy: LearnedPolicy) -> dict[str, ArraySpec]:
    """The header of a publication: the fields that the algorithm declares, and the policy's steps at publication."""
    header = {name: ArraySpec(shape, dtype) for name, (shape, dtype) in policy.config.header.items()}
    if "published_step" in header:
        raise SettingError("header must not contain 'published_step', which every publication already has")
    return {"published_step": ArraySpec(dtype="int64"), **header}


def _aside_header(policy: LearnedPolicy) -> dict[str, ArraySpec]:
    """The header of the copies of policies for evaluations, which also has the number of completed phases."""
    header = _header(policy)
    if "phases" in header:
        raise SettingError("header must not contain 'phases', which evaluations of reproducible runs need")
    return {**header, "phases": ArraySpec(dtype="int64")}

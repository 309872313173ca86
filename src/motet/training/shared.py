"""SharedMemory: what the processes of a run share, in one segment, and how far each agent is."""

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
from motet.training.roster import AgentSpec, Roster

__all__ = ["SharedMemory"]


class SharedMemory:
    """What the processes of a run share: one segment, laid out for everybody."""

    steps_before: list[int]
    """Steps of each agent before its replay began: above 0 where a run goes on without its old rows."""
    updates_before: list[int]
    """Updates of each agent that belong to those steps."""
    versions_before: list[int]
    """The version of each agent's policy that the run was resumed with, where versions count on."""

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.steps_before = [0] * len(roster.parts)
        self.updates_before = [0] * len(roster.parts)
        self.versions_before = [0] * len(roster.parts)
        specs = [roster.replay_spec(part) for part in roster.parts]
        layout: dict[str, ArraySpec] = {}
        for i, (spec, part) in enumerate(zip(specs, roster.parts, strict=True)):
            layout |= self._replay_layout(i, spec)
            header = _header(part)
            layout |= Publication.layout(part.sizes.weights, header, slots=roster.slots, prefix=f"agent{i}/publication")
        for k, stack in enumerate(roster.stacks):
            layout |= Publication.layout(*self._vault_size(stack, specs), prefix=f"stack{k}/vault")
        size = (roster.actors + len(roster.processes) + 1, roster.actors, len(roster.parts))
        layout |= Board.layout(*size)
        if (play := roster.self_play) is not None:
            weights = roster.parts[0].sizes.weights
            layout |= LeagueBoard.layout(play.league, len(play.anchors), weights, roster.actors)
        segment = Segment(layout)
        self.board = Board(*size, segment)
        self.league: LeagueBoard | None = None
        if play is not None:
            self.league = LeagueBoard(play.league, play.anchors, weights, roster.actors, segment)
        self.replays = [self._replay(i, spec, segment) for i, spec in enumerate(specs)]
        self.publications = [
            Publication(
                part.sizes.weights,
                _header(part),
                slots=roster.slots,
                checked=roster.checked,
                segment=segment,
                prefix=f"agent{i}/publication",
            )
            for i, part in enumerate(roster.parts)
        ]
        self.vaults = [
            Publication(
                *self._vault_size(stack, specs), checked=roster.checked, segment=segment, prefix=f"stack{k}/vault"
            )
            for k, stack in enumerate(roster.stacks)
        ]

    def _replay_layout(self, agent: int, spec: ReplaySpec) -> dict[str, ArraySpec]:
        return spec.layout(f"agent{agent}/replay")

    def _replay(self, agent: int, spec: ReplaySpec, segment: Segment) -> Replay:
        return Replay(spec, segment, f"agent{agent}/replay")

    def _vault_size(self, stack: Sequence[int], specs: Sequence[ReplaySpec]) -> tuple[int, dict[str, ArraySpec]]:
        sizes = self.roster.parts[stack[0]].sizes
        words = specs[stack[0]].reader_words
        header = {name: ArraySpec(*item) for name, item in vault_header(len(stack), sizes, words).items()}
        return sizes.state * len(stack), header

    def steps(self, agent: int) -> int:
        """Steps that an agent has done."""
        return self.steps_before[agent] + self.replays[agent].steps

    def left(self, agent: int, actor: int) -> int:
        """Steps of an agent that an actor has still to do: all have equal parts of what this run has to do."""
        roster, replay = self.roster, self.replays[agent]
        part = -(-(roster.steps - self.steps_before[agent]) // roster.actors)
        return part - sum(replay.words(lane).steps for lane in roster.lanes_of(actor))

    def may_act(self, stack: int) -> bool:
        """Whether the pace of all agents of a stack allows one more round of acting."""
        pace, agents = self.roster.pace, self.roster.stacks[stack]
        if self.settings(stack).once:
            return all(pace.may_act_once(self._done(agent), self._batches(agent)) for agent in agents)
        if pace.free:
            return True
        warm_up, counts = self.warm_up(stack), self._counts(stack)
        return all(
            self.rests(agent) or pace.may_act(self._done(agent), count, warm_up)
            for agent, count in zip(agents, counts, strict=True)
        )

    def due(self, stack: int) -> list[bool]:
        """For each agent of a stack, whether it takes part in an update now. All False: no update is due.

        Agents that have enough rows wait for each other, so that one pass does for all of them. An agent that acts more
        often than the others does not wait for long (:meth:`Pace.patience`). An agent without enough rows is not waited
        for.
        """
        pace, agents = self.roster.pace, self.roster.stacks[stack]
        if self.settings(stack).once:
            return [pace.may_learn_once(self._done(agent), self._batches(agent)) for agent in agents]
        warm_up, counts = self.warm_up(stack), self._counts(stack)
        if max(counts) <= warm_up:
            return [False] * len(counts)
        # Updates done or waived; None: it has too few rows.
        done = [
            None if count <= warm_up or self.rests(agent) else self._done(agent)
            for agent, count in zip(agents, counts, strict=True)
        ]
        if done.count(done[0]) == len(done) and counts.count(counts[0]) == len(counts):  # as most of the time
            return [done[0] is not None and pace.may_learn(done[0], counts[0], warm_up)] * len(counts)
        found = [
            one is not None and pace.may_learn(one, count, warm_up) for one, count in zip(done, counts, strict=True)
        ]
        if all(is_due or one is None for is_due, one in zip(found, done, strict=True)):
            return found
        patience = pace.patience(self.roster.lanes)
        owed = [pace.due(count, warm_up) - one for one, count in zip(done, counts, strict=True) if one is not None]
        return found if max(owed) > patience else [False] * len(found)

    def owed(self, agent: int) -> int:
        """Updates of an agent that are due and not done; nothing is due while it rests."""
        stack = self.roster.stack_of(agent)
        count = self._counts(stack)[self.roster.stacks[stack].index(agent)]
        return self.roster.pace.due(count, self.warm_up(stack)) - self._done(agent)

    def in_step(self, stack: int) -> list[list[int]]:
        """For each agent of a stack, the positions in the stack of those that are as far as it is, itself among them.

        Agents that act in turns differ by one step in each lane. That is no difference.
        """
        steps, lanes = self._steps(stack), self.roster.lanes
        return [[i for i, other in enumerate(steps) if abs(other - own) <= lanes] for own in steps]

    def warm_up(self, stack: int) -> int:
        """Steps before the first update: rows enough for a batch, however they are spread over the lanes.

        The newest rows of a lane are no starts: what ``n_step`` reaches to is not there yet.
        """
        settings = self.settings(stack)
        return max(settings.min_rows, settings.batch_size) + self.roster.lanes * settings.n_step + settings.n_frames

    def settings(self, stack: int) -> ReaderSettings:
        """What a stack asked of its replays."""
        return self.roster.parts[self.roster.stacks[stack][0]].settings

    def newest_step(self, agent: int) -> int:
        """The ``published_step`` of an agent's newest version."""
        return int(self.board.learned.published_step[agent])

    def rests(self, agent: int) -> bool:
        """Whether an agent's replay was cleared, and has too few rows since."""
        return bool(self.board.learned.resting[agent])

    def where(self, process: int) -> str:
        """The node of a process, by its row of the board; empty on this machine."""
        return ""

    # As the pace counts: since the replays began.

    def _done(self, agent: int) -> int:
        """Updates done or waived."""
        learned = self.board.learned
        return int(learned.updates[agent]) + int(learned.waived[agent]) - self.updates_before[agent]

    def _steps(self, stack: int) -> list[int]:
        """Steps of each agent of a stack."""
        return [self.replays[agent].steps for agent in self.roster.stacks[stack]]

    def _counts(self, stack: int) -> list[int]:
        """Steps of each agent of a stack by which its updates are due.

        Agents in step with each other (:meth:`in_step`) count as many as the one with the fewest, so that their updates
        are due together. Whoever has fallen behind them holds up nobody.
        """
        steps, lanes = self._steps(stack), self.roster.lanes
        least = min(steps)
        if max(steps) - least <= lanes:
            return [least] * len(steps)
        return [min(other for other in steps if own - lanes <= other) for own in steps]

    def _batches(self, agent: int) -> int:
        """Whole batches of rows that are read once: a cursor moves by fragments, and each needs the row behind it."""
        settings, replay = self.roster.parts[agent].settings, self.replays[agent]
        lanes = range(self.roster.lanes)
        fragments = sum(max(replay.words(lane).head - 1, 0) // settings.length for lane in lanes)
        return fragments // settings.batch_size


def _header(part: AgentSpec) -> dict[str, ArraySpec]:
    """What travels with the weights: what the algorithm declares, and when it was published, by its agents' steps."""
    header = {name: ArraySpec(shape, dtype) for name, (shape, dtype) in part.config.header.items()}
    if "published_step" in header:
        raise SettingError("header must not have the name 'published_step': every publication has it")
    return {"published_step": ArraySpec(dtype="int64"), **header}

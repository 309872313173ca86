"""PartneredWorlds: worlds in which partners act. For the actor they are worlds without the partners' agents.

The class takes the actions of the learning agents and returns their turns and endings. It asks the partners itself, so
their steps are not recorded, and nothing is published for them. Actors and evaluations use the same class. Partners are
asked before the learners' policies act, and awaited afterwards, so that isolated partners compute in the meantime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.nest import assign, map_nest, stack_nests
from motet.policies.joint import filler
from motet.seeds import seed_for
from motet.training.actor import FinishedEpisode
from motet.training.partners import PARTNER_SEED, ActingPartner, Actions, FixedPolicy, acting_partner
from motet.world.batch import Ending, Indices, Turn, WorldBatch

__all__ = ["PartneredWorlds", "close_partners", "partnered"]


def partnered(
    worlds: WorldBatch,
    partners: Sequence[FixedPolicy],
    agents: int,
    policies: int = 0,
    *,
    alive: Callable[[], None] | None = None,
    asks: Callable[[int], None] = lambda number: None,
    on_failure: Callable[[FixedPolicy, int, str], None] = lambda fixed, count, text: None,
) -> WorldBatch:
    """Return worlds in which partners act for their agents; the worlds themselves if there are no partners.

    Args:
        worlds: worlds of all agents.
        partners: the partners.
        agents: number of agents of a world.
        policies: number of learned policies. The results of partners' agents are numbered after them.
        alive: called now and then while an isolated partner is awaited.
        asks: called with the number of a partner (from 1 on) before it is asked, and with 0 afterwards.
        on_failure: called with a partner that was replaced, the number of its failures, and a text.
    """
    if not partners:
        return worlds
    acting = [acting_partner(fixed, worlds.size, alive, on_failure) for fixed in partners]
    return PartneredWorlds(worlds, partners, acting, agents, policies, asks)


def close_partners(worlds: WorldBatch) -> None:
    """End the processes of the isolated partners of some worlds, if there are any."""
    if isinstance(worlds, PartneredWorlds):
        worlds.close()


class PartneredWorlds:
    """A batch of worlds without the agents of partners, which act inside it.

    Args:
        worlds: worlds of all agents.
        partners: the partners.
        acting: the partners, made for these worlds, in the same order.
        agents: number of agents of a world.
        policies: number of learned policies.
        asks: called with the number of a partner before it is asked, and with 0 afterwards.
    """

    def __init__(
        self,
        worlds: WorldBatch,
        partners: Sequence[FixedPolicy],
        acting: Sequence[ActingPartner],
        agents: int,
        policies: int,
        asks: Callable[[int], None],
    ) -> None:
        self._worlds, self._partners, self._acting, self._asks = worlds, tuple(partners), tuple(acting), asks
        self._partner_of = {agent: p for p, fixed in enumerate(partners) for agent in fixed.agents}
        self._number_of = {agent: policies + k for k, agent in enumerate(self._partner_of)}
        self.size, self.lanes, self.user = worlds.size, worlds.lanes, worlds.user
        self.can_save = worlds.can_save and all(partner.can_save for partner in acting)
        self.returns = np.zeros((self.size, agents))
        """``[worlds, agents]``: return of each partner's agent in the present episode."""
        self._total = np.zeros((self.size, agents))  # sums of the current segment
        self._steps = np.zeros((self.size, agents), np.int64)
        self._segments = np.zeros((self.size, agents), np.int64)  # number of segments that ended in the current episode
        self._seeds = np.zeros(self.size, np.int64)  # seeds of the current episodes
        self._turns: Sequence[Turn] = ()
        self._asked: dict[int, list[Turn]] = {}
        self.finished = deque[FinishedEpisode]()
        """Finished segments of the partners' agents; the caller removes them."""

    @property
    def over(self) -> list[int]:
        """Indices of the worlds that wait for a reset."""
        return self._worlds.over

    @property
    def measured(self) -> dict[int, Mapping[str, float]]:
        """What worlds measured in the episodes that have ended. The caller removes it."""
        return self._worlds.measured

    @property
    def broken(self) -> list[int]:
        """Indices of the worlds that raised an error, or whose partner failed. The caller empties this list."""
        return self._worlds.broken

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next resets on."""
        self._worlds.set_stage(stage)

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds. The partners' seeds are derived from the worlds' seeds."""
        self._worlds.reset(at, seeds)
        for kept in (self.returns, self._total, self._steps, self._segments):
            kept[at] = 0
        self._seeds[at] = seeds
        for p in range(len(self._partners)):
            self._begin(p, at, [seed_for(seed, PARTNER_SEED, self._partners[p].agents[0]) for seed in seeds])

    def _begin(self, partner: int, at: Sequence[int], seeds: Sequence[int]) -> None:
        self._asks(partner + 1)
        self._acting[partner].begin(at, seeds)
        self._asks(0)

    def turns(self) -> list[Turn]:
        """Return the turns of the learning agents, and ask the partners that act now."""
        self._turns = turns = self._worlds.turns()
        over, mine = self._worlds.over, list[Turn]()
        asked: dict[int, list[Turn]] = {}
        for turn in turns:
            partner = self._partner_of.get(turn.agent)
            if partner is None:
                mine.append(turn)
                continue
            live = turn if not over else _rows(turn, ~np.isin(turn.at, over))
            if len(live.at):
                self._earn(live.agent, live.at, live.reward)
                self._steps[live.at, live.agent] += 1
                asked.setdefault(partner, []).append(live)
        for partner, their_turns in asked.items():
            self._acting[partner].ask(their_turns)
        self._asked = asked
        return mine

    def _earn(self, agent: int, at: Indices, reward: npt.NDArray[np.float64]) -> None:
        self.returns[at, agent] += reward
        self._total[at, agent] += reward

    def act(self, actions: Sequence[Actions]) -> list[Ending]:
        """Step the worlds with the learners' actions and those of the partners."""
        given, answers, failed = iter(actions), dict[int, tuple[Turn, Actions]](), set[int]()
        for partner, turns in self._asked.items():
            self._asks(partner + 1)
            acting = self._acting[partner]
            answers |= {turn.agent: (turn, answer) for turn, answer in zip(turns, acting.answer(), strict=True)}
            failed |= acting.failed
            self._asks(0)
        played = [
            self._complete(turn, *answers.get(turn.agent, (None, None))) if turn.agent in self._partner_of else
            next(given)
            for turn in self._turns
        ]  # fmt: skip
        endings = self._worlds.act(played)
        if failed:
            endings = self._break_off(failed, endings)
        for ending in endings:
            if ending.agent in self._partner_of:
                self._finish(ending)
        return [ending for ending in endings if ending.agent not in self._partner_of]

    def _complete(self, turn: Turn, live: Turn | None, answer: Actions | None) -> Actions:
        """Return actions for all worlds of a turn: the partner's, and fillers in worlds whose episode is over."""
        if live is not None and answer is not None and len(live.at) == len(turn.at):
            return answer
        fixed = self._partners[self._partner_of[turn.agent]]
        nothing = filler(fixed.seats.action_spaces[fixed.agents.index(turn.agent)])
        chosen = stack_nests([nothing] * len(turn.at))
        if live is not None and answer is not None:
            assign(chosen, np.isin(turn.at, live.at), answer)
        return chosen

    def _break_off(self, failed: set[int], endings: Sequence[Ending]) -> list[Ending]:
        """Break off the episodes in which a partner failed. They have no end, and their worlds wait for a reset."""
        for world in sorted(failed):
            if world not in self.over:
                self.over.append(world)
            if world not in self.broken:
                self.broken.append(world)
        kept = [(ending, ~np.isin(ending.at, list(failed))) for ending in endings]
        return [
            ending._replace(
                at=ending.at[rows], terminated=ending.terminated[rows], truncated=ending.truncated[rows],
                reward=ending.reward[rows], observation=map_nest(lambda array: array[rows], ending.observation),  # noqa: B023
            )
            for ending, rows in kept
            if rows.any()
        ]  # fmt: skip

    def _finish(self, ending: Ending) -> None:
        """End the segments of a partner's agent. A segment in which it did not act does not count as an episode."""
        agent, at = ending.agent, ending.at
        self._earn(agent, at, ending.reward)
        partner, over = self._partner_of[agent], self._worlds.over
        for world, last in zip(at.tolist(), ending.reward.tolist(), strict=True):
            if self._steps[world, agent]:
                number, steps = self._number_of[agent], int(self._steps[world, agent])
                self.finished.append(
                    FinishedEpisode(number, float(self._total[world, agent]), steps, agent, world, last)
                )
            self._segments[world, agent] += 1
            if world not in over and len(self._partners[partner].agents) == 1:
                path = (agent, int(self._segments[world, agent]))
                self._begin(partner, [world], [seed_for(int(self._seeds[world]), PARTNER_SEED, *path)])
        self._total[at, agent] = 0.0
        self._steps[at, agent] = 0

    def close(self) -> None:
        """End the processes of isolated partners."""
        for partner in self._acting:
            partner.close()

    def get_state(self) -> Any:
        """Return the states of the worlds and of the partners."""
        rows = [row.copy() for row in (self.returns, self._total, self._steps, self._segments, self._seeds)]
        return self._worlds.get_state(), rows, [partner.get_state() for partner in self._acting]

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        inner, rows, partners = state
        self._worlds.set_state(inner)
        kept = (self.returns, self._total, self._steps, self._segments, self._seeds)
        for row, value in zip(kept, rows, strict=True):
            row[...] = value
        for partner, own in zip(self._acting, partners, strict=True):
            partner.set_state(own)


def _rows(turn: Turn, chosen: npt.NDArray[np.bool_]) -> Turn:
    """Return some rows of a turn."""
    mask = None if turn.mask is None else turn.mask[chosen]
    seen = map_nest(lambda array: np.ascontiguousarray(array[chosen]), turn.observation)
    return Turn(turn.agent, turn.at[chosen], seen, turn.reward[chosen], mask)

"""Partners: worlds in which given policies act for some agents. For the actor they are worlds without these agents.

:class:`PartneredWorlds` takes the actions of the learning agents and returns their turns and endings. It asks the
partners itself, so their steps are not recorded, and nothing is published for them. Actors and evaluations use the same
class. Partners are asked before the learners' policies act and awaited after that, so that isolated ones compute in the
meantime.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import continue_stream, stream_of
from motet.errors import PolicyFailure, SettingError
from motet.nest import map_nest
from motet.policies.entries import Entry, check_entries
from motet.policies.joint import filler, joint_question
from motet.policies.local import LocalPolicy
from motet.policies.partner import Partner
from motet.policies.players import Isolation, Player, Seats, check_mask, make_player, world_settings
from motet.policies.teams import describe_world
from motet.policy import BehaviourPolicy, EpisodeState, asker
from motet.runs.config import describe_world as describe_factory
from motet.runs.directory import PARTNERS
from motet.seeds import seed_for
from motet.streams import global_streams_kept
from motet.system.files import file_stems
from motet.system.fork_server import host_children
from motet.system.portable import Portable
from motet.system.raised import describe, pressed_by_user
from motet.training.actor import FinishedEpisode
from motet.world import World
from motet.world.batch import Ending, Indices, Turn, WorldBatch
from motet.world.spaces import InvalidValue, action_checker

__all__ = ["FixedPolicy", "PartneredWorlds", "close_partners", "fixed_policies", "host_partners", "partnered"]

_PARTNER = 31  # purpose of the seeds
Actions = npt.NDArray[Any]


@dataclass(frozen=True)
class FixedPolicy:
    """A policy that is given and does not learn: its partner, and the agents that act by it."""

    name: str
    """Name in tables."""
    agents: tuple[int, ...]
    """Indices of its agents in the roster. Several only if it decides for all of them at once."""
    seats: Seats
    entry: Portable
    """Its :class:`~motet.policies.entries.Entry`."""
    partner: Portable
    """The :class:`~motet.policies.partner.Partner`, in the form that ``config.json`` holds."""

    def player(self, alive: Callable[[], None] | None = None) -> Player:
        """Make a player, for one world."""
        entry: Entry = self.entry.value
        given: Partner = self.partner.value
        return make_player(entry, self.seats, Isolation(given.limits, given.sandbox, alive) if entry.isolate else None)

    def failure(self, error: PolicyFailure) -> PolicyFailure:
        """Return a failure with the names of the policy and its agents."""
        return PolicyFailure(error.cause, f"partner {self.name} of {', '.join(self.seats.agents)}: {error.detail}")


def fixed_policies(
    given: Mapping[str, Partner], world: World, factory: Callable[[], Any], masked: Collection[int]
) -> tuple[FixedPolicy, ...]:
    """Make the fixed policies of a run, and check them: those that are not isolated are made once, here.

    Args:
        given: the partners, by agent.
        world: a world of the run.
        factory: its factory.
        masked: indices of the agents with action masks.
    """
    described = describe_factory(factory)
    settings = world_settings(factory, described)
    description = describe_world(world, settings)
    stems = file_stems(given)
    groups: dict[str, list[str]] = {}
    entries: dict[str, Entry] = {}
    for name, partner in given.items():
        try:
            found = partner.entry(described)
            entry = entries[name] = found if found.shared else replace(found, spec=found.on(name), by_agent={})
            check_entries([entry])
        except SettingError as error:
            raise SettingError(f"agent {name}: {error}") from error
        groups.setdefault(entry.key if entry.shared else f"agent {name}", []).append(name)
    made = []
    for names in groups.values():
        entry, agents = entries[names[0]], {name: world.agents.index(name) for name in names}
        seats = Seats.of(world, agents, masked, entry.shared, settings, description)
        stored = given[names[0]].stored(entry, names[0], f"{PARTNERS}/{stems[names[0]]}")
        title, what = stored.name or entry.title, f"policy of {', '.join(names)}"
        sent = Portable(entry, what, "policy"), Portable(stored, what, "policy")
        made.append(FixedPolicy(title, tuple(agents.values()), seats, *sent))
    for fixed in made:
        _check(fixed)
    return tuple(made)


def _check(fixed: FixedPolicy) -> None:
    """Make the policy once, unless it is isolated, so that its errors are raised before the run starts."""
    if fixed.entry.value.isolate:
        return
    player = fixed.player()
    assert isinstance(player, LocalPolicy)
    try:
        with global_streams_kept():
            player.policy  # noqa: B018 (it is made here)
    except PolicyFailure as failure:
        named = fixed.failure(failure)
        if isinstance(failure.__cause__, SettingError):
            raise SettingError(f"agent {', '.join(fixed.seats.agents)}: {failure.__cause__}") from failure
        raise named from failure


class ActingPartner(Protocol):
    """A partner in all worlds of an actor."""

    can_save: bool
    failed: set[int]
    """Worlds in which it failed since the last question. Their episodes break off."""

    def begin(self, worlds: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        ...

    def ask(self, turns: Sequence[Turn]) -> None:
        """Ask for the actions of these turns, one for each of its agents that acts now."""
        ...

    def answer(self) -> list[Actions]:
        """Return the actions of these turns."""
        ...

    def close(self) -> None:
        """End the processes of isolated copies."""
        ...

    def get_state(self) -> Any:
        """Return its state, as plain values and arrays."""
        ...

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        ...


class WholeBatch:
    """A partner that decides for all worlds in one call: a run, or a policy with ``act_many``."""

    def __init__(self, fixed: FixedPolicy, policy: Any, worlds: int) -> None:
        self._fixed, self.can_save, self.failed = fixed, True, set[int]()
        self._turn: Turn | None = None
        self._behaviour = policy.behaviour if isinstance(policy, BehaviourPolicy) else None
        if self._behaviour is not None:
            self._behaviour.begin(seed_for(0, _PARTNER, fixed.agents[0]))
            self._carried = EpisodeState(worlds, policy.n_frames)
        else:
            self._ask, self._check = asker(policy.act_many, "masks"), action_checker(fixed.seats.action_spaces[0])

    def begin(self, worlds: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        if self._behaviour is not None:
            self._carried.begin(np.array(worlds))

    def ask(self, turns: Sequence[Turn]) -> None:
        """Keep the turn: it is played when the answer is awaited."""
        (self._turn,) = turns

    def answer(self) -> list[Actions]:
        """Return the actions of the turn."""
        turn = self._turn
        assert turn is not None, "answer() needs ask() first"
        try:
            if self._behaviour is not None:
                return [self._carried.ask(self._behaviour, turn.at, turn.observation, turn.mask, explore=False)[0]]
            return [self._checked(self._ask(turn.observation, turn.mask), turn)]
        except PolicyFailure as failure:
            raise self._fixed.failure(failure) from failure
        except BaseException as error:
            if pressed_by_user(error):
                raise
            raise self._fixed.failure(PolicyFailure("exception", describe(error, but=__file__))) from error

    def _checked(self, answers: Any, turn: Turn) -> Actions:
        if len(answers) != len(turn.at):
            raise PolicyFailure("answer", f"act_many gave {len(answers)} actions for {len(turn.at)} observations")
        space = self._fixed.seats.action_spaces[0]
        try:
            actions = [self._check(answer) for answer in answers]
        except InvalidValue as error:
            raise PolicyFailure("answer", str(error)) from None
        if turn.mask is not None:
            for action, mask in zip(actions, turn.mask, strict=True):
                check_mask(action, mask, space)
        return _stacked(actions)

    def close(self) -> None:
        """Do nothing: it has no processes."""

    def get_state(self) -> Any:
        """Return the frames and the random stream of a run."""
        return None if self._behaviour is None else (self._carried.get_state(), stream_of(self._behaviour))

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        if self._behaviour is not None:
            carried, stream = state
            self._carried.set_state(carried)
            continue_stream(self._behaviour, stream)


class WorldByWorld:
    """A partner with one copy in each world. An isolated one that fails breaks off its episode and is replaced."""

    def __init__(
        self,
        fixed: FixedPolicy,
        players: Sequence[Player],
        on_failure: Callable[[FixedPolicy, int, str], None],
    ) -> None:
        entry: Entry = fixed.entry.value
        self._fixed, self._players, self._on_failure = fixed, list(players), on_failure
        self._isolated, self._seats = bool(entry.isolate), fixed.seats
        self._names, self._space = tuple(fixed.seats.agents), fixed.seats.spaces()[0]
        self._turns: Sequence[Turn] = ()
        self._asked: dict[int, list[tuple[int, int]]] = {}  # by world: index of the turn, and row in it
        self._failures = 0
        self.failed: set[int] = set()
        policies = [player.policy for player in players if isinstance(player, LocalPolicy)]
        self.can_save = bool(policies) and all(
            hasattr(policy, "get_state") and hasattr(policy, "set_state") for policy in policies
        )

    def begin(self, worlds: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds. All copies are asked to reset before one is awaited."""
        for world, seed in zip(worlds, seeds, strict=True):
            self._players[world].ask_reset(seed)
        for world, seed in zip(worlds, seeds, strict=True):
            while True:
                try:
                    self._players[world].answer()
                    break
                except PolicyFailure as failure:
                    self._replace(world, failure)
                    self._players[world].ask_reset(seed)

    def ask(self, turns: Sequence[Turn]) -> None:
        """Ask for the actions of these turns."""
        self._turns, self._asked = turns, {}
        self.failed.clear()
        for i, turn in enumerate(turns):
            for row, world in enumerate(turn.at.tolist()):
                self._asked.setdefault(world, []).append((i, row))
        for world, asked in self._asked.items():
            seen = [map_nest(lambda array: array[row].copy(), turns[i].observation) for i, row in asked]  # noqa: B023
            masks = [None if (mask := turns[i].mask) is None else mask[row].copy() for i, row in asked]
            if not self._seats.joint:
                self._players[world].ask(seen[0], masks[0])
                continue
            names = [self._name(turns[i].agent) for i, _ in asked]
            known = {name: mask for name, mask in zip(names, masks, strict=True) if mask is not None}
            question = joint_question(self._names, self._space, dict(zip(names, seen, strict=True)), known)
            self._players[world].ask(question)

    def _name(self, agent: int) -> str:
        return self._names[self._fixed.agents.index(agent)]

    def answer(self) -> list[Actions]:
        """Return the actions of these turns."""
        actions: list[list[Any]] = [[None] * len(turn.at) for turn in self._turns]
        for world, asked in self._asked.items():
            try:
                answer = self._players[world].answer()
                for i, row in asked:
                    actions[i][row] = self._checked(answer, i, row)
            except PolicyFailure as failure:
                self._replace(world, failure)
                self.failed.add(world)
                for i, row in asked:
                    actions[i][row] = self._stand_in(i, row)
        return [_stacked(chosen) for chosen in actions]

    def _checked(self, answer: Any, i: int, row: int) -> Any:
        turn = self._turns[i]
        action = answer[self._name(turn.agent)] if self._seats.joint else answer
        check_mask(action, None if turn.mask is None else turn.mask[row], self._action_space(turn))
        return action

    def _action_space(self, turn: Turn) -> Any:
        return self._seats.action_spaces[self._fixed.agents.index(turn.agent)]

    def _stand_in(self, i: int, row: int) -> Any:
        """Return an allowed action for the last step of an episode that breaks off."""
        turn, space = self._turns[i], self._action_space(self._turns[i])
        if turn.mask is None:
            return filler(space)
        return int(getattr(space, "start", 0)) + int(np.argmax(turn.mask[row]))

    def _replace(self, world: int, failure: PolicyFailure) -> None:
        """Replace a copy that failed; raise the failure if it is not isolated, or has failed too often."""
        named, most = self._fixed.failure(failure), self._fixed.partner.value.max_failures
        if not self._isolated:
            raise named from failure
        self._failures += 1
        if self._failures > most:
            detail = f"{named.detail}\nit failed {self._failures} times, and max_failures is {most}"
            raise PolicyFailure(named.cause, detail) from failure
        self._on_failure(self._fixed, self._failures, str(named))
        self._players[world].replace()

    def close(self) -> None:
        """End the processes of isolated copies."""
        for player in self._players:
            player.close()

    def get_state(self) -> Any:
        """Return the states of the policies."""
        return [player.policy.get_state() for player in self._players if isinstance(player, LocalPolicy)]  # type: ignore[attr-defined]

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        for player, kept in zip(self._players, state, strict=True):
            assert isinstance(player, LocalPolicy)
            player.policy.set_state(kept)  # type: ignore[attr-defined]


def _stacked(actions: Sequence[Any]) -> Actions:
    """Return actions as one array. Actions that are dicts or tuples become an array of objects."""
    if isinstance(actions[0], Mapping | tuple):
        nested = np.empty(len(actions), object)
        nested[:] = actions
        return nested
    return np.stack(actions)


def _acting(
    fixed: FixedPolicy,
    worlds: int,
    alive: Callable[[], None] | None,
    on_failure: Callable[[FixedPolicy, int, str], None],
) -> ActingPartner:
    """Make a partner for some worlds: one policy for all of them if it can act on a batch, else one for each."""
    try:
        first = fixed.player(alive)
        if isinstance(first, LocalPolicy) and not fixed.seats.joint:
            policy = first.policy
            if isinstance(policy, BehaviourPolicy) or callable(getattr(policy, "act_many", None)):
                return WholeBatch(fixed, policy, worlds)
        rest = [fixed.player(alive) for _ in range(worlds - 1)]
        return WorldByWorld(fixed, [first, *rest], on_failure)
    except PolicyFailure as failure:
        raise fixed.failure(failure) from failure


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
    acting = [_acting(fixed, worlds.size, alive, on_failure) for fixed in partners]
    return PartneredWorlds(worlds, partners, acting, agents, policies, asks)


def host_partners(partners: Sequence[FixedPolicy], hide: Callable[[], None]) -> None:
    """Let this child process start the processes of isolated partners. Call it first in the child.

    They are forked from a copy of this process, which is fast. ``hide`` leaves the shared memory of the run out of it.
    With a sandbox they are forked from a fresh process instead, which also has no copy of the roster.
    """
    isolated = [fixed for fixed in partners if fixed.entry.value.isolate]
    if not isolated:
        return
    if any(fixed.partner.value.sandbox != "no" for fixed in isolated):
        multiprocessing.current_process().daemon = False
    else:
        hide()
        host_children()


def close_partners(worlds: WorldBatch) -> None:
    """End the processes of the isolated partners of some worlds, if there are any."""
    if isinstance(worlds, PartneredWorlds):
        worlds.close()


class PartneredWorlds:
    """A batch of worlds without the agents of partners, which act inside it.

    Args:
        worlds: worlds of all agents.
        partners: the partners.
        acting: the same partners in these worlds.
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
        self.size, self.lanes = worlds.size, worlds.lanes
        self.can_save = worlds.can_save and all(partner.can_save for partner in acting)
        self.returns = np.zeros((self.size, agents))
        """``[worlds, agents]``: return of each partner's agent in the present episode."""
        self._total = np.zeros((self.size, agents))  # of the present segment
        self._steps = np.zeros((self.size, agents), np.int64)
        self._segments = np.zeros((self.size, agents), np.int64)  # segments that ended in the present episode
        self._seeds = np.zeros(self.size, np.int64)  # of the present episodes
        self._turns: Sequence[Turn] = ()
        self._asked: dict[int, list[Turn]] = {}
        self.finished = deque[FinishedEpisode]()
        """Finished segments of the partners' agents; the caller removes them."""

    @property
    def over(self) -> list[int]:
        """Indices of the worlds that wait for a reset."""
        return self._worlds.over

    @property
    def broken(self) -> list[int]:
        """Indices of the worlds that raised an error, or whose partner failed. The caller empties this list."""
        return self._worlds.broken

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds. The partners' seeds are derived from the worlds' seeds."""
        self._worlds.reset(at, seeds)
        for kept in (self.returns, self._total, self._steps, self._segments):
            kept[at] = 0
        self._seeds[at] = seeds
        for p in range(len(self._partners)):
            self._begin(p, at, [seed_for(seed, _PARTNER, self._partners[p].agents[0]) for seed in seeds])

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
        """Return actions for all worlds of a turn: fillers where the episode is over, the partner's elsewhere."""
        if live is not None and answer is not None and len(live.at) == len(turn.at):
            return answer
        fixed = self._partners[self._partner_of[turn.agent]]
        nothing = filler(fixed.seats.action_spaces[fixed.agents.index(turn.agent)])
        chosen = _stacked([nothing] * len(turn.at))
        if live is not None and answer is not None:
            chosen[np.isin(turn.at, live.at)] = answer
        return chosen

    def _break_off(self, failed: set[int], endings: Sequence[Ending]) -> list[Ending]:
        """Break off the episodes in which a partner failed: they have no end, and their worlds wait for a reset."""
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
        for world in at.tolist():
            if self._steps[world, agent]:
                number, steps = self._number_of[agent], int(self._steps[world, agent])
                self.finished.append(FinishedEpisode(number, float(self._total[world, agent]), steps))
            self._segments[world, agent] += 1
            if world not in over and len(self._partners[partner].agents) == 1:
                path = (agent, int(self._segments[world, agent]))
                self._begin(partner, [world], [seed_for(int(self._seeds[world]), _PARTNER, *path)])
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

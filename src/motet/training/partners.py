"""Partners of a run: given policies that act for some agents, in all worlds of an actor, and never learn.

:func:`fixed_policies` makes them from the user's arguments. In an actor each becomes an :class:`ActingPartner`: one
policy for all worlds if it can act on a batch, otherwise one copy for each world.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from motet.algorithm import continue_global_streams, continue_stream, global_streams_of, state_size_of, stream_of
from motet.errors import PolicyFailure, SettingError
from motet.isolation.players import Isolation, Player, Seats, check_mask, make_player, world_settings
from motet.masks import mask_form
from motet.nest import Nest, map_nest, stack_nests, unstack_nest
from motet.policies.entries import Entry, check_entries
from motet.policies.joint import filler, joint_question
from motet.policies.local import LocalPolicy
from motet.policies.partner import Partner
from motet.policies.teams import OwnPolicy, describe_world
from motet.policy import BehaviourPolicy, EpisodeState, asker
from motet.runs.config import describe_world as describe_factory
from motet.runs.directory import PARTNERS
from motet.seeds import seed_for
from motet.streams import global_streams_kept
from motet.system.files import file_stems
from motet.system.fork_server import host_children
from motet.system.portable import Portable
from motet.system.raised import describe, pressed_by_user
from motet.world import World
from motet.world.batch import Turn
from motet.world.spaces import InvalidValue, action_checker

__all__ = [
    "ActingPartner",
    "FixedPolicy",
    "acting_partner",
    "fixed_policies",
    "host_partners",
]

PARTNER_SEED = 31
"""Purpose of the seeds of partners."""
Actions = Nest


@dataclass(frozen=True)
class FixedPolicy:
    """A given policy that does not learn: its partner, and the agents that act by it."""

    name: str
    """Name in tables."""
    agents: tuple[int, ...]
    """Indices of its agents in the roster; several only if the policy decides for all of them at once."""
    seats: Seats
    entry: Portable
    """The :class:`~motet.policies.entries.Entry` of the policy."""
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
    """Make the fixed policies of a run. Policies that are not isolated are created once here, as a check.

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
    """Worlds in which the partner failed since the last question. Their episodes break off."""

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
        self._streams = policy.streams if isinstance(policy, OwnPolicy) else None
        seed = seed_for(0, PARTNER_SEED, fixed.agents[0])
        if self._behaviour is not None:
            self._behaviour.begin(seed)
            self._carried = EpisodeState(worlds, policy.n_frames, state_size_of(self._behaviour))
            return
        space = fixed.seats.action_spaces[0]
        self._ask, self._check = asker(policy.act_many, "masks"), action_checker(space)
        self._mask_form = mask_form(space)
        try:
            policy.reset(seed)  # reset once, because it acts in all worlds together
        except BaseException as error:
            if pressed_by_user(error):
                raise
            raise PolicyFailure("reset", describe(error, but=__file__)) from error

    def begin(self, worlds: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds."""
        if self._behaviour is not None:
            self._carried.begin(np.array(worlds))

    def ask(self, turns: Sequence[Turn]) -> None:
        """Keep the turn. The policy is called when the answer is awaited."""
        (self._turn,) = turns

    def answer(self) -> list[Actions]:
        """Return the actions of the turn."""
        turn = self._turn
        assert turn is not None, "answer() needs ask() first"
        try:
            if self._behaviour is not None:
                return [self._carried.ask(self._behaviour, turn.at, turn.observation, turn.mask, explore=False)[0]]
            masks = None if turn.mask is None else self._mask_form.nest(turn.mask.copy())
            return [self._checked(self._ask(turn.observation, masks), turn)]
        except PolicyFailure as failure:
            raise self._fixed.failure(failure) from failure
        except BaseException as error:
            if pressed_by_user(error):
                raise
            raise self._fixed.failure(PolicyFailure("exception", describe(error, but=__file__))) from error

    def _checked(self, answers: Any, turn: Turn) -> Actions:
        space = self._fixed.seats.action_spaces[0]
        if isinstance(answers, dict | tuple) and hasattr(space, "spaces"):
            answers = unstack_nest(answers)
        if len(answers) != len(turn.at):
            raise PolicyFailure("answer", f"act_many gave {len(answers)} actions for {len(turn.at)} observations")
        try:
            actions = [self._check(answer) for answer in answers]
        except InvalidValue as error:
            raise PolicyFailure("answer", str(error)) from None
        if turn.mask is not None:
            for action, mask in zip(actions, turn.mask, strict=True):
                check_mask(action, self._mask_form.nest(mask), space)
        return stack_nests(actions)

    def close(self) -> None:
        """Do nothing: this partner has no processes."""

    def get_state(self) -> Any:
        """Return the frames and the memory of a run, and its random streams or those of the policy."""
        if self._behaviour is None:
            return None if self._streams is None else self._streams.get_state()
        return self._carried.get_state(), stream_of(self._behaviour), global_streams_of(self._behaviour)

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        if self._behaviour is not None:
            carried, stream, *drawn = state  # older checkpoints do not contain the global streams
            self._carried.set_state(carried)
            continue_stream(self._behaviour, stream)
            continue_global_streams(self._behaviour, drawn[0] if drawn else None)
        elif self._streams is not None and state is not None:
            self._streams.set_state(state)


class WorldByWorld:
    """A partner with one copy in each world. If an isolated copy fails, its episode breaks off and the copy is
    replaced."""

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
        """Begin an episode in each of these worlds. All copies are asked to reset before any of them is awaited."""
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
            if not self._seats.joint:
                self._players[world].ask(seen[0], self._mask(*asked[0]))
                continue
            names = [self._name(turns[i].agent) for i, _ in asked]
            masks = [None if (mask := turns[i].mask) is None else mask[row] for i, row in asked]
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
        return [stack_nests(chosen) for chosen in actions]

    def _mask(self, i: int, row: int) -> Nest:
        """Return the mask of a row of a turn, in the form of the action space."""
        turn = self._turns[i]
        return None if turn.mask is None else mask_form(self._action_space(turn)).nest(turn.mask[row].copy())

    def _checked(self, answer: Any, i: int, row: int) -> Any:
        turn = self._turns[i]
        action = answer[self._name(turn.agent)] if self._seats.joint else answer
        check_mask(action, self._mask(i, row), self._action_space(turn))
        return action

    def _action_space(self, turn: Turn) -> Any:
        return self._seats.action_spaces[self._fixed.agents.index(turn.agent)]

    def _stand_in(self, i: int, row: int) -> Any:
        """Return an allowed action for the last step of an episode that breaks off."""
        space = self._action_space(self._turns[i])
        return mask_form(space).nearest(self._mask(i, row), filler(space))

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


def acting_partner(
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


def host_partners(partners: Sequence[FixedPolicy], hide: Callable[[], None]) -> None:
    """Let this child process start the processes of isolated partners. Call this first in the child.

    The processes are forked from a copy of this process, which is fast. ``hide`` leaves the run's shared memory out of
    the copy. With a sandbox they are forked from a new process instead, which also has no copy of the roster.
    """
    isolated = [fixed for fixed in partners if fixed.entry.value.isolate]
    if not isolated:
        return
    if any(fixed.partner.value.sandbox != "no" for fixed in isolated):
        multiprocessing.current_process().daemon = False
    else:
        hide()
        host_children()

"""Versus: two-player worlds in which the league plays one side. For the actor they are worlds with one agent.

A Versus takes the actions of the player and returns the player's observations and rewards, on the side that the player
has. It reports the results of games to the league. The actor does not process the opponents' turns, so their steps are
not recorded. The player changes sides after every episode, and the opponent changes after a block of episodes. Rows of
games against anchors go to separate lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import (
    Behaviour,
    Space,
    continue_global_streams,
    continue_stream,
    global_streams_of,
    state_size_of,
    stream_of,
)
from motet.errors import SettingError
from motet.masks import mask_form
from motet.nest import Nest, assign, map_nest, stack_nests
from motet.policy import BehaviourPolicy, EpisodeState, Policy, asker
from motet.streams import MADE, Streams, StreamUser, made_alike
from motet.system.portable import Portable
from motet.training.anchors import RunAnchor, is_run, run_anchor
from motet.training.league import NEWEST, League, anchor
from motet.world.batch import Ending, Indices, Turn, WorldBatch, join_turns
from motet.world.winning import WinRule, decide

__all__ = [
    "Chooser",
    "EarlierRun",
    "Frozen",
    "LearnedOpponent",
    "Listener",
    "Newest",
    "Opponent",
    "Scripted",
    "SelfPlay",
    "Versus",
    "anchor_of",
]

Masks = npt.NDArray[np.bool_] | None
_ALL = -1


@dataclass(frozen=True)
class SelfPlay:
    """The resolved settings of self-play in a run: the league and its anchors."""

    league: League
    anchors: tuple[str, ...]
    """Names of the anchors: scripted players of the world, ``module:attribute`` of policy factories, or runs."""
    makers: tuple[Portable, ...]
    """The factory of each anchor."""
    by_total: bool
    """Whether the total reward of a game decides who wins; otherwise only the reward at its end does."""
    margin: float
    """Difference in reward above which a game is won; otherwise it is a draw."""

    def opponent(self, number: int) -> str:
        """Return the name of an opponent, given its number in the league."""
        if number < NEWEST:
            return self.anchors[-1 - number]
        return "newest" if number == NEWEST else f"snapshot {number}"

    @classmethod
    def of(
        cls, world: Any, league: League, find: Callable[[str], Any], spaces: tuple[Any, Any] = (None, None)
    ) -> SelfPlay:
        """Resolve the league's settings for a world.

        ``find`` imports an anchor given as ``module:attribute``. ``spaces``: the spaces that the policy of an earlier
        run must fit.
        """
        scripted: Mapping[str, Any] = getattr(world, "scripted", {})
        names = tuple(scripted) if league.anchors is None else league.anchors
        for name in names:
            if name not in scripted and ":" not in name and not is_run(name):
                known = f"one of {', '.join(scripted)}, " if scripted else ""
                raise SettingError(
                    f"anchors must be {known}a run directory, or 'module:attribute' of a policy factory, got {name!r}"
                )
        runs = {name: run_anchor(name, *spaces) for name in names if name not in scripted and is_run(name)}
        known_makers = {**scripted, **runs}
        makers = tuple(
            Portable(known_makers[name] if name in known_makers else find(name), f"anchor {name}", "anchor")
            for name in names
        )
        titles = tuple(runs[name].title if name in runs else name for name in names)
        names = titles if len(set(titles)) == len(titles) else names
        rule = WinRule.resolved(world, league.won_by, league.margin)
        return cls(league, names, makers, rule.won_by == "total", rule.margin)

    def partitions(self, once: bool) -> dict[str, float]:
        """The partitions of the player's replay with their shares of a batch; one partition if rows are read once."""
        if once or not self.anchors:
            return {"": 1.0}
        return {"anchor": self.league.anchor_batch_share, "pool": 1.0 - self.league.anchor_batch_share}


class Opponent(Protocol):
    """Plays the other side in some of the worlds."""

    def begin(self, world: int, seed: int) -> None:
        """Start a game in a world."""
        ...

    def act(self, at: Indices, observations: Nest, masks: Masks) -> Nest:
        """Return the actions in the worlds ``at``, ``[len(at), ...]``. ``masks`` are flat."""
        ...


class Chooser(Protocol):
    """Chooses opponents, as a league's draw does."""

    def opponent(self, chance: float, /) -> int:
        """Return the number of an opponent. ``chance``: a number drawn uniformly from 0 to 1."""
        ...

    def weights(self, number: int, /) -> npt.NDArray[np.float32]:
        """Return the weights of a snapshot that was drawn."""
        ...


class Listener(Protocol):
    """Receives the results of games, as a league's results do."""

    def tell(self, opponent: int, advantage: float, margin: float, /) -> None:
        """Add a result. ``advantage``: the player's reward minus the opponent's; within ``margin`` it is a draw."""
        ...


class Scripted:
    """An anchor: one policy for each world, or a single policy for all worlds if it has ``act_many``.

    Args:
        make: makes the policy.
        action_space: needed for masks of other than Discrete spaces.
    """

    def __init__(self, make: Callable[[], Policy], action_space: Space | None = None) -> None:
        self._mask_form = None if action_space is None else mask_form(action_space)
        self._make: Callable[[], Any] = partial(made_alike, "an anchor", make)
        self._policies = dict[int, Any]()
        self._ask: dict[int, Callable[[Any, Any], Any]] = {}
        first: Any = self._make()
        user = StreamUser(f"the anchor {type(first).__name__}")
        self._streams = defaultdict[int, Streams](lambda: Streams(user))  # by world; _ALL for act_many
        self._all: Callable[[Any], Any] | None = getattr(first, "act_many", None)
        if self._all is not None:
            with self._streams[_ALL].begun(MADE):
                first.reset(MADE)  # reset once, because it plays all worlds together

    @property
    def remembers(self) -> bool:
        """Whether the anchor may have a state, which a checkpoint cannot contain."""
        return self._all is None

    def begin(self, world: int, seed: int) -> None:
        """Start a game in a world."""
        if self._all is None:
            if world not in self._policies:
                self._policies[world] = self._make()
                self._ask[world] = asker(self._policies[world].act)
            self._streams[world].begin(seed)
            self._policies[world].reset(seed)

    def act(self, at: Indices, observations: Nest, masks: Masks) -> Nest:
        """Return the actions in the worlds ``at``."""
        if self._all is not None:
            self._streams[_ALL].enter()
            answer = self._all(observations)
            return answer if isinstance(answer, dict | tuple) else np.asarray(answer)
        actions = []
        for i, world in enumerate(at.tolist()):
            seen = map_nest(lambda array: array[i], observations)  # noqa: B023 (called at once)
            self._streams[world].enter()
            mask = masks if masks is None else masks[i]
            if mask is not None and self._mask_form is not None:
                mask = self._mask_form.nest(mask)
            actions.append(self._ask[world](seen, mask))
        return stack_nests(actions)

    def global_streams(self) -> Any:
        """Return the state of its global random streams, if it acts in all worlds at once; else None."""
        return None if self._all is None else self._streams[_ALL].get_state()

    def continue_global_streams(self, state: Any) -> None:
        """Continue from what :meth:`global_streams` returned."""
        if self._all is not None and state is not None:
            self._streams[_ALL].set_state(state)


class LearnedOpponent:
    """An opponent with learned weights. It acts without exploration, and may draw from a random stream."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self._carried: EpisodeState | None = None

    def join(self, worlds: int) -> None:
        """Prepare to play in any of these worlds."""
        if state_size := state_size_of(self.behaviour):
            self._carried = EpisodeState(worlds, state_size=state_size)

    def begin(self, world: int, seed: int) -> None:
        """Start a game in a world."""
        self.forget(world)

    def forget(self, world: int) -> None:
        """Clear the memory of a world, because an episode begins in it."""
        if self._carried is not None:
            self._carried.begin(world)

    def act(self, at: Indices, observations: Nest, masks: Masks) -> Nest:
        """Return the actions in the worlds ``at``."""
        if self._carried is None:
            return self.behaviour.act(observations, masks, explore=False)[0]
        return self._carried.ask(self.behaviour, at, observations, masks, explore=False)[0]

    def memory(self) -> Any:
        """Return the memory in all worlds; None without one."""
        return None if self._carried is None else self._carried.get_state()

    def remember(self, memory: Any) -> None:
        """Continue from what :meth:`memory` returned."""
        if self._carried is not None and memory is not None:
            self._carried.set_state(memory)


class EarlierRun(LearnedOpponent):
    """An anchor that plays the policy of an earlier run, in all worlds at once."""

    remembers = False


def anchor_of(make: Callable[[], Policy], action_space: Space | None = None) -> Scripted | EarlierRun:
    """Make an anchor. The policy of a run that stacks frames is made once for each world, as a scripted player is."""
    if isinstance(make, RunAnchor):
        policy = make()
        if isinstance(policy, BehaviourPolicy) and policy.n_frames == 1:
            return EarlierRun(policy.behaviour)
    return Scripted(make, action_space)


class Frozen(LearnedOpponent):
    """An opponent that plays a snapshot of the player."""

    def __init__(self, behaviour: Behaviour, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        super().__init__(behaviour)
        self.weights = weights
        behaviour.load(weights, header)


class Newest(LearnedOpponent):
    """An opponent that plays the player as it is now. It loads the newest version when a game begins."""

    def __init__(self, behaviour: Behaviour, subscriber: Any, header: Sequence[str]) -> None:
        super().__init__(behaviour)
        self._subscriber, self._header = subscriber, header
        self._kept: Any = None  # the version from a checkpoint, until a newer one is loaded

    def begin(self, world: int, seed: int) -> None:
        """Start a game in a world."""
        super().begin(world, seed)
        reader = self._subscriber
        if reader.refresh() if reader.version else reader.take(timeout_s=60.0):
            self.behaviour.load(reader.weights, {name: reader[name] for name in self._header})
            self._kept = None

    def get_state(self) -> Any:
        """Return the version that plays now."""
        reader = self._subscriber
        if not reader.version:
            return self._kept
        return reader.weights.copy(), {name: np.array(reader[name]) for name in self._header}

    def set_state(self, state: Any) -> None:
        """Continue with that version until the next game."""
        if state is not None:
            self._kept = weights, header = state
            self.behaviour.load(weights, {name: value[()] for name, value in header.items()})


class Versus:
    """A batch of two-player worlds in the form of a batch of one-player worlds.

    Args:
        worlds: the two-player worlds.
        draw: chooses the opponents.
        results: receives the results of games.
        anchors: the anchors, in the order of the league.
        newest: the player as it is now.
        freeze: makes an opponent from the weights of a snapshot.
        seed_of: ``seed_of(*path)``, a seed for each draw and each opponent.
        block: episodes against one opponent.
        by_total: whether the total reward of a game decides who wins; otherwise only the reward at its end does.
        margin: difference in reward above which a game is won.
        apart: whether games against anchors have separate lanes. If so, each world has two lanes, and the first one is
            for these games.
    """

    def __init__(
        self,
        worlds: WorldBatch,
        draw: Chooser,
        results: Listener,
        anchors: Sequence[Scripted | EarlierRun],
        newest: Newest,
        freeze: Callable[[npt.NDArray[np.float32]], Frozen],
        seed_of: Callable[..., int],
        block: int,
        by_total: bool,
        margin: float,
        apart: bool,
    ) -> None:
        self._worlds, self._draw, self._results, self._freeze, self._seed_of = worlds, draw, results, freeze, seed_of
        self._block, self._by_total, self._margin, self._apart = block, by_total, margin, apart
        self._known: dict[int, Opponent] = {anchor(i): opponent for i, opponent in enumerate(anchors)}
        self._known[NEWEST] = self._newest = newest
        self.size = worlds.size
        self.lanes = np.arange(self.size)
        self.user = worlds.user
        self.can_save = worlds.can_save and not any(opponent.remembers for opponent in anchors)
        self._begun = np.zeros(self.size, np.int64)  # episodes begun, by world
        self._side = np.zeros(self.size, np.int64)  # the side of the player, by world
        self._met = np.zeros(self.size, np.int64)  # the number of the opponent, by world
        self._segments = 0  # number of segments that opponents have begun within a game
        self._ahead = np.zeros(self.size)  # the part of the player's reward minus the opponent's that decides the game
        for number in self._known:
            self._begin_anew(number)
        # the turns of all agents, and where each of them is the player's
        self._turns: list[tuple[Turn, npt.NDArray[np.bool_]]] = []

    @property
    def over(self) -> list[int]:
        """Indices of the worlds whose episode is over and which must be reset."""
        return self._worlds.over

    @property
    def measured(self) -> dict[int, Mapping[str, float]]:
        """What worlds measured in the episodes that have ended. The caller removes it."""
        return self._worlds.measured

    @property
    def broken(self) -> list[int]:
        """Indices of the worlds that raised an error and were replaced."""
        return self._worlds.broken

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next resets on."""
        self._worlds.set_stage(stage)

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds. The player changes sides; after a block there is a new opponent."""
        for world, seed in zip(at, seeds, strict=True):
            block, episode = divmod(int(self._begun[world]), self._block)
            if episode == 0:
                self._meet(world, block)
            self._known[int(self._met[world])].begin(world, seed)
        self._side[at] = self._begun[at] % 2
        self._begun[at] += 1
        self._ahead[at] = 0.0
        self._worlds.reset(at, seeds)

    def _meet(self, world: int, block: int) -> None:
        number = self._draw.opponent(self._seed_of(0, world, block) / 2**32)
        if number not in self._known:
            self._known[number] = self._freeze(self._draw.weights(number))
            self._begin_anew(number)
        self._met[world] = number
        self.lanes[world] = world + (self.size if self._apart and number >= NEWEST else 0)
        for gone in [n for n in self._known if n > NEWEST and n not in self._met]:
            del self._known[gone]

    def _begin_anew(self, number: int) -> None:
        """Start the random stream of an opponent, with a seed that depends on the number of games so far."""
        opponent = self._known[number]
        if isinstance(opponent, LearnedOpponent):
            opponent.join(self.size)
            purpose = 1 if number >= NEWEST else 3  # parts of a seed must not be negative, but numbers of anchors are
            opponent.behaviour.begin(self._seed_of(purpose, int(self._begun.sum()), abs(number)))

    def turns(self) -> list[Turn]:
        """Return the player's turn, which covers the worlds in which it acts now."""
        self._turns = []
        mine = []
        for turn in self._worlds.turns():
            player = self._side[turn.at] == turn.agent
            if self._by_total:
                self._ahead[turn.at] += np.where(player, turn.reward, -turn.reward)
            self._turns.append((turn, player))
            if player.any():
                mine.append(_rows(turn, player))
        return [join_turns(mine)[0]] if mine else []

    def act(self, actions: Sequence[Nest]) -> list[Ending]:
        """Step the worlds with the player's actions and those of the opponents."""
        place = np.zeros(self.size, np.int64)
        theirs: Nest = None
        if actions:
            (theirs,) = actions
            at = np.sort(np.concatenate([turn.at[player] for turn, player in self._turns]))
            place[at] = np.arange(len(at))
        played = [self._both(turn, player, theirs, place) for turn, player in self._turns]
        return self._ends(self._worlds.act(played))

    def _both(self, turn: Turn, player: npt.NDArray[np.bool_], theirs: Nest, place: Indices) -> Nest:
        """Return the actions of one side: the player's where it has this side, the opponents' in the other worlds."""
        parts: list[tuple[Indices, Nest]] = []
        if theirs is not None and player.any():
            rows = np.flatnonzero(player)
            parts.append((rows, map_nest(lambda array: array[place[turn.at[rows]]], theirs)))
        met = self._met[turn.at]
        for number in np.unique(met[~player]).tolist():
            rows = np.flatnonzero((met == number) & ~player)
            seen = map_nest(lambda array: np.ascontiguousarray(array[rows]), turn.observation)  # noqa: B023
            masks = None if turn.mask is None else turn.mask[rows]
            parts.append((rows, self._known[number].act(turn.at[rows], seen, masks)))
        first = theirs if theirs is not None else parts[0][1]
        chosen = map_nest(lambda array: np.empty((len(turn.at), *array.shape[1:]), array.dtype), first)
        for rows, actions in parts:
            assign(chosen, rows, actions)
        return chosen

    def _ends(self, endings: Sequence[Ending]) -> list[Ending]:
        mine = []
        ended: set[int] = set()
        for ending in endings:
            player = self._side[ending.at] == ending.agent
            self._ahead[ending.at] += np.where(player, ending.reward, -ending.reward)
            ended.update(ending.at.tolist())
            if player.any():
                mine.append(ending._replace(
                    at=ending.at[player], terminated=ending.terminated[player], truncated=ending.truncated[player],
                    reward=ending.reward[player], observation=map_nest(lambda a: a[player], ending.observation),  # noqa: B023
                ))  # fmt: skip
            self._begin_segments(ending.at[~player])
        for world in sorted(ended.intersection(self._worlds.over)):
            self._results.tell(int(self._met[world]), float(self._ahead[world]), self._margin)
        return [ending._replace(agent=0) for ending in mine]

    def outcome(self, world: int) -> tuple[int, int, int]:
        """Return the opponent, the result (1, 0 or -1) and the player's side of a game that has just ended."""
        return int(self._met[world]), decide(float(self._ahead[world]), self._margin), int(self._side[world])

    def _begin_segments(self, at: Indices) -> None:
        """Reset the opponents whose segment ended before the game did, so that the next one starts without state."""
        for world in set(at.tolist()).difference(self._worlds.over):
            self._segments += 1
            opponent = self._known[int(self._met[world])]
            if isinstance(opponent, Scripted):
                opponent.begin(world, self._seed_of(2, world, int(self._begun[world]), self._segments))
            elif isinstance(opponent, LearnedOpponent):
                opponent.forget(world)

    def get_state(self) -> Any:
        """Return the worlds' states, sides, opponents, the weights of snapshots in use, random streams and memories."""
        frozen = {n: opponent.weights.copy() for n, opponent in self._known.items() if isinstance(opponent, Frozen)}
        rows = [np.array(row) for row in (self._begun, self._side, self._met, self._ahead, self.lanes)]
        streams = {number: stream_of(opponent.behaviour) for number, opponent in self._known.items()
                   if isinstance(opponent, LearnedOpponent)}  # fmt: skip
        drawn = {number: opponent.global_streams() if isinstance(opponent, Scripted)
                 else global_streams_of(opponent.behaviour) for number, opponent in self._known.items()
                 if isinstance(opponent, Scripted | LearnedOpponent)}  # fmt: skip
        memories = {number: opponent.memory() for number, opponent in self._known.items()
                    if isinstance(opponent, LearnedOpponent)}  # fmt: skip
        return self._worlds.get_state(), rows, frozen, self._newest.get_state(), streams, drawn, memories

    def set_state(self, state: Any) -> None:
        """Continue from what :meth:`get_state` returned."""
        inner, rows, frozen, newest, *rest = state
        streams: dict[int, Any] = rest[0] if rest else {}  # older checkpoints do not contain them
        drawn: dict[int, Any] = rest[1] if len(rest) > 1 else {}
        memories: dict[int, Any] = rest[2] if len(rest) > 2 else {}
        self._worlds.set_state(inner)
        for row, kept in zip((self._begun, self._side, self._met, self._ahead, self.lanes), rows, strict=True):
            row[...] = kept
        for number, weights in frozen.items():
            self._known[number] = self._freeze(weights)
        self._newest.set_state(newest)
        for number, opponent in self._known.items():
            self._begin_anew(number)
            if isinstance(opponent, LearnedOpponent):
                continue_stream(opponent.behaviour, streams.get(number))
                continue_global_streams(opponent.behaviour, drawn.get(number))
                opponent.remember(memories.get(number))
            elif isinstance(opponent, Scripted):
                opponent.continue_global_streams(drawn.get(number))


def _rows(turn: Turn, player: npt.NDArray[np.bool_]) -> Turn:
    """The rows of a turn that are the player's."""
    mask = None if turn.mask is None else turn.mask[player]
    return Turn(0, turn.at[player], map_nest(lambda array: array[player], turn.observation), turn.reward[player], mask)

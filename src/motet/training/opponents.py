"""Versus: two-player worlds in which the league plays one side; to the actor they are worlds of one agent.

Flows in: the actions of the player. Flows out: what the player sees on whichever side it sits, and what it earns; to
the league, how the games end. The actor knows nothing of opponents, so their rows go nowhere. Sides change from episode
to episode, opponents after a block of them; rows of games against anchors and of all others go to lanes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour, continue_stream, stream_of
from motet.errors import SettingError
from motet.nest import Nest, map_nest
from motet.policy import Policy, asker
from motet.system.portable import Portable
from motet.training.league import NEWEST, League, anchor
from motet.world.batch import Ending, Indices, Turn, WorldBatch, join_turns

__all__ = ["Chooser", "Frozen", "Listener", "Newest", "Opponent", "Scripted", "SelfPlay", "Versus"]

Masks = npt.NDArray[np.bool_] | None


@dataclass(frozen=True)
class SelfPlay:
    """Self-play as a run has it: the league's settings, resolved, and its anchors."""

    league: League
    anchors: tuple[str, ...]
    """Their names."""
    makers: tuple[Portable, ...]
    """And what makes each."""
    by_total: bool
    """Whether all that is earned in a game says who has won, or only what its end pays."""
    margin: float

    @classmethod
    def of(cls, world: Any, league: League, find: Callable[[str], Any]) -> SelfPlay:
        """For an environment; ``find`` imports what is named ``module:attribute``."""
        scripted: Mapping[str, Any] = getattr(world, "scripted", {})
        names = tuple(scripted) if league.anchors is None else league.anchors
        for name in names:
            if name not in scripted and ":" not in name:
                known = f"one of {', '.join(scripted)}, or " if scripted else ""
                raise SettingError(f"anchors must be {known}'module:attribute' of what makes a policy, got {name!r}")
        makers = tuple(
            Portable(scripted[name] if name in scripted else find(name), f"anchor {name}", "anchor") for name in names
        )
        margin = float(getattr(world, "winning_margin", 0.0)) if league.margin is None else league.margin
        won_by = league.won_by or getattr(world, "won_by", "total")
        return cls(league, names, makers, won_by == "total", margin)

    def partitions(self, once: bool) -> dict[str, float]:
        """The partitions of the player's replay with their shares of a batch; rows that are read once have one."""
        if once or not self.anchors:
            return {"": 1.0}
        return {"anchor": self.league.anchor_batch_share, "pool": 1.0 - self.league.anchor_batch_share}


class Opponent(Protocol):
    """Who plays the other side, in some of the worlds."""

    def begin(self, world: int, seed: int) -> None:
        """A game begins."""
        ...

    def act(self, at: Indices, observations: Nest, masks: Masks) -> npt.NDArray[Any]:
        """The actions in these worlds, ``[len(at), ...]``."""
        ...


class Chooser(Protocol):
    """Who says whom to meet: a league's draw."""

    def opponent(self, chance: float, /) -> int:
        """The number of an opponent, for a number from 0 to 1 drawn evenly."""
        ...

    def weights(self, number: int, /) -> npt.NDArray[np.float32]:
        """Those of a snapshot that was drawn."""
        ...


class Listener(Protocol):
    """Who is told how games ended: a league's results."""

    def tell(self, opponent: int, advantage: float, margin: float, /) -> None:
        """What the player earned beyond its opponent, and how much of that is no more than a draw."""
        ...


class Scripted:
    """An anchor: a policy for each world, or one for all if it can play many at once (``act_many``)."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make, self._policies = make, dict[int, Any]()
        self._ask: dict[int, Callable[[Any, Any], Any]] = {}
        first: Any = make()
        self._all: Callable[[Any], Any] | None = getattr(first, "act_many", None)

    @property
    def remembers(self) -> bool:
        """Whether it has a state that nobody could write down."""
        return self._all is None

    def begin(self, world: int, seed: int) -> None:
        """A game begins."""
        if self._all is None:
            if world not in self._policies:
                self._policies[world] = self._make()
                self._ask[world] = asker(self._policies[world].act)
            self._policies[world].reset(seed)

    def act(self, at: Indices, observations: Nest, masks: Masks) -> npt.NDArray[Any]:
        """The actions in these worlds."""
        if self._all is not None:
            return np.asarray(self._all(observations))
        actions = []
        for i, world in enumerate(at.tolist()):
            seen = map_nest(lambda array: array[i], observations)  # noqa: B023 (called at once)
            actions.append(self._ask[world](seen, None if masks is None else masks[i]))
        return np.stack(actions)


class Frozen:
    """A snapshot of the player."""

    def __init__(self, behaviour: Behaviour, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        self.behaviour, self.weights = behaviour, weights
        behaviour.load(weights, header)

    def begin(self, world: int, seed: int) -> None:
        """A game begins."""

    def act(self, at: Indices, observations: Nest, masks: Masks) -> npt.NDArray[Any]:
        """The actions in these worlds, without exploration."""
        return self.behaviour.act(observations, masks, explore=False)[0]


class Newest:
    """The player as it is now: takes the newest version whenever a game begins."""

    def __init__(self, behaviour: Behaviour, subscriber: Any, header: Sequence[str]) -> None:
        self.behaviour, self._subscriber, self._header = behaviour, subscriber, header
        self._kept: Any = None  # a version that was picked up, until a newer one is taken

    def begin(self, world: int, seed: int) -> None:
        """A game begins."""
        reader = self._subscriber
        if reader.refresh() if reader.version else reader.take(timeout_s=60.0):
            self.behaviour.load(reader.weights, {name: reader[name] for name in self._header})
            self._kept = None

    def act(self, at: Indices, observations: Nest, masks: Masks) -> npt.NDArray[Any]:
        """The actions in these worlds, without exploration."""
        return self.behaviour.act(observations, masks, explore=False)[0]

    def get_state(self) -> Any:
        """The version that plays now."""
        reader = self._subscriber
        if not reader.version:
            return self._kept
        return reader.weights.copy(), {name: np.array(reader[name]) for name in self._header}

    def set_state(self, state: Any) -> None:
        """Go on with it until the next game."""
        if state is not None:
            self._kept = weights, header = state
            self.behaviour.load(weights, {name: value[()] for name, value in header.items()})


class Versus:
    """A batch of two-player worlds as a batch of one-player ones.

    Args:
        worlds: the worlds.
        draw: whom to meet.
        results: where to tell how games ended.
        anchors: by their order in the league.
        newest: the player itself.
        freeze: makes an opponent of a snapshot's weights.
        seed_of: a seed for each place among its draws and opponents, ``seed_of(*path)``.
        block: episodes against one opponent.
        by_total: whether all that is earned in a game says who has won, or only what its end pays.
        margin: who earns more than this beyond the other has won.
        apart: whether games against anchors have lanes of their own: the first of two for each world.
    """

    def __init__(
        self,
        worlds: WorldBatch,
        draw: Chooser,
        results: Listener,
        anchors: Sequence[Scripted],
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
        self.can_save = worlds.can_save and not any(opponent.remembers for opponent in anchors)
        self._begun = np.zeros(self.size, np.int64)  # episodes
        self._side = np.zeros(self.size, np.int64)  # where the player sits
        self._met = np.zeros(self.size, np.int64)  # the number of the opponent
        self._segments = 0  # of opponents, beyond the first ones
        self._ahead = np.zeros(self.size)  # what the player earned beyond the opponent, as far as it counts
        self._begin_anew(NEWEST)
        self._turns: list[tuple[Turn, npt.NDArray[np.bool_]]] = []  # of both, with where they are the player's

    @property
    def over(self) -> list[int]:
        """Worlds that wait for a reset."""
        return self._worlds.over

    @property
    def broken(self) -> list[int]:
        """Worlds that raised and were made anew."""
        return self._worlds.broken

    def reset(self, at: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds: the other side, and perhaps another opponent."""
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
        """Start the random stream of an opponent, by how far the games are."""
        opponent = self._known[number]
        if isinstance(opponent, Frozen | Newest):
            opponent.behaviour.begin(self._seed_of(1, int(self._begun.sum()), number))

    def turns(self) -> list[Turn]:
        """The player's turn, wherever it has one."""
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

    def act(self, actions: Sequence[npt.NDArray[Any]]) -> list[Ending]:
        """Play the player's actions and the opponents'."""
        place = np.zeros(self.size, np.int64)
        theirs: npt.NDArray[Any] | None = None
        if actions:
            (theirs,) = actions
            place[np.sort(np.concatenate([turn.at[player] for turn, player in self._turns]))] = np.arange(len(theirs))
        played = [self._both(turn, player, theirs, place) for turn, player in self._turns]
        return self._ends(self._worlds.act(played))

    def _both(
        self, turn: Turn, player: npt.NDArray[np.bool_], theirs: npt.NDArray[Any] | None, place: Indices
    ) -> npt.NDArray[Any]:
        """The actions of one seat: the player's where it sits there, else the opponents'."""
        parts: list[tuple[Indices, npt.NDArray[Any]]] = []
        if theirs is not None and player.any():
            rows = np.flatnonzero(player)
            parts.append((rows, theirs[place[turn.at[rows]]]))
        met = self._met[turn.at]
        for number in np.unique(met[~player]).tolist():
            rows = np.flatnonzero((met == number) & ~player)
            seen = map_nest(lambda array: np.ascontiguousarray(array[rows]), turn.observation)  # noqa: B023
            masks = None if turn.mask is None else turn.mask[rows]
            parts.append((rows, self._known[number].act(turn.at[rows], seen, masks)))
        first = theirs if theirs is not None else parts[0][1]
        chosen = np.empty((len(turn.at), *first.shape[1:]), first.dtype)
        for rows, actions in parts:
            chosen[rows] = actions
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

    def _begin_segments(self, at: Indices) -> None:
        """Opponents that ended in these worlds remember nothing, if they are asked again before the game is over."""
        for world in set(at.tolist()).difference(self._worlds.over):
            self._segments += 1
            opponent = self._known[int(self._met[world])]
            if isinstance(opponent, Scripted):
                opponent.begin(world, self._seed_of(2, world, int(self._begun[world]), self._segments))

    def get_state(self) -> Any:
        """The worlds, who sits where, the opponents that may be gone from the pool, and all random streams."""
        frozen = {n: opponent.weights.copy() for n, opponent in self._known.items() if isinstance(opponent, Frozen)}
        rows = [np.array(row) for row in (self._begun, self._side, self._met, self._ahead, self.lanes)]
        streams = {number: stream_of(opponent.behaviour) for number, opponent in self._known.items()
                   if isinstance(opponent, Frozen | Newest)}  # fmt: skip
        return self._worlds.get_state(), rows, frozen, self._newest.get_state(), streams

    def set_state(self, state: Any) -> None:
        """Go on from there."""
        inner, rows, frozen, newest, *rest = state
        streams: dict[int, Any] = rest[0] if rest else {}  # older checkpoints have none
        self._worlds.set_state(inner)
        for row, kept in zip((self._begun, self._side, self._met, self._ahead, self.lanes), rows, strict=True):
            row[...] = kept
        for number, weights in frozen.items():
            self._known[number] = self._freeze(weights)
        self._newest.set_state(newest)
        for number, opponent in self._known.items():
            self._begin_anew(number)
            if isinstance(opponent, Frozen | Newest):
                continue_stream(opponent.behaviour, streams.get(number))


def _rows(turn: Turn, player: npt.NDArray[np.bool_]) -> Turn:
    """The rows of a turn that are the player's."""
    mask = None if turn.mask is None else turn.mask[player]
    return Turn(0, turn.at[player], map_nest(lambda array: array[player], turn.observation), turn.reward[player], mask)

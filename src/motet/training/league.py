"""League: whom the learning player meets in self-play, how often, and how it fares.

One player learns; in every game it sits on one side, by turns, and an *opponent* on the other: an *anchor* (scripted,
always the same), a *snapshot* of the player's own past from a bounded pool, or the player as it is now. Opponents are
drawn by measured win rates, stay for a block of episodes, and learn nothing.

Flows in: results of games, from actors. Flows out: one :class:`LeagueBoard` publication with the pool's weights, who is
in it and how likely everybody is, in one version, so that no actor meets half of a change. The :class:`LeagueTable` is
the learner's, the only one who writes it; a successor goes on from what was published. Results have one writer each:
an actor puts each into its own ring as one word that says which result it is, so there is nothing to tear and no order
to keep. Who is drawn changes at *reviews*, at fixed steps of the player: in lockstep they fall between two rounds, and
the league is the serial one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from motet.arrays import ArraySpec
from motet.errors import SettingError, WaitTimeoutError
from motet.publication import Publication
from motet.settings import check_types
from motet.system.memory import Segment

__all__ = ["NEWEST", "Draw", "League", "LeagueBoard", "LeagueTable", "Results", "Standings", "anchor"]

NEWEST = 0
"""The number of the player as it is now; snapshots are 1, 2, 3, ..., anchors -1, -2, ..."""

_RING = 1024  # results of an actor that may wait for the learner
_LOSS, _DRAW, _WIN = range(3)
_MEMORY = 0.98  # what a game leaves of the games before it in a win rate: about the last 50 count


@dataclass(frozen=True)
class League:
    """How opponents are chosen in self-play."""

    anchors: tuple[str, ...] | None = None
    """Scripted players of the world by name, or 'module:attribute' of what makes a policy; None: all the world's."""
    anchor_share: float = 1 / 3
    """Of the games, how many are against anchors."""
    anchor_batch_share: float = 1 / 3
    """Of every batch, how much comes from games against anchors."""
    self_share: float = 0.2
    """Of the other games, how many are against the player as it is now; all of them while the pool is empty."""
    snapshot_every: int = 20_000
    """Steps of the player between two snapshots."""
    pool: int = 10
    """Snapshots that are kept."""
    out: Literal["oldest", "weakest"] = "oldest"
    """Which one makes room for a new one; the weakest is the one that the player beats most often."""
    choice: Literal["variance", "hard", "even"] = "variance"
    """By the player's win rate w: in proportion to w (1 - w), to (1 - w)**2, or everybody alike."""
    block: int = 4
    """Episodes of a world against one opponent before another one is drawn."""
    review_every: int = 2_000
    """Steps of the player between two looks at the results, at which win rates and chances change."""
    won_by: Literal["end", "total"] | None = None
    """Who has won: who earns more at a game's end, or in all of it; by default the world's ``won_by``, or total."""
    margin: float | None = None
    """How much more; by default the world's ``winning_margin``, or 0. Otherwise it is a draw."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("snapshot_every", "pool", "block", "review_every"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}: given {getattr(self, name)}, expected 1 or more")
        for name in ("anchor_share", "anchor_batch_share", "self_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"{name}: given {getattr(self, name)}, expected 0 to 1")
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin >= 0):
            raise SettingError(f"margin: given {self.margin}, expected a finite number from 0 on")

    def chances(
        self, anchors: npt.NDArray[np.float64], snapshots: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
        """How likely each anchor, each snapshot and the player itself are, given the player's win rates against them.

        >>> anchors, snapshots, newest = League(anchor_share=0.5, self_share=0.2).chances(
        ...     np.array([0.9]), np.array([0.5, 0.9, 1.0])
        ... )
        >>> anchors.tolist(), snapshots.round(3).tolist(), newest
        ([0.5], [0.29, 0.104, 0.006], 0.1)
        """
        share = self.anchor_share if len(anchors) else 0.0
        own = (1.0 - share) * (self.self_share if len(snapshots) else 1.0)
        return share * self._proportions(anchors), (1.0 - share - own) * self._proportions(snapshots), own

    def _proportions(self, rates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if not len(rates):
            return rates
        if self.choice == "even":
            return np.full(len(rates), 1.0 / len(rates))
        # Nobody is ruled out for ever: rates change, and they are measured by playing.
        weights = np.maximum((1.0 - rates) * (rates if self.choice == "variance" else 1.0 - rates), 0.005)
        proportions: npt.NDArray[np.float64] = weights / weights.sum()
        return proportions


def anchor(index: int) -> int:
    """The number of an anchor."""
    return -1 - index


class Results:
    """The results of one actor's games: a ring of words, each with its own number, opponent and outcome."""

    def __init__(self, ring: npt.NDArray[np.uint64]) -> None:
        self._ring = ring
        self._told = int((ring >> np.uint64(32)).max())

    def tell(self, opponent: int, advantage: float, margin: float) -> None:
        """A game is over: what the player earned beyond its opponent, and how much of that is no more than a draw."""
        outcome = _WIN if advantage > margin else _LOSS if advantage < -margin else _DRAW
        self._ring[self._told % _RING] = (self._told + 1) << 32 | (opponent + 2**20) << 2 | outcome
        self._told += 1

    @staticmethod
    def since(ring: npt.NDArray[np.uint64], number: int) -> npt.NDArray[np.uint64]:
        """The words of a ring that were told after the one with this number."""
        return ring[ring >> np.uint64(32) > number]

    @staticmethod
    def take_in(ring: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> int:
        """Put words of the same actor's ring elsewhere into this one; the number of the newest one in it."""
        places = ((words >> np.uint64(32)) - np.uint64(1)) % np.uint64(_RING)
        newer = words > ring[places]
        ring[places[newer]] = words[newer]
        return int((ring >> np.uint64(32)).max())

    @staticmethod
    def hear(ring: npt.NDArray[np.uint64], heard: int) -> tuple[list[tuple[int, int]], int, int]:
        """What was told since: opponents and outcomes; how many were told in all, and how many written over unheard."""
        news, lost = [], 0
        while True:
            word = int(ring[heard % _RING])
            number = word >> 32
            if number == heard + 1:
                news.append((((word & 0xFFFFFFFF) >> 2) - 2**20, word & 3))
                heard += 1
            elif number > heard + 1:  # the ring went round: go on with what is left of it
                lost += number - _RING - heard
                heard = number - _RING
            else:
                return news, heard, lost


class LeagueBoard:
    """What a league shares: one publication, and a ring of results for each actor.

    Args:
        league: its settings, resolved.
        anchors: their names.
        weights: numbers of a policy.
        actors: how many there are.
        segment: has room for :meth:`layout`.
    """

    def __init__(self, league: League, anchors: Sequence[str], weights: int, actors: int, segment: Segment) -> None:
        self.league, self.anchors, self.weights = league, tuple(anchors), weights
        header = self._header(league, len(anchors), actors)
        self.publication = Publication(league.pool * weights, header, segment=segment, prefix="league")
        self._segment = segment
        self.results[...] = 0

    @staticmethod
    def layout(league: League, anchors: int, weights: int, actors: int) -> dict[str, ArraySpec]:
        """The arrays that a segment needs to hold such a board."""
        header = LeagueBoard._header(league, anchors, actors)
        return {
            **Publication.layout(league.pool * weights, header, prefix="league"),
            "league/results": ArraySpec((actors, _RING), "uint64"),
        }

    @staticmethod
    def _header(league: League, anchors: int, actors: int) -> dict[str, ArraySpec]:
        """What is published beside the weights: of the anchors first, then of the pool's places."""
        rows = anchors + league.pool
        return {
            "number": ArraySpec((league.pool,), "int64"),  # of the snapshot in a place; 0: none
            "step": ArraySpec((league.pool,), "int64"),  # at which it was taken
            "points": ArraySpec((rows,), "float64"),  # a win 1, a draw 0.5; fading
            "games": ArraySpec((rows,), "float64"),  # fading alike
            "played": ArraySpec((rows,), "int64"),
            "chance": ArraySpec((rows + 1,), "float64"),  # to be drawn; the last one is the newest policy's
            "heard": ArraySpec((actors,), "int64"),  # results taken in from each actor
            "counts": ArraySpec((3,), "int64"),  # snapshots taken, reviews, results lost
        }

    @property
    def results(self) -> npt.NDArray[np.uint64]:
        """``[actors, ring]``"""
        return self._segment["league/results"]

    def dump(self) -> dict[str, npt.NDArray[Any]]:
        """All of it, for a checkpoint; empty before the first version."""
        reader = self.publication.subscriber()
        if not reader.published:
            return {}
        reader.take(timeout_s=10.0)
        header = {name: np.array(reader[name]) for name in self.publication.header}
        return {"weights": reader.weights.copy(), "results": self.results.copy(), **header}

    def restore(self, kept: dict[str, npt.NDArray[Any]], version: int | None = None) -> None:
        """Go on from what :meth:`dump` gave, before anybody plays; ``version``: under which it is published."""
        expected = {name: item.shape for name, item in self.publication.header.items()}
        given = {name: kept[name].shape for name in expected if name in kept}
        if given != expected or kept["weights"].shape != (self.publication.weights,):
            raise SettingError("the checkpoint's league does not fit: anchors, pool, actors or networks have changed")
        self.results[...] = kept["results"]
        header: dict[str, Any] = {name: kept[name] for name in expected}
        self.publication.publisher().publish(np.ascontiguousarray(kept["weights"]), version=version, **header)


class LeagueTable:
    """The league as its learner keeps it: the pool, win rates, chances.

    Args:
        board: where it is published; a predecessor's table is taken up from there.
    """

    def __init__(self, board: LeagueBoard) -> None:
        self._board, self._league = board, board.league
        league, anchors = board.league, len(board.anchors)
        kept = board.dump()
        self._weights = kept["weights"] if kept else np.zeros(league.pool * board.weights, np.float32)
        self._rows: dict[str, Any] = {
            name: kept[name] if kept else np.zeros(item.shape, item.dtype)
            for name, item in board.publication.header.items()
        }
        self._anchors = anchors
        self._publisher = board.publication.publisher()
        if not kept:
            self._publish()

    def due(self, steps: int) -> bool:
        """Whether there is anything to do after so many steps of the player."""
        taken, reviews, _ = self._rows["counts"]
        return bool(steps // self._league.review_every > reviews or steps // self._league.snapshot_every > taken)

    def review(self, steps: int, weights: npt.NDArray[np.float32]) -> None:
        """Take in the results, and a snapshot of the player if it is time for one; publish what follows from them."""
        counts, league = self._rows["counts"], self._league
        self._hear()
        if steps // league.snapshot_every > counts[0]:
            counts[0] = steps // league.snapshot_every
            self._take_in(int(counts[0]), steps, weights)
        counts[1] = steps // league.review_every
        self._publish()

    def rates(self) -> dict[str, float]:
        """The player's win rates, by anchor and over the pool; draws count half."""
        rates = self._rates()
        pool = rates[self._anchors :][self._rows["number"] > 0]
        found = {f"win_{name}": float(rates[i]) for i, name in enumerate(self._board.anchors)}
        return {**found, "win_pool": float(pool.mean()) if len(pool) else 0.5}

    def _rates(self) -> npt.NDArray[np.float64]:
        rates: npt.NDArray[np.float64] = (self._rows["points"] + 0.5) / (self._rows["games"] + 1.0)
        return rates

    def _hear(self) -> None:
        heard, counts = self._rows["heard"], self._rows["counts"]
        for actor, ring in enumerate(self._board.results):
            news, heard[actor], lost = Results.hear(ring, int(heard[actor]))
            counts[2] += lost
            for opponent, outcome in news:
                row = self._row_of(opponent)
                if row is not None:
                    self._rows["points"][row] = _MEMORY * self._rows["points"][row] + 0.5 * outcome
                    self._rows["games"][row] = _MEMORY * self._rows["games"][row] + 1.0
                    self._rows["played"][row] += 1

    def _row_of(self, opponent: int) -> int | None:
        """None: the player itself, or a snapshot that is gone."""
        if opponent < 0:
            return -1 - opponent
        places = np.flatnonzero(self._rows["number"] == opponent)
        return self._anchors + int(places[0]) if opponent > 0 and len(places) else None

    def _take_in(self, number: int, step: int, weights: npt.NDArray[np.float32]) -> None:
        numbers, rates = self._rows["number"], self._rates()[self._anchors :]
        if (numbers == 0).any():
            place = int(np.flatnonzero(numbers == 0)[0])
        else:
            place = int(numbers.argmin() if self._league.out == "oldest" else rates.argmax())
        size = self._board.weights
        self._weights[place * size : (place + 1) * size] = weights
        numbers[place], self._rows["step"][place] = number, step
        for name in ("points", "games", "played"):
            self._rows[name][self._anchors + place] = 0

    def _publish(self) -> None:
        rates, there = self._rates(), self._rows["number"] > 0
        chance = self._rows["chance"]
        chance[...] = 0.0
        anchors, snapshots, newest = self._league.chances(rates[: self._anchors], rates[self._anchors :][there])
        chance[: self._anchors] = anchors
        chance[self._anchors : -1][there] = snapshots
        chance[-1] = newest
        self._publisher.publish(self._weights, **self._rows)


class Draw:
    """Whom to meet, for an actor: draws from the newest table.

    Args:
        board: of the league.
    """

    def __init__(self, board: LeagueBoard) -> None:
        self._board = board
        self._reader = board.publication.subscriber()

    def opponent(self, chance: float) -> int:
        """The number of an opponent, for a number from 0 to 1 drawn evenly."""
        if not self._reader.refresh() and not self._reader.version:
            self._wait()
        chances = self._reader["chance"]
        choice = min(int(np.searchsorted(np.cumsum(chances), chance, side="right")), len(chances) - 1)
        if choice < len(self._board.anchors):
            return anchor(choice)
        if choice == len(chances) - 1:
            return NEWEST
        return int(self._reader["number"][choice - len(self._board.anchors)])

    def weights(self, number: int) -> npt.NDArray[np.float32]:
        """A copy of a snapshot's weights; it must have been drawn since the last change."""
        size = self._board.weights
        place = int(np.flatnonzero(self._reader["number"] == number)[0])
        return self._reader.weights[place * size : (place + 1) * size].copy()

    def _wait(self) -> None:
        if not self._reader.wait(60.0):
            raise WaitTimeoutError("an actor waited 60 s for the first table of the league")
        self._reader.take(60.0)


class Standings:
    """The league as anybody may read it.

    Args:
        board: of the league.
    """

    def __init__(self, board: LeagueBoard) -> None:
        self._board = board
        self._reader = board.publication.subscriber()

    def refresh(self) -> bool:
        """Take the newest table; whether it is a new one."""
        return self._reader.refresh()

    def pool(self) -> list[int]:
        """The steps at which the pool's snapshots were taken."""
        return [int(step) for step, number in zip(self._reader["step"], self._reader["number"], strict=True) if number]

    def weights(self, step: int) -> npt.NDArray[np.float32]:
        """Those of the snapshot that was taken at a step."""
        size = self._board.weights
        place = int(np.flatnonzero((self._reader["step"] == step) & (self._reader["number"] > 0))[0])
        return self._reader.weights[place * size : (place + 1) * size].copy()

    def as_dict(self) -> dict[str, Any]:
        """One line: for every opponent how likely it is, how many games there were, and how many the player wins."""
        reader, anchors = self._reader, self._board.anchors
        taken, reviews, lost = (int(count) for count in reader["counts"])
        names = [
            *anchors,
            *(f"step {step}" if number else "" for step, number in zip(reader["step"], reader["number"], strict=True)),
        ]
        rates = (reader["points"] + 0.5) / (reader["games"] + 1.0)
        return {
            "step": reviews * self._board.league.review_every,
            "snapshots": taken,
            "lost": lost,
            "newest_chance": float(reader["chance"][-1]),
            "opponents": [
                {"name": name, "win_rate": float(rate), "games": int(played), "chance": float(chance)}
                for name, rate, played, chance in zip(
                    names, rates, reader["played"], reader["chance"][:-1], strict=True
                )
                if name
            ],
        }

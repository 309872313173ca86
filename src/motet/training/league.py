"""League: the opponents of the learning player in self-play, how often they are chosen, and the results of games.

One policy learns: the player. In every game it plays one side and an *opponent* plays the other; the player changes
sides from game to game. An opponent is an *anchor* (scripted, always the same), a *snapshot* (an earlier version of the
player, from a bounded pool), or the player as it is now. Opponents are drawn by measured win rates, stay for a block of
episodes, and do not learn.

Actors write the results of games. The player's learner reads them and writes one publication, in :class:`LeagueBoard`:
the weights of the pool, its members and the probability of each opponent, all in one version, so that an actor never
sees half of a change. Only the learner writes the :class:`LeagueTable`; a restarted learner continues from the
published one. Each actor writes its own ring of results. A result is one word that contains its own number, so a read
is never torn, and the order of words does not matter. Probabilities change at *reviews*, at fixed steps of the player.
In lockstep reviews take place between two rounds, and the league develops as in the serial engine. With periods, each
phase reads the results of all periods up to its own. Before it writes the vault, it publishes the table under its own
number. Actors use the table of their period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from motet.arrays import ArraySpec
from motet.errors import SettingError, WaitTimeoutError
from motet.publication import GivenVersion, Publication
from motet.settings import FINITE, check_fields
from motet.system.memory import Segment
from motet.world.winning import decide

__all__ = ["NEWEST", "Draw", "League", "LeagueBoard", "LeagueTable", "Results", "Standings", "anchor"]

NEWEST = 0
"""Opponent number of the player as it is now. Snapshots have the numbers 1, 2, 3, ..., anchors -1, -2, ..."""

_RING = 1024  # minimum number of unread results for which the ring of an actor has room
_DRAW = 1  # code of a draw; a loss is 1 less, a win 1 more
_MEMORY = 0.98  # decay of earlier games in a win rate with each game: about the last 50 games count


@dataclass(frozen=True)
class League:
    """How opponents are chosen in self-play.

    >>> from motet import Settings
    >>> Settings(self_play=True, league=League(anchors=("weak",), pool=5)).league.pool
    5
    """

    anchors: tuple[str, ...] | None = None
    """Opponents that stay in the league: names of scripted players of the world, run directories, or paths
    'module:attribute' of policy factories. Default: all scripted players of the world."""
    anchor_share: Annotated[float, Interval(ge=0, le=1)] = 1 / 3
    """Share of games against anchors."""
    anchor_batch_share: Annotated[float, Interval(ge=0, le=1)] = 1 / 3
    """Share of each batch that comes from games against anchors."""
    self_share: Annotated[float, Interval(ge=0, le=1)] = 0.2
    """Among the games that are not against anchors: share of games against the newest version of the player. While the
    pool has no snapshots, all of these games are against the newest version."""
    snapshot_every: Annotated[int, Ge(1)] = 20_000
    """Steps of the player between two snapshots."""
    pool: Annotated[int, Ge(1)] = 10
    """Number of snapshots in the pool."""
    out: Literal["oldest", "weakest"] = "oldest"
    """Which snapshot is removed from a full pool when a new one is added: the oldest (``oldest``), or the one that the
    player beats most often (``weakest``)."""
    choice: Literal["variance", "hard", "even"] = "variance"
    """Weight with which an opponent is drawn, as a function of the win rate w of the player against it: w (1 - w)
    (``variance``), (1 - w)**2 (``hard``), or the same weight for all opponents (``even``)."""
    block: Annotated[int, Ge(1)] = 4
    """Number of episodes that a world plays against one opponent before the next opponent is drawn."""
    review_every: Annotated[int, Ge(1)] = 2_000
    """Steps of the player between two reviews, which update win rates and the probabilities of opponents."""
    won_by: Literal["end", "total"] | None = None
    """Which reward decides who wins a game: the reward at its end (``end``) or the total reward (``total``). Default:
    the world's ``won_by``, or ``total``."""
    margin: Annotated[float, Ge(0), FINITE] | None = None
    """Difference between the players' rewards above which a game is won. Otherwise the game is a draw. Default: the
    world's ``winning_margin``, or 0."""

    def __post_init__(self) -> None:
        check_fields(self)

    def chances(
        self, anchors: npt.NDArray[np.float64], snapshots: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
        """Return the probabilities of the anchors, the snapshots and the player itself, given the player's win rates.

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
        # With the lower bound every opponent is drawn sometimes, so that changes of its win rate are measured.
        weights = np.maximum((1.0 - rates) * (rates if self.choice == "variance" else 1.0 - rates), 0.005)
        proportions: npt.NDArray[np.float64] = weights / weights.sum()
        return proportions


def anchor(index: int) -> int:
    """Return the opponent number of an anchor."""
    return -1 - index


class Results:
    """The results of one actor's games: a ring of words, each with a result's number, opponent and outcome."""

    def __init__(self, ring: npt.NDArray[np.uint64]) -> None:
        self._ring = ring
        self._told = self.newest(ring)

    def tell(self, opponent: int, advantage: float, margin: float) -> None:
        """Add a result. ``advantage``: the player's reward minus the opponent's; within ``margin`` it is a draw."""
        self.write(opponent, _DRAW + decide(advantage, margin))

    def write(self, opponent: int, outcome: int) -> None:
        """Add a result by the number of its outcome, as :meth:`hear` returns it."""
        self._ring[self._told % len(self._ring)] = (self._told + 1) << 32 | (opponent + 2**20) << 2 | outcome
        self._told += 1

    @staticmethod
    def since(ring: npt.NDArray[np.uint64], number: int) -> npt.NDArray[np.uint64]:
        """Return the words of a ring that were written after the one with this number."""
        return ring[ring >> np.uint64(32) > number]

    @staticmethod
    def take_in(ring: npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]) -> int:
        """Merge words from a copy of the same actor's ring into this ring; return the number of its newest result."""
        places = ((words >> np.uint64(32)) - np.uint64(1)) % np.uint64(len(ring))
        newer = words > ring[places]
        ring[places[newer]] = words[newer]
        return Results.newest(ring)

    @staticmethod
    def newest(ring: npt.NDArray[np.uint64]) -> int:
        """Return the number of the newest result in a ring."""
        return int((ring >> np.uint64(32)).max())

    @staticmethod
    def hear(
        ring: npt.NDArray[np.uint64], heard: int, until: int | None = None
    ) -> tuple[list[tuple[int, int]], int, int]:
        """Read the results after number ``heard``, to number ``until`` or to the newest one.

        Returns opponents and outcomes, the number of the last result read, and how many were overwritten unread.
        """
        news, lost = [], 0
        while until is None or heard < until:
            word = int(ring[heard % len(ring)])
            number = word >> 32
            if number == heard + 1:
                news.append((((word & 0xFFFFFFFF) >> 2) - 2**20, word & 3))
                heard += 1
            elif number > heard + 1:  # the writer overtook the reader: continue with the oldest remaining result
                lost += number - len(ring) - heard
                heard = number - len(ring)
            else:
                break
        return news, heard, lost


def dealt_again(kept: Mapping[str, npt.NDArray[Any]], actors: int) -> dict[str, npt.NDArray[Any]]:
    """Return a league's part of a checkpoint, converted to another number of actors, with all unread results."""
    if len(kept["heard"]) == actors:
        return dict(kept)
    rings, lost = np.zeros((actors, kept["results"].shape[1]), np.uint64), 0
    writers = [Results(ring) for ring in rings]
    for actor, (ring, heard) in enumerate(zip(kept["results"], kept["heard"].tolist(), strict=True)):
        news, _, overwritten = Results.hear(ring, heard)
        lost += overwritten
        for opponent, outcome in news:
            writers[actor % actors].write(opponent, outcome)
    counts = kept["counts"] + np.array([0, 0, lost])
    return {**kept, "results": rings, "heard": np.zeros(actors, np.int64), "counts": counts}


class LeagueBoard:
    """The shared memory of a league: one publication, and a ring of results for each actor.

    Args:
        league: the resolved settings of the league.
        anchors: the names of the anchors.
        weights: number of weights of a policy.
        actors: number of actors.
        segment: a segment with room for :meth:`layout`.
        slots: number of versions that are kept.
    """

    def __init__(
        self, league: League, anchors: Sequence[str], weights: int, actors: int, segment: Segment, slots: int = 2
    ) -> None:
        self.league, self.anchors, self.weights = league, tuple(anchors), weights
        header = self._header(league, len(anchors), actors)
        self.publication = Publication(league.pool * weights, header, slots=slots, segment=segment, prefix="league")
        self._segment = segment
        self.results[...] = 0

    @staticmethod
    def layout(
        league: League, anchors: int, weights: int, actors: int, games: int = 0, slots: int = 2
    ) -> dict[str, ArraySpec]:
        """Return the arrays that a segment needs for such a board, with room for ``games`` results of each actor."""
        header = LeagueBoard._header(league, anchors, actors)
        return {
            **Publication.layout(league.pool * weights, header, slots=slots, prefix="league"),
            "league/results": ArraySpec((actors, max(games, _RING)), "uint64"),
        }

    @staticmethod
    def _header(league: League, anchors: int, actors: int) -> dict[str, ArraySpec]:
        """The header that is published with the weights. Rows are anchors first, then the places of the pool."""
        rows = anchors + league.pool
        return {
            "number": ArraySpec((league.pool,), "int64"),  # by place of the pool: number of the snapshot; 0: empty
            "step": ArraySpec((league.pool,), "int64"),  # step at which the snapshot was taken
            "points": ArraySpec((rows,), "float64"),  # 1 for a win, 0.5 for a draw; decaying
            "games": ArraySpec((rows,), "float64"),  # number of games; decaying in the same way
            "played": ArraySpec((rows,), "int64"),
            "chance": ArraySpec((rows + 1,), "float64"),  # probability; the last one is the player's
            "heard": ArraySpec((actors,), "int64"),  # number of the last result read from each actor
            "counts": ArraySpec((3,), "int64"),  # snapshots taken, reviews, results lost
        }

    @property
    def results(self) -> npt.NDArray[np.uint64]:
        """The rings of all actors, ``[actors, ring]``."""
        return self._segment["league/results"]

    def dump(self, version: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the contents for a checkpoint, by default the newest ones; empty before the first version."""
        reader = self.publication.subscriber(None if version is None else GivenVersion(version))
        if not reader.published:
            return {}
        reader.take(timeout_s=10.0)
        header = {name: np.array(reader[name]) for name in self.publication.header}
        return {"weights": reader.weights.copy(), "results": self.results.copy(), **header}

    def restore(self, kept: dict[str, npt.NDArray[Any]], version: int | None = None) -> None:
        """Continue from what :meth:`dump` returned, before the actors start. ``version``: the version to publish."""
        expected = {name: item.shape for name, item in self.publication.header.items()}
        given = {name: kept[name].shape for name in expected if name in kept}
        if given != expected or kept["weights"].shape != (self.publication.weights,):
            raise SettingError("league must match the checkpoint: anchors, pool, actors or networks differ")
        self.results[...] = kept["results"]
        header: dict[str, Any] = {name: kept[name] for name in expected}
        self.publication.publisher().publish(np.ascontiguousarray(kept["weights"]), version=version, **header)


class LeagueTable:
    """The league as the player's learner keeps it: the pool, win rates and probabilities.

    Args:
        board: where the table is published. A restarted learner continues with the published table.
        version: with periods, the version to continue from; 0: none. Then each phase publishes a version.
    """

    def __init__(self, board: LeagueBoard, version: int | None = None) -> None:
        self._board, self._league, self._in_phases = board, board.league, version is not None
        league, anchors = board.league, len(board.anchors)
        kept = {} if version == 0 else board.dump(version)
        self._weights = kept["weights"] if kept else np.zeros(league.pool * board.weights, np.float32)
        self._rows: dict[str, Any] = {
            name: kept[name] if kept else np.zeros(item.shape, item.dtype)
            for name, item in board.publication.header.items()
        }
        self._anchors = anchors
        self._publisher = board.publication.publisher()
        if not kept:
            self._settle()
        if not kept and not self._in_phases:
            self.publish()

    def due(self, steps: int) -> bool:
        """Whether a review or a snapshot is due after this many steps of the player."""
        taken, reviews, _ = self._rows["counts"]
        return bool(steps // self._league.review_every > reviews or steps // self._league.snapshot_every > taken)

    def review(self, steps: int, weights: npt.NDArray[np.float32]) -> None:
        """Read new results, take a snapshot of the player if one is due, and publish the new table."""
        counts, league = self._rows["counts"], self._league
        if not self._in_phases:
            self.hear()
        if steps // league.snapshot_every > counts[0]:
            counts[0] = steps // league.snapshot_every
            self._take_in(int(counts[0]), steps, weights)
        counts[1] = steps // league.review_every
        self._settle()
        if not self._in_phases:
            self.publish()

    def rates(self) -> dict[str, float]:
        """Return the player's win rates by anchor and over the pool; a draw counts as half a win."""
        rates = self._rates()
        pool = rates[self._anchors :][self._rows["number"] > 0]
        found = {f"win_{name}": float(rates[i]) for i, name in enumerate(self._board.anchors)}
        return {**found, "win_pool": float(pool.mean()) if len(pool) else 0.5}

    def _rates(self) -> npt.NDArray[np.float64]:
        rates: npt.NDArray[np.float64] = (self._rows["points"] + 0.5) / (self._rows["games"] + 1.0)
        return rates

    def hear(self, until: Sequence[int] | None = None) -> None:
        """Read new results. With periods: read up to these numbers, one for each actor."""
        heard, counts = self._rows["heard"], self._rows["counts"]
        for actor, ring in enumerate(self._board.results):
            last = None if until is None else until[actor]
            news, heard[actor], lost = Results.hear(ring, int(heard[actor]), last)
            counts[2] += lost
            for opponent, outcome in news:
                row = self._row_of(opponent)
                if row is not None:
                    self._rows["points"][row] = _MEMORY * self._rows["points"][row] + 0.5 * outcome
                    self._rows["games"][row] = _MEMORY * self._rows["games"][row] + 1.0
                    self._rows["played"][row] += 1

    def _row_of(self, opponent: int) -> int | None:
        """Return the row of an opponent; None for the player itself and for a snapshot that has been removed."""
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

    def _settle(self) -> None:
        """Compute the probabilities of the opponents from the present win rates."""
        rates, there = self._rates(), self._rows["number"] > 0
        chance = self._rows["chance"]
        chance[...] = 0.0
        anchors, snapshots, newest = self._league.chances(rates[: self._anchors], rates[self._anchors :][there])
        chance[: self._anchors] = anchors
        chance[self._anchors : -1][there] = snapshots
        chance[-1] = newest

    def publish(self, version: int | None = None) -> None:
        """Publish the table, as the version with this number; nothing happens if that version is announced already."""
        if version is None or self._publisher.announced < version:
            self._publisher.publish(self._weights, version=version, **self._rows)


class Draw:
    """Draws opponents for an actor from the newest table.

    Args:
        board: the board of the league.
        given: the version of the table to use instead of the newest one.
    """

    def __init__(self, board: LeagueBoard, given: GivenVersion | None = None) -> None:
        self._board = board
        self._reader = board.publication.subscriber(given)

    def opponent(self, chance: float) -> int:
        """Return the number of an opponent. ``chance``: a number drawn uniformly from 0 to 1."""
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
        """Return a copy of a snapshot's weights. Call this before the next draw, which may load a table without this
        snapshot."""
        size = self._board.weights
        place = int(np.flatnonzero(self._reader["number"] == number)[0])
        return self._reader.weights[place * size : (place + 1) * size].copy()

    def _wait(self) -> None:
        if not self._reader.wait(60.0):
            raise WaitTimeoutError("an actor waited 60 s for the learner to publish the first league table")
        self._reader.take(60.0)


class Standings:
    """Read access to the newest table of the league.

    Args:
        board: the board of the league.
    """

    def __init__(self, board: LeagueBoard) -> None:
        self._board = board
        self._reader = board.publication.subscriber()

    def refresh(self) -> bool:
        """Load the newest table; return whether it is a new one."""
        return self._reader.refresh()

    def pool(self) -> list[int]:
        """Return the steps at which the snapshots in the pool were taken."""
        return [int(step) for step, number in zip(self._reader["step"], self._reader["number"], strict=True) if number]

    def weights(self, step: int) -> npt.NDArray[np.float32]:
        """Return the weights of the snapshot that was taken at a step."""
        size = self._board.weights
        place = int(np.flatnonzero((self._reader["step"] == step) & (self._reader["number"] > 0))[0])
        return self._reader.weights[place * size : (place + 1) * size].copy()

    def as_dict(self) -> dict[str, Any]:
        """Return the table for ``league.jsonl``: probability, number of games and win rate of every opponent."""
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

"""tournament(): policies play each other on rotated seats. Gives a cross table and ratings with intervals.

    policies ─▶ pairings ─▶ games: every pairing in every round on rotated seats ─▶ scores ─▶ cross table, ratings

The seating and the seeds of all games follow from the seed and the order of the policies. Results are taken in the
order of games for any number of jobs, and each is written to disk at once. So an interrupted tournament can be resumed
and gives the same table as without the interruption.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from motet.errors import SettingError
from motet.evaluation.episode import EpisodePlan, Played, Task
from motet.evaluation.evaluate import (
    EvaluationSettings,
    FirstFailures,
    describe_entry,
    failed_line,
    players,
    to_the_end,
    why_stopped,
    with_changes,
)
from motet.evaluation.game import Game, most_processes
from motet.evaluation.game_log import GameLog, policy_digest, with_deciding_scores
from motet.evaluation.jobs import Disqualification, JobPool
from motet.evaluation.ratings import Rating, ratings, wins
from motet.evaluation.result import (
    Episode,
    SeededResult,
    failed_episodes,
    plain_episode,
    plain_score,
)
from motet.evaluation.verdict import SequentialTest, Verdict
from motet.evaluation.win_rates import policy_scores
from motet.intervals import Score, score
from motet.runs.config import versions
from motet.system.child import check_main_guard, interrupts
from motet.text import counted
from motet.world.winning import WinRule

__all__ = ["Tournament", "tournament"]

FORMAT = 1
"""Version of the format of :meth:`Tournament.as_dict` and of tournament directories."""

_ROUNDS, _MOST_ROUNDS, _DELTA = 10, 1000, 0.05  # defaults; the last two apply with until_clear
_TOURNAMENT = 25  # constant from which the seeds of games are derived


@dataclass(frozen=True, eq=False, kw_only=True)
class Tournament(SeededResult):
    """Result of a tournament. Two results are equal if their :meth:`deterministic` bytes are equal.

    >>> result = tournament("matrix", ["tit_for_tat", "random"], rounds=1)
    >>> len(result.games), sorted(result.ratings()), result.partial
    (2, ['random', 'tit_for_tat'], False)
    """

    pairings: tuple[tuple[str, ...], ...]
    games: tuple[Episode, ...]
    seconds: float
    """Duration in seconds. For a resumed tournament: since it was resumed."""
    verdict: Verdict | None = None
    """Which of two policies is better. None unless the tournament was played with ``until_clear``."""

    @property
    def played(self) -> tuple[Episode, ...]:
        """All games."""
        return self.games

    def scores(self) -> list[dict[int, float]]:
        """Return the scores that decide each game, by index in ``names``: the mean over a policy's seats.

        In a forfeited game the policies that forfeited have -inf and the others 0. A failed game has no scores.
        """
        index = {name: i for i, name in enumerate(self.names)}
        return [{index[name]: value for name, value in policy_scores(game).items()} for game in self.games]

    def ratings(self) -> dict[str, Rating]:
        """Return the ratings by policy, the strongest first."""
        scores = [one for one in self.scores() if one]
        if not scores:
            return {}
        found = ratings(len(self.names), scores, rule=self._decides)
        named = list(zip(self.names, found, strict=True))
        return dict(sorted(named, key=lambda pair: -pair[1].rating))

    def returns(self) -> dict[str, Score | None]:
        """Return the mean return by policy, over counted games."""
        games = [policy_scores(replace(game, deciding=())) for game in self.games if game.counts]
        return {name: score([one[name] for one in games if name in one]) for name in self.names}

    def cross_table(self) -> dict[str, dict[str, tuple[float, int]]]:
        """Return, by policy and opponent, the share of games won and the number of games. A draw is half a win."""
        scores = [one for one in self.scores() if one]
        table: dict[str, dict[str, tuple[float, int]]] = {}
        count = len(self.names)
        met = np.zeros((count, count), np.int64)
        for one in scores:
            for first, second in itertools.permutations(one, 2):
                met[first, second] += 1
        # A game counts as one between each two of its policies, regardless of the number of players.
        won = np.zeros((count, count))
        for one in scores:
            won += wins(count, [one], self._decides) * (len(one) / 2)
        for i, name in enumerate(self.names):
            table[name] = {
                other: (float(won[i, j] / met[i, j]), int(met[i, j])) for j, other in enumerate(self.names) if met[i, j]
            }
        return table

    def failures(self) -> dict[str, int]:
        """Return the number of failures by policy."""
        return self._failure_counts()

    @property
    def _decides(self) -> WinRule:
        """The rule of the world; if it declares none, the higher score wins."""
        return self.rule or WinRule()

    def _round_of(self) -> Callable[[int], Hashable]:
        """Return a function from the number of a game to its round and pairing, whose games have the same seed."""
        ends = list(itertools.accumulate(map(len, self.pairings)))
        return lambda number: (number // ends[-1], bisect.bisect_right(ends, number % ends[-1]))

    def result(self) -> dict[str, Any]:
        """Return the part that depends only on the seed, as plain values."""
        returns = self.returns()
        table = [
            {
                "policy": name,
                "rating": one.rating,
                "low": one.low,
                "high": one.high,
                "games": one.games,
                "return": None if (mean := returns[name]) is None else plain_score(mean),
            }
            for name, one in self.ratings().items()
        ]
        return {
            **self._common(),
            "pairings": [list(pairing) for pairing in self.pairings],
            **({} if self.verdict is None else {"verdict": self.verdict.plain()}),
            "ratings": table,
            "cross_table": {
                name: {other: {"won": share, "games": count} for other, (share, count) in row.items()}
                for name, row in self.cross_table().items()
            },
            **self._plain_wins(),
            "failures": self.failures(),
            "out": dict(self.out),
            "failed": self.failed(),
            "games": [plain_episode(game) for game in self.games],
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, in the format that docs/tournament.md describes."""
        failed = failed_episodes(self.games, "game")
        measured = {"seconds": self.seconds, "failed_games": failed, "versions": versions()}
        return {"format": FORMAT, "result": self.result(), "measured": measured}

    def html(self) -> str:
        """Return a self-contained HTML page: ratings, cross table, games."""
        from motet.reports.results_page import tournament_page

        return tournament_page(self)


def tournament(
    world: Any,
    policies: Sequence[Any],
    *,
    rounds: int | None = None,
    group: int = 2,
    pairings: Sequence[Sequence[str]] | None = None,
    until_clear: bool = False,
    delta: float | None = None,
    dir: str | os.PathLike[str] | None = None,
    settings: EvaluationSettings | None = None,
    workers: JobPool | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> Tournament:
    """Let policies play each other.

    Args:
        world: as in :func:`motet.evaluate`; it needs two seats or more.
        policies: two or more policies, as in :func:`motet.evaluate`.
        rounds: number of rounds, 10 by default. In each round every pairing plays one game for each rotation of its
            policies over the seats, all with the same seed of the world. With ``until_clear`` it is the maximum, 1,000
            by default.
        group: number of policies in a game; if there are more seats, the policies share them in turn.
        pairings: which policies play each other, by name; by default all combinations of ``group`` policies.
        until_clear: stop as soon as it is clear which of two policies is better: a sequential test, with an error rate
            of 5 %. Then the result has a ``verdict``.
        delta: with ``until_clear``, the difference that the test must detect: a share of points of 0.5 + ``delta`` for
            the better policy. Default: 0.05.
        dir: a directory to which each game is written. If it holds games of the same tournament, the tournament is
            resumed. Games that failed because their job ended or hung are then played again.
        settings: how games are played; ``episodes`` and ``film`` are ignored.
        workers: as in :func:`motet.evaluate`.
        on_progress: called with the number of finished games and the total.
        on_message: called with a line of text for the user.
        changes: fields of ``settings`` to change.

    ::

        result = motet.tournament("matrix", ["tit_for_tat", "random", "runs/mine"], rounds=20, dir="cups/1", jobs=4)
        result.ratings()["tit_for_tat"].rating
    """
    chosen = with_changes(settings or EvaluationSettings(), changes)
    check_main_guard(starts=chosen.engine != "serial" and workers is None)
    rounds = (_MOST_ROUNDS if until_clear else _ROUNDS) if rounds is None else rounds
    if rounds < 1:
        raise SettingError(f"rounds must be an int >= 1, got {rounds}")
    game = Game.of(world, list(policies), chosen)
    meetings = _meetings(game, group, pairings)
    game.check_seats()
    test = _sequential_test(until_clear, delta, game)
    tasks = list(_tasks(game, meetings, rounds))
    names = [entry.title for entry in game.entries]
    decisive: dict[str, Any] = {
        "seed": chosen.seed,
        "stand_in": chosen.stand_in,
        "max_failures": chosen.max_failures,
        "rounds": rounds,
    }
    if test is not None:
        decisive |= {"until_clear": True, "delta": test.delta}
    asked = {
        "format": FORMAT,
        "world": game.described,
        "agents": list(game.agents),
        "policies": [{**describe_entry(entry), "digest": policy_digest(entry)} for entry in game.entries],
        "settings": decisive,
        "pairings": [[names[i] for i in meeting] for meeting in meetings],
    }
    log = GameLog(None if dir is None else Path(dir), asked)
    with log:
        played, seconds, out, stopped = _play(game, tasks, log, chosen, test, workers, on_progress, on_message)
    return Tournament(
        world=game.described,
        agents=game.agents,
        policies=tuple(describe_entry(entry) for entry in game.entries),
        settings={**decisive, "max_failed_episodes": chosen.max_failed_episodes},
        pairings=tuple(tuple(names[i] for i in meeting) for meeting in meetings),
        games=tuple(played),
        out=out,
        partial=len(played) < len(tasks) and not (test and test.clear),
        verdict=test.verdict() if test else None,
        seconds=seconds,
        stopped=stopped,
        rule=game.rule,
    )


def _play(
    game: Game,
    tasks: Sequence[Task],
    log: GameLog,
    settings: EvaluationSettings,
    test: SequentialTest | None,
    workers: JobPool | None,
    on_progress: Callable[[int, int], None],
    on_message: Callable[[str], None],
) -> tuple[list[Episode], float, dict[str, int], str]:
    """Take the games that are in the log, then play the others. Games that failed because of a job are played again.

    With a sequential test, stop after the pair of games that makes the verdict clear.
    """
    names = [entry.title for entry in game.entries]
    judge = Disqualification(names, settings.max_failures, settings.max_failed_episodes)
    kept = with_deciding_scores(log.read(len(tasks)), game.rule, on_message)
    known = {number: _as_played(tasks[number], one, names) for number, one in kept.items()}
    if kept:
        on_message(f"{len(kept)} of {len(tasks)} games were played before")
    done: list[Episode] = []

    def take(episode: Episode) -> bool:
        """Add the next game; return whether the verdict is clear."""
        done.append(episode)
        if test is not None:
            test.take(episode)
        return test is not None and test.clear

    clear = False
    while len(done) in known and not (judge.ends or clear) and known[len(done)].out == judge.out_of(tasks[len(done)]):
        judge.take(known.pop(len(done)))
        clear = take(kept[len(done)])
    left = tasks[len(done) :]
    plan, jobs = game.plan(lambda plan: most_processes(plan, tasks), settings, on_message)
    began, stopped, first = time.perf_counter(), list[str](), FirstFailures(game.entries, "game")
    if left and not (judge.ends or clear):
        own = workers or players(min(jobs, len(left)), settings)
        try:
            with (
                interrupts() as stop,
                contextlib.closing(own.play(plan, left, judge, stop, jobs, on_message, known)) as results,
            ):
                for one in to_the_end(results, stopped, begun=bool(done)):
                    if one is known.get(one.number):
                        clear = take(kept[one.number])
                    else:
                        clear = take(game.episode(one))
                        log.write(done[-1])
                        for line in first.lines(one):
                            on_message(line)
                        if one.failed:
                            on_message(failed_line(one, "game"))
                    on_progress(len(done), len(tasks))
                    if clear:
                        break
        finally:
            if workers is None:
                own.close()
    for name, number in judge.out.items():
        often = counted(settings.max_failures, "time")
        on_message(f"{name} failed {often} and is disqualified after game {number}: the stand-in acts for it")
    _warn_of_voided(done, game, plan, on_message)
    unfinished = len(done) < len(tasks) and not clear
    why = why_stopped(stopped, judge, settings) if unfinished else ""
    if unfinished:
        on_message(f"{why or 'interrupted'}: {len(done)} of {len(tasks)} games were played")
    return done, time.perf_counter() - began, dict(judge.out), why


def _warn_of_voided(games: Sequence[Episode], game: Game, plan: EpisodePlan, on_message: Callable[[str], None]) -> None:
    """Warn of games that failed with their job: a policy in the job's process can end it to avoid a loss."""
    shares = {entry.title for entry, alone in zip(game.entries, plan.isolated, strict=True) if not alone}
    voided = [one for one in games if one.failed == "job" and shares & set(one.policies)]
    if not voided:
        return
    seated = Counter(name for one in voided for name in set(one.policies) & shares)
    suspects = ", ".join(
        f"{name} in {count}" for name, count in sorted(seated.items(), key=lambda pair: (-pair[1], pair[0]))
    )
    on_message(
        f"warning: {counted(len(voided), 'game')} failed because the job ended or hung. A policy without isolation can "
        f"void a game that way. Seated without isolation: {suspects}. Use isolate to find the cause"
    )


def _sequential_test(until_clear: bool, delta: float | None, game: Game) -> SequentialTest | None:
    """Return the test that decides when to stop; None if all rounds are played."""
    if not until_clear:
        if delta is not None:
            raise SettingError(f"delta is only valid with until_clear (got delta={delta})")
        return None
    if len(game.entries) != 2:
        names = ", ".join(entry.title for entry in game.entries)
        raise SettingError(f"policies must be two with until_clear, got {names}")
    delta = _DELTA if delta is None else delta
    if not 0 < delta < 0.5:
        raise SettingError(f"delta must be a number > 0 and < 0.5, got {delta}")
    first, second = (entry.title for entry in game.entries)
    return SequentialTest((first, second), delta, game.rule or WinRule())


def _meetings(game: Game, group: int, pairings: Sequence[Sequence[str]] | None) -> list[tuple[int, ...]]:
    """Return the pairings, by index of the entries."""
    names, seats = [entry.title for entry in game.entries], len(game.agents)
    if len(set(names)) < len(names):
        raise SettingError(f"policies must have different names (name=…), got {', '.join(names)}")
    if len(names) < 2:
        raise SettingError(f"policies must be two or more, got only {', '.join(names)}")
    if seats < 2:
        raise SettingError(f"world must have two seats or more, got {counted(seats, 'seat')}: policies play each other")
    if fixed := [entry.title for entry in game.entries if entry.seat is not None]:
        raise SettingError(f"seat is not valid in a tournament, which rotates seats (got it for {', '.join(fixed)})")
    if pairings is None:
        if not 2 <= group <= min(seats, len(names)):
            most = min(seats, len(names))
            raise SettingError(
                f"group must be {'2' if most == 2 else f'2 to {most}'}, got {group}: there are {len(names)} policies "
                f"and {seats} seats"
            )
        return list(itertools.combinations(range(len(names)), group))
    found = []
    for pairing in pairings:
        if unknown := sorted(set(pairing) - set(names)):
            raise SettingError(f"pairings must be of {', '.join(names)}, got {', '.join(unknown)}")
        if not 2 <= len(pairing) <= seats or len(set(pairing)) < len(pairing):
            many = "2" if seats == 2 else f"2 to {seats}"
            raise SettingError(f"pairings must have {many} different policies each, got {list(pairing)}")
        found.append(tuple(sorted(names.index(name) for name in pairing)))
    if len(set(found)) < len(found):
        raise SettingError("pairings must be different, got one twice; use rounds to play more games")
    return found


def _tasks(game: Game, meetings: Sequence[tuple[int, ...]], rounds: int) -> Any:
    """Yield all games by round, so that an interrupted tournament has about equally many games of each pairing."""
    number = 0
    for round_ in range(rounds):
        for meeting in meetings:
            for turn in range(len(meeting)):
                seats = tuple(meeting[(seat + turn) % len(meeting)] for seat in range(len(game.agents)))
                yield Task(number, seats, (_TOURNAMENT, *meeting, round_))
                number += 1


def _as_played(task: Task, episode: Episode, names: Sequence[str]) -> Played:
    """Return a game of the log in the form that the judge takes."""
    out = tuple(sorted({names.index(name) for name in episode.out}))
    return Played(
        episode.number,
        task.seats,
        out,
        episode.returns,
        episode.decisions,
        episode.turns,
        episode.failures,
        failed=episode.failed,
    )

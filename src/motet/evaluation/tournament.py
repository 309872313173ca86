"""tournament(): policies play each other on rotated seats. Gives a cross table and ratings with intervals.

    policies ─▶ pairings ─▶ games: every pairing in every round on rotated seats ─▶ scores ─▶ cross table, ratings

The seating and the seeds of all games follow from the seed and the order of the policies. Results are taken in the
order of games for any number of jobs, and each is written to disk at once. So an interrupted tournament can be resumed
and gives the same table as without the interruption.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from motet.errors import CorruptionError, SettingError
from motet.evaluation.episode import EpisodePlan, Failure, Played, Task, seat_groups
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
from motet.evaluation.game import Game
from motet.evaluation.jobs import Disqualification, JobPool
from motet.evaluation.ratings import Rating, ratings, wins
from motet.evaluation.result import (
    Episode,
    SeededResult,
    failed_by_cause,
    failed_episodes,
    plain_episode,
    plain_score,
)
from motet.intervals import Score, score
from motet.policies.entries import Entry
from motet.runs.config import versions
from motet.runs.directory import RunDirectory
from motet.runs.status import hold
from motet.system.child import interrupts
from motet.system.imports import paths_now
from motet.text import counted

__all__ = ["Tournament", "tournament"]

FORMAT = 1
"""Version of the format of :meth:`Tournament.as_dict` and of tournament directories."""

_TOURNAMENT = 25  # key that keeps these seeds apart from others


@dataclass(frozen=True, eq=False)
class Tournament(SeededResult):
    """Result of a tournament. Two are equal if their :meth:`deterministic` bytes are equal.

    >>> result = tournament("matrix", ["tit_for_tat", "random"], rounds=1)
    >>> len(result.games), sorted(result.ratings()), result.partial
    (2, ['random', 'tit_for_tat'], False)
    """

    world: dict[str, Any]
    agents: tuple[str, ...]
    policies: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    pairings: tuple[tuple[str, ...], ...]
    games: tuple[Episode, ...]
    out: dict[str, int]
    partial: bool
    seconds: float
    """Duration; of a resumed tournament, only since it was resumed."""
    stopped: str = ""
    """Why the tournament stopped early; empty if it was interrupted."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return tuple(one["name"] for one in self.policies)

    def scores(self) -> list[dict[int, float]]:
        """Return the scores of each game, by index in ``names``: the mean return of a policy over its seats.

        In a forfeited game the policies that forfeited have -1 and the others 0. A failed game has no scores.
        """
        found: list[dict[int, float]] = []
        index = {name: i for i, name in enumerate(self.names)}
        for game in self.games:
            if game.failed:
                found.append({})
                continue
            own: dict[int, list[float]] = {}
            for name, value in zip(game.policies, game.returns, strict=True):
                own.setdefault(index[name], []).append(value)
            if game.forfeited:
                lost = {index[name] for name in game.forfeited}
                found.append({i: -1.0 if i in lost else 0.0 for i in own})
            else:
                found.append({i: math.fsum(values) / len(values) for i, values in own.items()})
        return found

    def ratings(self) -> dict[str, Rating]:
        """Return the ratings by policy, the strongest first."""
        scores = [one for one in self.scores() if one]
        if not scores:
            return {}
        found = ratings(len(self.names), scores)
        named = list(zip(self.names, found, strict=True))
        return dict(sorted(named, key=lambda pair: -pair[1].rating))

    def returns(self) -> dict[str, Score | None]:
        """Return the mean return by policy, over counted games."""
        scores = [one for one, game in zip(self.scores(), self.games, strict=True) if game.counts]
        return {name: score([one[i] for one in scores if i in one]) for i, name in enumerate(self.names)}

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
            won += wins(count, [one]) * (len(one) / 2)
        for i, name in enumerate(self.names):
            table[name] = {
                other: (float(won[i, j] / met[i, j]), int(met[i, j])) for j, other in enumerate(self.names) if met[i, j]
            }
        return table

    def failures(self) -> dict[str, int]:
        """Return the number of failures by policy."""
        found: dict[str, int] = {}
        for game in self.games:
            for failure in game.failures:
                found[failure.policy] = found.get(failure.policy, 0) + 1
        return found

    def failed(self) -> dict[str, int]:
        """How many games failed, by cause: ``world``, ``job``."""
        return failed_by_cause(self.games)

    def result(self) -> dict[str, Any]:
        """What depends on the seed alone, as plain values."""
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
            "partial": self.partial,
            "stopped": self.stopped,
            "world": self.world,
            "agents": list(self.agents),
            "policies": [dict(one) for one in self.policies],
            "settings": dict(self.settings),
            "pairings": [list(pairing) for pairing in self.pairings],
            "ratings": table,
            "cross_table": {
                name: {other: {"won": share, "games": count} for other, (share, count) in row.items()}
                for name, row in self.cross_table().items()
            },
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
    rounds: int = 10,
    group: int = 2,
    pairings: Sequence[Sequence[str]] | None = None,
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
        rounds: number of rounds. In each round every pairing plays one game for each rotation of its policies over the
            seats, all with the same seed of the world.
        group: number of policies in a game; if there are more seats, the policies share them in turn.
        pairings: which policies play each other, by name; by default all combinations of ``group`` policies.
        dir: a directory to which each game is written. If it holds the same tournament, that is resumed. Games that
            failed because their job ended or hung are then played again.
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
    if rounds < 1:
        raise SettingError(f"rounds must be an int >= 1, got {rounds}")
    game = Game.of(world, list(policies), chosen)
    meetings = _meetings(game, group, pairings)
    game.check_seats()
    tasks = list(_tasks(game, meetings, rounds))
    names = [entry.title for entry in game.entries]
    decisive = {"seed": chosen.seed, "stand_in": chosen.stand_in, "max_failures": chosen.max_failures, "rounds": rounds}
    asked = {
        "format": FORMAT,
        "world": game.described,
        "agents": list(game.agents),
        "policies": [{**describe_entry(entry), "digest": _digest(entry)} for entry in game.entries],
        "settings": decisive,
        "pairings": [[names[i] for i in meeting] for meeting in meetings],
    }
    log = _GameLog(None if dir is None else Path(dir), asked)
    with log:
        played, seconds, out, stopped = _play(game, tasks, log, chosen, workers, on_progress, on_message)
    return Tournament(
        world=game.described,
        agents=game.agents,
        policies=tuple(describe_entry(entry) for entry in game.entries),
        settings={**decisive, "max_failed_episodes": chosen.max_failed_episodes},
        pairings=tuple(tuple(names[i] for i in meeting) for meeting in meetings),
        games=tuple(played),
        out=out,
        partial=len(played) < len(tasks),
        seconds=seconds,
        stopped=stopped,
    )


def _play(
    game: Game,
    tasks: Sequence[Task],
    log: _GameLog,
    settings: EvaluationSettings,
    workers: JobPool | None,
    on_progress: Callable[[int, int], None],
    on_message: Callable[[str], None],
) -> tuple[list[Episode], float, dict[str, int], str]:
    """Take the games that are in the log, then play the others. Games that failed because of a job are played again."""
    names = [entry.title for entry in game.entries]
    judge = Disqualification(names, settings.max_failures, settings.max_failed_episodes)
    kept = {number: one for number, one in log.read(len(tasks)).items() if one.failed != "job"}
    known = {number: _as_played(tasks[number], one, names) for number, one in kept.items()}
    if kept:
        on_message(f"{len(kept)} of {len(tasks)} games were played before")
    done: list[Episode] = []
    while len(done) in known and not judge.ends and known[len(done)].out == judge.out_of(tasks[len(done)]):
        judge.take(known.pop(len(done)))
        done.append(kept[len(done)])
    left = tasks[len(done) :]
    plan, jobs = game.plan(lambda plan: _need(plan, tasks), settings, on_message)
    began, stopped, first = time.perf_counter(), list[str](), FirstFailures(game.entries, "game")
    if left and not judge.ends:
        own = workers or players(min(jobs, len(left)), settings)
        try:
            with interrupts() as stop:
                results = own.play(plan, left, judge, stop, jobs, on_message, known)
                for one in to_the_end(results, stopped, begun=bool(done)):
                    if one is known.get(one.number):
                        done.append(kept[one.number])
                    else:
                        done.append(game.episode(one))
                        log.write(done[-1])
                        for line in first.lines(one):
                            on_message(line)
                        if one.failed:
                            on_message(failed_line(one, "game"))
                    on_progress(len(done), len(tasks))
        finally:
            if workers is None:
                own.close()
    for name, number in judge.out.items():
        often = counted(settings.max_failures, "time")
        on_message(f"{name} failed {often} and is disqualified after game {number}: the stand-in acts for it")
    _warn_of_voided(done, game, plan, on_message)
    why = why_stopped(stopped, judge, settings) if len(done) < len(tasks) else ""
    if len(done) < len(tasks):
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


def _need(plan: EpisodePlan, tasks: Sequence[Task]) -> int:
    """Return the maximum number of policy processes of a game."""
    seatings = {task.seats: task for task in tasks}.values()
    return max((sum(plan.isolated[seats.entry] for seats in seat_groups(plan, task)) for task in seatings), default=0)


def _digest(entry: Entry) -> str:
    """Return a digest of the policy's data, so that a tournament is not resumed with another policy by mistake."""
    digest = hashlib.sha256()
    for name, spec in [("", entry.spec), *entry.by_agent.items()]:
        digest.update(name.encode(errors="surrogatepass"))
        if spec.translate:
            digest.update(str(getattr(spec.translate, "__qualname__", spec.translate)).encode(errors="surrogatepass"))
        for key, value in sorted(spec.arguments.items()):
            if isinstance(value, np.ndarray):
                data = value.tobytes()
            elif key == "data" and Path(str(value)).is_file():
                data = Path(str(value)).read_bytes()
            else:
                data = repr(value).encode()
            digest.update(key.encode(errors="surrogatepass") + b"\0" + data)
    return digest.hexdigest()[:16]


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


class _GameLog:
    """The directory of a tournament: its settings, and one line for each game in order.

    A game that was played again has a later line, which replaces the earlier one.
    """

    def __init__(self, path: Path | None, asked: Mapping[str, Any]) -> None:
        self._path, self._asked = path, json.loads(json.dumps(asked))
        self._held: Any = None

    def __enter__(self) -> _GameLog:
        if self._path is not None:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SettingError(f"dir: {str(self._path)!r} cannot be written: {error.strerror or error}") from error
            self._held = hold(self._path)
            self._held.__enter__()
            self._file = (self._path / "games.jsonl").open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
            self._held.__exit__(None, None, None)

    def read(self, games: int) -> dict[int, Episode]:
        """Return the games so far by number. An incomplete last line, left by a process that died, is cut off."""
        if self._path is None:
            return {}
        header = self._path / "tournament.json"
        if not header.is_file():
            RunDirectory(self._path).write_json("tournament.json", self._asked)
            self._file.truncate(0)
            return {}
        before, asked = paths_now(json.loads(header.read_text())), paths_now(self._asked)
        if before != asked:
            changed = [key for key in asked if before.get(key) != asked[key]]
            raise SettingError(
                f"dir: {str(self._path)!r} holds another tournament: {', '.join(changed)} differ; use another "
                "directory, or the same arguments"
            )
        lines = (self._path / "games.jsonl").read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        found: dict[int, Episode] = {}
        try:
            for at, line in enumerate(lines):
                plain = json.loads(line)
                if plain["number"] not in range(min(len(found) + 1, games)):  # the next one, or one played again
                    raise ValueError(f"line {at + 1} is game {plain['number']}")
                found[plain["number"]] = _read_game(plain)
            return found
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{self._path / 'games.jsonl'} cannot be read: {error}") from error

    def write(self, episode: Episode) -> None:
        """Append a game in one write."""
        if self._path is not None:
            plain = {**plain_episode(episode), **({"detail": episode.detail} if episode.failed else {})}
            self._file.write(json.dumps(plain, allow_nan=False).encode() + b"\n")
            self._file.flush()


def _read_game(plain: Mapping[str, Any]) -> Episode:
    number = plain["number"]
    failures = tuple(
        Failure(number, one["turn"], one["policy"], tuple(one["agents"]), one["cause"]) for one in plain["failures"]
    )
    return Episode(
        number=number,
        policies=tuple(plain["policies"]),
        returns=tuple(plain["returns"]),
        decisions=tuple(plain["decisions"]),
        turns=plain["turns"],
        failures=failures,
        out=tuple(plain["out"]),
        forfeited=tuple(plain["forfeited"]),
        failed=plain.get("failed") or "",
        detail=plain.get("detail", ""),
        segments=tuple(plain.get("segments", ())),
    )

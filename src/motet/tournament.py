"""tournament(): policies play each other, seats rotated; a table of who beat whom, and ratings with intervals.

    policies ─▶ pairings ─▶ games: every pairing in every round on rotated seats ─▶ scores ─▶ cross table, ratings

Who plays where and with which seeds follows from the seed and the policies' places in the list. Games are taken in
their order, whatever the number of jobs, and each is written down as soon as it is taken: an interrupted tournament
goes on where it stopped and ends with the table it would have had.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from motet._config import versions
from motet._episodes import Failure, Plan, Played, Task, benches
from motet._numbers import counted
from motet._policies import Entry
from motet._process import interrupts
from motet._ratings import Rating, ratings, wins
from motet._runs import hold
from motet._statistics import Score, score
from motet._workers import Judge, Workers
from motet.checkpoint import RunDirectory
from motet.errors import CorruptionError, SettingError
from motet.evaluate import Episode, Game, Settings, plain_episode, plain_score, players, told, with_changes

__all__ = ["Tournament", "tournament"]

FORMAT = 1
"""Of what :meth:`Tournament.as_dict` gives, and of tournament directories."""

_TOURNAMENT = 25  # what a seed is for


@dataclass(frozen=True)
class Tournament:
    """What came of a tournament."""

    world: dict[str, Any]
    agents: tuple[str, ...]
    policies: tuple[dict[str, Any], ...]
    settings: dict[str, Any]
    pairings: tuple[tuple[str, ...], ...]
    games: tuple[Episode, ...]
    out: dict[str, int]
    partial: bool
    seconds: float
    """Of this part of it, if it was interrupted."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the policies."""
        return tuple(one["name"] for one in self.policies)

    def scores(self) -> list[dict[int, float]]:
        """Of each game, by place in ``names``: a policy's mean return over its seats; who forfeits has lost."""
        found = []
        places = {name: place for place, name in enumerate(self.names)}
        for game in self.games:
            own: dict[int, list[float]] = {}
            for name, value in zip(game.policies, game.returns, strict=True):
                own.setdefault(places[name], []).append(value)
            if game.forfeited:
                lost = {places[name] for name in game.forfeited}
                found.append({place: -1.0 if place in lost else 0.0 for place in own})
            else:
                found.append({place: math.fsum(values) / len(values) for place, values in own.items()})
        return found

    def ratings(self) -> dict[str, Rating]:
        """By policy, the strongest first."""
        if not self.games:
            return {}
        found = ratings(len(self.names), self.scores())
        named = list(zip(self.names, found, strict=True))
        return dict(sorted(named, key=lambda pair: -pair[1].rating))

    def returns(self) -> dict[str, Score | None]:
        """By policy, its return in the games that were not forfeited."""
        scores = [one for one, game in zip(self.scores(), self.games, strict=True) if not game.forfeited]
        return {name: score([one[place] for one in scores if place in one]) for place, name in enumerate(self.names)}

    def cross_table(self) -> dict[str, dict[str, tuple[float, int]]]:
        """By policy and opponent: the share of their games that it won, draws counting half, and how many they were."""
        scores, table = self.scores(), dict[str, dict[str, tuple[float, int]]]()
        count = len(self.names)
        met = np.zeros((count, count), np.int64)
        for one in scores:
            for first, second in itertools.permutations(one, 2):
                met[first, second] += 1
        # Between two policies every game counts as one, however many others took part.
        won = np.zeros((count, count))
        for one in scores:
            won += wins(count, [one]) * (len(one) / 2)
        for i, name in enumerate(self.names):
            table[name] = {
                other: (float(won[i, j] / met[i, j]), int(met[i, j])) for j, other in enumerate(self.names) if met[i, j]
            }
        return table

    def failures(self) -> dict[str, int]:
        """By policy, how often it failed."""
        found: dict[str, int] = {}
        for game in self.games:
            for failure in game.failures:
                found[failure.policy] = found.get(failure.policy, 0) + 1
        return found

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
            "games": [plain_episode(game) for game in self.games],
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values; docs/tournament.md tells what is what."""
        measured = {"seconds": self.seconds, "versions": versions()}
        return {"format": FORMAT, "result": self.result(), "measured": measured}

    def deterministic(self) -> bytes:
        """What depends on the seed alone, to be compared byte for byte."""
        return json.dumps(self.result(), indent=1, allow_nan=False).encode()

    def html(self) -> str:
        """A page that stands alone: ratings, cross table, games."""
        from motet._result_page import tournament_page

        return tournament_page(self)


def tournament(
    world: Any,
    policies: Sequence[Any],
    *,
    rounds: int = 10,
    group: int = 2,
    pairings: Sequence[Sequence[str]] | None = None,
    path: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    workers: Workers | None = None,
    watch: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> Tournament:
    """Let policies play each other.

    Args:
        world: as in :func:`motet.evaluate`; it needs two seats or more.
        policies: as in :func:`motet.evaluate`, two or more of them.
        rounds: in each, every pairing plays once with everybody on every seat in turn, the world's seed being the same.
        group: policies that meet in a game; with more seats than that they share them equally.
        pairings: who meets, by the policies' names; by default everybody meets everybody.
        path: a directory in which games are written down as they are played; one that is there goes on.
        settings: how games are played; ``episodes`` and ``film`` have no meaning here.
        workers: as in :func:`motet.evaluate`.
        watch: called with the number of games done, and of all.
        say: called with one line when something happens that the user should know.
        changes: fields of ``settings`` to set.
    """
    chosen = with_changes(settings or Settings(), changes)
    if rounds < 1:
        raise SettingError(f"rounds: given {rounds}, expected 1 or more")
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
        "policies": [{**told(entry), "digest": _digest(entry)} for entry in game.entries],
        "settings": decisive,
        "pairings": [[names[place] for place in meeting] for meeting in meetings],
    }
    book = _Book(None if path is None else Path(path), asked)
    with book:
        played, seconds, out = _play(game, tasks, book, chosen, workers, watch, say)
    return Tournament(
        world=game.described,
        agents=game.agents,
        policies=tuple(told(entry) for entry in game.entries),
        settings=decisive,
        pairings=tuple(tuple(names[place] for place in meeting) for meeting in meetings),
        games=tuple(played),
        out=out,
        partial=len(played) < len(tasks),
        seconds=seconds,
    )


def _play(
    game: Game,
    tasks: Sequence[Task],
    book: _Book,
    settings: Settings,
    workers: Workers | None,
    watch: Callable[[int, int], None],
    say: Callable[[str], None],
) -> tuple[list[Episode], float, dict[str, int]]:
    """Those games that are in the book already, and then the others."""
    names = [entry.title for entry in game.entries]
    judge = Judge(names, settings.max_failures)
    done = book.read(game)
    for task, episode in zip(tasks, done, strict=False):
        judge.take(_as_played(task, episode, names))
    if done:
        say(f"{len(done)} of {len(tasks)} games were played before")
    left = tasks[len(done) :]
    plan, jobs = game.plan(lambda plan: _need(plan, tasks), settings, say)
    began = time.perf_counter()
    if left:
        own = workers or players(min(jobs, len(left)), settings)
        try:
            with interrupts() as stop:
                for one in own.play(plan, left, judge, stop, jobs, say):
                    done.append(game.episode(one))
                    book.write(done[-1])
                    watch(len(done), len(tasks))
        finally:
            if workers is None:
                own.close()
    for name, number in judge.out.items():
        often = counted(settings.max_failures, "time")
        say(f"{name} failed {often} and is out after game {number}: the stand-in acts for it")
    if len(done) < len(tasks):
        say(f"interrupted: {len(done)} of {len(tasks)} games were played")
    return done, time.perf_counter() - began, dict(judge.out)


def _meetings(game: Game, group: int, pairings: Sequence[Sequence[str]] | None) -> list[tuple[int, ...]]:
    """Who meets, by place in the entries."""
    names, seats = [entry.title for entry in game.entries], len(game.agents)
    if len(set(names)) < len(names):
        raise SettingError(f"policies: given {', '.join(names)}, expected a different name for each: name=…")
    if len(names) < 2:
        raise SettingError(f"policies: given {', '.join(names)} alone, expected 2 or more")
    if seats < 2:
        raise SettingError(f"world: it has {counted(seats, 'seat')}, expected 2 or more: policies play each other")
    if fixed := [entry.title for entry in game.entries if entry.seat is not None]:
        raise SettingError(f"seat: given for {', '.join(fixed)}, but seats are rotated in a tournament")
    if pairings is None:
        if not 2 <= group <= min(seats, len(names)):
            most = min(seats, len(names))
            raise SettingError(
                f"group: given {group}, expected {'2' if most == 2 else f'2 to {most}'}: there are {len(names)} "
                f"policies, and {seats} seats"
            )
        return list(itertools.combinations(range(len(names)), group))
    found = []
    for pairing in pairings:
        if strangers := sorted(set(pairing) - set(names)):
            raise SettingError(f"pairings: given {', '.join(strangers)}, expected some of {', '.join(names)}")
        if not 2 <= len(pairing) <= seats or len(set(pairing)) < len(pairing):
            many = "2" if seats == 2 else f"2 to {seats}"
            raise SettingError(f"pairings: given {list(pairing)}, expected {many} different policies")
        found.append(tuple(sorted(names.index(name) for name in pairing)))
    if len(set(found)) < len(found):
        raise SettingError("pairings: one is given twice, expected each once: rounds says how often they play")
    return found


def _tasks(game: Game, meetings: Sequence[tuple[int, ...]], rounds: int) -> Any:
    """All games: by round, so that an interrupted tournament has met everybody about as often."""
    number = 0
    for round_ in range(rounds):
        for meeting in meetings:
            for turn in range(len(meeting)):
                seats = tuple(meeting[(seat + turn) % len(meeting)] for seat in range(len(game.agents)))
                yield Task(number, seats, (_TOURNAMENT, *meeting, round_))
                number += 1


def _need(plan: Plan, tasks: Sequence[Task]) -> int:
    """Policy processes that one game takes at most."""
    seatings = {task.seats: task for task in tasks}.values()
    return max((sum(plan.isolated[bench.entry] for bench in benches(plan, task)) for task in seatings), default=0)


def _digest(entry: Entry) -> str:
    """Of what a policy consists of, as far as that is data: so that nobody goes on with another one unawares."""
    digest = hashlib.sha256()
    for name, spec in [("", entry.spec), *entry.by_agent.items()]:
        digest.update(name.encode())
        for key, value in sorted(spec.arguments.items()):
            if isinstance(value, np.ndarray):
                data = value.tobytes()
            elif key == "data" and Path(str(value)).is_file():
                data = Path(str(value)).read_bytes()
            else:
                data = repr(value).encode()
            digest.update(key.encode() + b"\0" + data)
    return digest.hexdigest()[:16]


def _as_played(task: Task, episode: Episode, names: Sequence[str]) -> Played:
    """What the judge needs of a game that was played before."""
    out = tuple(sorted({names.index(name) for name in episode.out}))
    return Played(episode.number, task.seats, out, episode.returns, episode.decisions, episode.turns, episode.failures)


class _Book:
    """The directory of a tournament: what was asked for, and one line for each game, in their order."""

    def __init__(self, path: Path | None, asked: Mapping[str, Any]) -> None:
        self._path, self._asked = path, json.loads(json.dumps(asked))
        self._held: Any = None

    def __enter__(self) -> _Book:
        if self._path is not None:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SettingError(f"path: {str(self._path)!r} cannot be written: {error.strerror or error}") from error
            self._held = hold(self._path)
            self._held.__enter__()
            self._file = (self._path / "games.jsonl").open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
            self._held.__exit__(None, None, None)

    def read(self, game: Game) -> list[Episode]:
        """The games so far. A last line that was being written when the process died is cut off."""
        if self._path is None:
            return []
        header = self._path / "tournament.json"
        if not header.is_file():
            RunDirectory(self._path).write_json("tournament.json", self._asked)
            self._file.truncate(0)
            return []
        before = json.loads(header.read_text())
        if before != self._asked:
            changed = [key for key in self._asked if before.get(key) != self._asked[key]]
            raise SettingError(
                f"path: {str(self._path)!r} holds another tournament: {', '.join(changed)} differ; choose another "
                "path, or ask for the same"
            )
        lines = (self._path / "games.jsonl").read_bytes().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        try:
            return [_read_game(json.loads(line), number) for number, line in enumerate(lines)]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{self._path / 'games.jsonl'} cannot be read: {error}") from error

    def write(self, episode: Episode) -> None:
        """One more game, in one write."""
        if self._path is not None:
            self._file.write(json.dumps(plain_episode(episode), allow_nan=False).encode() + b"\n")
            self._file.flush()


def _read_game(plain: Mapping[str, Any], number: int) -> Episode:
    if plain["number"] != number:
        raise ValueError(f"line {number + 1} is game {plain['number']}")
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
    )

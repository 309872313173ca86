"""The directory of a tournament: its settings, and the games that were played."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from motet.errors import CorruptionError, SettingError
from motet.evaluation.episode import Failure
from motet.evaluation.result import Episode, plain_episode
from motet.policies.entries import Entry
from motet.runs.directory import RunDirectory
from motet.runs.status import hold
from motet.system.imports import paths_now
from motet.text import counted
from motet.world.winning import WinRule

__all__ = ["GameLog", "policy_digest", "with_deciding_scores"]


class GameLog:
    """The directory of a tournament: its settings, and one line for each game in order.

    A game that was played again has a later line, which replaces the earlier one.
    """

    def __init__(self, path: Path | None, asked: Mapping[str, Any]) -> None:
        self._path, self._asked = path, json.loads(json.dumps(asked))
        self._held: Any = None

    def __enter__(self) -> GameLog:
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
        deciding=tuple(plain.get("deciding", ())),
    )


def with_deciding_scores(
    games: Mapping[int, Episode], rule: WinRule | None, on_message: Callable[[str], None]
) -> dict[int, Episode]:
    """Return the games of a log that need not be played again.

    Earlier versions did not write the score that decides. If the total reward decides, that score is the return;
    otherwise such a game is played again. Games that failed because of a job are also played again.
    """
    kept = {number: one for number, one in games.items() if one.failed != "job"}
    if rule is None:
        return kept
    old = {number: one for number, one in kept.items() if not (one.deciding or one.failed)}
    if rule.won_by == "total":
        return kept | {number: replace(one, deciding=one.returns) for number, one in old.items()}
    if old:
        often = counted(len(old), "game")
        on_message(f"{often} of an earlier version, without the score that decides who wins, will be played again")
    return {number: one for number, one in kept.items() if number not in old}


def policy_digest(entry: Entry) -> str:
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

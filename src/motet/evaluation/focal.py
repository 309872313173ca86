"""evaluate_focal(): what a policy adds to a team. Each episode is played twice, with the same seeds and seats.

    episode ─▶ background on all seats ─┬─▶ mixed game: the focal policy takes some of the seats ─┬─▶ paired changes
                                        └─▶ background game: the background keeps all seats ──────┘

The seats of the background and those of the focal policy are derived from the seed and the number of the episode. The
two games differ only in the policies on the focal seats, so their difference is what the focal policy changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from motet.errors import SettingError
from motet.evaluation.episode import Task
from motet.evaluation.evaluate import DECISIVE, EvaluationSettings, describe_entry, play_tasks, with_changes
from motet.evaluation.game import Game, most_processes, shared_out
from motet.evaluation.jobs import JobPool
from motet.evaluation.result import Episode, Measured, SeededResult, plain_episode, plain_measured, plain_score
from motet.intervals import Score, score
from motet.system.child import check_main_guard

__all__ = ["FocalEvaluation", "PairedScore", "evaluate_focal"]

FORMAT = 1
"""Version of the format of :meth:`FocalEvaluation.as_dict`. It is increased when readers have to change."""

_FOCAL = 26  # constant from which the seeds of these games are derived


@dataclass(frozen=True)
class PairedScore:
    """Means over the same episodes, and the mean of the change from one game to the other."""

    mixed: Score
    """Mean with the focal policy on some seats."""
    background: Score
    """Mean with the background on all seats."""
    change: Score
    """Mean change: the mixed game minus the background game, episode by episode."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FocalEvaluation(SeededResult):
    """Result of an evaluation in mixed teams. Two results are equal if their :meth:`deterministic` bytes are equal.

    >>> from motet import evaluate_focal
    >>> result = evaluate_focal("matrix", "constant,kw.action=1,name=defector", "tit_for_tat", episodes=2)
    >>> result.changes()["team"].change.mean < 0
    True
    """

    games: tuple[Episode, ...]
    """The games, two for each episode: first the mixed game, then the game with the background on all seats."""
    measured: Measured

    @property
    def played(self) -> tuple[Episode, ...]:
        """All games."""
        return self.games

    @property
    def focal(self) -> str:
        """Name of the focal policy."""
        return self.names[0]

    @property
    def background(self) -> tuple[str, ...]:
        """Names of the background policies."""
        return self.names[1:]

    def pairs(self) -> list[tuple[Episode, Episode]]:
        """Return the mixed game and the background game of each episode in which both count."""
        # after an interruption, one game may have no partner
        both = zip(self.games[::2], self.games[1::2], strict=False)
        return [(mixed, alone) for mixed, alone in both if mixed.counts and alone.counts]

    def changes(self) -> dict[str, PairedScore | None]:
        """Return paired means: the mean return on the ``focal`` seats and on the ``others``, and the sum of returns of
        the ``team``.

        A value is None if there are no such seats, or no episode in which both games count.
        """
        return {what: _paired(self.returns(what)) for what in ("focal", "others", "team")}

    def returns(self, what: str) -> list[tuple[float, float]]:
        """Return, for each pair of games, the return on some seats: ``focal``, ``others`` (means) or ``team`` (sum)."""
        found = []
        for mixed, alone in self.pairs():
            seats = [
                i
                for i, name in enumerate(mixed.policies)
                if what == "team" or (name == self.focal) == (what == "focal")
            ]
            if seats:
                count = 1 if what == "team" else len(seats)
                both = (math.fsum(game.returns[i] for i in seats) / count for game in (mixed, alone))
                found.append((next(both), next(both)))
        return found

    def failures(self) -> dict[str, int]:
        """Return the number of failures by policy."""
        return self._failure_counts()

    def result(self) -> dict[str, Any]:
        """Return the part that depends only on the seed, as plain values."""
        changes = [
            {"seats": what, **{name: plain_score(getattr(one, name)) for name in ("mixed", "background", "change")}}
            for what, one in self.changes().items()
            if one is not None
        ]
        return {
            **self._common(),
            "focal": self.focal,
            "background": list(self.background),
            "changes": changes,
            "failures": self.failures(),
            "out": dict(self.out),
            "failed": self.failed(),
            "games": [plain_episode(game) for game in self.games],
        }

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, in the format that docs/comparing.md describes."""
        return {
            "format": FORMAT,
            "result": self.result(),
            "measured": plain_measured(self.measured, self.games, "game"),
        }

    def html(self) -> str:
        """Return a self-contained HTML page: the changes and the games."""
        from motet.reports.focal_page import focal_page

        return focal_page(self)


def evaluate_focal(
    world: Any,
    focal: Any,
    background: Any,
    settings: EvaluationSettings | None = None,
    *,
    focal_seats: int | Sequence[str] = 1,
    workers: JobPool | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    on_message: Callable[[str], None] = lambda line: None,
    **changes: Any,
) -> FocalEvaluation:
    """Measure what a policy adds to a team of other policies.

    Each episode is played twice with the same seeds: with the focal policy on some seats, and with the background on
    all of them.

    Args:
        world: as in :func:`motet.evaluate`.
        focal: the policy to measure, as in :func:`motet.evaluate`.
        background: a policy, or a sequence of policies, which get the seats in proportion, shuffled by the seed.
        settings: how games are played; ``episodes`` is the number of pairs of games. There is no ``film``.
        focal_seats: the number of seats of the focal policy, drawn for each episode by the seed; or the names of its
            seats.
        workers: as in :func:`motet.evaluate`.
        on_progress: called with the number of finished games and the total.
        on_message: called with a line of text for the user.
        changes: fields of ``settings`` to change.

    ::

        result = motet.evaluate_focal("treasure_hunt", "runs/mine", ["forager", "random"], episodes=100, jobs=4)
        result.changes()["team"].change.mean
    """
    chosen = with_changes(settings or EvaluationSettings(), changes)
    check_main_guard(starts=chosen.engine != "serial" and workers is None)
    others = list(background) if isinstance(background, Sequence) and not isinstance(background, str) else [background]
    if not others:
        raise SettingError("background must be one or more policies, got none")
    if chosen.film:
        raise SettingError("film is not valid with focal and background policies: render the games with motet.evaluate")
    game = Game.of(world, [focal, *others], chosen)
    _check(game)
    seats = focal_seats if isinstance(focal_seats, int) else list(focal_seats)
    tasks = _tasks(game, chosen.episodes, seats)
    done = play_tasks(
        game, tasks, lambda plan: most_processes(plan, tasks), chosen, workers, on_progress, on_message, "game"
    )
    return FocalEvaluation(
        world=game.described,
        agents=game.agents,
        policies=tuple(describe_entry(entry) for entry in game.entries),
        settings={**{name: getattr(chosen, name) for name in DECISIVE}, "focal_seats": seats},
        games=tuple(game.episode(one) for one in done.played),
        out=done.out,
        partial=done.partial,
        measured=done.measured,
        stopped=done.stopped,
    )


def _check(game: Game) -> None:
    """Raise if the policies cannot be told apart, or have options that do not apply here."""
    names = [entry.title for entry in game.entries]
    if names[0] in names[1:]:
        raise SettingError(f"policies must have different names (name=…), got {', '.join(names)}")
    if fixed := [entry.title for entry in game.entries if entry.seat is not None]:
        raise SettingError(
            f"seat is not valid with focal and background policies (got it for {', '.join(fixed)}); use focal_seats"
        )
    if game.entries[0].proportion != 1:
        raise SettingError("proportion is not valid for the focal policy; use focal_seats")


def _tasks(game: Game, episodes: int, focal_seats: int | list[str]) -> list[Task]:
    """Return two games for each episode: the mixed one, then that of the background. Entry 0 is the focal policy."""
    agents, count = game.agents, len(game.agents)
    if isinstance(focal_seats, int):
        if not 1 <= focal_seats <= count:
            most = f"1 to {count}" if count > 1 else "1"
            raise SettingError(f"focal_seats must be {most}, or names of seats, got {focal_seats}")
    elif not focal_seats or (unknown := sorted(set(focal_seats) - set(agents))):
        given = ", ".join(unknown) if focal_seats else "none"
        raise SettingError(f"focal_seats must be some of {', '.join(agents)}, got {given}")
    fixed = None if isinstance(focal_seats, int) else [agents.index(name) for name in focal_seats]
    for entry in game.entries:
        for seat in range(count) if fixed is None or entry is not game.entries[0] else fixed:
            entry.on(agents[seat])
    others = range(1, len(game.entries))
    proportions = [game.entries[i].proportion for i in others]
    tasks: list[Task] = []
    for episode in range(episodes):
        rng = np.random.default_rng(np.random.SeedSequence([game.seed, _FOCAL, episode]))
        alone = shared_out(count, others, proportions, rng)
        own = set(rng.permutation(count)[:focal_seats].tolist() if isinstance(focal_seats, int) else fixed or [])
        mixed = [0 if seat in own else entry for seat, entry in enumerate(alone)]
        for seats in (mixed, alone):
            tasks.append(Task(len(tasks), tuple(seats), (episode,)))
    return tasks


def _paired(both: Sequence[tuple[float, float]]) -> PairedScore | None:
    mixed, alone = score([one for one, _ in both]), score([other for _, other in both])
    change = score([one - other for one, other in both])
    return None if mixed is None or alone is None or change is None else PairedScore(mixed, alone, change)

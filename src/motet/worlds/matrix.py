"""Matrix games: repeated two-player games with simultaneous actions and a payoff table.

A step takes one action of each player and returns their payoffs and last actions. Nothing is random, and the whole
table is public (``payoffs``), so that a test can compute best responses and equilibria and compare a learner with them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray
from pettingzoo import ParallelEnv

from motet.errors import NotReadyError, SettingError
from motet.worlds import pictures
from motet.worlds.contract import ParallelStep, WorldState, check_joint, checked_render_mode, opened, timed_step, whole

__all__ = ["GAMES", "MatrixGame"]

_CELL = 4 * pictures.TILE

GAMES: Final[dict[str, tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]]] = {
    "prisoners_dilemma": (((3, 0), (5, 1)), ((3, 5), (0, 1))),  # cooperate, defect
    "stag_hunt": (((4, 0), (3, 2)), ((4, 3), (0, 2))),  # stag, hare
    "chicken": (((3, 1), (4, 0)), ((3, 4), (1, 0))),  # swerve, dare
    "matching_pennies": (((1, -1), (-1, 1)), ((-1, 1), (1, -1))),  # heads, tails; player 0 wants a match
    "coordination": (((1, 0), (0, 1)), ((1, 0), (0, 1))),
}
"""Named games: the payoffs of player 0 and of player 1, each by [action of player 0][action of player 1]."""


class MatrixGame(ParallelEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """A repeated two-player game, as a PettingZoo Parallel environment.

    An observation is uint8 [own actions + the other's actions + 1]: the player's last action (one-hot), the other
    player's last action (one-hot), and a flag that is set at the start of an episode only. The player's own action
    comes first, so that one policy can play either seat.

    Args:
        game: ``prisoners_dilemma``, ``stag_hunt``, ``chicken``, ``matching_pennies`` or ``coordination``; or payoffs
            [2, actions of player 0, actions of player 1].
        turns: number of turns in an episode.
        render_mode: ``rgb_array`` to draw pictures.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "matrix_v0", "render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(
        self, game: str | ArrayLike = "prisoners_dilemma", turns: int = 100, render_mode: str | None = None
    ) -> None:
        self.turns = whole("turns", turns, 1)
        self.render_mode = checked_render_mode(render_mode)
        self.payoffs = _checked_payoffs(game)  # [player, action of player 0, action of player 1], read-only
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self._counts = self.payoffs.shape[1:]
        self.observation_spaces = {
            name: gymnasium.spaces.Box(0, 1, (sum(self._counts) + 1,), np.uint8) for name in self.possible_agents
        }
        self.action_spaces = {
            name: gymnasium.spaces.Discrete(count)
            for name, count in zip(self.possible_agents, self._counts, strict=True)
        }
        self._turn = -1  # before the first reset
        self._last: tuple[int, int] | None = None  # the last joint action

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.uint8]], dict[str, dict[str, Any]]]:
        """Begin an episode. The game is deterministic, so the seed has no effect."""
        self._turn, self._last = 0, None
        self.agents = self.possible_agents[:]
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> ParallelStep[NDArray[np.uint8]]:
        """Play one turn of both players."""
        check_joint(actions, self.agents)
        first, second = (
            whole(f"the action of {name}", actions[name], 0, count - 1)
            for name, count in zip(self.agents, self._counts, strict=True)
        )
        self._last = (first, second)
        self._turn += 1
        names = self.agents
        over = self._turn == self.turns
        if over:
            self.agents = []
        return timed_step(names, self._observations(), self.payoffs[:, first, second].tolist(), over)

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """Observation space of a player."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """Action space of a player; the players may have different numbers of actions."""
        return self.action_spaces[agent]

    def state(self) -> NDArray[np.uint8]:
        """Return the last joint action as player 0 observes it."""
        return self._observation(0)

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the table, uint8 [64 * (rows + 1), 64 * (columns + 1), 3]; None without ``render_mode`` ``rgb_array``.

        Rows are the actions of player 0, columns those of player 1. A cell shows the payoff of player 0 at the lower
        left and that of player 1 at the upper right. The higher the sum of both, the greener the cell. The last joint
        action is framed.
        """
        if self.render_mode is None:
            return None
        rows, columns = self._counts
        unit = _CELL // pictures.TILE
        together = self.payoffs.sum(axis=0)
        share = ((together - together.min()) / (np.ptp(together) or 1.0))[..., None]
        cells = np.full((rows + 1, columns + 1, 3), pictures.PAPER, np.uint8)
        cells[1:, 1:] = np.rint(share * np.array((190, 222, 190)) + (1 - share) * np.array((242, 222, 206)))
        picture = pictures.ground(cells.repeat(unit, axis=0).repeat(unit, axis=1), lines=0.0)
        for line in range(1, rows + 1):
            picture[line * _CELL] = pictures.WALL
        for line in range(1, columns + 1):
            picture[:, line * _CELL] = pictures.WALL
        self._label(picture)
        if self._last is not None:
            top, left = ((action + 1) * _CELL for action in self._last)
            cell = picture[top : top + _CELL, left : left + _CELL]
            cell[1:4] = cell[-3:] = cell[:, 1:4] = cell[:, -3:] = pictures.INK
        return picture

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
        if self._turn < 0:
            raise NotReadyError("there is no state yet: call reset() first")
        return (self._header(), self._turn, self._last)

    def set_state(self, state: WorldState) -> None:
        """Continue from a state of the same game, bit for bit."""
        self._turn, self._last = opened(state, self._header())
        self.agents = [] if self._turn == self.turns else self.possible_agents[:]

    def _header(self) -> WorldState:
        return ("matrix", self.turns, self._counts, self.payoffs.tobytes())

    def _observation(self, player: int) -> NDArray[np.uint8]:
        seen = np.zeros(sum(self._counts) + 1, np.uint8)
        if self._last is None:
            seen[-1] = 1
        else:
            seen[self._last[player]] = 1
            seen[self._counts[player] + self._last[1 - player]] = 1
        return seen

    def _observations(self) -> dict[str, NDArray[np.uint8]]:
        return {name: self._observation(player) for player, name in enumerate(self.possible_agents)}

    def _label(self, picture: NDArray[np.uint8]) -> None:
        """Number the rows and columns in the colours of their players, and write both payoffs into every cell."""
        own, other = pictures.AGENTS[:2]
        for player, (count, colour) in enumerate(zip(self._counts, (own, other), strict=True)):
            for action in range(count):
                top, left = (_CELL * (action + 1), 0) if player == 0 else (0, _CELL * (action + 1))
                text = str(action)
                pictures.write(picture, top + 22, left + 32 - 8 * len(text), text, colour, scale=4)
        for row in range(self._counts[0]):
            for column in range(self._counts[1]):
                top, left = _CELL * (row + 1), _CELL * (column + 1)
                mine, yours = (f"{payoff:.3g}" for payoff in self.payoffs[:, row, column].tolist())
                scale = 2 if max(len(mine), len(yours)) <= 6 else 1
                pictures.write(picture, top + _CELL - 20, left + 9, mine, own, scale)
                pictures.write(picture, top + 10, left + _CELL - 6 - 4 * scale * len(yours), yours, other, scale)


def _checked_payoffs(game: str | ArrayLike) -> NDArray[np.float64]:
    """Return the payoffs of a named or given game, float64 [2, rows, columns], read-only."""
    if isinstance(game, str):
        if game not in GAMES:
            raise SettingError(f"game must be one of {', '.join(sorted(GAMES))}, or payoffs [2, n, m], got {game!r}")
        table: ArrayLike = GAMES[game]
    else:
        table = game
    try:
        payoffs = np.array(table, np.float64)
    except (TypeError, ValueError):
        raise SettingError(f"game must be payoffs [2, n, m], one n x m table per player, got {game!r}") from None
    if payoffs.ndim != 3 or payoffs.shape[0] != 2 or payoffs.size == 0:
        raise SettingError(f"payoffs must have the shape (2, n, m), one n x m table per player, got {payoffs.shape}")
    if not np.isfinite(payoffs).all():
        raise SettingError(f"payoffs must be finite numbers, got {payoffs.tolist()}")
    payoffs.flags.writeable = False
    return payoffs

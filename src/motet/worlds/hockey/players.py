"""Scripted hockey players: a weak and a strong one, for many worlds at once or as a policy for one.

Both compute actions from the current observations alone and have no memory. The weak player follows the puck slowly and
shoots as soon as it can. The strong player is faster, guards its goal, gets behind the puck, and aims at the corner
that the opponent leaves open.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from motet.worlds.hockey.rules import HALF_LENGTH, MOUTH, REACH, SHOT, heading

__all__ = ["Strong", "Weak"]

Floats = NDArray[np.float32]


class _HockeyPlayer:
    """A player without memory: a motet Policy, and ``act_many`` for the observations of many worlds."""

    def reset(self, seed: int) -> None:
        """Begin a new episode."""

    def act(self, observation: Any, mask: NDArray[np.bool_] | None = None) -> Floats:
        """Return the action for one observation."""
        action: Floats = self.act_many(np.asarray(observation, np.float32)[None])[0]
        return action

    def act_many(self, observations: Floats) -> Floats:
        """Return the actions [K, 4] for observations [K, 18]."""
        raise NotImplementedError


class Weak(_HockeyPlayer):
    """Moves slowly to the puck while the puck is in the player's half, else waits in the middle; shoots straight
    ahead."""

    def act_many(self, observations: Floats) -> Floats:
        """Return the actions [K, 4] for observations [K, 18]."""
        x, y, angle, vx, vy, spin, *_, puck_x, puck_y, _, _, hold, _ = observations.T
        mine = puck_x < 0
        to_x, to_y = np.where(mine, puck_x - REACH / 2, -3.0), np.where(mine, puck_y, 0.0)
        push_x, push_y = _towards(to_x - x, vx), _towards(to_y - y, vy)
        return _actions(0.5 * push_x, 0.5 * push_y, -2.0 * angle - 0.2 * spin, hold > 0)


class Strong(_HockeyPlayer):
    """Guards its goal, intercepts, gets behind the puck, and aims past the opponent."""

    def act_many(self, observations: Floats) -> Floats:
        """Return the actions [K, 4] for observations [K, 18]."""
        x, y, angle, vx, vy, spin, _, other_y, *_, puck_x, puck_y, puck_vx, puck_vy, hold, _ = observations.T
        holds = hold > 0
        comes = (puck_vx < -1.0) & (puck_x > x)
        # Guard: in front of the goal, level with an approaching puck.
        guard_x = np.full_like(x, -4.2)
        guard_y = np.clip(np.where(comes, puck_y, 0.45 * puck_y), -MOUTH, MOUTH)
        # Fetch: go to the puck from behind; go around it if it is behind the player.
        behind = puck_x < x + 0.2
        side = np.where(y >= puck_y, 1.0, -1.0)
        fetch_x = np.where(behind, puck_x - 1.2, puck_x - REACH / 2)
        fetch_y = np.where(behind & (np.abs(y - puck_y) < 1.0), puck_y + 1.1 * side, puck_y)
        fetch_y = np.where(comes, puck_y, fetch_y + 0.1 * puck_vy)
        fetches = (puck_x < 0.0) & ~(comes & (puck_vx < -6.0))
        to_x = np.where(holds, -1.0, np.where(fetches, fetch_x, guard_x))
        to_y = np.where(holds, y, np.where(fetches, fetch_y, guard_y))
        # Aim: at the corner away from the opponent, corrected for the player's motion; straight ahead without the puck.
        corner = np.where(other_y > 0, -0.8, 0.8) * MOUTH
        cosine, sine = heading(angle[None])[0]
        aim_x, aim_y = HALF_LENGTH - x - REACH * cosine, np.where(holds, corner - y - REACH * sine, 0.0)
        flight_x, flight_y = cosine + np.where(holds, vx / SHOT, 0.0), sine + np.where(holds, vy / SHOT, 0.0)
        error = (flight_x * aim_y - flight_y * aim_x) / np.sqrt(aim_x * aim_x + aim_y * aim_y)
        shoots = holds & (np.abs(error) < 0.04)
        push_x, push_y = _towards(to_x - x, vx), _towards(to_y - y, vy)
        return _actions(0.75 * push_x, 0.75 * push_y, 6.0 * error - 0.6 * spin, shoots)


def _towards(way: Floats, speed: Floats) -> Floats:
    """Return the force that moves a player quickly by ``way`` and stops it there."""
    return np.clip(4.0 * way - 0.6 * speed, -1.0, 1.0)


def _actions(force_x: Floats, force_y: Floats, torque: Floats, shoots: NDArray[np.bool_]) -> Floats:
    actions: Floats = np.stack([force_x, force_y, np.clip(torque, -1.0, 1.0), 2.0 * shoots - 1.0], axis=-1)
    return actions.astype(np.float32)

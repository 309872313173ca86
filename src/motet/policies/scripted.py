"""Scripted policies with a name on the command line, as baselines and training opponents."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space
from motet.errors import SettingError
from motet.masks import mask_form
from motet.nest import Nest
from motet.policies.joint import filler
from motet.policy import ConstantPolicy
from motet.world.spaces import InvalidValue, action_checker

__all__ = ["Forager", "Noop", "TitForTat", "constant"]


class Noop:
    """Always takes a null action: zeros, or the first action. If a mask forbids it, takes the first allowed action.

    >>> from gymnasium.spaces import Discrete
    >>> int(Noop(Discrete(3, start=5)).act(None))
    5
    """

    def __init__(self, action_space: Space) -> None:
        self._action = filler(action_space)
        self._mask_form = mask_form(action_space)

    def reset(self, seed: int) -> None:
        """Begin a new episode."""

    def act(self, observation: Nest, mask: Nest = None) -> Any:
        """Return the null action."""
        return self._mask_form.nearest(mask, self._action)

    def get_state(self) -> Any:
        """Return None: this policy has no state."""
        return None

    def set_state(self, state: Any) -> None:
        """Do nothing: this policy has no state."""


def constant(action: Any, action_space: Space) -> ConstantPolicy:
    """Make a policy that always takes the same action."""
    if hasattr(action_space, "spaces"):
        fitting = action
    else:
        given = np.asarray(action, action_space.dtype)
        fitting = given[()] if given.shape == () else given
    try:
        action_checker(action_space)(fitting)
    except InvalidValue:
        raise SettingError(f"action must be one of {action_space}, got {action!r}") from None
    return ConstantPolicy(fitting, action_space=action_space)


class Forager:
    """Walks to the nearest visible gem or food in the treasure hunt and avoids bones. Walks randomly if it sees
    neither."""

    _STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right

    def __init__(self, observation_space: Space) -> None:
        shape = observation_space.shape
        if len(shape) != 3 or shape[0] != 5 or shape[1] != shape[2]:
            raise SettingError(f"forager needs the observation space of the treasure hunt, got {observation_space}")
        self._middle = shape[1] // 2
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._rng = np.random.default_rng(seed)

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> int:
        """Return a move."""
        wall, agent, gem, food, bone = np.asarray(observation, np.bool_)
        centre, blocked = self._middle, wall | agent | bone
        free = [move for move, (down, right) in enumerate(self._STEPS) if not blocked[centre + down, centre + right]]
        if not free:
            return 0
        offsets = np.argwhere(gem | food) - centre
        if not len(offsets):
            return int(self._rng.choice(free))
        down, right = offsets[np.abs(offsets).sum(1).argmin()]
        wanted = [0 if down < 0 else 1] * bool(down) + [2 if right < 0 else 3] * bool(right)
        good = [move for move in wanted if move in free]
        return int(good[0] if good else self._rng.choice(free))


class TitForTat:
    """Plays matrix games: begins with the first action, then repeats the other player's last action."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self._own = int(action_space.n)
        if observation_space.shape != (2 * self._own + 1,):
            raise SettingError(
                f"tit_for_tat needs the observation space of a symmetric matrix game, got {observation_space}"
            )

    def reset(self, seed: int) -> None:
        """Begin a new episode."""

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> int:
        """Return the other player's last action."""
        return int(np.argmax(observation[self._own : 2 * self._own]))  # all zeros in the first turn

"""Acting rules for algorithms that are written as a loss: they turn outputs of a network into actions.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.algorithm import Field, Space
from motet.algorithms._distributions import HALF_LOG_TAU, Choices, actions_of
from motet.algorithms._greedy import Bound, Choose
from motet.algorithms._value import highest, n_actions
from motet.algorithms.td3 import ActionScale
from motet.errors import SettingError
from motet.schedule import Schedule

__all__ = ["Acting", "Categorical", "DiagonalGaussian", "EpsilonGreedy", "GaussianNoise"]

_LOG_STD = -20.0, 2.0


class Acting(Protocol):
    """How outputs of the first network become actions."""

    outputs: int
    """Number of network outputs that the rule reads; a network may have more."""
    fields: Mapping[str, Field]
    """Further fields of a row, which the loss gets in ``batch.extra``."""
    masked: int
    """Number of entries of a flat action mask (see :mod:`motet.masks`); 0: the rule does not support masks."""

    def choose(
        self,
        out: npt.NDArray[np.float32],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
        value: Callable[[Schedule], float],
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions and further fields for outputs ``[B, outputs]``; actions are greedy without ``rng``.

        ``value`` returns the current value of a schedule. Each row always draws the same number of random numbers.
        """
        ...


class EpsilonGreedy:
    """Epsilon-greedy: with probability epsilon a random action, otherwise the action with the highest value.

    Args:
        actions: a Discrete space.
        epsilon: the probability.

    >>> from gymnasium.spaces import Discrete
    >>> rule = EpsilonGreedy(Discrete(3), 0.1)
    >>> rule.choose(np.array([[0, 2, 1]], "float32"), None, None, float)
    (array([1]), {})
    """

    def __init__(self, actions: Space, epsilon: Schedule) -> None:
        self.outputs = self.masked = n_actions(actions, "EpsilonGreedy")
        self.fields: Mapping[str, Field] = {}
        self._first, self._epsilon = int(getattr(actions, "start", 0)), epsilon
        self._best = highest(actions, "EpsilonGreedy")

    def best(self) -> Choose:
        """Return how the greedy action follows from the outputs, for export."""
        return self._best

    def choose(
        self,
        out: npt.NDArray[np.float32],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
        value: Callable[[Schedule], float],
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return actions; exploration draws two numbers for each row."""
        found = np.empty(len(out), np.int64)
        draws = None if rng is None else rng.random((len(out), 2))
        _native.choose(np.ascontiguousarray(out), masks, draws, value(self._epsilon), self._first, found)
        return found, {}


class Categorical:
    """Draws from the softmax of logits, and adds ``log_prob`` to each row; greedy actions have the highest logit.

    Args:
        actions: a Discrete space, or a MultiDiscrete one, for which the logits of all choices are concatenated.

    >>> from gymnasium.spaces import Discrete
    >>> actions, extra = Categorical(Discrete(2)).choose(np.zeros((1, 2), "float32"), None, None, float)
    >>> actions, extra["log_prob"].round(2)
    (array([0]), array([-0.69], dtype=float32))
    """

    def __init__(self, actions: Space) -> None:
        found = actions_of(actions)
        if not isinstance(found, Choices):
            raise SettingError(f"Categorical must get a Discrete or MultiDiscrete action space, got {actions!r}")
        self._choices, self.outputs = found, found.outputs
        self.masked = found.mask_size
        self.fields: Mapping[str, Field] = {"log_prob": Field(), **found.fields}

    def best(self) -> Choose:
        """Return how the greedy action follows from the outputs, for export."""
        return self._choices.best()

    def choose(
        self,
        out: npt.NDArray[np.float32],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
        value: Callable[[Schedule], float],
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions with their log-probabilities."""
        return self._choices.draw(out, None, masks, rng)


class _BoxRule:
    """Base of rules for Box actions. A loss gets such actions as vectors in [-1, 1]."""

    masked = 0
    squashes = False

    def __init__(self, actions: Space) -> None:
        self._scale = ActionScale(actions)

    def best(self) -> Bound:
        """Return how the greedy action follows from the outputs, for export."""
        return self._scale.best(self.squashes)


class DiagonalGaussian(_BoxRule):
    """Draws from a Gaussian. The network outputs the means, followed by the logs of the standard deviations.

    Each row also gets ``unclipped``, the drawn vector before it is clipped to [-1, 1], and ``log_prob``, its log
    density. Greedy actions are the means.

    Args:
        actions: a Box with bounds.
    """

    def __init__(self, actions: Space) -> None:
        super().__init__(actions)
        self.outputs = 2 * self._scale.size
        self.fields: Mapping[str, Field] = {"log_prob": Field(), "unclipped": Field((self._scale.size,))}

    def choose(
        self,
        out: npt.NDArray[np.float32],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
        value: Callable[[Schedule], float],
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions with their log densities."""
        mean, log_std = out[:, : self._scale.size], out[:, self._scale.size :].clip(*_LOG_STD)
        noise = np.zeros_like(mean) if rng is None else rng.standard_normal(mean.shape, np.float32)
        log_prob = -(0.5 * noise * noise + log_std + np.float32(HALF_LOG_TAU)).sum(1)
        unclipped = mean + noise * np.exp(log_std)
        return self._scale.actions(unclipped.clip(-1, 1)), {"log_prob": log_prob, "unclipped": unclipped}


class GaussianNoise(_BoxRule):
    """The action is the tanh of the network's outputs. Exploration adds Gaussian noise to it.

    Args:
        actions: a Box with bounds.
        noise: standard deviation of the noise; the action space is scaled to [-1, 1].
    """

    squashes = True

    def __init__(self, actions: Space, noise: Schedule) -> None:
        super().__init__(actions)
        self.outputs, self._noise = self._scale.size, noise
        self.fields: Mapping[str, Field] = {}

    def choose(
        self,
        out: npt.NDArray[np.float32],
        masks: npt.NDArray[np.bool_] | None,
        rng: np.random.Generator | None,
        value: Callable[[Schedule], float],
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions; exploration draws one number for each component."""
        vectors = np.tanh(out)
        if rng is not None:
            vectors += np.float32(value(self._noise)) * rng.standard_normal(vectors.shape, np.float32)
        return self._scale.actions(vectors.clip(-1, 1)), {}

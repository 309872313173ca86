"""Checks of a user's loss before a run: whether it follows the rules, and whether many agents' losses can be computed
together."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from motet.algorithm import Space
from motet.algorithms._loss_learner import Data, LoopedLosses, LossForm, LossPass, StackedLosses
from motet.algorithms.loss import LearnedPlan, LossConfig, LossLayout
from motet.errors import SettingError

__all__ = ["check_loss", "stacks_losses"]

_AGENTS = 2
_Kind = TypeVar("_Kind", LoopedLosses, StackedLosses)


class _Probe:
    """A loss on random rows and a random batch of two agents."""

    def __init__(self, config: LossConfig, observation_space: Space, action_space: Space) -> None:
        self._config, self._form = config, LossForm(config, observation_space, action_space)
        self.layout = LossLayout.of(config, observation_space, action_space)
        rows = np.zeros((_AGENTS, self.layout.state), np.float32)
        for i, row in enumerate(rows):
            self.layout.initialise(row, np.random.default_rng(i))
        self._rows = torch.from_numpy(rows)
        replay = config.replay(observation_space, action_space)
        self._data = _random_data(self._form, action_space, replay.extra, replay.next_observation and not replay.once)

    def run(self, kind: type[_Kind]) -> tuple[_Kind, LossPass, Tensor]:
        """Compute the losses; return the object that computed them, the results and the gradients."""
        grad = torch.zeros(_AGENTS, self.layout.learned)
        losses = kind(self._config, self._form, self.layout, self._rows, grad)
        return losses, losses.run(self._data, range(_AGENTS)), grad


def _random_data(form: LossForm, action_space: Space, extra: Any, has_next: bool) -> Data:
    rng, lead = np.random.default_rng(0), (_AGENTS, *form.rows)

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.random(shape, np.float32))

    def seen() -> Tensor:
        x = numbers(_AGENTS * math.prod(form.seen_rows), form.encoder.size)
        form.encoder.draw_indices(x, rng)
        return x.view(_AGENTS, -1, form.encoder.size)

    kind = np.dtype(action_space.dtype).kind
    most = np.asarray(getattr(action_space, "nvec", getattr(action_space, "n", 2)))
    whole = (numbers(*lead, *form.axes) * torch.from_numpy(most.astype(np.float32))).long()
    return {
        "x": seen(),
        **({"next_x": seen()} if has_next else {}),
        "action": 2 * numbers(*lead, *form.axes) - 1 if kind == "f" else whole,
        "reward": numbers(*lead),
        "discount": numbers(*lead),
        "weight": numbers(*lead),
        "valid": numbers(*lead) < 0.9,
        "extra": {name: numbers(*lead, *item.shape) for name, item in extra.items()},
        "draws": {name: numbers(*lead, n) for name, (n, _) in form.draws.items()},
        "settings": {name: numbers(_AGENTS) for name in form.schedules},
    }


def check_loss(config: LossConfig, observation_space: Space, action_space: Space) -> None:
    """Raise unless a loss follows the rules for losses."""
    probe = _Probe(config, observation_space, action_space)
    try:
        probe.run(LoopedLosses)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"loss of {type(config).__name__} raised {type(error).__name__}: {error}") from error


def stacks_losses(config: LossConfig, observation_space: Space, action_space: Space) -> bool:
    """Return whether to compute many agents' losses in one pass.

    The answer depends only on the loss and the networks, never on measured times, so that all processes agree.
    """
    probe = _Probe(config, observation_space, action_space)
    plans = [part.plan for part in probe.layout.parts.values() if not isinstance(part.plan, LearnedPlan)]
    if not all(plan.stacks for plan in plans):
        return False
    losses, looped, grad = probe.run(LoopedLosses)
    if losses.drew:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, stacked, other = probe.run(StackedLosses)
    except Exception:  # noqa: BLE001 - whatever vmap refuses runs in a loop
        return False
    pairs = (looped.loss, stacked.loss), (grad, other)
    return all(torch.allclose(one, two, rtol=1e-3, atol=1e-4, equal_nan=True) for one, two in pairs)

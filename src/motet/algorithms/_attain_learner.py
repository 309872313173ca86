"""The learning half of attainment: targets from the model's transitions, and a network of Q_h for all goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Update
from motet.algorithms._device import Device
from motet.algorithms._flat import FlatLearner
from motet.algorithms._plans import padded
from motet.algorithms._transitions import Transitions
from motet.algorithms.attain import AttainConfig, widest
from motet.schedule import value_at
from motet.world.coded import CodedModel

__all__ = ["Attain", "HumanFormulas"]

_METRICS = ("loss", "value", "cache_hits")
_OVER: Mapping[str, Callable[[Tensor, int], Tensor]] = {"worst": torch.amin, "best": torch.amax, "mean": torch.mean}
"""How humans aggregate over the robot's actions: worst, best or mean."""


class HumanFormulas:
    """The formulas of the humans' values, from Q_h of the target network.

    Args:
        config: the settings.
        coded: the model.
        device: device of the tensors.
        dtype: dtype of the tensors.
    """

    def __init__(
        self, config: AttainConfig, coded: CodedModel, device: Device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.config, self.width = config, widest(coded)
        sizes = np.array([coded.actions[human] for human in coded.humans])[coded.owner]
        missing = np.arange(self.width) >= sizes[:, None]
        self._missing = device.to_device(missing)  # [goals, actions]
        self._owner = device.to_device(coded.owner.astype(np.int64))
        self._dtype = dtype

    def value(self, q: Tensor) -> Tensor:
        """Return V_h ``[..., goals]`` for Q_h ``[..., goals, actions]``, where the goal does not hold."""
        policy = torch.softmax((q * self.config.beta).masked_fill(self._missing, -torch.inf), dim=-1)
        return (policy * q).sum(-1)

    def targets(
        self, rows: Transitions, q: Tensor, profile: Tensor, belief: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the targets of Q_h ``[A, B, goals, actions]`` and their weights. The weight is 0 where a row gives no
        target.

        Args:
            rows: the batch.
            q: Q_h of the successors, ``[A, N, goals, actions]``.
            profile: actions of the humans, ``[A, B, P, humans]``.
            belief: weights of the profiles for the humans, of the same shape; None: all weights are 1.
        """
        config = self.config
        gamma = q.new_full((len(q), 1, 1), config.gamma if config.rho is None else math.exp(-config.rho))
        reached = rows.attained(self.value(q), gamma, timed=config.rho is not None)
        chosen = _OVER[config.robot](reached, 3)
        own = profile[..., self._owner].unsqueeze(-1) == torch.arange(self.width, device=profile.device)
        weight = own.to(self._dtype)
        if belief is not None:
            weight *= belief[..., self._owner].unsqueeze(-1)
        total = weight.sum(2)  # [A, B, goals, actions]
        aim = (weight * chosen.unsqueeze(-1)).sum(2) / total.clamp_min(1e-30)
        return aim, total if profile.shape[2] == 1 else (total > 0).to(self._dtype)


class Attain(FlatLearner):
    """The learning half of ``attain``."""

    def __init__(self, config: AttainConfig, coded: CodedModel, seeds: Sequence[int], device: Device) -> None:
        plan = config.plan(coded)

        def initialise(row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            plan.initialise(row[: plan.size], rng)

        super().__init__(padded(plan.size), seeds, initialise, device, _METRICS, streams=plan.draws)
        self.config, self.coded = config, coded
        part = slice(0, plan.size)
        self._online = plan.bind(self._weights[:, part], self._grad[:, part], seed=self._seed)
        self._target = plan.bind(self._targets[:, part])
        self._formulas = HumanFormulas(config, coded, device)
        self._goals = len(coded.weights)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        updates = int(self.counters[agent, 0])
        return {"learner_step": updates, "stage": self.config.stages.index(step, updates)}

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, device = self.config, self._device
        rows = Transitions(batch, self._goals, device)
        agents, count, size = rows.codes.shape
        flat = self.coded.encode(rows.codes.reshape(-1, size))
        x = device.to_device(flat).view(agents, count, -1)
        shape = (agents, -1, self._goals, self._formulas.width)
        q = torch.sigmoid(self._target.forward(x[:, : rows.n].contiguous()).out.reshape(shape))
        profile = device.to_device(batch.extra["profile"]).to(torch.int64)
        belief = device.to_device(batch.extra["belief"]) if "belief" in batch.extra else None
        aim, given = self._formulas.targets(rows, q, profile, belief)

        done = self._online.forward(x[:, rows.n :].contiguous(), learn=True)
        error = (torch.sigmoid(done.out.reshape(shape)) - aim) * given  # the gradient of the cross-entropy
        self._online.backward(done, error.reshape(done.out.shape) / batch.reward.shape[1])
        self._clip(config.max_grad_norm)
        if self._measures():
            self._measure({
                "loss": (error**2).sum((1, 2, 3)) / given.sum((1, 2, 3)),
                "value": (aim * given).sum((1, 2, 3)) / given.sum((1, 2, 3)),
                "cache_hits": device.to_device(batch.extra["known"]).mean(1),
            })  # fmt: skip
        counts = zip(map(int, steps), self.counters[:, 0].tolist(), strict=True)
        rates = [value_at(config.learning_rate, step, config.stages, updates) for step, updates in counts]
        self._adam(rates, config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        return Update(self._metrics)

"""The learning half of empowerment for goals that are sampled: networks of V_e(s, h, g), log(-Q_r) and log(X_h)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from motet.algorithm import Batch
from motet.algorithms._device import Device
from motet.algorithms._empower_learner import EmpowerNetworks, Formulas, ModelRows, Targets
from motet.algorithms.empower_sampled import EmpowerSampledConfig
from motet.errors import ModelError
from motet.world.coded import CodedModel

__all__ = ["EmpowerSampled", "SampledFormulas", "SampledRows"]

_ENOUGH = 20_000
"""If this number of learned goals of a human never held, an error is raised."""


class SampledRows(ModelRows):
    """The content of a batch, with the goals that were drawn for each row.

    Attributes:
        goal: ``[A, B, goals, numbers]``: the numbers of the goals, then a one-hot number of the human.
        goal_weight: ``[A, B, goals]``.
        held: ``[A, B, goals]``: 1 where the goal holds in the state of the row.
        row: ``[A, N]``: number of the row to which a successor belongs.
    """

    def __init__(self, batch: Batch, humans: int, device: Device, dtype: torch.dtype = torch.float32) -> None:
        extra = batch.extra
        agents, rows, goals, _ = extra["goal"].shape
        super().__init__(batch, goals, device, dtype)
        who = np.eye(humans, dtype=np.float32).repeat(goals // humans, 0)
        who = np.broadcast_to(who, (agents, rows, goals, humans))
        numbers = np.concatenate([extra["goal"].astype(np.float32), who], 3, dtype=np.float32)
        self.goal = device.to_device(numbers)
        self.goal_weight = device.to_device(extra["goal_weight"]).to(dtype)
        self.held = device.to_device(np.unpackbits(extra["held"], axis=2, count=goals)).to(dtype)
        self.row_weight = device.to_device(extra["importance"]).to(dtype)
        own = torch.arange(rows, device=self.at.device).view(1, -1, 1, 1).expand_as(self.at)
        row = self.at.new_zeros(agents, self.n + 1)
        self.row = row.scatter_(1, self.at.flatten(1), own.flatten(1))[:, : self.n]

    def pairs(self, x: Tensor, goal: Tensor) -> Tensor:
        """Return each state ``[A, n, inputs]`` with each of its goals ``[A, n, goals, numbers]``, one after another."""
        states = x.unsqueeze(2).expand(-1, -1, goal.shape[2], -1)
        return torch.cat([states, goal], 3).flatten(1, 2)


class SampledFormulas(Formulas):
    """The formulas of the robot's value if a network learns X_h."""

    def power_target(self, rows: SampledRows, attainment: Tensor) -> Tensor:
        """Return the targets of X_h ``[A, B, humans]``, from V_e of the rows' states and goals ``[A, B, goals]``.

        They are the means of w V_e^zeta over the goals that were drawn for the row. Their mean over rows is X_h.
        """
        attained = self.attained(attainment, rows.held)
        one = rows.goal_weight * attained**self.config.zeta
        return one.view(*one.shape[:2], self.weights.shape[1], -1).mean(3)


class EmpowerSampled(EmpowerNetworks):
    """The learning half of ``empower_sampled``."""

    config: EmpowerSampledConfig
    metrics = (*EmpowerNetworks.metrics, "power_loss")

    def _prepare(self, config: EmpowerSampledConfig, coded: CodedModel, agents: int) -> None:  # type: ignore[override]
        super()._prepare(config, coded, agents)
        self._formulas: SampledFormulas = SampledFormulas(config, coded, self._device)

    def _schedules(self) -> list[Any]:
        return [*super()._schedules(), self.config.power_learning_rate]

    def _read(self, batch: Batch) -> SampledRows:
        rows = SampledRows(batch, len(self.coded.humans), self._device)
        self._check_goals(batch, rows)
        return rows

    def _of_targets(self, rows: ModelRows) -> tuple[Tensor, ...]:
        assert isinstance(rows, SampledRows)
        self._x = self._encoded(rows)
        agents = torch.arange(len(rows.row), device=rows.row.device).unsqueeze(1)
        goal = torch.cat([rows.goal[agents, rows.row], rows.goal], 1)  # goals of the successors, then of the states
        self._pairs = rows.pairs(self._x, goal)
        attainment = torch.sigmoid(self._target[0].forward(self._pairs).out).view(*goal.shape[:3])
        self._here = attainment[:, rows.n :]
        power = self._target[2].forward(self._x).out[:, : rows.n].exp()
        return attainment[:, : rows.n], self._target[1].forward(self._x).out, power

    def _gradients(self, rows: ModelRows, targets: Targets) -> list[Tensor]:
        """Set the gradients of the networks; return the errors of V_e, Q_r and X_h."""
        assert isinstance(rows, SampledRows)
        x, shape = self._x[:, rows.n :].contiguous(), targets.attainment.shape
        done = self._online[0].forward(self._pairs[:, rows.n * shape[2] :].contiguous(), learn=True)
        error = torch.sigmoid(done.out).view(shape) - targets.attainment  # the gradient of the cross-entropy
        slope = error * targets.weight / (shape[1] * self.config.goals_per_row)
        self._online[0].backward(done, slope.view(done.out.shape))
        robot_error = self._robot_gradient(x, targets)

        # X_h is learned as -Q_r is: equal relative errors cost the same, which is what X_h^-xi needs.
        done = self._online[2].forward(x, learn=True)
        power_error = 1 - self._formulas.power_target(rows, self._here) * torch.exp(-done.out)
        slope = power_error if targets.fresh is None else power_error * targets.fresh
        self._online[2].backward(done, slope / x.shape[1])
        return [error, robot_error, power_error]

    def _check_goals(self, batch: Batch, rows: SampledRows) -> None:
        """Count the goals that hold in a successor; raise if none of many goals of a human ever held."""
        coded, drawn = self.coded, self.config.goals_per_row
        agents, count, _ = rows.goal_weight.shape
        bits = np.bitwise_or.reduce(batch.extra["holds"], (2, 3))
        held = np.unpackbits(bits, axis=2, count=len(coded.humans) * drawn)
        self.counters[:, 3:] += held.reshape(agents, count, -1, drawn).sum((1, 3), dtype=np.int64)
        learned = (self.counters[:, :1] + 1) * count * drawn
        never = (self.counters[:, 3:] == 0) & (learned >= _ENOUGH)
        if never.any():
            agent, human = np.argwhere(never)[0].tolist()
            raise ModelError(
                f"the goals of {coded.names[coded.humans[human]]} must hold somewhere, got {learned[agent, 0]:,} from "
                "the sampler of which none holds in a successor of the state that it was drawn for, such as "
                f"{coded.state(rows.codes[agent, rows.n])!r}: draw goals that can be attained"
            )

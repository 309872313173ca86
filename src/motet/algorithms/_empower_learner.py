"""The learning half of empowerment: targets from the model's transitions, and networks or tables that learn them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Update
from motet.algorithms._device import Device
from motet.algorithms._flat import Adam, FlatLearner, FlatRows, clip_rows
from motet.algorithms._plans import padded
from motet.algorithms._transitions import Transitions, taken
from motet.algorithms.empower import EmpowerConfig, lasting, robot_outputs
from motet.errors import ModelError
from motet.schedule import value_at
from motet.world.coded import CodedModel

__all__ = ["Empower", "EmpowerNetworks", "EmpowerTables", "Formulas", "ModelRows", "Scheduled", "Targets"]

_NEVER = 1e-9  # a power below this means that no goal can be attained
_STEEPEST = 5.0  # largest gradient of log(-Q_r)


class ModelRows(Transitions):
    """The transitions in a batch, with the humans' policies relative to their priors.

    Attributes:
        share: ``[A, B, P]``: weight of the profile; their sum is 1 in each row.
        ratio: ``[A, B, P, goals]``: pi_h(a_h | s, g) over the prior of a_h.
        row_weight: ``[A, B, 1]``: weight of the row for Q_r; None: all weights are 1.
    """

    row_weight: Tensor | None = None

    def __init__(self, batch: Batch, goals: int, device: Device, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(batch, goals, device, dtype)
        self.share, self.ratio = (device.to_device(batch.extra[name]).to(dtype) for name in ("share", "ratio"))


class Targets(NamedTuple):
    """Targets that are learned from a batch, with their weights."""

    attainment: Tensor  # [A, B, goals]: V_e
    weight: Tensor  # [A, B, goals]: weights of these targets; 1 on average
    loss: Tensor  # [A, B, R or 2R]: -Q_r of the robot actions; then their c, if steps have durations
    power: Tensor  # [A, N, humans]: X_h of the successors
    value: Tensor  # [A, N]: V_r of the successors
    row_weight: Tensor | None = None  # [A, B, 1]: weights of -Q_r; None: 1
    fresh: Tensor | None = None  # [A, B, 1]: 0 for rows that expired, 1 on average; None: 1. All weights contain it.


class Scheduled(NamedTuple):
    """The values of the schedules that targets depend on, ``[A, 1, 1]`` each."""

    beta: Tensor
    """Exponent of the robot's policy."""
    gamma: Tensor
    """The robot's discount."""
    human_gamma: Tensor
    """The humans' discount."""
    lasting: Tensor
    """c, the weight of the loss U_r in a step of duration 1. It follows from the robot's discount."""

    @classmethod
    def of(
        cls,
        config: EmpowerConfig,
        counts: Sequence[tuple[int, int]],
        device: Device,
        dtype: torch.dtype = torch.float32,
    ) -> Scheduled:
        """Return the values after the steps and updates of each agent."""
        human = config.human_gamma if config.human_rho is None else config.human_rho
        beta, gamma, human_gamma = (
            [value_at(schedule, step, config.stages, updates) for step, updates in counts]
            for schedule in (config.beta, config.gamma, human)
        )
        if config.human_rho is not None:
            human_gamma = [math.exp(-rate) for rate in human_gamma]
        values = beta, gamma, human_gamma, list(map(lasting, gamma))
        return cls(*(device.to_device(np.array(one)).to(dtype).view(-1, 1, 1) for one in values))


class Formulas:
    """The formulas of the robot's value, from V_e and log(-Q_r) of the target networks.

    Args:
        config: the settings.
        coded: the model.
        device: device of the tensors.
        dtype: dtype of the tensors.
    """

    def __init__(
        self, config: EmpowerConfig, coded: CodedModel, device: Device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.config, self._timed, self._actions = config, coded.timed, coded.robot_actions
        weights = coded.weights[:, None] * (coded.owner[:, None] == np.arange(len(coded.humans)))
        self.weights = device.to_device(weights).to(dtype)  # [goals, humans]

    def robot_policy(self, log_loss: Tensor, beta: Tensor) -> Tensor:
        """Return the robot's policy pi_r, which is proportional to (-Q_r)^(-beta)."""
        return torch.softmax(log_loss[..., : self._actions] * -beta, dim=-1)

    def attained(self, attainment: Tensor, holds: Tensor) -> Tensor:
        """Return V_e as used in X_h and in the targets of V_e: with the convention for goals that hold already."""
        if self.config.achieved == "stay":
            return attainment
        return torch.where(holds > 0, float(self.config.achieved == "one"), attainment)

    def power(self, attainment: Tensor) -> Tensor:
        """Return X_h in closed form, over all goals."""
        return (attainment if self.config.zeta == 1 else attainment**self.config.zeta) @ self.weights

    def robot_value(self, power: Tensor, log_loss: Tensor, now: Scheduled) -> Tensor:
        """Return V_r of states that are not terminal.

        If steps have durations, c is learned for each robot action, beside Q_r. The c of a state is the mean over the
        robot's policy.
        """
        config = self.config
        utility = -((power**-config.xi).mean(-1) ** config.eta)
        policy, outputs = self.robot_policy(log_loss, now.beta), log_loss.exp()
        lost = (policy * outputs[..., : self._actions]).sum(-1)
        c = (policy * outputs[..., self._actions :]).sum(-1) if self._timed else now.lasting.squeeze(2)
        return c * utility - lost

    def targets(
        self, rows: ModelRows, attainment: Tensor, log_loss: Tensor, now: Scheduled, power: Tensor | None = None
    ) -> Targets:
        """Return the targets.

        Args:
            rows: the batch.
            attainment: V_e of the successors, ``[A, N, goals]``.
            log_loss: log(-Q_r) of the successors, then of the rows' states, ``[A, N + B, R]``; with log(c) of the
                robot actions, ``[A, N + B, 2R]``, if steps have durations.
            now: the values of the schedules.
            power: X_h of the successors, ``[A, N, humans]``; None: in closed form.
        """
        config, n = self.config, rows.n
        attainment = self.attained(attainment, rows.holds)
        if power is None:
            power = self.power(attainment)
        value = self.robot_value(power, log_loss[:, :n], now).masked_fill(rows.ended, config.terminal_robot_value)
        policy, by_rate = self.robot_policy(log_loss[:, n:], now.beta), config.human_rho is not None
        reached = rows.attained(attainment, now.human_gamma, timed=by_rate, robot=policy)
        by_profile = rows.share.unsqueeze(3) * rows.ratio
        weight = by_profile.sum(2)
        aim = (by_profile * reached).sum(2) / weight.clamp_min(1e-30)
        share, after = rows.share.unsqueeze(3), taken(value.unsqueeze(2), rows.at)[..., 0]
        reach = rows.discounted(now.gamma) if self._timed else rows.reach
        later = torch.einsum("abprk,abpk->abpr", reach, after)
        if self._timed:
            loss = (share * torch.cat([-later, rows.lasted(now.gamma)], 3)).sum(2)
        else:
            loss = -now.gamma * (share * later).sum(2)
        return Targets(aim, weight, loss, power, value, rows.row_weight)


def _row_weights(made: npt.NDArray[np.int64], floors: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return weights of rows ``[A, B]``: 0 for rows made at fewer updates than the agent's entry in ``floors``, else
    equal.

    The weights are 1 on average. If all rows are too old, for example because no newer rows have arrived yet, all of
    them count equally.
    """
    fresh = made >= np.array(floors)[:, None]
    fresh |= ~fresh.any(1, keepdims=True)
    weights: npt.NDArray[np.float32] = (fresh / fresh.mean(1, keepdims=True)).astype(np.float32)
    return weights


_METRICS = ("loss", "robot_loss", "power", "value", "cache_hits")


class Empower(FlatRows):
    """Base of the learning halves of ``empower``: with networks, and with tables."""

    config: EmpowerConfig
    coded: CodedModel

    def _prepare(self, config: EmpowerConfig, coded: CodedModel, agents: int) -> None:
        self.config, self.coded = config, coded
        self.counters = np.zeros((agents, config.counters(coded)), np.int64)  # numbers of updates of V_e and of Q_r
        self._formulas = Formulas(config, coded, self._device)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        config, updates = self.config, int(self.counters[agent, 0])
        return {
            "beta": value_at(config.beta, step, config.stages, updates),
            "epsilon": value_at(config.epsilon, step, config.stages, updates),
            "learner_step": updates,
            "stage": config.stages.index(step, updates),
        }

    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        raise NotImplementedError

    def _learn_targets(self, batch: Batch, steps: Sequence[int]) -> tuple[ModelRows, Targets, list[list[bool]]]:
        """Return the targets of a batch. For each network, also return which agents learn it in their current stage."""
        config = self.config
        counts = list(zip(map(int, steps), self.counters[:, 0].tolist(), strict=True))
        rows = self._read(batch)
        attainment, log_loss, *power = self._of_targets(rows)
        targets = self._formulas.targets(rows, attainment, log_loss, Scheduled.of(config, counts, self._device), *power)
        learns = [[config.learns(i, *count) for count in counts] for i in range(len(config.learned_from))]
        if any(learns[1]):
            self._check_power(rows, targets.power)
        if config.expires:
            floors = [value_at(config.oldest, step, config.stages, updates) for step, updates in counts]
            fresh = self._device.to_device(_row_weights(batch.extra["made"], floors)).unsqueeze(2)
            both = fresh if targets.row_weight is None else targets.row_weight * fresh
            targets = targets._replace(weight=targets.weight * fresh, row_weight=both, fresh=fresh)
        return rows, targets, learns

    def _read(self, batch: Batch) -> ModelRows:
        """Return the transitions of a batch."""
        return ModelRows(batch, len(self.coded.weights), self._device)

    def _of_targets(self, rows: ModelRows) -> tuple[Tensor, ...]:
        """Return the outputs of the target networks from which targets are computed.

        These are V_e of the successors, log(-Q_r) of the successors and of the states, and X_h of the successors if
        there is a network for it.
        """
        raise NotImplementedError

    def _rates(self, schedule: Any, steps: Sequence[int]) -> list[float]:
        counts = zip(map(int, steps), self.counters[:, 0].tolist(), strict=True)
        return [value_at(schedule, step, self.config.stages, updates) for step, updates in counts]

    def _note(self, batch: Batch, rows: ModelRows, targets: Targets, error: Tensor, *others: Tensor) -> None:
        """Store the metrics of an update, now and then, from the errors of V_e, Q_r and, if it has a network, X_h."""
        if not self._measures():
            return
        count = (~rows.ended).sum(1).clamp_min(1)
        power = targets.power.amin(2).masked_fill(rows.ended, 0.0).sum(1) / count
        self._measure({
            "loss": (targets.weight * error**2).mean((1, 2)),
            "power": power,
            "value": targets.value.sum(1) / count,
            "cache_hits": self._device.to_device(batch.extra["known"]).mean(1),
        } | {
            name: (other**2).mean((1, 2)) for name, other in zip(("robot_loss", "power_loss"), others, strict=False)
        })  # fmt: skip

    def _check_power(self, rows: ModelRows, power: Tensor) -> None:
        """Raise if a human has no power in a state that is not terminal: its loss U_r would be infinite."""
        without = (power < _NEVER).logical_and_(~rows.ended.unsqueeze(2))
        if not without.any():
            return
        agent, number, human = without.nonzero()[0].tolist()
        raise ModelError(
            f"the power X_h of {self.coded.names[self.coded.humans[human]]} must be > 0, got "
            f"{float(power[agent, number, human]):.2g} in state {self.coded.state(rows.codes[agent, number])!r}: none "
            "of its goals can be attained from there; give it goals so that one of them always can"
        )


class EmpowerNetworks(FlatLearner, Empower):
    """The learning half with a network for V_e of all goals, and one for log(-Q_r)."""

    metrics: tuple[str, ...] = _METRICS

    def __init__(self, config: EmpowerConfig, coded: CodedModel, seeds: Sequence[int], device: Device) -> None:
        plans = config.plans(coded)
        n, parts = 0, []
        for plan in plans:
            parts.append(slice(n, n + plan.size))
            n += padded(plan.size)

        def initialise(row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            for plan, part in zip(plans, parts, strict=True):
                plan.initialise(row[part], rng)

        super().__init__(n, seeds, initialise, device, self.metrics, streams=any(plan.draws for plan in plans))
        self._prepare(config, coded, len(seeds))
        both = list(zip(plans, parts, strict=True))
        self._online = [plan.bind(self._weights[:, part], self._grad[:, part], seed=self._seed) for plan, part in both]
        self._target = [plan.bind(self._targets[:, part]) for plan, part in both]
        thirds = [self._rows[:, i * n : (i + 1) * n] for i in (0, 2, 3)]
        self._grads = [self._grad[:, part] for part in parts]
        self._adams = [
            Adam(weights, grad, moment1, moment2)
            for part, grad in zip(parts, self._grads, strict=True)
            for weights, moment1, moment2 in [[third[:, part] for third in thirds]]
        ]
        self._inputs = coded.inputs

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        for i, adam in enumerate(self._adams):
            adam.load(self._steps_of(self.counters[:, i]))

    def _encoded(self, rows: ModelRows) -> Tensor:
        """Return the inputs for all states of a batch, ``[A, N + B, inputs]``."""
        flat = self.coded.encode(rows.codes.reshape(-1, rows.codes.shape[2]))
        return self._device.to_device(flat).view(*rows.codes.shape[:2], self._inputs)

    def _of_targets(self, rows: ModelRows) -> tuple[Tensor, ...]:
        self._x = self._encoded(rows)
        attainment = torch.sigmoid(self._target[0].forward(self._x).out[:, : rows.n])
        return attainment, self._target[1].forward(self._x).out

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config = self.config
        rows, targets, learns = self._learn_targets(batch, steps)
        rates = [self._rates(schedule, steps) for schedule in self._schedules()]
        errors = self._gradients(rows, targets)
        for grad in self._grads:
            clip_rows(grad, config.max_grad_norm)
        self._note(batch, rows, targets, *errors)
        for network, own in enumerate(learns):
            self._step(network, rates[network], own)
        self._move_targets(config.target_every, config.target_rate)
        return Update(self._metrics)

    def _schedules(self) -> list[Any]:
        """Return the learning rates of the networks."""
        return [self.config.learning_rate, self.config.robot_learning_rate]

    def _gradients(self, rows: ModelRows, targets: Targets) -> list[Tensor]:
        """Set the gradients of the networks; return the errors of V_e and of Q_r."""
        x = self._x[:, rows.n :].contiguous()
        done = self._online[0].forward(x, learn=True)
        error = torch.sigmoid(done.out) - targets.attainment  # the gradient of the cross-entropy
        self._online[0].backward(done, error * targets.weight / x.shape[1])
        return [error, self._robot_gradient(x, targets)]

    def _robot_gradient(self, x: Tensor, targets: Targets) -> Tensor:
        """Set the gradient of log(-Q_r) for the states of the rows; return the error."""
        # The loss is w + t exp(-w). It is lowest where exp(w) is the mean of t, and equal relative errors cost the
        # same.
        done = self._online[1].forward(x, learn=True)
        error = 1 - targets.loss.clamp_min(self.config.floor) * torch.exp(-done.out)
        slope = error.clamp_min(-_STEEPEST)
        if targets.row_weight is not None:
            slope *= targets.row_weight
        self._online[1].backward(done, slope / x.shape[1])
        return error

    def _step(self, network: int, rates: list[float], learns: list[bool]) -> None:
        """Take a gradient step of a network for those agents that learn this network in their stage."""
        if not any(learns):
            return
        # Before an agent's stage its moments are 0, so a gradient of 0 changes nothing.
        if not all(learns):
            self._grads[network].mul_(self._device.to_device(np.array(learns, np.float32)).unsqueeze(1))
        self._adams[network].step(rates, self.config.adam_eps)
        self.counters[:, network] += learns
        if not all(learns):
            self._adams[network].load(self._steps_of(self.counters[:, network]))


class EmpowerTables(Empower):
    """The learning half with tables: one entry for each state, learned as a running mean. For small models and
    debugging."""

    def __init__(self, config: EmpowerConfig, coded: CodedModel, seeds: Sequence[int], device: Device) -> None:
        states, goals, actions = len(coded.table()), len(coded.weights), robot_outputs(coded)
        self._n_values, n = states * goals, states * (goals + actions)

        def initialise(row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            row[: self._n_values] = 0.5
            row[n : n + self._n_values] = 0.5

        super().__init__(n, 3 * n, seeds, initialise, Device("cpu"), _METRICS)
        self._prepare(config, coded, len(seeds))
        parts = [self.state[:, i * n : (i + 1) * n] for i in range(3)]
        self._values, self._target_values, self._weighed = (
            part[:, : self._n_values].reshape(-1, states, goals) for part in parts
        )
        self._losses, self._target_losses, self._visits = (
            part[:, self._n_values :].reshape(-1, states, actions) for part in parts
        )

    def _of_targets(self, rows: ModelRows) -> tuple[Tensor, Tensor]:
        shape = rows.codes.shape
        self._numbers = self.coded.numbers(rows.codes.reshape(-1, shape[2])).reshape(shape[:2])
        agents = np.arange(shape[0])[:, None]
        values = self._target_values[agents, self._numbers[:, : rows.n]]
        return torch.from_numpy(values), torch.from_numpy(self._target_losses[agents, self._numbers])

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config = self.config
        rows, targets, (_, learns) = self._learn_targets(batch, steps)
        rates = self._rates(config.learning_rate, steps), self._rates(config.robot_learning_rate, steps)
        aim, weight, loss = (part.numpy() for part in targets[:3])
        row_weight = np.ones_like(loss)
        if targets.row_weight is not None:
            row_weight *= targets.row_weight.numpy()
        errors = np.empty_like(aim), np.empty_like(loss)
        for a, numbers in enumerate(self._numbers[:, rows.n :]):
            errors[0][a] = self._values[a, numbers] - aim[a]
            errors[1][a] = 1 - loss[a] * np.exp(-self._losses[a, numbers])
            _average(self._values[a], self._weighed[a], numbers, aim[a], weight[a], rates[0][a])
            if learns[a]:
                lost = np.exp(self._losses[a], dtype=np.float64)
                _average(lost, self._visits[a], numbers, loss[a], row_weight[a], rates[1][a])
                touched = np.unique(numbers)
                self._losses[a, touched] = np.log(np.maximum(lost[touched], 1e-30))
        self._note(batch, rows, targets, *map(torch.from_numpy, errors))
        self.counters[:, 0] += 1
        self.counters[:, 1] += learns
        n = self.n_weights
        for agent, updates in enumerate(self.counters[:, 0].tolist()):
            if updates % config.target_every == 0:
                target = self.state[agent, n : 2 * n]
                target += config.target_rate * (self.state[agent, :n] - target)
        return Update(self._metrics)


def _average(
    table: npt.NDArray[Any],
    weighed: npt.NDArray[Any],
    numbers: npt.NDArray[np.int64],
    aim: npt.NDArray[Any],
    weight: npt.NDArray[Any],
    least: float,
) -> None:
    """Move the entries of some states towards their targets: a running mean with a rate of at least ``least``."""
    states, at = np.unique(numbers, return_inverse=True)
    total, aimed = (np.zeros((len(states), table.shape[1])) for _ in range(2))
    np.add.at(total, at, weight)
    np.add.at(aimed, at, weight * aim)
    weighed[states] += total
    rate = np.clip(np.maximum(total / np.maximum(weighed[states], 1e-30), least), 0, 1) * (total > 0)
    table[states] += rate * (aimed / np.maximum(total, 1e-30) - table[states])

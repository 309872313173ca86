"""The learning half of IQN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.algorithms._batch_tensors import BatchTensors, Tensors
from motet.algorithms._device import Device
from motet.algorithms._plans import Pass, Seed
from motet.algorithms._value_learner import ValueLearner
from motet.algorithms.iqn import IQNConfig, IQNPlan

__all__ = ["IQN", "quantile_loss"]


class _QuantilePass(NamedTuple):
    """Quantiles ``[A, B N, n]`` of states, with the values that the backward pass needs."""

    out: Tensor
    kept: Any


class _Quantiles(Protocol):
    """The networks of A agents, which map a state and tau to the tau-quantile of each action's return."""

    def look(self, data: BatchTensors, ahead: bool) -> tuple[Pass, Tensor | None]:
        """Return the states of the observations to learn from, and with ``ahead`` also the states at the ends of
        transitions."""
        ...

    def look_ahead(self, data: BatchTensors) -> Tensor:
        """Return the states at the ends of transitions."""
        ...

    def means(self, states: Tensor) -> Tensor:
        """Return action values ``[A, B, n]``: the means over the fixed taus."""
        ...

    def quantiles(self, states: Tensor, taus: Tensor, learn: bool = False) -> _QuantilePass:
        """Return the quantiles of states for taus ``[A, B, N]``."""
        ...

    def backward(self, data: BatchTensors, states: Pass, done: _QuantilePass, grad: Tensor) -> None:
        """Set the gradients of the weights, given the gradient of the quantiles ``[A, B, N, n]``."""
        ...


def _networks(
    config: IQNConfig, plan: IQNPlan, device: Device, rows: Tensor, grad: Tensor | None = None, seed: Seed | None = None
) -> _Quantiles:
    return (_Whole if plan.head is None else _Parts)(config, plan, device, rows, grad, seed)


class _Parts:
    """A trunk, an embedding of taus, and a head on the product of both."""

    def __init__(
        self, config: IQNConfig, plan: IQNPlan, device: Device, rows: Tensor, grad: Tensor | None, seed: Seed | None
    ) -> None:
        trunk, embedding, head = ((rows[:, part], None if grad is None else grad[:, part]) for part in plan.parts)
        assert plan.embedding is not None and plan.head is not None
        self._trunk, self._embedding = plan.trunk.bind(*trunk, seed=seed), plan.embedding.bind(*embedding)
        self._head, self._linear = plan.head.bind(*head, inputs=True), len(plan.head.sizes) == 2
        self._mean_cosines = device.to_device(config._mean_cosines()).expand(len(rows), -1, -1)
        self._multiples = device.to_device(config._multiples().astype(np.float32))

    def look(self, data: BatchTensors, ahead: bool) -> tuple[Pass, Tensor | None]:
        return data.look(self._trunk, ahead)

    def look_ahead(self, data: BatchTensors) -> Tensor:
        return data.look_ahead(self._trunk)

    def means(self, states: Tensor) -> Tensor:
        embedded = self._embedding.forward(self._mean_cosines).out  # [A, K, H]
        if self._linear:  # linear: the value at the mean is the mean of the values
            return self._head.forward(states * embedded.mean(1, keepdim=True)).out
        product = states.unsqueeze(2) * embedded.unsqueeze(1)  # [A, B, K, H]
        out = self._head.forward(product.flatten(1, 2)).out
        return out.view(*product.shape[:3], -1).mean(2)

    def quantiles(self, states: Tensor, taus: Tensor, learn: bool = False) -> _QuantilePass:
        cosines = (taus.flatten(1).unsqueeze(2) * self._multiples).cos_()  # [A, B N, C]
        embedding = self._embedding.forward(cosines, learn)
        product = states.unsqueeze(2) * embedding.out.view(*taus.shape, -1)
        head = self._head.forward(product.flatten(1, 2), learn)
        return _QuantilePass(head.out, (embedding, head))

    def backward(self, data: BatchTensors, states: Pass, done: _QuantilePass, grad: Tensor) -> None:
        embedding, head = done.kept
        back = self._head.backward(head, grad.flatten(1, 2))
        assert back is not None
        shape = (*grad.shape[:3], states.out.shape[2])  # [A, B, N, H]
        back = back.view(shape)
        grad_states = (back * embedding.out.view(shape)).sum(2)
        self._embedding.backward(embedding, back.mul_(data.learned(states.out).unsqueeze(2)).flatten(1, 2))
        self._trunk.backward(states, data.spread(grad_states))


class _Whole:
    """A user's network that takes observations and taus. Here the state is the observation itself."""

    def __init__(
        self, config: IQNConfig, plan: IQNPlan, device: Device, rows: Tensor, grad: Tensor | None, seed: Seed | None
    ) -> None:
        part = plan.parts[0]
        self._net = plan.trunk.bind(rows[:, part], None if grad is None else grad[:, part], seed=seed)
        self._n, self._fixed = plan.trunk.outputs, device.to_device(config._fixed_taus().astype(np.float32))

    def look(self, data: BatchTensors, ahead: bool) -> tuple[Pass, Tensor | None]:
        assert isinstance(data, Tensors)  # a network that takes taus has no memory
        return Pass(data.x), data.next_x if ahead else None

    def look_ahead(self, data: BatchTensors) -> Tensor:
        assert isinstance(data, Tensors)
        return data.next_x

    def means(self, states: Tensor) -> Tensor:
        taus = self._fixed.expand(*states.shape[:2], -1)
        return self.quantiles(states, taus).out.view(*taus.shape, self._n).mean(2)

    def quantiles(self, states: Tensor, taus: Tensor, learn: bool = False) -> _QuantilePass:
        done = self._net.forward(torch.cat([states, taus], 2), learn)
        return _QuantilePass(done.out.view(len(states), -1, self._n), done)

    def backward(self, data: BatchTensors, states: Pass, done: _QuantilePass, grad: Tensor) -> None:
        self._net.backward(done.kept, grad.flatten(2))


class IQN(ValueLearner):
    """The learning half of IQN for A agents."""

    def __init__(
        self, config: IQNConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        self.config = config
        plan = config._plan(observation_space, action_space)
        super().__init__(config, observation_space, action_space, plan, seeds, device, streams=True)
        self._online = _networks(config, plan, device, self._weights, self._grad, self._seed)
        self._target = _networks(config, plan, device, self._targets)

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config, data = self.config, self._fetched(batch)
        taus, next_taus = self._draw(data.rows)

        # The order matters: passes of a network with equal numbers of rows share buffers, and the backward pass needs
        # the content of the last one.
        here, ahead = self._online.look(data, ahead=config.double)
        next_states = self._target.look_ahead(data)
        best = data.best(self._target.means(next_states) if ahead is None else self._online.means(ahead))
        next_quantiles = self._target.quantiles(next_states, next_taus).out
        goal = self._of(next_quantiles, best.squeeze(2)).mul_(data.discount.unsqueeze(2)).add_(data.reward.unsqueeze(2))
        done = self._online.quantiles(data.learned(here.out), taus, learn=True)
        chosen = self._of(done.out, data.action)  # [A, R, N]

        scale = data.scale()
        if isinstance(scale, Tensor):
            scale = scale.unsqueeze(2)
        slope, losses = quantile_loss(chosen, goal, taus, config.kappa)
        self._online.backward(data, here, done, self._output_grad(slope.mul_(scale), data.action, done.out.shape[2]))
        norms = self._clip(config.max_grad_norm)
        if self._measures():
            loss = (losses() * scale).sum((1, 2)) if isinstance(scale, Tensor) else losses().sum((1, 2)) * scale
            self._measure({"loss": loss, "mean_q": data.mean(chosen), "grad_norm": norms})
        self._adam(config._rates(steps, self.counters[:, 0].tolist()), config.adam_eps)
        self._move_targets(config.target_every, config.target_rate)
        if not config.prioritised:
            return Update(self._metrics)
        errors = (goal.mean(2) - chosen.mean(2)).abs_()
        return Update(self._metrics, self._device.to_host(data.priorities(errors)))

    def _draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Draw taus ``[A, B, N]`` for the states and ``[A, B, N']`` for the next states."""
        config = self.config
        drawn = np.empty((len(self._streams), rows * (config.taus + config.target_taus)), np.float32)
        for row, stream in zip(drawn, self._streams, strict=True):
            stream.random(out=row, dtype=np.float32)
        taus = self._device.to_device(drawn)
        split = rows * config.taus
        return taus[:, :split].view(-1, rows, config.taus), taus[:, split:].view(-1, rows, config.target_taus)

    @staticmethod
    def _of(quantiles: Tensor, action: Tensor) -> Tensor:
        """Select the quantiles ``[A, B, N]`` of one action for each row from all quantiles ``[A, B N, n]``."""
        agents, batch = action.shape
        each = quantiles.view(agents, batch, -1, quantiles.shape[2])
        return each.gather(3, action.view(agents, batch, 1, 1).expand(-1, -1, each.shape[2], 1)).squeeze(3)

    @staticmethod
    def _output_grad(slope: Tensor, action: Tensor, outputs: int) -> Tensor:
        """Return the gradient of all quantiles ``[A, B, N, n]``, given the gradient of the selected ones ``[A, B,
        N]``."""
        agents, rows, taus = slope.shape
        index = action.view(agents, rows, 1, 1).expand(-1, -1, taus, 1)
        return slope.new_zeros((agents, rows, taus, outputs)).scatter_(3, index, slope.unsqueeze(3))


def quantile_loss(chosen: Tensor, goal: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Any]:
    """Quantile Huber loss of ``chosen`` ``[A, B, N]`` against ``goal`` ``[A, B, N']``, summed over N, averaged over N'.

    Returns its gradient ``[A, B, N]`` with respect to ``chosen``, and a function that returns its terms ``[A, B, N]``.
    """
    error = goal.unsqueeze(2) - chosen.unsqueeze(3)  # [A, B, N, N']
    share = (taus.unsqueeze(3) - (error < 0).float()).abs_()
    slope = (error.clamp(-kappa, kappa).mul_(share)).mean(3).mul_(-1.0 / kappa)

    def losses() -> Tensor:
        size = error.abs()
        huber = torch.where(size < kappa, 0.5 * size * size, kappa * (size - 0.5 * kappa))
        return (share * huber).mean(3) / kappa

    return slope, losses

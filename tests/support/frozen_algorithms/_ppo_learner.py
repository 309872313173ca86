"""The learning half of PPO. The docstring of ``ppo`` has the formulas and the layout of an agent's row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from support.frozen_algorithms._convolution import Convolution
from support.frozen_algorithms._distributions import actions_of
from support.frozen_algorithms._encoder import Encoder
from support.frozen_algorithms._flat import Adam, FlatRows, clip_rows
from support.frozen_algorithms._likelihoods import Likelihoods, Look, likelihoods_of
from support.frozen_algorithms._networks import Network
from support.frozen_algorithms._normaliser import Normaliser
from support.frozen_algorithms.ppo import PPOConfig, PPOLayout
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.nest import map_nest
from motet.schedule import value_at

__all__ = ["PPO", "advantages"]


class _MiniBatch(NamedTuple):
    """The rows of one minibatch."""

    x: Tensor  # [A, rows, inputs]
    chosen: Tensor  # [A, rows, ...]
    mask: Tensor | None
    before: Tensor  # log-probability at the start of the update
    gain: Tensor  # weighted advantage, divided by the number of rows
    goal: Tensor  # value target
    value: Tensor  # value at the start of the update
    share: Tensor  # 1 / number of rows; 0 where no transition starts


_SCALARS = 5  # fields of a minibatch after the mask


class _Rows:
    """The rows of an update as tensors, in their order and shuffled for an epoch."""

    def __init__(
        self, batch: Batch, encoder: Encoder, actions: Likelihoods, minibatches: int, device: torch.device
    ) -> None:
        self.batch, self._actions, self._device, self._parts = batch, actions, device, minibatches
        agents, fragments, length = batch.reward.shape
        self.shape = (agents, fragments, length)
        rows, seen = fragments * length, fragments * (length + 1)
        self.x = torch.zeros((agents, seen, encoder.size), device=device)
        flat = map_nest(lambda array: array.reshape(agents, seen, *array.shape[3:]), batch.observation)
        self._encode = encoder.link(flat, self.x)
        # Indices of the rows with an action among the rows with an observation.
        self.positions = torch.arange(rows, device=device) + torch.arange(rows, device=device) // length
        self._first = torch.arange(agents, device=device).unsqueeze(1)
        self.raw = torch.zeros_like(self.x)
        self.scalars = torch.zeros((agents, rows, _SCALARS), device=device)
        self._x = torch.zeros((agents * rows, encoder.size), device=device)
        self._order = np.zeros((agents, rows), np.int64)

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        batch, device = self.batch, self._device
        agents, fragments, length = self.shape
        self._encode()
        self.chosen = self._actions.chosen(batch).to(device)
        self.mask = None
        if "mask" in batch.extra:
            mask = torch.from_numpy(batch.extra["mask"])[:, :, :length]
            self.mask = mask.reshape(agents, fragments * length, -1).to(device)

    def shuffle(self, streams: Sequence[np.random.Generator]) -> list[_MiniBatch]:
        """Return all rows in equal minibatches, in a new random order for each agent."""
        (agents, rows), parts = self._order.shape, self._parts
        for row, stream in zip(self._order, streams, strict=True):
            row[:] = stream.permutation(rows)
        order = torch.from_numpy(self._order).to(self._device)

        def by_part(index: Tensor) -> Tensor:
            return index.view(agents, parts, -1).transpose(0, 1).reshape(-1)  # [parts, A, rows of a part]

        here = by_part(order + self._first * rows)
        there = by_part(self.positions[order] + self._first * self.x.shape[1])
        torch.index_select(self.x.view(-1, self.x.shape[2]), 0, there, out=self._x)
        shape = (parts, agents, rows // parts)
        x = self._x.view(*shape, -1)
        chosen = self.chosen.flatten(0, 1).index_select(0, here).view(*shape, -1)
        mask = None if self.mask is None else self.mask.flatten(0, 1).index_select(0, here).view(*shape, -1)
        scalars = self.scalars.flatten(0, 1).index_select(0, here).view(*shape, _SCALARS).movedim(3, 0).contiguous()
        share = scalars[4].div_(scalars[4].sum(2, keepdim=True).clamp_(min=1.0))
        scalars[1].mul_(share)
        return [
            _MiniBatch(x[i], chosen[i], None if mask is None else mask[i], *scalars[:, i].unbind(0))
            for i in range(parts)
        ]


def advantages(
    reward: npt.NDArray[np.float32],
    discount: npt.NDArray[np.float32],
    valid: npt.NDArray[np.bool_],
    values: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    gae_lambda: float,
) -> npt.NDArray[np.float32]:
    """Return the advantages ``A(t)`` of ``ppo``'s docstring, ``[..., length]``; ``values`` has one row more.

    A row where no transition starts (``valid`` is False) ends the sum: the row before it bootstraps from its value. The
    result of such a row is meaningless.

    >>> ones = np.ones((1, 3), "float32")
    >>> advantages(ones, 0.5 * ones, ones > 0, np.zeros((1, 4), "float32"), ones, 1.0).tolist()
    [[1.75, 1.5, 1.0]]
    """
    delta = reward + discount * values[..., 1:] - values[..., :-1]
    chain = discount[..., :-1] * np.float32(gae_lambda) * weight[..., 1:] * valid[..., 1:]
    result: npt.NDArray[np.float32] = np.empty_like(delta)
    result[..., -1] = last = delta[..., -1]
    for t in range(delta.shape[-1] - 2, -1, -1):
        last = delta[..., t] + chain[..., t] * last
        result[..., t] = last
    return result


class PPO(FlatRows):
    """The learning half of PPO for A agents."""

    def __init__(
        self, config: PPOConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        self._encoder = Encoder(observation_space, config.n_frames)
        self._actions = likelihoods_of(actions_of(action_space))
        self._layout = layout = PPOLayout.of(config, observation_space, action_space)
        super().__init__(layout.weights, layout.state, seeds, self._initialise, device, streams=True)
        agents, start, end = len(seeds), layout.learned.start, layout.learned.stop
        grad = torch.zeros((agents, end), device=self._device)
        self._picture = None if layout.picture is None else Convolution(layout.picture, self._rows, grad)
        self._policy, self._critic = (Network(block, self._rows, grad) for block in (layout.policy, layout.critic))
        self._own, self._own_grad = self._rows[:, layout.own], grad[:, layout.own]
        self._grad, size = grad[:, start:], end - start
        moments = [self._rows[:, end + i * size : end + (i + 1) * size] for i in range(2)]
        self._adam = Adam(self._rows[:, layout.learned], self._grad, *moments)
        self._normaliser = None if layout.statistics is None else Normaliser(layout.statistics, self._rows)
        self._batches: dict[int, _Rows] = {}
        names = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "weight", "grad_norm")
        self._metrics = {name: np.zeros(agents, np.float32) for name in names}

    def _initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        layout, gain = self._layout, math.sqrt(2)
        if layout.statistics is not None:
            layout.statistics.initialise(row)
        if layout.picture is not None:
            layout.picture.initialise(row, rng)
        layout.policy.initialise_orthogonally(row, rng, gain, 0.01)
        layout.critic.initialise_orthogonally(row, rng, gain, 1.0)
        row[layout.own] = self.config.first_log_std

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        self._adam.load(self.counters[:, 0] * (self.config.epochs * self.config.minibatches))

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        return {"learner_step": int(self.counters[agent, 0]), "stage": self.config.stages.index(step)}

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch of rows, in several epochs."""
        config = self.config
        if id(batch) not in self._batches:
            self._batches[id(batch)] = _Rows(batch, self._encoder, self._actions, config.minibatches, self._device)
        rows = self._batches[id(batch)]
        rows.fetch()
        if self._normaliser is not None:
            rows.raw.copy_(rows.x)
            self._normaliser.apply(rows.x)
        self._prepare(rows)
        rates, clips, entropies = (
            [value_at(schedule, int(step), config.stages) for step in steps]
            for schedule in (config.learning_rate, config.clip, config.entropy)
        )
        clip, entropy = (torch.tensor(values, device=self._device).unsqueeze(1) for values in (clips, entropies))
        for epoch in range(config.epochs):
            for i, part in enumerate(rows.shuffle(self._streams)):
                last = epoch == config.epochs - 1 and i == config.minibatches - 1
                self._step(part, clip, entropy, rates, measure=last)
        if self._normaliser is not None:
            seen = rows.raw.index_select(1, rows.positions)
            valid = rows.scalars[:, :, 4] > 0
            self._normaliser.update(seen, valid, frozen=[config._freezes(int(step)) for step in steps])
        self.counters[:, 0] += 1
        return Update(self._metrics)

    def _prepare(self, rows: _Rows) -> None:
        """Compute for every row the log-probability at the start of the update, the advantage and the value target."""
        batch, config = rows.batch, self.config
        agents, fragments, length = rows.shape
        assert batch.valid is not None
        seen = self._see(rows.x)
        values = self._critic.forward(seen)[-1].view(agents, fragments, length + 1).cpu().numpy()
        acted = seen.index_select(1, rows.positions)
        look = self._actions.look(self._policy.forward(acted)[-1], self._own, rows.chosen, rows.mask)
        before = look.log_prob.view(rows.shape).cpu().numpy()
        weight = np.exp(np.minimum(before - batch.extra["log_prob"], 0.0))
        reward = batch.reward * np.float32(config.reward_scale)
        gain = advantages(reward, batch.discount, batch.valid, values, weight, config.gae_lambda)
        goal = values[..., :-1] + weight * gain
        if config.normalise_advantages:
            gain = _normal(gain, batch.valid)
        columns = (before, weight * gain, goal, values[..., :-1], batch.valid)
        for i, column in enumerate(columns):
            rows.scalars[:, :, i] = torch.from_numpy(np.ascontiguousarray(column)).view(agents, -1)
        counts = np.maximum(batch.valid.sum((1, 2)), 1)
        self._metrics["weight"][:] = (weight * batch.valid).sum((1, 2)) / counts

    def _see(self, x: Tensor) -> Tensor:
        """Return the features of the inputs that policy and critic take."""
        return x if self._picture is None else self._picture.forward(x)

    def _step(self, part: _MiniBatch, clip: Tensor, entropy: Tensor, rates: Sequence[float], measure: bool) -> None:
        """Take one gradient step on one minibatch."""
        config, picture = self.config, self._picture
        seen = self._see(part.x)
        layers = self._policy.forward(seen)
        look = self._actions.look(layers[-1], self._own, part.chosen, part.mask)
        ratio = (look.log_prob - part.before).exp_()
        free = ratio * part.gain
        bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(part.gain)
        within = free <= bounded
        above = self._critic.forward(seen)
        value = above[-1].squeeze(2)
        error = value - part.goal
        slope = error * part.share
        if config.clip_value is not None:
            near = part.value + (value - part.value).clamp_(-config.clip_value, config.clip_value)
            slope.mul_(error.square() >= (near - part.goal).square_())
        if measure:
            self._measure(part, look, ratio, torch.minimum(free, bounded), within, error)
        out = look.back(free.mul_(within).neg_(), part.share * -entropy, self._own_grad)
        back = self._policy.backward(seen, layers, out, inputs=picture is not None)
        slope = slope.mul_(config.value_weight).unsqueeze(2)
        other = self._critic.backward(seen, above, slope, inputs=picture is not None)
        if picture is not None:
            picture.backward(back.add_(other))
        norms = clip_rows(self._grad, config.max_grad_norm)
        if measure:
            self._metrics["grad_norm"][:] = norms.cpu().numpy()
        self._adam.step(rates, config.adam_eps)

    def _measure(
        self, part: _MiniBatch, look: Look, ratio: Tensor, surrogate: Tensor, within: Tensor, error: Tensor
    ) -> None:
        for name, value in (
            ("policy_loss", -surrogate),
            ("value_loss", error.square() * (0.5 * part.share)),
            ("entropy", look.entropy * part.share),
            ("kl", (ratio - 1.0 - (look.log_prob - part.before)) * part.share),
            ("clipped", (~within) * part.share),
        ):
            self._metrics[name][:] = value.sum(1).cpu().numpy()


def _normal(gain: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Normalise to mean 0 and standard deviation 1 over the valid rows of each agent."""
    axes = (1, 2)
    count = np.maximum(valid.sum(axes, keepdims=True), 1)
    gain = gain - (gain * valid).sum(axes, keepdims=True, dtype=np.float64) / count
    deviation = np.sqrt((gain * gain * valid).sum(axes, keepdims=True) / count)
    normal: npt.NDArray[np.float32] = (gain / (deviation + 1e-8)).astype(np.float32)
    return normal

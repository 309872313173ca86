"""The learning half of PPO. The docstring of ``ppo`` has the formulas and the layout of an agent's row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.algorithms._device import Device
from motet.algorithms._distributions import actions_of
from motet.algorithms._encoder import Encoder
from motet.algorithms._flat import FlatRows, clip_rows
from motet.algorithms._likelihoods import Likelihoods, Look, likelihoods_of
from motet.algorithms._normaliser import Normaliser
from motet.algorithms._plans import LearnerNetwork, NetworkPlan, Pass
from motet.algorithms.ppo import PPOConfig, PPOLayout
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
    sequences: Any = None  # with a memory: how the rows form sequences


class _Sequences(NamedTuple):
    """How the rows of a batch form sequences, for networks with a memory."""

    memory: Tensor  # [A, sequences, rows of a sequence, state_size]: the state before each row, as it was stored
    begin: Tensor  # [A, sequences, rows of a sequence]: whether a row begins from its stored state


_SCALARS = 5  # number of fields of a minibatch after the mask


class _Rows:
    """The rows of an update as tensors, in their original order and, for an epoch, shuffled.

    Chunks of consecutive rows are shuffled as wholes; without a memory a chunk is a single row.
    """

    def __init__(
        self, batch: Batch, encoder: Encoder, actions: Likelihoods, minibatches: int, chunk: int, device: Device
    ) -> None:
        self.batch, self._actions, self._device, self._parts = batch, actions, device, minibatches
        self._chunk = chunk
        agents, fragments, length = batch.reward.shape
        self.shape = (agents, fragments, length)
        rows, seen = fragments * length, fragments * (length + 1)
        self.x = device.zeros(agents, seen, encoder.size)
        flat = map_nest(lambda array: array.reshape(agents, seen, *array.shape[3:]), batch.observation)
        self._encode = encoder.link(flat, self.x, device)
        # Of the rows with an observation, the indices of those with an action.
        self.positions = device.to_device(np.arange(rows) + np.arange(rows) // length)
        self._first = device.to_device(np.arange(agents)).unsqueeze(1)
        self.raw = torch.zeros_like(self.x)
        self.scalars = device.zeros(agents, rows, _SCALARS)
        self._x = device.zeros(agents * rows, encoder.size)
        self._order = np.zeros((agents, rows), np.int64)
        size = batch.extra["memory"].shape[-1] if "memory" in batch.extra else 0
        self._memory = device.zeros(agents, fragments, length + 1, size)
        self._begin = np.zeros((2, agents, fragments, length + 1), np.bool_)
        self.sequences: _Sequences | None = None

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        batch, device = self.batch, self._device
        agents, fragments, length = self.shape
        self._encode()
        self.chosen = self._actions.chosen(batch)
        self.mask = None
        if "mask" in batch.extra:
            mask = device.to_device(batch.extra["mask"])[:, :, :length]
            self.mask = mask.reshape(agents, fragments * length, -1)
        if "memory" in batch.extra:
            self._memory[:, :, :length] = device.to_device(batch.extra["memory"])
            whole, self._chunk_begins = device.to_device(self._beginnings()).unbind(0)
            self.sequences = _Sequences(self._memory, whole)

    def _beginnings(self) -> npt.NDArray[np.bool_]:
        """Find the rows that begin from their stored state: item 0 for whole fragments, item 1 for chunks."""
        assert self.batch.valid is not None
        whole, chunks = self._begin
        whole[..., 0] = True
        # rows after the end of an episode, where no transition starts
        np.logical_not(self.batch.valid, out=whole[..., 1:])
        chunks[...] = whole
        chunks[..., :: self._chunk] = True
        return self._begin

    def shuffle(self, streams: Sequence[np.random.Generator]) -> list[_MiniBatch]:
        """Return all rows in equal minibatches, in a new random order for each agent."""
        (agents, rows), parts = self._order.shape, self._parts
        for row, stream in zip(self._order.reshape(agents, -1, self._chunk), streams, strict=True):
            row[:] = stream.permutation(len(row))[:, None] * self._chunk + np.arange(self._chunk)
        order = self._device.to_device(self._order)

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
        chunks = self._chunks(there)
        masks = [None] * parts if mask is None else mask
        return [
            _MiniBatch(x[i], chosen[i], masks[i], *columns.unbind(0))._replace(sequences=chunks[i])
            for i, columns in enumerate(scalars.unbind(1))
        ]

    def _chunks(self, there: Tensor) -> Sequence[_Sequences | None]:
        """Return for each minibatch how its rows form sequences."""
        if self.sequences is None:
            return [None] * self._parts
        size = self._memory.shape[-1]
        shape = (self._parts, len(self._memory), -1, self._chunk)
        memory = self._memory.view(-1, size).index_select(0, there).view(*shape, size)
        begin = self._chunk_begins.flatten().index_select(0, there).view(shape)
        return [_Sequences(*pair) for pair in zip(memory, begin, strict=True)]


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
        self, config: PPOConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        self.config = config
        self._encoder = Encoder(observation_space, config.n_frames)
        self._actions = likelihoods_of(actions_of(action_space), device)
        self._layout = layout = PPOLayout.of(config, observation_space, action_space)
        metrics = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "weight", "grad_norm")
        super().__init__(layout.weights, layout.state, seeds, self._initialise, device, metrics, streams=True)
        agents, start, end = len(seeds), layout.learned.start, layout.learned.stop
        grad = device.zeros(agents, end)

        def bound(plan: NetworkPlan, part: slice, inputs: bool) -> LearnerNetwork:
            return plan.bind(self._rows[:, part], grad[:, part], inputs, self._seed)

        shared = layout.encoder is not None
        self._seeing = None if layout.encoder is None else bound(layout.encoder, layout.encoder_part, False)
        self._policy = bound(layout.policy, layout.policy_part, shared)
        self._critic = bound(layout.critic, layout.critic_part, shared)
        self._own, self._own_grad = self._rows[:, layout.own], grad[:, layout.own]
        self._grad, size = grad[:, start:], end - start
        moments = [self._rows[:, end + i * size : end + (i + 1) * size] for i in range(2)]
        self._adam = self._adam_of(self._rows[:, layout.learned], self._grad, *moments)
        self._normaliser = None if layout.statistics is None else Normaliser(layout.statistics, self._rows, device)
        self._batches: dict[int, _Rows] = {}

    def _initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        layout = self._layout
        if layout.statistics is not None:
            layout.statistics.initialise(row)
        if layout.encoder is not None:
            layout.encoder.initialise(row[layout.encoder_part], rng)
        layout.policy.initialise(row[layout.policy_part], rng)
        layout.critic.initialise(row[layout.critic_part], rng)
        row[layout.own] = self.config.first_log_std

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        self._adam.load(self._steps_of(self.counters[:, 0] * (self.config.epochs * self.config.minibatches)))

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        updates = int(self.counters[agent, 0])
        return {"learner_step": updates, "stage": self.config.stages.index(step, updates)}

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch of rows, in several epochs."""
        config = self.config
        if id(batch) not in self._batches:
            chunk = config._chunk if self._layout.state_size else 1
            self._batches[id(batch)] = _Rows(
                batch, self._encoder, self._actions, config.minibatches, chunk, self._device
            )
        rows = self._batches[id(batch)]
        rows.fetch()
        if self._normaliser is not None:
            rows.raw.copy_(rows.x)
            self._normaliser.apply(rows.x)
        self._prepare(rows)
        counts = list(zip(map(int, steps), self.counters[:, 0].tolist(), strict=True))
        rates, *bounds = (
            [value_at(schedule, step, config.stages, count) for step, count in counts]
            for schedule in (config.learning_rate, config.clip, config.entropy)
        )
        clip, entropy = self._device.to_device(np.array(bounds, np.float32)).unsqueeze(2).unbind(0)
        for epoch in range(config.epochs):
            for i, part in enumerate(rows.shuffle(self._streams)):
                last = epoch == config.epochs - 1 and i == config.minibatches - 1
                self._step(part, clip, entropy, rates, measure=last)
        if self._normaliser is not None:
            seen = rows.raw.index_select(1, rows.positions)
            valid = rows.scalars[:, :, 4] > 0
            self._normaliser.update(seen, valid, frozen=[config._freezes(*count) for count in counts])
        self.counters[:, 0] += 1
        return Update(self._metrics)

    def _prepare(self, rows: _Rows) -> None:
        """Compute for every row the log-probability at the start of the update, the advantage and the value target."""
        batch, config = rows.batch, self.config
        agents, fragments, length = rows.shape
        assert batch.valid is not None
        seen = self._see(rows, learn_from=None).out
        values = self._device.to_host(self._critic.forward(seen).out).reshape(agents, fragments, length + 1)
        acted = seen.index_select(1, rows.positions)
        look = self._actions.look(self._policy.forward(acted).out, self._own, rows.chosen, rows.mask)
        before = self._device.to_host(look.log_prob).reshape(rows.shape)
        weight = np.exp(np.minimum(before - batch.extra["log_prob"], 0.0))
        reward = batch.reward * np.float32(config.reward_scale)
        gain = advantages(reward, batch.discount, batch.valid, values, weight, config.gae_lambda)
        goal = values[..., :-1] + weight * gain
        if config.normalise_advantages:
            gain = _normal(gain, batch.valid)
        columns = (before, weight * gain, goal, values[..., :-1], batch.valid)
        scalars = np.stack(columns, -1, dtype=np.float32, casting="unsafe")
        self._device.to_device(scalars.reshape(rows.scalars.shape), rows.scalars)
        counts = np.maximum(batch.valid.sum((1, 2)), 1)
        self._metrics["weight"][:] = (weight * batch.valid).sum((1, 2)) / counts

    def _see(self, rows: _Rows | _MiniBatch, learn_from: int | None) -> Pass:
        """Return the inputs of policy and critic for some rows."""
        if self._seeing is None:
            return Pass(rows.x)
        if (sequences := rows.sequences) is not None:
            return self._seeing.unroll(rows.x, sequences.memory, sequences.begin, learn_from)
        return self._seeing.forward(rows.x, learn_from is not None)

    def _step(self, part: _MiniBatch, clip: Tensor, entropy: Tensor, rates: Sequence[float], measure: bool) -> None:
        """Take one gradient step on one minibatch."""
        config = self.config
        shared = self._see(part, learn_from=0)
        seen = shared.out
        acting = self._policy.forward(seen, learn=True)
        look = self._actions.look(acting.out, self._own, part.chosen, part.mask)
        ratio = (look.log_prob - part.before).exp_()
        free = ratio * part.gain
        bounded = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(part.gain)
        within = free <= bounded
        judging = self._critic.forward(seen, learn=True)
        value = judging.out.squeeze(2)
        error = value - part.goal
        slope = error * part.share
        if config.clip_value is not None:
            near = part.value + (value - part.value).clamp_(-config.clip_value, config.clip_value)
            slope.mul_(error.square() >= (near - part.goal).square_())
        metrics = self._metrics_of(part, look, ratio, torch.minimum(free, bounded), within, error) if measure else {}
        out = look.back(free.mul_(within).neg_(), part.share * -entropy, self._own_grad)
        back = self._policy.backward(acting, out)
        other = self._critic.backward(judging, slope.mul_(config.value_weight).unsqueeze(2))
        if self._seeing is not None and back is not None and other is not None:
            self._seeing.backward(shared, back.add_(other))
        norms = clip_rows(self._grad, config.max_grad_norm)
        if measure:
            self._measure({**metrics, "grad_norm": norms})
        self._adam.step(rates, config.adam_eps)

    @staticmethod
    def _metrics_of(
        part: _MiniBatch, look: Look, ratio: Tensor, surrogate: Tensor, within: Tensor, error: Tensor
    ) -> dict[str, Tensor]:
        terms = {
            "policy_loss": -surrogate,
            "value_loss": error.square() * (0.5 * part.share),
            "entropy": look.entropy * part.share,
            "kl": (ratio - 1.0 - (look.log_prob - part.before)) * part.share,
            "clipped": (~within) * part.share,
        }
        return {name: term.sum(1) for name, term in terms.items()}


def _normal(gain: npt.NDArray[np.float32], valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Normalise to mean 0 and standard deviation 1 over the valid rows of each agent."""
    axes = (1, 2)
    count = np.maximum(valid.sum(axes, keepdims=True), 1)
    gain = gain - (gain * valid).sum(axes, keepdims=True, dtype=np.float64) / count
    deviation = np.sqrt((gain * gain * valid).sum(axes, keepdims=True) / count)
    normal: npt.NDArray[np.float32] = (gain / (deviation + 1e-8)).astype(np.float32)
    return normal

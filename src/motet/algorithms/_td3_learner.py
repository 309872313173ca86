"""The learning half of TD3. The docstring of ``td3`` has the layout of an agent's row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.algorithms._batch_tensors import SequenceTensors, Tensors, batch_tensors
from motet.algorithms._device import Device
from motet.algorithms._encoder import Encoder
from motet.algorithms._flat import Adam, FlatRows, clip_rows
from motet.algorithms._normaliser import Normaliser
from motet.algorithms._plans import LearnerNetwork, Pass
from motet.algorithms.td3 import ActionScale, TD3Config, TD3Layout
from motet.schedule import value_at

__all__ = ["TD3"]


class _Judged:
    """A stacked batch as tensors, and buffers for the critics' inputs ``[2 A, R, features + actions]``."""

    def __init__(self, tensors: Tensors | SequenceTensors, device: Device, scale: ActionScale, size: int) -> None:
        self.tensors = tensors
        agents, rows = len(tensors.x), tensors.rows
        shape = (agents, 2, rows, size + scale.size)
        self.raw = torch.zeros_like(tensors.x)
        # features [A, R, size]: the inputs themselves, unless an encoder replaces them
        if isinstance(tensors, Tensors):
            self.seen, self.next_seen = tensors.x, tensors.next_x
        here, there = device.zeros(*shape), device.zeros(*shape)
        self.here, self.there = here.flatten(0, 1), there.flatten(0, 1)
        self.first = here[:, 0]  # inputs of each agent's first critic, [A, B, features + actions]
        self._parts = [(part[..., :size], part[..., size:]) for part in (here, there)]
        self._first_action_part = self.first[..., size:]
        self._middle = device.to_device(scale.middle)
        self._half = device.to_device(scale.half)
        self.noise = np.zeros((agents, rows, scale.size), np.float32)

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        self.tensors.fetch()
        self.action = self.tensors.action.flatten(2).sub(self._middle).div_(self._half)

    def mean(self, values: Tensor) -> Tensor:
        """Return the means ``[A]`` of values ``[A, critics, R]``."""
        share = self.tensors.share
        if isinstance(share, Tensor):
            return (values * share.unsqueeze(1)).sum(2).mean(1)
        return values.mean((1, 2))

    def show_critics(self) -> None:
        """Write features and taken actions to the critics' inputs, and next features to the target critics' inputs."""
        (seen, done), (seen_next, _) = self._parts
        seen.copy_(self.seen.unsqueeze(1))
        seen_next.copy_(self.next_seen.unsqueeze(1))
        done.copy_(self.action.unsqueeze(1))

    def show_next(self, actions: Tensor) -> None:
        """Write actions ``[A, B, n]`` to the target critics' inputs."""
        self._parts[1][1].copy_(actions.unsqueeze(1))

    def show_first(self, actions: Tensor) -> None:
        """Write actions ``[A, B, n]`` to the first critics' inputs."""
        self._first_action_part.copy_(actions)


class TD3(FlatRows):
    """The learning half of TD3 for A agents."""

    def __init__(
        self, config: TD3Config, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        self.config = config
        self._encoder, self._scale = Encoder(observation_space, config.n_frames), ActionScale(action_space)
        self._action_space = action_space
        self._layout = layout = TD3Layout.of(config, observation_space, action_space)
        metrics = ("loss", "policy_loss", "mean_q", "grad_norm")
        super().__init__(layout.weights, 2 * layout.half, seeds, self._initialise, device, metrics, streams=True)
        agents, n, c = len(seeds), layout.weights, layout.size
        self._features = self._encoder.size if layout.encoder is None else layout.encoder.outputs
        halves = self._rows.view(agents, 2, layout.half)
        first, second = halves[:, 0], halves[:, 1]
        critics = self._rows.view(2 * agents, layout.half)[:, layout.critics :]  # [2 A, 4 c]
        weights, targets, moment1, moment2 = (critics[:, i * c : (i + 1) * c] for i in range(4))
        self._policy_grad = device.zeros(agents, n)
        self._critic_grad = device.zeros(2 * agents, c)
        acts, judges = layout.policy_part, slice(0, layout.critic.size)
        self._idle: list[int] = []  # agents whose policy does not learn in this update
        self._policy = layout.policy.bind(first[:, acts], self._policy_grad[:, acts], seed=self._policy_seed)
        self._target_policy = layout.policy.bind(second[:, acts])
        self._critics = layout.critic.bind(
            weights[:, judges], self._critic_grad[:, judges], layout.encoder is not None, lambda i: self._seed(i // 2)
        )
        self._target_critics = layout.critic.bind(targets[:, judges])
        self._first_critic = layout.critic.bind(weights[::2, judges], inputs=True)
        self._critic_adam = self._adam_of(weights, self._critic_grad, moment1, moment2)

        def adam(begin: int, end: int) -> Adam:
            """Return the optimiser of a part of the published values."""
            moments = first[:, n + begin : n + end], second[:, n + begin : n + end]
            return self._adam_of(first[:, begin:end], self._policy_grad[:, begin:end], *moments)

        self._policy_adam = adam(acts.start, n)
        learned = slice(layout.encoder_part.start, n)
        self._targets = ((second[:, learned], first[:, learned]), (targets, weights))
        self._seeing: LearnerNetwork | None = None
        if layout.encoder is not None:
            sees = layout.encoder_part
            self._seeing = layout.encoder.bind(first[:, sees], self._policy_grad[:, sees], seed=self._seed)
            self._target_seeing = layout.encoder.bind(second[:, sees])
            self._seeing_grad = self._policy_grad[:, sees.start : acts.start]
            self._seeing_adam = adam(sees.start, acts.start)
        self._normaliser = None if layout.statistics is None else Normaliser(layout.statistics, first, device)
        self._batches: dict[int, _Judged] = {}
        self._policy_loss: Tensor | None = None  # loss of the last policy update, shown with the next metrics

    def _initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        layout = self._layout
        first, second = row.reshape(2, -1)
        if layout.statistics is not None:
            layout.statistics.initialise(first)
        if layout.encoder is not None:
            layout.encoder.initialise(first[layout.encoder_part], rng)
        layout.policy.initialise(first[layout.policy_part], rng)
        second[: layout.weights] = first[: layout.weights]
        for half in (first, second):
            critic = half[layout.critics :]
            layout.critic.initialise(critic[: layout.critic.size], rng)
            critic[layout.size : 2 * layout.size] = critic[: layout.size]

    def _policy_seed(self, agent: int) -> int:
        return 0 if agent in self._idle else self._seed(agent)

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        updates = self.counters[:, 0]
        self._critic_adam.load(self._steps_of(np.repeat(updates, 2)))
        self._policy_adam.load(self._steps_of(updates // self.config.policy_delay))
        if self._seeing is not None:
            self._seeing_adam.load(self._steps_of(updates))

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        config, updates = self.config, int(self.counters[agent, 0])
        return {
            "noise": value_at(config.noise, step, config.stages, updates),
            "random": updates == 0,
            "learner_step": updates,
            "stage": config.stages.index(step, updates),
        }

    @torch.no_grad()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config = self.config
        if id(batch) not in self._batches:
            tensors = batch_tensors(
                batch, self._encoder, self._action_space, self._device, config.burn_in, torch.float32
            )
            self._batches[id(batch)] = _Judged(tensors, self._device, self._scale, self._features)
        data = self._batches[id(batch)]
        data.fetch()
        if self._normaliser is not None:
            data.raw.copy_(data.tensors.x)
            self._normaliser.apply(data.tensors.inputs)
        seeing = None
        if self._seeing is not None:
            seeing, _ = data.tensors.look(self._seeing, ahead=False)
            data.seen, data.next_seen = data.tensors.learned(seeing.out), data.tensors.look_ahead(self._target_seeing)
        data.show_critics()
        counts = list(zip(map(int, steps), self.counters[:, 0].tolist(), strict=True))
        rates = [value_at(config.learning_rate, step, config.stages, count) for step, count in counts]
        errors = self._learn_critics(data, seeing, rates)  # [A, 2, B]
        self.counters[:, 0] += 1
        updated = self.counters[:, 0].tolist()
        self._idle = [agent for agent, updates in enumerate(updated) if updates % config.policy_delay]
        if len(self._idle) < len(updated):
            kept = [self._rows[agent].clone() for agent in self._idle]
            self._learn_policy(data, rates)
            for target, weights in self._targets:
                target.lerp_(weights, config.target_rate)
            for agent, row in zip(self._idle, kept, strict=True):  # undo the update of policies that are not due yet
                self._rows[agent].copy_(row)
            if self._idle:
                self._policy_adam.load(self._steps_of(self.counters[:, 0] // config.policy_delay))
        if self._normaliser is not None:
            self._normaliser.update(data.raw, frozen=[config._freezes(*count) for count in counts])
        if not config.prioritised:
            return Update(self._metrics)
        return Update(self._metrics, self._device.to_host(data.tensors.priorities(errors.abs_().mean(1))))

    def _learn_critics(self, data: _Judged, seeing: Pass | None, rates: Sequence[float]) -> Tensor:
        """Take one gradient step of all critics, and of the encoder, if there is one.

        Returns the critics' TD errors ``[A, 2, R]``.
        """
        config, tensors = self.config, data.tensors
        agents, rows = tensors.reward.shape
        data.show_next(self._target_actions(data))
        values = self._target_critics.forward(data.there).out.view(agents, 2, rows)
        goal = torch.addcmul(tensors.reward * config.reward_scale, tensors.discount, values.amin(1))
        judging = self._critics.forward(data.here, learn=True)
        guess = judging.out.view(agents, 2, rows)
        error = goal.unsqueeze(1) - guess
        share, weight = tensors.share, tensors.weight
        slope = error * (-2.0 * (share.unsqueeze(1) if isinstance(share, Tensor) else share))
        if weight is not None:
            slope.mul_(weight.unsqueeze(1))
        back = self._critics.backward(judging, slope.view(2 * agents, rows, 1))
        if seeing is not None and back is not None:
            seen = back.view(agents, 2, rows, -1).sum(1)[..., : self._features]
            self._learn_to_see(seeing, tensors.spread(seen), rates)
        norms = clip_rows(self._critic_grad, config.max_grad_norm)
        if self._measures():
            losses = error.square() if weight is None else error.square() * weight.unsqueeze(1)
            norm = norms.view(agents, 2).mean(1)
            measured = {"loss": data.mean(losses), "mean_q": data.mean(guess), "grad_norm": norm}
            self._measure(measured if self._policy_loss is None else {**measured, "policy_loss": self._policy_loss})
        self._critic_adam.step([rate for rate in rates for _ in range(2)], config.adam_eps)
        return error

    def _target_actions(self, data: _Judged) -> Tensor:
        """Return the target policy's next actions with smoothing noise, ``[A, B, n]``."""
        config = self.config
        for row, stream in zip(data.noise, self._streams, strict=True):
            stream.standard_normal(out=row, dtype=np.float32)
        noise = self._device.to_device(data.noise).mul(config.target_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        return noise.add_(self._target_policy.forward(data.next_seen).out.tanh()).clamp_(-1.0, 1.0)

    def _learn_to_see(self, seeing: Pass, grad: Tensor, rates: Sequence[float]) -> None:
        """Take one gradient step of the encoder, given the sum of the gradients of both critics."""
        assert self._seeing is not None
        self._seeing.backward(seeing, grad)
        clip_rows(self._seeing_grad, self.config.max_grad_norm)
        self._seeing_adam.step(rates, self.config.adam_eps)

    def _learn_policy(self, data: _Judged, rates: Sequence[float]) -> None:
        """Take one gradient step of the policies, which increases the value of their first critic."""
        share = data.tensors.share
        acting = self._policy.forward(data.seen, learn=True)
        actions = acting.out.tanh()
        data.show_first(actions)
        judging = self._first_critic.forward(data.first, learn=True)
        self._policy_loss = -data.mean(judging.out.transpose(1, 2))
        slope = -share.unsqueeze(2) if isinstance(share, Tensor) else torch.full_like(judging.out, -share)
        back = self._first_critic.backward(judging, slope)
        assert back is not None
        grad = back[..., self._features :] * actions.square_().neg_().add_(1.0)
        self._policy.backward(acting, grad)
        clip_rows(self._policy_grad[:, self._layout.policy_part.start :], self.config.max_grad_norm)
        self._policy_adam.step(rates, self.config.adam_eps)

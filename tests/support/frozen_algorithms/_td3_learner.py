"""The learning half of TD3. The docstring of ``td3`` has the layout of an agent's row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from support.frozen_algorithms._convolution import Convolution
from support.frozen_algorithms._encoder import Encoder
from support.frozen_algorithms._flat import Adam, FlatRows, clip_rows
from support.frozen_algorithms._networks import Network
from support.frozen_algorithms._normaliser import Normaliser
from support.frozen_algorithms._value_learner import Tensors
from support.frozen_algorithms.td3 import ActionScale, TD3Config, TD3Layout
from torch import Tensor

from motet.algorithm import Batch, Space, Update
from motet.schedule import value_at

__all__ = ["TD3"]


class _Transitions(Tensors):
    """A stacked batch as tensors, and buffers for the critics' inputs ``[2 A, B, features + actions]``."""

    action_dtype = torch.float32

    def __init__(
        self,
        batch: Batch,
        encoder: Encoder,
        action_space: Space,
        device: torch.device,
        scale: ActionScale,
        size: int,
    ) -> None:
        super().__init__(batch, encoder, action_space, device)
        agents, rows, _ = self.x.shape
        shape = (agents, 2, rows, size + scale.size)
        self.raw = torch.zeros_like(self.x)
        self.seen, self.next_seen = self.x, self.next_x  # features, [A, B, size] each
        here, there = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.here, self.there = here.flatten(0, 1), there.flatten(0, 1)
        self.first = here[:, 0]  # inputs of each agent's first critic, [A, B, features + actions]
        self._parts = [(part[..., :size], part[..., size:]) for part in (here, there)]
        self._first_action_part = self.first[..., size:]
        self._middle = torch.from_numpy(scale.middle).to(device)
        self._half = torch.from_numpy(scale.half).to(device)
        self.noise = np.zeros((agents, rows, scale.size), np.float32)

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        super().fetch()
        self.action = self.action.flatten(2).sub(self._middle).div_(self._half)

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
        self, config: TD3Config, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        self._encoder, self._scale = Encoder(observation_space, config.n_frames), ActionScale(action_space)
        self._action_space = action_space
        self._layout = layout = TD3Layout.of(config, observation_space, action_space)
        super().__init__(layout.weights, 2 * layout.half, seeds, self._initialise, device, streams=True)
        agents, n, c = len(seeds), layout.weights, layout.size
        halves = self._rows.view(agents, 2, layout.half)
        first, second = halves[:, 0], halves[:, 1]
        critics = self._rows.view(2 * agents, layout.half)[:, layout.critics :]  # [2 A, 4 c]
        weights, targets, moment1, moment2 = (critics[:, i * c : (i + 1) * c] for i in range(4))
        self._policy_grad = torch.zeros((agents, n), device=self._device)
        self._critic_grad = torch.zeros((2 * agents, c), device=self._device)
        self._policy = Network(layout.policy, first, self._policy_grad)
        self._target_policy = Network(layout.policy, second)
        self._critics = Network(layout.critic, weights, self._critic_grad)
        self._target_critics = Network(layout.critic, targets)
        self._first_critic = Network(layout.critic, first[:, layout.critics :])
        self._critic_adam = Adam(weights, self._critic_grad, moment1, moment2)

        def adam(begin: int, end: int) -> Adam:
            """Return the optimiser of a part of the published values."""
            moments = first[:, n + begin : n + end], second[:, n + begin : n + end]
            return Adam(first[:, begin:end], self._policy_grad[:, begin:end], *moments)

        self._policy_adam = adam(layout.policy.start, n)
        learned = slice(layout.policy.start if layout.picture is None else layout.picture.start, n)
        self._targets = ((second[:, learned], first[:, learned]), (targets, weights))
        self._eyes: Convolution | None = None
        if layout.picture is not None:
            self._eyes = Convolution(layout.picture, first, self._policy_grad)
            self._target_eyes = Convolution(layout.picture, second)
            self._eyes_grad = self._policy_grad[:, layout.picture.start : layout.policy.start]
            self._eyes_adam = adam(layout.picture.start, layout.policy.start)
        self._normaliser = None if layout.statistics is None else Normaliser(layout.statistics, first)
        self._batches: dict[int, _Transitions] = {}
        self._metrics = {name: np.zeros(agents, np.float32) for name in ("loss", "mean_q", "grad_norm")}

    def _initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        layout = self._layout
        first, second = row.reshape(2, -1)
        if layout.statistics is not None:
            layout.statistics.initialise(first)
        if layout.picture is not None:
            layout.picture.initialise(first, rng)
        layout.policy.initialise(first, rng)
        second[: layout.weights] = first[: layout.weights]
        for half in (first, second):
            critic = half[layout.critics :]
            layout.critic.initialise(critic, rng)
            critic[layout.size : 2 * layout.size] = critic[: layout.size]

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        updates = self.counters[:, 0]
        self._critic_adam.load(np.repeat(updates, 2))
        self._policy_adam.load(updates // self.config.policy_delay)
        if self._eyes is not None:
            self._eyes_adam.load(updates)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        config, updates = self.config, int(self.counters[agent, 0])
        return {
            "noise": value_at(config.noise, step, config.stages),
            "random": updates == 0,
            "learner_step": updates,
            "stage": config.stages.index(step),
        }

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        config = self.config
        if id(batch) not in self._batches:
            self._batches[id(batch)] = _Transitions(
                batch, self._encoder, self._action_space, self._device, self._scale, self._layout.policy.sizes[0]
            )
        data = self._batches[id(batch)]
        data.fetch()
        if self._normaliser is not None:
            data.raw.copy_(data.x)
            self._normaliser.apply(data.inputs)
        if self._eyes is not None:
            data.seen, data.next_seen = self._eyes.forward(data.x), self._target_eyes.forward(data.next_x)
        data.show_critics()
        rates = [value_at(config.learning_rate, int(step), config.stages) for step in steps]
        errors = self._learn_critics(data, rates)  # [A, 2, B]
        self.counters[:, 0] += 1
        early = np.flatnonzero(self.counters[:, 0] % config.policy_delay)
        if len(early) < len(self.counters):
            kept = self._rows[early]
            self._learn_policy(data, rates)
            for target, weights in self._targets:
                target.lerp_(weights, config.target_rate)
            if len(early):  # agents whose policy update is not due yet: undo
                self._rows[early] = kept
                self._policy_adam.load(self.counters[:, 0] // config.policy_delay)
        if self._normaliser is not None:
            self._normaliser.update(data.raw, frozen=[config._freezes(int(step)) for step in steps])
        return Update(self._metrics, errors.abs_().mean(1).cpu().numpy() if config.prioritised else None)

    def _learn_critics(self, data: _Transitions, rates: Sequence[float]) -> Tensor:
        """Take one gradient step of all critics; return their TD errors ``[A, 2, B]``."""
        config, (agents, rows) = self.config, data.reward.shape
        data.show_next(self._target_actions(data))
        values = self._target_critics.forward(data.there)[-1].view(agents, 2, rows)
        goal = torch.addcmul(data.reward * config.reward_scale, data.discount, values.amin(1))
        layers = self._critics.forward(data.here)
        guess = layers[-1].view(agents, 2, rows)
        error = goal.unsqueeze(1) - guess
        slope = error * (-2.0 / rows)
        if data.weight is not None:
            slope.mul_(data.weight.unsqueeze(1))
        back = self._critics.backward(data.here, layers, slope.view(2 * agents, rows, 1), inputs=self._eyes is not None)
        if self._eyes is not None:
            self._learn_to_see(self._eyes, back.view(agents, 2, rows, -1).sum(1), rates)
        norms = clip_rows(self._critic_grad, config.max_grad_norm)
        if self._measures():
            losses = error.square() if data.weight is None else error.square() * data.weight.unsqueeze(1)
            for name, value in (
                ("loss", losses.mean((1, 2))),
                ("mean_q", guess.mean((1, 2))),
                ("grad_norm", norms.view(agents, 2).mean(1)),
            ):
                self._metrics[name][:] = value.cpu().numpy()
        self._critic_adam.step([rate for rate in rates for _ in range(2)], config.adam_eps)
        return error

    def _target_actions(self, data: _Transitions) -> Tensor:
        """Return the target policy's next actions with smoothing noise, ``[A, B, n]``."""
        config = self.config
        for row, stream in zip(data.noise, self._streams, strict=True):
            stream.standard_normal(out=row, dtype=np.float32)
        noise = torch.from_numpy(data.noise).to(self._device, copy=True).mul_(config.target_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        return noise.add_(self._target_policy.forward(data.next_seen)[-1].tanh()).clamp_(-1.0, 1.0)

    def _learn_to_see(self, eyes: Convolution, grad: Tensor, rates: Sequence[float]) -> None:
        """Take one gradient step of the convolutions, given the sum of the gradients of both critics' inputs."""
        eyes.backward(grad[..., : self._layout.policy.sizes[0]])
        clip_rows(self._eyes_grad, self.config.max_grad_norm)
        self._eyes_adam.step(rates, self.config.adam_eps)

    def _learn_policy(self, data: _Transitions, rates: Sequence[float]) -> None:
        """Take one gradient step of the policies, which increases the value of their first critic."""
        rows = data.x.shape[1]
        layers = self._policy.forward(data.seen)
        actions = layers[-1].tanh()
        data.show_first(actions)
        above = self._first_critic.forward(data.first)
        slope = torch.full_like(above[-1], -1.0 / rows)
        back = self._first_critic.backward(data.first, above, slope, inputs=True, weights=False)
        grad = back[..., self._layout.policy.sizes[0] :] * actions.square_().neg_().add_(1.0)
        self._policy.backward(data.seen, layers, grad)
        clip_rows(self._policy_grad[:, self._layout.policy.start :], self.config.max_grad_norm)
        self._policy_adam.step(rates, self.config.adam_eps)

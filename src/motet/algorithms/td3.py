"""TD3: a policy of continuous actions that climbs the lower of two action values. Clipped double Q, delayed policy.

In: stacked batches ``[A, batch, ...]``. Out: the policy's weights (published, and read by :class:`TD3Behaviour` in
actors) and, for a prioritised replay, the critics' mean absolute errors. Target actions are smoothed by clipped noise
from each agent's own random stream. Inside, an action is a vector in [-1, 1]; noise is measured in that unit.

An agent's row has two halves of one shape, so that the 2 A critics lie at equal distances and one stacked pass does for
all of them::

    first half     policy (published)   its first moments    statistics   critic 1, its target and both its moments
    second half    target policy        its second moments   (empty)      critic 2, its target and both its moments

Pictures are seen through convolutions, which lie before the policy and learn with the critics; the policy uses what
they see. Without pictures the networks see the inputs themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, HeaderSpec, ReaderSettings, Sizes, Space, Update
from motet.algorithms._convolution import Convolution, Picture
from motet.algorithms._flat import STREAM_BYTES, Adam, FlatRows, check_seeds, clip_rows, padded
from motet.algorithms._networks import Block, Encoder, Network
from motet.algorithms._normaliser import Freezing, Normaliser, Statistics
from motet.algorithms._settings import check_finite, check_hidden, check_limits, check_replay
from motet.algorithms._value import Tensors
from motet.errors import NotReadyError, SettingError
from motet.nest import Nest
from motet.schedule import Schedule, Stages, check_schedule, value_at

__all__ = ["TD3", "TD3Behaviour", "TD3Config"]


@dataclass(frozen=True)
class TD3Config(Freezing):
    """Settings of TD3.

    >>> from gymnasium.spaces import Box
    >>> config = TD3Config(hidden=(32,), batch_size=8, min_rows=8)
    >>> spaces = Box(-1, 1, (5,)), Box(-2, 2, (3,))
    >>> td3 = config.build(*spaces, agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(*spaces, config.replay(*spaces), agents=2)
    >>> sorted(td3.update(batch, steps=[100, 100]).metrics)
    ['grad_norm', 'loss', 'mean_q']
    >>> behaviour = config.behaviour(*spaces)
    >>> behaviour.load(td3.weights()[0], td3.header(step=100, agent=0))
    >>> actions, _ = behaviour.act(np.zeros((4, 5), "float32"), explore=False)
    >>> actions.shape, actions.dtype
    ((4, 3), dtype('float32'))
    """

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of policy and critics; behind the convolutions, where observations are pictures."""
    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards summed before the value of what follows."""
    n_frames: int = 1
    """Observations stacked."""
    reward_scale: float = 1.0
    """What rewards are multiplied with before they are learnt from."""
    normalise: bool = False
    """Normalise observations by their running mean and spread."""
    freeze_normaliser_on_stage: str | None = None
    """From the beginning of this stage on the running mean and spread stay as they are."""
    batch_size: int = 256
    """Transitions in an update."""
    learning_rate: Schedule = 3e-4
    """Adam's step size."""
    adam_eps: float = 1e-8
    """Adam's guard against small second moments."""
    max_grad_norm: float | None = None
    """The gradients of policy and critics are scaled down to this norm; None: never."""
    policy_delay: int = 2
    """Updates of the critics for one of the policy and the targets."""
    target_rate: float = 0.005
    """How far the targets move each time: 1 copies the weights, less is a Polyak average."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions; actions reach from -1 to 1."""
    target_noise_clip: float = 0.5
    """Where that noise is cut off."""
    noise: Schedule = 0.1
    """Standard deviation of the noise on actions while exploring; actions reach from -1 to 1."""
    noise_memory: float = 0.0
    """How much of the last step's noise stays in this one's, from 0 (each on its own) to below 1. Where a single push
    moves little, noise that lasts gets further."""
    prioritised: bool = False
    """Draw transitions by their last error instead of uniformly."""
    alpha: float = 0.6
    """Exponent of the priorities."""
    beta: Schedule = 0.4
    """Exponent of the importance weights."""
    capacity: int = 100_000
    """Rows of the replay."""
    min_rows: int = 1_000
    """Rows in the replay before the first update; until then actions are uniformly random."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run, in which any schedule may have values of its own (``Staged``)."""

    def __post_init__(self) -> None:
        check_hidden(self)
        check_schedule("learning_rate", self.learning_rate, 0, 1, self.stages)
        check_schedule("noise", self.noise, 0, math.inf, self.stages)
        check_finite(self, "adam_eps", "reward_scale")
        check_finite(self, "target_noise", "target_noise_clip", zero=True)
        check_limits(self, "max_grad_norm")
        if not 0 <= self.noise_memory < 1:
            raise SettingError(f"noise_memory: given {self.noise_memory}, expected from 0 to below 1")
        if self.policy_delay < 1:
            raise SettingError(f"policy_delay: given {self.policy_delay}, expected 1 or more")
        check_replay(self)
        self._check_freezing()
        self._reader()

    @property
    def header(self) -> HeaderSpec:
        """What travels with the weights."""
        return {
            "noise": ((), "float64"), "random": ((), "bool"), "learner_step": ((), "int64"), "stage": ((), "int64")
        }  # fmt: skip

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """What the replay must offer."""
        _ActionScale(action_space)
        if masked:
            raise SettingError("action masks: given by the world, expected none: TD3 has no discrete actions to mask")
        return self._reader()

    def _reader(self) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.gamma,
            n_step=self.n_step, n_frames=self.n_frames, prioritised=self.prioritised, alpha=self.alpha, beta=self.beta,
            stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        layout = _TD3Layout.of(self, observation_space, action_space)
        return Sizes(weights=layout.weights, state=2 * layout.half, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> TD3:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        return TD3(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> TD3Behaviour:
        """The acting half."""
        return TD3Behaviour(self, observation_space, action_space)


class _ActionScale:
    """A box of actions and the vectors in [-1, 1] that stand for them."""

    def __init__(self, space: Space) -> None:
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        dtype = np.dtype(getattr(space, "dtype", None))
        if low is None or high is None or dtype.kind != "f" or not (np.isfinite(low) & np.isfinite(high)).all():
            raise SettingError(f"action space: given {space!r}, expected a Box of floats with finite bounds")
        if not (low < high).all():
            raise SettingError(f"action space: given {space!r}, expected low below high everywhere")
        self.low, self.high, self.dtype, self.shape = low, high, dtype, tuple(space.shape)
        self.size = math.prod(self.shape)
        wide = np.asarray(low, np.float64), np.asarray(high, np.float64)
        self.middle = ((wide[0] + wide[1]) / 2).astype(np.float32).reshape(-1)
        self.half = ((wide[1] - wide[0]) / 2).astype(np.float32).reshape(-1)

    def actions(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Actions ``[B, *shape]`` for vectors ``[B, size]``."""
        wide = (vectors * self.half + self.middle).reshape(len(vectors), *self.shape).astype(self.dtype, copy=False)
        inside: npt.NDArray[Any] = np.clip(wide, self.low, self.high, out=wide)  # rounding may go beyond a bound
        return inside


@dataclass(frozen=True)
class _TD3Layout:
    """Where the parts lie in a half of a row."""

    picture: Picture | None
    """Before the policy."""
    policy: Block
    critic: Block
    """Relative to where a critic begins."""
    statistics: Statistics | None
    weights: int
    """Numbers that are published: statistics, if there are any, and the policy."""
    critics: int
    """Where the critic begins, with its target and its moments behind it."""
    size: int
    """Numbers of a critic."""

    @property
    def half(self) -> int:
        """Numbers of a half."""
        return self.critics + 4 * self.size

    @classmethod
    def of(cls, config: TD3Config, observation_space: Space, action_space: Space) -> _TD3Layout:
        inputs, actions = Encoder(observation_space, config.n_frames).size, _ActionScale(action_space).size
        start = padded(2 * inputs) if config.normalise else 0
        picture = Picture.of(observation_space, config.n_frames, start)
        if picture is not None and config.normalise:
            raise SettingError("normalise: given for pictures, expected False: their bytes become 0 to 1 as it is")
        features, first = (inputs, start) if picture is None else (picture.features, padded(picture.end))
        policy = Block((features, *config.hidden, actions), first)
        critic = Block((features + actions, *config.hidden, 1))
        weights = padded(policy.end)
        statistics = Statistics(inputs, 0, 2 * weights) if config.normalise else None
        critics = 2 * weights + (padded(statistics.n_private) if statistics else 0)
        return cls(picture, policy, critic, statistics, weights, critics, padded(critic.end))


class _Transitions(Tensors):
    """A stacked batch as tensors, and room for what the critics see: ``[2 A, B, features + actions]``."""

    action_dtype = torch.float32

    def __init__(
        self,
        batch: Batch,
        encoder: Encoder,
        action_space: Space,
        device: torch.device,
        scale: _ActionScale,
        size: int,
    ) -> None:
        super().__init__(batch, encoder, action_space, device)
        agents, rows, _ = self.x.shape
        shape = (agents, 2, rows, size + scale.size)
        self.raw = torch.zeros_like(self.x)
        self.seen, self.next_seen = self.x, self.next_x  # features, [A, B, size] each
        here, there = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        self.here, self.there = here.flatten(0, 1), there.flatten(0, 1)
        self.first = here[:, 0]  # what the first critic of each agent sees, [A, B, features + actions]
        self._parts = [(part[..., :size], part[..., size:]) for part in (here, there)]
        self._first_action_part = self.first[..., size:]
        self._middle = torch.from_numpy(scale.middle).to(device)
        self._half = torch.from_numpy(scale.half).to(device)
        self.noise = np.zeros((agents, rows, scale.size), np.float32)

    def fetch(self) -> None:
        """Take the present content of the arrays."""
        super().fetch()
        self.action = self.action.flatten(2).sub(self._middle).div_(self._half)

    def show_critics(self) -> None:
        """Let the critics see the features and the actions that were done."""
        (seen, done), (seen_next, _) = self._parts
        seen.copy_(self.seen.unsqueeze(1))
        seen_next.copy_(self.next_seen.unsqueeze(1))
        done.copy_(self.action.unsqueeze(1))

    def show_next(self, actions: Tensor) -> None:
        """Let the target critics see these actions ``[A, B, n]``."""
        self._parts[1][1].copy_(actions.unsqueeze(1))

    def show_first(self, actions: Tensor) -> None:
        """Let the first critic see these actions ``[A, B, n]``."""
        self._first_action_part.copy_(actions)


class TD3(FlatRows):
    """The learning half of TD3 for A agents."""

    def __init__(
        self, config: TD3Config, observation_space: Space, action_space: Space, seeds: Sequence[int], device: str
    ) -> None:
        self.config = config
        self._encoder, self._scale = Encoder(observation_space, config.n_frames), _ActionScale(action_space)
        self._action_space = action_space
        self._layout = layout = _TD3Layout.of(config, observation_space, action_space)
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
            """Of a part of what is published."""
            moments = first[:, n + begin : n + end], second[:, n + begin : n + end]
            return Adam(first[:, begin:end], self._policy_grad[:, begin:end], *moments)

        self._policy_adam = adam(layout.policy.start, n)
        learnt = slice(layout.policy.start if layout.picture is None else layout.picture.start, n)
        self._targets = ((second[:, learnt], first[:, learnt]), (targets, weights))
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
        """Go on from ``state``, ``counters`` and ``random``."""
        super().load()
        updates = self.counters[:, 0]
        self._critic_adam.load(np.repeat(updates, 2))
        self._policy_adam.load(updates // self.config.policy_delay)
        if self._eyes is not None:
            self._eyes_adam.load(updates)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """What travels with this agent's weights, when it has done ``step`` steps."""
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
            if len(early):  # agents with other counts: not yet
                self._rows[early] = kept
                self._policy_adam.load(self.counters[:, 0] // config.policy_delay)
        if self._normaliser is not None:
            self._normaliser.update(data.raw, frozen=[config._freezes(int(step)) for step in steps])
        return Update(self._metrics, errors.abs_().mean(1).cpu().numpy() if config.prioritised else None)

    def _learn_critics(self, data: _Transitions, rates: Sequence[float]) -> Tensor:
        """One step of all critics; returns their errors ``[A, 2, B]``."""
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
        """What the target policy would do next, smoothed: ``[A, B, n]``."""
        config = self.config
        for row, stream in zip(data.noise, self._streams, strict=True):
            stream.standard_normal(out=row, dtype=np.float32)
        noise = torch.from_numpy(data.noise).to(self._device, copy=True).mul_(config.target_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        return noise.add_(self._target_policy.forward(data.next_seen)[-1].tanh()).clamp_(-1.0, 1.0)

    def _learn_to_see(self, eyes: Convolution, grad: Tensor, rates: Sequence[float]) -> None:
        """One step of the convolutions, given the gradient of what both critics of an agent see."""
        eyes.backward(grad[..., : self._layout.policy.sizes[0]])
        clip_rows(self._eyes_grad, self.config.max_grad_norm)
        self._eyes_adam.step(rates, self.config.adam_eps)

    def _learn_policy(self, data: _Transitions, rates: Sequence[float]) -> None:
        """One step of the policies uphill on their first critic."""
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


class TD3Behaviour:
    """The acting half of TD3: the native forward on the published row, then Gaussian noise.

    Exploring draws a normal and a uniform number for each part of each action, whatever comes of it, so the random
    stream does not depend on weights. Noise that lasts goes on from the same row of the last call: the same world's,
    where all worlds act at once.
    """

    def __init__(self, config: TD3Config, observation_space: Space, action_space: Space) -> None:
        self._encoder, self._scale = Encoder(observation_space, config.n_frames), _ActionScale(action_space)
        layout = _TD3Layout.of(config, observation_space, action_space)
        self._statistics, self._picture = layout.statistics, layout.picture
        plain = layout.statistics is None and layout.picture is None
        self._net = layout.policy.native(self._encoder.scale if plain else 1.0)
        self._rng = np.random.default_rng(0)
        self._weights: npt.NDArray[np.float32] | None = None
        self._noise, self._random = 0.0, True
        self._memory, self._fresh = np.float32(config.noise_memory), np.float32(math.sqrt(1 - config.noise_memory**2))
        self._lasting = np.zeros((0, self._scale.size), np.float32)

    def begin(self, seed: int) -> None:
        """Start the random stream anew."""
        self._rng = np.random.default_rng(seed)
        self._lasting = self._lasting[:0]

    def get_stream(self) -> Any:
        """The random stream and the noise that lasts, as plain values."""
        return self._rng.bit_generator.state, self._lasting.copy()

    def set_stream(self, stream: Any) -> None:
        """Continue from a stream that was saved."""
        self._rng.bit_generator.state, lasting = stream
        self._lasting = lasting.copy()

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version."""
        self._weights, self._noise, self._random = weights, float(header["noise"]), bool(header["random"])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Actions ``[B, ...]`` for observations ``[B, ...]``; no extra fields."""
        if self._weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        rows = self._encoder.rows(observations)
        if not explore:
            return self._scale.actions(self._greedy(self._weights, rows)), {}
        shape = (len(rows), self._scale.size)
        noise, uniform = self._rng.standard_normal(shape, np.float32), self._rng.random(shape, np.float32)
        if self._random:
            return self._scale.actions(2.0 * uniform - 1.0), {}
        if self._memory:
            noise = self._last(noise)
        noise *= self._noise
        noise += self._greedy(self._weights, rows)
        return self._scale.actions(np.clip(noise, -1.0, 1.0, out=noise)), {}

    def _last(self, fresh: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Noise of the same spread that goes on from the last one; overwrites ``fresh``."""
        n, known = len(fresh), len(self._lasting)
        if n > known:
            self._lasting = np.concatenate([self._lasting, fresh[known:]])
        old = self._lasting[: min(n, known)]
        old *= self._memory
        old += fresh[:known] * self._fresh
        fresh[:] = self._lasting[:n]
        return fresh

    def _greedy(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Vectors in [-1, 1]."""
        if self._statistics is not None:
            rows = self._statistics.normalise(weights, rows, self._encoder.scale)
        if self._picture is not None:
            rows = self._picture.see(weights, rows, self._encoder.scale)
        vectors = np.empty((len(rows), self._scale.size), np.float32)
        self._net.forward(weights, rows, vectors)
        return np.tanh(vectors, out=vectors)

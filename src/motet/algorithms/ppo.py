"""PPO: a policy that moves a little with every batch of fresh rows, each of which it uses in one update only.

In: fragments of consecutive rows ``[A, fragments, length, ...]``, each row once. Out: the policy's weights, published
and read by :class:`PPOBehaviour` in actors, which draws actions and notes their log-probabilities. One update makes
several passes over its rows in small batches, drawn by each agent's own random stream.

Actors may act while the learner learns, so rows may come from an older version (a lag of one update, if the pace has a
slack of one). Three policies take part in an update: ``mu`` that acted, ``p`` at the beginning of the update, and
``pi`` that moves. With the truncated importance weight ``w = min(1, p / mu)`` of each row, advantages are V-trace's,

    A(t) = d(t) + discount(t) * gae_lambda * w(t + 1) * A(t + 1),    d(t) = reward(t) + discount(t) * V(t + 1) - V(t),

the values' targets are ``V(t) + w(t) * A(t)``, and the policy climbs ``w * min(r A, clip(r) A)`` with ``r = pi / p``:
the clip measures from where the update begins, whoever acted. Without a lag ``mu`` is ``p``, all weights are 1, and
this is generalised advantage estimation and PPO as it is usually written.

Pictures are seen through convolutions that policy and critic share; otherwise they have nothing in common. An agent's
row is ``statistics, convolutions, policy, log-deviations (published) | critic | first moments | second moments |
statistics of the learner``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet.algorithm import Batch, Field, HeaderSpec, ReaderSettings, Sizes, Space, Update
from motet.algorithms._convolution import Convolution, Picture
from motet.algorithms._distributions import Actions, Choices, Look, actions_of
from motet.algorithms._flat import STREAM_BYTES, Adam, FlatRows, check_seeds, clip_rows, padded
from motet.algorithms._networks import Block, Encoder, Network
from motet.algorithms._normaliser import Freezing, Normaliser, Statistics
from motet.algorithms._settings import check_finite, check_hidden, check_limits
from motet.errors import NotReadyError, SettingError
from motet.nest import Nest, map_nest
from motet.schedule import Schedule, Stages, check_schedule, value_at

__all__ = ["PPO", "PPOBehaviour", "PPOConfig", "advantages"]


@dataclass(frozen=True)
class PPOConfig(Freezing):
    """Settings of PPO.

    >>> from gymnasium.spaces import Box, Discrete
    >>> config = PPOConfig(hidden=(32,), batch_size=2, length=8, minibatches=2)
    >>> spaces = Box(-1, 1, (5,)), Discrete(3)
    >>> ppo = config.build(*spaces, agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(*spaces, config.replay(*spaces), agents=2)
    >>> sorted(ppo.update(batch, steps=[100, 100]).metrics)
    ['clipped', 'entropy', 'grad_norm', 'kl', 'policy_loss', 'value_loss', 'weight']
    >>> behaviour = config.behaviour(*spaces)
    >>> behaviour.load(ppo.weights()[0], ppo.header(step=100, agent=0))
    >>> actions, extra = behaviour.act(np.zeros((4, 5), "float32"))
    >>> actions.shape, extra["log_prob"].shape
    ((4,), (4,))
    """

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of policy and critic; behind the convolutions, where observations are pictures."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What is between the layers."""
    gamma: float = 0.99
    """Discount per step."""
    gae_lambda: float = 0.95
    """How far advantages look beyond the next value: 0 not at all, 1 to the end of the episode or fragment."""
    n_frames: int = 1
    """Observations stacked."""
    reward_scale: float = 1.0
    """What rewards are multiplied with before they are learnt from."""
    normalise: bool = False
    """Normalise observations by their running mean and spread."""
    freeze_normaliser_on_stage: str | None = None
    """From the beginning of this stage on the running mean and spread stay as they are."""
    batch_size: int = 8
    """Fragments in an update."""
    length: int = 128
    """Rows in a fragment."""
    epochs: int = 6
    """Passes over the rows of an update."""
    minibatches: int = 8
    """Parts of a pass, each with a step of its own."""
    learning_rate: Schedule = 3e-4
    """Adam's step size."""
    adam_eps: float = 1e-5
    """Adam's guard against small second moments."""
    max_grad_norm: float | None = 0.5
    """An agent's gradient is scaled down to this norm; None: never."""
    clip: Schedule = 0.2
    """How far the probability of an action may move in an update before it is left alone, as a share."""
    clip_value: float | None = None
    """How far a value may move in an update; None: as far as it likes."""
    entropy: Schedule = 0.0
    """Weight of the policy's entropy, which keeps it from settling early."""
    value_weight: float = 0.5
    """Weight of the critic's loss; it matters where the gradient is scaled down."""
    normalise_advantages: bool = True
    """Shift and scale the advantages of an update to mean 0 and deviation 1."""
    first_log_std: float = 0.0
    """Continuous actions: the logarithm of their first standard deviation; the box reaches from -1 to 1."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run, in which any schedule may have values of its own (``Staged``)."""

    def __post_init__(self) -> None:
        check_hidden(self)
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}: given {getattr(self, name)}, expected 1 or more")
        check_finite(self, "adam_eps", "reward_scale")
        check_limits(self, "max_grad_norm", "clip_value")
        if not 0 <= self.gae_lambda <= 1:
            raise SettingError(f"gae_lambda: given {self.gae_lambda}, expected 0 to 1")
        check_finite(self, "value_weight", zero=True)
        if not math.isfinite(self.first_log_std):
            raise SettingError(f"first_log_std: given {self.first_log_std}, expected a finite number")
        check_schedule("learning_rate", self.learning_rate, 0, 1, self.stages)
        check_schedule("clip", self.clip, 0, 1, self.stages)
        check_schedule("entropy", self.entropy, 0, math.inf, self.stages)
        self._check_freezing()
        rows = self.batch_size * self.length
        if rows % self.minibatches:
            raise SettingError(
                f"minibatches: given {self.minibatches}, expected a number that divides the {rows} rows of an update "
                f"(batch_size {self.batch_size} times length {self.length})"
            )
        self._reader({})

    @property
    def header(self) -> HeaderSpec:
        """What travels with the weights."""
        return {"learner_step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """What the replay must offer."""
        actions = actions_of(action_space)
        extra = {"log_prob": Field(), **actions.fields}
        if masked:
            if not isinstance(actions, Choices) or len(actions.counts) > 1:
                raise SettingError(f"action masks: given by the world for {action_space!r}, expected Discrete actions")
            extra["mask"] = Field((actions.outputs,), "bool", next=True)
        return self._reader(extra)

    def _reader(self, extra: Mapping[str, Field]) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, length=self.length, once=True, capacity=self.batch_size * self.length,
            gamma=self.gamma, n_frames=self.n_frames, extra=extra, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        layout = _PPOLayout.of(self, observation_space, action_space)
        return Sizes(weights=layout.weights, state=layout.state, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> PPO:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        return PPO(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> PPOBehaviour:
        """The acting half."""
        return PPOBehaviour(self, observation_space, action_space)


@dataclass(frozen=True)
class _PPOLayout:
    """Where the parts lie in a row."""

    statistics: Statistics | None
    picture: Picture | None
    policy: Block
    own: slice
    """The numbers of the policy beside its network."""
    weights: int
    """Numbers that are published."""
    critic: Block
    learnt: slice
    """All that is learnt; its moments follow."""
    state: int

    @classmethod
    def of(cls, config: PPOConfig, observation_space: Space, action_space: Space) -> _PPOLayout:
        inputs, actions = Encoder(observation_space, config.n_frames).size, actions_of(action_space)
        start = padded(2 * inputs) if config.normalise else 0
        picture = Picture.of(observation_space, config.n_frames, start)
        if picture is not None and config.normalise:
            raise SettingError("normalise: given for pictures, expected False: their bytes become 0 to 1 as it is")
        features, first = (inputs, start) if picture is None else (picture.features, picture.end)
        policy = Block((features, *config.hidden, actions.outputs), first, activation=config.activation)
        own = slice(policy.end, policy.end + actions.parameters)
        weights = padded(own.stop)
        critic = Block((features, *config.hidden, 1), weights, activation=config.activation)
        learnt = slice(start, padded(critic.end))
        behind = learnt.stop + 2 * (learnt.stop - start)
        statistics = Statistics(inputs, 0, behind) if config.normalise else None
        state = behind + (padded(statistics.n_private) if statistics else 0)
        return cls(statistics, picture, policy, own, weights, critic, learnt, state)


class _MiniBatch(NamedTuple):
    """The rows of one small batch."""

    x: Tensor  # [A, rows, inputs]
    chosen: Tensor  # [A, rows, ...]
    mask: Tensor | None
    before: Tensor  # log-probability at the beginning of the update
    gain: Tensor  # weighted advantage, over the number of rows
    goal: Tensor  # target of the value
    value: Tensor  # at the beginning of the update
    share: Tensor  # 1 over the number of rows, 0 where no transition starts


_SCALARS = 5  # of a part, behind the mask


class _Rows:
    """The rows of an update as tensors, and the same in the order of a pass."""

    def __init__(
        self, batch: Batch, encoder: Encoder, actions: Actions, minibatches: int, device: torch.device
    ) -> None:
        self.batch, self._actions, self._device, self._parts = batch, actions, device, minibatches
        agents, fragments, length = batch.reward.shape
        self.shape = (agents, fragments, length)
        rows, seen = fragments * length, fragments * (length + 1)
        self.x = torch.zeros((agents, seen, encoder.size), device=device)
        flat = map_nest(lambda array: array.reshape(agents, seen, *array.shape[3:]), batch.observation)
        self._encode = encoder.link(flat, self.x)
        # Where the rows with an action are among those with an observation.
        self.positions = torch.arange(rows, device=device) + torch.arange(rows, device=device) // length
        self._first = torch.arange(agents, device=device).unsqueeze(1)
        self.raw = torch.zeros_like(self.x)
        self.scalars = torch.zeros((agents, rows, _SCALARS), device=device)
        self._x = torch.zeros((agents * rows, encoder.size), device=device)
        self._order = np.zeros((agents, rows), np.int64)

    def fetch(self) -> None:
        """Take the present content of the arrays."""
        batch, device = self.batch, self._device
        agents, fragments, length = self.shape
        self._encode()
        self.chosen = self._actions.chosen(batch).to(device)
        self.mask = None
        if "mask" in batch.extra:
            mask = torch.from_numpy(batch.extra["mask"])[:, :, :length]
            self.mask = mask.reshape(agents, fragments * length, -1).to(device)

    def shuffle(self, streams: Sequence[np.random.Generator]) -> list[_MiniBatch]:
        """All rows once, in a new order of each agent's own, in equal parts."""
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
    """``A(t)`` of the module's docstring, by fragment: ``[..., length]``; ``values`` has one row more.

    Where no transition starts (``valid`` is False) a chain ends: that row's value stands for what follows, and its own
    result means nothing.

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
        self._encoder, self._actions = Encoder(observation_space, config.n_frames), actions_of(action_space)
        self._layout = layout = _PPOLayout.of(config, observation_space, action_space)
        super().__init__(layout.weights, layout.state, seeds, self._initialise, device, streams=True)
        agents, start, end = len(seeds), layout.learnt.start, layout.learnt.stop
        grad = torch.zeros((agents, end), device=self._device)
        self._picture = None if layout.picture is None else Convolution(layout.picture, self._rows, grad)
        self._policy, self._critic = (Network(block, self._rows, grad) for block in (layout.policy, layout.critic))
        self._own, self._own_grad = self._rows[:, layout.own], grad[:, layout.own]
        self._grad, size = grad[:, start:], end - start
        moments = [self._rows[:, end + i * size : end + (i + 1) * size] for i in range(2)]
        self._adam = Adam(self._rows[:, layout.learnt], self._grad, *moments)
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
        """Go on from ``state``, ``counters`` and ``random``."""
        super().load()
        self._adam.load(self.counters[:, 0] * (self.config.epochs * self.config.minibatches))

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """What travels with this agent's weights, when it has done ``step`` steps."""
        return {"learner_step": int(self.counters[agent, 0]), "stage": self.config.stages.index(step)}

    @torch.inference_mode()
    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch of rows, in several passes."""
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
        """What the passes need of every row: where the policy begins, advantages, targets."""
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
        """What policy and critic are shown of the inputs."""
        return x if self._picture is None else self._picture.forward(x)

    def _step(self, part: _MiniBatch, clip: Tensor, entropy: Tensor, rates: Sequence[float], measure: bool) -> None:
        """One step downhill on one small batch."""
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
    """Shifted and scaled to mean 0 and deviation 1 over the valid rows of each agent."""
    axes = (1, 2)
    count = np.maximum(valid.sum(axes, keepdims=True), 1)
    gain = gain - (gain * valid).sum(axes, keepdims=True, dtype=np.float64) / count
    deviation = np.sqrt((gain * gain * valid).sum(axes, keepdims=True) / count)
    normal: npt.NDArray[np.float32] = (gain / (deviation + 1e-8)).astype(np.float32)
    return normal


# ---- acting


class PPOBehaviour:
    """The acting half of PPO: the native forward on the published row, then a draw, with its log-probability.

    Exploring draws as many numbers for each row whatever comes of it, so the random stream does not depend on weights.
    """

    def __init__(self, config: PPOConfig, observation_space: Space, action_space: Space) -> None:
        self._encoder, self._actions = Encoder(observation_space, config.n_frames), actions_of(action_space)
        layout = _PPOLayout.of(config, observation_space, action_space)
        self._statistics, self._picture, self._own = layout.statistics, layout.picture, layout.own
        plain = layout.statistics is None and layout.picture is None
        self._net = layout.policy.native(self._encoder.scale if plain else 1.0)
        self._rng = np.random.default_rng(0)
        self._weights: npt.NDArray[np.float32] | None = None
        self._prepared: Any = None

    def begin(self, seed: int) -> None:
        """Start the random stream anew."""
        self._rng = np.random.default_rng(seed)

    def get_stream(self) -> Any:
        """The random stream, as plain values."""
        return self._rng.bit_generator.state

    def set_stream(self, stream: Any) -> None:
        """Continue from a stream that was saved."""
        self._rng.bit_generator.state = stream

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version."""
        self._weights, self._prepared = weights, self._actions.prepare(weights[self._own])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Actions ``[B, ...]`` for observations ``[B, ...]``, and the extra fields."""
        weights = self._weights
        if weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        rows = self._encoder.rows(observations)
        if self._statistics is not None:
            rows = self._statistics.normalise(weights, rows, self._encoder.scale)
        if self._picture is not None:
            rows = self._picture.see(weights, rows, self._encoder.scale)
        out = np.empty((len(rows), self._actions.outputs), np.float32)
        self._net.forward(weights, rows, out)
        return self._actions.draw(out, self._prepared, masks, self._rng if explore else None)

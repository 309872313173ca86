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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, MinLen

from motet.algorithm import Field, HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._blocks import Block, Picture, padded
from motet.algorithms._distributions import Choices, actions_of
from motet.algorithms._encoder import Encoder
from motet.algorithms._settings import check_config, check_seeds
from motet.algorithms._statistics import Freezing, Statistics
from motet.algorithms._streams import STREAM_BYTES
from motet.errors import NotReadyError, SettingError
from motet.nest import Nest
from motet.schedule import Schedule, Stages
from motet.settings import FINITE

if TYPE_CHECKING:
    from motet.algorithms._ppo_learner import PPO

__all__ = ["PPOBehaviour", "PPOConfig"]


@dataclass(frozen=True)
class PPOConfig(Freezing):
    """Settings of PPO.

    >>> from motet.algorithm import stacked_batch
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

    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (64, 64)
    """Widths of the hidden layers of policy and critic; behind the convolutions, where observations are pictures."""
    activation: Literal["tanh", "relu"] = "tanh"
    """What is between the layers."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """How far advantages look beyond the next value: 0 not at all, 1 to the end of the episode or fragment."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Observations stacked."""
    reward_scale: Annotated[float, Gt(0), FINITE] = 1.0
    """What rewards are multiplied with before they are learnt from."""
    normalise: bool = False
    """Normalise observations by their running mean and spread."""
    freeze_normaliser_on_stage: str | None = None
    """From the beginning of this stage on the running mean and spread stay as they are."""
    batch_size: Annotated[int, Ge(1)] = 8
    """Fragments in an update."""
    length: Annotated[int, Ge(1)] = 128
    """Rows in a fragment."""
    epochs: Annotated[int, Ge(1)] = 6
    """Passes over the rows of an update."""
    minibatches: Annotated[int, Ge(1)] = 8
    """Parts of a pass, each with a step of its own."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 3e-4
    """Adam's step size."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-5
    """Adam's guard against small second moments."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """An agent's gradient is scaled down to this norm; None: never."""
    clip: Annotated[Schedule, Interval(ge=0, le=1)] = 0.2
    """How far the probability of an action may move in an update before it is left alone, as a share."""
    clip_value: Annotated[float, Gt(0)] | None = None
    """How far a value may move in an update; None: as far as it likes."""
    entropy: Annotated[Schedule, Ge(0), FINITE] = 0.0
    """Weight of the policy's entropy, which keeps it from settling early."""
    value_weight: Annotated[float, Ge(0), FINITE] = 0.5
    """Weight of the critic's loss; it matters where the gradient is scaled down."""
    normalise_advantages: bool = True
    """Shift and scale the advantages of an update to mean 0 and deviation 1."""
    first_log_std: Annotated[float, FINITE] = 0.0
    """Continuous actions: the logarithm of their first standard deviation; the box reaches from -1 to 1."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run, in which any schedule may have values of its own (``Staged``)."""

    def __post_init__(self) -> None:
        check_config(self)
        self._check_freezing()
        rows = self.batch_size * self.length
        if rows % self.minibatches:
            raise SettingError(
                f"minibatches must divide the {rows} rows of an update (batch_size {self.batch_size} times length "
                f"{self.length}), got {self.minibatches}"
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
                raise SettingError(f"action masks are only valid with Discrete actions (got {action_space!r})")
            extra["mask"] = Field((actions.outputs,), "bool", next=True)
        return self._reader(extra)

    def _reader(self, extra: Mapping[str, Field]) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, length=self.length, once=True, capacity=self.batch_size * self.length,
            gamma=self.gamma, n_frames=self.n_frames, extra=extra, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """How much one agent's part holds."""
        layout = PPOLayout.of(self, observation_space, action_space)
        return Sizes(weights=layout.weights, state=layout.state, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> PPO:
        """The learning half for ``agents`` agents, each made from its own seed."""
        check_seeds(agents, seeds)
        from motet.algorithms._ppo_learner import PPO

        return PPO(self, observation_space, action_space, seeds, device)

    def behaviour(self, observation_space: Space, action_space: Space) -> PPOBehaviour:
        """The acting half."""
        return PPOBehaviour(self, observation_space, action_space)


@dataclass(frozen=True)
class PPOLayout:
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
    def of(cls, config: PPOConfig, observation_space: Space, action_space: Space) -> PPOLayout:
        inputs, actions = Encoder(observation_space, config.n_frames).size, actions_of(action_space)
        start = padded(2 * inputs) if config.normalise else 0
        picture = Picture.of(observation_space, config.n_frames, start)
        if picture is not None and config.normalise:
            raise SettingError("normalise must be False for pictures, got True: their bytes become 0 to 1 anyway")
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


# ---- acting


class PPOBehaviour:
    """The acting half of PPO: the native forward on the published row, then a draw, with its log-probability.

    Exploring draws as many numbers for each row whatever comes of it, so the random stream does not depend on weights.
    """

    def __init__(self, config: PPOConfig, observation_space: Space, action_space: Space) -> None:
        self._encoder, self._actions = Encoder(observation_space, config.n_frames), actions_of(action_space)
        layout = PPOLayout.of(config, observation_space, action_space)
        self._statistics, self._picture, self._own = layout.statistics, layout.picture, layout.own
        if layout.picture is not None:
            from motet.algorithms._convolution import features

            self._features = features
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
            rows = self._features(self._picture, weights, rows, self._encoder.scale)
        out = np.empty((len(rows), self._actions.outputs), np.float32)
        self._net.forward(weights, rows, out)
        return self._actions.draw(out, self._prepared, masks, self._rng if explore else None)

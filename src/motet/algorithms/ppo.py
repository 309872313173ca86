"""PPO with V-trace corrections: it learns from fresh rollout fragments and uses each row in one update only.

The learner takes fragments of consecutive rows ``[A, fragments, length, ...]`` and reads each row once. It publishes
the policy's weights. :class:`PPOBehaviour` reads them in actors, draws actions and records their log-probabilities. One
update makes several epochs over its rows in minibatches, which each agent's random stream shuffles.

Actors may act while the learner updates, so rows may come from an older version (one update older, if the pace has a
slack of one). An update involves three policies: ``mu``, which acted; ``p``, the policy at the start of the update;
and ``pi``, the policy that is being optimised. Each row has the truncated importance weight ``w = min(1, p / mu)``.
Advantages are those of V-trace,

    A(t) = d(t) + discount(t) * gae_lambda * w(t + 1) * A(t + 1),    d(t) = reward(t) + discount(t) * V(t + 1) - V(t),

the value targets are ``V(t) + w(t) * A(t)``, and the policy maximises ``w * min(r A, clip(r) A)`` with ``r = pi / p``:
the clip range is relative to the policy at the start of the update, not to the policy that acted. Without a lag, ``mu``
equals ``p``, all weights are 1, and this is generalised advantage estimation and standard PPO.

With a memory, sequences of rows are computed from the state that was stored in their first row. At the start of an
update this is done for whole fragments, which gives values and log-probabilities. The gradient steps then train on
chunks of ``sequence_length`` rows, which are shuffled as wholes.

Policy and critic share the encoder, the convolutions for pictures and the memory, if there are any; otherwise they
share no weights.
An agent's row is ``statistics, shared layers, policy, log standard deviations (published) | critic | first moments |
second moments | the learner's statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, MinLen

from motet.algorithm import Field, HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._blocks import DensePlan
from motet.algorithms._distributions import actions_of
from motet.algorithms._encoder import Encoder
from motet.algorithms._greedy import Greedy
from motet.algorithms._own import Seen, check_plan
from motet.algorithms._plans import NetworkPlan, chained, padded
from motet.algorithms._settings import check_config, check_seeds
from motet.algorithms._statistics import Freezing, Statistics
from motet.algorithms._streams import STREAM_BYTES, ActingStream
from motet.algorithms.source import NetworkSetting
from motet.errors import NotReadyError, SettingError
from motet.foreign_names import suggesting
from motet.nest import Nest
from motet.schedule import Schedule, Stages
from motet.settings import FINITE

if TYPE_CHECKING:
    from motet.algorithms._ppo_learner import PPO

__all__ = ["PPOBehaviour", "PPOConfig"]


@suggesting("algorithm")
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
    """Widths of the hidden layers of policy and critic; for pictures, of the layers after the convolutions."""
    network: NetworkSetting = None
    """Your own policy network instead of the shipped one: a function of (observation_space, outputs) that makes a
    torch.nn.Module, the path "module:function" of such a function, or a name such as "mlp(layer_norm=True)". The module
    maps an observation to logits, or to the means of continuous actions."""
    critic: NetworkSetting = None
    """Your own critic, given in the same forms as ``network``. A function gets (observation_space, 1). The module maps
    an observation to a value."""
    encoder: NetworkSetting = None
    """Your own encoder, which policy and critic share: a function of (observation_space) that makes a torch.nn.Module,
    the path "module:function" of such a function, or a name such as "parts". The module maps an observation to
    features."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation function between the layers."""
    memory: Literal["gru", "lstm"] | None = None
    """Memory that policy and critic share, a recurrent layer before their hidden layers; None: policy and critic see
    the newest observation only."""
    memory_size: Annotated[int, Ge(1)] = 64
    """Number of outputs of the memory."""
    sequence_length: Annotated[int, Ge(1)] = 32
    """With a memory: number of consecutive rows through which gradients flow. The number must divide ``length``. If it
    is larger than ``length``, gradients flow through whole fragments."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    gae_lambda: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """Lambda of generalised advantage estimation: 0 is the one-step TD error, 1 sums rewards to the end of the episode
    or fragment."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Number of stacked observations (frame stacking)."""
    reward_scale: Annotated[float, Gt(0), FINITE] = 1.0
    """Factor by which the learner multiplies rewards."""
    normalise: bool = False
    """Normalise observations by their running mean and standard deviation."""
    freeze_normaliser_on_stage: str | None = None
    """Name of the stage at whose start the running mean and standard deviation of observations are frozen (see
    ``normalise``)."""
    batch_size: Annotated[int, Ge(1)] = 8
    """Number of rollout fragments in an update."""
    length: Annotated[int, Ge(1)] = 128
    """Number of rows (steps) in a rollout fragment."""
    epochs: Annotated[int, Ge(1)] = 6
    """Number of epochs: passes over the rows of an update."""
    minibatches: Annotated[int, Ge(1)] = 8
    """Number of minibatches in an epoch; each is one gradient step."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 3e-4
    """Adam's learning rate."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-5
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 0.5
    """Maximum gradient norm of an agent, above which its gradient is scaled down; None: no clipping."""
    clip: Annotated[Schedule, Interval(ge=0, le=1)] = 0.2
    """Clip range: the probability ratio is clipped to [1 - clip, 1 + clip]."""
    clip_value: Annotated[float, Gt(0)] | None = None
    """Clip range of the value loss: how far the value of a state may move in one update. None: no clipping."""
    entropy: Annotated[Schedule, Ge(0), FINITE] = 0.0
    """Entropy coefficient; higher values keep the policy stochastic for longer."""
    value_weight: Annotated[float, Ge(0), FINITE] = 0.5
    """Value loss coefficient. Policy and critic are separate networks, apart from an encoder, memory or convolutions
    that they share, and Adam divides out the scale of the gradient. So the coefficient matters mostly for shared
    layers, and where ``max_grad_norm`` clips the gradient of both networks together."""
    normalise_advantages: bool = True
    """Normalise the advantages of an update to mean 0 and standard deviation 1."""
    first_log_std: Annotated[float, FINITE] = 0.0
    """Initial log standard deviation of continuous actions, which are scaled to [-1, 1]."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run. Schedules can have different values in each stage (``Staged``)."""

    def __post_init__(self) -> None:
        check_config(self)
        self._check_freezing()
        rows = self.batch_size * self.length
        if rows % self.minibatches:
            raise SettingError(
                f"minibatches must divide the {rows} rows of an update (batch_size {self.batch_size} times length "
                f"{self.length}), got {self.minibatches}"
            )
        self._reader({}, 0 if self.memory is None else self.memory_size)

    @property
    def _chunk(self) -> int:
        """Number of rows of a chunk."""
        return min(self.sequence_length, self.length)

    def _check_chunks(self) -> None:
        """Raise unless fragments and minibatches consist of whole chunks."""
        if self.length % self._chunk:
            raise SettingError(f"sequence_length must divide length {self.length}, got {self.sequence_length}")
        chunks = self.batch_size * self.length // self._chunk
        if chunks % self.minibatches:
            raise SettingError(
                f"minibatches must divide the {chunks} sequences of an update (batch_size {self.batch_size} times "
                f"length {self.length} / sequence_length {self._chunk}), got {self.minibatches}"
            )

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {"learner_step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what PPO needs from the replay."""
        actions = actions_of(action_space)
        may_remember = self.memory is not None or self.encoder is not None
        state_size = PPOLayout.of(self, observation_space, action_space).state_size if may_remember else 0
        extra = {"log_prob": Field(), **actions.fields}
        if masked:
            if not actions.mask_size:
                raise SettingError(f"action masks are not valid with continuous actions (got {action_space!r})")
            extra["mask"] = Field((actions.mask_size,), "bool", next=True)
        return self._reader(extra, state_size)

    def _reader(self, extra: Mapping[str, Field], memory: int) -> ReaderSettings:
        if memory:
            self._check_chunks()
        return ReaderSettings(
            batch_size=self.batch_size, length=self.length, once=True, capacity=self.batch_size * self.length,
            gamma=self.gamma, n_frames=self.n_frames, extra=extra, memory=memory, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        layout = PPOLayout.of(self, observation_space, action_space)
        check_plan(layout.encoder, remembers=True)
        check_plan(layout.policy, layout.critic)
        return Sizes(weights=layout.weights, state=layout.state, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> PPO:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._ppo_learner import PPO

        return PPO(self, observation_space, action_space, seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> PPOBehaviour:
        """Make the acting half."""
        return PPOBehaviour(self, observation_space, action_space)

    def greedy(self, observation_space: Space, action_space: Space, weights: npt.NDArray[np.float32]) -> Greedy:
        """Return the greedy policy of published weights, for export."""
        layout = PPOLayout.of(self, observation_space, action_space)
        plan = chained(layout.encoder, layout.policy)
        row = weights[layout.encoder_part.start : layout.policy_part.stop]
        decision = actions_of(action_space).best()
        return Greedy(Encoder(observation_space, self.n_frames), [(plan, row)], decision, layout.statistics, weights)

    def _dense(self, inputs: int, outputs: int, last_gain: float) -> NetworkPlan:
        gains = (math.sqrt(2), last_gain)
        return DensePlan((inputs, *self.hidden, outputs), activation=self.activation, gains=gains)


@dataclass(frozen=True)
class PPOLayout:
    """The parts of an agent's row: each network and its position."""

    statistics: Statistics | None
    encoder: NetworkPlan | None
    """The network that policy and critic share; None: both take the inputs directly."""
    policy: NetworkPlan
    critic: NetworkPlan
    encoder_part: slice
    policy_part: slice
    own: slice
    """Parameters of the policy outside its network: the log standard deviations."""
    weights: int
    """Number of published values."""
    critic_part: slice
    learned: slice
    """Slice of all learned parameters, which are followed by their moments."""
    state: int

    @property
    def state_size(self) -> int:
        """Size of the memory of one agent."""
        return 0 if self.encoder is None else self.encoder.state_size

    @classmethod
    def of(cls, config: PPOConfig, observation_space: Space, action_space: Space) -> PPOLayout:
        inputs, actions = Encoder(observation_space, config.n_frames).size, actions_of(action_space)
        start = padded(2 * inputs) if config.normalise else 0
        seen = Seen(observation_space, config.n_frames)
        encoder, policy, critic = seen.actor_critic(
            config,
            lambda n: config._dense(n, actions.outputs, 0.01),
            lambda n: config._dense(n, 1, 1.0),
            actions.outputs,
        )
        first = start + (0 if encoder is None else encoder.size)
        own = slice(first + policy.size, first + policy.size + actions.parameters)
        weights = padded(own.stop)
        learned = slice(start, padded(weights + critic.size))
        behind = learned.stop + 2 * (learned.stop - start)
        statistics = Statistics(inputs, 0, behind) if config.normalise else None
        state = behind + (padded(statistics.n_private) if statistics else 0)
        return cls(
            statistics, encoder, policy, critic, slice(start, first), slice(first, own.start), own, weights,
            slice(weights, weights + critic.size), learned, state,
        )  # fmt: skip


# ---- acting


class PPOBehaviour(ActingStream):
    """The acting half of PPO: the forward pass on the published row, then a draw with its log-probability.

    Exploration draws a fixed number of random numbers for each row, so the random stream does not depend on weights.
    """

    def __init__(self, config: PPOConfig, observation_space: Space, action_space: Space) -> None:
        self._encoder, self._actions = Encoder(observation_space, config.n_frames), actions_of(action_space)
        layout = PPOLayout.of(config, observation_space, action_space)
        self._statistics, self._own = layout.statistics, layout.own
        self._part = slice(layout.encoder_part.start, layout.policy_part.stop)
        plan = chained(layout.encoder, layout.policy)
        self._net = plan.acting(self._encoder.scale if layout.statistics is None else 1.0)
        self._explores = plan.explores
        self.state_size = layout.state_size
        """Number of values of the policy's memory; 0: no memory."""
        self._rng = np.random.default_rng(0)
        self._weights: npt.NDArray[np.float32] | None = None
        self._prepared: Any = None

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        self._weights, self._prepared = weights, self._actions.prepare(weights[self._own])
        self._net.load(weights[self._part])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B, ...]`` for observations ``[B, ...]``, and the extra fields."""
        if self.state_size:
            raise NotReadyError("this behaviour has a memory: call act_from with its state")
        rows, seed = self._seen(observations, explore)
        return self._actions.draw(self._net.forward(rows, seed), self._prepared, masks, self._rng if explore else None)

    def act_from(
        self,
        state: npt.NDArray[np.float32],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Return actions and extra fields, and the memory after these observations."""
        rows, seed = self._seen(observations, explore)
        out, new = self._net.step(rows, state, seed)
        actions, extra = self._actions.draw(out, self._prepared, masks, self._rng if explore else None)
        return actions, {**extra, "memory": state}, new

    def _seen(self, observations: Nest, explore: bool) -> tuple[npt.NDArray[Any], int | None]:
        """Return the inputs of the network, and a seed for the noise if the network explores by noisy layers."""
        if self._weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        rows = self._encoder.rows(observations)
        if self._statistics is not None:
            rows = self._statistics.normalise(self._weights, rows, self._encoder.scale)
        return rows, int(self._rng.integers(2**63)) if explore and self._explores else None

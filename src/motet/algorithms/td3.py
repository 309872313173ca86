"""TD3 for continuous actions: clipped double Q-learning, delayed policy updates and target policy smoothing.

The learner takes stacked batches ``[A, batch, ...]``. It publishes the policy's weights, which :class:`TD3Behaviour`
reads in actors, and returns the critics' mean absolute TD errors as priorities for a prioritised replay. Target actions
are smoothed by clipped noise from each agent's random stream. Internally an action is a vector in [-1, 1]; noise is in
that unit.

An agent's row has two halves of equal layout. So the 2 A critics have equal distances in memory, and one stacked pass
computes all of them::

    first half     policy (published)   its first moments    statistics   critic 1, its target and both its moments
    second half    target policy        its second moments   (empty)      critic 2, its target and both its moments

If observations are pictures, the row has convolutions before the policy. If the policy has a memory, the row has a
recurrent layer after the convolutions. Both are trained with the critics, and the policy takes their features without a
gradient. Without either, policy and critics take the inputs directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, MinLen

from motet.algorithm import HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._blocks import DensePlan
from motet.algorithms._encoder import Encoder
from motet.algorithms._greedy import Bound, Greedy, Layered
from motet.algorithms._own import Seen, check_plan
from motet.algorithms._plans import NetworkPlan, padded
from motet.algorithms._settings import check_config, check_min_rows, check_seeds
from motet.algorithms._statistics import Freezing, Statistics
from motet.algorithms._streams import STREAM_BYTES
from motet.algorithms.source import NetworkSetting
from motet.errors import NotReadyError, SettingError
from motet.foreign_names import suggesting
from motet.nest import Nest
from motet.schedule import Schedule, Stages
from motet.settings import FINITE

if TYPE_CHECKING:
    from motet.algorithms._td3_learner import TD3

__all__ = ["TD3Behaviour", "TD3Config"]


@suggesting("algorithm")
@dataclass(frozen=True)
class TD3Config(Freezing):
    """Settings of TD3.

    >>> from motet.algorithm import stacked_batch
    >>> from gymnasium.spaces import Box
    >>> config = TD3Config(hidden=(32,), batch_size=8, min_rows=8)
    >>> spaces = Box(-1, 1, (5,)), Box(-2, 2, (3,))
    >>> td3 = config.build(*spaces, agents=2, seeds=[1, 2])
    >>> batch = stacked_batch(*spaces, config.replay(*spaces), agents=2)
    >>> sorted(td3.update(batch, steps=[100, 100]).metrics)
    ['grad_norm', 'loss', 'mean_q', 'policy_loss']
    >>> behaviour = config.behaviour(*spaces)
    >>> behaviour.load(td3.weights()[0], td3.header(step=100, agent=0))
    >>> actions, _ = behaviour.act(np.zeros((4, 5), "float32"), explore=False)
    >>> actions.shape, actions.dtype
    ((4, 3), dtype('float32'))
    """

    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (256, 256)
    """Widths of the hidden layers of policy and critics; for pictures, of the layers after the convolutions."""
    network: NetworkSetting = None
    """Your own policy network instead of the shipped one: a function of (observation_space, outputs) that makes a
    torch.nn.Module, the path "module:function" of such a function, or a name such as "mlp(layer_norm=True)". The module
    maps an observation to the action before tanh squashes it to [-1, 1]."""
    critic: NetworkSetting = None
    """Your own critic, given in the same forms as ``network``. A function gets (observation_space, 1). The module maps
    a batch of observations and a batch of actions, scaled to [-1, 1], to values. Two such modules are made."""
    encoder: NetworkSetting = None
    """Your own encoder, which policy and critics share and which learns with the critics: a function of
    (observation_space) that makes a torch.nn.Module, the path "module:function" of such a function, or a name such as
    "parts". The module maps an observation to features."""
    memory: Literal["gru", "lstm"] | None = None
    """Memory that policy and critics share, a recurrent layer before their hidden layers, which learns with the
    critics; None: policy and critics see the newest observation only. With a memory, updates learn from sequences of
    consecutive rows."""
    memory_size: Annotated[int, Ge(1)] = 64
    """Number of outputs of the memory."""
    sequence_length: Annotated[int, Ge(1)] = 32
    """Number of consecutive rows in a sequence from which a policy with a memory learns, without the ``burn_in``
    rows."""
    burn_in: Annotated[int, Ge(0)] = 8
    """Burn-in: number of rows before the ``sequence_length`` rows in a sequence. Burn-in rows are not learned from.
    They only bring the memory up to date, because the memory that is stored with the first of them was computed by an
    older version of the policy."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    n_step: Annotated[int, Ge(1)] = 1
    """Number of steps in the n-step return."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Number of stacked observations (frame stacking)."""
    reward_scale: Annotated[float, Gt(0), FINITE] = 1.0
    """Factor by which the learner multiplies rewards."""
    normalise: bool = False
    """Normalise observations by their running mean and standard deviation."""
    freeze_normaliser_on_stage: str | None = None
    """Name of the stage at whose start the running mean and standard deviation of observations are frozen (see
    ``normalise``)."""
    batch_size: Annotated[int, Ge(1)] = 256
    """Number of transitions in an update; with a memory, number of sequences."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 3e-4
    """Adam's learning rate."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Maximum gradient norm of the policy and of each critic; larger gradients are scaled down. None: no clipping."""
    policy_delay: Annotated[int, Ge(1)] = 2
    """Number of critic updates for each update of the policy and the target networks."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] = 0.005
    """Rate of the target networks' Polyak averaging (tau); 1 copies the weights."""
    target_noise: Annotated[float, Ge(0), FINITE] = 0.2
    """Standard deviation of the target policy smoothing noise, in actions scaled to [-1, 1]."""
    target_noise_clip: Annotated[float, Ge(0), FINITE] = 0.5
    """Absolute value at which the target policy smoothing noise is clipped."""
    noise: Annotated[Schedule, Ge(0), FINITE] = 0.1
    """Standard deviation of the Gaussian exploration noise, in actions scaled to [-1, 1]."""
    noise_memory: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Autocorrelation of the exploration noise between steps; 0: independent noise. Correlated noise explores further
    where a single action has little effect."""
    prioritised: bool = False
    """Prioritised replay: sample transitions or sequences by their last TD errors instead of uniformly."""
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities in prioritised replay."""
    beta: Annotated[Schedule, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights in prioritised replay."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows."""
    min_rows: Annotated[int, Ge(1)] = 1_000
    """Number of rows in the replay buffer before the first update. Until then, actions are uniformly random."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run. Schedules can have different values in each stage (``Staged``)."""

    def __post_init__(self) -> None:
        check_config(self)
        check_min_rows(self)
        self._check_freezing()
        self._reader(self.memory_size if self.memory else 0)

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {
            "noise": ((), "float64"), "random": ((), "bool"), "learner_step": ((), "int64"), "stage": ((), "int64")
        }  # fmt: skip

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what TD3 needs from the replay."""
        ActionScale(action_space)
        if masked:
            raise SettingError("action masks are not valid with TD3, whose actions are continuous")
        may_remember = self.memory is not None or self.encoder is not None
        return self._reader(TD3Layout.of(self, observation_space, action_space).state_size if may_remember else 0)

    def _reader(self, memory: int) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.gamma,
            n_step=self.n_step, n_frames=self.n_frames, prioritised=self.prioritised, alpha=self.alpha, beta=self.beta,
            memory=memory, length=self.burn_in + self.sequence_length if memory else 0,
            burn_in=self.burn_in if memory else 0, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        layout = TD3Layout.of(self, observation_space, action_space)
        check_plan(layout.encoder, remembers=True)
        check_plan(layout.policy, layout.critic)
        return Sizes(weights=layout.weights, state=2 * layout.half, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> TD3:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._td3_learner import TD3

        return TD3(self, observation_space, action_space, seeds, Device(device))

    def greedy(self, observation_space: Space, action_space: Space, weights: npt.NDArray[np.float32]) -> Greedy:
        """Return the greedy policy of published weights, for export."""
        layout = TD3Layout.of(self, observation_space, action_space)
        seen: list[tuple[Layered, npt.NDArray[np.float32]]] = (
            [] if layout.encoder is None else [(layout.encoder, weights[layout.encoder_part])]
        )
        networks = [*seen, (layout.policy, weights[layout.policy_part])]
        decision = ActionScale(action_space).best(squash=True)
        return Greedy(Encoder(observation_space, self.n_frames), networks, decision, layout.statistics, weights)

    def behaviour(self, observation_space: Space, action_space: Space) -> TD3Behaviour:
        """Make the acting half."""
        return TD3Behaviour(self, observation_space, action_space)


class ActionScale:
    """The mapping from vectors in [-1, 1] to the actions of a Box."""

    def __init__(self, space: Space) -> None:
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        dtype = np.dtype(getattr(space, "dtype", None))
        if low is None or high is None or dtype.kind != "f" or not (np.isfinite(low) & np.isfinite(high)).all():
            raise SettingError(f"action space must be a Box of floats with finite bounds, got {space!r}; use ppo")
        if not (low < high).all():
            raise SettingError(f"action space must have low < high in every component, got {space!r}")
        self.low, self.high, self.dtype, self.shape = low, high, dtype, tuple(space.shape)
        self.size = math.prod(self.shape)
        wide = np.asarray(low, np.float64), np.asarray(high, np.float64)
        self.middle = ((wide[0] + wide[1]) / 2).astype(np.float32).reshape(-1)
        self.half = ((wide[1] - wide[0]) / 2).astype(np.float32).reshape(-1)

    def best(self, squash: bool) -> Bound:
        """Return how the greedy action follows from the outputs; with ``squash`` tanh maps them to [-1, 1] first."""
        return Bound(squash, self.half, self.middle, self.low, self.high, self.shape)

    def actions(self, vectors: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Return actions ``[B, *shape]`` for vectors ``[B, size]``."""
        wide = (vectors * self.half + self.middle).reshape(len(vectors), *self.shape).astype(self.dtype, copy=False)
        inside: npt.NDArray[Any] = np.clip(wide, self.low, self.high, out=wide)  # rounding may exceed a bound
        return inside


@dataclass(frozen=True)
class TD3Layout:
    """The parts of one half of an agent's row: each network and its position."""

    statistics: Statistics | None
    encoder: NetworkPlan | None
    """The network that policy and critics share; None: they take the inputs directly."""
    policy: NetworkPlan
    critic: NetworkPlan
    encoder_part: slice
    policy_part: slice
    weights: int
    """Number of published values: statistics (if any), encoder (if any) and policy."""
    critics: int
    """Offset of the critic, which is followed by its target and its moments."""

    @property
    def size(self) -> int:
        """Number of values of a critic, rounded up to a multiple of 16."""
        return padded(self.critic.size)

    @property
    def state_size(self) -> int:
        """Size of the memory of one agent."""
        return 0 if self.encoder is None else self.encoder.state_size

    @property
    def half(self) -> int:
        """Number of values of a half."""
        return self.critics + 4 * self.size

    @classmethod
    def of(cls, config: TD3Config, observation_space: Space, action_space: Space) -> TD3Layout:
        inputs, actions = Encoder(observation_space, config.n_frames).size, ActionScale(action_space).size
        start = padded(2 * inputs) if config.normalise else 0
        encoder, policy, critic = Seen(observation_space, config.n_frames).actor_critic(
            config,
            lambda n: DensePlan((n, *config.hidden, actions)),
            lambda n: DensePlan((n + actions, *config.hidden, 1)),
            actions,
            actions,
        )
        first = start if encoder is None else padded(start + encoder.size)
        weights = padded(first + policy.size)
        statistics = Statistics(inputs, 0, 2 * weights) if config.normalise else None
        critics = 2 * weights + (padded(statistics.n_private) if statistics else 0)
        seeing = slice(start, start + (0 if encoder is None else encoder.size))
        return cls(statistics, encoder, policy, critic, seeing, slice(first, first + policy.size), weights, critics)


class TD3Behaviour:
    """The acting half of TD3: the forward pass on the published row, then Gaussian noise.

    Exploration always draws a normal and a uniform number for each component of each action, so the random stream does
    not depend on weights. Correlated noise continues from the noise of the same row of the previous call. If all worlds
    act at once, each row belongs to the same world in every call.
    """

    def __init__(self, config: TD3Config, observation_space: Space, action_space: Space) -> None:
        self._encoder, self._scale = Encoder(observation_space, config.n_frames), ActionScale(action_space)
        self._layout = layout = TD3Layout.of(config, observation_space, action_space)
        self._statistics, scale = layout.statistics, self._encoder.scale if layout.statistics is None else 1.0
        self._seeing = None if layout.encoder is None else layout.encoder.acting(scale)
        self._net = layout.policy.acting(scale if layout.encoder is None else 1.0)
        self._explores = layout.policy.explores or (layout.encoder is not None and layout.encoder.explores)
        self.state_size = layout.state_size
        """Number of values of the policy's memory; 0: no memory."""
        self._rng = np.random.default_rng(0)
        self._weights: npt.NDArray[np.float32] | None = None
        self._noise, self._random = 0.0, True
        self._memory, self._fresh = np.float32(config.noise_memory), np.float32(math.sqrt(1 - config.noise_memory**2))
        self._lasting = np.zeros((0, self._scale.size), np.float32)

    def begin(self, seed: int) -> None:
        """Restart the random stream from a seed."""
        self._rng = np.random.default_rng(seed)
        self._lasting = self._lasting[:0]

    def get_stream(self) -> Any:
        """Return the random stream and the correlated noise as plain values."""
        return self._rng.bit_generator.state, self._lasting.copy()

    def set_stream(self, stream: Any) -> None:
        """Continue from a saved stream."""
        self._rng.bit_generator.state, lasting = stream
        self._lasting = lasting.copy()

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        self._weights, self._noise, self._random = weights, float(header["noise"]), bool(header["random"])
        if self._seeing is not None:
            self._seeing.load(weights[self._layout.encoder_part])
        self._net.load(weights[self._layout.policy_part])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B, ...]`` for observations ``[B, ...]``, and no extra fields."""
        if self.state_size:
            raise NotReadyError("this behaviour has a memory: call act_from with its state")
        return self._acted(observations, explore, None)[0], {}

    def act_from(
        self,
        state: npt.NDArray[np.float32],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]], npt.NDArray[np.float32]]:
        """Return actions, extra fields with the memory before these observations, and the memory after them."""
        actions, new = self._acted(observations, explore, state)
        assert new is not None
        return actions, {"memory": state}, new

    def _acted(
        self, observations: Nest, explore: bool, state: npt.NDArray[np.float32] | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32] | None]:
        """Return the actions, and the memory after these observations."""
        if self._weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        rows = self._encoder.rows(observations)
        if not explore:
            vectors, new = self._greedy(rows, state)
            return self._scale.actions(vectors), new
        seed = int(self._rng.integers(2**63)) if self._explores else None
        shape = (len(rows), self._scale.size)
        noise, uniform = self._rng.standard_normal(shape, np.float32), self._rng.random(shape, np.float32)
        if self._random:
            new = None if state is None else self._greedy(rows, state, seed)[1]
            return self._scale.actions(2.0 * uniform - 1.0), new
        if self._memory:
            noise = self._last(noise)
        noise *= self._noise
        vectors, new = self._greedy(rows, state, seed)
        noise += vectors
        return self._scale.actions(np.clip(noise, -1.0, 1.0, out=noise)), new

    def _last(self, fresh: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return noise that is correlated with the last noise and has the same standard deviation; overwrites
        ``fresh``."""
        n, known = len(fresh), len(self._lasting)
        if n > known:
            self._lasting = np.concatenate([self._lasting, fresh[known:]])
        old = self._lasting[: min(n, known)]
        old *= self._memory
        old += fresh[:known] * self._fresh
        fresh[:] = self._lasting[:n]
        return fresh

    def _greedy(
        self, rows: npt.NDArray[Any], state: npt.NDArray[np.float32] | None, seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
        """Return the policy's actions as vectors in [-1, 1], and the memory after the rows."""
        if self._statistics is not None:
            assert self._weights is not None
            rows = self._statistics.normalise(self._weights, rows, self._encoder.scale)
        if self._seeing is not None and state is not None:
            rows, state = self._seeing.step(rows, state, seed)
        elif self._seeing is not None:
            rows = self._seeing.forward(rows, seed)
        vectors = self._net.forward(rows, seed)
        return np.tanh(vectors, out=vectors), state

"""An algorithm as a loss over one agent's batch: a user writes its networks, its loss and how it acts.

motet does the rest. A config that inherits from :class:`LossConfig` names its networks (:class:`Net`); each is a part
of the agent's row, with a separate learning rate, clipping and target updates. The learner (``_loss_learner``) fetches
the batches of a stack of agents, computes each agent's loss, takes the gradients by autograd, and applies Adam. An
agent's row is ``first network (published), other networks | targets | first moments | second moments``.
:class:`LossBehaviour` acts with the first network. This module does not import torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval

from motet.algorithm import Field, HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._acting import Acting, Categorical, DiagonalGaussian, EpsilonGreedy, GaussianNoise
from motet.algorithms._greedy import Greedy
from motet.algorithms._own import Seen, check_plan
from motet.algorithms._plans import padded
from motet.algorithms._settings import check_config, check_min_rows, check_seeds
from motet.algorithms._streams import STREAM_BYTES, ActingStream
from motet.algorithms.source import NetworkSetting, Source
from motet.errors import NotReadyError, SettingError
from motet.nest import Nest
from motet.schedule import Schedule, Stages, value_at
from motet.settings import FINITE, check_fields, kinds_of, takes_function

if TYPE_CHECKING:
    from torch import Tensor

    from motet.algorithms._loss_learner import LossLearner
    from motet.algorithms._module_plan import ModulePlan

__all__ = [
    "Acting",
    "Categorical",
    "DiagonalGaussian",
    "EpsilonGreedy",
    "GaussianNoise",
    "Learned",
    "Loss",
    "LossBatch",
    "LossBehaviour",
    "LossConfig",
    "Net",
    "advantages",
]

TargetEvery = Annotated[int, Ge(1)] | Literal["phase"]


class Loss(NamedTuple):
    """What a loss function returns for one agent's batch."""

    loss: Tensor
    """A scalar. Every network on which it depends learns from its gradient."""
    priority: Tensor | None = None
    """New priorities of the rows ``[B]``, such as absolute TD errors; needed for a prioritised replay."""
    metrics: Mapping[str, Any] = {}
    """Scalars by name."""


@dataclass(eq=False)
class LossBatch:
    """One agent's batch as tensors ``[B, ...]``, or ``[B, length, ...]`` if rows are read once (``once=True``).

    Observations have the form of the space: tensors in its dicts and tuples, in float32, with Discrete and
    MultiDiscrete values in int64 and bytes scaled to [0, 1]. If rows are read once, observations have the shape ``[B,
    length + 1, ...]``: row ``t + 1`` is the result of the action of row ``t``.
    """

    observation: Any
    next_observation: Any
    """The observation at the end of the transition; None for rows that are read once."""
    action: Tensor
    """Discrete and MultiDiscrete actions are indices from 0, in int64. Actions of a Box are vectors, scaled to [-1, 1]
    if the Box has bounds."""
    reward: Tensor
    """Sum of up to ``n_step`` discounted rewards."""
    discount: Tensor
    """Factor of the bootstrap value: gamma to the power of the number of steps, or 0 if the episode terminated."""
    weight: Tensor
    """Importance weights; 1 without a prioritised replay."""
    valid: Tensor
    """False where no transition starts: after the end of an episode. Only in rows that are read once."""
    mask: Tensor | None
    """Which actions are allowed; None in a world without masks. ``[B, length + 1, n]`` if rows are read once."""
    next_mask: Tensor | None
    extra: dict[str, Tensor]
    """Fields that the acting rule added to the rows, such as ``log_prob``."""
    draws: dict[str, Tensor]
    """Random numbers from the agent's stream, as the config's ``draws`` and ``normal_draws`` say."""
    settings: dict[str, Tensor]
    """Current values, as scalars, of the settings that are schedules."""


@dataclass(frozen=True)
class Net:
    """A network of an algorithm.

    Optional settings that are None have the values of the config.
    """

    source: NetworkSetting
    """What creates the network: a function of (space, outputs), the path "module:function" of one, or a name such as
    "mlp". If ``outputs`` is None, it is a function of (space)."""
    space: Any
    """Space of the network's input: the observation space, or a Box of features."""
    outputs: int | None = None
    """Number of outputs; None: the function decides."""
    actions: int = 0
    """Size of the action, if the network takes one as its second argument."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] | None = None
    """Adam's learning rate."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Maximum gradient norm, above which the gradient is scaled down; infinite: no clipping."""
    target: bool = True
    """Whether there is a target network."""
    target_every: TargetEvery | None = None
    """Number of updates between two updates of the target network."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Rate of a target network update."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", Source.of(self.source, "source"))
        for name in ("outputs", "actions"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, operator.index(given))  # operator.index accepts numpy integers too
        check_fields(self)


@dataclass(frozen=True)
class Learned:
    """Numbers that an algorithm learns in addition to its networks, such as a temperature. A loss gets them as a
    tensor.

    >>> Learned((0.0, 0.0), learning_rate=1e-3).values.shape
    (2,)
    """

    initial: Any = 0.0
    """The initial value: a number, or numbers in nested tuples."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] | None = None
    """Adam's learning rate; None: that of the config."""
    max_grad_norm: Annotated[float, Gt(0)] | None = None
    """Maximum gradient norm, above which the gradient is scaled down; None: that of the config."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not np.isfinite(self.values).all():
            raise SettingError(f"initial must be finite numbers, got {self.initial!r}")

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The initial values."""
        try:
            return np.asarray(self.initial, np.float32)
        except (TypeError, ValueError) as error:
            raise SettingError(f"initial must be numbers, got {self.initial!r}") from error


@dataclass(frozen=True)
class LossConfig:
    """Base of an algorithm of one's own: write ``networks``, ``loss`` and ``acting`` in a frozen dataclass.

    ::

        @dataclass(frozen=True)
        class MyDQN(LossConfig):
            epsilon: Schedule = Linear(1.0, 0.05, steps=10_000)

            def networks(self, observations, actions):
                return {"q": Net("mlp", observations, outputs=actions.n)}

            def loss(self, nets, targets, batch):
                chosen = nets.q(batch.observation).gather(1, batch.action[:, None])[:, 0]
                with torch.no_grad():
                    goal = batch.reward + batch.discount * targets.q(batch.next_observation).amax(1)
                return Loss((batch.weight * (goal - chosen) ** 2).mean(), priority=(goal - chosen).abs())

            def acting(self, actions):
                return EpsilonGreedy(actions, self.epsilon)
    """

    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount per step."""
    n_step: Annotated[int, Ge(1)] = 1
    """Number of steps in the n-step return."""
    n_frames: Annotated[int, Ge(1)] = 1
    """Number of stacked observations (frame stacking)."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Number of transitions in an update; with ``once``, number of fragments."""
    once: bool = False
    """Read every row once and in order, in fragments of ``length`` rows (on-policy), instead of sampling."""
    length: Annotated[int, Ge(0)] = 0
    """Number of rows in a fragment; only with ``once``."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 5e-4
    """Adam's learning rate."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Maximum gradient norm of a network, above which its gradient is scaled down; None: no clipping."""
    target_every: TargetEvery = 500
    """Number of updates between two updates of the target networks. ``phase``: the target networks are updated once in
    each phase of a reproducible run, when the phase begins."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Rate of a target network update: 1 copies the weights, less is Polyak averaging."""
    prioritised: bool = False
    """Prioritised replay: sample transitions by the priority that the loss returns instead of uniformly."""
    priority_alpha: Annotated[float, Interval(ge=0, le=1)] = 0.6
    """Exponent of the priorities."""
    priority_beta: Annotated[Schedule, Interval(ge=0, le=1)] = 0.4
    """Exponent of the importance weights."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows; with ``once`` it follows from the fragments."""
    min_rows: Annotated[int, Ge(1)] = 1_000
    """Rows in the replay buffer before the first update; not used with ``once``."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run. Schedules can have different values in each stage (``Staged``)."""

    draws: ClassVar[Mapping[str, int]] = {}
    """For each name, how many random numbers from [0, 1) each row gets. The loss finds them in
    ``batch.draws[name]``."""
    normal_draws: ClassVar[Mapping[str, int]] = {}
    """For each name, how many standard normal random numbers each row gets. The loss finds them in
    ``batch.draws[name]``."""

    def __post_init__(self) -> None:
        if "__dataclass_params__" not in vars(type(self)):
            raise SettingError(
                f"{type(self).__name__} must be decorated with @dataclass(frozen=True), got a plain class"
            )
        check_config(self)
        if not self.once:
            check_min_rows(self)
            if self.length:
                raise SettingError(f"length must be 0 with once=False, got {self.length}")
        self._reader({})

    # ---- methods that a user writes

    def networks(self, observations: Space, actions: Space) -> Mapping[str, Net | Learned]:
        """Return the networks by name. The first one acts and is published."""
        raise NotImplementedError(f"{type(self).__name__} must have a method networks(self, observations, actions)")

    def loss(self, nets: Any, targets: Any, batch: Any) -> Loss:
        """Return the loss of one agent's batch (:class:`LossBatch`).

        ``nets.NAME`` calls a network, ``nets.NAME.frozen`` calls it without gradients for its parameters, and
        ``targets.NAME`` calls its target network.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a method loss(self, nets, targets, batch)")

    def acting(self, actions: Space) -> Acting:
        """Return how outputs of the first network become actions."""
        raise NotImplementedError(f"{type(self).__name__} must have a method acting(self, actions)")

    # ---- methods that motet provides

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {"learner_step": ((), "int64"), "step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what the algorithm needs from the replay."""
        rule = self.acting(action_space)
        extra = dict(rule.fields)
        if masked:
            if not rule.masked:
                raise SettingError(
                    "acting must be EpsilonGreedy or Categorical in a world with action masks, got "
                    f"{type(rule).__name__} with {action_space!r}"
                )
            extra["mask"] = Field((rule.masked,), "bool", next=True)
        return self._reader(extra)

    def _reader(self, extra: Mapping[str, Field]) -> ReaderSettings:
        capacity, least = self.capacity, self.min_rows
        if self.once:
            capacity, least = max(1, self.batch_size * self.length), 1
        return ReaderSettings(
            batch_size=self.batch_size, capacity=capacity, min_rows=least, gamma=self.gamma, n_step=self.n_step,
            n_frames=self.n_frames, prioritised=self.prioritised, alpha=self.priority_alpha, beta=self.priority_beta,
            extra=extra, once=self.once, length=self.length, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        layout = LossLayout.of(self, observation_space, action_space)
        for part in layout.parts.values():
            check_plan(part.plan)
        from motet.algorithms._loss_checks import check_loss

        check_loss(self, observation_space, action_space)
        return Sizes(weights=layout.weights, state=layout.state, counters=1, random=STREAM_BYTES)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> LossLearner:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._loss_learner import LossLearner

        return LossLearner(self, observation_space, action_space, seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> LossBehaviour:
        """Make the acting half."""
        return LossBehaviour(self, observation_space, action_space)

    def greedy(self, observation_space: Space, action_space: Space, weights: npt.NDArray[np.float32]) -> Greedy:
        """Return the greedy policy of published weights, for export; ``acting`` must have a method ``best``."""
        rule, seen = self.acting(action_space), Seen(observation_space, self.n_frames)
        plan = _plan(*next(iter(_networks(self, seen, action_space).items())), seen)
        if not hasattr(rule, "best"):
            raise SettingError(f"acting must have a method best for export, got {type(rule).__name__}")
        assert not isinstance(plan, LearnedPlan)
        return Greedy(seen.rows, [(plan, weights[: plan.size])], rule.best())

    def _schedules(self) -> dict[str, Schedule]:
        """The settings that may be schedules, by name."""
        cls: Any = type(self)
        kinds = kinds_of(cls)
        return {name: getattr(self, name) for name, kind in kinds.items() if takes_function(kind)}


# ---- the parts of a row


@dataclass(frozen=True)
class LearnedPlan:
    """Learned numbers as a part of an agent's row."""

    values: npt.NDArray[np.float32]

    @property
    def size(self) -> int:
        """Number of float32 values."""
        return padded(self.values.size)

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill a row with the initial values."""
        row[: self.values.size] = self.values.ravel()


class LossPart(NamedTuple):
    """A network, or learned numbers, in an agent's row, with its settings."""

    plan: ModulePlan | LearnedPlan
    online: slice
    target: slice | None
    learning_rate: Schedule
    max_grad_norm: float | None
    target_every: int | Literal["phase"]
    target_rate: float


@dataclass(frozen=True)
class LossLayout:
    """The parts of an agent's row, with the position of each network."""

    parts: dict[str, LossPart]
    weights: int
    """Number of published values."""
    learned: int
    """Number of learned values, which are followed by their targets and moments."""
    targets: int
    """Number of values of the target networks."""

    @property
    def state(self) -> int:
        """Number of values of a row."""
        return 3 * self.learned + self.targets

    @property
    def moments(self) -> tuple[slice, slice]:
        """Position of the moments in a row."""
        start = self.learned + self.targets
        return slice(start, start + self.learned), slice(start + self.learned, start + 2 * self.learned)

    @classmethod
    def of(cls, config: LossConfig, observation_space: Space, action_space: Space) -> LossLayout:
        seen = Seen(observation_space, config.n_frames)
        made = _networks(config, seen, action_space)
        plans = {name: _plan(name, net, seen) for name, net in made.items()}
        learned = sum(plan.size for plan in plans.values())
        parts, at, target = dict[str, LossPart](), 0, learned
        for name, plan in plans.items():
            parts[name] = part = _part(plan, made[name], config, at, target)
            at, target = part.online.stop, target if part.target is None else part.target.stop
        return cls(parts, next(iter(plans.values())).size, learned, target - learned)

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill an agent's row of weights with initial values; target networks begin as copies."""
        for part in self.parts.values():
            part.plan.initialise(row[part.online], rng)
            if part.target is not None:
                row[part.target] = row[part.online]


def _networks(config: LossConfig, seen: Seen, action_space: Space) -> dict[str, Net | Learned]:
    made = config.networks(seen.space, action_space)
    if not isinstance(made, Mapping) or not made:
        raise SettingError(f"networks must return a dict of Net and Learned by name, got {made!r}")
    for name, net in made.items():
        if not (isinstance(name, str) and name.isidentifier() and isinstance(net, (Net, Learned))):
            raise SettingError(f"networks must return a dict of Net and Learned by name, got {name!r}: {net!r}")
    name, first = next(iter(made.items()))
    if not isinstance(first, Net) or first.actions or first.space != seen.space:
        raise SettingError(
            "networks must return first the network that acts, which takes an observation alone, got "
            f"{name!r}: {first!r}"
        )
    wanted = config.acting(action_space).outputs
    if first.outputs is not None and first.outputs < wanted:
        raise SettingError(f"outputs of {name!r}, which acts, must be at least {wanted}, got {first.outputs}")
    return dict(made)


def _plan(name: str, net: Net | Learned, seen: Seen) -> ModulePlan | LearnedPlan:
    if isinstance(net, Learned):
        return LearnedPlan(net.values)
    assert isinstance(net.source, Source)
    from motet.algorithms._encoder import Encoder
    from motet.algorithms._module_plan import ModulePlan

    name = f"network {name}"
    source = net.source.with_default("actions", net.actions, name) if net.actions else net.source
    given = (net.space,) if net.outputs is None else (net.space, net.outputs)
    encoder = seen.rows if net.space == seen.space else Encoder(net.space)
    return ModulePlan(source, name, given, encoder, net.outputs, "action" if net.actions else "", net.actions)


def _part(
    plan: ModulePlan | LearnedPlan, given: Net | Learned, config: LossConfig, first: int, target: int
) -> LossPart:
    """Return a part of a row that begins at an offset. Settings that the network leaves open are those of the
    config."""
    own = given if isinstance(given, Net) else Net(None, None, target=False)
    norm = config.max_grad_norm if given.max_grad_norm is None else given.max_grad_norm
    return LossPart(
        plan,
        slice(first, first + plan.size),
        slice(target, target + plan.size) if own.target else None,
        config.learning_rate if given.learning_rate is None else given.learning_rate,
        None if norm is None or math.isinf(norm) else norm,
        config.target_every if own.target_every is None else own.target_every,
        config.target_rate if own.target_rate is None else own.target_rate,
    )


# ---- acting


class LossBehaviour(ActingStream):
    """The acting half: the first network with the published weights, then the acting rule of the config."""

    def __init__(self, config: LossConfig, observation_space: Space, action_space: Space) -> None:
        self._config, self._rule = config, config.acting(action_space)
        seen = Seen(observation_space, config.n_frames)
        made = _networks(config, seen, action_space)
        plan = _plan(*next(iter(made.items())), seen)
        assert not isinstance(plan, LearnedPlan)
        if plan.outputs < self._rule.outputs:
            raise SettingError(f"the {plan.name} must have at least {self._rule.outputs} outputs, got {plan.outputs}")
        self._encoder, self._net, self._explores = seen.rows, plan.acting(seen.rows.scale), plan.explores
        self._rng = np.random.default_rng(0)
        self._header: Mapping[str, Any] | None = None

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        self._header = header
        self._net.load(weights)

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B, ...]`` for observations ``[B, ...]``, and the extra fields."""
        if self._header is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        seed = int(self._rng.integers(2**63)) if explore and self._explores else None
        out = self._net.forward(self._encoder.rows(observations), seed)[:, : self._rule.outputs]
        return self._rule.choose(out, masks, self._rng if explore else None, self._value)

    def _value(self, schedule: Schedule) -> float:
        """Return the value of a schedule when the loaded version was published."""
        header = self._header or {}
        return value_at(schedule, int(header["step"]), self._config.stages, int(header["learner_step"]))


# ---- for losses


def advantages(batch: LossBatch, values: Tensor, gae_lambda: float = 1.0) -> Tensor:
    """Return the generalised advantage of each row ``[B, length]`` that is read once.

    A row at which no transition starts ends the sum: the previous row bootstraps from the value of this row. The result
    for such a row has no meaning.

    Args:
        batch: the batch.
        values: values of its observations ``[B, length + 1]``, without gradients.
        gae_lambda: 0 is the one-step TD error, 1 sums rewards to the end of the episode or fragment.
    """
    import torch

    delta = batch.reward + batch.discount * values[:, 1:] - values[:, :-1]
    chain = gae_lambda * batch.discount[:, :-1] * batch.valid[:, 1:]
    found = [delta[:, -1]]
    for t in range(delta.shape[1] - 2, -1, -1):
        found.append(delta[:, t] + chain[:, t] * found[-1])
    return torch.stack(found[::-1], 1)

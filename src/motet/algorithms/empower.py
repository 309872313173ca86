"""Empowerment: a robot learns to give humans power, with the quantities that ``motet.plan`` computes exactly.

Two networks learn V_e(s, h, g), the chance that human h attains goal g, and w(s, r) = log(-Q_r(s, r)). The power X_h,
its loss U_r and the value V_r follow from these in closed form. The targets are expectations over the transitions of
the model. The acting half asks the model for the successors of all robot actions, under one profile of human actions
that is drawn from the humans' priors. Every goal of every human is learned from this row. ``docs/empowerment.md`` has
the formulas.

This module does not import torch. The learning half is in ``_empower_learner.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, Lt, MinLen

from motet.algorithm import Field, HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._model_rows import Answer, ModelQueries, RowLayout
from motet.algorithms._own import check_plan, network_of_numbers
from motet.algorithms._plans import ActorNetwork, NetworkPlan, padded
from motet.algorithms._settings import check_config, check_min_rows, check_rate, check_seeds
from motet.algorithms._streams import STREAM_BYTES, ActingStream
from motet.algorithms.source import NetworkSetting
from motet.errors import NotReadyError, SettingError
from motet.foreign_names import suggesting
from motet.nest import Nest
from motet.schedule import Linear, Schedule, Staged, Stages, check_rising, value_at
from motet.settings import FINITE
from motet.world.coded import Bounded, CodedModel, coded_by

if TYPE_CHECKING:
    from motet.algorithms._empower_learner import Empower

__all__ = ["EmpowerBehaviour", "EmpowerConfig", "HumanChoices", "lasting"]

_STAGES = Stages(
    (("attainment", 2_000), ("values", 3_000), ("ramp", 5_000), ("full", None)), ("ramp", "full"), by="updates"
)


@suggesting("algorithm")
@dataclass(frozen=True)
class EmpowerConfig:
    """Settings of learned empowerment.

    >>> from motet.worlds import Bushes, OneMind
    >>> world = OneMind(Bushes(horizon=4))
    >>> config, spaces = EmpowerConfig(hidden=(32,)), (world.observation_spaces[0], world.action_spaces[0])
    >>> behaviour, learner = config.behaviour(*spaces), config.build(*spaces, agents=1, seeds=[0])
    >>> behaviour.begin(seed=0)
    >>> behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    >>> world.reset(seed=0)
    >>> actions, row = behaviour.act(world.observe(0)[None])
    >>> row["successor"].shape, row["probability"].shape
    ((1, 1, 20, 11), (1, 1, 5, 4))
    """

    plays_in = "motet.worlds:OneMind"
    """The world that :func:`motet.train` makes of a model for this algorithm."""
    learned_from: ClassVar[tuple[int, ...]] = (0, 1)
    """For each network: the index of the first stage in which it is learned. In the last stage all networks are
    learned."""

    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (64, 64)
    """Widths of the hidden layers of both networks; a network of your own does not use them."""
    network: NetworkSetting = None
    """Your own network for V_e, the attainment of goals, in place of the shipped one: a function of (observation_space,
    outputs) that makes a torch.nn.Module, the path "module:function" of such a function, or a name such as
    "mlp(layer_norm=True)". The module maps the numbers of a state to one output for each goal of each human, before the
    sigmoid."""
    robot_network: NetworkSetting = None
    """Your own network for log(-Q_r), given in the same forms as ``network``. Q_r is the value of the robot's actions.
    The module maps the numbers of a state to one output for each robot action."""
    tables: bool = False
    """Learn tables with one entry for each state instead of networks. The states of the model must be few enough to be
    enumerated."""
    gamma: Annotated[Schedule, Interval(gt=0, le=1)] = 0.95
    """The robot's discount per unit of time. A step takes one unit of time, unless the model has
    ``transition_durations``."""
    human_gamma: Annotated[Schedule, Interval(ge=0, le=1)] = 0.95
    """The humans' discount per step."""
    human_rho: Annotated[Schedule, Ge(0)] | None = None
    """The humans' discount rate rho, instead of ``human_gamma``, which must then be 1: a transition of duration d has
    the discount exp(-rho d)."""
    zeta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the goals' attainments in a human's power. Above 1, one goal that is sure to be attained counts more
    than two with probability 0.5 each."""
    xi: Annotated[float, Gt(0), FINITE] = 1.0
    """Inequality aversion: the larger ``xi`` is, the more the humans with little power count."""
    eta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the mean of X_h^(-``xi``) over the humans, where X_h is the power of human h. The robot's utility is
    the negative of the result. Above 1, power now counts more than power later."""
    terminal_robot_value: Annotated[float, Lt(0), FINITE] = -1e-10
    """The robot's value V_r of terminal states."""
    beta: Annotated[Schedule, Ge(0), FINITE] = field(
        default=Staged({"attainment": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, 5_000), "full": 5.0})  # type: ignore[arg-type]
    )
    """Exponent of the robot's policy: the larger it is, the more strongly the robot prefers better actions. With 0 the
    robot acts at random."""
    achieved: Literal["stay", "zero", "one"] = "stay"
    """Attainment of a goal that holds already, as in ``motet.plan.Humans``: the probability that it holds again after
    the next step or later (``stay``), 0 (``zero``) or 1 (``one``)."""
    epsilon: Annotated[Schedule, Interval(ge=0, le=1)] = 0.2
    """Exploration rate: probability of a random robot action."""
    eagerness: Annotated[float, Ge(0), FINITE] = 1.0
    """Factor by which ``beta`` is multiplied when the robot acts in training. Above 1 the robot prefers good actions
    more strongly, so more rows come from the states to which good actions lead. The factor does not change the targets,
    only how accurately they are learned in different states."""
    profiles: Literal["drawn", "all"] = "drawn"
    """Which profiles are stored in a row; a profile is one action for each human. ``drawn``: one profile, drawn from
    the humans' priors. ``all``: all profiles (at most 32), so that targets are exact."""
    successors: Annotated[int, Interval(ge=1, le=255)] = 4
    """Largest number of possible next states after a joint action. If the model has more, an error is raised."""
    cache: Annotated[int, Ge(1)] = 50_000
    """Size of an actor's cache: number of queries of the model whose answers the actor remembers."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Number of rows in an update."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 1e-3
    """Adam's learning rate for V_e, the attainment of goals. With ``tables``, each entry is a running mean of its
    targets, and the setting is the minimum weight of a new target."""
    robot_learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 1e-3
    """Adam's learning rate for Q_r, the value of robot actions. With ``tables``, each entry is a running mean of its
    targets, and the setting is the minimum weight of a new target."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Maximum gradient norm of each network, above which its gradient is scaled down; None: no clipping."""
    target_every: Annotated[int, Ge(1)] = 50
    """Number of updates between two updates of the target networks."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Rate of an update of the target networks: 1 copies the weights, less is Polyak averaging."""
    floor: Annotated[float, Gt(0), FINITE] = 1e-3
    """Smallest value of -Q_r that the network learns. The network learns log(-Q_r), and -Q_r goes to 0 at the end of an
    episode, where the logarithm has no lower bound."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows."""
    min_rows: Annotated[int, Ge(1)] = 500
    """Number of rows in the replay buffer before the first update."""
    oldest: Annotated[Schedule, Ge(0)] = 0.0
    """Age floor, a number of updates: rows that were made before this number of updates are not used for learning. The
    number must never decrease. A schedule such as ``Linear(0, 10_000, 30_000, by="updates")`` lets old rows expire one
    by one instead of clearing the replay."""
    stages: Stages = _STAGES
    """Stages of the run. If there are several stages, only V_e (the attainment of goals) is learned in the first one,
    and Q_r (the value of robot actions) is learned from the second one on."""

    def __post_init__(self) -> None:
        check_config(self)
        check_min_rows(self)
        check_rate(self, "human_gamma", "human_rho")
        for name in ("network", "robot_network"):
            if self.tables and getattr(self, name) is not None:
                raise SettingError(f"{name} must be None with tables, got {getattr(self, name)}")
        check_rising("oldest", self.oldest, self.stages)

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {
            "beta": ((), "float64"),
            "epsilon": ((), "float64"),
            "learner_step": ((), "int64"),
            "stage": ((), "int64"),
        }

    @property
    def nominal_beta(self) -> float:
        """The exponent of the robot's policy at the end of all stages and schedules."""
        return self._at_last(self.beta)

    @property
    def nominal_gamma(self) -> float:
        """The robot's discount at the end of all stages and schedules."""
        return self._at_last(self.gamma)

    @property
    def nominal_human_gamma(self) -> float:
        """The humans' discount at the end of all stages and schedules."""
        return self._at_last(self.human_gamma)

    @property
    def nominal_human_rho(self) -> float | None:
        """The humans' discount rate at the end of all stages and schedules; None: they have a discount per step."""
        return None if self.human_rho is None else self._at_last(self.human_rho)

    def _at_last(self, schedule: Schedule) -> float:
        return value_at(schedule, 1 << 60, self.stages, 1 << 60)

    def learns(self, network: int, step: int, updates: int) -> bool:
        """Return whether a network, by its number in ``plans``, is learned in the stage of this step and update."""
        last = len(self.stages.names) - 1
        return self.stages.index(step, updates) >= min(self.learned_from[network], last)

    @property
    def expires(self) -> bool:
        """Whether rows expire, so that each row stores the number of updates at which it was made."""
        return self.oldest != 0

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what the algorithm needs from the replay."""
        fields = self.row_fields(coded_by(observation_space))
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.nominal_gamma,
            extra=fields, next_observation=False, stages=self.stages,
        )  # fmt: skip

    def layout(self, coded: CodedModel) -> RowLayout:
        """Return the sizes of the fields of rows that come from the model."""
        return RowLayout.of(self, coded)

    def row_fields(self, coded: CodedModel) -> dict[str, Field]:
        """Return the fields that the acting half adds to a row."""
        return _fields(self.layout(coded), self.expires)

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        coded = coded_by(observation_space)
        if self.tables:
            n = len(coded.table()) * (len(coded.weights) + robot_outputs(coded))
            return Sizes(weights=n, state=3 * n, counters=self.counters(coded), random=0)
        plans = self.plans(coded)
        check_plan(*plans)
        n = sum(padded(plan.size) for plan in plans)
        random = STREAM_BYTES if any(plan.draws for plan in plans) else 0
        return Sizes(weights=n, state=4 * n, counters=self.counters(coded), random=random)

    def counters(self, coded: CodedModel) -> int:
        """Return the number of counters of an agent: updates of V_e and of Q_r."""
        return 2

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> Empower:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._empower_learner import EmpowerNetworks, EmpowerTables

        made = EmpowerTables if self.tables else EmpowerNetworks
        return made(self, coded_by(observation_space), seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> EmpowerBehaviour:
        """Make the acting half."""
        return EmpowerBehaviour(self, coded_by(observation_space))

    def plans(self, coded: CodedModel) -> tuple[NetworkPlan, ...]:
        """Return the networks of V_e, with one output for each goal, and of the robot, in the order of a row."""
        inputs, hidden = coded.inputs, self.hidden
        return (
            network_of_numbers(self.network, "network", inputs, hidden, len(coded.weights)),
            network_of_numbers(self.robot_network, "robot_network", inputs, hidden, robot_outputs(coded)),
        )


def robot_outputs(coded: CodedModel) -> int:
    """Return the number of outputs for the robot: log(-Q_r) of each action, and log(c) if steps have durations."""
    return coded.robot_actions * (2 if coded.timed else 1)


def lasting(gamma: float) -> float:
    """Return c: the weight of U_r in a step of duration 1."""
    return 1.0 if gamma == 1 else (1 - gamma) / -math.log(gamma)


def _fields(layout: RowLayout, expires: bool) -> dict[str, Field]:
    """Return the fields that the acting half adds to a row."""
    made = {"made": Field((), "int64")} if expires else {}  # number of updates of the weights that the actor used
    return (
        layout.fields()
        | made
        | {
            "share": Field((layout.profiles,), "float32"),  # weight of the profile
            "ratio": Field(
                (layout.profiles, layout.goals), "float32"
            ),  # pi_h(a_h | s, g) over the prior of a_h, by goal
            "known": Field((), "float32"),  # share of the queries that the cache answered
        }
    )


class HumanChoices(NamedTuple):
    """The policies and priors of the humans in a state."""

    policies: list[npt.NDArray[np.float64]]
    priors: list[npt.NDArray[np.float64]]
    ends: list[npt.NDArray[np.float64]]
    """Cumulative sums of the priors."""

    @classmethod
    def of(cls, policies: list[npt.NDArray[np.float64]], priors: list[npt.NDArray[np.float64]]) -> HumanChoices:
        """Return the choices for policies ``[goals, actions]`` and priors ``[actions]`` of each human."""
        ends = []
        for prior in priors:
            end = prior.cumsum()
            end[np.flatnonzero(prior)[-1] :] = 2.0  # rounding never leads beyond the last possible action
            ends.append(end)
        return cls(policies, priors, ends)


class EmpowerBehaviour(ActingStream):
    """The acting half: draws from the robot's policy, and queries the model for the successors of all robot actions.

    Every row draws one number for the robot and one for each human, and a network that explores by noise draws one for
    each batch, so the random stream does not depend on weights.
    """

    def __init__(self, config: EmpowerConfig, coded: CodedModel) -> None:
        self.config, self.coded, self.layout = config, coded, config.layout(coded)
        self._fields = config.row_fields(coded)
        self._nets: list[ActorNetwork] = []
        self._parts: list[slice] = []
        self._explores = False
        if not config.tables:
            plans, first = config.plans(coded), 0
            self._explores = plans[1].explores
            for plan in plans:
                self._nets.append(plan.acting())
                self._parts.append(slice(first, first + plan.size))
                first += padded(plan.size)
        self._rng, self._draws = np.random.default_rng(0), 1 + len(coded.humans)
        self._weights: npt.NDArray[np.float32] | None = None
        self._beta = self._epsilon = 0.0
        self._made = 0
        self._humans, self._queries = Bounded(config.cache), ModelQueries(config, coded, self.layout)

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version: weights and the exponent of the policy belong together."""
        self._weights, self._beta, self._epsilon = weights, float(header["beta"]), float(header["epsilon"])
        self._made = int(header["learner_step"]) if self.config.expires else 0
        for net, part in zip(self._nets, self._parts, strict=True):
            net.load(weights[part])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B]`` for codes ``[B, size]``, and the rows from the model. Without ``explore``, actions are
        the most likely ones and rows are empty."""
        rows = len(observations)
        extra = {name: np.zeros((rows, *item.shape), item.dtype) for name, item in self._fields.items()}
        if not explore:
            return self.log_losses(observations).argmin(1), extra
        seed = int(self._rng.integers(2**63)) if self._explores else None
        shares = self._shares(self.log_losses(observations, seed), self._beta * self.config.eagerness)
        shares = (1 - self._epsilon) * shares + self._epsilon / shares.shape[1]
        draws = self._rng.random((rows, self._draws))
        actions = (shares.cumsum(1) < draws[:, :1] * shares.sum(1, keepdims=True)).sum(1)
        for i, code in enumerate(observations):
            self._ask(code, draws[i, 1:], {name: array[i] for name, array in extra.items()})
        if self.config.expires:
            extra["made"][:] = self._made
        for i in range(rows):
            extra["known"][i] = self._queries.known
        return np.minimum(actions, shares.shape[1] - 1), extra

    # The policy

    def log_losses(self, codes: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float64]:
        """Return log(-Q_r) of all robot actions: [B, robot actions]. ``seed``: for a network that explores by noise."""
        return self._of_robot(codes, seed)[:, : self.coded.robot_actions]

    def _of_robot(self, codes: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float64]:
        """Return log(-Q_r) of all robot actions, and log(c) of them if steps have durations."""
        coded, weights = self.coded, self._loaded()
        if not self._nets:
            rows = weights[len(coded.table()) * len(coded.weights) :].reshape(-1, robot_outputs(coded))
            outputs: npt.NDArray[np.float64] = rows[coded.numbers(codes)].astype(np.float64)
            return outputs
        return self._nets[1].forward(np.ascontiguousarray(coded.encode(codes)), seed).astype(np.float64)

    def _loaded(self) -> npt.NDArray[np.float32]:
        if self._weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        return self._weights

    def attainments(
        self, codes: npt.NDArray[Any], goals: Mapping[int, Sequence[Any]] | None = None
    ) -> npt.NDArray[np.float64]:
        """Return V_e of all goals of all humans, [B, goals], with the convention for goals that hold already.

        ``goals`` by human are for algorithms whose goals are sampled; None: those that are listed.
        """
        coded = self.coded
        if goals is None:
            goals = {human: [goal for goal, _ in own] for human, own in zip(coded.humans, coded.goals, strict=True)}
        values = self._learned_attainments(codes, goals)
        if self.config.achieved != "stay":
            asked = [goal for human in coded.humans for goal in goals[human]]
            holds = np.array([[bool(goal.is_achieved(state)) for goal in asked] for state in map(coded.state, codes)])
            values[holds] = float(self.config.achieved == "one")
        return values

    def _learned_attainments(
        self, codes: npt.NDArray[Any], goals: Mapping[int, Sequence[Any]]
    ) -> npt.NDArray[np.float64]:
        coded, weights = self.coded, self._loaded()
        if not self._nets:
            rows = weights[: len(coded.table()) * len(coded.weights)].reshape(-1, len(coded.weights))
            values: npt.NDArray[np.float64] = rows[coded.numbers(codes)].astype(np.float64)
            return values
        logits = self._nets[0].forward(np.ascontiguousarray(coded.encode(codes))).astype(np.float64)
        return 1 / (1 + np.exp(-logits))

    def powers(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return X_h of all humans: [B, humans]."""
        coded = self.coded
        raised = self.attainments(codes) ** self.config.zeta * coded.weights
        return np.stack([raised[:, coded.owner == h].sum(1) for h in range(len(coded.humans))], 1)

    def powers_and_values(self, codes: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return X_h [B, humans] and V_r [B] of states that are not terminal, at the end of all stages."""
        config, outputs, power = self.config, np.exp(self._of_robot(codes)), self.powers(codes)
        losses, lasts = np.split(outputs, [self.coded.robot_actions], 1)
        utility = -((power**-config.xi).mean(1) ** config.eta)
        policy = self.probabilities(codes)
        c = (policy * lasts).sum(1) if self.coded.timed else lasting(config.nominal_gamma)
        return power, c * utility - (policy * losses).sum(1)

    def probabilities(self, codes: npt.NDArray[Any], beta: float | None = None) -> npt.NDArray[np.float64]:
        """Return the robot's policy pi_r, proportional to (-Q_r)^(-beta): [B, robot actions]. None: the final
        ``beta``."""
        return self._shares(self.log_losses(codes), self.config.nominal_beta if beta is None else beta)

    def _shares(self, log_losses: npt.NDArray[np.float64], beta: float) -> npt.NDArray[np.float64]:
        logits = -beta * log_losses
        shares: npt.NDArray[np.float64] = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        return shares

    # The model

    def _ask(self, code: npt.NDArray[Any], draws: npt.NDArray[np.float64], row: dict[str, npt.NDArray[Any]]) -> None:
        """Fill a row with the successors of all robot actions, for the profiles that belong to it."""
        coded, key, state = self.coded, code.tobytes(), self.coded.state(code)

        def choices() -> HumanChoices:
            policies = coded.policies(state)
            return HumanChoices.of(policies, coded.priors(policies))

        self._fill(row, key, state, self._humans.made(key, choices), draws)

    def _fill(
        self,
        row: dict[str, npt.NDArray[Any]],
        key: bytes,
        state: Any,
        humans: HumanChoices,
        draws: npt.NDArray[np.float64],
    ) -> dict[int, Answer]:
        """Fill a row for the humans' policies; return the answers of the model by the number of the profile in the
        row."""
        if self.config.profiles == "all":
            profiles = self._queries.profiles
        else:
            drawn = (int(np.searchsorted(ends, u, "right")) for ends, u in zip(humans.ends, draws, strict=False))
            profiles = [tuple(drawn)]
        answers: dict[int, Answer] = {}
        for p, profile in enumerate(profiles):
            prior = [own[action] for own, action in zip(humans.priors, profile, strict=True)]
            share = math.prod(prior)
            if share <= 0:
                continue  # only in rows of all profiles, because drawn profiles have a positive prior
            row["share"][p] = share if len(profiles) > 1 else 1.0
            row["ratio"][p] = np.concatenate(
                [own[:, a] / b for own, a, b in zip(humans.policies, profile, prior, strict=True)]
            )
            answers[p] = self._queries.ask(key, state, profile)
            for name, value in answers[p].fields.items():
                row[name][p] = value
        return answers

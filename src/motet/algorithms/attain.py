"""Attainment: policies of humans for their goals, with the quantities that ``motet.plan.Humans`` defines.

A network learns Q_h(s, a, g), the chance that human h attains goal g after action a, if the robots do what is worst for
it. The policy of the human is softmax(beta Q_h). A row holds one profile of human actions, each drawn uniformly, and
the successors of all robot actions under it. Every goal of every human is learned from that row. The policies may then
be given to ``empower``, so that both phases of a plan are learned. ``docs/empowerment.md`` has the formulas.

This module does not import torch. The learning half is in ``_attain_learner.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Interval, MinLen

from motet.algorithm import Field, HeaderSpec, ReaderSettings, Sizes, Space
from motet.algorithms._model_rows import ModelQueries, RowLayout
from motet.algorithms._own import check_plan, network_of_numbers
from motet.algorithms._plans import NetworkPlan, padded
from motet.algorithms._settings import check_config, check_min_rows, check_rate, check_seeds
from motet.algorithms._streams import STREAM_BYTES, ActingStream
from motet.algorithms.source import NetworkSetting
from motet.errors import NotReadyError, SettingError
from motet.foreign_names import suggesting
from motet.nest import Nest
from motet.schedule import ALWAYS, Schedule, Stages
from motet.settings import FINITE
from motet.world.coded import Bounded, CodedModel, coded_by

if TYPE_CHECKING:
    from motet.algorithms._attain_learner import Attain

__all__ = ["AttainBehaviour", "AttainConfig", "LearnedHumans"]

_REMEMBERED = 1_000  # number of states whose policies are cached


@suggesting("algorithm")
@dataclass(frozen=True)
class AttainConfig:
    """Settings of learned human policies.

    >>> from motet.worlds import Bushes, UniformHumans
    >>> world = UniformHumans(Bushes(horizon=4))
    >>> config, spaces = AttainConfig(hidden=(32,)), (world.observation_spaces[0], world.action_spaces[0])
    >>> behaviour, learner = config.behaviour(*spaces), config.build(*spaces, agents=1, seeds=[0])
    >>> behaviour.begin(seed=0)
    >>> behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    >>> world.reset(seed=0)
    >>> actions, row = behaviour.act(world.observe(0)[None])
    >>> row["successor"].shape, row["profile"].shape
    ((1, 1, 20, 11), (1, 1, 2))
    """

    plays_in = "motet.worlds:UniformHumans"
    """The world that :func:`motet.train` makes of a model for this algorithm."""

    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (64, 64)
    """Widths of the hidden layers of the network; a network of your own does not use them."""
    network: NetworkSetting = None
    """Your own network for Q_h, the values of the humans' actions, in place of the shipped one: a function of
    (observation_space, outputs) that makes a torch.nn.Module, the path "module:function" of such a function, or a name
    such as "mlp(layer_norm=True)". The module maps the numbers of a state to one output for each goal and action,
    before the sigmoid. The outputs for the first goal come first."""
    beta: Annotated[float, Ge(0), FINITE] = 10.0
    """Inverse temperature of the humans' policies."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.95
    """The humans' discount per step."""
    rho: Annotated[float, Ge(0), FINITE] | None = None
    """The humans' discount rate rho, instead of ``gamma``, which must then be 1: a transition of duration d has the
    discount exp(-rho d)."""
    robot: Literal["worst", "best", "mean"] = "worst"
    """Which action a human expects of the robot: the worst one for the human (``worst``), the best one for the human
    (``best``), or the mean over all actions (``mean``)."""
    achieved: Literal["stay", "zero", "one"] = "stay"
    """What a human does while its goal holds already, as in ``motet.plan.Humans``: it takes the action ``still``
    (``stay``), or it acts by the softmax as usual (``zero`` and ``one``)."""
    still: Annotated[int, Ge(0)] = 0
    """Index of the action with which a human does not move."""
    profiles: Literal["drawn", "all"] = "drawn"
    """Which profiles are stored in a row; a profile is one action for each human. ``drawn``: one profile, drawn
    uniformly. ``all``: all profiles (at most 32), so that targets are exact."""
    successors: Annotated[int, Interval(ge=1, le=255)] = 4
    """Largest number of possible next states after a joint action. If the model has more, an error is raised."""
    cache: Annotated[int, Ge(1)] = 50_000
    """Size of an actor's cache: number of queries of the model whose answers the actor remembers."""
    batch_size: Annotated[int, Ge(1)] = 64
    """Number of rows in an update."""
    learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 1e-3
    """Adam's learning rate."""
    adam_eps: Annotated[float, Gt(0), FINITE] = 1e-8
    """Adam's epsilon."""
    max_grad_norm: Annotated[float, Gt(0)] | None = 10.0
    """Maximum gradient norm, above which the gradient is scaled down; None: no clipping."""
    target_every: Annotated[int, Ge(1)] = 50
    """Number of updates between two updates of the target network."""
    target_rate: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Rate of an update of the target network: 1 copies the weights, less is Polyak averaging."""
    capacity: Annotated[int, Ge(1)] = 100_000
    """Size of the replay buffer, in rows."""
    min_rows: Annotated[int, Ge(1)] = 500
    """Number of rows in the replay buffer before the first update."""
    stages: Stages = ALWAYS
    """Stages of the run."""

    def __post_init__(self) -> None:
        check_config(self)
        check_min_rows(self)
        check_rate(self, "gamma", "rho")
        if self.still and self.achieved != "stay":
            raise SettingError(f"still must be 0 unless achieved is 'stay', got {self.still}: nothing else uses it")

    @property
    def header(self) -> HeaderSpec:
        """Shape and dtype of the values that are published with the weights."""
        return {"learner_step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """Return what the algorithm needs from the replay."""
        coded = coded_by(observation_space)
        fewest = min(coded.actions[human] for human in coded.humans)
        if self.still >= fewest:
            raise SettingError(f"still must be an action of every human, below {fewest}, got {self.still}")
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.gamma,
            extra=_fields(RowLayout.of(self, coded), coded), next_observation=False, stages=self.stages,
        )  # fmt: skip

    def sizes(self, observation_space: Space, action_space: Space) -> Sizes:
        """Return the sizes of one agent's weights, state, counters and random stream."""
        plan = self.plan(coded_by(observation_space))
        check_plan(plan)
        n = padded(plan.size)
        return Sizes(weights=n, state=4 * n, counters=1, random=STREAM_BYTES if plan.draws else 0)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> Attain:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._attain_learner import Attain
        from motet.algorithms._device import Device

        return Attain(self, coded_by(observation_space), seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> AttainBehaviour:
        """Make the acting half."""
        return AttainBehaviour(self, coded_by(observation_space))

    def plan(self, coded: CodedModel) -> NetworkPlan:
        """Return the network of Q_h, with one output for each goal and action."""
        outputs = len(coded.weights) * widest(coded)
        return network_of_numbers(self.network, "network", coded.inputs, self.hidden, outputs)


def _named(goal: Any) -> str:
    return str(getattr(goal, "name", goal))


def widest(coded: CodedModel) -> int:
    """Return the largest number of actions of a human."""
    widths: list[int] = [coded.actions[human] for human in coded.humans]
    return max(widths)


def _fields(layout: RowLayout, coded: CodedModel) -> dict[str, Field]:
    """Return the fields that the acting half adds to a row."""
    beliefs = {"belief": Field((layout.profiles, len(coded.humans)), "float32")} if coded.believes else {}
    return (
        layout.fields()
        | beliefs
        | {
            "profile": Field((layout.profiles, len(coded.humans)), "uint8"),  # action of each human
            "known": Field((), "float32"),  # share of the queries that the cache answered
        }
    )


class AttainBehaviour(ActingStream):
    """The acting half: a robot that acts uniformly, and queries the model for the successors of all robot actions.

    Every row draws one random number for the robot and one for each human. With beliefs, it draws one for the robot and
    three other numbers.
    """

    def __init__(self, config: AttainConfig, coded: CodedModel) -> None:
        self.config, self.coded, self.layout = config, coded, RowLayout.of(config, coded)
        self.weights: npt.NDArray[np.float32] | None = None
        self._fields = _fields(self.layout, coded)
        plan = config.plan(coded)
        self._net, self._size = plan.acting(), plan.size
        self._rng = np.random.default_rng(0)
        self._queries, self._known = ModelQueries(config, coded, self.layout), Bounded(_REMEMBERED)
        sizes = np.array([coded.actions[human] for human in coded.humans])
        self._sizes = sizes
        self._beliefs = Bounded(config.cache)
        self._possible = np.arange(sizes.max()) < sizes[coded.owner][:, None]  # [goals, actions]

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Load a new version of the weights."""
        self.weights = weights
        self._net.load(weights[: self._size])
        self._known.clear()

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Return actions ``[B]`` for codes ``[B, size]``, and the rows from the model; without ``explore``, rows are
        empty."""
        coded, rows = self.coded, len(observations)
        extra = {name: np.zeros((rows, *item.shape), item.dtype) for name, item in self._fields.items()}
        draws = self._rng.random((rows, 1 + (3 if coded.believes else len(coded.humans))))
        actions = (draws[:, 0] * coded.robot_actions).astype(np.int64)
        if explore:
            for i, code in enumerate(observations):
                state = coded.state(code)
                if self.config.profiles == "all":
                    profiles = self._queries.profiles
                elif coded.believes:
                    profiles = [self._believed_profile(code, state, draws[i, 1:])]
                else:
                    profiles = [tuple((draws[i, 1:] * self._sizes).astype(np.int64).tolist())]
                extra["profile"][i] = profiles
                if coded.believes:
                    extra["belief"][i] = [self._weights(code, state, profile) for profile in profiles]
                for p, profile in enumerate(profiles):
                    for name, value in self._queries.ask(code.tobytes(), state, profile).fields.items():
                        extra[name][i, p] = value
            extra["known"][:] = self._queries.known
        return actions, extra

    # Beliefs

    def _belief(self, code: npt.NDArray[Any], state: Any, position: int, action: int) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], float] = self._beliefs.made(
            (code.tobytes(), position, action), lambda: self.coded.belief(state, position, action)
        )
        return found

    def _believed_profile(self, code: npt.NDArray[Any], state: Any, draws: npt.NDArray[np.float64]) -> tuple[int, ...]:
        """Draw a profile: first a human and its action, uniformly, then the others' actions from that human's
        belief."""
        position = int(draws[0] * len(self._sizes))
        believed = self._belief(code, state, position, int(draws[1] * self._sizes[position]))
        profiles = [profile for profile, p in believed.items() if p > 0]
        ends = np.cumsum([believed[profile] for profile in profiles])
        return profiles[min(int(np.searchsorted(ends, draws[2] * ends[-1], "right")), len(profiles) - 1)]

    def _weights(self, code: npt.NDArray[Any], state: Any, profile: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Return the weight of a profile for each human.

        In a row of all profiles, the weight is the probability of the others' actions in the human's belief. A drawn
        profile may have been drawn for any human, so its weight is that probability divided by the probability of the
        draw. It is at most the number of humans, and 1 on average.
        """
        by_action = [self._belief(code, state, h, action).get(profile, 0.0) for h, action in enumerate(profile)]
        weights: npt.NDArray[np.float64] = np.array(by_action)
        if self.config.profiles == "all":
            return weights
        weights /= self._sizes
        weights /= weights.mean()
        return weights

    # The humans

    def attainments(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return Q_h: [B, goals, actions]; 0 for actions that a human does not have."""
        if self.weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        logits = self._net.forward(np.ascontiguousarray(self.coded.encode(codes))).astype(np.float64)
        q: npt.NDArray[np.float64] = 1 / (1 + np.exp(-logits.reshape(len(codes), *self._possible.shape)))
        return q * self._possible

    def policy(self, state: Any, human: int, goal: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of a human's actions, given its goal."""
        coded = self.coded
        if human not in coded.humans:
            raise SettingError(f"human must be one of {coded.humans}, got {human!r}")
        actions, column = coded.actions[human], self._column(coded.humans.index(human), goal)
        if self.config.achieved == "stay" and goal.is_achieved(state):
            still: npt.NDArray[np.float64] = np.eye(actions)[self.config.still]
            return still
        code = coded.code(state)
        shares: npt.NDArray[np.float64] = self._known.made(code.tobytes(), lambda: self._policies(code))
        return shares[column, :actions]

    def _column(self, position: int, goal: Any) -> int:
        """The column of a goal. The goal is found by equality, otherwise by its name."""
        mine = [known for known, _ in self.coded.goals[position]]
        if goal not in mine:
            mine, named = [_named(known) for known in mine], _named(goal)
            if mine.count(named) != 1:
                human = self.coded.names[self.coded.humans[position]]
                raise SettingError(f"goal must be one that was learned for {human}, got {goal!r}")
            goal = named
        return int(np.searchsorted(self.coded.owner, position)) + mine.index(goal)

    def _policies(self, code: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        q = self.attainments(code[None])[0]
        shares: npt.NDArray[np.float64] = np.exp(self.config.beta * (q - q.max(1, keepdims=True))) * self._possible
        shares /= shares.sum(1, keepdims=True)
        return shares


class LearnedHumans:
    """The humans of a run of ``attain``, as the ``humans`` of :class:`~motet.worlds.OneMind`.

    Args:
        behaviour: the acting half of the run, with its newest weights.
    """

    def __init__(self, behaviour: AttainBehaviour) -> None:
        if behaviour.weights is None:
            raise NotReadyError("behaviour must have weights, got one without: call load first")
        self.behaviour, self._weights = behaviour, behaviour.weights.copy()

    def policy(self, state: Any, human: int, goal: Any) -> npt.NDArray[np.float64]:
        """Return the probabilities of a human's actions, given its goal."""
        return self.behaviour.policy(state, human, goal)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.behaviour.config, self.behaviour.coded, self._weights)


def _remade(config: AttainConfig, coded: CodedModel, weights: npt.NDArray[np.float32]) -> LearnedHumans:
    behaviour = AttainBehaviour(config, coded)
    behaviour.load(weights, {})
    return LearnedHumans(behaviour)

"""Empowerment where goals can only be sampled: too many of them to list, or with continuous parameters.

One network learns V_e(s, h, g) from the numbers of the state and the goal, and another one learns the power X_h(s).
Everything else is as in ``empower``. For each row the acting half draws fresh goals for every human, whatever the
humans of the world pursue, so the goals in the rows at a state are distributed as the sampler says.
``docs/empowerment.md`` has the formulas, and decision 35 says what is exact and what is an estimate.

This module does not import torch. The learning half is in ``_empower_sampled_learner.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Interval

from motet.algorithm import Field, Space
from motet.algorithms._model_rows import RowLayout
from motet.algorithms._own import network_of_numbers
from motet.algorithms._plans import NetworkPlan
from motet.algorithms._settings import check_seeds
from motet.algorithms.empower import EmpowerBehaviour, EmpowerConfig, HumanChoices, robot_outputs
from motet.algorithms.source import NetworkSetting
from motet.errors import SettingError
from motet.foreign_names import suggesting
from motet.schedule import Linear, Schedule, Staged, Stages
from motet.settings import FINITE
from motet.world.coded import Bounded, CodedModel, coded_by

if TYPE_CHECKING:
    from motet.algorithms._empower_sampled_learner import EmpowerSampled

__all__ = ["EmpowerSampledBehaviour", "EmpowerSampledConfig"]

_STAGES = Stages(
    (("attainment", 2_000), ("power", 1_000), ("values", 3_000), ("ramp", 5_000), ("full", None)), ("ramp", "full"),
    by="updates",
)  # fmt: skip
_SCALE_DRAWS = 256  # goals by which the scale of the weights is estimated


@suggesting("algorithm")
@dataclass(frozen=True)
class EmpowerSampledConfig(EmpowerConfig):
    """Settings of learned empowerment where goals can only be sampled.

    >>> from motet.worlds import Bushes, OneMind
    >>> world = OneMind(Bushes(horizon=4))
    >>> config, spaces = EmpowerSampledConfig(hidden=(32,)), (world.observation_spaces[0], world.action_spaces[0])
    >>> behaviour, learner = config.behaviour(*spaces), config.build(*spaces, agents=1, seeds=[0])
    >>> behaviour.begin(seed=0)
    >>> behaviour.load(learner.weights()[0], learner.header(step=0, agent=0))
    >>> world.reset(seed=0)
    >>> actions, row = behaviour.act(world.observe(0)[None])
    >>> row["goal"].shape, row["ratio"].shape
    ((1, 8, 7), (1, 1, 8))
    """

    learned_from: ClassVar[tuple[int, ...]] = (0, 2, 1)

    network: NetworkSetting = None
    """Your own network for V_e, the attainment of goals, in place of the shipped one: a function of (observation_space,
    outputs) that makes a torch.nn.Module, the path "module:function" of such a function, or a name such as
    "mlp(layer_norm=True)". The module gets the numbers of a state, the numbers of a goal, and the human as a one-hot
    vector. Its one output is V_e before the sigmoid."""
    power_network: NetworkSetting = None
    """Your own network for log(X_h), given in the same forms as ``network``. X_h is the power of human h. The module
    maps the numbers of a state to one output for each human."""
    goals_per_row: Annotated[int, Ge(1)] = 4
    """Number of goals that are drawn for each human, for every row."""
    power_learning_rate: Annotated[Schedule, Interval(ge=0, le=1)] = 1e-3
    """Adam's learning rate for X_h, the power of the humans."""
    beta: Annotated[Schedule, Ge(0), FINITE] = field(
        default=Staged({"attainment": 0.0, "power": 0.0, "values": 0.0, "ramp": Linear(0.0, 5.0, 5_000), "full": 5.0})  # type: ignore[arg-type]
    )
    """Exponent of the robot's policy: the larger it is, the more strongly the robot prefers better actions. With 0 the
    robot acts at random."""
    stages: Stages = _STAGES
    """Stages of the run. V_e (the attainment of goals) is learned in all stages, X_h (the power of the humans) from the
    second stage on, and Q_r (the value of robot actions) from the third stage on. In the last stage all three are
    learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tables:
            raise SettingError("tables must be False where goals are sampled, got True: use networks")

    def layout(self, coded: CodedModel) -> RowLayout:
        """Return the sizes of the fields of rows that come from the model."""
        return RowLayout.of(self, coded, self.goals_per_row)

    def row_fields(self, coded: CodedModel) -> dict[str, Field]:
        """Return the fields that the acting half adds to a row."""
        layout = self.layout(coded)
        return super().row_fields(coded) | {
            "goal": Field((layout.goals, coded.goal_size), coded.goal_dtype),  # numbers of each goal
            "goal_weight": Field((layout.goals,), "float32"),
            "held": Field((layout.hold_bytes,), "uint8"),  # which goals hold in the state of the row
            "importance": Field((1,), "float32"),  # weight of the row for Q_r
        }

    def counters(self, coded: CodedModel) -> int:
        """Return the number of counters of an agent: updates of V_e, Q_r and X_h, and goals of each human that held."""
        return 3 + len(coded.humans)

    def build(
        self, observation_space: Space, action_space: Space, agents: int, seeds: Sequence[int], device: str = "cpu"
    ) -> EmpowerSampled:
        """Make the learning half for ``agents`` agents, one seed for each."""
        check_seeds(agents, seeds)
        from motet.algorithms._device import Device
        from motet.algorithms._empower_sampled_learner import EmpowerSampled

        return EmpowerSampled(self, coded_by(observation_space), seeds, Device(device))

    def behaviour(self, observation_space: Space, action_space: Space) -> EmpowerSampledBehaviour:
        """Make the acting half."""
        return EmpowerSampledBehaviour(self, coded_by(observation_space))

    def plans(self, coded: CodedModel) -> tuple[NetworkPlan, ...]:
        """Return the networks of V_e, of log(-Q_r) and of log(X_h), in the order of a row."""
        states, humans, hidden = coded.inputs, len(coded.humans), self.hidden
        both = states + coded.goal_size + humans
        return (
            network_of_numbers(self.network, "network", both, hidden, 1),
            network_of_numbers(self.robot_network, "robot_network", states, hidden, robot_outputs(coded)),
            network_of_numbers(self.power_network, "power_network", states, hidden, humans),
        )


class EmpowerSampledBehaviour(EmpowerBehaviour):
    """The acting half, which also draws the goals of a row.

    Every row draws one random number more than a row of ``empower``: the seed of the row's goals.
    """

    config: EmpowerSampledConfig

    def __init__(self, config: EmpowerSampledConfig, coded: CodedModel) -> None:
        super().__init__(config, coded)
        self._draws += 1
        self._policies = Bounded(config.cache)
        # Only the relative weights of rows count. The scale keeps gradients so small that clipping does not cut them.
        first = coded.sampler.draw(coded.first, _SCALE_DRAWS, 0)
        self._scale = np.array([np.mean([weight for _, weight in own]) for own in first])

    def _ask(self, code: npt.NDArray[Any], draws: npt.NDArray[np.float64], row: dict[str, npt.NDArray[Any]]) -> None:
        """Fill a row with fresh goals, and with the successors of all robot actions under the humans' actions for them.

        Each human acts by the weighted mean of its policies for its K goals. Given the goals, the ratio of a policy to
        this mean is an exact importance weight. It is at most the sum of the K weights divided by the weight of the
        policy's goal. What a human learns from a row is further weighted by the product of the other humans' mean goal
        weights, and Q_r by the product over all humans. With these weights, the mean over fresh goals equals the mean
        over the priors.
        """
        coded, key, state = self.coded, code.tobytes(), self.coded.state(code)
        drawn = coded.sampler.draw(state, self.config.goals_per_row, int(draws[-1] * 2**53))
        weights = np.array([[weight for _, weight in own] for own in drawn])  # [humans, K]
        goals = [(human, goal) for human, own in zip(coded.humans, drawn, strict=True) for goal, _ in own]
        policies = [
            np.stack([self._policy(key, state, human, goal) for goal, _ in own])
            for human, own in zip(coded.humans, drawn, strict=True)
        ]
        priors = [own @ policy / own.sum() for own, policy in zip(weights, policies, strict=True)]
        answers = self._fill(row, key, state, HumanChoices.of(policies, priors), draws)

        mean = weights.mean(1) / self._scale
        others = np.array([np.delete(mean, h).prod() for h in range(len(mean))])
        row["ratio"] *= others.repeat(weights.shape[1])
        row["importance"][:] = mean.prod()
        row["goal"][:] = [coded.goal_code(goal, human, state) for human, goal in goals]
        row["goal_weight"][:] = weights.ravel()
        asked = [goal for _, goal in goals]
        row["held"][:] = coded.held(asked, state)
        for p, answer in answers.items():
            for i, successor in enumerate(answer.successors):
                row["holds"][p, i] = coded.held(asked, successor)

    def _policy(self, key: bytes, state: Any, human: int, goal: Any) -> npt.NDArray[np.float64]:
        policy: npt.NDArray[np.float64] = self._policies.made(
            (key, human, goal), lambda: self.coded.policy(state, human, goal)
        )
        return policy

    # What was learned

    def _learned_attainments(
        self, codes: npt.NDArray[Any], goals: Mapping[int, Sequence[Any]]
    ) -> npt.NDArray[np.float64]:
        self._loaded()
        coded = self.coded
        states, one_hot = coded.encode(codes), np.eye(len(coded.humans), dtype=np.float32)
        found = []
        for number, human in enumerate(coded.humans):
            for goal in goals[human]:
                asked = np.concatenate([coded.goal_code(goal, human, coded.first), one_hot[number]], dtype=np.float32)
                rows = np.concatenate([states, np.broadcast_to(asked, (len(codes), len(asked)))], 1)
                logits = self._nets[0].forward(np.ascontiguousarray(rows, np.float32))[:, 0].astype(np.float64)
                found.append(1 / (1 + np.exp(-logits)))
        return np.stack(found, 1) if found else np.zeros((len(codes), 0))

    def powers(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return X_h of all humans: [B, humans]."""
        self._loaded()
        logs = self._nets[2].forward(np.ascontiguousarray(self.coded.encode(codes))).astype(np.float64)
        return np.exp(logs)

"""How humans and the robot of a plan choose: settings for ``solve`` and its relatives, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Lt

from motet.errors import SettingError
from motet.plan.graph import Graph
from motet.settings import FINITE, check_fields

__all__ = ["Achieved", "Humans", "Robot", "check_still"]

_IDLE_STILL = "humans.still must be 0 unless humans.achieved is 'stay', got {}: no other convention uses it"
Believed = Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]]
Achieved = Literal["zero", "one", "stay"]


@dataclass(frozen=True)
class Humans:
    """How humans choose their actions."""

    beta: Annotated[float, Ge(0)] = 10.0
    """Inverse temperature of the softmax; infinite: uniform over the best actions."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Discount factor per step."""
    rho: Annotated[float, Ge(0), FINITE] | None = None
    """Discount rate, as an alternative to ``gamma``: a transition of duration d is discounted by exp(-``rho`` d)."""
    robot: Literal["worst", "best", "mean"] = "worst"
    """Which action humans expect of the robot: the worst one for them, the best one for them, or the mean over all of
    its actions."""
    believed_others_policy: Believed | None = None
    """What a human believes about the other humans: a callable (state, agent, action) -> [(probability, profile)]. A
    profile has one action of each agent; only the actions of the other humans are used. None: the other humans act
    uniformly."""
    achieved: Achieved | None = None
    """The value of a goal that holds already. ``zero``: 0. ``one``: 1, also in a terminal state. ``stay``: the human
    takes the action ``still``, the value is 0, and the attainment is the probability that the goal holds again after
    the next step or later. None: ``stay`` if the model has a ``possible_goal_generator``, else ``zero``."""
    still: Annotated[int, Ge(0)] = 0
    """Index of the action with which a human does not move."""
    credit_achieved: bool | None = None
    """Older name of ``achieved``: True means ``one``, False means ``zero``."""

    def __post_init__(self) -> None:
        check_fields(self, "humans.")
        if self.rho is not None and self.gamma != 1:
            raise SettingError(
                f"humans.gamma must be 1 where humans.rho is given, got {self.gamma} and {self.rho}: both are discounts"
            )
        if self.achieved is not None and self.credit_achieved is not None:
            raise SettingError(
                f"humans.credit_achieved must not be given together with humans.achieved, got {self.credit_achieved} "
                f"and {self.achieved!r}: give achieved alone"
            )
        if self.still and (self.achieved in ("zero", "one") or self.credit_achieved is not None):
            raise SettingError(_IDLE_STILL.format(self.still))

    def convention(self, graph: Graph) -> Achieved:
        """The convention for goals that hold already, in plans for this graph."""
        if self.achieved is not None:
            return self.achieved
        if self.credit_achieved is not None:
            return "one" if self.credit_achieved else "zero"
        return "stay" if graph.has_goal_generator else "zero"


@dataclass(frozen=True)
class Robot:
    """How the robot chooses its actions, and how it aggregates the humans' power."""

    beta: Annotated[float, Ge(0)] = 10.0
    """Exponent of the robot's policy: how strongly it prefers better actions; infinite: uniform over the best ones."""
    rho: Annotated[float, Ge(0), FINITE] = 0.0
    """Discount rate: a transition of duration d is discounted by exp(-``rho`` d)."""
    zeta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the goals' attainments in a human's power. Above 1, one goal that is sure to be attained counts more
    than two with probability 0.5 each."""
    xi: Annotated[float, Gt(0), FINITE] = 1.0
    """Inequality aversion: the larger ``xi`` is, the more the humans with little power count."""
    eta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the mean of X_h^(-``xi``) over the humans, where X_h is the power of human h. The robot's utility is
    the negative of the result. Above 1, power now counts more than power later."""
    terminal_robot_value: Annotated[float, Lt(0), FINITE] = -1e-10
    """The robot's value V_r in terminal states."""
    gamma: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Discount factor per unit of time, as an alternative to ``rho``. The discount rate is then -ln(``gamma``), also in
    the weight of the utility U_r."""

    def __post_init__(self) -> None:
        check_fields(self, "robot.")
        if self.rho and self.gamma != 1:
            raise SettingError(
                f"robot.gamma must be 1 where robot.rho is given, got {self.gamma} and {self.rho}: both are discounts"
            )

    @property
    def rate(self) -> float:
        """The discount rate: ``rho``, or -ln(``gamma``) if ``gamma`` is given."""
        return self.rho if self.gamma == 1 else -math.log(self.gamma)


def check_still(graph: Graph, humans: Humans) -> None:
    """Raise unless the action with which humans stay exists and has an effect."""
    if humans.convention(graph) != "stay":
        if humans.still:
            raise SettingError(_IDLE_STILL.format(humans.still))
        return
    for human in graph.humans:
        if humans.still >= graph.actions[human]:
            last = graph.actions[human] - 1
            raise SettingError(
                f"humans.still must be an action of {graph.agents[human]}, from 0 to {last}, got {humans.still}"
            )

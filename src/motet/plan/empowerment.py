"""``solve``, for humans with goals and a robot that empowers them: its formulas, and a backward sweep for each.

Human h with goal g, in state s:

    Q_h(s, a, g) = sum over profiles o of the other humans, as h believes them, of P(o) times the minimum over the
                   robot's actions (or the maximum, or the mean) of E[1 if g holds in s' else discount * V_h(s', g)]
    pi_h(a | s, g) = softmax(beta_h * Q_h);  beta_h infinite: uniform over the maximisers
    V_h(s, g) = sum over a of pi_h * Q_h;  0 where s is terminal

The robot, from the humans' priors pi_h(a | s) = sum over g of w_g pi_h(a | s, g) / sum over g of w_g:

    Q_r(s, a) = E[exp(-rho_r D) V_r(s')] over the humans' priors;  pi_r(a | s) proportional to (-Q_r)^(-beta_r)
    V_he(s, g) = E[1 if g holds in s' else discount * V_he(s', g)], where h acts by pi_h(. | s, g), the others by their
                 priors, the robot by pi_r;  0 where s is terminal
    X_h(s) = sum over g of w_g V_he(s, g)^zeta;  U_r(s) = -(mean over h of X_h^(-xi))^eta
    V_r(s) = w U_r + sum over a of pi_r Q_r, w = E[(1 - exp(-rho_r D)) / rho_r] (1 if rho_r = 0);  where s is terminal,
             terminal_robot_value

The discount is gamma_h, or exp(-rho_h D) with D the duration of the transition (1 where the model gives none).

Where g holds in s already, there are three conventions (``Humans.achieved``):

    zero   V_h = V_he = 0
    one    V_h = V_he = 1, also where s is terminal
    stay   V_h = 0; pi_h(. | s, g) chooses the action ``still`` with probability 1; V_he by its formula: the probability
           that g holds again after the step, or later
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Interval, Lt
from numpy.typing import NDArray

from motet import _native
from motet.errors import ModelError, SettingError
from motet.placement import Cluster
from motet.plan.goals import GoalColumns, Goals, asked_beliefs, asked_goals, goal_name
from motet.plan.graph import Graph
from motet.plan.induction import backwards, others_first
from motet.plan.parallel import WorkerTeam, worker_team
from motet.plan.progress import Progress
from motet.plan.solution import Solution
from motet.plan.sweeps import Backup, SweepRun
from motet.settings import FINITE, check_fields

__all__ = ["Humans", "Robot", "solve"]

_IDLE_STILL = "humans.still must be 0 unless humans.achieved is 'stay', got {}: no other convention uses it"
Believed = Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]]
Achieved = Literal["zero", "one", "stay"]
_OVER = {"worst": 0, "best": 1, "mean": 2}
_HOLDING = {"zero": 0, "one": 1, "stay": 2}


@dataclass(frozen=True)
class Humans:
    """How humans choose their actions."""

    beta: Annotated[float, Ge(0)] = 10.0
    """Inverse temperature of the softmax; infinite: uniform over the best actions."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Discount factor per step."""
    rho: Annotated[float, Ge(0), FINITE] | None = None
    """Discount rate, instead of gamma: the discount of a transition of duration d is exp(-rho d)."""
    robot: Literal["worst", "best", "mean"] = "worst"
    """Which action humans expect of the robot: the worst or the best for them, or the mean over all its actions."""
    believed_others_policy: Believed | None = None
    """What a human believes about the other humans: a callable (state, agent, action) -> [(probability, profile)]. A
    profile has one action of each agent; only those of the other humans are used. None: they act uniformly."""
    achieved: Achieved | None = None
    """The value of a goal that holds already. zero: 0. one: 1, also in a terminal state. stay: the human takes the
    action ``still``, its value is 0, and its attainment is the probability that the goal holds again after the step.
    None: stay if the model has a ``possible_goal_generator``, else zero."""
    still: Annotated[int, Ge(0)] = 0
    """Number of the action with which a human stays where it is."""
    credit_achieved: bool | None = None
    """Older name of ``achieved``: True is achieved="one", False is achieved="zero"."""

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
    """Exponent of its policy: how strongly it prefers better actions; infinite: uniform over the best ones."""
    rho: Annotated[float, Ge(0), FINITE] = 0.0
    """Discount rate: the discount of a transition of duration d is exp(-rho d)."""
    zeta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the goals' attainments. Above 1, certain goals count more than risky ones."""
    xi: Annotated[float, Gt(0), FINITE] = 1.0
    """Inequality aversion: the larger it is, the more the humans with little power count."""
    eta: Annotated[float, Gt(0), FINITE] = 1.0
    """Exponent of the aggregated loss. Above 1, power now counts more than power later."""
    terminal_robot_value: Annotated[float, Lt(0), FINITE] = -1e-10

    def __post_init__(self) -> None:
        check_fields(self, "robot.")


def solve(
    graph: Graph,
    goals: Goals,
    humans: Humans = Humans(),
    robot: Robot | None = Robot(),
    *,
    dtype: Literal["float64", "float32", "float16"] = "float64",
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Solution:
    """Solve for the humans and for the robot by backward induction, level by level.

    Args:
        graph: all states and transitions.
        goals: the possible goals of the humans, with weights: one list for all humans, lists by human, or a generator
            ``(state, human) -> [(goal, weight)]``.
        humans: how the humans choose their actions.
        robot: how the robot chooses its actions; None: solve for the humans only.
        dtype: type in which V_h, pi_h and V_he are stored. Sums are always computed in float64.
        workers: maximum number of threads (and of processes for goals and beliefs in Python); None: one per core. The
            result is the same, bit for bit, for any number.
        progress: called from time to time with the progress.
        engine: where goals and beliefs in Python are evaluated and states are solved: on this machine, or also on the
            nodes of a Ray cluster. The result is the same, bit for bit.
        cluster: the Ray cluster; by default Ray starts on this machine.
        on_message: as in :func:`~motet.plan.enumerate_states`.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("freeing")
    >>> solution = solve(enumerate_states(rooms), {0: rooms.goals(0)})
    >>> solution.policy(solution.graph.states[0], "robot_0").round(2)
    array([0.23, 0.31, 0.22, 0.23])
    """
    if len(graph.humans) + len(graph.robots) != len(graph.agents):
        raise SettingError(
            f"human_agent_indices and robot_agent_indices must name each of the agents {', '.join(graph.agents)} "
            f"once, got {graph.humans} and {graph.robots}"
        )
    if dtype not in ("float64", "float32", "float16"):
        raise SettingError(f"dtype must be float64, float32 or float16, got {dtype!r}")
    _check_still(graph, humans)
    with worker_team(workers, engine, cluster, on_message) as team:
        columns = asked_goals(graph, goals, team, _tick(graph, "goals", progress))
        beliefs = humans.believed_others_policy
        asked = None if beliefs is None else asked_beliefs(graph, beliefs, team, _tick(graph, "beliefs", progress))
        _check_weights(graph, columns)
        arrays = _shared(graph, columns, humans)
        shape = (len(graph), columns.achieved.shape[1])
        human = {name: np.empty(shape, dtype) for name in ("value", "payoff")}
        human["policy"] = np.empty((len(graph), int(arrays["policy_at"][-1])), dtype)
        given = {} if asked is None else {"beliefs": asked}
        backup = _backup(_run_humans, {**arrays, **given, **human}, ("beliefs",), ("payoff",), tuple(human))
        backwards(graph, backup, team, "humans", progress)
        del backup, given, asked
        found = {"human_value": human["value"], "human_policy": human["policy"]}
        if robot is not None:
            found |= _solve_robot(graph, columns, robot, arrays, human, team, progress)
    names = [[goal_name(goal) for goal in own] for own in columns.goals]
    objects = [list(own) for own in columns.goals]
    convention = humans.convention(graph)
    return Solution(graph, names, columns.achieved, columns.weights, found, objects, convention, humans.still)


def _run_humans(arrays: dict[str, Any]) -> SweepRun:
    return _native.HumanSweep(arrays).run


def _run_robot(arrays: dict[str, Any]) -> SweepRun:
    return _native.RobotSweep(arrays).run


def _backup(
    make: Callable[[dict[str, Any]], SweepRun],
    arrays: dict[str, Any],
    own: tuple[str, ...],
    reads: tuple[str, ...],
    writes: tuple[str, ...],
) -> Backup:
    """A backup over the transitions of a graph; ``own``: further arrays of which it reads its own states' rows."""
    states = len(arrays["dists"]) - 1
    if not arrays["timed"]:  # with durations, ``achieved`` is read for successor states too
        own = (*own, "achieved")
    return Backup(
        make=make,
        arrays=arrays,
        ends=("dists", "rows"),
        transitions=tuple(name for name in ("successor", "probability", "duration") if name in arrays),
        own=("joint", *(name for name in own if name in arrays and len(arrays[name]) == states)),
        reads=reads,
        writes=writes,
    )


def _solve_robot(
    graph: Graph,
    columns: GoalColumns,
    robot: Robot,
    arrays: dict[str, Any],
    human: dict[str, NDArray[Any]],
    workers: int | WorkerTeam,
    progress: Callable[[Progress], None] | None,
) -> dict[str, NDArray[Any]]:
    states, profiles = len(graph), arrays["robots"]
    out: dict[str, NDArray[Any]] = {
        "value": np.empty_like(human["value"]),
        "power": np.empty((states, len(graph.humans))),
        "robot_value": np.empty(states),
        "utility": np.empty(states),
        "robot_q": np.empty((states, profiles)),
        "robot_policy": np.empty((states, profiles)),
    }
    settings = {
        "beta_r": robot.beta,
        "rho_r": robot.rho,
        "zeta": robot.zeta,
        "xi": robot.xi,
        "eta": robot.eta,
        "terminal_robot_value": robot.terminal_robot_value,
        "weights": columns.weights,
        "policy": human["policy"],
        "payoff": human["payoff"],  # overwritten: the humans' sweep is done with it
    }
    reads, writes = ("payoff", "robot_value"), ("payoff", *out)
    backup = _backup(_run_robot, {**arrays, **settings, **out}, ("weights", "policy"), reads, writes)
    backwards(graph, backup, workers, "robot", progress, lambda found: _check_faults(graph, found))
    out["attainment"] = out.pop("value")
    return out


def _check_faults(graph: Graph, found: list[int]) -> None:
    faults = [fault for fault in found if fault >= 0]
    if not faults:
        return
    state, human = divmod(min(faults), len(graph.humans) + 1)
    if human == len(graph.humans):
        raise ModelError(
            f"state {graph.states[state]!r}: V_r is not a negative number: it is outside the range of float64. Use "
            "smaller exponents xi and eta, or a terminal_robot_value further from 0"
        )
    raise ModelError(
        f"state {graph.states[state]!r}: X_h of {graph.agents[graph.humans[human]]} is 0: from here it cannot attain "
        "any of its goals before the end, so the robot's loss would be infinite. Give it a goal within reach, end the "
        "episode here, or count goals that hold already: Humans(achieved='stay') or Humans(achieved='one')"
    )


def _check_still(graph: Graph, humans: Humans) -> None:
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


def _check_weights(graph: Graph, columns: GoalColumns) -> None:
    first = columns.first
    for position, human in enumerate(graph.humans):
        if len(columns.weights) == 1 and not columns.weights[0, first[position] : first[position + 1]].any():
            raise SettingError(f"at least one goal of {graph.agents[human]} must have a weight > 0, got 0 for all")


def _tick(graph: Graph, phase: str, progress: Callable[[Progress], None] | None) -> Callable[[int], None]:
    began = time.perf_counter()

    def tick(done: int) -> None:
        if progress is not None:
            progress(Progress(phase, done, len(graph), time.perf_counter() - began))

    return tick


def _shared(graph: Graph, columns: GoalColumns, humans: Humans) -> dict[str, Any]:
    """The arrays that both sweeps read."""
    own = [graph.actions[human] for human in graph.humans]
    others = [
        others_first(graph, *([human] + [other for other in graph.humans if other != human])) for human in graph.humans
    ]
    sizes = [count * len(goals) for count, goals in zip(own, columns.goals, strict=True)]
    rate = humans.gamma if humans.rho is None else humans.rho
    timed = humans.rho is not None and graph.duration is not None
    if humans.rho is not None and not timed:
        rate = math.exp(-humans.rho)
    return {
        **{name: array for name, array in graph.arrays().items() if name not in ("reward", "levels")},
        "humans": len(graph.humans),
        "columns": columns.achieved.shape[1],
        "robots": math.prod(graph.actions[robot] for robot in graph.robots),
        "first": columns.first,
        "actions": np.array(own, np.int64),
        "policy_at": np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]),
        "table": np.stack([*others, others_first(graph, *graph.humans)]),
        "discount": np.full(len(own), rate, np.float64),
        "achieved": columns.achieved,
        "timed": timed,
        "holding": _HOLDING[humans.convention(graph)],
        "still": humans.still,
        "beta": np.full(len(own), humans.beta, np.float64),
        "over": _OVER[humans.robot],
    }

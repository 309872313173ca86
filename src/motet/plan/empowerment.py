"""``solve``: plans for humans with goals and for a robot that empowers them. The formulas, and the two backward sweeps.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from motet import _native
from motet.errors import ModelError, SettingError
from motet.placement import Cluster
from motet.plan.behaviour import Achieved, Humans, Robot, check_still
from motet.plan.coverage import check_coverage, check_weights, powerless
from motet.plan.given import HumanPolicies, RobotPolicy, RoleGraph, asked_humans, asked_robot
from motet.plan.goals import GoalColumns, Goals, asked_beliefs, asked_goals, goal_name
from motet.plan.graph import Graph
from motet.plan.induction import backwards, others_first
from motet.plan.memory import Directory, allocated
from motet.plan.parallel import WorkerTeam, worker_team
from motet.plan.progress import Progress
from motet.plan.recomputed import HumanPolicyRows, SolutionArrays
from motet.plan.roles import Agents, in_roles
from motet.plan.solution import Solution
from motet.plan.sweeps import Backup, SweepRun

__all__ = ["evaluate_robot", "solve", "solve_robot"]

_OVER = {"worst": 0, "best": 1, "mean": 2}
_HOLDING = {"zero": 0, "one": 1, "stay": 2}
Stored = Literal["float64", "float32", "float16"]
ProgressReport = Callable[[Progress], None] | None


def solve(
    graph: Graph,
    goals: Goals,
    humans: Humans = Humans(),  # noqa: B008 - frozen
    robot: Robot | None = Robot(),  # noqa: B008 - frozen
    *,
    human_agents: Agents | None = None,
    robot_agents: Agents | None = None,
    others: Mapping[int | str, Any] | None = None,
    dtype: Stored = "float64",
    directory: Directory = None,
    workers: int | None = None,
    progress: ProgressReport = None,
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
        human_agents: the humans, by index or name; None: those of the model.
        robot_agents: the robots, by index or name; None: those of the model.
        others: policies of agents that are neither human nor robot: tables [states, actions] or functions ``state ->
            probabilities``, by index or name. Without a policy such an agent always takes action 0.
        dtype: type in which V_h, pi_h and V_he are stored. Sums are always computed in float64.
        directory: keep the arrays of the solution in nameless files on this file system instead of memory, for plans
            that exceed the memory.
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
    _check_dtype(dtype)
    with worker_team(workers, engine, cluster, on_message) as team:
        role_graph = in_roles(graph, human_agents, robot_agents, others, team)
        graph = role_graph.graph
        check_still(graph, humans)
        columns = asked_goals(graph, goals, team, _tick(graph, "goals", progress), directory)
        check_weights(graph, columns)
        if robot is not None:
            check_coverage(graph, columns, humans.convention(graph))
        beliefs = humans.believed_others_policy
        asked = None if beliefs is None else asked_beliefs(graph, beliefs, team, _tick(graph, "beliefs", progress))
        arrays = _shared(graph, columns, humans)
        if asked is not None:
            arrays["beliefs"] = asked
        found = _allocated(
            graph, columns, arrays, dtype, ("humans",) if robot is None else ("humans", "robot"), directory
        )
        sweep = {**arrays, "value": found["human_value"]}
        if robot is None:
            backup = _backup(_run_humans, sweep, ("beliefs",), ("value",), ("value",))
            backwards(graph, backup, team, "humans", progress)
        else:
            _sweep_robot(graph, columns, robot, arrays, found, None, team, progress)
    computed = {"human_policy": HumanPolicyRows(sweep)}
    return _solution(graph, columns, SolutionArrays(found, computed), humans.convention(graph), humans.still)


def solve_robot(
    graph: Graph,
    goals: Goals,
    humans: HumanPolicies,
    robot: Robot = Robot(),  # noqa: B008 - frozen
    *,
    gamma: float = 1.0,
    rho: float | None = None,
    achieved: Achieved | None = None,
    human_agents: Agents | None = None,
    robot_agents: Agents | None = None,
    others: Mapping[int | str, Any] | None = None,
    dtype: Stored = "float64",
    directory: Directory = None,
    workers: int | None = None,
    progress: ProgressReport = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Solution:
    """Solve for the robot that empowers humans whose policies are given.

    The humans' priors are the averages of their policies over their goals, by weight. Arguments not listed here are
    those of :func:`solve`.

    Args:
        graph: all states and transitions.
        goals: the possible goals of the humans, with weights.
        humans: the policies of the humans: a function ``(state, human, goal) -> probabilities``; a dict with such a
            function, or a table [states, actions] or [states, actions, goals], for each human; or a solution.
        robot: how the robot chooses its actions.
        gamma: the humans' discount factor per step, for V_he.
        rho: the humans' discount rate, as an alternative to ``gamma``.
        achieved: V_he of a goal that holds already, as in ``Humans``. With ``stay``, V_he follows from its formula, and
            the human acts by its given policy.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("freeing")
    >>> found = solve_robot(enumerate_states(rooms), {0: rooms.goals(0)}, lambda state, human, goal: [0.25] * 4)
    >>> found.policy(found.graph.states[0], "robot_0").round(2)
    array([0.25, 0.26, 0.25, 0.25])
    """
    settings = Humans(gamma=gamma, rho=rho, achieved=achieved)
    with worker_team(workers, engine, cluster, on_message) as team:
        role_graph = in_roles(graph, human_agents, robot_agents, others, team)
        return _for_given_humans(role_graph, goals, humans, settings, robot, None, dtype, directory, team, progress)


def evaluate_robot(
    graph: Graph,
    robot: RobotPolicy,
    goals: Goals,
    humans: HumanPolicies,
    settings: Robot = Robot(),  # noqa: B008 - frozen
    *,
    model: Any = None,
    gamma: float = 1.0,
    rho: float | None = None,
    achieved: Achieved | None = None,
    human_agents: Agents | None = None,
    robot_agents: Agents | None = None,
    others: Mapping[int | str, Any] | None = None,
    dtype: Stored = "float64",
    directory: Directory = None,
    workers: int | None = None,
    progress: ProgressReport = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Solution:
    """Compute the exact values V_he, X_h, U_r, Q_r and V_r of any policy of the robot, for example a learned one.

    Arguments not listed here are those of :func:`solve_robot`.

    Args:
        graph: all states and transitions.
        robot: the policy of the robot: a table [states, robot actions] or a function ``state -> probabilities``, where
            a robot action is one action of each robot and the last robot's action varies fastest; a policy with
            ``act(observation)`` and optionally ``probabilities(observation)``, if there is one robot; a dict with a
            table, function or policy for each robot; or a solution.
        goals: the possible goals of the humans, with weights.
        humans: the policies of the humans.
        settings: how the humans' power is aggregated and discounted. Its ``beta`` has no effect: the policy is given.
        model: the world in which a policy with ``act`` acts, with ``set_state`` and ``observe(agent)``.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("freeing")
    >>> graph, goals = enumerate_states(rooms), {0: rooms.goals(0)}
    >>> best = solve(graph, goals)
    >>> even = evaluate_robot(graph, lambda state: [0.25] * 4, goals, best)
    >>> round(best.value(graph.states[0], "robot_0"), 3), round(even.value(graph.states[0], "robot_0"), 3)
    (-2.618, -2.665)
    """
    choosing = Humans(gamma=gamma, rho=rho, achieved=achieved)
    with worker_team(workers, engine, cluster, on_message) as team:
        role_graph = in_roles(graph, human_agents, robot_agents, others, team)
        policy = asked_robot(role_graph, robot, model, team)
        return _for_given_humans(
            role_graph, goals, humans, choosing, settings, policy, dtype, directory, team, progress
        )


def _for_given_humans(
    role_graph: RoleGraph,
    goals: Goals,
    policies: HumanPolicies,
    humans: Humans,
    robot: Robot,
    policy: NDArray[np.float64] | None,
    dtype: Stored,
    directory: Directory,
    team: WorkerTeam,
    progress: ProgressReport,
) -> Solution:
    """Solve for the robot, or evaluate its policy, given the humans' policies."""
    _check_dtype(dtype)
    graph, convention = role_graph.graph, humans.convention(role_graph.graph)
    columns = asked_goals(graph, goals, team, _tick(graph, "goals", progress), directory)
    check_weights(graph, columns)
    check_coverage(graph, columns, convention)
    arrays = _shared(graph, columns, humans)
    found = _allocated(graph, columns, arrays, dtype, ("given", "robot"), directory)
    asked_humans(role_graph, columns, policies, found["human_policy"], team, _tick(graph, "policies", progress))
    _sweep_robot(graph, columns, robot, arrays, found, policy, team, progress)
    return _solution(graph, columns, SolutionArrays(found), convention, None)


def _check_dtype(dtype: str) -> None:
    if dtype not in ("float64", "float32", "float16"):
        raise SettingError(f"dtype must be float64, float32 or float16, got {dtype!r}")


def _allocated(
    graph: Graph,
    columns: GoalColumns,
    arrays: dict[str, Any],
    dtype: Stored,
    parts: Sequence[str],
    directory: Directory,
) -> dict[str, NDArray[Any]]:
    """Allocate the arrays of the ``parts`` of a solution: ``humans``, ``given`` (policies of humans) and ``robot``."""
    states, width = columns.achieved.shape
    needed: dict[str, tuple[tuple[int, ...], str]] = {}
    if "humans" in parts:
        needed["human_value"] = ((states, width), dtype)
    if "given" in parts:
        needed["human_policy"] = ((states, int(arrays["policy_at"][-1])), dtype)
    if "robot" in parts:
        needed |= {
            "attainment": ((states, width), dtype),
            "power": ((states, len(graph.humans)), "float64"),
            "robot_value": ((states,), "float64"),
            "utility": ((states,), "float64"),
            "robot_q": ((states, arrays["robots"]), "float64"),
            "robot_policy": ((states, arrays["robots"]), "float64"),
        }
    return allocated(needed, f"the values and policies of {states:,} states with {width:,} goals", directory)


def _solution(
    graph: Graph, columns: GoalColumns, arrays: SolutionArrays, convention: Achieved, still: int | None
) -> Solution:
    names = [[goal_name(goal) for goal in own] for own in columns.goals]
    objects = [list(own) for own in columns.goals]
    return Solution(graph, names, columns.achieved, columns.weights, arrays, objects, convention, still)


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
    """A backup over the transitions of a graph. ``own``: arrays of which it reads only the rows of the states it
    computes."""
    states = len(arrays["dists"]) - 1
    return Backup(
        make=make,
        arrays=arrays,
        ends=("dists", "rows"),
        transitions=tuple(name for name in ("successor", "probability", "duration") if name in arrays),
        own=("joint", *(name for name in own if name in arrays and len(arrays[name]) == states)),
        reads=reads,
        writes=writes,
    )


def _sweep_robot(
    graph: Graph,
    columns: GoalColumns,
    robot: Robot,
    arrays: dict[str, Any],
    found: dict[str, NDArray[Any]],
    policy: NDArray[np.float64] | None,
    workers: int | WorkerTeam,
    progress: ProgressReport,
) -> None:
    """Compute the robot's part of the solution. ``policy``: the robot's policy, if a given policy is evaluated."""
    out = {name: found[name] for name in ("power", "robot_value", "utility", "robot_q", "robot_policy")}
    out["value"] = found["attainment"]
    settings = {
        "beta_r": robot.beta,
        "rho_r": robot.rate,
        "zeta": robot.zeta,
        "xi": robot.xi,
        "eta": robot.eta,
        "terminal_robot_value": robot.terminal_robot_value,
        "weights": columns.weights,
        **({} if policy is None else {"given": policy}),
    }
    reads, phase = ["value", "robot_value"], "robot"
    if "human_policy" in found:
        settings["policy"] = found["human_policy"]
    else:  # the humans are solved in the same sweep, so that their policies need not be stored
        out["human_value"] = found["human_value"]
        reads, phase = [*reads, "human_value"], "humans and robot"
    own = ("weights", "policy", "given", "beliefs")
    backup = _backup(_run_robot, {**arrays, **settings, **out}, own, tuple(reads), tuple(out))
    backwards(graph, backup, workers, phase, progress, lambda found: _check_faults(graph, found))


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
    raise powerless(graph, state, human)


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

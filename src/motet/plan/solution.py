"""Solution of a plan: values and policies by state, agent and goal, saved without pickle.

``solve`` makes it. It is used for queries by state, agent and goal; for a :class:`PlannedPolicy` that acts in an
evaluation; for pictures; and for comparisons with learned policies.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.plan.chain import Chain, chain_of
from motet.plan.folder import read_folder, write_folder
from motet.plan.goals import goal_name
from motet.plan.graph import Graph
from motet.plan.recomputed import SolutionArrays
from motet.world.model import ModelWorld, is_model

__all__ = ["PlannedPolicy", "Solution"]


class Solution:
    """Policies and values of the humans and the robot.

    Attributes:
        graph: the states and transitions.
        goals: names of the goals, by human. The columns of the arrays are these goals, one human after the other.
        arrays: ``human_value`` V_h [states, columns] (not if the humans' policies were given) and ``human_policy`` pi_h
            (see :meth:`human_policy`); with a robot also ``attainment`` V_he [states, columns], ``power`` X_h [states,
            humans], ``utility`` U_r [states], ``robot_value`` V_r [states], ``robot_q`` Q_r and ``robot_policy`` pi_r
            [states, robot actions] (see :attr:`robot_actions`). After ``solve``, ``human_policy`` is not stored: each
            time it is read from ``arrays``, it is computed from V_h for all states. The method computes only the states
            that it is asked for.
        convention: the convention for goals that hold already (``Humans.achieved``): zero, one or stay; None: an older
            file, which does not say it.
        still: the action with which humans stay where a goal holds; None: the humans' policies were given.

    >>> from motet.plan import enumerate_states, solve
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("closet")
    >>> solution = solve(enumerate_states(rooms), {0: rooms.goals(0)})
    >>> state = rooms.get_state()
    >>> solution.policy(state, "human_0", "1,2").round(3)
    array([0.007, 0.007, 0.007, 0.98 ])
    >>> round(solution.value(state, "human_0", "1,2"), 3)
    0.49
    """

    def __init__(
        self,
        graph: Graph,
        goals: Sequence[Sequence[str]],
        achieved: NDArray[np.uint8],
        weights: NDArray[np.float64],
        arrays: Mapping[str, NDArray[Any]],
        objects: Sequence[Sequence[Any]] = (),
        convention: Literal["zero", "one", "stay"] | None = None,
        still: int | None = 0,
    ) -> None:
        self.graph, self.goals = graph, [list(own) for own in goals]
        self.achieved, self.weights = achieved, weights
        self.arrays = arrays if isinstance(arrays, SolutionArrays) else SolutionArrays(arrays)
        self._objects = [list(own) for own in objects]
        self.convention, self.still = convention, still
        self.first = [0]
        for own in self.goals:
            self.first.append(self.first[-1] + len(own))

    def __repr__(self) -> str:
        robot = "with a robot" if "robot_policy" in self.arrays else "humans only"
        goals = f"{sum(map(len, self.goals))} goals of {len(self.goals)} humans"
        held = "" if self.convention is None else f", goals that hold: {self.described_convention}"
        return f"<Solution: {len(self.graph):,} states, {goals}, {robot}{held}>"

    @property
    def described_convention(self) -> str:
        """Human-readable convention for goals that hold already."""
        if self.convention is None:
            return "not recorded"
        if self.convention != "stay":
            return self.convention
        return "stay, by the given policies" if self.still is None else f"stay, by action {self.still}"

    @property
    def robot_actions(self) -> list[tuple[int, ...]]:
        """The robot's actions in the order of ``robot_policy``: one action of each robot. The last robot's action
        varies fastest."""
        return list(itertools.product(*(range(self.graph.actions[robot]) for robot in self.graph.robots)))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of the solution, without the graph."""
        return self.arrays.nbytes + self.achieved.nbytes + self.weights.nbytes

    # By state, agent and goal

    def policy(self, state: Any, agent: int | str, goal: Any = None) -> NDArray[np.float64]:
        """The probability of each action of an agent.

        Args:
            state: the state.
            agent: index or name of the agent.
            goal: for a human, its goal, as an object or by name; None: its prior, averaged over its goals by weight.
        """
        number, index = self._open(state), self.graph.agent(agent)
        if index in self.graph.humans:
            position, here = self.graph.humans.index(index), slice(number, number + 1)
            if goal is None:
                return self.priors(position, here).reshape(-1)
            return self.human_policy(position, here)[:, :, self.column(position, goal)].reshape(-1)
        self._check_robot(index, goal)
        joint = self.robot_array("robot_policy")[number].reshape(
            [self.graph.actions[robot] for robot in self.graph.robots]
        )
        rest = tuple(axis for axis, robot in enumerate(self.graph.robots) if robot != index)
        alone: NDArray[np.float64] = joint.sum(axis=rest) if rest else joint.copy()
        return alone

    def value(self, state: Any, agent: int | str, goal: Any = None) -> float:
        """V_h of a human and its goal, or V_r of the robot."""
        number, index = self.graph.number(state), self.graph.agent(agent)
        if index not in self.graph.humans:
            self._check_robot(index, goal)
            return float(self.robot_array("robot_value")[number])
        position = self.graph.humans.index(index)
        column = self.first[position] + self.column(position, goal)
        if "human_value" not in self.arrays:
            raise NotReadyError("V_h was not computed, because the humans' policies were given: use attainment")
        return float(self.arrays["human_value"][number, column])

    def attainment(self, state: Any, human: int | str, goal: Any) -> float:
        """The attainment V_he: the discounted probability that a human attains a goal, given the policies of all
        agents."""
        number, position = self.graph.number(state), self._human(human)
        return float(self.robot_array("attainment")[number, self.first[position] + self.column(position, goal)])

    def power(self, state: Any, human: int | str) -> float:
        """The power X_h of a human over its goals; not defined in terminal states."""
        return float(self.robot_array("power")[self._open(state), self._human(human)])

    # By number, in arrays

    def human_policy(self, position: int, states: slice = slice(None)) -> NDArray[np.float64]:
        """pi_h of human number ``position`` among the humans: [states, actions, goals]."""
        sizes = [self.graph.actions[human] * len(own) for human, own in zip(self.graph.humans, self.goals, strict=True)]
        begin = sum(sizes[:position])
        part = self.arrays.rows("human_policy", states)[:, begin : begin + sizes[position]]
        shape = (len(part), self.graph.actions[self.graph.humans[position]], len(self.goals[position]))
        return part.reshape(shape).astype(np.float64)

    def priors(self, position: int, states: slice = slice(None)) -> NDArray[np.float64]:
        """The prior of human number ``position``: its policy averaged over its goals by weight, [states, actions]."""
        columns = slice(self.first[position], self.first[position + 1])
        weights = self.weights[states if len(self.weights) > 1 else slice(None), columns]
        total = weights.sum(axis=1, keepdims=True)
        shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        prior: NDArray[np.float64] = (self.human_policy(position, states) * shares[:, None, :]).sum(axis=2)
        return prior

    def _open(self, state: Any) -> int:
        number = self.graph.number(state)
        if self.graph.dists[number] == self.graph.dists[number + 1]:
            raise NotReadyError(f"state {state!r} is terminal: no agent acts there")
        return number

    def _human(self, human: int | str) -> int:
        index = self.graph.agent(human)
        if index not in self.graph.humans:
            raise SettingError(f"agent must be one of the humans {self.graph.humans}, got {self.graph.agents[index]}")
        return self.graph.humans.index(index)

    def column(self, position: int, goal: Any) -> int:
        """The number of a goal, given as an object or by name, among the goals of human number ``position``."""
        if self._objects and goal in self._objects[position]:
            return self._objects[position].index(goal)
        names = self.goals[position]
        name = goal if isinstance(goal, str) else goal_name(goal)
        if names.count(name) > 1:
            raise SettingError(f"goal {name!r} must be the name of one goal, got that of {names.count(name)} goals")
        if name in names:
            return names.index(name)
        known = ", ".join(names[:12]) + (" …" if len(names) > 12 else "")
        raise SettingError(f"goal must be one of {known}, got {goal!r}")

    def _check_robot(self, agent: int, goal: Any) -> None:
        if agent not in self.graph.robots:
            raise SettingError(f"{self.graph.agents[agent]} must be a human or a robot of this solution, got neither")
        if goal is not None:
            raise SettingError(f"goal is only valid for humans (got {goal!r} for a robot)")

    def robot_array(self, name: str) -> NDArray[Any]:
        """An array of the robot's part, by name."""
        if name not in self.arrays:
            raise NotReadyError("only the humans were solved: call solve with robot=Robot(…)")
        return self.arrays[name]

    # Use

    def acting(
        self,
        agent: int | str,
        goal: Any = None,
        state_of: Callable[[Any], Any] | None = None,
        goal_of: Callable[[Any], Any] | None = None,
    ) -> PlannedPolicy:
        """A policy that acts by this solution.

        Args:
            agent: the agent for which it acts.
            goal: for a human, its goal; None: its prior.
            state_of: function from an observation to the state; None: observations are states.
            goal_of: function from an observation to the human's goal, instead of ``goal``.
        """
        index = self.graph.agent(agent)
        if index in self.graph.humans and goal is not None:
            self.column(self.graph.humans.index(index), goal)
        return PlannedPolicy(self, index, goal, state_of, goal_of)

    def frame(self, model: Any, state: Any) -> NDArray[np.uint8] | None:
        """Draw a state with the robots' policies and the humans' power; None if only the humans were solved.

        Args:
            model: the model, with ``picture(state)`` and ``where(state, agent)``.
            state: a state of the graph.
        """
        from motet.plan.picture import state_picture

        return state_picture(self, model, state) if "robot_policy" in self.arrays else None

    def chain(self, goals: Mapping[int | str, Any] | None = None) -> Chain:
        """The Markov chain of this solution: all agents act by their policies.

        Args:
            goals: goals of humans, which then act by their policies for these goals; the others act by their priors.
        """
        graph = self.graph
        chosen = {self._human(human): goal for human, goal in (goals or {}).items()}
        columns = {position: self.column(position, goal) for position, goal in chosen.items()}
        order = np.arange(graph.joints).reshape(graph.actions)
        idle = [agent for agent in range(len(graph.agents)) if agent not in (*graph.humans, *graph.robots)]
        order = order.transpose(*graph.humans, *graph.robots, *idle).reshape(-1)

        def shares(states: slice) -> NDArray[np.float64]:
            profile = np.ones((states.stop - states.start, 1))
            for position in range(len(graph.humans)):
                own = self.priors(position, states)
                if position in columns:
                    own = self.human_policy(position, states)[:, :, columns[position]]
                profile = (profile[:, :, None] * own[:, None, :]).reshape(len(profile), -1)
            robot = self.robot_array("robot_policy")[states]
            profile = (profile[:, :, None] * robot[:, None, :]).reshape(len(profile), -1)
            ordered: NDArray[np.float64] = np.empty_like(profile)
            ordered[:, order] = profile
            return ordered

        return chain_of(graph, shares)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the solution and its graph in one folder; nothing is pickled. Goals are saved by name."""
        counted = {"convention": self.convention, "still": self.still}
        header = {"kind": "solution", "goals": self.goals, **counted, "graph": self.graph.header()}
        own: dict[str, NDArray[Any]] = {"achieved": np.packbits(self.achieved, axis=1), "weights": self.weights}
        arrays = self.graph.arrays() | self.graph.coded() | self.arrays.stored | own
        write_folder(path, header, arrays, self.arrays.computed)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any = None) -> Solution:
        """Map a saved solution from disk. ``model`` is needed if it has its own ``encode_state``."""
        header, arrays = read_folder(path, "solution")
        graph = Graph.opened(header["graph"], arrays, os.fspath(path), model)
        inside = {*graph.arrays(), "states", "state_ends", "achieved", "weights"}
        count = sum(len(own) for own in header["goals"])
        achieved = np.unpackbits(arrays["achieved"], axis=1, count=count)
        own = {name: array for name, array in arrays.items() if name not in inside}
        counted = {"convention": header.get("convention"), "still": header.get("still", 0)}
        return cls(graph, header["goals"], achieved, arrays["weights"], own, **counted)


class PlannedPolicy:
    """A policy that samples its actions from a solution, for use in ``evaluate``.

    >>> from motet.plan import enumerate_states, solve
    >>> from motet.worlds.rooms import Rooms
    >>> rooms = Rooms("closet")
    >>> solution = solve(enumerate_states(rooms), {0: rooms.goals(0)})
    >>> policy = solution.acting("human_0", goal="1,2", state_of=lambda seen: rooms.state_of(seen, "human_0"))
    >>> observations, _ = rooms.reset(seed=0)
    >>> policy.reset(seed=1)
    >>> policy.act(observations["human_0"])
    3
    """

    def __init__(
        self,
        solution: Solution,
        agent: int,
        goal: Any = None,
        state_of: Callable[[Any], Any] | None = None,
        goal_of: Callable[[Any], Any] | None = None,
    ) -> None:
        self.solution, self.agent, self.goal = solution, agent, goal
        self.state_of, self.goal_of = state_of, goal_of
        self._rng = np.random.default_rng(0)

    @classmethod
    def load(cls, path: str | os.PathLike[str], agent: int | str, world: Any, goal: Any = None) -> PlannedPolicy:
        """Make a policy from a saved solution, for example in another process.

        Args:
            path: folder of the saved solution.
            agent: the agent for which it acts.
            world: the world or model in which it acts, or a factory of one. Its ``state_of`` maps observations to
                states; a model without ``state_of`` is played as a ``ModelWorld``, which has it.
            goal: for a human, the name of its goal; None: its prior; ``drawn``: the goal that its observation shows, in
                a world that draws goals (``ModelWorld``).
        """
        made = world if (hasattr(world, "state_of") and not isinstance(world, type)) or is_model(world) else world()
        if not hasattr(made, "state_of"):
            made = ModelWorld(made)
        solution = Solution.load(path, getattr(made, "model", made))
        name = solution.graph.agents[solution.graph.agent(agent)]

        def state_of(observation: Any) -> Any:
            return made.state_of(observation, name)

        if goal != "drawn":
            return solution.acting(name, goal, state_of)
        if not hasattr(made, "goal_of"):
            raise SettingError(
                f"goal must not be 'drawn' unless the world has goal_of(observation, agent), as ModelWorld has, got a "
                f"{type(made).__name__} without it"
            )
        return solution.acting(name, None, state_of, lambda observation: goal_name(made.goal_of(observation, name)))

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        self._rng = np.random.default_rng(seed)

    def act(self, observation: Any, mask: NDArray[np.bool_] | None = None) -> int:
        """Sample an action for an observation; ``mask``: the allowed actions."""
        shares = self.probabilities(observation)
        if mask is not None:
            shares = shares * mask
        if not shares.sum() > 0:
            raise SettingError(f"the mask {mask!r} allows no action with a positive probability in the plan")
        return int(self._rng.choice(len(shares), p=shares / shares.sum()))

    def probabilities(self, observation: Any) -> NDArray[np.float64]:
        """The probability of each action."""
        state = observation if self.state_of is None else self.state_of(observation)
        goal = self.goal if self.goal_of is None else self.goal_of(observation)
        return self.solution.policy(state, self.agent, goal)

"""Coded models: states as compact arrays, humans with goals and given policies, and all robots as one agent, the mind.

Observations are not enough for an algorithm that learns from a model's transitions. It also needs the successors of
actions that were not taken, which :class:`CodedModel` returns. A :class:`StateSpace` is the space of the model's
states. The acting and the learning half of an algorithm both get this space, and find the coded model in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from motet.errors import ModelError, SettingError
from motet.system.portable import Portable
from motet.system.raised import brief
from motet.world.contract import offers
from motet.world.goal_sampler import Drawn, GoalSampler, ListSampler, goal_numbers
from motet.world.model import (
    agents_and_actions,
    goal_lists,
    goal_sampler,
    is_model,
    leaves,
    optional_attribute,
    refilled,
)

__all__ = ["Bounded", "CodedModel", "Facts", "StateSpace", "coded_by"]

_NEAR = 1e-6
HumanPolicy = Callable[[Any, int, Any], Any]
Belief = Callable[[Any, int, int], Any]


class Facts(NamedTuple):
    """The fields of a replay's row that describe a state."""

    code: NDArray[Any]
    ended: bool
    """Whether the state is terminal."""
    holds: NDArray[np.uint8]
    """Which of the goals hold, as bits."""


class Bounded(dict[Any, Any]):
    """A cache with a maximum number of entries. When it is full, the older half of the entries is dropped."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self.asked = self.found = 0

    def made(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the cached value of a key; compute the value if it is not cached."""
        self.asked += 1
        try:
            value = self[key]
        except KeyError:
            if len(self) >= self._most:
                for old in list(self)[: max(self._most // 2, 1)]:
                    del self[old]
            value = self[key] = make()
            return value
        self.found += 1
        return value


class CodedModel:
    """A model of robots and humans, with its states as compact arrays.

    Args:
        model: the model, or a factory of one.
        humans: the humans' policies: a function ``(state, human, goal) -> probabilities``, or an object whose method
            ``policy`` is such a function, for example a solution of a plan. None: the model's ``towards``. ``uniform``:
            all actions are equally likely.
        goals: the humans' goals with weights, as in ``motet.plan.solve``, or a sampler of goals. None: those of the
            model, listed if it lists them, else those that its ``possible_goal_sampler`` draws.
        human_agents: indices of the humans; None: those of the model.
        robot_agents: indices of the robots; None: those of the model. Other agents take action 0.
        believed_others_policy: what a human believes about the actions of the others, in the form that
            ``motet.plan.Humans`` takes. A solution of a plan: the human believes that the others act by the priors of
            this solution. None: it believes that they act uniformly.

    >>> from motet.worlds import Bushes
    >>> coded = CodedModel(Bushes(horizon=4))
    >>> coded.robot_actions, coded.goals_of, coded.code(coded.first).tolist()
    (5, (7, 7), [0, 2, 0, 6, 1, 1, 1, 1, 1, 1, 1])
    >>> coded.encode(coded.code(coded.first)[None]).shape
    (1, 29)
    """

    def __init__(
        self,
        model: Any,
        humans: Any = None,
        goals: Any = None,
        human_agents: Sequence[int] | None = None,
        robot_agents: Sequence[int] | None = None,
        believed_others_policy: Any = None,
    ) -> None:
        self._given = (model, humans, goals, human_agents, robot_agents, believed_others_policy)
        self.model = model if is_model(model) else model()
        if not is_model(self.model):
            raise SettingError(
                f"world must be a model, with get_state, set_state and transition_probabilities, got {self.model!r}"
            )
        _, self.names, self.actions = agents_and_actions(self.model)
        given = human_agents, optional_attribute(self.model, "human_agent_indices")
        self.humans = tuple(next((found for found in given if found is not None), ()))
        given = robot_agents, optional_attribute(self.model, "robot_agent_indices")
        self.robots = tuple(next((found for found in given if found is not None), ()))
        if not self.humans or not self.robots or set(self.humans) & set(self.robots):
            raise SettingError(
                f"human_agents and robot_agents must be non-empty and disjoint, got {self.humans} and {self.robots}"
            )
        self._policy = self._uniform if humans == "uniform" else _human_policy(self.model, humans)
        self.first = self.model.get_state()
        self._dtype = np.dtype(getattr(self.model, "code_dtype", "int16"))
        self.size = len(leaves(self.first, self.first))
        self._goal_size: int | None = None
        self._goals(goals)
        self.robot_actions: int = math.prod(self.actions[robot] for robot in self.robots)
        self.timed = offers(self.model, "transition_durations")
        """Whether transitions have durations. If not, each transition lasts 1."""
        self._believed = _belief(self.humans, believed_others_policy)
        self._encoded = Bounded(200_000)
        self._numbers: dict[bytes, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (Portable(self._given, "model of the world"),)

    def _goals(self, given: Any) -> None:
        """Store the listed goals of the humans. If goals can only be sampled, no goals are listed."""
        self.given_goals: Any = given
        """The goals as ``ModelWorld`` takes them."""
        sampler = goal_sampler(self.model, given, self.humans, self.names)
        if sampler is not None:
            self._columns([[] for _ in self.humans])
            self.sampler = self.given_goals = sampler
            return
        if given is None and offers(self.model, "goals"):
            given = {human: self.model.goals(human) for human in self.humans}
        self.given_goals = optional_attribute(self.model, "possible_goal_generator") if given is None else given
        lists = goal_lists(self.model, self.given_goals)
        if lists is None:
            raise SettingError(f"goals must be given for a {type(self.model).__name__}, which has none")
        by_human = lists(self.first)
        if missing := [human for human in self.humans if not by_human.get(human)]:
            raise SettingError(f"goals must be given for each human, got none for {self.names[missing[0]]}")
        self._columns([by_human[human] for human in self.humans])
        self.sampler = GoalSampler(ListSampler(by_human), self.humans, self.names)
        """Draws goals for all humans. Listed goals are drawn by weight."""

    def _columns(self, goals: list[Drawn]) -> None:
        self.goals = goals
        """The listed goals with their weights, by human."""
        self.goals_of = tuple(len(own) for own in goals)
        self.weights = np.array([weight for own in self.goals for _, weight in own])
        """Weight of each goal, by column."""
        self.owner = np.repeat(np.arange(len(self.humans)), self.goals_of)
        """Position of the human of each column."""

    # States

    @property
    def space(self) -> StateSpace:
        """The space of the codes."""
        return StateSpace(self)

    def code(self, state: Any) -> NDArray[Any]:
        """Return a state as a compact array."""
        numbers = leaves(state, self.first)
        limits = np.iinfo(self._dtype)
        if max(numbers) > limits.max or min(numbers) < limits.min or any(int(one) != one for one in numbers):
            raise ModelError(
                f"state {state!r} must have whole numbers from {limits.min} to {limits.max}: give the model a "
                "code_dtype with room for its states"
            )
        return np.array(numbers, self._dtype)

    def state(self, code: NDArray[Any]) -> Any:
        """Return the state of a code."""
        return refilled(self.first, iter(code.tolist()))

    def encode(self, codes: NDArray[Any]) -> NDArray[np.float32]:
        """Return many states as numbers for a network: float32 [states, inputs].

        If the model has ``encode_codes(codes)``, one call encodes all states. Otherwise ``encode(state)`` is called for
        each new state. Without either method, the codes themselves are the numbers.
        """
        if offers(self.model, "encode_codes"):
            rows: NDArray[np.float32] = self.model.encode_codes(codes)
            return rows
        if not offers(self.model, "encode"):
            return codes.astype(np.float32)
        return np.stack([self._encoded.made(code.tobytes(), lambda: self._encode(code)) for code in codes])  # noqa: B023

    def _encode(self, code: NDArray[Any]) -> NDArray[np.float32]:
        return np.asarray(self.model.encode(self.state(code)), np.float32).ravel()

    @property
    def inputs(self) -> int:
        """Number of values that a network gets for a state."""
        return int(self.encode(self.code(self.first)[None]).shape[1])

    def numbers(self, codes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of each state in a table. States are indexed in the order in which a search finds them."""
        known = self.table()
        return np.array([known[code.tobytes()] for code in codes], np.int64)

    def table(self, most: int = 1_000_000) -> dict[bytes, int]:
        """Return the index of each reachable state by its code; raise if there are more than ``most`` states."""
        if not self._numbers:
            found = {self.code(self.first).tobytes(): 0}
            waiting = [self.first]
            while waiting:
                state = waiting.pop()
                for profile in np.ndindex(*self.actions):
                    for _, successor in self.model.transition_probabilities(state, list(profile)) or ():
                        key = self.code(successor).tobytes()
                        if key not in found:
                            found[key] = len(found)
                            waiting.append(successor)
                if len(found) > most:
                    raise SettingError(f"tables must be for at most {most:,} states, got more: use networks")
            self._numbers = found
        return self._numbers

    # Goals that are sampled

    def listed(self, goals: Any = None) -> dict[int, Drawn]:
        """Return all goals with weights by human: those given, else those that the model lists."""
        lists = None
        if goals is not None or not any(self.goals_of):
            try:
                lists = goal_lists(self.model, goals)
            except SettingError:
                lists = None
            if lists is None:
                raise SettingError(
                    "goals must be listed to compute the exact solution, got a sampler: give a dict with a list of "
                    "(goal, weight) for each human"
                )
        found = dict(zip(self.humans, self.goals, strict=True)) if lists is None else lists(self.first)
        return {human: found[human] for human in self.humans}

    @property
    def goal_size(self) -> int:
        """Number of values of a goal, taken from the first goal that is drawn."""
        if self._goal_size is None:
            self._goal_size = len(goal_numbers(self.model, self.sampler.draw(self.first, 1, 0)[0][0][0]))
        return self._goal_size

    @property
    def goal_dtype(self) -> str:
        """Type of the numbers of goals in rows: the model's ``goal_dtype``, float32 by default."""
        return str(np.dtype(getattr(self.model, "goal_dtype", "float32")))

    def goal_code(self, goal: Any, human: int, state: Any) -> NDArray[Any]:
        """Return a goal that was drawn for a human in a state as numbers for a network."""
        where = f"(state {state!r}, {self.names[human]})"
        try:
            numbers = goal_numbers(self.model, goal)
        except Exception as error:
            raise ModelError(f"the goal {brief(goal)} has no numbers: {error} {where}") from error
        if len(numbers) != self.goal_size:
            raise ModelError(
                f"every goal must have {self.goal_size} numbers, as the first one, got {len(numbers)} for "
                f"{brief(goal)} {where}"
            )
        code = numbers.astype(self.goal_dtype)
        if not np.allclose(code, numbers, rtol=1e-6):
            raise ModelError(
                f"a goal's numbers must fit into {self.goal_dtype}, got {numbers.tolist()} for {brief(goal)} {where}"
                "; fix: give the model a goal_dtype with room for them"
            )
        return code

    def held(self, goals: Sequence[Any], state: Any) -> NDArray[np.uint8]:
        """Return which goals hold in a state, as bits."""
        holds = []
        for goal in goals:
            try:
                holds.append(bool(goal.is_achieved(state)))
            except Exception as error:
                raise ModelError(
                    f"is_achieved of the goal {brief(goal)} raised {type(error).__name__}: {error} (state {state!r})"
                ) from error
        return np.packbits(np.array(holds, np.bool_))

    # What may happen

    def facts(self, state: Any, goals: Sequence[Any]) -> Facts:
        """Return what a replay's rows hold about a state, with these goals."""
        ended = self.model.transition_probabilities(state, [0] * len(self.actions)) is None
        return Facts(self.code(state), ended, self.held(goals, state))

    def policies(self, state: Any) -> list[NDArray[np.float64]]:
        """Return the policy of each human for each of its goals: [goals, actions] by human."""
        return [
            np.stack([self.policy(state, human, goal) for goal, _ in own])
            for human, own in zip(self.humans, self.goals, strict=True)
        ]

    def policy(self, state: Any, human: int, goal: Any) -> NDArray[np.float64]:
        """Return the probabilities of a human's actions, given its goal."""
        given = np.asarray(self._policy(state, human, goal), np.float64)
        if given.shape != (self.actions[human],) or not (given >= 0).all() or abs(given.sum() - 1) > _NEAR:
            raise ModelError(
                f"the policy of {self.names[human]} must be {self.actions[human]} numbers >= 0 with sum 1, got "
                f"{brief(given.tolist())} (state {state!r}, goal {getattr(goal, 'name', goal)})"
            )
        shares: NDArray[np.float64] = given / given.sum()
        return shares

    def _uniform(self, state: Any, human: int, goal: Any) -> NDArray[np.float64]:
        shares: NDArray[np.float64] = np.full(self.actions[human], 1 / self.actions[human])
        return shares

    def priors(self, policies: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Return the humans' policies averaged over their goals by weight: [actions] by human."""
        split = np.split(self.weights, np.cumsum(self.goals_of)[:-1])
        return [own @ policy / own.sum() for own, policy in zip(split, policies, strict=True)]

    @property
    def believes(self) -> bool:
        """Whether the humans' beliefs about each other are given."""
        return self._believed is not None

    def belief(self, state: Any, position: int, action: int) -> dict[tuple[int, ...], float]:
        """Return what a human that takes an action believes: profiles of all humans' actions with probabilities."""
        assert self._believed is not None
        human = self.humans[position]
        where = f"(state {state!r}, {self.names[human]}, action {action})"
        found: dict[tuple[int, ...], float] = {}
        try:
            for p, given in self._believed(state, human, action):
                others = tuple(action if h == human else range(self.actions[h])[given[h]] for h in self.humans)
                found[others] = found.get(others, 0.0) + float(p)
        except Exception as error:
            raise ModelError(
                "believed_others_policy raised, or gave no list of (probability, profile with one action of each "
                f"agent): {error!r} {where}"
            ) from error
        if not all(p >= 0 for p in found.values()) or abs(sum(found.values()) - 1) > _NEAR:
            raise ModelError(
                f"believed_others_policy must give probabilities >= 0 with sum 1, got {brief(list(found.values()))} "
                f"{where}"
            )
        return found

    def joint(self, profile: Sequence[int], robot_action: int) -> list[int]:
        """Return the joint action of a profile of the humans and an action of the mind; other agents take action 0."""
        joint = [0] * len(self.actions)
        sizes = [self.actions[robot] for robot in self.robots]
        chosen = np.array(np.unravel_index(robot_action, sizes)).tolist()  # the last robot's action varies fastest
        for agent, action in zip((*self.humans, *self.robots), (*profile, *chosen), strict=True):
            joint[agent] = action
        return joint

    def outcomes(self, state: Any, joint: list[int], most: int) -> list[tuple[float, Any, float]]:
        """Return the probabilities, successors and durations of a joint action, those with equal successors and
        durations merged; raise if there are more than ``most``."""
        where = f"(state {state!r}, actions {joint})"
        try:
            given = self.model.transition_probabilities(state, joint[:])
            chances = [(float(p), successor) for p, successor in given]
        except Exception as error:
            raise ModelError(
                f"transition_probabilities raised, or gave no (probability, successor): {error!r} {where}"
            ) from error
        probabilities = [p for p, _ in chances]
        if not all(p >= 0 for p in probabilities) or abs(sum(probabilities) - 1) > _NEAR:
            raise ModelError(f"probabilities must be >= 0 with sum 1, got {brief(probabilities)} {where}")
        merged: dict[tuple[Any, float], float] = {}
        for (p, successor), duration in zip(chances, self._durations(state, joint, given, where), strict=True):
            if p > 0:
                merged[successor, duration] = merged.get((successor, duration), 0.0) + p
        found = [(p, successor, duration) for (successor, duration), p in merged.items()]
        if len(found) > most:
            raise ModelError(
                f"a joint action must have at most {most} successors, got {len(found)} {where}; fix: raise the setting "
                "successors"
            )
        return found

    def _durations(self, state: Any, joint: list[int], transitions: Sequence[Any], where: str) -> list[float]:
        """Return the durations of the transitions of a joint action."""
        if not self.timed:
            return [1.0] * len(transitions)
        try:
            found = [float(one) for one in self.model.transition_durations(state, joint[:], transitions)]
        except Exception as error:
            raise ModelError(f"transition_durations raised, or gave no numbers: {error!r} {where}") from error
        if len(found) != len(transitions) or not all(0 <= one < math.inf for one in found):
            raise ModelError(
                f"transition_durations must give a finite number >= 0 for each of {len(transitions)} transitions, got "
                f"{brief(found)} {where}"
            )
        return found


def _remade(given: Portable) -> CodedModel:
    return CodedModel(*given.value)


def _human_policy(model: Any, given: Any) -> HumanPolicy:
    if given is None and not offers(model, "towards"):
        raise SettingError(
            f"humans must be a function (state, human, goal) -> probabilities, or a solution, got None for a "
            f"{type(model).__name__} without towards(state, human, goal)"
        )
    chosen = model.towards if given is None else getattr(given, "policy", given)
    if not callable(chosen):
        raise SettingError(f"humans must be a function (state, human, goal) -> probabilities, got {given!r}")
    policy: HumanPolicy = chosen
    return policy


def _belief(humans: Sequence[int], given: Any) -> Belief | None:
    if given is None or (callable(given) and not hasattr(given, "policy")):
        function: Belief | None = given
        return function
    if not callable(getattr(given, "policy", None)):
        raise SettingError(
            "believed_others_policy must be a function (state, agent, action) -> [(probability, profile)], or a "
            f"solution, got {given!r}"
        )

    def independent(state: Any, human: int, action: int) -> Any:
        others = [other for other in humans if other != human]
        priors = [given.policy(state, other) for other in others]
        for chosen in np.ndindex(*(len(prior) for prior in priors)):
            p = math.prod(float(prior[a]) for prior, a in zip(priors, chosen, strict=True))
            yield p, dict(zip(others, chosen, strict=True))

    return independent


class StateSpace(gymnasium.spaces.Box):
    """The codes of a model's states. ``space.coded`` is the coded model."""

    def __init__(self, coded: CodedModel) -> None:
        limits = np.iinfo(coded._dtype)
        super().__init__(int(limits.min), int(limits.max), (coded.size,), coded._dtype.type)
        self.coded = coded

    def __repr__(self) -> str:
        return f"StateSpace({type(self.coded.model).__name__}, {self.shape}, {self.dtype})"

    def __reduce__(self) -> tuple[Any, ...]:
        return StateSpace, (self.coded,)


def coded_by(space: Any) -> CodedModel:
    """Return the coded model of a space; raise for any other space."""
    if not isinstance(space, StateSpace):
        raise SettingError(
            f"observation space must be that of motet.worlds.OneMind, whose states are those of a model, got {space!r}"
        )
    return space.coded

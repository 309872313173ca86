"""Models as worlds: a model for planning can also be played, filmed, evaluated and trained in.

A model gives the successors of a joint action with their probabilities (see ``motet.plan.Model``). :class:`ModelWorld`
draws one of them at each step, so the world cannot differ from the model that a plan was computed for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from motet.errors import ModelError, SettingError, WorldError
from motet.seeds import freeze_rng, thaw_rng
from motet.system.raised import brief
from motet.text import valid
from motet.world.contract import End, World, offers
from motet.world.goal_sampler import GoalSampler, goal_numbers, is_sampler
from motet.world.spaces import InvalidValue, action_checker, observation_caster

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = [
    "ModelWorld",
    "agents_and_actions",
    "goal_lists",
    "goal_sampler",
    "is_model",
    "leaves",
    "optional_attribute",
    "refilled",
]

_MEMBERS = ("reset", "get_state", "set_state", "transition_probabilities", "agents", "action_space")


def is_model(given: Any) -> bool:
    """Whether ``given`` is an object that gives transition probabilities; a class is not."""
    return offers(given, "transition_probabilities", "get_state", "set_state") and not isinstance(given, type)


def optional_attribute(model: Any, name: str) -> Any:
    """An optional attribute of a model; None if the model does not have the attribute, or leaves it to subclasses."""
    try:
        return getattr(model, name, None)
    except NotImplementedError:
        return None
    except Exception as error:
        raise ModelError(f"{name} raised {type(error).__name__}: {error}") from error


def agents_and_actions(model: Any) -> tuple[list[Any], tuple[str, ...], tuple[int, ...]]:
    """Reset a model. Return its agents as the model identifies them, their names, and their numbers of actions."""
    for name in _MEMBERS:
        if not hasattr(model, name):
            raise ModelError(f"the model, a {type(model).__name__}, has no {name}: see motet.plan.Model")
    model.reset()
    keys = list(getattr(model, "possible_agents", model.agents))
    names = tuple(key if isinstance(key, str) else f"agent_{i}" for i, key in enumerate(keys))
    counts = optional_attribute(model, "n_actions_per_agent")
    if counts is not None:
        actions = tuple(int(count) for count in counts)
        if len(actions) != len(names) or min(actions) < 1:
            raise ModelError(
                f"n_actions_per_agent must be one count >= 1 for each of {len(names)} agents, got {actions}"
            )
        return keys, names, actions
    space = model.action_space
    spaces = [space[i] for i in range(len(space))] if hasattr(space, "nvec") else _by_agent(space, keys)
    if not keys or len(spaces) != len(keys) or not all(hasattr(one, "n") for one in spaces):
        raise ModelError(
            f"the model has agents {keys!r} and action_space {space!r}; expected at least one agent, and "
            "one space with n actions for all agents or one for each agent"
        )
    return keys, names, tuple(int(one.n) for one in spaces)


def _by_agent(given: Any, keys: Sequence[Any]) -> list[Any]:
    """One space for each agent: given by a function, a mapping or a sequence; else the same for all."""
    if isinstance(given, Mapping) and set(given) >= set(keys):
        return [given[key] for key in keys]
    if isinstance(given, Sequence):
        return list(given)
    if callable(given) and not hasattr(given, "contains"):
        return [given(key) for key in keys]
    return [given] * len(keys)


class ModelWorld(World):
    """The world of a model: at each step one of the successors is drawn with its probability.

    An agent observes ``model.observe(agent)``, else ``model.encode(state)``, else the numbers of the state in order. An
    agent that has goals observes a dict: ``state``, and ``goal``, which is ``model.encode_goal(goal)``, else a one-hot
    array over its goals, or the numbers of a goal that was sampled.

    Rewards are those of ``model.transition_rewards``. If the model has none, or ``goals`` is given, a goal is drawn for
    each human at the reset, by weight. The human gets a reward of 1 at the first step that leads to a state in which
    its goal holds. All other agents get the sum of the humans' rewards. So the expected return of a human that acts by
    a plan is the attainment V_he of its goal (``docs/plan.md``).

    All agents act at each step, unless the model has ``acts(state, agent)``. An episode terminates in a terminal state.

    Args:
        model: the model, or a factory of one.
        goals: goals of the humans, as in ``motet.plan.solve``, or a sampler of goals, with ``sample(state, human)``,
            which returns ``(goal, weight)``. None: the model's rewards; if it has none, its ``goals(human)``, its
            ``possible_goal_generator`` or its ``possible_goal_sampler``.
        turns: truncate episodes after this many steps. None: no limit.
        plan: a solution of the model. Pictures then also show its values: the power of the humans and the policies of
            the robots.

    >>> from motet.worlds import Bushes
    >>> world = ModelWorld(Bushes(horizon=3))
    >>> world.reset(seed=0)
    >>> world.agents, world.goals
    (('robot_0', 'human_0', 'human_1'), {1: '0,4', 2: '0,1'})
    >>> world.act([4, 3, 1])
    >>> world.state_of(world.observe(0), "robot_0")
    (1, (2, 1, 5), (1, 1, 0, 1, 1, 1, 1))
    """

    def __init__(self, model: Any, *, goals: Any = None, turns: int | None = None, plan: Any = None) -> None:
        self.model = model if is_model(model) else _made(model)
        self._keys, names, self._actions = agents_and_actions(self.model)
        self.agents = tuple(map(valid, names))
        if turns is not None and turns < 1:
            raise SettingError(f"turns must be an int >= 1, or None for no limit, got {turns!r}")
        self.turns, self.plan = turns, plan
        self._seeded = "seed" in inspect.signature(self.model.reset).parameters
        self._rng = np.random.default_rng()
        humans = optional_attribute(self.model, "human_agent_indices") or ()
        self._sampler = goal_sampler(self.model, goals, humans, self.agents)
        self._goal_lists = None if self._sampler is not None else goal_lists(self.model, goals)
        self._begin()
        if self._sampler is not None:
            self._any_goal = self._sampled(0)
        self._code = _state_code(self.model, self._state, self._keys)
        self._spaces()
        self.can_save = _is_plain(self._state) or offers(self.model, "encode_state", "decode_state")

    def _spaces(self) -> None:
        from gymnasium import spaces

        self.action_spaces = tuple(spaces.Discrete(count) for count in self._actions)
        self._give = tuple(action_checker(space) for space in self.action_spaces)
        seen = [self._code.space(agent) for agent in range(len(self.agents))]
        self.observation_spaces: tuple[Space[Any], ...] = tuple(
            spaces.Dict({"state": space, "goal": self._goal_space(agent)}) if agent in self._any_goal else space
            for agent, space in enumerate(seen)
        )
        self._take = tuple(observation_caster(space, "the observation") for space in self.observation_spaces)

    # Episodes

    @property
    def state(self) -> Any:
        """The state of the model now."""
        return self._state

    @property
    def goals(self) -> dict[int, str]:
        """The names of the goals that were drawn for this episode, by agent; empty if the model gives rewards."""
        return {agent: str(getattr(goal, "name", goal)) for agent, goal in self._goal.items()}

    @property
    def drawn_goals(self) -> dict[int, Any]:
        """The goals that were drawn for this episode, by agent."""
        return dict(self._goal)

    def _begin(self) -> None:
        self._start = self._state = self.model.get_state()
        self._step = 0
        self._owed = [0.0] * len(self.agents)
        self._ends: list[End] = []
        self._over = self._is_terminal()
        self._reached: set[int] = set()
        self._choices = {} if self._goal_lists is None else self._goal_lists(self._start)
        self._goal: dict[int, Any] = {}
        self._goal_seed: int | None = None
        if self._sampler is None:
            self._any_goal = {agent: weighted[0][0] for agent, weighted in self._choices.items()}
        self.model.set_state(self._start)

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode at the model's initial state, and draw the goals."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self._seeded:
            self.model.reset(seed=seed)
        else:
            self.model.reset()
        self._begin()
        for agent, weighted in self._choices.items():
            weights = np.array([weight for _, weight in weighted])
            self._goal[agent] = weighted[int(self._rng.choice(len(weighted), p=weights / weights.sum()))][0]
        if self._sampler is not None:
            self._goal_seed = int(self._rng.integers(2**63))
            self._goal = self._sampled(self._goal_seed)

    def _sampled(self, seed: int) -> dict[int, Any]:
        """Goals of a sampler for the initial state, by human."""
        if self._sampler is None:
            return {}
        drawn = self._sampler.draw(self._start, 1, seed)
        return {human: own[0][0] for human, own in zip(self._sampler.humans, drawn, strict=True)}

    def group(self) -> Sequence[int]:
        """The agents that act now: all, or those for which ``model.acts(state, agent)`` is true."""
        if self._over:
            return ()
        everybody = range(len(self.agents))
        if offers(self.model, "acts"):
            return tuple(agent for agent in everybody if self.model.acts(self._state, agent))
        return everybody

    def act(self, actions: Sequence[Any]) -> None:
        """Draw the next state, given the actions of the group; agents that do not act take action 0."""
        group = self.group()
        if len(actions) != len(group):
            over = "" if group else ", because no episode is running; call reset() first"
            raise self._error(f"act() got {len(actions)} actions; expected {len(group)}{over}")
        joint = [0] * len(self.agents)
        for agent, action in zip(group, actions, strict=True):
            try:
                joint[agent] = self._give[agent](action)
            except InvalidValue as invalid:
                raise self._error(f"{self.agents[agent]}: {invalid}") from None
        before, outcomes = self._state, self._outcomes(joint)
        drawn = self._draw(outcomes, joint)
        self._state = outcomes[drawn][1]
        self._step += 1
        self._reward(before, joint, outcomes, drawn)
        self._end()
        self.model.set_state(self._state)  # last, because transition_probabilities may change the model's current state

    def _outcomes(self, joint: list[int]) -> Any:
        try:
            outcomes = self.model.transition_probabilities(self._state, joint[:])
        except Exception as error:
            raise self._error(f"transition_probabilities raised {type(error).__name__}: {error}", joint) from error
        if not outcomes:
            raise self._error(f"transition_probabilities gave {outcomes!r} in a state that is not terminal", joint)
        return outcomes

    def _draw(self, outcomes: Any, joint: list[int]) -> int:
        if len(outcomes) == 1:
            return 0
        try:
            return int(self._rng.choice(len(outcomes), p=[p for p, _ in outcomes]))
        except (TypeError, ValueError) as error:
            raise self._error(
                f"transition_probabilities gave {brief(outcomes)}; expected pairs (probability, successor), with "
                "probabilities >= 0 that sum to 1",
                joint,
            ) from error

    def _reward(self, before: Any, joint: list[int], outcomes: Any, drawn: int) -> None:
        if self._goal_lists is None and self._sampler is None:
            earned = self.model.transition_rewards(before, joint[:], outcomes)[drawn]
            if len(earned) != len(self.agents) or not np.isfinite(np.asarray(earned, np.float64)).all():
                raise self._error(f"transition_rewards gave {brief(earned)}; expected a number for each agent", joint)
            for agent, reward in enumerate(earned):
                self._owed[agent] += float(reward)
            return
        arrived = {agent for agent, goal in self._goal.items() if goal.is_achieved(self._state)} - self._reached
        self._reached |= arrived
        for agent in range(len(self.agents)):
            self._owed[agent] += float(agent in arrived) if agent in self._goal else float(len(arrived))

    def _end(self) -> None:
        terminated = self._is_terminal()
        truncated = not terminated and self._step == self.turns
        self._over = terminated or truncated
        if self._over:
            self._ends = [End(agent, terminated, truncated) for agent in range(len(self.agents))]

    def _is_terminal(self) -> bool:
        return self.model.transition_probabilities(self._state, [0] * len(self.agents)) is None

    def reward(self, agent: int) -> float:
        """Return the rewards of an agent since the last call."""
        earned, self._owed[agent] = self._owed[agent], 0.0
        return earned

    def ended(self) -> Sequence[End]:
        """Return the ends of all agents, once, when the episode is over."""
        ends, self._ends = self._ends, []
        return ends

    # Observations

    def observe(self, agent: int) -> Any:
        """Return what an agent observes: the state, and its goal if it has one."""
        seen = self._code.observe(self._state, agent)
        if agent in self._any_goal:
            goal = self._goal.get(agent, self._any_goal[agent])
            seen = {"state": seen, "goal": self._encoded_goal(agent, goal)}
        try:
            return self._take[agent](seen)
        except InvalidValue as invalid:
            raise self._error(f"{self.agents[agent]}: {invalid}") from None

    def state_of(self, observation: Any, agent: str) -> Any:
        """Return the state that an agent's observation shows, for policies that act by a plan."""
        index = self._index(agent)
        return self._code.state_of(observation["state"] if index in self._any_goal else observation, index)

    def goal_of(self, observation: Any, agent: str) -> Any:
        """Return the goal that a human's observation shows; None for an agent without goals.

        If goals are sampled, a goal is found only if it was drawn for this episode.
        """
        index = self._index(agent)
        of_this_episode = [goal for agent, goal in self._goal.items() if agent == index]
        for goal in [goal for goal, _ in self._choices.get(index, ())] or of_this_episode:
            if np.array_equal(self._encoded_goal(index, goal), observation["goal"]):
                return goal
        return None

    def _index(self, agent: str) -> int:
        if agent in self.agents:
            return self.agents.index(agent)
        raise SettingError(f"agent must be one of {', '.join(self.agents)}, got {agent!r}")

    def _encoded_goal(self, agent: int, goal: Any) -> Any:
        if self._sampler is not None:
            return goal_numbers(self.model, goal)
        if offers(self.model, "encode_goal"):
            return self.model.encode_goal(goal)
        return np.array([float(goal == known) for known, _ in self._choices[agent]], np.float32)

    def _goal_space(self, agent: int) -> Space[Any]:
        return _box(self._encoded_goal(agent, self._any_goal[agent]))

    # Saving, drawing

    def get_state(self) -> Any:
        """Return everything that determines what happens next, as plain values."""
        if not self.can_save:
            super().get_state()
        coded = self.model.encode_state if offers(self.model, "encode_state") else lambda state: state
        goals: Any = self._goal_seed
        if self._sampler is None:
            goals = tuple(
                (agent, [goal for goal, _ in self._choices[agent]].index(goal)) for agent, goal in self._goal.items()
            )
        ends = tuple(tuple(end[:3]) for end in self._ends)
        counted = (self._step, self._over, tuple(sorted(self._reached)), tuple(self._owed), ends)
        return (coded(self._start), coded(self._state), goals, counted, freeze_rng(self._rng))

    def set_state(self, state: Any) -> None:
        """Continue from what :meth:`get_state` returned."""
        if not self.can_save:
            super().set_state(state)
        decoded = self.model.decode_state if offers(self.model, "decode_state") else lambda coded: coded
        start, now, goals, counted, stream = state
        self.model.set_state(decoded(start))
        self._begin()
        self._state = decoded(now)
        self.model.set_state(self._state)
        if self._sampler is None:
            self._goal = {agent: self._choices[agent][number][0] for agent, number in goals}
        elif goals is not None:
            self._goal_seed, self._goal = goals, self._sampled(goals)
        self._step, self._over, reached, owed, ends = counted
        self._reached, self._owed = set(reached), list(owed)
        self._ends = [End(*end) for end in ends]
        self._rng = thaw_rng(stream)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The model's metadata, for the speed of films."""
        return getattr(self.model, "metadata", None) or {}

    def render(self) -> NDArray[np.uint8] | None:
        """Return the model's picture of the state, with the plan drawn in if there is one; None if it draws none."""
        if offers(self.model, "picture"):
            drawn = self.plan.frame(self.model, self._state) if self.plan is not None else None
            picture = self.model.picture(self._state) if drawn is None else drawn
        else:
            picture = self.model.render() if offers(self.model, "render") else None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        """Close the model, if it can be closed."""
        if offers(self.model, "close"):
            self.model.close()

    def _error(self, text: str, joint: Sequence[int] | None = None) -> WorldError:
        did = "" if joint is None else f", actions {list(joint)}"
        return WorldError(f"{type(self.model).__name__} (step {self._step}, state {brief(self._state)}{did}): {text}")


def _made(given: Any) -> Any:
    model = given() if callable(given) else given
    if not is_model(model):
        raise SettingError(
            "model must have get_state, set_state and transition_probabilities, or be a factory of such an object, got "
            f"{brief(given)}"
        )
    return model


# ---- goals

Choices = dict[int, list[tuple[Any, float]]]
"""Goals with weights, by agent."""


def goal_lists(model: Any, given: Any) -> Callable[[Any], Choices] | None:
    """Return a function from the initial state to the goals of the humans; None: the model gives rewards."""
    if given is None and offers(model, "transition_rewards"):
        return None
    humans = list(optional_attribute(model, "human_agent_indices") or ())
    goals = getattr(model, "goals", None) if given is None else given
    if goals is None:
        goals = optional_attribute(model, "possible_goal_generator")
    if goals is None or not (humans or isinstance(goals, Mapping)):
        raise SettingError(
            f"model must have transition_rewards, or human_agent_indices and goals, got a {type(model).__name__} "
            "without; give goals=…, or write transition_rewards(state, actions, transitions)"
        )

    def lists(state: Any) -> Choices:
        if isinstance(goals, Mapping):
            found = {int(human): goals[human] for human in goals}
        elif given is None and goals == getattr(model, "goals", None) and callable(goals):
            found = {human: goals(human) for human in humans}
        else:
            generate = getattr(goals, "generate", goals if callable(goals) else None)
            found = {human: goals if generate is None else generate(state, human) for human in humans}
        return {human: _weighted(own, human) for human, own in found.items()}

    return lists


def goal_sampler(model: Any, given: Any, humans: Sequence[int], names: Sequence[str]) -> GoalSampler | None:
    """Return the sampler that draws the humans' goals; None: goals are listed, or the model gives rewards."""
    if isinstance(given, GoalSampler):
        return given
    if given is None:
        listed = getattr(model, "goals", None), optional_attribute(model, "possible_goal_generator")
        if offers(model, "transition_rewards") or any(one is not None for one in listed):
            return None
        given = optional_attribute(model, "possible_goal_sampler")
    return GoalSampler(given, humans, names) if is_sampler(given) else None


def _weighted(own: Any, human: int) -> list[tuple[Any, float]]:
    pairs = [one if isinstance(one, tuple) and len(one) == 2 else (one, 1.0) for one in own]
    good = [(goal, float(weight)) for goal, weight in pairs if offers(goal, "is_achieved") and weight >= 0]
    if len(good) != len(pairs) or not any(weight for _, weight in good):
        raise SettingError(
            f"goals of agent {human} must be objects with is_achieved(state), with weights >= 0 and not all 0, got "
            f"{brief(pairs)}"
        )
    return good


# ---- states as observations


class _OfModel:
    """Observations by the model's ``observe(agent)``, or by its ``encode(state)``."""

    def __init__(self, model: Any, keys: Sequence[Any]) -> None:
        self.model, self.keys = model, keys
        self.by_agent = offers(model, "observe")

    def space(self, agent: int) -> Space[Any]:
        given = getattr(self.model, "observation_space", None)
        if given is not None:
            space: Space[Any] = _by_agent(given, self.keys)[agent]
            return space
        return _box(self.observe(self.model.get_state(), agent))

    def observe(self, state: Any, agent: int) -> Any:
        return self.model.observe(self.keys[agent]) if self.by_agent else self.model.encode(state)

    def state_of(self, observation: Any, agent: int) -> Any:
        if offers(self.model, "state_of"):
            return self.model.state_of(observation, self.keys[agent])
        if not self.by_agent and offers(self.model, "decode"):
            return self.model.decode(observation)
        raise SettingError(
            f"the model, a {type(self.model).__name__}, has no state_of(observation, agent)"
            + ("" if self.by_agent else " and no decode(observation)")
            + ": policies of a plan need it, to find the state that an observation shows"
        )


class _Numbers:
    """Observations of states that are nested tuples of numbers: the numbers in order."""

    def __init__(self, state: Any) -> None:
        self.form = state
        found = leaves(state, state)
        self.dtype = np.float64 if any(isinstance(leaf, float) for leaf in found) else np.float32
        self.count = len(found)

    def space(self, agent: int) -> Space[Any]:
        return _box(np.zeros(self.count, self.dtype))

    def observe(self, state: Any, agent: int) -> NDArray[Any]:
        found = leaves(state, self.form)
        numbers = np.array(found, self.dtype)
        if numbers.tolist() != found:
            raise ModelError(
                f"state {state!r} has a number that {self.dtype.__name__} cannot represent exactly: give the model "
                "encode(state) -> array"
            )
        return numbers

    def state_of(self, observation: Any, agent: int) -> Any:
        return refilled(self.form, iter(np.asarray(observation).tolist()))


def _state_code(model: Any, state: Any, keys: Sequence[Any]) -> _OfModel | _Numbers:
    return _OfModel(model, keys) if offers(model, "observe") or offers(model, "encode") else _Numbers(state)


def leaves(state: Any, form: Any) -> list[Any]:
    """Return the numbers of a state in their order; raise unless the state has the form of ``form``."""
    if isinstance(state, tuple) and isinstance(form, tuple) and len(state) == len(form):
        return [leaf for part, like in zip(state, form, strict=True) for leaf in leaves(part, like)]
    if isinstance(state, bytes) and isinstance(form, bytes) and len(state) == len(form):
        return list(state)
    if isinstance(state, int | float) and isinstance(form, int | float):
        return [state]
    raise ModelError(
        f"{state!r} in a state must be a number, bytes, or a tuple of them of the same length as in the first state, "
        f"{form!r}: give the model encode(state) -> array, or observe(agent) -> array"
    )


def refilled(form: Any, numbers: Any) -> Any:
    """Return a state of a given form, with the numbers of an iterator."""
    if isinstance(form, tuple):
        return tuple(refilled(part, numbers) for part in form)
    if isinstance(form, bytes):
        return bytes(int(next(numbers)) for _ in form)
    return type(form)(next(numbers))


def _is_plain(state: Any) -> bool:
    if isinstance(state, tuple):
        return all(map(_is_plain, state))
    return state is None or isinstance(state, bool | int | float | str | bytes)


def _box(like: Any) -> Space[Any]:
    from gymnasium import spaces

    array = np.asarray(like)
    if array.dtype.kind not in "biuf":
        raise SettingError(f"encode, observe and encode_goal must return an array of numbers, got {brief(like)}")
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape, array.dtype.type)
    if array.dtype.kind == "b":
        return spaces.MultiBinary(array.shape)
    limits = np.iinfo(array.dtype)
    return spaces.Box(limits.min, limits.max, array.shape, array.dtype.type)

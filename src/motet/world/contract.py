"""The World contract: which agents act now, what they observe, and what happens. Only the actor drives a world.

A world repeatedly names the next *group* of agents, which act simultaneously. In a turn-based world a group is one
agent, which observes what the agent before it did. In a simultaneous world the group is all agents that are alive.

A world takes one action for each agent of the group. It returns the agents' observations, their action masks, the
rewards since each agent's last action, and the ends of their segments.

:func:`as_world` converts a PettingZoo environment (Parallel or AEC), a Gymnasium environment (with one agent, or with
two in the form of laser hockey), an object gridworld (:func:`from_objects`) or a model for planning (``ModelWorld``) to
a World. In short, the actor plays one turn like this::

    for agent, action in zip(group := world.group(), actions): ...    # keep each agent's observation and action
    world.act(actions)
    for end in world.ended(): ...                                     # close the last step of end.agent's segment
    for agent in world.group(): ...                                   # reward(agent) closes its last step

A reward belongs to the action before it. What an agent earns during other agents' turns is added up until its own next
turn or its end.

A *segment* is what an agent plays up to its end. In most worlds an agent has one segment in each episode of the world.
If the agent is in a group again after its end, its next segment begins, and the world's episode continues.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from motet.errors import SettingError
from motet.nest import Nest

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["End", "VectorWorld", "World", "as_world", "from_objects"]


class End(NamedTuple):
    """The end of one agent's segment: of the steps since the reset, or since the agent's previous end.

    In most worlds an agent does not act after its end, and ``reward`` and ``observation`` are not needed. An agent that
    acts again begins a new segment. It can then be in ``ended()`` and in the next ``group()`` at the same time, so its
    End must hold the reward and the observation that close the old segment. Give both or neither.
    """

    agent: int
    terminated: bool
    """Whether a terminal state was reached. The value of the last observation is 0: there is no bootstrapping."""
    truncated: bool
    """Whether the segment was cut off before a terminal state. Learners bootstrap from the last observation.

    If ``terminated`` and ``truncated`` are both set, the segment counts as terminated.
    """
    reward: float | None = None
    """The value that ``reward(agent)`` would return. A world that gives the value here must clear the sum, as that call
    does.

    None: the actor calls ``reward(agent)``.
    """
    observation: Any = None
    """The agent's last observation: a copy, and an element of the agent's space. None: the actor calls
    ``observe(agent)``.

    If an observation is given, ``reward(agent)`` and ``observe(agent)`` refer to what comes after the end.
    """


class World(Protocol):
    """The contract of a world. A subclass must write the abstract methods; the other methods have defaults.

    >>> from motet.worlds import MatrixGame
    >>> world = as_world(MatrixGame(turns=1))
    >>> world.reset(seed=0)
    >>> world.agents, list(world.group())
    (('player_0', 'player_1'), [0, 1])
    >>> world.act([0, 1])
    >>> [end.agent for end in world.ended()]
    [0, 1]
    """

    agents: tuple[str, ...]
    """Names of all agents that may ever act, in a fixed order. Everywhere else an agent is given by its index here."""
    observation_spaces: tuple[Space[Any], ...]
    """Observation space of each agent: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."""
    action_spaces: tuple[Space[Any], ...]
    """Action space of each agent, of the same kinds."""
    can_save: bool = False
    """Whether ``get_state`` and ``set_state`` work."""
    stage_of: str | None = None
    """The agent whose stage ``set_stage`` gets. None: it gets the least advanced stage of all agents that have
    stages."""

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum from the next reset on.

        Called in training before each reset, if agents have several stages.
        """
        return

    @abstractmethod
    def reset(self, seed: int | None = None) -> None:
        """Begin an episode. May be called in the middle of one.

        The same seed gives the same episode. Without a seed, the world's random stream continues.
        """

    @abstractmethod
    def group(self) -> Sequence[int]:
        """Return the agents that act simultaneously now. Empty: the episode is over.

        The world decides who acts. The adapters of PettingZoo and Gymnasium worlds do so in ``world/pettingzoo.py``.

        An agent that is in a group after its end begins a new segment. Its End must have had a reward and an
        observation.
        """

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """Return an agent's current observation: an array of its space's dtype and shape, or a dict or tuple of them.

        The arrays must be C-contiguous copies, because the caller may change them. Called for the agents of the group,
        and for agents whose End had no observation. For the latter, return their last observation until the reset.
        """

    def mask(self, agent: int) -> Nest:
        """Return the actions that are allowed now. None: all are allowed.

        For Discrete, bool [n]; the first entry is for the first action of the space, which is its ``start``. For
        MultiDiscrete, a tuple of such arrays. For other spaces, see :mod:`motet.masks`.
        """
        return None

    @abstractmethod
    def act(self, actions: Sequence[Any]) -> None:
        """Play one action for each agent of the group, in the group's order.

        Actions are whole numbers, or arrays of the space's dtype, or dicts or tuples of them.
        """

    @abstractmethod
    def reward(self, agent: int) -> float:
        """Return the sum of an agent's rewards since the last call for it, from its own and other agents' turns.

        The call clears the sum. Rewards before an agent's first action, or between its end and its next action, do not
        belong to an action: they count towards the return, but are not part of a transition.
        """

    def unread_reward(self, agent: int) -> float | None:
        """Return what the next call of ``reward`` will return, without clearing it. None: the world cannot tell.

        Films show it as the score so far.
        """
        return None

    @abstractmethod
    def ended(self) -> Sequence[End]:
        """Return the segments that ended since the last call, at most one for each agent. The call clears the list.

        After its end, an agent must be in a group again before it can end again.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return numbers that describe the episode, by name. Called when it is over. Shown together with other metrics.

        Environments that :func:`as_world` converts report such numbers in ``info["metrics"]``.
        """
        return {}

    def get_state(self) -> Any:
        """Return everything that determines what happens next, for an exact resume.

        A run can save the state if it consists of plain values.
        """
        raise SettingError(f"{type(self).__name__} cannot save its state; check can_save first")

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned in a world with the same settings. A reset beforehand is not
        needed."""
        raise SettingError(f"{type(self).__name__} cannot restore a state; check can_save first")

    def render(self) -> NDArray[np.uint8] | None:
        """Return a picture, uint8 [height, width, 3], or None."""
        return None

    def close(self) -> None:
        """Release all resources."""
        return


def last_of(world: World, end: End) -> tuple[float, Any]:
    """Return the reward and the observation that close a segment."""
    reward = world.reward(end.agent) if end.reward is None else end.reward
    return reward, world.observe(end.agent) if end.observation is None else end.observation


class VectorWorld(Protocol):
    """K worlds of one kind that are stepped together as arrays: fast if a step is a few array operations.

    All worlds are at the same point of a turn: the same agents act simultaneously in each of them. The episodes of all
    agents of a world end together. Worlds do not influence each other: a world plays the same episode if it is alone.

    If an environment's class defines ``vector(worlds)``, actors drive the worlds through the VectorWorld that this
    method returns. Everywhere else the single environment is used. An inherited ``vector``, or one behind a wrapper, is
    ignored: a subclass or wrapper that changes the rules of the single environment does not change those of the arrays.
    """

    agents: tuple[str, ...]
    """Names of all agents, as in World."""
    observation_spaces: tuple[Space[Any], ...]
    """Observation space of each agent, in one world."""
    action_spaces: tuple[Space[Any], ...]
    """Action space of each agent, in one world."""
    worlds: int
    """Number of worlds, K."""
    can_save: bool = False
    """Whether ``get_state`` and ``set_state`` work."""

    def set_stage(self, stage: str) -> None:
        """Play this stage of a curriculum in the worlds that are reset from now on."""
        return

    @abstractmethod
    def reset(self, worlds: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds. The other worlds continue."""

    def group(self) -> Sequence[int]:
        """Return the agents that act simultaneously now, in all worlds."""
        return range(len(self.agents))

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """Return an agent's current observations in all worlds: arrays ``[K, ...]``, or a dict or tuple of them.

        The arrays must be copies, because the caller may change them. In a world that ended, the observation is the
        agent's last one, until that world's reset.
        """

    @abstractmethod
    def act(self, actions: Sequence[Any]) -> None:
        """Play an array of actions ``[K, ...]``, or a dict or tuple of them, for each agent, in the group's order.

        The caller has already reset all worlds that ended.
        """

    def earners(self) -> Sequence[int]:
        """Return the agents that may have earned a reward by the last ``act``. The others' rewards are not read.

        The default is all agents. If only the agents that act can earn rewards, return just those: then the cost of a
        step does not grow with the number of other agents.
        """
        return range(len(self.agents))

    @abstractmethod
    def reward(self, agent: int) -> NDArray[Any]:
        """Return an agent's rewards from the last ``act``, whether it acted or another agent did, ``[K]``."""

    @abstractmethod
    def ended(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which worlds the last ``act`` terminated and which it truncated, ``[K]`` each."""

    def metrics(self) -> Mapping[str, NDArray[Any]]:
        """Return numbers that describe the present episode of each world: an array ``[K]`` for each name.

        Called when episodes have ended, before the reset; only the numbers of their worlds are read.
        """
        return {}

    def get_state(self) -> Any:
        """Return everything that determines what happens next in all worlds, as plain values and arrays."""
        raise SettingError(f"{type(self).__name__} cannot save its state; check can_save first")

    def set_state(self, state: Any) -> None:
        """Continue from what ``get_state`` returned."""
        raise SettingError(f"{type(self).__name__} cannot restore a state; check can_save first")


def as_world(env: Any) -> World:
    """Convert a PettingZoo or Gymnasium environment, an object gridworld or a model to a World.

    The kind of environment is recognised by its methods and attributes, not by its base classes. A World is returned
    unchanged. A model that is also an environment is played as that environment.

    >>> import gymnasium
    >>> as_world(gymnasium.make("CartPole-v1")).agents
    ('agent_0',)
    """
    accepted = (
        "must be a PettingZoo Parallel or AEC environment, a Gymnasium environment, an object gridworld "
        "(see motet.world.from_objects), a model (see motet.world.ModelWorld) or a motet.world.World"
    )
    from motet.world.pettingzoo import AtOnce, Duel, InTurn, Solo

    if isinstance(env, type):
        raise SettingError(f"world {accepted}, got the class {env.__name__}; make an object of it: {env.__name__}(...)")
    if offers(env, "group", "act", "ended"):
        missing = [name for name in _CONTRACT if not hasattr(env, name)]
        if missing:
            raise SettingError(
                f"world must have {', '.join(missing)}, got a {type(env).__name__} without them; write them, or "
                "inherit from motet.world.World, which has defaults for all but the abstract methods"
            )
        world: World = env
        return world
    if hasattr(env, "single_observation_space"):
        raise SettingError(
            f"world {accepted}, got the vector environment {type(env).__name__}; give a single one, and set "
            "worlds_per_actor (--worlds-per-actor)"
        )
    if offers(env, "reset", "step"):
        if offers(env, "last", "observe"):
            return InTurn(env)
        if hasattr(env, "possible_agents") or offers(env, "observation_space"):
            return AtOnce(env)
        if hasattr(env, "observation_space") and hasattr(env, "action_space"):
            two = offers(getattr(env, "unwrapped", env), "obs_agent_two")
            return AtOnce(Duel(env) if two else Solo(env))
    if offers(env, "transition_probabilities", "get_state", "set_state"):
        from motet.world.model import ModelWorld

        return ModelWorld(env)
    if offers(env, "reset") and hasattr(env, "agents") and hasattr(env, "world"):
        return from_objects(env)
    hint = "; call it first" if callable(env) else ""
    raise SettingError(f"world {accepted}, got {env!r} of type {type(env).__name__}{hint}")


_CONTRACT = (
    *("agents", "observation_spaces", "action_spaces", "can_save", "reset", "group", "observe", "mask", "act"),
    *("reward", "ended", "get_state", "set_state", "render", "close"),
)


def offers(env: Any, *methods: str) -> bool:
    """Whether an object has all these methods."""
    return all(callable(getattr(env, method, None)) for method in methods)


def picture_of(env: Any) -> Any:
    """Return a picture of an environment by its own ``render``; None if it has none or would show a window.

    ``render(mode="rgb_array")``, as environments had it before ``render_mode``, is looked for behind all wrappers,
    because these do not pass the argument on.
    """
    inner = getattr(env, "unwrapped", env)
    if not offers(inner, "render"):
        return None
    if "mode" in signature(inner.render).parameters:
        return inner.render(mode="rgb_array")
    if getattr(env, "render_mode", "rgb_array") != "rgb_array":
        return None
    return env.render()


def from_objects(
    environment: Any,
    actions: Any = None,
    observation: Any = None,
    turns: float | None = None,
    *,
    learners: Sequence[int] | type | tuple[type, ...] | None = None,
    ask: Literal["get_action", "take_action"] | None = None,
    remember: bool = True,
    at_once: bool = False,
    render: Callable[[Any], Any] | None = None,
) -> World:
    """Return the World of an object gridworld, whose classes need no change.

    ``environment`` has ``reset()``, ``agents`` and ``world``. Its own rules decide how a turn is played:

    - If the environment has ``take_turn()``, that method plays each turn.
    - Otherwise, if agents have ``transition(world)``, motet plays the turn. It calls ``transition(world)`` first for
      every entity in the world whose ``has_transitions`` is set, then for every agent.
    - Agents without either method are asked for actions one after the other. They have ``pov(world)``,
      ``act(world, action)``, which returns the reward, and ``is_done(world)``.

    In the first two cases an agent acts where its code asks for an action. The body of the asking method
    (``get_action`` or ``take_action``) does not run; all other code does. The observation is the argument of that
    method. Reward and end are the arguments of ``add_memory(state, action, reward, done)``; if it is not called, they
    come from ``act`` and ``is_done``. If an agent asks for an action after its end, its next segment begins.
    ``docs/own_world.md`` has the details.

    Args:
        environment: the user's object.
        actions: the number of actions, or a space; or a sequence of them, one for each learner. None:
            ``agent.action_spec.n_actions``.
        observation: a space, or a sequence of them. None: float32 in the shape of the first ``pov``.
        turns: the remaining agents are truncated after this many turns. None: the environment's limit, from
            ``config.experiment.max_turns``, ``config.max_turns``, ``max_turns`` or ``world.max_turns``. If it has none
            of them, there is no limit.
        learners: the agents that motet plays, as indices in ``environment.agents`` or by class. The others keep their
            ``get_action``. None: all agents that have ``pov`` and ask for actions.
        ask: the method that asks for an action. None: ``get_action`` of the agent, or ``take_action`` of its ``model``.
        remember: whether the original ``add_memory`` runs too.
        at_once: whether all agents observe and decide before the first one acts. Only for agents without
            ``take_turn`` and ``transition``; otherwise the environment decides the order.
        render: a function of the environment that returns a picture, for films. None: ``render`` of the environment
            or of its world, if there is one.

    The entities are ``world.entities`` (a collection, or a method that returns one). Without it they are the contents
    of ``world.map``, an array or nested lists of objects. Without that they are found by iterating over ``world``.
    Agents and objects without ``has_transitions`` are skipped. Each entity gets one transition in each turn, even if it
    moves on the map meanwhile.

    A seed is passed to ``reset(seed=...)`` if it takes one. Otherwise it seeds ``random`` and ``numpy.random``, from
    which such worlds draw.
    """
    from motet.world.objects import Objects, ObjectsAtOnce, plays_itself
    from motet.world.pettingzoo import AtOnce, InTurn

    if learners is None and not plays_itself(environment):
        if ask is not None:
            raise SettingError(f"ask is only valid if agents ask for actions themselves, got {ask!r}")
        if at_once:
            return AtOnce(ObjectsAtOnce(environment, actions, observation, turns, render=render))
        return InTurn(Objects(environment, actions, observation, turns, render=render))
    if at_once:
        given = "learners" if learners is not None else f"a {type(environment).__name__} that plays its own turns"
        raise SettingError(
            f"at_once is only valid if motet plays the whole turn for all agents, got {given}: there each agent "
            "observes, decides and acts where the environment's own code says so"
        )
    from motet.world.self_driven import SelfDriven

    return SelfDriven(environment, actions, observation, turns, learners, ask, remember, render)

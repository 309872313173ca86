"""World: who acts now, what they see, and what happens. The actor drives it; nobody else touches it.

Every environment becomes one shape: the next *group* of agents that act at once. In an in-turn world a group is one
agent, which sees what the one before it did; in an all-at-once world it is everybody alive. Flows in: one action for
each of the group. Flows out: what an agent sees, which actions it may take, what it earned since it was last asked, and
whose episode ended. :func:`as_world` makes a World of a PettingZoo environment (Parallel or AEC), of a Gymnasium
environment (one agent, or two in the shape of laser hockey), or of an object gridworld (:func:`from_objects`). One turn
of the actor is, in short::

    for agent, action in zip(group := world.group(), actions): ...    # remember what each saw and did
    world.act(actions)
    for end in world.ended(): ...                                     # close the last step of end.agent's segment
    for agent in world.group(): ...                                   # reward(agent) closes its last step

A reward belongs to the action before it: what an agent earns on others' turns is summed up to its next turn or its end.

What an agent plays up to its end is a *segment*. In most worlds an agent has one in each episode of the world. A world
may ask an agent again after its end: that begins the agent's next segment, while the world's episode continues.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from motet.errors import SettingError

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["End", "VectorWorld", "World", "as_world", "from_objects"]


class End(NamedTuple):
    """The end of one agent's segment: of its whole episode, unless the world asks it again.

    ``reward`` and ``observation`` are for worlds that ask agents again after their ends. An agent may then be in
    ``ended()`` and in the next ``group()`` at once, and its end has to say what closed the segment. Give both or
    neither.
    """

    agent: int
    terminated: bool
    """The world says that nothing follows: the value behind it is 0."""
    truncated: bool
    """It was cut off: something would have followed. If both are set, it terminated."""
    reward: float | None = None
    """What ``reward(agent)`` would give, which giving it here clears. None: ask ``reward(agent)``."""
    observation: Any = None
    """What it saw last, as its space says and the caller's own. None: ask ``observe(agent)``.

    If it is given, ``reward(agent)`` and ``observe(agent)`` belong to what comes after the end.
    """


class World(Protocol):
    """The contract. Whoever inherits from it writes the abstract methods and gets the others as they are here.

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
    """Everyone who may ever act, in a fixed order. Everywhere else an agent is its index in it."""
    observation_spaces: tuple[Space[Any], ...]
    """By agent. Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."""
    action_spaces: tuple[Space[Any], ...]
    """By agent, of the same kinds."""
    can_save: bool = False
    """Whether ``get_state`` and ``set_state`` work."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> None:
        """Begin an episode, also in the middle of one. One seed, one episode; without a seed the stream goes on."""

    @abstractmethod
    def group(self) -> Sequence[int]:
        """The agents that act at once now. Empty: the episode is over.

        An agent that is asked after its end begins a new segment. Its end must have had a reward and an observation.
        """

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """What an agent sees now: an array of its space's dtype and shape, or a dict or tuple of them.

        C-contiguous and the caller's own. Asked for the agents of the group, and for those whose end had no
        observation: what they saw last, until the reset.
        """

    def mask(self, agent: int) -> NDArray[np.bool_] | None:
        """Which actions are allowed now, bool [n], the first one being the space's start. None: all of them."""
        return None

    @abstractmethod
    def act(self, actions: Sequence[Any]) -> None:
        """Play one action for each of the group, in its order: whole numbers, or arrays of the space's dtype."""

    @abstractmethod
    def reward(self, agent: int) -> float:
        """What an agent earned since it was last asked, on its own turn and on others'. Asking clears it.

        What it earned before its first action, or between its end and its next action, belongs to no action: it counts
        for the return alone.
        """

    @abstractmethod
    def ended(self) -> Sequence[End]:
        """Whose segment ended since the last call, each agent once at most. Asking clears it.

        An agent ends again only after it was asked again.
        """

    def get_state(self) -> Any:
        """Everything that decides what happens next, for an exact resumption. Plain values can be saved in a run."""
        raise SettingError(f"{type(self).__name__} has no state to save; ask can_save first")

    def set_state(self, state: Any) -> None:
        """Go on from what ``get_state`` gave, in a world of the same settings, which need not have been reset."""
        raise SettingError(f"{type(self).__name__} has no state to restore; ask can_save first")

    def render(self) -> NDArray[np.uint8] | None:
        """A picture, uint8 [height, width, 3], or None."""
        return None

    def close(self) -> None:
        """Release what is held."""
        return


def last_of(world: World, end: End) -> tuple[float, Any]:
    """The reward and the observation that close a segment."""
    reward = world.reward(end.agent) if end.reward is None else end.reward
    return reward, world.observe(end.agent) if end.observation is None else end.observation


class VectorWorld(Protocol):
    """K worlds of one kind that are stepped together as arrays: quick where a step is a few operations on arrays.

    All worlds are at the same point of a turn: the same agents act at once in each of them. The episodes of all agents
    of a world end together. A world takes no notice of the other ones: it plays the same episode alone. An environment
    whose class has ``vector(worlds)``, which gives one of these, is driven through it by actors; everywhere else it is
    used as the single environment that it is. Wrappers and classes that inherit from it are not: who changes the rules
    of a single environment has not changed those of the arrays.
    """

    agents: tuple[str, ...]
    """As in World."""
    observation_spaces: tuple[Space[Any], ...]
    """Of one world, by agent."""
    action_spaces: tuple[Space[Any], ...]
    """Of one world, by agent."""
    worlds: int
    """K."""
    can_save: bool = False
    """Whether ``get_state`` and ``set_state`` work."""

    @abstractmethod
    def reset(self, worlds: NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these worlds; the other ones go on."""

    def group(self) -> Sequence[int]:
        """The agents that act at once now, in all worlds."""
        return range(len(self.agents))

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """What an agent sees in all worlds now: arrays ``[K, ...]`` of the caller's own, or a dict or tuple of them.

        In a world that ended: what it saw last, until that world's reset.
        """

    @abstractmethod
    def act(self, actions: Sequence[NDArray[Any]]) -> None:
        """Play for each of the group its actions ``[K, ...]``, in its order. Worlds that ended were reset before."""

    def earners(self) -> Sequence[int]:
        """The agents that may have earned something by the last ``act``; the others' rewards are not asked for.

        By default everybody. A world in which only those who act can earn says so here, so that a move does not cost
        more because other agents exist.
        """
        return range(len(self.agents))

    @abstractmethod
    def reward(self, agent: int) -> NDArray[Any]:
        """What an agent earned by the last ``act``, its own or others', ``[K]``."""

    @abstractmethod
    def ended(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether the last ``act`` terminated a world and whether it cut it off, ``[K]`` each."""

    def get_state(self) -> Any:
        """Everything that decides what happens next in all worlds, as plain values and arrays."""
        raise SettingError(f"{type(self).__name__} has no state to save; ask can_save first")

    def set_state(self, state: Any) -> None:
        """Go on from what ``get_state`` gave."""
        raise SettingError(f"{type(self).__name__} has no state to restore; ask can_save first")


def as_world(env: Any) -> World:
    """The World of a PettingZoo or Gymnasium environment or of an object gridworld; a World itself is given back.

    They are told apart by what they offer, not by what they inherit.

    >>> import gymnasium
    >>> as_world(gymnasium.make("CartPole-v1")).agents
    ('agent_0',)
    """
    accepted = (
        "must be a PettingZoo Parallel or AEC environment, a Gymnasium environment, an object gridworld "
        "(see motet.world.from_objects) or a motet.world.World"
    )
    from motet.world.pettingzoo import AtOnce, Duel, InTurn, Solo

    if isinstance(env, type):
        raise SettingError(f"world {accepted}, got the class {env.__name__}: make one by {env.__name__}(...)")
    if offers(env, "group", "act", "ended"):
        missing = [name for name in _CONTRACT if not hasattr(env, name)]
        if missing:
            raise SettingError(
                f"world must have {', '.join(missing)}, got a {type(env).__name__} without: write them, or inherit "
                "from motet.world.World, which has all but the abstract ones"
            )
        world: World = env
        return world
    if hasattr(env, "single_observation_space"):
        raise SettingError(f"world {accepted}, got {type(env).__name__}, a vector of environments: give a single one")
    if offers(env, "reset", "step"):
        if offers(env, "last", "observe"):
            return InTurn(env)
        if hasattr(env, "possible_agents") or offers(env, "observation_space"):
            return AtOnce(env)
        if hasattr(env, "observation_space") and hasattr(env, "action_space"):
            two = offers(getattr(env, "unwrapped", env), "obs_agent_two")
            return AtOnce(Duel(env) if two else Solo(env))
    if offers(env, "reset") and hasattr(env, "agents") and hasattr(env, "world"):
        return from_objects(env)
    hint = ": call it first" if callable(env) else ""
    raise SettingError(f"world {accepted}, got {env!r} of type {type(env).__name__}{hint}")


_CONTRACT = (
    *("agents", "observation_spaces", "action_spaces", "can_save", "reset", "group", "observe", "mask", "act"),
    *("reward", "ended", "get_state", "set_state", "render", "close"),
)


def offers(env: Any, *methods: str) -> bool:
    """Whether an object has all these methods."""
    return all(callable(getattr(env, method, None)) for method in methods)


def from_objects(
    environment: Any,
    actions: Any = None,
    observation: Any = None,
    turns: float | None = None,
    *,
    learners: Sequence[int] | type | tuple[type, ...] | None = None,
    ask: Literal["get_action", "take_action"] | None = None,
    remember: bool = True,
) -> World:
    """The World of an object gridworld, whose classes stay as they are.

    ``environment`` has ``reset()``, ``agents`` and ``world``. Its own rules play:

    - If it has ``take_turn()``, that plays each turn.
    - Otherwise, if agents have ``transition(world)``, motet plays the turn: first every entity in the world whose
      ``has_transitions`` is set gets ``transition(world)``, then every agent.
    - Agents that have neither are asked one after the other. They have ``pov(world)``, ``act(world, action)``, which
      gives the reward, and ``is_done(world)``.

    In the first two cases an agent acts where its own code asks for an action. The body of the method that asks does
    not run; everything else does. The observation is what the agent was asked with. Reward and end are what its
    ``add_memory(state, action, reward, done)`` is given, or come from ``act`` and ``is_done`` if it is given nothing.
    An agent that is asked again after its end begins a new segment. ``docs/own_world.md`` has the details.

    Args:
        environment: the user's object.
        actions: the number of actions, or a space; or a sequence, one for each learner. None:
            ``agent.action_spec.n_actions``.
        observation: a space, or a sequence of them. None: float32 in the shape of the first ``pov``.
        turns: the agents that are left are truncated after this many turns. None: the environment's own limit, from
            ``config.experiment.max_turns``, ``config.max_turns``, ``max_turns`` or ``world.max_turns``; without one
            there is no limit.
        learners: the agents that motet plays, as indices in ``environment.agents`` or by their class. The others keep
            their own ``get_action``. None: all that have ``pov`` and are asked.
        ask: where an agent is asked. None: ``get_action`` of the agent, or ``take_action`` of its ``model``.
        remember: whether the original ``add_memory`` runs too.

    The entities are ``world.entities`` (a collection, or a method that gives one); without it what ``world.map`` holds,
    an array or nested lists of objects; without that what iterating over ``world`` gives. Agents among them are left
    out, and so is what has no ``has_transitions``. Each gets one transition a turn, also if it moves on the map.

    A seed goes to ``reset(seed=...)`` if that takes one, and otherwise to ``random`` and ``numpy.random``, from which
    such worlds draw.
    """
    from motet.world.objects import Objects, plays_itself
    from motet.world.pettingzoo import InTurn

    if learners is None and not plays_itself(environment):
        if ask is not None:
            raise SettingError(f"ask is only valid where agents ask for actions themselves, got {ask!r}")
        return InTurn(Objects(environment, actions, observation, turns))
    from motet.world.self_driven import SelfDriven

    return SelfDriven(environment, actions, observation, turns, learners, ask, remember)

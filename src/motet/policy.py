"""Policy: how one agent acts, one observation at a time. ``train`` and ``plan`` make policies; ``evaluate`` takes them.

A :class:`Policy` is any object with ``reset`` and ``act``; a :class:`JointPolicy` acts for several agents at once.
:class:`BehaviourPolicy` makes a Policy from an algorithm's behaviour and its trained weights. :class:`EpisodeState`
holds what the caller of a behaviour keeps during an episode. :class:`RandomPolicy` and :class:`ConstantPolicy` are
baselines. A :class:`PolicySpec` says how a policy is made, so that another process can make it. A *team* is a policy of
two levels, made from a :class:`WorldDescription`: its ``agent_policy(agent)`` returns an object with ``reset()`` and
``step(observation)``.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt

from motet.algorithm import Behaviour, Remembers, Space, state_size_of
from motet.errors import SettingError, SpecError
from motet.masks import is_discrete, mask_form, sampling_mask
from motet.nest import Nest, map_nest
from motet.system.imports import now_at
from motet.system.raised import brief
from motet.text import valid

__all__ = [
    "BehaviourPolicy",
    "ConstantPolicy",
    "EpisodeState",
    "JointPolicy",
    "Kind",
    "Policy",
    "PolicySpec",
    "RandomPolicy",
    "Translator",
    "WorldDescription",
    "kind_of",
]

Kind = Literal["agent", "joint", "team"]
"""agent: one object acts for one agent. joint: one object acts for all agents. team: one object makes an object for
each agent."""


def kind_of(thing: Any) -> Kind:
    """Return the kind of a policy class or object, recognised by its methods.

    >>> kind_of(RandomPolicy)
    'agent'
    """
    if hasattr(thing, "act_jointly"):
        return "joint"
    return "team" if hasattr(thing, "agent_policy") else "agent"


@runtime_checkable
class Policy(Protocol):
    """How one agent acts in evaluations. The seed and the observations since the last reset determine the actions."""

    def reset(self, seed: int) -> None:
        """Begin a new episode: clear the state and seed the random generator."""
        ...

    def act(self, observation: Nest, mask: Nest = None) -> Any:
        """Return the action for one observation.

        ``mask`` is True where an action is allowed: ``[n]`` for Discrete, a tuple of such arrays for MultiDiscrete. For
        other spaces, see :mod:`motet.masks`.
        """
        ...


@runtime_checkable
class JointPolicy(Protocol):
    """How several agents of one policy act. The seed and the observations since the last reset determine the
    actions."""

    def reset(self, seed: int) -> None:
        """Begin a new episode: clear the state and seed the random generator."""
        ...

    def act_jointly(self, observations: Mapping[str, Nest], masks: Mapping[str, Nest]) -> Mapping[str, Any]:
        """Return the actions, by agent, of all agents in ``observations``. ``masks`` holds only agents with a mask."""
        ...


@dataclass(frozen=True)
class WorldDescription:
    """The description of a world from which a team is made: agents, spaces, action names and settings.

    >>> from gymnasium.spaces import Box, Discrete
    >>> description = WorldDescription.uniform(["red", "blue"], Box(0, 1, (4,)), Discrete(3), settings={"size": 9})
    >>> description.agents, description.action_names["blue"], description.settings["size"]
    (('red', 'blue'), ('0', '1', '2'), 9)
    """

    agents: tuple[str, ...]
    """All agents of the world, not only those of the team. Indices of agents refer to this tuple."""
    observation_spaces: Mapping[str, Space]
    """Observation space by agent."""
    action_spaces: Mapping[str, Space]
    """Action space by agent."""
    action_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Action names by agent for Discrete spaces (numbers if the world gives no names); empty for other spaces."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the world, by name."""

    def __post_init__(self) -> None:
        for name in ("observation_spaces", "action_spaces"):
            if missing := [agent for agent in self.agents if agent not in getattr(self, name)]:
                raise SettingError(f"{name} must have a space for each agent, got none for {', '.join(missing)}")
        names = {
            agent: tuple(self.action_names.get(agent) or _numbers(self.action_spaces[agent])) for agent in self.agents
        }
        object.__setattr__(self, "action_names", names)

    @classmethod
    def uniform(
        cls,
        agents: Sequence[str],
        observation_space: Space,
        action_space: Space,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> WorldDescription:
        """Return the description of a world in which all agents have the same spaces."""
        spaces = dict.fromkeys(agents, observation_space), dict.fromkeys(agents, action_space)
        return cls(tuple(agents), *spaces, settings=dict(settings or {}))


def _numbers(space: Space) -> tuple[str, ...]:
    if not is_discrete(space):
        return ()
    first = int(getattr(space, "start", 0))
    return tuple(str(number) for number in range(first, first + int(space.n)))


PLAYER = "player"
"""Name of the learning policy in self-play, independent of the agents' names."""


class Translator(Protocol):
    """Converts between motet's classes and those of a team's project. It is made from a :class:`WorldDescription`.

    If a translator lacks a method, the values that this method would convert are passed unchanged. ``agent`` is the
    agent's index in the world.
    """

    def description(self) -> Any:
        """Return the argument from which the team is made."""
        ...

    def observation(self, observation: Nest, agent: int, mask: Nest) -> Any:
        """Return the argument of the agent's ``step``."""
        ...

    def action(self, action: Any, agent: int) -> Any:
        """Convert what ``step`` returned to an element of the agent's action space."""
        ...


class BehaviourPolicy:
    """A trained policy: the behaviour of an algorithm with one version of its weights. Greedy unless ``explore``.

    ``action_space``: needed for masks of other than Discrete spaces.

    >>> from gymnasium.spaces import Box, Discrete
    >>> from motet.algorithms import DQNConfig
    >>> config, space, actions = DQNConfig(hidden=(8,)), Box(0, 1, (3,)), Discrete(2)
    >>> dqn = config.build(space, actions, agents=1, seeds=[0])
    >>> policy = BehaviourPolicy(config.behaviour(space, actions), dqn.weights()[0], dqn.header(step=0, agent=0))
    >>> policy.reset(seed=1)
    >>> int(policy.act(np.zeros(3, "float32"))) in (0, 1)
    True
    """

    def __init__(
        self,
        behaviour: Behaviour,
        weights: npt.NDArray[np.float32],
        header: Mapping[str, Any],
        *,
        explore: bool = False,
        n_frames: int = 1,
        action_space: Space | None = None,
    ) -> None:
        self._behaviour, self._explore = behaviour, explore
        self._mask_form = None if action_space is None else mask_form(action_space)
        self.n_frames = n_frames
        self._carried = EpisodeState(1, n_frames, state_size_of(behaviour))
        # The weights are copied, because a subscriber reuses its buffers in turn.
        behaviour.load(np.array(weights, np.float32), dict(header))

    @property
    def behaviour(self) -> Behaviour:
        """The behaviour, with its weights loaded. It acts on batches. The caller of the behaviour keeps frames and
        memory."""
        return self._behaviour

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._behaviour.begin(seed)
        self._carried.begin(0)

    def act(self, observation: Nest, mask: Nest = None) -> Any:
        """Return the action for one observation."""
        one = map_nest(lambda array: np.asarray(array)[None], observation)
        if mask is not None and self._mask_form is not None:
            mask = self._mask_form.flat(mask)
        masks = None if mask is None else np.ascontiguousarray(mask, np.bool_)[None]
        actions, _ = self._carried.ask(self._behaviour, _ONLY, one, masks, self._explore)
        return map_nest(lambda array: array[0], actions)


_ONLY = np.zeros(1, np.int64)


class EpisodeState:
    """The state of agents during an episode: the newest observations, if frames are stacked, and the policy's memory.

    Actors, opponents, evaluations during training and :class:`BehaviourPolicy` use it wherever a behaviour is asked.

    One agent in one world is a *track*. Each track has a separate state: asking on some tracks does not change the
    others.

    >>> state = EpisodeState(tracks=2, n_frames=3)
    >>> state.stacked(np.array([0, 1]), np.array([[1.0], [5.0]])).tolist()
    [[[1.0], [1.0], [1.0]], [[5.0], [5.0], [5.0]]]
    >>> state.begin(1)
    >>> state.stacked(np.array([0, 1]), np.array([[2.0], [6.0]])).tolist()
    [[[1.0], [1.0], [2.0]], [[6.0], [6.0], [6.0]]]

    Args:
        tracks: number of tracks.
        n_frames: number of stacked observations, the newest last. The first observation of an episode is repeated, as
            in samples from the replay.
        state_size: size of the memory, which is zero at the start of an episode; 0: the policy has none.
    """

    def __init__(self, tracks: int, n_frames: int = 1, state_size: int = 0) -> None:
        self._tracks, self._n_frames = tracks, n_frames
        self._memory = np.zeros((tracks, state_size), np.float32) if state_size else None
        self._begins = np.ones(tracks, np.bool_)  # whether the next observation is the first of an episode
        self._frames: Nest = None  # [tracks, n_frames, ...]

    def begin(self, tracks: int | npt.NDArray[np.int64]) -> None:
        """Mark the next observation on these tracks as the first of an episode."""
        self._begins[tracks] = True
        if self._memory is not None:
            self._memory[tracks] = 0.0

    def ask(
        self,
        behaviour: Behaviour,
        at: npt.NDArray[np.int64],
        observations: Nest,
        masks: npt.NDArray[np.bool_] | None = None,
        explore: bool = True,
    ) -> tuple[Nest, dict[str, npt.NDArray[Any]]]:
        """Return the result of :meth:`Behaviour.act` on these tracks, which must be in ascending order."""
        seen = self.stacked(at, observations)
        if self._memory is None:
            return behaviour.act(seen, masks, explore)
        remembers = cast(Remembers, behaviour)  # isinstance would take longer than a small network
        if len(at) == self._tracks:  # the old array belongs to a row, so the array is replaced and never written to
            actions, extra, self._memory = remembers.act_from(self._memory, seen, masks, explore)
        else:
            actions, extra, self._memory[at] = remembers.act_from(self._memory[at], seen, masks, explore)
        return actions, extra

    def stacked(self, at: npt.NDArray[np.int64], observations: Nest) -> Nest:
        """Return the stacked observations on these tracks. The next call may overwrite the arrays."""
        if self._n_frames == 1:
            return observations
        if self._frames is None:
            make = lambda a: np.zeros((self._tracks, self._n_frames, *a.shape[1:]), a.dtype)  # noqa: E731
            self._frames = map_nest(make, observations)
        everywhere = len(at) == self._tracks
        begins = np.flatnonzero(self._begins[at])
        self._begins[at] = False

        def push(frames: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            part = frames if everywhere else frames[at]
            part[:, :-1] = part[:, 1:]
            part[:, -1] = new
            if len(begins):
                part[begins] = new[begins, None]
            if not everywhere:
                frames[at] = part
            return part

        return map_nest(push, self._frames, observations)

    def get_state(self) -> dict[str, Any]:
        """Return the whole state, as plain values and arrays."""
        frames = None if self._frames is None else map_nest(np.array, self._frames)
        memory = None if self._memory is None else self._memory.copy()
        return {"begins": self._begins.copy(), "frames": frames, "memory": memory}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`get_state` returned."""
        self._begins = np.array(state["begins"], np.bool_)
        self._frames = None if state["frames"] is None else map_nest(np.array, state["frames"])
        if self._memory is not None:
            self._memory = np.array(state["memory"], np.float32)


class RandomPolicy:
    """Draws uniformly from the allowed actions.

    >>> from gymnasium.spaces import Discrete
    >>> policy = RandomPolicy(Discrete(3))
    >>> policy.reset(seed=1)
    >>> int(policy.act(None, mask=np.array([False, True, False])))
    1
    """

    def __init__(self, action_space: Space) -> None:
        self._space, self._form = action_space, mask_form(action_space)
        self._n = int(action_space.n) if is_discrete(action_space) else None
        self._first = 0 if self._n is None else int(getattr(action_space, "start", 0))
        if self._n is None and not hasattr(action_space, "sample"):
            raise SettingError(f"action space must be a Gymnasium space, got {action_space!r}")
        if self._n is None:  # a copy, because others may draw from the same object
            self._space = copy.deepcopy(action_space)
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        self._rng = np.random.default_rng(seed)
        if self._n is None:
            self._space.seed(seed)

    def act(self, observation: Nest, mask: Nest = None) -> Any:
        """Return a random allowed action."""
        if self._n is None:
            if mask is None:
                return self._space.sample()
            return self._space.sample(mask=sampling_mask(self._form.nest(self._form.flat(mask))))
        allowed = np.arange(self._n) if mask is None else np.flatnonzero(mask)
        if not len(allowed):
            raise SpecError("mask must allow at least one action, got none")
        return self._space.dtype.type(allowed[int(self._rng.random() * len(allowed))] + self._first)

    def get_state(self) -> Any:
        """Return the state of the random generator, as plain values."""
        return (self._rng if self._n is not None else self._space.np_random).bit_generator.state

    def set_state(self, state: Any) -> None:
        """Continue from what :meth:`get_state` returned."""
        (self._rng if self._n is not None else self._space.np_random).bit_generator.state = state


class ConstantPolicy:
    """Always takes the same action. If a mask forbids this action, takes the first allowed action.

    ``first``: the lowest action of a Discrete space, to which the first entry of a mask belongs. ``action_space``:
    needed for masks of other spaces, where each part that is forbidden is replaced by its first allowed value.

    >>> ConstantPolicy(2).act(None)
    2
    """

    def __init__(self, action: Any, first: int = 0, action_space: Space | None = None) -> None:
        self._action, self._first = action, first
        self._form = None if action_space is None else mask_form(action_space)

    def reset(self, seed: int) -> None:
        """Begin a new episode."""

    def act(self, observation: Nest, mask: Nest = None) -> Any:
        """Return the action."""
        if mask is not None and self._form is not None:
            return self._form.nearest(mask, self._action)
        if mask is None or mask[self._action - self._first]:
            return self._action
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            raise SpecError("mask must allow at least one action, got none")
        return type(self._action)(allowed[0] + self._first)

    def get_state(self) -> Any:
        """Return None: this policy has no state."""
        return None

    def set_state(self, state: Any) -> None:
        """Do nothing: this policy has no state."""


@dataclass(frozen=True)
class PolicySpec:
    """How a policy is made: a picklable factory and its arguments, called in the process in which the policy acts.

    >>> PolicySpec(ConstantPolicy, {"action": 3}).make().act(None)
    3
    >>> PolicySpec("motet.policy:ConstantPolicy", {"action": 3}).title
    'ConstantPolicy'
    """

    factory: Callable[..., Any] | str
    """A class or function that makes the policy, or its path ``'module:Class'``, which is imported only where the
    policy is made."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the factory."""
    name: str = ""
    """Name in results; by default the factory's name."""
    kind: Kind | None = field(default=None, repr=False)
    """Kind of the policy. None: recognised by the policy's methods when it is made; a joint policy given by its path
    needs "joint"."""
    shared: bool = field(default=False, repr=False)
    """For a team: whether one object acts for all its agents. Else each agent has a separate team object."""
    translate: Callable[[WorldDescription], Any] | str = field(default="", repr=False)
    """For a team whose project has its own classes: factory of a :class:`Translator`, or its ``'module:attribute'``."""

    def __post_init__(self) -> None:
        if isinstance(self.factory, str):
            if not _is_path(self.factory):
                raise SettingError(f"policy must be 'package.module:Class', got {self.factory!r}")
        elif not callable(self.factory):
            raise SettingError(f"policy must be a class or a function that makes it, got {self.factory!r}")
        if self.kind not in (None, *get_args(Kind)):
            raise SettingError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if self.kind == "agent" and self.shared:
            raise SettingError("shared=yes is only valid for teams and joint policies, got kind=agent")
        if self.translate and self.kind in ("agent", "joint"):
            raise SettingError(f"translate is only valid for a team, got kind={self.kind}")
        if isinstance(self.translate, str) and self.translate and not _is_path(self.translate):
            raise SettingError(f"translate must be 'package.module:attribute', got {self.translate!r}")

    @property
    def title(self) -> str:
        """Name of the policy."""
        if self.name:
            return valid(self.name)
        if isinstance(self.factory, str):
            return self.factory.rpartition(":")[2]
        return getattr(self.factory, "__qualname__", None) or type(self.factory).__name__

    def make(self, **offered: Any) -> Policy:
        """Make the policy. The factory gets each offered value for which it has a parameter, unless ``arguments`` sets
        it.

        ``evaluate`` offers ``observation_space``, ``action_space``, ``agent`` (its name), ``world`` (the settings of
        the world, by name) and ``description`` (a :class:`WorldDescription`).

        >>> from gymnasium.spaces import Discrete
        >>> int(PolicySpec(RandomPolicy).make(action_space=Discrete(1), agent="agent_0").act(None))
        0
        """
        return self.checked(self.build(**offered))

    def checked(self, made: Any) -> Policy:
        """Return the object if it is a policy for one agent, else raise."""
        if isinstance(made, Policy):
            return made
        hint = {"joint": "; kind=joint is for policies with act_jointly", "team": "; IsolatedPolicy takes teams"}
        raise SettingError(
            f"policy: {self.factory!r} made {brief(made)}, expected an object with reset and act"
            + hint.get(kind_of(made), "")
        )

    def resolved(self) -> Callable[..., Any]:
        """Return the factory. It is imported here if it is given by its path."""
        return imported(self.factory) if isinstance(self.factory, str) else self.factory

    def build(self, **offered: Any) -> Any:
        """Return what the factory makes, unchecked: a Policy, or an object that an adapter converts to one."""
        factory = self.resolved()
        return factory(**{**_accepted(factory, offered), **self.arguments})


def asker(method: Callable[..., Any], name: str = "mask") -> Callable[[Any, Any], Any]:
    """Return ``ask(observation, mask)``, which calls a policy's ``act`` according to its signature.

    The mask goes to the parameter named ``mask`` (or to ``*`` or ``**`` parameters); else to the second parameter, if
    that has no default or the default None. A policy without such a parameter gets only the observation. If the mask is
    None and the parameter is not required, it is left out.

    >>> ask = asker(lambda observation: observation + 1)
    >>> ask(1, None), ask(1, [True, False])
    (2, 2)
    >>> asker(lambda observation, mask: mask)(1, None)
    >>> asker(lambda observation, explore=False, *, mask=None: (explore, mask))(1, [True])
    (False, [True])
    >>> asker(lambda observation, explore=False: explore)(1, [True])
    False
    """
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature: assume that of Policy.act
        return lambda observation, mask: method(observation) if mask is None else method(observation, mask)
    kinds = inspect.Parameter
    positional = [one for one in parameters if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = next((one for one in parameters if one.name == name and one.kind is not kinds.POSITIONAL_ONLY), None)
    if named is not None and named.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
        needed, by_name = named.default is kinds.empty, True
    elif len(positional) > 1:
        default = positional[1].default
        if default is not kinds.empty and default is not None:  # the parameter has another meaning
            return lambda observation, mask: method(observation)
        needed, by_name = default is kinds.empty, False
    elif any(one.kind is kinds.VAR_POSITIONAL for one in parameters):
        needed, by_name = False, False
    elif any(one.kind is kinds.VAR_KEYWORD for one in parameters):
        needed, by_name = False, True
    else:
        return lambda observation, mask: method(observation)

    def ask(observation: Any, mask: Any) -> Any:
        if mask is None and not needed:
            return method(observation)
        return method(observation, **{name: mask}) if by_name else method(observation, mask)

    return ask


def _is_path(text: str) -> bool:
    """Return whether a text has the form ``package.module:Name``."""
    module, _, name = text.partition(":")
    return bool(module and name) and all(part.isidentifier() for part in f"{module}.{name}".split("."))


def imported(path: str, what: str = "policy") -> Callable[..., Any]:
    """Import the class or function that ``'module:Class'`` names."""
    module, _, name = path.partition(":")
    module, name = now_at(module, name)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # the module exists, but one of its imports does not
        raise SettingError(f"{what} must be importable, got {path!r}: there is no module {error.name!r}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise SettingError(f"{what} must be importable, got {path!r}: {module} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"{what} must be a class or a function, got {path!r}, which is {found!r}")
    made: Callable[..., Any] = found
    return made


def _accepted(factory: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offered arguments for which a factory has parameters. A factory with ``**`` gets all but the
    description."""
    try:
        parameters = tuple(inspect.signature(factory).parameters.values())
    except ValueError:  # a builtin without a signature
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        named = {parameter.name for parameter in parameters}
        return {name: value for name, value in offered.items() if name != "description" or name in named}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: value for name, value in offered.items() if name in names}

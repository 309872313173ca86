"""Policy: how one agent acts, one observation at a time. What ``train`` and ``plan`` make and ``evaluate`` takes.

A :class:`Policy` may be anything with ``reset`` and ``act``; a :class:`JointPolicy` acts for several agents at once.
:class:`BehaviourPolicy` makes a Policy of the acting half of an algorithm and its trained weights;
:class:`RandomPolicy` and :class:`ConstantPolicy` are there to compare with. A :class:`PolicySpec` says where a policy
comes from, so that another process can make it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from motet._values import brief
from motet.algorithm import Behaviour, Nest, Space, map_nest
from motet.errors import SettingError, SpecError
from motet.text import valid

__all__ = ["BehaviourPolicy", "ConstantPolicy", "JointPolicy", "Policy", "PolicySpec", "RandomPolicy"]


@runtime_checkable
class Policy(Protocol):
    """How one agent acts. Deterministic given the seed and the observations since the last reset."""

    def reset(self, seed: int) -> None:
        """A new episode begins. Forget the last one, start the random stream anew."""
        ...

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> Any:
        """The action for one observation. ``mask`` ``[n]``: True where an action is allowed."""
        ...


@runtime_checkable
class JointPolicy(Protocol):
    """How several agents of one policy act. Deterministic given the seed and what was seen since the last reset."""

    def reset(self, seed: int) -> None:
        """A new episode begins. Forget the last one, start the random stream anew."""
        ...

    def act_jointly(
        self, observations: Mapping[str, Nest], masks: Mapping[str, npt.NDArray[np.bool_]]
    ) -> Mapping[str, Any]:
        """One action for each of those that are asked now, by name. ``masks`` holds those that have one."""
        ...


class BehaviourPolicy:
    """A trained policy: the acting half of an algorithm with one version of its weights; greedy unless ``explore``.

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
    ) -> None:
        self._behaviour, self._explore = behaviour, explore
        # Its own copy: a subscriber's private copies take turns.
        behaviour.load(np.array(weights, np.float32), dict(header))

    def reset(self, seed: int) -> None:
        """A new episode begins."""
        self._behaviour.begin(seed)

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> Any:
        """The action for one observation."""
        one = map_nest(lambda array: np.asarray(array)[None], observation)
        masks = None if mask is None else np.ascontiguousarray(mask, np.bool_)[None]
        actions, _ = self._behaviour.act(one, masks, self._explore)
        return actions[0]


class RandomPolicy:
    """Draws uniformly from what is allowed.

    >>> from gymnasium.spaces import Discrete
    >>> policy = RandomPolicy(Discrete(3))
    >>> policy.reset(seed=1)
    >>> int(policy.act(None, mask=np.array([False, True, False])))
    1
    """

    def __init__(self, action_space: Space) -> None:
        self._space = action_space
        self._n, self._first = getattr(action_space, "n", None), int(getattr(action_space, "start", 0))
        if self._n is not None and getattr(action_space, "shape", None) != ():
            self._n = None  # MultiBinary has an n too
        if self._n is None and not hasattr(action_space, "sample"):
            raise SettingError(f"action space: given {action_space!r}, expected a Gymnasium space")
        self._rng = np.random.default_rng(0)

    def reset(self, seed: int) -> None:
        """A new episode begins."""
        self._rng = np.random.default_rng(seed)
        if self._n is None:
            self._space.seed(seed)

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> Any:
        """An allowed action."""
        if self._n is None:
            if mask is not None:
                raise SpecError(f"mask: given one for {self._space!r}, expected none: masks are for Discrete actions")
            return self._space.sample()
        allowed = np.arange(self._n) if mask is None else np.flatnonzero(mask)
        if not len(allowed):
            raise SpecError("mask: it allows no action, expected at least one")
        return self._space.dtype.type(allowed[int(self._rng.random() * len(allowed))] + self._first)


class ConstantPolicy:
    """Always does the same, e.g. nothing; where that is not allowed, the first thing that is.

    >>> ConstantPolicy(2).act(None)
    2
    """

    def __init__(self, action: Any, first: int = 0) -> None:
        self._action, self._first = action, first

    def reset(self, seed: int) -> None:
        """A new episode begins."""

    def act(self, observation: Nest, mask: npt.NDArray[np.bool_] | None = None) -> Any:
        """The action; ``first`` is the lowest action of the space, to which a mask's first entry belongs."""
        if mask is None or mask[self._action - self._first]:
            return self._action
        allowed = np.flatnonzero(mask)
        if not len(allowed):
            raise SpecError("mask: it allows no action, expected at least one")
        return type(self._action)(allowed[0] + self._first)


@dataclass(frozen=True)
class PolicySpec:
    """Where a policy comes from: a picklable factory and its arguments, called in the process in which it will act.

    >>> PolicySpec(ConstantPolicy, {"action": 3}).make().act(None)
    3
    >>> PolicySpec("motet.policy:ConstantPolicy", {"action": 3}).title
    'ConstantPolicy'
    """

    factory: Callable[..., Any] | str
    """A class or function that makes the policy, or ``'module:Class'``: imported only where the policy is made."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """By name."""
    name: str = ""
    """What it is called in results; by default the factory's name."""

    def __post_init__(self) -> None:
        if isinstance(self.factory, str):
            module, _, name = self.factory.partition(":")
            if not (module and name and all(part.isidentifier() for part in f"{module}.{name}".split("."))):
                raise SettingError(f"policy: given {self.factory!r}, expected 'package.module:Class'")
        elif not callable(self.factory):
            raise SettingError(f"policy: given {self.factory!r} as its factory, expected a class or a function")

    @property
    def title(self) -> str:
        """What it is called."""
        if self.name:
            return valid(self.name)
        if isinstance(self.factory, str):
            return self.factory.rpartition(":")[2]
        return getattr(self.factory, "__qualname__", None) or type(self.factory).__name__

    def make(self, **offered: Any) -> Policy:
        """The policy. Of what is ``offered`` the factory gets what it has parameters for, unless it is an argument.

        ``evaluate`` offers ``observation_space``, ``action_space``, ``agent`` (its name) and ``world`` (the settings of
        the world, by name).

        >>> from gymnasium.spaces import Discrete
        >>> int(PolicySpec(RandomPolicy).make(action_space=Discrete(1), agent="agent_0").act(None))
        0
        """
        policy = self.build(**offered)
        if not isinstance(policy, Policy):
            raise SettingError(f"policy: {self.factory!r} made {brief(policy)}, expected something with reset and act")
        return policy

    def build(self, **offered: Any) -> Any:
        """What the factory makes, whatever it is: a Policy, or something that an adapter makes one of."""
        factory = _imported(self.factory) if isinstance(self.factory, str) else self.factory
        return factory(**{**_accepted(factory, offered), **self.arguments})


def asker(method: Callable[..., Any], name: str = "mask") -> Callable[[Any, Any], Any]:
    """How a policy is asked, wherever it lives: ``ask(observation, mask)`` calls its ``act`` as that can be called.

    The mask goes to the parameter called ``mask`` (or to ``*`` or ``**`` parameters); else to the second parameter, if
    that has no default or None. A policy without such a parameter gets the observation alone. So does every policy
    that can be called that way where there is no mask (None).

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
    except (TypeError, ValueError):  # a builtin that does not tell: the contract holds
        return lambda observation, mask: method(observation) if mask is None else method(observation, mask)
    kinds = inspect.Parameter
    positional = [one for one in parameters if one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = next((one for one in parameters if one.name == name and one.kind is not kinds.POSITIONAL_ONLY), None)
    if named is not None and named.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
        needed, by_name = named.default is kinds.empty, True
    elif len(positional) > 1:
        default = positional[1].default
        if default is not kinds.empty and default is not None:  # it is for something else
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


def _imported(path: str) -> Callable[..., Any]:
    """What ``'module:Class'`` names."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise  # the module is there, and lacks something itself
        raise SettingError(f"policy: given {path!r}, but there is no module {error.name!r} to import") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise SettingError(f"policy: given {path!r}, but {module} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise SettingError(f"policy: given {path!r}, which is {found!r}, expected a class or a function")
    made: Callable[..., Any] = found
    return made


def _accepted(factory: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a factory takes by name: the parameters it has, or all of them if it has ``**``."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # a builtin that does not tell
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(offered)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {parameter.name for parameter in parameters if parameter.kind in by_name}
    return {name: value for name, value in offered.items() if name in names}

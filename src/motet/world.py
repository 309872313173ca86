"""World: who acts now, what they see, and what happens. The actor drives it; nobody else touches it.

Every environment becomes one shape: the next *group* of agents that act at once. In an in-turn world a group is one
agent, which sees what the one before it did; in an all-at-once world it is everybody alive. Flows in: one action for
each of the group. Flows out: what an agent sees, which actions it may take, what it earned since it was last asked, and
whose episode ended. :func:`as_world` makes a World of a PettingZoo environment (Parallel or AEC), of a Gymnasium
environment (one agent), or of an object gridworld (:func:`from_objects`). One turn of the actor is, in short::

    for agent, action in zip(group := world.group(), actions): ...    # remember what each saw and did
    world.act(actions)
    for agent, terminated, truncated in world.ended(): ...            # close its episode: reward(agent), observe(agent)
    for agent in world.group(): ...                                   # reward(agent) closes its last step

A reward belongs to the action before it: what an agent earns on others' turns is summed up to its next turn or its end.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

from motet.errors import SettingError, WorldError

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["End", "World", "as_world", "from_objects"]


class End(NamedTuple):
    """The end of one agent's episode."""

    agent: int
    terminated: bool
    """The world says that nothing follows: the value behind it is 0."""
    truncated: bool
    """It was cut off: something would have followed. If both are set, it terminated."""


class World(Protocol):
    """The contract. Whoever inherits from it writes the abstract methods and gets the others as they are here."""

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
        """The agents that act at once now. Empty: the episode is over. Who ended is in no group until the reset."""

    @abstractmethod
    def observe(self, agent: int) -> Any:
        """What an agent sees now: an array of its space's dtype and shape, or a dict or tuple of them.

        C-contiguous and the caller's own. Asked for the agents of the group, and for those that ended: what they saw
        last, until the reset.
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

        What it earned before its first action belongs to no action: it counts for the return alone.
        """

    @abstractmethod
    def ended(self) -> Sequence[End]:
        """Whose episode ended since the last call, each agent once in an episode. Asking clears it."""

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


def as_world(env: Any) -> World:
    """The World of a PettingZoo or Gymnasium environment or of an object gridworld; a World itself is given back.

    They are told apart by what they offer, not by what they inherit.
    """
    accepted = (
        "expected a PettingZoo Parallel or AEC environment, a Gymnasium environment, an object gridworld "
        "(see motet.world.from_objects) or a motet.world.World"
    )
    if isinstance(env, type):
        raise SettingError(f"given the class {env.__name__}; {accepted}: make one by {env.__name__}(...)")
    if _offers(env, "group", "act", "ended"):
        missing = [name for name in _CONTRACT if not hasattr(env, name)]
        if missing:
            raise SettingError(
                f"given {type(env).__name__}, a World without {', '.join(missing)}; write them, or inherit from "
                "motet.world.World, which has all but the abstract ones"
            )
        world: World = env
        return world
    if hasattr(env, "single_observation_space"):
        raise SettingError(f"given {type(env).__name__}, a vector of environments; {accepted}: give a single one")
    if _offers(env, "reset", "step"):
        if _offers(env, "last", "observe"):
            return _InTurn(env)
        if hasattr(env, "possible_agents") or _offers(env, "observation_space"):
            return _AtOnce(env)
        if hasattr(env, "observation_space") and hasattr(env, "action_space"):
            return _AtOnce(_Solo(env))
    if _offers(env, "reset") and hasattr(env, "agents") and hasattr(env, "world"):
        return from_objects(env)
    hint = ": call it first" if callable(env) else ""
    raise SettingError(f"given {env!r} of type {type(env).__name__}; {accepted}{hint}")


_CONTRACT = (
    *("agents", "observation_spaces", "action_spaces", "can_save", "reset", "group", "observe", "mask", "act"),
    *("reward", "ended", "get_state", "set_state", "render", "close"),
)


def _offers(env: Any, *methods: str) -> bool:
    return all(callable(getattr(env, method, None)) for method in methods)


# Values: from an environment's to the contract's, and back


class _Misfit(Exception):
    """A value that does not fit its space, in words; the adapter adds agent, step and seed."""


def _taker(space: Space[Any], what: str) -> Callable[[Any], Any]:
    """A function that gives a value of ``space`` as fresh C-contiguous arrays, or raises a _Misfit."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = {key: _taker(part, f"{what}[{key!r}]") for key, part in space.spaces.items()}

        def take_dict(given: Any) -> dict[Any, Any]:
            if not isinstance(given, Mapping) or given.keys() != parts.keys():
                keys = sorted(given) if isinstance(given, Mapping) else type(given).__name__
                raise _Misfit(f"{what} is {keys}; expected a dict with {sorted(parts)}")
            return {key: take(given[key]) for key, take in parts.items()}

        return take_dict
    if isinstance(space, spaces.Tuple):
        items = tuple(_taker(part, f"{what}[{index}]") for index, part in enumerate(space.spaces))

        def take_tuple(given: Any) -> tuple[Any, ...]:
            if not isinstance(given, tuple | list) or len(given) != len(items):
                raise _Misfit(f"{what} is {_brief(given)}; expected a tuple of {len(items)}")
            return tuple(take(part) for take, part in zip(items, given, strict=True))

        return take_tuple
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise SettingError(
            f"the space of {what} is {space}; expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple "
            "of them: wrap the environment so that it gives arrays of a fixed shape"
        )
    dtype, shape = np.dtype(space.dtype), tuple(space.shape or ())

    def take_array(given: Any) -> NDArray[Any]:
        if given.__class__ is np.ndarray and given.dtype == dtype and given.shape == shape:
            fresh: NDArray[Any] = given.copy()
            return fresh
        return _cast(given, dtype, shape, what)

    return take_array


def _cast(given: Any, dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> NDArray[Any]:
    """``given`` in ``dtype``, if nothing but the precision of a float is lost by it."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise _Misfit(f"{what} is {_brief(given)}; expected an array {dtype} {list(shape)}")
    if array.shape != shape:
        raise _Misfit(f"{what} has the shape {list(array.shape)}; expected {list(shape)}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype, order="C")
    if array.dtype.kind == dtype.kind == "f":
        same = np.array_equal(np.isfinite(cast), np.isfinite(array))
    else:
        same = np.array_equal(cast, array)
    if not same:
        raise _Misfit(f"{what} is {array.dtype} and holds values that {dtype} cannot; expected {dtype} {list(shape)}")
    return cast


def _giver(space: Space[Any]) -> Callable[[Any], Any]:
    """A function that gives an action as the environment takes it, or raises a _Misfit."""
    from gymnasium import spaces

    take = _taker(space, "the action")
    if isinstance(space, spaces.Discrete):
        first, end = int(space.start), int(space.start) + int(space.n)

        def give_number(action: Any) -> int:
            try:
                number = operator.index(action)
            except TypeError:
                raise _Misfit(f"the action is {_brief(action)}; expected a whole number") from None
            if first <= number < end:
                return number
            raise _Misfit(f"the action is {number}; expected {first} to {end - 1}")

        return give_number

    def give(action: Any) -> Any:
        taken = take(action)
        if not space.contains(taken):
            raise _Misfit(f"the action is {_brief(action)}; expected one of {space}")
        return taken

    return give


def _brief(given: Any) -> str:
    text = repr(given)
    return f"{type(given).__name__} {text if len(text) <= 200 else text[:200] + '...'}"


def _freeze(nest: Any) -> Any:
    """Arrays, or dicts and tuples of them, as nested tuples of plain values."""
    if nest is None:
        return None
    if isinstance(nest, dict):
        return ("dict", tuple((key, _freeze(part)) for key, part in nest.items()))
    if isinstance(nest, tuple):
        return ("tuple", tuple(_freeze(part) for part in nest))
    return ("array", nest.dtype.str, nest.shape, nest.tobytes())


def _thaw(frozen: Any) -> Any:
    if frozen is None:
        return None
    kind, *rest = frozen
    if kind == "dict":
        return {key: _thaw(part) for key, part in rest[0]}
    if kind == "tuple":
        return tuple(_thaw(part) for part in rest[0])
    dtype, shape, raw = rest
    return np.frombuffer(raw, dtype).reshape(shape).copy()


# PettingZoo and Gymnasium


class _Adapter(World):
    """What both kinds of environment have in common: names, spaces, what is owed, how errors are told."""

    def __init__(self, env: Any) -> None:
        kind = type(env).__name__
        names = getattr(env, "possible_agents", None)
        if not names:
            raise SettingError(
                f"{kind} has no possible_agents; expected everyone who may ever act in an episode, since each of them "
                "needs a learner and a replay: set possible_agents when it is made"
            )
        self._env = env
        self._names = tuple(names)
        self.agents = tuple(str(name) for name in names)
        if len(set(self.agents)) != len(self.agents):
            raise SettingError(f"possible_agents of {kind} are {self.agents}; expected a different name for each")
        self._index = {name: agent for agent, name in enumerate(self._names)}
        given = tuple(env.observation_space(name) for name in self._names)
        self.action_spaces = tuple(env.action_space(name) for name in self._names)
        # An action mask that comes inside the observation is taken out of it.
        self._split = tuple("action_mask" in (getattr(space, "spaces", None) or ()) for space in given)
        self.observation_spaces = tuple(
            _without_mask(space) if split else space for space, split in zip(given, self._split, strict=True)
        )
        self._take = tuple(_taker(space, "the observation") for space in given)
        self._give = tuple(_giver(space) for space in self.action_spaces)
        # Not by hasattr on the object: a PettingZoo wrapper forwards the name, without its own state.
        inner = type(env.env) if isinstance(env, _Solo) else type(env)
        self.can_save = hasattr(inner, "get_state") and hasattr(inner, "set_state")
        self._seed: int | None = None
        self._resets = 0  # without a seed, since the last one with
        self._begin()

    def _begin(self) -> None:
        count = len(self.agents)
        self._step = 0
        self._group: tuple[int, ...] = ()
        self._owed = [0.0] * count
        self._over = [False] * count
        self._seen: list[Any] = [None] * count  # at once: the last observation; in turn: of those that ended
        self._masks: list[Any] = [None] * count  # and the mask that came beside it
        self._ends: list[End] = []

    def _reset(self, seed: int | None) -> Any:
        self._begin()
        if seed is None:
            self._resets += 1
        else:
            self._seed, self._resets = seed, 0
        try:
            return self._env.reset(seed=seed)
        except Exception as error:
            raise self._error(f"reset() raised {_named(error)}") from error

    def group(self) -> tuple[int, ...]:
        return self._group

    def ended(self) -> Sequence[End]:
        ends = self._ends
        if ends:
            self._ends = []
            return ends
        return ()

    def observe(self, agent: int) -> Any:
        try:
            full = self._take[agent](self._raw(agent))
        except _Misfit as misfit:
            raise self._error(f"{misfit}", agent) from None
        if self._split[agent]:
            del full["action_mask"]
            if full.keys() == {"observation"}:
                return full["observation"]
        return full

    def mask(self, agent: int) -> NDArray[np.bool_] | None:
        given = self._take_mask(agent) if self._split[agent] else self._masks[agent]
        if given is None:
            return None
        mask = np.array(given, np.bool_)
        if mask.shape != (int(getattr(self.action_spaces[agent], "n", -1)),):
            raise self._error(
                f"the action mask has the shape {list(mask.shape)}; expected one entry for each action of "
                f"{self.action_spaces[agent]}",
                agent,
            )
        return mask

    def _take_mask(self, agent: int) -> Any:
        raw = self._raw(agent)
        if isinstance(raw, Mapping) and "action_mask" in raw:
            return raw["action_mask"]
        raise self._error(f"the observation is {_brief(raw)}; expected a dict with an action_mask", agent)

    def _raw(self, agent: int) -> Any:
        """What the environment gave an agent to see."""
        raise NotImplementedError

    def get_state(self) -> Any:
        if not self.can_save:
            super().get_state()
        seen = tuple(
            None if raw is None else _freeze(take(raw)) for take, raw in zip(self._take, self._seen, strict=True)
        )
        masks = tuple(None if mask is None else _freeze(np.array(mask, np.bool_)) for mask in self._masks)
        ends = tuple(tuple(end) for end in self._ends)
        counts = (self._step, self._seed, self._resets)
        return (self._env.get_state(), counts, self._group, tuple(self._owed), tuple(self._over), ends, seen, masks)

    def set_state(self, state: Any) -> None:
        if not self.can_save:
            super().set_state(state)
        inner, counts, group, owed, over, ends, seen, masks = state
        self._env.set_state(inner)
        self._step, self._seed, self._resets = counts
        self._group = tuple(group)
        self._owed, self._over = list(owed), list(over)
        self._ends = [End(*end) for end in ends]
        self._seen, self._masks = [_thaw(raw) for raw in seen], [_thaw(mask) for mask in masks]

    def render(self) -> NDArray[np.uint8] | None:
        picture = self._env.render()
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        self._env.close()

    def _error(self, text: str, agent: int | None = None, action: Any = None) -> WorldError:
        env = self._env.env if isinstance(self._env, _Solo) else self._env
        who = "" if agent is None else f"agent {self.agents[agent]}, "
        seed = f"seed {self._seed}" if self._resets == 0 else f"no seed, reset {self._resets} after seed {self._seed}"
        did = "" if action is None else f", action {_brief(action)}"
        return WorldError(f"{type(env).__name__} ({who}step {self._step}, {seed}{did}): {text}")

    def _checked(self, actions: Sequence[Any]) -> list[Any]:
        """The actions of the group, as the environment takes them."""
        group = self._group
        if len(actions) != len(group):
            over = "" if group else ": no episode is running, call reset() first"
            raise self._error(f"act() was given {len(actions)} actions; expected {len(group)}{over}")
        chosen = []
        for agent, action in zip(group, actions, strict=True):
            try:
                chosen.append(self._give[agent](action))
            except _Misfit as misfit:
                raise self._error(f"{misfit}", agent) from None
        return chosen

    def _stranger(self, name: Any) -> NoReturn:
        raise self._error(f"it speaks of an agent {name!r}; expected one of possible_agents, {self.agents}")

    def _back(self, agent: int) -> NoReturn:
        raise self._error(
            "it is to act again after its episode ended; expected it to stay out until reset(): end its episode only "
            "when it leaves for good, or give the newcomer another name",
            agent,
        )


def _without_mask(space: Any) -> Space[Any]:
    from gymnasium import spaces

    rest = {key: part for key, part in space.spaces.items() if key != "action_mask"}
    if not rest:
        raise SettingError(f"the observation space is {space}; expected something beside the action mask")
    return rest["observation"] if rest.keys() == {"observation"} else spaces.Dict(rest)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _InTurn(_Adapter):
    """A PettingZoo AEC environment: a group is the one agent whose turn it is.

    ``_cumulative_rewards`` of an agent is what it earned since its last action; its own step begins it anew. An agent
    whose episode ended is met when its turn comes: what others' steps gave it until then is in, and the ``step(None)``
    that removes it is done here.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._singles = tuple((agent,) for agent in range(len(self.agents)))

    def _begin(self) -> None:
        super()._begin()
        self._asked = [0.0] * len(self.agents)  # of what is in _cumulative_rewards, the part that was given out
        self._acted = [False] * len(self.agents)
        self._glance: tuple[int, int, Any] = (-1, -1, None)  # agent, step, what it saw

    def reset(self, seed: int | None = None) -> None:
        self._reset(seed)
        self._select()

    def act(self, actions: Sequence[Any]) -> None:
        env = self._env
        try:  # the actor spends its time here: no call that is not needed
            (agent,), (action,) = self._group, actions
            chosen = self._give[agent](action)
        except (ValueError, _Misfit):
            self._checked(actions)  # says what is wrong
            return  # there was nobody to act, and no action
        rest = env._cumulative_rewards[self._names[agent]] - self._asked[agent]
        if rest:  # nobody asked for it before this action
            self._owed[agent] += float(rest)
        self._asked[agent] = 0.0
        self._acted[agent] = True
        try:
            env.step(chosen)
        except Exception as error:
            raise self._error(f"step() raised {_named(error)}", agent, chosen) from error
        self._step += 1
        self._select()

    def reward(self, agent: int) -> float:
        value = self._owed[agent]
        self._owed[agent] = 0.0
        if not self._over[agent]:
            total = float(self._env._cumulative_rewards.get(self._names[agent], 0.0))
            value += total - self._asked[agent]
            self._asked[agent] = total
        if not isfinite(value):
            raise self._error(f"the reward is {value}; expected a finite number", agent)
        return value

    def mask(self, agent: int) -> NDArray[np.bool_] | None:
        if not self._over[agent]:
            info = self._env.infos.get(self._names[agent])
            self._masks[agent] = info.get("action_mask") if info else None
            if self._masks[agent] is None and not self._split[agent]:
                return None
        return super().mask(agent)

    def set_state(self, state: Any) -> None:
        own, (asked, acted) = state
        super().set_state(own)
        self._asked, self._acted, self._glance = list(asked), list(acted), (-1, -1, None)

    def get_state(self) -> Any:
        return (super().get_state(), (tuple(self._asked), tuple(self._acted)))

    def _raw(self, agent: int) -> Any:
        if self._over[agent]:
            return self._seen[agent]
        if not self._split[agent]:
            return self._look(agent)
        if self._glance[:2] != (agent, self._step):  # observation and mask come together: one look for both
            self._glance = (agent, self._step, self._look(agent))
        return self._glance[2]

    def _look(self, agent: int) -> Any:
        try:
            return self._env.observe(self._names[agent])
        except Exception as error:
            raise self._error(f"observe() raised {_named(error)}", agent) from error

    def _select(self) -> None:
        """Find whose turn it is; see off the dead on the way."""
        env = self._env
        try:
            while env.agents:
                name = env.agent_selection
                agent = self._index[name]
                if env.terminations[name] or env.truncations[name] or self._over[agent]:
                    self._see_off(agent, name)
                    continue
                self._group = self._singles[agent]
                return
        except (AttributeError, KeyError) as error:
            if isinstance(error, KeyError) and env.agent_selection not in self._index:
                self._stranger(env.agent_selection)
            raise self._error(
                f"reading agents, agent_selection, terminations and truncations raised {_named(error)}; expected all "
                "four to know whose turn it is after reset() and step()"
            ) from error
        self._group = ()
        for agent, acted in enumerate(self._acted):
            if acted and not self._over[agent]:
                raise self._error(
                    "it is gone from agents without an end; expected terminations or truncations to say so, and it to "
                    "stay until its step(None)",
                    agent,
                )

    def _see_off(self, agent: int, name: Any) -> None:
        env = self._env
        if self._over[agent]:
            self._back(agent)
        end = End(agent, bool(env.terminations[name]), bool(env.truncations[name]))
        try:
            self._seen[agent] = self._take[agent](self._look(agent))
        except _Misfit as misfit:
            raise self._error(f"at its end {misfit}", agent) from None
        self._masks[agent] = (env.infos.get(name) or {}).get("action_mask")
        self._owed[agent] += float(env._cumulative_rewards[name]) - self._asked[agent]
        self._over[agent] = True
        self._ends.append(end)
        try:
            env.step(None)
        except Exception as error:
            raise self._error(f"step(None), after its end, raised {_named(error)}", agent) from error
        if name in env.agents:
            raise self._error("it is still in agents after its end and step(None); expected it to be removed", agent)


class _AtOnce(_Adapter):
    """A PettingZoo Parallel environment: a group is everybody alive, in the order of ``agents``."""

    def reset(self, seed: int | None = None) -> None:
        result = self._reset(seed)
        try:
            seen, infos = result
        except (TypeError, ValueError):
            raise self._error(f"reset() gave {_brief(result)}; expected observations and infos") from None
        self._listed: list[Any] = []
        self._receive(seen, infos)
        self._regroup()

    def act(self, actions: Sequence[Any]) -> None:
        names = self._names
        chosen = {names[agent]: action for agent, action in zip(self._group, self._checked(actions), strict=True)}
        if not chosen:
            return
        try:
            result = self._env.step(chosen)
        except Exception as error:
            sole = self._group[0] if len(chosen) == 1 else None
            raise self._error(
                f"step() raised {_named(error)}", sole, chosen if sole is None else chosen[names[sole]]
            ) from error
        self._step += 1
        try:
            seen, rewards, terminated, truncated, infos = result
        except (TypeError, ValueError):
            raise self._error(
                f"step() gave {_brief(result)}; expected observations, rewards, terminations, truncations and infos"
            ) from None
        self._receive(seen, infos)
        owed, index = self._owed, self._index
        for name, reward in rewards.items():
            agent = index[name] if name in index else self._stranger(name)
            try:
                value = float(reward)
            except (TypeError, ValueError):
                value = nan
            if not isfinite(value):
                raise self._error(f"the reward is {reward!r}; expected a finite number", agent, chosen.get(name))
            owed[agent] += value
        if any(terminated.values()) or any(truncated.values()):
            self._close(seen, terminated, truncated)
        elif self._env.agents == self._listed:
            return
        self._regroup()

    def reward(self, agent: int) -> float:
        value = self._owed[agent]
        self._owed[agent] = 0.0
        return value

    def set_state(self, state: Any) -> None:
        super().set_state(state)
        self._listed = list(self._env.agents)

    def _raw(self, agent: int) -> Any:
        raw = self._seen[agent]
        if raw is None:
            raise self._error("it has no observation; expected one from reset() or the step() it was born in", agent)
        return raw

    def _receive(self, seen: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        over, index = self._over, self._index
        for name, raw in seen.items():
            agent = index[name] if name in index else self._stranger(name)
            if not over[agent]:
                self._seen[agent] = raw
        for name, info in infos.items():
            agent = index.get(name, -1)  # infos may hold more than agents
            if agent >= 0 and not over[agent]:
                self._masks[agent] = info.get("action_mask") if info else None

    def _close(self, seen: Mapping[Any, Any], terminated: Mapping[Any, Any], truncated: Mapping[Any, Any]) -> None:
        """Keep what those see whose episode ended in this step."""
        for agent, name in enumerate(self._names):
            end = End(agent, bool(terminated.get(name, False)), bool(truncated.get(name, False)))
            if self._over[agent] or not (end.terminated or end.truncated):
                continue
            if name not in seen:
                raise self._error("it ended without an observation; expected the last one it saw", agent)
            try:
                self._seen[agent] = self._take[agent](seen[name])
            except _Misfit as misfit:
                raise self._error(f"at its end {misfit}", agent) from None
            self._over[agent] = True
            self._ends.append(end)

    def _regroup(self) -> None:
        before, ended_now = self._group, {end.agent for end in self._ends}
        self._listed = list(self._env.agents)
        alive = []
        for name in self._listed:
            agent = self._index[name] if name in self._index else self._stranger(name)
            if not self._over[agent]:
                alive.append(agent)
            elif agent not in before and agent not in ended_now:
                self._back(agent)
        self._group = tuple(sorted(alive))
        for agent in before:
            if not self._over[agent] and agent not in alive:
                raise self._error(
                    "it is gone from agents without an end; expected terminations or truncations to say so", agent
                )


class _Solo:
    """A Gymnasium environment, as a Parallel one with a single agent."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.possible_agents = ["agent_0"]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        return self.env.action_space

    def reset(self, seed: int | None = None) -> Any:
        result = self.env.reset(seed=seed)
        if not isinstance(result, tuple) or len(result) != 2:
            return result
        self.agents = ["agent_0"]
        return {"agent_0": result[0]}, {"agent_0": result[1]}

    def step(self, actions: Mapping[str, Any]) -> Any:
        result = self.env.step(actions["agent_0"])
        if not isinstance(result, tuple) or len(result) != 5:
            return result
        if result[2] or result[3]:
            self.agents = []
        return tuple({"agent_0": part} for part in result)

    def get_state(self) -> Any:
        return (tuple(self.agents), self.env.get_state())

    def set_state(self, state: Any) -> None:
        self.agents = list(state[0])
        self.env.set_state(state[1])

    def render(self) -> Any:
        return self.env.render() if self.env.render_mode == "rgb_array" else None

    def close(self) -> None:
        self.env.close()


# Object gridworlds


def from_objects(
    environment: Any,
    actions: Any = None,
    observation: Any = None,
    turns: int | None = None,
) -> World:
    """The World of an object gridworld, whose classes stay as they are.

    ``environment`` has ``reset()``, ``agents`` and ``world``; an agent has ``pov(world)``, ``act(world, action)``,
    which gives its reward, and ``is_done(world)``. A turn is theirs: first every entity in the world whose
    ``has_transitions`` is set gets ``transition(world)``, then the agents act one after the other, each seeing what the
    one before did. An agent whose ``is_done`` is true after its action has terminated; after ``turns`` turns (None:
    never) all that are left are truncated.

    The entities are ``world.entities`` (a collection, or a method that gives one); without it what ``world.map`` holds,
    an array or nested lists of objects; without that what iterating over ``world`` gives. Agents among them are left
    out, and so is what has no ``has_transitions``. Each gets one transition a turn, also if it moves on the map.

    ``actions`` is a number of actions or a space, or a sequence of them, one for each agent; None:
    ``agent.action_spec.n_actions``. ``observation`` is a space or a sequence of them; None: float32 in the shape of the
    first ``pov``. A seed goes to ``reset(seed=...)`` if that takes one, and otherwise to ``random`` and
    ``numpy.random``, from which such worlds draw.
    """
    return _InTurn(_Objects(environment, actions, observation, turns))


class _Objects:
    """An object gridworld, as an AEC environment."""

    def __init__(self, environment: Any, actions: Any, observation: Any, turns: int | None) -> None:
        kind = type(environment).__name__
        for name in ("reset", "agents", "world"):
            if not hasattr(environment, name):
                raise SettingError(f"{kind} has no {name}; expected an environment with reset(), agents and world")
        if turns is not None and turns < 1:
            raise SettingError(f"turns is {turns}; expected 1 or more, or None for no limit")
        self.environment = environment
        self.turns = turns
        self._seedable = "seed" in signature(environment.reset).parameters
        environment.reset()  # agents see nothing before
        players = list(environment.agents)
        for player in players:
            lacking = [name for name in ("pov", "act", "is_done") if not callable(getattr(player, name, None))]
            if lacking:
                raise SettingError(
                    f"{type(player).__name__} in the agents of {kind} has no {', '.join(lacking)}; expected "
                    "pov(world), act(world, action) and is_done(world)"
                )
        self.possible_agents = [f"agent_{index}" for index in range(len(players))]
        action_spaces = _each("actions", actions, len(players))
        spaces = _each("observation", observation, len(players))
        self._action_spaces = [_actions_of(*pair) for pair in zip(players, action_spaces, strict=True)]
        self._spaces = [_sight_of(environment.world, *pair) for pair in zip(players, spaces, strict=True)]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self._spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        return self._action_spaces[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None) -> None:
        if self._seedable:
            self.environment.reset(seed=seed)
        else:
            if seed is not None:
                _seed_global(seed)
            self.environment.reset()
        players = list(self.environment.agents)
        if len(players) != len(self.possible_agents):
            raise ValueError(f"there are {len(players)} agents; expected {len(self.possible_agents)}, as at first")
        self.agents = self.possible_agents[:]
        self._players = dict(zip(self.agents, players, strict=True))
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self._turn = 0
        self._begin_turn()

    def observe(self, agent: str) -> Any:
        return self._players[agent].pov(self.environment.world)

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if action is None:
            self.agents.remove(name)
        else:
            world, player = self.environment.world, self._players[name]
            reward = player.act(world, action)
            try:
                self._cumulative_rewards[name] = float(reward)
            except (TypeError, ValueError):
                raise TypeError(f"act() gave {_brief(reward)}; expected a reward") from None
            self.terminations[name] = bool(player.is_done(world))
            if self.terminations[name]:
                return  # and it stays selected, to be seen off with what it sees now
        self._next()

    def _next(self) -> None:
        while self._queue:
            name = self._queue.pop()
            if name in self.agents:
                self.agent_selection = name
                return
        if not self.agents:
            return
        if not any(self.truncations.values()):
            self._turn += 1
            if self._turn != self.turns:
                self._begin_turn()
                return
            self.truncations = dict.fromkeys(self.possible_agents, True)
        self.agent_selection = self.agents[0]

    def _begin_turn(self) -> None:
        """Entities first; then the agents that are left, in their order."""
        environment = self.environment
        if isinstance(getattr(environment, "turn", None), int):  # their loop counts its turns there
            environment.turn += 1
        world = environment.world
        had = {id(player): player for player in self._players.values()}  # holds them, so that no id is used again
        for entity in _entities(world):
            if getattr(entity, "has_transitions", False) and id(entity) not in had:
                had[id(entity)] = entity
                entity.transition(world)
        self._queue = self.agents[::-1]
        self.agent_selection = self._queue.pop()

    def render(self) -> Any:
        return self.environment.render() if _offers(self.environment, "render") else None

    def close(self) -> None:
        if _offers(self.environment, "close"):
            self.environment.close()


def _entities(world: Any) -> Iterator[Any]:
    """All that is in an object gridworld; a map is walked while it changes, as such worlds do themselves."""
    if hasattr(world, "entities"):
        entities = world.entities() if callable(world.entities) else world.entities
        return iter(tuple(entities.values() if isinstance(entities, Mapping) else entities))
    place = getattr(world, "map", world)
    if not isinstance(place, Iterable):
        raise TypeError(f"{type(world).__name__} has no entities, no map and cannot be iterated over; expected one")
    return _leaves(place)


def _leaves(place: Any) -> Iterator[Any]:
    if isinstance(place, np.ndarray):
        yield from place.flat
        return
    for tile in place:
        if isinstance(tile, list | tuple | np.ndarray):
            yield from _leaves(tile)
        else:
            yield tile


def _each(name: str, given: Any, count: int) -> list[Any]:
    """One for each agent: of a sequence its items, of anything else the same one."""
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise SettingError(f"{name}: given {len(given)}, expected one for all or one for each of {count} agents")
    return list(given)


def _actions_of(player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if given is None:
        given = getattr(getattr(player, "action_spec", None), "n_actions", None)
        if given is None:
            raise SettingError(f"{type(player).__name__} has no action_spec.n_actions; give the number by actions=")
    if isinstance(given, spaces.Space):
        return given
    try:
        return spaces.Discrete(operator.index(given))
    except (TypeError, ValueError):
        raise SettingError(f"actions is {given!r}; expected a number from 1 on, or a space") from None


def _sight_of(world: Any, player: Any, given: Any) -> Any:
    from gymnasium import spaces

    if isinstance(given, spaces.Space):
        return given
    if given is not None:
        raise SettingError(f"observation is {given!r}; expected a space, or None to take the shape of the first pov")
    return spaces.Box(-np.inf, np.inf, np.shape(player.pov(world)), np.float32)


def _seed_global(seed: int) -> None:
    import random

    random.seed(seed)
    np.random.seed(seed % 2**32)

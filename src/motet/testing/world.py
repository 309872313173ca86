"""Check users' worlds, policies and algorithms against motet's contracts, in the users' test suites.

``check_world`` plays random actions in a world. ``check_policy`` asks a policy for actions. ``check_algorithm`` builds,
updates, saves and restores an algorithm. Each returns without output if all is well. Otherwise it raises an error that
names the broken clause of the contract and how to fix it.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from motet.errors import SettingError, SpecError, WorldError
from motet.masks import mask_form, sampling_mask
from motet.nest import Nest, map_nest
from motet.streams import Streams, StreamUser, made_alike, streams_returned
from motet.testing.algorithm import check_algorithm, check_policy
from motet.testing.vector import check_vector
from motet.world import End, World, as_world
from motet.world.batch import has_vector

if TYPE_CHECKING:
    pass

__all__ = ["check_algorithm", "check_policy", "check_world"]

Choice = Callable[[int, Nest], Any]
"""The action of an agent, given its mask."""


def check_world(factory: Callable[[], Any], episodes: int = 3, seed: int = 0, limit: int = 100_000) -> None:
    """Raise a WorldError if the world that ``factory()`` makes breaks the contract of World.

    ``factory()`` returns a World, or an environment that ``as_world`` accepts. Plays ``episodes`` episodes with random
    actions. Repeats each of them with the same seed, in the same world and in another one, and from snapshots if the
    world can save its state. The world may draw from the global random streams, as in a run. Each episode must end
    within ``limit`` calls of ``act``. If the environment has a ``vector``, its worlds are compared with the single
    environment.

    The error says whether the broken clause is harmless for training. Such problems are reported last, all in one
    error, so that they do not hide others.
    """
    if episodes < 1 or limit < 1:
        raise SettingError(f"episodes and limit must be ints >= 1, got {episodes} and {limit}")
    with streams_returned():
        _check_world(factory, episodes, seed, limit)


def _check_world(factory: Callable[[], Any], episodes: int, seed: int, limit: int) -> None:
    given = made_alike("the world", factory)
    world, other = as_world(given), as_world(made_alike("the world", factory))
    if world is other:
        raise SettingError("the factory must make a new world at each call, got the same one twice")
    harmless: dict[str, str] = {}
    try:
        _check_shape(world)
        begun = [_check_episode(world, other, seed + episode, limit, harmless) for episode in range(episodes)]
        if not any(begun):
            _broken("reset", "after reset() there is no agent to act", "return the agents that act first from group()")
        _check_interrupted_reset(world)
        if has_vector(given):
            check_vector(factory, episodes, seed, limit)
        if harmless:
            raise WorldError("\n".join(harmless.values()))
    finally:
        world.close()
        other.close()


_HARMLESS = {
    "same seed, same episode": "the only cost is that episodes, runs and evaluations cannot be repeated",
    "get_state and set_state": "the only cost is that a resumed run does not continue exactly",
    "fresh observations": "motet calls observe() once for each decision",
}
"""Clauses whose violation is harmless for training, and why. For ``fresh observations`` this holds only for a part of
the clause."""


def _check_episode(world: World, other: World, seed: int, limit: int, harmless: dict[str, str]) -> bool:
    """Play one episode, then repeat it in all ways. Return False if there is no agent to act.

    The first violation of each harmless clause is added to ``harmless``.
    """
    choose, streams = _Random(world, seed), Streams(StreamUser("the world"))
    streams.begin(seed)
    world.reset(seed)
    if not world.group():
        return False
    first = _CheckedEpisode(world, choose, limit, harmless=harmless)
    states: list[tuple[int, int, Any, Any]] = []
    while first.turn():
        if world.can_save and world.group() and first.turns in (1, 4, 16, 64, 256):
            states.append((first.turns, len(first.actions), world.get_state(), streams.get_state()))
    first.finish()
    for name, again in (("the same world", world), ("another world of the same factory", other)):
        streams.begin(seed)
        again.reset(seed)
        second = _CheckedEpisode(again, _SameActions(first.actions), limit, harmless=harmless, like=first.trace)
        while second.turn():
            pass
        what = f"a second episode with seed {seed} in {name}"
        _note(harmless, "same seed, same episode", _difference(what, first, 0, second), _SEEDED)
    for turns, played, state, drawn in states:
        other.set_state(state)
        streams.set_state(drawn)
        actions, like = _SameActions(first.actions[played:]), first.trace[turns:]
        rest = _CheckedEpisode(other, actions, limit, first.marks[turns], harmless, like)
        while rest.turn():
            pass
        what = f"the episode from a snapshot after {turns} turns on"
        _note(harmless, "get_state and set_state", _difference(what, first, turns, rest), _WHOLE)
    return True


def _check_shape(world: World) -> None:
    agents = world.agents
    if not agents or len(set(agents)) != len(agents) or not all(isinstance(name, str) for name in agents):
        _broken("agents", f"agents is {agents!r}", "give different names, at least one")
    for what in ("observation_spaces", "action_spaces"):
        spaces = getattr(world, what)
        if len(spaces) != len(agents):
            _broken(what, f"there are {len(spaces)} for {len(agents)} agents", "give one for each agent, in order")


def _check_interrupted_reset(world: World) -> None:
    """Check that a reset in the middle of an episode begins a new one."""
    choose = _Random(world, 0)
    _reset_until_somebody_acts(world)
    world.act([choose(agent, world.mask(agent)) for agent in world.group()])
    _reset_until_somebody_acts(world)
    if ends := list(world.ended()):
        _broken("reset", f"after a reset ended() still returns {ends}", "clear the ends of the last episode")
    if earned := {name: r for agent, name in enumerate(world.agents) if (r := world.reward(agent))}:
        _broken("reset", f"after a reset there are rewards: {earned}", "clear the rewards of the last episode")


def _reset_until_somebody_acts(world: World) -> None:
    """Begin an episode that has a turn. All agents may be absent from some episodes."""
    for _ in range(100):
        world.reset()
        if world.group():
            return
    _broken("reset", "after a reset in the middle of an episode there is no agent to act", "begin a new episode")


class _Random:
    """Chooses random actions among those that are allowed."""

    def __init__(self, world: World, seed: int) -> None:
        # Sample from copies: sampling from the world's spaces could change what the world itself draws from them.
        self._spaces = [copy.deepcopy(space) for space in world.action_spaces]
        for agent, space in enumerate(self._spaces):
            space.seed(1000 * seed + agent)

    def __call__(self, agent: int, mask: Nest) -> Any:
        space = self._spaces[agent]
        return space.sample() if mask is None else space.sample(mask=sampling_mask(mask))


class _SameActions:
    """Repeats recorded actions."""

    def __init__(self, actions: list[Any]) -> None:
        self._actions = iter(actions)

    def __call__(self, agent: int, mask: Nest) -> Any:
        return next(self._actions)


class _CheckedEpisode:
    """Plays one episode and checks each turn. ``trace`` records what happened in each turn, to be compared.

    ``like``: the trace that is to be repeated. The episode stops where it differs, before the recorded actions are
    played, which may not fit any more.
    """

    def __init__(
        self,
        world: World,
        choose: Choice,
        limit: int,
        mark: _Mark | None = None,
        harmless: dict[str, str] | None = None,
        like: list[dict[str, Any]] | None = None,
    ) -> None:
        self.world, self.choose, self.limit = world, choose, limit
        self.harmless, self.like = {} if harmless is None else harmless, like
        self.actions: list[Any] = []
        self.turns = 0
        self.trace: list[dict[str, Any]] = []
        self.open, self.over, self.away = (set(part) for part in mark or _NOBODY)
        self.marks: list[_Mark] = [self._mark()]

    def _mark(self) -> _Mark:
        return frozenset(self.open), frozenset(self.over), frozenset(self.away)

    def turn(self) -> bool:
        """Play one turn; False when the episode is over."""
        world = self.world
        group = list(world.group())
        if not group:
            return False
        if self.turns >= self.limit:
            _broken(
                "an end",
                f"the episode is not over after {self.limit} calls of act()",
                "terminate or truncate every agent eventually, or give check_world a higher limit",
            )
        self._check_group(group)
        happened: dict[str, Any] = {"group": [world.agents[agent] for agent in group]}
        actions = []
        for agent in group:
            name = world.agents[agent]
            happened[f"the reward of {name}"] = self._reward(agent)
            happened[f"the observation of {name}"] = self._observation(agent)
            mask = self._mask(agent)
            happened[f"the mask of {name}"] = map_nest(_plain, mask)
            try:
                actions.append(self.choose(agent, mask))
            except StopIteration:
                happened["group"] = "there is one more turn"
                self.trace.append(happened)
                return False
        if self.like is not None and self.turns < len(self.like):
            was = self.like[self.turns]
            if any(was.get(key) != value for key, value in happened.items()):
                self.trace.append(happened)
                return False
        self.actions += actions
        self.open |= set(group)
        self.away -= set(group)
        world.act(actions)
        self.turns += 1
        for end in world.ended():
            happened |= self._end(end)
        if again := list(world.ended()):
            _broken("ended", f"a second call returns {again} again", "clear the list at each call")
        self.trace.append(happened)
        self.marks.append(self._mark())
        return True

    def finish(self) -> None:
        """Check what must hold when the episode is over."""
        world = self.world
        if self.open:
            names = [world.agents[agent] for agent in sorted(self.open)]
            _broken(
                "ended",
                f"group() is empty, but ended() never reported the end of {names}",
                "report an end for each agent that acted",
            )
        for agent in sorted(self.over):
            if late := world.reward(agent):
                _broken(
                    "rewards until the end",
                    f"{world.agents[agent]} earned {late} after its end",
                    "report its end when it cannot earn any more rewards",
                )

    def _where(self, agent: int) -> str:
        return f"{self.world.agents[agent]} in turn {self.turns}"

    def _check_group(self, group: list[int]) -> None:
        if len(set(group)) != len(group) or not all(0 <= agent < len(self.world.agents) for agent in group):
            _broken("group", f"in turn {self.turns} it is {group}", "return different indices of agents")
        if back := self.over & set(group):
            _broken(
                "no agent acts after its end",
                f"{self._where(min(back))} has to act, but its episode has ended",
                "leave it out until reset(); or give its End a reward and an observation, so that a new segment begins",
            )

    def _reward(self, agent: int) -> float:
        reward = self._finite(agent, self.world.reward(agent))
        if again := self.world.reward(agent):
            _broken(
                "reward",
                f"{self._where(agent)}: reward() returned {reward}, then {again} in a second call",
                "clear the sum at each call",
            )
        return reward

    def _finite(self, agent: int, reward: Any) -> float:
        if not isinstance(reward, float | int) or not math.isfinite(reward):
            _broken("reward", f"{self._where(agent)} earned {reward!r}", "return a finite float")
        return float(reward)

    def _observation(self, agent: int) -> str:
        where = self._where(agent)
        mark = _digest(_arrays(self.world.observe(agent)))
        if self._written_over(agent, self.world.observe(agent)) != mark:
            said = f"{where}: a second call of observe() returned something else"
            mend = "do not change the state in observe(), and draw random numbers in reset() and act() only"
            _note(self.harmless, "fresh observations", said, mend)
            return mark
        if _digest(_arrays(self.world.observe(agent))) != mark:
            _broken(
                "fresh observations",
                f"{where}: a second call of observe() returned something else, after the first result was overwritten",
                "return a copy at each call, and do not change the state in observe()",
            )
        return mark

    def _written_over(self, agent: int, seen: Any) -> str:
        """Check an observation against its space, return its digest, and then invert all its bits."""
        where = self._where(agent)
        space = self.world.observation_spaces[agent]
        arrays = _arrays(seen)
        for array, leaf in _pairs(seen, space):
            if not isinstance(array, np.ndarray):
                _broken(
                    "observation",
                    f"that of {where} is a {type(array).__name__}",
                    "return an array, or a dict or tuple of arrays",
                )
            if array.dtype != leaf.dtype or array.shape != leaf.shape:
                _broken(
                    "observation",
                    f"that of {where} is {array.dtype} {list(array.shape)}, but its space is {leaf.dtype} "
                    f"{list(leaf.shape)}",
                    "return arrays with the dtype and shape of the space",
                )
            if not array.flags.c_contiguous or not array.flags.writeable:
                _broken("observation", f"that of {where} is not C-contiguous and writeable", "return a copy")
        if not space.contains(seen):
            low = [(leaf.min(), leaf.max()) for leaf in arrays if leaf.size]
            _broken(
                "observation",
                f"that of {where} is not in {space} (lowest and highest values: {low})",
                "widen the space, or correct NaNs, bounds and keys of the observation",
            )
        mark = _digest(arrays)
        for array in arrays:  # invert all bits, so that every value changes
            array.reshape(-1).view(np.uint8)[...] ^= 255
        return mark

    def _mask(self, agent: int) -> Nest:
        mask = self.world.mask(agent)
        if mask is None:
            return None
        form = mask_form(self.world.action_spaces[agent])
        wanted = _layout(form.nest(form.flat(None)))
        if not form.size or _layout(mask) != wanted:
            mend = f"return None or {wanted}" if form.size else "return None: continuous actions cannot be masked"
            _broken("mask", f"that of {self._where(agent)} is {_layout(mask)}", mend)
        try:
            form.flat(mask)
        except SpecError as error:
            _broken("mask", f"{self._where(agent)} has to act, but {error}", "correct the entries of the mask")
        return mask

    def _end(self, end: End) -> dict[str, Any]:
        agent, where = end.agent, self._where(end.agent)
        if agent in self.over | self.away:
            _broken("ended", f"{where} ended for the second time", "report an end once, until the agent acts again")
        if not (end.terminated or end.truncated):
            _broken("ended", f"{where} is neither terminated nor truncated", "set one of the two")
        if (end.reward is None) != (end.observation is None):
            given, lacking = ("an observation", "reward") if end.reward is None else ("a reward", "observation")
            _broken("ended", f"the end of {where} has {given} and no {lacking}", "give both or neither")
        self.open.discard(agent)
        if end.reward is None:
            self.over.add(agent)
            reward, seen = self._reward(agent), self._observation(agent)
        else:
            self.away.add(agent)
            reward, seen = self._finite(agent, end.reward), self._last(agent, end.observation)
        name = self.world.agents[agent]
        return {
            f"the end of {name}": (bool(end.terminated), bool(end.truncated)),
            f"the last reward of {name}": reward,
            f"the last observation of {name}": seen,
        }

    def _last(self, agent: int, seen: Any) -> str:
        """Check the observation of an End. It must not be an array that the world keeps using."""
        asked = agent in self.world.group()
        before = _digest(_arrays(self.world.observe(agent))) if asked else ""
        mark = self._written_over(agent, seen)
        if asked and _digest(_arrays(self.world.observe(agent))) != before:
            _broken(
                "fresh observations",
                f"{self._where(agent)}: observe() changed when the observation of its End was overwritten",
                "put a copy into the End",
            )
        return mark


_Mark = tuple[frozenset[int], frozenset[int], frozenset[int]]
"""Agents in the middle of a segment, agents whose episode is over, and agents that ended and may act again."""
_NOBODY: _Mark = (frozenset(), frozenset(), frozenset())


_SEEDED = "derive all randomness from the seed of reset(), and clear everything else in reset()"
_WHOLE = "put everything that determines what follows into the state, random streams included; or set can_save to False"


def _difference(what: str, first: _CheckedEpisode, skip: int, second: _CheckedEpisode) -> str:
    """Return the first difference between two episodes; empty if they are equal."""
    past = first.trace[skip:]
    for turn, (was, now) in enumerate(zip(past, second.trace, strict=False)):
        for key in was | now:
            if was.get(key) != now.get(key):
                return f"{what} differs in turn {skip + turn}: {key} was {was.get(key)}, now {now.get(key)}"
    if len(past) != len(second.trace):
        return f"{what} has {len(second.trace)} turns; expected {len(past)}"
    return ""


def _note(harmless: dict[str, str], clause: str, what: str, mend: str) -> None:
    """Keep the first violation of a clause that is harmless for training. ``what`` is empty if there is none."""
    if what:
        costs = _HARMLESS[clause]
        harmless.setdefault(clause, f"{_says(clause, what, mend)}; harmless for training: {costs}")


def _says(clause: str, what: str, mend: str) -> str:
    return f"broken clause '{clause}': {what}; fix: {mend}"


def _broken(clause: str, what: str, mend: str) -> NoReturn:
    raise WorldError(f"{_says(clause, what, mend)}; not harmless: training would fail, or learn from wrong data")


def _plain(array: Any) -> Any:
    return None if array is None else array.tolist()


def _layout(mask: Nest) -> str:
    """Describe the structure of a mask and the dtypes and shapes of its arrays."""
    if isinstance(mask, dict):
        return "{" + ", ".join(f"{key!r}: {_layout(mask[key])}" for key in sorted(mask, key=str)) + "}"
    if isinstance(mask, tuple):
        return f"({', '.join(map(_layout, mask))})"
    return f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, np.ndarray) else repr(mask)


def _arrays(nest: Any) -> list[Any]:
    if isinstance(nest, dict):
        return [leaf for key in nest for leaf in _arrays(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in _arrays(part)]
    return [nest]


def _pairs(nest: Any, space: Any) -> list[tuple[Any, Any]]:
    """Return each array with its space, for the parts that both have. contains() finds parts that only one has."""
    parts = getattr(space, "spaces", None)
    if isinstance(nest, dict) and isinstance(parts, dict):
        return [pair for key in nest.keys() & parts.keys() for pair in _pairs(nest[key], parts[key])]
    if isinstance(nest, tuple) and isinstance(parts, tuple):
        return [pair for inner in zip(nest, parts, strict=False) for pair in _pairs(*inner)]
    return [] if parts else [(nest, space)]


def _digest(arrays: list[Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()

"""Adapters that make Worlds of PettingZoo (AEC, Parallel) and Gymnasium environments (one agent, two players)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from motet.errors import SettingError, SpecError, WorldError
from motet.masks import mask_form
from motet.nest import Nest, map_nest
from motet.system.raised import brief
from motet.text import valid
from motet.world.contract import End, World, offers, picture_of
from motet.world.measured import EpisodeMetrics
from motet.world.objects import ObjectEnvironment
from motet.world.spaces import InvalidValue, action_checker, freeze, observation_caster, thaw

if TYPE_CHECKING:
    from gymnasium import Space
    from numpy.typing import NDArray

__all__ = ["AtOnce", "Duel", "InTurn", "Solo"]


class _Adapter(World):
    """Base of the adapters: names, spaces, rewards that were not collected yet, and the form of errors."""

    def __init__(self, env: Any) -> None:
        kind = type(env).__name__
        names = getattr(env, "possible_agents", None)
        if not names:
            raise SettingError(
                f"possible_agents must name all agents that may ever act in an episode, got a {kind} without it; set "
                "it when the environment is made, because each agent needs a learner and a replay"
            )
        self._env = env
        self._names = tuple(names)
        self.agents = tuple(valid(str(name)) for name in names)
        if len(set(self.agents)) != len(self.agents):
            raise SettingError(f"possible_agents of {kind} must have different names, got {self.agents}")
        self._index = {name: agent for agent, name in enumerate(self._names)}
        given = tuple(env.observation_space(name) for name in self._names)
        self.action_spaces = tuple(env.action_space(name) for name in self._names)
        # An action mask that is part of the observation is removed from it.
        self._split = tuple("action_mask" in (getattr(space, "spaces", None) or ()) for space in given)
        self.observation_spaces = tuple(
            _without_mask(space) if split else space for space, split in zip(given, self._split, strict=True)
        )
        self._take = tuple(observation_caster(space, "the observation") for space in given)
        self._give = tuple(action_checker(space) for space in self.action_spaces)
        self._mask_forms = tuple(mask_form(space) for space in self.action_spaces)
        # Look at the class, not the object: a PettingZoo wrapper forwards the methods of the environment inside, which
        # do not save the wrapper's state.
        inner = type(env.env) if isinstance(env, Solo) else type(env)
        self.can_save = hasattr(inner, "get_state") and hasattr(inner, "set_state")
        self.stage_of = _of_wrapped(env, "stage_of")
        self._seed: int | None = None
        self._resets = 0  # number of resets without a seed since the last reset with a seed
        self._measured = EpisodeMetrics(self._kind())
        self._begin()

    def _begin(self) -> None:
        count = len(self.agents)
        self._step = 0
        self._group: tuple[int, ...] = ()
        self._owed = [0.0] * count
        self._over = [False] * count
        self._seen: list[Any] = [None] * count  # last observations by agent; in InTurn only those of agents that ended
        self._masks: list[Any] = [None] * count  # the action masks of these observations
        self._ends: list[End] = []
        self._measured.clear()

    def metrics(self) -> Mapping[str, float]:
        return self._measured.means()

    def set_stage(self, stage: str) -> None:
        told = _of_wrapped(self._env, "set_stage")
        if told is None:
            return
        try:
            told(stage)
        except Exception as error:
            raise self._error(f"set_stage({stage!r}) raised {_named(error)}") from error

    def _whose(self, agent: int) -> str:
        """Return the name under which an agent's metrics are shown; empty for the only agent of a world."""
        return self.agents[agent] if len(self.agents) > 1 else ""

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
        except InvalidValue as invalid:
            raise self._error(f"{invalid}", agent) from None
        if self._split[agent]:
            del full["action_mask"]
            if full.keys() == {"observation"}:
                return full["observation"]
        return full

    def mask(self, agent: int) -> Nest:
        given = self._take_mask(agent) if self._split[agent] else self._masks[agent]
        if given is None:
            return None
        form = self._mask_forms[agent]
        try:
            return form.nest(form.flat(given, "action_mask"))
        except SpecError as error:
            raise self._error(f"{error}; the action space is {self.action_spaces[agent]}", agent) from None

    def _take_mask(self, agent: int) -> Any:
        raw = self._raw(agent)
        if isinstance(raw, Mapping) and "action_mask" in raw:
            return raw["action_mask"]
        raise self._error(f"the observation is {brief(raw)}; expected a dict with an action_mask", agent)

    def _raw(self, agent: int) -> Any:
        """Return an agent's observation as the environment gave it."""
        raise NotImplementedError

    def get_state(self) -> Any:
        if not self.can_save:
            super().get_state()
        seen = tuple(
            None if raw is None else freeze(take(raw)) for take, raw in zip(self._take, self._seen, strict=True)
        )
        masks = tuple(
            freeze(map_nest(lambda part: None if part is None else np.array(part), mask)) for mask in self._masks
        )
        ends = tuple(tuple(end[:3]) for end in self._ends)
        counts = (self._step, self._seed, self._resets)
        return (self._env.get_state(), counts, self._group, tuple(self._owed), tuple(self._over), ends, seen, masks,
                self._measured.get_state())  # fmt: skip

    def set_state(self, state: Any) -> None:
        if not self.can_save:
            super().set_state(state)
        inner, counts, group, owed, over, ends, seen, masks, *rest = state
        self._measured.set_state(rest[0] if rest else ())  # older states do not contain metrics
        self._env.set_state(inner)
        self._step, self._seed, self._resets = counts
        self._group = tuple(group)
        self._owed, self._over = list(owed), list(over)
        self._ends = [End(*end) for end in ends]
        self._seen, self._masks = [thaw(raw) for raw in seen], [thaw(mask) for mask in masks]

    def render(self) -> NDArray[np.uint8] | None:
        try:
            picture = self._env.render()
        except NotImplementedError:  # raised by PettingZoo's default method
            return None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        self._env.close()

    def _kind(self) -> str:
        """Return the name of the environment's class."""
        env = self._env
        if isinstance(env, Solo):
            env = env.env
        elif isinstance(env, ObjectEnvironment):
            env = env.environment
        return type(env).__name__

    def _error(self, text: str, agent: int | None = None, action: Any = None) -> WorldError:
        who = "" if agent is None else f"agent {self.agents[agent]}, "
        seed = f"seed {self._seed}" if self._resets == 0 else f"no seed, reset {self._resets} after seed {self._seed}"
        did = "" if action is None else f", action {brief(action)}"
        return WorldError(f"{self._kind()} ({who}step {self._step}, {seed}{did}): {text}")

    def _checked(self, actions: Sequence[Any]) -> list[Any]:
        """Return the actions of the group in the form that the environment takes."""
        group = self._group
        if len(actions) != len(group):
            over = "" if group else ", because no episode is running; call reset() first"
            raise self._error(f"act() got {len(actions)} actions; expected {len(group)}{over}")
        chosen = []
        for agent, action in zip(group, actions, strict=True):
            try:
                chosen.append(self._give[agent](action))
            except InvalidValue as invalid:
                raise self._error(f"{invalid}", agent) from None
        return chosen

    def _refuse_name(self, name: Any) -> NoReturn:
        raise self._error(f"unknown agent {name!r}; expected one of possible_agents, {self.agents}")

    def _back(self, agent: int) -> NoReturn:
        raise self._error(
            "the agent has to act again after its episode ended; expected it to stay out until reset(). End an agent's "
            "episode only when it leaves for good, or give the new agent another name",
            agent,
        )


def _without_mask(space: Any) -> Space[Any]:
    from gymnasium import spaces

    rest = {key: part for key, part in space.spaces.items() if key != "action_mask"}
    if not rest:
        raise SettingError(f"the observation space must have more than the action mask, got {space}")
    return rest["observation"] if rest.keys() == {"observation"} else spaces.Dict(rest)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _of_wrapped(env: Any, name: str) -> Any:
    """Return an attribute of an environment, or of one inside its wrappers; None if there is none."""
    while env is not None:
        if (found := getattr(env, name, None)) is not None:
            return found
        env = getattr(env, "env", None)
    return None


class InTurn(_Adapter):
    """A PettingZoo AEC environment: a group is the one agent whose turn it is.

    ``_cumulative_rewards`` of an agent is the sum of its rewards since its last action; its own step starts the sum at
    zero. An agent's end is reported when its turn comes, so that its reward includes what other agents' steps gave it
    until then. This class also makes the ``step(None)`` that removes the agent.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._singles = tuple((agent,) for agent in range(len(self.agents)))

    def _begin(self) -> None:
        super()._begin()
        self._asked = [0.0] * len(self.agents)  # the part of _cumulative_rewards that reward() has returned
        self._acted = [False] * len(self.agents)
        self._seen_last: tuple[int, int, Any] = (-1, -1, None)  # agent, step, observation

    def reset(self, seed: int | None = None) -> None:
        self._reset(seed)
        self._select()

    def act(self, actions: Sequence[Any]) -> None:
        env = self._env
        try:  # a hot path of the actor: avoid calls that are not needed
            (agent,), (action,) = self._group, actions
            chosen = self._give[agent](action)
        except (ValueError, InvalidValue):
            self._checked(actions)  # raises an error with the reason
            return  # not an error: the group and the actions are empty
        rest = env._cumulative_rewards[self._names[agent]] - self._asked[agent]
        if rest:  # reward() was not called for this agent before this action
            self._owed[agent] += float(rest)
        self._asked[agent] = 0.0
        self._acted[agent] = True
        try:
            env.step(chosen)
        except Exception as error:
            raise self._error(f"step() raised {_named(error)}", agent, chosen) from error
        self._step += 1
        info = env.infos.get(self._names[agent])
        if info and "metrics" in info:
            self._measured.add(info, self._whose(agent))
        self._select()

    def unread_reward(self, agent: int) -> float:
        if self._over[agent]:
            return self._owed[agent]
        total = float(self._env._cumulative_rewards.get(self._names[agent], 0.0))
        return self._owed[agent] + (total - self._asked[agent])

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

    def mask(self, agent: int) -> Nest:
        if not self._over[agent]:
            info = self._env.infos.get(self._names[agent])
            self._masks[agent] = info.get("action_mask") if info else None
            if self._masks[agent] is None and not self._split[agent]:
                return None
        return super().mask(agent)

    def set_state(self, state: Any) -> None:
        own, (asked, acted) = state
        super().set_state(own)
        self._asked, self._acted, self._seen_last = list(asked), list(acted), (-1, -1, None)

    def get_state(self) -> Any:
        return (super().get_state(), (tuple(self._asked), tuple(self._acted)))

    def _raw(self, agent: int) -> Any:
        if self._over[agent]:
            return self._seen[agent]
        if not self._split[agent]:
            return self._observation(agent)
        if self._seen_last[:2] != (agent, self._step):  # one call of observe() serves observation and mask
            self._seen_last = (agent, self._step, self._observation(agent))
        return self._seen_last[2]

    def _observation(self, agent: int) -> Any:
        try:
            return self._env.observe(self._names[agent])
        except Exception as error:
            raise self._error(f"observe() raised {_named(error)}", agent) from error

    def _select(self) -> None:
        """Find the agent whose turn it is. Close and remove the agents that ended before it."""
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
                self._refuse_name(env.agent_selection)
            raise self._error(
                f"reading agents, agent_selection, terminations and truncations raised {_named(error)}; expected all "
                "four to be valid after reset() and step()"
            ) from error
        self._group = ()
        for agent, acted in enumerate(self._acted):
            if acted and not self._over[agent]:
                raise self._error(
                    "the agent is gone from agents without a termination or truncation; expected one of them to be "
                    "set, and the agent to stay in agents until its step(None)",
                    agent,
                )

    def _see_off(self, agent: int, name: Any) -> None:
        env = self._env
        if self._over[agent]:
            self._back(agent)
        end = End(agent, bool(env.terminations[name]), bool(env.truncations[name]))
        try:
            self._seen[agent] = self._take[agent](self._observation(agent))
        except InvalidValue as invalid:
            raise self._error(f"at its end {invalid}", agent) from None
        self._masks[agent] = (env.infos.get(name) or {}).get("action_mask")
        self._owed[agent] += float(env._cumulative_rewards[name]) - self._asked[agent]
        self._over[agent] = True
        self._ends.append(end)
        try:
            env.step(None)
        except Exception as error:
            raise self._error(f"step(None), after its end, raised {_named(error)}", agent) from error
        if name in env.agents:
            raise self._error("the agent is still in agents after its step(None); expected it to be removed", agent)


class AtOnce(_Adapter):
    """A PettingZoo Parallel environment: a group is all agents that are alive.

    The agents of a group are always in the order of ``possible_agents``, even if the environment lists them in another
    order.
    """

    def reset(self, seed: int | None = None) -> None:
        result = self._reset(seed)
        try:
            seen, infos = result
        except (TypeError, ValueError):
            raise self._error(f"reset() returned {brief(result)}; expected observations and infos") from None
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
                f"step() returned {brief(result)}; expected observations, rewards, terminations, truncations and infos"
            ) from None
        self._receive(seen, infos)
        owed, index = self._owed, self._index
        for name, reward in rewards.items():
            agent = index[name] if name in index else self._refuse_name(name)
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

    def unread_reward(self, agent: int) -> float:
        return self._owed[agent]

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
            raise self._error(
                "the agent has no observation; expected one from reset(), or from the step() that added it", agent
            )
        return raw

    def _receive(self, seen: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        over, index = self._over, self._index
        for name, raw in seen.items():
            agent = index[name] if name in index else self._refuse_name(name)
            if not over[agent]:
                self._seen[agent] = raw
        for name, info in infos.items():
            agent = index.get(name, -1)  # infos may hold more than agents
            if agent >= 0 and not over[agent]:
                self._masks[agent] = info.get("action_mask") if info else None
            if info and "metrics" in info:
                self._measured.add(info, self._whose(agent) if agent >= 0 else "")

    def _close(self, seen: Mapping[Any, Any], terminated: Mapping[Any, Any], truncated: Mapping[Any, Any]) -> None:
        """Keep the last observations of the agents whose episode ended in this step, and report their ends."""
        for agent, name in enumerate(self._names):
            end = End(agent, bool(terminated.get(name, False)), bool(truncated.get(name, False)))
            if self._over[agent] or not (end.terminated or end.truncated):
                continue
            if name not in seen:
                raise self._error("the agent ended without an observation; expected its last one from step()", agent)
            try:
                self._seen[agent] = self._take[agent](seen[name])
            except InvalidValue as invalid:
                raise self._error(f"at its end {invalid}", agent) from None
            self._over[agent] = True
            self._ends.append(end)

    def _regroup(self) -> None:
        before, ended_now = self._group, {end.agent for end in self._ends}
        self._listed = list(self._env.agents)
        alive = []
        for name in self._listed:
            agent = self._index[name] if name in self._index else self._refuse_name(name)
            if not self._over[agent]:
                alive.append(agent)
            elif agent not in before and agent not in ended_now:
                self._back(agent)
        self._group = tuple(sorted(alive))
        for agent in before:
            if not self._over[agent] and agent not in alive:
                raise self._error(
                    "the agent is gone from agents without a termination or truncation; expected one of them to be set",
                    agent,
                )


class Solo:
    """A Gymnasium environment as a Parallel environment with a single agent."""

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
        return picture_of(self.env)

    def close(self) -> None:
        self.env.close()


class Duel(Solo):
    """A Gymnasium environment with two players, in the form of laser hockey, as a Parallel environment.

    ``step`` takes the concatenated actions of both players and returns the results of player one. Those of player two
    come from ``obs_agent_two()``, ``get_info_agent_two()`` and ``get_reward_agent_two(info)``, which some environments
    call ``get_reward_two``. Such environments also terminate when time is up: an end whose info has ``winner`` 0 is
    therefore reported as a truncation. If the players take turns to start (``one_starts``), the seed decides which one
    does, so that the same seed gives the same episode.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._both = env.unwrapped if hasattr(env, "unwrapped") else env
        known = [name for name in ("get_reward_agent_two", "get_reward_two") if offers(self._both, name)]
        missing = [] if offers(self._both, "get_info_agent_two") else ["get_info_agent_two"]
        missing += [] if known else ["get_reward_agent_two"]
        if missing:
            raise SettingError(
                f"{type(self._both).__name__} has obs_agent_two, so it must have {' and '.join(missing)} too, for the "
                "info and the reward of the second player"
            )
        self._reward_two = getattr(self._both, known[0])
        self.possible_agents = ["player_0", "player_1"]
        self._halves = _halves(env.action_space)

    def action_space(self, agent: str) -> Any:
        return self._halves[self.possible_agents.index(agent)]

    def reset(self, seed: int | None = None) -> Any:
        if seed is not None and hasattr(self._both, "one_starts"):
            self._both.one_starts = seed % 2 == 0  # reset() inverts it
        seen, info = self.env.reset(seed=seed)
        self.agents = self.possible_agents[:]
        return self._for_both(seen, self._both.obs_agent_two()), self._for_both(info, self._both.get_info_agent_two())

    def step(self, actions: Mapping[str, Any]) -> Any:
        joint = np.concatenate([actions[name] for name in self.possible_agents])
        seen, reward, terminated, truncated, info = self.env.step(joint)
        other = self._both.get_info_agent_two()
        if terminated and info.get("winner") == 0:
            terminated, truncated = False, True
        if terminated or truncated:
            self.agents = []
        return (
            self._for_both(seen, self._both.obs_agent_two()),
            self._for_both(reward, self._reward_two(other)),
            self._for_both(terminated, terminated),
            self._for_both(truncated, truncated),
            self._for_both(info, other),
        )

    def _for_both(self, first: Any, second: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, (first, second), strict=True))


def _halves(space: Any) -> tuple[Any, Any]:
    """Return the two players' action spaces, the halves of the joint one."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or space.shape[0] % 2:
        raise SettingError(f"the action space of two players must be a one-dimensional Box of even length, got {space}")
    half = space.shape[0] // 2
    first, second = (
        spaces.Box(space.low[part], space.high[part], dtype=space.dtype.type)
        for part in (slice(None, half), slice(half, None))
    )
    return first, second

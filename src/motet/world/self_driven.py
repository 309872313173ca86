"""Object gridworlds that play their own turns: the environment's ``take_turn``, or its agents' ``transition``.

The user's code runs on a stack of its own (a greenlet). Where an agent is asked for an action, control passes to
whoever drives the World; ``act`` passes the action back, and the user's code continues after its question. So every
rule of the user's turn holds: order, limits, freezing, counters, agents that come and go.

Flows in: what the user's methods are called with and return; they are watched on the objects (:class:`_Watched`), whose
classes stay as they are. Flows out: questions (the group), rewards, ends.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from greenlet import GreenletExit, getcurrent, greenlet

from motet.errors import SettingError
from motet.streams import global_streams_kept
from motet.system.raised import brief
from motet.world.contract import End, offers
from motet.world.objects import Learners, ObjectEnvironment, ended_itself, entity_transitions, mark_done
from motet.world.pettingzoo import _Adapter, _named

__all__ = ["Ask", "SelfDriven"]

Ask = Literal["get_action", "take_action"]
"""Where an agent is asked: ``agent.get_action(...)`` or ``agent.model.take_action(...)``."""

_SILENT_TURNS = 1000
"""Turns without a question before an environment without a limit of turns is taken to be stuck."""
_SILENT_EPISODES = 100
"""Episodes without a question before an environment is taken to be stuck."""


class _Watched:
    """A method of an agent or of its model, on the object itself, watched by the world that plays it.

    A copy of the object gets a watched method of its own. What is pickled is the user's method.
    """

    __slots__ = ("_own", "agent", "method", "name", "note", "owner")

    def __init__(self, owner: Any, name: str, agent: int, note: Callable[..., Any], own: Any = None) -> None:
        self.owner, self.name, self.agent, self.note = owner, name, agent, note
        self._own = own  # set on the object by the user
        self.method: Callable[..., Any] = _users(owner, name, own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.note(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(self.owner))  # deepcopy notes the new object before it copies what the old one holds
        if twin is None:
            return self
        return _Watched(twin, self.name, self.agent, self.note, copy.deepcopy(self._own, memo))

    def __reduce__(self) -> Any:
        return _users, (self.owner, self.name, self._own)


def _users(owner: Any, name: str, own: Any) -> Any:
    """The user's method: set on the object, or of its class and bound to the object."""
    return inspect.getattr_static(type(owner), name).__get__(owner, type(owner)) if own is None else own


def _watched(owner: Any, name: str) -> bool:
    """Whether this object's own method is watched; that of a shallow copy is not."""
    held = getattr(owner, "__dict__", {}).get(name)
    return isinstance(held, _Watched) and held.owner is owner


def _watch(owner: Any, name: str, agent: int, note: Callable[..., Any]) -> None:
    """Let ``note`` be called in place of ``owner.name``."""
    held = getattr(owner, "__dict__", {}).get(name)
    own = held._own if isinstance(held, _Watched) else held
    try:
        setattr(owner, name, _Watched(owner, name, agent, note, own))
    except (TypeError, AttributeError) as error:
        raise SettingError(
            f"{name} must be of a class without __slots__ to be watched, got one of {type(owner).__name__} ({error})"
        ) from error


class _Cast(ObjectEnvironment):
    """Who is played, and where each of them is asked."""

    def __init__(
        self, environment: Any, actions: Any, observation: Any, turns: float | None, learners: Learners, ask: Ask | None
    ) -> None:
        if ask not in (None, "get_action", "take_action"):
            raise SettingError(f"ask must be 'get_action', 'take_action' or None, got {ask!r}")
        self._ask = ask
        super().__init__(environment, actions, observation, turns, learners)

    def playable(self, agents: Sequence[Any], learners: Learners) -> Learners:
        if learners is not None:
            return learners
        return [index for index, agent in enumerate(agents) if not self.lacks(agent)] or None

    def lacks(self, agent: Any) -> list[str]:
        lacking = [] if offers(agent, "pov") else ["pov"]
        if self.question(agent) is None:
            lacking.append({"take_action": "model.take_action"}.get(self._ask or "", "get_action"))
        return lacking

    def question(self, agent: Any) -> Ask | Literal["act"] | None:
        """Where an agent is asked; ``act``: it has no turn of its own, and motet plays it."""
        if self._ask != "take_action" and offers(agent, "get_action"):
            return "get_action"
        if self._ask != "get_action" and offers(getattr(agent, "model", None), "take_action"):
            return "take_action"
        alone = not offers(self.environment, "take_turn") and not offers(agent, "transition")
        return "act" if alone and offers(agent, "act", "is_done") else None


class SelfDriven(_Adapter):
    """An object gridworld whose own rules play the turns."""

    each_turn: Callable[[], None] | None = None
    """Called before each turn and after the last one, for pictures."""
    playing = False
    """Whether there will be another turn."""

    def __init__(
        self,
        environment: Any,
        actions: Any = None,
        observation: Any = None,
        turns: float | None = None,
        learners: Learners = None,
        ask: Ask | None = None,
        remember: bool = True,
    ) -> None:
        self._cast = _Cast(environment, actions, observation, turns, learners, ask)
        self._environment, self._remember = environment, remember
        self._number = {index: number for number, index in enumerate(self._cast.learners)}
        self._known = {id(agent): (index, agent) for index, agent in enumerate(environment.agents)}
        self._players: list[Any] = [None] * len(self._number)
        self._remembers = [False] * len(self._number)  # add_memory has been called, in any episode
        self._questions: list[str | None] = [None] * len(self._number)
        self._notes = (
            *(("pov", self._note_pov), ("act", self._note_act), ("is_done", self._note_is_done)),
            *(("add_memory", self._note_memory), ("transition", self._note_transition)),
        )
        self._game: greenlet | None = None
        self._abandoned = False
        take_turn = getattr(environment, "take_turn", None)
        self._take_turn: Callable[[], Any] = take_turn if callable(take_turn) else self._play_turn
        _check_signature(environment, self._take_turn)
        super().__init__(self._cast)

    # ---- the World

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode. A turn that is half played is abandoned: the rest of it does not run."""
        self._abandon()
        self._reset(seed)
        self._begin()  # what was noted while the user's reset() ran is of no turn
        try:
            self._watch_all()
        except RuntimeError as error:
            raise self._error(f"reset() left what cannot be played: {error}") from error
        self._ready = True

    def group(self) -> tuple[int, ...]:
        if self._ready:  # the first turn begins when somebody wants to know who acts, and may be watching
            self._ready = False
            self._begin_game()
        return self._group

    def act(self, actions: Sequence[Any]) -> None:
        chosen = self._checked(actions)
        if chosen:
            agent, self._group = self._group[0], ()
            self._step += 1
            self._resume(chosen[0], agent)

    def reward(self, agent: int) -> float:
        value = self._owed[agent]
        self._owed[agent] = 0.0
        if not math.isfinite(value):
            raise self._error(f"the reward is {value}; expected a finite number", agent)
        return value

    def close(self) -> None:
        self._abandon()
        super().close()

    def _raw(self, agent: int) -> Any:
        return self._seen[agent]

    def _begin(self) -> None:
        super()._begin()
        count = len(self.agents)
        self._ready = False
        self._turn = 0
        self._asked = False  # in this turn
        self._running: list[int] = []  # whose transition runs, the innermost last; -1: an agent that is not played
        self._looker = -1  # who computed a pov last
        self._last_seen: list[Any] = [None] * count  # and what it saw
        self._open = [False] * count  # it was asked, and its row is not closed
        self._stray = [0.0] * count  # earned while no row was open
        self._acted: list[list[Any]] = [[] for _ in range(count)]  # what act() gave since it was asked
        self._remembered: list[float | None] = [None] * count  # what it was given to remember since
        self._done: list[bool | None] = [None] * count  # what is_done() said since

    # ---- two stacks

    def _begin_game(self) -> None:
        for _ in range(_SILENT_EPISODES):
            self._abandoned, self._gradients = False, True
            self._game = greenlet(self._play)
            self._resume(None, None)
            if self._group or self._ends:
                return
            self.reset()  # nobody was asked in that episode: there is nothing to be seen of it
            self._ready = False
        raise self._error(f"nobody was asked for an action in {_SILENT_EPISODES} episodes; {_EXPECTED}")

    def _resume(self, answer: Any, agent: int | None) -> None:
        """Let the user's code continue, until its next question or to the end of the episode."""
        assert self._game is not None
        self._caller = self._game.parent = getcurrent()
        self._swap_gradients()
        try:
            self._game.switch(answer)
        except Exception as error:
            raise self._error(f"its turn raised {_named(error)}", agent, answer) from error
        finally:
            self._swap_gradients()

    def _abandon(self) -> None:
        """Leave a half-played turn. The user's cleanup blocks run, the rest of the turn does not."""
        game = self._game
        if game is None or game.dead:
            return
        self._abandoned = True
        self._caller = game.parent = getcurrent()
        self._swap_gradients()
        try:
            game.throw(GreenletExit)
        except Exception as error:
            raise self._error(f"leaving a half-played turn raised {_named(error)}") from error
        finally:
            self._game = None
            self._swap_gradients()

    def _swap_gradients(self) -> None:
        """Each side keeps its own ``torch.no_grad``: torch knows threads, but not the two stacks of one."""
        if (torch := sys.modules.get("torch")) is not None:
            enabled = torch.is_grad_enabled()
            if enabled != self._gradients:
                torch.set_grad_enabled(self._gradients)
                self._gradients = enabled

    def _ask(self, agent: int, observation: Any) -> Any:
        """An agent of the user's asks for an action."""
        if getcurrent() is not self._game:
            raise RuntimeError(f"{self.agents[agent]} was asked for an action outside of a turn")
        if self._abandoned:
            raise GreenletExit
        if self._open[agent]:
            self._settle(agent)
        if self._open[agent]:
            self._owed[agent] += self._earned(agent)
        self._owed[agent] += self._stray[agent]
        self._seen[agent], self._open[agent], self._stray[agent] = observation, True, 0.0
        self._acted[agent].clear()
        self._remembered[agent] = self._done[agent] = None
        self._group, self._asked = (agent,), True
        return self._caller.switch()

    # ---- the user's side

    def _play(self, _: Any) -> None:
        """Turn after turn, to the end of the episode."""
        environment, silent = self._environment, 0
        self.playing = True
        done_before = ended_itself(environment)  # and nobody cleared it: such a flag ends nothing
        while True:
            if self.each_turn is not None:
                self.each_turn()
            self._asked = False
            self._take_turn()
            if self._abandoned:  # the user's code caught what was to end it
                return
            self._turn += 1
            self._watch_all()
            for agent, is_open in enumerate(self._open):
                if is_open and not self._remembers[agent]:
                    self._settle(agent)
            silent = 0 if self._asked else silent + 1
            terminated = ended_itself(environment) and not done_before
            if terminated or self._turn == self._cast.turns or self._nobody_left(silent):
                break
        for agent, is_open in enumerate(self._open):
            if is_open:
                self._end(agent, terminated)
        if not terminated:
            mark_done(environment.world)
        self.playing = False
        if self.each_turn is not None:
            self.each_turn()

    def _nobody_left(self, silent: int) -> bool:
        """Without a limit of turns: whether all that acted have ended, and nobody was asked in a whole turn."""
        if not silent or math.isfinite(self._cast.turns):
            return False
        if silent == _SILENT_TURNS:
            raise RuntimeError(f"nobody was asked for an action in {_SILENT_TURNS} turns; {_EXPECTED}")
        return bool(self._step) and not any(self._open)

    def _play_turn(self) -> None:
        """The turn of an environment that has none: entities, then each agent's transition."""
        world, agents = self._environment.world, list(self._environment.agents)
        entity_transitions(self._environment, agents)
        for position, agent in enumerate(agents):
            number = self._number.get(self._index_of(agent, position, len(agents)))
            if offers(agent, "transition"):
                agent.transition(world)
            elif number is not None and self._questions[number] == "act":
                if self._open[number] or self._seen[number] is None:  # it is out after its end
                    agent.act(world, self._ask(number, agent.pov(world)))
                    self._settle(number)
            elif offers(agent, "pov", "get_action", "act"):
                agent.act(world, agent.get_action(agent.pov(world)))

    def _earned(self, agent: int) -> float:
        """What an agent earned since it was asked: what it was given to remember, else what ``act`` gave."""
        remembered = self._remembered[agent]
        if remembered is not None:
            return remembered
        return sum((_number(value, "act() gave") for value in self._acted[agent]), 0.0)

    def _settle(self, agent: int) -> None:
        """End an agent's segment if it was given nothing to remember, and is done."""
        if self._remembered[agent] is not None or not self._open[agent]:
            return
        done = self._done[agent]
        if done is None and offers(self._players[agent], "is_done"):
            done = bool(self._players[agent].is_done(self._environment.world))
        if done:
            self._end(agent, True)

    def _end(self, agent: int, terminated: bool) -> None:
        reward = self._owed[agent] + self._earned(agent)
        self._owed[agent], self._open[agent] = 0.0, False
        try:
            with global_streams_kept():
                self._seen[agent] = vars(self._players[agent])["pov"].method(self._environment.world)
        except Exception:
            if not terminated:
                raise
            # A dead agent often has no point of view. What follows a termination counts for nothing, so that what it
            # was asked with last will do.
        self._ends.append(End(agent, terminated, not terminated, reward, self.observe(agent)))

    # ---- what is watched

    def _watch_all(self) -> None:
        """Watch the agents as they are now: users make them anew, and copy them."""
        agents = list(self._environment.agents)
        for position, agent in enumerate(agents):
            number = self._number.get(self._index_of(agent, position, len(agents)), -1)
            if number >= 0:
                self._players[number] = agent
                self._watch_player(agent, number)
            elif offers(agent, "transition") and not _watched(agent, "transition"):
                _watch(agent, "transition", -1, self._note_transition)

    def _watch_player(self, agent: Any, number: int) -> None:
        if not _watched(agent, "pov"):  # and nothing else of it: all are watched together
            for name, note in self._notes:
                if offers(agent, name):
                    _watch(agent, name, number, note)
            self._questions[number] = self._cast.question(agent)
            if self._questions[number] == "get_action":
                _watch(agent, "get_action", number, self._note_get_action)
        if self._questions[number] == "take_action" and not _watched(agent.model, "take_action"):
            _watch(agent.model, "take_action", -1, self._note_take_action)

    def _index_of(self, agent: Any, position: int, count: int) -> int:
        """An agent's index in ``environment.agents`` after construction."""
        index, known = self._known.get(id(agent), (-1, None))
        if known is agent:
            return index
        held = getattr(agent, "__dict__", {}).get("pov")
        if isinstance(held, _Watched) and held.agent >= 0:
            return self._cast.learners[held.agent]
        if count == self._cast.count:
            return position
        raise RuntimeError(
            f"environment.agents holds {count} agents, one of them a new {type(agent).__name__}; expected "
            f"{self._cast.count} as at first, or the same objects, so that each agent can be recognised"
        )

    def _note_transition(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        self._running.append(call.agent)
        try:
            return call.method(*args, **kwargs)
        finally:
            self._running.pop()

    def _note_pov(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        seen = call.method(*args, **kwargs)
        self._looker, self._last_seen[call.agent] = call.agent, seen
        return seen

    def _note_act(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        reward = call.method(*args, **kwargs)
        self._acted[call.agent].append(reward)
        return reward

    def _note_is_done(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        done = call.method(*args, **kwargs)
        self._done[call.agent] = bool(done)
        return done

    def _note_memory(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        kept = call.method(*args, **kwargs) if self._remember else None
        names = tuple(inspect.signature(call.method).parameters) if kwargs else ()
        agent, (reward, done) = call.agent, _reward_and_done(names, args, kwargs)
        value = _number(reward, "add_memory() was given the reward")
        self._remembers[agent] = True
        if not self._open[agent]:
            self._stray[agent] += value
            return kept
        self._remembered[agent] = value + (self._remembered[agent] or 0.0)
        if done:
            self._end(agent, True)
        return kept

    def _note_get_action(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        self._players[call.agent] = call.owner
        return self._ask(call.agent, next(iter((*args, *kwargs.values())), self._last_seen[call.agent]))

    def _note_take_action(self, call: _Watched, *args: Any, **kwargs: Any) -> Any:
        agent = self._running[-1] if self._running else self._looker
        if agent < 0:  # an agent that motet does not play has the same model
            return call.method(*args, **kwargs)
        return self._ask(agent, self._last_seen[agent])


_EXPECTED = "expected take_turn(), or the transition() of an agent, to ask it by get_action() or model.take_action()"


def _check_signature(environment: Any, take_turn: Callable[..., Any]) -> None:
    try:
        inspect.signature(take_turn).bind()
    except TypeError as error:
        raise SettingError(
            f"take_turn of {type(environment).__name__} must take no argument that has no default, got "
            f"{inspect.signature(take_turn)}: {error}"
        ) from error


def _reward_and_done(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
    """What ``add_memory(state, action, reward, done)`` was given, by position or by its parameters' names."""
    given = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)) if kwargs else args
    if len(given) < 4:
        raise TypeError(f"add_memory() was given {len(given)} values; expected state, action, reward and done")
    return given[2], bool(given[3])


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} {brief(value)}; expected a number") from None

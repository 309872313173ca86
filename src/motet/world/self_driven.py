"""Object gridworlds that play their own turns: by the environment's ``take_turn``, or its agents' ``transition``.

The user's code runs on a separate stack (a greenlet). Where it asks an agent for an action, control passes to the
caller of the World. ``act`` passes the action back, and the user's code continues where it asked. So all rules of the
user's turn hold: order, limits, freezing, counters, agents that come and go.

This module reads the arguments and results of the user's methods, which are watched on the objects (:class:`_Watched`);
classes are not changed. From these it derives the group (the agent that is asked for an action), rewards and ends.
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
"""The method that asks for an agent's action: ``agent.get_action(...)`` or ``agent.model.take_action(...)``."""

_SILENT_TURNS = 1000
"""After this many turns without a request for an action, an environment without a turn limit counts as stuck."""
_SILENT_EPISODES = 100
"""After this many episodes without a request for an action, an environment counts as stuck."""


class _Watched:
    """Wraps a method of an agent or of its model, on the object itself, so that the world sees each call.

    A deep copy of the object gets its own watched method. Pickling keeps only the user's method.
    """

    __slots__ = ("_own", "agent", "method", "name", "note", "owner")

    def __init__(self, owner: Any, name: str, agent: int, note: Callable[..., Any], own: Any = None) -> None:
        self.owner, self.name, self.agent, self.note = owner, name, agent, note
        self._own = own  # a method that the user has set on the object
        self.method: Callable[..., Any] = _users(owner, name, own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.note(self, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo.get(id(self.owner))  # deepcopy enters the new object here before it copies the attributes
        if twin is None:
            return self
        return _Watched(twin, self.name, self.agent, self.note, copy.deepcopy(self._own, memo))

    def __reduce__(self) -> Any:
        return _users, (self.owner, self.name, self._own)


def _users(owner: Any, name: str, own: Any) -> Any:
    """Return the user's method: the method set on the object, or the method of its class, bound to the object."""
    return inspect.getattr_static(type(owner), name).__get__(owner, type(owner)) if own is None else own


def _watched(owner: Any, name: str) -> bool:
    """Whether this object's method is watched. A shallow copy holds the watched method of the original, which does not
    count."""
    held = getattr(owner, "__dict__", {}).get(name)
    return isinstance(held, _Watched) and held.owner is owner


def _watch(owner: Any, name: str, agent: int, note: Callable[..., Any]) -> None:
    """Have ``note`` called in place of ``owner.name``."""
    held = getattr(owner, "__dict__", {}).get(name)
    own = held._own if isinstance(held, _Watched) else held
    try:
        setattr(owner, name, _Watched(owner, name, agent, note, own))
    except (TypeError, AttributeError) as error:
        raise SettingError(
            f"{name} must belong to a class without __slots__, got one of {type(owner).__name__} ({error}); motet "
            "replaces the method on the object"
        ) from error


class _Cast(ObjectEnvironment):
    """The agents that motet plays, and the method by which each of them asks for actions."""

    def __init__(
        self,
        environment: Any,
        actions: Any,
        observation: Any,
        turns: float | None,
        learners: Learners,
        ask: Ask | None,
        render: Callable[[Any], Any] | None,
    ) -> None:
        if ask not in (None, "get_action", "take_action"):
            raise SettingError(f"ask must be 'get_action', 'take_action' or None, got {ask!r}")
        self._ask = ask
        super().__init__(environment, actions, observation, turns, learners, render)

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
        """Return the method by which an agent asks for actions; ``act``: it has none, and motet plays its turn."""
        if self._ask != "take_action" and offers(agent, "get_action"):
            return "get_action"
        if self._ask != "get_action" and offers(getattr(agent, "model", None), "take_action"):
            return "take_action"
        alone = not offers(self.environment, "take_turn") and not offers(agent, "transition")
        return "act" if alone and offers(agent, "act", "is_done") else None


class SelfDriven(_Adapter):
    """An object gridworld that plays its own turns."""

    each_turn: Callable[[], None] | None = None
    """Called before each turn and after the last one, to draw frames."""
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
        render: Callable[[Any], Any] | None = None,
    ) -> None:
        self._cast = _Cast(environment, actions, observation, turns, learners, ask, render)
        self._environment, self._remember = environment, remember
        self._number = {index: number for number, index in enumerate(self._cast.learners)}
        self._known = {id(agent): (index, agent) for index, agent in enumerate(environment.agents)}
        self._players: list[Any] = [None] * len(self._number)
        self._remembers = [False] * len(self._number)  # whether add_memory has been called in any episode
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
        """Begin an episode. An unfinished turn is abandoned: the rest of it does not run."""
        self._abandon()
        self._reset(seed)
        self._begin()  # drop what was noted during the user's reset(), because it belongs to no turn
        try:
            self._watch_all()
        except RuntimeError as error:
            raise self._error(f"the world cannot be played after reset(): {error}") from error
        self._ready = True

    def group(self) -> tuple[int, ...]:
        if self._ready:  # the first turn begins here and not in reset(), so that each_turn can be set in between
            self._ready = False
            self._begin_game()
        return self._group

    def act(self, actions: Sequence[Any]) -> None:
        chosen = self._checked(actions)
        if chosen:
            agent, self._group = self._group[0], ()
            self._step += 1
            self._resume(chosen[0], agent)

    def unread_reward(self, agent: int) -> float:
        return self._owed[agent]

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
        self._asked = False  # whether any agent was asked for an action in this turn
        # agents whose transition is running, innermost last; -1: an agent that motet does not play
        self._running: list[int] = []
        self._looker = -1  # the agent that computed a pov last
        self._last_seen: list[Any] = [None] * count  # by agent: the last pov that it computed
        self._open = [False] * count  # by agent: whether it was asked for an action whose row is not complete yet
        self._stray = [0.0] * count  # rewards earned between two rows
        self._acted: list[list[Any]] = [[] for _ in range(count)]  # results of act() since the agent was asked
        # rewards passed to add_memory() since the agent was asked
        self._remembered: list[float | None] = [None] * count
        self._done: list[bool | None] = [None] * count  # the last result of is_done() since the agent was asked

    # ---- two stacks

    def _begin_game(self) -> None:
        for _ in range(_SILENT_EPISODES):
            self._abandoned, self._gradients = False, True
            self._game = greenlet(self._play)
            self._resume(None, None)
            if self._group or self._ends:
                return
            self.reset()  # no agent was asked in this episode, so the caller would see nothing of the episode
            self._ready = False
        raise self._error(f"no agent was asked for an action in {_SILENT_EPISODES} episodes; {_EXPECTED}")

    def _resume(self, answer: Any, agent: int | None) -> None:
        """Run the user's code until it asks for the next action, or to the end of the episode."""
        assert self._game is not None
        self._caller = self._game.parent = getcurrent()
        self._swap_gradients()
        try:
            self._game.switch(answer)
        except Exception as error:
            raise self._error(f"the turn raised {_named(error)}", agent, answer) from error
        finally:
            self._swap_gradients()

    def _abandon(self) -> None:
        """Abandon an unfinished turn. The user's ``finally`` blocks run, the rest of the turn does not."""
        game = self._game
        if game is None or game.dead:
            return
        self._abandoned = True
        self._caller = game.parent = getcurrent()
        self._swap_gradients()
        try:
            game.throw(GreenletExit)
        except Exception as error:
            raise self._error(f"abandoning an unfinished turn raised {_named(error)}") from error
        finally:
            self._game = None
            self._swap_gradients()

    def _swap_gradients(self) -> None:
        """Switch ``torch.no_grad`` with the stack: torch keeps it by thread, and both stacks run in one thread."""
        if (torch := sys.modules.get("torch")) is not None:
            enabled = torch.is_grad_enabled()
            if enabled != self._gradients:
                torch.set_grad_enabled(self._gradients)
                self._gradients = enabled

    def _ask(self, agent: int, observation: Any) -> Any:
        """Ask for an agent's action on behalf of the user's code: pass control to the caller of the World."""
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
        """Play turns to the end of the episode."""
        environment, silent = self._environment, 0
        self.playing = True
        done_before = ended_itself(environment)  # a flag that reset() did not clear does not end the episode
        while True:
            if self.each_turn is not None:
                self.each_turn()
            self._asked = False
            self._take_turn()
            if self._abandoned:  # the user's code caught the GreenletExit
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
        """Without a turn limit: whether all agents that acted have ended, and none was asked in a whole turn."""
        if not silent or math.isfinite(self._cast.turns):
            return False
        if silent == _SILENT_TURNS:
            raise RuntimeError(f"no agent was asked for an action in {_SILENT_TURNS} turns; {_EXPECTED}")
        return bool(self._step) and not any(self._open)

    def _play_turn(self) -> None:
        """Play the turn of an environment without ``take_turn``: entities first, then each agent's transition."""
        world, agents = self._environment.world, list(self._environment.agents)
        entity_transitions(self._environment, agents)
        for position, agent in enumerate(agents):
            number = self._number.get(self._index_of(agent, position, len(agents)))
            if offers(agent, "transition"):
                agent.transition(world)
            elif number is not None and self._questions[number] == "act":
                # if neither holds, the agent has ended and does not act
                if self._open[number] or self._seen[number] is None:
                    agent.act(world, self._ask(number, agent.pov(world)))
                    self._settle(number)
            elif offers(agent, "pov", "get_action", "act"):
                agent.act(world, agent.get_action(agent.pov(world)))

    def _earned(self, agent: int) -> float:
        """Return an agent's reward since it was asked: the reward passed to ``add_memory``, else the one that ``act``
        returned."""
        remembered = self._remembered[agent]
        if remembered is not None:
            return remembered
        return sum((_number(value, "act() returned") for value in self._acted[agent]), 0.0)

    def _settle(self, agent: int) -> None:
        """End an agent's segment if ``is_done`` is true and ``add_memory`` was not called since the agent was asked."""
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
            # A dead agent often has no point of view. The observation after a termination is not used to bootstrap, so
            # the one that the agent was last asked with can stay.
        self._ends.append(End(agent, terminated, not terminated, reward, self.observe(agent)))

    # ---- what is watched

    def _watch_all(self) -> None:
        """Watch the present agents: the user's code may have replaced or copied them."""
        agents = list(self._environment.agents)
        for position, agent in enumerate(agents):
            number = self._number.get(self._index_of(agent, position, len(agents)), -1)
            if number >= 0:
                self._players[number] = agent
                self._watch_player(agent, number)
            elif offers(agent, "transition") and not _watched(agent, "transition"):
                _watch(agent, "transition", -1, self._note_transition)

    def _watch_player(self, agent: Any, number: int) -> None:
        if not _watched(agent, "pov"):  # then no method of this agent is watched: all of them are watched together
            for name, note in self._notes:
                if offers(agent, name):
                    _watch(agent, name, number, note)
            self._questions[number] = self._cast.question(agent)
            if self._questions[number] == "get_action":
                _watch(agent, "get_action", number, self._note_get_action)
        if self._questions[number] == "take_action" and not _watched(agent.model, "take_action"):
            _watch(agent.model, "take_action", -1, self._note_take_action)

    def _index_of(self, agent: Any, position: int, count: int) -> int:
        """Return an agent's index in ``environment.agents`` as it was after construction."""
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
            f"{self._cast.count} agents as at the start, or the same objects, so that each agent can be recognised"
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
        value = _number(reward, "add_memory() got the reward")
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


_EXPECTED = "expected take_turn(), or an agent's transition(), to call its get_action() or model.take_action()"


def _check_signature(environment: Any, take_turn: Callable[..., Any]) -> None:
    try:
        inspect.signature(take_turn).bind()
    except TypeError as error:
        raise SettingError(
            f"take_turn of {type(environment).__name__} must take no argument without a default, got "
            f"{inspect.signature(take_turn)}: {error}"
        ) from error


def _reward_and_done(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return reward and done of a call ``add_memory(state, action, reward, done)``, by position or by keyword."""
    given = (*args, *(kwargs[name] for name in names[len(args) :] if name in kwargs)) if kwargs else args
    if len(given) < 4:
        raise TypeError(f"add_memory() got {len(given)} values; expected state, action, reward and done")
    return given[2], bool(given[3])


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} {brief(value)}; expected a number") from None

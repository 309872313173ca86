"""Find all states of a model, breadth first, alone or over worker processes, into a :class:`Graph`.

The queue of states found but not yet asked about is worked through in order (``parallel.py``). A worker asks the
model for every joint action of every state in its part and sends back packed arrays: each successor once, distributions
that several joint actions share once. The caller looks the successors up, numbers the new ones as they come, and
appends them to the queue. So the order of discovery is that of a serial search, however the queue was cut and whoever
was quicker.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from motet import _native
from motet.errors import MemoryShortError, ModelError
from motet.placement import Cluster
from motet.plan.graph import Graph
from motet.plan.parallel import work_through, worker_team
from motet.plan.plain import encoded
from motet.plan.progress import Progress
from motet.system.machine import available_bytes, resident_bytes
from motet.system.memory import format_bytes

__all__ = ["enumerate_states"]

_TOLERANCE = 1e-9  # how far the sum of a distribution may be from 1
_CHECK_EVERY = 1 << 16  # new states between two checks of the memory that is left


def enumerate_states(
    model: Any,
    *,
    workers: int | None = None,
    max_states: int = 10_000_000,
    cycles: bool = False,
    rewards: bool = False,
    progress: Callable[[Progress], None] | None = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Graph:
    """Find everything that can happen from where ``model.reset()`` leaves the model.

    Args:
        model: see :class:`~motet.plan.Model`. Workers get a copy of it, once.
        workers: processes at most; None: one a core. Small models are enumerated in the caller alone, since it measures
            whether workers would help. The result is the same for any number.
        max_states: raise instead of going on beyond this.
        cycles: whether a state may come back; if not, that is an error that shows a cycle.
        rewards: whether to ask for ``transition_rewards`` and keep them.
        progress: is called now and then with how far it is.
        engine: where workers are: on this machine, or on a Ray cluster; the result is the same.
        cluster: which one; by default Ray starts on this machine.
        on_message: is called with one line if workers cannot be used, because the model cannot be sent to them or they
            cannot be started: the calling process then does all the work. By default it is a warning. If ``workers`` is
            given, that is an error instead.

    >>> from motet.worlds.rooms import Rooms
    >>> enumerate_states(Rooms("closet"))
    <Graph: 236 states, 1,110 transitions, 16 joint actions, 21 levels>
    """
    agents, actions = _agents_and_actions(model)
    humans, robots = _humans_and_robots(model, len(agents))
    has_goal_generator = _has_goal_generator(model)
    root = model.get_state()
    ask = _Ask(
        model=model,
        joint=list(itertools.product(*(range(count) for count in actions))),
        kind=type(root),
        durations=hasattr(model, "transition_durations"),
        agents=len(agents) if rewards else 0,
    )
    if rewards and not hasattr(model, "transition_rewards"):
        raise ModelError("rewards=True, but the model has no transition_rewards(state, actions, transitions)")
    found = _Found(root, max_states)
    began = time.perf_counter()

    def tick(done: int) -> None:
        if progress is not None:
            progress(Progress("enumerate", done, len(found.states), time.perf_counter() - began))

    with worker_team(workers, engine, cluster, on_message) as team:
        work_through(found.states, ask, found.take, workers=team, grows=True, tick=tick)
    coder = getattr(model, "encode_state", None)
    return _arranged(found, ask, cycles)(
        agents=agents,
        actions=actions,
        humans=humans,
        robots=robots,
        encode=encoded if coder is None else coder,
        coded_by_model=coder is not None,
        has_goal_generator=has_goal_generator,
    )


def _agents_and_actions(model: Any) -> tuple[tuple[str, ...], tuple[int, ...]]:
    for name in ("reset", "get_state", "set_state", "transition_probabilities", "agents", "action_space"):
        if not hasattr(model, name):
            raise ModelError(f"the model, a {type(model).__name__}, has no {name}: see motet.plan.Model")
    model.reset()
    keys = list(getattr(model, "possible_agents", model.agents))
    names = tuple(key if isinstance(key, str) else f"agent_{i}" for i, key in enumerate(keys))
    space = model.action_space
    if hasattr(space, "n"):
        spaces = [space] * len(keys)
    elif callable(space):
        spaces = [space(key) for key in keys]
    else:
        spaces = [space[key] for key in keys] if isinstance(space, dict) else list(space)
    if not keys or len(spaces) != len(keys) or not all(hasattr(one, "n") for one in spaces):
        raise ModelError(
            f"the model has agents {keys!r} and action_space {space!r}; expected at least one agent, and a space with "
            "n actions for all of them or for each"
        )
    return names, tuple(int(one.n) for one in spaces)


def _humans_and_robots(model: Any, agents: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    humans = tuple(sorted(getattr(model, "human_agent_indices", ())))
    robots = tuple(sorted(getattr(model, "robot_agent_indices", ())))
    if not all(0 <= index < agents for index in humans + robots) or len({*humans, *robots}) != len(humans + robots):
        raise ModelError(
            f"human_agent_indices are {humans}, robot_agent_indices {robots}; expected each of the agents 0 to "
            f"{agents - 1} at most once"
        )
    return humans, robots


def _has_goal_generator(model: Any) -> bool:
    try:
        return getattr(model, "possible_goal_generator", None) is not None
    except Exception as error:
        raise ModelError(f"possible_goal_generator raised {type(error).__name__}: {error}") from error


@dataclass
class _Packed:
    """What a part of the queue leads to."""

    successors: list[Any]  # each once, in the order in which they came up
    dists: NDArray[np.int64]  # [states of the part]: how many distributions
    lengths: NDArray[np.int64]  # [distributions]: how many transitions
    targets: NDArray[np.int32]  # [transitions]: which of the successors
    probabilities: NDArray[np.float64]
    durations: NDArray[np.float64]
    rewards: NDArray[np.float64]
    joint: NDArray[Any]  # [states of the part, joint actions]


@dataclass
class _Ask:
    """Asks the model about states; runs in workers too."""

    model: Any
    joint: list[tuple[int, ...]]
    kind: type
    durations: bool
    agents: int
    """How many agents' rewards to ask for; 0: none."""

    def __call__(self, states: Sequence[Any]) -> _Packed:
        numbers: dict[Any, int] = {}
        counts, lengths, joint = [], [], []
        flat: list[tuple[int, float, float, tuple[float, ...]]] = []
        ask, plain = self.model.transition_probabilities, not (self.durations or self.agents)
        for state in states:
            known: dict[Any, int] = {}  # distribution -> which of the state's
            ends = 0
            for actions in self.joint:
                try:
                    outcome = ask(state, list(actions))
                except Exception as error:
                    raise _raised("transition_probabilities", error, state, actions) from error
                if outcome is None:
                    ends += 1
                    joint.append(0)
                    continue
                if plain and len(outcome) == 1 and outcome[0][0] == 1.0:  # certain
                    target = self._target(numbers, outcome[0][1], state, actions)
                    if (which := known.get(target)) is None:
                        which = known[target] = len(known)
                        flat.append((target, 1.0, 0.0, ()))
                        lengths.append(1)
                else:
                    row = self._row(numbers, outcome, state, actions)
                    certain = plain and len(row) == 1
                    key = row[0][0] if certain else frozenset(row)
                    if (which := known.get(key)) is None:
                        which = known[key] = len(known)
                        flat.extend(row)
                        lengths.append(len(row))
                joint.append(which)
            if 0 < ends < len(self.joint):
                self._refuse_some_none(state, joint[-len(self.joint) :])
            counts.append(len(known))
        return self._packed(list(numbers), counts, lengths, flat, joint)

    def _packed(self, successors: list[Any], counts: Any, lengths: Any, flat: list[Any], joint: Any) -> _Packed:
        most = max(counts, default=0)
        width = np.uint8 if most <= 1 << 8 else np.uint16 if most <= 1 << 16 else np.uint32
        return _Packed(
            successors=successors,
            dists=np.array(counts, np.int64),
            lengths=np.array(lengths, np.int64),
            targets=np.array([row[0] for row in flat], np.int32),
            probabilities=np.array([row[1] for row in flat], np.float64),
            durations=np.array([row[2] for row in flat] if self.durations else [], np.float64),
            rewards=np.array([row[3] for row in flat], np.float64).reshape(-1, self.agents)
            if self.agents
            else np.empty((0, 0)),
            joint=np.array(joint, width).reshape(len(counts), len(self.joint)),
        )

    def _target(self, numbers: dict[Any, int], successor: Any, state: Any, actions: Sequence[int]) -> int:
        """Which of the part's successors this is."""
        if type(successor) is not self.kind:  # asked always: 3.0 would be found where 3 is
            raise ModelError(
                f"{_at(state, actions)} leads to {successor!r}, a {type(successor).__name__}; the first state is of "
                f"type {self.kind.__name__}: give all states one type, and one that can be hashed"
            )
        try:
            return numbers.setdefault(successor, len(numbers))
        except TypeError:
            raise ModelError(
                f"{_at(state, actions)} leads to {successor!r}, which cannot be hashed: a state is a tuple of numbers, "
                "strings or tuples, not a list, an array or a dict"
            ) from None

    def _row(
        self, numbers: dict[Any, int], outcome: Any, state: Any, actions: Sequence[int]
    ) -> list[tuple[int, float, float, tuple[float, ...]]]:
        """The transitions of one joint action, checked; those that cannot be distinguished are one."""
        try:
            chances = [(float(p), successor) for p, successor in outcome]
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"{_at(state, actions)}: given {outcome!r}, expected a list of (probability, successor), or None"
            ) from error
        total = math.fsum(p for p, _ in chances)
        if any(not p >= 0 for p, _ in chances) or abs(total - 1) > _TOLERANCE:
            raise ModelError(
                f"{_at(state, actions)}: the probabilities are {[p for p, _ in chances]}, with sum {total!r}; expected "
                "none negative, and the sum 1"
            )
        durations = self._extra("transition_durations", state, actions, outcome) if self.durations else None
        rewards = self._extra("transition_rewards", state, actions, outcome) if self.agents else None
        merged: dict[tuple[int, float, tuple[float, ...]], float] = {}
        for i, (p, successor) in enumerate(chances):
            if p == 0:
                continue
            duration = self._duration(durations[i], state, actions) if durations is not None else 0.0
            reward = tuple(float(r) for r in rewards[i]) if rewards is not None else ()
            if rewards is not None and len(reward) != self.agents:
                raise ModelError(f"{_at(state, actions)}: {len(reward)} rewards, expected one for each agent")
            key = (self._target(numbers, successor, state, actions), duration, reward)
            merged[key] = merged.get(key, 0.0) + p
        if len(merged) == 1:
            return [(target, 1.0, duration, reward) for target, duration, reward in merged]
        return [(target, p, duration, reward) for (target, duration, reward), p in merged.items()]

    def _extra(self, name: str, state: Any, actions: Sequence[int], outcome: Any) -> Any:
        try:
            values = getattr(self.model, name)(state, list(actions), outcome)
        except Exception as error:
            raise _raised(name, error, state, actions) from error
        if len(values) != len(outcome):
            raise ModelError(f"{_at(state, actions)}: {name} gave {len(values)} for {len(outcome)} transitions")
        return values

    def _duration(self, given: Any, state: Any, actions: Sequence[int]) -> float:
        duration = float(given)
        if not (duration >= 0 and math.isfinite(duration)):
            raise ModelError(f"{_at(state, actions)}: the duration is {given!r}; expected one from 0 on, and finite")
        return duration

    def _refuse_some_none(self, state: Any, joint: list[int]) -> None:
        none = [actions for actions in self.joint if self.model.transition_probabilities(state, list(actions)) is None]
        some = next(actions for actions in self.joint if actions not in none)
        raise ModelError(
            f"state {state!r}: None for the actions {list(none[0])}, but not for {list(some)}; None says that the "
            "state is terminal, whatever is done: let an action without effect lead back or on with probability 1"
        )


def _at(state: Any, actions: Sequence[int]) -> str:
    return f"state {state!r}, actions {list(actions)}"


def _raised(name: str, error: Exception, state: Any, actions: Sequence[int]) -> ModelError:
    return ModelError(f"{name} raised {type(error).__name__}: {error} ({_at(state, actions)})")


class _Found:
    """The states found so far and the packed answers, in the order of discovery."""

    def __init__(self, root: Hashable, most: int) -> None:
        try:
            self.index: dict[Any, int] = {root: 0}
        except TypeError:
            raise ModelError(
                f"the first state, {root!r}, cannot be hashed: a state is a tuple of numbers, strings or tuples, not a "
                "list, an array or a dict"
            ) from None
        self.states: list[Any] = [root]
        self.parts: list[tuple[_Packed, NDArray[np.int32]]] = []
        self.most, self.asked = most, 0
        self.check_at, self.bytes_before = _CHECK_EVERY, resident_bytes()

    def take(self, part: _Packed) -> None:
        """Number what is new."""
        index, states = self.index, self.states
        numbers = np.empty(len(part.successors), np.int32)
        count = len(states)
        for i, successor in enumerate(part.successors):
            number = index.setdefault(successor, count)
            if number == count:
                states.append(successor)
                count += 1
            numbers[i] = number
        part.successors = []
        successor = numbers[part.targets]
        part.targets = np.empty(0, np.int32)
        self.parts.append((part, successor))
        self.asked += len(part.dists)
        if count > self.most:
            raise ModelError(
                f"more than {self.most:,} states (max_states): {count:,} found, {count - self.asked:,} of them not yet "
                f"asked about, the last one {states[-1]!r}. Take a shorter horizon or a smaller model, or allow more"
            )
        if count >= self.check_at:
            self.check_at = count + _CHECK_EVERY
            self._check_memory(count)

    def _check_memory(self, count: int) -> None:
        """Raise while there is still room to do so, not when the kernel begins to kill."""
        left = available_bytes()
        each = (resident_bytes() - self.bytes_before) / max(self.asked, 1)
        needed = int(each * (count - self.asked) + each * count / 2)  # what is known to come, and putting it in order
        if left is not None and needed > left:
            raise MemoryShortError(
                f"{count:,} states found, at about {format_bytes(int(each))} each: at least {format_bytes(needed)} "
                f"more are needed, {format_bytes(left)} available. Take a shorter horizon or a smaller model"
            )


def _arranged(found: _Found, ask: _Ask, cycles: bool) -> Callable[..., Graph]:
    """Everything of the graph but the names: arrays in topological order."""

    def joined(parts: list[NDArray[Any]], dtype: Any) -> NDArray[Any]:
        return np.concatenate(parts) if parts else np.empty(0, dtype)

    parts = [part for part, _ in found.parts]
    counts = joined([part.dists for part in parts], np.int64)
    arrays: dict[str, NDArray[Any]] = {
        "lengths": joined([part.lengths for part in parts], np.int64),
        "successor": joined([successor for _, successor in found.parts], np.int32),
        "probability": joined([part.probabilities for part in parts], np.float64),
    }
    if ask.durations:
        arrays["duration"] = joined([part.durations for part in parts], np.float64)
    if ask.agents:
        arrays["reward"] = joined([part.rewards for part in parts], np.float64)
    joint = joined([part.joint for part in parts], np.uint8)
    found.parts.clear()
    states, levels = found.states, None
    depth = np.empty(len(states), np.int32)
    flat = {"dists": _ends(counts), "rows": _ends(arrays["lengths"])}
    reached = _native.graph_depths({**flat, **{k: arrays[k] for k in ("successor", "probability")}}, depth)
    if reached < len(states):
        if not cycles:
            raise ModelError(_cycle(states, flat["dists"], flat["rows"], arrays["successor"], depth))
    else:
        levels = _ends(np.bincount(depth))
        if (np.diff(depth) < 0).any():
            order = np.argsort(depth, kind="stable")
            counts, joint, arrays = _reordered(order, counts, joint, arrays)
            states = [states[i] for i in order.tolist()]
    index = found.index
    index.update({state: number for number, state in enumerate(states)})
    reward = np.ascontiguousarray(arrays["reward"].T) if ask.agents else None

    def make(**names: Any) -> Graph:
        return Graph(
            states=states,
            joint=joint,
            dists=_ends(counts),
            rows=_ends(arrays["lengths"]),
            successor=arrays["successor"],
            probability=arrays["probability"],
            duration=arrays.get("duration"),
            reward=reward,
            levels=levels,
            _index=index,
            **names,
        )

    return make


def _ends(counts: NDArray[Any]) -> NDArray[np.int64]:
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def _gathered(order: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the entries of groups stand once the groups are put in another order."""
    starts, sizes = _ends(counts)[:-1][order], counts[order]
    positions: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(starts - _ends(sizes)[:-1], sizes)
    return positions


def _reordered(
    order: NDArray[Any], counts: NDArray[np.int64], joint: NDArray[Any], arrays: dict[str, NDArray[Any]]
) -> tuple[NDArray[np.int64], NDArray[Any], dict[str, NDArray[Any]]]:
    """The same graph with state ``order[i]`` as number i."""
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    dists = _gathered(order, counts)
    transitions = _gathered(dists, arrays["lengths"])
    moved = {name: array[transitions] for name, array in arrays.items() if name != "lengths"}
    moved["successor"] = number[moved["successor"]]
    moved["lengths"] = arrays["lengths"][dists]
    return counts[order], joint[order], moved


def _cycle(
    states: list[Any],
    dists: NDArray[np.int64],
    rows: NDArray[np.int64],
    successor: NDArray[np.int32],
    depth: NDArray[np.int32],
) -> str:
    """Shows one cycle: every state without a depth has a predecessor without one, so going back must come round."""
    sources = np.repeat(np.arange(len(states)), np.diff(rows[dists]))
    stuck = (depth[sources] < 0) & (depth[successor] < 0)
    before = np.full(len(states), -1)
    before[successor[stuck]] = sources[stuck]
    at = int(successor[stuck][0])
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = int(before[at])
    way = list(seen)[seen[at] :][::-1]
    shown = [repr(states[i]) for i in (way if len(way) <= 6 else [*way[:3], *way[-2:]])]
    if len(way) > 6:
        shown.insert(3, f"… ({len(way) - 5} more)")
    return (
        "the model comes back to where it was:\n  "
        + "\n  -> ".join([*shown, shown[0]])
        + "\nPlanning backwards needs an end: count the steps in the state and let the last one be terminal, or give "
        "cycles=True and solve with a horizon"
    )

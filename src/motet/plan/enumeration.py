"""Find all states of a model by breadth-first search, in one process or with workers, and make a :class:`Graph`.

The queue of states that were found but not expanded yet is processed in order (``parallel.py``). A worker calls the
model for every joint action of every state in its part, and sends back packed arrays: each successor state once, and
each distribution once even if several joint actions share it. The calling process looks the successors up, numbers the
new ones in order, and appends them to the queue. So states are discovered in the order of a serial search, regardless
of how the queue was split and which worker was faster.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from motet import _native
from motet.errors import MemoryShortError, ModelError
from motet.placement import Cluster
from motet.plan.graph import Graph, group_ends, group_entries
from motet.plan.memory import Directory, allocated
from motet.plan.parallel import work_through, worker_team
from motet.plan.plain import encoded
from motet.plan.progress import Progress
from motet.system.machine import available_bytes, resident_bytes
from motet.system.memory import MappedFile, format_bytes
from motet.world.model import agents_and_actions, optional_attribute

__all__ = ["enumerate_states"]

_TOLERANCE = 1e-9  # maximum difference between 1 and the sum of a distribution
_MOST_JOINTS = 1 << 20  # maximum number of joint actions: the model is called for each of them in every state
_BLOCK = 1 << 16  # number of states that are sorted at a time
_CHECK_EVERY = 1 << 16  # number of new states between two checks of the available memory


def enumerate_states(
    model: Any,
    *,
    workers: int | None = None,
    max_states: int = 10_000_000,
    cycles: bool = False,
    rewards: bool = False,
    directory: Directory = None,
    progress: Callable[[Progress], None] | None = None,
    engine: Literal["processes", "ray"] = "processes",
    cluster: Cluster | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Graph:
    """Find all states that can be reached from the state after ``model.reset()``, and their transitions.

    Args:
        model: see :class:`~motet.plan.Model`. Each worker gets one copy of it.
        workers: maximum number of processes; None: one per core. The calling process measures whether workers would
            help, so small models are enumerated without them. The result is the same for any number.
        max_states: raise if there are more states than this.
        cycles: whether a state may be reached again from itself; if False, a cycle raises an error that shows it.
        rewards: whether to call ``transition_rewards`` and keep the rewards.
        directory: keep the arrays of the graph in nameless files on this file system instead of memory. The states
            themselves, and the index from state to number, remain in memory.
        progress: called from time to time with the progress.
        engine: where workers run: on this machine, or on a Ray cluster. The result is the same.
        cluster: the Ray cluster; by default Ray starts on this machine.
        on_message: called with one line if workers cannot be used, because the model cannot be sent to them or they
            cannot be started. The calling process then does all the work. By default a warning is issued. If
            ``workers`` is given, an error is raised instead.

    >>> from motet.worlds.rooms import Rooms
    >>> enumerate_states(Rooms("closet"))
    <Graph: 236 states, 1,110 transitions, 16 joint actions, 21 levels>
    """
    _, agents, actions = agents_and_actions(model)
    _check_joints(agents, actions)
    humans, robots = _humans_and_robots(model, len(agents))
    has_goal_generator = optional_attribute(model, "possible_goal_generator") is not None
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
    found = _Found(root, max_states, directory)
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


def _check_joints(agents: Sequence[str], actions: Sequence[int]) -> None:
    if math.prod(actions) > _MOST_JOINTS:
        counted = ", ".join(f"{name} {count}" for name, count in zip(agents, actions, strict=True))
        raise ModelError(
            f"the model must have at most {_MOST_JOINTS:,} joint actions, got {math.prod(actions):,}: {len(agents)} "
            f"agents with the action counts {counted}. Use fewer agents or actions"
        )


def _humans_and_robots(model: Any, agents: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    humans = tuple(sorted(optional_attribute(model, "human_agent_indices") or ()))
    robots = tuple(sorted(optional_attribute(model, "robot_agent_indices") or ()))
    if not all(0 <= index < agents for index in humans + robots) or len({*humans, *robots}) != len(humans + robots):
        raise ModelError(
            f"human_agent_indices are {humans}, robot_agent_indices {robots}; expected each of the agents 0 to "
            f"{agents - 1} at most once"
        )
    return humans, robots


@dataclass
class _Packed:
    """The transitions of the states in one part of the queue."""

    successors: list[Any]  # each once, in the order of their first occurrence
    dists: NDArray[np.int64]  # [states of the part]: number of distributions
    lengths: NDArray[np.int64]  # [distributions]: number of transitions
    targets: NDArray[np.int32]  # [transitions]: index into the successors
    probabilities: NDArray[np.float64]
    durations: NDArray[np.float64]
    rewards: NDArray[np.float64]
    joint: NDArray[Any]  # [states of the part, joint actions]


@dataclass
class _Ask:
    """Calls the model for all joint actions of some states; also runs in workers."""

    model: Any
    joint: list[tuple[int, ...]]
    kind: type
    durations: bool
    agents: int
    """Number of agents whose rewards are stored; 0: no rewards."""

    def __call__(self, states: Sequence[Any]) -> _Packed:
        numbers: dict[Any, int] = {}
        counts, lengths, joint = [], [], []
        flat: list[tuple[int, float, float, tuple[float, ...]]] = []
        ask, plain = self.model.transition_probabilities, not (self.durations or self.agents)
        for state in states:
            known: dict[Any, int] = {}  # distribution -> its number among those of the state
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
        """Index of a state among the successors of the part."""
        if type(successor) is not self.kind:  # checked here, since a dict does not distinguish 3.0 from 3
            raise ModelError(
                f"{_at(state, actions)} leads to {successor!r}, a {type(successor).__name__}, but the first state is "
                f"of type {self.kind.__name__}: all states must have the same hashable type"
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
        """The transitions of one joint action, checked; equal ones are merged."""
        try:
            chances = [(float(p), successor) for p, successor in outcome]
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"{_at(state, actions)}: expected a list of (probability, successor), or None, got {outcome!r}"
            ) from error
        total = math.fsum(p for p, _ in chances)
        if any(not p >= 0 for p, _ in chances) or abs(total - 1) > _TOLERANCE:
            raise ModelError(
                f"{_at(state, actions)}: the probabilities are {[p for p, _ in chances]}, with sum {total!r}; they "
                "must be >= 0 and have the sum 1"
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
                raise ModelError(f"{_at(state, actions)}: expected one reward for each agent, got {len(reward)}")
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
            raise ModelError(f"{_at(state, actions)}: {name} gave {len(values)} values for {len(outcome)} transitions")
        return values

    def _duration(self, given: Any, state: Any, actions: Sequence[int]) -> float:
        duration = float(given)
        if not (duration >= 0 and math.isfinite(duration)):
            raise ModelError(f"{_at(state, actions)}: the duration must be finite and >= 0, got {given!r}")
        return duration

    def _refuse_some_none(self, state: Any, joint: list[int]) -> None:
        none = [actions for actions in self.joint if self.model.transition_probabilities(state, list(actions)) is None]
        some = next(actions for actions in self.joint if actions not in none)
        raise ModelError(
            "transition_probabilities must return None for all joint actions of a state or for none of them, got None "
            f"in state {state!r} for the actions {list(none[0])}, but not for {list(some)}. None means that the state "
            "is terminal; for an action without effect, return one successor with probability 1"
        )


def _at(state: Any, actions: Sequence[int]) -> str:
    return f"state {state!r}, actions {list(actions)}"


def _raised(name: str, error: Exception, state: Any, actions: Sequence[int]) -> ModelError:
    return ModelError(f"{name} raised {type(error).__name__}: {error} ({_at(state, actions)})")


class _Growing:
    """An array to which rows are appended. It grows in place: joining parts at the end would need twice the memory, and
    leave gaps in it."""

    def __init__(self, dtype: DTypeLike, directory: Directory) -> None:
        self.data: NDArray[Any] = np.empty(0, dtype)
        self.count = 0
        self.directory = directory
        self.file = None if directory is None else MappedFile(directory)

    def append(self, rows: NDArray[Any]) -> None:
        if not self.count:
            self.data = np.empty((0, *rows.shape[1:]), rows.dtype)
        elif self.data.dtype.itemsize < rows.dtype.itemsize:
            self._widen(rows.dtype)
        needed = self.count + len(rows)
        if needed > len(self.data):
            self._resize(needed + needed // 8)
        self.data[self.count : needed] = rows
        self.count = needed

    def whole(self) -> NDArray[Any]:
        """The array, without room for more."""
        self._resize(self.count)
        return self.data

    def _resize(self, rows: int) -> None:
        shape = (rows, *self.data.shape[1:])
        if self.file is None:
            self.data.resize(shape, refcheck=False)
        else:
            self.data = self.file.array(shape, self.data.dtype)

    def _widen(self, dtype: np.dtype[Any]) -> None:
        narrow = self.data[: self.count]
        if self.directory is None:
            self.data = narrow.astype(dtype)
        else:
            self.file = MappedFile(self.directory)
            self.data = self.file.array(narrow.shape, dtype)
            self.data[:] = narrow


class _Found:
    """The states found so far, in the order of discovery, and the packed transitions."""

    def __init__(self, root: Hashable, most: int, directory: Directory) -> None:
        try:
            self.index: dict[Any, int] = {root: 0}
        except TypeError:
            raise ModelError(
                f"the first state, {root!r}, cannot be hashed: a state is a tuple of numbers, strings or tuples, not a "
                "list, an array or a dict"
            ) from None
        self.states: list[Any] = [root]
        self.directory = directory
        # numbers of distributions and of transitions
        self.counts, self.lengths = self._growing(np.int64), self._growing(np.int64)
        self.joint = self._growing(np.uint8)
        self.transitions = {"successor": self._growing(np.int32), "probability": self._growing(np.float64)}
        self.transitions |= {"duration": self._growing(np.float64), "reward": self._growing(np.float64)}
        self.most, self.asked = most, 0
        self.check_at, self.bytes_before = _CHECK_EVERY, resident_bytes(mapped=False)

    def _growing(self, dtype: DTypeLike) -> _Growing:
        return _Growing(dtype, self.directory)

    def take(self, part: _Packed) -> None:
        """Number the new states of a part, and keep its transitions."""
        index, states = self.index, self.states
        numbers = np.empty(len(part.successors), np.int32)
        count = len(states)
        for i, successor in enumerate(part.successors):
            number = index.setdefault(successor, count)
            if number == count:
                states.append(successor)
                count += 1
            numbers[i] = number
        self.counts.append(part.dists)
        self.lengths.append(part.lengths)
        self.joint.append(part.joint)
        self.transitions["successor"].append(numbers[part.targets])
        self.transitions["probability"].append(part.probabilities)
        self.transitions["duration"].append(part.durations)
        self.transitions["reward"].append(part.rewards)
        self.asked += len(part.dists)
        if count > self.most:
            raise ModelError(
                f"more than {self.most:,} states (max_states): {count:,} found, {count - self.asked:,} of them not yet "
                f"expanded, the last one {states[-1]!r}. Use a shorter horizon or a smaller model, or raise max_states"
            )
        if count >= self.check_at:
            self.check_at = count + _CHECK_EVERY
            self._check_memory(count)

    def _check_memory(self, count: int) -> None:
        """Raise before the memory runs out and the kernel kills the process."""
        left = available_bytes()
        each = (resident_bytes(mapped=False) - self.bytes_before) / max(self.asked, 1)
        needed = int(each * (count - self.asked) + each * count / 2)  # to expand the other states, and to sort
        if left is not None and needed > left:
            raise MemoryShortError(
                f"{count:,} states found, at about {format_bytes(int(each))} each: at least {format_bytes(needed)} "
                f"more needed, {format_bytes(left)} available. Use a shorter horizon or a smaller model"
                + (", or directory=… to keep arrays on a disk" if self.directory is None else "")
            )


def _arranged(found: _Found, ask: _Ask, cycles: bool) -> Callable[..., Graph]:
    """Bring the arrays into topological order. Return a function that makes the graph from the rest, such as names."""
    directory = found.directory
    counts, joint = found.counts.whole(), found.joint.whole()
    kept = ["successor", "probability", *(["duration"] if ask.durations else []), *(["reward"] if ask.agents else [])]
    arrays = {"lengths": found.lengths.whole()} | {name: found.transitions[name].whole() for name in kept}
    states, levels = found.states, None
    depth = np.empty(len(states), np.int32)
    dists, rows = group_ends(counts, directory), group_ends(arrays["lengths"], directory)
    transitions = {name: arrays[name] for name in ("successor", "probability")}
    reached = _native.graph_depths({"dists": dists, "rows": rows, **transitions}, depth)
    if reached < len(states):
        if not cycles:
            raise ModelError(_cycle(states, dists, rows, arrays["successor"], depth))
    else:
        levels = group_ends(np.bincount(depth))
        if (np.diff(depth) < 0).any():
            order = np.argsort(depth, kind="stable")
            joint, arrays = _reordered(order, dists, rows, joint, arrays, directory)
            dists, rows = group_ends(counts[order], directory), group_ends(arrays["lengths"], directory)
            states = [states[i] for i in order.tolist()]
            for number, state in enumerate(states):
                found.index[state] = number
    reward = np.ascontiguousarray(arrays["reward"].T) if ask.agents else None

    def make(**names: Any) -> Graph:
        return Graph(
            states=states,
            joint=joint,
            dists=dists,
            rows=rows,
            successor=arrays["successor"],
            probability=arrays["probability"],
            duration=arrays.get("duration"),
            reward=reward,
            levels=levels,
            _index=found.index,
            **names,
        )

    return make


def _reordered(
    order: NDArray[np.int64],
    dists: NDArray[np.int64],
    rows: NDArray[np.int64],
    joint: NDArray[Any],
    arrays: dict[str, NDArray[Any]],
    directory: Directory,
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """The same arrays after state ``order[i]`` has got the number i. Rows are moved block by block."""
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    whole = {"joint": joint, **arrays}
    purpose = f"the sorted transitions of {len(order):,} states"
    moved = allocated({name: (array.shape, array.dtype) for name, array in whole.items()}, purpose, directory)
    done = dict.fromkeys(whole, 0)
    for first in range(0, len(order), _BLOCK):
        block = order[first : first + _BLOCK]
        groups = group_entries(dists[block], dists[block + 1] - dists[block])
        entries = group_entries(rows[groups], arrays["lengths"][groups])
        for name, array in whole.items():
            part = array[block if name == "joint" else groups if name == "lengths" else entries]
            moved[name][done[name] : done[name] + len(part)] = number[part] if name == "successor" else part
            done[name] += len(part)
    return moved.pop("joint"), moved


def _cycle(
    states: list[Any],
    dists: NDArray[np.int64],
    rows: NDArray[np.int64],
    successor: NDArray[np.int32],
    depth: NDArray[np.int32],
) -> str:
    """Describe one cycle. Each state that has no depth has a predecessor without a depth, so the way back leads into a
    cycle."""
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
        "the model has a cycle:\n  "
        + "\n  -> ".join([*shown, shown[0]])
        + "\nBackward induction needs an end: count the steps in the state and make the last one terminal, or give "
        "cycles=True and use best_response with a horizon"
    )

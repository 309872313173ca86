"""Graph: all states that can be reached, and the successors of every joint action, in flat arrays.

``enumerate_states`` makes it, and everything else in ``plan`` reads it. States are numbered so that each level depends
only on later levels: the level of a state is the length of the longest path to it. Joint actions with the same
distribution over successor states share it: a state has some distributions (``dists``), a distribution has some
transitions (``rows``), and ``joint`` gives, for each joint action, which of the state's distributions applies.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from motet.errors import CorruptionError, ModelError, SettingError
from motet.plan.folder import read_folder, write_folder
from motet.plan.memory import Directory, allocated
from motet.plan.plain import decoded, encoded

__all__ = ["Graph", "Model", "group_ends", "group_entries"]

_FORMAT = 1


class Model(Protocol):
    """A model that can be planned with.

    It also needs ``action_space`` with ``n`` actions for every agent (or, as in PettingZoo, a function from the agent
    to its space, or one space for each agent). Optional: ``n_actions_per_agent``, where counts differ from those of
    ``action_space``; ``human_agent_indices`` and ``robot_agent_indices``;
    ``transition_durations(state, actions, transitions)``, one duration for each transition;
    ``transition_rewards(state, actions, transitions)``, for each transition one reward for each agent;
    ``possible_goal_generator``, whose ``generate(state, human)`` gives goals with weights;
    ``encode_state(state) -> bytes`` and ``decode_state(bytes) -> state`` for states that are not plain.
    """

    agents: Any

    def reset(self) -> Any:
        """Go to the initial state."""

    def get_state(self) -> Hashable:
        """The current state."""

    def set_state(self, state: Any) -> None:
        """Make this the current state."""

    def transition_probabilities(self, state: Any, actions: list[int]) -> Sequence[tuple[float, Any]] | None:
        """The possible successors as (probability, successor); None: the state is terminal, for all actions."""


class _Coded(Sequence[Any]):
    """States stored as bytes and decoded on access."""

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64], decode: Callable[[bytes], Any]) -> None:
        self.data, self.ends, self.decode = data, ends, decode

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError(at)
        return self.decode(self.data[self.ends[at - 1] if at else 0 : self.ends[at]].tobytes())


@dataclass(eq=False)
class Graph:
    """All reachable states and their transitions.

    >>> from motet.plan import enumerate_states
    >>> from motet.worlds.rooms import Rooms
    >>> graph = enumerate_states(Rooms("closet"))
    >>> len(graph), graph.number(graph.states[7]), graph.joints
    (236, 7, 16)
    """

    states: Sequence[Any]
    """The states by number; number 0 is the initial state."""
    agents: tuple[str, ...]
    actions: tuple[int, ...]
    """Number of actions of each agent."""
    humans: tuple[int, ...]
    robots: tuple[int, ...]
    joint: NDArray[Any]  # [states, joints]
    """Which of the state's distributions a joint action has. The last agent's action varies fastest."""
    dists: NDArray[np.int64]  # [states + 1]
    """The distributions of state s are ``dists[s]`` to ``dists[s + 1]``; a terminal state has none."""
    rows: NDArray[np.int64]  # [distributions + 1]
    """The transitions of distribution d are ``rows[d]`` to ``rows[d + 1]``."""
    successor: NDArray[np.int32]  # [transitions]
    probability: NDArray[np.float64]  # [transitions]
    duration: NDArray[np.float64] | None  # [transitions]
    reward: NDArray[np.float64] | None  # [agents, transitions]
    levels: NDArray[np.int64] | None  # [levels + 1]
    """Level l has the states ``levels[l]`` to ``levels[l + 1]``; None: the graph has cycles, and its states are
    numbered in the order of discovery."""
    encode: Callable[[Any], bytes] = encoded
    coded_by_model: bool = False
    has_goal_generator: bool = False
    """Whether the model had a ``possible_goal_generator``, which determines the default of ``Humans.achieved``."""
    _index: dict[Any, int] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.dists) - 1

    def __repr__(self) -> str:
        levels = "with cycles" if self.levels is None else f"{len(self.levels) - 1} levels"
        return (
            f"<Graph: {len(self):,} states, {len(self.successor):,} transitions, {self.joints} joint actions, {levels}>"
        )

    @property
    def joints(self) -> int:
        """Number of joint actions."""
        return math.prod(self.actions)

    @property
    def terminal(self) -> NDArray[np.bool_]:
        """Which states are terminal."""
        ends: NDArray[np.bool_] = self.dists[1:] == self.dists[:-1]
        return ends

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the states themselves."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The flat arrays by name."""
        names = ("joint", "dists", "rows", "successor", "probability", "duration", "reward", "levels")
        return {name: array for name in names if (array := getattr(self, name)) is not None}

    def number(self, state: Hashable) -> int:
        """The number of a state."""
        if not self._index:
            self._index.update({known: number for number, known in enumerate(self.states)})
        try:
            return self._index[state]
        except (KeyError, TypeError):
            raise SettingError(
                f"state {state!r} is not among the {len(self):,} reachable ones, such as {self.states[0]!r}: "
                "give a state that the same model reaches with the same settings"
            ) from None

    def agent(self, agent: int | str) -> int:
        """The index of an agent, given by index or name."""
        if isinstance(agent, str) and agent in self.agents:
            return self.agents.index(agent)
        if isinstance(agent, int) and 0 <= agent < len(self.agents):
            return agent
        raise SettingError(f"agent must be one of {', '.join(self.agents)} or its index, got {agent!r}")

    def joint_number(self, actions: Sequence[int]) -> int:
        """The number of a joint action, given one action of each agent."""
        return int(np.ravel_multi_index(tuple(actions), self.actions))

    def transitions(self, state: int, actions: Sequence[int]) -> list[tuple[float, int]]:
        """The successors of a joint action as (probability, state number); empty for a terminal state."""
        if self.dists[state] == self.dists[state + 1]:
            return []
        dist = self.dists[state] + int(self.joint[state, self.joint_number(actions)])
        part = slice(self.rows[dist], self.rows[dist + 1])
        return list(zip(self.probability[part].tolist(), self.successor[part].tolist(), strict=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the graph in a folder: arrays as ``.npy``, states as plain bytes; nothing is pickled."""
        write_folder(path, self.header(), {**self.arrays(), **self.coded()})

    def header(self) -> dict[str, Any]:
        """The JSON header that is saved with the arrays."""
        return {
            "kind": "graph",
            "format": _FORMAT,
            "agents": self.agents,
            "actions": self.actions,
            "humans": self.humans,
            "robots": self.robots,
            "coded_by_model": self.coded_by_model,
            "has_goal_generator": self.has_goal_generator,
        }

    def coded(self) -> dict[str, NDArray[Any]]:
        """The states as bytes, and the offset at which each ends."""
        if isinstance(self.states, _Coded):
            return {"states": self.states.data, "state_ends": self.states.ends}
        parts = [self.encode(state) for state in self.states]
        ends = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return {"states": np.frombuffer(b"".join(parts), np.uint8), "state_ends": ends}

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any = None) -> Graph:
        """Map a saved graph from disk. ``model`` is needed if it has its own ``encode_state``."""
        return cls.opened(*read_folder(path, "graph"), where=os.fspath(path), model=model)

    @classmethod
    def opened(cls, header: dict[str, Any], arrays: dict[str, NDArray[Any]], where: str, model: Any = None) -> Graph:
        """Make the graph from its header and arrays."""
        if header["format"] != _FORMAT:
            raise SettingError(f"{where!r} has format {header['format']}, this motet reads format {_FORMAT}")
        encode: Any = encoded
        decode: Any = decoded
        if header["coded_by_model"]:
            encode, decode = getattr(model, "encode_state", None), getattr(model, "decode_state", None)
            if encode is None or decode is None:
                raise ModelError(
                    f"the states in {where!r} were encoded by the model's encode_state: give model=…, with "
                    "encode_state and decode_state"
                )
        graph = cls(
            states=_Coded(arrays["states"], arrays["state_ends"], decode),
            agents=tuple(header["agents"]),
            actions=tuple(header["actions"]),
            humans=tuple(header["humans"]),
            robots=tuple(header["robots"]),
            joint=arrays["joint"],
            dists=arrays["dists"],
            rows=arrays["rows"],
            successor=arrays["successor"],
            probability=arrays["probability"],
            duration=arrays.get("duration"),
            reward=arrays.get("reward"),
            levels=arrays.get("levels"),
            encode=encode,
            coded_by_model=header["coded_by_model"],
            has_goal_generator=header.get("has_goal_generator", False),  # older files do not have this entry
        )
        graph.check(where)
        return graph

    def check(self, where: str) -> None:
        """Raise if an index is out of range. The native sweeps do not check indices."""
        states, dists = len(self), int(self.dists[-1])
        transitions = int(self.rows[-1]) if len(self.rows) else -1
        counts = np.diff(self.dists)
        good = (
            len(self.states) == states
            and self.joint.shape == (states, self.joints)
            and int(self.dists[0]) == int(self.rows[0]) == 0
            and bool((counts >= 0).all())
            and len(self.rows) == dists + 1
            and bool((np.diff(self.rows) > 0).all())
            and len(self.successor) == len(self.probability) == transitions
            and (transitions == 0 or 0 <= self.successor.min() <= self.successor.max() < states)
            and bool((self.joint.max(axis=1)[counts > 0] < counts[counts > 0]).all())
            and (self.levels is None or self._levels_hold())
        )
        if not good:
            raise CorruptionError(f"{where!r}: the arrays of the graph do not fit together; make the graph again")

    def _levels_hold(self) -> bool:
        """Whether every transition goes to a later level."""
        assert self.levels is not None
        if self.levels[0] != 0 or self.levels[-1] != len(self) or (np.diff(self.levels) <= 0).any():
            return False
        level = np.repeat(np.arange(len(self.levels) - 1), np.diff(self.levels))
        sources = np.repeat(level, np.diff(self.rows[self.dists]))
        return bool((level[self.successor] > sources).all())


def group_ends(counts: NDArray[Any], directory: Directory = None) -> NDArray[np.int64]:
    """Where each group of entries ends, given the numbers of their entries; 0 comes first.

    >>> group_ends(np.array([2, 0, 3]))
    array([0, 2, 2, 5])
    """
    shape = (len(counts) + 1,)
    ends: NDArray[np.int64] = allocated({"ends": (shape, np.int64)}, f"{len(counts):,} groups", directory)["ends"]
    np.cumsum(counts, out=ends[1:])
    return ends


def group_entries(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The positions of the entries of groups, given where each group starts and how many entries it has.

    >>> group_entries(np.array([7, 0]), np.array([2, 3]))
    array([7, 8, 0, 1, 2])
    """
    positions: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(starts - group_ends(sizes)[:-1], sizes)
    return positions

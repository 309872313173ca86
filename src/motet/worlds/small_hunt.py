"""A treasure hunt small enough to be solved: nothing appears, all that there is lies where the map says.

The rules are those of :class:`~motet.worlds.TreasureHunt`, in turn. As a model it moves one agent at a time: the state
says whose move it is, and the actions of the others have no effect, so that an exact best response knows what a learner
knows, namely what the agents before it have just done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.worlds.contract import WorldState
from motet.worlds.treasure_hunt import TreasureHunt

__all__ = ["SmallHunt"]

State = tuple[int, int, tuple[int, ...], bytes]
"""Turn, mover, tiles of the agents, kinds of all tiles."""

_FIRST = """
    A.g
    .b.
    f.A
"""


class SmallHunt(TreasureHunt):
    """The world, as a PettingZoo AEC environment and as a model for ``motet.plan``.

    Args:
        map: a square as text: ``A`` agent, ``g`` gem, ``f`` food, ``b`` bone, ``.`` nothing. A wall stands around it.
        turns: turns in an episode.
        radius: how many tiles an agent sees in each direction; None: the whole world, from wherever it stands.
        render_mode: ``rgb_array`` to draw pictures.

    >>> from motet.plan import best_response, enumerate_states
    >>> hunt = SmallHunt(turns=3)
    >>> graph = enumerate_states(hunt, rewards=True)
    >>> float(best_response(graph, "agent_0").value[0])
    10.0
    """

    suggests: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # all is seen, and few turns are all there is

    def __init__(
        self, map: str = _FIRST, turns: int = 4, radius: int | None = None, render_mode: str | None = None
    ) -> None:
        rows = [line.strip() for line in map.strip().splitlines()]
        if any(len(row) != len(rows) for row in rows) or set("".join(rows)) - set("Agfb."):
            raise SettingError(f"the map is no square of A, g, f, b and '.':\n{map}")
        spots: dict[str, list[tuple[int, int]]] = {sign: [] for sign in "Agfb."}
        for row, line in enumerate(rows, 1):
            for column, sign in enumerate(line, 1):
                spots[sign].append((row, column))
        side = len(rows)
        self._spots, self._begun = spots, False
        super().__init__(
            len(spots["A"]), side + 2, side - 1 or 1 if radius is None else radius, turns, 0.0, render_mode
        )
        self._asked: tuple[Any, ...] = ()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode as the map says. There is no chance in it, so the seed changes nothing."""
        super().reset(seed, options)
        self._begun = True
        self.arrange(self._spots["A"], self._spots["g"], self._spots["f"], self._spots["b"])

    def get_state(self) -> State:
        """Where everything is: hashable, plain, all that decides what may happen next."""
        if not self._begun:
            raise NotReadyError("there is no state yet: call reset() first")
        hunts = self._hunts
        return (hunts.turn[0], hunts.mover, tuple(tile for (tile,) in hunts.at), hunts.kinds)

    def set_state(self, state: WorldState) -> None:
        """Go on from a state; what was earned before is forgotten."""
        turn, mover, at, kinds = state
        hunts = self._hunts
        if len(kinds) != len(hunts.kinds) or len(at) != len(hunts.at) or turn > self.turns:
            raise SettingError(f"the state {state!r} is of another map: make a world with that map")
        if not self._begun:
            self.reset()
        hunts.restore(kinds, [[tile] for tile in at], [turn], mover)
        self.agents = self.possible_agents[:]
        self.agent_selection = self.agents[mover]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, self.over)

    def transition_probabilities(self, state: State, actions: Sequence[int]) -> list[tuple[float, State]] | None:
        """What follows on the mover's action, for certain; None after the last turn."""
        if state[0] == self.turns:
            return None
        return [(1.0, self._played(state, actions)[1])]

    def transition_rewards(
        self, state: State, actions: Sequence[int], transitions: Sequence[tuple[float, State]]
    ) -> list[list[float]]:
        """What each agent earns: the mover what its move pays, the others nothing."""
        earned = self._played(state, actions)[0]
        return [[earned if agent == state[1] else 0.0 for agent in range(len(self.possible_agents))]] * len(transitions)

    def acts(self, state: State, agent: int) -> bool:
        """Whether it is an agent's move."""
        return state[1] == agent

    def where(self, state: State, agent: int) -> tuple[int, int]:
        """Row and column of an agent."""
        return self._hunts.tile(state[2][agent])

    def picture(self, state: State) -> NDArray[Any]:
        """A state as a picture."""
        mode, self.render_mode = self.render_mode, "rgb_array"
        try:
            self.set_state(state)
            picture = self.render()
        finally:
            self.render_mode = mode
        assert picture is not None
        return picture

    def _played(self, state: State, actions: Sequence[int]) -> tuple[float, State]:
        """What the mover's action pays, and what follows; the last answer is remembered."""
        asked = (state, actions[state[1]])
        if not self._asked or self._asked[0] != asked:
            self.set_state(state)
            reward = self.play(asked[1])
            self._asked = (asked, (reward, self.get_state()))
        answer: tuple[float, State] = self._asked[1]
        return answer

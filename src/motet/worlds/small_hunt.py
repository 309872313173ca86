"""A treasure hunt that is small enough to be solved exactly: items lie where the map says, and no new ones appear.

The rules are those of :class:`~motet.worlds.TreasureHunt`; agents act in turn. As a model for planning, a transition
moves one agent: the state says whose move it is, and the actions of the others have no effect. So an exact best
response knows as much as a learner: both know the moves that other agents made earlier in the turn.
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
"""Turn, index of the agent to move, tiles of the agents, kinds of all tiles."""

_FIRST = """
    A.g
    .b.
    f.A
"""


class SmallHunt(TreasureHunt):
    """A small treasure hunt, as a PettingZoo AEC environment and as a model for ``motet.plan``.

    Args:
        map: a square as text: ``A`` agent, ``g`` gem, ``f`` food, ``b`` bone, ``.`` nothing. A wall surrounds it.
        turns: number of turns in an episode.
        radius: number of tiles that an agent sees in each direction; None: the whole world from every position.
        render_mode: ``rgb_array`` to draw pictures.

    >>> from motet.plan import best_response, enumerate_states
    >>> hunt = SmallHunt(turns=3)
    >>> graph = enumerate_states(hunt, rewards=True)
    >>> float(best_response(graph, "agent_0").value[0])
    10.0
    """

    suggests: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # agents see everything, and episodes are short

    def __init__(
        self, map: str = _FIRST, turns: int = 4, radius: int | None = None, render_mode: str | None = None
    ) -> None:
        rows = [line.strip() for line in map.strip().splitlines()]
        if any(len(row) != len(rows) for row in rows) or set("".join(rows)) - set("Agfb."):
            raise SettingError(f"map must be a square of A, g, f, b and '.', got\n{map}")
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
        """Begin an episode as the map says. The world is deterministic, so the seed has no effect."""
        super().reset(seed, options)
        self._begun = True
        self.arrange(self._spots["A"], self._spots["g"], self._spots["f"], self._spots["b"])

    def get_state(self) -> State:
        """Return the state: hashable plain values that determine what may happen next."""
        if not self._begun:
            raise NotReadyError("there is no state yet: call reset() first")
        hunts = self._hunts
        return (hunts.turn[0], hunts.mover, tuple(tile for (tile,) in hunts.at), hunts.kinds)

    def set_state(self, state: WorldState) -> None:
        """Continue from a state; rewards from before are reset to 0."""
        turn, mover, at, kinds = state
        hunts = self._hunts
        if len(kinds) != len(hunts.kinds) or len(at) != len(hunts.at) or turn > self.turns:
            raise SettingError(
                f"state must be of a world with this map and at most {self.turns} turns, got {state!r}; make the world "
                "with the map and the turns of the world that the state is from"
            )
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
        """Return the successor state of the mover's action with probability 1; None after the last turn."""
        if state[0] == self.turns:
            return None
        return [(1.0, self._played(state, actions)[1])]

    def transition_rewards(
        self, state: State, actions: Sequence[int], transitions: Sequence[tuple[float, State]]
    ) -> list[list[float]]:
        """Return each agent's reward: the mover gets the reward of the move, the others get 0."""
        earned = self._played(state, actions)[0]
        return [[earned if agent == state[1] else 0.0 for agent in range(len(self.possible_agents))]] * len(transitions)

    def acts(self, state: State, agent: int) -> bool:
        """Return whether it is an agent's move."""
        return state[1] == agent

    def where(self, state: State, agent: int) -> tuple[int, int]:
        """Return row and column of an agent."""
        return self._hunts.tile(state[2][agent])

    def picture(self, state: State) -> NDArray[Any]:
        """Draw a state."""
        mode, self.render_mode = self.render_mode, "rgb_array"
        try:
            self.set_state(state)
            picture = self.render()
        finally:
            self.render_mode = mode
        assert picture is not None
        return picture

    def _played(self, state: State, actions: Sequence[int]) -> tuple[float, State]:
        """Return reward and successor state of the mover's action; the last result is cached."""
        asked = (state, actions[state[1]])
        if not self._asked or self._asked[0] != asked:
            self.set_state(state)
            reward = self.play(asked[1])
            self._asked = (asked, (reward, self.get_state()))
        answer: tuple[float, State] = self._asked[1]
        return answer

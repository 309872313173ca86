"""Hockey: two players, one puck, two goals. The spaces are like those of the laser-hockey environment; the rules
differ.

A turn is 1/50 second. Both players act simultaneously with four numbers from -1 to 1: force along x and y, torque, and
whether to shoot. A player is a disc that stays in its own half and turns by up to 60 degrees to either side of straight
ahead. It catches a puck that reaches its front; elsewhere the puck bounces off. A caught puck stays in front of the
player for up to 15 turns. It is shot along the player's heading when the fourth number is above 0.5 or the 15 turns are
over. Walls return most of the puck's speed. A puck that reaches the end of the rink between the posts is a goal: the
players get +10 and -10, and the episode terminates. While the puck is in a player's half, each turn costs the player
0.05 per unit of distance to the puck. After 250 turns the episode is truncated.

:class:`HockeyArrays` implements the rules as arrays over K worlds. :class:`Hockey` is the PettingZoo environment of one
world; its ``vector`` makes several that step together. ``Hockey.scripted`` has scripted opponents by name.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from motet.errors import SettingError
from motet.policy import Policy
from motet.worlds.contract import ParallelStep, WorldState, check_joint, checked_render_mode, whole
from motet.worlds.hockey.picture import draw
from motet.worlds.hockey.players import Strong, Weak
from motet.worlds.hockey.rules import HockeyArrays

__all__ = ["Hockey", "HockeyArrays", "Strong", "Weak"]

Floats = NDArray[np.float32]


class Hockey(ParallelEnv):  # type: ignore[misc]  # pettingzoo is untyped
    """One game of hockey, as a PettingZoo Parallel environment.

    An observation is float32 [18]: x, y, angle and their velocities of the player; the same of the other player; x, y
    and their velocities of the puck; the number of turns for which the player, and the other player, may still hold the
    puck. Each player observes the rink as if it played on the left, so that one policy can play either seat. ``infos``
    has ``winner`` by player: 1, 0 or -1.

    Args:
        mode: ``normal`` (the puck starts in the half of one player; players alternate), ``shooting`` (it starts in
            front of player_0; 80 turns) or ``defence`` (it flies towards player_0's goal; 80 turns).
        turns: number of turns in an episode; None: 250 in mode ``normal``, 80 in the others.
        render_mode: ``rgb_array`` to draw pictures.

    >>> game = Hockey()
    >>> seen, infos = game.reset(seed=2)
    >>> players = {"player_0": Hockey.scripted["strong"](), "player_1": Hockey.scripted["weak"]()}
    >>> while game.agents:
    ...     seen, rewards, *_, infos = game.step({name: players[name].act(seen[name]) for name in game.agents})
    >>> infos["player_0"]["winner"]
    1
    """

    won_by: ClassVar[str] = "end"
    """The rewards of the last turn decide the winner."""
    winning_margin: ClassVar[float] = 10.0
    """A player wins if its reward exceeds the other's by more than this. A goal is enough; being nearer to the puck is
    not."""
    metadata: ClassVar[dict[str, Any]] = {"name": "hockey_v0", "render_modes": ["rgb_array"], "render_fps": 50}

    scripted: ClassVar[Mapping[str, Callable[[], Policy]]] = MappingProxyType({"weak": Weak, "strong": Strong})
    """Scripted players by the names that commands accept; each call makes a policy."""

    def __init__(self, mode: str = "normal", turns: int | None = None, render_mode: str | None = None) -> None:
        self.render_mode = checked_render_mode(render_mode)
        self._games = HockeyArrays(1, mode, turns)
        self.mode, self.turns = self._games.mode, self._games.turns
        self.possible_agents = list(self._games.agents)
        self.agents: list[str] = []
        self.observation_spaces = dict(zip(self.possible_agents, self._games.observation_spaces, strict=True))
        self.action_spaces = dict(zip(self.possible_agents, self._games.action_spaces, strict=True))

    def vector(self, worlds: int) -> HockeyArrays:
        """Make ``worlds`` games that have these settings and step together."""
        return HockeyArrays(worlds, self.mode, self.turns)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Floats], dict[str, dict[str, Any]]]:
        """Begin an episode. Without a seed the random stream continues and the starting player alternates."""
        self._games.reset([0], None if seed is None else [whole("seed", seed, 0, 2**64 - 1)])
        self.agents = self.possible_agents[:]
        return self._observations(), {name: {"winner": 0} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> ParallelStep[Floats]:
        """Play one turn of both players."""
        check_joint(actions, self.agents)
        games, names = self._games, self.possible_agents
        games.act([self._action(name, actions[name]) for name in names])
        terminated, truncated = (bool(flags[0]) for flags in games.ended())
        if terminated or truncated:
            self.agents = []
        return (
            self._observations(),
            {name: float(games.reward(agent)[0]) for agent, name in enumerate(names)},
            dict.fromkeys(names, terminated),
            dict.fromkeys(names, truncated),
            {name: {"winner": int(games.winners(agent)[0])} for agent, name in enumerate(names)},
        )

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        """Observation space of a player."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Action space of a player: force along x and y, torque, shoot."""
        return self.action_spaces[agent]

    def state(self) -> Floats:
        """Return the game as player_0 observes it: the whole state except the time."""
        seen: Floats = self._games.observe(0)[0]
        return seen

    def render(self) -> NDArray[np.uint8] | None:
        """Draw the rink from above, uint8 [288, 352, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        return None if self.render_mode is None else draw(self._games.values[:, 0])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
        return self._games.get_state()

    def set_state(self, state: WorldState) -> None:
        """Continue from a state of a game with the same settings, bit for bit."""
        self._games.set_state(state)
        over = any(flags[0] for flags in self._games.ended())
        self.agents = [] if over else self.possible_agents[:]

    def _action(self, name: str, given: Any) -> Floats:
        try:
            action = np.asarray(given, np.float32)
        except (TypeError, ValueError):
            raise SettingError(f"the action of {name} must be four numbers from -1 to 1, got {given!r}") from None
        if action.shape != (4,) or not np.isfinite(action).all():
            raise SettingError(f"the action of {name} must be four numbers from -1 to 1, got {given!r}")
        return action[None]

    def _observations(self) -> dict[str, Floats]:
        return {name: self._games.observe(agent)[0] for agent, name in enumerate(self.possible_agents)}

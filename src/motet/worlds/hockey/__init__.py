"""Hockey: two players, one puck, two goals; the shape of the laser-hockey course environment, with rules of its own.

A turn is a fiftieth of a second. Both players act at once: force along x and y, torque, and whether to shoot, four
numbers from -1 to 1. A player is a disc that stays in its own half and turns by up to 60 degrees to either side of
straight on. A puck that comes to its front is caught, rides in front of it for up to 15 turns, and is shot along its
heading, when the fourth number is above 0.5 or time is up; elsewhere it bounces off. Walls give back most of the puck's
speed. A puck that meets the end of the rink between the posts is a goal: +10 for one, -10 for the other, and the
episode has terminated. While the puck is in a player's half, each turn costs it 0.05 for each unit of distance to it.
After 250 turns the episode is truncated.

Everything is arrays over K worlds (:class:`HockeyArrays`); :class:`Hockey` is the PettingZoo environment of one of
them, and gives as many at once by ``vector``. ``Hockey.scripted`` has the players to train and compare with, by name.
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

    An observation is float32 [18]: x, y, angle and their velocities of the player; the same of the other; x, y and
    their velocities of the puck; for how many turns the player, and the other, may still hold the puck. Each player
    sees the rink as if it stood on the left, so that one policy can sit in either seat. ``infos`` has ``winner`` by
    player: 1, 0 or -1.

    Args:
        mode: ``normal`` (the puck lies in the half of one of the players, who take turns to start), ``shooting`` (it
            lies in front of player_0; 80 turns) or ``defence`` (it flies towards player_0's goal; 80 turns).
        turns: turns in an episode; None: 250, or the 80 of the mode.
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
    """In self-play: what the last turn pays says who has won,"""
    winning_margin: ClassVar[float] = 10.0
    """if a goal lies between the two, and not only distance to the puck."""
    metadata: ClassVar[dict[str, Any]] = {"name": "hockey_v0", "render_modes": ["rgb_array"], "render_fps": 50}

    scripted: ClassVar[Mapping[str, Callable[[], Policy]]] = MappingProxyType({"weak": Weak, "strong": Strong})
    """Players that come with the world, by the names under which commands find them; each call makes a policy."""

    def __init__(self, mode: str = "normal", turns: int | None = None, render_mode: str | None = None) -> None:
        self.render_mode = checked_render_mode(render_mode)
        self._games = HockeyArrays(1, mode, turns)
        self.mode, self.turns = self._games.mode, self._games.turns
        self.possible_agents = list(self._games.agents)
        self.agents: list[str] = []
        self.observation_spaces = dict(zip(self.possible_agents, self._games.observation_spaces, strict=True))
        self.action_spaces = dict(zip(self.possible_agents, self._games.action_spaces, strict=True))

    def vector(self, worlds: int) -> HockeyArrays:
        """So many games with these settings, which step together."""
        return HockeyArrays(worlds, self.mode, self.turns)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Floats], dict[str, dict[str, Any]]]:
        """Begin an episode. Without a seed the stream goes on, and the other player starts."""
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
        """The space of what a player sees."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        """Force along x and y, torque, shoot."""
        return self.action_spaces[agent]

    def state(self) -> Floats:
        """The game as player_0 sees it, which is all there is to know but the time."""
        seen: Floats = self._games.observe(0)[0]
        return seen

    def render(self) -> NDArray[np.uint8] | None:
        """The rink from above, uint8 [288, 352, 3]; None unless ``render_mode`` is ``'rgb_array'``."""
        return None if self.render_mode is None else draw(self._games.values[:, 0])

    def close(self) -> None:
        """Nothing to release."""

    def get_state(self) -> WorldState:
        """Everything that decides what happens next, as nested tuples of plain values."""
        return self._games.get_state()

    def set_state(self, state: WorldState) -> None:
        """Go on from a snapshot of a game with the same settings, bit for bit."""
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

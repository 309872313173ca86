"""The rules of hockey, for K worlds at once: every quantity is an array over the worlds.

A step takes the actions of both players, [K, 4] each. It yields observations, rewards and the games that are over. Seed
and actions alone determine a world's game, bit for bit, independently of the other worlds in the batch and of the
machine: no operation combines worlds, each world has a separate random stream, and the arithmetic is +, -, *, / and the
square root, which are rounded in the same way everywhere.

A player's quantities are in its own frame, in which it plays on the left and shoots to the right; the opponent's frame
is rotated by 180 degrees. So both players are one array [2, ...] with the same limits. The puck is in the frame of
player 0; player 1 observes it with its signs changed.
"""

from collections.abc import Sequence
from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from motet.errors import NotReadyError, SettingError
from motet.world import VectorWorld
from motet.worlds.contract import WorldState, opened, whole

__all__ = [
    "HALF_LENGTH",
    "HALF_WIDTH",
    "HOLD",
    "MODES",
    "MOUTH",
    "PLAYER",
    "PUCK",
    "REACH",
    "SHOT",
    "HockeyArrays",
    "heading",
]

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

TURNS: Final = {"normal": 250, "shooting": 80, "defence": 80}
"""Default number of turns in an episode, by mode."""
MODES: Final = tuple(TURNS)

HALF_LENGTH: Final = 5.0
HALF_WIDTH: Final = 4.0
PLAYER: Final = 0.5
"""Radius of a player."""
PUCK: Final = 0.2
"""Radius of the puck."""
REACH: Final = PLAYER + PUCK
"""Distance between the centres of a player and a puck that touch."""
MOUTH: Final = 1.5
"""Half the width of a goal."""
HOLD: Final = 15
"""Maximum number of turns for which a player may hold the puck."""
SHOT: Final = 14.0
"""Speed that a shot adds to the player's speed."""

_DT = 0.02  # seconds per turn
_GLIDE = 0.995  # factor of the puck's speed per turn
_WALL_BOUNCE = 0.9  # factor of the puck's speed at a wall
_PLAYER_BOUNCE = 0.8  # factor of the puck's speed at a player
_FRONT = 0.7  # cosine of the largest angle from a player's heading at which it catches the puck
_TILT = 1.05  # largest angle of a player to either side, in radians
_GOAL = 10.0  # reward of a goal
_CARE = 0.05  # cost per turn and unit of distance between player and puck, while the puck is in the player's half

# By x, y, angle: factor of a velocity per turn, velocity that full force adds, and limits of a player's pose.
_KEEP = np.array([[0.9], [0.9], [0.8]], np.float32)
_FORCE = np.array([[0.6], [0.6], [1.2]], np.float32)
_LOW = np.array([[PLAYER - HALF_LENGTH], [PLAYER - HALF_WIDTH], [-_TILT]], np.float32)
_HIGH = np.array([[-PLAYER], [HALF_WIDTH - PLAYER], [_TILT]], np.float32)
_WALLS = np.array([[HALF_LENGTH - PUCK], [HALF_WIDTH - PUCK]], np.float32)  # limits of the puck's centre, by x and y

_SIDES = np.array([[1.0], [-1.0]], np.float32)  # from the frame of player 0 into each player's frame
_OTHER = [-1, -1, 1, -1, -1, 1]  # signs of a player's x, y, angle and their velocities in the opponent's frame
_ORDER = ([*range(18)], [*range(6, 12), *range(6), *range(12, 16), 17, 16])  # rows of an observation, by player
_SIGNS = np.array([[1] * 6 + _OTHER + [1] * 6, [1] * 6 + _OTHER + [-1] * 4 + [1] * 2], np.float32)[..., None]

_STRIDE, _MIX = np.uint64(0x9E3779B97F4A7C15), (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class HockeyArrays(VectorWorld):
    """K games of hockey that step together.

    ``values`` float32 [18, K] is the whole physical state: x, y, angle and their velocities of player 0 and of player
    1, each in its own frame; position and velocity of the puck in the frame of player 0; the turns for which player 0
    and player 1 may still hold the puck. Callers may write to it to arrange a scene.

    A game that is over does not change until it is reset.

    >>> games = HockeyArrays(worlds=256)
    >>> games.reset(range(256), seeds=range(256))
    >>> games.act([np.zeros((256, 4), "float32")] * 2)
    >>> games.observe(0).shape, games.reward(1).shape, bool(games.ended()[0].any())
    ((256, 18), (256,), False)
    """

    agents = ("player_0", "player_1")
    can_save = True

    def __init__(self, worlds: int, mode: str = "normal", turns: int | None = None) -> None:
        self.worlds = whole("worlds", worlds, 1)
        if mode not in TURNS:
            raise SettingError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        self.mode = mode
        self.turns = TURNS[mode] if turns is None else whole("turns", turns, 1)
        self.observation_spaces = tuple(gymnasium.spaces.Box(-np.inf, np.inf, (18,), np.float32) for _ in self.agents)
        self.action_spaces = tuple(gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32) for _ in self.agents)
        count = self.worlds
        self.values: Floats = np.zeros((18, count), np.float32)
        # Views: [player, (x, y, angle), K], [player, their velocities, K], [(x, y, their velocities), K].
        players = self.values[:12].reshape(2, 6, count)
        self._poses, self._speeds = players[:, :3], players[:, 3:]
        self._puck, self._hold = self.values[12:16], self.values[16:]
        self._streams: NDArray[np.uint64] = np.random.SeedSequence().generate_state(count, np.uint64).astype(np.uint64)
        self._starters = np.zeros(count, np.int8)
        self._turn = np.full(count, -1, np.int32)  # before the first reset
        self._won = np.zeros(count, np.int8)  # won by player 0 (1), player 1 (-1) or neither (0)
        self._over = np.ones(count, np.bool_)
        self._earned = np.zeros((2, count), np.float32)

    def reset(self, worlds: Sequence[int] | NDArray[np.int64], seeds: Sequence[int] | None = None) -> None:
        """Begin new games in some worlds. A seed determines a game; without seeds the random streams continue.

        With a seed the starting player is random; without one the players alternate.
        """
        chosen = np.asarray(worlds, np.int64)
        if seeds is not None:
            self._streams[chosen] = _mixed(np.asarray(seeds, np.uint64))
            self._starters[chosen] = self._draw(chosen, 1)[0] < 0.5
        else:
            self._starters[chosen] ^= 1
        self.values[:, chosen] = self._scene(chosen)
        self._turn[chosen] = 0
        self._won[chosen] = 0
        self._over[chosen] = False
        self._earned[:, chosen] = 0

    def observe(self, agent: int) -> Floats:
        """Return a player's observations [K, 18], in its own frame.

        They are x, y, angle and their velocities of the player; the same of the opponent; x, y and their velocities of
        the puck; the turns for which the player, and the opponent, may still hold the puck.
        """
        return np.ascontiguousarray((self.values[_ORDER[agent]] * _SIGNS[agent]).T)

    def act(self, actions: Sequence[Any]) -> None:
        """Play one turn: force along x and y, torque, and shoot (above 0.5), [K, 4] for each player, from -1 to 1."""
        given = self._checked(actions)
        over = self._over
        before = self.values.copy() if over.any() else None
        self._move_players(given)
        aim = heading(self._poses[:, 2])
        held = self._hold > 0
        self._move_puck(aim, held, given[:, 3] > 0.5)
        self._bounce_off_walls()
        gap = self._meet_players(aim, held)
        if before is not None:
            np.copyto(self.values, before, where=over)
        self._settle(gap, over)

    def reward(self, agent: int) -> Floats:
        """Return a player's rewards of the last turn, [K]."""
        earned: Floats = self._earned[agent].copy()
        return earned

    def ended(self) -> tuple[Flags, Flags]:
        """Return which games terminated (by a goal) and which were truncated (by the turn limit), [K] each."""
        scored = self._won != 0
        return scored, self._over & ~scored & (self._turn >= 0)

    def winners(self, agent: int) -> NDArray[np.int8]:
        """Return the results of the games for a player, [K]: 1 won, -1 lost, 0 neither."""
        standing: NDArray[np.int8] = -self._won if agent else self._won.copy()
        return standing

    def get_state(self) -> WorldState:
        """Return everything that determines what happens next, as nested tuples of plain values."""
        if (self._turn < 0).any():
            raise NotReadyError("there is no state yet: call reset() first")
        return (self._header(), *(part.tobytes() for part in self._parts()))

    def set_state(self, state: WorldState) -> None:
        """Continue from a state of the same number of worlds with the same settings, bit for bit."""
        for part, saved in zip(self._parts(), opened(state, self._header()), strict=True):
            part[...] = np.frombuffer(saved, part.dtype).reshape(part.shape)

    # Internals

    def _header(self) -> WorldState:
        return ("hockey", self.worlds, self.mode, self.turns)

    def _parts(self) -> tuple[NDArray[Any], ...]:
        return (self.values, self._streams, self._starters, self._turn, self._won, self._over, self._earned)

    def _draw(self, chosen: NDArray[np.int64], count: int) -> Floats:
        """Draw numbers from 0 to 1, [count, chosen], from the random stream of each world."""
        drawn = np.empty((count, len(chosen)), np.float32)
        for row in drawn:
            self._streams[chosen] += _STRIDE
            row[:] = (_mixed(self._streams[chosen]) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return drawn

    def _scene(self, chosen: NDArray[np.int64]) -> Floats:
        """Return the initial values of games, [18, chosen]."""
        scene = np.zeros((18, len(chosen)), np.float32)
        along, across, along_0, across_0, along_1, across_1 = self._draw(chosen, 6)
        scene[12], scene[13] = -0.8 - 1.4 * along, 3.0 * across - 1.5  # in player 0's half
        if self.mode == "normal":
            scene[[0, 6]] = -3.5
            scene[12:14] *= np.where(self._starters[chosen], -1.0, 1.0).astype(np.float32)
            return scene
        scene[0], scene[1] = -4.0 + 0.8 * along_0, 3.0 * across_0 - 1.5
        scene[6], scene[7] = -4.0 + 2.0 * along_1, 3.0 * across_1 - 1.5
        if self.mode == "defence":  # the puck starts in the other half and flies towards player 0's goal
            scene[12] *= -1.0
            way_x, way_y = -HALF_LENGTH - scene[12], MOUTH * (2.0 * along_1 - 1.0) - scene[13]
            speed = (9.0 + 6.0 * across_1) / np.sqrt(way_x * way_x + way_y * way_y)
            scene[14], scene[15] = speed * way_x, speed * way_y
        return scene

    def _checked(self, actions: Sequence[Any]) -> Floats:
        """Return the actions as [player, 4, K], clipped to their bounds; raise unless they are valid."""
        given = np.empty((2, 4, self.worlds), np.float32)
        for agent, action in enumerate(actions):
            array = np.asarray(action)
            if array.shape != (self.worlds, 4):
                raise SettingError(
                    f"the actions of player_{agent} must have the shape {(self.worlds, 4)}, got {array.shape}"
                )
            given[agent] = array.T
        if not np.isfinite(given).all():
            player, _, world = np.argwhere(~np.isfinite(given))[0].tolist()
            raise SettingError(
                f"the action of player_{player} in world {world} must be finite numbers, got "
                f"{given[player, :, world].tolist()}"
            )
        inside: Floats = np.minimum(np.maximum(given, -1.0), 1.0)
        return inside

    def _move_players(self, given: Floats) -> None:
        poses, speeds = self._poses, self._speeds
        speeds *= _KEEP
        speeds += _FORCE * given[:, :3]
        poses += _DT * speeds
        inside = np.minimum(np.maximum(poses, _LOW), _HIGH)
        speeds *= inside == poses  # a player that reaches a limit stops
        poses[...] = inside

    def _move_puck(self, aim: Floats, held: Flags, shoot: Flags) -> None:
        """Move the puck: it glides, moves with its holder, or is shot."""
        self._puck[2:] *= _GLIDE
        self._puck[:2] += _DT * self._puck[2:]
        if not held.any():
            return
        self._hold -= held
        shots = held & (shoot | (self._hold == 0))
        ride = np.empty((2, 4, self.worlds), np.float32)  # position and velocity of the puck for each holder
        ride[:, :2] = self._poses[:, :2] + REACH * aim
        ride[:, 2:] = self._speeds[:, :2] + (SHOT * shots)[:, None] * aim
        ride *= _SIDES[..., None]
        for player in (0, 1):
            np.copyto(self._puck, ride[player], where=held[player])
        self._hold *= ~shots

    def _bounce_off_walls(self) -> None:
        """Bounce the puck off the walls. A puck that reaches an end between the posts is a goal, and stays there."""
        position, speed = self._puck[:2], self._puck[2:]
        inside = np.minimum(np.maximum(position, -_WALLS), _WALLS)
        met = inside != position
        if not met.any():
            return
        position[...] = inside
        np.copyto(speed, -_WALL_BOUNCE * np.copysign(speed, position), where=met)
        goal = met[0] & (np.abs(position[1]) < MOUTH) & ~self._over
        np.copyto(self._won, np.sign(position[0]).astype(np.int8), where=goal)

    def _meet_players(self, aim: Floats, held: Flags) -> Floats:
        """Let players catch a free puck with their front, or bounce it off; return the distances [player, K]."""
        puck = self._puck.reshape(2, 2, -1) * _SIDES[:, None, None]  # [player, position and velocity, x and y, K]
        away = puck[:, 0] - self._poses[:, :2]
        distance = np.sqrt(away[:, 0] * away[:, 0] + away[:, 1] * away[:, 1])
        gap: Floats = distance - np.float32(REACH)
        near = (gap < 0) & ~(held[0] | held[1])
        if near.any():
            away /= np.maximum(distance, np.float32(1e-6))[:, None]
            closing = ((puck[:, 1] - self._speeds[:, :2]) * away).sum(1)
            meets = near & (closing < 0)
            caught = meets & ((away * aim).sum(1) > _FRONT) & (puck[:, 0, 0] < 0)
            struck = meets & ~caught
            away *= _SIDES[:, None]
            push = away * (struck * ((-1.0 - _PLAYER_BOUNCE) * closing))[:, None]
            lift = away * (near * -gap)[:, None]
            self._puck[:2] += lift[0] + lift[1]
            self._puck[2:] += push[0] + push[1]
            self._hold[caught] = HOLD
        return np.maximum(gap, 0.0)

    def _settle(self, gap: Floats, before: Flags) -> None:
        """Set the rewards of the turn and the games that it ended."""
        mine = self._puck[0] * _SIDES < 0
        earned = self._earned
        np.multiply(gap, mine * np.float32(-_CARE), out=earned)
        earned += _SIDES * (np.float32(_GOAL) * self._won)
        earned *= ~before
        self._turn += ~before
        self._over = (self._won != 0) | (self._turn >= self.turns) | before


def heading(angle: Floats) -> Floats:
    """Return cosine and sine, [player, 2, K], of angles [player, K] that a player can turn to."""
    square = angle * angle
    cosine, sine = 1.0 - square / 90.0, 1.0 - square / 72.0
    for c, s in ((56.0, 42.0), (30.0, 20.0), (12.0, 6.0)):
        cosine, sine = 1.0 - square / c * cosine, 1.0 - square / s * sine
    return np.stack([1.0 - square / 2.0 * cosine, angle * sine], axis=-2)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of SplitMix64: every input bit affects about half of the output bits."""
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    return words ^ (words >> np.uint64(31))

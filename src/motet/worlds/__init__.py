"""Worlds that come with motet, each a PettingZoo environment on arrays, except ``Bushes``, which is a model.

In ``TreasureHunt`` and ``SmallHunt`` agents act in turn (AEC); in ``Cleanup``, ``Hockey``, ``MatrixGame`` and ``Rooms``
they act simultaneously (Parallel). Seed and actions alone determine an episode. ``get_state`` returns the state of a
running episode as plain tuples; ``set_state`` restores it, bit for bit, in a new instance with the same settings. The
states of ``Rooms``, ``SmallHunt`` and ``Bushes``, which are models for planning, contain no random stream.
``from_gymnasium`` makes a Gymnasium environment by its id.
"""

from typing import TYPE_CHECKING

from motet._lazy import lazily

if TYPE_CHECKING:
    from motet.worlds.bushes import Bushes
    from motet.worlds.cleanup import Cleanup
    from motet.worlds.gymnasium import from_gymnasium
    from motet.worlds.hockey import Hockey
    from motet.worlds.matrix import MatrixGame
    from motet.worlds.mind import OneMind, UniformHumans
    from motet.worlds.rooms import Rooms
    from motet.worlds.small_hunt import SmallHunt
    from motet.worlds.treasure_hunt import TreasureHunt

__all__ = [
    "Bushes",
    "Cleanup",
    "Hockey",
    "MatrixGame",
    "OneMind",
    "Rooms",
    "SmallHunt",
    "TreasureHunt",
    "UniformHumans",
    "from_gymnasium",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Bushes": "motet.worlds.bushes",
        "Cleanup": "motet.worlds.cleanup",
        "Hockey": "motet.worlds.hockey",
        "MatrixGame": "motet.worlds.matrix",
        "OneMind": "motet.worlds.mind",
        "Rooms": "motet.worlds.rooms",
        "SmallHunt": "motet.worlds.small_hunt",
        "TreasureHunt": "motet.worlds.treasure_hunt",
        "UniformHumans": "motet.worlds.mind",
        "from_gymnasium": "motet.worlds.gymnasium",
    },
)

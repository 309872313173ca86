"""Worlds that come with motet, each a PettingZoo environment on arrays.

``TreasureHunt`` is played in turn (AEC); ``Cleanup``, ``MatrixGame`` and ``Rooms`` are played all at once (Parallel).
Each is a function of its seed and the actions alone, and each can be written down in mid-episode (``get_state``, plain
tuples) and taken up again (``set_state``) in a fresh instance with the same settings, bit for bit; the state of
``Rooms``, which is also a model to plan with, holds no random stream.
"""

from motet.worlds.cleanup import Cleanup
from motet.worlds.matrix import MatrixGame
from motet.worlds.rooms import Rooms
from motet.worlds.treasure_hunt import TreasureHunt

__all__ = ["Cleanup", "MatrixGame", "Rooms", "TreasureHunt"]

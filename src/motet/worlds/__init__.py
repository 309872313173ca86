"""Worlds that come with motet, each a PettingZoo environment on arrays."""

from motet.worlds.cleanup import Cleanup
from motet.worlds.treasure_hunt import TreasureHunt

__all__ = ["Cleanup", "TreasureHunt"]

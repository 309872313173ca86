"""Worlds that come with motet, each a PettingZoo environment on arrays."""

from motet.worlds.treasure_hunt import TreasureHunt

__all__ = ["TreasureHunt"]

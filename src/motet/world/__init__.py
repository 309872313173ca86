"""The World contract (which agents act, what they observe, what happens) and adapters for users' environments."""

from motet.world.contract import End, VectorWorld, World, as_world, from_objects
from motet.world.model import ModelWorld

__all__ = ["End", "ModelWorld", "VectorWorld", "World", "as_world", "from_objects"]

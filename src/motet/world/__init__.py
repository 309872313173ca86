"""World: who acts now, what they see, and what happens. Adapters make a World of users' environments."""

from motet.world.contract import End, VectorWorld, World, as_world, from_objects

__all__ = ["End", "VectorWorld", "World", "as_world", "from_objects"]

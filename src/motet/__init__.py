"""motet: many learners, one world, nobody waits."""

from motet._version import __version__
from motet.errors import MotetError

__all__ = ["MotetError", "__version__"]

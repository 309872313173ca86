"""The version of motet."""

__version__ = "0.1.0"

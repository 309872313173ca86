"""The command ``motet``: one file for each command."""

from motet.cli.main import main

__all__ = ["main"]

"""The command ``motet``: one file for each command."""

from motet.cli.command import COMMANDS, main

__all__ = ["COMMANDS", "main"]

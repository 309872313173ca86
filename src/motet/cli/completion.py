"""``motet completion``: prints a script with which a shell completes commands, flags and their choices.

The script does not include the flags of worlds and of algorithms other than the default one, because they depend on the
other arguments.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from typing import Any, Literal

import tyro

__all__ = ["completion"]


def completion(shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]) -> int:
    """Print a script for shell completion of commands and flags.

    - bash: source <(motet completion bash), in ~/.bashrc
    - zsh: motet completion zsh > FOLDER/_motet, in a folder of $fpath
    - fish: motet completion fish | source, in config.fish

    Args:
        shell: The shell.
    """
    sys.stdout.write(_script(shell))
    return 0


def _script(shell: str) -> str:
    from motet.cli.flags import schedules

    written = io.StringIO()
    asked = ["--tyro-write-completion", shell, "-"]
    with schedules(), contextlib.redirect_stdout(written), contextlib.suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(
            _subcommands(), prog="motet", args=asked, config=(tyro.conf.FlagCreatePairsOff,)
        )
    # In bash, complete file names where nothing else matches.
    return written.getvalue() + ("complete -o default -F _tyro_motet motet\n" if shell == "bash" else "")


def _subcommands() -> dict[str, Any]:
    """What tyro parses for each command: its function, or a dataclass of the flags that do not depend on arguments."""
    from motet.cli.bench import BenchFlags
    from motet.cli.command import COMMANDS
    from motet.cli.eval import EvalFlags
    from motet.cli.flags import static_flags
    from motet.cli.play import static_flags as playing
    from motet.cli.tournament import WITHOUT, TournamentFlags

    found = {
        "bench": BenchFlags,
        "train": static_flags(),
        "eval": playing(EvalFlags),
        "tournament": playing(TournamentFlags, WITHOUT),
    }
    for name, (where, _) in COMMANDS.items():
        module, _, function = where.partition(":")
        if name not in found:
            found[name] = getattr(importlib.import_module(module), function)
    return found

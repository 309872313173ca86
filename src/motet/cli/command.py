"""The command ``motet``: finds the subcommand, imports only what it needs, runs it, and prints errors in one line.

A subcommand is a function whose parameters are its flags. It returns the exit code; None means 0. The subcommands in
``OWN_FLAGS`` (train, eval, tournament, bench) receive the unparsed arguments and declare their flags in a dataclass,
such as ``EvalFlags``. To add a subcommand, add a line to ``COMMANDS``.
"""

from __future__ import annotations

import atexit
import codecs
import dataclasses
import functools
import gc
import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from motet._version import __version__
from motet.errors import MotetError, SettingError
from motet.text import nearest, plain_lines

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("motet.cli.flags:train", "train every agent of a world, each with a separate learner"),
    "resume": ("motet.cli.train:resume", "continue a run from its newest checkpoint"),
    "status": ("motet.cli.status:status", "show the agents and processes of a run, and what each process waits for"),
    "watch": ("motet.cli.status:watch", "show the live display of a run that another process executes"),
    "report": ("motet.cli.report:report", "compare several runs or seeds on one self-contained HTML page"),
    "eval": ("motet.cli.eval:evaluate_", "play episodes with policies and compare their returns"),
    "tournament": ("motet.cli.tournament:tournament_", "let policies play against each other, and rate them"),
    "export": ("motet.cli.export:export", "write a trained policy to a file for torch or ONNX, to play without motet"),
    "plan": ("motet.cli.plan:plan", "solve a small world exactly, by enumerating all its states"),
    "bench": ("motet.cli.bench:bench", "measure the speed of motet's parts against other designs and libraries"),
    "completion": ("motet.cli.completion:completion", "print a script for shell completion of commands and flags"),
    "doctor": ("motet.cli.doctor:doctor", "check this machine and the installation, and say how to fix problems"),
}
"""By name: the function as ``module:function``, and a description in one line."""

_FOREIGN = {
    **dict.fromkeys(("learn", "run", "fit", "start"), "train"),
    **dict.fromkeys(("evaluate", "play", "enjoy", "test", "rollout", "render", "video"), "eval"),
    **dict.fromkeys(("continue", "restore", "load"), "resume"),
    **dict.fromkeys(("compare", "plot"), "report"),
    **dict.fromkeys(("solve", "optimal"), "plan"),
    **dict.fromkeys(("league", "match"), "tournament"),
    **dict.fromkeys(("info", "check", "version"), "doctor"),
}
"""Names of other libraries' commands, with ours."""

OWN_FLAGS = {"train", "eval", "tournament", "bench"}
"""Commands that parse their arguments themselves: their flags depend on the arguments, or on what is installed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _print_anywhere()
    if arguments is None:  # at exit, skip the search for cycles in all that was imported: it takes up to half a second
        atexit.register(gc.freeze)
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0
    if given[0] in ("-V", "--version"):
        sys.stdout.write(f"motet {__version__}\n")
        return 0
    name, rest = given[0], given[1:]
    if name not in COMMANDS:
        near = _FOREIGN.get(name.lower(), nearest(name, COMMANDS))
        meant = f"did you mean motet {near}?" if near else "see motet --help"
        return _error(f"command must be one of {', '.join(COMMANDS)}, got {name!r}: {meant}")
    try:
        return _run(name, rest)
    except MotetError as error:
        if os.environ.get("MOTET_DEBUG") == "1":
            raise
        return _error(str(error), 2 if isinstance(error, (ValueError, MemoryError)) else 1)
    except BrokenPipeError:  # the reader has closed the pipe, as in: motet … | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _run(name: str, arguments: Sequence[str]) -> int:
    import tyro

    where, function = COMMANDS[name][0].split(":")
    command = getattr(importlib.import_module(where), function)
    if name in OWN_FLAGS:
        return int(command(arguments))
    from motet.cli.hints import unknown_flags_of
    from motet.cli.number_flags import numbers

    @functools.wraps(command)
    def bound(*args: Any, **kwargs: Any) -> Callable[[], int | None]:
        return functools.partial(command, *args, **kwargs)  # tyro calls this before it returns unknown arguments

    prog = f"motet {name}"
    with numbers():
        run, unknown = tyro.cli(
            bound, prog=prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,), return_unknown_args=True
        )
    if unknown:
        raise SettingError(unknown_flags_of(prog, unknown, _flags(command)))
    return run() or 0


def _flags(command: Callable[..., Any]) -> list[str]:
    """The flags of a command that is a function, from which a misspelt flag is corrected."""
    names = list[str]()
    for name, parameter in inspect.signature(command).parameters.items():
        inner = dataclasses.fields(parameter.default) if dataclasses.is_dataclass(parameter.default) else ()
        # Flags that begin with the name of their group have no prefix: --wandb-project.
        names += [item.name if item.name.startswith(name) else f"{name}.{item.name}" for item in inner] or [name]
    return [f"--{name.replace('_', '-')}" for name in names]


_PLAIN = dict(zip("▁▂▃▄▅▆▇█±…·●─━╸╺\u2011\u2013\u00d7", "_.-=+*#@+.-*------x", strict=True))


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding cannot represent; a handler for ``codecs.register_error``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(one, "?") for one in error.object[error.start : error.end]), error.end


def _print_anywhere() -> None:
    """Print plain characters instead of raising where a stream is not UTF-8; escape lone surrogates where it is."""
    codecs.register_error("motet.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            utf_8 = codecs.lookup(stream.encoding).name == "utf-8"
            stream.reconfigure(errors="backslashreplace" if utf_8 else "motet.plain")


def _usage() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: motet COMMAND …",
            "",
            "Asynchronous multi-agent reinforcement learning.",
            "",
            *lines,
            "",
            "motet COMMAND --help shows the flags of a command, motet --version the version.",
            "MOTET_DEBUG=1 shows the traceback of an error.",
            "",
        ]
    )


def _error(message: str, code: int = 2) -> int:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    sys.stderr.write(f"{red}error: {plain_lines(message)}{plain}\n")
    return code

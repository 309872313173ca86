"""Code that ``motet eval`` and ``motet tournament`` share: parsing flags, making the world, progress, output."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import inspect
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from motet.cli.experiment import Experiment
from motet.cli.flags import place_of_world, schedules, world_flags
from motet.cli.help import HELP_ALL, flags_of, help_wanted, show_help
from motet.cli.hints import unknown_play_flags
from motet.cli.keyword_flags import keyword_flags
from motet.cli.number_flags import numbers
from motet.errors import SettingError
from motet.evaluation.episode import Failure
from motet.evaluation.evaluate import EvaluationSettings, first_line
from motet.evaluation.result import Episode, SeededResult
from motet.placement import Cluster
from motet.policies.limits import PolicyLimits
from motet.reports.win_rates import named_win_rates, rule_sentence, share_text
from motet.runs.config import rebuild_world
from motet.runs.directory import RunDirectory
from motet.runs.trust import make_importable
from motet.system.files import write_whole
from motet.text import counted, label, nearest, plain
from motet.worlds.catalogue import WORLDS, name_hint, world_factory

__all__ = [
    "Play",
    "finish",
    "parse",
    "plain_table",
    "print_failed",
    "print_failures",
    "print_win_rates",
    "progress",
    "static_flags",
    "tell_of_failed",
    "tell_who_always_failed",
    "yaml",
]

arg = tyro.conf.arg

_FAILED_SHOWN = 10
_WIN_RATES_SHOWN = 40


@dataclass(frozen=True)
class Play:
    """The flags that are not fields of EvaluationSettings."""

    name_: Annotated[str, tyro.conf.Positional, arg(metavar="WORLD|RUN")]
    """A shipped world, gym:ID, package.module:make_env, or a run directory, whose world is used."""
    policy: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, arg(aliases=["-p"], metavar="POLICY")] = ()
    """A policy to play, as described above."""
    format: Literal["table", "json", "yaml"] = "table"
    """Format of the printed result."""
    out: Path | None = None
    """Write the complete result to this file, as JSON."""
    html: Path | None = None
    """Write a self-contained HTML page to this file."""
    address: Annotated[str | None, arg(metavar="ADDRESS")] = None
    """Address of a running Ray cluster (cluster.address in Python). By default Ray starts on this machine."""


@dataclass(frozen=True)
class _SettingsFlags(EvaluationSettings):
    """The fields of EvaluationSettings as flags, some with short names, and with separate flags for the limits."""

    episodes: Annotated[int, arg(aliases=["-n"])] = 100
    jobs: Annotated[int, arg(aliases=["-j"])] = 1
    limits: PolicyLimits = field(default_factory=PolicyLimits)
    pooled: Annotated[bool, tyro.conf.FlagConversionOff] = True
    cluster: Annotated[Cluster, tyro.conf.Suppress] = field(default_factory=Cluster)

    def __post_init__(self) -> None:
        """Skip the checks: the EvaluationSettings that are made from these values run them."""


COMMON = {
    "play": ("episodes", "seed", "jobs", "engine", "trust"),
    "failures": ("isolate", "sandbox", "stand_in"),
}
"""The fields of EvaluationSettings that ``--help`` shows, by group."""


def parse(
    arguments: Sequence[str], kind: type[Play], prog: str, about: str, without: Sequence[str] = ()
) -> tuple[Any, EvaluationSettings, Callable[[], Any]]:
    """Parse arguments into the flags, the EvaluationSettings and the factory of the world. Exits for ``--help``.

    Args:
        arguments: the arguments after the command.
        kind: the flags that are not fields of EvaluationSettings.
        prog: the command, as help shows it.
        about: the description in help.
        without: fields of EvaluationSettings that have no meaning for this command.
    """
    given = _bare_sandbox(list(arguments))
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # users' modules are in the current directory
    place, helps = place_of_world(given), help_wanted(given)
    if place is None and not helps:
        raise SettingError(
            f"world must be a run directory, one of {', '.join(WORLDS)}, gym:ID or 'module:attribute', got none"
        )
    name = given.pop(place) if place is not None else ""
    maker = _maker(name, "--trust" in given) if name else None
    keywords: dict[str, Any] = {}
    if maker is not None:
        keywords, given = keyword_flags(maker, given)
    world = world_flags(maker, Experiment(name)) if maker is not None else None
    if helps:
        last = f"{prog} {plain(name) or 'WORLD'} --help-all shows the other flags." if helps == "common" else ""
        with schedules():
            show_help(_options(kind, world, without, common=bool(last)), prog, about, last)
    options = _options(kind, world, without, common=False)
    chosen: Any
    with numbers():
        chosen, unknown = tyro.cli(
            options, prog=prog, args=[name, *given], config=(tyro.conf.FlagCreatePairsOff,), return_unknown_args=True
        )
    if unknown:
        raise SettingError(unknown_play_flags(unknown, _flags(options, without), prog))
    if chosen.out is not None and chosen.out.suffix.lower() in (".html", ".htm"):
        raise SettingError(f"out must be a file for JSON, got {str(chosen.out)!r}; for a page use --html {chosen.out}")
    for path in (chosen.out, chosen.html):
        if path is not None:
            _check_writable(path)
    return chosen, _settings(chosen), _made(maker, chosen, keywords)


def static_flags(kind: type[Play], without: Sequence[str] = ()) -> Any:
    """A dataclass of the flags that do not depend on a world."""
    return _options(kind, None, without, common=False)


def _options(kind: type[Play], world: Any, without: Sequence[str], common: bool) -> Any:
    """A dataclass of all flags, or of the common ones in groups."""
    rows: list[Any] = [HELP_ALL]
    if common:
        for group, names in COMMON.items():
            part = flags_of(_SettingsFlags(), [name for name in names if name not in without], about="")
            rows.append((f"{group}_", Annotated[type(part), tyro.conf.OmitArgPrefixes, arg(name=group)], part))
    else:
        known = {item.name for item in dataclasses.fields(_SettingsFlags)}
        every = flags_of(_SettingsFlags(), known - set(without))
        rows.append(("settings_", Annotated[type(every), arg(name="")], every))
    if world is not None:
        rows.append(("world_", Annotated[type(world), arg(name="world")], world))
    return dataclasses.make_dataclass(kind.__name__, rows, bases=(kind,), frozen=True)


def _flags(options: Any, without: Sequence[str] = ()) -> list[str]:
    """All flags of the command, from which a misspelt flag is corrected. ``without``: fields that are not flags of
    it."""
    names = [item.name for item in dataclasses.fields(options) if not item.name.endswith("_")]
    for item in dataclasses.fields(options):
        prefix = {"settings_": "", "world_": "world."}.get(item.name)
        if prefix is not None:
            names += [f"{prefix}{inner.name}" for inner in dataclasses.fields(item.default)]  # type: ignore[arg-type]
    names += [f"limits.{item.name}" for item in dataclasses.fields(PolicyLimits)]
    return [f"--{name.replace('_', '-')}" for name in names if name not in without]


def _settings(chosen: Any) -> EvaluationSettings:
    values = {item.name: getattr(chosen.settings_, item.name) for item in dataclasses.fields(EvaluationSettings)}
    limits = None if values["limits"] == PolicyLimits() else values["limits"]
    return EvaluationSettings(**{**values, "limits": limits, "cluster": Cluster(address=chosen.address)})


def _bare_sandbox(given: list[str]) -> list[str]:
    """Replace ``--sandbox`` without a value by ``--sandbox=strict``."""
    return [
        "--sandbox=strict"
        if token == "--sandbox" and given[i + 1 : i + 2] not in (["no"], ["strict"], ["best-effort"])
        else token
        for i, token in enumerate(given)
    ]


def _maker(name: str, trust: bool) -> Callable[..., Any]:
    if (Path(name) / "config.json").is_file():
        run = RunDirectory.open(name)
        config = run.config()
        return rebuild_world(config.get("world", {}), trust=trust or make_importable(run.path, config))
    if name not in WORLDS and ":" not in name:
        nothing = "which is a directory but not a run" if Path(name).is_dir() else "and no run directory has that name"
        near = nearest(name, WORLDS)
        hint = f"did you mean {near}?" if near else name_hint(name)
        raise SettingError(
            f"world must be a run directory, one of {', '.join(WORLDS)}, gym:ID for a Gymnasium environment, or "
            f"'module:attribute', got {name!r}, {nothing}{hint and f'; {hint}'}"
        )
    return world_factory(name)


def _made(maker: Callable[..., Any] | None, chosen: Any, keywords: Mapping[str, Any]) -> Callable[[], Any]:
    """The factory of the world, with the settings from flags."""
    assert maker is not None  # None only with --help, which exits before this line
    settings = dict(keywords)
    for name, parameter in inspect.signature(maker).parameters.items():
        value = getattr(getattr(chosen, "world_", None), name, parameter.default)
        if value != parameter.default:
            settings[name] = value
    return world_factory(maker, settings)


# ---- progress and results


@contextlib.contextmanager
def progress(what: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """Yield ``on_progress`` and ``on_message``, which write to standard error: a bar on a terminal, else some lines.

    Output of policies and worlds is redirected there too, because standard output is for the result only.
    """
    with _to_stderr(), _progress(what) as found:
        yield found


@contextlib.contextmanager
def _to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    last = [time.monotonic()]
    if not console.is_terminal:

        def tell(done: int, total: int) -> None:
            if time.monotonic() - last[0] > 10:
                last[0] = time.monotonic()
                console.print(f"{done:,} of {total:,} {what}", soft_wrap=True)

        yield tell, lambda line: console.print(Text(plain(line)), soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield (
            lambda done, total: bar.update(task, completed=done, total=total),
            lambda line: bar.console.print(Text(plain(line)), soft_wrap=True),
        )


def yaml(value: Any, depth: int = 0) -> str:
    """Format plain values as YAML: mappings and sequences as blocks, scalars as JSON with the fixes that YAML needs.

    >>> print(yaml({"a": [1, {"b": None, "c": []}], "d e": "x"}))
    a:
      - 1
      -
        b: null
        c: []
    "d e": "x"
    """
    pad = "  " * depth
    if isinstance(value, dict) and value:
        pairs = [(f"{pad}{_key(str(key), pad)}:", item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and value:
        pairs = [(f"{pad}-", item) for item in value]
    else:
        return _yaml_scalar(value)
    lines = []
    for head, item in pairs:
        text = yaml(item, depth + 1)
        lines.append(f"{head}\n{text}" if isinstance(item, dict | list | tuple) and item else f"{head} {text}")
    return "\n".join(lines)


_PAIR = re.compile(r"\\\\|\\u(d[89ab]..)\\u(d[c-f]..)")  # an escaped backslash does not begin a pair


def _yaml_scalar(value: Any) -> str:
    """Format a scalar as JSON, but write a surrogate pair as one escape, because YAML does not join the halves."""

    def whole(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        return f"\\U{0x10000 + (int(found[1], 16) - 0xD800) * 0x400 + int(found[2], 16) - 0xDC00:08x}"

    return _PAIR.sub(whole, json.dumps(value, allow_nan=False))


def _key(text: str, pad: str) -> str:
    """Format a key: quoted if YAML would not read it as a string, and after ``?`` if it is long, as YAML requires."""
    special = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    key = text if text.isidentifier() and text.isascii() and text.lower() not in special else _yaml_scalar(text)
    return key if len(key) < 1000 else f"? {key}\n{pad}"


def finish(result: SeededResult, chosen: Play, show: Callable[[Any], None]) -> int:
    """Write the requested files, print the result, and return the exit code."""
    everything = result.as_dict()
    as_json = json.dumps(everything, indent=1, allow_nan=False)
    if chosen.out is not None:
        _write(chosen.out, as_json + "\n")
    if chosen.html is not None:
        _write(chosen.html, result.html())
    if chosen.format != "table":
        sys.stdout.write((as_json if chosen.format == "json" else yaml(everything)) + "\n")
    else:
        show(result)
        for path in (chosen.out, chosen.html):
            if path is not None:
                sys.stdout.write(f"written to {plain(str(path))}\n")
    if result.partial and not result.stopped:
        return 130
    return 1 if result.stopped or result.failed() else 0


def _check_writable(path: Path) -> None:
    """Raise if a file cannot be written, before anything is played. An existing file stays as it is."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    try:
        write_whole(path, lambda beside: beside.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {error.strerror or error}") from error


def plain_table(*columns: str) -> Any:
    """A table without lines. The first column holds names, the others hold numbers."""
    from motet.runs.display import PlainTable

    table = PlainTable()
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", style="cyan" if i == 0 else None, no_wrap=i > 0)
    return table


# ---- failures


def print_failures(episodes: Sequence[Episode], what: str, console: Any) -> None:
    """Print failures by policy and cause, with their number and the first one. ``what``: "episode" or "game"."""
    failures = [failure for episode in episodes for failure in episode.failures]
    if not failures:
        return
    table = plain_table("failures of", "cause", "count", f"first {what}", "turn")
    table.add_column("detail")
    found: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        found.setdefault((failure.policy, failure.cause), []).append(failure)
    for (name, cause), own in found.items():
        first = own[0]
        numbers = (f"{len(own):,}", f"{first.episode:,}", f"{first.turn:,}")
        table.add_row(label(name, 40), cause, *numbers, first_line(first.detail))
    console.print()
    console.print(table)


def print_failed(episodes: Sequence[Episode], what: str, console: Any) -> None:
    """Print the first failed episodes, which do not count in any score."""
    failed = [episode for episode in episodes if episode.failed]
    if not failed:
        return
    from rich.text import Text

    table = plain_table(f"failed {what}s", "cause", "turn")
    table.add_column("policies")
    table.add_column("detail")
    for one in failed[:_FAILED_SHOWN]:
        seated = ", ".join(label(name, 40) for name in dict.fromkeys(one.policies))
        table.add_row(f"{one.number:,}", one.failed, f"{one.turns:,}", seated, first_line(one.detail))
    console.print()
    console.print(table)
    hidden = len(failed) - _FAILED_SHOWN
    if hidden > 0:
        console.print(Text(f"and {counted(hidden, f'more failed {what}')}", style="dim"))


def print_win_rates(result: SeededResult, console: Any) -> None:
    """Print the games won, drawn and lost, if the world declares how games are won."""
    from rich.text import Text

    from motet.runs.display import fitted

    rows = [row for own in named_win_rates(result).values() for row in own]
    if result.rule is None or not rows:
        return
    table = plain_table("win rate", "won", "drawn", "lost", "games")
    for words, rate in rows[:_WIN_RATES_SHOWN]:
        table.add_row(words, *(share_text(one) for one in (rate.won, rate.drawn, rate.lost)), f"{rate.games:,}")
    console.print()
    console.print(fitted(table, console))
    if (hidden := len(rows) - _WIN_RATES_SHOWN) > 0:
        console.print(Text(f"and {hidden:,} more, in the JSON", style="dim"))
    line = f"{rule_sentence(result.rule)}; in brackets 95 % intervals"
    console.print(Text(line, style="dim"), soft_wrap=True)


def tell_of_failed(episodes: Sequence[Episode], what: str) -> None:
    """Report on standard error how many episodes failed."""
    failed = [episode for episode in episodes if episode.failed]
    if failed:
        first = failed[0]
        sys.stderr.write(
            f"error: {len(failed):,} of {counted(len(episodes), what)} failed and are not counted; the first is "
            f"{what} {first.number} ({first.failed}): {first_line(first.detail)}\n"
        )


def tell_who_always_failed(names: Sequence[str], episodes: Sequence[Episode], what: str) -> int:
    """Report policies that failed on every seat in every episode: their scores are those of the stand-in.

    Returns 1 if there is such a policy, else 0.
    """
    code = 0
    for name in names:
        own = [episode for episode in episodes if name in episode.policies and not episode.failed]
        failures = [failure for episode in own for failure in episode.failures if failure.policy == name]
        if not failures or not all(_failed_on_all_seats(name, episode) for episode in own):
            continue
        why = first_line(failures[0].detail) or failures[0].cause
        never = all(failure.cause == "start" for failure in failures)
        how = "could not be created and never played" if never else f"failed in every {what}"
        sys.stderr.write(f"error: {label(name)} {how}: {plain(why)}\n")
        code = 1
    return code


def _failed_on_all_seats(name: str, episode: Episode) -> bool:
    if name in episode.out or name in episode.forfeited:
        return True
    failed = sum(len(failure.agents) for failure in episode.failures if failure.policy == name)
    return failed == episode.policies.count(name)

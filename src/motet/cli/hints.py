"""Hints for names that motet does not have: other libraries' names, and spelling mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.foreign_names import EVALUATION, advice, advice_for_keys, note, ours
from motet.text import nearest

__all__ = ["foreign", "unknown_flags", "unknown_flags_of", "unknown_keys", "unknown_play_flags"]

_OTHER = {
    # motet's name: the names of other libraries, for the other commands.
    "out": ("output", "output_file", "out_file", "html"),
    "humans.gamma": ("gamma", "discount", "discount_factor"),
    "every_s": ("interval", "refresh"),
    "workers": ("jobs", "num_workers", "n_jobs", "processes"),
    "steps": ("total_timesteps", "more_steps", "max_steps"),
    "checkpoint": ("step", "from_checkpoint"),
}
_OTHERS = {theirs: ours for ours, names in _OTHER.items() for theirs in names}
_PLAYS = {theirs: ours for ours, names in EVALUATION.items() for theirs in names}


def foreign(name: str, algorithm: str) -> str:
    """motet's flags for a name that another library uses; empty if the name is not known.

    >>> foreign("buffer_size", "dqn"), foreign("weight_sync_interval", "dqn"), foreign("colour", "dqn")
    ('--dqn.capacity', '--publish-every', '')
    """
    found = ours(name, _fields(algorithm))
    return f"--{algorithm if found.startswith('.') else ''}{found}".replace("_", "-") if found else ""


def _fields(algorithm: str) -> set[str]:
    """The settings of an algorithm that comes with motet; empty for any other algorithm."""
    if algorithm not in ALGORITHMS:
        return set()
    config: Any = algorithm_config(algorithm)
    return {item.name for item in dataclasses.fields(config)}


def _algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting, by our name or by another library's, as flags.

    >>> _algorithms_with("ent-coef"), _algorithms_with("colour")
    (['--ppo.entropy'], [])
    """
    return [hint for one in ALGORITHMS if (hint := foreign(name, one)).startswith(f"--{one}.")]


def unknown_flags(unknown: Sequence[str], known: Iterable[str], algorithm: str) -> str:
    """The error for unknown flags of ``motet train``: why each is refused, and which flag to use instead.

    >>> unknown_flags(["--lr", "0.1"], ["--steps"], "dqn")
    '--lr is not a flag of motet train; use --dqn.learning-rate'
    """
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if not flags:
        named = next((word for word in unknown if word.lower() in ALGORITHMS), "")
        meant = f"; use --algorithm {named.lower()}" if named else ""
        return f"motet train takes one world and flags, got also {' '.join(unknown)}{meant}"
    lines = []
    for flag in flags:
        first, _, rest = flag[2:].partition(".")
        name = rest if first == algorithm else flag[2:]
        if hint := foreign(name, algorithm):
            what = f"use {hint}{note(ours(name, _fields(algorithm)))}"
        elif plain := advice(name):
            what = plain
        elif rest and first in ALGORITHMS and first != algorithm:
            own = f"use --{algorithm}.{rest}, or " if rest.replace("-", "_") in _fields(algorithm) else "use "
            what = f"the algorithm is {algorithm}: {own}--algorithm {first}"
        elif others := _algorithms_with(name):
            what = f"{algorithm} has no such setting; with another algorithm it is {' or '.join(others)}"
        elif near := _nearest_flag(flag, known):
            what = f"did you mean {near}?"
        else:
            what = "motet train WORLD --help-all lists all flags"
        lines.append(f"{flag} is not a flag of motet train; {what}")
    return "\n".join(lines)


def _nearest_flag(flag: str, known: Iterable[str]) -> str:
    """The known flag that a given one is most similar to, with or without the prefix of its group.

    >>> _nearest_flag("--stepps", ["--steps"]), _nearest_flag("--gama", ["--map", "--dqn.gamma"])
    ('--steps', '--dqn.gamma')
    >>> _nearest_flag("--world.agents", ["--world.game", "--agents"])
    '--agents'
    """
    whole = {name: name for name in reversed(list(known))}
    without_prefix = {f"--{name.rpartition('.')[2]}": name for name in whole if "." in name}
    names = without_prefix | whole
    of_another_group = f"--{flag.rpartition('.')[2]}"
    return names.get(of_another_group if of_another_group in names else nearest(flag, names), "")


def unknown_play_flags(unknown: Sequence[str], known: Iterable[str], command: str) -> str:
    """The error for unknown flags of ``motet eval`` or ``motet tournament``, with the flags to use instead.

    >>> unknown_play_flags(["--parallel-policy"], ["--isolate"], "motet eval")
    '--parallel-policy is not a flag of motet eval; use --isolate'
    """
    flags, known = [word.partition("=")[0] for word in unknown if word.startswith("-")], list(known)
    if not flags:
        return f"{command} takes one world and flags, got also {' '.join(unknown)}; give policies with -p"
    lines = []
    for flag in flags:
        own = f"--{_PLAYS.get(flag.lstrip('-').lower().replace('-', '_'), '')}".replace("_", "-")
        if own in known:
            what = f"use {own}"
        elif near := _nearest_flag(flag, known):
            what = f"did you mean {near}?"
        else:
            what = f"{command} WORLD --help-all lists all flags"
        lines.append(f"{flag} is not a flag of {command}; {what}")
    return "\n".join(lines)


def unknown_flags_of(command: str, unknown: Sequence[str], known: Iterable[str]) -> str:
    """The error for unknown arguments of any other command, with the flags to use instead.

    >>> unknown_flags_of("motet report", ["--outt", "x.html"], ["--out", "--names"])
    '--outt is not a flag of motet report; did you mean --out?'
    """
    flags, known = [word.partition("=")[0] for word in unknown if word.startswith("-")], list(known)
    if not flags:
        return f"{command} takes no argument {' '.join(unknown)}; see {command} --help"
    lines = []
    for flag in flags:
        own = f"--{_OTHERS.get(flag.lstrip('-').lower().replace('-', '_'), '')}".replace("_", "-")
        near = _nearest_flag(flag, known)
        what = f"use {own}" if own in known else f"did you mean {near}?" if near else f"see {command} --help"
        lines.append(f"{flag} is not a flag of {command}; {what}")
    return "\n".join(lines)


def unknown_keys(unknown: Sequence[str], known: Iterable[str], algorithm: str) -> str:
    """Unknown keys of an experiment file, each with the name that may have been meant.

    The valid keys are listed only if there is a key for which no such name was found.

    >>> unknown_keys(["stepps", "buffer_size"], ["steps", "seed"], "dqn")
    'keys must be valid, got stepps (did you mean steps?), buffer_size (use capacity in [dqn])'
    >>> unknown_keys(["colour"], ["steps", "seed"], "dqn")
    'keys must be some of seed, steps, got colour'
    """
    about = {name: _about_key(name, list(known), algorithm) for name in unknown}
    expected = "valid" if all(about.values()) else f"some of {', '.join(sorted(known))}"
    return f"keys must be {expected}, got {', '.join(name + hint for name, hint in about.items())}"


def _about_key(name: str, known: list[str], algorithm: str) -> str:
    if name in ALGORITHMS:
        return f" (the algorithm is {algorithm})"
    if name in ("settings", "train", "training"):
        return f" (write the settings at the top of the file, without [{name}])"
    if hint := foreign(name, algorithm):
        table, _, key = hint.removeprefix("--").replace("-", "_").rpartition(".")
        if key == "run":
            return " (give the run directory with --run)"
        if key == "agents":
            return " (use agents in [world])"
        if key in known:
            return f" (use {key}{_remark(name, algorithm)})"
        where = f" in [{table}]" if table else ", at the top of the file"
        return f" (use {key}{where}{_remark(name, algorithm)})"
    if others := _algorithms_with(name):
        named = (one.removeprefix("--").replace("-", "_").partition(".") for one in others)
        words = (f"{key} of {one}" for one, _, key in named)
        return f" (another algorithm has it: {', '.join(words)})"
    if meant := advice_for_keys(name):
        return f" ({meant})"
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def _remark(name: str, algorithm: str) -> str:
    remark = note(ours(name, _fields(algorithm))).strip(" ()")
    return f": {remark}" if remark else ""

"""Runs that need no ``trust``: this user trained them on this machine. A record in the user's state directory says so.

Loading a run that names code outside of motet imports that code. A run directory may come from anybody, so nothing in
it can vouch for it. The record is therefore kept elsewhere: one file for each run in ``$XDG_STATE_HOME/motet/runs``
(``~/.local/state/motet/runs``), with the resolved path of the run directory, a digest of its config, and the folders
from which its code was imported. A run does not match its record if it was moved or copied, or if anything but motet
changed its config. Files that other users can write do not count.

``train`` writes the record, and a run that has one keeps it when ``resume`` changes its config. Runs that name only
code of motet need no record and get none.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from motet.system.files import write_whole

__all__ = ["foreign_code", "is_own", "make_importable", "remember", "state_directory"]


def state_directory() -> Path | None:
    """Return motet's folder in the user's state directory; None if the user has no home directory.

    As the XDG specification says, a relative path in ``XDG_STATE_HOME`` is ignored.
    """
    given = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "motet"
    try:
        return Path.home() / ".local" / "state" / "motet"
    except RuntimeError:
        return None


def foreign_code(config: Mapping[str, Any]) -> list[str]:
    """Return the ``module:name`` of everything outside of motet that a run's config names.

    >>> foreign_code({"world": {"path": "mine:make"}, "agents": {"a": {"class": "motet.algorithms.dqn:DQNConfig"}}})
    ['mine:make']
    """
    return [path for path in _named(config) if not path.partition(":")[0].startswith("motet.")]


def _named(plain: Any) -> Iterator[str]:
    """Iterate over what plain values name: classes, functions, worlds, and anchors and partners given by their path."""
    if isinstance(plain, list):
        for item in plain:
            yield from _named(item)
    elif isinstance(plain, Mapping):
        for key, item in plain.items():
            if key in ("class", "function", "path", "factory") and isinstance(item, str):
                yield item
            elif key == "policy" and isinstance(item, str):
                yield from () if plain.get("copy") else _named_by_policy(item)
            elif key == "anchors" and isinstance(item, list):
                yield from (str(name) for name in item if ":" in str(name))
            else:
                yield from _named(item)


def _named_by_policy(text: str) -> Iterator[str]:
    """Iterate over the import paths in the notation of a policy.

    >>> list(_named_by_policy("class=my.module.Policy,translate=my.module:Words")), list(_named_by_policy("random"))
    (['my.module.Policy', 'my.module:Words'], [])
    """
    first, *options = text.split(",")
    if first.startswith("class=") or (":" in first and "=" not in first):
        yield first.removeprefix("class=")
    yield from (one.removeprefix("translate=") for one in options if one.startswith("translate="))


def remember(run: Path, config: Mapping[str, Any]) -> None:
    """Record a run of this user, if its config names code outside of motet.

    If the state directory cannot be written, nothing is raised. The run then needs ``trust``, like a run of another
    user.
    """
    foreign, state = foreign_code(config), state_directory()
    if not foreign or state is None:
        return
    record = {"run": str(run.resolve()), "config": _digest(config), "folders": sorted(set(_folders(foreign)))}
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        for folder in (state, state / "runs"):
            folder.mkdir(mode=0o700, exist_ok=True)
        write_whole(_file(state, run), lambda beside: _write_private(beside, record))
    except OSError:
        return


def is_own(run: Path, config: Mapping[str, Any]) -> bool:
    """Whether this user has trained the run in this directory, and ``config`` is still its config."""
    return _record(run, config) is not None


def make_importable(run: Path, config: Mapping[str, Any]) -> bool:
    """If the run is one of this user, add the folders of its code to ``sys.path``. Return whether it is.

    Its code is then imported from the folders in which it was when the run was trained, not from the current directory.
    """
    record = _record(run, config)
    if record is None:
        return False
    for folder in record.get("folders", []):
        if isinstance(folder, str) and os.path.isabs(folder) and folder not in sys.path:
            sys.path.insert(0, folder)
    return True


def _record(run: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    state = state_directory()
    if state is None:
        return None
    path = _file(state, run)
    if not all(_is_private(one) for one in (state, path.parent, path)):
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    matches = isinstance(found, dict) and (found.get("run"), found.get("config")) == (
        str(run.resolve()),
        _digest(config),
    )
    return found if matches else None


def _file(state: Path, run: Path) -> Path:
    return state / "runs" / f"{hashlib.sha256(str(run.resolve()).encode(errors='surrogateescape')).hexdigest()}.json"


def _digest(config: Mapping[str, Any]) -> str:
    """Return a digest of the values. The file is not read again: it could have changed since the values were read."""
    as_read = json.loads(json.dumps(config))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _is_private(path: Path) -> bool:
    """Whether nobody but this user can write the file or folder. A link does not count."""
    try:
        found = path.lstat()
    except OSError:
        return False
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return kind and found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _write_private(path: Path, record: Mapping[str, Any]) -> None:
    with path.open("w") as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump(record, file)


def _folders(paths: list[str]) -> Iterator[str]:
    """Iterate over the folders from which the top-level modules of ``module:name`` were imported."""
    for path in paths:
        top = path.partition(":")[0].partition(".")[0]
        found = getattr(sys.modules.get(top), "__spec__", None) or _spec(top)
        where = [found.origin] if found is not None and found.origin else []
        if found is not None and found.submodule_search_locations:
            where = list(found.submodule_search_locations)
        if where and os.path.exists(where[0]):  # a module that is built in has no file
            yield os.path.dirname(os.path.abspath(where[0]))  # a/ for a/mine.py and for the package a/mine/


def _spec(module: str) -> Any:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None

"""A folder with a JSON header and one ``.npy`` file for each array. It is written completely or not at all, and mapped
to be read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from motet.errors import CorruptionError, SettingError
from motet.system.files import replace_folder, sync

__all__ = ["ArrayBlocks", "check_target", "read_folder", "write_folder"]

_HEADER = "header.json"


class ArrayBlocks(Protocol):
    """An array that is written block by block, because it is not in memory as a whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the array."""

    def blocks(self) -> Iterable[NDArray[Any]]:
        """The rows of the array, in order, in blocks."""


def write_folder(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    in_blocks: Mapping[str, ArrayBlocks] | None = None,
) -> None:
    """Write a folder under a temporary name and move it to the target. An existing folder is replaced only if it is of
    the same kind."""
    parts = in_blocks or {}
    target = check_target(path)
    fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    fresh.mkdir()  # not tempfile.mkdtemp, which ignores the umask
    try:
        for name, array in arrays.items():
            np.save(fresh / f"{name}.npy", array, allow_pickle=False)
        for name, part in parts.items():
            _write_blocks(fresh / f"{name}.npy", part)
        (fresh / _HEADER).write_text(json.dumps({**header, "arrays": sorted([*arrays, *parts])}, indent=1))
        for file in fresh.iterdir():
            sync(file)
        replace_folder(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _write_blocks(path: Path, array: ArrayBlocks) -> None:
    with open(path, "wb") as file:
        described = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(file, described)
        for block in array.blocks():
            file.write(np.ascontiguousarray(block).data)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Raise unless a folder can be written to this path. Makes its parent folder."""
    target = Path(path)
    if target.exists() and not (target / _HEADER).is_file():
        raise SettingError(f"{str(target)!r} exists and was not saved by motet.plan: choose another path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rmdir(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise SettingError(f"{str(target)!r} cannot be written: {error.strerror or error}") from error
    return target


def read_folder(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays, mapped from disk and read-only."""
    folder = Path(path)
    try:
        header = json.loads((folder / _HEADER).read_text())
    except FileNotFoundError:
        raise SettingError(f"{str(folder)!r} has no {_HEADER}: expected a folder saved by motet.plan") from None
    except json.JSONDecodeError as error:
        raise CorruptionError(f"{str(folder / _HEADER)!r} is damaged: {error}") from error
    if header.get("kind") != kind:
        raise SettingError(f"{str(folder)!r} holds a {header.get('kind')!r}; expected a {kind!r}")
    arrays: dict[str, NDArray[Any]] = {}
    for name in header["arrays"]:
        try:
            arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError) as error:
            raise CorruptionError(f"{folder / name}.npy is missing or damaged: {error}") from error
    return header, arrays

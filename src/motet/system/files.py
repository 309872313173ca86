"""Files and folders that are whole or not there, and names for them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import sys
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from motet.text import HIDDEN

__all__ = ["file_name", "file_stems", "replace_folder", "sync", "write_whole"]

_UNSAFE = re.compile(f'[{HIDDEN}<>:"/\\\\|?*]+')
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])\s*(\..*)?", re.I | re.S)
_MARKED = re.compile(r"~[0-9a-f]{16}", re.I)  # what a stem ends with that is not the name itself
_BYTES = 200  # of a stem at most: with what follows it is less than the 255 that file systems take

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def file_name(text: str, room: int = 80) -> str:
    """Text as part of a file's name: on any file system, in one folder. May be empty, and is the same for many texts.

    >>> file_name("ALE/Pong-v5"), file_name("../../x"), file_name("..")
    ('ALE-Pong-v5', 'x', '')
    """
    return _UNSAFE.sub("-", text).encode()[:room].decode(errors="ignore").strip(" .-")


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """For each name what its file is called, without the ending: distinct on any file system, and always the same.

    A name that is safe is its own stem. Any other, and any that differs from another one only in what some file systems
    ignore (case, the form of its accents), gets a mark made from the whole name.

    >>> file_stems(["agent_0", "A", "red/0"])
    {'agent_0': 'agent_0', 'A': 'A', 'red/0': 'red-0~36825b529af739d9'}
    >>> file_stems(["A", "a"])
    {'A': 'A~559aead08264d579', 'a': 'a'}
    """
    given = list(dict.fromkeys(names))
    alike = Counter(map(_folded, given))
    return {
        name: name if _is_safe(name) and (alike[_folded(name)] == 1 or name == _folded(name)) else _marked(name)
        for name in given
    }


def _folded(name: str) -> str:
    """Equal for names that some file system takes for one."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _is_safe(name: str) -> bool:
    if not name or name.startswith(".") or _UNSAFE.search(name) or len(name.encode()) > _BYTES:
        return False
    # A mark is what another name may get, and what ends in .replay would be the file of another agent's rows.
    return not (_RESERVED.fullmatch(name) or _MARKED.search(name[-17:]) or name.lower().endswith(".replay"))


def _marked(name: str) -> str:
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{file_name(name)}~{mark}"


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside the target, which then replaces it at once, and is on the disk."""
    beside = target.with_name(f".{target.stem}.{uuid.uuid4().hex[:8]}{target.suffix}")
    try:
        write(beside)
        sync(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def sync(file: Path) -> None:
    """Wait until a file is on the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def replace_folder(fresh: Path, target: Path) -> None:
    """Let a folder replace what may be at the target, which is removed.

    At any moment one of the two is there, whole, also if this process is killed (on Linux; elsewhere, if it raises).
    """
    if not target.exists():
        fresh.rename(target)
        return
    if _exchange(fresh, target):
        shutil.rmtree(fresh, ignore_errors=True)
        return
    old = target.with_name(f".{target.name}.old.{uuid.uuid4().hex[:8]}")
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change their names, at once; False where that is not possible."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0

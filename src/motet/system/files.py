"""Writing files and folders completely or not at all, and making safe file names."""

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
# the hash at the end of a stem that differs from the name for which it stands
_MARKED = re.compile(r"~[0-9a-f]{16}", re.I)
_BYTES = 200  # maximum length of a stem: with its suffix it stays below the 255 bytes that file systems allow

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def file_name(text: str, room: int = 80) -> str:
    """Text as part of a file name that is valid on any file system. The result may be empty, and is not unique.

    >>> file_name("ALE/Pong-v5"), file_name("../../x"), file_name("..")
    ('ALE-Pong-v5', 'x', '')
    """
    return _UNSAFE.sub("-", text).encode()[:room].decode(errors="ignore").strip(" .-")


def file_stems(names: Iterable[str]) -> dict[str, str]:
    """The file name of each name, without suffix: distinct on any file system, and the same on every call.

    A safe name is used unchanged. An unsafe name gets a hash of the whole name appended. So does a name that differs
    from another name only in what some file systems ignore (case, Unicode normalisation), unless it is already in lower
    case and normalised.

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
    """A key that is equal for names that some file systems do not distinguish."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _is_safe(name: str) -> bool:
    if not name or name.startswith(".") or _UNSAFE.search(name) or len(name.encode()) > _BYTES:
        return False
    # Another name may get a stem that ends in a mark, and a stem that ends in .replay is the replay file of an agent.
    return not (_RESERVED.fullmatch(name) or _MARKED.search(name[-17:]) or name.lower().endswith(".replay"))


def _marked(name: str) -> str:
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{file_name(name)}~{mark}"


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a file beside the target, sync it to disk, and replace the target with it atomically."""
    beside = target.with_name(f".{target.stem}.{uuid.uuid4().hex[:8]}{target.suffix}")
    try:
        write(beside)
        sync(beside)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def sync(file: Path) -> None:
    """Wait until a file is on disk (fsync)."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def replace_folder(fresh: Path, target: Path) -> None:
    """Move a folder to the target, and remove the folder that was there, if any.

    On Linux the target is one of the two complete folders at any moment, even if this process is killed. Elsewhere
    this holds only when the function returns or raises.
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
    """Exchange the names of two folders atomically. Returns False where the system cannot do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    done: int = rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0

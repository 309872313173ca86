"""Anonymous shared memory, laid out from a spec of named arrays.

A :class:`Segment` is one mapping without a name in any file system, so nothing has to be unlinked and nothing leaks,
even if processes are killed. One process makes it, fills it with a poison value (so that a read before the first write
shows), and passes it to children when they are started, at any later time too. All of its memory is reserved when it is
made: a machine that cannot hold it raises at once, with the sizes, instead of killing a process in the middle of a run.

>>> segment = Segment({"status": ArraySpec((4,), "uint64"), "flat": ArraySpec((1000,), "float32")})
>>> segment["flat"].shape, bool(np.isnan(segment["flat"]).all())
((1000,), True)
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from motet.arrays import ArraySpec
from motet.errors import MemoryShortError, MotetError, SettingError
from motet.system.machine import available_bytes

__all__ = ["LINE", "Letter", "MappedFile", "Segment", "format_bytes"]

LINE = 64
"""Bytes of a cache line. Every array is aligned to it, so that no two writers share a cache line."""

POISON = 0xFF
"""Byte that fills fresh memory: NaN in every float, -1 in every signed integer, the maximum in unsigned ones."""


class Segment:
    """Named arrays in one anonymous shared mapping.

    Args:
        spec: the arrays, by name. Each begins on a new cache line.
        directory: use a nameless file on this file system instead of memory, for sizes that exceed the memory.
        sealed: no process that gets the segment can resize it (Linux). If the segment shrank, a process that reads the
            removed part would be killed.
    """

    def __init__(
        self, spec: Mapping[str, ArraySpec], directory: str | os.PathLike[str] | None = None, *, sealed: bool = False
    ) -> None:
        self._spec = dict(spec)
        size = max(sum(_padded(a.nbytes) for a in self._spec.values()), LINE)
        _check_room(size, directory)
        self._map(_reserve(size, directory, sealed), size)
        np.frombuffer(self._mmap, np.uint8).fill(POISON)

    def _map(self, fd: int, size: int) -> None:
        self._fd, self.size = fd, size
        self._mmap = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        offset = 0
        for name, array in self._spec.items():
            count = math.prod(array.shape)
            flat: npt.NDArray[Any] = np.frombuffer(self._mmap, array.dtype, count, offset)
            self._arrays[name] = flat.reshape(array.shape)
            offset += _padded(array.nbytes)

    def hide_from_children(self) -> None:
        """Leave the memory out of processes that this one forks, where the system can do that (Linux)."""
        if hasattr(mmap, "MADV_DONTFORK"):
            self._mmap.madvise(mmap.MADV_DONTFORK)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is None:
            raise MotetError(
                "a shared segment cannot be pickled by itself: pass it to a process as one of its arguments, "
                "so that the descriptor of the memory is sent too"
            )
        return _arrive, (reduction.DupFd(self._fd), self.size, self._spec)

    def __del__(self) -> None:
        # The mapping lives as long as any array into it; the descriptor is only needed to pass the segment on.
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


class MappedFile:
    """An array in a nameless file, for data that may exceed the memory. The file can grow, and is zero at first.

    >>> import tempfile
    >>> file = MappedFile(tempfile.gettempdir())
    >>> file.array((2, 3), "int32").sum(), file.array((1000, 3), "int32").shape
    (np.int64(0), (1000, 3))
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        _check_room(0, directory)
        self._fd = _nameless_file(Path(directory))
        self._directory = directory
        self._size = 0

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The first bytes of the file as an array. Earlier arrays show the same bytes, and remain valid."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size > self._size:
            _check_room(size - self._size, self._directory)
            _allocate(self._fd, size, self._directory)
            self._size = size
        if not size:
            return np.empty(shape, dtype)
        mapped = mmap.mmap(self._fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        return np.frombuffer(mapped, dtype).reshape(shape)

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)  # the file lives as long as any array of it


class Letter:
    """A numbered message of any length that one process leaves for another in a nameless file.

    The writer may die at any point: an unfinished message does not count.

    >>> letter = Letter()
    >>> letter.number, letter.write(7, b"text"), letter.number, letter.read()
    (0, None, 7, b'text')
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("motet", os.MFD_CLOEXEC)
        else:
            self._fd = _nameless_file(Path(tempfile.gettempdir()))

    def write(self, number: int, text: bytes) -> None:
        """Replace the message. Only one process may write at a time."""
        os.pwrite(self._fd, bytes(_HEAD), 0)
        rest, at = memoryview(text), _HEAD
        while rest:
            written = os.pwrite(self._fd, rest, at)
            rest, at = rest[written:], at + written
        os.ftruncate(self._fd, _HEAD + len(text))
        os.pwrite(self._fd, number.to_bytes(_HEAD, "little"), 0)

    @property
    def number(self) -> int:
        """The number of the message; 0 if there is no message."""
        return int.from_bytes(os.pread(self._fd, _HEAD, 0), "little")

    def read(self) -> bytes:
        """Return the message. The writer must have finished."""
        size, parts = os.fstat(self._fd).st_size, list[bytes]()
        at = _HEAD
        while at < size:
            parts.append(os.pread(self._fd, size - at, at))
            at += len(parts[-1])
        return b"".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive_letter, (reduction.DupFd(self._fd),)

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


_HEAD = 8  # bytes of a letter's number


def _arrive_letter(descriptor: Any) -> Letter:
    letter = Letter.__new__(Letter)
    letter._fd = descriptor.detach()
    return letter


def _arrive(descriptor: Any, size: int, spec: dict[str, ArraySpec]) -> Segment:
    segment = Segment.__new__(Segment)
    segment._spec = spec
    segment._map(descriptor.detach(), size)
    return segment


def _padded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


def _reserve(size: int, directory: str | os.PathLike[str] | None, sealed: bool) -> int:
    """Return the descriptor of nameless memory of ``size`` bytes, all of them allocated."""
    if directory is not None:
        fd = _nameless_file(Path(directory))
    elif hasattr(os, "memfd_create"):
        fd = os.memfd_create("motet", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        fd = _unlinked_shm()
    try:
        _allocate(fd, size, directory)
        if sealed and hasattr(fcntl, "F_ADD_SEALS"):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _allocate(fd: int, size: int, directory: str | os.PathLike[str] | None) -> None:
    """Give a file this size, with all bytes allocated: a process that writes where a disk is full would be killed."""
    try:
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise _short(size, available_bytes(directory), directory) from error
        raise


def _nameless_file(directory: Path) -> int:
    if hasattr(os, "O_TMPFILE"):
        try:
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    with tempfile.TemporaryFile(dir=directory) as file:  # this file is unlinked as soon as it is made
        return os.dup(file.fileno())


def _unlinked_shm() -> int:
    """POSIX shared memory that is unlinked at once, so that no other process finds its name (macOS)."""
    import _posixshmem

    name = f"/motet-{os.getpid()}-{os.urandom(6).hex()}"
    fd: int = _posixshmem.shm_open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode=0o600)
    _posixshmem.shm_unlink(name)
    return fd


def _check_room(size: int, directory: str | os.PathLike[str] | None) -> None:
    if directory is not None and not Path(directory).is_dir():
        raise SettingError(f"directory must be an existing folder, got {os.fspath(directory)!r}")
    available = available_bytes(directory)
    if available is not None and size > available:
        raise _short(size, available, directory)


def _short(size: int, available: int | None, directory: str | os.PathLike[str] | None) -> MemoryShortError:
    where = "of memory" if directory is None else f"on the file system of {os.fspath(directory)!r}"
    free = "an unknown amount" if available is None else format_bytes(available)
    hint = (
        "a smaller capacity, or keep it on a disk (directory=…; for the replays of a run replay_directory)"
        if directory is None
        else "a smaller capacity"
    )
    return MemoryShortError(f"{format_bytes(size)} {where} needed, {free} available: choose {hint}")


def format_bytes(n: int) -> str:
    """A size with its unit.

    >>> format_bytes(1536), format_bytes(3 * 2**30)
    ('1.5 KiB', '3.0 GiB')
    """
    size = float(n)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{n} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

"""The sandbox of a policy process: Landlock, seccomp, no new privileges, no capabilities, all enforced by the kernel.

The functions are called in the process that gives up rights, before any code of the policy is loaded. The process
cannot get these rights back, even as root. There are two layers, which complement each other: Landlock restricts which
files may be opened, and seccomp restricts which system calls may be made. Each package on PyPI for such a sandbox
supports only one of the two layers, and is young or needs a system library. Only a few calls are needed, so they are
made directly.

A refused call fails as usual, with ``PermissionError``.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.machinery
import os
import platform
import resource
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from motet.isolation.seccomp import ARCHITECTURES, has_seccomp, restrict_calls
from motet.isolation.syscalls import checked, libc, prctl

__all__ = [
    "Confinement",
    "can_limit_folders",
    "confine",
    "gaps",
    "limit_folder",
    "lower_limits",
    "reach",
    "remove",
]

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 0x4000, 0x40000, 2

_CAP_DAC_OVERRIDE, _CAP_SETPCAP, _CAP_SYS_RESOURCE = 1, 8, 24


@dataclass(frozen=True)
class Confinement:
    """What a sandboxed process may still access."""

    readable: tuple[str, ...]
    """Files and folders that the process may read, with everything below them."""
    folder: str
    """The only folder in which the process may write."""
    strict: bool
    """Whether it is an error if the kernel cannot enforce the sandbox."""
    limited: bool = False
    """Whether the kernel limits the size of the folder."""


def gaps() -> tuple[str, ...]:
    """Return what this machine lacks for a sandbox; empty if it lacks nothing."""
    if sys.platform != "linux":
        return (f"Linux (this is {sys.platform})",)
    found = []
    if _landlock_version() < _LEAST_LANDLOCK:
        given = _landlock_version()
        has = f"version {given}" if given > 0 else "none"
        found.append(f"Landlock version {_LEAST_LANDLOCK} or later, from Linux 6.2 on (this kernel has {has})")
    if platform.machine() not in ARCHITECTURES:
        found.append(f"a list of the system calls of {platform.machine()} (motet has one for x86_64 and aarch64)")
    elif not has_seccomp():
        found.append("seccomp filters (this kernel has none)")
    return tuple(found)


def confine(confinement: Confinement) -> None:
    """Apply a confinement to this process and all its threads, for good."""
    lacking = gaps()
    if lacking and confinement.strict:
        raise OSError(errno.ENOSYS, f"the sandbox needs {'; '.join(lacking)}")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"a process that enters the sandbox must have one thread, got {threads}")
    _clean_environment(confinement.folder)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Without this capability, file modes would apply to root, which code that runs as root does not expect.
    _keep_capabilities(1 << _CAP_DAC_OVERRIDE)
    if _landlock_version() >= _LEAST_LANDLOCK:
        _restrict_files(confinement)
    if platform.machine() in ARCHITECTURES and has_seccomp():
        restrict_calls(platform.machine())


def limit_folder(folder: str, size: int) -> bool:
    """Put a file system of this size into a folder, in memory, for this process and those that it will start.

    Returns False if the process may not do that.
    """
    options = f"size={size},mode=700,nr_inodes={max(1024, size // 4096)}".encode()
    lib = libc()
    if lib.unshare(_CLONE_NEWNS) != 0:
        return False
    # The mount is private: no other process sees it, and it vanishes with the last process that does.
    private = lib.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) == 0
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    return private and bool(lib.mount(b"motet", os.fsencode(folder), b"tmpfs", flags, options) == 0)


def can_limit_folders() -> bool:
    """Whether :func:`limit_folder` works here. This is tried in a separate process."""
    if sys.platform != "linux":
        return False
    with tempfile.TemporaryDirectory(prefix="motet-") as folder:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if limit_folder(folder, 1 << 16) else 1)
        return os.waitpid(pid, 0)[1] == 0


def lower_limits(open_files: int, file_bytes: int | None = None) -> None:
    """Limit the number of open files and the size of a file, and forbid core files, so that not even root can undo it.

    This applies to every policy process, sandboxed or not.
    """
    if file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        _keep_capabilities(~(1 << _CAP_SYS_RESOURCE))


def reach(module: str | None, data: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return what a sandboxed policy may read: the interpreter, the packages and the policy's data.

    Packages are the folders from which modules are imported. A folder that contains the home folder or the temporary
    folder is not readable as a whole: only the policy's module in it is.

    Args:
        module: the module of the policy.
        data: files and folders that belong to the policy.
    """
    folders = [path or os.getcwd() for path in sys.path]
    narrow = [folder for folder in folders if _holds_private_things(folder)]
    found = [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix, str(Path(__file__).parent.parent)]
    found += [folder for folder in folders if folder not in narrow]
    if module is not None:
        found += _files_of(module.partition(".")[0], narrow)
    found += [os.path.abspath(path) for path in data]
    return tuple(dict.fromkeys(path for path in (*found, *_SYSTEM) if os.path.exists(path)))


def remove(folder: str) -> None:
    """Remove a folder in which a policy could write, whatever its depth and contents."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    if sys.platform == "linux":
        libc().umount2(os.fsencode(folder), _MNT_DETACH)  # fails if nothing is mounted on the folder
    try:
        root = os.open(folder, flags)
    except FileNotFoundError:
        return
    moved, token = 0, os.urandom(8).hex()
    try:
        while names := os.listdir(root):
            for name in names:
                try:
                    os.unlink(name, dir_fd=root)
                except (IsADirectoryError, PermissionError):  # PermissionError: a folder, on macOS
                    os.chmod(name, 0o700, dir_fd=root)
                    inner = os.open(name, flags, dir_fd=root)
                    for below in os.listdir(inner):  # move up to the root folder, so that any depth works
                        moved += 1
                        os.rename(below, f"{token}-{moved}", src_dir_fd=inner, dst_dir_fd=root)
                    os.close(inner)
                    os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    os.rmdir(folder)


# ---- what may be read


# What Python and numerical libraries read: shared libraries, time zones, the number of cores, the amount of memory.
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
    "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm/overcommit_memory",
)  # fmt: skip

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_ENVIRONMENT_ENDS = ("_NUM_THREADS", "_MAXIMUM_THREADS")


def _clean_environment(folder: str) -> None:
    """Remove all environment variables but those that libraries need, because others often hold keys and tokens."""
    for name in list(os.environ):
        if name not in _ENVIRONMENT and not name.endswith(_ENVIRONMENT_ENDS):
            del os.environ[name]
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None


def _holds_private_things(folder: str) -> bool:
    private = [Path.home().resolve(), Path(tempfile.gettempdir()).resolve()]
    return any(path.is_relative_to(Path(folder).resolve()) for path in private)


def _files_of(module: str, folders: Sequence[str]) -> list[str]:
    """Return the files or folders of a module in one of the folders, without importing it."""
    spec = importlib.machinery.PathFinder.find_spec(module, list(folders)) if folders else None
    if spec is None:
        return []
    return [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]


# ---- capabilities


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _keep_capabilities(keep: int) -> None:
    """Give up all other capabilities, including those that a program started from here would regain."""
    header, sets = _CapabilityHeader(0x20080522, 0), (_Capabilities * 2)()
    lib = libc()
    checked(lib.capget(ctypes.byref(header), sets), "capget")
    if sets[0].effective & (1 << _CAP_SETPCAP):
        for number in range(64):
            if not keep & (1 << number) and lib.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                prctl(_PR_CAPBSET_DROP, number)
    for i, part in enumerate(sets):
        mask = keep >> (32 * i) & 0xFFFFFFFF
        part.effective, part.permitted, part.inheritable = part.effective & mask, part.permitted & mask, 0
    checked(lib.capset(ctypes.byref(header), sets), "capset")


# ---- Landlock


_LEAST_LANDLOCK = 3
"""The first version that also restricts truncation."""
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_MAKE_FIFO, _MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15
_ALL_TO_TRUNCATE = (1 << 15) - 1
_OWN = (
    _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_FIFO
    | _MAKE_SYM | _REFER
)  # fmt: skip
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def _landlock_version() -> int:
    return int(libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _restrict_files(confinement: Confinement) -> None:
    """Allow opening only the files of the confinement, and executing none. Forbid signals to processes outside of it.

    Signals and abstract sockets are restricted from Landlock version 6 on.
    """
    lib, version = libc(), _landlock_version()
    handled = _ALL_TO_TRUNCATE | (_IOCTL_DEV if version >= 5 else 0)
    words = [handled] if version < 4 else [handled, 0] if version < 6 else [handled, 0, 3]
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = checked(
        lib.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset"
    )
    for path in confinement.readable:
        _allow(lib, rules, path, _READ_FILE | _READ_DIR)
    _allow(lib, rules, os.devnull, _READ_FILE | _WRITE_FILE)
    _allow(lib, rules, confinement.folder, _OWN)
    checked(lib.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow(lib: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
    checked(lib.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, fd), 0), f"landlock_add_rule for {path!r}")
    os.close(fd)

"""What a policy process cannot do any more, by the kernel: Landlock, seccomp, no new privileges, no capabilities.

Everything here is called in the process that gives up rights, before anything of the policy's is loaded, and cannot be
taken back, not by root either. Two layers, each for what the other cannot do: Landlock decides which files may be
opened, seccomp which system calls may be made. The packages for these on the registry bind one of the two, and are
young or need a library of the system; the calls are few, so they are made directly.

What is refused fails as any refused call does: with ``PermissionError``.
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

__all__ = [
    "PR_SET_CHILD_SUBREAPER",
    "PR_SET_PDEATHSIG",
    "Confinement",
    "confine",
    "gaps",
    "lower_limits",
    "prctl",
    "reach",
    "remove",
]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38

_CAP_DAC_OVERRIDE, _CAP_SETPCAP, _CAP_SYS_RESOURCE = 1, 8, 24


@dataclass(frozen=True)
class Confinement:
    """What a sandboxed process may still reach."""

    readable: tuple[str, ...]
    """Files and folders, with all that is below them."""
    folder: str
    """The only place where it may write."""
    strict: bool
    """Whether a kernel that cannot hold it to this is an error."""


def gaps() -> tuple[str, ...]:
    """What this machine lacks of what a sandbox needs; empty: nothing."""
    if sys.platform != "linux":
        return (f"Linux (this is {sys.platform})",)
    found = []
    if _landlock_version() < _LEAST_LANDLOCK:
        given = _landlock_version()
        has = f"version {given}" if given > 0 else "none"
        found.append(f"Landlock version {_LEAST_LANDLOCK} or later, from Linux 6.2 on (this kernel has {has})")
    if platform.machine() not in _ARCHITECTURES:
        found.append(f"a list of the system calls of {platform.machine()} (there is one for x86_64 and aarch64)")
    elif not _has_seccomp():
        found.append("seccomp filters (this kernel has none)")
    return tuple(found)


def confine(confinement: Confinement) -> None:
    """Hold this process to its confinement, from now on, and all of its threads."""
    lacking = gaps()
    if lacking and confinement.strict:
        raise OSError(errno.ENOSYS, f"the sandbox needs {'; '.join(lacking)}")
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        raise RuntimeError(f"the sandbox must be entered by the only thread of a process, not by one of {threads}")
    _clean_environment(confinement.folder)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # Without this one root would meet the modes of files for the first time in its life.
    _keep_capabilities(1 << _CAP_DAC_OVERRIDE)
    if _landlock_version() >= _LEAST_LANDLOCK:
        _restrict_files(confinement)
    if platform.machine() in _ARCHITECTURES and _has_seccomp():
        _restrict_calls(platform.machine())


def lower_limits(open_files: int) -> None:
    """At most so many open files, no core files; nor can root undo that. For every policy process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        _keep_capabilities(~(1 << _CAP_SYS_RESOURCE))


def reach(module: str | None, data: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """What a sandboxed policy may read: the interpreter, the packages and its own data.

    Packages are the folders that modules are imported from. One that holds the home folder, or the folder for temporary
    files, is not opened as a whole: of it, only the policy's own module may be read.

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
    """Remove a folder that a policy could write to, however deep it is and whatever lies in it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
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
                    for below in os.listdir(inner):  # to the top, so that no depth is too deep
                        moved += 1
                        os.rename(below, f"{token}-{moved}", src_dir_fd=inner, dst_dir_fd=root)
                    os.close(inner)
                    os.rmdir(name, dir_fd=root)
    finally:
        os.close(root)
    os.rmdir(folder)


# ---- what may be read


# What Python and numerical libraries look at: shared libraries, time zones, how many cores and how much memory.
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime",
    "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu", "/sys/devices/system/node",
    "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm/overcommit_memory",
)  # fmt: skip

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
_ENVIRONMENT_ENDS = ("_NUM_THREADS", "_MAXIMUM_THREADS")


def _clean_environment(folder: str) -> None:
    """Keys and tokens are often in the environment: nothing of it stays but what libraries need."""
    for name in list(os.environ):
        if name not in _ENVIRONMENT and not name.endswith(_ENVIRONMENT_ENDS):
            del os.environ[name]
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None


def _holds_private_things(folder: str) -> bool:
    private = [Path.home().resolve(), Path(tempfile.gettempdir()).resolve()]
    return any(path.is_relative_to(Path(folder).resolve()) for path in private)


def _files_of(module: str, folders: Sequence[str]) -> list[str]:
    """Where a module lies in one of the folders, found without importing it."""
    spec = importlib.machinery.PathFinder.find_spec(module, list(folders)) if folders else None
    if spec is None:
        return []
    return [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]


# ---- system calls


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> int:
    """Change something of this process."""
    zero = ctypes.c_ulong(0)
    return _check(_libc().prctl(option, ctypes.c_ulong(value), zero, zero, zero), f"prctl({option}, {value})")


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _keep_capabilities(keep: int) -> None:
    """Give up all other capabilities; also those that a program started from here would get back."""
    header, sets = _CapabilityHeader(0x20080522, 0), (_Capabilities * 2)()
    libc = _libc()
    _check(libc.capget(ctypes.byref(header), sets), "capget")
    if sets[0].effective & (1 << _CAP_SETPCAP):
        for number in range(64):
            if not keep & (1 << number) and libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
                prctl(_PR_CAPBSET_DROP, number)
    for i, part in enumerate(sets):
        mask = keep >> (32 * i) & 0xFFFFFFFF
        part.effective, part.permitted, part.inheritable = part.effective & mask, part.permitted & mask, 0
    _check(libc.capset(ctypes.byref(header), sets), "capset")


# ---- Landlock


_LEAST_LANDLOCK = 3
"""The first that also guards against truncation."""
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
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def _restrict_files(confinement: Confinement) -> None:
    """No file may be opened but those of the confinement; nor executed. Nor may anybody outside of it be signalled."""
    libc, version = _libc(), _landlock_version()
    handled = _ALL_TO_TRUNCATE | (_IOCTL_DEV if version >= 5 else 0)
    words = [handled] if version < 4 else [handled, 0] if version < 6 else [handled, 0, 3]
    attributes = struct.pack(f"={len(words)}Q", *words)
    rules = _check(
        libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock_create_ruleset"
    )
    for path in confinement.readable:
        _allow(libc, rules, path, _READ_FILE | _READ_DIR)
    _allow(libc, rules, os.devnull, _READ_FILE | _WRITE_FILE)
    _allow(libc, rules, confinement.folder, _OWN)
    _check(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):
        rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
    _check(libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, fd), 0), f"landlock_add_rule for {path!r}")
    os.close(fd)


# ---- seccomp


# Numbers of system calls, (x86_64, aarch64); 0 where there is none.
_REFUSED = {
    # Sockets of all families.
    "socket": (41, 198), "socketpair": (53, 199),
    # New processes, and other processes.
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "get_robust_list": (274, 100), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "perf_event_open": (298, 241), "setns": (308, 268), "unshare": (272, 97),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
    # What Landlock does not guard: owners, modes, times and attributes of files.
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "mknod": (133, 0),
    "mknodat": (259, 33),
    # Memory and queues that others could share, or that would stay behind.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Ways around the two layers, and the machine itself.
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "userfaultfd": (323, 282), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "fanotify_init": (300, 262), "syslog": (103, 116),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "sethostname": (170, 161),
    "setdomainname": (171, 162), "iopl": (172, 0), "ioperm": (173, 0), "modify_ldt": (154, 0), "vhangup": (153, 58),
    "personality": (135, 92),
}  # fmt: skip
_ON_ITSELF_ALONE = {"kill": (62, 129), "tgkill": (234, 131), "prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
_CLONE, _CLONE3, _PRCTL, _FCNTL, _IOCTL = (56, 220), (435, 435), (157, 167), (72, 25), (16, 29)
_SECCOMP = (317, 277)
_LAST_KNOWN = 462
"""Calls above this one are younger than this list."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables, and the kernel's name of the architecture."""

_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000
_X32 = 0x40000000
# A descriptor can be told to send a signal, of any kind, to any process; an ioctl can type into a terminal.
_SIGNALLING_FCNTLS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
_SIGNALLING_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]
"""Of a BPF program: code, how many to skip if true, if false, operand."""


def _has_seccomp() -> bool:
    column, _ = _ARCHITECTURES[platform.machine()]
    action = ctypes.c_uint32(_ERROR)
    return bool(_libc().syscall(_SECCOMP[column], 2, 0, ctypes.byref(action)) == 0)  # SECCOMP_GET_ACTION_AVAIL


def _restrict_calls(machine: str) -> None:
    program = b"".join(struct.pack("=HBBI", *line) for line in _filter(machine, os.getpid()))
    count = len(program) // 8
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", count, ctypes.addressof(memory))
    number = _SECCOMP[_ARCHITECTURES[machine][0]]
    # SECCOMP_SET_MODE_FILTER for all threads; a number above zero names one that could not follow.
    if result := _check(_libc().syscall(number, 1, 1, header), "seccomp"):
        raise RuntimeError(f"seccomp: thread {result} cannot be confined")


def _filter(machine: str, pid: int) -> list[Instruction]:
    """The program that the kernel runs before each system call of a process."""
    column, architecture = _ARCHITECTURES[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        *_unless((_EQUAL, architecture), _KILL),  # e.g. 32-bit calls, which have other numbers
        (_LOAD, 0, 0, _NUMBER_AT),
        *([*_when((_GREATER, _X32 - 1), _KILL)] if machine == "x86_64" else []),
        *_when((_GREATER, _LAST_KNOWN), _ERROR | errno.ENOSYS),
        # Its flags are in memory, where a filter cannot look. With this error the C library takes the older call.
        *_when((_EQUAL, _CLONE3[column]), _ERROR | errno.ENOSYS),
    ]
    for numbers in _REFUSED.values():
        if numbers[column]:
            lines += _when((_EQUAL, numbers[column]), _ERROR | errno.EPERM)
    refuse: Instruction = (_RETURN, 0, 0, _ERROR | errno.EPERM)
    allow: Instruction = (_RETURN, 0, 0, _ALLOW)
    lines += _block(
        _CLONE[column],
        [_argument(0), (_ANY_BIT, 0, 1, _CLONE_NEW), refuse, (_ANY_BIT, 1, 0, _CLONE_THREAD), refuse, allow],
    )
    for numbers in _ON_ITSELF_ALONE.values():
        lines += _block(numbers[column], [_argument(0), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, pid), refuse, allow])
    for number, position, values in (
        (_PRCTL[column], 0, (PR_SET_PDEATHSIG,)),
        (_FCNTL[column], 1, _SIGNALLING_FCNTLS),
        (_IOCTL[column], 1, _SIGNALLING_IOCTLS),
    ):
        checks = [line for value in values for line in _when((_EQUAL, value), _ERROR | errno.EPERM)]
        lines += _block(number, [_argument(position), *checks, allow])
    return [*lines, allow]


def _when(condition: tuple[int, int], result: int) -> list[Instruction]:
    return [(condition[0], 0, 1, condition[1]), (_RETURN, 0, 0, result)]


def _unless(condition: tuple[int, int], result: int) -> list[Instruction]:
    return [(condition[0], 1, 0, condition[1]), (_RETURN, 0, 0, result)]


def _argument(position: int) -> Instruction:
    """Load the lower half of an argument, which is all of it for numbers of processes, flags and commands."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)


def _block(number: int, lines: list[Instruction]) -> list[Instruction]:
    """Lines that run for one system call and return."""
    return [(_EQUAL, 0, len(lines), number), *lines]

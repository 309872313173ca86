"""The filter of system calls: which calls are refused, and the BPF program with which the kernel refuses them.

The list holds the refused calls, not the allowed ones: numerical libraries make many calls, and new ones with each
version. Calls that are newer than the list are refused as unknown.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from motet.isolation.syscalls import PR_SET_PDEATHSIG, checked, libc

__all__ = ["ARCHITECTURES", "has_seccomp", "restrict_calls"]

# Numbers of system calls, (x86_64, aarch64); 0 if the architecture does not have the call.
_REFUSED = {
    # Sockets of all families.
    "socket": (41, 198), "socketpair": (53, 199),
    # Starting new processes, and access to other processes.
    "fork": (57, 0), "vfork": (58, 0), "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "get_robust_list": (274, 100), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "perf_event_open": (298, 241), "setns": (308, 268), "unshare": (272, 97),
    "sched_setscheduler": (144, 119), "sched_setparam": (142, 118), "sched_setattr": (314, 274),
    "setpriority": (141, 140), "ioprio_set": (251, 30),
    # What Landlock does not restrict: owners, modes, times and attributes of files.
    "chmod": (90, 0), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, 0),
    "fchown": (93, 55), "lchown": (94, 0), "fchownat": (260, 54), "utime": (132, 0), "utimes": (235, 0),
    "futimesat": (261, 0), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "mknod": (133, 0),
    "mknodat": (259, 33),
    # Memory and queues that other processes could share, or that would outlive the process.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # Ways around Landlock and seccomp, and control of the machine.
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
"""Highest number in the list. Calls above it are newer than the list."""

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables above, and the kernel's number of the architecture."""

_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000
_X32 = 0x40000000
# A file descriptor can be set to send any signal to any process, and an ioctl can insert input into a terminal.
_SIGNALLING_FCNTLS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
_SIGNALLING_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

Instruction = tuple[int, int, int, int]
"""An instruction of a BPF program: code, instructions to skip if true, instructions to skip if false, operand."""


def has_seccomp() -> bool:
    """Whether the kernel supports seccomp filters. Call it on one of ARCHITECTURES only."""
    column, _ = ARCHITECTURES[platform.machine()]
    action = ctypes.c_uint32(_ERROR)
    return bool(libc().syscall(_SECCOMP[column], 2, 0, ctypes.byref(action)) == 0)  # SECCOMP_GET_ACTION_AVAIL


def restrict_calls(machine: str) -> None:
    """Refuse system calls from now on, in all threads of this process."""
    program = b"".join(struct.pack("=HBBI", *line) for line in _filter(machine, os.getpid()))
    count = len(program) // 8
    memory = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", count, ctypes.addressof(memory))
    number = _SECCOMP[ARCHITECTURES[machine][0]]
    # SECCOMP_SET_MODE_FILTER for all threads. A result above zero is a thread to which the filter could not be applied.
    if result := checked(libc().syscall(number, 1, 1, header), "seccomp"):
        raise RuntimeError(f"the seccomp filter cannot be applied to thread {result}")


def _filter(machine: str, pid: int) -> list[Instruction]:
    """Return the program that the kernel runs before each system call of the process."""
    column, architecture = ARCHITECTURES[machine]
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        *_unless((_EQUAL, architecture), _KILL),  # for example 32-bit calls, which have other numbers
        (_LOAD, 0, 0, _NUMBER_AT),
        *([*_when((_GREATER, _X32 - 1), _KILL)] if machine == "x86_64" else []),
        *_when((_GREATER, _LAST_KNOWN), _ERROR | errno.ENOSYS),
        # The flags of clone3 are in memory, which a filter cannot read. After this error the C library uses clone.
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
    """Load the lower half of an argument, which is enough for process ids, flags and commands."""
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)


def _block(number: int, lines: list[Instruction]) -> list[Instruction]:
    """Return instructions that run for one system call only. They end with a result."""
    return [(_EQUAL, 0, len(lines), number), *lines]

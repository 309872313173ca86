"""The process of one isolated policy, and how it starts beside its guard.

:mod:`motet.isolation.policy` is the other end, called the parent here.

On Linux the operating system's parent of a policy process is a *guard*, a process that runs no code of the policy. The
guard collects the policy's output, watches its memory, and becomes the parent of every orphan that the policy leaves,
even of detached and indirect children. When the policy process ends, when the parent asks for it, or when the parent is
gone, the guard kills all of them, waits until they are dead, reports how the policy process ended, and exits. So the
exit of the guard confirms that nothing is left.

The parent sends one question at a time through the :class:`~motet.isolation.mailbox.Mailbox`, and the policy process
answers through it. The guard sends its messages through a pipe to which the policy has no access. On systems other than
Linux there is no guard, and the parent kills only the policy process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TextIO

import cloudpickle

from motet.isolation import mailbox as _mailbox
from motet.isolation import sandbox as _sandbox
from motet.isolation.groups import Controller, PolicyGroup, remove_groups
from motet.isolation.guard import MESSAGE, REFUSED, STARTED, Guard, Output, drain
from motet.isolation.mailbox import Mailbox
from motet.isolation.marks import carry_mark
from motet.isolation.syscalls import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, prctl
from motet.masks import mask_form
from motet.policies.teams import make_policy, sole_asker
from motet.policy import Policy
from motet.streams import Streams, StreamUser
from motet.system.child import signal_when_parent_ends
from motet.system.memory import Segment
from motet.system.raised import describe
from motet.system.supervisor import RestartLimits
from motet.world.spaces import InvalidValue, action_checker

__all__ = ["START", "PolicyStart", "enter"]

_KERNEL_BYTES = 64 << 20
"""Minimum of a memory limit: what a policy process and the kernel use before the policy is created."""

START = 1
"""The number of the first question, which is implicit: to make the policy."""


@dataclass(frozen=True)
class PolicyStart:
    """The data from which a policy process is made. The policy is unpickled only after the process gave up files and
    rights."""

    spaces: bytes
    """Pickled observation space and action space."""
    policy: bytes
    """Pickled spec, with the arguments about agent and world that its factory is offered."""
    memory_bytes: int | None
    tasks: int
    open_files: int
    folder_bytes: int
    sandbox: _sandbox.Confinement | None
    guarded: bool
    mark: int
    """Marks the guard and everything below it, see :mod:`motet.isolation.marks`."""
    by_kernel: bool
    """Whether to let the kernel limit the tasks, the memory and the folder, where it can."""
    grouped: frozenset[Controller] = frozenset()
    """The resources that the kernel limits by control groups, as the guard has found out."""

    @property
    def group_limits(self) -> dict[Controller, int]:
        """The limits of the policy's control groups.

        The limit on memory is in addition to the guard's: it also counts memory that no process has mapped, and the
        kernel's own memory.
        """
        limits: dict[Controller, int] = {"pids": self.tasks}
        if self.memory_bytes is not None:
            folder = self.folder_bytes if self.sandbox is not None and self.sandbox.limited else 0
            limits["memory"] = self.memory_bytes + max(self.memory_bytes // 4, _KERNEL_BYTES) + folder
        return limits


def enter(segment: Segment, pipe: Connection, start: PolicyStart) -> None:
    """Become a guard and fork the policy process, or become the policy process if there is no guard."""
    out_r, out_w = os.pipe()
    mailbox = Mailbox(segment)
    if not start.guarded:
        if start.sandbox is not None:
            os.mkdir(start.sandbox.folder, 0o700)
        threading.Thread(target=drain, args=(Output(out_r, mailbox),), daemon=True).start()
        _live(mailbox, pipe, start, out_w, keep=(out_r,))
    os.setpgid(0, 0)  # a separate process group: the docstring of Guard says why
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # the mark is set while this process still dies with its parent, because the parent looks for marks at the end
    carry_mark(start.mark)
    prctl(PR_SET_PDEATHSIG, 0)
    signal_when_parent_ends(signal.SIGCONT)
    groups = []
    if start.sandbox is not None:
        os.mkdir(start.sandbox.folder, 0o700)  # created here, because from here on the guard always removes the folder
        limited = start.by_kernel and _sandbox.limit_folder(start.sandbox.folder, start.folder_bytes)
        start = replace(start, sandbox=replace(start.sandbox, limited=limited))
    if start.by_kernel:
        for controller, limit in start.group_limits.items():
            with contextlib.suppress(OSError):  # no group can be created, so the guard counts the tasks itself
                groups.append(PolicyGroup(controller, start.mark, limit))
                start = replace(start, grouped=start.grouped | {controller})
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # garbage collection shall not copy the pages that are shared with the process before the fork
    pid = _fork(mailbox, pipe, start)
    if pid == 0:
        for group in groups:
            group.join()
        _live(mailbox, pipe, start, out_w)
    os.close(out_w)
    Guard(pid, Output(out_r, mailbox), pipe, start, mailbox).run()


def _fork(mailbox: Mailbox, pipe: Connection, start: PolicyStart) -> int:
    """Fork the policy process. If the system refuses it repeatedly, report that to the parent and exit."""
    limits = RestartLimits()
    for attempt in range(limits.restarts):
        try:
            return os.fork()
        except OSError as error:
            refused = error
        if pipe.poll(limits.pause_s(attempt)):  # the parent has ended, or does not need the policy any more
            break
    with contextlib.suppress(OSError):  # the parent is gone
        pipe.send_bytes(MESSAGE.pack(REFUSED, refused.errno or 0))
    mailbox.answered.ring()
    if start.sandbox is not None:
        _sandbox.remove(start.sandbox.folder)
    if start.grouped:
        remove_groups(start.mark)
    os._exit(0)


def _live(mailbox: Mailbox, pipe: Connection, start: PolicyStart, out: int, keep: tuple[int, ...] = ()) -> NoReturn:
    """Run as the policy process until it is killed."""
    guard = os.getppid()
    try:
        os.setsid()  # a signal to the policy's process group shall reach no other process
        try:
            pipe.send_bytes(MESSAGE.pack(STARTED, os.getpid()))
        except (BrokenPipeError, ConnectionResetError):  # the parent has ended, and the policy is not needed any more
            os._exit(0)
        _close_everything(out, keep)
        questions = _Questions(mailbox, sandboxed=start.sandbox is not None)
        try:
            _sandbox.lower_limits(start.open_files, start.folder_bytes if start.sandbox is not None else None)
            if start.guarded:
                _die_with(guard)
            if start.sandbox is not None:
                _sandbox.confine(start.sandbox)
            questions.open(start)
        except BaseException as error:  # noqa: BLE001 - any error is reported to the parent
            questions.tell(error)
        else:
            questions.serve()
    except BaseException:  # noqa: BLE001 - an error in motet; the parent reads it from the output
        traceback.print_exc()
    finally:
        os._exit(1)


def _close_everything(out: int, keep: tuple[int, ...]) -> None:
    """Close all file descriptors, except for the output and an empty input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, number)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = None  # the tracker's descriptor is closed; a policy that needs a tracker starts a new one
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), _writer(1), _writer(2)  # noqa: SIM115


def _writer(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _die_with(guard: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # the guard ended before the call
        os._exit(1)


class _Questions:
    """Takes questions from the mailbox, passes them to the policy, and writes its answers."""

    def __init__(self, mailbox: Mailbox, sandboxed: bool) -> None:
        self._mailbox, self._sandboxed = mailbox, sandboxed
        self._number, self._seen = START, 0

    def open(self, start: PolicyStart) -> None:
        """Make the policy. This is the first time that its code runs."""
        observations, actions = cloudpickle.loads(start.spaces)
        self._mailbox.bind(observations, actions)
        self._give, self._mask_form = action_checker(actions), mask_form(actions)
        spec, known = cloudpickle.loads(start.policy)
        offered = {"observation_space": observations, "action_space": actions, **known}
        Streams(StreamUser("this process")).enter()  # so that no code waits for the streams of a caller
        self._policy: Policy = make_policy(spec, offered)
        self._ask = sole_asker(self._policy)
        self._say(_mailbox.FINE)

    def serve(self) -> NoReturn:
        """Answer one question after the other."""
        mailbox, policy, question = self._mailbox, self._policy, self._mailbox.question
        while True:
            self._next()
            kind = question[_mailbox.KIND]
            try:
                if kind == _mailbox.ACT:
                    mailbox.put_action(self._give(self._ask(mailbox.take_observation(), None)))
                elif kind == _mailbox.RESET:
                    policy.reset(question[_mailbox.VALUE])
                else:
                    self._act(kind)
            except BaseException as error:  # noqa: BLE001 - any error is reported to the parent
                self.tell(error)
            else:
                self._say(_mailbox.FINE)

    def _act(self, kind: int) -> None:
        """Answer a question that has a mask or a pickled observation."""
        mailbox, pickled = self._mailbox, kind & ~_mailbox.MASK == _mailbox.PICKLED
        mask = self._mask_form.nest(mailbox.mask.copy()) if kind & _mailbox.MASK else None
        observation = self._unpickled(mailbox.question[_mailbox.VALUE]) if pickled else mailbox.take_observation()
        mailbox.put_action(self._give(self._ask(observation, mask)))

    def _next(self) -> None:
        """Wait for a question, without a deadline."""
        asked, seen = self._mailbox.asked, self._seen
        while (count := asked.wait(seen, 3600.0)) == seen:
            pass
        self._seen, self._number = count, self._mailbox.question[_mailbox.NUMBER]

    def _unpickled(self, length: int) -> Any:
        """Return an observation that is not an array. Unpickling is safe: it comes from the parent."""
        data = bytearray()
        while True:
            data += self._mailbox.piece[: min(length - len(data), _mailbox.PIECE_BYTES)].tobytes()
            if len(data) == length:
                return pickle.loads(data)  # noqa: S301 - only data from the parent
            self._say(_mailbox.MORE)
            self._next()

    def _say(self, state: int) -> None:
        answer = self._mailbox.answer
        answer[_mailbox.STATE] = state
        answer[_mailbox.NUMBER] = self._number
        self._mailbox.answered.ring()

    def tell(self, error: BaseException) -> None:
        """Answer with an error."""
        state = _mailbox.INVALID if isinstance(error, InvalidValue) else _mailbox.FAILED
        if self._sandboxed and isinstance(error, PermissionError):
            state = _mailbox.REFUSED
        self._mailbox.put_text(str(error) if isinstance(error, InvalidValue) else describe(error, but=__file__))
        self._say(state)

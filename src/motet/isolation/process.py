"""The process in which one policy lives, and the guard beside it. :mod:`motet.isolation.policy` is the other end.

On Linux a policy process has a *guard* as its parent: a process that runs nothing of the policy's. It collects what the
policy prints, watches its memory, and takes in every process that the policy starts, however deep and detached. When
the policy process ends, when the parent asks for it, or when the parent is gone, the guard kills all of them, sees that
they are dead, tells how it ended, and ends itself. So the guard's end confirms that nothing is left.

What flows: from the parent one question at a time through the
:class:`~motet.isolation.mailbox.Mailbox`; back the answer, by the same way. What the guard tells travels by a pipe that
the policy process never has. Elsewhere than on Linux there is no guard, the parent kills the policy process alone.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TextIO

import cloudpickle

from motet.isolation import mailbox as _mailbox
from motet.isolation import sandbox as _sandbox
from motet.isolation.mailbox import Mailbox
from motet.policies.teams import make_policy
from motet.policy import Policy, asker
from motet.system.child import signal_when_parent_ends
from motet.system.memory import Segment
from motet.system.raised import describe
from motet.world.spaces import InvalidValue, giver

__all__ = ["BORN", "CROWDED", "ENDED", "MEMORY", "START", "PolicyStart", "descendants", "enter", "unpack"]

START = 1
"""The number of the first question, which is not asked: to come into being."""

# What comes by the pipe: the process number; how it ended (as from waitpid); what it was killed for.
BORN, ENDED, MEMORY, CROWDED = 1, 2, 3, 4
_MESSAGE = struct.Struct("<Bq")

MOST_DESCENDANTS = 32
"""More processes than this a policy may not have at once. (A limit by user would not hold for root.)"""

_LOOK_S = 0.025
_LEISURE = 20
"""A look at the memory that takes long is followed by a pause this many times as long."""
_DEATH_S = 30.0


@dataclass(frozen=True)
class PolicyStart:
    """What a policy process is made of. The policy itself is bytes until nothing is in its reach that should not be."""

    spaces: bytes
    """Pickled observation space and action space."""
    policy: bytes
    """Pickled spec, and what is known of its agent and the world."""
    memory_bytes: int | None
    open_files: int
    sandbox: _sandbox.Confinement | None
    guarded: bool


def unpack(message: bytes) -> tuple[int, int]:
    """Kind and value of what came by the pipe."""
    kind, value = _MESSAGE.unpack(message)
    return kind, value


def enter(segment: Segment, pipe: Connection, start: PolicyStart) -> None:
    """Become a guard with a policy process, or a policy process alone."""
    out_r, out_w = os.pipe()
    mailbox = Mailbox(segment)
    if not start.guarded:
        threading.Thread(target=_print, args=(_Output(out_r, mailbox),), daemon=True).start()
        _live(mailbox, pipe, start, out_w, keep=(out_r,))
    os.setpgid(0, 0)  # see _Guard
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _sandbox.prctl(_sandbox.PR_SET_PDEATHSIG, 0)
    signal_when_parent_ends(signal.SIGCONT)
    _sandbox.prctl(_sandbox.PR_SET_CHILD_SUBREAPER, 1)
    gc.freeze()  # what is there now stays shared with the process it was copied from
    pid = os.fork()
    if pid == 0:
        _live(mailbox, pipe, start, out_w)
    os.close(out_w)
    _Guard(pid, _Output(out_r, mailbox), pipe, start, mailbox).run()


# ---- the policy


def _live(mailbox: Mailbox, pipe: Connection, start: PolicyStart, out: int, keep: tuple[int, ...] = ()) -> NoReturn:
    """Be a policy process until it is killed."""
    guard = os.getppid()
    try:
        os.setsid()  # a signal to its whole group reaches nobody else
        pipe.send_bytes(_MESSAGE.pack(BORN, os.getpid()))
        _close_everything(out, keep)
        questions = _Questions(mailbox, sandboxed=start.sandbox is not None)
        try:
            _sandbox.lower_limits(start.open_files)
            if start.guarded:
                _die_with(guard)
            if start.sandbox is not None:
                _sandbox.confine(start.sandbox)
            questions.open(start)
        except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
            questions.tell(error)
        else:
            questions.serve()
    except BaseException:  # noqa: BLE001 - a fault of ours; it comes home by the output
        traceback.print_exc()
    finally:
        os._exit(1)


def _close_everything(out: int, keep: tuple[int, ...]) -> None:
    """Leave nothing open but output, and an empty input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, number)
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(int(name))
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = None  # a policy that needs one starts its own
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), _writer(1), _writer(2)  # noqa: SIM115


def _writer(fd: int) -> TextIO:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _die_with(guard: int) -> None:
    _sandbox.prctl(_sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:  # it went before we asked
        os._exit(1)


class _Questions:
    """Where the policy's questions arrive and its answers leave."""

    def __init__(self, mailbox: Mailbox, sandboxed: bool) -> None:
        self._mailbox, self._sandboxed = mailbox, sandboxed
        self._number, self._seen = START, 0

    def open(self, start: PolicyStart) -> None:
        """Make the policy. The first of its code runs here."""
        observations, actions = cloudpickle.loads(start.spaces)
        self._mailbox.bind(observations, actions)
        self._give = giver(actions)
        spec, known = cloudpickle.loads(start.policy)
        offered = {"observation_space": observations, "action_space": actions, **known}
        self._policy: Policy = make_policy(spec, offered, exclusive=True)
        self._ask = asker(self._policy.act)
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
            except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
                self.tell(error)
            else:
                self._say(_mailbox.FINE)

    def _act(self, kind: int) -> None:
        """With a mask, or by a pickled observation."""
        mailbox, pickled = self._mailbox, kind & ~_mailbox.MASK == _mailbox.PICKLED
        mask = mailbox.mask.copy() if kind & _mailbox.MASK else None
        observation = self._unpickled(mailbox.question[_mailbox.VALUE]) if pickled else mailbox.take_observation()
        mailbox.put_action(self._give(self._ask(observation, mask)))

    def _next(self) -> None:
        """Wait for a question; the parent decides for how long."""
        asked, seen = self._mailbox.asked, self._seen
        while (count := asked.wait(seen, 3600.0)) == seen:
            pass
        self._seen, self._number = count, self._mailbox.question[_mailbox.NUMBER]

    def _unpickled(self, length: int) -> Any:
        """An observation that is no array, from the parent, who is to be trusted."""
        data = bytearray()
        while True:
            data += self._mailbox.piece[: min(length - len(data), _mailbox.PIECE_BYTES)].tobytes()
            if len(data) == length:
                return pickle.loads(data)  # noqa: S301 - towards the policy only
            self._say(_mailbox.MORE)
            self._next()

    def _say(self, state: int) -> None:
        answer = self._mailbox.answer
        answer[_mailbox.STATE] = state
        answer[_mailbox.NUMBER] = self._number
        self._mailbox.answered.ring()

    def tell(self, error: BaseException) -> None:
        """Answer that it did not go well."""
        state = _mailbox.MISFIT if isinstance(error, InvalidValue) else _mailbox.FAILED
        if self._sandboxed and isinstance(error, PermissionError):
            state = _mailbox.REFUSED
        self._mailbox.put_text(str(error) if isinstance(error, InvalidValue) else describe(error, but=__file__))
        self._say(state)


# ---- the guard


class _Output:
    """The last of what the policy printed, kept in the mailbox."""

    def __init__(self, fd: int, mailbox: Mailbox) -> None:
        self.fd, self._mailbox, self._written = fd, mailbox, 0
        self._memory = memoryview(mailbox.output.data)

    def read(self) -> bool:
        """Take what is there; False at its end."""
        at = self._written % len(self._memory)
        count = os.readv(self.fd, [self._memory[at:]])
        self._written += count
        self._mailbox.written[0] = self._written
        return count > 0


def _print(output: _Output) -> None:
    while output.read():
        pass


def _leave(number: int, frame: Any) -> NoReturn:
    raise SystemExit(0)


class _Guard:
    """Watches one policy process and everything it starts.

    It is deaf to the death of the fork server it came from, because it has work to do then: it learns of the parent's
    end by the pipe. Should it have been stopped, the kernel wakes it when the parent ends. If only the server ends, it
    is the last of its process group: the kernel sends such a group SIGHUP, which it ignores, and SIGCONT.
    """

    def __init__(self, pid: int, output: _Output, pipe: Connection, start: PolicyStart, mailbox: Mailbox) -> None:
        self._pid, self._output, self._pipe, self._start, self._mailbox = pid, output, pipe, start, mailbox
        self._status = 0
        self._look_at = 0.0

    def run(self) -> NoReturn:
        """Watch, and see everything dead."""
        try:
            signal.signal(signal.SIGTERM, _leave)  # a parent that ends without closing anything sends it
            try:
                why = self._watch()
            except SystemExit:
                why = ENDED
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end()
            # Into the pipe first: whoever is woken by the bell finds it there. A parent that is gone does not care.
            with contextlib.suppress(OSError):
                self._pipe.send_bytes(_MESSAGE.pack(why, self._status))
            self._mailbox.answered.ring()
        finally:
            os._exit(0)

    def _watch(self) -> int:
        """Wait until there is a reason for the end, and say which."""
        pidfd = os.pidfd_open(self._pid)
        poll = select.poll()
        for fd in (pidfd, self._pipe.fileno(), self._output.fd):
            poll.register(fd, select.POLLIN)
        watched = self._start.memory_bytes is not None
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * (_LOOK_S if watched else 8 * _LOOK_S))}
            if self._output.fd in ready and not self._output.read():
                poll.unregister(self._output.fd)
            if ready & {pidfd, self._pipe.fileno()}:
                return ENDED
            if time.monotonic() >= self._look_at and (why := self._look()):
                return why

    def _look(self) -> int | None:
        """Whether the policy has more than it may."""
        begun = time.monotonic()
        below = descendants(os.getpid())
        self._reap(below)
        if len(below) > 1 + MOST_DESCENDANTS:
            return CROWDED
        limit = self._start.memory_bytes
        if limit is not None and sum(map(self._at_most, below)) > limit and sum(map(self._private, below)) > limit:
            return MEMORY
        self._look_at = time.monotonic() + max(_LOOK_S, _LEISURE * (time.monotonic() - begun))
        return None

    def _at_most(self, pid: int) -> int:
        """Quickly: a bound on the memory of a process, what it shares with the process it was copied from included."""
        found = _numbers(f"/proc/{pid}/status", ("RssAnon:", "VmSwap:", "RssShmem:"))
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _private(self, pid: int) -> int:
        """In truth, each page divided among those who share it."""
        try:
            found = _numbers(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "SwapPss:", "Pss_Shmem:"))
        except PermissionError:  # it made itself unreadable
            return self._at_most(pid)
        return found[0] + found[1] + max(found[2] - self._mailbox.segment.size, 0)

    def _reap(self, below: list[int]) -> None:
        """Bury the orphans that ended by themselves."""
        for pid in below:
            if pid != self._pid:
                with contextlib.suppress(ChildProcessError):  # not an orphan
                    os.waitpid(pid, os.WNOHANG)

    def _end(self) -> None:
        """Kill all, and wait until they are dead. Orphans come to the guard, so none is missed."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + _DEATH_S
        while time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while (dead := os.waitpid(-1, os.WNOHANG))[0]:
                    if dead[0] == self._pid:
                        self._status = dead[1]
            except ChildProcessError:
                break
            time.sleep(0.0002)
        os.set_blocking(self._output.fd, False)
        with contextlib.suppress(BlockingIOError):
            _print(self._output)
        if self._start.sandbox is not None:
            _sandbox.remove(self._start.sandbox.folder)


def descendants(pid: int) -> list[int]:
    """All processes below one, ended but unburied ones too."""
    found, todo = list[int](), [pid]
    while todo:
        below = list(_children(todo.pop()))
        found += below
        todo += below
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def _numbers(path: str, names: tuple[str, ...]) -> list[int]:
    """Bytes by name from a file of ``Name:  123 kB``; 0 for what is not there."""
    found = dict.fromkeys(names, 0)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(path) as file:  # it ended meanwhile
        for line in file:
            name, *rest = line.split()
            if name in found:
                found[name] = int(rest[0]) * 1024
    return list(found.values())

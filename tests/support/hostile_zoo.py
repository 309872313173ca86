"""Policies that one would rather not meet. Each fails, or cheats, in its own way; ``Honest`` is there to compare with.

All of them are for an observation space of 4 floats and three actions, or a box of two floats where that is said. They
count their own steps from 0 and behave well until ``at``.
"""

import os
import pickle
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np


class Honest:
    """What all of them play until they do not: a fixed sequence that depends on the seed."""

    def __init__(self, at=0):
        self.at = at

    def reset(self, seed):
        self.rng, self.step = random.Random(seed), -1

    def act(self, observation, mask=None):
        self.step += 1
        fine = self.rng.randrange(3)
        return fine if self.step < self.at else self.misbehave(fine)

    def misbehave(self, fine):
        return fine


class Sleeps(Honest):
    def misbehave(self, fine):
        time.sleep(1e6)


class IgnoresSigterm(Honest):
    def misbehave(self, fine):
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        time.sleep(1e6)


class Stops(Honest):
    def misbehave(self, fine):
        os.kill(os.getpid(), signal.SIGSTOP)


class Busy(Honest):
    def misbehave(self, fine):
        while True:
            pass


class BusyThreads(Honest):
    """Takes the time of several processors while its main thread sleeps."""

    def misbehave(self, fine):
        for _ in range(4):
            threading.Thread(target=self.work, daemon=True).start()
        time.sleep(1e6)

    def work(self):
        data = np.ones(1 << 20)
        while True:
            data.sum()


class BusyChild(Honest):
    """Takes the time of a processor in another process."""

    def misbehave(self, fine):
        if os.fork() == 0:
            while True:
                pass
        time.sleep(1e6)


class RaisesAtStart:
    def __init__(self):
        raise ValueError("not today")


class StartsForEver:
    def __init__(self):
        time.sleep(1e6)


class RaisesAtReset(Honest):
    def reset(self, seed):
        raise ValueError("no new episode")


class Raises(Honest):
    def misbehave(self, fine):
        raise ValueError("I had enough\x1b[2J\u202e")


class RaisesTheUnprintable(Honest):
    def misbehave(self, fine):
        class Worse(BaseException):
            def __str__(self):
                raise SystemExit(9)

        raise Worse


class LeavesQuietly(Honest):
    def misbehave(self, fine):
        os._exit(3)


class KillsItself(Honest):
    def misbehave(self, fine):
        os.kill(os.getpid(), signal.SIGKILL)


class Crashes(Honest):
    def misbehave(self, fine):
        import ctypes

        ctypes.string_at(8)


class EatsMemory(Honest):
    def misbehave(self, fine):
        self.eaten = []
        while True:
            self.eaten.append(np.ones(1 << 20))
            time.sleep(0.005)


class EatsMemoryInAChild(EatsMemory):
    def misbehave(self, fine):
        if os.fork() == 0:
            super().misbehave(fine)
        time.sleep(1e6)


class Prints(Honest):
    """Nothing but noise: it is not a failure."""

    def misbehave(self, fine):
        sys.stdout.write("\x1b[31mall work and no play\r\n" * 200_000)
        sys.stderr.write("the end\n")
        return fine


class AnswersNan(Honest):
    """For a box of two floats."""

    def misbehave(self, fine):
        return np.array([0.0, np.nan], np.float32)


class AnswersTheWrongShape(Honest):
    def misbehave(self, fine):
        return np.zeros(7, np.float32)


class AnswersOutOfBounds(Honest):
    def misbehave(self, fine):
        return 3


class AnswersText(Honest):
    def misbehave(self, fine):
        return "left, please"


class AnswersAGiant(Honest):
    """A number with more digits than Python writes out."""

    def misbehave(self, fine):
        return -(10**6000) if self.step % 2 else 10**6000


class Reluctant:
    """What it is asked for ends the program."""

    def __index__(self):
        return sys.exit("no number")

    def __array__(self, *args, **more):
        raise MemoryError("no array")

    def __repr__(self):
        raise RecursionError("no text")


class AnswersReluctantly(Honest):
    def misbehave(self, fine):
        return Reluctant()


class ReluctantNumber(int):
    """A number like any other, until somebody compares it."""

    def __le__(self, other):
        raise SystemExit("not with me")

    __lt__ = __ge__ = __gt__ = __eq__ = __str__ = __repr__ = __format__ = __index__ = __int__ = __le__
    __hash__ = None


class AnswersANumberOfItsOwn(Honest):
    """Which is fine: it is a number."""

    def misbehave(self, fine):
        return ReluctantNumber(fine)


class AnswersARelative(Honest):
    """An array whose subclass has other ideas; its values are fine, for a box of two floats."""

    def misbehave(self, fine):
        class Array(np.ndarray):
            def copy(self, *args, **more):
                raise ValueError("no copies")

            def __array_finalize__(self, other):
                pass

            def __eq__(self, other):
                raise ValueError("no comparison")

        return np.zeros(2, np.float32).view(Array)


class AnswersWithAnotherClass(Honest):
    def misbehave(self, fine):
        class Liar:
            @property
            def __class__(self):
                raise KeyError("who am I?")

        return Liar()


class AnswersAGiantInAnArray(Honest):
    """For a box of two floats."""

    def misbehave(self, fine):
        return [10**6000, 0]


class Exits(Honest):
    def misbehave(self, fine):
        sys.exit("I am done here")


class ExitsAtReset(Honest):
    def reset(self, seed):
        raise SystemExit


class ExitsAtStart:
    def __init__(self):
        sys.exit(0)


class Interrupts(Honest):
    """Nobody pressed Ctrl-C."""

    def misbehave(self, fine):
        raise KeyboardInterrupt


class LeavesAGenerator(Honest):
    def misbehave(self, fine):
        raise GeneratorExit


class Bomb:
    """Goes off where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class AnswersABomb(Honest):
    def __init__(self, at=0, path="bomb"):
        super().__init__(at)
        self.path = path

    def misbehave(self, fine):
        return Bomb(self.path)


class Forks(Honest):
    """Leaves processes behind in all the usual ways, and never answers."""

    def misbehave(self, fine):
        heard, said = os.pipe()
        for detach in (False, True, True):
            if os.fork() == 0:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if detach:
                    os.setsid()
                    if os.fork():
                        os._exit(0)
                sys.stdout.write(f"left behind: {os.getpid()}\n")
                sys.stdout.flush()
                os.write(said, b".")
                time.sleep(1e6)
        for _ in range(3):
            os.read(heard, 1)
        self.after()

    def after(self):
        time.sleep(1e6)


class ForksAndLeaves(Forks):
    def after(self):
        os._exit(0)


class Multiplies(Honest):
    def misbehave(self, fine):
        while True:
            if os.fork() == 0:
                time.sleep(1e6)
            time.sleep(0.001)


class StartsThreads(Honest):
    """As many as it gets."""

    def misbehave(self, fine):
        while True:
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()


class FillsItsFolder(Honest):
    """With files, some of which it deletes while they are open."""

    def misbehave(self, fine):
        self.held = []
        for number in range(100_000):
            path = Path(os.environ["TMPDIR"]) / f"file-{number}"
            self.held.append(path.open("wb", buffering=0))
            self.held[-1].write(bytes(1 << 16))
            if number % 2:
                path.unlink()
                time.sleep(0.001)
            elif number > 50:
                self.held[-1].close()


class WritesALargeFile(Honest):
    def misbehave(self, fine):
        with (Path(os.environ["TMPDIR"]) / "file").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))


class EatsMemoryInManyTasks(Honest):
    """Many threads and many mappings, so that measuring its memory takes long; prints how much it has."""

    def __init__(self, at=0, threads=48, mappings=32_000):
        super().__init__(at)
        self.threads, self.mappings = threads, mappings

    def misbehave(self, fine):
        import mmap

        page, self.kept = mmap.PAGESIZE, []
        for number in range(self.mappings):
            self.kept.append(
                mmap.mmap(-1, page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | number % 2 * 2)
            )
        for _ in range(self.threads - 1):
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        megabyte, count = 1 << 20, 0
        while True:
            block = mmap.mmap(-1, 2 * megabyte, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, 2 * megabyte, page):
                block[at] = 1
            self.kept.append(block)
            count += 2
            os.write(1, f"{count}\n".encode())


class LowersItsParentsLimits(Honest):
    """As root it may."""

    def __init__(self, at=0, above=1):
        super().__init__(at)
        self.above = above

    def misbehave(self, fine):
        import resource

        pid = os.getppid() if self.above else os.getpid()
        for _ in range(self.above - 1):
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (900, 900))
        time.sleep(self.above == 1 and 1e6)
        return 0


class OpensASocket(Honest):
    def misbehave(self, fine):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM):
            return fine


class WritesHome(Honest):
    def __init__(self, at=0, home="~"):
        super().__init__(at)
        self.home = home

    def misbehave(self, fine):
        (Path(self.home).expanduser() / "was-here").write_text("motet")
        return fine


class KillsItsParent(Honest):
    def misbehave(self, fine):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1e6)


class LeavesDaemonsAndKillsItsParent(Honest):
    """Its daemon has a session and a parent of its own, and closes what it inherited."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def misbehave(self, fine):
        heard, said = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (Path(self.folder) / str(os.getpid())).touch()
                os.write(said, b".")
                os.closerange(0, 4096)
                time.sleep(1e6)
            os._exit(0)
        os.read(heard, 1)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1e6)


class NotesItsGuard(Honest):
    """Harmless: writes down the process ids of itself and its parent. To free its memory takes a moment."""

    def __init__(self, folder, megabytes=0):
        super().__init__()
        self.ballast = bytearray(os.urandom(1 << 20)) * megabytes
        for pid in (os.getpid(), os.getppid()):
            (Path(folder) / str(pid)).touch()

    def act(self, observation, mask=None):
        return 0


class ClosesEverything(Honest):
    """It may: nobody else uses what it has."""

    def misbehave(self, fine):
        os.closerange(0, 4096)
        return fine


class Forges(Honest):
    """Writes past the rules into the memory it shares with its parent."""

    def mailbox(self):
        frame = sys._getframe()
        while not hasattr(frame.f_locals.get("self"), "_mailbox"):
            frame = frame.f_back
        return frame.f_locals["self"]._mailbox


class ForgesNan(Forges):
    """For a box of two floats."""

    def misbehave(self, fine):
        mailbox = self.mailbox()
        mailbox.put_action(np.array([0.5, np.nan], np.float32))
        mailbox.answer[1], mailbox.answer[0] = 0, mailbox.question[0]
        mailbox.answered.ring()
        time.sleep(1e6)


class ForgesLengths(Forges):
    def misbehave(self, fine):
        mailbox = self.mailbox()
        mailbox.written[:] = 2**64 - 1
        mailbox.answer[:] = 2**64 - 1
        mailbox.answer[1], mailbox.answer[0] = 2, mailbox.question[0]
        mailbox.answered.ring()
        time.sleep(1e6)


class ForgesAsksForMore(Forges):
    def misbehave(self, fine):
        mailbox = self.mailbox()
        mailbox.answer[1], mailbox.answer[0] = 1, mailbox.question[0]
        mailbox.answered.ring()
        time.sleep(1e6)


class Scribbles(Forges):
    """Noise over all of the memory, all the time."""

    def misbehave(self, fine):
        segment, noise = self.mailbox().segment, np.random.default_rng(0)
        whole = np.frombuffer(segment._mmap, np.uint8)
        while True:
            whole[:] = noise.integers(0, 256, len(whole), np.uint8)


class Rings(Forges):
    def misbehave(self, fine):
        bell = self.mailbox().answered
        while True:
            bell.ring()


class RingsSlowly(Forges):
    """So that somebody who looks at the clock only when nothing rings never looks."""

    def misbehave(self, fine):
        bell = self.mailbox().answered
        while True:
            bell.ring()
            time.sleep(0.015)


class RingsABomb(Forges):
    """Puts a pickle where an answer should be."""

    def __init__(self, at=0, path="bomb"):
        super().__init__(at)
        self.path = path

    def misbehave(self, fine):
        mailbox = self.mailbox()
        data = np.frombuffer(pickle.dumps(Bomb(self.path)), np.uint8)
        mailbox.segment["text"][: len(data)] = data
        mailbox.answer[2], mailbox.answer[1], mailbox.answer[0] = len(data), 2, mailbox.question[0]
        mailbox.answered.ring()
        time.sleep(1e6)


class RaisesAGroup(Honest):
    def misbehave(self, fine):
        raise BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(3), ValueError("no")])


class AnswersAGenerator(Honest):
    def misbehave(self, fine):
        return (number for number in iter(int, 1))


class AnswersALongSequence(Honest):
    """It has two elements for as long as one asks."""

    def misbehave(self, fine):
        class Long:
            def __len__(self):
                return 2**62

            def __getitem__(self, index):
                return index

        return Long()


class RecursesForEver(Honest):
    def misbehave(self, fine):
        return self.misbehave(fine)


class RaisesWhereItIsFreed(Honest):
    """An exception in a destructor goes nowhere: no failure."""

    def misbehave(self, fine):
        class Freed:
            def __del__(self):
                raise SystemExit("freed")

        Freed()
        return fine


class RaisesInAThread(Honest):
    """Neither is this one."""

    def misbehave(self, fine):
        thread = threading.Thread(target=lambda: sys.exit("from a thread"))
        thread.start()
        thread.join()
        return fine


class AnswersTrue(Honest):
    def misbehave(self, fine):
        return [[True]]


class RaisesForEver(Honest):
    """Each exception is the cause of the next."""

    def misbehave(self, fine):
        error = None
        for number in range(500):
            try:
                raise ValueError(number) from error
            except ValueError as caught:
                error = caught
        raise error


class LeavesItsFolder(Honest):
    """Harmless to others: the folder, the mask for new files and the environment belong to its process."""

    def misbehave(self, fine):
        os.chdir("/")
        os.umask(0o777)
        os.environ.clear()
        return fine


class BreaksTheInterpreter(Honest):
    def misbehave(self, fine):
        import builtins

        sys.setswitchinterval(1000.0)
        builtins.isinstance = builtins.len = None
        sys.modules.clear()
        return fine


class TracesEverything(Honest):
    def misbehave(self, fine):
        def trace(frame, event, argument):
            raise RuntimeError("traced")

        sys.settrace(trace)
        return fine


class SetsAnAlarm(Honest):
    def misbehave(self, fine):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(1e6)


class KillsItsGroup(Honest):
    def misbehave(self, fine):
        os.killpg(0, signal.SIGKILL)


class OpensEverything(Honest):
    def misbehave(self, fine):
        self.held = [open(os.devnull) for _ in range(100_000)]  # noqa: SIM115


class AnswersTwice(Honest):
    """Two processes share its mailbox from then on."""

    def misbehave(self, fine):
        os.fork()
        return fine


class StopsItsGuard(Honest):
    def misbehave(self, fine):
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1e6)


class WaitsAtExit(Honest):
    def misbehave(self, fine):
        import atexit

        atexit.register(time.sleep, 1e6)
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        raise ValueError("done")


class PrintsForEver(Honest):
    """In a thread, while it answers well."""

    def misbehave(self, fine):
        if self.step == self.at:
            threading.Thread(target=self.print, daemon=True).start()
        return fine

    def print(self):
        while True:
            os.write(1, b"and on " * 100)
            time.sleep(0.001)


class RestsWithTheLock(Honest):
    """Holds the interpreter's lock in C, so that none of its threads runs."""

    def misbehave(self, fine):
        import ctypes

        ctypes.PyDLL(None).sleep(1000)


class WritesThroughItsObservation(Honest):
    def act(self, observation, mask=None):
        observation[:] = -1e9
        return super().act(observation, mask)

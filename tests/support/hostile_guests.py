"""More hostile policies: they change their arguments, hide the resources that they use, and forge answers.

Like those of :mod:`support.hostile_zoo`, they are for an observation space of 4 floats and three actions, and behave
well until ``at``. Where a mask is given, it forbids the last action.
"""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from support.hostile_zoo import EatsMemory, Honest, Multiplies


class Guest(Honest):
    """Keeps what it was made from and what it was asked with."""

    def __init__(self, observation_space, action_space, at=0):
        super().__init__(at)
        self.spaces = observation_space, action_space

    def act(self, observation, mask=None):
        self.seen, self.mask, self.step = observation, mask, self.step + 1
        fine = self.rng.randrange(2)
        return fine if self.step < self.at else self.misbehave(fine)


class LiftsItsMask(Guest):
    def misbehave(self, fine):
        if self.mask is not None:
            self.mask[:] = True
        return 2


class WidensItsSpace(Guest):
    def misbehave(self, fine):
        seen, actions = self.spaces
        actions.n, actions.start = np.int64(100), np.int64(-50)
        seen.low[:], seen.high[:] = 5, 6
        return 50


class SharesItsSpace(Guest):
    """Seeds and draws from its space, as many policies do. It is fine, if nobody else draws from it."""

    def reset(self, seed):
        super().reset(seed)
        self.spaces[1].seed(seed % 2**32)

    def misbehave(self, fine):
        return int(self.spaces[1].sample()) % 2


class SpoilsItsObservation(Guest):
    """Which is its own copy."""

    def misbehave(self, fine):
        self.seen[:] = np.nan
        return fine


class AnswersACoroutine(Guest):
    def misbehave(self, fine):
        warnings.simplefilter("ignore")  # of one that is not awaited
        return asyncio.sleep(0)


class AnswersABroadcast(Guest):
    """An array of 10**16 elements that takes no memory."""

    def misbehave(self, fine):
        return np.broadcast_to(np.zeros(1), (10**8, 10**8))


class BlamesItself(Guest):
    """``raise … from`` the same exception: a chain without an end."""

    def misbehave(self, fine):
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first


class RaisesALongText(Guest):
    def misbehave(self, fine):
        raise ValueError("\x1b[31m" + "no and " * 5_000_000)


class RaisesOddNotes(Guest):
    def misbehave(self, fine):
        class Odd(ValueError):
            @property
            def __notes__(self):
                raise SystemExit("no notes")

        Odd.__qualname__ = Odd.__name__ = "\x1b]0;owned\x07"
        raise Odd("odd")


class ChangesItsMethods(Guest):
    """Fine: it was known how to ask it."""

    def misbehave(self, fine):
        type(self).act = self.__dict__["act"] = None
        self.__class__ = type("Other", (ChangesItsMethods,), {})
        return fine


class LeavesAThread(Guest):
    """One for which Python waits at its end."""

    def misbehave(self, fine):
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        return fine


class ChangesItsInterpreter(Guest):
    def misbehave(self, fine):
        gc.disable()
        sys.setswitchinterval(100.0)
        sys.setrecursionlimit(120)
        np.seterr(all="raise")
        warnings.simplefilter("error")
        sys.modules["numpy"] = sys.modules["pickle"] = None
        return fine


class MovesAway(Guest):
    def misbehave(self, fine):
        os.chdir("/")
        os.umask(0o777)
        os.environ.clear()
        return fine


class PressesCtrlC(Guest):
    """Its process gets the signal, not the one of the user."""

    def misbehave(self, fine):
        signal.raise_signal(signal.SIGINT)
        return fine


class ClosesItsOutput(Guest):
    def misbehave(self, fine):
        sys.stdout.close()
        sys.stderr.close()
        os.closerange(0, 3)
        raise ValueError("into the void")


class NamesItsThreads(Guest):
    """Names that look like the rest of the line in which the kernel writes them."""

    def misbehave(self, fine):
        import ctypes

        ctypes.CDLL(None).prctl(15, b") Z 1 1 1 1", 0, 0, 0)
        Multiplies.misbehave(self, fine)


class EatsSharedMemory(Guest):
    """Pages that a process shares with others, if there were any."""

    def misbehave(self, fine):
        import mmap

        self.eaten = []
        while True:
            self.eaten.append(mmap.mmap(-1, 1 << 23))
            self.eaten[-1][:] = bytes(1 << 23)
            time.sleep(0.005)


class EatsMemoryInAFile(Guest):
    """A file that exists in memory only and is not mapped, so that no process has its pages."""

    def misbehave(self, fine):
        fd = os.memfd_create("nothing")
        for _ in range(128):  # 1 GiB, which is more than its limit and does not harm the machine
            os.write(fd, bytes(1 << 23))
            time.sleep(0.005)
        return fine


class EatsUnseen(Guest):
    """It makes its files in /proc unreadable first, for all but root."""

    def misbehave(self, fine):
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
        EatsMemory.misbehave(self, fine)


class MakesManyFiles(Guest):
    """Empty ones: their sizes are no sum."""

    def misbehave(self, fine):
        for number in range(10_000_000):
            (Path(os.environ["TMPDIR"]) / f"file-{number}").touch()


class LinksOutside(Guest):
    """What its folder links to must not be removed with it."""

    def __init__(self, observation_space, action_space, at=0, outside="."):
        super().__init__(observation_space, action_space, at)
        self.outside = outside

    def misbehave(self, fine):
        folder = Path(os.environ["TMPDIR"])
        (folder / "link").symlink_to(self.outside, target_is_directory=True)
        (folder / "below").mkdir()
        (folder / "below" / "link").symlink_to(self.outside, target_is_directory=True)
        raise ValueError("done")

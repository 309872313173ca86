"""A world that stops in the middle of an episode until a file exists, so that a test decides what happens in
between."""

import math
import os
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from support.eager_workers import becomes

from motet.worlds import TreasureHunt


class Gated(TreasureHunt):
    """Treasure hunt that stands still, or goes slowly.

    Args:
        gate: a file; as soon as it is there, nothing is slow any more.
        at: steps of single agents that are quick all the same.
        pause_s: how long each of the others takes at most.
        signs: a folder, in which each process that stands still, or goes slowly, leaves a file with its number.
    """

    def __init__(self, gate, at, pause_s=math.inf, signs=None, **settings):
        super().__init__(**settings)
        self._gate, self._quick, self._pause_s, self._signs = Path(gate), at, pause_s, signs

    def step(self, action):
        self._quick -= 1
        if self._quick == -1 and self._signs is not None:
            Path(self._signs, str(os.getpid())).touch()
        until = time.monotonic() + (self._pause_s if self._quick < 0 else 0)
        while time.monotonic() < until and not self._gate.exists():
            time.sleep(0.01)
        super().step(action)


class Standstill:
    """A world for two players, which stands still in the second episode of each until one of them is killed."""

    def __init__(self, folder):
        self._gate, self._signs = folder / "gate", folder / "signs"
        self._signs.mkdir()
        self.world = partial(Gated, str(self._gate), 250, signs=str(self._signs), agents=2)  # 200 steps an episode
        self._gate.touch()

    @contextmanager
    def until(self, kill):
        """Stand still in here until both players do, and this has ended one of them, sooner or later."""
        self._gate.unlink()
        for sign in self._signs.iterdir():
            sign.unlink()

        def wait_and_kill():
            try:
                becomes(lambda: len(list(self._signs.iterdir())) == 2)
                kill()
                becomes(lambda: any(map(_is_gone, self._signs.iterdir())))
            finally:
                self._gate.touch()

        thread = threading.Thread(target=wait_and_kill)
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _is_gone(sign):
    """Whether the process that left it is dead, whoever has still to bury it."""
    try:
        return not Path("/proc", sign.name, "cmdline").read_bytes()
    except OSError:
        return True

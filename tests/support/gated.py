"""A world that halts in the middle of an episode until a file is there: a test chooses what happens meanwhile."""

import math
import time
from pathlib import Path

from motet.worlds import TreasureHunt


class Gated(TreasureHunt):
    """Treasure hunt that stands still, or goes slowly.

    Args:
        gate: a file; as soon as it is there, nothing is slow any more.
        at: steps of single agents that are quick all the same.
        pause_s: how long each of the others takes at most.
    """

    def __init__(self, gate, at, pause_s=math.inf, **settings):
        super().__init__(**settings)
        self._gate, self._quick, self._pause_s = Path(gate), at, pause_s

    def step(self, action):
        self._quick -= 1
        until = time.monotonic() + (self._pause_s if self._quick < 0 else 0)
        while time.monotonic() < until and not self._gate.exists():
            time.sleep(0.01)
        super().step(action)

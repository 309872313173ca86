"""A world that is slow until a file is there: nothing is over before a test has done what it is about."""

import time
from pathlib import Path

from motet.worlds import TreasureHunt


class Gated(TreasureHunt):
    def __init__(self, gate, **settings):
        super().__init__(**settings)
        self._gate, self._open = Path(gate), False

    def step(self, action):
        self._open = self._open or self._gate.exists()
        if not self._open:
            time.sleep(0.002)
        super().step(action)

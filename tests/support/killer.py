"""A watcher that kills the processes of a run."""

import os
import random
import signal
import time

from motet.system.supervisor import RestartLimits

BRISK = RestartLimits(hang_s=2.0, restarts=1000)


class Killer:
    """Watches a run and sends signals to its processes; remembers every version and update count it saw."""

    def __init__(self, choose, signals=(signal.SIGKILL,), most=1, pause_s=0.2, seed=0):
        self._choose, self._signals, self._most, self._pause_s = choose, signals, most, pause_s
        self._random, self._last = random.Random(seed), 0.0
        self.sent, self.said, self._killed = [], [], set()
        self.versions, self.updates, self.pids = [], [], set()

    def watch(self, snapshot):
        self.versions.append([row.version for row in snapshot.agents])
        self.updates.append([row.updates for row in snapshot.agents])
        self.pids.update((row.name, row.pid) for row in snapshot.processes if row.pid)
        self.restarts = {row.name: row.restarts for row in snapshot.agents}
        # Whoever was killed before is still shown until its successor is there.
        rows = [
            row
            for row in snapshot.processes
            if self._choose(row) and row.pid > 1 and row.pid not in self._killed and not row.done
        ]
        ready = time.monotonic() - self._last > self._pause_s and min(row.updates for row in snapshot.agents) > 20
        if rows and ready and len(self.sent) < self._most:
            row = self._random.choice(rows)
            number = self._random.choice(self._signals)
            try:
                os.kill(row.pid, number)
            except ProcessLookupError:
                return
            self.sent.append((row.name, number))
            if number == signal.SIGKILL:
                self._killed.add(row.pid)
            self._last = time.monotonic()

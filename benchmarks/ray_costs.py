"""Costs of a run on Ray besides acting and learning: processor time per block of rows, row and status query, and bytes.

``python -m benchmarks.ray_costs`` starts two Ray nodes on this machine. For some seconds each, it sends few or many
rows from one to the other, in few or many blocks, and queries the status of the learner process (a *look*). Processor
time is summed over the processes on both sides, including Ray's threads in them, and Ray's own processes on both nodes.
The cost of a block is the additional time per additional block. ``benchmarks.ray_scale`` simulates runs with these
numbers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ray import _TwoNodes
from benchmarks.spread import DQN, spread
from motet.cluster.connect import Shipment
from motet.cluster.driver import grouped
from motet.cluster.hosts import LearnerHost
from motet.cluster.link import Link
from motet.cluster.shared import LocalMemory
from motet.isolation.usage import descendants
from motet.placement import Cluster
from motet.system.supervisor import RestartLimits
from motet.training.roster import make_roster
from motet.training.settings import Settings

__all__ = ["measure"]

_LANES = 8
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Sender:
    """An actor without a world that writes a given number of rows per second, and counts its blocks."""

    def __init__(self, shipment: Shipment, learner: Any) -> None:
        roster = shipment.value
        self._place = LocalMemory(roster, actor=0)
        self._link = Link(self._place, 0, 0, [], 0, learner, RestartLimits(), Cluster().age_s(1))
        self._link.join()
        self._writers = [replay.writers(roster.lanes_of(i, 0)) for i, replay in enumerate(self._place.replays)]
        self._blocks = 0
        send = self._link._send

        def counted(last: bool) -> bool:
            self._blocks += 1
            return send(last)

        self._link._send = counted  # type: ignore[method-assign]
        self._link.start()

    def write(self, seconds: float, rows_s: int, age_s: float) -> tuple[int, int, int]:
        """Return its process id, and the blocks and rows sent; ``rows_s`` is the rate of all agents together."""
        lanes, before, self._link._age_s = np.arange(_LANES), self._blocks, age_s
        row = np.ones((_LANES, 18), np.float32), np.zeros(_LANES, np.int64), np.ones(_LANES, np.float32)
        began, rows = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            while rows < rows_s * now:
                for one in self._writers:
                    one.append(lanes, *row, version=1)
                rows += _LANES * len(self._writers)
            time.sleep(0.005)
        return os.getpid(), self._blocks - before, rows


def _cpu_s(*pids: int) -> float:
    """Return the processor time of these processes so far."""
    found = 0.0
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found += (int(stat[11]) + int(stat[12])) * _TICK_S
    return found


def measure(seconds: float = 5.0) -> dict[str, float]:
    """Return the costs in seconds of a core, and in bytes."""
    roster = make_roster(spread, DQN, Settings(worlds_per_actor=_LANES, learner_processes=1))
    with _TwoNodes() as ray:
        groups = {"play": 1, "rows": 2, "report": 1}
        kind = ray.remote(concurrency_groups=groups)(grouped(ray, LearnerHost)).options(scheduling_strategy="SPREAD")
        learner = kind.remote(Shipment((roster, None)), 0)
        sender = ray.remote(Sender).options(scheduling_strategy="SPREAD").remote(Shipment(roster), learner)
        there = ray.get(learner.report.remote(False, [None], False))
        pid, _, _ = ray.get(sender.write.remote(0.5, 1000, 0.02))
        mine = [child for child in descendants(os.getpid()) if child != pid]
        other = next(child for child in mine if "ray::LearnerHost" in Path(f"/proc/{child}/cmdline").read_text())
        rest = [child for child in mine if child != other]
        runs = []
        for rows_s, age_s in ((1_000, 0.04), (1_000, 0.004), (100_000, 0.04)):
            start = _cpu_s(pid), _cpu_s(other), _cpu_s(*rest)
            _, blocks, rows = ray.get(sender.write.remote(seconds, rows_s, age_s))
            end = _cpu_s(pid), _cpu_s(other), _cpu_s(*rest)
            runs.append(np.array([blocks, rows, *np.subtract(end, start)]))
        looks, before = 0, (_cpu_s(os.getpid()), _cpu_s(other))
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            ray.get(learner.report.remote(False, [None], False))
            looks += 1
            time.sleep(0.002)
        look = np.subtract((_cpu_s(os.getpid()), _cpu_s(other)), before) / looks
    few, many, full = runs
    more = many - few
    send, take, rays = more[2:] / more[0]
    policy = roster.policies[0]
    return {
        "block_send_s": float(send),
        "block_take_s": float(take),
        "block_ray_s": float(rays),
        "row_s": float(max(0.0, (full - few)[3] - take * (full - few)[0]) / (full - few)[1]),
        "idle_share": float((few[3] - take * few[0]) / seconds),
        "look_driver_s": float(look[0]),
        "look_place_s": float(look[1]),
        "row_bytes": roster.replay_spec(0).row_bytes,
        "weights_bytes": 4 * policy.sizes.weights,
        "state_bytes": 4 * policy.sizes.state,
        "look_bytes": len(ray.cloudpickle.dumps(there)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")

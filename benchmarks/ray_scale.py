"""Scaling limits of a run on a cluster: a simulation of its messages, with measured costs.

Blocks of rows, replies, versions and status queries (*looks*) are events. A core, or the network of a node, does one
thing at a time; messages have priority, and acting and learning get the remaining time. No process waits for the
pace: a learner that cannot keep up makes fewer updates per step. ``python -m benchmarks.ray_scale`` shows the sizes of
the scaling guide; :func:`simulate` accepts any others.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["Costs", "Plan", "simulate"]

_PUBLISH_EVERY = 10  # updates
_DRIVER = -1  # node of the driver
_LOOK_S, _LOOK_EACH_S = 0.1, 0.002  # the same values as in motet.cluster.driver


@dataclass(frozen=True)
class Costs:
    """Costs in seconds of a core, and in bytes.

    Defaults are measured by ``python -m benchmarks.ray_costs``: simple_spread, networks of 64-64. The last three are
    assumptions.
    """

    send_s: float = 0.0014
    """Time of the actor for a block."""
    take_s: float = 0.0012
    """Time of the learner for a block."""
    row_s: float = 0.2e-6
    """Time of the learner for a row."""
    look_s: float = 0.0009
    """Time of the driver for a look."""
    shown_s: float = 0.0012
    """Time of the queried process for a look."""
    row_bytes: int = 96
    """Size of a row: 18 floats, action, reward, meta word."""
    weights_bytes: int = 22_848
    """Size of the weights of a policy."""
    state_bytes: int = 91_392
    """Size of the state of an agent: weights, target network, two moments."""
    look_bytes: int = 6_000
    """Size of the answer to a look."""
    update_s: float = 0.0003
    """Time for an update of one agent, in a stack of two."""
    network_bytes_s: float = 1.25e8
    """Bandwidth of a node in each direction: 1 Gbit/s."""
    cores: int = 16
    """Number of cores of a node."""


@dataclass(frozen=True)
class Plan:
    """Size and settings of a simulated run."""

    agents: int
    actors: int
    learners: int
    """Number of learner processes."""
    block_age_s: float = 0.02
    keep_every_s: float = 2.0
    steps_s: float = 500.0
    """Steps per second of each agent over all actors, if actors only act and spend no time on messages."""
    updates_per_step: float = 1.0


Process = Generator[tuple[str, float], float, None]
"""A simulated process. It yields the name of the part that it needs, and for how long; it receives the time at which
the part has finished. With the name "" it only waits."""


class Scene:
    """A simulated run."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs = plan, costs
        self.places = plan.actors + plan.learners
        self.nodes = -(-self.places // costs.cores)
        self.own = plan.agents / plan.learners  # agents per learner process
        self.pause_s = max(_LOOK_S, _LOOK_EACH_S * self.places)
        self.free: dict[str, float] = defaultdict(float)  # time until which a part is busy
        self.busy: dict[str, float] = defaultdict(float)
        self.made = [0.0] * plan.actors  # steps of each agent
        # updates due in total, and updates done by each agent
        self.owed, self.done = [0.0] * plan.learners, [0.0] * plan.learners
        self.messages = 0
        self._fetched: dict[tuple[int, int], float] = {}  # number of versions by learner and node

    def play(self, seconds: float) -> None:
        """Simulate all processes for this many seconds."""
        plan = self.plan
        everybody = [self._link(a, i) for a in range(plan.actors) for i in range(plan.learners)]
        everybody += [self._look(i) for i in range(self.places)]
        events = [(next(process)[1], n, process) for n, process in enumerate(everybody)]
        heapq.heapify(events)
        while events[0][0] < seconds:
            now, n, process = events[0]
            part, cost = process.send(now)
            if part:
                self.free[part], self.busy[part] = max(self.free[part], now) + cost, self.busy[part] + cost
            heapq.heapreplace(events, (self.free[part] if part else now + cost, n, process))

    def _link(self, a: int, i: int) -> Process:
        """Blocks from an actor to a learner, and the replies."""
        plan, costs, sent = self.plan, self.costs, 0.0
        here, there = self._node(a), self._node(plan.actors + i)
        now = yield "", plan.block_age_s * (a + i) / self.places
        while True:
            self.messages += 1
            self._act(a, now)
            rows, sent = self.own * (self.made[a] - sent), self.made[a]
            now = yield f"actor {a}", costs.send_s
            now = yield from self._carry(now, here, there, rows * costs.row_bytes)
            self._learn(i, now)
            self.owed[i] += rows * plan.updates_per_step
            now = yield f"learner {i}", costs.take_s + rows * costs.row_s
            if (version := self.done[i] // _PUBLISH_EVERY) > self._fetched.get((i, here), -1.0):  # once for each node
                self._fetched[i, here] = version
                now = yield from self._carry(now, there, here, self.own * costs.weights_bytes)
            now = yield "", plan.block_age_s

    def _node(self, place: int) -> int:
        """Return the node of an actor or a learner; actors are numbered first."""
        return place % self.nodes

    def _look(self, place: int) -> Process:
        """Looks of the driver at an actor or a learner; learners also send their state at intervals."""
        plan, costs, i, home = self.plan, self.costs, place - self.plan.actors, 0.0
        now = yield "", self.pause_s * place / self.places
        while True:
            self.messages += 1
            size: float = costs.look_bytes
            now = yield "driver", costs.look_s
            if i >= 0:
                self._learn(i, now)
                size += self.own * costs.state_bytes * (now >= home)
                home = now + plan.keep_every_s if now >= home else home
                now = yield f"learner {i}", costs.shown_s
            else:
                self._act(place, now)
                now = yield f"actor {place}", costs.shown_s
            now = yield from self._carry(now, self._node(place), _DRIVER, size)
            now = yield "", self.pause_s

    def _carry(self, now: float, sender: int, taker: int, size: float) -> Generator[tuple[str, float], float, float]:
        """Transfer over the network of both nodes."""
        if sender != taker:
            now = yield f"network out of node {sender}", size / self.costs.network_bytes_s
            now = yield f"network into node {taker}", size / self.costs.network_bytes_s
        return now

    def _act(self, a: int, now: float) -> None:
        """Add the steps of an actor since its last message."""
        self.made[a] += self.plan.steps_s / self.plan.actors * max(0.0, now - self.free[f"actor {a}"])

    def _learn(self, i: int, now: float) -> None:
        """Make the updates that are due, but no more than the time since the learner's last message allows."""
        part = f"learner {i}"
        updates = min(self.owed[i], max(0.0, now - self.free[part]) / self.costs.update_s)
        self.owed[i], self.done[i] = self.owed[i] - updates, self.done[i] + updates / self.own
        self.busy[part] += updates * self.costs.update_s


def simulate(plan: Plan, costs: Costs, seconds: float = 20.0) -> dict[str, float]:
    """Return for each kind of part the highest load as a share of time, and the rates of messages, steps and
    updates."""
    scene = Scene(plan, costs)
    scene.play(seconds)
    loads: dict[str, float] = defaultdict(float)
    for part, spent in scene.busy.items():
        kind = "network into driver" if part.endswith(str(_DRIVER)) else part.rstrip(" 0123456789")
        kind = kind.removesuffix(" node")
        loads[kind] = max(loads[kind], min(spent / seconds, 1.0))
    steps, updates = sum(scene.made) / seconds, sum(scene.done) / plan.learners / seconds
    return {**loads, "messages/s": scene.messages / seconds, "steps/s": steps, "updates/s": updates}


PLANS = (
    Plan(10, 2, 5), Plan(10, 2, 5, block_age_s=0.03),
    Plan(100, 8, 50), Plan(100, 8, 50, block_age_s=0.3),
    Plan(1000, 16, 500), Plan(1000, 16, 500, block_age_s=3.0), Plan(1000, 16, 500, block_age_s=3.0, keep_every_s=30.0),
)  # fmt: skip
"""Runs of the scaling guide."""


def main() -> None:
    """Print two lines for each plan."""
    for plan in PLANS:
        found = simulate(plan, Costs(), max(10.0, 10 * plan.block_age_s))
        steps, updates, messages = (found.pop(f"{what}/s") for what in ("steps", "updates", "messages"))
        loads = ", ".join(f"{part} {load:.0%}" for part, load in sorted(found.items(), key=lambda item: -item[1]))
        rates = f"{steps:,.0f} steps/s and {updates:,.0f} updates/s of each agent, {messages:,.0f} messages/s"
        sys.stdout.write(f"{plan}\n  {rates}; {loads}\n")


if __name__ == "__main__":
    main()

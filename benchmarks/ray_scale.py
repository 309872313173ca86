"""Where a run on a cluster meets its limit: a simulation of its messages, from costs that were measured.

Blocks of rows, replies, versions and looks are events. A core, or the network of a node, does one thing after the
other; messages come first, and acting and learning get what time is left. Nobody waits for the pace: a learner that
cannot keep up does fewer updates for each step. ``python -m benchmarks.ray_scale`` shows the sizes of the scaling
guide; :func:`simulate` takes any others.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["Costs", "Plan", "simulate"]

_PUBLISH_EVERY = 10  # updates
_DRIVER = -1  # its node
_LOOK_S, _LOOK_EACH_S = 0.1, 0.002  # as in motet.cluster.driver


@dataclass(frozen=True)
class Costs:
    """Seconds of a core, and bytes.

    As ``python -m benchmarks.ray_costs`` measures them: simple_spread, networks of 64-64. The last three are chosen.
    """

    send_s: float = 0.0014
    """A block, of the actor."""
    take_s: float = 0.0012
    """A block, of the learner."""
    row_s: float = 0.2e-6
    """A row, of the learner."""
    look_s: float = 0.0009
    """A look, of the driver."""
    shown_s: float = 0.0012
    """A look, of who is looked at."""
    row_bytes: int = 96
    """18 floats, action, reward, meta word."""
    weights_bytes: int = 22_848
    """Of a policy."""
    state_bytes: int = 91_392
    """Of an agent: weights, target, two moments."""
    look_bytes: int = 6_000
    """What a place tells."""
    update_s: float = 0.0003
    """An update of one agent, in a stack of two."""
    network_bytes_s: float = 1.25e8
    """Of a node, in either direction: 1 Gbit/s."""
    cores: int = 16
    """Of a node."""


@dataclass(frozen=True)
class Plan:
    """A run."""

    agents: int
    actors: int
    learners: int
    """Learner processes."""
    block_age_s: float = 0.02
    keep_every_s: float = 2.0
    steps_s: float = 500.0
    """Steps a second of each agent that the worlds allow, in all actors together, if nothing else takes their cores."""
    updates_per_step: float = 1.0


Process = Generator[tuple[str, float], float, None]
"""Yields which part it needs and for how long, and is told when that is done; no part: it only waits."""


class Scene:
    """A run that is simulated."""

    def __init__(self, plan: Plan, costs: Costs) -> None:
        self.plan, self.costs = plan, costs
        self.places = plan.actors + plan.learners
        self.nodes = -(-self.places // costs.cores)
        self.own = plan.agents / plan.learners  # agents of a learner process
        self.pause_s = max(_LOOK_S, _LOOK_EACH_S * self.places)
        self.free: dict[str, float] = defaultdict(float)  # until when a part is at work
        self.busy: dict[str, float] = defaultdict(float)
        self.made = [0.0] * plan.actors  # steps of each agent
        self.owed, self.done = [0.0] * plan.learners, [0.0] * plan.learners  # updates of all its agents; of each
        self.messages = 0
        self._fetched: dict[tuple[int, int], float] = {}  # versions, by learner and node

    def play(self, seconds: float) -> None:
        """Everybody at once, for so long."""
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
        """Blocks from an actor to a learner, and what comes back."""
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
        """Of an actor or a learner, the actors first."""
        return place % self.nodes

    def _look(self, place: int) -> Process:
        """The driver, at an actor or at a learner; the learners' states come home now and then."""
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
        """Over the network of both nodes."""
        if sender != taker:
            now = yield f"network out of node {sender}", size / self.costs.network_bytes_s
            now = yield f"network into node {taker}", size / self.costs.network_bytes_s
        return now

    def _act(self, a: int, now: float) -> None:
        """In the time since an actor's last message."""
        self.made[a] += self.plan.steps_s / self.plan.actors * max(0.0, now - self.free[f"actor {a}"])

    def _learn(self, i: int, now: float) -> None:
        """What is owed, as far as there was time since a learner's last message."""
        part = f"learner {i}"
        updates = min(self.owed[i], max(0.0, now - self.free[part]) / self.costs.update_s)
        self.owed[i], self.done[i] = self.owed[i] - updates, self.done[i] + updates / self.own
        self.busy[part] += updates * self.costs.update_s


def simulate(plan: Plan, costs: Costs, seconds: float = 20.0) -> dict[str, float]:
    """Of each kind of part the highest load, as a share of its time; messages, and steps and updates of each agent."""
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
"""Of the scaling guide."""


def main() -> None:
    """Two lines for each plan."""
    for plan in PLANS:
        found = simulate(plan, Costs(), max(10.0, 10 * plan.block_age_s))
        steps, updates, messages = (found.pop(f"{what}/s") for what in ("steps", "updates", "messages"))
        loads = ", ".join(f"{part} {load:.0%}" for part, load in sorted(found.items(), key=lambda item: -item[1]))
        rates = f"{steps:,.0f} steps/s and {updates:,.0f} updates/s of each agent, {messages:,.0f} messages/s"
        sys.stdout.write(f"{plan}\n  {rates}; {loads}\n")


if __name__ == "__main__":
    main()

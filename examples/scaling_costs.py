"""Where a run on a cluster meets its limit: a simulation of its messages, from costs that were measured.

Blocks of rows, replies, versions, looks and updates are events; cores and network links do one thing after the other.
Actors act and learners learn in whatever time is left to them. Put in your own numbers.
"""

import heapq
import math
from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds of a core and bytes, as `python -m motet._bench._ray_costs` measures them; the last two are chosen."""

    send_s: float = 0.0010  # a block, of the actor
    take_s: float = 0.0010  # a block, of the learner
    look_s: float = 0.0006  # a look, of the driver
    row_s: float = 0.25e-6  # a row, of the learner
    row_bytes: int = 96  # 18 floats, action, reward, meta word
    weights_bytes: int = 22_848  # of a policy of 64-64
    state_bytes: int = 91_392  # weights, target, two moments
    update_s: float = 0.0005  # an update of one agent in a stack
    network_bytes_s: float = 1.25e8  # of a node: 1 Gbit/s
    cores: int = 16  # of a node


def simulate(costs: Costs, agents: int, actors: int, learners: int, steps_s: float, age_s: float, seconds=20.0):
    """Load by part, as a share of the time; and steps a second of each agent, of ``steps_s`` that the worlds allow."""
    free, busy = defaultdict(float), defaultdict(float)
    own, rate = agents / learners, steps_s / actors
    made, sent, owed, done, have = defaultdict(float), defaultdict(float), defaultdict(float), defaultdict(float), {}
    network = lambda place: f"network {place // costs.cores}"  # noqa: E731

    def work(part, at, cost):
        free[part], busy[part] = max(free[part], at) + cost, busy[part] + cost
        return free[part]

    places = actors + learners
    events = [(age_s * i / places, a, i) for a in range(actors) for i in range(actors, places)]
    events += [(0.1 * i / places, -1, i) for i in range(actors, places)]
    heapq.heapify(events)
    while events[0][0] < seconds:
        at, a, i = heapq.heappop(events)
        if a < 0:  # the driver looks; the state comes home every two seconds
            pause = max(0.1, 0.002 * places)
            at = work("driver", work(f"learner {i}", at, costs.take_s), costs.look_s)
            work("driver's network", at, own * costs.state_bytes * min(1, pause / 2) / costs.network_bytes_s)
            heapq.heappush(events, (at + pause, a, i))
            continue
        if owed[i] < 32 * own:  # slack: who is further ahead waits
            made[a] += rate * max(0.0, at - free[f"actor {a}"]) / learners
        rows, sent[a, i] = own * (made[a] - sent[a, i]), made[a]
        at = work(f"actor {a}", at, costs.send_s)
        at = work(network(i), work(network(a), at, rows * costs.row_bytes / costs.network_bytes_s), 0.0)
        learnt = min(owed[i], max(0.0, at - free[f"learner {i}"]) / costs.update_s)
        busy[f"learner {i}"] += learnt * costs.update_s
        done[i] += learnt / own
        owed[i] += rows - learnt
        at = work(f"learner {i}", at, costs.take_s + rows * costs.row_s)
        version, key = done[i] // 10, (i, a // costs.cores)
        if version > have.get(key, -1):  # once for each node
            have[key] = version
            at = work(network(i), at, own * costs.weights_bytes / costs.network_bytes_s)
        heapq.heappush(events, (at + age_s, a, i))
    loads = defaultdict(float)
    for part, time_s in busy.items():
        kind = part.rstrip("0123456789 ")
        loads[kind] = max(loads[kind], time_s / seconds)
    return dict(loads), sum(made.values()) / seconds

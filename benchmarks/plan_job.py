"""One planning job in a separate process, so that its memory can be measured: enumerate, solve, report the times.

Run as ``python -m benchmarks.plan_job MAP HORIZON WORKERS``; writes one JSON object.
"""

from __future__ import annotations

import json
import sys
import time

from motet.plan import enumerate_states, solve
from motet.worlds.rooms import Rooms

__all__ = ["main"]


def main() -> None:
    """Plan, and write sizes and times."""
    name, horizon, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rooms = Rooms(name, horizon=horizon or None)
    began = time.perf_counter()
    graph = enumerate_states(rooms, workers=workers)
    enumerated = time.perf_counter()
    solution = solve(graph, {human: rooms.goals(human) for human in graph.humans}, workers=workers)
    solved = time.perf_counter()
    found = {
        "states": len(graph),
        "transitions": len(graph.successor),
        "joint_actions": graph.joints,
        "goals_per_human": len(solution.goals[0]),
        "array_bytes": graph.nbytes + solution.nbytes,
        "enumerate_s": enumerated - began,
        "solve_s": solved - enumerated,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

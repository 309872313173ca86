"""All that reproducible runs have in common, read from the run directory: see :func:`whole`."""

import json

import numpy as np

from motet import _native
from motet.runs.directory import RunDirectory
from motet.system.memory import LINE

_CLOCKS = ("seconds", "policies_s")
_PARTS = ("state", "counters", "random", "reader", "stage", "steps")


def lines_of(path):
    """The lines of a file without clocks; none if there is no such file. A line after ``resumed`` replaces those."""
    lines: list[dict] = []
    for line in map(json.loads, path.read_text().splitlines()) if path.exists() else ():
        if "resumed" in line:
            lines = [one for one in lines if one["episode"] <= line["resumed"]]
        else:
            lines.append({key: value for key, value in line.items() if key not in _CLOCKS})
    return lines


def rows_of(lane):
    """The rows in a copy of a lane's memory, with their versions, and how many were written."""
    words = lane[: 3 * LINE].copy().view(np.uint64)
    _, capacity, size = map(int, words[:3])
    head, finals = (int(words[_native.LANE_WORDS[name]]) for name in ("head", "finals"))
    start = len(lane) - -(-capacity * size // LINE) * LINE
    return head, finals, lane[start : start + min(head, capacity) * size].tobytes()


def without_unread(reader):
    """A reader's state without the number of rows overwritten unread: a new reader does not know what was read."""
    return np.delete(reader, 7)


def whole(run):
    """Weights, moments, counters, streams, priorities, rows, episodes, evaluations and the league at the end of a run.

    The run needs ``keep_replay``.
    """
    kept = RunDirectory(run).load()
    found = {"step": kept.step, "ended": kept.notes["ended"]}
    for agent in kept.agents:
        for part in _PARTS:
            array = kept.agents[agent][part]
            found[f"{agent} {part}"] = (without_unread(array) if part == "reader" else array).tobytes()
        for name, array in kept.replay[agent].items():
            if name == "reader":
                array = without_unread(array)
            found[f"{agent} {name}"] = rows_of(array) if name.startswith("lane") else array.tobytes()
    found |= {f"league {name}": array.tobytes() for name, array in kept.league.items()}
    for name in ("episodes", "evaluation"):
        found[f"{name}.jsonl"] = lines_of(run / f"{name}.jsonl")
    return found


def differing(one, other):
    """The names of the parts in which two runs differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))

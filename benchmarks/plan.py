"""``motet bench plan``: enumeration with workers, sweeps compared with plain Python and QuantEcon, time and memory.

All times are of whole calls. ``seconds_70k`` and ``bytes_70k`` come from a job in a separate process, whose memory is
the sum of the proportional set sizes of all its processes, read twenty times a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import Comparison, Measure, Result, Settings, interleave
from benchmarks.plain_plan import PlainPlan
from motet.errors import MotetError
from motet.plan import Graph, Response, best_response, enumerate_states, solve
from motet.plan.induction import _solved
from motet.worlds.rooms import MAPS, Rooms, State

__all__ = ["run"]

CALL_S = 60e-6
LOOK_EVERY_S = 0.05


class SlowRooms(Rooms):
    """Rooms with a transition function that takes 60 us of CPU time, as in a realistic model."""

    def transition_probabilities(self, state: State, actions: Any) -> list[tuple[float, State]] | None:
        """Return what ``Rooms`` returns, after some computation."""
        until = time.process_time() + CALL_S
        outcome: list[tuple[float, State]] | None = super().transition_probabilities(state, actions)
        while time.process_time() < until:
            pass
        return outcome


@dataclass
class PlanResult(Result):
    """A result with additional values that are not ratios of two contestants."""

    @property
    def values(self) -> dict[str, float]:
        """The comparisons, the worst ratio of all maps, and time and memory of the big job."""
        found = {name: value for name, value in super().values.items() if not name.startswith("map:")}
        maps = [value for name, value in super().values.items() if name.startswith("map:")]
        if maps:
            found["worst_vs_serial"] = min(maps)
        for name, measure in (("seconds_70k", "big_seconds"), ("bytes_70k", "big_bytes")):
            if (median := self.median(measure, "motet")) is not None:
                found[name] = round(median, 4)
        return found


def run(settings: Settings) -> Result:
    """Measure everything."""
    maps = {"closet": 3, "freeing": 3} if settings.quick else {name: horizon for name, (_, horizon) in MAPS.items()}
    result = PlanResult(
        "plan",
        {
            "enumerate": Measure("Enumeration, 60 us per transition call", "states/s"),
            "limit": Measure("Limit of two cores: processes that only count", "counts/s"),
            **{f"map_{name}": Measure(f"Enumerate and solve {name}, {h} steps", "s") for name, h in maps.items()},
            "induction": Measure("Humans and robot, solved", "states/s"),
            "big_seconds": Measure("Humans and robot of courtyard, after enumeration", "s"),
            "big_bytes": Measure("Peak of the summed PSS, enumeration included", "bytes"),
            "decisions": Measure("Finite-horizon MDP of the same graph", "s"),
            "sweeps": Measure("Equal number of sweeps over a graph without steps", "s"),
        },
        {
            "workers2_vs_1": Comparison("enumerate", "motet, 2 workers", "motet, 1 worker", 1.7),
            "workers2_limit": Comparison("limit", "2 at once", "1 at once"),
            **{f"map:{name}": Comparison(f"map_{name}", "motet, 2 workers", "motet, 1 worker", 0.9) for name in maps},
            "induction_vs_python": Comparison("induction", "motet", "plain Python", 200),
            "vs_quantecon": Comparison("decisions", "motet", "QuantEcon", 3),
            "vs_quantecon_same_sweeps": Comparison("sweeps", "motet", "QuantEcon"),
        },
    )
    _enumeration(result, settings)
    _all_maps(result, settings, maps)
    _induction(result, settings)
    _big_job(result, settings)
    _decisions(result, settings)
    return result


def _rate(count: int, ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return count / (time.perf_counter() - began)


def _seconds(ask: Callable[[], object]) -> float:
    """Return the seconds of one call; short calls are repeated for a fifth of a second."""
    began, calls = time.perf_counter(), 0
    while True:
        ask()
        calls += 1
        if (took := time.perf_counter() - began) > 0.2:
            return took / calls


def _enumeration(result: PlanResult, settings: Settings) -> None:
    model = SlowRooms("passage", horizon=1 if settings.quick else 6)
    states = len(enumerate_states(Rooms("passage", horizon=model.horizon)))
    contestants = {
        f"motet, {workers} worker{'s' if workers > 1 else ''}": lambda workers=workers: _rate(
            states, lambda: enumerate_states(model, workers=workers)
        )
        for workers in (1, 2)
    }
    interleave(result, "enumerate", contestants, min(settings.repeats, 3), warm=False)
    limit = {f"{count} at once": lambda count=count: _spun(count) for count in (1, 2)}
    interleave(result, "limit", limit, min(settings.repeats, 3), warm=False)
    result.facts["enumerate_states"] = states


def _spun(count: int) -> float:
    """Return how fast several processes count in parallel, in counts per second: the free capacity of the machine."""
    program = "import time\nend, n = time.perf_counter() + 0.5, 0\nwhile time.perf_counter() < end: n += 1\nprint(n)"
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) for _ in range(count)]
    return sum(int(process.communicate()[0]) for process in running) / 0.5


def _all_maps(result: PlanResult, settings: Settings, maps: Mapping[str, int]) -> None:
    for name, horizon in maps.items():
        rooms = Rooms(name, horizon=horizon)
        big = name == "courtyard"

        def job(workers: int, rooms: Rooms = rooms) -> None:
            graph = enumerate_states(rooms, workers=workers)
            solve(graph, {human: rooms.goals(human) for human in graph.humans}, workers=workers)

        contestants = {
            f"motet, {workers} worker{'s' if workers > 1 else ''}": lambda workers=workers, job=job: _seconds(
                lambda: job(workers)
            )
            for workers in (1, 2)
        }
        interleave(result, f"map_{name}", contestants, 1 if big else settings.repeats, warm=not big)


def _induction(result: PlanResult, settings: Settings) -> None:
    rooms = Rooms("passage", horizon=2 if settings.quick else 4)
    graph = enumerate_states(rooms, workers=1)
    goals = {human: rooms.goals(human) for human in graph.humans}
    plain = PlainPlan(graph)
    ours, (theirs, _) = solve(graph, goals), plain.solve(goals)
    agree = max(
        abs(ours.arrays["human_value"][s, ours.first[graph.humans.index(h)] + g] - value)
        for s, values in enumerate(theirs)
        for (h, g), value in values.items()
    )
    if agree > 1e-9:
        raise MotetError(f"plain Python and the sweeps differ by {agree}: one of them is wrong")
    states = len(graph)
    contestants = {
        "motet": lambda: 1 / _seconds(lambda: solve(graph, goals)) * states,
        "plain Python": lambda: _rate(states, lambda: plain.solve(goals)),
    }
    interleave(result, "induction", contestants, min(settings.repeats, 3), warm=False)
    result.facts["induction"] = {"states": states, "joint_actions": graph.joints, "largest_difference": agree}


def _big_job(result: PlanResult, settings: Settings) -> None:
    name, horizon = ("closet", 3) if settings.quick else ("courtyard", MAPS["courtyard"][1])
    command = [sys.executable, "-m", "benchmarks.plan_job", name, str(horizon), "2"]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _summed_pss(process.pid))
            time.sleep(LOOK_EVERY_S)
        out.seek(0)
        text = out.read()
    if process.returncode != 0:
        raise MotetError(f"{' '.join(command)} ended with exit code {process.returncode}")
    found = json.loads(text)
    result.samples["big_seconds"] = {"motet": [found["solve_s"]]}
    result.samples["big_bytes"] = {"motet": [float(peak)]}
    result.facts["big_job"] = found


def _summed_pss(root: int) -> int:
    """Return the sum of the proportional set sizes of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # the process has ended meanwhile
                continue
            children.setdefault(parent, []).append(int(entry.name))
    todo, total = [root], 0
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def _decisions(result: PlanResult, settings: Settings) -> None:
    try:
        import quantecon  # noqa: F401
    except ImportError:
        result.skipped["QuantEcon"] = "not installed: pip install motet[bench]"
        return
    horizon = 3 if settings.quick else 12
    timed = enumerate_states(Rooms("passage", horizon=horizon), rewards=True)
    _against_quantecon(result, settings, "decisions", timed, horizon, by_levels=True)
    endless = enumerate_states(Rooms("courtyard", horizon=0), rewards=True, cycles=True)
    _against_quantecon(result, settings, "sweeps", endless, 10 * horizon, by_levels=False)


def _against_quantecon(
    result: PlanResult, settings: Settings, measure: str, graph: Graph, steps: int, by_levels: bool
) -> None:
    """Solve one agent's problem, step by step over the horizon, with both libraries. Both must find the same values."""
    from quantecon.markov import backward_induction

    response = best_response(graph, 0, gamma=0.95, horizon=None if by_levels else steps)
    problem = _as_discrete_dp(response)
    exact = response.value if by_levels else response.value[0]
    found, _ = backward_induction(problem, steps)
    difference = float(np.abs(found[0][0] - exact[0]) if by_levels else np.abs(found[0] - exact).max())
    if difference > 1e-9:
        raise MotetError(f"QuantEcon and the sweeps differ by {difference}: one of them is wrong")
    contestants = {
        "motet": lambda: _seconds(lambda: _solved(graph, response._problem, response.horizon, None)),
        "QuantEcon": lambda: _seconds(lambda: backward_induction(problem, steps)),
    }
    interleave(result, measure, contestants, settings.repeats)
    result.facts[measure] = {
        "states": len(graph),
        "steps": steps,
        "entries": len(response._problem.weight),
        "largest_difference": difference,
    }


def _as_discrete_dp(response: Response) -> Any:
    """Return the problem for QuantEcon, in state-action form with a sparse matrix; terminal states are absorbing."""
    import scipy.sparse
    from quantecon.markov import DiscreteDP

    graph, problem = response.graph, response._problem
    actions, states = graph.actions[response.agent], len(graph)
    lengths = np.diff(problem.rows)
    stay = np.flatnonzero(np.repeat(graph.terminal, actions))
    sources = np.concatenate([np.repeat(np.arange(states * actions), lengths), stay])
    targets = np.concatenate([problem.successor, stay // actions])
    weights = np.concatenate([problem.weight, np.ones(len(stay))])
    matrix = scipy.sparse.csr_matrix((weights, (sources, targets)), shape=(states * actions, states))
    state, action = np.divmod(np.arange(states * actions), actions)
    return DiscreteDP(problem.earned.copy(), matrix, response.gamma, state, action)

"""The bench of planning: that it runs and names what it is asked for, and that its peer is right."""

import json

import pytest

from benchmarks import Settings
from benchmarks import plan as bench
from benchmarks.plain_plan import PlainPlan
from motet.plan import enumerate_states, solve
from motet.worlds import Rooms


def test_plain_python_finds_what_the_sweeps_find():
    rooms = Rooms("passage", horizon=2)
    graph = enumerate_states(rooms)
    goals = {human: rooms.goals(human) for human in graph.humans}
    values, robot = PlainPlan(graph).solve(goals)
    found = solve(graph, goals)
    for number, state in enumerate(graph.states):
        for (human, goal), value in values[number].items():
            assert found.value(state, human, goals[human][goal]) == pytest.approx(value, abs=1e-12)
        assert found.arrays["robot_value"][number] == pytest.approx(robot[number], rel=1e-12)


@pytest.mark.slow
def test_all_values_are_there():
    result = bench.run(Settings(repeats=1, quick=True))
    expected = {
        "workers2_vs_1",
        "workers2_limit",
        "worst_vs_serial",
        "induction_vs_python",
        "seconds_70k",
        "bytes_70k",
        "vs_quantecon",
        "vs_quantecon_same_sweeps",
    }
    assert set(result.values) == expected - ({"vs_quantecon", "vs_quantecon_same_sweeps"} if result.skipped else set())
    assert json.loads(result.as_json())["values"] == result.values
    assert result.facts["big_job"]["states"] > 10

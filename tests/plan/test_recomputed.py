"""Policies of humans that are not stored: they are computed again from the values, with the same bits."""

import numpy as np
import pytest
from support.small_models import Layered

from motet.plan import Humans, Robot, Solution, enumerate_states, solve
from motet.plan.recomputed import SolutionArrays
from motet.worlds import Rooms


def believed(state, human, action):
    return [(0.25, [0, 0, 0]), (0.75, [1, 1, 1])]


SETTINGS = [
    Humans(),
    Humans(beta=float("inf"), gamma=0.9),
    Humans(beta=3.0, rho=0.2, achieved="stay"),
    Humans(beta=3.0, achieved="one", robot="mean"),
    Humans(believed_others_policy=believed, achieved="stay", robot="best"),
]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("humans", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("durations", [False, True])
def test_any_part_of_the_policies_has_the_bits_of_the_whole(humans, dtype, durations):
    model = Layered(5, (2, 3), (2,), durations=durations)
    graph = enumerate_states(model)
    for robot in (None, Robot()):
        solution = solve(graph, model.goals, humans, robot, dtype=dtype)
        whole = solution.arrays["human_policy"]
        assert whole.dtype == dtype
        assert not whole[graph.terminal].any()
        for states in (slice(2, 5), slice(0, 1), slice(3, 3), slice(None, None, 2)):
            assert solution.arrays.rows("human_policy", states).tobytes() == whole[states].tobytes()
        sums = solution.human_policy(0).sum(axis=1)[~graph.terminal]
        np.testing.assert_allclose(sums, 1.0, atol=2e-3 if dtype == "float16" else 1e-6)


def test_values_are_the_same_with_and_without_a_robot():
    model = Layered(5, (2, 3), (2,))
    graph = enumerate_states(model)
    alone, both = solve(graph, model.goals, robot=None), solve(graph, model.goals)
    for name in alone.arrays:
        assert alone.arrays[name].tobytes() == both.arrays[name].tobytes()


def test_policies_are_not_stored_and_are_saved_in_blocks(tmp_path, monkeypatch):
    rooms = Rooms("passage", horizon=4)
    solution = solve(enumerate_states(rooms), {h: rooms.goals(h) for h in (0, 1)})
    policy = solution.arrays["human_policy"]
    assert "human_policy" not in solution.arrays.stored
    assert solution.nbytes < policy.nbytes
    monkeypatch.setattr("motet.plan.recomputed._BLOCK", 100)
    monkeypatch.setattr(SolutionArrays, "__getitem__", None)  # saving must not compute the whole array
    solution.save(tmp_path / "plan")
    monkeypatch.undo()
    loaded = Solution.load(tmp_path / "plan")
    assert "human_policy" in loaded.arrays.stored
    assert loaded.arrays["human_policy"].tobytes() == policy.tobytes()
    assert loaded.arrays["human_policy"].shape == policy.shape


def test_terminal_states_are_not_written():
    """Memory of terminal states is never touched, so the arrays must be zero there, except V of goals that hold."""
    model = Layered(5, (2, 3), (2,))
    graph = enumerate_states(model)
    for achieved in ("zero", "one", "stay"):
        solution = solve(graph, model.goals, Humans(achieved=achieved))
        for name in ("human_value", "attainment"):
            expected = solution.achieved[graph.terminal] if achieved == "one" else 0
            np.testing.assert_array_equal(solution.arrays[name][graph.terminal], expected)
        for name in ("power", "utility", "robot_q", "robot_policy"):
            assert not solution.arrays[name][graph.terminal].any()

"""Goals that hold already: three conventions, the default of each kind of model, and where it is written down."""

import json
import re

import numpy as np
import pytest
from support.foreign_models import CellGoalGenerator, GatedPath, ReachCell
from support.small_models import Among, Layered

from motet.cli import main
from motet.errors import ModelError, SettingError
from motet.plan import Graph, Humans, Robot, Solution, enumerate_states, induction, solve

CLOSED = (2, (-1, 0), False)  # the last step, behind a closed gate


def test_world_whose_goals_hold_is_solved_as_its_project_does():
    """Behind the gate nothing is in reach; what holds holds again after the step, and that counts."""
    model = GatedPath()
    solution = solve(enumerate_states(model), model.possible_goal_generator)
    here, there = (ReachCell(model, 1, cell) for cell in (0, 1))
    assert solution.value(CLOSED, 1, here) == 0.0
    np.testing.assert_array_equal(solution.policy(CLOSED, 1, here), [1.0, 0.0, 0.0])
    assert solution.attainment(CLOSED, 1, here) == 1.0
    assert solution.attainment(CLOSED, 1, there) == 0.0
    assert solution.power(CLOSED, 1) == pytest.approx(1 / 3)


def test_staying_is_not_certain_to_keep_a_goal():
    """The attainment is the chance to be there again, and arriving pays 1 whatever comes after it."""

    class Icy(GatedPath):
        def transition_probabilities(self, state, actions):
            if self.is_terminal(state):
                return None
            step, (robot, human), gate = state
            return [(0.75, (step + 1, (robot, human), gate)), (0.25, (step + 1, (robot, (human + 1) % 3), gate))]

    model = Icy(max_steps=4)
    solution = solve(enumerate_states(model), model.possible_goal_generator)
    assert solution.attainment((3, (-1, 0), False), 1, "ReachCell(0)") == 0.75
    assert solution.attainment((2, (-1, 0), False), 1, "ReachCell(0)") == 0.75  # two steps are not enough to come round
    assert solution.attainment((1, (-1, 0), False), 1, "ReachCell(0)") == 0.75 + 0.25**3
    for value in (solution.value, solution.attainment):
        assert value((2, (-1, 2), False), 1, "ReachCell(0)") == pytest.approx(0.25 + 0.75 * 0.25)


@pytest.mark.parametrize("settings", [{"achieved": "zero"}, {"credit_achieved": False}])
def test_other_conventions_can_be_chosen_for_such_a_model(settings):
    model = GatedPath()
    graph = enumerate_states(model)
    with pytest.raises(ModelError, match=r"X_h of agent_1 is 0: .*achieved='stay'"):
        solve(graph, model.possible_goal_generator, Humans(**settings))
    one = solve(graph, model.possible_goal_generator, Humans(achieved="one"))
    assert one.value(CLOSED, 1, "ReachCell(0)") == one.attainment(CLOSED, 1, "ReachCell(0)") == 1.0


def test_default_is_zero_for_models_without_a_goal_generator():
    model = Layered(4, (2,), (2,))
    here = Among("begin", frozenset([(0, 0)]))
    goals = [here, *model.goals]
    graph = enumerate_states(model)
    plain, zero, stay = (solve(graph, goals, Humans(achieved=achieved)) for achieved in (None, "zero", "stay"))
    assert (plain.convention, zero.convention, stay.convention) == ("zero", "zero", "stay")
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(array, zero.arrays[name])
    assert plain.policy((0, 0), 0, here).tolist() == [0.5, 0.5]
    assert stay.policy((0, 0), 0, here).tolist() == [1.0, 0.0]


def test_model_without_goals_in_its_generator_counts_as_one_without():
    class Plain(GatedPath):
        possible_goal_generator = None

    model = Plain(parity=True)
    solution = solve(enumerate_states(model), CellGoalGenerator(model, parity=True))
    assert solution.convention == "zero"


def test_goal_generator_that_raises_is_named():
    class Broken(GatedPath):
        possible_goal_generator = property(lambda self: 1 / 0)

    with pytest.raises(ModelError, match=r"possible_goal_generator raised ZeroDivisionError"):
        enumerate_states(Broken())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("still", [0, 1, 2])
def test_given_action_is_taken_where_a_goal_holds(still, dtype):
    model = GatedPath(slip=0.25)
    graph = enumerate_states(model)
    solution = solve(graph, model.possible_goal_generator, Humans(still=still), dtype=dtype)
    assert (solution.convention, solution.still) == ("stay", still)
    policy = solution.human_policy(0)
    for number in np.flatnonzero(~graph.terminal):
        for column, holds in enumerate(solution.achieved[number]):
            certain = policy[number, :, column] == np.eye(3)[still]
            assert certain.all() if holds else not certain.all()
    assert not policy[graph.terminal].any()


def test_graph_remembers_the_generator_in_its_file(tmp_path):
    model = GatedPath()
    enumerate_states(model).save(tmp_path / "graph")
    loaded = Graph.load(tmp_path / "graph")
    assert solve(loaded, model.possible_goal_generator).convention == "stay"

    header = json.loads((tmp_path / "graph" / "header.json").read_text())
    assert header.pop("has_goal_generator") is True  # as older files, which do not say
    (tmp_path / "graph" / "header.json").write_text(json.dumps(header))
    old = Graph.load(tmp_path / "graph")
    assert solve(old, model.possible_goal_generator, robot=None).convention == "zero"


def test_solution_stores_and_prints_its_convention(tmp_path):
    model = GatedPath()
    graph = enumerate_states(model)
    for humans, shown in (
        (Humans(still=1), "goals that hold: stay, by action 1"),
        (Humans(achieved="one"), "goals that hold: one"),
        (Humans(credit_achieved=True), "goals that hold: one"),
    ):
        solution = solve(graph, model.possible_goal_generator, humans)
        solution.save(tmp_path / "plan")
        loaded = Solution.load(tmp_path / "plan")
        assert repr(loaded) == repr(solution) and shown in repr(solution)
        assert (loaded.convention, loaded.still) == (solution.convention, solution.still)
    header = json.loads((tmp_path / "plan" / "header.json").read_text())
    for name in ("convention", "still"):  # as older files
        del header[name]
    (tmp_path / "plan" / "header.json").write_text(json.dumps(header))
    old = Solution.load(tmp_path / "plan")
    assert old.convention is None and "goals that hold" not in repr(old)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"achieved": "two"}, "achieved must be 'zero', 'one', 'stay' or None, got 'two'"),
        (
            {"achieved": "one", "credit_achieved": True},
            "humans.credit_achieved must not be given together with humans.achieved",
        ),
        (
            {"achieved": "zero", "credit_achieved": False},
            "humans.credit_achieved must not be given together with humans.achieved",
        ),
        ({"credit_achieved": "one"}, "credit_achieved must be True, False or None, got 'one'"),
        ({"still": -1}, r"humans\.still must be an int >= 0, got -1"),
        ({"still": "left"}, r"humans\.still must be an int >= 0, got 'left'"),
        (
            {"still": 1, "achieved": "one"},
            r"humans\.still must be 0 unless humans\.achieved is 'stay', got 1: no other convention uses it",
        ),
    ],
)
def test_bad_settings_are_refused(settings, says):
    with pytest.raises(SettingError, match=says):
        Humans(**settings)


def test_still_must_be_an_action_and_must_have_an_effect():
    model = GatedPath()
    graph = enumerate_states(model)
    with pytest.raises(SettingError, match=r"still must be an action of agent_1, from 0 to 2, got 3"):
        solve(graph, model.possible_goal_generator, Humans(still=3))
    plain = Layered(1)
    with pytest.raises(
        SettingError,
        match=r"humans\.still must be 0 unless humans\.achieved is 'stay', got 1: no other convention uses it",
    ):
        solve(enumerate_states(plain), plain.goals, Humans(still=1))


def test_command_plans_such_a_model_and_names_the_convention(tmp_path, capsys):
    assert main(["plan", "support.foreign_models:GatedPath", "--out", str(tmp_path / "plan")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"achieved goals +stay, by action 0\n", shown)
    assert "power of agent_1 at the start: " in shown
    assert Solution.load(tmp_path / "plan").convention == "stay"
    assert main(["plan", "support.foreign_models:GatedPath", "--humans.achieved", "one"]) == 0
    assert main(["plan", "support.foreign_models:GatedPath", "--humans.credit-achieved"]) == 0
    assert main(["plan", "support.foreign_models:GatedPath", "--humans.still", "2"]) == 0
    assert "stay, by action 2" in capsys.readouterr().out
    assert main(["plan", "support.foreign_models:GatedPath", "--humans.achieved", "zero"]) == 2
    assert "X_h of agent_1 is 0" in capsys.readouterr().err


def test_any_number_of_workers_gives_the_same_bits(monkeypatch):
    model = GatedPath(width=5, num_humans=2, num_robots=2, max_steps=4, slip=0.1)
    graph = enumerate_states(model)
    found = []
    *others, _ = induction.backwards.__defaults__
    monkeypatch.setattr(induction.backwards, "__defaults__", (*others, 1))  # no level is too small for threads
    for workers in (1, 3):
        found.append(solve(graph, model.possible_goal_generator, robot=Robot(rho=0.1), workers=workers))
    for name, array in found[0].arrays.items():
        assert array.tobytes() == found[1].arrays[name].tobytes(), name

"""Solving: parallel equals serial, dtypes, refusals, and what can be done with a solution."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from support.foreign_models import GatedPath, ReachCell
from support.small_models import Among, Layered, Parity

from motet.errors import MemoryShortError, ModelError, NotReadyError, SettingError
from motet.plan import Graph, Humans, Robot, Solution, coverage, enumerate_states, memory, solve
from motet.plan import sweeps as _sweeps
from motet.system import machine
from motet.worlds.rooms import Rooms


@pytest.fixture(scope="module")
def passage():
    rooms = Rooms("passage", horizon=5)
    graph = enumerate_states(rooms)
    return rooms, graph, {h: rooms.goals(h) for h in graph.humans}


def assert_same(one, other):
    assert sorted(one.arrays) == sorted(other.arrays)
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(passage, workers, dtype, monkeypatch):
    _, graph, goals = passage
    parts = []
    submit = _sweeps.ThreadPoolExecutor.submit

    def counted(self, run, first, last):
        parts.append((first, last))
        return submit(self, run, first, last)

    monkeypatch.setattr(_sweeps.ThreadPoolExecutor, "submit", counted)
    alone = solve(graph, goals, workers=1, dtype=dtype)
    assert not parts
    assert_same(alone, solve(graph, goals, workers=workers, dtype=dtype))
    assert len(parts) >= 2 * (workers - 1)


def test_smaller_dtypes_are_close_and_smaller(passage):
    _, graph, goals = passage
    double = solve(graph, goals)
    for dtype, close in (("float32", 1e-6), ("float16", 5e-3)):
        small = solve(graph, goals, dtype=dtype)
        for name in ("human_value", "human_policy", "attainment"):
            assert small.arrays[name].dtype == dtype
            np.testing.assert_allclose(small.arrays[name].astype(float), double.arrays[name], atol=close)
        assert small.nbytes < double.nbytes
    with pytest.raises(SettingError, match="dtype must be float64, float32 or float16, got 'int8'"):
        solve(graph, goals, dtype="int8")


@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0, 16.5, 1e6])
def test_halves_are_kept_as_numpy_keeps_them(beta):
    """Before the last step nothing is read back, so what is kept is the double, rounded once; tiny ones included."""
    for seed in range(10):
        model = Layered(seed, (3,), (2,), depth=1)
        graph = enumerate_states(model)
        exact, half = (solve(graph, model.goals, Humans(beta=beta), dtype=dtype) for dtype in ("float64", "float16"))
        for name in ("human_policy", "human_value"):
            np.testing.assert_array_equal(half.arrays[name], exact.arrays[name].astype(np.float16))


def test_humans_alone():
    model = Layered(2, (2, 2), (2,))
    graph = enumerate_states(model)
    found = solve(graph, model.goals, robot=None)
    assert sorted(found.arrays) == ["human_policy", "human_value"]
    assert "humans only" in repr(found)
    with pytest.raises(NotReadyError, match="only the humans were solved"):
        found.value(graph.states[0], "agent_2")


def test_a_human_without_power_is_named():
    rooms = Rooms("freeing", horizon=3)
    graph = enumerate_states(rooms)
    far = [rooms.goals(0)[-1]]
    with pytest.raises(ModelError, match=r"state \(2, .*: X_h of human_0 is 0"):
        solve(graph, {0: far})
    assert solve(graph, {0: far}, robot=None) is not None


def test_an_overflow_is_named():
    rooms = Rooms("freeing", horizon=6)
    with pytest.raises(ModelError, match="V_r is not a negative number"):
        solve(enumerate_states(rooms), {0: [(goal, 1e-3) for goal in rooms.goals(0)]}, robot=Robot(xi=100.0, eta=2.0))


def test_state_without_a_goal_in_reach_is_named_before_the_sweeps(monkeypatch):
    rooms = Rooms("freeing", horizon=3)
    graph = enumerate_states(rooms)
    monkeypatch.setattr("motet.plan.empowerment.backwards", None)  # would be called
    *near, far = rooms.goals(0)
    for goals in ([far], [far, *((goal, 0.0) for goal in near)]):
        for convention in ("zero", "stay"):
            with pytest.raises(ModelError, match=r"state \(2, .*: X_h of human_0 is 0: .* \(in 45 of 105 states\)"):
                solve(graph, {0: goals}, Humans(achieved=convention))


@pytest.mark.parametrize("achieved", ["zero", "one", "stay"])
@pytest.mark.parametrize("seed", range(20))
def test_coverage_is_where_power_is_positive(seed, achieved):
    """The check finds the state that the sweep would find. With stay, the sweep may find one more: who stays for
    certain does not go where it could."""
    model = Layered(seed, (2, 2), (2,), depth=3, width=3)
    graph = enumerate_states(model)
    goals = model.goals[2:] if seed % 2 else [*model.goals[2:], (model.goals[0][0], 0.0)]
    found = []
    for check in (coverage.check_coverage, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("motet.plan.empowerment.check_coverage", check)
            try:
                solve(graph, goals, Humans(achieved=achieved))
                found.append(None)
            except ModelError as error:
                if check is coverage.check_coverage and achieved != "stay":
                    assert "states)" in str(error)
                found.append(str(error).partition(": from here")[0])
    assert found[0] == found[1]


def test_too_little_memory_is_reported_before_anything_is_allocated(monkeypatch):
    model = Layered(1)
    graph = enumerate_states(model)
    monkeypatch.setattr(machine, "meminfo", lambda key: 1000)
    says = r"the values and policies of \d+ states with 8 goals need .* KiB of memory, .* available\. Use fewer goals"
    with pytest.raises(MemoryShortError, match=says):
        solve(graph, model.goals, workers=1)
    monkeypatch.setattr(machine, "meminfo", lambda key: 10)
    with pytest.raises(MemoryShortError, match=r"8 goals in .* states need"):
        solve(graph, model.goals, workers=1)
    monkeypatch.undo()

    def refuse(*_):
        raise MemoryError("numpy's")

    monkeypatch.setattr(memory.np, "zeros", refuse)
    with pytest.raises(MemoryShortError, match=r"need .* of memory"):
        memory.allocated({"value": ((3,), "float64")}, "some values")


def test_goals_by_a_generator_are_those_of_lists_where_it_says_the_same():
    model = Layered(7, (2, 2), (2,))
    graph = enumerate_states(model)
    plain = solve(graph, model.goals)

    class Generator:
        def generate(self, state, human):
            return model.goals

    assert_same(plain, solve(graph, lambda state, human: model.goals))
    assert_same(plain, solve(graph, Generator()))


class Counted(Parity):
    """Counts how often it is compared, hashed and asked."""

    compared = hashed = asked = 0

    def __eq__(self, other):
        Counted.compared += 1
        return self.odd == other.odd

    def __hash__(self):
        Counted.hashed += 1
        return self.odd

    def is_achieved(self, state):
        Counted.asked += 1
        return super().is_achieved(state)


@pytest.mark.parametrize("fresh", [False, True])
def test_equal_answers_of_a_generator_are_kept_once(fresh, monkeypatch):
    """The same objects are not compared by state, equal ones once; none is hashed by state."""
    monkeypatch.setattr("motet.plan.parallel.PART_S", 1e6)  # two parts, however slow the machine is
    same = [(Counted("even", 0), 1.0), (Counted("odd", 1), 0.5)]

    def generate(state, human):
        return [(Counted(goal.name, goal.odd), weight) for goal, weight in same] if fresh else same

    counts = []
    for depth in (5, 12):
        model = Layered(7, (2, 2), (2,), depth=depth)
        graph = enumerate_states(model)
        Counted.compared = Counted.hashed = Counted.asked = 0
        found = solve(graph, generate, workers=1)
        assert Counted.asked == 2 * len(graph)
        counts.append((Counted.hashed, Counted.compared - 4 * fresh * int((~graph.terminal).sum())))
        assert found.weights.shape == (1, 4)
        assert_same(found, solve(graph, same))
    assert counts[0] == counts[1]


def test_weights_that_differ_by_state_are_never_taken_for_equal():
    model = Layered(7, (2,), (2,), depth=4)
    graph = enumerate_states(model)
    even, odd = Parity("even", 0), Parity("odd", 1)
    found = solve(graph, lambda state, human: [(even, 1.0 + state[1]), (odd, 1.0)])
    for number in np.flatnonzero(~graph.terminal).tolist():
        assert found.weights[number].tolist() == [1.0 + graph.states[number][1], 1.0]


def test_a_generator_may_give_other_goals_in_other_states():
    model = Layered(7, (2,), (2,))
    graph = enumerate_states(model)
    even, odd = Parity("even", 0), Parity("odd", 1)

    def generate(state, human):  # the one that can be attained next
        return [(odd if state[0] % 2 == 0 else even, 2.0)]

    found = solve(graph, generate)
    assert sorted(found.goals[0]) == ["even", "odd"]
    np.testing.assert_allclose(found.arrays["power"][~graph.terminal], 2.0)


@pytest.mark.parametrize(
    ("goals", "says"),
    [
        ([], "goals of agent_0 must be one or more, got none"),
        ({5: []}, r"goals must be given for the humans \(0, 1\), got the agents \[5\]"),
        ([3], "an object with is_achieved"),
        (3, r"goals must be a list of goals, .* or an object with such a function `generate`, got 3"),
        ([SimpleNamespace(is_achieved=bool)], "goal must be hashable, got namespace"),
        ([(Parity("even", 0), -1.0)], r"goal 'even' must have a finite weight >= 0, got -1\.0"),
        ([Parity("even", 0), Parity("even", 0)], "a goal twice"),
        ([(Parity("even", 0), 0.0)], "at least one goal of agent_0 must have a weight > 0, got 0 for all"),
    ],
)
def test_bad_goals_are_refused(goals, says):
    model = Layered(1)
    with pytest.raises(SettingError, match=says):
        solve(enumerate_states(model), goals)


def test_goals_that_raise_are_named_with_the_state():
    class Bad:
        name = "bad"

        def is_achieved(self, state):
            return 1 / (2 - state[0])

    model = Layered(1)
    with pytest.raises(ModelError, match=r"goal 'bad': is_achieved raised ZeroDivisionError: .* \(state \(2, "):
        solve(enumerate_states(model), [Bad()])
    with pytest.raises(ModelError, match=r"goal generator raised KeyError: .*agent_0"):
        solve(enumerate_states(model), lambda state, human: {}[state])
    with pytest.raises(ModelError, match="no goal with a weight"):
        solve(enumerate_states(model), lambda state, human: [])


@pytest.mark.parametrize(
    ("believed", "says"),
    [
        (lambda s, h, a: [(0.5, [0, 0, 0])], "with sum 0.5"),
        (lambda s, h, a: [(1.0, [0, 9, 9])], "IndexError"),
        (lambda s, h, a: [1.0], "TypeError"),
        (lambda s, h, a: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_bad_beliefs_are_refused_with_the_state(believed, says):
    model = Layered(1)
    with pytest.raises(ModelError, match=says) as caught:
        solve(enumerate_states(model), model.goals, Humans(believed_others_policy=believed))
    assert "(state (0, 0), agent_0, action 0)" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Humans(beta=-1), r"humans\.beta must be a number >= 0, got -1"),
        (lambda: Humans(beta=math.nan), r"humans\.beta must be a number >= 0, got nan"),
        (lambda: Humans(gamma=1.1), r"humans\.gamma must be a number from 0 to 1, got 1\.1"),
        (
            lambda: Humans(gamma=0.9, rho=0.1),
            r"humans\.gamma must be 1 where humans\.rho is given, got 0\.9 and 0\.1: both are discounts",
        ),
        (lambda: Humans(rho=-0.1), r"humans\.rho must be a finite number >= 0 or None, got -0\.1"),
        (lambda: Humans(robot="kind"), r"humans\.robot must be 'worst', 'best' or 'mean', got 'kind'"),
        (lambda: Robot(beta=-1), r"robot\.beta must be a number >= 0, got -1"),
        (lambda: Robot(xi=0), r"robot\.xi must be a finite number > 0, got 0"),
        (lambda: Robot(rho=math.inf), r"robot\.rho must be a finite number >= 0, got inf"),
        (lambda: Robot(terminal_robot_value=0.0), r"robot\.terminal_robot_value must be a finite number < 0, got 0\.0"),
    ],
)
def test_bad_settings_are_refused(make, says):
    with pytest.raises(SettingError, match=says):
        make()


def test_model_without_roles_is_refused_unless_they_are_given():
    model = Layered(1)
    model.human_agent_indices = model.robot_agent_indices = []
    with pytest.raises(SettingError, match=r"human_agents and robot_agents must name agents among .* got none"):
        solve(enumerate_states(model), model.goals)


def test_a_graph_with_cycles_has_no_levels_to_go_back_over():
    rooms = Rooms("closet", horizon=0)
    graph = enumerate_states(rooms, cycles=True)
    with pytest.raises(SettingError, match="the graph has cycles"):
        solve(graph, {0: rooms.goals(0)})


# Use


def test_a_solution_is_saved_and_loaded_without_pickle(passage, tmp_path):
    _rooms, graph, goals = passage
    found = solve(graph, goals)
    found.save(tmp_path / "plan")
    loaded = Solution.load(tmp_path / "plan")
    assert_same(found, loaded)
    np.testing.assert_array_equal(found.achieved, loaded.achieved)
    state = graph.states[100]
    for agent, goal in (("human_0", "1,1"), (1, "2,3"), ("human_1", None)):
        np.testing.assert_array_equal(found.policy(state, agent, goal), loaded.policy(state, agent, goal))
    np.testing.assert_array_equal(found.policy(state, 0, goals[0][3]), loaded.policy(state, 0, goals[0][3].name))
    assert found.value(state, "robot_0") == loaded.value(state, "robot_0")
    assert found.power(state, 0) == loaded.power(state, 0)
    assert found.attainment(state, 0, "1,1") == loaded.attainment(state, 0, "1,1")
    for file in (tmp_path / "plan").iterdir():
        assert file.suffix in (".npy", ".json")
        if file.suffix == ".npy":
            np.load(file, allow_pickle=False)
    with pytest.raises(SettingError, match="expected a 'graph'"):
        Graph.load(tmp_path / "plan")


def test_goals_are_known_as_objects_after_loading(passage, tmp_path):
    rooms, graph, goals = passage
    found = solve(graph, goals)
    found.save(tmp_path / "plan")
    loaded = Solution.load(tmp_path / "plan")
    state = graph.states[100]
    for goal in rooms.goals(0):
        np.testing.assert_array_equal(loaded.policy(state, 0, goal), found.policy(state, 0, goal))
        assert loaded.attainment(state, "human_0", goal) == found.attainment(state, "human_0", goal)
    model = GatedPath()
    foreign = solve(enumerate_states(model), model.possible_goal_generator)
    foreign.save(tmp_path / "foreign")
    there = ReachCell(model, 1, 2)  # without a name: by its text
    again = Solution.load(tmp_path / "foreign")
    assert again.value(model.get_state(), 1, there) == foreign.value(model.get_state(), 1, there)
    with pytest.raises(SettingError, match="goal must be one of"):
        again.value(model.get_state(), 1, ReachCell(model, 1, 9))


def test_name_of_several_goals_is_refused():
    model = Layered(4, (2,), (2,))
    twins = [Among("twin", frozenset([(1, 0)])), Among("twin", frozenset([(1, 1)])), *model.goals]
    found = solve(enumerate_states(model), twins)
    assert found.attainment((0, 0), 0, twins[0]) != found.attainment((0, 0), 0, twins[1])
    with pytest.raises(SettingError, match="goal 'twin' must be the name of one goal, got that of 2 goals"):
        found.attainment((0, 0), 0, "twin")


def test_policies_are_probabilities_and_priors_their_mean(passage):
    _, graph, goals = passage
    found = solve(graph, goals)
    state = graph.states[50]
    rows = np.array([found.policy(state, 0, goal) for goal in goals[0]])
    np.testing.assert_allclose(rows.sum(axis=1), 1.0)
    np.testing.assert_allclose(found.policy(state, 0), rows.mean(axis=0))
    np.testing.assert_allclose(found.policy(state, "robot_0").sum(), 1.0)


def test_several_robots_are_asked_one_by_one():
    model = Layered(3, (2,), (2, 3))
    found = solve(enumerate_states(model), model.goals)
    joint = found.arrays["robot_policy"][0].reshape(2, 3)
    np.testing.assert_allclose(found.policy((0, 0), 1), joint.sum(axis=1))
    np.testing.assert_allclose(found.policy((0, 0), 2), joint.sum(axis=0))


def test_wrong_questions_are_refused(passage):
    _, graph, goals = passage
    found = solve(graph, goals)
    start, end = graph.states[0], graph.states[-1]
    for ask, says in (
        (
            lambda: found.policy(start, "human_9", "1,1"),
            "agent must be one of human_0, human_1, robot_0 or its index, got 'human_9'",
        ),
        (
            lambda: found.policy(start, 0, "nowhere"),
            "goal must be one of 1,1, 1,2, 1,4, 1,5, 2,1, 2,2, 2,3, 2,4, 2,5, 3,1, 3,2, 3,4 …, got 'nowhere'",
        ),
        (lambda: found.policy(start, "robot_0", "1,1"), r"goal is only valid for humans \(got \'1,1\' for a robot\)"),
        (lambda: found.value(start, 0), "goal must be one of 1,1, .*, got None"),
        (lambda: found.power(start, "robot_0"), r"agent must be one of the humans \(0, 1\), got robot_0"),
        (lambda: found.acting(0, "nowhere"), "goal must be one of .*, got 'nowhere'"),
    ):
        with pytest.raises(SettingError, match=says):
            ask()
    with pytest.raises(NotReadyError, match="is terminal"):
        found.policy(end, 0, "1,1")


def test_a_planned_policy_plays_in_its_world(passage):
    rooms, graph, goals = passage
    found = solve(graph, goals)
    policies = {
        name: found.acting(name, goal, state_of=lambda seen, name=name: rooms.state_of(seen, name))
        for name, goal in (("human_0", "1,5"), ("human_1", None), ("robot_0", None))
    }
    traces = []
    for _ in range(2):
        observations, _ = rooms.reset(seed=3)
        for number, policy in enumerate(policies.values()):
            policy.reset(seed=number)
        trace = []
        while rooms.agents:
            actions = {name: policies[name].act(observations[name]) for name in rooms.agents}
            observations, *_ = rooms.step(actions)
            trace.append(rooms.get_state())
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) == 5


def test_a_goal_that_holds_counts_only_where_it_is_asked_to():
    model = Layered(4, (2,), (2,))
    graph = enumerate_states(model)
    here = Among("begin", frozenset([(0, 0)]))
    goals = [here, *model.goals]
    assert solve(graph, goals).value((0, 0), 0, here) == 0.0
    assert solve(graph, goals, Humans(credit_achieved=True)).value((0, 0), 0, here) == 1.0

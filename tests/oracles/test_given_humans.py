"""Robots for given humans: a table of check values, and equality with ``solve`` and between the functions."""

import math

import numpy as np
import pytest
from support.bush_corridor import BushCorridor
from support.eager_workers import make_eager
from support.foreign_models import GatedPath
from support.plan_recursion import GivenRecursion
from support.small_models import Layered

from motet.errors import ModelError, NotReadyError, SettingError
from motet.plan import Humans, Robot, Solution, enumerate_states, evaluate_robot, induction, solve, solve_robot
from motet.worlds.rooms import Rooms

GAMMA = 0.95
ROWS = [  # horizon, exponents, states, V_r of the exact robot, V_r of the uniform one, policy of the exact one
    (3, {}, 155, -7.96125, -8.56157, [0.2215, 0.0771, 0.2215, 0.2526, 0.2273]),
    (4, {}, 292, -9.94866, -10.60708, [0.2138, 0.1088, 0.2138, 0.2458, 0.2179]),
    (4, {"zeta": 2.0, "eta": 1.1}, 292, -12.30415, -13.38126, [0.2182, 0.0914, 0.2182, 0.2503, 0.2220]),
    (12, {}, 2108, -21.73328, -22.59348, [0.2065, 0.1605, 0.2065, 0.2192, 0.2073]),
    (12, {"zeta": 2.0, "eta": 1.1}, 2108, -26.46648, -28.32745, [0.2083, 0.1453, 0.2083, 0.2282, 0.2099]),
]
ROLES = {"human_agents": [1, 2], "robot_agents": [0]}


@pytest.fixture(scope="module")
def corridors():
    made = {}
    for horizon in (3, 4, 12):
        model = BushCorridor(horizon)
        made[horizon] = model, enumerate_states(model, workers=1), {human: model.cell_goals(human) for human in (1, 2)}
    return made


@pytest.mark.parametrize(("horizon", "exponents", "states", "exact", "uniform", "policy"), ROWS)
def test_check_values_of_the_corridor(corridors, horizon, exponents, states, exact, uniform, policy):
    model, graph, goals = corridors[horizon]
    assert len(graph) == states
    humans = {"humans": model.nearest, "gamma": GAMMA, "achieved": "stay", **ROLES}
    found = solve_robot(graph, goals, robot=Robot(beta=5, gamma=GAMMA, **exponents), **humans)
    assert round(found.value(graph.states[0], 0), 5) == exact
    assert found.policy(graph.states[0], 0).round(4).tolist() == policy
    settings = Robot(gamma=GAMMA, **exponents)
    even = evaluate_robot(graph, lambda state: [0.2] * 5, goals, settings=settings, **humans)
    assert round(even.value(graph.states[0], 0), 5) == uniform
    still = solve_robot(graph, goals, robot=Robot(beta=0, gamma=GAMMA, **exponents), **humans)
    np.testing.assert_allclose(still.arrays["robot_value"], even.arrays["robot_value"], rtol=1e-14)


def all_levels_on_threads(monkeypatch):
    *before, _ = induction.backwards.__defaults__
    monkeypatch.setattr(induction.backwards, "__defaults__", (*before, 1))  # no level is too small for threads


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_any_number_of_workers_gives_the_same_bits(corridors, dtype, monkeypatch):
    model, graph, goals = corridors[3]
    all_levels_on_threads(monkeypatch)
    given = {"goals": goals, "humans": model.nearest, "gamma": GAMMA, "achieved": "stay", "dtype": dtype, **ROLES}
    one, three = (solve_robot(graph, robot=Robot(beta=5, gamma=GAMMA), workers=count, **given) for count in (1, 3))
    assert_equal(one, three, bits=True)
    evaluated = [evaluate_robot(graph, one, settings=Robot(gamma=GAMMA), workers=count, **given) for count in (1, 2)]
    assert_equal(*evaluated, bits=True)


def test_policies_called_in_worker_processes_give_the_same_bits(corridors, monkeypatch):
    model, graph, goals = corridors[4]
    given = {"goals": goals, "humans": model.nearest, "achieved": "stay", **ROLES}
    alone = solve_robot(graph, workers=1, **given)
    sent = make_eager(monkeypatch, 0.002)
    assert_equal(alone, solve_robot(graph, workers=2, **given), bits=True)
    assert sent


def assert_equal(one, other, bits=False):
    for name in set(one.arrays) & set(other.arrays):
        if bits:
            assert one.arrays[name].tobytes() == other.arrays[name].tobytes(), name
        else:
            np.testing.assert_allclose(one.arrays[name], other.arrays[name], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("achieved", ["zero", "one", "stay"])
@pytest.mark.parametrize("seed", range(3))
def test_policies_of_a_solution_give_that_solution(seed, achieved):
    """As a solution, as a function and as tables; and the robot's own policy has the value that was solved for."""
    model = Layered(seed, (2, 3), (2, 3), durations=seed == 2, order=[3, 1, 0, 2])
    graph = enumerate_states(model)
    humans = {"rho": 0.3} if seed == 2 else {"gamma": 0.9}
    robot = Robot(beta=2, rho=0.2, zeta=1.5, xi=1.2, eta=1.1)
    solved = solve(graph, model.goals, Humans(achieved=achieved, **humans), robot)
    tables = {human: solved.human_policy(position) for position, human in enumerate(graph.humans)}
    for policies in (solved, solved.policy, tables):
        found = solve_robot(graph, model.goals, policies, robot, achieved=achieved, **humans)
        assert_equal(solved, found, bits=True)
        assert sorted(set(solved.arrays) - set(found.arrays)) == ["human_value"]
    rows = dict(zip(graph.states, solved.arrays["robot_policy"], strict=True))
    for own in (solved, solved.arrays["robot_policy"], rows.get):
        assert_equal(solved, evaluate_robot(graph, own, model.goals, solved, robot, achieved=achieved, **humans))


@pytest.mark.parametrize("achieved", ["zero", "one", "stay"])
@pytest.mark.parametrize("durations", [False, True])
def test_any_policies_against_the_formulas(durations, achieved):
    model = Layered(8, (2, 3), (3, 2), depth=3, width=2, durations=durations)
    graph = enumerate_states(model)

    def people(state, human, goal):
        return np.random.default_rng([*state, human, *goal.name.encode()]).dirichlet(np.ones(model.counts[human]))

    def machine(state):
        return np.random.default_rng([*state, 77]).dirichlet(np.full(6, 0.4))

    choosing = Humans(rho=0.25, achieved=achieved)
    robot = Robot(beta=3, rho=0.1, zeta=2.0, xi=1.5, eta=1.2)
    goals = dict.fromkeys(graph.humans, model.goals)
    for policy in (None, machine):
        if policy is None:
            found = solve_robot(graph, goals, people, robot, rho=0.25, achieved=achieved)
        else:
            found = evaluate_robot(graph, policy, goals, people, robot, rho=0.25, achieved=achieved)
        exact = GivenRecursion(model, graph.actions, goals, choosing, robot, people, policy)
        for number, state in enumerate(graph.states):
            assert found.value(state, 2) == pytest.approx(exact.v_r(state), rel=1e-12)
            for position, human in enumerate(graph.humans):
                for goal, _ in model.goals:
                    attained = found.attainment(state, human, goal)
                    assert attained == pytest.approx(exact.v_he(state, human, goal), rel=1e-12, abs=1e-13)
                if not exact.ends(state):
                    assert found.arrays["power"][number, position] == pytest.approx(exact.x_h(state, human), rel=1e-12)
                    np.testing.assert_allclose(found.policy(state, human), exact.prior(state, human), rtol=1e-12)
            if not exact.ends(state):
                np.testing.assert_allclose(found.arrays["robot_policy"][number], exact.pi_r(state), rtol=1e-11)
                q = [exact.q_r(state, k) for k in range(6)]
                np.testing.assert_allclose(found.arrays["robot_q"][number], q, rtol=1e-12)


def test_policies_may_come_from_a_plan_with_other_states():
    """If one human stays where it is, some states are gone, and the others have other numbers."""
    model = GatedPath(num_humans=2, slip=0.1)
    graph, goals = enumerate_states(model), model.possible_goal_generator
    solved = solve(graph, goals)
    roles = {"human_agents": [1], "robot_agents": [0]}
    found = solve_robot(graph, goals, solved, **roles)
    assert len(found.graph) < len(graph)
    for number, state in enumerate(found.graph.states):
        if not found.graph.terminal[number]:
            np.testing.assert_array_equal(
                found.policy(state, 1, "ReachCell(2)"), solved.policy(state, 1, "ReachCell(2)")
            )
    tables = {1: solved.human_policy(0)}
    assert_equal(found, solve_robot(graph, goals, tables, **roles), bits=True)
    assert_equal(found, evaluate_robot(graph, found, goals, solved, **roles))
    ours = evaluate_robot(graph, solved, goals, solved, **roles)  # the robot that was solved for two humans
    late = max(state for state in ours.graph.states if state[0] == 2)
    np.testing.assert_array_equal(ours.policy(late, 0), solved.policy(late, 0))


NAMES = {2: ("shut", "open"), 3: ("wait", "lift", "drop")}  # of the two robots


def test_robot_actions_are_named_alike_everywhere():
    """Two robots with different action counts. The reference numbers the first robot fastest: names are compared."""
    model = Layered(5, (2, 2), (2, 3))
    graph = enumerate_states(model)
    solved = solve(graph, model.goals, robot=Robot(beta=3))
    foreign = [(a, b) for b in range(3) for a in range(2)]
    titles = [(NAMES[2][a], NAMES[3][b]) for a, b in solved.robot_actions]
    assert titles[:3] == [("shut", "wait"), ("shut", "lift"), ("shut", "drop")]
    priors = [solved.priors(position) for position in (0, 1)]
    for number in np.flatnonzero(~graph.terminal).tolist():
        expected = {}
        for a, b in foreign:
            chances = [
                (priors[0][number, x] * priors[1][number, y] * p, successor)
                for x in range(2)
                for y in range(2)
                for p, successor in graph.transitions(number, (x, y, a, b))
            ]
            expected[NAMES[2][a], NAMES[3][b]] = sum(p * solved.arrays["robot_value"][to] for p, to in chances)
        found = dict(zip(titles, solved.arrays["robot_q"][number], strict=True))
        assert found == pytest.approx(expected)
        policy = dict(zip(titles, solved.arrays["robot_policy"][number], strict=True))
        state = graph.states[number]
        for robot, own in NAMES.items():
            alone = dict(zip(own, solved.policy(state, robot), strict=True))
            expected = {name: sum(p for pair, p in policy.items() if name in pair) for name in own}
            assert alone == pytest.approx(expected)


def test_robots_may_have_a_policy_each():
    model = Layered(5, (2, 2), (2, 3))
    graph = enumerate_states(model)
    opens = {2: lambda state: [0.25, 0.75], "agent_3": np.tile([0.2, 0.3, 0.5], (len(graph), 1))}
    humans = solve(graph, model.goals, robot=None)
    found = evaluate_robot(graph, opens, model.goals, humans)
    shares = {("shut", "drop"): 0.125, ("open", "wait"): 0.15}
    for action, share in zip(found.robot_actions, found.arrays["robot_policy"][0], strict=True):
        names = NAMES[2][action[0]], NAMES[3][action[1]]
        assert share == pytest.approx(shares.get(names, share))
    together = evaluate_robot(graph, lambda state: np.outer([0.25, 0.75], [0.2, 0.3, 0.5]).ravel(), model.goals, humans)
    assert_equal(found, together)


class Learned:
    """A policy as training saves it: it sees observations, and answers in float32."""

    def reset(self, seed):
        pass

    def act(self, observation):
        raise AssertionError("the probabilities are there")

    def probabilities(self, observation):
        weights = np.exp(np.arange(4, dtype=np.float32) * np.float32(np.sum(observation) % 0.7))
        return weights / weights.sum()


def test_learned_robot_is_evaluated_in_every_state():
    rooms = Rooms("closet", horizon=4)
    graph, goals = enumerate_states(rooms), {0: rooms.goals(0)}
    humans = solve(graph, goals, robot=None)
    found = evaluate_robot(graph, Learned(), goals, humans, model=rooms)
    rooms.set_state(graph.states[3])
    expected = Learned().probabilities(rooms.observe("robot_0"))
    np.testing.assert_allclose(found.policy(graph.states[3], "robot_0"), expected, rtol=1e-6)
    np.testing.assert_allclose(found.arrays["robot_policy"][~graph.terminal].sum(axis=1), 1.0, rtol=1e-12)
    assert found.arrays["robot_value"][0] != solve_robot(graph, goals, humans).arrays["robot_value"][0]
    with pytest.raises(SettingError, match="model must be the world in which the policy acts, got none"):
        evaluate_robot(graph, Learned(), goals, humans)


def test_values_that_were_not_computed_are_named(corridors, tmp_path):
    model, graph, goals = corridors[3]
    found = solve_robot(graph, goals, model.nearest, achieved="stay", **ROLES)
    assert "stay, by the given policies" in repr(found)
    found.save(tmp_path / "plan")
    for solution in (found, Solution.load(tmp_path / "plan")):
        with pytest.raises(NotReadyError, match="V_h was not computed, because the humans' policies were given"):
            solution.value(model.start, 1, goals[1][0][0])
        assert repr(solution) == repr(found)
        assert solution.policy(model.start, 1, goals[1][3][0]).tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (
            {"humans": 3},
            SettingError,
            r"humans must be a function \(state, human, goal\) -> probabilities, a dict .* got 3",
        ),
        ({"humans": {0: None}}, SettingError, r"a policy for each of the humans \(0, 1\), got policies for \(0,\)"),
        (
            {"humans": {0: np.ones((2, 2)), 1: None}},
            SettingError,
            r"humans: the table of agent_0 must have the shape \(",
        ),
        (
            {"humans": lambda s, h, g: [1.0]},
            ModelError,
            r"policy of agent_0 raised.*2 numbers.*\(state \(0, 0\), goal 'even'",
        ),
        ({"humans": lambda s, h, g: [0.5, 0.6]}, ModelError, r"expected numbers >= 0 with sum 1, got \[0\.5, 0\.6\]"),
        ({"humans": lambda s, h, g: 1 / 0}, ModelError, "ZeroDivisionError"),
        ({"robot": lambda s: [1.0, 0.0, 0.0]}, ModelError, "robot: .* did not return 2 probabilities"),
        ({"robot": {1: None}}, SettingError, r"robot must have a policy for each of the robots \(2,\)"),
        (
            {"robot": [[0.5, 0.5]]},
            SettingError,
            r"robot: the table of agent_2 must have the shape \(\d+, 2\), got \(1, 2\)",
        ),
        ({"gamma": 0.9, "rho": 0.1}, SettingError, r"humans\.gamma must be 1 where humans\.rho is given"),
        ({"dtype": "int8"}, SettingError, "dtype must be float64, float32 or float16, got 'int8'"),
    ],
)
def test_bad_policies_are_refused(given, error, says):
    model = Layered(1)
    even = {"humans": lambda s, h, g: [0.5, 0.5], "robot": lambda s: [0.5, 0.5]}
    with pytest.raises(error, match=says):
        evaluate_robot(enumerate_states(model), goals=model.goals, **(even | given))


def test_discount_factor_of_the_robot_is_the_rate(corridors):
    """gamma is rho = -ln gamma, bit for bit, and V_r of the last step is c U_r with c = (1 - gamma) / -ln gamma."""
    model, graph, goals = corridors[3]
    humans = {"humans": model.nearest, "achieved": "stay", **ROLES}
    by_gamma, by_rho = (
        solve_robot(graph, goals, robot=robot, **humans) for robot in (Robot(gamma=0.9), Robot(rho=-math.log(0.9)))
    )
    assert_equal(by_gamma, by_rho, bits=True)
    last = graph.levels[-2] - 1
    c = (1 - 0.9) / -math.log(0.9)
    arrays = by_gamma.arrays
    assert arrays["robot_value"][last] == pytest.approx(c * arrays["utility"][last], rel=1e-9)
    with pytest.raises(SettingError, match=r"robot\.gamma must be 1 where robot\.rho is given, got 0\.9 and 0\.1"):
        Robot(gamma=0.9, rho=0.1)
    with pytest.raises(SettingError, match=r"robot\.gamma must be a number > 0 and <= 1, got 0"):
        Robot(gamma=0)

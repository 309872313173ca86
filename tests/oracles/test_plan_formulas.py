"""The sweeps against a recursion written from the formulas, state by state, on the model itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign_models import GatedPath, SlowGatedPath
from support.plan_recursion import Recursion
from support.small_models import Layered

from motet.plan import Humans, Robot, enumerate_states, solve
from motet.worlds.rooms import Rooms


def compare(model, goals, humans, robot, states=None, robot_atol=1e-11):
    graph = enumerate_states(model, workers=1)
    solution = solve(graph, goals, humans, robot, workers=1)
    weighted = {h: [g if isinstance(g, tuple) else (g, 1.0) for g in goals[h]] for h in graph.humans}
    exact = Recursion(model, graph.actions, weighted, humans, robot)
    sharp = (
        1e-12 if math.isinf(humans.beta) else 1e-12 + 1e-15 * humans.beta
    )  # of policies: beta times a rounding error
    for state in graph.states if states is None else [graph.states[i] for i in states(len(graph))]:
        number = graph.number(state)
        for place, h in enumerate(graph.humans):
            for g, _ in weighted[h]:
                assert solution.value(state, h, g) == pytest.approx(exact.v_h(state, h, g), rel=1e-12, abs=1e-12)
                assert solution.attainment(state, h, g) == pytest.approx(exact.v_he(state, h, g), rel=1e-12, abs=sharp)
                if not exact.ends(state):
                    np.testing.assert_allclose(
                        solution.policy(state, h, g), exact.pi_h(state, h, g), rtol=0, atol=sharp
                    )
            if not exact.ends(state):
                assert solution.arrays["power"][number, place] == pytest.approx(
                    exact.x_h(state, h), rel=1e-12, abs=sharp
                )
        assert solution.arrays["robot_value"][number] == pytest.approx(exact.v_r(state), rel=max(1e-12, sharp))
        if not exact.ends(state):
            np.testing.assert_allclose(
                solution.arrays["robot_policy"][number], exact.pi_r(state), rtol=0, atol=robot_atol + sharp
            )
    return solution


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    people=st.sampled_from(
        [((2,), (2,)), ((2, 3), (2,)), ((3, 2), ()), ((2, 2), (2, 2)), ((), (3,)), ((1, 2, 2), (1,))]
    ),
    shuffled=st.booleans(),
    beta=st.sampled_from([0.0, 1.0, 10.0, 1e6, math.inf]),
    discount=st.sampled_from([{}, {"gamma": 0.9}, {"rho": 0.3}]),
    durations=st.booleans(),
    over=st.sampled_from(["worst", "best", "mean"]),
    convention=st.sampled_from(
        [
            {"credit_achieved": False},
            {"credit_achieved": True},
            {"achieved": "zero"},
            {"achieved": "one"},
            {"achieved": "stay"},
        ]
    ),
    robot=st.sampled_from(
        [
            Robot(),
            Robot(beta=1.0, rho=0.2, zeta=2.0, xi=1.5, eta=1.2),
            Robot(beta=math.inf, zeta=0.5),
            Robot(beta=0.0, rho=1.0, terminal_robot_value=-2.0),
        ]
    ),
)
def test_random_models(seed, people, shuffled, beta, discount, durations, over, convention, robot):
    """Humans and robots of all numbers, in any order among the agents; all options."""
    humans, robots = people
    order = np.random.default_rng(seed).permutation(len(humans) + len(robots)).tolist() if shuffled else None
    model = Layered(seed, humans, robots, depth=3, width=2, durations=durations, order=order)
    settings_h = Humans(beta=beta, robot=over, **convention, **discount)
    compare(model, dict.fromkeys(model.human_agent_indices, model.goals), settings_h, robot)


def biased(state, agent, action):
    other = 1 - agent
    first, second = [None] * 3, [0] * 3
    first[other], second[other] = action, 1 - action
    return [(0.75, first), (0.25, second)]


def test_beliefs_as_named_function_lambda_and_closure_are_the_same():
    model = Layered(5, (2, 2), (2,))
    share = 0.75

    def closure(state, agent, action):
        return [(p if p == 0.25 else share, profile) for p, profile in biased(state, agent, action)]

    goals = dict.fromkeys(model.human_agent_indices, model.goals)
    graph = enumerate_states(model)
    found = []
    for believed in (biased, lambda s, h, a: biased(s, h, a), closure):
        compare(model, goals, Humans(believed_others_policy=believed), Robot())
        found.append(solve(graph, goals, Humans(believed_others_policy=believed)))
    for other in found[1:]:
        for name, array in found[0].arrays.items():
            np.testing.assert_array_equal(array, other.arrays[name])
    plain = solve(graph, goals)
    assert not np.array_equal(plain.arrays["human_value"], found[0].arrays["human_value"])


@pytest.mark.parametrize("credit", [False, True])
@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0, 1e6, math.inf])
def test_rooms(beta, credit):
    rooms = Rooms("closet", horizon=6)
    compare(rooms, {0: rooms.goals(0)}, Humans(beta=beta, gamma=0.95, credit_achieved=credit), Robot())


FOREIGN = {
    "deterministic": (GatedPath, {"width": 4, "max_steps": 4}, {}),
    "stochastic": (GatedPath, {"slip": 0.2}, {"gamma": 0.9}),
    "two humans": (GatedPath, {"num_humans": 2, "slip": 0.1}, {}),
    "two robots": (GatedPath, {"num_robots": 2, "slip": 0.3}, {"robot": "best"}),
    "durations": (SlowGatedPath, {"slip": 0.25}, {"rho": 0.3}),
    "beliefs": (
        GatedPath,
        {"num_humans": 2},
        {"believed_others_policy": lambda s, h, a: [(0.75, [a] * 3), (0.25, [0] * 3)]},
    ),
}


@pytest.mark.parametrize(
    "robot", [Robot(), Robot(beta=2.0, rho=0.2, zeta=2.0, xi=1.5, eta=1.1)], ids=["plain", "curved"]
)
@pytest.mark.parametrize("achieved", ["zero", "one", "stay", None])
@pytest.mark.parametrize("kind", FOREIGN)
def test_goals_that_hold_in_a_foreign_model(kind, achieved, robot):
    """Each convention agrees to 1e-12 with the formulas; without one given it is that of the model's project."""
    make, shape, more = FOREIGN[kind]
    model = make(**shape, parity=achieved in ("zero", "one"))  # with zero, some goal must be in reach everywhere
    still = {"still": 1} if achieved == "stay" else {}
    start, generate = model.get_state(), model.possible_goal_generator.generate
    goals = {human: list(generate(start, human)) for human in model.human_agent_indices}
    solution = compare(model, goals, Humans(achieved=achieved, **still, **more), robot, robot_atol=1e-12)
    assert solution.convention == (achieved or "stay")
    assert solution.achieved[~solution.graph.terminal].any()


@pytest.mark.slow
def test_rooms_with_two_humans():
    rooms = Rooms("passage", horizon=3)
    compare(rooms, {0: rooms.goals(0)[:6], 1: rooms.goals(1)}, Humans(), Robot(), lambda n: range(0, n, 7))

"""The sweeps against a recursion written from the formulas, state by state, on the model itself."""

import math
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.foreign_models import GatedPath, SlowGatedPath
from support.small_models import Layered

from motet.plan import Humans, Robot, enumerate_states, solve
from motet.worlds.rooms import Rooms

TIE = 1e-12


class Recursion:
    """The formulas, word for word."""

    def __init__(self, model, counts, goals, humans, robot):
        self.m, self.counts, self.goals, self.h, self.r = model, counts, goals, humans, robot
        self.H, self.R = model.human_agent_indices, model.robot_agent_indices
        older = {None: None, False: "zero", True: "one"}[humans.credit_achieved]
        has_generator = getattr(model, "possible_goal_generator", None) is not None
        self.achieved = humans.achieved or older or ("stay" if has_generator else "zero")
        for name in ("q_h", "pi_h", "v_h", "v_he", "q_r", "pi_r", "v_r"):
            setattr(self, name, cache(getattr(self, name)))

    def all(self, agents):
        return [dict(zip(agents, acts, strict=True)) for acts in product(*(range(self.counts[i]) for i in agents))]

    def next(self, s, acts):  # [(p, s', duration)] for actions by agent
        joint = [acts[i] for i in range(len(self.counts))]
        outcome = self.m.transition_probabilities(s, joint)
        times = self.m.transition_durations(s, joint, outcome) if hasattr(self.m, "transition_durations") else None
        return [(p, t, times[k] if times else 1.0) for k, (p, t) in enumerate(outcome)]

    def ends(self, s):
        return self.m.transition_probabilities(s, [0] * len(self.counts)) is None

    def worth(self, s, acts, g, value):
        def discount(d):
            return self.h.gamma if self.h.rho is None else math.exp(-self.h.rho * d)

        return sum(p * (1.0 if g.is_achieved(t) else discount(d) * value(t)) for p, t, d in self.next(s, acts))

    def settled(self, s, g):  # the value where nothing is left to do, or None
        if g.is_achieved(s) and self.achieved in ("zero", "one"):
            return {"zero": 0.0, "one": 1.0}[self.achieved]
        return 0.0 if self.ends(s) else None

    def stays(self, s, g):
        return self.achieved == "stay" and g.is_achieved(s)

    def q_h(self, s, h, a, g):
        others, over = [i for i in self.H if i != h], {"worst": min, "best": max, "mean": lambda x: sum(x) / len(x)}
        if self.h.believed_others_policy is None:
            profiles = [(1 / len(self.all(others)), p) for p in self.all(others)]
        else:
            profiles = self.h.believed_others_policy(s, h, a)
            profiles = [(p, {i: profile[i] for i in others}) for p, profile in profiles]
        return sum(
            b
            * over[self.h.robot](
                [self.worth(s, {h: a} | o | r, g, lambda t: self.v_h(t, h, g)) for r in self.all(self.R)]
            )
            for b, o in profiles
        )

    def pi_h(self, s, h, g):
        if self.stays(s, g):
            return np.eye(self.counts[h])[self.h.still]
        q = np.array([self.q_h(s, h, a, g) for a in range(self.counts[h])])
        w = (q >= q.max() - TIE).astype(float) if math.isinf(self.h.beta) else np.exp(self.h.beta * (q - q.max()))
        return w / w.sum()

    def v_h(self, s, h, g):
        if self.stays(s, g):
            return 0.0
        if (done := self.settled(s, g)) is not None:
            return done
        return sum(p * self.q_h(s, h, a, g) for a, p in enumerate(self.pi_h(s, h, g)))

    def prior(self, s, h):
        return sum(w * self.pi_h(s, h, g) for g, w in self.goals[h]) / sum(w for _, w in self.goals[h])

    def crowd(self, s, without=None):  # [(probability, actions of the humans but one)]
        some = [i for i in self.H if i != without]
        return [(math.prod(self.prior(s, i)[a[i]] for i in some), a) for a in self.all(some)]

    def q_r(self, s, k):
        r = self.all(self.R)[k]
        return sum(
            c * p * math.exp(-self.r.rho * d) * self.v_r(t) for c, o in self.crowd(s) for p, t, d in self.next(s, o | r)
        )

    def pi_r(self, s):
        logs = np.array([-math.log(-self.q_r(s, k)) for k in range(len(self.all(self.R)))])
        inf = math.isinf(self.r.beta)
        w = (logs >= logs.max() - TIE).astype(float) if inf else np.exp(self.r.beta * (logs - logs.max()))
        return w / w.sum()

    def v_he(self, s, h, g):
        if (done := self.settled(s, g)) is not None:
            return done
        return sum(
            p * c * r * self.worth(s, {h: a} | o | self.all(self.R)[k], g, lambda t: self.v_he(t, h, g))
            for a, p in enumerate(self.pi_h(s, h, g))
            for c, o in self.crowd(s, h)
            for k, r in enumerate(self.pi_r(s))
        )

    def x_h(self, s, h):
        return sum(w * self.v_he(s, h, g) ** self.r.zeta for g, w in self.goals[h])

    def v_r(self, s):
        if self.ends(s):
            return self.r.terminal_robot_value
        mean = sum(self.x_h(s, h) ** -self.r.xi for h in self.H) / len(self.H) if self.H else 0.0
        rho, moves = (
            self.r.rho,
            [
                (c * q, p, d)
                for c, o in self.crowd(s)
                for k, q in enumerate(self.pi_r(s))
                for p, _, d in self.next(s, o | self.all(self.R)[k])
            ],
        )
        w = sum(c * p * (1 - math.exp(-rho * d)) / rho for c, p, d in moves) if rho else 1.0
        return w * -(mean**self.r.eta) + sum(q * self.q_r(s, k) for k, q in enumerate(self.pi_r(s)))


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

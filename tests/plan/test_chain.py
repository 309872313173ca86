"""The Markov chain of a solution, and expected sums of rewards on it, against loops over the model."""

from itertools import product

import numpy as np
import pytest
from support.bush_corridor import BushCorridor
from support.small_models import Layered

from motet.errors import SettingError
from motet.plan import Humans, Robot, chain, enumerate_states, solve, solve_robot
from motet.worlds.rooms import Rooms


def naive(solution, state, goals):
    """The successors of a state as a dict, with every joint action of the graph asked for."""
    graph = solution.graph
    number, found = graph.number(state), {}
    robot = dict(zip(solution.robot_actions, solution.arrays["robot_policy"][number], strict=True))
    for joint in product(*map(range, graph.actions)):
        share = robot[tuple(joint[agent] for agent in graph.robots)]
        for human in graph.humans:
            share *= solution.policy(state, human, goals.get(human))[joint[human]]
        for p, successor in graph.transitions(number, joint):
            found[successor] = found.get(successor, 0.0) + share * p
    return found


@pytest.mark.parametrize("goals", [{}, {1: "even"}, {1: "odd", 3: "some 1"}])
@pytest.mark.parametrize("block", [1, 10**6])
def test_chain_has_the_policies_of_all_agents(goals, block, monkeypatch):
    monkeypatch.setattr(chain, "_BLOCK_ENTRIES", block)
    model = Layered(4, (2, 3), (2, 3), order=[3, 1, 0, 2])
    solution = solve(enumerate_states(model), model.goals)
    found = solution.chain(goals)
    assert (found.ends.dtype, found.successor.dtype, found.probability.dtype) == (np.int64, np.int32, np.float64)
    for number, state in enumerate(solution.graph.states):
        part = slice(found.ends[number], found.ends[number + 1])
        assert (np.diff(found.successor[part]) > 0).all()
        here = dict(zip(found.successor[part].tolist(), found.probability[part].tolist(), strict=True))
        expected = {} if solution.graph.terminal[number] else naive(solution, state, goals)
        assert here == pytest.approx(expected, rel=1e-12)


def expected_by_hand(model, solution, reward, discount):
    """A recursion over the chain, last states first."""
    found = solution.chain()
    value = [0.0] * len(solution.graph)
    for number in reversed(range(len(value))):
        for k in range(found.ends[number], found.ends[number + 1]):
            to = int(found.successor[k])
            gain = reward(solution.graph.states[number], solution.graph.states[to])
            value[number] += found.probability[k] * (np.asarray(gain) + discount(found, k) * value[to])
    return value


@pytest.mark.parametrize("durations", [False, True])
def test_expected_sums_of_vector_rewards(durations):
    model = Layered(9, (2, 2), (2,), durations=durations)
    solution = solve(enumerate_states(model), model.goals)
    found = solution.chain()

    def reward(state, successor):
        return [1.0, state[1] - 2.0 * successor[1], float(successor == (2, 1))]

    by_gamma = found.expected(reward, gamma=0.9)
    assert by_gamma.shape == (len(solution.graph), 3)
    exact = expected_by_hand(model, solution, reward, lambda chain, k: 0.9)
    np.testing.assert_allclose(by_gamma[0], exact[0], rtol=1e-12)
    exact = expected_by_hand(
        model, solution, reward, lambda chain, k: np.exp(-0.3 * (chain.duration[k] if durations else 1.0))
    )
    np.testing.assert_allclose(found.expected(reward, rho=0.3)[0], exact[0], rtol=1e-12)
    by_state = np.array([float(state == (2, 1)) for state in solution.graph.states])
    np.testing.assert_allclose(found.expected(by_state[found.successor], gamma=0.9), by_gamma[:, 2], rtol=1e-12)
    value = [0.0] * len(by_state)  # another convention: the reward of a state counts in the state itself
    for number in reversed(range(len(value))):
        part = slice(found.ends[number], found.ends[number + 1])
        later = sum(p * value[to] for p, to in zip(found.probability[part], found.successor[part], strict=True))
        value[number] = by_state[number] + 0.9 * later
    here = by_state + 0.9 * found.expected(by_state[found.successor], gamma=0.9)
    np.testing.assert_allclose(here, value, rtol=1e-12)
    np.testing.assert_allclose(found.visits()[solution.graph.number((2, 1))], found.expected(reward)[0, 2], rtol=1e-12)


def test_probability_that_the_left_human_is_freed_first():
    """Freed: the bush next to the human is gone, for good. The robot starts nearer to the left human."""
    model = BushCorridor(5)
    graph = enumerate_states(model)
    solution = solve_robot(
        graph,
        {human: model.cell_goals(human) for human in (1, 2)},
        model.nearest,
        Robot(beta=5),
        achieved="stay",
        human_agents=[1, 2],
        robot_agents=[0],
    )

    def freed(state):
        return state[2][1] == 0, state[2][5] == 0

    def first(state, successor):
        return [not any(freed(state)) and freed(successor)[side] for side in (0, 1)]

    chances = solution.chain().expected(first)[0]
    never = [number for number, state in enumerate(graph.states) if state[0] == 5 and not any(freed(state))]
    assert chances.sum() + solution.chain().visits()[never].sum() == pytest.approx(1.0)
    assert chances[0] > chances[1] > 0
    rng = np.random.default_rng(0)
    found, played = solution.chain(), np.zeros(2)
    for _ in range(400):
        number = 0
        while not graph.terminal[number]:
            part = slice(found.ends[number], found.ends[number + 1])
            after = int(rng.choice(found.successor[part], p=found.probability[part]))
            played += first(graph.states[number], graph.states[after])
            number = after
    assert abs(played / 400 - chances).max() < 0.1  # four deviations of 400 coins


def test_rewards_of_the_model_are_expected_by_transition():
    rooms = Rooms("freeing", horizon=4)
    graph = enumerate_states(rooms, rewards=True)
    solution = solve(graph, {0: rooms.goals(0)}, Humans(beta=2.0))
    found = solution.chain()
    earned = np.zeros(2)
    number = 7
    priors, robot = solution.priors(0)[number], solution.arrays["robot_policy"][number]
    for a, b in product(range(4), repeat=2):
        outcome = rooms.transition_probabilities(graph.states[number], [a, b])
        paid = rooms.transition_rewards(graph.states[number], [a, b], outcome)
        earned += sum(priors[a] * robot[b] * p * np.array(r) for (p, _), r in zip(outcome, paid, strict=True))
    part = slice(found.ends[number], found.ends[number + 1])
    np.testing.assert_allclose(found.probability[part] @ found.reward[part], earned, rtol=1e-12, atol=1e-15)
    assert found.expected(found.reward).shape == (len(graph), 2)


@pytest.mark.parametrize(
    ("rewards", "more", "says"),
    [
        (
            [1.0, 2.0],
            {},
            r"rewards must have one entry for each of the [\d,]+ transitions of the chain, got the shape \(2,\)",
        ),
        (
            lambda a, b: 1.0,
            {"gamma": 2.0},
            r"gamma must be a number from 0 to 1 and rho a number >= 0, got 2\.0 and None",
        ),
        (lambda a, b: 1.0, {"gamma": 0.5, "rho": 0.1}, r"gamma must be 1 where rho is given"),
    ],
)
def test_bad_rewards_are_refused(rewards, more, says):
    model = Layered(4)
    found = solve(enumerate_states(model), model.goals).chain()
    with pytest.raises(SettingError, match=says):
        found.expected(rewards, **more)


def test_terminal_world_has_an_empty_chain():
    model = Layered(4, depth=0)
    found = solve(enumerate_states(model), model.goals).chain()
    assert found.ends.tolist() == [0, 0] and found.expected(lambda a, b: 1.0).tolist() == [0.0]

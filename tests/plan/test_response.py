"""Best responses and regret, against value iteration in a few lines of Python."""

from itertools import pairwise, product

import numpy as np
import pytest

from motet.errors import SettingError
from motet.plan import best_response, enumerate_states, induction, regret, solve
from motet.plan import sweeps as _sweeps
from motet.plan.picture import solution_picture
from motet.worlds.rooms import Rooms
from motet.worlds.small_hunt import SmallHunt


def naive(graph, model, agent, tables, gamma, steps):
    """V by plain backward induction over a number of steps, with the model asked every time."""
    agents = len(graph.actions)
    value = np.zeros(len(graph))
    for _ in range(steps):
        before, value = value, np.zeros(len(graph))
        for number, state in enumerate(graph.states):
            q = np.zeros(graph.actions[agent])
            for joint in product(*map(range, graph.actions)):
                outcome = model.transition_probabilities(state, list(joint))
                if outcome is None:
                    break
                p = np.prod([tables[i][number, joint[i]] for i in range(agents) if i != agent])
                rewards = model.transition_rewards(state, list(joint), outcome)
                q[joint[agent]] += p * sum(
                    chance * (paid[agent] + gamma * before[graph.number(to)])
                    for (chance, to), paid in zip(outcome, rewards, strict=True)
                )
            value[number] = q.max()
    return value


def uniform(graph):
    return [np.full((len(graph), n), 1 / n) for n in graph.actions]


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_best_response_over_levels(gamma):
    hunt = SmallHunt("A.g\n...\nf.A", turns=2)
    graph = enumerate_states(hunt, rewards=True)
    for agent in (0, 1):
        found = best_response(graph, agent, gamma=gamma)
        np.testing.assert_allclose(found.value, naive(graph, hunt, agent, uniform(graph), gamma, 4), atol=1e-12)
        np.testing.assert_allclose(found.values_of(found.table), found.value, atol=1e-12)


def test_successors_of_an_action_are_merged():
    problem = best_response(enumerate_states(Rooms("passage", horizon=2), rewards=True), 0)._problem
    for begin, end in pairwise(problem.rows.tolist()):
        assert (np.diff(problem.successor[begin:end]) > 0).all()
        assert begin == end or problem.weight[begin:end].sum() == pytest.approx(1)


def test_best_response_to_given_policies():
    rooms = Rooms("freeing", horizon=3)
    graph = enumerate_states(rooms, rewards=True)
    rng = np.random.default_rng(0)
    tables = [rng.dirichlet(np.ones(4), len(graph)) for _ in range(2)]
    for agent in (0, 1):
        found = best_response(graph, agent, {graph.agents[1 - agent]: tables[1 - agent]}, gamma=0.9)
        np.testing.assert_allclose(found.value, naive(graph, rooms, agent, tables, 0.9, 3), atol=1e-12)


def test_finite_horizon_on_a_graph_with_cycles():
    rooms = Rooms("closet", horizon=0)
    graph = enumerate_states(rooms, cycles=True, rewards=True)
    found = best_response(graph, "human_0", horizon=6, gamma=0.9)
    assert found.value.shape == (7, len(graph))
    for steps in (1, 4, 6):
        np.testing.assert_allclose(
            found.value[6 - steps], naive(graph, rooms, 0, uniform(graph), 0.9, steps), atol=1e-12
        )
    fixed = best_response(graph, 0, horizon=1)
    assert fixed.values_of(fixed.table).shape == (len(graph),)
    np.testing.assert_allclose(fixed.values_of(fixed.table), fixed.value[0])


def test_a_timed_graph_and_a_horizon_agree():
    timed = enumerate_states(Rooms("freeing", horizon=5), rewards=True)
    endless = enumerate_states(Rooms("freeing", horizon=0), rewards=True, cycles=True)
    by_levels = best_response(timed, 0).value[0]
    assert best_response(endless, 0, horizon=5).value[0, 0] == pytest.approx(by_levels, abs=1e-12)


def test_a_rate_counts_durations():
    class Timed(SmallHunt):
        def transition_durations(self, state, actions, transitions):
            return [0.5] * len(transitions)

    hunt = Timed("A.g\n...\nf.A", turns=2)
    graph = enumerate_states(hunt, rewards=True)
    by_rate = best_response(graph, 0, rho=0.4).value
    np.testing.assert_allclose(by_rate, best_response(graph, 0, gamma=float(np.exp(-0.2))).value, atol=1e-12)


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(workers, monkeypatch):
    graph = enumerate_states(Rooms("passage", horizon=4), rewards=True)
    monkeypatch.setattr(induction, "_FEW_ENTRIES", 1)
    parts = []
    submit = _sweeps.ThreadPoolExecutor.submit
    monkeypatch.setattr(
        _sweeps.ThreadPoolExecutor,
        "submit",
        lambda self, run, first, last: parts.append(last) or submit(self, run, first, last),
    )
    one, more = best_response(graph, 1, gamma=0.9, workers=1), best_response(graph, 1, gamma=0.9, workers=workers)
    assert one.value.tobytes() == more.value.tobytes()
    assert one.choice.tobytes() == more.choice.tobytes()
    assert len(parts) > 2 * (workers - 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"agent": "nobody"}, "agent must be one of human_0, robot_0 or its index, got 'nobody'"),
        ({"gamma": 2}, "gamma must be a number from 0 to 1 and rho a number >= 0, got 2 and None"),
        ({"gamma": 0.5, "rho": 0.1}, r"gamma must be 1 where rho is given, got 0\.5 and 0\.1: both are discounts"),
        ({"others": {0: np.ones((1, 4))}}, "which is the responding agent"),
        (
            {"others": {1: np.ones((1, 4))}},
            r"others: the table of robot_0 must have the shape \(236, 4\), got \(1, 4\)",
        ),
        ({"others": {1: np.full((236, 4), 0.3)}}, "must have probabilities with sum 1"),
        ({"workers": 0}, "workers must be an int >= 1, or None for one per core, got 0"),
    ],
)
def test_bad_questions_are_refused(given, says):
    graph = enumerate_states(Rooms("closet"), rewards=True)
    with pytest.raises(SettingError, match=says):
        best_response(graph, **given)


def test_missing_rewards_are_named():
    with pytest.raises(SettingError, match="rewards=True"):
        best_response(enumerate_states(Rooms("closet", horizon=2)))
    with pytest.raises(SettingError, match="give horizon"):
        best_response(enumerate_states(Rooms("closet", horizon=0), cycles=True, rewards=True))


# Regret


class Leftward:
    def act(self, observation):
        return 2


class Quarter:
    def act(self, observation):
        raise AssertionError("the probabilities are there")

    def probabilities(self, observation):
        return [0.25] * 4


def test_regret_is_what_playing_shows():
    """The exact loss of a policy that always goes left, and the mean over episodes, agree."""
    hunt = SmallHunt("A.g\n...\nf.A", turns=2)
    best = best_response(enumerate_states(hunt, rewards=True), 0)
    found = regret(Leftward(), best, hunt)
    rng = np.random.default_rng(0)
    earned = []
    for _ in range(600):
        hunt.reset()
        total = 0.0
        while not hunt.over:
            mover = hunt.mover
            paid = hunt.play(2 if mover == 0 else int(rng.integers(4)))
            total += paid if mover == 0 else 0.0
        earned.append(total)
    assert found.expected == pytest.approx(best.value[0] - np.mean(earned), abs=0.2)
    assert found.expected == 12.0
    assert (found.loss >= 0).all()


def test_regret_of_probabilities_is_that_of_their_table():
    rooms = Rooms("freeing", horizon=4)
    best = best_response(enumerate_states(rooms, rewards=True), 0)
    by_policy = regret(Quarter(), best, rooms)
    by_table = regret(np.full((len(best.graph), 4), 0.25), best)
    np.testing.assert_array_equal(by_policy.loss, by_table.loss)
    assert by_policy.visits.sum() == pytest.approx(5)
    losses = [loss for loss, _ in by_policy.worst(3)]
    assert losses == sorted(losses, reverse=True)
    with pytest.raises(
        SettingError,
        match="model must be the world in which the policy acts, got none: the policy needs observations",
    ):
        regret(Quarter(), best)


def test_pictures_are_drawn(tmp_path):
    rooms = Rooms("freeing", horizon=4)
    graph = enumerate_states(rooms, rewards=True)
    best = best_response(graph, 0)
    lost = regret(np.full((len(graph), 4), 0.25), best).picture(rooms, tmp_path / "regret.png")
    planned = solution_picture(solve(graph, {0: rooms.goals(0)}), rooms, tmp_path / "plan.png")
    for picture in (lost, planned):
        assert picture.ndim == 3
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 100
    assert (tmp_path / "regret.png").stat().st_size > 1000
    with pytest.raises(
        SettingError,
        match=r"model must have picture\(state\) -> rgb and where\(state, agent\) -> .* to be drawn, got a object",
    ):
        regret(np.full((len(graph), 4), 0.25), best).picture(object())

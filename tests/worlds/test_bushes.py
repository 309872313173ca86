"""Bushes: the rules on small grids, and the values of the corridor that were computed elsewhere."""

import math
from itertools import product

import numpy as np
import pytest

from motet.errors import NotReadyError, SettingError
from motet.plan import enumerate_states
from motet.worlds import Bushes
from motet.worlds.catalogue import world_factory

NORTH, WEST, SOUTH, EAST, PASS = range(5)


def outcomes(map, *actions, density=0, thickest=10):
    """What one joint action may lead to: {(tiles, densities): probability}."""
    bushes = Bushes(map, density=density, thickest=thickest)
    bushes.reset()
    found = bushes.transition_probabilities(bushes.get_state(), list(actions))
    assert all(state[0] == 1 for _, state in found)
    return {state[1:]: p for p, state in found}


def test_robots_come_first_and_are_numbered_by_rows():
    bushes = Bushes("H.R\nR.H")
    assert bushes.agents == ["robot_0", "robot_1", "human_0", "human_1"]
    bushes.reset()
    assert bushes.get_state()[1] == (2, 3, 0, 5)
    assert (bushes.robot_agent_indices, bushes.human_agent_indices) == ([0, 1], [2, 3])


@pytest.mark.parametrize(
    ("action", "tile"), [(NORTH, 1), (WEST, 3), (SOUTH, 7), (EAST, 5), (PASS, 4)], ids=lambda given: str(given)
)
def test_actions_go_where_they_say(action, tile):
    assert outcomes("...\n.H.\n...", action) == {((tile,), (0,) * 9): 1.0}


def test_moves_off_the_grid_do_nothing():
    for action in (NORTH, WEST, SOUTH, EAST):
        assert outcomes("R", action, density=2) == {((0,), (2,)): 1.0}


def test_robot_lowers_the_bush_it_enters_or_stands_on():
    assert outcomes("R.", EAST, density=2) == {((1,), (2, 1)): 1.0}
    assert outcomes("R.", PASS, density=2) == {((0,), (1, 2)): 1.0}
    assert outcomes("R.", PASS) == {((0,), (0, 0)): 1.0}
    assert outcomes("RR", EAST, WEST, density=2) == {((0, 1), (2, 2)): 1.0}  # occupied: nothing happens


def test_human_passes_by_chance_and_changes_no_bush():
    assert outcomes("H.", EAST, density=3) == pytest.approx({((1,), (3, 3)): 0.7, ((0,), (3, 3)): 0.3})
    assert outcomes("H.", EAST, density=10) == {((0,), (10, 10)): 1.0}
    assert outcomes("H.", PASS, density=3) == {((0,), (3, 3)): 1.0}


def test_density_is_that_of_the_start_of_the_step():
    # First the robot clears its own tile; then both want the same tile, and the robot has the lower number.
    assert outcomes("R.H", PASS, WEST, density=5) == pytest.approx({((0, 1), (4, 5, 5)): 0.5, ((0, 2), (4, 5, 5)): 0.5})
    assert outcomes("R.H", EAST, WEST, density=5) == {((1, 2), (5, 4, 5)): 1.0}


def test_lowest_number_tries_alone_even_if_it_fails():
    found = outcomes("H.H", EAST, WEST, density=5)
    assert found == pytest.approx({((1, 2), (5, 5, 5)): 0.5, ((0, 2), (5, 5, 5)): 0.5})


def test_tile_that_is_left_in_this_step_is_still_occupied():
    assert outcomes("HH.", EAST, EAST) == {((0, 2), (0, 0, 0)): 1.0}


def test_humans_succeed_independently():
    found = outcomes("H.\nH.", EAST, EAST, density=2)
    assert {tiles: p for (tiles, _), p in found.items()} == pytest.approx(
        {(1, 3): 0.64, (1, 2): 0.16, (0, 3): 0.16, (0, 2): 0.04}
    )


def test_encoded_states_are_decoded():
    bushes = Bushes("H.R\n3.H", density=2, thickest=7, horizon=3)
    for state in enumerate_states(bushes).states:
        coded = bushes.encode(state)
        assert coded in bushes.observation_space
        assert bushes.decode(coded) == state


def test_bad_settings_are_refused():
    with pytest.raises(SettingError, match="map must be a rectangle"):
        Bushes("H.\nR")
    with pytest.raises(SettingError, match="map must have an agent"):
        Bushes("..")
    with pytest.raises(SettingError, match="density must be an int from 0 to 3, got 4"):
        Bushes(density=4, thickest=3)
    with pytest.raises(SettingError, match="the largest digit of the map must be an int from 0 to 3, got 9"):
        Bushes("H9", thickest=3)
    with pytest.raises(SettingError, match=r"agent must be one of the humans \[1, 2\], got 0"):
        Bushes().goals(0)
    with pytest.raises(NotReadyError, match="call reset"):
        Bushes().get_state()
    with pytest.raises(SettingError, match="state must be of a world with this map"):
        Bushes().set_state((0, (1,), (0, 0)))


def test_bushes_have_a_name():
    assert world_factory("bushes", {"horizon": 3})().horizon == 3


def test_pictures_show_densities_and_agents():
    bushes = Bushes("H.R\n...")
    bushes.reset()
    step, tiles, densities = bushes.get_state()
    picture = bushes.picture((step, tiles, densities))
    assert picture.shape == (32, 48, 3)
    assert picture.dtype == np.uint8
    thick = bushes.picture((step, tiles, (*densities[:4], 9, densities[5])))
    assert thick[24, 24].sum() < picture[24, 24].sum()
    assert (thick[:16] == picture[:16]).all()


class PlainRobot:
    """The formulas for a robot that serves humans with given policies, state by state; ``beta`` 0: a uniform robot."""

    def __init__(self, bushes, beta=5.0, gamma=0.95, zeta=1.0, eta=1.0):
        self.bushes, self.beta, self.gamma, self.zeta, self.eta = bushes, beta, gamma, zeta, eta
        self.c = (1 - gamma) / -math.log(gamma)
        self.known = {}

    def __call__(self, state):
        """V_r, pi_r, and V_e by human and goal."""
        if state not in self.known:
            self.known[state] = self.solve(state)
        return self.known[state]

    def solve(self, state):
        bushes = self.bushes
        humans, goals = bushes.human_agent_indices, {h: bushes.goals(h) for h in bushes.human_agent_indices}
        if bushes.transition_probabilities(state, [PASS] * len(bushes.agents)) is None:
            return -1e-10, None, {(h, goal): 0.0 for h in humans for goal, _ in goals[h]}
        policy = {(h, goal): bushes.towards(state, h, goal) for h in humans for goal, _ in goals[h]}
        prior = {h: sum(weight * policy[h, goal] for goal, weight in goals[h]) for h in humans}
        q = np.zeros(5)
        reach = {key: np.zeros((5, 5)) for key in policy}  # [robot's action, own action]: over the others' priors
        for profile in product(range(5), repeat=len(humans)):
            share = math.prod(prior[h][a] for h, a in zip(humans, profile, strict=True))
            if share == 0:
                continue
            for robot in range(5):
                for p, after in bushes.transition_probabilities(state, [robot, *profile]):
                    value, _, attained = self(after)
                    q[robot] += share * p * self.gamma * value
                    for (h, goal), table in reach.items():
                        a = profile[humans.index(h)]
                        worth = 1.0 if goal.is_achieved(after) else self.gamma * attained[h, goal]
                        table[robot, a] += share / prior[h][a] * p * worth
        chosen = (-q) ** -self.beta
        chosen /= chosen.sum()
        attained = {key: float(chosen @ table @ policy[key]) for key, table in reach.items()}
        power = [sum(weight * attained[h, goal] ** self.zeta for goal, weight in goals[h]) for h in humans]
        utility = -(np.mean([1 / x for x in power]) ** self.eta)
        return self.c * utility + float(chosen @ q), chosen, attained


@pytest.mark.parametrize(
    ("horizon", "states", "shaped", "exact", "uniform", "policy"),
    [
        (3, 155, {}, -7.96125, -8.56157, [0.2215, 0.0771, 0.2215, 0.2526, 0.2273]),
        (4, 292, {}, -9.94866, -10.60708, [0.2138, 0.1088, 0.2138, 0.2458, 0.2179]),
        (4, 292, {"zeta": 2.0, "eta": 1.1}, -12.30415, -13.38126, [0.2182, 0.0914, 0.2182, 0.2503, 0.2220]),
    ],
)
def test_corridor_has_the_values_that_were_computed_elsewhere(horizon, states, shaped, exact, uniform, policy):
    bushes = Bushes(horizon=horizon)
    assert len(enumerate_states(bushes, workers=1)) == states
    start = bushes.get_state()
    value, chosen, _ = PlainRobot(bushes, **shaped)(start)
    assert value == pytest.approx(exact, abs=5e-6)
    assert chosen == pytest.approx(policy, abs=5e-5)
    assert PlainRobot(bushes, beta=0.0, **shaped)(start)[0] == pytest.approx(uniform, abs=5e-6)


def test_long_corridor_has_as_many_states_as_were_counted_elsewhere():
    assert len(enumerate_states(Bushes(horizon=12), workers=1)) == 2108

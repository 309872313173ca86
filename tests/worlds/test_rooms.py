"""Rooms: the rules on small maps, and that the environment and the model are one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test

from motet.errors import NotReadyError, SettingError
from motet.worlds.rooms import MAPS, Reach, Rooms

UP, DOWN, LEFT, RIGHT = range(4)


def world(text, horizon=9):
    rooms = Rooms(text, horizon=horizon)
    rooms.reset(seed=0)
    return rooms


def outcomes(rooms, *actions):
    """Where everything may be after joint actions, without the steps: {(agents, blocks, keys, doors): probability}."""
    states = {rooms.get_state(): 1.0}
    for joint in actions:
        after = {}
        for state, chance in states.items():
            for p, to in rooms.transition_probabilities(state, list(joint)):
                after[to] = after.get(to, 0.0) + chance * p
        states = after
    return {state[1:]: p for state, p in states.items()}


def test_walls_and_floor():
    rooms = world("#####\n#H..#\n#####")
    assert outcomes(rooms, [RIGHT]) == {((7,), (), (), 0): 1.0}
    for action in (UP, DOWN, LEFT):
        assert outcomes(rooms, [action]) == {((6,), (), (), 0): 1.0}


def test_two_agents_that_want_one_tile_get_it_with_equal_probability():
    rooms = world("#####\n#H.H#\n#####")
    assert outcomes(rooms, [RIGHT, LEFT]) == {((7, 8), (), (), 0): 0.5, ((6, 7), (), (), 0): 0.5}


def test_following_depends_on_who_comes_first():
    rooms = world("######\n#HH..#\n######")
    found = outcomes(rooms, [RIGHT, RIGHT])
    assert found == {((7, 9), (), (), 0): 0.5, ((8, 9), (), (), 0): 0.5}


def test_three_in_a_row_move_by_all_six_orders():
    rooms = world("#######\n#HHH..#\n#######")
    found = outcomes(rooms, [RIGHT, RIGHT, RIGHT])
    # The first moves on always; the second if it comes after the first; the third if it comes after both.
    assert {agents: p for (agents, *_), p in found.items()} == pytest.approx(
        {(9, 10, 11): 1 / 6, (8, 10, 11): 1 / 3, (8, 9, 11): 1 / 2}
    )


def test_agents_cannot_swap_tiles():
    rooms = world("####\n#HH#\n####")
    assert outcomes(rooms, [RIGHT, LEFT]) == {((5, 6), (), (), 0): 1.0}


def test_a_door_opens_for_the_holder_of_its_key_and_stays_open():
    rooms = world("######\n#HaA.#\n######")
    assert outcomes(rooms, [RIGHT]) == {((8,), (), (-1,), 0): 1.0}
    assert outcomes(rooms, [RIGHT], [RIGHT]) == {((9,), (), (-1,), 1): 1.0}
    assert outcomes(rooms, [RIGHT], [RIGHT], [RIGHT]) == {((10,), (), (-1,), 1): 1.0}


def test_a_door_stays_shut_without_its_key():
    rooms = world("######\n#H.AR#\n#ab..#\n######")
    assert outcomes(rooms, [RIGHT, UP], [RIGHT, UP]) == {((8, 10), (), (13, 14), 0): 1.0}
    other_colour = world("######\n#HbA.#\n#a...#\n######")
    (agents, _, _, doors), *_ = outcomes(other_colour, [RIGHT], [RIGHT])
    assert (agents, doors) == ((8,), 0)


def test_an_open_door_is_open_to_all():
    rooms = world("#######\n#HaA.R#\n#######")
    # The human takes the key, opens the door and goes through; the robot then follows it back.
    found = outcomes(rooms, [RIGHT, UP], [RIGHT, UP], [LEFT, LEFT], [LEFT, LEFT])
    assert found == {((8, 10), (), (-1,), 1): 1.0}


def test_a_block_is_pushed_if_there_is_room_behind_it():
    rooms = world("######\n#Ho.##\n######")
    assert outcomes(rooms, [RIGHT]) == {((8,), (9,), (), 0): 1.0}
    assert outcomes(rooms, [RIGHT], [RIGHT]) == {((8,), (9,), (), 0): 1.0}
    for behind in ("o", "H", "A", "a"):
        stuck = world(f"#######\n#Ho{behind}.a#\n#######")
        (agents, *_), *_ = outcomes(stuck, [RIGHT, UP][: len(stuck.possible_agents)])
        assert agents[0] == 8


def test_a_block_pushed_from_two_sides_goes_where_the_first_pushes_it():
    rooms = world("#######\n#.HoR.#\n#######")
    # A row like this: . H o R . and each stands in the way of the other's push.
    assert outcomes(rooms, [RIGHT, LEFT]) == {((9, 11), (10,), (), 0): 1.0}


def test_the_one_in_the_way_of_a_block_may_get_out_of_it():
    rooms = world("#######\n#HoR..#\n#######")
    found = outcomes(rooms, [RIGHT, RIGHT])
    assert found == {((8, 11), (9,), (), 0): 0.5, ((9, 11), (10,), (), 0): 0.5}


def test_arrivals_on_marked_tiles_pay_human_and_robot():
    rooms = world("######\n#H*.R#\n######")
    _, rewards, *_ = rooms.step({"human_0": RIGHT, "robot_0": UP})
    assert rewards == {"human_0": 1.0, "robot_0": 1.0}
    _, rewards, *_ = rooms.step({"human_0": UP, "robot_0": UP})
    assert rewards == {"human_0": 0.0, "robot_0": 0.0}


def test_an_episode_is_truncated_at_its_horizon():
    rooms = world("#####\n#H.R#\n#####", horizon=2)
    rooms.step({"human_0": UP, "robot_0": UP})
    *_, terminations, truncations, _ = rooms.step({"human_0": UP, "robot_0": UP})
    assert truncations == {"human_0": True, "robot_0": True}
    assert terminations == {"human_0": False, "robot_0": False}
    assert rooms.agents == []
    assert rooms.transition_probabilities(rooms.get_state(), [0, 0]) is None
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        rooms.step({"human_0": UP, "robot_0": UP})


def test_without_a_horizon_there_is_no_step_in_the_state():
    rooms = world("#####\n#H.R#\n#####", horizon=0)
    for _ in range(5):
        rooms.step({"human_0": UP, "robot_0": UP})
    assert rooms.get_state()[0] == 0
    assert rooms.agents


@pytest.mark.parametrize("name", MAPS)
def test_pettingzoo_accepts_it(name):
    parallel_api_test(Rooms(name), num_cycles=40)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(MAPS)), seed=st.integers(0, 1000), actions=st.lists(st.integers(0, 3), min_size=60))
def test_the_environment_does_what_the_model_says(name, seed, actions):
    """Every step is one of the outcomes; nothing overlaps; what is seen shows the whole state to everybody."""
    rooms = Rooms(name)
    observations, _ = rooms.reset(seed=seed)
    order = iter(actions)
    while rooms.agents:
        state = rooms.get_state()
        joint = [next(order, 0) for _ in rooms.agents]
        names = rooms.agents
        for agent in names:
            assert rooms.state_of(observations[agent], agent) == state
            assert observations[agent] in rooms.observation_space(agent)
        may = rooms.transition_probabilities(state, joint)
        assert sum(p for p, _ in may) == pytest.approx(1)
        observations, rewards, *_ = rooms.step(dict(zip(names, joint, strict=True)))
        after = rooms.get_state()
        assert after in [to for _, to in may]
        assert list(rewards.values()) == rooms.transition_rewards(state, joint, [(1.0, after)])[0]
        solid = [*after[1], *after[2]]
        assert len(set(solid)) == len(solid)
        assert not any(rooms.plan.walls[tile] for tile in solid)
        assert after[0] == state[0] + 1


def test_the_order_matters_only_where_moves_touch():
    """The quick way for moves that do not touch gives what all orders give."""
    rooms = Rooms("passage")
    rooms.reset()
    queue = [rooms.get_state()]
    for state in queue[:1]:
        for joint in product(range(4), repeat=3):
            queue += [to for _, to in rooms.transition_probabilities(state, joint)]
    for state in set(queue):
        for joint in product(range(4), repeat=3):
            quick = {to: p for p, to in rooms.transition_probabilities(state, joint)}
            moves = [rooms._moves[agent][action] for agent, action in enumerate(joint)]
            everyone = [move._replace(tiles=1) for move in moves]  # as if all touched
            rooms._touched.clear()
            slow = {(state[0] + 1, *rest): p for p, rest in rooms._in_every_order(state, everyone, joint)}
            assert slow == pytest.approx(quick)


def test_the_same_seed_gives_the_same_episode():
    traces = []
    for seed in (1, 1, 2, 3):
        rooms = Rooms("passage")
        rooms.reset(seed=seed)
        trace = []
        for step in range(7):
            rooms.step({name: (step + number) % 4 for number, name in enumerate(rooms.agents)})
            trace.append(rooms.get_state())
        traces.append(trace)
    assert traces[0] == traces[1]
    assert len({tuple(trace) for trace in traces}) > 1


def test_states_are_plain_and_can_be_continued(is_plain):
    rooms = Rooms("freeing")
    rooms.reset(seed=0)
    rooms.step({"human_0": RIGHT, "robot_0": DOWN})
    state = rooms.get_state()
    assert is_plain(state)
    other = Rooms("freeing")
    other.set_state(state)
    assert other.get_state() == state
    np.testing.assert_array_equal(other.observe("robot_0"), rooms.observe("robot_0"))
    with pytest.raises(SettingError, match="make a world with the map and horizon of that state"):
        Rooms("passage").set_state(state)


def test_goals_are_tiles():
    rooms = Rooms("courtyard")
    assert len(rooms.goals(0)) == len(rooms.goals(1)) == 16
    assert rooms.goals(1)[0] == Reach(agent=1, tile=rooms.plan.width + 1, name="1,1")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (
            {"map": "nowhere"},
            "map must be one of closet, freeing, passage, blocked, courtyard, or text of several lines, got 'nowhere'",
        ),
        ({"map": "###\n#x#\n###"}, "map must have the signs .* only, got 'x'"),
        ({"map": "#.#\n#H#\n###"}, "map must have '#' all around, got an open border"),
        ({"map": "####\n#..#\n####"}, r"map must have at least one H \(human\) or R \(robot\), got none"),
        ({"horizon": -1}, "horizon must be an int >= 0, got -1"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        Rooms(**bad)


@pytest.mark.parametrize("actions", [{"human_0": 4, "robot_0": 0}, {"human_0": 0}, {"human_0": -1, "robot_0": 0}])
def test_bad_actions_are_refused_and_change_nothing(actions):
    rooms = Rooms("freeing")
    rooms.reset(seed=0)
    before = rooms.get_state()
    with pytest.raises(SettingError, match="must be"):
        rooms.step(actions)
    assert rooms.get_state() == before


def test_there_is_nothing_before_the_first_reset():
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        Rooms().get_state()


def test_the_picture_shows_what_is_there():
    rooms = Rooms("freeing", render_mode="rgb_array")
    rooms.reset(seed=0)
    bare = rooms.render()
    assert bare.shape == (5 * 16, 7 * 16, 3)
    rooms.step({"human_0": RIGHT, "robot_0": DOWN})  # the robot takes the key
    changed = (rooms.render() != bare).any(axis=2).reshape(5, 16, 7, 16).any(axis=(1, 3))
    assert np.argwhere(changed).tolist() == [[1, 1], [1, 2], [1, 5], [2, 5]]
    assert Rooms().render() is None

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from motet.errors import NotReadyError, SettingError
from motet.worlds import Cleanup
from motet.worlds.cleanup import (
    AGENT,
    APPLE,
    CLEAN,
    CLEAN_BEAM,
    DOWN,
    LEFT,
    NOOP,
    RIGHT,
    SOIL,
    TURN_LEFT,
    TURN_RIGHT,
    UP,
    WALL,
    WASTE,
    WATER,
    ZAP,
    ZAP_BEAM,
)

NORTH, EAST, SOUTH, WEST = range(4)


def still_world(*spots, apples=(), waste=(), **settings):
    """A world in which nature does nothing, with agents on the given (row, column, facing)."""
    world = Cleanup(**{"agents": len(spots), "waste": 0.0, "growth": 0.0, **settings})
    world.reset(seed=0)
    world.arrange(spots, apples=apples, waste=waste)
    return world


def play(world, *actions):
    """One turn; the rewards in the order of the agents."""
    _, rewards, *_ = world.step(dict(zip(world.agents, actions, strict=True)))
    return list(rewards.values())


def trace(world, turns):
    """Everything PettingZoo shows while the turns are played; resets without a seed where an episode ends."""
    seen = []
    for actions in turns:
        if not world.agents:
            observations, infos = world.reset()
        else:
            observations, *rest, infos = world.step(dict(zip(world.agents, actions, strict=True)))
            seen.append(repr(rest))
        seen.append((repr(infos), [(name, what.tobytes()) for name, what in observations.items()]))
    return seen


# PettingZoo's own tests


def test_passes_the_api_test():
    parallel_api_test(Cleanup(turns=60), num_cycles=100)


def test_passes_the_seed_test():
    parallel_seed_test(Cleanup, num_cycles=20)


# The ground


def test_the_default_grid():
    world = Cleanup()
    observations, _ = world.reset(seed=0)
    planes = world.state()
    assert planes.shape == (8, 21, 31)
    assert {what.shape for what in observations.values()} == {(8, 11, 11)}
    assert {what.dtype for what in observations.values()} == {np.dtype(np.uint8)}
    assert planes[WATER, 1:20, 1:6].all()
    assert planes[WATER].sum() == 95
    assert planes[SOIL, 1:20, 20:30].all()
    assert planes[SOIL].sum() == 190
    assert planes[WALL].sum() == 2 * 21 + 2 * 29
    assert planes[AGENT].sum() == 10
    assert not (planes[AGENT] & (planes[WALL] | planes[WATER])).any()
    assert not planes[[WASTE, APPLE, CLEAN_BEAM, ZAP_BEAM]].any()
    assert world.pollution == 0.0


# Moving


@pytest.mark.parametrize("facing", range(4))
@pytest.mark.parametrize(("action", "quarter"), [(UP, 0), (RIGHT, 1), (DOWN, 2), (LEFT, 3)])
def test_moves_go_by_the_agent_s_own_view(facing, action, quarter):
    world = still_world((10, 12, facing))
    play(world, action)
    down, right = ((-1, 0), (0, 1), (1, 0), (0, -1))[(facing + quarter) % 4]
    assert world.positions() == ((10 + down, 12 + right),)


def test_turning_changes_what_is_ahead():
    world = still_world((10, 12, NORTH))
    play(world, TURN_RIGHT)
    play(world, UP)
    assert world.positions() == ((10, 13),)
    play(world, TURN_LEFT)
    play(world, TURN_LEFT)
    play(world, UP)
    assert world.positions() == ((10, 12),)


@pytest.mark.parametrize("waste", [(), [(10, 5)]])
def test_agents_cannot_walk_on_the_river(waste):
    world = still_world((10, 6, WEST), waste=waste)
    assert play(world, UP) == [0.0]
    assert world.positions() == ((10, 6),)


def test_agents_cannot_walk_into_walls_or_agents():
    world = still_world((1, 12, NORTH), (2, 12, NORTH))
    assert play(world, UP, UP) == [0.0, 0.0]
    assert world.positions() == ((1, 12), (2, 12))


def test_a_contested_tile_goes_to_one_of_them_and_to_each_now_and_then():
    world = still_world((10, 11, EAST), (10, 13, WEST))
    winners = set()
    for _ in range(40):
        world.arrange([(10, 11, EAST), (10, 13, WEST)])
        play(world, UP, UP)
        spots = world.positions()
        assert sum(spot == (10, 12) for spot in spots) == 1
        winners.add(spots.index((10, 12)))
    assert winners == {0, 1}


def test_an_apple_pays_one_and_is_gone():
    world = still_world((10, 20, EAST), apples=[(10, 21), (11, 21)])
    assert play(world, UP) == [1.0]
    planes = world.state()
    assert planes[APPLE].sum() == 1
    assert planes[SOIL, 10, 21] == 1
    assert play(world, NOOP) == [0.0]


# Seeing


@pytest.mark.parametrize("facing", range(4))
def test_the_view_is_turned_so_that_ahead_is_up(facing):
    """Against numpy's own rotation of the padded world."""
    world = Cleanup(agents=6, radius=3)
    world.reset(seed=2)
    for actions in np.random.default_rng(0).integers(0, 8, (30, 6)).tolist():
        play(world, *actions)
    spots = [(row, column, facing) for row, column in world.positions()]
    grown = [tuple(spot) for spot in np.argwhere(world.state()[APPLE]).tolist() if (*spot, facing) not in spots]
    world.arrange(spots, grown, [(3, 2), (9, 5), (10, 5)])
    observations, *_ = world.step(dict.fromkeys(world.agents, CLEAN))
    padded = np.pad(world.state(), ((0, 0), (3, 3), (3, 3)))
    outside = np.pad(np.zeros((21, 31), np.uint8), 3, constant_values=1)
    padded[WALL] |= outside
    assert len(observations) == 6
    for (row, column), seen in zip(world.positions(), observations.values(), strict=True):
        window = padded[:, row : row + 7, column : column + 7]
        np.testing.assert_array_equal(seen, np.rot90(window, facing, axes=(1, 2)))
        assert seen[AGENT, 3, 3] == 1
        assert seen.flags.c_contiguous


# Beams


def test_clean_takes_the_nearest_waste_off_each_of_three_rays():
    waste = [(9, 4), (9, 3), (10, 5), (11, 1), (12, 5), (8, 5)]
    world = still_world((10, 6, WEST), waste=waste)
    assert play(world, CLEAN) == [0.0]
    planes = world.state()
    assert sorted(map(tuple, np.argwhere(planes[WASTE]).tolist())) == [(8, 5), (9, 3), (12, 5)]
    assert planes[WATER].sum() == 95 - 3
    lit = np.zeros((21, 31), np.uint8)
    lit[9, 4:6] = lit[10, 5] = lit[11, 1:6] = 1
    np.testing.assert_array_equal(planes[CLEAN_BEAM], lit)
    assert not planes[ZAP_BEAM].any()
    play(world, NOOP)
    assert not world.state()[CLEAN_BEAM].any()


def test_clean_reaches_as_far_as_said_and_no_farther():
    world = still_world((10, 7, WEST), waste=[(10, 2), (10, 1)], reach=5)
    play(world, CLEAN)
    assert np.argwhere(world.state()[WASTE]).tolist() == [[10, 1]]
    play(world, CLEAN)
    assert np.argwhere(world.state()[WASTE]).tolist() == [[10, 1]]


def test_two_cleaners_in_line_take_two():
    world = still_world((10, 6, WEST), (10, 7, WEST), waste=[(10, 5), (10, 4)])
    play(world, CLEAN, CLEAN)
    assert world.pollution == 0.0


def test_a_beam_ends_at_the_wall():
    world = still_world((1, 12, NORTH))
    play(world, CLEAN)
    assert not world.state()[CLEAN_BEAM].any()


def test_zap_hits_the_nearest_on_each_ray_and_costs_both():
    world = still_world((10, 10, EAST), (10, 12, NORTH), (10, 13, NORTH), (9, 15, NORTH), (11, 16, NORTH))
    assert play(world, ZAP, NOOP, NOOP, NOOP, NOOP) == [-1.0, -50.0, 0.0, -50.0, 0.0]
    spots = world.positions()
    assert spots == ((10, 10), None, (10, 13), None, (11, 16))
    planes = world.state()
    assert planes[AGENT].sum() == 3
    lit = np.zeros((21, 31), np.uint8)
    lit[10, 11:13] = lit[9, 11:16] = lit[11, 11:16] = 1
    np.testing.assert_array_equal(planes[ZAP_BEAM], lit)


def test_costs_are_settings_and_two_hits_cost_once():
    world = still_world((10, 10, EAST), (10, 14, WEST), (10, 12, NORTH), zap_cost=0.5, zapped_cost=3.0)
    assert play(world, ZAP, ZAP, NOOP) == [-0.5, -0.5, -3.0]


def test_two_can_put_each_other_out():
    world = still_world((10, 10, EAST), (10, 12, WEST))
    assert play(world, ZAP, ZAP) == [-51.0, -51.0]
    assert world.positions() == (None, None)


def test_a_zapped_agent_has_still_cleaned():
    world = still_world((10, 6, WEST), (10, 9, WEST), waste=[(10, 4)])
    assert play(world, CLEAN, ZAP) == [-50.0, -1.0]
    assert world.pollution == 0.0


@pytest.mark.parametrize("away", [1, 2, 7])
def test_a_zapped_agent_is_out_for_the_given_number_of_turns(away):
    world = still_world((10, 10, EAST), (10, 12, NORTH), out_turns=away)
    play(world, ZAP, NOOP)
    for _ in range(away):
        assert world.positions()[1] is None
        observations, rewards, *_ = world.step({"agent_0": NOOP, "agent_1": ZAP})
        assert rewards == {"agent_0": 0.0, "agent_1": 0.0}
    assert world.positions()[1] is not None
    assert observations["agent_1"][AGENT, 5, 5] == 1
    assert world.state()[AGENT].sum() == 2


def test_an_agent_in_time_out_sees_nothing_and_blocks_no_tile():
    world = still_world((10, 10, EAST), (10, 11, NORTH))
    play(world, ZAP, NOOP)
    observations, *_ = world.step({"agent_0": UP, "agent_1": UP})
    assert not observations["agent_1"].any()
    assert world.positions() == ((10, 11), None)


def test_with_no_time_out_being_hit_only_costs():
    world = still_world((10, 10, EAST), (10, 12, NORTH), out_turns=0)
    assert play(world, ZAP, NOOP) == [-1.0, -50.0]
    assert world.positions() == ((10, 10), (10, 12))


# Nature


def test_waste_comes_as_often_as_said():
    world = still_world((10, 10, EAST), waste=[], turns=10**6)
    world.waste, hits = 0.3, 0
    for _ in range(2000):
        world.arrange([(10, 10, EAST)])
        play(world, NOOP)
        hits += round(world.pollution * 95)
    assert abs(hits - 600) < 4 * (2000 * 0.3 * 0.7) ** 0.5


def test_waste_fills_the_river_and_stops():
    world = Cleanup(agents=1, waste=1.0, growth=0.0)
    world.reset(seed=0)
    for turn in range(1, 100):
        play(world, NOOP)
        assert round(world.pollution * 95) == min(turn, 95)


@pytest.mark.parametrize("dirty", [0, 19, 30, 38, 60])
def test_growth_falls_in_a_line_with_pollution_and_is_zero_from_the_threshold_on(dirty):
    world = still_world((10, 10, EAST), turns=10**6, growth=0.05, threshold=0.4)
    waste = [(1 + number % 19, 1 + number // 19) for number in range(dirty)]
    grown = trials = 0
    for _ in range(300):
        world.arrange([(10, 10, EAST)], waste=waste)
        play(world, NOOP)
        grown += int(world.state()[APPLE].sum())
        trials += 190
    chance = 0.05 * max(0.0, 1 - (dirty / 95) / 0.4)
    assert abs(grown - trials * chance) <= 4 * (trials * chance * (1 - chance)) ** 0.5


def test_an_apple_never_grows_under_an_agent_or_twice():
    world = still_world((10, 25, EAST), growth=1.0)
    play(world, NOOP)
    planes = world.state()
    assert planes[APPLE].sum() == 189
    assert planes[APPLE, 10, 25] == 0
    play(world, NOOP)
    assert world.state()[APPLE].sum() == 189


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 8),
    turns=st.lists(st.lists(st.integers(0, 8), min_size=8, max_size=8), max_size=40),
)
def test_the_ground_stays_consistent_after_any_actions(seed, agents, turns):
    # Beams are free here, so that a reward is an apple and nothing else.
    world = Cleanup(agents=agents, height=7, width=14, radius=2, growth=0.3, zap_cost=0, zapped_cost=0, out_turns=3)
    world.reset(seed=seed)
    ground = world.state()
    for actions in turns:
        before = world.state()
        rewards = play(world, *actions[:agents])
        planes = world.state()
        np.testing.assert_array_equal(planes[WALL], ground[WALL])
        np.testing.assert_array_equal(planes[WATER] + planes[WASTE], ground[WATER])
        np.testing.assert_array_equal(planes[SOIL] + planes[APPLE], ground[SOIL])
        spots = [spot for spot in world.positions() if spot is not None]
        assert sorted(spots) == [tuple(spot) for spot in np.argwhere(planes[AGENT]).tolist()]
        assert len(set(spots)) == len(spots)
        assert not (planes[AGENT] & (planes[WALL] | planes[WATER] | planes[WASTE] | planes[APPLE])).any()
        assert set(rewards) <= {0.0, 1.0}
        assert np.count_nonzero(before[APPLE] & ~planes[APPLE]) <= sum(rewards)
        assert np.count_nonzero(planes[WASTE]) <= np.count_nonzero(before[WASTE]) + 1


# Determinism and snapshots


def test_the_same_seed_gives_the_same_episodes():
    turns = np.random.default_rng(0).integers(0, 9, (80, 10)).tolist()
    traces = []
    for seed in (3, 3, 4):
        world = Cleanup(turns=30)
        world.reset(seed=seed)
        traces.append(trace(world, turns))
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 50))
def test_a_restored_world_continues_bit_for_bit(seed, cut):
    make = {"agents": 6, "turns": 20, "out_turns": 4, "height": 9, "width": 18}
    turns = np.random.default_rng(seed).integers(0, 9, (80, 6)).tolist()
    world = Cleanup(**make)
    world.reset(seed=seed)
    trace(world, turns[:cut])
    snapshot = world.get_state()
    went_on = trace(world, turns[cut:])

    other = Cleanup(**make)
    other.set_state(snapshot)
    assert other.get_state() == snapshot
    assert trace(other, turns[cut:]) == went_on
    assert other.get_state() == world.get_state()


def test_a_snapshot_is_plain(is_plain):
    world = Cleanup()
    world.reset(seed=0)
    play(world, *[ZAP] * 10)
    assert is_plain(world.get_state())
    with pytest.raises(SettingError, match="make a world with the settings of the state"):
        Cleanup(zap_cost=2.0).set_state(world.get_state())


# Refusals


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"agents": 0}, "agents must be an int from 1 to 255, got 0"),
        (
            {"agents": 21, "height": 6, "width": 8},
            "agents must be at most 20, the walkable tiles of a grid of 6 x 8, got 21",
        ),
        ({"height": 2}, "height must be an int >= 3, got 2"),
        ({"width": 5}, "width must be an int >= 6, got 5"),
        ({"radius": 0}, "radius must be an int >= 1, got 0"),
        ({"turns": 0}, "turns must be an int >= 1, got 0"),
        ({"waste": -0.1}, r"waste must be a number from 0 to 1, got -0\.1"),
        ({"growth": 2}, "growth must be a number from 0 to 1, got 2"),
        (
            {"threshold": 0.0},
            r"threshold must be a number > 0, got 0\.0; for a world without apples, use growth=0",
        ),
        ({"reach": 0}, "reach must be an int >= 1, got 0"),
        ({"zap_cost": -1}, "zap_cost must be a finite number >= 0, got -1"),
        ({"zapped_cost": None}, "zapped_cost must be a finite number >= 0, got None"),
        ({"out_turns": -1}, "out_turns must be an int >= 0, got -1"),
        ({"render_mode": "ansi"}, "render_mode must be None or 'rgb_array', got 'ansi'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        Cleanup(**bad)


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ({"agent_0": NOOP}, r"actions must be given for each of \['agent_0', 'agent_1'\], got \['agent_0'\]"),
        ({"agent_0": NOOP, "agent_7": NOOP}, "actions must be given for each agent, got none for agent_1"),
        ({"agent_0": NOOP, "agent_1": 9}, "the action of agent_1 must be an int from 0 to 8, got 9"),
        ({"agent_0": NOOP, "agent_1": -1}, "the action of agent_1 must be an int from 0 to 8, got -1"),
        ({"agent_0": NOOP, "agent_1": None}, "the actions must be ints from 0 to 8, got"),
        ({"agent_0": NOOP, "agent_1": 1.5}, "the actions must be ints from 0 to 8, got"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(actions, says):
    world = Cleanup(agents=2)
    world.reset(seed=0)
    before = world.get_state()
    with pytest.raises(SettingError, match=says):
        world.step(actions)
    assert world.get_state() == before


def test_there_is_nothing_before_the_first_reset_and_after_the_end():
    world = Cleanup(agents=1, turns=1)
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        world.get_state()
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        world.arrange([(10, 10, NORTH)])
    world.reset(seed=0)
    *_, terminations, truncations, _ = world.step({"agent_0": NOOP})
    assert (terminations, truncations) == ({"agent_0": False}, {"agent_0": True})
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        world.step({"agent_0": NOOP})


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"agents": [(10, 3, 0)]}, r"position must be a tile of the land in the 21 x 31 grid, got \(10, 3\)"),
        ({"agents": [(10, 10, 4)]}, "facing must be an int from 0 to 3, got 4"),
        ({"agents": [(10, 10, 0)], "apples": [(10, 10)]}, "must be a tile of the orchard"),
        ({"agents": [(10, 10, 0)], "waste": [(10, 10)]}, "must be a tile of the river"),
        (
            {"agents": [(10, 25, 0)], "apples": [(10, 25)]},
            "agents and apples must be on different tiles, got one tile twice",
        ),
        ({"agents": []}, "agents must have 1 positions, one for each agent, got 0"),
    ],
)
def test_impossible_layouts_are_refused(layout, says):
    world = still_world((10, 12, NORTH))
    before = world.get_state()
    with pytest.raises(SettingError, match=says):
        world.arrange(**layout)
    assert world.get_state() == before


def test_the_picture_shows_what_is_there():
    world = still_world((10, 12, NORTH), render_mode="rgb_array")
    bare = world.render()
    assert bare.shape == (336, 496, 3)
    assert bare.dtype == np.uint8
    world.arrange([(10, 12, EAST)], apples=[(4, 25)], waste=[(3, 3)])
    changed = (world.render() != bare).any(axis=2).reshape(21, 16, 31, 16).any(axis=(1, 3))
    assert np.argwhere(changed).tolist() == [[3, 3], [4, 25], [10, 12]]
    assert Cleanup().render() is None

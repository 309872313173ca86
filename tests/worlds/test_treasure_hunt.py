import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, seed_test

from motet.errors import MotetError, NotReadyError, SettingError
from motet.worlds import TreasureHunt
from motet.worlds.treasure_hunt import AGENT, BONE, EMPTY, FOOD, GEM, WALL

UP, DOWN, LEFT, RIGHT = range(4)
STEPS = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}


def still_world(**settings):
    """A world in which nothing appears by itself, ready to be arranged."""
    world = TreasureHunt(**{"spawn": 0.0, **settings})
    world.reset(seed=0)
    return world


def one_hot(tiles):
    return np.stack([tiles == kind for kind in (WALL, AGENT, GEM, FOOD, BONE)]).astype(np.uint8)


def trace(world, actions):
    """Everything PettingZoo shows while the actions are played; resets without a seed where an episode ends."""
    seen = []
    for action in actions:
        if not world.agents:
            world.reset()
        observation, *rest = world.last()
        over = rest[2]
        seen.append((world.agent_selection, observation.tobytes(), *map(repr, rest), dict(world.rewards)))
        world.step(None if over else action)
    return seen


# PettingZoo's own tests


@pytest.mark.parametrize("agents", [1, 2, 4])
def test_passes_the_api_test(agents):
    api_test(TreasureHunt(agents=agents, turns=30), num_cycles=100)


def test_passes_the_seed_test():
    seed_test(lambda: TreasureHunt(agents=3, spawn=0.05), num_cycles=100)


# Rules


@pytest.mark.parametrize(("kind", "reward"), [("gems", 10.0), ("food", 5.0), ("bones", -10.0)])
@pytest.mark.parametrize("action", STEPS)
def test_walking_onto_a_thing_collects_it(kind, reward, action):
    world = still_world(agents=1)
    down, right = STEPS[action]
    world.arrange([(5, 5)], **{kind: [(5 + down, 5 + right)]})
    world.step(action)
    assert world.rewards["agent_0"] == reward
    assert world.last()[1] == reward
    assert world.positions() == ((5 + down, 5 + right),)
    tiles = world.tiles()
    assert tiles[5 + down, 5 + right] == AGENT
    assert np.isin(tiles, (EMPTY, WALL, AGENT)).all()


@pytest.mark.parametrize(("spot", "action"), [((1, 9), UP), ((19, 9), DOWN), ((9, 1), LEFT), ((9, 19), RIGHT)])
def test_walking_into_a_wall_costs_one_and_goes_nowhere(spot, action):
    world = still_world(agents=1)
    world.arrange([spot])
    world.step(action)
    assert world.rewards["agent_0"] == -1.0
    assert world.positions() == (spot,)


def test_walking_into_an_agent_goes_nowhere_and_costs_nothing():
    world = still_world(agents=2)
    world.arrange([(5, 5), (5, 6)])
    world.step(RIGHT)
    assert world.rewards == {"agent_0": 0.0, "agent_1": 0.0}
    assert world.positions() == ((5, 5), (5, 6))


def test_an_empty_tile_pays_nothing():
    world = still_world(agents=1)
    world.arrange([(5, 5)], gems=[(9, 9)])
    world.step(UP)
    assert world.rewards["agent_0"] == 0.0
    assert world.tiles()[5, 5] == EMPTY


def test_the_world_starts_empty_with_agents_apart():
    world = still_world(agents=4)
    tiles = world.tiles()
    assert tiles.shape == (21, 21)
    assert (tiles == AGENT).sum() == 4
    assert (tiles == EMPTY).sum() == 19 * 19 - 4
    assert len(set(world.positions())) == 4


def test_agents_start_anywhere():
    world = TreasureHunt(agents=1, size=5)
    world.reset(seed=0)
    starts = set()
    for _ in range(200):
        world.reset()
        starts.update(world.positions())
    assert starts == {(row, column) for row in range(1, 4) for column in range(1, 4)}


def test_things_appear_before_the_first_agent_looks():
    world = TreasureHunt(agents=2, spawn=1.0)
    world.reset(seed=0)
    assert not (world.tiles() == EMPTY).any()
    assert world.observe("agent_0").sum() == 25


def test_things_appear_once_a_turn_before_the_agents_move():
    world = TreasureHunt(agents=2, spawn=1.0)
    world.reset(seed=0)
    world.arrange([(5, 5), (9, 9)])
    world.step(RIGHT)
    assert (world.tiles() == EMPTY).sum() == 19 * 19 - 2
    world.step(RIGHT)
    assert not (world.tiles() == EMPTY).any()


def test_the_second_agent_sees_where_the_first_has_just_moved():
    world = still_world(agents=2)
    world.arrange([(5, 5), (5, 8)])
    assert world.observe("agent_1")[AGENT - 1].sum() == 1
    world.step(RIGHT)
    assert world.agent_selection == "agent_1"
    expected = np.zeros((5, 5), np.uint8)
    expected[2, 2] = expected[2, 0] = 1
    np.testing.assert_array_equal(world.last()[0][AGENT - 1], expected)


def test_a_treasure_taken_by_the_first_is_gone_for_the_second():
    world = still_world(agents=2)
    world.arrange([(5, 5), (5, 7)], gems=[(5, 6)])
    world.step(RIGHT)
    world.step(LEFT)
    assert world.last()[1] == 10.0
    assert world.rewards == {"agent_0": 0.0, "agent_1": 0.0}
    assert world.positions() == ((5, 6), (5, 7))


def test_a_reward_belongs_to_the_move_that_earned_it():
    world = still_world(agents=2)
    world.arrange([(5, 5), (9, 9)], gems=[(5, 6)])
    world.step(RIGHT)
    assert world.rewards == {"agent_0": 10.0, "agent_1": 0.0}
    assert world.last()[1] == 0.0
    world.step(UP)
    assert world.agent_selection == "agent_0"
    assert world.last()[1] == 10.0
    world.step(UP)
    world.step(UP)
    assert world.last()[1] == 0.0


def test_an_observation_at_the_border_shows_wall_all_the_way_out():
    world = still_world(agents=1)
    world.arrange([(1, 1)], food=[(2, 3)])
    seen = world.observe("agent_0")
    wall = np.ones((5, 5), np.uint8)
    wall[2:, 2:] = 0
    np.testing.assert_array_equal(seen[WALL - 1], wall)
    assert seen[FOOD - 1, 3, 4] == 1
    assert seen[FOOD - 1].sum() == 1
    assert seen[AGENT - 1, 2, 2] == 1
    world.arrange([(19, 19)])
    np.testing.assert_array_equal(world.observe("agent_0")[WALL - 1], wall[::-1, ::-1])


def test_an_episode_is_truncated_after_its_turns():
    world = TreasureHunt(agents=2, turns=3)
    world.reset(seed=0)
    for _ in range(6):
        assert not any(world.truncations.values())
        world.step(UP)
    assert world.truncations == {"agent_0": True, "agent_1": True}
    assert world.terminations == {"agent_0": False, "agent_1": False}
    assert world.over
    for name in ("agent_0", "agent_1"):
        assert world.agent_selection == name
        world.step(None)
    assert world.agents == []


def test_the_last_move_s_reward_is_still_there_at_the_end():
    world = still_world(agents=2, turns=1)
    world.arrange([(5, 5), (9, 9)], gems=[(5, 6)], bones=[(9, 10)])
    world.step(RIGHT)
    world.step(RIGHT)
    assert world.last()[1:4] == (10.0, False, True)
    world.step(None)
    assert world.last()[1:4] == (-10.0, False, True)


# Properties


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    agents=st.integers(1, 5),
    size=st.integers(5, 9),
    radius=st.integers(1, 4),
    spawn=st.sampled_from([0.0, 0.02, 0.3]),
    actions=st.lists(st.integers(0, 3), max_size=60),
)
def test_every_move_follows_the_rules(seed, agents, size, radius, spawn, actions):
    """Against a model on a plain grid: nothing overlaps, nothing vanishes but what was collected."""
    world = TreasureHunt(agents=agents, size=size, radius=radius, spawn=spawn, turns=100)
    world.reset(seed=seed)
    pays = {EMPTY: 0.0, WALL: -1.0, AGENT: 0.0, GEM: 10.0, FOOD: 5.0, BONE: -10.0}
    for action in actions:
        grid, mover = world.tiles(), world.mover
        row, column = world.positions()[mover]
        target = row + STEPS[action][0], column + STEPS[action][1]
        kind = int(grid[target])
        assert world.play(action) == pays[kind]
        if kind not in (WALL, AGENT):
            grid[row, column], grid[target] = EMPTY, AGENT

        after = world.tiles()
        changed = after != grid
        if world.mover != 0:
            assert not changed.any()
        assert (grid[changed] == EMPTY).all()
        assert np.isin(after[changed], (GEM, FOOD, BONE)).all()
        spots = world.positions()
        assert sorted(spots) == [tuple(spot) for spot in np.argwhere(after == AGENT).tolist()]
        padded = one_hot(np.pad(after, radius, constant_values=WALL))
        np.testing.assert_array_equal(world.state(), one_hot(after))
        for index, (down, right) in enumerate(spots):
            window = padded[:, down : down + 2 * radius + 1, right : right + 2 * radius + 1]
            np.testing.assert_array_equal(world.look(index), window)


def test_spawns_are_independent_trials_of_every_empty_tile():
    """One agent in a corner, the rest emptied before every turn: 360 trials a turn, compared with the binomial."""
    turns, chance = 6000, 0.005
    world = TreasureHunt(agents=1, turns=turns + 1)
    world.reset(seed=7)
    spawned = np.zeros((21, 21))
    kinds = np.zeros(6)
    counts = np.zeros(turns, int)
    for turn in range(turns):
        world.arrange([(1, 1)])
        world.play(UP)
        tiles = world.tiles()
        new = tiles >= GEM
        spawned += new
        counts[turn] = new.sum()
        kinds += np.bincount(tiles[new], minlength=6)

    total, trials = counts.sum(), 360 * turns
    assert abs(total - trials * chance) < 4 * (trials * chance * (1 - chance)) ** 0.5
    # By kind: chi-square with 2 degrees of freedom, 18.4 is passed once in ten thousand.
    assert ((kinds[GEM:] - total / 3) ** 2 / (total / 3)).sum() < 18.4
    # By tile: chi-square with 359 degrees of freedom has mean 359 and deviation 26.8.
    each = turns * chance
    tiles_chi = ((spawned[1:20, 1:20].ravel()[1:] - each) ** 2 / each).sum()
    assert abs(tiles_chi - 359) < 4 * 26.8
    # By turn: how often 0, 1, ..., 5, or more appear together; 6 degrees of freedom, 27.9 once in ten thousand.
    density = [(1 - chance) ** 360]
    for number in range(5):
        density.append(density[-1] * (360 - number) / (number + 1) * chance / (1 - chance))
    expected = turns * np.array([*density, 1 - sum(density)])
    observed = np.bincount(np.minimum(counts, 6), minlength=7)
    assert ((observed - expected) ** 2 / expected).sum() < 27.9
    # From turn to turn: no correlation.
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4 / turns**0.5


def test_occupied_tiles_keep_what_they_hold():
    world = TreasureHunt(agents=1, spawn=1.0, size=5)
    world.reset(seed=0)
    world.arrange([(2, 2)], gems=[(1, 1)], food=[(1, 2)], bones=[(3, 3)])
    world.step(LEFT)
    tiles = world.tiles()
    assert (tiles[1, 1], tiles[1, 2], tiles[3, 3], tiles[2, 1]) == (GEM, FOOD, BONE, AGENT)


# Determinism and snapshots


def test_the_same_seed_gives_the_same_episodes():
    actions = np.random.default_rng(0).integers(0, 4, 500).tolist()
    traces = []
    for seed in (3, 3, 4):
        world = TreasureHunt(agents=3, turns=20, spawn=0.02)
        world.reset(seed=seed)
        traces.append(trace(world, actions))
    assert traces[0] == traces[1]
    assert traces[0] != traces[2]


def test_reset_without_a_seed_continues_the_stream():
    world = TreasureHunt()
    world.reset(seed=1)
    first = world.get_state()
    world.reset()
    second = world.get_state()
    assert first != second
    world.reset(seed=1)
    world.reset()
    assert world.get_state() == second


def test_play_and_step_are_the_same_world():
    by_step, by_play = TreasureHunt(agents=3, spawn=0.05), TreasureHunt(agents=3, spawn=0.05)
    by_step.reset(seed=5)
    by_play.reset(seed=5)
    out = np.zeros((5, 5, 5), np.uint8)
    for action in np.random.default_rng(1).integers(0, 4, 300).tolist():
        name, mover = by_step.agent_selection, by_play.mover
        assert name == f"agent_{mover}"
        assert by_play.look(mover, out) is out
        np.testing.assert_array_equal(by_step.observe(name), out)
        by_step.step(action)
        assert by_step.rewards[name] == by_play.play(action)
    assert by_play.over
    assert all(by_step.truncations.values())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 90), spawn=st.sampled_from([0.0, 0.005, 0.5]))
def test_a_restored_world_continues_bit_for_bit(seed, cut, spawn):
    """Also when cut between the agents of a turn, among the dead steps (61 to 63) and after the end."""
    make = {"agents": 3, "turns": 20, "spawn": spawn}
    actions = np.random.default_rng(seed).integers(0, 4, 300).tolist()
    world = TreasureHunt(**make)
    world.reset(seed=seed)
    trace(world, actions[:cut])
    snapshot = world.get_state()
    went_on = trace(world, actions[cut:])

    other = TreasureHunt(**make)
    other.set_state(snapshot)
    assert other.get_state() == snapshot
    assert trace(other, actions[cut:]) == went_on
    assert other.get_state() == world.get_state()


def test_a_snapshot_is_plain_and_stays_as_it_was(is_plain):
    world = TreasureHunt()
    world.reset(seed=0)
    world.step(UP)
    snapshot = world.get_state()
    kept = repr(snapshot)
    assert is_plain(snapshot)
    assert hash(snapshot) == hash(world.get_state())
    trace(world, [DOWN] * 50)
    assert repr(snapshot) == kept


def test_observations_are_copies():
    world = still_world(agents=1)
    world.arrange([(5, 5)])
    seen = world.observe("agent_0")
    before = seen.copy()
    seen_again = world.look(0)
    world.step(RIGHT)
    np.testing.assert_array_equal(seen, before)
    np.testing.assert_array_equal(seen_again, before)
    assert seen.dtype == np.uint8
    assert seen.flags.c_contiguous


# Refusals


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"agents": 0}, "agents must be an int >= 1, got 0"),
        ({"agents": 2.5}, r"agents must be an int >= 1, got 2\.5"),
        ({"agents": True}, "agents must be an int >= 1, got True"),
        ({"agents": 10, "size": 5}, "agents must be at most 9, the walkable tiles of a grid of size 5, got 10"),
        ({"size": 2}, "size must be an int >= 3, got 2"),
        ({"radius": 0}, "radius must be an int >= 1, got 0"),
        ({"turns": 0}, "turns must be an int >= 1, got 0"),
        ({"spawn": 1.5}, r"spawn must be a number from 0 to 1, got 1\.5"),
        ({"spawn": float("nan")}, "spawn must be a number from 0 to 1, got nan"),
        ({"spawn": "often"}, "spawn must be a number from 0 to 1, got 'often'"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        TreasureHunt(**bad)


@pytest.mark.parametrize("action", [-1, 4, 1.5, None, "up"])
def test_bad_actions_are_refused_and_change_nothing(action):
    world = TreasureHunt()
    world.reset(seed=0)
    before = world.get_state()
    with pytest.raises(SettingError, match=r"action must be 0 \(up\), .*, got"):
        world.step(action)
    assert world.get_state() == before


def test_numpy_actions_are_actions():
    world = still_world(agents=1)
    world.arrange([(5, 5)])
    world.step(np.int64(RIGHT))
    world.step(np.array(DOWN))
    assert world.positions() == ((6, 6),)


def test_there_is_nothing_before_the_first_reset_and_after_the_end():
    world = TreasureHunt(agents=1, turns=1)
    for ask in (lambda: world.play(UP), lambda: world.step(UP), world.get_state, lambda: world.arrange([(1, 1)])):
        with pytest.raises(NotReadyError, match=r"reset\(\)"):
            ask()
    world.reset(seed=0)
    world.play(UP)
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        world.play(UP)


def test_an_episode_is_not_played_both_ways():
    world = TreasureHunt(agents=2)
    world.reset(seed=0)
    world.play(UP)
    with pytest.raises(MotetError, match="not both"):
        world.step(UP)


def test_a_snapshot_of_other_settings_is_refused():
    world = TreasureHunt(agents=3)
    world.reset(seed=0)
    with pytest.raises(SettingError, match="make a world with the settings of the state"):
        TreasureHunt(agents=2).set_state(world.get_state())
    with pytest.raises(SettingError, match=r"state must be a tuple that get_state\(\) returned, got a list"):
        world.set_state([])


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"agents": [(0, 5), (1, 1)]}, r"position must have row and column from 1 to 19, got \(0, 5\)"),
        ({"agents": [(1, 1), (1, 1)]}, "positions must be different tiles, got .* twice"),
        ({"agents": [(1, 1), (1, 2)], "gems": [(1, 2)]}, "positions must be different tiles, got .* twice"),
        ({"agents": [(1, 1)]}, "agents must have 2 positions, one for each agent, got 1"),
    ],
)
def test_impossible_layouts_are_refused(layout, says):
    world = still_world(agents=2)
    before = world.get_state()
    with pytest.raises(SettingError, match=says):
        world.arrange(**layout)
    assert world.get_state() == before


def test_the_picture_shows_what_is_there():
    world = still_world(agents=2, render_mode="rgb_array")
    world.arrange([(5, 5), (7, 7)])
    bare = world.render()
    assert bare.shape == (336, 336, 3)
    assert bare.dtype == np.uint8
    tiles = [bare[row * 16 : row * 16 + 16, row * 16 : row * 16 + 16] for row in (0, 3, 5, 7)]
    assert len({tile.tobytes() for tile in tiles}) == 4
    world.arrange([(5, 5), (7, 7)], gems=[(2, 2)], food=[(3, 3)], bones=[(4, 4)])
    picture = world.render()
    changed = (picture != bare).any(axis=2).reshape(21, 16, 21, 16).any(axis=(1, 3))
    assert np.argwhere(changed).tolist() == [[2, 2], [3, 3], [4, 4]]
    assert TreasureHunt().render() is None


# Many worlds at once


def alone(settings, seeds, actions):
    """What one world shows to each mover, pays it and says of its end, over an episode for each seed."""
    world = TreasureHunt(**settings)
    for seed in seeds:
        world.reset(seed=seed)
        while not world.over:
            mover, seen = world.mover, world.look(world.mover)
            reward = world.play(int(next(actions)))
            yield mover, seen, reward, world.over, [world.look(agent) for agent in range(len(world.agents))]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_of_many_worlds_is_the_world_alone(data):
    worlds = data.draw(st.sampled_from([1, 2, 3, 8]))
    make = {
        "agents": data.draw(st.integers(1, 5)),
        "size": data.draw(st.integers(5, 9)),
        "radius": data.draw(st.integers(1, 4)),
        "turns": data.draw(st.integers(1, 12)),
        "spawn": data.draw(st.sampled_from([0.0, 1e-18, 0.02, 0.3, 1.0])),
    }
    seeds = np.random.default_rng(data.draw(st.integers(0, 1000))).integers(0, 2**32, (worlds, 3)).tolist()
    actions = np.random.default_rng(0).integers(0, 4, (worlds, 3 * make["turns"] * make["agents"]))
    singles = [alone(make, seeds[w], iter(actions[w])) for w in range(worlds)]
    hunts = TreasureHunt(**make).vector(worlds)
    step = 0
    for episode in range(3):
        hunts.reset(np.arange(worlds), [mine[episode] for mine in seeds])
        while True:
            (mover,) = hunts.group()
            seen = hunts.observe(mover)
            assert seen.flags.c_contiguous
            hunts.act([actions[:, step]])
            step += 1
            terminated, truncated = hunts.ended()
            after = [hunts.observe(agent) for agent in range(make["agents"])]
            for w, single in enumerate(singles):
                expected = next(single)
                assert (mover, hunts.reward(mover)[w], truncated[w]) == (expected[0], expected[2], expected[3])
                np.testing.assert_array_equal(seen[w], expected[1])
                np.testing.assert_array_equal([mine[w] for mine in after], expected[4])
            assert not any(hunts.reward(agent).any() for agent in range(make["agents"]) if agent != mover)
            assert not terminated.any()
            if truncated.any():
                break
    assert step == actions.shape[1]


def test_worlds_may_be_at_different_turns():
    """Some are reset between two turns, the others go on; in the middle of a turn that cannot be."""
    hunts = TreasureHunt(agents=2, turns=6, spawn=0.1).vector(3)
    hunts.reset(range(3), [1, 2, 3])
    for _ in range(4):
        hunts.act([np.array([UP, DOWN, LEFT])])
    hunts.act([np.array([UP, DOWN, LEFT])])
    with pytest.raises(
        NotReadyError, match=r"cannot reset 1 of 3 worlds in the middle of a turn \(agent 1 is next to move\)"
    ):
        hunts.reset([1], [7])
    hunts.act([np.array([UP, DOWN, LEFT])])
    hunts.reset([1], [7])
    for _ in range(6):
        hunts.act([np.array([RIGHT] * 3)])
    assert hunts.ended()[1].tolist() == [True, False, True]
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        hunts.act([np.array([UP] * 3)])

    single = TreasureHunt(agents=2, turns=6, spawn=0.1)
    single.reset(seed=7)
    for _ in range(6):
        single.play(RIGHT)
    np.testing.assert_array_equal(hunts.tiles(1), single.tiles())


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 40), spawn=st.sampled_from([0.0, 0.005, 0.5]))
def test_restored_worlds_continue_bit_for_bit(cut, spawn):
    make = {"agents": 3, "turns": 9, "spawn": spawn}

    def play(hunts, actions):
        shown = []
        for row in actions:
            if hunts.ended()[1].any():
                hunts.reset(range(4))
            hunts.act([row])
            agents = range(3)
            shown.append([(hunts.observe(agent).tobytes(), hunts.reward(agent).tobytes()) for agent in agents])
        return shown

    actions = np.random.default_rng(cut).integers(0, 4, (70, 4))
    hunts = TreasureHunt(**make).vector(4)
    hunts.reset(range(4), range(4))
    play(hunts, actions[:cut])
    snapshot = hunts.get_state()
    other = TreasureHunt(**make).vector(4)
    other.set_state(snapshot)
    assert other.get_state() == snapshot
    assert play(other, actions[cut:]) == play(hunts, actions[cut:])
    assert other.get_state() == hunts.get_state()


def test_misuse_of_many_worlds_is_refused(is_plain):
    hunts = TreasureHunt().vector(2)
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        hunts.get_state()
    hunts.reset(range(2), [0, 1])
    assert is_plain(hunts.get_state())
    for bad in (-1, 4):
        with pytest.raises(SettingError, match=rf"action must be 0 \(up\), .*, got {bad}"):
            hunts.act([np.array([bad, UP])])
    with pytest.raises(SettingError, match=r"actions must have the shape \(2,\), one per world, got \(1,\)"):
        hunts.act([np.array([UP])])
    with pytest.raises(SettingError, match="make a world with the settings of the state"):
        TreasureHunt().vector(3).set_state(hunts.get_state())
    with pytest.raises(SettingError, match="worlds must be an int >= 1, got 0"):
        TreasureHunt().vector(0)


def test_gaps_of_any_length_come_after_the_episode_not_before_it():
    """With a tiny chance a gap can be as long as a number can be, and the sum of two no longer fits into one."""

    class Far:
        def choice(self, tiles, count, replace):
            return np.arange(count)

        def geometric(self, chance, count):
            return np.array([9] + [2**63 - 1] * (count - 1))

        def integers(self, low, high, count):
            return np.full(count, GEM)

    hunts = TreasureHunt(agents=1, size=5, turns=50, spawn=1e-18).vector(1)
    hunts._rngs[0] = Far()
    hunts.reset([0])
    for turn in range(50):
        assert (hunts.tiles(0) == GEM).sum() == 1, turn
        hunts.act([np.array([UP])])

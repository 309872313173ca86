from functools import partial

import gymnasium
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from motet.errors import NotReadyError, SettingError
from motet.policy import Policy
from motet.testing import check_policy, check_world
from motet.world import as_world
from motet.worlds import Hockey
from motet.worlds.hockey import Strong, Weak
from motet.worlds.hockey.rules import (
    HALF_LENGTH,
    HALF_WIDTH,
    HOLD,
    MODES,
    MOUTH,
    PLAYER,
    PUCK,
    REACH,
    SHOT,
    HockeyArrays,
    heading,
)

# Rows of HockeyArrays.values
X, Y, ANGLE, VX, VY, SPIN = range(6)
OTHER = 6
PX, PY, PVX, PVY = range(12, 16)
STILL = np.zeros((1, 4), np.float32)


def scene(**values):
    """One game with everything at rest, both players near their goals, but for the rows given."""
    games = HockeyArrays(1)
    games.reset([0], [0])
    games.values[:, 0] = 0
    games.values[[X, OTHER + X], 0] = -4.0
    for row, value in values.items():
        games.values[globals()[row], 0] = value
    return games


def play(games, turns, first=STILL, second=STILL):
    for _ in range(turns):
        games.act([first, second])


def random_actions(seed, turns, worlds):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (turns, 2, worlds, 4)).astype(np.float32)


# Contracts


@pytest.mark.parametrize("mode", MODES)
def test_passes_pettingzoo_s_tests(mode):
    parallel_api_test(Hockey(mode, turns=30), num_cycles=100)
    parallel_seed_test(lambda: Hockey(mode, turns=30), num_cycles=100)


@pytest.mark.parametrize("mode", MODES)
def test_is_a_world(mode):
    check_world(partial(Hockey, mode))


@pytest.mark.parametrize("player", [Weak, Strong])
def test_scripted_players_are_policies(player):
    assert isinstance(player(), Policy)
    spaces = Hockey().observation_spaces["player_0"], Hockey().action_spaces["player_0"]
    check_policy(lambda: player(), *spaces)


def test_the_world_names_its_scripted_players():
    assert {name: make().__class__ for name, make in Hockey.scripted.items()} == {"weak": Weak, "strong": Strong}


# A world takes no notice of the others


@pytest.mark.parametrize("mode", MODES)
def test_sixteen_worlds_are_sixteen_times_one(mode):
    """Bit for bit: values, what both see and earn, ends; with resets in between, by seed and without one."""
    together = HockeyArrays(16, mode, turns=90)
    alone = [HockeyArrays(1, mode, turns=90) for _ in range(16)]
    together.reset(range(16), range(100, 116))
    for seed, games in enumerate(alone, 100):
        games.reset([0], [seed])
    resets = 0
    for turn, actions in enumerate(random_actions(0, 400, 16)):
        together.act(actions)
        terminated, truncated = together.ended()
        for w, games in enumerate(alone):
            games.act(actions[:, w : w + 1])
            assert games.values.tobytes() == together.values[:, w].tobytes()
            assert [f.item() for f in games.ended()] == [terminated[w], truncated[w]]
            for agent in (0, 1):
                assert games.observe(agent).tobytes() == together.observe(agent)[w].tobytes()
                assert games.reward(agent).tobytes() == together.reward(agent)[w].tobytes()
                assert games.winners(agent)[0] == together.winners(agent)[w]
        over = np.flatnonzero(terminated | truncated)
        if turn % 3 == 0 and len(over):  # some stay over for a while
            seeds = None if turn % 2 else [turn * 16 + w for w in over.tolist()]
            together.reset(over, seeds)
            for i, w in enumerate(over.tolist()):
                alone[w].reset([0], None if seeds is None else [seeds[i]])
            resets += len(over)
    assert resets > 16


@pytest.mark.parametrize("player", [Weak, Strong])
def test_scripted_players_play_many_worlds_as_they_play_one(player):
    seen = np.random.default_rng(0).normal(0, 3, (64, 18)).astype(np.float32)
    seen[:, 16] = np.arange(64) % 3
    together = player().act_many(seen)
    assert together.shape == (64, 4)
    assert together.dtype == np.float32
    assert np.abs(together).max() <= 1
    for row, action in zip(seen, together, strict=True):
        assert player().act(row).tobytes() == action.tobytes()


def test_the_environment_is_one_world_of_the_arrays():
    env = Hockey("defence", turns=40)
    games = env.vector(3)
    assert (games.worlds, games.mode, games.turns) == (3, "defence", 40)
    seen, _ = env.reset(seed=7)
    games.reset(range(3), [1, 7, 2])
    actions = random_actions(1, 40, 3)
    for given in actions:
        assert seen["player_0"].tobytes() == games.observe(0)[1].tobytes()
        assert seen["player_1"].tobytes() == games.observe(1)[1].tobytes()
        if not env.agents:
            break
        seen, rewards, terminated, truncated, infos = env.step({f"player_{p}": given[p, 1] for p in (0, 1)})
        games.act(given)
        assert rewards == {f"player_{p}": games.reward(p)[1] for p in (0, 1)}
        assert (terminated["player_0"], truncated["player_1"]) == tuple(flags[1] for flags in games.ended())
        assert infos["player_1"]["winner"] == games.winners(1)[1]


def test_chance_comes_from_the_seed_alone():
    one, other = HockeyArrays(64), HockeyArrays(64)
    one.reset(range(64), range(64))
    other.reset(range(63, -1, -1), range(63, -1, -1))
    assert one.values.tobytes() == other.values.tobytes()
    pucks = one.values[[PX, PY]]
    assert len(np.unique(pucks, axis=1).T) == 64
    one.reset(range(64))
    assert not (one.values[[PX, PY]] == pucks).any()


def test_streams_are_even_and_unrelated():
    games = HockeyArrays(4096)
    games.reset(range(4096), range(4096))  # seeds that differ in their lowest bits only
    drawn = games._draw(np.arange(4096), 8)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.stack([np.histogram(row, 16, (0, 1))[0] for row in drawn])
    assert (((counts - 256) ** 2 / 256).sum(1) < 45).all()  # chi square, 15 degrees of freedom
    assert np.abs(np.corrcoef(drawn) - np.eye(8)).max() < 0.08


# Rules


def test_a_mirrored_game_is_the_same_game():
    """Change seats and turn the rink by half a turn: each player's game is what the other's was."""
    games, mirrored = HockeyArrays(32), HockeyArrays(32)
    for batch in (games, mirrored):
        batch.reset(range(32), range(32))
    mirrored.values[:12] = games.values[[*range(6, 12), *range(6)]]
    mirrored.values[12:16] = -games.values[12:16]
    for given in random_actions(2, 250, 32):
        games.act(given)
        mirrored.act(given[::-1])
        for agent in (0, 1):
            np.testing.assert_array_equal(games.observe(agent), mirrored.observe(1 - agent))
            np.testing.assert_array_equal(games.reward(agent), mirrored.reward(1 - agent))


def test_everything_stays_on_the_rink():
    games = HockeyArrays(256)
    games.reset(range(256), range(256))
    for given in np.sign(random_actions(3, 250, 256)):  # full force
        games.act(given)
        players = games.values[:12].reshape(2, 6, 256)
        assert (players[:, X] >= PLAYER - HALF_LENGTH).all()
        assert (players[:, X] <= -PLAYER).all()
        assert (np.abs(players[:, Y]) <= HALF_WIDTH - PLAYER).all()
        assert (np.abs(players[:, ANGLE]) <= np.float32(1.05)).all()
        assert np.isfinite(games.values).all()
        assert (np.abs(games.values[PX]) <= HALF_LENGTH + 1).all()
        assert (np.abs(games.values[PY]) <= HALF_WIDTH + 1).all()
        assert (np.abs(games.values[[PVX, PVY]]) < 40).all()
        assert not (games.values[16:] > 0).all(0).any()  # one holder at most


def test_force_moves_and_torque_turns():
    games = scene()
    play(games, 10, np.array([[1, -0.5, 1, 0]], np.float32))
    x, y, angle, vx, vy, spin = games.values[:6, 0]
    assert x > -4.0
    assert vx == pytest.approx(-2 * vy)
    assert x + 4.0 == pytest.approx(-2 * y)
    assert angle > 0
    assert spin > 0
    assert games.values[6:12, 0].tolist() == [-4.0, 0, 0, 0, 0, 0]


def test_the_heading_is_cosine_and_sine():
    angles = np.linspace(-1.05, 1.05, 101, dtype=np.float32)[None]
    np.testing.assert_allclose(heading(angles)[0], [np.cos(angles[0]), np.sin(angles[0])], atol=3e-7)


@pytest.mark.parametrize(("row", "speed", "place"), [("PVX", 10.0, "PX"), ("PVY", -10.0, "PY")])
def test_walls_give_the_puck_back(row, speed, place):
    games = scene(PX=0.0, PY=3.0 if row == "PVX" else 0.0, **{row: speed})
    limit = (HALF_LENGTH if row == "PVX" else HALF_WIDTH) - PUCK
    furthest = 0.0
    for _ in range(40):
        play(games, 1)
        furthest = max(furthest, abs(games.values[globals()[place], 0]))
    assert furthest == pytest.approx(limit)
    assert -0.95 < games.values[globals()[row], 0] / speed < -0.5


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(("y", "goal"), [(MOUTH - 0.01, True), (MOUTH + 0.01, False)])
def test_a_goal_is_between_the_posts(side, y, goal):
    games = scene(X=-4.0, Y=-3.0, PX=side * 3.0, PY=y, PVX=side * 15.0)
    games.values[OTHER + Y, 0] = 3.0
    for _ in range(10):
        if not games.ended()[0][0]:
            play(games, 1)
    assert games.winners(0)[0] == (side if goal else 0)
    assert games.winners(1)[0] == (-side if goal else 0)
    assert games.ended()[0][0] == goal
    if goal:
        assert games.reward(0)[0] == pytest.approx(10 * side, abs=0.5)
        assert games.reward(1)[0] == pytest.approx(-10 * side, abs=0.5)


def test_the_front_catches_holds_and_shoots():
    games = scene(X=-2.0, PX=0.5, PVX=-5.0)
    while not games.values[16, 0]:
        play(games, 1)
    assert games.values[16, 0] == HOLD
    play(games, 3)
    assert games.values[16, 0] == HOLD - 3
    assert games.values[PX, 0] == pytest.approx(games.values[X, 0] + REACH)
    assert games.observe(1)[0, 17] == HOLD - 3
    assert games.observe(1)[0, 16] == 0
    play(games, 1, np.array([[0, 0, 0, 1]], np.float32))
    assert games.values[16, 0] == 0
    assert games.values[PVX, 0] == pytest.approx(SHOT)


def test_a_player_that_holds_the_puck_too_long_shoots_automatically():
    games = scene(X=-2.0, ANGLE=0.5)
    games.values[16, 0] = HOLD
    play(games, HOLD - 1)
    assert games.values[16, 0] == 1
    play(games, 1)
    np.testing.assert_allclose(games.values[[PVX, PVY], 0], SHOT * np.array([np.cos(0.5), np.sin(0.5)]), rtol=1e-5)


def test_a_puck_between_both_is_caught_by_the_one_in_whose_half_it_is():
    games = scene(X=-0.7, VX=3.0, PX=-0.05)
    games.values[[OTHER + X, OTHER + VX], 0] = games.values[[X, VX], 0]
    play(games, 1)
    assert games.values[16:, 0].tolist() == [HOLD, 0]


def test_a_puck_bounces_off_the_side_of_a_player():
    games = scene(X=-2.0, Y=0.0, PX=-2.0, PY=1.5, PVY=-5.0)
    play(games, 20)
    assert games.values[16, 0] == 0
    assert games.values[PVY, 0] == pytest.approx(5.0 * 0.8 * 0.995**20, rel=0.02)
    away = games.values[[PX, PY], 0] - games.values[[X, Y], 0]
    assert np.sqrt((away**2).sum()) > REACH


def test_distance_costs_in_the_own_half_only():
    games = scene(X=-4.0, PX=-1.0)
    play(games, 1)
    assert games.reward(0)[0] == pytest.approx(-0.05 * (3.0 - REACH))
    assert games.reward(1)[0] == 0
    games.values[16, 0] = HOLD  # in hand
    play(games, 1)
    assert games.reward(0)[0] == pytest.approx(0, abs=1e-6)


def test_a_game_is_truncated_when_time_is_up_and_then_stays():
    games = HockeyArrays(2, turns=3)
    games.reset([0, 1], [0, 1])
    moves = np.array([[1, 0, 0, 0]] * 2, np.float32)
    games.act([moves, moves])
    games.reset([1], [5])  # one turn behind
    for _ in range(2):
        games.act([moves, moves])
    assert [flags.tolist() for flags in games.ended()] == [[False, False], [True, False]]
    last = games.values[:, 0].copy()
    games.act([moves, moves])
    assert games.values[:, 0].tobytes() == last.tobytes()
    assert games.reward(0)[0] == 0
    assert games.ended()[1].tolist() == [True, True]


def test_the_players_take_turns_to_start():
    games = HockeyArrays(64)
    games.reset(range(64), range(64))
    starts = games.values[PX] < 0
    assert 20 < starts.sum() < 44
    games.reset(range(64))
    assert ((games.values[PX] < 0) == ~starts).all()


def test_modes_set_the_scene():
    shooting, defence = HockeyArrays(64, "shooting"), HockeyArrays(64, "defence")
    for games in (shooting, defence):
        assert games.turns == 80
        games.reset(range(64), range(64))
    assert (shooting.values[PX] < 0).all()
    assert not shooting.values[[PVX, PVY]].any()
    defence.values[[Y, OTHER + Y]] = -3.4  # out of the way
    for _ in range(80):
        defence.act([np.zeros((64, 4), np.float32)] * 2)
    assert (defence.winners(1) == 1).mean() > 0.9


# Players


def games_between(first, second, worlds=1000, seed=0):
    """Wins of the first, losses, draws."""
    games = HockeyArrays(worlds)
    games.reset(range(worlds), range(seed, seed + worlds))
    for _ in range(games.turns):
        games.act([first.act_many(games.observe(0)), second.act_many(games.observe(1))])
    standing = games.winners(0).tolist()
    return standing.count(1), standing.count(-1), standing.count(0)


def test_strong_beats_weak_from_either_side():
    won, lost, _ = games_between(Strong(), Weak())
    lost_too, won_too, _ = games_between(Weak(), Strong(), seed=5000)
    for wins, losses in ((won, lost), (won_too, lost_too)):
        assert wins + losses > 300
        rate = wins / (wins + losses)
        assert rate - 1.96 * (rate * (1 - rate) / (wins + losses)) ** 0.5 > 0.8


# Snapshots


@pytest.mark.parametrize("cut", [0, 1, 40, 79, 80])
def test_a_restored_game_continues_bit_for_bit(cut, is_plain):
    def play_on(game, actions):
        seen = []
        for first, second in actions[:, :, 0]:
            if game.agents:
                seen.append(repr(game.step({"player_0": first, "player_1": second})))
            else:
                seen.append(repr(game.reset()))
        return seen

    actions = random_actions(4, 250, 1)
    game = Hockey("shooting")
    game.reset(seed=0)
    play_on(game, actions[:cut])
    snapshot = game.get_state()
    assert is_plain(snapshot)
    other = Hockey("shooting")
    other.set_state(snapshot)
    assert play_on(other, actions[cut:]) == play_on(game, actions[cut:])
    with pytest.raises(SettingError, match="make a world with the settings of the state"):
        Hockey("normal", turns=80).set_state(snapshot)


def test_there_is_no_state_before_the_first_reset():
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        Hockey().get_state()
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        Hockey().step({})


# Refusals


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"mode": "golf"}, "mode must be one of normal, shooting, defence, got 'golf'"),
        ({"turns": 0}, "turns must be an int >= 1, got 0"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        Hockey(**bad)
    with pytest.raises(SettingError, match="worlds must be an int >= 1, got 0"):
        HockeyArrays(0)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ([0, 0, 0], "must be four numbers from -1 to 1, got"),
        ([0, 0, 0, float("nan")], "must be four numbers from -1 to 1, got"),
        ("up", "the action of player_1 must be four numbers from -1 to 1, got 'up'"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(action, says):
    game = Hockey()
    game.reset(seed=0)
    before = game.get_state()
    with pytest.raises(SettingError, match=says):
        game.step({"player_0": np.zeros(4), "player_1": action})
    with pytest.raises(
        SettingError, match=r"actions must be given for each of \['player_0', 'player_1'\], got \['player_0'\]"
    ):
        game.step({"player_0": np.zeros(4)})
    assert game.get_state() == before


def test_bad_arrays_of_actions_are_refused():
    games = HockeyArrays(3)
    games.reset(range(3), range(3))
    with pytest.raises(SettingError, match=r"the actions of player_1 must have the shape \(3, 4\), got \(2, 4\)"):
        games.act([np.zeros((3, 4)), np.zeros((2, 4))])
    bad = np.zeros((3, 4))
    bad[2, 1] = np.inf
    with pytest.raises(SettingError, match="player_0 in world 2 must be finite numbers, got"):
        games.act([bad, np.zeros((3, 4))])


def test_actions_beyond_their_bounds_count_as_the_bounds():
    one, other = HockeyArrays(1), HockeyArrays(1)
    for games in (one, other):
        games.reset([0], [0])
    play(one, 5, np.full((1, 4), 3.0), np.full((1, 4), -3.0))
    play(other, 5, np.full((1, 4), 1.0), np.full((1, 4), -1.0))
    assert one.values.tobytes() == other.values.tobytes()


# Pictures


def test_the_picture_shows_players_and_puck_where_they_are():
    game = Hockey(render_mode="rgb_array")
    game.reset(seed=0)
    picture = game.render()
    assert picture.shape == (288, 352, 3)
    assert picture.dtype == np.uint8
    x, y = game.state()[[12, 13]]
    row, column = round(144 - 32 * float(y)), round(176 + 32 * float(x))
    assert picture[row, column].tolist() == [70, 76, 90]
    assert Hockey().render() is None


# The course environment


class Curves(gymnasium.Env):
    """The shape of the laser-hockey environment: one Gymnasium environment for two players."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (18,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)

    def __init__(self):
        self.turn, self.one_starts, self.given, self.winner = 0, True, np.zeros(8, np.float32), 0

    def reset(self, one_starting=None, mode=None, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.winner = 0, 0
        self.one_starts = not self.one_starts if one_starting is None else one_starting
        self.given = self.np_random.uniform(-1, 1, 8).astype(np.float32)
        return self._seen(1), {"winner": 0}

    def step(self, action):
        self.given = action
        self.turn += 1
        self.winner = 1 if action[0] > 0.98 else 0
        done = self.winner != 0 or self.turn == 30
        return self._seen(1), self.get_reward(None), done, False, {"winner": self.winner}

    def obs_agent_two(self):
        return self._seen(-1)

    def get_info_agent_two(self):
        return {"winner": -self.winner, "closeness": -0.25}

    def get_reward(self, info):
        return 10.0 * self.winner

    def get_reward_agent_two(self, info_two):
        return -10.0 * self.winner + info_two["closeness"]

    def _seen(self, side):
        seen = np.zeros(18, np.float32)
        seen[:8] = side * self.given
        seen[8:10] = self.turn, self.one_starts
        return seen


class OldCourse(Curves):
    """As older ones call the second player's reward."""

    get_reward_agent_two = None

    def get_reward_two(self, info):
        return Curves.get_reward_agent_two(self, info)


@pytest.mark.parametrize("kind", [Curves, OldCourse])
@pytest.mark.parametrize("wrapped", [False, True])
def test_the_course_environment_is_a_world_of_two_players(wrapped, kind):
    def make():
        return gymnasium.wrappers.OrderEnforcing(kind()) if wrapped else kind()

    check_world(make)
    world = as_world(make())
    assert world.agents == ("player_0", "player_1")
    assert [space.shape for space in world.action_spaces] == [(4,), (4,)]
    world.reset(seed=1)
    first, second = np.arange(4, dtype=np.float32) / 8, -np.ones(4, np.float32)
    world.act([first, second])
    np.testing.assert_array_equal(world.observe(0)[:8], [*first, *second])
    np.testing.assert_array_equal(world.observe(1)[:8], [*-first, *-second])
    assert (world.reward(0), world.reward(1)) == (0.0, -0.25)
    world.act([np.ones(4, np.float32), second])
    assert [end[:3] for end in world.ended()] == [(0, True, False), (1, True, False)]
    assert (world.reward(0), world.reward(1)) == (10.0, -10.25)


def test_time_that_is_up_is_no_end_of_the_course_game():
    world = as_world(Curves())
    world.reset(seed=1)
    while world.group():
        world.act([np.zeros(4, np.float32)] * 2)
    assert [end[:3] for end in world.ended()] == [(0, False, True), (1, False, True)]


def test_half_a_course_environment_says_what_is_missing():
    class Half(gymnasium.Env):
        observation_space, action_space = Curves.observation_space, Curves.action_space

        def obs_agent_two(self):
            return np.zeros(18, np.float32)

    with pytest.raises(SettingError, match="must have get_info_agent_two and get_reward_agent_two too"):
        as_world(Half())

    class Odd(Curves):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)

    with pytest.raises(
        SettingError,
        match=r"the action space of two players must be a one-dimensional Box of even length, "
        r"got Box\(-1\.0, 1\.0, \(7,\)",
    ):
        as_world(Odd())

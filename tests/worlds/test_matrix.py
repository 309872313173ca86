import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from motet.errors import NotReadyError, SettingError
from motet.worlds import MatrixGame
from motet.worlds.matrix import GAMES

LOPSIDED = np.arange(12.0).reshape(2, 2, 3)  # two actions against three


def pure_equilibria(payoffs):
    """Joint actions from which neither player gains by changing alone."""
    best = (payoffs[0] == payoffs[0].max(axis=0)) & (payoffs[1] == payoffs[1].max(axis=1, keepdims=True))
    return sorted(map(tuple, np.argwhere(best).tolist()))


@pytest.mark.parametrize("game", [*GAMES, LOPSIDED], ids=[*GAMES, "lopsided"])
def test_passes_pettingzoo_s_tests(game):
    parallel_api_test(MatrixGame(game, turns=10), num_cycles=30)
    parallel_seed_test(lambda: MatrixGame(game, turns=10), num_cycles=30)


@pytest.mark.parametrize(
    ("game", "equilibria"),
    [
        ("prisoners_dilemma", [(1, 1)]),
        ("stag_hunt", [(0, 0), (1, 1)]),
        ("chicken", [(0, 1), (1, 0)]),
        ("matching_pennies", []),
        ("coordination", [(0, 0), (1, 1)]),
    ],
)
def test_the_named_games_are_those_games(game, equilibria):
    payoffs = MatrixGame(game).payoffs
    assert payoffs.shape == (2, 2, 2)
    assert pure_equilibria(payoffs) == equilibria
    if game == "matching_pennies":
        assert not payoffs.sum(axis=0).any()
    else:
        np.testing.assert_array_equal(payoffs[0], payoffs[1].T)


def test_the_dilemmas_tempt():
    mine = MatrixGame("prisoners_dilemma").payoffs[0]
    assert mine[1, 0] > mine[0, 0] > mine[1, 1] > mine[0, 1]
    mine = MatrixGame("stag_hunt").payoffs[0]
    assert mine[0, 0] > mine[1, 0] >= mine[1, 1] > mine[0, 1]
    mine = MatrixGame("chicken").payoffs[0]
    assert mine[1, 0] > mine[0, 0] > mine[0, 1] > mine[1, 1]


def test_the_table_pays():
    game = MatrixGame(LOPSIDED, turns=10)
    game.reset(seed=0)
    for first in range(2):
        for second in range(3):
            _, rewards, *_ = game.step({"player_0": first, "player_1": second})
            assert rewards == {"player_0": LOPSIDED[0, first, second], "player_1": LOPSIDED[1, first, second]}


def test_a_player_sees_its_own_last_action_first():
    game = MatrixGame(LOPSIDED)
    observations, _ = game.reset()
    for seen in observations.values():
        assert seen.dtype == np.uint8
        assert seen.tolist() == [0, 0, 0, 0, 0, 1]
    observations, *_ = game.step({"player_0": 1, "player_1": 2})
    assert observations["player_0"].tolist() == [0, 1, 0, 0, 1, 0]
    assert observations["player_1"].tolist() == [0, 0, 1, 0, 1, 0]
    observations, _ = game.reset()
    assert observations["player_0"].tolist() == [0, 0, 0, 0, 0, 1]
    assert game.action_space("player_0").n == 2
    assert game.action_space("player_1").n == 3


def test_an_episode_is_truncated_after_its_turns():
    game = MatrixGame(turns=2)
    game.reset()
    both = {"player_0": 0, "player_1": 0}
    assert not any(game.step(both)[3].values())
    _, _, terminations, truncations, _ = game.step(both)
    assert not any(terminations.values())
    assert all(truncations.values())
    assert game.agents == []
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        game.step(both)


def test_the_payoffs_are_the_game_s_own_and_cannot_be_changed():
    given = LOPSIDED.copy()
    game = MatrixGame(given)
    given[:] = 0
    np.testing.assert_array_equal(game.payoffs, LOPSIDED)
    with pytest.raises(ValueError, match="read-only"):
        game.payoffs[0, 0, 0] = 1.0


@pytest.mark.parametrize("cut", [0, 1, 4, 5])
def test_a_restored_game_continues_bit_for_bit(cut, is_plain):
    def play_on(game, turns):
        seen = []
        for first, second in turns:
            if game.agents:
                seen.append(repr(game.step({"player_0": first, "player_1": second})))
            else:
                seen.append(repr(game.reset()))
        return seen

    turns = np.random.default_rng(0).integers(0, 2, (12, 2)).tolist()
    game = MatrixGame(LOPSIDED, turns=5)
    game.reset(seed=0)
    play_on(game, turns[:cut])
    snapshot = game.get_state()
    assert is_plain(snapshot)
    other = MatrixGame(LOPSIDED, turns=5)
    other.set_state(snapshot)
    assert play_on(other, turns[cut:]) == play_on(game, turns[cut:])
    with pytest.raises(SettingError, match="make a world with the settings of the state"):
        MatrixGame(LOPSIDED + 1, turns=5).set_state(snapshot)


def test_there_is_no_state_before_the_first_reset():
    with pytest.raises(NotReadyError, match=r"reset\(\)"):
        MatrixGame().get_state()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"game": "poker"}, "game must be one of chicken, coordination, .*, got 'poker'"),
        (
            {"game": [[1, 2], [3, 4]]},
            r"payoffs must have the shape \(2, n, m\), one n x m table per player, got \(2, 2\)",
        ),
        ({"game": [[[1, 2]], [[3]]]}, "one n x m table per player"),
        (
            {"game": [[[1.0]], [[float("inf")]]]},
            r"payoffs must be finite numbers, got \[\[\[1\.0\]\], \[\[inf\]\]\]",
        ),
        (
            {"game": np.zeros((2, 0, 3))},
            r"payoffs must have the shape \(2, n, m\), one n x m table per player, got \(2, 0, 3\)",
        ),
        ({"turns": 0}, "turns must be an int >= 1, got 0"),
        ({"render_mode": "human"}, "render_mode must be None or 'rgb_array', got 'human'"),
    ],
)
def test_bad_settings_say_what_was_given_and_expected(bad, says):
    with pytest.raises(SettingError, match=says):
        MatrixGame(**bad)


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ({"player_0": 0}, r"actions must be given for each of \['player_0', 'player_1'\], got \['player_0'\]"),
        ({"player_0": 2, "player_1": 0}, "the action of player_0 must be an int from 0 to 1, got 2"),
        ({"player_0": 0, "player_1": -1}, "the action of player_1 must be an int from 0 to 2, got -1"),
        ({"player_0": 0.5, "player_1": 0}, r"the action of player_0 must be an int from 0 to 1, got 0\.5"),
    ],
)
def test_bad_actions_are_refused_and_change_nothing(actions, says):
    game = MatrixGame(LOPSIDED)
    game.reset()
    before = game.get_state()
    with pytest.raises(SettingError, match=says):
        game.step(actions)
    assert game.get_state() == before


def test_the_picture_frames_the_last_joint_action():
    game = MatrixGame(LOPSIDED * -1234.5, render_mode="rgb_array")
    game.reset()
    bare = game.render()
    assert bare.shape == (192, 256, 3)
    assert bare.dtype == np.uint8
    game.step({"player_0": 1, "player_1": 2})
    changed = (game.render() != bare).any(axis=2).reshape(3, 64, 4, 64).any(axis=(1, 3))
    assert np.argwhere(changed).tolist() == [[2, 3]]
    assert MatrixGame().render() is None

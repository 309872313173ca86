"""Self-play: what TD3 learns in a quarter of an hour beats both scripted players, from either side."""

import pytest
from support import EXAMPLES

from motet.cli import main
from motet.policies.entries import load_policies
from motet.worlds.hockey import Hockey, HockeyArrays

GAMES = 500
EXPERIMENT = EXAMPLES / "hockey.toml"


def decided(player, other, side):
    """Games won and lost by a player on one side."""
    games = HockeyArrays(GAMES)
    games.reset(range(GAMES), range(10**6, 10**6 + GAMES))
    for _ in range(games.turns):
        both = [player.act(games.observe(side), explore=False)[0], other.act_many(games.observe(1 - side))]
        games.act(both if side == 0 else both[::-1])
    return int((games.winners(side) == 1).sum()), int((games.winners(side) == -1).sum())


@pytest.mark.slow
def test_the_player_beats_weak_and_strong_from_either_side(tmp_path):
    run = tmp_path / "run"
    assert main(["train", str(EXPERIMENT), "--run", str(run)]) == 0
    player = load_policies(run / "best")["player_0"]._behaviour
    for make in Hockey.scripted.values():
        for side in (0, 1):
            won, lost = decided(player, make(), side)
            rate = won / (won + lost)
            assert won + lost > 100
            assert rate - 1.96 * (rate * (1 - rate) / (won + lost)) ** 0.5 > 0.5

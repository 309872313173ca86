"""Self-play: what TD3 learns in a few minutes beats both scripted players, from either side."""

import numpy as np
import pytest

from motet.algorithms.td3 import TD3Config
from motet.league import PLAYER, League
from motet.train import Settings, train
from motet.worlds.hockey import Hockey, HockeyArrays

GAMES = 500


def decided(player, other, side):
    """Games won and lost by a player on one side."""
    games = HockeyArrays(GAMES)
    games.reset(range(GAMES), range(10**6, 10**6 + GAMES))
    for _ in range(games.turns):
        both = [player.act(games.observe(side), explore=False)[0], other.act_many(games.observe(1 - side))]
        games.act(both if side == 0 else both[::-1])
    return int((games.winners(side) == 1).sum()), int((games.winners(side) == -1).sum())


@pytest.mark.slow
def test_the_player_beats_weak_and_strong_from_either_side():
    config = TD3Config(
        hidden=(128, 128), gamma=0.98, n_step=4, normalise=True, reward_scale=0.1, noise=0.3, capacity=600_000
    )
    league = League(anchor_share=0.6, anchor_batch_share=0.5, snapshot_every=100_000, review_every=5_000)
    settings = Settings(
        steps=1_200_000, seconds=1150, actors=2, worlds_per_actor=16, updates_per_step=0.15, seed=1,
        self_play=True, league=league,
    )  # fmt: skip
    result = train("hockey", config, settings)
    spaces = HockeyArrays(1).observation_spaces[0], HockeyArrays(1).action_spaces[0]
    player = config.behaviour(*spaces)
    header = {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in config.header.items()}
    player.load(result.agents[PLAYER]["state"][: config.sizes(*spaces).weights].copy(), header)
    for make in Hockey.scripted.values():
        for side in (0, 1):
            won, lost = decided(player, make(), side)
            rate = won / (won + lost)
            assert won + lost > 100
            assert rate - 1.96 * (rate * (1 - rate) / (won + lost)) ** 0.5 > 0.5

"""Train one hockey player against scripted players, its snapshots and itself; then play against the scripted ones.

python examples/self_play.py [STEPS]
"""

import sys

import numpy as np

from motet import Settings, train
from motet.algorithms import TD3Config
from motet.policy import PLAYER
from motet.runs import Snapshot
from motet.schedule import Linear
from motet.training import League
from motet.worlds.hockey import Hockey, HockeyArrays

GAMES = 200


def show(now: Snapshot) -> None:
    wins = {name: f"{rate:.2f}" for name, rate in now.agents[0].metrics.items() if name.startswith("win_")}
    print(f"{now.steps:>9,} steps {now.agents[0].updates:>8,} updates", *wins.items(), flush=True)


def main(steps: int) -> None:
    config = TD3Config(
        hidden=(128, 128), gamma=0.98, n_step=4, normalise=True, reward_scale=0.1, capacity=600_000,
        noise=Linear(1.0, 0.2, steps), noise_memory=0.9, learning_rate=Linear(3e-4, 5e-5, steps),
    )  # fmt: skip
    league = League(anchor_share=0.6, anchor_batch_share=0.5, snapshot_every=100_000, review_every=5_000)
    settings = Settings(
        steps=steps, actors=1, worlds_per_actor=32, updates_per_step=0.15, self_play=True, league=league
    )  # fmt: skip
    result = train("hockey", config, settings, on_update=show, on_message=print)
    print(f"{result.state} after {result.steps:,} steps in {result.seconds:.0f} s")

    games = HockeyArrays(GAMES)
    spaces = games.observation_spaces[0], games.action_spaces[0]
    player = config.behaviour(*spaces)
    header = {name: np.zeros(shape, dtype)[()] for name, (shape, dtype) in config.header.items()}
    player.load(result.agents[PLAYER]["state"][: config.sizes(*spaces).weights].copy(), header)
    for name, make in Hockey.scripted.items():
        other, won, lost = make(), 0, 0
        for side in (0, 1):
            games.reset(range(GAMES), seeds=range(GAMES))
            for _ in range(games.turns):
                mine, theirs = games.observe(side), games.observe(1 - side)
                both = [player.act(mine, explore=False)[0], other.act_many(theirs)]
                games.act(both if side == 0 else both[::-1])
            won += int((games.winners(side) == 1).sum())
            lost += int((games.winners(side) == -1).sum())
        print(f"against {name}: {won} games won, {lost} lost, {2 * GAMES - won - lost} undecided")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)

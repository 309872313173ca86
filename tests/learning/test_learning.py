"""Agents learn what is known to be best: a best response in a matrix game, and a good hunt."""

import functools

import numpy as np
import pytest

from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.schedule import Linear
from motet.training.evaluator import play_greedily
from motet.training.run import train
from motet.training.settings import Settings
from motet.world import as_world
from motet.world.batch import LoopedWorlds
from motet.worlds import MatrixGame, TreasureHunt

pytestmark = pytest.mark.slow

QUICK = {"hidden": (32,), "gamma": 0.5, "min_rows": 200, "target_every": 50, "learning_rate": 2e-3}
HUNT = {
    "hidden": (128, 128),
    "gamma": 0.8,
    "n_frames": 4,
    "target_every": 100,
    "learning_rate": Linear(1e-3, 1e-4, 25_000),
    "epsilon": Linear(1.0, 0.05, 5_000),
}


def greedy(world, configs, result, episodes):
    """Returns ``[episodes, agents]`` of the final policies, greedy, in fresh episodes."""
    worlds = [as_world(world()) for _ in range(episodes)]
    behaviours = []
    for i, name in enumerate(worlds[0].agents):
        config, spaces = configs[i], (worlds[0].observation_spaces[i], worlds[0].action_spaces[i])
        behaviour = config.behaviour(*spaces)
        behaviour.begin(0)
        weights = np.ascontiguousarray(result.agents[name]["state"][: config.sizes(*spaces).weights])
        behaviour.load(weights, {key: np.zeros(shape, dtype)[()] for key, (shape, dtype) in config.header.items()})
        behaviours.append(behaviour)
    batch = LoopedWorlds(worlds, [False] * len(behaviours))
    return play_greedily(batch, behaviours, range(10**6, 10**6 + episodes), [c.n_frames for c in configs])


@pytest.mark.parametrize("config", [DQNConfig, IQNConfig])
def test_the_best_response_of_a_matrix_game(config):
    """Defecting is the only best response in the prisoner's dilemma, whatever the other does."""
    world = functools.partial(MatrixGame, "prisoners_dilemma", turns=20)
    chosen = config(**QUICK, epsilon=Linear(1.0, 0.1, 6000))
    result = train(world, chosen, Settings(steps=12_000, updates_per_step=0.5))
    payoffs = MatrixGame("prisoners_dilemma").payoffs
    best = [int(payoffs[0].sum(1).argmax()), int(payoffs[1].sum(0).argmax())]
    expected = 20 * payoffs[:, best[0], best[1]]
    np.testing.assert_allclose(greedy(world, [chosen] * 2, result, 5).mean(0), expected)


@pytest.mark.parametrize(("config", "wanted"), [(DQNConfig, 350), (IQNConfig, 330)])
def test_a_good_hunt(config, wanted, tmp_path):
    world = functools.partial(TreasureHunt, agents=2)
    chosen = config(**HUNT)
    settings = Settings(
        steps=60_000, worlds_per_actor=4, updates_per_step=0.25, evaluate_every=1000, until_return=float(wanted)
    )
    result = train(world, chosen, settings, run=tmp_path / "run")
    assert result.state == "stopped", "it did not reach the return within its steps"
    assert greedy(world, [chosen] * 2, result, 100).sum(1).mean() > wanted - 40

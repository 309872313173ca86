import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from motet.algorithm import stacked_batch
from motet.algorithms._iqn_learner import IQN, quantile_loss
from motet.algorithms.iqn import IQNConfig
from motet.errors import SettingError

from .conftest import ACTIONS, OBSERVATIONS, copy_into, one_of, random_batch

SMALL = IQNConfig(
    hidden=(16, 12), batch_size=8, min_rows=8, target_every=3, learning_rate=1e-2, max_grad_norm=0.5, taus=5,
    target_taus=4, mean_taus=6, cosines=9,
)  # fmt: skip
DEEP = replace(SMALL, head=(10,))


class Naive(torch.nn.Module):
    """The network by the book, its parameters in the order of the flat row."""

    def __init__(self, config: IQNConfig, flat: np.ndarray) -> None:
        super().__init__()
        self.config = config
        sizes, width = (7, *config.hidden), config.hidden[-1]
        pairs = itertools.pairwise(sizes)
        self.trunk = torch.nn.Sequential(*[m for a, b in pairs for m in (torch.nn.Linear(a, b), torch.nn.ReLU())])
        self.embedding = torch.nn.Linear(config.cosines, width)
        head = (width, *config.head, 3)
        layers = [m for a, b in itertools.pairwise(head) for m in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.head = torch.nn.Sequential(*layers[:-1])
        at = 0
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.from_numpy(flat[at : at + p.numel()].copy()).view_as(p))
                at += p.numel()

    def forward(self, x: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        """Quantiles [taus, 3] of one state [7]."""
        cosines = torch.cos(torch.pi * torch.arange(self.config.cosines) * taus[:, None])
        return self.head(self.trunk(x) * torch.relu(self.embedding(cosines)))

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        k = self.config.mean_taus
        return self(x, (torch.arange(k) + 0.5) / k).mean(0)

    def flat(self) -> np.ndarray:
        return np.concatenate([p.detach().numpy().ravel() for p in self.parameters()])


def naive_quantile_loss(chosen: torch.Tensor, goal: torch.Tensor, taus: torch.Tensor, kappa: float) -> torch.Tensor:
    """Of one row, pair by pair."""
    loss = torch.zeros(())
    for theta, tau in zip(chosen, taus, strict=True):
        for target in goal:
            error = target - theta
            huber = 0.5 * error**2 if abs(error) < kappa else kappa * (abs(error) - 0.5 * kappa)
            loss = loss + abs(tau - (1.0 if error < 0 else 0.0)) * huber / kappa / len(goal)
    return loss


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_quantile_loss_equals_the_loop(kappa: float) -> None:
    torch.manual_seed(0)
    chosen, goal, taus = torch.randn(1, 2, 5), torch.randn(1, 2, 4), torch.rand(1, 2, 5)
    slope, losses = quantile_loss(chosen, goal, taus, kappa)
    for row in (0, 1):
        x = chosen[0, row].clone().requires_grad_()
        expected = naive_quantile_loss(x, goal[0, row], taus[0, row], kappa)
        expected.backward()
        torch.testing.assert_close(losses()[0, row].sum(), expected.detach())
        torch.testing.assert_close(slope[0, row], x.grad)


@pytest.mark.parametrize(
    "options", [{}, {"head": (10,)}, {"head": (10,), "double": False}, {"double": False}, {"prioritised": True}]
)
@pytest.mark.parametrize("masked", [False, True])
def test_updates_equal_those_of_a_textbook_implementation(options: dict[str, Any], masked: bool) -> None:
    config = replace(SMALL, **options)
    iqn = config.build(OBSERVATIONS, ACTIONS, 1, seeds=[3])
    online, target = Naive(config, iqn.weights()[0]), Naive(config, iqn.weights()[0])
    adam = torch.optim.Adam(online.parameters(), lr=1e-2, eps=config.adam_eps)
    batch = random_batch(config, 1, 0, masked=masked)
    twin = config.build(OBSERVATIONS, ACTIONS, 1, seeds=[3])  # draws the same taus
    for step in range(5):
        copy_into(batch, random_batch(config, 1, step, masked=masked))
        drawn = torch.from_numpy(twin._streams[0].random(8 * 9, dtype=np.float32))
        taus, next_taus = drawn[:40].view(8, 5), drawn[40:].view(8, 4)
        one = batch.agent(0)
        loss = torch.zeros(())
        priorities = []
        for i in range(8):
            x, there = torch.from_numpy(one.observation[i]), torch.from_numpy(one.next_observation[i])
            with torch.no_grad():
                ranked = (online if config.double else target).mean(there)
                if masked:
                    ranked[~torch.from_numpy(one.next_extra["mask"][i])] = -torch.inf
                goal = float(one.reward[i]) + float(one.discount[i]) * target(there, next_taus[i])[:, ranked.argmax()]
            chosen = online(x, taus[i])[:, int(one.action[i])]
            weight = 1.0 if one.weight is None else float(one.weight[i])
            loss = loss + weight * naive_quantile_loss(chosen, goal, taus[i], 1.0) / 8
            priorities.append(float((goal.mean() - chosen.mean()).detach().abs()))
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(online.parameters(), 0.5)
        adam.step()
        if (step + 1) % 3 == 0:
            target.load_state_dict(online.state_dict())
        update = iqn.update(batch, [0])
        if config.prioritised:
            np.testing.assert_allclose(update.priorities[0], priorities, rtol=1e-4, atol=1e-5)
        expected = online.flat()
        n = len(expected)
        np.testing.assert_allclose(iqn.state[0, :n], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(iqn.state[0, iqn.n_weights : iqn.n_weights + n], target.flat(), rtol=1e-4, atol=1e-5)
        if step == 0:
            np.testing.assert_allclose(update.metrics["loss"][0], float(loss.detach()), rtol=1e-4)


@pytest.mark.parametrize("config", [SMALL, DEEP])
def test_stacked_equals_separate(config: IQNConfig) -> None:
    seeds, batch = [5, 6, 7], random_batch(config, 3, 1)
    stacked = config.build(OBSERVATIONS, ACTIONS, 3, seeds)
    stacked.update(batch, [0, 0, 0])
    for agent, seed in enumerate(seeds):
        alone = config.build(OBSERVATIONS, ACTIONS, 1, [seed])
        alone.update(one_of(batch, agent), [0])
        np.testing.assert_allclose(stacked.state[agent], alone.state[0], rtol=1e-4, atol=1e-6)


def test_saved_and_loaded_continues_bit_for_bit() -> None:
    first, second = (SMALL.build(OBSERVATIONS, ACTIONS, 2, seeds) for seeds in ([1, 2], [8, 9]))
    batch = random_batch(SMALL, 2, 0)
    for _ in range(4):
        first.update(batch, [0, 0])
    first._streams[0].random(dtype=np.float32)  # half of a 64-bit draw is left over
    first.save()
    for name in ("state", "counters", "random"):
        getattr(second, name)[:] = getattr(first, name)
    second.load()
    for _ in range(6):
        for iqn in (first, second):
            iqn.update(batch, [0, 0])
    for iqn in (first, second):
        iqn.save()
    for name in ("state", "counters", "random"):
        assert np.array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("config", [SMALL, DEEP])
def test_behaviour_acts_like_the_network(config: IQNConfig) -> None:
    iqn, behaviour = config.build(OBSERVATIONS, ACTIONS, 2, [1, 2]), config.behaviour(OBSERVATIONS, ACTIONS)
    x = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    for agent in (0, 1):
        behaviour.load(iqn.weights()[agent], iqn.header(0, agent))
        naive = Naive(config, iqn.weights()[agent])
        with torch.no_grad():
            expected = torch.stack([naive.mean(row) for row in torch.from_numpy(x)]).numpy()
        np.testing.assert_allclose(behaviour.values(x), expected, rtol=1e-4, atol=1e-5)
        alone = np.concatenate([behaviour.values(x[i : i + 1]) for i in range(20)])
        assert np.array_equal(behaviour.values(x), alone)


def test_contradictions_raise() -> None:
    for wrong in ({"taus": 0}, {"kappa": 0.0}, {"head": (0,)}, {"gamma": 2.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            replace(SMALL, **wrong)


def test_sizes_are_known_before_the_learner_is_built() -> None:
    sizes, iqn = SMALL.sizes(OBSERVATIONS, ACTIONS), SMALL.build(OBSERVATIONS, ACTIONS, 2, [1, 2])
    assert isinstance(iqn, IQN) and iqn.state.shape == (2, sizes.state) and iqn.n_weights == sizes.weights
    assert iqn.counters.shape == (2, sizes.counters) and iqn.random.shape == (2, sizes.random)


def test_iqn_learns_the_identity_and_the_quantiles() -> None:
    """The observation names the best action; rewards are noisy, and the quantiles tell how much."""
    config = IQNConfig(hidden=(32,), batch_size=32, min_rows=32, learning_rate=3e-3, gamma=0.0)
    space, actions = Box(0, 1, (4,)), Discrete(4)
    iqn, behaviour, rng = (
        config.build(space, actions, 1, [1]),
        config.behaviour(space, actions),
        np.random.default_rng(0),
    )
    batch = stacked_batch(space, actions, config.replay(space, actions), 1)
    for _ in range(600):
        best = rng.integers(0, 4, batch.action.shape)
        batch.observation[:] = np.eye(4)[best]
        batch.action[:] = rng.integers(0, 4, batch.action.shape)
        batch.reward[:] = (batch.action == best) * rng.choice([0.0, 2.0], batch.action.shape)
        iqn.update(batch, [0])
    behaviour.load(iqn.weights()[0], {"epsilon": 0.0})
    assert behaviour.act(np.eye(4, dtype=np.float32))[0].tolist() == [0, 1, 2, 3]
    states = torch.zeros(1, 8, 4)
    states[0, :, 0] = 1
    taus = torch.tensor([0.1, 0.9]).repeat(8)
    with torch.inference_mode():
        features = iqn._online._trunk.forward(states).out
        low, high = iqn._online.quantiles(features, taus.view(1, 8, 2)).out[0, :2, 0].tolist()
    assert low < 0.7 and high > 1.3

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from motet.algorithm import Batch, stacked_batch
from motet.algorithms._device import Device
from motet.algorithms._dqn_learner import DQN
from motet.algorithms.dqn import DQNConfig
from motet.errors import NotReadyError, SettingError, SpecError
from motet.schedule import Linear

from .conftest import ACTIONS, OBSERVATIONS, copy_into, one_of, random_batch

SMALL = DQNConfig(hidden=(16, 12), batch_size=8, min_rows=8, target_every=3, learning_rate=1e-2, max_grad_norm=0.5)


class Naive:
    """DQN of one agent by the book: modules, autograd, torch's own Adam and clipping."""

    def __init__(self, config: DQNConfig, flat: np.ndarray) -> None:
        self.config, outputs = config, 3 + config.dueling
        sizes = (7, *config.hidden, outputs)
        self.online, self.target = self.make(sizes), self.make(sizes)
        at = 0
        with torch.no_grad():
            for mine, theirs in zip(self.online.parameters(), self.target.parameters(), strict=True):
                mine.copy_(torch.from_numpy(flat[at : at + mine.numel()].copy()).view_as(mine))
                theirs.copy_(mine)
                at += mine.numel()
        self.adam = torch.optim.Adam(self.online.parameters(), lr=config.learning_rate, eps=config.adam_eps)
        self.updates = 0

    @staticmethod
    def make(sizes: tuple[int, ...]) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers[:-1])

    def q(self, net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = net(x)
        if not self.config.dueling:
            return out
        return out[:, :1] + out[:, 1:] - out[:, 1:].mean(1, keepdim=True)

    def update(self, batch: Batch) -> np.ndarray:
        arrays = {
            k: torch.from_numpy(v.copy())
            for k, v in batch.__dict__.items()
            if isinstance(v, np.ndarray) and k != "version"
        }
        errors = []
        loss = torch.zeros(())
        for i in range(len(batch.reward)):
            with torch.no_grad():
                there = arrays["next_observation"][i : i + 1]
                ranked = self.q(self.online if self.config.double else self.target, there)[0]
                if batch.next_extra:
                    ranked[~torch.from_numpy(batch.next_extra["mask"][i])] = -torch.inf
                value = self.q(self.target, there)[0, ranked.argmax()]
                goal = arrays["reward"][i] + arrays["discount"][i] * value
            chosen = self.q(self.online, arrays["observation"][i : i + 1])[0, arrays["action"][i]]
            weight = arrays["weight"][i] if "weight" in arrays else 1.0
            loss = loss + weight * torch.nn.functional.smooth_l1_loss(chosen, goal) / len(batch.reward)
            errors.append(abs(float((goal - chosen).detach())))
        self.adam.zero_grad()
        loss.backward()
        if self.config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.online.parameters(), self.config.max_grad_norm)
        self.adam.step()
        self.updates += 1
        if self.updates % self.config.target_every == 0:
            with torch.no_grad():
                for mine, theirs in zip(self.online.parameters(), self.target.parameters(), strict=True):
                    theirs.lerp_(mine, self.config.target_rate)
        return np.array(errors)

    def flat(self, net: torch.nn.Module) -> np.ndarray:
        return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"double": False},
        {"dueling": True},
        {"prioritised": True, "dueling": True},
        {"max_grad_norm": None, "target_rate": 0.3, "target_every": 1},
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_updates_equal_those_of_a_textbook_implementation(options: dict[str, Any], masked: bool) -> None:
    config = replace(SMALL, **options)
    agents = 2
    dqn = config.build(OBSERVATIONS, ACTIONS, agents, seeds=[3, 4])
    naive = [Naive(config, row) for row in dqn.weights()]
    batch = random_batch(config, agents, 0, masked=masked)
    for step in range(7):
        copy_into(batch, random_batch(config, agents, step, masked=masked))
        update = dqn.update(batch, [step, step])
        for agent, book in enumerate(naive):
            errors = book.update(batch.agent(agent))
            if config.prioritised:
                assert update.priorities is not None
                np.testing.assert_allclose(update.priorities[agent], errors, rtol=1e-4, atol=1e-5)
            expected = book.flat(book.online)
            n = len(expected)
            np.testing.assert_allclose(dqn.state[agent, :n], expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                dqn.state[agent, dqn.n_weights : dqn.n_weights + n], book.flat(book.target), rtol=1e-4, atol=1e-5
            )
    assert (update.priorities is not None) == config.prioritised
    assert dqn.counters.tolist() == [[7], [7]]


def test_stacked_equals_separate() -> None:
    config, seeds = replace(SMALL, prioritised=True), [5, 6, 7]
    batch = random_batch(config, 3, 1)
    stacked = config.build(OBSERVATIONS, ACTIONS, 3, seeds)
    update = stacked.update(batch, [0, 0, 0])
    for agent, seed in enumerate(seeds):
        alone = config.build(OBSERVATIONS, ACTIONS, 1, [seed])
        single = alone.update(one_of(batch, agent), [0])
        np.testing.assert_allclose(stacked.state[agent], alone.state[0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(update.priorities[agent], single.priorities[0], rtol=1e-5, atol=1e-6)
        for name in update.metrics:
            np.testing.assert_allclose(update.metrics[name][agent], single.metrics[name][0], rtol=1e-4)


def test_saved_and_loaded_continues_bit_for_bit() -> None:
    first = SMALL.build(OBSERVATIONS, ACTIONS, 2, [1, 2])
    second = SMALL.build(OBSERVATIONS, ACTIONS, 2, [8, 9])
    batch = random_batch(SMALL, 2, 0)
    for step in range(5):
        copy_into(batch, random_batch(SMALL, 2, step))
        first.update(batch, [0, 0])
    first.save()
    for name in ("state", "counters", "random"):
        getattr(second, name)[:] = getattr(first, name)
    second.load()
    for step in range(5, 12):
        copy_into(batch, random_batch(SMALL, 2, step))
        for dqn in (first, second):
            dqn.update(batch, [0, 0])
    assert np.array_equal(first.state, second.state)
    assert np.array_equal(first.counters, second.counters)


def test_agents_of_one_stack_may_have_done_different_numbers_of_updates() -> None:
    config = replace(SMALL, target_every=2, learning_rate=Linear(1e-2, 1e-3, steps=10))
    seeds, batch = [1, 2], random_batch(config, 2, 0)
    stacked = config.build(OBSERVATIONS, ACTIONS, 2, seeds)
    alone = [config.build(OBSERVATIONS, ACTIONS, 1, [seed]) for seed in seeds]
    ones = [one_of(batch, agent) for agent in (0, 1)]
    alone[1].update(ones[1], [0])
    stacked.state[1], stacked.counters[1] = alone[1].state[0], alone[1].counters[0]
    stacked.load()
    for step in range(3):
        stacked.update(batch, [step, 7])
        alone[0].update(ones[0], [step])
        alone[1].update(ones[1], [7])
    for agent in (0, 1):
        np.testing.assert_allclose(stacked.state[agent], alone[agent].state[0], rtol=1e-4, atol=1e-6)


def test_a_terminated_transition_does_not_bootstrap() -> None:
    batch = random_batch(SMALL, 1, 0)
    batch.discount[:] = 0
    results = []
    for scale in (1, 100):
        dqn = SMALL.build(OBSERVATIONS, ACTIONS, 1, [1])
        batch.next_observation *= scale
        dqn.update(batch, [0])
        results.append(dqn.state.copy())
    assert np.array_equal(*results)


def test_targets_move_at_their_time_only() -> None:
    dqn, batch = SMALL.build(OBSERVATIONS, ACTIONS, 1, [1]), random_batch(SMALL, 1, 0)
    first = dqn.state[0, dqn.n_weights : 2 * dqn.n_weights].copy()
    for update in range(1, 7):
        dqn.update(batch, [0])
        targets = dqn.state[0, dqn.n_weights : 2 * dqn.n_weights]
        if update < 3:
            assert np.array_equal(targets, first)
        assert np.array_equal(targets, dqn.weights()[0]) == (update % 3 == 0)


def torch_values(config: DQNConfig, flat: np.ndarray, x: np.ndarray) -> np.ndarray:
    naive = Naive(config, flat)
    with torch.no_grad():
        return naive.q(naive.online, torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("dueling", [False, True])
def test_behaviour_acts_like_the_network(dueling: bool) -> None:
    config = replace(SMALL, dueling=dueling)
    dqn, behaviour = config.build(OBSERVATIONS, ACTIONS, 1, [1]), config.behaviour(OBSERVATIONS, ACTIONS)
    with pytest.raises(NotReadyError):
        behaviour.act(np.zeros((1, 7), np.float32))
    behaviour.load(dqn.weights()[0], dqn.header(0, 0))
    x = np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32)
    expected = torch_values(config, dqn.weights()[0], x)
    np.testing.assert_allclose(behaviour.values(x), expected, rtol=1e-5, atol=1e-6)
    assert behaviour.act(x, explore=False)[0].tolist() == expected.argmax(1).tolist()
    mask = np.random.default_rng(1).random((50, 3)) < 0.5
    mask[:, 0] = True
    actions, _ = behaviour.act(x, mask, explore=False)
    assert actions.tolist() == np.where(mask, expected, -np.inf).argmax(1).tolist()
    mask[3] = False
    with pytest.raises(SpecError, match="row 3"):
        behaviour.act(x, mask)


def test_exploration_draws_the_same_whatever_the_weights() -> None:
    behaviour = SMALL.behaviour(OBSERVATIONS, ACTIONS)
    dqn = SMALL.build(OBSERVATIONS, ACTIONS, 2, [1, 2])
    x = np.random.default_rng(0).normal(size=(4000, 7)).astype(np.float32)
    mask = np.tile([True, False, True], (4000, 1))
    seen = []
    for agent in (0, 1):
        behaviour.begin(7)
        behaviour.load(dqn.weights()[agent], {"epsilon": 0.3})
        behaviour.act(x[:10])
        behaviour.load(dqn.weights()[agent], {"epsilon": 1.0})
        seen.append(behaviour.act(x, mask)[0])
    assert np.array_equal(*seen)
    share = (seen[0] == 0).mean()
    assert set(seen[0]) == {0, 2} and 0.45 < share < 0.55


def test_epsilon_is_published_with_the_weights() -> None:
    config = replace(SMALL, epsilon=Linear(1.0, 0.0, steps=100))
    dqn = config.build(OBSERVATIONS, ACTIONS, 1, [1])
    dqn.update(random_batch(config, 1, 0), [0])
    header = dqn.header(step=25, agent=0)
    assert header == {"epsilon": 0.75, "learner_step": 1, "stage": 0}
    assert set(header) == set(config.header)


def test_actions_may_begin_elsewhere() -> None:
    space = Discrete(3, start=5)
    behaviour, dqn = SMALL.behaviour(OBSERVATIONS, space), SMALL.build(OBSERVATIONS, space, 1, [1])
    same = SMALL.build(OBSERVATIONS, ACTIONS, 1, [1])
    batch = random_batch(SMALL, 1, 0)
    same.update(batch, [0])
    batch.action += 5
    dqn.update(batch, [0])
    assert np.array_equal(same.state, dqn.state)
    behaviour.load(dqn.weights()[0], {"epsilon": 1.0})
    assert set(behaviour.act(np.zeros((100, 7), np.float32))[0]) == {5, 6, 7}


@pytest.mark.parametrize(
    ("space", "make"),
    [
        (Box(0, 255, (2, 3, 1), np.uint8), lambda rng, n: rng.integers(0, 256, (*n, 2, 3, 1), np.uint8)),
        (Box(0, 1, (6,), np.uint8), lambda rng, n: rng.integers(0, 2, (*n, 6), np.uint8)),
        (Box(0, 1, (6,), np.float64), lambda rng, n: rng.random((*n, 6))),
        (Discrete(4, start=1), lambda rng, n: rng.integers(1, 5, n)),
        (
            Dict(a=Box(0, 255, (2,), np.uint8), b=Tuple([Discrete(3), Box(0, 1, (2,))])),
            lambda rng, n: {
                "a": rng.integers(0, 256, (*n, 2), np.uint8),
                "b": (rng.integers(0, 3, n), rng.random((*n, 2)).astype(np.float32)),
            },
        ),
    ],
)
@pytest.mark.parametrize("n_frames", [1, 3])
def test_learner_and_behaviour_see_the_same_inputs(space: Any, make: Any, n_frames: int) -> None:
    config = replace(SMALL, n_frames=n_frames)
    dqn, behaviour = config.build(space, ACTIONS, 2, [1, 2]), config.behaviour(space, ACTIONS)
    lead = (2, 8) if n_frames == 1 else (2, 8, n_frames)
    observation = make(np.random.default_rng(0), lead)
    learner = torch.zeros((2, 8, dqn._encoder.size))
    dqn._encoder.link(observation, learner, Device("cpu"))()
    behaviour.load(dqn.weights()[0], {"epsilon": 0.0})
    first = (
        {"a": observation["a"][0], "b": tuple(b[0] for b in observation["b"])}
        if isinstance(observation, dict)
        else observation[0]
    )
    rows = behaviour._encoder.rows(first) * np.float32(behaviour._encoder.scale)
    np.testing.assert_allclose(rows, learner[0].numpy(), rtol=1e-6)
    assert rows.max() <= 1
    with torch.no_grad():
        values = dqn._online.forward(learner).out[0].numpy()
    np.testing.assert_allclose(behaviour.values(first), values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": ()}, {"gamma": 1.5}, {"n_step": 0}, {"batch_size": 0}, {"learning_rate": -1.0},
        {"epsilon": Linear(2, 0, 5)},
        {"target_every": 0}, {"target_rate": 0.0}, {"max_grad_norm": 0.0}, {"min_rows": 4}, {"capacity": 6},
        {"alpha": 2.0}, {"adam_eps": 0.0}, {"beta": 1.5},
    ],
)  # fmt: skip
def test_contradictions_raise(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong)) if "capacity" not in wrong else "min_rows"):
        replace(SMALL, **wrong)


def test_spaces_that_dqn_does_not_support_raise() -> None:
    with pytest.raises(SettingError, match="Discrete"):
        SMALL.behaviour(OBSERVATIONS, Box(0, 1, (2,)))
    with pytest.raises(SettingError, match="seeds"):
        SMALL.build(OBSERVATIONS, ACTIONS, 2, [1])


def test_sizes_are_known_before_the_learner_is_built() -> None:
    sizes, dqn = SMALL.sizes(OBSERVATIONS, ACTIONS), SMALL.build(OBSERVATIONS, ACTIONS, 2, [1, 2])
    assert dqn.state.shape == (2, sizes.state) and dqn.n_weights == sizes.weights
    assert dqn.counters.shape == (2, sizes.counters) and dqn.random.shape == (2, sizes.random)
    assert isinstance(dqn, DQN) and not np.array_equal(dqn.state[0], dqn.state[1])


@pytest.mark.parametrize("options", [{}, {"dueling": True, "prioritised": True}])
def test_dqn_learns_the_identity(options: dict[str, Any]) -> None:
    """The observation names the best action."""
    config = DQNConfig(hidden=(32,), batch_size=32, min_rows=32, learning_rate=3e-3, gamma=0.0, **options)
    space, actions = Box(0, 1, (4,)), Discrete(4)
    dqn, behaviour, rng = (
        config.build(space, actions, 2, [1, 2]),
        config.behaviour(space, actions),
        np.random.default_rng(0),
    )
    batch = stacked_batch(space, actions, config.replay(space, actions), 2)
    for _ in range(400):
        best = rng.integers(0, 4, batch.action.shape)
        batch.observation[:] = np.eye(4)[best]
        batch.action[:] = rng.integers(0, 4, batch.action.shape)
        batch.reward[:] = batch.action == best
        dqn.update(batch, [0, 0])
    for agent in (0, 1):
        behaviour.load(dqn.weights()[agent], {"epsilon": 0.0})
        assert behaviour.act(np.eye(4, dtype=np.float32))[0].tolist() == [0, 1, 2, 3]

import copy
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch.nn import functional

from motet.algorithm import Batch, stacked_batch
from motet.algorithms._blocks import DensePlan
from motet.algorithms._picture_plan import PicturePlan
from motet.algorithms._td3_learner import TD3
from motet.algorithms.td3 import TD3Config
from motet.errors import NotReadyError, SettingError
from motet.schedule import Linear, Staged, Stages
from motet.testing import check_algorithm

SEEN, DONE = Box(-np.inf, np.inf, (5,)), Box(np.array([-2, 0], "float32"), np.array([2, 10], "float32"))
SMALL = TD3Config(hidden=(16, 12), batch_size=8, min_rows=8, learning_rate=1e-2, target_rate=0.1, reward_scale=0.5)


def random_batch(config: TD3Config, agents: int, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    batch = stacked_batch(SEEN, DONE, config.replay(SEEN, DONE), agents)
    batch.observation[:] = 2 + 3 * rng.normal(size=batch.observation.shape)
    batch.next_observation[:] = 2 + 3 * rng.normal(size=batch.observation.shape)
    batch.action[:] = DONE.low + (DONE.high - DONE.low) * rng.random(batch.action.shape)
    batch.reward[:] = 3 * rng.normal(size=batch.reward.shape)
    batch.discount[:] = np.where(rng.random(batch.reward.shape) < 0.2, 0.0, 0.9)
    if batch.weight is not None:
        batch.weight[:] = rng.random(batch.weight.shape)
    return batch


def copy_into(to: Batch, source: Batch) -> None:
    for name in ("observation", "action", "reward", "discount", "next_observation", "weight"):
        if getattr(to, name) is not None:
            getattr(to, name)[:] = getattr(source, name)


class Naive:
    """TD3 of one agent by the book: modules, autograd, torch's own Adam, numpy's mean and variance."""

    def __init__(self, td3: TD3, agent: int, seed: int) -> None:
        self.config = config = td3.config
        places = td3._layout
        halves = td3.state[agent].reshape(2, -1)
        self.policy = self.read((5, *config.hidden, 2), halves[0, places.policy_part.start :])
        self.critics = [self.read((7, *config.hidden, 1), half[places.critics :]) for half in halves]
        self.target_policy, self.target_critics = copy.deepcopy(self.policy), copy.deepcopy(self.critics)
        rate, eps = config.learning_rate, config.adam_eps
        self.adam = torch.optim.Adam([p for c in self.critics for p in c.parameters()], lr=rate, eps=eps)
        self.policy_adam = torch.optim.Adam(self.policy.parameters(), lr=rate, eps=eps)
        self.stream = np.random.Generator(np.random.PCG64([seed, 1]))
        self.seen: list[np.ndarray] = []
        self.updates = 0

    @staticmethod
    def read(sizes: tuple[int, ...], flat: np.ndarray) -> torch.nn.Sequential:
        layers: list[torch.nn.Module] = []
        for n_in, n_out in itertools.pairwise(sizes):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        net, at = torch.nn.Sequential(*layers[:-1]), 0
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.from_numpy(flat[at : at + p.numel()].copy()).view_as(p))
                at += p.numel()
        return net

    def normal(self, observation: np.ndarray) -> torch.Tensor:
        if not self.config.normalise:
            return torch.from_numpy(observation.copy())
        if not self.seen:
            return torch.from_numpy(observation.copy()).clamp(-10, 10)
        rows = np.concatenate(self.seen).astype(np.float64)
        normal = (observation - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-6)
        return torch.from_numpy(normal.clip(-10, 10).astype(np.float32))

    def update(self, batch: Batch) -> np.ndarray:
        config, n = self.config, len(batch.reward)
        x, next_x = self.normal(batch.observation), self.normal(batch.next_observation)
        action = torch.from_numpy((batch.action - [0, 5]) / [2, 5]).float()
        weight = torch.ones(n) if batch.weight is None else torch.from_numpy(batch.weight.copy())
        with torch.no_grad():
            noise = torch.from_numpy(self.stream.standard_normal((n, 2), np.float32)) * config.target_noise
            noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
            following = (torch.tanh(self.target_policy(next_x)) + noise).clamp(-1, 1)
            there = torch.cat([next_x, following], 1)
            value = torch.minimum(*(critic(there)[:, 0] for critic in self.target_critics))
            goal = torch.from_numpy(batch.reward * config.reward_scale) + torch.from_numpy(batch.discount) * value
        guesses = [critic(torch.cat([x, action], 1))[:, 0] for critic in self.critics]
        loss = sum((weight * functional.mse_loss(guess, goal, reduction="none")).mean() for guess in guesses)
        self.adam.zero_grad()
        loss.backward()
        if config.max_grad_norm is not None:
            for critic in self.critics:
                torch.nn.utils.clip_grad_norm_(critic.parameters(), config.max_grad_norm)
        self.adam.step()
        self.updates += 1
        if self.updates % config.policy_delay == 0:
            self.policy_adam.zero_grad()
            (-self.critics[0](torch.cat([x, torch.tanh(self.policy(x))], 1)).mean()).backward()
            if config.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.max_grad_norm)
            self.policy_adam.step()
            with torch.no_grad():
                for online, target in (
                    (self.policy, self.target_policy),
                    *zip(self.critics, self.target_critics, strict=True),
                ):
                    for mine, theirs in zip(online.parameters(), target.parameters(), strict=True):
                        theirs.lerp_(mine, config.target_rate)
        self.seen.append(batch.observation.copy())
        return np.stack([(goal - guess).detach().abs().numpy() for guess in guesses]).mean(0)

    def flat(self) -> dict[str, np.ndarray]:
        nets = {"policy": self.policy, "target policy": self.target_policy}
        for i in range(2):
            nets |= {f"critic {i}": self.critics[i], f"target critic {i}": self.target_critics[i]}
        return {
            name: np.concatenate([p.detach().numpy().ravel() for p in net.parameters()]) for name, net in nets.items()
        }


def parts(td3: TD3, agent: int) -> dict[str, np.ndarray]:
    places, halves = td3._layout, td3.state[agent].reshape(2, -1)
    critic = places.critic
    found = {"policy": halves[0, places.policy_part], "target policy": halves[1, places.policy_part]}
    for i in range(2):
        row = halves[i, places.critics :]
        found |= {f"critic {i}": row[: critic.size], f"target critic {i}": row[places.size : places.size + critic.size]}
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy_delay": 1, "max_grad_norm": 0.5},
        {"policy_delay": 3, "prioritised": True},
        {"normalise": True},
        {"target_noise": 0.0, "n_step": 3},
        {"target_noise": 0.8, "target_noise_clip": 0.3},
    ],
)
def test_updates_equal_those_of_a_textbook_implementation(options: dict[str, Any]) -> None:
    config, seeds = replace(SMALL, **options), [3, 4]
    td3 = config.build(SEEN, DONE, 2, seeds)
    naive = [Naive(td3, agent, seed) for agent, seed in enumerate(seeds)]
    batch = random_batch(config, 2, 0)
    for step in range(7):
        copy_into(batch, random_batch(config, 2, step))
        update = td3.update(batch, [step, step])
        for agent, book in enumerate(naive):
            errors = book.update(batch.agent(agent))
            if config.prioritised:
                assert update.priorities is not None
                np.testing.assert_allclose(update.priorities[agent], errors, rtol=1e-3, atol=1e-4)
            ours = parts(td3, agent)
            for name, expected in book.flat().items():
                np.testing.assert_allclose(ours[name], expected, rtol=1e-3, atol=2e-4, err_msg=f"{name}, {step}")
    assert (update.priorities is not None) == config.prioritised
    assert td3.counters.tolist() == [[7], [7]]


def test_gradients_equal_autograds() -> None:
    """Of weights, biases and inputs, through a network on strided rows as the critics have them."""
    block, rng = DensePlan((4, 9, 6, 1)), np.random.default_rng(0)
    rows = torch.zeros(3, 200)
    flat, grad = rows[:, 20 : 20 + block.size], torch.zeros(3, block.size)
    for row in flat:
        block.initialise(row.numpy(), rng)
    net, x, slope = block.bind(flat, grad, inputs=True), torch.randn(3, 7, 4), torch.randn(3, 7, 1)
    back = net.backward(net.forward(x, learn=True), slope.clone())
    assert back is not None
    for agent in range(3):
        own = flat[agent].clone().requires_grad_()
        inside, out = x[agent].clone().requires_grad_(), None
        out = inside
        for i, (n_in, n_out, w, b) in enumerate(block.layers):
            out = out @ own[w : w + n_in * n_out].view(n_out, n_in).T + own[b : b + n_out]
            out = torch.relu(out) if i < 2 else out
        out.backward(slope[agent])
        np.testing.assert_allclose(back[agent], inside.grad, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(grad[agent], own.grad, rtol=1e-4, atol=1e-6)
    only_inputs = block.bind(flat, inputs=True)
    again = only_inputs.backward(only_inputs.forward(x, learn=True), slope.clone())
    assert again is not None and torch.equal(again, back)


def test_stacked_equals_separate() -> None:
    config, seeds = replace(SMALL, prioritised=True, normalise=True), [5, 6, 7]
    stacked = config.build(SEEN, DONE, 3, seeds)
    batch = random_batch(config, 3, 1)
    alone = [config.build(SEEN, DONE, 1, [seed]) for seed in seeds]
    single = stacked_batch(SEEN, DONE, config.replay(SEEN, DONE), 1)
    for step in range(4):
        copy_into(batch, random_batch(config, 3, step))
        update = stacked.update(batch, [0, 0, 0])
        for agent, own in enumerate(alone):
            for name in ("observation", "next_observation", "action", "reward", "discount", "weight"):
                getattr(single, name)[:] = getattr(batch, name)[agent : agent + 1]
            priorities = own.update(single, [0]).priorities
            np.testing.assert_allclose(update.priorities[agent], priorities[0], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(stacked.state[agent], own.state[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"prioritised": True, "n_step": 3}, {"normalise": True}, {"n_frames": 3, "normalise": True}]
)
def test_the_contract_is_kept(options: dict[str, Any]) -> None:
    check_algorithm(replace(SMALL, **options), SEEN, DONE)


def test_a_nest_of_observations_and_actions_with_two_axes() -> None:
    space = Dict({"near": Box(0, 255, (4, 4), "uint8"), "far": Box(-1, 1, (2,)), "which": Discrete(3)})
    check_algorithm(replace(SMALL, normalise=True), space, Box(-1, 1, (2, 2), "float64"))


SEEN_PICTURE = Box(0, 255, (13, 12, 2), "uint8")


def test_pictures_keep_the_contract() -> None:
    check_algorithm(SMALL, SEEN_PICTURE, DONE)
    check_algorithm(replace(SMALL, n_frames=2, policy_delay=1, max_grad_norm=0.5), SEEN_PICTURE, DONE)
    with pytest.raises(SettingError, match="pictures"):
        replace(SMALL, normalise=True).sizes(SEEN_PICTURE, DONE)


def test_convolutions_learn_with_both_critics_and_not_with_the_policy() -> None:
    """Their gradient is autograd's of the critics' loss; the policy's step leaves them alone."""
    config = replace(SMALL, policy_delay=2)
    td3 = config.build(SEEN_PICTURE, DONE, 2, [3, 4])
    picture, critic, policy = td3._layout.encoder, td3._layout.critic, td3._layout.policy_part
    assert isinstance(picture, PicturePlan) and isinstance(critic, DensePlan)
    batch, rng = stacked_batch(SEEN_PICTURE, DONE, config.replay(SEEN_PICTURE, DONE), 2), np.random.default_rng(0)
    for seen in (batch.observation, batch.next_observation):
        seen[:] = rng.integers(0, 256, seen.shape)
    batch.action[:] = DONE.low + (DONE.high - DONE.low) * rng.random(batch.action.shape)
    batch.reward[:] = rng.normal(size=batch.reward.shape)  # no discount: the goal is the scaled reward
    before = td3.state.copy()
    td3.update(batch, [0, 0])

    def dense(block: DensePlan, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        layers = list(block.layers)
        for i, (n_in, n_out, w, b) in enumerate(layers):
            x = x @ flat[w : w + n_in * n_out].view(n_out, n_in).T + flat[b : b + n_out]
            x = torch.relu(x) if i < len(layers) - 1 else x
        return x

    for agent in range(2):
        halves = torch.from_numpy(before[agent].reshape(2, -1))
        eyes = halves[0].clone().requires_grad_()
        x = torch.from_numpy(batch.observation[agent]).float().movedim(3, 1) / 255
        for weight, bias in zip(picture.parameters[::2], picture.parameters[1::2], strict=True):
            x = torch.relu(functional.conv2d(x, eyes[weight.part].view(weight.shape), eyes[bias.part], 2))
        action = torch.from_numpy((batch.action[agent] - [0, 5]) / [2, 5]).float()
        seen_by_critics = torch.cat([x.flatten(1), action], 1)
        goal = torch.from_numpy(batch.reward[agent] * config.reward_scale)
        guesses = [dense(critic, half[td3._layout.critics :], seen_by_critics)[:, 0] for half in halves]
        sum(functional.mse_loss(guess, goal) for guess in guesses).backward()
        np.testing.assert_allclose(
            td3._policy_grad[agent, : picture.size], eyes.grad[: picture.size], rtol=1e-3, atol=1e-5
        )
        assert not np.array_equal(td3.state[agent, : picture.size], before[agent, : picture.size])
        np.testing.assert_array_equal(td3.state[agent, policy], before[agent, policy])


@pytest.mark.parametrize("normalise", [False, True])
def test_acting_is_the_policy_of_the_learner(normalise: bool) -> None:
    config = replace(SMALL, normalise=normalise)
    td3 = config.build(SEEN, DONE, 1, [3])
    batch = random_batch(config, 1, 0)
    for _ in range(5):
        td3.update(batch, [0])
    x = torch.from_numpy(batch.observation.copy())
    if td3._normaliser is not None:
        td3._normaliser.apply(x)
    with torch.inference_mode():
        expected = np.tanh(td3._policy.forward(x).out[0].numpy()) * [2, 5] + [0, 5]
    behaviour = config.behaviour(SEEN, DONE)
    behaviour.load(td3.weights()[0], td3.header(100, 0))
    np.testing.assert_allclose(behaviour.act(batch.observation[0], explore=False)[0], expected, rtol=1e-4, atol=1e-5)


def test_noise_and_bounds() -> None:
    config = replace(SMALL, noise=0.3)
    td3 = config.build(SEEN, DONE, 1, [3])
    behaviour = config.behaviour(SEEN, DONE)
    with pytest.raises(NotReadyError):
        behaviour.act(np.zeros((1, 5), "float32"))
    rows = np.zeros((20_000, 5), "float32")
    weights, header = td3.weights()[0], td3.header(0, 0)
    assert header["random"] is True
    behaviour.begin(1)
    behaviour.load(weights, header)
    uniform, _ = behaviour.act(rows)
    assert DONE.low.tolist() <= uniform.min(0).tolist() < [-1.99, 0.01]
    assert [1.99, 9.99] < uniform.max(0).tolist() <= DONE.high.tolist()
    np.testing.assert_allclose(uniform.std(0), np.array([4, 10]) / np.sqrt(12), rtol=0.02)
    behaviour.load(weights, {**header, "random": False})
    greedy, noisy = behaviour.act(rows[:1], explore=False)[0], behaviour.act(rows)[0]
    assert DONE.contains(noisy[0])
    np.testing.assert_allclose(noisy.std(0), [0.6, 1.5], rtol=0.03)  # 0.3 of half of the range
    np.testing.assert_allclose(noisy.mean(0), greedy[0], atol=0.05)


def test_the_random_stream_depends_on_neither_weights_nor_noise() -> None:
    td3 = SMALL.build(SEEN, DONE, 2, [3, 4])
    after = []
    for agent, header in ((0, td3.header(0, 0)), (1, {**td3.header(0, 0), "random": False, "noise": 0.0})):
        behaviour = SMALL.behaviour(SEEN, DONE)
        behaviour.begin(5)
        behaviour.load(td3.weights()[agent], header)
        behaviour.act(np.ones((7, 5), "float32"))
        behaviour.load(td3.weights()[0], td3.header(0, 0))
        after.append(behaviour.act(np.ones((7, 5), "float32"))[0])
    np.testing.assert_array_equal(after[0], after[1])


def test_header_values_are_published_with_the_weights() -> None:
    stages = Stages({"warm_up": 100, "ramp": 100, "full": None})
    noise = Staged({"warm_up": 1.0, "ramp": Linear(1.0, 0.5, 100), "full": 0.1})
    td3 = replace(SMALL, stages=stages, noise=noise).build(SEEN, DONE, 1, [3])
    seen = [(td3.header(step, 0)["stage"], td3.header(step, 0)["noise"]) for step in (0, 99, 100, 150, 200)]
    assert seen == [(0, 1.0), (0, 1.0), (1, 1.0), (1, 0.75), (2, 0.1)]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"hidden": ()}, "hidden"),
        ({"noise": -1.0}, "noise"),
        ({"target_rate": 0.0}, "target_rate"),
        ({"policy_delay": 0}, "policy_delay"),
        ({"reward_scale": 0.0}, "reward_scale"),
        ({"target_noise_clip": -0.1}, "target_noise_clip"),
        ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"min_rows": 4}, "min_rows"),
        ({"freeze_normaliser_on_stage": "full"}, "normalise"),
        ({"normalise": True, "freeze_normaliser_on_stage": "never"}, "never"),
        ({"noise": Staged({"soon": 1.0})}, "soon"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingError, match=word):
        replace(SMALL, **options)


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        Box(-np.inf, np.inf, (2,)),
        Box(0, 5, (2,), "int64"),
        Box(np.zeros(2), np.array([1.0, 0.0]), dtype=np.float64),
    ],
)
def test_other_actions_are_refused(space: Any) -> None:
    with pytest.raises(SettingError, match="action space"):
        SMALL.replay(SEEN, space)
    with pytest.raises(SettingError, match="mask"):
        SMALL.replay(SEEN, DONE, masked=True)


def test_correlated_noise_has_the_same_deviation_and_the_given_autocorrelation():
    config = TD3Config(hidden=(4,), noise=0.1, noise_memory=0.9)
    behaviour, white = config.behaviour(SEEN, DONE), TD3Config(hidden=(4,), noise=0.1).behaviour(SEEN, DONE)
    learnt = config.build(SEEN, DONE, 1, [0])
    header = {**learnt.header(step=0, agent=0), "random": False}
    for one in (behaviour, white):
        one.begin(3)
        one.load(np.zeros_like(learnt.weights()[0]), header)  # all actions are the noise alone
    seen = np.zeros((8, *SEEN.shape), np.float32)
    first = behaviour.act(seen[:5])[0]
    assert np.array_equal(first, white.act(seen[:5])[0])  # nothing to go on from
    course = np.stack([behaviour.act(seen)[0].reshape(8, -1) for _ in range(4000)])
    unit = (course - course.mean(0)) / course.std(0)
    scale = (DONE.high - DONE.low).ravel() / 2
    np.testing.assert_allclose(course.std((0, 1)) / scale, 0.1, rtol=0.05)
    np.testing.assert_allclose((unit[1:] * unit[:-1]).mean((0, 1)), 0.9, atol=0.02)
    together = np.corrcoef(course[:, :, 0].T) - np.eye(8)
    assert abs(together).max() < 0.3  # each row has its own
    behaviour.begin(3)
    assert np.array_equal(first, behaviour.act(seen[:5])[0])

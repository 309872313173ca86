import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from motet.algorithm import stacked_batch
from motet.algorithms._device import Device
from motet.algorithms._distributions import actions_of
from motet.algorithms._likelihoods import likelihoods_of
from motet.algorithms._ppo_learner import _MiniBatch, advantages
from motet.algorithms.ppo import PPOConfig
from motet.errors import NotReadyError, SettingError
from motet.masks import mask_form
from motet.nest import map_nest, unstack_nest
from motet.schedule import Linear, Stages
from motet.testing import check_algorithm
from motet.testing.algorithm import random_mask

OBSERVATIONS = Box(-1, 1, (5,))
ACTIONS = {
    "discrete": Discrete(4),
    "discrete, from 2": Discrete(3, start=2),
    "several": MultiDiscrete([2, 3, 4]),
    "continuous": Box(-2, 2, (3,)),
    "unbounded": Box(-np.inf, np.inf, (2, 2)),
    "several, two axes": MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [5, 0]]),
    "bits": MultiBinary(3),
    "bits, two axes": MultiBinary((2, 2)),
    "dict": Dict(
        {
            "turn": Box(-2, 2, (2,)),
            "move": Discrete(3, start=4),
            "hands": Tuple([MultiDiscrete([2, 3]), Box(-1, 1, ()), MultiBinary(2)]),
        }
    ),
    "tuple": Tuple([MultiBinary(2), Discrete(3)]),
}
MASKED = [name for name in ACTIONS if mask_form(ACTIONS[name]).size]
SMALL = {"hidden": (8, 6), "batch_size": 3, "length": 10, "minibatches": 3, "epochs": 2}


def acted(config, actions, ppo, seed=0, *, masked=False, lag=0.0):
    """A batch as actors would make it with the present policies, a sixth of its rows without a start."""
    agents, rng = len(ppo.state), np.random.default_rng(seed)
    batch = stacked_batch(OBSERVATIONS, actions, config.replay(OBSERVATIONS, actions, masked=masked), agents)
    batch.observation[:] = rng.normal(size=batch.observation.shape)
    batch.reward[:] = rng.normal(size=batch.reward.shape)
    batch.valid[:] = rng.random(batch.valid.shape) > 1 / 6
    batch.discount[:] = np.where(rng.random(batch.valid.shape) < 0.2, 0.0, config.gamma) * batch.valid
    if masked:
        form, size = mask_form(actions), batch.extra["mask"].shape[-1]
        for row in batch.extra["mask"].reshape(-1, size):
            form.put(random_mask(form, rng), row)
    for a in range(agents):
        behaviour = config.behaviour(OBSERVATIONS, actions)
        behaviour.begin(a)
        behaviour.load(np.ascontiguousarray(ppo.weights()[a]), {})
        seen = batch.observation[a][:, :-1].reshape(-1, 5)
        mask = batch.extra["mask"][a][:, :-1].reshape(len(seen), -1) if masked else None
        done, extra = behaviour.act(seen, mask)
        map_nest(lambda to, given: to[a].reshape(given.shape).__setitem__(..., given), batch.action, done)  # noqa: B023
        for name, value in extra.items():
            batch.extra[name][a] = value.reshape(batch.extra[name][a].shape)
    batch.extra["log_prob"][:] += lag * rng.normal(size=batch.reward.shape)
    return batch


# ---- what an update computes, written down once more


def plain_advantages(reward, discount, valid, values, weight, gae_lambda):
    """By its definition: a sum over the rows of the chain, for one fragment."""
    length = len(reward)
    delta = [reward[t] + discount[t] * values[t + 1] - values[t] for t in range(length)]
    result = []
    for t in range(length):
        total, factor = 0.0, 1.0
        for k in range(t, length):
            if k > t:
                if not valid[k]:
                    break
                factor *= discount[k - 1] * gae_lambda * weight[k]
            total += factor * delta[k]
        result.append(total)
    return np.array(result)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 0.95, 1.0])
def test_advantages_are_the_sum_they_are_defined_by(gae_lambda):
    rng = np.random.default_rng(1)
    shape = (2, 3, 12)
    reward, values = rng.normal(size=shape), rng.normal(size=(2, 3, 13))
    discount = np.where(rng.random(shape) < 0.2, 0.0, 0.9)
    valid, weight = rng.random(shape) > 0.2, np.minimum(1.0, rng.random(shape) * 2)
    found = advantages(reward, discount, valid, values, weight, gae_lambda)
    for a, f in np.ndindex(2, 3):
        expected = plain_advantages(reward[a, f], discount[a, f], valid[a, f], values[a, f], weight[a, f], gae_lambda)
        np.testing.assert_allclose(found[a, f][valid[a, f]], expected[valid[a, f]], rtol=1e-6)


def test_without_a_lag_they_are_generalised_advantages_exactly():
    """The recursion of the paper, over episodes: the same operations in the same order, so the same bits."""
    rng = np.random.default_rng(2)
    reward, values = rng.normal(size=40).astype("f4"), rng.normal(size=41).astype("f4")
    ends = np.arange(40) % 13 == 12
    discount = np.where(ends, 0.0, 0.97).astype("f4")
    last, expected = np.float32(0), np.zeros(40, "f4")
    for t in reversed(range(40)):
        delta = reward[t] + discount[t] * values[t + 1] - values[t]
        last = delta + discount[t] * np.float32(0.9) * last
        expected[t] = last
    ones = np.ones(40, "f4")
    found = advantages(reward, discount, ones > 0, values, ones, 0.9)
    np.testing.assert_array_equal(found, expected)


def test_the_value_of_a_broken_row_is_the_bootstrap_value():
    """Its value stands for the rest of the episode, and nothing of the next episode reaches back over it."""
    reward, valid = np.array([1.0, 2.0, 0.0, 100.0]), np.array([True, True, False, True])
    discount, values = np.array([0.5, 0.5, 0.0, 0.5]), np.array([0.0, 0.0, 8.0, 50.0, 70.0])
    found = advantages(reward, discount, valid, values, np.ones(4), 1.0)
    np.testing.assert_allclose(found[:2], [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8])


def network(flat, sizes, start, activation):
    """A plain network on a flat parameter, for autograd."""
    layers, at = [], start
    for n_in, n_out in itertools.pairwise(sizes):
        layers.append((flat[at : at + n_in * n_out].view(n_out, n_in), flat[at + n_in * n_out :][:n_out]))
        at += n_in * n_out + n_out

    def run(x):
        for i, (weight, bias) in enumerate(layers):
            x = x @ weight.T + bias
            if i < len(layers) - 1:
                x = activation(x)
        return x

    return run


def likelihood(actions, out, own, chosen, mask):
    """Log-probabilities and entropies by torch's own distributions."""
    if isinstance(actions, Dict | Tuple):
        parts = actions.spaces.values() if isinstance(actions, Dict) else actions.spaces
        inner = [actions_of(part) for part in parts]
        outs = out.split([part.outputs for part in inner], -1)
        owns = own.split([part.parameters for part in inner], -1)
        done = chosen.split([part.chosen for part in inner], -1)
        masks = [None] * len(inner) if mask is None else mask.split([part.mask_size for part in inner], -1)
        found = [likelihood(*given) for given in zip(parts, outs, owns, done, masks, strict=True)]
        return sum(logs for logs, _ in found), sum(entropies for _, entropies in found)
    if isinstance(actions, Box):
        normal = torch.distributions.Normal(out, own.exp())
        return normal.log_prob(chosen).sum(-1), normal.entropy().sum(-1)
    if isinstance(actions, MultiBinary) and mask is None:
        bits = torch.distributions.Bernoulli(logits=out)
        return bits.log_prob(chosen).sum(-1), bits.entropy().sum(-1)
    if isinstance(actions, MultiBinary):  # two actions each, one of which has the logit 0
        counts, out = [2] * out.shape[-1], torch.stack([torch.zeros_like(out), out], -1).flatten(-2)
    else:
        counts = [int(actions.n)] if isinstance(actions, Discrete) else actions.nvec.ravel().tolist()
    out = out if mask is None else out.masked_fill(~mask, -math.inf)
    parts = [torch.distributions.Categorical(logits=z) for z in out.split(counts, -1)]
    logs = torch.stack([part.log_prob(chosen[..., i]) for i, part in enumerate(parts)]).sum(0)
    return logs, sum(part.entropy() for part in parts)


def reference(config, actions, ppo, batch, agent, steps):
    """The first step of an update by autograd; returns the gradient it follows, before it is scaled down."""
    places, inner = ppo._layout, actions_of(actions)
    row = torch.from_numpy(ppo.state[agent].copy()).requires_grad_()
    activation = torch.tanh if config.activation == "tanh" else torch.relu
    policy = network(row, places.policy.sizes, places.policy_part.start, activation)
    critic = network(row, places.critic.sizes, places.critic_part.start, activation)
    seen = torch.from_numpy(batch.observation[agent])
    chosen = likelihoods_of(inner, Device("cpu")).chosen(batch)[agent]
    mask = torch.from_numpy(batch.extra["mask"][agent][:, :-1]).flatten(0, 1) if "mask" in batch.extra else None
    x, valid = seen[:, :-1].flatten(0, 1), torch.from_numpy(batch.valid[agent]).flatten()
    log_prob, entropy = likelihood(actions, policy(x), row[places.own], chosen, mask)
    values = critic(seen).squeeze(-1)
    before = log_prob.detach()
    weight = torch.exp(before - torch.from_numpy(batch.extra["log_prob"][agent]).flatten()).clamp(max=1)
    gain = torch.from_numpy(
        advantages(
            batch.reward[agent] * np.float32(config.reward_scale), batch.discount[agent], batch.valid[agent],
            values.detach().numpy(), weight.view(values.shape[0], -1).numpy(), config.gae_lambda,
        )
    ).flatten()  # fmt: skip
    goal = values[:, :-1].detach().flatten() + weight * gain
    if config.normalise_advantages:
        gain = (gain - gain[valid].mean()) / (gain[valid].std(unbiased=False) + 1e-8)
    order = np.random.Generator(np.random.PCG64([agent + 1, 1])).permutation(len(x))
    part = torch.from_numpy(order[: len(x) // config.minibatches])
    part = part[valid[part]]
    ratio = torch.exp(log_prob - before)[part]
    clip = config.clip
    surrogate = torch.minimum(ratio * gain[part], ratio.clamp(1 - clip, 1 + clip) * gain[part])
    value_loss = 0.5 * (values[:, :-1].flatten()[part] - goal[part]).square()
    loss = (-weight[part] * surrogate + config.value_weight * value_loss - config.entropy * entropy[part]).mean()
    loss.backward()
    return row.grad[places.learned].numpy()


class Stop(Exception):
    pass


def first_gradient(ppo, batch, steps, monkeypatch):
    """The gradient of an update's first step, before it is scaled down."""

    def stop(grad, norm):
        raise Stop

    monkeypatch.setattr("motet.algorithms._ppo_learner.clip_rows", stop)
    with pytest.raises(Stop):
        ppo.update(batch, steps)
    return ppo._grad.numpy()


@pytest.mark.parametrize("lag", [0.0, 0.7])
@pytest.mark.parametrize("name", ACTIONS)
def test_the_gradient_is_that_of_the_loss(name, lag, monkeypatch):
    actions = ACTIONS[name]
    config = PPOConfig(**SMALL, entropy=0.03, reward_scale=0.5, first_log_std=-0.4)
    ppo = config.build(OBSERVATIONS, actions, agents=2, seeds=[1, 2])
    size = ppo._layout.learned.stop
    ppo.state[:, :size] += 0.1 * np.random.default_rng(0).normal(size=(2, size))
    batch = acted(config, actions, ppo, lag=lag)
    expected = [reference(config, actions, ppo, batch, a, [0, 0]) for a in range(2)]
    found = first_gradient(ppo, batch, [0, 0], monkeypatch)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", MASKED)
def test_the_gradient_under_masks_is_that_of_the_loss(name, monkeypatch):
    config = PPOConfig(**SMALL, entropy=0.1, activation="relu", normalise_advantages=False)
    actions = ACTIONS[name]
    ppo = config.build(OBSERVATIONS, actions, agents=2, seeds=[1, 2])
    size = ppo._layout.learned.stop
    ppo.state[:, :size] += 0.3 * np.random.default_rng(0).normal(size=(2, size))
    batch = acted(config, actions, ppo, masked=True)
    expected = [reference(config, actions, ppo, batch, a, [0, 0]) for a in range(2)]
    found = first_gradient(ppo, batch, [0, 0], monkeypatch)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("clip_value", [None, 0.1])
def test_rows_beyond_the_clip_range_get_no_gradient(clip_value, monkeypatch):
    """A step in the middle of an update: some ratios and values have moved further than they may."""
    config = PPOConfig(**SMALL, clip_value=clip_value)
    ppo, rng = config.build(OBSERVATIONS, Discrete(4), agents=2, seeds=[1, 2]), np.random.default_rng(0)
    ppo.state[:, : ppo._layout.learned.stop] += 0.3 * rng.normal(size=(2, ppo._layout.learned.stop))
    torch.manual_seed(0)
    clip = torch.tensor([[0.2], [0.05]])
    x, chosen = torch.randn(2, 50, 5), torch.randint(4, (2, 50, 1))
    share = (torch.rand(2, 50) > 0.2) / 40.0
    before, gain = torch.log(torch.full((2, 50), 0.25)) + 0.3 * torch.randn(2, 50), torch.randn(2, 50) * share
    part = _MiniBatch(x, chosen, None, before, gain, torch.randn(2, 50), 0.3 * torch.randn(2, 50), share)
    monkeypatch.setattr("motet.algorithms._ppo_learner.clip_rows", lambda grad, norm: grad.new_zeros(2))
    monkeypatch.setattr(ppo._adam, "step", lambda rates, eps: None)
    with torch.inference_mode():
        ppo._step(part, clip, torch.zeros(2, 1), [0.0, 0.0], measure=True)
    found, places = ppo._grad.numpy().copy(), ppo._layout
    clipped = []
    for a in range(2):
        row = torch.from_numpy(ppo.state[a].copy()).requires_grad_()
        logits = network(row, places.policy.sizes, places.policy_part.start, torch.tanh)(x[a])
        ratio = (torch.log_softmax(logits, -1).gather(1, chosen[a]).squeeze(1) - before[a]).exp()
        low, high = float(1 - clip[a]), float(1 + clip[a])
        loss = -torch.minimum(ratio * gain[a], ratio.clamp(low, high) * gain[a]).sum()
        value = network(row, places.critic.sizes, places.critic_part.start, torch.tanh)(x[a]).squeeze(1)
        error = (value - part.goal[a]).square()
        if clip_value is not None:
            near = part.value[a] + (value - part.value[a]).clamp(-clip_value, clip_value)
            error = torch.maximum(error, (near - part.goal[a]).square())
        (loss + config.value_weight * 0.5 * (error * share[a]).sum()).backward()
        np.testing.assert_allclose(found[a], row.grad[places.learned].numpy(), rtol=2e-4, atol=2e-6)
        moved = torch.where(gain[a] > 0, ratio > high, ratio < low) & (share[a] > 0)
        clipped.append(float((moved * share[a]).sum()))
    assert min(clipped) > 0.1
    np.testing.assert_allclose(ppo._metrics["clipped"], clipped, rtol=1e-5)


def test_rows_of_an_older_policy_weigh_less():
    config = PPOConfig(**SMALL)
    ppo = config.build(OBSERVATIONS, Discrete(4), agents=1, seeds=[1])
    batch = acted(config, Discrete(4), ppo)
    ppo.update(batch, [0])
    assert ppo._metrics["weight"][0] == pytest.approx(1.0, abs=1e-6)
    ppo = config.build(OBSERVATIONS, Discrete(4), agents=1, seeds=[1])
    batch.extra["log_prob"][:] += 0.5
    ppo.update(batch, [0])
    assert ppo._metrics["weight"][0] == pytest.approx(math.exp(-0.5), rel=1e-4)


# ---- contracts


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("name", ACTIONS)
def test_ppo_keeps_the_contract(name, normalise):
    check_algorithm(PPOConfig(**SMALL, normalise=normalise), OBSERVATIONS, ACTIONS[name])


def test_ppo_keeps_the_contract_with_masks_frames_and_schedules():
    rate, clip = Linear(1e-3, 0.0, 10), Linear(0.2, 0.0, 10)
    config = PPOConfig(**SMALL, n_frames=3, learning_rate=rate, clip=clip, clip_value=0.2)
    check_algorithm(config, OBSERVATIONS, Discrete(4), masked=True)
    check_algorithm(config, OBSERVATIONS, ACTIONS["dict"], masked=True)
    remembering = PPOConfig(hidden=(8,), batch_size=4, length=8, minibatches=2, memory="gru", memory_size=4)
    check_algorithm(remembering, OBSERVATIONS, ACTIONS["dict"], masked=True)
    check_algorithm(config, Dict({"a": OBSERVATIONS, "b": Discrete(3)}), Discrete(4))


@pytest.mark.parametrize("name", ACTIONS)
def test_log_probabilities_of_actor_and_learner_agree(name):
    config, actions = PPOConfig(**SMALL, first_log_std=-0.7, normalise=True), ACTIONS[name]
    ppo = config.build(OBSERVATIONS, actions, agents=1, seeds=[3])
    for seed in range(3):  # statistics and weights of a version belong together
        batch = acted(config, actions, ppo, seed)
        ppo.update(batch, [0])
        assert ppo._metrics["weight"][0] == pytest.approx(1.0, abs=1e-5)


def test_draws_follow_the_probabilities():
    space, rng = MultiDiscrete([3, 2]), np.random.default_rng(0)
    logits = np.log(np.array([0.2, 0.3, 0.5, 0.9, 0.1], "f4"))
    done, extra = actions_of(space).draw(np.tile(logits, (40_000, 1)), None, None, rng)
    assert space.contains(done[0])
    shares = [np.bincount(done[:, 0]) / 40_000, np.bincount(done[:, 1]) / 40_000]
    np.testing.assert_allclose(np.concatenate(shares), np.exp(logits), atol=0.01)
    np.testing.assert_allclose(extra["log_prob"], logits[done[:, 0]] + logits[3 + done[:, 1]], rtol=1e-5)


def test_draws_of_bits_and_dicts_follow_the_probabilities():
    space, rng = Dict({"lamps": MultiBinary(2), "move": Discrete(3, start=1)}), np.random.default_rng(0)
    shares = np.array([0.2, 0.9], "f8")
    logits = np.concatenate([np.log(shares / (1 - shares)), np.log([0.2, 0.3, 0.5])]).astype("f4")
    done, extra = actions_of(space).draw(np.tile(logits, (40_000, 1)), {"lamps": None, "move": None}, None, rng)
    np.testing.assert_allclose(done["lamps"].mean(0), shares, atol=0.01)
    np.testing.assert_allclose(np.bincount(done["move"])[1:] / 40_000, [0.2, 0.3, 0.5], atol=0.01)
    both = np.mean(done["lamps"].all(1) & (done["move"] == 3))
    assert both == pytest.approx(0.2 * 0.9 * 0.5, abs=0.006)  # the parts are independent
    bits = np.where(done["lamps"], shares, 1 - shares).prod(1)
    np.testing.assert_allclose(extra["log_prob"], np.log(bits) + logits[1 + done["move"]], rtol=1e-5)
    greedy, _ = actions_of(space).draw(logits[None], {"lamps": None, "move": None}, None, None)
    assert greedy["lamps"].tolist() == [[0, 1]]
    assert greedy["move"].tolist() == [3]


@pytest.mark.parametrize("name", MASKED)
def test_masks_of_all_spaces_are_kept_to(name):
    """Also by the actions that a policy without the mask would take almost always, and greedily."""
    space, rng = ACTIONS[name], np.random.default_rng(0)
    actions, form = actions_of(space), mask_form(space)
    masks = [random_mask(form, rng) for _ in range(500)]
    flat = np.stack([form.flat(mask) for mask in masks])
    out = (30 * rng.normal(size=(500, actions.outputs))).astype("f4")
    prepared = actions.prepare(np.zeros(actions.parameters, "f4"))
    for stream in (rng, None):
        done, extra = actions.draw(out, prepared, flat, stream)
        for mask, action in zip(masks, unstack_nest(done), strict=True):
            assert form.allows(mask, action)
        assert np.isfinite(extra["log_prob"]).all()
    free, _ = actions.draw(out, prepared, None, rng)
    assert not all(form.allows(mask, action) for mask, action in zip(masks, unstack_nest(free), strict=True))


def test_masked_values_are_never_drawn():
    rng, masks = np.random.default_rng(0), np.tile([False, True, False, True, False], (50_000, 1))
    logits = np.tile(np.array([50, 0, 50, 0, 50], "f4"), (50_000, 1))
    done, extra = actions_of(Discrete(5)).draw(logits, None, masks, rng)
    assert set(done) == {1, 3}
    np.testing.assert_allclose(extra["log_prob"], math.log(0.5), rtol=1e-6)

    class Edge:
        """The largest number that a stream can give."""

        def random(self, shape):
            return np.full(shape, np.nextafter(1.0, 0.0))

    for scale in (1e-3, 1.0, 1e3):
        done, _ = actions_of(Discrete(5)).draw(logits[:1] * scale, None, masks[:1], Edge())
        assert done[0] == 3


def test_continuous_actions_are_cut_off_for_the_world_alone():
    space = Box(np.array([-2.0, 0.0], "f4"), np.array([2.0, 10.0], "f4"))
    out = np.array([[0.0, 0.0], [3.0, -3.0], [0.5, 0.5]], "f4")
    actions = actions_of(space)
    prepared = actions.prepare(np.zeros(2, "f4"))
    done, _ = actions.draw(out, prepared, None, None)
    np.testing.assert_allclose(done, [[0, 5], [2, 0], [1, 7.5]])
    done, extra = actions.draw(np.repeat(out, 1000, 0), prepared, None, np.random.default_rng(0))
    assert all(map(space.contains, done))
    away = extra["unclipped"] - np.repeat(out, 1000, 0)
    assert np.abs(away.mean()) < 0.05
    assert away.std() == pytest.approx(1, abs=0.05)
    normal = torch.distributions.Normal(torch.from_numpy(np.repeat(out, 1000, 0)), 1.0)
    expected = normal.log_prob(torch.from_numpy(extra["unclipped"])).sum(1)
    np.testing.assert_allclose(extra["log_prob"], expected, rtol=1e-4, atol=1e-4)


def test_a_new_version_brings_its_own_deviations():
    config, spaces = PPOConfig(hidden=(8,)), (Box(-1, 1, (3,)), Box(-1, 1, (2,)))
    weights = config.build(*spaces, agents=1, seeds=[1]).weights()[0].copy()
    behaviour, seen, drawn = config.behaviour(*spaces), np.zeros((5, 3), "f4"), []
    for _ in range(2):
        behaviour.load(weights, {})
        mean = behaviour.act(seen, explore=False)[1]["unclipped"]
        behaviour.begin(7)
        drawn.append(behaviour.act(seen)[1]["unclipped"] - mean)
        weights = weights.copy()
        weights[behaviour._own] += np.log(3.0)
    np.testing.assert_allclose(drawn[1], 3 * drawn[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": ()}, "hidden"),
        (
            {"minibatches": 7},
            r"minibatches must divide the 1024 rows of an update \(batch_size 8 times length 128\), got 7",
        ),
        ({"gae_lambda": 1.5}, "gae_lambda"),
        ({"clip": -0.1}, "clip"),
        ({"clip_value": 0.0}, "clip_value"),
        ({"epochs": 0}, "epochs"),
        ({"activation": "gelu"}, "activation"),
        ({"value_weight": -1.0}, "value_weight"),
        ({"first_log_std": math.nan}, "first_log_std"),
        (
            {"freeze_normaliser_on_stage": "full"},
            r"freeze_normaliser_on_stage is only valid with normalise=True \(got normalise=False\)",
        ),
        (
            {"stages": Stages({"a": 10, "b": None}, clear_replay_on_stage=("b",))},
            "clear_replay_on_stage is not valid with once=True: rows that are read once are never cleared",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        PPOConfig(**settings)


def test_spaces_that_ppo_does_not_support_are_refused():
    config = PPOConfig()
    with pytest.raises(
        SettingError,
        match=r"action space must be Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of "
        r"them, got Box\(0, 5",
    ):
        config.replay(OBSERVATIONS, Box(0, 5, (2,), np.int64))
    for space, kind in ((MultiBinary(2), "MultiBinary"), (Dict(a=Discrete(2)), "Dict")):
        with pytest.raises(
            SettingError, match=f"must act in Discrete, MultiDiscrete or Box spaces, got a {kind} space"
        ):
            actions_of(space).best()
    with pytest.raises(SettingError, match=r"masks are not valid with continuous actions \(got Box"):
        config.replay(OBSERVATIONS, Box(0, 5, (2,)), masked=True)
    with pytest.raises(NotReadyError, match="no weights"):
        config.behaviour(OBSERVATIONS, Discrete(2)).act(np.zeros((1, 5), "f4"))

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from motet.algorithm import stacked_batch
from motet.algorithms._picture_plan import PicturePlan, is_picture
from motet.algorithms.ppo import PPOConfig
from motet.errors import SettingError
from motet.testing import check_algorithm

LAST, FIRST, GREY = ((14, 12, 3), (2, 16, 13), (15, 13))
SMALL = {"hidden": (8,), "batch_size": 2, "length": 6, "minibatches": 3, "epochs": 2}


def space(shape):
    return Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize("n_frames", [1, 3])
@pytest.mark.parametrize("shape", [LAST, FIRST, GREY, (40, 38, 1)])
def test_features_and_gradients_are_those_of_the_formula(shape, n_frames):
    picture = PicturePlan(space(shape), n_frames)
    rng = np.random.default_rng(0)
    rows = np.zeros((2, picture.size), np.float32)
    for row in rows:
        picture.initialise(row, rng)
    rows += 0.1 * rng.normal(size=rows.shape)
    seen = rng.random((2, 4, n_frames, *shape)).astype(np.float32)
    grad, back = torch.zeros(2, picture.size), torch.from_numpy(rng.normal(size=(2, 4, picture.outputs)))
    with torch.no_grad():
        net = picture.bind(torch.from_numpy(rows), grad)
        done = net.forward(torch.from_numpy(seen).flatten(2), learn=True)
        net.backward(done, back.float())
    for a in range(2):
        flat = torch.from_numpy(rows[a].copy()).requires_grad_()
        x = torch.from_numpy(seen[a]) if len(shape) == 3 else torch.from_numpy(seen[a]).unsqueeze(-1)
        x = (x if shape == FIRST else x.movedim(-1, 2)).flatten(1, 2)  # [rows, frames x channels, height, width]
        at = 0
        layers = ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if 40 in shape else ((16, 3, 2), (32, 3, 2))
        for channels, kernel, stride in layers:
            n = channels * x.shape[1] * kernel * kernel
            weight = flat[at : at + n].view(channels, x.shape[1], kernel, kernel)
            x = torch.nn.functional.conv2d(x, weight, flat[at + n : at + n + channels], stride).relu()
            at += n + channels
        assert at == picture.size
        np.testing.assert_allclose(done.out[a].numpy(), x.flatten(1).detach().numpy(), rtol=1e-5, atol=1e-6)
        (x.flatten(1) * back[a]).sum().backward()
        np.testing.assert_allclose(grad[a].numpy(), flat.grad.numpy(), rtol=1e-4, atol=1e-5)


OTHERS = [Box(0, 1, LAST), Box(0, 1, LAST, np.uint8), space((11, 40, 3)), space((40,)), Dict({"a": space(LAST)})]


@pytest.mark.parametrize("other", [*OTHERS, Discrete(9)])
def test_other_spaces_are_no_pictures(other):
    assert not is_picture(other)


@pytest.mark.parametrize("shape", [LAST, FIRST, GREY])
def test_ppo_sees_pictures_and_keeps_the_contract(shape):
    check_algorithm(PPOConfig(**SMALL), space(shape), Discrete(3))
    check_algorithm(PPOConfig(**SMALL, n_frames=2), space(shape), Box(-1, 1, (2,)))


def test_actor_and_learner_see_the_same():
    config, spaces = PPOConfig(**SMALL, n_frames=2), (space(LAST), Discrete(3))
    ppo, behaviour = config.build(*spaces, agents=1, seeds=[1]), config.behaviour(*spaces)
    batch = stacked_batch(*spaces, config.replay(*spaces), 1)
    rng = np.random.default_rng(0)
    for _ in range(3):
        batch.observation[:] = rng.integers(0, 256, batch.observation.shape)
        batch.reward[:], batch.discount[:] = rng.normal(size=batch.reward.shape), 0.9
        behaviour.load(ppo.weights()[0], {})
        done, extra = behaviour.act(batch.observation[0, :, :-1].reshape(-1, 2, *LAST))
        batch.action[0], batch.extra["log_prob"][0] = done.reshape(2, 6), extra["log_prob"].reshape(2, 6)
        before = ppo.state.copy()
        ppo.update(batch, [0])
        assert ppo._metrics["weight"][0] == pytest.approx(1.0, abs=1e-5)
        picture = ppo._layout.encoder
        assert (ppo.state[0, : picture.size] != before[0, : picture.size]).mean() > 0.5  # some rectifiers are shut


def test_pictures_are_not_normalised_twice():
    with pytest.raises(
        SettingError, match=r"normalise must be False for pictures, got True; pixels are always scaled to \[0, 1\]"
    ):
        PPOConfig(normalise=True).sizes(space(LAST), Discrete(3))

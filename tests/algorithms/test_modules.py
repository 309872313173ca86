"""The networks that settings choose by name."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from support import frozen_algorithms as frozen
from torch import nn

from motet.algorithm import stacked_batch
from motet.algorithms import DQNConfig, IQNConfig, PPOConfig, TD3Config
from motet.algorithms._picture_plan import PicturePlan
from motet.algorithms.modules import NoisyLinear, convolutions, impala, mlp, parts
from motet.algorithms.source import Source
from motet.algorithms.td3 import TD3Layout
from motet.errors import SettingError
from motet.testing import check_algorithm
from motet.testing.network import check_network

VECTOR, N, BOX, PICTURE = Box(-1, 1, (5,)), Discrete(3), Box(-2, 2, (2,)), Box(0, 255, (14, 12, 3), np.uint8)
NEST = Dict(picture=PICTURE, vector=Box(-1, 1, (3,)), room=Discrete(4, start=2))
VALUES: dict[str, Any] = {"batch_size": 8, "min_rows": 8}
PPO: dict[str, Any] = {"batch_size": 2, "length": 6, "minibatches": 3, "epochs": 1}


@pytest.mark.parametrize(
    ("config", "observations", "actions"),
    [
        (DQNConfig(network="mlp(activation='gelu', layer_norm=True, init='orthogonal')", **VALUES), NEST, N),
        (DQNConfig(network="mlp(noisy=True)", n_frames=2, **VALUES), VECTOR, N),
        (DQNConfig(encoder="parts(picture='impala(channels=(4,), outputs=8)', vector='mlp')", **VALUES), NEST, N),
        (DQNConfig(network="convolutions(hidden=(8,))", n_frames=2, **VALUES), PICTURE, N),
        (IQNConfig(encoder="impala(channels=(4,))", **VALUES), PICTURE, N),
        (PPOConfig(encoder="parts", n_frames=2, **PPO), NEST, N),
        (TD3Config(network="mlp", critic="mlp(layer_norm=True)", **VALUES), NEST, BOX),
    ],
)
def test_named_networks_keep_the_contract_of_algorithms(config: Any, observations: Any, actions: Any) -> None:
    check_algorithm(config, observations, actions)


def test_one_text_names_a_network_and_its_arguments() -> None:
    source = Source.of("mlp(hidden=[32, 16], init='xavier')", "network")
    assert source is not None and source.shipped
    assert source.arguments == (("hidden", (32, 16)), ("init", "xavier"))
    assert Source.of(str(source), "network") == source
    own = Source.of("support.foreign_networks:mlp(width=8)", "network")
    assert own is not None and not own.shipped and own.make("network", VECTOR, 3)[1].out_features == 8


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("perceptron", "or one of convolutions, impala, mlp, parts, got 'perceptron'"),
        ("mlp(32)", "arguments with names and plain values"),
        ("mlp(hidden=width)", "arguments with names and plain values"),
        ("mlp(hidden=(32,)", "arguments with names and plain values"),
        ("mlp() + mlp()", "arguments with names and plain values"),
        ("mlp(widths=(32,))", "network must be a function of"),
        ("mlp(activation='step')", "activation must be one of relu"),
        ("mlp(init='zero')", "init must be one of default, orthogonal, xavier, got 'zero'"),
        ("mlp(init='xavier', noisy=True)", "init must be 'default' for noisy layers"),
        ("convolutions", "space must be a picture"),
        ("parts", "network must be a function of"),
    ],
)
def test_wrong_names_and_arguments_are_refused(given: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        DQNConfig(network=given, **VALUES).sizes(VECTOR, N)


def test_wrong_parts_are_refused() -> None:
    for given, says in (
        ("parts(view='impala')", r"as in the space \(picture, vector, room\), got view"),
        ("parts(vector='elsewhere:make')", "vector must be 'numbers' or a network that comes with motet"),
        ("parts(vector='impala')", "space must be a picture"),
    ):
        with pytest.raises(SettingError, match=says):
            DQNConfig(encoder=given, **VALUES).sizes(NEST, N)
    with pytest.raises(SettingError, match="space must be a dict or tuple for parts"):
        DQNConfig(encoder="parts", **VALUES).sizes(VECTOR, N)
    with pytest.raises(SettingError, match="large enough for the convolutions"):
        convolutions(Box(0, 255, (5, 5, 3), np.uint8), layers=((8, 8, 4),))


def test_numbers_are_those_of_the_space() -> None:
    space = Tuple([Discrete(3, start=5), Box(-1, 1, (2, 2)), MultiDiscrete([2, 3])])
    seen = (torch.tensor([6, 5]), torch.arange(8.0).view(2, 2, 2), torch.tensor([[1, 0], [0, 2]]))
    assert mlp(space, 3).numbers(seen).tolist() == [
        [0, 1, 0, 0, 1, 2, 3, 0, 1, 1, 0, 0],
        [1, 0, 0, 4, 5, 6, 7, 1, 0, 0, 0, 1],
    ]


def test_settings_of_an_mlp() -> None:
    made: Any = mlp(VECTOR, 3, hidden=(8, 6), activation="tanh", layer_norm=True, init="orthogonal", last_gain=0.01)
    kinds = [nn.Linear, nn.LayerNorm, nn.Tanh] * 2 + [nn.Linear]
    assert [type(one) for one in made.layers] == kinds
    first, last = made.layers[0].weight, made.layers[-1].weight
    torch.testing.assert_close(first.T @ first, 2 * torch.eye(5))
    torch.testing.assert_close(last @ last.T, 1e-4 * torch.eye(3))
    assert not made.layers[0].bias.any()


# ---- pictures


def test_axes_of_pictures() -> None:
    """Channels first and last, without channels, and with frames give the same features."""
    x = torch.rand(2, 3, 16, 20)
    made = {}
    for name, shape, seen in (
        ("first", (3, 16, 20), x),
        ("last", (16, 20, 3), x.movedim(1, 3)),
        ("frames", (3, 16, 20), x),  # of grey pictures
        ("frames with channels", (3, 16, 20, 1), x.unsqueeze(-1)),
    ):
        torch.manual_seed(0)
        made[name] = convolutions(Box(0, 255, shape, np.uint8))(seen)
    for found in made.values():
        torch.testing.assert_close(found, made["first"])
    assert convolutions(Box(0, 255, (16, 20), np.uint8))(x[:, 0]).shape == (2, 32 * 3 * 4)
    assert impala(Box(0, 1, (16, 20, 3)), 4)(x.movedim(1, 3)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(14, 12, 3), (2, 16, 13), (84, 84, 3), (15, 13)])
def test_rows_of_convolutions_lie_as_in_earlier_versions(shape: tuple[int, ...]) -> None:
    """So a checkpoint of an earlier version is read with the same meaning."""
    space = Box(0, 255, shape, np.uint8)
    old, new = frozen._blocks.Picture.of(space, 4), PicturePlan(space, 4)
    places = [one for weight, at, bias in old.places for one in ((weight, at), (weight[:1], bias))]
    assert [(one.shape, one.start) for one in new.parameters] == places
    assert (new.size, new.outputs) == (old.end, old.features)
    rows = np.zeros((2, old.end), np.float32)
    for row, plan in zip(rows, (old, new), strict=True):
        plan.initialise(row, np.random.default_rng(0))
    assert np.array_equal(rows[0], rows[1])


# ---- noisy layers


def test_noisy_layers_draw_only_to_learn_and_to_explore() -> None:
    config = DQNConfig(network="mlp(noisy=True)", epsilon=0.0, **VALUES)
    learner, behaviour = config.build(VECTOR, N, 1, [1]), config.behaviour(VECTOR, N)
    behaviour.load(learner.weights()[0], learner.header(0, 0))
    seen = np.ones((4, 5), np.float32)
    greedy = [behaviour.values(seen) for _ in range(2)]
    explored = [behaviour.values(seen, explore=True) for _ in range(2)]
    assert np.array_equal(*greedy) and not np.array_equal(*explored) and not np.array_equal(greedy[0], explored[0])
    behaviour.begin(0)
    first = behaviour.values(seen, explore=True)
    torch.manual_seed(7)  # not from torch's own stream
    behaviour.begin(0)
    assert np.array_equal(first, behaviour.values(seen, explore=True))


def test_noisy_gradients_reach_the_deviations() -> None:
    config = DQNConfig(network="mlp(noisy=True, hidden=(8,))", **VALUES)
    learner = config.build(VECTOR, N, 1, [1])
    batch = stacked_batch(VECTOR, N, config.replay(VECTOR, N), 1)
    batch.observation[:], batch.reward[:] = 1, 1
    before = learner.state.copy()
    learner.update(batch, [0])
    for parameter in config._plan(VECTOR, N).parameters:
        assert (learner.state[0, parameter.part] != before[0, parameter.part]).any(), parameter.name


def test_noise_has_the_deviation_that_is_learned() -> None:
    torch.manual_seed(0)
    layer = NoisyLinear(4, 2, deviation=1.0)
    x = torch.zeros(1, 4)
    drawn = torch.stack([layer(x)[0] for _ in range(4000)]).detach()
    # The square root of the absolute value of a normal number has the mean square E|z| = sqrt(2 / pi).
    expected = layer.bias_deviation.detach() * (2 / torch.pi) ** 0.25
    torch.testing.assert_close(drawn.std(0), expected, rtol=0.05, atol=0)
    assert torch.equal(layer.eval()(x)[0], layer.bias)


# ---- checks and files


def test_named_networks_pass_check_network() -> None:
    check_network("parts(picture='convolutions(outputs=16)')", NEST)
    check_network("impala", PICTURE, 4, n_frames=2)


def test_the_critic_gets_the_number_of_actions() -> None:
    config = TD3Config(critic="mlp(hidden=(8,))", **VALUES)
    critic: Any = TD3Layout.of(config, VECTOR, BOX).critic
    assert critic.parameters[0].shape == (8, 5 + 2)


def test_parts_are_joined_in_the_order_of_the_space() -> None:
    made = parts(Dict(b=Box(-1, 1, (2,)), a=Box(-1, 1, (1,))))
    seen = {"a": torch.tensor([[1.0]]), "b": torch.tensor([[2.0, 3.0]])}
    assert made(seen).tolist() == [[2.0, 3.0, 1.0]]

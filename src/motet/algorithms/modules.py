"""Networks to choose by name: plain torch modules for vectors, pictures and nested observations.

Each function makes a ``torch.nn.Module`` for a space, and algorithms take it by its name, with arguments if wanted:
``network="mlp(activation='gelu', layer_norm=True)"``. The modules know nothing of motet. Their inputs are batched
observations in the form of the space, with Discrete and MultiDiscrete values as integers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn
from torch.nn import functional

from motet.algorithms._picture_plan import is_picture
from motet.algorithms.source import Source
from motet.errors import SettingError

__all__ = ["NoisyLinear", "convolutions", "impala", "mlp", "parts"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "elu": nn.ELU, "leaky_relu": nn.LeakyReLU,
}  # fmt: skip
_INITIAL: dict[str, Callable[[Tensor, float], object]] = {
    "orthogonal": nn.init.orthogonal_,
    "xavier": nn.init.xavier_uniform_,
}
_INITS = ("default", *_INITIAL)
_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride; for pictures of 36 pixels or more
_SMALL = ((16, 3, 2), (32, 3, 2))


# ---- functions that make networks


def mlp(
    space: Any,
    outputs: int = 64,
    *,
    hidden: Sequence[int] = (64, 64),
    activation: str = "relu",
    layer_norm: bool = False,
    noisy: bool = False,
    init: str = "default",
    last_gain: float = 1.0,
    actions: int = 0,
) -> nn.Module:
    """Make a fully connected network.

    Args:
        space: space of an observation; dicts and tuples are joined, and Discrete values are one-hot encoded.
        outputs: number of outputs.
        hidden: widths of the hidden layers.
        activation: "relu", "tanh", "gelu", "silu", "elu" or "leaky_relu".
        layer_norm: normalise the values of each hidden layer before its activation.
        noisy: make all layers :class:`NoisyLinear`.
        init: "default" (torch's), "orthogonal" or "xavier". With "orthogonal" and "xavier", biases are zero.
        last_gain: factor of the last layer's initial weights, with "orthogonal" and "xavier".
        actions: size of an action that the network takes as its second input.

    >>> from gymnasium.spaces import Box
    >>> mlp(Box(0, 1, (8,)), 4, hidden=(32,), layer_norm=True)(torch.zeros(5, 8)).shape
    torch.Size([5, 4])
    """
    if noisy and init != "default":
        raise SettingError(f"init must be 'default' for noisy layers, got {init!r}")
    numbers = _joined(space, _FlatNumbers)
    widths = [_features(numbers, space) + actions, *hidden, outputs]
    linear = NoisyLinear if noisy else nn.Linear
    layers = _dense(widths, _chosen("activation", activation, _ACTIVATIONS), layer_norm, linear)
    _initialise(layers, init, last_gain)
    return _Behind(numbers, layers)


def convolutions(
    space: Any,
    outputs: int | None = None,
    *,
    layers: Sequence[tuple[int, int, int]] = (),
    activation: str = "relu",
    hidden: Sequence[int] = (256,),
) -> nn.Module:
    """Make a network of convolutions for pictures.

    Args:
        space: space of a picture: height and width, with the channels first or last, and frames before them, if any.
        outputs: number of outputs; None: the features of the last convolution.
        layers: channels, kernel size and stride of each convolution. By default those of the DQN paper for
            pictures of 36 pixels or more, otherwise two small ones.
        activation: as in :func:`mlp`.
        hidden: widths of the layers between convolutions and outputs.

    >>> from gymnasium.spaces import Box
    >>> convolutions(Box(0, 255, (84, 84, 3), "uint8"))(torch.zeros(5, 84, 84, 3)).shape
    torch.Size([5, 3136])
    """
    chosen = _chosen("activation", activation, _ACTIVATIONS)
    return _with_outputs(_convolved(_Channels.of(space), layers, chosen), space, hidden, outputs, chosen)


def of_axes(axes: Sequence[int], channels_last: bool) -> nn.Module:
    """Make the convolutions of PPO and TD3 for pictures of known axes: frames, then those of the picture."""
    return _convolved(_Channels(axes, channels_last), (), nn.ReLU)


def _convolved(
    channels: _Channels, layers: Sequence[tuple[int, int, int]], activation: Callable[[], nn.Module]
) -> nn.Module:
    made: list[nn.Module] = []
    before = channels.count
    for count, kernel, stride in layers or (_LARGE if min(channels.sides) >= 36 else _SMALL):
        made += [nn.Conv2d(before, count, kernel, stride), activation()]
        before = count
    return nn.Sequential(channels, *made, nn.Flatten())


def impala(
    space: Any,
    outputs: int | None = None,
    *,
    channels: Sequence[int] = (16, 32, 32),
    hidden: Sequence[int] = (256,),
) -> nn.Module:
    """Make a residual network for pictures as in the IMPALA paper.

    Args:
        space: as in :func:`convolutions`.
        outputs: number of outputs; None: the features of the last block.
        channels: channels of each block; each halves height and width.
        hidden: widths of the layers between blocks and outputs.

    >>> from gymnasium.spaces import Box
    >>> impala(Box(0, 255, (16, 16, 3), "uint8"), 4, channels=(8,))(torch.zeros(5, 16, 16, 3)).shape
    torch.Size([5, 4])
    """
    first = _Channels.of(space)
    widths = [first.count, *channels]
    blocks: list[nn.Module] = []
    for before, count in itertools.pairwise(widths):
        blocks += [nn.Conv2d(before, count, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        blocks += [_Residual(count), _Residual(count)]
    return _with_outputs(nn.Sequential(first, *blocks, nn.ReLU(), nn.Flatten()), space, hidden, outputs, nn.ReLU)


def parts(space: Any, **encoders: str) -> nn.Module:
    """Make an encoder for an observation of several parts, whose features are joined in the order of the space.

    Args:
        space: a dict or tuple of spaces.
        encoders: how to encode a part, by its key: "mlp", "convolutions" or "impala", with arguments if wanted, or
            "numbers". Parts that are not named: convolutions for pictures, otherwise their numbers.

    >>> from gymnasium.spaces import Box, Dict
    >>> space = Dict(picture=Box(0, 255, (16, 16, 3), "uint8"), vector=Box(-1, 1, (5,)))
    >>> made = parts(space, picture="impala(outputs=32)")
    >>> made({"picture": torch.zeros(2, 16, 16, 3), "vector": torch.zeros(2, 5)}).shape
    torch.Size([2, 37])
    """
    inner = dict(_inner(space))
    if not inner:
        raise SettingError(f"space must be a dict or tuple for parts, got {space!r}; name the part's encoder itself")
    if unknown := sorted(set(encoders) - {str(key) for key in inner}):
        raise SettingError(
            f"parts must be named as in the space ({', '.join(map(str, inner))}), got {', '.join(unknown)}"
        )
    made = [(key, _part(one, str(key), encoders.get(str(key)))) for key, one in inner.items()]
    return _Joined([key for key, _ in made], [module for _, module in made])


def _part(space: Any, key: str, encoder: str | None) -> nn.Module:
    if encoder is None:
        return _joined(space, _fitting)
    if encoder == "numbers":
        return _joined(space, _FlatNumbers)
    source = Source.of(encoder, key)
    # only networks of motet: the trust check does not look for code in these names
    if source is None or not source.shipped:
        raise SettingError(
            f"{key} must be 'numbers' or a network that comes with motet, got {encoder!r}; for parts with networks of "
            "your own, write the whole encoder"
        )
    module: nn.Module = source.make(key, space)
    return module


def _fitting(space: Any) -> nn.Module:
    one = Box(space.low[0], space.high[0], dtype=space.dtype) if len(space.shape) == 4 else space  # without frames
    return convolutions(space) if is_picture(one) else _FlatNumbers(space)


# ---- layers


class NoisyLinear(nn.Module):
    """A fully connected layer that explores: while it trains, noise with learned deviations is added to its weights.

    Each forward pass draws new noise, the same for all rows. motet lets the layer draw noise while an agent learns and
    explores; greedy actions are computed without noise. The noise is factorised as in the paper on noisy networks.

    >>> layer = NoisyLinear(8, 4).eval()
    >>> layer(torch.zeros(5, 8)).shape
    torch.Size([5, 4])
    """

    explores = True
    """Layers with this attribute are put into training mode while actors explore."""

    def __init__(self, inputs: int, outputs: int, deviation: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_deviation = nn.Parameter(torch.full((outputs, inputs), deviation * bound))
        self.bias_deviation = nn.Parameter(torch.full((outputs,), deviation * bound))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs ``[batch, outputs]``."""
        if not self.training:
            return functional.linear(x, self.weight, self.bias)
        outputs, inputs = self.weight.shape
        # drawn on the host, so that all devices get the same numbers
        drawn = torch.randn(inputs + outputs).to(x.device)
        scaled = drawn.sign() * drawn.abs().sqrt()
        columns, rows = scaled[:inputs], scaled[inputs:]
        weight = self.weight + self.weight_deviation * torch.outer(rows, columns)
        return functional.linear(x, weight, self.bias + self.bias_deviation * rows)


class _FlatNumbers(nn.Module):
    """Turns an array ``[batch, ...]`` into rows of numbers; values of Discrete and MultiDiscrete spaces are one-hot
    encoded."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.values: Tensor | None
        self.owners: Tensor
        counts = np.ravel(getattr(space, "nvec", getattr(space, "n", 0) if space.shape == () else 0))
        if not counts.max(initial=0):
            self.register_buffer("values", None)
            return
        starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), counts.shape)
        owners = np.repeat(np.arange(len(counts)), counts)
        values = np.concatenate([start + np.arange(count) for start, count in zip(starts, counts, strict=True)])
        self.register_buffer("owners", torch.from_numpy(owners), persistent=False)
        self.register_buffer("values", torch.from_numpy(values), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], -1)
        return flat if self.values is None else (flat[:, self.owners] == self.values).to(torch.float32)


class _Joined(nn.Module):
    """Concatenates the features of the parts of a dict or tuple."""

    def __init__(self, keys: Sequence[Any], inner: Sequence[nn.Module]) -> None:
        super().__init__()
        self.keys, self.inner = list(keys), nn.ModuleList(inner)

    def forward(self, observation: Any) -> Tensor:
        return torch.cat([module(observation[key]) for key, module in zip(self.keys, self.inner, strict=True)], 1)


class _Behind(nn.Module):
    """Layers that take the numbers of an observation, and of an action if there is one."""

    def __init__(self, numbers: nn.Module, layers: nn.Module) -> None:
        super().__init__()
        self.numbers, self.layers = numbers, layers

    def forward(self, observation: Any, action: Tensor | None = None) -> Any:
        x = self.numbers(observation)
        return self.layers(x if action is None else torch.cat([x, action], 1))


class _Channels(nn.Module):
    """Brings pictures ``[batch, frames, height, width, channels]`` into the form that convolutions take.

    Args:
        axes: shape of a picture with its frames, four axes.
        last: whether the channels are the last axis.
    """

    def __init__(self, axes: Sequence[int], last: bool) -> None:
        super().__init__()
        self.axes, self.last = tuple(axes), last
        self.count = axes[0] * (axes[3] if last else axes[1])
        self.sides = tuple(axes[1:3] if last else axes[2:4])

    @classmethod
    def of(cls, space: Any) -> _Channels:
        shape = tuple(getattr(space, "shape", None) or ())
        if len(shape) not in (2, 3, 4):
            raise SettingError(f"space must be a picture for convolutions, with 2 to 4 axes, got {space!r}")
        axes = (*(1,) * (4 - len(shape)), *shape)
        return cls(axes, axes[3] <= axes[1])

    def forward(self, x: Tensor) -> Tensor:
        x = x.reshape(-1, *self.axes)
        return (x.movedim(4, 2) if self.last else x).flatten(1, 2)  # frames become channels

    def plain(self) -> list[nn.Module]:
        """Return layers of torch that compute the same as this module."""
        if not self.last:
            return [nn.Flatten(), nn.Unflatten(1, (self.count, *self.sides))]
        frames, channels = self.axes[0], self.axes[3]
        numbers = math.prod(self.axes)
        return [
            nn.Flatten(), nn.Unflatten(1, (numbers, 1, 1)), nn.ChannelShuffle(numbers // channels), nn.Flatten(),
            nn.Unflatten(1, (channels * frames, *self.sides)), nn.ChannelShuffle(channels),
        ]  # fmt: skip


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        between: Tensor = self.first(functional.relu(x))
        added: Tensor = self.second(functional.relu(between))
        return x + added


# ---- helpers


def plain_parts(module: nn.Module) -> list[nn.Module] | None:
    """Return layers of torch that compute the same as a module of this file; None if there are none."""
    if isinstance(module, _Channels):
        return module.plain()
    if isinstance(module, _Behind) and isinstance(module.numbers, _FlatNumbers) and module.numbers.values is None:
        return [nn.Flatten(), module.layers]
    if isinstance(module, NoisyLinear):
        layer = nn.Linear(module.weight.shape[1], module.weight.shape[0])
        layer.weight, layer.bias = module.weight, module.bias
        return [layer]
    return None


def _chosen(name: str, given: str, known: dict[str, Any]) -> Any:
    if given not in known:
        raise SettingError(f"{name} must be one of {', '.join(known)}, got {given!r}")
    return known[given]


def _inner(space: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the keys and spaces of a dict or tuple; nothing for other spaces."""
    inner = getattr(space, "spaces", ())
    return iter(inner.items() if hasattr(inner, "items") else enumerate(inner))


def _joined(space: Any, leaf: Callable[[Any], nn.Module]) -> nn.Module:
    inner = dict(_inner(space))
    return _Joined(list(inner), [_joined(one, leaf) for one in inner.values()]) if inner else leaf(space)


def _features(module: nn.Module, space: Any) -> int:
    """Return the number of features that a module outputs for an observation."""
    with torch.no_grad():
        return int(module(_zeros(space)).shape[1])


def _zeros(space: Any) -> Any:
    inner = dict(_inner(space))
    if inner:
        return {key: _zeros(one) for key, one in inner.items()}
    return torch.zeros(1, *space.shape)


def _dense(
    widths: Sequence[int], activation: Callable[[], nn.Module], layer_norm: bool, linear: Callable[..., nn.Module]
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, width in itertools.pairwise(widths):
        layers += [linear(before, width), *([nn.LayerNorm(width)] if layer_norm else []), activation()]
    return nn.Sequential(*layers[: -2 if layer_norm else -1])


def _with_outputs(
    body: nn.Module, space: Any, hidden: Sequence[int], outputs: int | None, activation: Callable[[], nn.Module]
) -> nn.Module:
    try:
        features = _features(body, space)
    except RuntimeError as error:
        raise SettingError(f"space must be large enough for the convolutions, got {space!r}") from error
    if outputs is None:
        return body
    return nn.Sequential(body, *_dense([features, *hidden, outputs], activation, False, nn.Linear))


def _initialise(layers: nn.Sequential, init: str, last_gain: float) -> None:
    if init not in _INITS:
        raise SettingError(f"init must be one of {', '.join(_INITS)}, got {init!r}")
    linear = [one for one in layers if isinstance(one, nn.Linear)]
    for one in linear if init != "default" else []:
        _INITIAL[init](one.weight.data, last_gain if one is linear[-1] else math.sqrt(2))
        one.bias.data.zero_()

"""Greedy policies as torch modules, for export: plain layers where possible, and the description that a loader
needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from motet.algorithms._greedy import Choose, Greedy

if TYPE_CHECKING:
    from motet.algorithms._module_plan import ModulePlan

__all__ = ["GreedyPolicy", "OnRows", "dense_layers", "layers_of_module"]

_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.MaxPool2d: ("kernel_size", "stride", "padding"),
    nn.LayerNorm: ("normalized_shape",),
    nn.GRUCell: ("input_size", "hidden_size"),
    nn.LSTMCell: ("input_size", "hidden_size"),
    nn.Unflatten: ("dim", "unflattened_size"),
    nn.ChannelShuffle: ("groups",),
    **dict.fromkeys((nn.Flatten, nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid), ()),
}
"""Layers that a loader creates by name, with their arguments. All other arguments must have their defaults."""


class OnRows(nn.Module):
    """A network that is not made of plain layers. It takes rows of numbers.

    Args:
        plan: the plan of the network.
        own: the user's network.
        taus: for a network of IQN, the taus over whose quantiles its outputs are averaged.
        direct: whether the network takes the rows without conversion to the form of the space.
    """

    def __init__(self, plan: ModulePlan, own: nn.Module, taus: Sequence[float] = (), direct: bool = False) -> None:
        super().__init__()
        self._plan: Any = plan
        self.own, self._direct = own, direct
        self.state_size = plan.state_size
        self.register_buffer("_taus", torch.tensor(taus), persistent=False)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Any:
        """Return the outputs ``[B, n]``, and the new state if the network has a memory of its own."""
        if self.state_size:
            return self._plan.step(self.own, x, state)
        if self._direct:
            return self.own(x).reshape(x.shape[0], -1)
        taus = self.get_buffer("_taus")
        if not len(taus):
            return self._plan.call(self.own, x)
        quantiles = self._plan.raw(self.own, torch.cat([x, taus.expand(x.shape[0], -1)], 1))
        return quantiles.mean(1)


class GreedyPolicy(nn.Module):
    """The greedy policy of an agent.

    Its inputs are the arrays of an observation ``[B, ...]`` in the order of the space, then the mask ``[B, actions]``
    if the agent has one, then the state ``[B, state_size]`` if the policy has memory. It returns the actions and,
    with memory, the new state.
    """

    def __init__(self, greedy: Greedy, masked: bool = False) -> None:
        super().__init__()
        self._leaves, self._masked, decision = greedy.encoder.leaves(), masked, greedy.decision
        mean, scale, self._clip = greedy.inputs()
        self.register_buffer("mean", torch.from_numpy(mean.copy()))
        self.register_buffer("scale", torch.from_numpy(scale.copy()))
        self.layers = nn.ModuleList(layer for plan, row in greedy.networks for layer in plan.layers_of(row))
        self.eval().requires_grad_(False)
        self._decision, self._choose = decision.about(), isinstance(decision, Choose)
        self.state_size = sum(map(_state_size, self.layers))

    def about(self) -> dict[str, Any]:
        """Return the description that a loader needs in addition to the state dict, as plain values."""
        return {
            "format": 1,
            "observation": self._leaves,
            "clip": self._clip,
            "layers": [_described(layer) for layer in self.layers],
            "state_size": self.state_size,
            "action": self._decision,
        }

    def plain_state(self) -> dict[str, Tensor]:
        """Return the state dict. Parameters of a user's network keep their names."""
        return {name.replace(".own.", ".", 1): tensor.clone() for name, tensor in self.state_dict().items()}

    def input_names(self) -> list[str]:
        """Return a name for each input."""
        names = [".".join(["observation", *map(str, leaf["path"])]) for leaf in self._leaves]
        return [*names, *(["mask"] if self._masked else []), *(["state"] if self.state_size else [])]

    def example(self, rows: int = 2) -> tuple[Tensor, ...]:
        """Return inputs of zeros."""
        found = [torch.from_numpy(np.zeros((rows, *leaf["shape"]), leaf["dtype"])) for leaf in self._leaves]
        if self._masked:
            found.append(torch.ones(rows, sum(self._decision["counts"]), dtype=torch.bool))
        if self.state_size:
            found.append(torch.zeros(rows, self.state_size))
        return tuple(found)

    def forward(self, *given: Tensor) -> Any:
        """Return the actions ``[B, ...]`` and, with memory, the new state."""
        count = len(self._leaves)
        x = torch.cat([_numbers(leaf, part) for leaf, part in zip(self._leaves, given[:count], strict=True)], 1)
        x = (x - self.get_buffer("mean")) * self.get_buffer("scale")
        if self._clip != float("inf"):
            x = x.clamp(-self._clip, self._clip)
        mask = given[count] if self._masked else None
        state, states = given[-1] if self.state_size else None, []
        at = 0
        for layer in self.layers:
            size = _state_size(layer)
            if not size or state is None:
                x = layer(x)
                continue
            x, new = _stepped(layer, x, state[:, at : at + size])
            states.append(new)
            at += size
        first, end = self._decision["outputs"]
        action = self._chosen(x[:, first:end], mask) if self._choose else self._bounded(x[:, first:end])
        return (action, torch.cat(states, 1)) if states else action

    def _chosen(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        about = self._decision
        if mask is not None:
            scores = scores.where(mask, torch.full_like(scores, -torch.inf))
        best = torch.stack([part.argmax(1) for part in torch.split(scores, about["counts"], 1)], 1)
        return (best + torch.tensor(about["start"])).reshape(-1, *about["shape"])

    def _bounded(self, x: Tensor) -> Tensor:
        about = self._decision
        half, middle, low, high = (torch.tensor(about[name]) for name in ("half", "middle", "low", "high"))
        x = (x.tanh() if about["squash"] else x) * half + middle
        return x.maximum(low).minimum(high).reshape(-1, *about["shape"])


def _numbers(leaf: dict[str, Any], part: Tensor) -> Tensor:
    """Return an array of an observation as rows of float32; values of Discrete spaces one-hot encoded."""
    if leaf["classes"]:
        values = torch.arange(leaf["start"], leaf["start"] + leaf["classes"])
        part = part.reshape(part.shape[0], -1, 1) == values
    return part.reshape(part.shape[0], -1).to(torch.float32)


def _state_size(layer: nn.Module) -> int:
    if isinstance(layer, nn.RNNCellBase):
        return layer.hidden_size * (2 if isinstance(layer, nn.LSTMCell) else 1)
    return layer.state_size if isinstance(layer, OnRows) else 0


def _stepped(layer: nn.Module, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs and the new state of a layer with memory."""
    if isinstance(layer, nn.LSTMCell):
        h, c = layer(x, (state[:, : layer.hidden_size], state[:, layer.hidden_size :]))
        return h, torch.cat([h, c], 1)
    if isinstance(layer, nn.GRUCell):
        new = layer(x, state)
        return new, new
    out, new = layer(x, state)
    return out, new


# ---- plain layers


def dense_layers(
    weights: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]], activation: str, last: bool
) -> list[nn.Module]:
    """Return fully connected layers with weights ``[out, in]`` and biases, with an activation after each but the last.

    With ``last``, there is an activation after the last layer, too.
    """
    layers: list[nn.Module] = []
    for weight, bias in weights:
        shape = weight.shape[1], weight.shape[0]
        linear: nn.Linear = nn.utils.skip_init(nn.Linear, *shape)  # type: ignore[no-untyped-call]  # draws nothing
        linear.weight.data.copy_(torch.from_numpy(np.array(weight, np.float32)))
        linear.bias.data.copy_(torch.from_numpy(np.array(bias, np.float32)))
        layers += [linear, nn.ReLU() if activation == "relu" else nn.Tanh()]
    return layers if last else layers[:-1]


def layers_of_module(plan: ModulePlan, module: nn.Module) -> list[nn.Module]:
    """Return a user's network as plain layers on rows; as a single module if some of its layers are not plain."""
    shape = plan.encoder.shape
    if plan.second or plan.state_size or not shape:
        return [OnRows(plan, module)]
    try:
        found = list(_plain(module))
    except ValueError:
        found = [OnRows(plan, module, direct=True)]
    return found if len(shape) == 1 else [nn.Unflatten(1, shape), *found]


def _plain(module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over the plain layers of a network; raises a ValueError if it has any other layer."""
    from motet.algorithms.modules import plain_parts

    if type(module) is nn.Sequential:
        for child in module.children():
            yield from _plain(child)
    elif (parts := plain_parts(module)) is not None:
        for part in parts:
            yield from _plain(part)
    elif type(module) in _ARGUMENTS and repr(module) == repr(type(module)(*_arguments(module))):
        yield module
    else:
        raise ValueError(f"{type(module).__name__} is not a plain layer")


def _arguments(layer: nn.Module) -> list[Any]:
    return [_value(getattr(layer, name)) for name in _ARGUMENTS[type(layer)]]


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, torch.Size)) else value


def _described(layer: nn.Module) -> list[Any]:
    """Return the name of a layer and its arguments."""
    if isinstance(layer, OnRows):
        return ["own", str(layer._plan.source)]
    return [type(layer).__name__, *_arguments(layer)]

"""A device with a memory of its own, for machines without a GPU: what skips the two ways between it and the host fails.

Its tensors are in the memory of the CPU, but an operation that mixes them with tensors or arrays of the host raises, as
on a GPU, and so does each way back to the host but :meth:`Device.to_host`. Arrays of the host are poisoned: after they
were handed over, and before something is handed back into them. Each crossing is counted.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from motet.algorithms._device import Device
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config

BACK = {"numpy", "cpu", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__", "to_dense"}
"""Names of the functions by which a tensor leaves a device without the device's knowledge."""


class Strayed(Exception):
    """Something crossed between host and device on a way of its own."""


class There(Tensor):
    """A tensor of the device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", str(func)), kwargs or {}
        if name in BACK:
            raise Strayed(f"{name} of a tensor of the device")
        for one in _parts((args, kwargs)):
            if name == "to" and isinstance(one, (str, torch.device)):
                raise Strayed(f"{name}({one}) of a tensor of the device")
            if isinstance(one, np.ndarray) or (isinstance(one, Tensor) and not isinstance(one, There) and one.ndim):
                raise Strayed(f"{name} of the device was given {type(one).__name__} {tuple(one.shape)} of the host")
        return super().__torch_function__(func, types, args, kwargs)


class PoisonedDevice(Device):
    """Device of the tests. ``crossed`` counts the crossings: ``there`` and ``back``."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.shares = False
        self.crossed: Counter[str] = Counter()

    def zeros(self, *shape: int) -> Tensor:
        return super().zeros(*shape).as_subclass(There)

    def to_device(self, array: np.ndarray, into: Tensor | None = None) -> Tensor:
        self.crossed["there"] += 1
        copy = torch.from_numpy(array.astype(np.float32 if array.dtype == np.float64 else array.dtype))
        array[...] = poison(array.dtype)
        tensor = copy.as_subclass(There)
        return tensor if into is None else into.copy_(tensor)

    def to_host(self, tensor: Tensor, into: np.ndarray | None = None) -> np.ndarray:
        if not isinstance(tensor, There):
            raise Strayed("to_host of a tensor that is not on the device")
        self.crossed["back"] += 1
        array = tensor.as_subclass(Tensor).detach().clone().numpy()
        if into is None:
            return array
        whole = into if into.base is None else into.base
        whole[...] = poison(whole.dtype)
        into[...] = array
        return into


def poison(dtype: np.dtype) -> Any:
    """A value that no computation survives."""
    if dtype.kind == "f":
        return np.nan
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def _parts(nest: Any) -> Iterator[Any]:
    if isinstance(nest, Mapping):
        nest = nest.values()
    elif not isinstance(nest, (list, tuple)):
        yield nest
        return
    for one in nest:
        yield from _parts(one)


class _OnThePoisonedDevice:
    """Makes a shipped config build its learner on this device."""

    def build(self, observations: Any, actions: Any, agents: int, seeds: Any, device: str = "cpu") -> Any:
        shipped = next(one for one in type(self).__mro__ if one.__module__.startswith("motet.algorithms."))
        name = shipped.__name__.removesuffix("Config")
        module = importlib.import_module(f"motet.algorithms._{name.lower()}_learner")
        return getattr(module, name)(self, observations, actions, seeds, PoisonedDevice())


class PoisonedDQN(_OnThePoisonedDevice, DQNConfig):
    pass


class PoisonedIQN(_OnThePoisonedDevice, IQNConfig):
    pass


class PoisonedTD3(_OnThePoisonedDevice, TD3Config):
    pass


class PoisonedPPO(_OnThePoisonedDevice, PPOConfig):
    pass

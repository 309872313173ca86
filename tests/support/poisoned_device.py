"""A simulated device with separate memory, for machines without a GPU: data can move only by the two methods of
``Device``.

Its tensors are in the memory of the CPU, but an operation that mixes them with tensors or arrays of the host raises, as
on a GPU, and so does each way back to the host but :meth:`Device.to_host`. Arrays of the host are poisoned: after they
were handed over, and before something is handed back into them. Each crossing is counted.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from unittest import mock

import numpy as np
import torch
from support.foreign_losses import A2C, DDPG, MyDQN
from torch import Tensor
from torch.overrides import TorchFunctionMode

from motet.algorithms._device import Device
from motet.algorithms.attain import AttainConfig
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.empower import EmpowerConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config

# Imported here, so that they have the real class
for _name in ("attain", "dqn", "empower", "iqn", "loss", "ppo", "td3"):
    importlib.import_module(f"motet.algorithms._{_name}_learner")

BACK = {"numpy", "cpu", "tolist", "item", "__array__", "__bool__", "__float__", "__int__", "__index__", "to_dense"}
"""Names of the functions by which a tensor leaves a device without the device's knowledge."""


class Strayed(Exception):
    """Data moved between host and device without the methods of ``Device``."""


class There(Tensor):
    """A tensor of the device."""

    is_cpu = False

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


class Made(TorchFunctionMode):
    """Within this mode, what is made on a device that is named is made on this one, as on the device of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        return found.as_subclass(There) if kwargs.get("device") is not None else found


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
    """Makes a config build its learner on this device."""

    crossed: ClassVar[list[tuple[int, int]]] = []
    """What each update of the learner that this process built last took to the device and back."""

    def build(self, observations: Any, actions: Any, agents: int, seeds: Any, device: str = "cpu") -> Any:
        made = PoisonedDevice()
        crossed: list[tuple[int, int]] = []
        with mock.patch("motet.algorithms._device.Device", lambda name: made), Made():
            learner = super().build(observations, actions, agents, seeds, device)  # type: ignore[misc]
        type(self).crossed, update = crossed, learner.update

        def counted(*given: Any) -> Any:
            before = made.crossed.copy()
            with Made():
                found = update(*given)
            now = made.crossed - before
            crossed.append((now["there"], now["back"]))
            self._die_at(int(learner.counters[:, 0].max()))
            return found

        learner.update = counted
        return learner

    def dying(self, folder: Path, *updates: int) -> Self:
        """Return the config of learners that are killed behind these updates, each time once, as a folder notes."""
        made = replace(self)  # type: ignore[type-var]
        object.__setattr__(made, "_deaths", (folder, updates))  # not a setting
        return made

    def _die_at(self, update: int) -> None:
        folder, updates = getattr(self, "_deaths", (Path(), ()))
        if update in updates and not (mark := folder / str(update)).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class PoisonedDQN(_OnThePoisonedDevice, DQNConfig):
    pass


class PoisonedIQN(_OnThePoisonedDevice, IQNConfig):
    pass


class PoisonedTD3(_OnThePoisonedDevice, TD3Config):
    pass


class PoisonedPPO(_OnThePoisonedDevice, PPOConfig):
    pass


@dataclass(frozen=True)
class PoisonedLoss(_OnThePoisonedDevice, MyDQN):
    pass


@dataclass(frozen=True)
class PoisonedLosses(_OnThePoisonedDevice, DDPG):
    pass


@dataclass(frozen=True)
class PoisonedLossOnce(_OnThePoisonedDevice, A2C):
    pass


class PoisonedEmpower(_OnThePoisonedDevice, EmpowerConfig):
    pass


class PoisonedAttain(_OnThePoisonedDevice, AttainConfig):
    pass

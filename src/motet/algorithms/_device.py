"""The device of a learner, which holds its tensors, and the two functions that copy between device and host.

Random streams, the replay, the vault and the publication are on the host. The state of a stack and everything that an
update computes are on its device. :meth:`Device.to_device` copies the arrays of a batch, drawn numbers and a restored
state. :meth:`Device.to_host` copies priorities, metrics, published weights and a saved state. Nothing else is copied
between the two. On the CPU both functions return the same memory without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["Device"]


class Device:
    """A device by its name in torch: ``cpu``, ``cuda``, ``cuda:1`` or ``mps``.

    >>> import numpy as np
    >>> cpu = Device("cpu")
    >>> array = np.array([1.0, 2.0], "float32")
    >>> tensor = cpu.to_device(array)
    >>> cpu.to_host(tensor.mul_(10)).tolist(), array.tolist()  # the CPU shares the memory
    ([10.0, 20.0], [10.0, 20.0])
    """

    def __init__(self, name: str) -> None:
        self._device = torch.device(name)
        self.shares = self._device.type == "cpu"
        """Whether tensors on this device share the memory of the host's arrays."""

    def zeros(self, *shape: int) -> Tensor:
        """Return float32 zeros on the device."""
        return torch.zeros(shape, device=self._device)

    def to_device(self, array: npt.NDArray[Any], into: Tensor | None = None) -> Tensor:
        """Return an array of the host as a tensor of the device. With ``into``, copy it into this tensor of the same
        shape.

        On the CPU and without ``into``, the tensor shares the array's memory: a change of one changes the other.
        Elsewhere float64 becomes float32, which all devices have. The copy is complete on return.
        """
        source = torch.from_numpy(array)
        if into is not None:
            return into.copy_(source)
        if self.shares:
            return source
        return source.to(self._device, torch.float32 if source.dtype == torch.float64 else source.dtype)

    def link(self, array: npt.NDArray[Any]) -> Callable[[], Tensor]:
        """Return a function that returns the current content of an array as a tensor on the device."""
        if not self.shares:
            return partial(self.to_device, array)
        tensor = self.to_device(array)
        return lambda: tensor

    def to_host(self, tensor: Tensor, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return a tensor of the device as an array of the host. With ``into``, copy it into this array of the same
        shape.

        On the CPU and without ``into``, the array shares the tensor's memory. The copy is complete on return.
        """
        if into is not None:
            torch.from_numpy(into).copy_(tensor)
            return into
        array: npt.NDArray[Any] = tensor.cpu().numpy()
        return array

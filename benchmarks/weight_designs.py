"""motet's publication, and other ways of transferring weights to another process for comparison.

Each design has two classes: one for the learner's process, with ``publish()``, and one for the actor's process, with
``refresh()``. Both keep their weights in one flat vector, ``flat``. A learner sets all of its 65,536 floats to the
version number, so a reader that finds two numbers in it has a torn read. Models are MLPs (253-128-128) over that flat
vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.limits import copy_rows
from motet.arrays import ArraySpec
from motet.publication import Publication
from motet.system.memory import Segment

__all__ = [
    "WEIGHTS",
    "FlipPublisher",
    "FlipSubscriber",
    "ManagerPublisher",
    "ManagerSubscriber",
    "MemcpyPublisher",
    "MemcpySubscriber",
    "ModelPublisher",
    "ModelSubscriber",
    "MotetPublisher",
    "MotetSubscriber",
    "QueuePublisher",
    "QueueSubscriber",
    "buffers",
    "publication_of",
    "shared_model",
]

WEIGHTS = 65_536
_INPUTS, _HIDDEN = 253, 128

Flat = npt.NDArray[np.float32]


# ---- motet


def publication_of(slots: int) -> Publication:
    """Return a publication with the weights, and the version again in the header."""
    return Publication(WEIGHTS, {"step": ArraySpec(dtype="int64")}, slots=slots)


class MotetPublisher:
    """``publish`` of the flat vector."""

    def __init__(self, publication: Publication) -> None:
        self._publisher, self.flat, self._step = publication.publisher(), np.zeros(WEIGHTS, np.float32), 0

    def publish(self) -> None:
        """Publish one version."""
        self._step += 1
        self._publisher.publish(self.flat, step=self._step)


class MotetSubscriber:
    """``refresh`` into the subscriber's flat vector."""

    def __init__(self, publication: Publication) -> None:
        self._subscriber = publication.subscriber()

    def refresh(self) -> bool:
        """Load the newest version; returns whether there was a new one."""
        return self._subscriber.refresh()

    @property
    def met_write(self) -> bool:
        """Whether the last refresh coincided with a write."""
        return self._subscriber.met_write

    def mixed(self) -> bool:
        """Return whether the read was torn: weights, header and version number belong to different versions."""
        weights, version = self._subscriber.weights, self._subscriber.version
        return bool(weights.min() != version or weights.max() != version or self._subscriber["step"] != version)


# ---- memcpy


def buffers() -> Segment:
    """Return two buffers that are written in turn, like two slots."""
    return Segment({"0": ArraySpec((WEIGHTS,), "float32"), "1": ArraySpec((WEIGHTS,), "float32")})


class _Memcpy:
    def __init__(self, segment: Segment) -> None:
        self._shared, self._turn = [segment["0"], segment["1"]], 0
        self._whole = np.zeros(1, np.uint64)

    def _copy(self, source: Flat, out: Flat) -> None:
        copy_rows(source, 0, out, 4 * WEIGHTS, self._whole)


class MemcpyPublisher(_Memcpy):
    """One plain memcpy into shared memory, no protocol."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self.flat = np.zeros(WEIGHTS, np.float32)

    def publish(self) -> None:
        """Copy all weights into shared memory."""
        self._turn ^= 1
        self._copy(self.flat, self._shared[self._turn])


class MemcpySubscriber(_Memcpy):
    """One plain memcpy out of shared memory that the other process has just written."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._private = [np.zeros(WEIGHTS, np.float32) for _ in range(2)]

    def refresh(self) -> bool:
        """Copy all weights out of shared memory."""
        self._turn ^= 1
        self._copy(self._shared[self._turn], self._private[self._turn])
        return True


# ---- state dicts


def _model() -> tuple[Any, Flat]:
    """Return a model whose parameters are views into one flat vector."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(_INPUTS, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN)
    )
    flat, offset = torch.zeros(WEIGHTS), 0
    for parameter in model.parameters():
        n = parameter.numel()
        parameter.data = flat[offset : offset + n].view_as(parameter)
        parameter.requires_grad_(False)
        offset += n
    assert offset == WEIGHTS
    return model, flat.numpy()


def shared_model() -> Any:
    """Return a model whose parameters are in torch's shared memory."""
    import torch

    model, _ = _model()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter)
    return model.share_memory()


class _Learner:
    def __init__(self) -> None:
        self._model, self.flat = _model()


class _Actor:
    met_write = False

    def __init__(self) -> None:
        self._model, self.flat = _model()

    def mixed(self) -> bool:
        """Return whether the read was torn: some weights belong to another version."""
        return bool(self.flat.min() != self.flat.max())


class ModelPublisher(_Learner):
    """``load_state_dict`` into a model in shared memory."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self._shared = shared

    def publish(self) -> None:
        """Publish one version."""
        self._shared.load_state_dict(self._model.state_dict())


class ModelSubscriber(_Actor):
    """``load_state_dict`` from a model in shared memory."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self._shared = shared

    def refresh(self) -> bool:
        """Load one version, or a mix of two."""
        self._model.load_state_dict(self._shared.state_dict())
        return True


class FlipPublisher(_Learner):
    """Two models in shared memory and a word that names the active one: writes the other model, then flips the word."""

    def __init__(self, first: Any, second: Any, active: Segment) -> None:
        super().__init__()
        self._both, self._active = (first, second), active["active"]

    def publish(self) -> None:
        """Publish one version."""
        other = 1 - int(self._active[0])
        self._both[other].load_state_dict(self._model.state_dict())
        self._active[0] = other


class FlipSubscriber(_Actor):
    """Reads the model that the word names."""

    def __init__(self, first: Any, second: Any, active: Segment) -> None:
        super().__init__()
        self._both, self._active = (first, second), active["active"]

    def refresh(self) -> bool:
        """Load one version, or a mix of two if the writer starts to overwrite this model meanwhile."""
        self._model.load_state_dict(self._both[int(self._active[0])].state_dict())
        return True


class QueuePublisher(_Learner):
    """A state dict of numpy arrays through an ``mp.Queue``, whose feeder thread pickles it."""

    def __init__(self, queue: Any) -> None:
        super().__init__()
        self._queue = queue
        queue.cancel_join_thread()

    def publish(self) -> None:
        """Publish one version."""
        self._queue.put({name: tensor.numpy() for name, tensor in self._model.state_dict().items()})


class QueueSubscriber(_Actor):
    """Unpickles a state dict and loads it."""

    def __init__(self, queue: Any) -> None:
        super().__init__()
        self._queue = queue

    def refresh(self) -> bool:
        """Load one version."""
        _load(self._model, self._queue.get(True, 60.0))
        return True


class ManagerPublisher(_Learner):
    """A state dict of numpy arrays as an item of a ``Manager().dict()``."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self._shared = shared

    def publish(self) -> None:
        """Publish one version."""
        self._shared["weights"] = {name: tensor.numpy() for name, tensor in self._model.state_dict().items()}


class ManagerSubscriber(_Actor):
    """Gets the item and loads it."""

    def __init__(self, shared: Any) -> None:
        super().__init__()
        self._shared = shared

    def refresh(self) -> bool:
        """Load one version."""
        _load(self._model, self._shared["weights"])
        return True


def _load(model: Any, state: dict[str, npt.NDArray[Any]]) -> None:
    import torch

    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})

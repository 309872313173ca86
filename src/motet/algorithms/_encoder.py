"""Encoding of observations as network inputs: rows of numbers, for acting and for learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space, map_space
from motet.errors import SettingError
from motet.nest import Nest

if TYPE_CHECKING:
    from torch import Tensor

    from motet.algorithms._device import Device

__all__ = ["Encoder"]


@dataclass(frozen=True)
class _InputLeaf:
    path: tuple[Any, ...]
    first: int
    """Index of the array's first input."""
    size: int
    """Number of inputs of the array."""
    classes: int
    """Number of values of a Discrete space, which is one-hot encoded; 0 for other spaces."""
    start: int
    """The lowest value of a Discrete space."""
    scale: float
    """1 / 255 for uint8 with a highest value of 255, otherwise 1."""
    shape: tuple[int, ...]
    """Shape of the array: frames, then the axes of the space."""
    highest: int
    """Highest number of values of a component of a MultiDiscrete space; 0 for other spaces."""
    dtype: str
    """Dtype of the space's arrays."""


class Encoder:
    """Encodes observations of a space as rows of numbers.

    Arrays are flattened, dicts and tuples are concatenated in the order of the space, Discrete values are one-hot
    encoded, and uint8 arrays whose highest value is 255 are divided by 255.
    """

    def __init__(self, space: Space, n_frames: int = 1) -> None:
        self._space, self._leaves = space, list[_InputLeaf]()
        self.size = 0
        for path, leaf in _leaves(space, ()):
            classes = int(leaf.n) if leaf.shape == () and hasattr(leaf, "n") else 0
            if np.dtype(leaf.dtype).kind not in "biuf":
                raise SettingError(f"observation space must be one of bools, integers or floats, got {leaf!r}")
            size = n_frames * (classes or math.prod(leaf.shape))
            high = leaf.high if np.dtype(leaf.dtype) == np.uint8 and hasattr(leaf, "high") else 0
            scale = 1 / 255 if np.max(high) == 255 else 1.0
            frames = (n_frames,) if n_frames > 1 else ()
            start = int(leaf.start) if classes and hasattr(leaf, "start") else 0
            highest = int(np.max(leaf.nvec, initial=0)) if hasattr(leaf, "nvec") else 0
            shape, dtype = (*frames, *leaf.shape), np.dtype(leaf.dtype).name
            self._leaves.append(_InputLeaf(path, self.size, size, classes, start, scale, shape, highest, dtype))
            self.size += size
        only = self._leaves[0]
        self._plain = len(self._leaves) == 1 and not only.path and not only.classes
        self.scale = only.scale if self._plain else 1.0
        """Factor by which the network's first layer multiplies the result of :meth:`rows`."""

    def rows(self, observations: Nest) -> npt.NDArray[Any]:
        """Return rows ``[B, size]`` for observations ``[B, ...]``: float32, or unscaled uint8 or bool."""
        if self._plain:
            array = np.asarray(observations)
            if array.dtype != np.float32 and array.dtype != np.uint8 and array.dtype != np.bool_:
                array = array.astype(np.float32)
            return np.ascontiguousarray(array).reshape(len(array), self.size)
        parts = [np.asarray(_at(observations, leaf.path)) for leaf in self._leaves]
        rows = np.zeros((len(parts[0]), self.size), np.float32)
        for leaf, part in zip(self._leaves, parts, strict=True):
            into = rows[:, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                hot = part.reshape(len(rows), -1, 1) == np.arange(leaf.start, leaf.start + leaf.classes)
                into[:] = hot.reshape(into.shape)
            else:
                np.multiply(part.reshape(into.shape), np.float32(leaf.scale), out=into, casting="unsafe")
        return rows

    def leaves(self) -> list[dict[str, Any]]:
        """Return a description of the arrays of an observation as plain values: their order, positions and
        encodings."""
        return [
            {
                "path": list(leaf.path), "shape": list(leaf.shape), "dtype": leaf.dtype, "classes": leaf.classes,
                "start": leaf.start,
            }
            for leaf in self._leaves
        ]  # fmt: skip

    def scales(self) -> npt.NDArray[np.float32]:
        """Return the factor of each input."""
        return np.concatenate([np.full(leaf.size, leaf.scale, np.float32) for leaf in self._leaves])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an observation that is a single array of numbers; () for other observations."""
        return self._leaves[0].shape if self._plain and not self._leaves[0].highest else ()

    @property
    def has_indices(self) -> bool:
        """Whether some arrays that :meth:`nest` returns are integers."""
        return any(leaf.classes or leaf.highest for leaf in self._leaves)

    @property
    def exact(self) -> bool:
        """Whether float32 represents every index exactly."""
        return all(leaf.highest <= 2**24 for leaf in self._leaves)

    def draw_indices(self, rows: Tensor, rng: np.random.Generator) -> None:
        """In rows ``[B, size]``, replace each entry that stands for an index with a valid index."""
        import torch

        for leaf in self._leaves:
            part = rows[:, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                drawn = np.eye(leaf.classes, dtype=np.float32)[
                    rng.integers(leaf.classes, size=part.numel() // leaf.classes)
                ]
                part.copy_(torch.from_numpy(drawn.reshape(part.shape)))
            elif leaf.highest:
                part.zero_()

    def nest(self, rows: Tensor) -> Any:
        """Convert rows ``[B, size]`` to the form of the space: tensors ``[B, *shape]`` in its dicts and tuples.

        Tensors of Discrete and MultiDiscrete spaces are int64, all others are float32. Bytes up to 255 are scaled to
        [0, 1].
        """
        if self._plain and not self._leaves[0].highest:
            return rows.reshape(-1, *self._leaves[0].shape)
        leaves = iter(self._leaves)

        def part(_: Space) -> Tensor:
            leaf = next(leaves)
            values = rows[:, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                return values.reshape(-1, *leaf.shape, leaf.classes).argmax(-1) + leaf.start
            values = values.reshape(-1, *leaf.shape)
            return values.long() if leaf.highest else values

        return map_space(part, self._space)

    def link(self, observations: Nest, into: Tensor, device: Device) -> Callable[[], None]:
        """Return a function that encodes the current arrays ``[A, B, ...]`` of a batch into ``[A, B, size]``."""
        agents, batch = into.shape[:2]
        plain, classes = [], []
        for leaf in self._leaves:
            source = np.asarray(_at(observations, leaf.path))
            part = into[:, :, leaf.first : leaf.first + leaf.size]
            if leaf.classes:
                values = device.to_device(np.arange(leaf.start, leaf.start + leaf.classes))
                classes.append((part, device.link(source.reshape(agents, batch, -1, 1)), values))
            else:
                plain.append((part, device.link(source.reshape(part.shape)), leaf.scale))

        def encode() -> None:
            for part, source, scale in plain:
                part.copy_(source())
                if scale != 1.0:
                    part.mul_(scale)
            for part, source, values in classes:
                part.copy_((source() == values).view(part.shape))

        return encode


def _leaves(space: Space, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Space]]:
    inner = getattr(space, "spaces", None)
    if inner is None:
        map_space(lambda leaf: leaf, space)  # raises an error if the space has no shape and dtype
        yield path, space
        return
    for key, value in inner.items() if hasattr(inner, "items") else enumerate(inner):
        yield from _leaves(value, (*path, key))


def _at(nest: Nest, path: tuple[Any, ...]) -> Any:
    for key in path:
        nest = nest[key]
    return nest

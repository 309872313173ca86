"""Random streams: that of an acting half, and those of a learner as the bytes in an agent's vault."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["STREAM_BYTES", "ActingStream", "load_stream", "save_stream"]

STREAM_BYTES = 40
"""Size of a PCG64 stream, in bytes."""


def save_stream(stream: np.random.Generator, row: npt.NDArray[np.uint8]) -> None:
    """Write a PCG64 stream into ``row``."""
    state = stream.bit_generator.state
    words = state["state"]["state"].to_bytes(16, "little") + state["state"]["inc"].to_bytes(16, "little")
    words += state["has_uint32"].to_bytes(4, "little") + state["uinteger"].to_bytes(4, "little")
    row[:] = np.frombuffer(words, np.uint8)


def load_stream(stream: np.random.Generator, row: npt.NDArray[np.uint8]) -> None:
    """Restore a stream from what :func:`save_stream` wrote."""
    words = [int.from_bytes(row[i:j].tobytes(), "little") for i, j in ((0, 16), (16, 32), (32, 36), (36, 40))]
    stream.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": words[0], "inc": words[1]},
        "has_uint32": words[2],
        "uinteger": words[3],
    }


class ActingStream:
    """The random stream of an acting half, from which it draws its actions."""

    _rng: np.random.Generator

    def begin(self, seed: int) -> None:
        """Restart the random stream from a seed."""
        self._rng = np.random.default_rng(seed)

    def get_stream(self) -> Any:
        """Return the random stream as plain values."""
        return self._rng.bit_generator.state

    def set_stream(self, stream: Any) -> None:
        """Continue from a saved stream."""
        self._rng.bit_generator.state = stream

"""Replay buffers in shared memory. Actors write, one learner reads, and neither side takes a lock."""

from motet.arrays import Batch, Field
from motet.replay.replay import (
    Counters,
    FrameStack,
    Reader,
    Replay,
    Writer,
    Writers,
    rewound,
    step_counter,
)
from motet.replay.spec import ReplaySpec

__all__ = [
    "Batch",
    "Counters",
    "Field",
    "FrameStack",
    "Reader",
    "Replay",
    "ReplaySpec",
    "Writer",
    "Writers",
    "rewound",
    "step_counter",
]

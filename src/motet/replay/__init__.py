"""Replay: what an agent experienced, in shared memory. Actors write, one learner reads, nobody waits."""

from motet.replay.replay import Batch, Counters, Field, FrameStack, Reader, Replay, ReplaySpec, Writer, Writers, rewound

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
]

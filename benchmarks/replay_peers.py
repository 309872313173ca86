"""Replay buffers of other libraries, with the settings that their documentation recommends.

cpprb's ``MPReplayBuffer`` and torchrl's shared buffer are used by two processes, like motet's; that of
stable-baselines3 works in a single process.
"""

from __future__ import annotations

import logging
import multiprocessing
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.party import Missing, rate
from benchmarks.replay_designs import BATCH, BATCHES_A_LOOK, ROWS_A_LOOK, Sampler, Shape, Writer, observations
from motet.errors import WaitTimeoutError

__all__ = ["CpprbSampler", "CpprbWriter", "Sb3", "Torchrl", "cpprb_environment"]


# ---- cpprb


def cpprb_environment(shape: Shape) -> dict[str, Any]:
    """Return the description of cpprb's usual five fields."""
    obs = {"shape": tuple(shape), "dtype": np.float32}
    return {"obs": obs, "act": {"dtype": np.int64}, "rew": {}, "next_obs": obs, "done": {"dtype": np.bool_}}


class CpprbWriter(Writer):
    """``MPReplayBuffer.add`` of one transition. The constructor fills the buffer."""

    def __init__(self, buffer: Any, shape: Shape) -> None:
        self._buffer, self._observations = buffer, observations(shape)
        block = np.stack(self._observations * 16)
        for _ in range(-(-buffer.get_buffer_size() // len(block))):
            n = len(block)
            buffer.add(obs=block, act=np.zeros(n, np.int64), rew=np.ones(n), next_obs=block, done=np.zeros(n))

    def steps(self, n: int) -> None:
        """Add n transitions."""
        add = self._buffer.add
        for _ in range(n // 64):
            for observation in self._observations:
                add(obs=observation, act=3, rew=1.0, next_obs=observation, done=False)


class CpprbSampler(Sampler):
    """``MPReplayBuffer.sample``."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def steps(self, n: int) -> None:
        """Draw n batches."""
        for _ in range(n):
            self._buffer.sample(BATCH)


# ---- stable-baselines3


class Sb3:
    """``ReplayBuffer`` of stable-baselines3, which works in one process: it cannot add and sample in parallel."""

    def __init__(self, shape: Shape, capacity: int) -> None:
        try:
            import gymnasium
            from stable_baselines3.common.buffers import ReplayBuffer
        except ImportError as error:
            raise Missing(f"not installed: {error}") from error
        import torch

        torch.set_num_threads(1)
        box = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        # optimize_memory_usage stores one copy of each observation, like the others.
        self._buffer = ReplayBuffer(
            capacity,
            box,
            gymnasium.spaces.Discrete(8),
            "cpu",
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )
        self._observations = [o[None] for o in observations(shape)]
        self._row = (np.array([3]), np.array([1.0], np.float32), np.array([False]), list[dict[str, Any]]([{}]))
        self._buffer.observations[:] = np.resize(np.stack(observations(shape)), (capacity, *shape))[:, None]
        self._buffer.full = True

    def _add(self, n: int) -> None:
        add, (action, reward, done, infos) = self._buffer.add, self._row
        for _ in range(n // 64):
            for observation in self._observations:
                add(observation, observation, action, reward, done, infos)

    def _sample(self, n: int) -> None:
        for _ in range(n):
            self._buffer.sample(BATCH)

    def add(self, begin_at: float, seconds: float) -> float:
        """Rows per second."""
        return rate(self._add, ROWS_A_LOOK, begin_at, seconds)

    def sample(self, begin_at: float, seconds: float) -> float:
        """Batches per second."""
        return rate(self._sample, BATCHES_A_LOOK, begin_at, seconds)


# ---- torchrl


class Torchrl:
    """``TensorDictReplayBuffer(storage=LazyMemmapStorage(…), shared=True)``.

    Its locks need the start method fork, so the writer is forked from the sampler's process.
    """

    def __init__(self, shape: Shape, capacity: int) -> None:
        try:
            import torch
            from tensordict import TensorDict
            from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        except ImportError as error:
            raise Missing(f"not installed: {error}") from error
        torch.set_num_threads(1)
        logging.getLogger("torchrl").setLevel(logging.WARNING)

        def transition(observation: npt.NDArray[np.float32], *batch: int) -> Any:
            tensor = torch.from_numpy(observation)
            fields = {
                "observation": tensor,
                "action": torch.zeros(batch, dtype=torch.int64),
                ("next", "observation"): tensor,
                ("next", "reward"): torch.ones((*batch, 1)),
                ("next", "done"): torch.zeros((*batch, 1), dtype=torch.bool),
            }
            return TensorDict(fields, batch)

        self._buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(capacity), batch_size=BATCH, shared=True)
        block = np.stack(observations(shape) * 16)
        for _ in range(-(-capacity // len(block))):
            self._buffer.extend(transition(block, len(block)))
        self._rows = [transition(o) for o in observations(shape)]
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._writer = context.Process(target=self._serve, args=(theirs, self._pipe), daemon=True)
        self._writer.start()
        theirs.close()

    def _serve(self, pipe: Any, other: Any) -> None:
        other.close()  # so that this pipe closes when the sampler's process ends
        while True:
            try:
                begin_at, seconds = pipe.recv()
            except EOFError:
                return
            pipe.send(rate(self._add, 64, begin_at, seconds))

    def _add(self, n: int) -> None:
        for _ in range(n // 64):
            for row in self._rows:
                self._buffer.add(row)

    def _sample(self, n: int) -> None:
        for _ in range(n):
            self._buffer.sample()

    def _result(self) -> float:
        if not self._pipe.poll(120.0):
            raise WaitTimeoutError("the sampler of torchrl waited 120 s for its writer")
        return float(self._pipe.recv())

    def add(self, begin_at: float, seconds: float) -> float:
        """Rows per second."""
        self._pipe.send((begin_at, seconds))
        return self._result()

    def sample(self, begin_at: float, seconds: float) -> float:
        """Batches per second."""
        return rate(self._sample, BATCHES_A_LOOK, begin_at, seconds)

    def both(self, begin_at: float, seconds: float) -> tuple[float, float]:
        """Return rows and batches per second while both sides run."""
        self._pipe.send((begin_at, seconds))
        batches = self.sample(begin_at, seconds)
        return self._result(), batches

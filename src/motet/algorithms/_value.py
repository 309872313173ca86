"""What DQN and IQN share: settings, a batch as tensors, a learner around it, and acting epsilon-greedily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from motet import _native
from motet.algorithm import Batch, Field, HeaderSpec, ReaderSettings, Space
from motet.algorithms._flat import FlatLearner, padded
from motet.algorithms._networks import Block, Encoder
from motet.algorithms._settings import check_finite, check_hidden, check_limits, check_replay
from motet.errors import NotReadyError, SettingError
from motet.nest import Nest
from motet.schedule import Linear, Schedule, Stages, check_schedule, value_at

__all__ = ["EpsilonGreedy", "Tensors", "ValueConfig", "ValueLearner", "n_actions"]


@dataclass(frozen=True)
class ValueConfig:
    """Settings of algorithms that learn action values from a replay."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    gamma: float = 0.99
    """Discount per step."""
    n_step: int = 1
    """Rewards summed before the value of what follows."""
    n_frames: int = 1
    """Observations stacked."""
    double: bool = True
    """The online network chooses the next action, the target network values it; otherwise the latter does both."""
    batch_size: int = 64
    """Transitions in an update."""
    learning_rate: Schedule = 5e-4
    """Adam's step size."""
    adam_eps: float = 1e-8
    """Adam's guard against small second moments."""
    max_grad_norm: float | None = 10.0
    """An agent's gradient is scaled down to this norm; None: never."""
    target_every: int = 500
    """Updates between two moves of the target network."""
    target_rate: float = 1.0
    """How far a move goes: 1 copies the weights, less is a Polyak average."""
    epsilon: Schedule = field(default=Linear(1.0, 0.05, steps=10_000))
    """Share of random actions."""
    prioritised: bool = False
    """Draw transitions by their last error instead of uniformly."""
    alpha: float = 0.6
    """Exponent of the priorities."""
    beta: Schedule = 0.4
    """Exponent of the importance weights."""
    capacity: int = 100_000
    """Rows of the replay."""
    min_rows: int = 1_000
    """Rows in the replay before the first update."""
    stages: Stages = field(default_factory=Stages)
    """Stages of the run, in which any schedule may have values of its own (``Staged``)."""

    def __post_init__(self) -> None:
        check_hidden(self)
        check_schedule("learning_rate", self.learning_rate, 0, 1, self.stages)
        check_schedule("epsilon", self.epsilon, 0, 1, self.stages)
        check_finite(self, "adam_eps")
        check_limits(self, "max_grad_norm")
        if self.target_every < 1:
            raise SettingError(f"target_every: given {self.target_every}, expected 1 or more")
        check_replay(self)
        self._reader({})

    @property
    def header(self) -> HeaderSpec:
        """What travels with the weights."""
        return {"epsilon": ((), "float64"), "learner_step": ((), "int64"), "stage": ((), "int64")}

    def replay(self, observation_space: Space, action_space: Space, *, masked: bool = False) -> ReaderSettings:
        """What the replay must offer."""
        return self._reader({"mask": Field((n_actions(action_space),), "bool", next=True)} if masked else {})

    def _reader(self, extra: Mapping[str, Field]) -> ReaderSettings:
        return ReaderSettings(
            batch_size=self.batch_size, capacity=self.capacity, min_rows=self.min_rows, gamma=self.gamma,
            n_step=self.n_step, n_frames=self.n_frames, prioritised=self.prioritised, alpha=self.alpha, beta=self.beta,
            extra=extra, stages=self.stages,
        )  # fmt: skip

    def _header_values(self, step: int, updates: int) -> dict[str, Any]:
        epsilon = value_at(self.epsilon, step, self.stages)
        return {"epsilon": epsilon, "learner_step": updates, "stage": self.stages.index(step)}

    def _rates(self, steps: Sequence[int]) -> list[float]:
        return [value_at(self.learning_rate, int(step), self.stages) for step in steps]


def n_actions(space: Space) -> int:
    """How many actions a Discrete space has."""
    n = getattr(space, "n", None)
    if n is None or getattr(space, "shape", None) != () or np.dtype(space.dtype) != np.int64:
        raise SettingError(
            f"action space: given {space!r}, expected Discrete (int64): other ones need another algorithm"
        )
    return int(n)


class Tensors:
    """A stacked batch as tensors: views made once where device and dtype allow, copies each time where they do not."""

    action_dtype = torch.int64

    def __init__(self, batch: Batch, encoder: Encoder, action_space: Space, device: torch.device) -> None:
        self.batch, self._device = batch, device
        self._first_action = int(getattr(action_space, "start", 0))
        rows = batch.reward.shape
        self.inputs = torch.zeros((rows[0], 2 * rows[1], encoder.size), device=device)  # now, then next
        self.x, self.next_x = self.inputs[:, : rows[1]], self.inputs[:, rows[1] :]
        self._encode = encoder.link(batch.observation, self.x), encoder.link(batch.next_observation, self.next_x)
        self._arrays = {
            "action": torch.from_numpy(batch.action),
            "reward": torch.from_numpy(batch.reward),
            "discount": torch.from_numpy(batch.discount),
        }
        if batch.weight is not None:
            self._arrays["weight"] = torch.from_numpy(batch.weight)
        if "mask" in batch.next_extra:
            self._arrays["next_mask"] = torch.from_numpy(batch.next_extra["mask"])

    def fetch(self) -> None:
        """Take the present content of the arrays."""
        for encode in self._encode:
            encode()
        self.action = self._on_device("action", self.action_dtype)
        if self._first_action:
            self.action = self.action - self._first_action
        self.reward = self._on_device("reward", torch.float32)
        self.discount = self._on_device("discount", torch.float32)
        self.weight = self._on_device("weight", torch.float32) if "weight" in self._arrays else None
        self.next_mask = self._on_device("next_mask", torch.bool) if "next_mask" in self._arrays else None

    def _on_device(self, name: str, dtype: torch.dtype) -> Tensor:
        return self._arrays[name].to(self._device, dtype)  # the same tensor where nothing is to be done

    def best(self, values: Tensor) -> Tensor:
        """``[A, B, 1]``: which allowed next action has the highest of the values ``[A, B, n]``."""
        if self.next_mask is not None:
            values = values.masked_fill(~self.next_mask, -math.inf)
        return values.argmax(2, keepdim=True)


class ValueLearner(FlatLearner):
    """The learning half for A agents, but for what an update is.

    Args:
        config: the settings.
        observation_space: of one agent.
        action_space: of one agent.
        blocks: the networks in a row, the last one at its end.
        seeds: one for each agent.
        device: where the tensors are.
        streams: whether updates draw random numbers.
    """

    def __init__(
        self,
        config: ValueConfig,
        observation_space: Space,
        action_space: Space,
        blocks: Sequence[Block],
        seeds: Sequence[int],
        device: str,
        streams: bool = False,
    ) -> None:
        self._settings, self._action_space = config, action_space
        self._encoder = Encoder(observation_space, config.n_frames)

        def initialise(flat: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
            for block in blocks:
                block.initialise(flat, rng)

        super().__init__(padded(blocks[-1].end), seeds, initialise, device, streams=streams)
        self._batches: dict[int, Tensors] = {}
        self._metrics = {name: np.zeros(len(seeds), np.float32) for name in ("loss", "mean_q", "grad_norm")}

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """What travels with this agent's weights, when it has done ``step`` steps."""
        return self._settings._header_values(step, int(self.counters[agent, 0]))

    def _fetched(self, batch: Batch) -> Tensors:
        """The present content of a batch."""
        if id(batch) not in self._batches:
            self._batches[id(batch)] = Tensors(batch, self._encoder, self._action_space, self._device)
        data = self._batches[id(batch)]
        data.fetch()
        return data

    def _measure(self, loss: Tensor, mean_q: Tensor, grad_norm: Tensor) -> None:
        """Keep what was measured, ``[A]`` each."""
        for name, value in (("loss", loss), ("mean_q", mean_q), ("grad_norm", grad_norm)):
            self._metrics[name][:] = value.cpu().numpy()


class EpsilonGreedy:
    """Acts by the highest of the values that ``_values`` makes of a published row; at random with chance epsilon.

    Exploring draws two numbers for each row, whatever comes of it, so the random stream does not depend on weights.
    """

    def __init__(self, encoder: Encoder, action_space: Space) -> None:
        self._encoder = encoder
        self._n, self._first = n_actions(action_space), int(getattr(action_space, "start", 0))
        self._rng = np.random.default_rng(0)
        self._weights: npt.NDArray[np.float32] | None = None
        self._epsilon = 1.0

    def begin(self, seed: int) -> None:
        """Start the random stream anew."""
        self._rng = np.random.default_rng(seed)

    def get_stream(self) -> Any:
        """The random stream, as plain values."""
        return self._rng.bit_generator.state

    def set_stream(self, stream: Any) -> None:
        """Continue from a stream that was saved."""
        self._rng.bit_generator.state = stream

    def load(self, weights: npt.NDArray[np.float32], header: Mapping[str, Any]) -> None:
        """Take a new version."""
        self._weights, self._epsilon = weights, float(header["epsilon"])

    def act(
        self, observations: Nest, masks: npt.NDArray[np.bool_] | None = None, explore: bool = True
    ) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[Any]]]:
        """Actions ``[B]`` for observations ``[B, ...]``; no extra fields."""
        values = self.values(observations)
        actions = np.empty(len(values), np.int64)
        draws = self._rng.random((len(values), 2)) if explore else None
        _native.choose(values, masks, draws, self._epsilon, self._first, actions)
        return actions, {}

    def values(self, observations: Nest) -> npt.NDArray[np.float32]:
        """What the actions ``[B, n]`` are ranked by."""
        if self._weights is None:
            raise NotReadyError("this behaviour has no weights yet: call load first")
        return self._values(self._weights, self._encoder.rows(observations))

    def _values(self, weights: npt.NDArray[np.float32], rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        raise NotImplementedError

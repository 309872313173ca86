"""Plans of recurrent networks, GRU and LSTM: layout and initialisation. This module does not import torch.

The weights are those of ``torch.nn.GRUCell`` and ``torch.nn.LSTMCell``, and the formulas are theirs. The passes for
learning are in ``_recurrent_network``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from motet.algorithms._blocks import orthogonal
from motet.algorithms._plans import ActorNetwork, LearnerNetwork, Seed, padded

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Kind", "RecurrentPlan"]

Kind = Literal["gru", "lstm"]


@dataclass(frozen=True)
class RecurrentPlan:
    """A layer with memory. Its outputs are the first ``outputs`` values of its state.

    >>> RecurrentPlan("gru", inputs=3, outputs=8).state_size, RecurrentPlan("lstm", inputs=3, outputs=8).state_size
    (8, 16)
    """

    kind: Kind
    inputs: int
    outputs: int
    """Number of outputs."""

    draws = explores = False

    @property
    def gates(self) -> int:
        """Number of gates: r, z and n of a GRU, i, f, g and o of an LSTM."""
        return 3 if self.kind == "gru" else 4

    @property
    def state_size(self) -> int:
        """Number of values of the state: h, and in an LSTM then c."""
        return self.outputs if self.kind == "gru" else 2 * self.outputs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of weight_ih, weight_hh, bias_ih and bias_hh."""
        n = self.gates * self.outputs
        return (n, self.inputs), (n, self.outputs), (n,), (n,)

    @property
    def parts(self) -> tuple[slice, ...]:
        """Where each of them lies in a row."""
        found, at = [], 0
        for shape in self.shapes:
            end = at + int(np.prod(shape))
            found.append(slice(at, end))
            at = padded(end)
        return tuple(found)

    @property
    def size(self) -> int:
        """Number of values in a row."""
        return padded(self.parts[-1].stop)

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Draw orthogonal weights for each gate; biases are zero."""
        row[: self.size] = 0
        for shape, part in zip(self.shapes[:2], self.parts[:2], strict=True):
            drawn = [orthogonal(rng, self.outputs, shape[1]) for _ in range(self.gates)]
            row[part] = np.concatenate(drawn).ravel()

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the networks of A agents."""
        from motet.algorithms._recurrent_network import RecurrentNetwork

        return RecurrentNetwork(self, rows, grad, inputs)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting."""
        return _Acting(self, scale)


class _Acting:
    """One step on a published row."""

    def __init__(self, plan: RecurrentPlan, scale: float) -> None:
        self._plan, self._scale = plan, np.float32(scale)

    def load(self, row: npt.NDArray[np.float32]) -> None:
        plan = self._plan
        parts = zip(plan.parts, plan.shapes, strict=True)
        self._input, self._own, self._input_bias, self._own_bias = (row[part].reshape(shape) for part, shape in parts)

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        return self.step(x, np.zeros((len(x), self._plan.state_size), np.float32))[0]

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        n = self._plan.outputs
        h = state[:, :n]
        seen = (x * self._scale).astype(np.float32, copy=False) @ self._input.T + self._input_bias
        own = h @ self._own.T + self._own_bias
        if self._plan.kind == "gru":
            reset, update = np.split(_sigmoid(seen[:, : 2 * n] + own[:, : 2 * n]), 2, 1)
            new = np.tanh(seen[:, 2 * n :] + reset * own[:, 2 * n :])
            h = (1 - update) * new + update * h
            return h, h.copy()
        gates = seen + own
        kept = _sigmoid(gates[:, n : 2 * n]) * state[:, n:] + _sigmoid(gates[:, :n]) * np.tanh(gates[:, 2 * n : 3 * n])
        h = _sigmoid(gates[:, 3 * n :]) * np.tanh(kept)
        return h, np.concatenate((h, kept), 1)


def _sigmoid(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    found: npt.NDArray[np.float32] = np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5)
    return found

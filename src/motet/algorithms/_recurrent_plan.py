"""Plans of recurrent networks, GRU and LSTM: layout and initialisation. This module does not import torch.

Weights and formulas are those of ``torch.nn.GRUCell`` and ``torch.nn.LSTMCell``. The native core computes the passes;
for learning on other devices than the CPU, ``_recurrent_network`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from motet import _native
from motet.algorithms._blocks import orthogonal
from motet.algorithms._plans import ActorNetwork, LearnerNetwork, Seed, padded

if TYPE_CHECKING:
    from torch import Tensor, nn

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
        """Number of values of the state: h of a GRU, h and c of an LSTM."""
        return self.outputs if self.kind == "gru" else 2 * self.outputs

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of weight_ih, weight_hh, bias_ih and bias_hh."""
        n = self.gates * self.outputs
        return (n, self.inputs), (n, self.outputs), (n,), (n,)

    @property
    def parts(self) -> tuple[slice, ...]:
        """Offsets of weight_ih, weight_hh, bias_ih and bias_hh in an agent's row."""
        found, at = [], 0
        for shape in self.shapes:
            end = at + int(np.prod(shape))
            found.append(slice(at, end))
            at = padded(end)
        return tuple(found)

    @property
    def size(self) -> int:
        """Number of values in an agent's row."""
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
        """Make the networks of A agents: in the native core if the rows are on the CPU."""
        from motet.algorithms._recurrent_network import NativeRecurrent, TorchRecurrent

        return (NativeRecurrent if rows.is_cpu else TorchRecurrent)(self, rows, grad, inputs)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting, in the native core."""
        return _NativeStep(self, scale)

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        """Return torch's cell with the weights of a row."""
        from torch import from_numpy, nn

        kind = nn.GRUCell if self.kind == "gru" else nn.LSTMCell
        cell = nn.utils.skip_init(kind, self.inputs, self.outputs)  # type: ignore[no-untyped-call]  # draws nothing
        parts = zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), self.parts, self.shapes, strict=True)
        for name, part, shape in parts:
            getattr(cell, name).data.copy_(from_numpy(row[part].reshape(shape).copy()))
        return [cell]

    def native(self, scale: float = 1.0) -> _native.Recurrent:
        """Make the passes in the native core; ``scale`` multiplies the inputs of steps."""
        offsets = [part.start for part in self.parts]
        return _native.Recurrent(self.kind, self.inputs, self.outputs, offsets, scale)


class _NativeStep:
    """One step in the native core, on a published row."""

    def __init__(self, plan: RecurrentPlan, scale: float) -> None:
        self._core, self._outputs = plan.native(scale), plan.outputs

    def load(self, row: npt.NDArray[np.float32]) -> None:
        self._row = row

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        return self.step(x, np.zeros((len(x), self._core.state_size), np.float32))[0]

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        new = np.empty(state.shape, np.float32)
        self._core.step(self._row, x, np.ascontiguousarray(state), new)
        return np.ascontiguousarray(new[:, : self._outputs]), new

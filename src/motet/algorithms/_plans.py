"""The interface between algorithms and networks. This module does not import torch.

In this package the *row* of an agent is one flat vector of float32 values with everything that the agent learns. An
algorithm decides what its networks compute, and provides gradients of their outputs. It does not know how a network
computes. A :class:`NetworkPlan` describes a network that is a part of an agent's row. ``bind`` creates the network for
learning, on the rows of A agents; ``acting`` creates it for acting, on one published row.

All networks take rows of numbers, as the ``Flattener`` makes them from observations, and return rows of numbers.
There are three implementations: fully connected networks (``_blocks``) and recurrent ones (``_recurrent_plan``), whose
passes are written by hand, and any ``torch.nn.Module`` (``_module_plan``).

A network may have a memory: a state ``[state_size]`` that it carries from each row of a sequence to the next one.
``step`` computes one row for each state, ``unroll`` computes sequences. The rows of sequences are flat,
``[A, B * T, ...]`` for B sequences of T rows, so that a network without memory computes them like any other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["ActorNetwork", "ChainPlan", "LearnerNetwork", "NetworkPlan", "Pass", "RowPlan", "Seed", "chained", "padded"]


Seed = Callable[[int], int]
"""Returns the next seed of an agent of the stack."""


def padded(n: int) -> int:
    """Round up to a multiple of 16, so that rows of float32 begin on a cache line."""
    return -(-n // 16) * 16


class RowPlan(Protocol):
    """A part of an agent's row."""

    @property
    def size(self) -> int:
        """Number of float32 values."""
        ...

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill a row ``[size]`` with initial values."""
        ...


class NetworkPlan(RowPlan, Protocol):
    """A network as a part of an agent's row."""

    @property
    def state_size(self) -> int:
        """Number of values of its memory; 0: it has none."""
        ...

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        ...

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        ...

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers while it learns."""
        ...

    @property
    def explores(self) -> bool:
        """Whether the network draws random numbers while an agent acts and explores."""
        ...

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the networks of A agents on ``rows`` ``[A, size]``.

        Backward passes write the gradients of the rows to ``grad`` ``[A, size]``, if there is one. They return the
        gradient of the inputs, if ``inputs``. A network that draws random numbers asks ``seed`` before each pass.
        """
        ...

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting; ``scale`` multiplies its inputs."""
        ...

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        """Return torch modules with the parameters of a row; each takes the outputs ``[B, n]`` of the previous one."""
        ...


class Pass(NamedTuple):
    """Result of a forward pass. The next pass with as many rows may overwrite it."""

    out: Tensor  # [A, B, outputs]
    kept: Any = None
    """Values that the backward pass needs."""


class LearnerNetwork(Protocol):
    """The networks of A agents on their rows."""

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Compute the outputs for inputs ``[A, B, inputs]``; with ``learn`` a backward pass may follow."""
        ...

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute the outputs for inputs ``[A, 2 B, inputs]``: a pass for the first half, outputs ``[A, B, outputs]``
        for the second half.

        Gradients are computed for the first half only.
        """
        ...

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute B sequences of T rows, given flat: inputs ``[A, B * T, inputs]``, outputs ``[A, B * T, outputs]``.

        Where ``begin`` ``[A, B, T]`` is True, the state before a row is the stored one in ``memory``
        ``[A, B, T, state_size]``, otherwise the one after the previous row. ``begin`` is True in every first row.

        A backward pass may follow, unless ``learn_from`` is None. Rows before ``learn_from`` only prepare the state: no
        gradient reaches them.
        """
        ...

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        """Set the gradients of the rows, given the gradient of ``done.out``. The given gradient may be overwritten.

        Returns the gradient of the inputs if the network was bound with ``inputs``. Gradients are not added to earlier
        ones.
        """
        ...


class ActorNetwork(Protocol):
    """A network for acting, with published parameters."""

    def load(self, row: npt.NDArray[np.float32]) -> None:
        """Use the parameters of a row ``[size]``. The caller keeps the row valid until the next call."""
        ...

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        """Return the outputs ``[B, outputs]`` for inputs ``[B, inputs]``, in an array that the caller may keep.

        With a seed, layers that explore draw their noise from it; without a seed they add no noise.
        """
        ...

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the outputs and the state ``[B, state_size]`` after the inputs, given the state before them.

        The caller may keep both arrays. A network without memory returns the state that it was given.
        """
        ...


# ---- one network after the other


def chained(first: NetworkPlan | None, second: NetworkPlan) -> NetworkPlan:
    """Return a network that feeds the outputs of the first into the second; without a first, the second."""
    return second if first is None else ChainPlan(first, second)


class ChainPlan:
    """A network whose outputs are the inputs of another. Their parts of the row follow each other."""

    def __init__(self, first: NetworkPlan, second: NetworkPlan) -> None:
        self.first, self.second = first, second
        self.size, self.inputs, self.outputs = first.size + second.size, first.inputs, second.outputs
        self.draws, self.explores = first.draws or second.draws, first.explores or second.explores
        self.state_size = first.state_size + second.state_size

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill an agent's row of weights with initial values."""
        self.first.initialise(row[: self.first.size], rng)
        self.second.initialise(row[self.first.size :], rng)

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the networks of A agents."""
        cut = self.first.size
        grads = (None, None) if grad is None else (grad[:, :cut], grad[:, cut:])
        second = self.second.bind(rows[:, cut:], grads[1], True, seed)
        return _BoundChain(self.first.bind(rows[:, :cut], grads[0], inputs, seed), second, self.first.state_size)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting."""
        return _ActingChain(self.first.acting(scale), self.second.acting(), self.first.size, self.first.state_size)

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        """Return torch modules with the parameters of a row."""
        return [*self.first.layers_of(row[: self.first.size]), *self.second.layers_of(row[self.first.size :])]


class _BoundChain:
    def __init__(self, first: LearnerNetwork, second: LearnerNetwork, state_cut: int) -> None:
        self._first, self._second, self._state_cut = first, second, state_cut

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        first = self._first.forward(x, learn)
        second = self._second.forward(first.out, learn)
        return Pass(second.out, (first, second))

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        half = x.shape[1] // 2
        ahead = self.forward(x[:, half:]).out.clone()
        return self.forward(x[:, :half], learn=True), ahead

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        cut = self._state_cut
        first = self._first.unroll(x, memory[..., :cut], begin, learn_from)
        second = self._second.unroll(first.out, memory[..., cut:], begin, learn_from)
        return Pass(second.out, (first, second))

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        first, second = done.kept
        back = self._second.backward(second, grad)
        assert back is not None
        return self._first.backward(first, back)


class _ActingChain:
    def __init__(self, first: ActorNetwork, second: ActorNetwork, cut: int, state_cut: int) -> None:
        self._first, self._second, self._cut, self._state_cut = first, second, cut, state_cut

    def load(self, row: npt.NDArray[np.float32]) -> None:
        self._first.load(row[: self._cut])
        self._second.load(row[self._cut :])

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        return self._second.forward(self._first.forward(x, seed), seed)

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        cut = self._state_cut
        out, first = self._first.step(x, state[:, :cut], seed)
        out, second = self._second.step(out, state[:, cut:], seed)
        if not second.shape[1]:
            return out, first
        return out, np.concatenate((first, second), 1) if cut else second

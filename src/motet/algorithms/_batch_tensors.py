"""Batches as tensors, for algorithms that learn from a replay.

A batch consists of transitions, or of sequences for networks with a memory. An update learns from R rows for each
agent, ``[A, R, ...]``. The batch itself calls the networks, so the code of an update is the same for both kinds.

Networks get all rows of sequences, flat: ``[A, B * S, ...]`` for B sequences of S rows. The last ``n_step`` rows of a
sequence are only needed as ends of transitions. The R rows are those after the burn-in, without these last ones. Rows
at which no transition starts do not count in the loss.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from motet.algorithm import Batch, Space
from motet.algorithms._device import Device
from motet.algorithms._encoder import Encoder
from motet.algorithms._plans import LearnerNetwork, Pass
from motet.nest import Nest

__all__ = ["BatchTensors", "SequenceTensors", "Tensors", "batch_tensors"]

_MAX, _MEAN = 0.9, 0.1  # weights of the largest and of the mean error in the priority of a sequence


def batch_tensors(
    batch: Batch,
    encoder: Encoder,
    action_space: Space,
    device: Device,
    burn_in: int,
    action_dtype: torch.dtype = torch.int64,
) -> Tensors | SequenceTensors:
    """Return the tensors of a stacked batch."""
    if batch.ahead is None:
        return Tensors(batch, encoder, action_space, device, action_dtype)
    return SequenceTensors(batch, encoder, action_space, device, action_dtype, burn_in)


class BatchTensors:
    """Base of stacked batches as tensors on the device. Each :meth:`fetch` loads the current data.

    An update learns from R rows for each agent, at each of which a transition starts.
    """

    rows: int
    """R: the number of rows to learn from."""
    share: float | Tensor
    """Weight of each row in a mean over the batch: a number, or ``[A, R]``."""
    next_mask: Tensor | None
    inputs: Tensor
    """Inputs of the networks for all rows, ``[A, n, inputs]``."""
    x: Tensor
    """The part of the networks' inputs for which :meth:`look` computes gradients."""

    def __init__(self, batch: Batch, action_space: Space, device: Device, action_dtype: torch.dtype) -> None:
        self.batch, self._device, self._action_dtype = batch, device, action_dtype
        self._first_action = int(getattr(action_space, "start", 0))
        self._action, self._reward, self._discount = map(device.link, (batch.action, batch.reward, batch.discount))
        self._weight = _nothing if batch.weight is None else device.link(batch.weight)

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        self.action = self._learned(self._action().to(self._action_dtype))
        if self._first_action:
            self.action = self.action - self._first_action
        self.reward, self.discount = self._learned(self._reward()), self._learned(self._discount())
        weight = self._weight()
        self.weight = None if weight is None else self._weighed(weight)

    def _learned(self, values: Tensor) -> Tensor:
        """Return the values of the rows that are learned from."""
        return values

    def _weighed(self, weight: Tensor) -> Tensor:
        """Return importance weights as ``[A, R]``."""
        return weight

    def look(self, net: LearnerNetwork, ahead: bool) -> tuple[Pass, Tensor | None]:
        """Return a forward pass of a network with gradients. With ``ahead``, also return outputs ``[A, R, n]`` at the
        ends.

        The ends are the last observations of the transitions that start at the R rows.
        """
        raise NotImplementedError

    def look_ahead(self, net: LearnerNetwork) -> Tensor:
        """Return the outputs ``[A, R, n]`` of a network at the ends of the transitions, without gradients."""
        raise NotImplementedError

    def learned(self, out: Tensor) -> Tensor:
        """Select from the outputs of :meth:`look` those of the rows that are learned from, ``[A, R, n]``."""
        raise NotImplementedError

    def spread(self, grad: Tensor) -> Tensor:
        """Return the gradient for all outputs of :meth:`look`, given the gradient ``[A, R, n]`` for the selected
        rows."""
        raise NotImplementedError

    def scale(self) -> float | Tensor:
        """Return the factor of each row in the loss, importance weights included: a number, or ``[A, R]``."""
        raise NotImplementedError

    def mean(self, values: Tensor) -> Tensor:
        """Return the means ``[A]`` of values ``[A, R]`` or ``[A, R, N]``."""
        raise NotImplementedError

    def priorities(self, errors: Tensor) -> Tensor:
        """Return priorities ``[A, B]``, given absolute errors ``[A, R]``."""
        raise NotImplementedError

    def best(self, values: Tensor) -> Tensor:
        """Return the allowed next action with the highest of the values ``[A, B, n]``, as ``[A, B, 1]``."""
        if self.next_mask is not None:
            values = values.masked_fill(~self.next_mask, -math.inf)
        return values.argmax(2, keepdim=True)


class Tensors(BatchTensors):
    """A stacked batch of transitions as tensors on the device. Each :meth:`fetch` loads the current data."""

    def __init__(
        self, batch: Batch, encoder: Encoder, action_space: Space, device: Device, action_dtype: torch.dtype
    ) -> None:
        super().__init__(batch, action_space, device, action_dtype)
        agents, self.rows = batch.reward.shape
        self.share = 1.0 / self.rows
        self.inputs = device.zeros(agents, 2 * self.rows, encoder.size)  # current rows, then next rows
        self.x, self.next_x = self.inputs[:, : self.rows], self.inputs[:, self.rows :]
        parts = (batch.observation, self.x), (batch.next_observation, self.next_x)
        self._encode = [encoder.link(observation, part, device) for observation, part in parts]
        self._next_mask = device.link(batch.next_extra["mask"]) if "mask" in batch.next_extra else _nothing

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        for encode in self._encode:
            encode()
        super().fetch()
        self.next_mask = self._next_mask()

    def look(self, net: LearnerNetwork, ahead: bool) -> tuple[Pass, Tensor | None]:
        return net.forward_both(self.inputs) if ahead else (net.forward(self.x, learn=True), None)

    def look_ahead(self, net: LearnerNetwork) -> Tensor:
        return net.forward(self.next_x).out

    def learned(self, out: Tensor) -> Tensor:
        return out

    def spread(self, grad: Tensor) -> Tensor:
        return grad

    def scale(self) -> float | Tensor:
        return self.share if self.weight is None else self.weight / self.rows

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(tuple(range(1, values.ndim)))

    def priorities(self, errors: Tensor) -> Tensor:
        return errors


class SequenceTensors(BatchTensors):
    """A stacked batch of sequences as tensors on the device. Each :meth:`fetch` loads the current data."""

    def __init__(
        self,
        batch: Batch,
        encoder: Encoder,
        action_space: Space,
        device: Device,
        action_dtype: torch.dtype,
        burn_in: int,
    ) -> None:
        super().__init__(batch, action_space, device, action_dtype)
        assert batch.valid is not None and batch.ahead is not None
        agents, sequences, length = batch.reward.shape
        memory = batch.extra["memory"]
        self._valid, self._ahead, self._memory = batch.valid, batch.ahead, device.link(memory)
        every = _rows(batch.observation)
        self._burn_in, self._shape = burn_in, (agents, sequences, every)
        self.rows = sequences * (length - burn_in)
        self.inputs = self.x = device.zeros(agents, sequences * every, encoder.size)
        self._encode = encoder.link(batch.observation, self.x, device)
        self._states = device.zeros(*self._shape, memory.shape[-1])
        # positions of the rows to learn from
        self._own = np.arange(sequences)[:, None] * every + np.arange(burn_in, length)
        self._mask = device.link(batch.extra["mask"]) if "mask" in batch.extra else None

    def fetch(self) -> None:
        """Load the current content of the batch's arrays."""
        device, agents, burn_in = self._device, self._shape[0], self._burn_in
        self._encode()
        length = self._valid.shape[2]
        self._states[:, :, :length] = self._memory()
        begin = np.zeros(self._shape, np.bool_)
        begin[..., 0] = True
        np.logical_not(self._valid[..., :-1], out=begin[..., 1:length])  # after the end of an episode
        self._begins = device.to_device(begin)
        valid = self._valid[..., burn_in:].reshape(agents, -1)
        ends = (self._own + self._ahead[..., burn_in:]).reshape(agents, -1)
        self._is_valid, self._ends = device.to_device(valid), device.to_device(ends).unsqueeze(2)
        valid_rows = self._is_valid.float()
        self.share: Tensor = valid_rows.div_(valid_rows.sum(1, keepdim=True).clamp_(min=1.0))
        super().fetch()
        # No action was taken where no transition starts.
        gone = ~self._is_valid.view(agents, -1, *[1] * (self.action.ndim - 2))
        self.action = self.action.masked_fill(gone, 0)
        self.next_mask = None
        if self._mask is not None:
            mask = self._mask()
            self.next_mask = self._at_ends(mask.view(agents, -1, mask.shape[-1]))

    def _learned(self, values: Tensor) -> Tensor:
        return values[:, :, self._burn_in :].flatten(1, 2)

    def _weighed(self, weight: Tensor) -> Tensor:
        """Return for each row the importance weight of its sequence."""
        return weight.repeat_interleave(self.rows // self._shape[1], 1)

    def _at_ends(self, out: Tensor) -> Tensor:
        """Given values ``[A, B * S, ...]`` of all rows, return those at the ends of the transitions."""
        return out.gather(1, self._ends.expand(-1, -1, out.shape[2]))

    def look(self, net: LearnerNetwork, ahead: bool) -> tuple[Pass, Tensor | None]:
        done = net.unroll(self.x, self._states, self._begins, self._burn_in)
        return done, self._at_ends(done.out) if ahead else None

    def look_ahead(self, net: LearnerNetwork) -> Tensor:
        return self._at_ends(net.unroll(self.x, self._states, self._begins, None).out)

    def learned(self, out: Tensor) -> Tensor:
        return self._learned(out.view(*self._shape, -1)[:, :, : self._valid.shape[2]])

    def spread(self, grad: Tensor) -> Tensor:
        agents, sequences, every = self._shape
        whole = grad.new_zeros((*self._shape, grad.shape[2]))
        whole[:, :, self._burn_in : self._valid.shape[2]] = grad.view(agents, sequences, -1, grad.shape[2])
        return whole.view(agents, sequences * every, -1)

    def scale(self) -> Tensor:
        return self.share if self.weight is None else self.share * self.weight

    def mean(self, values: Tensor) -> Tensor:
        return (values.flatten(2).mean(2) if values.ndim > 2 else values).mul(self.share).sum(1)

    def priorities(self, errors: Tensor) -> Tensor:
        agents, sequences, _ = self._shape
        valid = self._is_valid.view(agents, sequences, -1)
        sizes = errors.view(valid.shape) * valid
        return _MAX * sizes.amax(2) + _MEAN * sizes.sum(2) / valid.sum(2).clamp(min=1)


def _rows(observation: Nest) -> int:
    """Number of rows of a sequence, including the rows after it in which its last transitions end."""
    while not isinstance(observation, np.ndarray):
        observation = next(iter(observation.values() if isinstance(observation, dict) else observation))
    return int(observation.shape[2])


def _nothing() -> None:
    return None

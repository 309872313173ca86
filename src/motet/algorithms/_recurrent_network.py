"""GRU and LSTM of A agents on rows of sequences, for learning: in the native core, and in torch for other devices.

A state is carried from row to row, except where a row begins from a stored state: at the first row of a sequence, and
after the end of an episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from motet.algorithms._plans import Pass
from motet.algorithms._recurrent_plan import RecurrentPlan

__all__ = ["NativeRecurrent", "TorchRecurrent"]


class _Recurrent:
    """Recurrent networks of A agents on their rows."""

    def __init__(self, plan: RecurrentPlan, inputs: bool) -> None:
        self._plan, self._inputs = plan, inputs

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Compute rows, each of which counts as the first of an episode."""
        memory = x.new_zeros(*x.shape[:2], 1, self._plan.state_size)
        begin = torch.ones(memory.shape[:3], dtype=torch.bool, device=x.device)
        return self.unroll(x, memory, begin, 0 if learn else None)

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute the outputs for inputs ``[A, 2 B, inputs]``, of which the second half needs no gradients."""
        rows = x.shape[1] // 2
        return self.forward(x[:, :rows], learn=True), self.forward(x[:, rows:]).out

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute the outputs for sequences of rows."""
        raise NotImplementedError


class NativeRecurrent(_Recurrent):
    """Networks on the CPU, with parameters ``rows`` ``[A, n]``; gradients go to the same columns of ``grad``."""

    def __init__(self, plan: RecurrentPlan, rows: Tensor, grad: Tensor | None = None, inputs: bool = False) -> None:
        super().__init__(plan, inputs)
        self._core, self._rows = plan.native(), rows.numpy()
        self._grad = None if grad is None else grad.numpy()
        self._buffers: dict[tuple[str, torch.Size], Tensor] = {}

    def _room(self, kind: str, like: Tensor, size: int) -> Tensor:
        """Return a buffer ``[A, B, T, size]``, which is reused for all calls with the same ``kind``."""
        key = kind, like.shape
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(*like.shape, size)
        return self._buffers[key]

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute the outputs for sequences of rows."""
        rows = x.reshape(*begin.shape, self._plan.inputs).contiguous()
        learns = learn_from is not None
        out = self._room("learning" if learns else "looking", begin, self._plan.outputs)
        kept = self._room("kept", begin, self._core.kept_size).numpy() if learns else None
        self._core.unroll(
            self._rows, rows.numpy(), memory.contiguous().numpy(), begin.contiguous().numpy(), out.numpy(), kept
        )
        return Pass(out.flatten(1, 2), (rows, begin, kept, learn_from))

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        """Set the gradients of weights and biases; return the gradient of the inputs. Compute only what is wanted."""
        rows, begin, kept, learn_from = done.kept
        back = self._room("back", begin, self._plan.inputs) if self._inputs else None
        self._core.backward(
            self._rows, rows.numpy(), begin.contiguous().numpy(), kept,
            grad.reshape(*begin.shape, self._plan.outputs).contiguous().numpy(), learn_from, self._grad,
            None if back is None else back.numpy(),
        )  # fmt: skip
        return None if back is None else back.flatten(1, 2)


class TorchRecurrent(_Recurrent):
    """Networks on any device, with parameters ``rows`` ``[A, n]``; gradients go to the same columns of ``grad``."""

    def __init__(self, plan: RecurrentPlan, rows: Tensor, grad: Tensor | None = None, inputs: bool = False) -> None:
        super().__init__(plan, inputs)
        self._grad = grad
        agents, parts = len(rows), list(zip(plan.parts, plan.shapes, strict=True))
        self._leaves = [rows[:, part].view(agents, *shape).detach() for part, shape in parts]
        if grad is not None:
            self._grads = [grad[:, part].view(agents, *shape) for part, shape in parts]
            for leaf in self._leaves:
                leaf.requires_grad_()

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute the outputs for sequences of rows."""
        agents, sequences, length = begin.shape
        if learn_from is not None and self._inputs:
            x = x.detach().requires_grad_()
        rows = x.reshape(agents, sequences, length, -1)
        cut = length if learn_from is None else learn_from
        with torch.no_grad():
            before, state = self._rows(rows[:, :, :cut], memory[:, :, :cut], begin[:, :, :cut], None)
        with torch.enable_grad():
            after, _ = self._rows(rows[:, :, cut:], memory[:, :, cut:], begin[:, :, cut:], state)
            out = torch.stack(before + after, 2).flatten(1, 2)
        return Pass(out.detach(), (out, x))

    def _rows(
        self, x: Tensor, memory: Tensor, begin: Tensor, state: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the output ``[A, B, outputs]`` of each row, and the state after the last one."""
        agents, sequences, length = begin.shape
        if not length:
            return [], state
        input_weight, own_weight, input_bias, own_bias = self._leaves
        flat = torch.baddbmm(input_bias.unsqueeze(1), x.reshape(agents, sequences * length, -1), input_weight.mT)
        seen = flat.view(agents, sequences, length, -1)
        outs = []
        for t in range(length):
            stored = memory[:, :, t]
            state = stored if state is None else torch.where(begin[:, :, t, None], stored, state)
            own = torch.baddbmm(own_bias.unsqueeze(1), state[..., : self._plan.outputs], own_weight.mT)
            state = self._step(seen[:, :, t], own, state)
            outs.append(state[..., : self._plan.outputs])
        return outs, state

    def _step(self, seen: Tensor, own: Tensor, state: Tensor) -> Tensor:
        """Return the state after a row."""
        n = self._plan.outputs
        if self._plan.kind == "gru":
            reset, update = torch.sigmoid(seen[..., : 2 * n] + own[..., : 2 * n]).chunk(2, -1)
            new = torch.tanh(torch.addcmul(seen[..., 2 * n :], reset, own[..., 2 * n :]))
            return torch.lerp(new, state, update)
        take, keep, new, give = (seen + own).chunk(4, -1)
        cell = torch.sigmoid(keep) * state[..., n:] + torch.sigmoid(take) * torch.tanh(new)
        return torch.cat((torch.sigmoid(give) * torch.tanh(cell), cell), -1)

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        """Set the gradients of weights and biases; return the gradient of the inputs. Compute only what is wanted."""
        out, x = done.kept
        leaves = self._leaves if self._grad is not None else []
        found = torch.autograd.grad(out, [*leaves, x] if self._inputs else leaves, grad, allow_unused=True)
        if leaves:
            new = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=False)]
            torch._foreach_copy_(self._grads, new)
        if not self._inputs:
            return None
        return torch.zeros_like(x) if found[-1] is None else found[-1]

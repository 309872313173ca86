"""Users' networks in learners and actors: their passes on rows, with gradients by autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from motet.algorithms._plans import Pass, Seed

if TYPE_CHECKING:
    from motet.algorithms._module_plan import ModulePlan

__all__ = ["ActingModule", "LoopedModules", "StackedModules", "drawing"]


@contextlib.contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """Seed torch's random stream within the block, and restore the stream afterwards."""
    if seed is None:
        yield
        return
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)


class _Modules:
    """The networks of A agents on their rows; gradients go to the same columns of ``grad``."""

    def __init__(self, plan: ModulePlan, rows: Tensor, grad: Tensor | None, inputs: bool) -> None:
        self._plan, self._grad, self._inputs = plan, grad, inputs
        self._leaves: list[Tensor] = []
        self._grads: list[Tensor] = []

    def _forward(self, x: Tensor, learn: bool) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs ``[A, B, outputs]``, and the inputs for which gradients are needed."""
        raise NotImplementedError

    def forward(self, x: Tensor, learn: bool = False) -> Pass:
        """Compute the outputs for inputs ``[A, B, inputs]``."""
        with torch.set_grad_enabled(learn):
            out, inputs = self._forward(x, learn)
        return Pass(out.detach(), (out, inputs))

    def forward_both(self, x: Tensor) -> tuple[Pass, Tensor]:
        """Compute the outputs for inputs ``[A, 2 B, inputs]``; only the first half gets gradients."""
        rows = x.shape[1] // 2
        return self.forward(x[:, :rows], learn=True), self.forward(x[:, rows:]).out

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute each row by itself, because the network has no memory."""
        return self.forward(x, learn_from is not None)

    def backward(self, done: Pass, grad: Tensor) -> Tensor | None:
        """Set the gradients of the parameters; return the gradient of the inputs if it is needed."""
        out, inputs = done.kept
        leaves = self._leaves if self._grad is not None else []
        found = torch.autograd.grad(out, [*leaves, *inputs], grad, allow_unused=True)
        if leaves:
            new = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=False)]
            torch._foreach_copy_(self._grads, new)
        return self._joined(found[len(leaves) :], inputs) if inputs else None

    def _joined(self, grads: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class LoopedModules(_Modules):
    """Computes the networks one after the other."""

    def __init__(self, plan: ModulePlan, rows: Tensor, grad: Tensor | None, inputs: bool, seed: Seed | None) -> None:
        super().__init__(plan, rows, grad, inputs)
        self._modules, self._seed = plan.skeletons(rows, training=grad is not None), seed
        if grad is not None:
            for row, module in zip(grad, self._modules, strict=True):
                for parameter, leaf in zip(plan.parameters, module.parameters(), strict=True):
                    if parameter.learns:
                        self._leaves.append(leaf)
                        self._grads.append(row[parameter.part].view(parameter.shape))

    def _forward(self, x: Tensor, learn: bool) -> tuple[Tensor, list[Tensor]]:
        return self._each(lambda i, module, own: self._plan.call(module, own), x, learn)

    def unroll(self, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int | None = 0) -> Pass:
        """Compute the outputs for sequences; without memory, each row is computed by itself."""
        learn, plan = learn_from is not None, self._plan
        if not plan.state_size:
            return self.forward(x, learn)

        def unrolled(i: int, module: nn.Module, own: Tensor) -> Tensor:
            return plan.unrolled(module, own, memory[i], begin[i], learn_from or 0)

        with torch.set_grad_enabled(learn):
            out, inputs = self._each(unrolled, x, learn)
        return Pass(out.detach(), (out, inputs))

    def _each(
        self, call: Callable[[int, nn.Module, Tensor], Tensor], x: Tensor, learn: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the outputs of all agents, ``call(number, network, inputs)`` of each, and the inputs."""
        outs, inputs = [], []
        for i, (module, own) in enumerate(zip(self._modules, x.unbind(0), strict=True)):
            if learn and self._inputs:
                own = own.detach().requires_grad_()
                inputs.append(own)
            with drawing(None if self._seed is None or not module.training else self._seed(i)):
                outs.append(call(i, module, own))
        return outs[0].unsqueeze(0) if len(outs) == 1 else torch.stack(outs), inputs

    def _joined(self, grads: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Tensor:
        return torch.stack([torch.zeros_like(x) if one is None else one for one, x in zip(grads, inputs, strict=True)])


class StackedModules(_Modules):
    """Computes all networks in one pass."""

    def __init__(self, plan: ModulePlan, rows: Tensor, grad: Tensor | None, inputs: bool) -> None:
        super().__init__(plan, rows, grad, inputs)
        module, self._own = plan.made().to(rows.device).train(grad is not None), plan.leaves(rows)
        for parameter, leaf in zip(plan.parameters, self._own.values(), strict=True):
            if grad is not None and parameter.learns:
                self._leaves.append(leaf.requires_grad_())
                self._grads.append(grad[:, parameter.part].view(leaf.shape))

        def call(own: dict[str, Tensor], x: Tensor) -> Tensor:
            return plan.call(lambda *given: functional_call(module, own, given), x)

        self._call = vmap(call)

    def _forward(self, x: Tensor, learn: bool) -> tuple[Tensor, list[Tensor]]:
        inputs = []
        if learn and self._inputs:
            x = x.detach().requires_grad_()
            inputs.append(x)
        return self._call(self._own, x), inputs

    def _joined(self, grads: Sequence[Tensor | None], inputs: Sequence[Tensor]) -> Tensor:
        (grad,), (x,) = grads, inputs
        return torch.zeros_like(x) if grad is None else grad


class ActingModule:
    """A network for acting. Published parameters are copied into a private row."""

    def __init__(self, plan: ModulePlan, scale: float) -> None:
        self._plan, self._scale = plan, scale
        self._row = torch.zeros(1, plan.size)
        (self._module,) = plan.skeletons(self._row, training=False)
        self._explorers = [one for one in self._module.modules() if getattr(one, "explores", False)]
        self._newest: npt.NDArray[np.float32] | None = None

    def load(self, row: npt.NDArray[np.float32]) -> None:
        """Set the row of parameters; it is copied when the network is next used."""
        self._newest = row

    def forward(self, x: npt.NDArray[Any], seed: int | None = None) -> npt.NDArray[np.float32]:
        """Return the outputs ``[B, outputs]`` for inputs ``[B, inputs]``."""
        return self._asked(x, seed, lambda rows: (self._plan.call(self._module, rows),))[0]

    def step(
        self, x: npt.NDArray[Any], state: npt.NDArray[np.float32], seed: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return the outputs and the state after the inputs."""
        if not self._plan.state_size:
            return self.forward(x, seed), state
        before = torch.from_numpy(state)
        out, new = self._asked(x, seed, lambda rows: self._plan.step(self._module, rows, before))
        return out, new.copy() if np.shares_memory(new, state) else new

    @torch.inference_mode()
    def _asked(
        self, x: npt.NDArray[Any], seed: int | None, ask: Callable[[Tensor], tuple[Tensor, ...]]
    ) -> list[npt.NDArray[np.float32]]:
        """Return the network's outputs for rows, as numpy arrays that the caller may keep."""
        if self._newest is not None:
            self._row.numpy()[0] = self._newest
            self._newest = None
        rows = torch.from_numpy(x).to(torch.float32)
        if self._scale != 1.0:
            rows = rows * self._scale
        for layer in self._explorers:
            layer.train(seed is not None)
        with drawing(seed):
            found = [answer.numpy() for answer in ask(rows)]
        return [one if one.flags.owndata and one.flags.writeable else one.copy() for one in found]

"""Checks of a user's network before a run: whether it follows the rules, whether it draws random numbers, and whether
many agents' networks can be computed together."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from motet.errors import SettingError
from motet.streams import streams_returned

if TYPE_CHECKING:
    from motet.algorithms._module_plan import ModulePlan

__all__ = ["check_module", "draws", "stacks"]

_LARGEST = 2**17
"""Number of parameters above which a loop over the networks is faster than one pass."""
_LOOPED = (nn.modules.conv._ConvNd, nn.RNNBase, nn.RNNCellBase)
"""Layers that are faster in a loop, or that ``vmap`` does not support."""


def check_module(plan: ModulePlan) -> None:
    """Raise unless a network follows the rules for networks."""
    name, module, other = plan.name, plan.made(seed=1), plan.made(seed=2)
    _check_alike(plan, module, other)
    own = {one.data_ptr() for one in module.parameters()}
    if shared := own & {one.data_ptr() for one in other.parameters()}:
        names = [key for key, one in module.named_parameters() if one.data_ptr() in shared]
        raise SettingError(
            f"{name} must make a network with parameters of its own, got {', '.join(names)} again in the next network; "
            "make them inside the function"
        )
    x = _inputs(plan, rows=3)
    before = x.clone()
    with streams_returned(), torch.no_grad():
        module.train()
        kept = {key: one.clone() for key, one in module.named_buffers()}
        plan.call(module, x)
    for key, one in module.named_buffers():
        if key not in kept or not torch.equal(kept[key], one):
            raise SettingError(
                f"{name} must keep no state beside its parameters, got the buffer {key}, which training changes (as "
                "those of BatchNorm); use LayerNorm or GroupNorm"
            )
    module.eval()
    if draws(plan, training=False):
        raise SettingError(
            f"{name} must draw no random numbers in eval(), got one that does; draw only if self.training"
        )
    with torch.no_grad():
        together = plan.call(module, x)
        alone = torch.cat([plan.call(module, x[i : i + 1]) for i in range(len(x))])
    if not torch.equal(x, before):
        raise SettingError(f"{name} must not write to its input, got one that does; work on a copy")
    if together.dtype != torch.float32:
        raise SettingError(f"{name} must return float32, got {together.dtype}")
    if plan.state_size:
        _check_memory(plan, module)
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise SettingError(
            f"{name} must compute each row of a batch by itself, got rows that depend on the others; the first axis of "
            "every tensor is the batch"
        )


def _check_memory(plan: ModulePlan, module: nn.Module) -> None:
    """Check two steps of a network with memory, and its ``unroll`` if it has one."""
    name, n, length = plan.name, 3, 4
    x = torch.cat([_inputs(plan, rows=n) for _ in range(length)])
    state = torch.from_numpy(np.random.default_rng(1).normal(size=(n, plan.state_size)).astype(np.float32))
    with torch.no_grad():
        given = state.clone()
        first = plan.step(module, x[:n], given)
        if not torch.equal(given, state):
            raise SettingError(f"{name} must not write to its state, got one that does; return a new one")
        plan.step(module, x[n : 2 * n], first[1])
        again = plan.step(module, x[:n], state)
        if not all(torch.equal(one, other) for one, other in zip(first, again, strict=True)):
            raise SettingError(
                f"{name} must keep nothing from call to call, got other results for the same observation and state; "
                "return all that it remembers as the new state"
            )
        alone = [plan.step(module, x[i : i + 1], state[i : i + 1]) for i in range(n)]
        if not all(_close(one, torch.cat(parts)) for one, *parts in zip(first, *alone, strict=True)):
            raise SettingError(
                f"{name} must compute each row of a batch by itself, got outputs or states that depend on other rows"
            )
        if hasattr(module, "unroll"):
            memory = state.unsqueeze(1) + torch.arange(length).view(1, -1, 1)
            begin = torch.tensor([[True, False, False, False], [True, False, True, False], [True, True, False, True]])
            whole = plan.unrolled(module, x, memory, begin)
            stepped = plan.unrolled(module, x, memory, begin, learn_from=length)
            if not _close(whole, stepped):
                raise SettingError(
                    f"unroll of {name} must return what forward returns row by row, got other values; where begin is "
                    "True, a row starts from its stored state"
                )


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-4))


def _check_alike(plan: ModulePlan, module: nn.Module, other: nn.Module) -> None:
    shapes = [[(key, one.shape) for key, one in made.named_parameters()] for made in (module, other)]
    if shapes[0] != shapes[1] or [key for key, _ in shapes[0]] != [one.name for one in plan.parameters]:
        raise SettingError(f"{plan.name} must make the same parameters each time, got other names or shapes")
    theirs = dict(other.named_buffers())
    for key, one in module.named_buffers():
        if key not in theirs or not torch.equal(one, theirs[key]):
            raise SettingError(
                f"{plan.name} must not have buffers that depend on random numbers, got {key}: each process makes the "
                "network again and takes over only its parameters; make it a parameter with requires_grad=False, or "
                "draw it from a fixed seed"
            )


def _inputs(plan: ModulePlan, rows: int) -> Tensor:
    """Return rows of inputs as the encoder makes them from drawn observations."""
    rng = np.random.default_rng(0)
    taus = 3 if plan.second == "taus" else 0
    x = torch.from_numpy(rng.random((rows, plan.inputs + taus), np.float32))
    plan.encoder.draw_indices(x, rng)
    return x


def draws(plan: ModulePlan, training: bool) -> bool:
    """Return whether a network draws from torch's random stream in a forward pass."""
    module = plan.made().train(training)
    with streams_returned(), torch.no_grad():
        before = torch.get_rng_state()
        plan.call(module, _inputs(plan, rows=2))
        drew = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    return drew


def stacks(plan: ModulePlan) -> bool:
    """Return whether to compute many agents' networks in one pass.

    The answer depends only on the network, never on measured times, so that all processes agree.
    """
    if (
        plan.draws
        or plan.second == "taus"
        or plan.state_size
        or sum(parameter.part.stop - parameter.start for parameter in plan.parameters) > _LARGEST
    ):
        return False
    module = plan.made().train()
    if any(isinstance(one, _LOOPED) for one in module.modules()):
        return False
    own = {key: torch.stack([one.detach()] * 2) for key, one in module.named_parameters()}

    def call(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return plan.call(lambda *given: functional_call(module, weights, given), x)

    x = torch.stack([_inputs(plan, rows=2)] * 2)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")
            found: Any = vmap(call, randomness="error")(own, x)
    except Exception:  # noqa: BLE001 - whatever vmap refuses runs in a loop
        return False
    with torch.no_grad():
        return bool(torch.allclose(found[0], plan.call(module, x[0]), rtol=1e-3, atol=1e-4))

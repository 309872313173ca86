"""Networks of users: any ``torch.nn.Module`` as a part of an agent's row. torch is imported when one is made.

A network lies in the row as its parameters, in the order of ``named_parameters()``, each padded to a cache line. The
modules that learners and actors compute with are *skeletons*: their parameters are views of rows. The
structure and the constant buffers of a skeleton come from a call of the user's function with fixed random streams, so
that all skeletons are alike.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from motet.algorithms._encoder import Encoder
from motet.algorithms._plans import ActorNetwork, LearnerNetwork, Seed, padded
from motet.algorithms.source import Source
from motet.errors import SettingError
from motet.nest import map_nest
from motet.streams import MADE, Streams, StreamUser, made_alike, streams_returned

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["STACKED_FROM", "ModulePlan", "Parameter", "takes_two"]

Second = Literal["", "action", "taus"]
"""The second input of a network, beside the observation; empty: there is none."""
STACKED_FROM = 4
"""Minimum number of agents for which one pass over all networks is faster than a loop."""


@dataclass(frozen=True)
class Parameter:
    """A parameter's part of the row."""

    name: str
    shape: tuple[int, ...]
    start: int
    learns: bool
    """False for frozen parameters, whose gradient is always zero."""

    @property
    def part(self) -> slice:
        """The parameter's slice of the row."""
        return slice(self.start, self.start + math.prod(self.shape))


class ModulePlan:
    """A user's network as a part of an agent's row.

    Args:
        source: what creates the network.
        name: the setting, for errors.
        arguments: the arguments of the user's function.
        encoder: turns observations into rows, and rows back into inputs of the network.
        outputs: number of outputs for each row; None: whatever the network returns.
        second: the kind of the network's second argument.
        extra: number of values of the second argument in a row.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        arguments: tuple[Any, ...],
        encoder: Encoder,
        outputs: int | None = None,
        second: Second = "",
        extra: int = 0,
    ) -> None:
        self.source, self.name, self.encoder, self.second = source, name, encoder, second
        self._arguments, self._features = arguments, encoder.size
        self.inputs = encoder.size + extra
        if not encoder.exact:
            raise SettingError(
                f"{name}: components of MultiDiscrete observations must have at most 2**24 values, because rows are "
                "float32"
            )
        self.state_size = 0
        self._made = self.made()
        self.outputs = outputs if outputs is not None else self._measured()
        self.parameters = tuple(self._laid_out())
        self.size = padded(self.parameters[-1].part.stop)

    # ---- making

    def made(self, seed: int | None = None) -> nn.Module:
        """Make the network, with random streams that start from a seed; None: from the fixed seed of skeletons."""

        def make() -> Any:
            return self.source.make(self.name, *self._arguments)

        try:
            if seed is None:
                module = made_alike(f"the {self.name}", make)
            else:
                with streams_returned():
                    Streams(StreamUser(f"the {self.name}")).begin(seed)
                    module = make()
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(
                f"{self.name} must be a function that makes a torch.nn.Module, got {self.source}, which raised "
                f"{type(error).__name__}: {error}"
            ) from error
        from torch import nn

        if not isinstance(module, nn.Module):
            raise SettingError(f"{self.name} must make a torch.nn.Module, got {module!r} from {self.source}")
        self.state_size = self._remembers(module)
        if any(isinstance(one, nn.UninitializedParameter) for one in module.parameters()):
            with streams_returned():
                Streams(StreamUser(f"the {self.name}")).begin(MADE if seed is None else seed)
                self.probe(module)  # lazy layers learn their sizes
        return module

    def probe(self, module: nn.Module, rows: int = 2) -> Tensor:
        """Return the outputs of the network for some rows of zeros, as it returns them."""
        import torch

        taus = 3 if self.second == "taus" else 0
        x = torch.zeros(rows, self.inputs + taus)
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                return self.raw(module, x)
        finally:
            module.train(training)

    def _remembers(self, module: nn.Module) -> int:
        """Return the size of the state that a network takes and returns; 0: it has no memory."""
        size = getattr(module, "state_size", 0)
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise SettingError(f"{self.name}: state_size must be an int >= 0, got {size!r}")
        return size

    def _measured(self) -> int:
        found = self.probe(self._made)
        if getattr(found, "ndim", 0) != 2:
            raise SettingError(f"{self.name} must return a tensor [batch, features], got {_shape(found)} for 2 rows")
        return int(found.shape[1])

    def _laid_out(self) -> Iterator[Parameter]:
        import torch

        at = 0
        for name, parameter in self._made.named_parameters():
            if parameter.dtype != torch.float32:
                raise SettingError(f"{self.name}: parameters must be float32, got {parameter.dtype} for {name}")
            yield Parameter(name, tuple(parameter.shape), at, parameter.requires_grad)
            at += padded(parameter.numel())
        if not at:
            raise SettingError(f"{self.name} must have parameters, got none from {self.source}")

    # ---- the interface of plans

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the network draws random numbers while it learns."""
        from motet.algorithms._module_checks import draws

        return draws(self, training=True)

    @functools.cached_property
    def explores(self) -> bool:
        """Whether a layer of the network draws random numbers while an agent acts and explores."""
        return any(getattr(module, "explores", False) for module in self._made.modules())

    @functools.cached_property
    def stacks(self) -> bool:
        """Whether many agents' networks are computed faster together than one after the other."""
        from motet.algorithms._module_checks import stacks

        return stacks(self)

    @functools.cached_property
    def axes(self) -> int:
        """Number of axes of the network's input, or of its first array, without the batch axis."""
        import torch

        leaf = self.encoder.nest(torch.zeros(1, self.encoder.size))
        while not isinstance(leaf, torch.Tensor):
            leaf = next(iter(leaf.values() if isinstance(leaf, dict) else leaf))
        return leaf.ndim - 1

    def initialise(self, row: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
        """Fill a row with the parameters of a network made from a seed."""
        row[:] = 0
        made = dict(self.made(int(rng.integers(2**32))).named_parameters())
        for parameter in self.parameters:
            row[parameter.part] = made[parameter.name].detach().numpy().ravel()

    def bind(
        self, rows: Tensor, grad: Tensor | None = None, inputs: bool = False, seed: Seed | None = None
    ) -> LearnerNetwork:
        """Make the networks of A agents. With STACKED_FROM agents or more they are computed in one pass, if that is
        faster.

        Otherwise they are computed one after the other.
        """
        from motet.algorithms._module_network import LoopedModules, StackedModules

        if len(rows) >= STACKED_FROM and self.stacks:
            return StackedModules(self, rows, grad, inputs)
        return LoopedModules(self, rows, grad, inputs, seed if self.draws else None)

    def acting(self, scale: float = 1.0) -> ActorNetwork:
        """Make the network for acting."""
        from motet.algorithms._module_network import ActingModule

        return ActingModule(self, scale)

    def module(self, rows: npt.NDArray[np.float32] | None = None) -> nn.Module:
        """Return a network with a copy of a row's parameters; without a row, a skeleton."""
        import torch

        made = self.made()
        if rows is not None:
            with torch.no_grad():
                for parameter, own in zip(self.parameters, made.parameters(), strict=True):
                    own.copy_(torch.from_numpy(rows[parameter.part].reshape(parameter.shape)))
        return made

    def layers_of(self, row: npt.NDArray[np.float32]) -> list[nn.Module]:
        """Return torch modules with the parameters of a row: plain layers, or the network on rows of numbers."""
        from motet.algorithms._greedy_module import layers_of_module

        return layers_of_module(self, self.module(row).eval())

    def skeletons(self, rows: Tensor, training: bool) -> list[nn.Module]:
        """Return one network for each of ``rows`` ``[A, size]``, whose parameters are views of the row."""
        from torch import nn

        found = []
        for row in rows:
            made = self.made().to(rows.device).train(training)
            views = {
                own: nn.Parameter(row[parameter.part].view(parameter.shape), parameter.learns)
                for parameter, own in zip(self.parameters, made.parameters(), strict=True)
            }
            for module in made.modules():  # one module may contain the parameters of another
                for name, own in list(module.named_parameters(recurse=False)):
                    setattr(module, name, views.get(own, own))
            found.append(made)
        return found

    def leaves(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the parameters by name ``[A, ...]``, as views of ``rows`` ``[A, size]``."""
        return {
            parameter.name: rows[:, parameter.part].view(len(rows), *parameter.shape).detach()
            for parameter in self.parameters
        }

    def raw(self, module: Callable[..., Any], x: Tensor) -> Tensor:
        """Call the network on rows ``[B, inputs]``; the rows of a ``taus`` network have more columns after the inputs.

        With a memory, each row counts as the first one of an episode.
        """
        if self.state_size:
            return self.step(module, x, x.new_zeros(len(x), self.state_size))[0]
        given = [self.encoder.nest(x[:, : self._features] if self.second else x)]
        if self.second:
            given.append(x[:, self._features :])
        found: Tensor = self._asked(module, given)
        return found

    def step(self, module: Callable[..., Any], x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Call a network with memory on rows and the states ``[B, state_size]`` before them."""
        found = self._asked(module, [self.encoder.nest(x), state])
        if not isinstance(found, tuple) or len(found) != 2:
            kind = "a tensor" if hasattr(found, "shape") else f"a {type(found).__name__}"
            raise SettingError(f"{self.name} has a state_size and must return (outputs, new state), got {kind}")
        out, new = found
        if getattr(new, "shape", None) != state.shape or new.dtype != state.dtype:
            raise SettingError(
                f"{self.name} must return a new state float32 [batch, {self.state_size}], got {_shape(new)} "
                f"{getattr(new, 'dtype', '')} for {len(x)} rows"
            )
        return out, new

    def unrolled(self, module: Any, x: Tensor, memory: Tensor, begin: Tensor, learn_from: int = 0) -> Tensor:
        """Return the outputs ``[B * T, outputs]`` of sequences: by the network's ``unroll`` or step by step.

        ``x`` is ``[B * T, inputs]``, ``memory`` ``[B, T, state_size]``, ``begin`` ``[B, T]``. No gradient reaches rows
        before ``learn_from``.
        """
        import torch

        sequences, length = begin.shape
        if hasattr(module, "unroll") and not learn_from:
            seen = map_nest(lambda part: part.reshape(sequences, length, *part.shape[1:]), self.encoder.nest(x))
            found = self._asked(module.unroll, [seen, memory, begin])
            if getattr(found, "shape", None) != (sequences, length, self.outputs):
                raise SettingError(
                    f"unroll of {self.name} must return a tensor [batch, time, {self.outputs}], got {_shape(found)} "
                    f"for {sequences} sequences of {length} rows"
                )
            return found.flatten(0, 1)  # type: ignore[no-any-return]
        rows, outs, state = x.reshape(sequences, length, -1), [], memory[:, 0]
        for t in range(length):
            if t:
                state = torch.where(begin[:, t, None], memory[:, t], state)
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= learn_from):
                out, state = self.step(module, rows[:, t], state)
            outs.append(self._checked(out, sequences, (self.outputs,)))
        return torch.stack(outs, 1).flatten(0, 1)

    def _asked(self, ask: Callable[..., Any], given: list[Any]) -> Any:
        try:
            return ask(*given)
        except Exception as error:
            error.add_note(f"The {self.name} {self.source} got {_shapes(given)}.")
            raise

    def call(self, module: Callable[..., Any], x: Tensor) -> Tensor:
        """Return the outputs ``[B, outputs]`` of the network; of a ``taus`` network ``[B, taus * outputs]``."""
        taus = (x.shape[1] - self._features,) if self.second == "taus" else ()
        return self._checked(self.raw(module, x), x.shape[0], (*taus, self.outputs))

    def _checked(self, found: Tensor, rows: int, wanted: tuple[int, ...]) -> Tensor:
        """Return the outputs of some rows as ``[rows, n]``. Raises if they have another shape than the algorithm
        needs."""
        shape = getattr(found, "shape", None)
        if shape != (rows, *wanted) and not (wanted == (1,) and shape == (rows,)):
            rest = ", ".join(map(str, wanted))
            raise SettingError(f"{self.name} must return a tensor [batch, {rest}], got {_shape(found)} for {rows} rows")
        return found if shape == (rows, *wanted[:1]) and len(wanted) == 1 else found.reshape(rows, math.prod(wanted))


def takes_two(module: nn.Module) -> bool:
    """Return whether a network takes a second argument beside the observation."""
    parameters = inspect.signature(module.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in positional and one.default is one.empty for one in parameters) == 2


def _shapes(nest: Any) -> str:
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_shapes(value)}" for key, value in nest.items()) + "}"
    if isinstance(nest, (list, tuple)):
        return ", ".join(map(_shapes, nest))
    return f"{str(nest.dtype).removeprefix('torch.')} {list(nest.shape)}"


def _shape(found: Any) -> str:
    shape = getattr(found, "shape", None)
    return f"a {type(found).__name__}" if shape is None else str(list(shape))

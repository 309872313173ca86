"""The learning half of an algorithm that is written as a loss. ``loss`` has the layout of an agent's row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from motet.algorithm import Batch, Space, Update
from motet.algorithms._device import Device
from motet.algorithms._encoder import Encoder
from motet.algorithms._flat import Adam, FlatRows, clip_rows
from motet.algorithms._module_plan import STACKED_FROM, ModulePlan
from motet.algorithms.loss import LearnedPlan, Loss, LossBatch, LossConfig, LossLayout, LossPart
from motet.algorithms.td3 import ActionScale
from motet.errors import SettingError
from motet.nest import map_nest
from motet.schedule import value_at
from motet.streams import Streams, StreamUser, streams_returned

__all__ = ["LoopedLosses", "LossForm", "LossLearner", "LossPass", "StackedLosses"]

Data = dict[str, Any]
"""The tensors of a batch by name: ``[A, ...]`` each, or ``[...]`` for a single agent."""


class LossForm:
    """Shapes and conversions of a batch, as a loss gets it."""

    def __init__(self, config: LossConfig, observation_space: Space, action_space: Space) -> None:
        self.encoder = Encoder(observation_space, config.n_frames)
        self.rows = (config.batch_size, config.length) if config.once else (config.batch_size,)
        self.seen_rows = (config.batch_size, config.length + 1) if config.once else self.rows
        """Shape of the rows that have an observation."""
        self.schedules = config._schedules()
        self.draws = {
            **{name: (int(n), False) for name, n in config.draws.items()},
            **{name: (int(n), True) for name, n in config.normal_draws.items()},
        }
        """By name: how many random numbers each row gets, and whether they are normally distributed."""
        self.scale: ActionScale | None = None
        self.first: Any = None
        """The lowest action, if that is not 0."""
        if np.dtype(action_space.dtype).kind == "f":
            self.axes = (math.prod(action_space.shape),)
            if np.isfinite(action_space.low).all() and np.isfinite(action_space.high).all():
                self.scale = ActionScale(action_space)
        else:
            self.axes = tuple(action_space.shape)
            start = np.asarray(getattr(action_space, "start", 0), np.int64)
            self.first = start if start.any() else None

    def batch(self, data: Data) -> LossBatch:
        """Return one agent's tensors as its loss gets them."""

        def nest(x: Tensor) -> Any:
            seen = self.encoder.nest(x)
            return seen if len(self.rows) == 1 else map_nest(lambda leaf: leaf.unflatten(0, self.seen_rows), seen)

        return LossBatch(
            observation=nest(data["x"]),
            next_observation=nest(data["next_x"]) if "next_x" in data else None,
            mask=data.get("mask"),
            next_mask=data.get("next_mask"),
            **{name: data[name] for name in _PLAIN},
        )


_PLAIN = ("action", "reward", "discount", "weight", "valid", "extra", "draws", "settings")


class _LossTensors:
    """A stacked batch as tensors of the device, which each :meth:`fetch` brings up to date."""

    def __init__(self, batch: Batch, form: LossForm, device: Device) -> None:
        self.batch, self._form, self._device = batch, form, device
        shape = agents, *_ = batch.reward.shape
        self._encode: list[Callable[[], None]] = []
        self._fixed: Data = {}
        for name, observation in (("x", batch.observation), ("next_x", batch.next_observation)):
            if observation is not None:
                x = device.zeros(agents, math.prod(form.seen_rows), form.encoder.size)
                self._encode.append(form.encoder.link(observation, x, device))
                self._fixed[name] = x
        ones = device.zeros(*shape).fill_(1.0)
        self._fixed |= {"weight": ones, "valid": ones > 0}
        linked: Mapping[str, Any] = {
            "reward": batch.reward,
            "discount": batch.discount,
            "weight": batch.weight,
            "valid": batch.valid,
            "mask": batch.extra.get("mask"),
            "next_mask": batch.next_extra.get("mask"),
        }
        self._links = {name: device.link(array) for name, array in linked.items() if array is not None}
        self._extra = {name: device.link(array) for name, array in batch.extra.items() if name != "mask"}
        self._action = device.link(batch.action)
        if form.scale is not None:
            self._middle, self._half = map(device.to_device, (form.scale.middle, form.scale.half))
        self._first = None if form.first is None else device.to_device(form.first)
        self._draws = {name: np.zeros((*shape, n), np.float32) for name, (n, _) in form.draws.items()}
        self._settings = np.zeros((agents, len(form.schedules)), np.float32)

    def fetch(self, streams: Sequence[np.random.Generator], values: Callable[[Any, int], float]) -> Data:
        """Return the current content of the batch's arrays, drawn numbers, and the current values of schedules."""
        for encode in self._encode:
            encode()
        for name, array in self._draws.items():
            for row, stream in zip(array, streams, strict=True):
                if self._form.draws[name][1]:
                    stream.standard_normal(dtype=np.float32, out=row)
                else:
                    stream.random(dtype=np.float32, out=row)
        schedules = self._form.schedules
        for agent, row in enumerate(self._settings):
            row[:] = [values(schedule, agent) for schedule in schedules.values()]
        settings = self._device.to_device(self._settings) if schedules else None
        return {
            **self._fixed,
            **{name: link() for name, link in self._links.items()},
            "action": self._chosen(self._action()),
            "extra": {name: link() for name, link in self._extra.items()},
            "draws": {name: self._device.to_device(array) for name, array in self._draws.items()},
            "settings": {name: settings[:, i] for i, name in enumerate(schedules)} if settings is not None else {},
        }

    def _chosen(self, action: Tensor) -> Tensor:
        if not action.dtype.is_floating_point:
            action = action.to(torch.int64)
            return action if self._first is None else action - self._first
        action = action.to(torch.float32).reshape(*self.batch.reward.shape, *self._form.axes)
        return action if self._form.scale is None else (action - self._middle) / self._half


class LossPass(NamedTuple):
    """Results of the losses of A agents. The gradients are in the rows of ``grad``."""

    loss: Tensor  # [A]
    priority: Tensor | None  # [A, B]
    metrics: dict[str, Tensor]  # [A] each


class _Called:
    """A network in the form in which a loss calls it: inputs may have any number of leading axes."""

    def __init__(self, plan: ModulePlan, call: Callable[..., Any], frozen: Callable[..., Any]) -> None:
        self._plan, self._call, self._frozen = plan, call, frozen

    def __call__(self, *given: Any) -> Any:
        """Return the outputs."""
        return self._flat(self._call, given)

    def frozen(self, *given: Any) -> Any:
        """Return the outputs; gradients flow to the inputs but not to the parameters."""
        return self._flat(self._frozen, given)

    def _flat(self, call: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        leaf = given[0]
        while not isinstance(leaf, Tensor):
            leaf = next(iter(leaf.values())) if isinstance(leaf, Mapping) else leaf[0]
        lead = leaf.ndim - self._plan.axes
        if lead < 2:
            return call(*given)
        shape = leaf.shape[:lead]
        out = call(*map_nest(lambda tensor: tensor.flatten(0, lead - 1), given))
        return map_nest(lambda tensor: tensor.unflatten(0, shape), out)


def _result(config: LossConfig, nets: dict[str, Any], targets: dict[str, Any], batch: LossBatch) -> Loss:
    """Return the checked result of a user's loss, with metrics as tensors."""
    found = config.loss(SimpleNamespace(**nets), SimpleNamespace(**targets), batch)
    if not isinstance(found, Loss) or not isinstance(found.loss, Tensor) or found.loss.ndim:
        given = found.loss if isinstance(found, Loss) else found
        shape = f"{list(given.shape)}" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise SettingError(f"loss must return Loss(loss, ...) with a scalar tensor, got {shape}")
    if found.priority is not None and found.priority.shape != batch.reward.shape:
        wanted, got = list(batch.reward.shape), list(found.priority.shape)
        raise SettingError(f"priority must have one value for each row, shape {wanted}, got {got}")
    if config.prioritised and found.priority is None:
        raise SettingError("priority must be given with prioritised=True, got None; return Loss(loss, priority=...)")
    metrics = {
        name: torch.as_tensor(value, dtype=torch.float32, device=found.loss.device).detach()
        for name, value in found.metrics.items()
    }
    for name, value in metrics.items():
        if value.ndim:
            raise SettingError(f"the metric {name} must be a scalar, got {list(value.shape)}")
    priority = None if found.priority is None else found.priority.detach()
    return Loss(found.loss, priority, metrics)


class _Losses:
    """The losses of A agents on their rows; gradients go to ``grad``."""

    def __init__(self, config: LossConfig, form: LossForm, layout: LossLayout, rows: Tensor, grad: Tensor) -> None:
        self._config, self._form, self._layout = config, form, layout
        self._leaves: list[Tensor] = []
        self._grads: list[Tensor] = []

    def _differentiate(self, loss: Tensor) -> None:
        if not loss.requires_grad:
            raise SettingError("loss must depend on the networks, got one without a gradient")
        found = torch.autograd.grad(loss, self._leaves, allow_unused=True)
        new = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(self._leaves, found, strict=True)]
        torch._foreach_copy_(self._grads, new)


class LoopedLosses(_Losses):
    """Computes the agents' losses one after the other."""

    def __init__(self, config: LossConfig, form: LossForm, layout: LossLayout, rows: Tensor, grad: Tensor) -> None:
        super().__init__(config, form, layout, rows, grad)
        self._streams = Streams(StreamUser(f"the loss of {type(config).__name__}"))
        self._agents: list[tuple[dict[str, Any], dict[str, Any], slice]] = []
        for i in range(len(rows)):
            first = len(self._leaves)
            nets: dict[str, Any] = {}
            targets: dict[str, Any] = {}
            for name, part in layout.parts.items():
                row, slope = rows[i : i + 1, part.online], grad[i, part.online]
                if isinstance(part.plan, LearnedPlan):
                    shape, n = part.plan.values.shape, part.plan.values.size
                    nets[name] = row[0, :n].view(shape).detach().requires_grad_()
                    self._leaves.append(nets[name])
                    self._grads.append(slope[:n].view(shape))
                    continue
                (module,) = part.plan.skeletons(row, training=True)
                nets[name] = _called(part.plan, module)
                for parameter, leaf in zip(part.plan.parameters, module.parameters(), strict=True):
                    if parameter.learns:
                        self._leaves.append(leaf)
                        self._grads.append(slope[parameter.part].view(parameter.shape))
                if part.target is not None:
                    (module,) = part.plan.skeletons(rows[i : i + 1, part.target], training=False)
                    targets[name] = _called(part.plan, module.requires_grad_(False))
            self._agents.append((nets, targets, slice(first, len(self._leaves))))

    @property
    def drew(self) -> bool:
        """Whether a loss has drawn from a global random stream."""
        return any(self._streams.user.get_state()["drew"])

    def run(self, data: Data, seeds: Sequence[int]) -> LossPass:
        """Compute the losses and set the gradients; a loss that draws random numbers draws them from a seed."""
        found = []
        with streams_returned():
            for i, ((nets, targets, _), seed) in enumerate(zip(self._agents, seeds, strict=True)):
                batch = self._form.batch(map_nest(lambda tensor, i=i: tensor[i], data))
                self._streams.begin(seed)
                found.append(_result(self._config, nets, targets, batch))
        self._differentiate(torch.stack([one.loss for one in found]).sum())
        priority = None if found[0].priority is None else torch.stack([one.priority for one in found])  # type: ignore[misc]
        metrics = {name: torch.stack([one.metrics[name] for one in found]) for name in found[0].metrics}
        return LossPass(torch.stack([one.loss for one in found]).detach(), priority, metrics)


class StackedLosses(_Losses):
    """Computes all agents' losses in one pass."""

    def __init__(self, config: LossConfig, form: LossForm, layout: LossLayout, rows: Tensor, grad: Tensor) -> None:
        super().__init__(config, form, layout, rows, grad)
        self._own: dict[str, Any] = {}
        self._targets: dict[str, Any] = {}
        modules: dict[str, Any] = {}
        for name, part in layout.parts.items():
            row, slope = rows[:, part.online], grad[:, part.online]
            if isinstance(part.plan, LearnedPlan):
                shape, n = (len(rows), *part.plan.values.shape), part.plan.values.size
                self._own[name] = row[:, :n].view(shape).detach().requires_grad_()
                self._leaves.append(self._own[name])
                self._grads.append(slope[:, :n].view(shape))
                continue
            modules[name] = part.plan.made().to(rows.device).train(), part.plan.made().to(rows.device).eval()
            self._own[name] = part.plan.leaves(row)
            for parameter, leaf in zip(part.plan.parameters, self._own[name].values(), strict=True):
                if parameter.learns:
                    self._leaves.append(leaf.requires_grad_())
                    self._grads.append(slope[:, parameter.part].view(leaf.shape))
            if part.target is not None:
                self._targets[name] = part.plan.leaves(rows[:, part.target])

        def one(own: dict[str, Any], targets: dict[str, Any], data: Data) -> tuple[Any, ...]:
            def called(name: str, weights: Any, kind: int) -> Any:
                plan = layout.parts[name].plan
                if isinstance(plan, LearnedPlan):
                    return weights
                module = modules[name][kind]
                return _Called(plan, _on(module, weights), _on(module, _fixed(weights)))

            found = _result(
                config,
                {name: called(name, weights, 0) for name, weights in own.items()},
                {name: called(name, weights, 1) for name, weights in targets.items()},
                form.batch(data),
            )
            kept = {} if found.priority is None else {"priority": found.priority}
            return found.loss, kept, found.metrics

        self._call = vmap(one, randomness="error")

    def run(self, data: Data, seeds: Sequence[int] = ()) -> LossPass:
        """Compute the losses and set the gradients."""
        loss, kept, metrics = self._call(self._own, self._targets, data)
        self._differentiate(loss.sum())
        return LossPass(loss.detach(), kept.get("priority"), metrics)


def _on(module: torch.nn.Module, weights: dict[str, Tensor]) -> Callable[..., Any]:
    return lambda *given: functional_call(module, weights, given)


def _fixed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in weights.items()}


def _called(plan: ModulePlan, module: torch.nn.Module) -> _Called:
    return _Called(plan, module, _on(module, _fixed(dict(module.named_parameters()))))


class LossLearner(FlatRows):
    """The learning half, for A agents, of an algorithm that is written as a loss."""

    def __init__(
        self, config: LossConfig, observation_space: Space, action_space: Space, seeds: Sequence[int], device: Device
    ) -> None:
        from motet.algorithms._loss_checks import stacks_losses

        self.config, self._form = config, LossForm(config, observation_space, action_space)
        self._layout = layout = LossLayout.of(config, observation_space, action_space)
        super().__init__(layout.weights, layout.state, seeds, layout.initialise, device, (), streams=True)
        grad, moments = device.zeros(len(seeds), layout.learned), layout.moments
        self._parts: list[tuple[str, LossPart, Tensor, Adam]] = []
        for name, part in layout.parts.items():
            own = [self._rows[:, lie.start + part.online.start : lie.start + part.online.stop] for lie in moments]
            slope = grad[:, part.online]
            self._parts.append((name, part, slope, self._adam_of(self._rows[:, part.online], slope, *own)))
        stacked = len(seeds) >= STACKED_FROM and stacks_losses(config, observation_space, action_space)
        kind = StackedLosses if stacked else LoopedLosses
        self._losses: LoopedLosses | StackedLosses = kind(config, self._form, layout, self._rows, grad)
        self._batches: dict[int, _LossTensors] = {}

    def load(self) -> None:
        """Resume from ``state``, ``counters`` and ``random``."""
        super().load()
        done = self._steps_of(self.counters[:, 0])
        for *_, adam in self._parts:
            adam.load(done)

    def header(self, step: int, agent: int) -> dict[str, Any]:
        """Return the values that are published with this agent's weights after ``step`` steps."""
        updates = int(self.counters[agent, 0])
        return {"learner_step": updates, "step": step, "stage": self.config.stages.index(step, updates)}

    def begin_phase(self) -> None:
        """Update the target networks that are updated when a phase begins."""
        self._move_targets(lambda every, _: every == "phase")

    def update(self, batch: Batch, steps: Sequence[int]) -> Update:
        """Learn from one batch."""
        stages, updates = self.config.stages, self.counters[:, 0].tolist()

        def value(schedule: Any, agent: int) -> float:
            return value_at(schedule, int(steps[agent]), stages, updates[agent])

        if id(batch) not in self._batches:
            self._batches[id(batch)] = _LossTensors(batch, self._form, self._device)
        data = self._batches[id(batch)].fetch(self._streams, value)
        seeds = [self._seed(agent) for agent in range(len(steps))]
        done = self._losses.run(data, seeds)
        measures, norms = self._measures(), {}
        with torch.no_grad():
            for name, part, slope, _ in self._parts:
                norm = "grad_norm" if len(self._parts) == 1 else f"{name}_grad_norm"
                norms[norm] = clip_rows(slope, part.max_grad_norm)
            if measures:
                found = {"loss": done.loss, **done.metrics, **norms}
                for name in found:
                    self._metrics.setdefault(name, np.zeros(len(steps), np.float32))
                self._measure(found)
            self.counters[:, 0] += 1
            for _, part, _, adam in self._parts:
                rates = [value(part.learning_rate, agent) for agent in range(len(steps))]
                adam.step(rates, self.config.adam_eps)
            now = self.counters[:, 0].tolist()
            self._move_targets(lambda every, agent: every != "phase" and now[agent] % every == 0)
        priority = None
        if self.config.prioritised and done.priority is not None:
            priority = self._device.to_host(done.priority.contiguous())
        return Update(self._metrics, priority)

    @torch.no_grad()
    def _move_targets(self, due: Callable[[Any, int], bool]) -> None:
        for _, part, _, _ in self._parts:
            if part.target is None:
                continue
            for agent, row in enumerate(self._rows):
                if due(part.target_every, agent):
                    row[part.target].lerp_(row[part.online], part.target_rate)

"""Learners on a simulated device with separate memory: the same bits as on the CPU, and copies are counted."""

import importlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from support.foreign_losses import A2C, DDPG, MyDQN
from support.foreign_networks import PictureAndVector
from support.poisoned_device import PoisonedDevice, Strayed, There
from torch.utils._pytree import tree_map

from motet.algorithm import Algorithm, AlgorithmConfig, Batch, stacked_batch
from motet.algorithms import _loss_learner
from motet.algorithms._device import Device
from motet.algorithms._loss_learner import LossLearner
from motet.algorithms.dqn import DQNConfig
from motet.algorithms.iqn import IQNConfig
from motet.algorithms.loss import LossConfig
from motet.algorithms.ppo import PPOConfig
from motet.algorithms.td3 import TD3Config
from motet.masks import mask_form
from motet.testing.algorithm import random_mask

VECTOR, PICTURE = Box(-1, 1, (7,)), Box(0, 255, (24, 24, 3), np.uint8)
NEST = Dict(a=Box(-1, 1, (3,), np.float64), b=Discrete(4, start=2), c=Tuple((Box(0, 255, (2,), np.uint8),)))
THREE, LATE, SEVERAL = Discrete(3), Discrete(4, start=5), MultiDiscrete([3, 2])
AXES = Box(np.array([-2, 0], "float32"), np.array([2, 10], "float32"))

VALUES: dict[str, Any] = {"batch_size": 8, "min_rows": 8, "hidden": (16, 12), "target_every": 7, "target_rate": 0.5}
CRITICS: dict[str, Any] = {"batch_size": 8, "min_rows": 8, "hidden": (16, 12)}
ONCE: dict[str, Any] = {"batch_size": 4, "length": 8, "hidden": (16, 12), "epochs": 2, "minibatches": 2}
STATISTICS_READ, STATISTICS_WRITTEN = 2, 2

# Config, observation space, action space, crossings of an update that computes no metrics: to the device, to the host.
PARTS = Dict(move=Discrete(3, start=2), turn=Box(-1, 1, (2,)), lamps=MultiBinary(2))
CASES: dict[str, tuple[AlgorithmConfig, Any, Any, int, int]] = {
    # observation, next observation, action, reward, discount
    "dqn": (DQNConfig(**VALUES), VECTOR, THREE, 5, 0),
    "dqn, dueling": (DQNConfig(**VALUES, dueling=True), VECTOR, THREE, 5, 0),
    "dqn, prioritised, masked": (DQNConfig(**VALUES, prioritised=True, n_frames=2), VECTOR, THREE, 7, 1),
    "dqn, nest": (DQNConfig(**VALUES, double=False), NEST, LATE, 9, 0),
    # and taus
    "iqn": (IQNConfig(**VALUES, head=(12,)), VECTOR, THREE, 6, 0),
    "iqn, prioritised, masked": (IQNConfig(**VALUES, prioritised=True), VECTOR, THREE, 8, 1),
    # and noise; with statistics: the inputs too
    "td3": (TD3Config(**CRITICS), VECTOR, AXES, 6, 0),
    "td3, prioritised, normalised": (
        TD3Config(**CRITICS, prioritised=True, normalise=True, policy_delay=3),
        *(VECTOR, AXES, 7 + STATISTICS_WRITTEN, 2 + STATISTICS_READ),
    ),
    "td3, pictures": (TD3Config(**CRITICS), PICTURE, AXES, 6, 0),
    # observation, action, schedules, what the host computes for all rows, and an order for each epoch; values and
    # log-probabilities go back, and always metrics
    "ppo": (PPOConfig(**ONCE), VECTOR, THREE, 6, 3),
    "ppo, masked": (PPOConfig(**ONCE), VECTOR, THREE, 7, 3),
    "ppo, continuous": (PPOConfig(**ONCE), VECTOR, AXES, 6, 3),
    "ppo, normalised, nest": (
        PPOConfig(**ONCE, normalise=True),
        *(NEST, SEVERAL, 8 + STATISTICS_WRITTEN, 5 + STATISTICS_READ),
    ),
    "ppo, bits": (PPOConfig(**ONCE), VECTOR, MultiBinary(3), 6, 3),
    "ppo, dict, masked": (PPOConfig(**ONCE), VECTOR, PARTS, 9, 3),  # an action for each part
    "ppo, late": (PPOConfig(**ONCE), VECTOR, LATE, 6, 3),
    # dqn: and the settings that are schedules
    "own loss": (MyDQN(batch_size=8, min_rows=8, target_every=7), VECTOR, LATE, 6, 0),
    "own loss, prioritised, masked": (
        MyDQN(batch_size=8, min_rows=8, prioritised=True, network=PictureAndVector),
        *(Dict(picture=PICTURE, vector=VECTOR, room=Discrete(3)), THREE, 13, 1),
    ),
    "own loss, several networks": (DDPG(batch_size=8, min_rows=8), VECTOR, AXES, 7, 0),
    "own loss, rows read once": (A2C(batch_size=4, length=8), VECTOR, THREE, 7, 0),
    "ppo, pictures": (PPOConfig(**ONCE), PICTURE, THREE, 6, 3),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner(name: str, agents: int, device: Device) -> tuple[Algorithm, Batch]:
    config, observations, actions, _, _ = CASES[name]
    settings = config.replay(observations, actions, masked="masked" in name)
    if isinstance(config, LossConfig):
        made = LossLearner(config, observations, actions, range(5, 5 + agents), device)
        return made, stacked_batch(observations, actions, settings, agents)
    algorithm = type(config).__name__.removesuffix("Config")
    module = importlib.import_module(f"motet.algorithms._{algorithm.lower()}_learner")
    made = getattr(module, algorithm)(config, observations, actions, range(5, 5 + agents), device)
    return made, stacked_batch(observations, actions, settings, agents)


def fill_actions(given: Any, actions: Any, rng: np.random.Generator) -> None:
    if isinstance(actions, Dict):
        for key, part in actions.spaces.items():
            fill_actions(given[key], part, rng)
    elif isinstance(actions, Box):
        given[...] = actions.low + (actions.high - actions.low) * rng.random(given.shape)
    elif isinstance(actions, MultiBinary):
        given[...] = rng.integers(0, 2, given.shape)
    else:
        n, first = (actions.nvec, 0) if isinstance(actions, MultiDiscrete) else (actions.n, actions.start)
        given[...] = first + rng.integers(0, n, given.shape)


def fill(batch: Batch, actions: Any, rng: np.random.Generator) -> None:
    for array in batch.arrays():
        drawn = rng.normal(size=array.shape) if array.dtype.kind == "f" else rng.integers(2, 6, array.shape)
        array[...] = drawn % 5 < 4 if array.dtype.kind == "b" else drawn
    fill_actions(batch.action, actions, rng)
    batch.discount[...] = np.where(rng.random(batch.discount.shape) < 0.2, 0, 0.9)
    for extra in (batch.extra, batch.next_extra):
        if "mask" in extra:
            form, size = mask_form(actions), extra["mask"].shape[-1]
            for row in extra["mask"].reshape(-1, size):
                form.put(random_mask(form, rng), row)


def course(name: str, agents: int, device: Device) -> list[bytes]:
    """What a learner shows in some updates, with publications, and a restart from what was saved."""
    algorithm, batch = learner(name, agents, device)
    rng, seen = np.random.default_rng(3), []
    for i in range(8):
        fill(batch, CASES[name][2], rng)
        update = algorithm.update(batch, [3 * i + agent for agent in range(agents)])
        seen += [value.tobytes() for value in update.metrics.values()]
        seen += [] if update.priorities is None else [update.priorities.tobytes()]
        if i % 3 == 1:
            seen.append(algorithm.weights().tobytes())
        if i == 4:
            algorithm.save()
            parts = [part.copy() for part in (algorithm.state, algorithm.counters, algorithm.random)]
            algorithm, batch = learner(name, agents, device)
            for part, kept in zip((algorithm.state, algorithm.counters, algorithm.random), parts, strict=True):
                part[...] = kept
            algorithm.load()
    algorithm.save()
    return [*seen, algorithm.state.tobytes(), algorithm.counters.tobytes(), algorithm.random.tobytes()]


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_a_device_computes_what_the_cpu_does_bit_for_bit(name: str, agents: int) -> None:
    assert course(name, agents, PoisonedDevice()) == course(name, agents, Device("cpu"))


@pytest.mark.parametrize("name", ["own loss", "own loss, several networks", "own loss, rows read once"])
def test_stacked_losses_are_computed_bit_for_bit_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = course(name, 4, Device("cpu"))

    def vmap(function: Any, **how: Any) -> Any:
        def called(*given: Any) -> Any:  # vmap forgets the class of its tensors
            mark = isinstance(given[-1]["reward"], There)
            found = torch.func.vmap(function, **how)(*given)
            return tree_map(lambda one: one.as_subclass(There) if mark else one, found)

        return called

    monkeypatch.setattr(_loss_learner, "vmap", vmap)
    assert course(name, 4, PoisonedDevice()) == given
    assert isinstance(learner(name, 4, PoisonedDevice())[0]._losses, _loss_learner.StackedLosses)


@pytest.mark.parametrize("name", CASES)
def test_copies_between_device_and_host_are_counted(name: str) -> None:
    _, _, actions, there, back = CASES[name]
    device, rng = PoisonedDevice(), np.random.default_rng(3)
    algorithm, batch = learner(name, 2, device)

    def crossed(action: Any) -> Counter[str]:
        device.crossed.clear()
        action()
        return device.crossed.copy()

    def update() -> None:
        fill(batch, actions, rng)
        algorithm.update(batch, [0, 0])

    first = crossed(update)
    assert first["back"] == back + (not name.startswith("ppo")), "metrics are one crossing"
    assert crossed(update) == Counter(there=there, back=back)
    assert crossed(algorithm.weights) == Counter(back=1)
    assert crossed(algorithm.save) == Counter(back=1)
    optimisers = 1 + name.startswith("td3") + (name == "td3, pictures")
    assert crossed(algorithm.load) == Counter(there=1 + optimisers)


def test_the_test_device_detects_uncounted_copies() -> None:
    device, array = PoisonedDevice(), np.arange(3, dtype="float32")
    there = device.to_device(array)
    assert np.isnan(array).all()
    here = torch.ones(3)
    for stray in (
        lambda: there + here,
        lambda: there[np.array([0])],
        lambda: torch.stack([there, here]),
        lambda: here.copy_(there),
        lambda: there.numpy(),
        lambda: np.asarray(there),
        lambda: there.cpu(),
        lambda: there.to("cpu"),
        lambda: there[0].item(),
        lambda: bool(there[0]),
        lambda: torch.add(there, there, out=here),
        lambda: device.to_host(here),
    ):
        with pytest.raises(Strayed):
            stray()
    into = np.zeros(3, np.float32)
    device.to_host(there[:2], into[:2])
    assert into[:2].tolist() == [0, 1] and np.isnan(into[2])

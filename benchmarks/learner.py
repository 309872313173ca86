"""``motet bench learner``: networks of users (any torch module) and native recurrent networks, compared with others.

All learners use DQN with 64-64 hidden units, one torch thread, and batches of 64 transitions, which they sample from
10,000 rows of 32 floats. The measures of acting use one agent's network for 16 worlds. Recurrent networks are GRUs with
64 inputs and 64 units.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Env
from gymnasium.spaces import Box, Discrete

from benchmarks import Comparison, Measure, Result, Settings, interleave
from motet._native import Recurrent
from motet.algorithm import stacked_batch
from motet.algorithms import DQNConfig, PPOConfig
from motet.replay import Field, Replay, ReplaySpec
from motet.training.run import train
from motet.training.settings import Settings as TrainingSettings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["run"]

SPACE, ACTIONS, ROWS, STACK = Box(-1, 1, (32,)), Discrete(4), 10_000, 8
SHIPPED, OWN, SB3, LOOP, STACKED = "motet, shipped", "motet, own module", "stable-baselines3", "motet, loop", "motet"
NATIVE, CELL, UNITS = "motet, native", "torch.nn.GRUCell", 64
SB3_RECURRENT = "sb3-contrib, RecurrentPPO"
MEASURES = {
    "learning": Measure("Double DQN, one agent, sampling included", "updates/s"),
    "plain_learning": Measure("DQN that is not double, one agent, sampling included", "updates/s"),
    "stacking": Measure(f"Double DQN of {STACK} agents with users' modules", "updates/s"),
    "acting": Measure("Actions of a user's module", "actions/s"),
    "gru_step_1": Measure("One step of a GRU for 1 row", "steps/s"),
    "gru_step_16": Measure("One step of a GRU for 16 rows", "steps/s"),
    "memory": Measure("PPO in CartPole, 32 worlds, 32 fragments of 32 rows, 4 minibatches", "steps/s"),
    "lstm": Measure("The same with an LSTM of 64 that policy and critic share, 6 epochs", "steps/s"),
    "gru_passes": Measure("Forward and backward pass of a GRU, 32 sequences of 32 rows with borders", "passes/s"),
}
COMPARISONS = {
    "own_vs_shipped": Comparison("learning", OWN, SHIPPED, 0.4),
    "own_vs_sb3": Comparison("plain_learning", OWN, SB3, 2),
    "own_stacked_vs_loop": Comparison("stacking", STACKED, LOOP, 2),
    "own_acting": Comparison("acting", "16 rows at once", "16 calls with one row", 8),
    "memory_cost": Comparison("memory", "GRU of 64", "without memory", 0.3),
    "vs_sb3_recurrent": Comparison("lstm", "motet", SB3_RECURRENT, 3),
    "gru_native_vs_torch": Comparison("gru_step_1", NATIVE, CELL, 5),
    "gru_native_vs_torch_16": Comparison("gru_step_16", NATIVE, CELL, 2),
    "gru_passes_vs_torch": Comparison("gru_passes", NATIVE, CELL, 3),
}


def mlp(space: Any, outputs: int) -> nn.Module:
    """Return the network of the shipped DQN, written as a user would write it in torch."""
    from torch import nn

    return nn.Sequential(nn.Linear(space.shape[0], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def run(settings: Settings) -> Result:
    """Measure everything."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = Result("learner", MEASURES, COMPARISONS)

        def rate(work: Callable[[], object]) -> Callable[[], float]:
            return lambda: _rate(work, settings.seconds)

        learning = {SHIPPED: rate(_learner(DQNConfig())), OWN: rate(_learner(DQNConfig(network=mlp)))}
        interleave(result, "learning", learning, settings.repeats)
        plain = {OWN: rate(_learner(DQNConfig(network=mlp, double=False)))}  # like the DQN of stable-baselines3
        try:
            plain[SB3] = rate(_sb3())
        except ImportError as error:
            result.skipped[SB3] = f"not installed ({error})"
        interleave(result, "plain_learning", plain, settings.repeats)
        passes = {STACKED: rate(_stack(stacked=True)), LOOP: rate(_stack(stacked=False))}
        interleave(result, "stacking", passes, settings.repeats)
        acting = {"16 rows at once": rate(_acting(16)), "16 calls with one row": rate(_acting(1))}
        interleave(result, "acting", acting, settings.repeats)
        for batch in (1, 16):
            steps = {NATIVE: rate(_native_step(batch)), CELL: rate(_torch_step(batch))}
            interleave(result, f"gru_step_{batch}", steps, settings.repeats)
        rows = 1024 if settings.quick else 8192
        remembering = {"GRU of 64": lambda: _ppo("gru", rows), "without memory": lambda: _ppo(None, rows)}
        interleave(result, "memory", remembering, settings.repeats)
        peers: dict[str, Callable[[], float]] = {"motet": lambda: _ppo("lstm", rows)}
        try:
            peers[SB3_RECURRENT] = _sb3_recurrent()
        except ImportError as error:
            result.skipped[SB3_RECURRENT] = f"not installed ({error})"
        interleave(result, "lstm", peers, settings.repeats)
        passes = {NATIVE: rate(_native_passes(32, 32)), CELL: rate(_torch_passes(32, 32))}
        interleave(result, "gru_passes", passes, settings.repeats)
        return result
    finally:
        torch.set_num_threads(before)


def _rate(work: Callable[[], object], seconds: float) -> float:
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        work()
        done += 1
    return done / spent


def _rows() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 32)).astype(np.float32), rng.integers(0, 4, ROWS)


def _learner(config: DQNConfig) -> Callable[[], object]:
    replay = Replay(ReplaySpec(observation=Field((32,)), action=Field((), "int64"), capacity=ROWS))
    writer = replay.writer()
    for observation, action in zip(*_rows(), strict=True):
        writer.append(observation, action, 1.0)
    reader = replay.reader(gamma=config.gamma, seed=0)
    learner = config.build(SPACE, ACTIONS, 1, [0])
    part = reader.batch(config.batch_size)
    batch = part.map(lambda array: array[None])  # a stack of one agent

    def update() -> None:
        reader.sample(config.batch_size, into=part)
        learner.update(batch, [1])

    return update


class _World(Env[Any, Any]):
    observation_space, action_space = SPACE, ACTIONS


def _sb3() -> Callable[[], object]:
    from stable_baselines3 import DQN
    from stable_baselines3.common.logger import Logger

    model = DQN("MlpPolicy", _World(), batch_size=64, buffer_size=ROWS, learning_rate=5e-4, verbose=0)
    model.set_logger(Logger(folder=None, output_formats=[]))
    rows, actions = _rows()
    buffer: Any = model.replay_buffer
    for i in range(ROWS - 1):
        buffer.add(rows[i], rows[i + 1], actions[i : i + 1], np.ones(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=64)


def _stack(stacked: bool) -> Callable[[], object]:
    config, agents = DQNConfig(network=mlp), STACK if stacked else 1
    made = [config.build(SPACE, ACTIONS, agents, range(agents)) for _ in range(STACK // agents)]
    batch = stacked_batch(SPACE, ACTIONS, config.replay(SPACE, ACTIONS), agents)
    batch.observation[:] = _rows()[0][:64]

    def update() -> None:
        for learner in made:
            learner.update(batch, [1] * agents)

    return update


def _acting(rows: int) -> Callable[[], object]:
    config = DQNConfig(network=mlp)
    behaviour = config.behaviour(SPACE, ACTIONS)
    behaviour.load(config.build(SPACE, ACTIONS, 1, [0]).weights()[0], {"epsilon": 0.1})
    seen = _rows()[0][:16]

    def act() -> None:
        for i in range(0, 16, rows):
            behaviour.act(seen[i : i + rows])

    return act


def _ppo(memory: Any, steps: int) -> float:
    """Return the steps per second of a serial run."""
    config = PPOConfig(memory=memory, batch_size=32, length=32, minibatches=4)
    began = time.perf_counter()
    train("gym:CartPole-v1", config, TrainingSettings(steps=steps, engine="serial", worlds_per_actor=32))
    return steps / (time.perf_counter() - began)


def _sb3_recurrent(steps: int = 2048) -> Callable[[], float]:
    """Return a function that measures the steps per second of sb3-contrib with equal settings."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    shared = {"lstm_hidden_size": 64, "shared_lstm": True, "enable_critic_lstm": False}
    worlds = make_vec_env("CartPole-v1", 32)
    peer = RecurrentPPO(
        "MlpLstmPolicy", worlds, n_steps=32, batch_size=256, n_epochs=6, policy_kwargs=shared, device="cpu"
    )

    def measured() -> float:
        began = time.perf_counter()
        peer.learn(steps)
        return steps / (time.perf_counter() - began)

    return measured


def _gru() -> tuple[Recurrent, np.ndarray[Any, Any]]:
    offsets = np.cumsum([0, 3 * UNITS * UNITS, 3 * UNITS * UNITS, 3 * UNITS]).tolist()
    net = Recurrent("gru", UNITS, UNITS, offsets)
    return net, np.random.default_rng(0).uniform(-1 / 8, 1 / 8, (1, net.end)).astype(np.float32)


def _native_step(rows: int) -> Callable[[], object]:
    net, row = _gru()
    x, state = np.ones((rows, UNITS), np.float32), np.zeros((rows, UNITS), np.float32)
    return lambda: net.step(row, x, state, np.empty_like(state))


def _torch_step(rows: int) -> Callable[[], object]:
    import torch

    cell, x, state = torch.nn.GRUCell(UNITS, UNITS), torch.ones(rows, UNITS), torch.zeros(rows, UNITS)

    def step() -> None:
        with torch.inference_mode():
            cell(x, state)

    return step


def _sequences(count: int, length: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return inputs, stored states and the borders of episodes."""
    rng, shape = np.random.default_rng(0), (1, count, length)
    x, memory = (rng.normal(size=(*shape, UNITS)).astype(np.float32) for _ in range(2))
    return x, memory, rng.random(shape) < 1 / length


def _native_passes(count: int, length: int) -> Callable[[], object]:
    (net, rows), (x, memory, begin) = _gru(), _sequences(count, length)
    out, kept = np.zeros_like(x), np.zeros((*x.shape[:3], net.kept_size), np.float32)
    grad_out, grad_rows, grad_x = np.ones_like(x), np.zeros_like(rows), np.zeros_like(x)

    def both() -> None:
        net.unroll(rows, x, memory, begin, out, kept)
        net.backward(rows, x, begin, kept, grad_out, 0, grad_rows, grad_x)

    return both


def _torch_passes(count: int, length: int) -> Callable[[], object]:
    import torch

    cell = torch.nn.GRUCell(UNITS, UNITS)
    x, memory, begin = (torch.from_numpy(array[0]) for array in _sequences(count, length))
    x.requires_grad_()
    leaves, grad = [x, *cell.parameters()], torch.ones(count, length, UNITS)

    def both() -> None:
        state, out = memory[:, 0], []
        for t in range(length):
            state = cell(x[:, t], torch.where(begin[:, t, None], memory[:, t], state))
            out.append(state)
        torch.autograd.grad(torch.stack(out, 1), leaves, grad)

    return both

"""``motet bench cartpole``: DQN on CartPole-v1 with published settings, in bursts and interleaved.

The settings are those of RL Baselines3 Zoo for stable-baselines3: 256 steps, then 128 updates. Both libraries learn
with them, and also with the same number of updates spread over the steps. A repeat is a seed, and a sample is the
interquartile mean of 30 greedy episodes of its final weights, which the bench plays in the same way for both. Runs take
one process each, as many at a time as there are cores: speed is not measured.
"""

from __future__ import annotations

import importlib.util
import multiprocessing as mp
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import Amount, Measure, Result, Settings
from motet import load_policies, train
from motet.algorithms import DQNConfig
from motet.schedule import Linear
from motet.system.machine import usable_cores
from motet.training.settings import Settings as RunSettings

__all__ = ["run"]

WORLD = "CartPole-v1"
STEPS, EPISODES = 50_000, 30
BURST, UPDATES = 256, 128
TARGET = 10
"""Steps between two copies of the target network."""

Act = Callable[[npt.NDArray[Any]], int]

BURSTS, AHEAD, INTERLEAVED = "motet, bursts", "motet, bursts, ahead=1", "motet, interleaved"
SB3, SB3_INTERLEAVED = "stable-baselines3, bursts", "stable-baselines3, interleaved"

MEASURES = {"return": Measure(f"DQN on {WORLD}: greedy return after {STEPS:,} steps", "return", compared=False)}

AMOUNTS = {
    "bursts": Amount("return", BURSTS),
    "bursts_ahead": Amount("return", AHEAD),
    "interleaved": Amount("return", INTERLEAVED),
    "sb3_bursts": Amount("return", SB3),
    "sb3_interleaved": Amount("return", SB3_INTERLEAVED),
}


def run(settings: Settings) -> Result:
    """Measure everything."""
    result = Result("cartpole", MEASURES, {}, amounts=AMOUNTS)
    contestants = _contestants()
    if importlib.util.find_spec("stable_baselines3") is None:
        for name in (SB3, SB3_INTERLEAVED):
            del contestants[name]
            result.skipped[name] = "not installed: stable_baselines3"
    steps, episodes = (600, 2) if settings.quick else (STEPS, EPISODES)
    with _pool(1 if settings.quick else usable_cores()) as pool:
        jobs = {
            (name, seed): pool.submit(_returns, learn, seed, steps, episodes)
            for seed in range(settings.repeats)
            for name, learn in contestants.items()
        }
        for (name, seed), job in jobs.items():
            returns = job.result()
            result.samples.setdefault("return", {}).setdefault(name, []).append(_interquartile_mean(returns))
            result.facts.setdefault(name, {})[f"seed {seed}"] = returns
    result.notes.append(f"Each sample is the interquartile mean of {episodes} episodes of one seed.")
    for name, found in result.facts.items():
        together = [value for returns in found.values() for value in returns]
        result.notes.append(f"{name}: {_interquartile_mean(together):.0f} over the episodes of all seeds")
    return result


def _contestants() -> dict[str, Callable[[int, int], Act]]:
    bursts: dict[str, Any] = {"target": "phase", "period": BURST}
    return {
        BURSTS: partial(_motet, **bursts, ahead=0),
        AHEAD: partial(_motet, **bursts, ahead=1),
        INTERLEAVED: partial(_motet, target=TARGET * UPDATES // BURST),
        SB3: partial(_sb3, train_freq=BURST, gradient_steps=UPDATES),
        SB3_INTERLEAVED: partial(_sb3, train_freq=BURST // UPDATES, gradient_steps=1),
    }


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp.get_context("spawn"))


def _returns(learn: Callable[[int, int], Act], seed: int, steps: int, episodes: int) -> list[float]:
    """Return the greedy returns of the policy that is learned from this seed."""
    import gymnasium
    import torch

    torch.set_num_threads(1)
    act, env, returns = learn(seed, steps), gymnasium.make(WORLD), []
    for fresh in np.random.SeedSequence([seed, STEPS]).generate_state(episodes).tolist():
        observation, _ = env.reset(seed=fresh)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def _motet(seed: int, steps: int, target: Any, **more: Any) -> Act:
    config = DQNConfig(
        hidden=(256, 256), learning_rate=2.3e-3, batch_size=64, gamma=0.99, capacity=100_000, min_rows=_warm_up(steps),
        double=False, target_every=target, max_grad_norm=10.0, epsilon=Linear(1.0, 0.04, 8_000),
    )  # fmt: skip
    settings = RunSettings(steps=steps, seed=seed, updates_per_step=UPDATES / BURST, engine="serial", **more)
    with tempfile.TemporaryDirectory() as folder:
        train(f"gym:{WORLD}", config, settings, run=Path(folder) / "run")
        (policy,) = load_policies(Path(folder) / "run").values()
    policy.reset(seed=seed)
    return lambda observation: int(policy.act(observation))


def _sb3(seed: int, steps: int, train_freq: int, gradient_steps: int) -> Act:
    from stable_baselines3 import DQN

    model = DQN(
        "MlpPolicy", WORLD, policy_kwargs={"net_arch": [256, 256]}, learning_rate=2.3e-3, batch_size=64, gamma=0.99,
        buffer_size=100_000, learning_starts=_warm_up(steps), train_freq=train_freq, gradient_steps=gradient_steps,
        target_update_interval=TARGET, max_grad_norm=10, exploration_initial_eps=1.0, exploration_final_eps=0.04,
        exploration_fraction=8_000 / steps, seed=seed, device="cpu",
    )  # fmt: skip
    model.learn(steps)
    return lambda observation: int(model.predict(observation, deterministic=True)[0])


def _warm_up(steps: int) -> int:
    return min(1_000, steps // 2)


def _interquartile_mean(values: list[float]) -> float:
    """Return the mean without the lowest and the highest quarter.

    >>> _interquartile_mean([1.0, 2.0, 4.0, 90.0])
    3.0
    """
    cut = len(values) // 4
    return float(np.mean(sorted(values)[cut : len(values) - cut]))

"""RLlib on the same job, for ``motet bench ray``: run as ``python -m motet._bench._rllib ppo|dqn SECONDS``.

In an interpreter of its own, since RLlib sets up more than it can take back. Prints env steps per second as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from typing import Any

from motet._bench._spread import BATCH, EPOCHS, HIDDEN, MINIBATCH, ROLLOUT, spread

__all__ = ["main"]


def main() -> None:
    """Train for a while and tell how fast it was."""
    ray, wrappers, models, registry = map(
        importlib.import_module,
        (
            "ray",
            "ray.rllib.env.wrappers.pettingzoo_env",
            "ray.rllib.core.rl_module.default_model_config",
            "ray.tune.registry",
        ),
    )
    kind, seconds = sys.argv[1], float(sys.argv[2])
    ray.init("local", include_dashboard=False, num_cpus=2, log_to_driver=False, logging_level=logging.ERROR)
    registry.register_env("spread", lambda config: wrappers.ParallelPettingZooEnv(spread()))
    agents = spread().possible_agents
    config: Any = _ppo() if kind == "ppo" else _dqn()
    config = (
        config.environment("spread")
        .env_runners(num_env_runners=0)
        .multi_agent(policies=set(agents), policy_mapping_fn=lambda agent, *args, **kwargs: agent)
        .rl_module(model_config=models.DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="relu"))
    )
    algorithm = config.build_algo()
    algorithm.train()
    before, began = _steps(algorithm.train()), time.perf_counter()
    result: Any = None
    while result is None or time.perf_counter() - began < seconds:
        result = algorithm.train()
    rate = (_steps(result) - before) / (time.perf_counter() - began)
    sys.stdout.write(json.dumps({"steps_per_s": rate}) + "\n")
    algorithm.stop()
    ray.shutdown()


def _steps(result: Any) -> float:
    return float(result["env_runners"]["num_env_steps_sampled_lifetime"])


def _ppo() -> Any:
    config: Any = importlib.import_module("ray.rllib.algorithms.ppo").PPOConfig()
    return config.training(train_batch_size_per_learner=ROLLOUT, num_epochs=EPOCHS, minibatch_size=MINIBATCH)


def _dqn() -> Any:
    config: Any = importlib.import_module("ray.rllib.algorithms.dqn").DQNConfig()
    # 64 rows learnt for each row of an agent: one update of a batch of 64 for each agent and step.
    return config.training(
        train_batch_size_per_learner=BATCH,
        training_intensity=float(BATCH),
        num_steps_sampled_before_learning_starts=256,
        replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": 50_000},
        double_q=True,
        dueling=False,
    )


if __name__ == "__main__":
    main()

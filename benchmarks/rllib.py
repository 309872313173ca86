"""RLlib on the task of ``motet bench ray``, in a separate interpreter: ``python -P rllib.py JOB``, JSON in and out.

RLlib pins another version of gymnasium and leaves global state behind, so this file is a separate program. It does not
import motet. It gets the whole task as one argument, so that one definition applies to both libraries.
Without an argument it prints the versions of the packages it needs, None for a missing one.

Output: env steps per second, and the work that RLlib did for them, counted where it happens: optimiser steps (each
belongs to one agent) and rows in their batches.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from typing import Any

__all__ = ["main"]

NEEDED = ("ray", "dm-tree", "torch", "gymnasium", "pettingzoo", "mpe2")
"""dm-tree is installed only by ``ray[rllib]``; the module ``ray.rllib`` is part of any Ray."""


def main() -> None:
    """Train for a while and print the rates."""
    if len(sys.argv) < 2:
        _tell({"python": sys.version.split()[0], **{name: _version(name) for name in NEEDED}})
        return
    # Env runners inherit this priority. By default Ray gives them a lower one, unlike motet's actors.
    os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    logging.disable(logging.WARNING)
    job = json.loads(sys.argv[1])
    ray, torch = importlib.import_module("ray"), importlib.import_module("torch")
    torch.set_num_threads(1)
    ray.init("local", include_dashboard=False, num_cpus=4, log_to_driver=False, logging_level=logging.ERROR)
    try:
        _tell(_measured(job))
    finally:
        ray.shutdown()


def _tell(found: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _measured(job: Mapping[str, Any]) -> dict[str, float]:
    optimiser = importlib.import_module("torch.optim.optimizer")
    updates = 0

    def count(*_: object) -> None:
        nonlocal updates
        updates += 1

    optimiser.register_optimizer_step_post_hook(count)  # the learner runs in this process
    algorithm = _config(job).build_algo()
    agents = _agents(job)
    result = algorithm.train()
    while not updates:  # the replay buffer fills
        result = algorithm.train()
    before, first, began = _counts(result), updates, time.perf_counter()
    while time.perf_counter() - began < job["seconds"]:
        result = algorithm.train()
    seconds = time.perf_counter() - began
    steps, rows = (after - early for after, early in zip(_counts(result), before, strict=True))
    done = updates - first
    (parameters,) = algorithm.learner_group.foreach_learner(lambda learner: _parameters(learner.module[agents[0]]))
    algorithm.stop()
    return {
        "steps_per_s": steps / seconds,
        "updates_per_agent_and_step": done / len(agents) / steps,
        "rows_per_update": rows / done,
        "parameters": parameters.get(),
    }


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def _counts(result: Mapping[str, Any]) -> tuple[float, float]:
    """Return env steps so far, and rows used in updates, of all agents together."""
    steps = float(result["env_runners"]["num_env_steps_sampled_lifetime"])
    key = "num_module_steps_trained_lifetime"
    return steps, float(sum(part[key] for name, part in result["learners"].items() if name != "__all_modules__"))


def _world(job: Mapping[str, Any]) -> Any:
    module, name = job["world"].split(":")
    return getattr(importlib.import_module(module), name)(**job["world_settings"])


def _agents(job: Mapping[str, Any]) -> list[str]:
    return list(_world(job).possible_agents)


def _config(job: Mapping[str, Any]) -> Any:
    wrappers, registry, models = map(
        importlib.import_module,
        (
            "ray.rllib.env.wrappers.pettingzoo_env",
            "ray.tune.registry",
            "ray.rllib.core.rl_module.default_model_config",
        ),
    )
    registry.register_env("spread", lambda _: wrappers.ParallelPettingZooEnv(_world(job)))
    config = (_ppo if job["kind"] == "ppo" else _dqn)(job)
    model = models.DefaultModelConfig(
        fcnet_hiddens=job["hidden"], fcnet_activation=job["activation"], vf_share_layers=False
    )
    return (
        config.environment("spread")
        .env_runners(num_env_runners=job["runners"], num_envs_per_env_runner=job["envs"])
        .learners(num_learners=0)
        .multi_agent(policies=set(_agents(job)), policy_mapping_fn=lambda agent, *args, **kwargs: agent)
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=0)
    )


def _ppo(job: Mapping[str, Any]) -> Any:
    """Return the config of PPO; batch and minibatch are rows of each agent, extra work of RLlib is turned off."""
    config: Any = importlib.import_module("ray.rllib.algorithms.ppo").PPOConfig()
    return config.training(
        train_batch_size_per_learner=job["rollout"], num_epochs=job["epochs"], minibatch_size=job["minibatch"],
        use_kl_loss=False, grad_clip=None,
    )  # fmt: skip


def _dqn(job: Mapping[str, Any]) -> Any:
    """Return the config of DQN: one update for each agent and step; double, not dueling, uniform replay.

    The training intensity is the number of rows replayed per row sampled. RLlib counts the local runner too, even if
    only the remote runners sample.
    """
    config: Any = importlib.import_module("ray.rllib.algorithms.dqn").DQNConfig()
    runners = job["runners"]
    return config.training(
        train_batch_size_per_learner=job["batch"],
        training_intensity=job["batch"] * max(runners, 1) / (runners + 1),
        num_steps_sampled_before_learning_starts=job["warm_up"],
        replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": job["capacity"]},
        double_q=True, dueling=False, grad_clip=None,
    ).reporting(min_sample_timesteps_per_iteration=64)  # fmt: skip


if __name__ == "__main__":
    main()

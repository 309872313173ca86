"""Names of settings in other libraries, and what errors say if a user gives such a name.

The command line, experiment files and the settings classes share these tables.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar, cast

from motet.text import nearest

__all__ = ["EVALUATION", "TRAINING", "advice", "advice_for_keys", "meant", "note", "ours", "suggesting"]

TRAINING: Mapping[str, tuple[str, ...]] = {
    # motet's name: names in other libraries. A name with a dot is a setting of the algorithm. If a foreign name is
    # listed for several settings, the first of them that the algorithm has applies.
    "steps": (
        *("total_timesteps", "total_steps", "timesteps", "num_timesteps", "max_timesteps", "stop_timesteps"),
        *("max_steps", "total_frames", "num_frames", "num_env_steps", "env_steps", "total_env_steps"),
        "train_for_env_steps",
    ),
    "seconds": ("time_limit", "max_time", "time_total_s", "time_budget_s", "train_for_seconds"),
    "actors": ("num_workers", "num_actors", "n_actors", "num_env_runners", "num_rollout_workers", "rollout_workers"),
    "worlds_per_actor": (
        *("n_envs", "num_envs", "num_envs_per_worker", "num_envs_per_env_runner", "n_worlds", "training_num"),
        "train_num",
    ),
    "learner_processes": ("num_learners", "n_learners", "num_learner_workers"),
    "updates_per_step": (
        *("train_freq", "train_frequency", "gradient_steps", "utd", "utd_ratio", "training_intensity"),
        *("update_every", "update_per_step", "replay_ratio", "num_gradient_steps"),
    ),
    "publish_every": ("weight_sync_interval", "sync_every", "broadcast_interval", "update_worker_every", "push_every"),
    "max_lag_versions": ("max_staleness", "max_policy_lag", "max_weight_lag"),
    "evaluate_every": ("eval_freq", "eval_frequency", "eval_interval", "eval_every", "evaluation_interval"),
    "evaluate_episodes": ("n_eval_episodes", "eval_episodes", "evaluation_duration", "episode_per_test", "test_num"),
    "until_return": ("stop_reward", "stop_value", "reward_threshold", "stop_fn"),
    "checkpoint_every": ("save_freq", "save_every", "checkpoint_freq", "checkpoint_frequency", "checkpoint_interval"),
    "run": (
        *("log_dir", "logdir", "output_dir", "out_dir", "save_dir", "tensorboard_log", "exp_name", "run_name"),
        *("experiment", "experiment_name", "train_dir", "storage_path", "log_path"),
    ),
    "agents": ("num_agents", "n_agents"),
    ".learning_rate": ("lr", "alpha_lr", "step_size"),
    ".capacity": ("buffer_size", "replay_size", "replay_buffer_size", "replay_capacity"),
    ".min_rows": (
        *("warmup", "warm_up", "warmup_steps", "learning_starts", "start_steps", "min_buffer_size"),
        *("start_timesteps", "num_steps_sampled_before_learning_starts"),
    ),
    ".minibatches": ("minibatch_size", "mini_batch_size", "sgd_minibatch_size", "num_minibatches", "num_batches"),
    ".batch_size": ("train_batch_size", "train_batch_size_per_learner", "minibatch_size", "mini_batch_size"),
    ".hidden": ("net_arch", "fcnet_hiddens", "hidden_sizes", "hidden_dim", "hidden_layers", "hidden_size"),
    ".activation": ("activation_fn", "fcnet_activation", "nonlinearity"),
    ".encoder": ("features_extractor", "features_extractor_class", "conv_filters"),
    ".memory": ("use_rnn", "use_lstm", "use_gru", "lstm", "gru", "rnn", "rnn_type", "recurrent"),
    ".memory_size": ("lstm_cell_size", "rnn_size", "rnn_hidden_size", "lstm_hidden_size"),
    ".sequence_length": ("recurrence", "max_seq_len", "seq_len", "bptt"),
    ".gamma": ("discount", "discount_factor"),
    ".target_every": (
        *("target_update_interval", "target_network_update_freq", "target_update", "target_update_freq"),
        "target_network_frequency",
    ),
    ".target_rate": ("tau", "polyak"),
    ".epsilon": (
        *("exploration_fraction", "exploration_final_eps", "exploration_initial_eps", "eps_start", "eps_end"),
        *("start_e", "end_e", "eps_train", "eps_train_final", "epsilon_timesteps", "epsilon_start", "epsilon_end"),
        *("epsilon_decay", "eps_decay", "initial_epsilon", "final_epsilon"),
    ),
    ".noise": ("exploration_noise", "action_noise", "act_noise", "expl_noise"),
    ".target_noise": ("policy_noise", "target_policy_noise"),
    ".target_noise_clip": ("noise_clip",),
    ".policy_delay": ("policy_freq", "policy_frequency", "update_actor_freq"),
    ".prioritised": ("prioritized", "prioritized_replay", "prioritised_replay", "per", "use_per"),
    ".alpha": ("prioritized_replay_alpha", "per_alpha"),
    ".beta": ("prioritized_replay_beta", "per_beta"),
    ".double": ("double_q", "double_dqn", "use_double", "is_double"),
    ".dueling": ("dueling_q", "dueling_dqn", "use_dueling"),
    ".length": (
        *("rollout_fragment_length", "rollout_length", "unroll_length", "horizon", "n_steps", "num_steps", "rollout"),
        *("rollout_steps", "step_per_collect", "batch_length", "frames_per_batch"),
    ),
    ".n_step": ("n_steps", "n_steps_return", "nstep", "n_step_return", "estimation_step"),
    ".n_frames": ("frame_stack", "framestack", "n_stack", "frames_stack"),
    ".max_grad_norm": ("grad_clip", "clip_grad", "gradient_clip", "max_gradient_norm"),
    ".adam_eps": ("adam_epsilon", "optimizer_eps"),
    ".normalise": ("normalize_observations", "normalize_obs", "norm_obs", "normalize_input", "obs_norm"),
    ".clip": ("clip_range", "clip_param", "clip_coef", "clip_ratio", "eps_clip", "ppo_clip_ratio"),
    ".clip_value": ("clip_vloss", "clip_range_vf", "vf_clip_param", "value_clip"),
    ".entropy": ("ent_coef", "entropy_coeff", "entropy_coef", "exploration_loss_coeff"),
    ".value_weight": ("vf_coef", "vf_loss_coeff", "value_coef", "value_loss_coeff"),
    ".gae_lambda": ("lambda", "lam", "lambda_"),
    ".epochs": ("n_epochs", "num_epochs", "num_sgd_iter", "update_epochs", "ppo_epochs", "repeat_per_collect"),
    ".taus": ("n_quantiles", "num_quantiles", "sample_size"),
}
"""Settings of training."""

EVALUATION: Mapping[str, tuple[str, ...]] = {
    "isolate": ("parallel_policy", "parallel_policies", "subprocess", "isolated", "separate_processes"),
    "episodes": ("n_episodes", "num_episodes", "n_eval_episodes", "eval_episodes", "evaluation_duration"),
    "jobs": ("num_workers", "n_jobs", "workers", "num_processes", "n_envs", "num_envs"),
    "policy": ("policies", "agent", "agents", "team", "teams", "model", "checkpoint"),
    "out": ("output", "output_file", "out_file", "json", "results"),
    "stand_in": ("fallback", "fallback_policy", "default_policy"),
    "limits.decision_s": ("timeout", "time_limit", "decision_timeout", "step_timeout", "max_decision_time"),
    "limits.memory_bytes": ("memory_limit", "max_memory"),
    "film": ("render", "record"),
}
"""Settings and flags of evaluations and tournaments."""

_NOTES = {
    "updates_per_step": "updates of a learner for each step of its agent",
    "evaluate_every": "counted in steps",
    "checkpoint_every": "counted in steps",
    ".minibatches": "a number, not a size",
    ".target_every": "counted in updates",
    ".epsilon": "a schedule",
}

_ADVICE: Mapping[str, str] = {
    theirs: text
    for names, text in {
        ("async_training", "asynchronous", "parallel_training", "async"): (
            "training is asynchronous unless you set --engine serial, or --slack 0 with --updates-per-step"
        ),
        ("env", "env_id", "env_name", "environment", "task", "game"): (
            "the world is the first argument: motet train WORLD"
        ),
        ("cuda", "gpu", "use_gpu", "num_gpus"): (
            "use --device auto; on a Ray cluster --cluster.learner-gpus gives learners a GPU"
        ),
        ("algo", "agent_type", "method", "trainer"): "use --algorithm",
        ("parallel_policy", "parallel_policies"): "motet eval and motet tournament have it: --isolate",
        ("framework", "optimizer", "optim"): "algorithms use torch and Adam; there is nothing to choose",
        ("policy", "policy_type", "policy_class"): (
            "the network follows from the observations; --help-all lists hidden, encoder and network"
        ),
        ("num_policies", "policies", "policy_mapping_fn", "policies_to_train"): (
            "every agent has a separate policy; a file may give each agent other settings, below [agents.NAME]"
        ),
        ("verbose", "log_level", "progress_bar", "quiet"): "use --display",
        ("log_interval", "report_interval", "log_freq"): "use --metrics-every-s",
        ("track", "use_wandb", "with_wandb"): "use --wandb-project NAME",
        ("torch_deterministic", "deterministic", "cudnn_deterministic"): "use --reproducible",
        ("anneal_lr", "lr_schedule", "learning_rate_schedule"): (
            "a learning rate may be a schedule, e.g. linear:3e-4:0:100000"
        ),
        ("capture_video", "record_video", "video", "render", "render_mode", "save_video", "film"): (
            "a run ends with a GIF of one episode (--pictures); motet eval RUN --video FILE.gif makes another one"
        ),
        ("resume", "load", "restore", "load_checkpoint", "checkpoint_path", "from_checkpoint", "resume_path"): (
            "motet resume RUN continues a run"
        ),
        ("num_cpus", "n_cpus", "num_threads", "torch_num_threads"): "use --actors and --learner-processes",
        (
            *("epoch", "step_per_epoch", "max_epoch", "iterations", "num_iterations", "training_iterations"),
            *("training_iteration", "stop_iters", "n_iterations"),
        ): "a run has no epochs or iterations; use --steps",
        ("max_episode_steps", "max_cycles", "episode_length", "max_ep_len"): (
            "the world decides when an episode ends; --world.NAME sets its parameters"
        ),
        ("frame_skip", "frameskip", "action_repeat", "env_frameskip"): (
            "motet repeats no actions; wrap the environment, or set it with --world.NAME"
        ),
        ("eps_test", "explore", "evaluation_config"): "evaluations act without exploration",
        ("local_mode", "debug", "serial_mode", "single_process"): "use --engine serial",
        ("worker_num_splits", "num_splits", "double_buffered_sampling"): "use --worlds-per-actor",
    }.items()
    for theirs in names
}


def _index(table: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for ours_, names in table.items():
        for theirs in names:
            found.setdefault(theirs, []).append(ours_)
    return found


_TRAINING, _EVALUATION = _index(TRAINING), _index(EVALUATION)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def ours(name: str, fields: Collection[str]) -> str:
    """motet's name for a foreign setting of training; empty if it is unknown. ``fields``: the settings of the
    algorithm.

    >>> ours("n_envs", []), ours("lr", ["learning_rate"]), ours("n-steps", ["length"]), ours("lr", [])
    ('worlds_per_actor', '.learning_rate', '.length', '')
    """
    plain = _plain(name)
    if plain in fields:
        return f".{plain}"
    return next((one for one in _TRAINING.get(plain, []) if one[0] != "." or one[1:] in fields), "")


def note(our: str) -> str:
    """A remark on a setting that has another meaning than in other libraries, in brackets; mostly empty.

    >>> note(".target_every"), note("steps")
    (' (counted in updates)', '')
    """
    return f" ({_NOTES[our]})" if our in _NOTES else ""


def advice(name: str) -> str:
    """Advice for a foreign setting that motet has in another form. It names flags. Empty for an unknown setting."""
    return _ADVICE.get(_plain(name), "")


def advice_for_keys(name: str) -> str:
    """Advice as from :func:`advice`, but with names of settings instead of flags.

    >>> advice_for_keys("local_mode")
    'use engine serial'
    """
    text = _ADVICE.get(_plain(name), "").replace(
        "the world is the first argument: motet train WORLD", "the world is named below [world]"
    )
    return re.sub(r"--([a-z][a-z.-]*)", lambda found: found[1].replace("-", "_"), text)


Class = TypeVar("Class", bound=type)


def suggesting(kind: str) -> Callable[[Class], Class]:
    """A decorator of a settings dataclass: errors about unknown arguments say which setting may have been meant.

    Args:
        kind: "run", "algorithm" or "evaluation".
    """

    def decorate(cls: Class) -> Class:
        begin = cast(Callable[..., None], cls.__init__)  # type: ignore[misc]  # of this class, as dataclass made it
        fields = {item.name for item in dataclasses.fields(cls) if item.init}

        @functools.wraps(begin)
        def __init__(self: object, *args: object, **given: object) -> None:
            for name in given:
                if name not in fields:
                    hint = meant(name, fields, kind)
                    raise TypeError(
                        f"{cls.__name__}() got an unexpected keyword argument {name!r}{hint and f'; {hint}'}"
                    )
            begin(self, *args, **given)

        cls.__init__ = __init__  # type: ignore[misc]
        return cls

    return decorate


def meant(name: str, fields: Collection[str], kind: str) -> str:
    """What an unknown argument of a settings class may have meant.

    >>> meant("lr", ["learning_rate"], "algorithm"), meant("lr", ["steps"], "run")
    ('use learning_rate', "use learning_rate in the algorithm's config")
    >>> meant("n_envs", ["learning_rate"], "algorithm"), meant("stepps", ["steps"], "run")
    ('use worlds_per_actor in Settings', 'did you mean steps?')
    """
    plain = _plain(name)
    if plain in fields:
        return f"did you mean {plain}?"
    known = _EVALUATION if kind == "evaluation" else _TRAINING
    found = known.get(plain, [])
    if own := [one for one in found if one.removeprefix(".") in fields]:
        return f"use {own[0].removeprefix('.')}{note(own[0])}"
    if kind == "evaluation":
        near = nearest(name, fields)
        return f"did you mean {near}?" if near else ""
    found = found or [one for one in TRAINING if one.removeprefix(".") == plain]
    if found and found[0] == "run":
        return "run is an argument of train"
    if found and found[0] == "agents":
        return "the world decides how many agents there are"
    if found and not found[0].startswith("."):
        return f"use {found[0]} in Settings{note(found[0])}"
    if found and kind == "run":
        return f"use {found[0][1:]} in the algorithm's config{note(found[0])}"
    if found:
        return f"this algorithm has no such setting; in others it is {found[0][1:]}"
    near = nearest(name, fields)
    return advice_for_keys(name) or (f"did you mean {near}?" if near else "")

"""Hints for names that motet does not have: other libraries' names, and spelling mistakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from motet.algorithms.catalogue import ALGORITHMS, algorithm_config
from motet.text import nearest

__all__ = ["foreign", "unknown_flags", "unknown_flags_of", "unknown_keys", "unknown_play_flags"]

_FOREIGN: dict[str, tuple[str, ...]] = {
    # motet's name: the names of other libraries. A name with a dot is a setting of the algorithm.
    "steps": (
        *("total_timesteps", "total_steps", "timesteps", "num_timesteps", "max_timesteps", "stop_timesteps"),
        "max_steps",
    ),
    "seconds": ("time_limit", "max_time", "time_total_s", "time_budget_s"),
    "actors": ("num_workers", "num_actors", "n_actors", "num_env_runners", "num_rollout_workers", "rollout_workers"),
    "worlds_per_actor": ("n_envs", "num_envs", "num_envs_per_worker", "num_envs_per_env_runner", "n_worlds"),
    "learner_processes": ("num_learners", "n_learners", "num_learner_workers"),
    "updates_per_step": ("train_freq", "gradient_steps", "utd", "utd_ratio", "training_intensity", "update_every"),
    "publish_every": ("weight_sync_interval", "sync_every", "broadcast_interval", "update_worker_every", "push_every"),
    "max_lag_versions": ("max_staleness", "max_policy_lag", "max_weight_lag"),
    "evaluate_every": ("eval_freq", "eval_interval", "eval_every", "evaluation_interval"),
    "evaluate_episodes": ("n_eval_episodes", "eval_episodes", "evaluation_duration"),
    "checkpoint_every": ("save_freq", "save_every", "checkpoint_freq", "checkpoint_frequency", "checkpoint_interval"),
    "run": ("log_dir", "logdir", "output_dir", "out_dir", "save_dir", "tensorboard_log", "exp_name", "run_name"),
    "agents": ("num_agents", "n_agents"),
    ".learning_rate": ("lr", "alpha_lr", "step_size"),
    ".capacity": ("buffer_size", "replay_size", "replay_buffer_size", "replay_capacity"),
    ".min_rows": ("warmup", "warm_up", "warmup_steps", "learning_starts", "start_steps", "min_buffer_size"),
    ".batch_size": ("train_batch_size", "minibatch_size", "mini_batch_size"),
    ".hidden": ("net_arch", "fcnet_hiddens", "hidden_sizes", "hidden_dim", "hidden_layers", "hidden_size"),
    ".gamma": ("discount", "discount_factor"),
    ".target_every": ("target_update_interval", "target_network_update_freq", "target_update", "target_update_freq"),
    ".target_rate": ("tau", "polyak"),
    ".epsilon": ("exploration_fraction", "exploration_final_eps", "exploration_initial_eps", "eps_start", "eps_end"),
    ".noise": ("exploration_noise", "action_noise", "act_noise"),
    ".policy_delay": ("policy_freq",),
    ".prioritised": ("prioritized", "prioritized_replay", "prioritised_replay", "per", "use_per"),
    ".n_step": ("n_steps_return", "nstep", "n_step_return"),
    ".n_frames": ("frame_stack", "framestack", "n_stack"),
    ".max_grad_norm": ("grad_clip", "clip_grad", "gradient_clip"),
    ".clip": ("clip_range", "clip_param", "clip_coef", "clip_ratio"),
    ".entropy": ("ent_coef", "entropy_coeff", "entropy_coef"),
    ".value_weight": ("vf_coef", "vf_loss_coeff", "value_coef"),
    ".gae_lambda": ("lambda", "lam", "lambda_"),
    ".length": ("rollout_fragment_length", "rollout_length", "unroll_length", "horizon"),
    ".epochs": ("n_epochs", "num_epochs", "num_sgd_iter", "update_epochs"),
}
_ADVICE = {
    **dict.fromkeys(
        ("async_training", "asynchronous", "parallel_training", "async"),
        "training is asynchronous unless you set --engine serial, or --slack 0 with --updates-per-step",
    ),
    **dict.fromkeys(
        ("env", "env_id", "env_name", "environment", "task", "game"),
        "the world is the first argument: motet train WORLD",
    ),
    **dict.fromkeys(
        ("cuda", "gpu", "use_gpu", "num_gpus"),
        "use --device auto; on a Ray cluster --cluster.learner-gpus gives learners a GPU",
    ),
    **dict.fromkeys(("algo", "agent_type", "method"), "use --algorithm"),
    **dict.fromkeys(("parallel_policy", "parallel_policies"), "motet eval and motet tournament have it: --isolate"),
}
_PLAY = {
    # motet's name: the names of other libraries, for motet eval and motet tournament.
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
_OTHER = {
    # motet's name: the names of other libraries, for the other commands.
    "out": ("output", "output_file", "out_file", "html"),
    "humans.gamma": ("gamma", "discount", "discount_factor"),
    "every_s": ("interval", "refresh"),
    "workers": ("jobs", "num_workers", "n_jobs", "processes"),
    "steps": ("total_timesteps", "more_steps", "max_steps"),
    "checkpoint": ("step", "from_checkpoint"),
}
_OTHERS = {theirs: ours for ours, names in _OTHER.items() for theirs in names}
_PLAYS = {theirs: ours for ours, names in _PLAY.items() for theirs in names}
_OURS = {theirs: ours for ours, names in _FOREIGN.items() for theirs in names}


def foreign(name: str, algorithm: str) -> str:
    """motet's flags for a name that another library uses; empty if the name is not known.

    >>> foreign("buffer_size", "dqn"), foreign("weight_sync_interval", "dqn"), foreign("colour", "dqn")
    ('--dqn.capacity', '--publish-every', '')
    """
    own = _fields(algorithm)
    plain = name.lower().replace("-", "_")
    ours = _OURS.get(plain, f".{plain}" if plain in own else "")
    if ours.startswith("."):
        return f"--{algorithm}{ours}".replace("_", "-") if ours[1:] in own else ""
    return f"--{ours}".replace("_", "-") if ours else ""


def _fields(algorithm: str) -> set[str]:
    """The settings of an algorithm that comes with motet; empty for any other algorithm."""
    if algorithm not in ALGORITHMS:
        return set()
    config: Any = algorithm_config(algorithm)
    return {item.name for item in dataclasses.fields(config)}


def _algorithms_with(name: str) -> list[str]:
    """The algorithms that have a setting, by our name or by another library's, as flags.

    >>> _algorithms_with("ent-coef"), _algorithms_with("colour")
    (['--ppo.entropy'], [])
    """
    return [hint for one in ALGORITHMS if (hint := foreign(name, one)).startswith(f"--{one}.")]


def unknown_flags(unknown: Sequence[str], known: Iterable[str], algorithm: str) -> str:
    """The error for unknown flags of ``motet train``: why each is refused, and which flag to use instead.

    >>> unknown_flags(["--lr", "0.1"], ["--steps"], "dqn")
    '--lr is not a flag of motet train; use --dqn.learning-rate'
    """
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if not flags:
        return f"motet train takes one world and flags, got also {' '.join(unknown)}"
    lines = []
    for flag in flags:
        first, _, rest = flag[2:].partition(".")
        if hint := foreign(flag[2:], algorithm):
            advice = f"use {hint}"
        elif plain := _ADVICE.get(flag[2:].lower().replace("-", "_")):
            advice = plain
        elif rest and first in ALGORITHMS and first != algorithm:
            ours = f"use --{algorithm}.{rest}, or " if rest.replace("-", "_") in _fields(algorithm) else "use "
            advice = f"the algorithm is {algorithm}: {ours}--algorithm {first}"
        elif others := _algorithms_with(flag[2:]):
            advice = f"{algorithm} has no such setting; with another algorithm it is {' or '.join(others)}"
        elif near := _nearest_flag(flag, known):
            advice = f"did you mean {near}?"
        else:
            advice = "motet train WORLD --help-all lists all flags"
        lines.append(f"{flag} is not a flag of motet train; {advice}")
    return "\n".join(lines)


def _nearest_flag(flag: str, known: Iterable[str]) -> str:
    """The known flag that a given one is most similar to, with or without the prefix of its group.

    >>> _nearest_flag("--stepps", ["--steps"]), _nearest_flag("--gama", ["--map", "--dqn.gamma"])
    ('--steps', '--dqn.gamma')
    >>> _nearest_flag("--world.agents", ["--world.game", "--agents"])
    '--agents'
    """
    whole = {name: name for name in reversed(list(known))}
    without_prefix = {f"--{name.rpartition('.')[2]}": name for name in whole if "." in name}
    names = without_prefix | whole
    of_another_group = f"--{flag.rpartition('.')[2]}"
    return names.get(of_another_group if of_another_group in names else nearest(flag, names), "")


def unknown_play_flags(unknown: Sequence[str], known: Iterable[str], command: str) -> str:
    """The error for unknown flags of ``motet eval`` or ``motet tournament``, with the flags to use instead.

    >>> unknown_play_flags(["--parallel-policy"], ["--isolate"], "motet eval")
    '--parallel-policy is not a flag of motet eval; use --isolate'
    """
    flags, known = [word.partition("=")[0] for word in unknown if word.startswith("-")], list(known)
    if not flags:
        return f"{command} takes one world and flags, got also {' '.join(unknown)}; give policies with -p"
    lines = []
    for flag in flags:
        ours = f"--{_PLAYS.get(flag.lstrip('-').lower().replace('-', '_'), '')}".replace("_", "-")
        if ours in known:
            advice = f"use {ours}"
        elif near := _nearest_flag(flag, known):
            advice = f"did you mean {near}?"
        else:
            advice = f"{command} WORLD --help-all lists all flags"
        lines.append(f"{flag} is not a flag of {command}; {advice}")
    return "\n".join(lines)


def unknown_flags_of(command: str, unknown: Sequence[str], known: Iterable[str]) -> str:
    """The error for unknown arguments of any other command, with the flags to use instead.

    >>> unknown_flags_of("motet report", ["--outt", "x.html"], ["--out", "--names"])
    '--outt is not a flag of motet report; did you mean --out?'
    """
    flags, known = [word.partition("=")[0] for word in unknown if word.startswith("-")], list(known)
    if not flags:
        return f"{command} takes no argument {' '.join(unknown)}; see {command} --help"
    lines = []
    for flag in flags:
        ours = f"--{_OTHERS.get(flag.lstrip('-').lower().replace('-', '_'), '')}".replace("_", "-")
        near = _nearest_flag(flag, known)
        advice = f"use {ours}" if ours in known else f"did you mean {near}?" if near else f"see {command} --help"
        lines.append(f"{flag} is not a flag of {command}; {advice}")
    return "\n".join(lines)


def unknown_keys(unknown: Sequence[str], known: Iterable[str], algorithm: str) -> str:
    """Unknown keys of an experiment file, each with the name that may have been meant.

    The valid keys are listed only if there is a key for which no such name was found.

    >>> unknown_keys(["stepps", "buffer_size"], ["steps", "seed"], "dqn")
    'keys must be valid, got stepps (did you mean steps?), buffer_size (use capacity in [dqn])'
    >>> unknown_keys(["colour"], ["steps", "seed"], "dqn")
    'keys must be some of seed, steps, got colour'
    """
    about = {name: _about_key(name, list(known), algorithm) for name in unknown}
    expected = "valid" if all(about.values()) else f"some of {', '.join(sorted(known))}"
    return f"keys must be {expected}, got {', '.join(name + hint for name, hint in about.items())}"


def _about_key(name: str, known: list[str], algorithm: str) -> str:
    if name in ALGORITHMS:
        return f" (the algorithm is {algorithm})"
    if name in ("settings", "train", "training"):
        return f" (write the settings at the top of the file, without [{name}])"
    if hint := foreign(name, algorithm):
        table, _, key = hint.removeprefix("--").replace("-", "_").rpartition(".")
        if key in known:
            return f" (use {key})"
        return f" (use {key} in [{table}])" if table else f" (use {key}, at the top of the file)"
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""

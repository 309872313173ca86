"""``export``: the greedy policy of a run's agent as a file for programs without motet, for torch or as ONNX.

A torch file holds a state dict of plain layers and, as plain values, the sizes and names that a loader needs
(``docs/export.md`` has the loader). An ONNX file needs no loader.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from motet.algorithm import Space
from motet.errors import SettingError, StorageError
from motet.policies.entries import checkpoint_folder, read_weights
from motet.policy import PLAYER
from motet.runs.trust import make_importable
from motet.system.files import write_whole

if TYPE_CHECKING:
    from motet.algorithms._greedy_module import GreedyPolicy

__all__ = ["export"]


def export(
    run: str | os.PathLike[str],
    agent: str | None = None,
    *,
    torch: str | os.PathLike[str] | None = None,
    onnx: str | os.PathLike[str] | None = None,
    step: int | None = None,
    world: Any = None,
    trust: bool = False,
) -> None:
    """Write the greedy policy of an agent to a file that other programs can use without motet.

    Args:
        run: the run directory, or one of its checkpoints.
        agent: the agent whose policy is exported; it may be left out if the run has one policy.
        torch: file for torch: a state dict of plain layers, and the sizes and names that a loader needs.
        onnx: file for ONNX runtimes; needs ``pip install 'motet[onnx]'``.
        step: step of the checkpoint; the newest by default.
        world: factory of the run's world, if the run does not name one.
        trust: allow the run to name worlds, algorithms and networks outside of motet, whose code is then imported and
            run. Runs that this user has trained on this machine need no trust.

    ::

        motet.export("runs/mine", torch="policy.pt")
    """
    if torch is None and onnx is None:
        raise SettingError("torch or onnx must be given, got neither: the file to write")
    if onnx is not None:
        _check_onnx()
    policy = _policy(Path(run), agent, step, world, trust)
    if torch is not None:
        _write_torch(policy, Path(torch))
    if onnx is not None:
        _write_onnx(policy, Path(onnx))


def _policy(path: Path, agent: str | None, step: int | None, world: Any, trust: bool) -> GreedyPolicy:
    from motet.runs.config import rebuild_agents, rebuild_world
    from motet.world import as_world
    from motet.world.masks import masked_agents

    directory, folder = checkpoint_folder(path, step)
    config, weights = directory.config(), read_weights(folder)
    configs = config.get("agents", {})
    known = [name for name in configs if name in weights]
    if agent is None and len(known) == 1:
        agent = known[0]
    if agent is None or agent not in known:
        given = "none" if agent is None else repr(agent)
        raise SettingError(f"agent must be one of {', '.join(known)} of the run {str(path)!r}, got {given}")
    trust = trust or make_importable(directory.path, config)
    algorithm = rebuild_agents({agent: configs[agent]}, trust=trust)[agent]
    made = as_world((world or rebuild_world(config.get("world", {}), trust=trust))())
    try:
        seat = 0 if agent == PLAYER and agent not in made.agents else list(made.agents).index(agent)
        spaces = made.observation_spaces[seat], made.action_spaces[seat]
        made.reset(0)
        masked = seat in masked_agents(made)
    finally:
        made.close()
    return greedy_module(algorithm, agent, weights[agent], *spaces, masked)


def greedy_module(
    algorithm: Any,
    agent: str,
    weights: npt.NDArray[np.float32],
    observation_space: Space,
    action_space: Space,
    masked: bool = False,
) -> GreedyPolicy:
    """Return the greedy policy of an algorithm with these weights as a torch module."""
    from motet.algorithms._greedy_module import GreedyPolicy

    if not hasattr(algorithm, "greedy"):
        raise SettingError(
            f"agent {agent}: the algorithm must be one that can be exported, got {type(algorithm).__name__}: it has no "
            "method greedy"
        )
    sizes = algorithm.sizes(observation_space, action_space)
    if len(weights) not in (sizes.weights, sizes.state):
        raise SettingError(
            f"agent {agent}: the run must have {sizes.weights} weights (or {sizes.state} with the optimiser state) "
            f"for {observation_space} and {action_space}, got {len(weights)}: it was trained in another world"
        )
    return GreedyPolicy(algorithm.greedy(observation_space, action_space, weights[: sizes.weights]), masked)


def _write_torch(policy: GreedyPolicy, path: Path) -> None:
    import torch

    saved = {"about": policy.about(), "state_dict": policy.plain_state()}
    _write(path, lambda beside: torch.save(saved, beside))


def _check_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(f"onnx: {' and '.join(missing)} must be installed to write it: pip install 'motet[onnx]'")


def _write_onnx(policy: GreedyPolicy, path: Path) -> None:
    import torch

    inputs = policy.example()
    batch = torch.export.Dim("batch")
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # torch logs every optional library that it does not find
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about torch's own internals
            program = torch.onnx.export(
                policy, inputs, dynamo=True, verbose=False, input_names=policy.input_names(),
                output_names=["action", "new_state"][: 1 + (policy.state_size > 0)],
                dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            )  # fmt: skip
    except Exception as error:
        raise SettingError(
            f"onnx: the policy must consist of operations that torch can express in ONNX, got {type(error).__name__}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    finally:
        logger.setLevel(level)
    assert program is not None
    _write(path, lambda beside: program.save(beside, external_data=False))


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write_whole(path, write)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error

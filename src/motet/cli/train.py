"""``motet train`` and ``motet resume``: run training with a display, and print a summary at the end.

The flags of ``motet train`` are parsed in ``flags.py``, which the command starts with.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from motet.cli.experiment import short_name
from motet.cli.flags import TrainRequest
from motet.cli.show import showing
from motet.cli.summary import summarise
from motet.errors import SettingError
from motet.runs.directory import RunDirectory
from motet.runs.display import History
from motet.runs.sinks import Wandb
from motet.runs.status import new_directory, read_history
from motet.training.run import Result
from motet.training.run import resume as go_on
from motet.training.run import train as begin
from motet.worlds.catalogue import WORLDS

__all__ = ["resume", "train"]


def train(asked: TrainRequest) -> int:
    """Train every agent of a world."""
    if asked.wandb:
        Wandb.require()
    run = asked.run or new_directory(asked.world, asked.algorithm)
    _check_empty(run)
    try:
        title = f"{asked.world} · {asked.algorithm} · {run}"
        with showing(run, title, wandb=asked.wandb) as show:
            result = begin(
                asked.factory, asked.configs, asked.settings, run=run, on_update=show.watch, on_message=show.say
            )
    except BaseException:
        if asked.run is None:
            with contextlib.suppress(OSError):
                run.rmdir()  # fails, as it should, if something was written into it
        raise
    return _finish(run, result)


def _check_empty(run: Path) -> None:
    """Raise if files that are not of a run are in the directory: a run would mix its own with them."""
    if run.is_dir() and not (run / "config.json").exists():
        others = sorted(one.name for one in run.iterdir() if one.name != ".lock")
        if others:
            named = f"{others[0]!r}{f' and {len(others) - 1} more' if len(others) > 1 else ''}"
            raise SettingError(
                f"run must be a new or empty directory, got {str(run)!r} with {named}; give another name"
            )


def resume(
    run: tyro.conf.Positional[Path],
    steps: Annotated[int | None, tyro.conf.arg(metavar="MORE")] = None,
    episodes: Annotated[int | None, tyro.conf.arg(metavar="MORE")] = None,
    checkpoint: Annotated[int | None, tyro.conf.arg(metavar="STEP")] = None,
    trust: bool = False,
    wandb: bool = False,
    address: str | None = None,
) -> int:
    """Continue a run from its newest checkpoint.

    Args:
        run: The run directory.
        steps: Number of additional steps. By default the steps that remain of the original number.
        episodes: Number of additional episodes, in the same way.
        checkpoint: Step of an older checkpoint to continue from. Newer checkpoints are discarded.
        trust: Allow the run to import worlds and algorithms outside of motet, which runs their code. Runs that you have
            trained on this machine need no trust.
        wandb: Also send metrics to Weights & Biases.
        address: Address of the Ray cluster, if it has changed.
    """
    directory = RunDirectory.open(run)
    if wandb:
        Wandb.require()
    if trust and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    history = History()
    for snapshot in read_history(directory):
        history.add(snapshot)
    history.resume()
    with showing(run, f"{_played(directory.config())} · {run} · resumed", history=history, wandb=wandb) as show:
        result = go_on(
            run,
            steps=steps,
            episodes=episodes,
            checkpoint=checkpoint,
            trust=trust,
            address=address,
            on_update=show.watch,
            on_message=show.say,
        )
    return _finish(run, result, trust)


def _played(config: Mapping[str, Any]) -> str:
    """The world and the algorithm of a run, as ``motet train`` shows them."""
    world, agents = config.get("world", {}), config.get("agents", {}).values()
    shipped = {path.rpartition(":")[2]: name for name, path in WORLDS.items()}
    name = str(world.get("path") or "a world of a script").rpartition(":")[2]
    if name == "from_gymnasium":
        name = str(world.get("settings", {}).get("id", name))
    learning = [agent for agent in agents if "policy" not in agent]
    algorithms = {short_name(str(agent.get("class") or "an algorithm of a script")) for agent in learning}
    return f"{shipped.get(name, name)} · {'mixed' if len(algorithms) > 1 else ''.join(algorithms)}"


def _finish(run: Path, result: Result, trust: bool = True) -> int:
    summarise(run, result, trust=trust, pictures=not result.interrupted)
    return 130 if result.interrupted else 0

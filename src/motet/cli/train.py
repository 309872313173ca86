"""``motet train`` and ``motet resume``: training with a display and a summary at the end.

The flags of ``motet train`` are parsed in ``flags.py``, which the command starts with.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from motet.cli.flags import DISPLAY_HELP, PICTURES_HELP, TrainRequest, WandbFlags
from motet.errors import SettingError
from motet.runs.sinks import DisplayChoice
from motet.runs.status import new_directory
from motet.text import plain
from motet.training.run import resume as resume_run
from motet.training.run import train as begin
from motet.training.seeds import train_seeds

__all__ = ["resume", "train"]


def train(asked: TrainRequest) -> int:
    """Train every agent of a world."""
    run = asked.run or new_directory(asked.world, asked.algorithm)
    if asked.seeds is not None:
        return _train_seeds(asked, run, asked.seeds)
    _check_empty(run)
    try:
        result = begin(
            *(asked.factory, asked.configs, asked.settings),
            run=run,
            display=asked.display,
            pictures=asked.pictures,
            wandb=asked.wandb,
        )
    except BaseException:
        if asked.run is None:
            with contextlib.suppress(OSError):
                run.rmdir()  # rmdir fails if the directory holds files, as intended
        raise
    if asked.compare_exact and not result.interrupted:
        from motet.reports.exact import compare_with_exact

        gap, pictures = compare_with_exact(run, trust=True)
        sys.stdout.writelines(f"{line}\n" for line in (f"exact solution: {gap}", *map(plain, pictures)))
    return 130 if result.interrupted else 0


def _train_seeds(asked: TrainRequest, run: Path, seeds: int) -> int:
    given = {"pictures": asked.pictures is not None, "wandb": asked.wandb, "compare_exact": asked.compare_exact}
    for name, is_given in given.items():
        if is_given:
            raise SettingError(f"{name} is not valid with --seeds; train each seed on its own, or leave it out")
    found = train_seeds(asked.factory, asked.configs, asked.settings, seeds=seeds, run=run, display=asked.display)
    return 130 if found.interrupted else 1 if found.failures else 0


def _check_empty(run: Path) -> None:
    """Raise if the directory holds files that do not belong to a run: the run's files would be mixed with these
    files."""
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
    display: Annotated[DisplayChoice, tyro.conf.arg(help=DISPLAY_HELP)] = "table",
    pictures: Annotated[bool | None, tyro.conf.arg(help=PICTURES_HELP)] = None,
    wandb: Annotated[WandbFlags, tyro.conf.arg(name="")] = WandbFlags(),  # noqa: B008 - frozen
    address: str | None = None,
    engine: Literal["processes", "serial", "ray"] | None = None,
    actors: int | None = None,
    worlds_per_actor: int | None = None,
    learner_processes: int | None = None,
    updates_per_step: float | None = None,
    slack: float | None = None,
    seconds: float | None = None,
) -> int:
    """Continue a run from its newest checkpoint.

    Args:
        run: The run directory.
        steps: Number of additional steps. By default the steps that remain of the original number.
        episodes: Number of additional episodes. By default the episodes that remain of the original number.
        checkpoint: Step of an older checkpoint to continue from. Newer checkpoints are discarded.
        trust: Allow the run to import worlds and algorithms outside of motet, which runs their code. Runs that you have
            trained on this machine need no trust.
        address: Address of the Ray cluster, if it has changed.
        engine: New engine. If this or one of the next settings changes, motet keeps the new updates_per_step from here
            on, and does not make up for earlier steps.
        actors: New number of actors. The rows that keep_replay saved are then discarded and counted as lost.
        worlds_per_actor: New number of worlds per actor. The rows that keep_replay saved are then discarded and counted
            as lost.
        learner_processes: New number of learner processes.
        updates_per_step: New number of updates per step.
        slack: New slack: the number of updates that either side may be ahead of the pace.
        seconds: New time limit of this session.
    """
    if trust and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    result = resume_run(
        run,
        steps=steps,
        episodes=episodes,
        checkpoint=checkpoint,
        trust=trust,
        address=address,
        engine=engine,
        actors=actors,
        worlds_per_actor=worlds_per_actor,
        learner_processes=learner_processes,
        updates_per_step=updates_per_step,
        slack=slack,
        seconds=seconds,
        display=display,
        pictures=pictures,
        wandb=wandb.given(),
    )
    return 130 if result.interrupted else 0

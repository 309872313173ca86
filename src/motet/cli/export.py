"""``motet export``: writes the greedy policy of a run's agent to a file that programs without motet can use."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from motet.policies.export import export as write
from motet.text import plain

__all__ = ["export"]

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


def export(
    run: tyro.conf.Positional[Path],
    agent: str | None = None,
    torch: File = None,
    onnx: File = None,
    step: int | None = None,
    trust: bool = False,
) -> int:
    """Write the greedy policy of an agent to a file for programs without motet: for torch, or as ONNX.

    Args:
        run: The run directory, or one of its checkpoints.
        agent: The agent whose policy is written. Not needed if the run has only one policy.
        torch: File for torch: a state dict of plain layers, and the sizes and names that a loader needs. An existing
            file is replaced.
        onnx: File for ONNX runtimes. An existing file is replaced.
        step: Step of the checkpoint; the newest by default.
        trust: Import and run code that the run names: worlds, algorithms and networks outside of motet.
    """
    write(run, agent, torch=torch, onnx=onnx, step=step, trust=trust)
    for path in (torch, onnx):
        if path is not None:
            sys.stdout.write(f"{plain(str(path))} ({path.stat().st_size / 1e3:.1f} kB)\n")
    return 0

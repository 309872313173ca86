"""The devices of this machine, without loading torch into this process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from motet.errors import StartError

__all__ = ["TorchFound", "idle_device", "torch_found"]

_TIMEOUT_S = 120.0

_LOOK = """
import json, time
begun = time.perf_counter()
import torch
took_s = time.perf_counter() - begun
devices = {f"cuda:{i}": torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
if torch.backends.mps.is_available():
    devices["mps"] = "mps"
print(json.dumps([torch.__version__, devices, took_s]))
"""


class TorchFound(NamedTuple):
    """Version, devices and import time of torch."""

    version: str
    devices: dict[str, str]
    """The devices other than the CPU: labels by name."""
    took_s: float
    """Duration of the import in seconds."""


def torch_found(timeout_s: float = _TIMEOUT_S) -> TorchFound:
    """Import torch in a separate process, so that it may hang or crash; raise StartError if it does."""
    if importlib.util.find_spec("torch") is None:
        raise StartError("torch is not installed")
    command = [sys.executable, "-c", _LOOK]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StartError(f"the import of torch took more than {timeout_s:.0f} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise StartError(f"the import of torch fails: {last}")
    return TorchFound(*json.loads(done.stdout.strip().splitlines()[-1]))


def idle_device(root: Path = Path("/dev"), environment: Mapping[str, str] = os.environ) -> str:
    """Return the kind of device that this machine seems to have and torch can use, judged by files; empty if none."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""
    if sys.platform == "darwin":
        return "mps" if platform.machine() == "arm64" else ""
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    files = [*root.glob("nvidia[0-9]*"), *root.glob("kfd"), *root.glob("dxg")]
    return "cuda" if files and not hidden and not version.endswith("+cpu") else ""

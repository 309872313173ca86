"""``motet doctor``: checks the machine and the installation, and says how to fix what is missing."""

from __future__ import annotations

import importlib
import importlib.util
import json as json_format
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from motet._version import __version__
from motet.errors import MotetError, SettingError, StartError
from motet.system.devices import torch_found
from motet.system.machine import available_bytes, cgroup_room, meminfo, usable_cores

__all__ = ["Finding", "doctor", "examine"]

Verdict = Literal["ok", "warning", "missing"]

TORCH_S = 60.0
"""Maximum number of seconds for the import of torch."""


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, a verdict, what was found, and advice if something should be done."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
    essential: bool = False
    """Whether motet needs it to work at all."""


def doctor(json: bool = False, directory: str | None = None) -> int:
    """Check this machine and the installation, and say how to fix problems.

    Args:
        json: Print a JSON object instead of a table.
        directory: Also check how large a replay in this folder can be.
    """
    findings = list(examine(directory))
    failed = any(f.essential and f.verdict == "missing" for f in findings)
    if json:
        report = {"ok": not failed, "findings": [asdict(f) for f in findings]}
        sys.stdout.write(json_format.dumps(report) + "\n")
    else:
        _show(findings, failed)
    return 1 if failed else 0


def examine(directory: str | None = None) -> Iterator[Finding]:
    """Run all checks, and yield the findings one by one."""
    yield Finding("motet", "ok", f"{__version__}, Python {platform.python_version()}")
    yield Finding("kernel", *_kernel())
    core = _core()
    yield core
    if core.verdict == "ok":
        yield Finding("shared memory", *_shared_memory(), essential=True)
        if directory is not None:
            yield Finding("directory", *_directory(directory))
        yield Finding("bell", *_bell())
    yield Finding("cores", *_cores())
    yield Finding("start method", *_start_method())
    yield Finding("open files", *_open_files())
    yield Finding("policy limits", *_policy_limits())
    yield from _torch()
    for name, what in (
        ("ray", "needed for runs on several machines"),
        ("wandb", "needed for --wandb (Weights & Biases)"),
        ("onnx", "needed for motet export --onnx"),
        ("cpprb", "motet bench compares motet with it"),
        ("torchrl", "motet bench compares motet with it"),
        ("stable-baselines3", "motet bench compares motet with it"),
    ):
        yield Finding(name, *_package(name, what))


# ---- one function for each check

Look = tuple[Verdict, str, str]


def _kernel() -> Look:
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() in ("Linux", "Darwin"):
        return "ok", found, ""
    return "warning", found, "motet supports Linux and macOS; on other systems use WSL or a container"


def _core() -> Finding:
    try:
        native = importlib.import_module("motet._native")
    except ImportError as error:
        advice = "install a C++17 compiler (apt install g++, or xcode-select --install), then install motet again"
        return Finding("native core", "missing", str(error), advice, essential=True)
    file = Path(str(native.__file__)).name
    arrays = "direct access to arrays" if native.DIRECT_ARRAYS else "access to arrays by the buffer protocol"
    # The core does not compile if its atomics are not lock-free.
    return Finding("native core", "ok", f"{file}, lock-free 32 and 64 bit atomics, {arrays}", essential=True)


def _shared_memory() -> Look:
    from motet.arrays import ArraySpec
    from motet.system import memory as _memory

    limits = _memory_limits()
    room = available_bytes()
    try:
        _memory.Segment({"probe": ArraySpec((1 << 20,), "uint8")})
    except (MotetError, OSError) as error:
        return "missing", str(error), "free some memory, or allow memfd_create in the container"
    if room is None or not limits:
        return "ok", "shared memory can be allocated; the limit is not known on this system", ""
    binding = min(limits, key=lambda name: limits[name])
    others = [f"{name} {_memory.format_bytes(n)}" for name, n in limits.items() if name != binding]
    beside = f" ({', '.join(others)})" if others else ""
    found = f"up to {_memory.format_bytes(room)}, limited by {binding}{beside}"
    if room < 1 << 30:
        return "warning", found, "little room for replays: use smaller capacities, or directory=… on a disk"
    return "ok", found, ""


def _directory(directory: str) -> Look:
    from motet.system import memory as _memory

    if not Path(directory).is_dir():
        raise SettingError(f"directory must be an existing folder, got {directory!r}")
    room = available_bytes(directory)
    return "ok", f"up to {_memory.format_bytes(room or 0)} on the file system of {directory}", ""


def _memory_limits() -> dict[str, int]:
    """The limits on the size of a shared memory segment that the system reports, by name."""

    if sys.platform != "linux":
        return {}
    limits = {"free memory": meminfo("MemAvailable")}
    groups = [room for room in cgroup_room() if room < 1 << 60]  # cgroup v1 writes "no limit" as a huge number
    return limits | ({"control group": min(groups)} if groups else {})


def _bell() -> Look:
    if sys.platform == "linux":
        return "ok", "waits on a futex", ""
    if sys.platform == "darwin" and platform.mac_ver()[0] >= "14.4":
        return "ok", "waits on os_sync", ""
    return "warning", "waits by polling every 50 us", "works, but waiting costs more; use Linux or macOS 14.4"


def _cores() -> Look:
    total = os.cpu_count() or 1
    usable = usable_cores()
    found = f"{usable} of {total} usable"
    quota = _cgroup_cores()
    if quota is not None:
        found += f", limited to {quota:g} by the control group"
        usable = min(usable, int(quota)) if quota >= 1 else 0
    if usable < 2:
        return "warning", found, "actors and learners will share one core; allow two or more"
    return "ok", found, ""


def _cgroup_cores() -> float | None:
    """The CPU limit of the control group, in cores; None if there is no limit."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            words = _lines(Path("/sys/fs/cgroup") / path.lstrip("/") / "cpu.max")
            if words and not words[0].startswith("max"):
                quota, period = words[0].split()
                return int(quota) / int(period)
        elif "cpu" in controllers.split(","):
            group = Path("/sys/fs/cgroup/cpu") / path.lstrip("/")
            quota_us, period_us = _lines(group / "cpu.cfs_quota_us"), _lines(group / "cpu.cfs_period_us")
            if quota_us and period_us and int(quota_us[0]) > 0:
                return int(quota_us[0]) / int(period_us[0])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # missing, or not readable
        return []


def _start_method() -> Look:
    from motet.system import fork_server as _fork_server

    method = _fork_server.context().get_start_method()
    if method != "forkserver":
        return "warning", method, "forkserver is not available: a child process takes about 1.5 s to start"
    why = _fork_server.why_standard()
    way = "unnamed socket" if why is None else f"standard library's socket ({why})"
    return "ok", f"forkserver, {way}; a child process starts in milliseconds", ""


def _open_files() -> Look:
    if sys.platform == "win32":
        return "ok", "no limit known", ""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} (up to {hard})"
    if soft < 1024:
        return "warning", found, f"run ulimit -n {min(hard, 4096)} before large runs"
    return "ok", found, ""


def _policy_limits() -> Look:
    """How the limits of isolated policies are enforced here."""
    if sys.platform != "linux":
        return "warning", "time and open files only", "limits on memory, CPU time, tasks and disk space need Linux"
    from motet.isolation.groups import has_groups
    from motet.isolation.sandbox import can_limit_folders, gaps

    tasks = "the control group" if has_groups("pids") else "watching"
    memory = "watching and the control group" if has_groups("memory") else "watching"
    folder = "a file system in memory" if can_limit_folders() else "watching"
    found = f"tasks by {tasks}, memory by {memory}, the sandbox's folder by {folder}"
    if lacking := gaps():
        return "warning", found, f"the sandbox is not available: this machine lacks {'; '.join(lacking)}"
    return "ok", found, ""


def _torch() -> Iterator[Finding]:
    """Check torch and, on each device other than the CPU, three updates of a learner."""
    try:
        found = torch_found(TORCH_S)
    except StartError as error:
        slow = "the disk may be too slow"
        advice = "pip install torch; replays, publications and planning work without it"
        yield Finding("torch", "missing", str(error), slow if "took more" in str(error) else advice)
        return
    devices = "".join(f", {label}" for label in found.devices.values())
    yield Finding("torch", "ok", f"{found.version}, cpu{devices}; the import takes {found.took_s:.1f} s")
    for device in found.devices:
        if problem := device_problem(device):
            yield Finding(f"device {device}", "warning", problem, "use another device, or the CPU")
        else:
            yield Finding(
                f"device {device}", "ok", f"updates agree with the CPU's; train with --device {device} or auto"
            )


def device_problem(device: str) -> str:
    """Make updates on a device in a separate process. Return the problem, or an empty string if there is none."""
    command = [sys.executable, "-c", f"from motet.cli import doctor\ndoctor.learn_on({device!r})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TORCH_S, check=False)
    except subprocess.TimeoutExpired:
        return f"a learner did not finish three updates within {TORCH_S:.0f} s"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


def learn_on(device: str) -> None:
    """Update a learner on a device and one on the CPU, restart it, and raise unless their weights agree."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from motet.algorithm import stacked_batch
    from motet.algorithms import DQNConfig

    config, spaces = DQNConfig(batch_size=32, min_rows=32), (Box(-1, 1, (8,)), Discrete(3))
    learners = [config.build(*spaces, 2, [0, 1], one) for one in ("cpu", device)]
    batch, rng = stacked_batch(*spaces, config.replay(*spaces), 2), np.random.default_rng(0)
    for _ in range(3):
        for array in (batch.observation, batch.next_observation, batch.reward):
            array[...] = rng.normal(size=array.shape)
        batch.action[...] = rng.integers(0, 3, batch.action.shape)
        for learner in learners:
            learner.update(batch, [0, 0])
            learner.save()
            learner.load()
    here, there = (learner.weights() for learner in learners)
    if not np.allclose(here, there, rtol=1e-3, atol=1e-5):
        raise MotetError(
            f"after three updates its weights differ from the CPU's by up to {np.abs(here - there).max():g}"
        )


def _package(name: str, what: str) -> Look:
    try:
        return "ok", metadata.version(name), ""
    except metadata.PackageNotFoundError:
        return "missing", f"not installed: {what}", f"optional: pip install {name}"


# ---- output


def _show(findings: list[Finding], failed: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "green", "warning": "yellow", "missing": "red"}
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for f in findings:
        style = styles[f.verdict] if f.essential or f.verdict != "missing" else "dim"
        found = Text(f.found)
        if f.advice:
            found.append(f"\n{f.advice}", style="italic")
        table.add_row(Text(f.verdict, style=style), Text(f.name, style="bold"), found)
    console = Console()
    console.print(table)
    console.print(
        Text("an essential part is missing", style="red")
        if failed
        else Text("everything that motet needs is available", style="green")
    )
